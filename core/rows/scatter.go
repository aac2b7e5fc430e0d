package rows

import "unsafe"

// streamMinBytes is the shortest move that is streamed past the cache. A shorter
// one has too few whole lines for what it costs to write its ends apart.
//
// Measured on Zen 3, 2 cores, huge pages, random slots, mirrors of 256 KiB to
// 1 GiB, batches of 1 to 512 rows; stream over memmove (above 1 is a gain):
// whole lines 64 B 0.8–1.9, 128 B 0.9–2.4, 192 B 1.1–3.4, 256 B 1.1–3.2, 4 KiB
// 1.1–3.7; other widths 100 B 0.6–0.9, 200 B 0.7–1.3, 1000 B 1.05–1.6. A small
// mirror or a small batch does not turn it round, so the length alone decides.
const (
	streamMinBytes      = 256
	streamMinWholeLines = 128
	lineBytes           = 64
)

// streams tells whether a move of n bytes to a mirror row is streamed. Mirror
// memory is page-aligned, so a multiple of the line length means whole lines.
func streams(n int64) bool {
	return n >= streamMinBytes || n >= streamMinWholeLines && n%lineBytes == 0
}

// A batch of teeStreamBytes or more no longer fits the cache of a core, so nobody
// finds its tee there: both copies bypass it, which saves reading the tee's lines
// before they are written. Each piece goes to the two places in turn and is in
// the first-level cache the second time.
const (
	teeStreamBytes = 4 << 20
	teePiece       = 16 << 10
)

// sink carries what is the same for every move of one scatter.
type sink struct {
	m        *Mirror
	k        *kernel
	src, tee unsafe.Pointer // of row 0
	stride   int64          // of the source, bytes
	row      int64          // bytes of a row
	joined   bool           // the source has no gaps: neighbours are one move
	large    bool           // the tee is streamed, too
	streamed bool           // a fence is due
}

// sink starts a scatter of rows rows.
func (m *Mirror) sink(src unsafe.Pointer, stride int64, tee unsafe.Pointer, rows int64) sink {
	return sink{
		m: m, k: active.Load(), src: src, tee: tee, stride: stride, row: m.rowBytes,
		joined: stride == m.rowBytes, large: rows*m.rowBytes >= teeStreamBytes,
	}
}

// short moves n bytes without gaps, too few to be streamed. It is inlined into
// the loops below: such rows wait for memory, and the calls of put between two
// of them would leave room for fewer in flight.
func (s *sink) short(i, slot, n int64) {
	copyPlain(s.m.Row(slot), unsafe.Add(s.src, i*s.row), n)
	copyPlain(unsafe.Add(s.tee, i*s.row), unsafe.Add(s.src, i*s.row), n)
}

// put moves n rows, from source row i on, to the slots from slot on.
func (s *sink) put(i, slot, n int64) {
	if s.joined {
		s.move(i, slot, n*s.row)
		return
	}
	for k := int64(0); k < n; k++ {
		s.move(i+k, slot+k, s.row)
	}
}

// move moves n bytes from the start of source row i to the start of a slot.
// Addresses are made from offsets: one past the end, which advancing pointers
// would reach, may belong to another object of a Go caller.
func (s *sink) move(i, slot, n int64) {
	dst, src, tee := s.m.Row(slot), unsafe.Add(s.src, i*s.stride), unsafe.Add(s.tee, i*s.row)
	switch {
	case !streams(n):
		copyPlain(dst, src, n)
		copyPlain(tee, src, n)
		return
	case s.large:
		for o := int64(0); o < n; o += teePiece {
			piece := min(n-o, teePiece)
			s.k.stream(unsafe.Add(dst, o), unsafe.Add(src, o), piece)
			s.k.stream(unsafe.Add(tee, o), unsafe.Add(src, o), piece)
		}
	default:
		for o := int64(0); o < n; o += pieceBytes {
			s.k.tee(unsafe.Add(dst, o), unsafe.Add(tee, o), unsafe.Add(src, o), min(n-o, pieceBytes))
		}
	}
	s.streamed = true
}

// done orders the streamed stores before whatever publishes them. It is due
// once a batch: a fence a row would wait for the write-combining buffers.
func (s *sink) done() {
	if s.streamed {
		s.k.fence()
	}
}

// slots moves row i to slots[i], neighbours together.
func (s *sink) slots(slots []int64) {
	l := s.m.aheadOfSlots(s.k, slots)
	for i := 0; i < len(slots); {
		j := i + 1
		for j < len(slots) && slots[j] == slots[j-1]+1 {
			j++
		}
		if n := int64(j-i) * s.row; s.joined && !streams(n) {
			if l.due(i) {
				l.ask(i)
			}
			s.short(int64(i), slots[i], n)
		} else {
			s.put(int64(i), slots[i], int64(j-i))
		}
		i = j
	}
	s.done()
}

// ScatterTee writes row i of the source to slots[i] and to tee + i × RowBytes, from
// the same loads: the mirror's copy bypasses the cache, the tee's stays in it for
// the user who gets it next, unless the batch is too large for that. tee must not
// be nil.
func (m *Mirror) ScatterTee(src unsafe.Pointer, srcStride int64, slots []int64, tee unsafe.Pointer) {
	s := m.sink(src, srcStride, tee, int64(len(slots)))
	s.slots(slots)
}
