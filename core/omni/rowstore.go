package omni

import (
	"math"
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// rowStore holds single rows of one key outside the mirror: deferred rows until
// they are written, and rows copied aside for a planned read. A row is a number;
// consecutive numbers of one segment are consecutive in memory, so runs of rows
// are still one copy.
//
// Rows are counted references: a deferred write holds its rows, and every planned
// read that found them. Memory comes in segments of reserved address space that
// never move and are kept until the key is freed; the working set is bounded by
// the byte budget and by what readers hold.
type rowStore struct {
	rowBytes int64
	shift    uint // rows of a segment: 1 << shift
	segs     []*rows.Memory
	meta     []rowMeta
	freeHead int32 // chain through rowMeta.next, or noRow
	free_    int   // rows in that chain
}

// rowMeta is one row's bookkeeping. It has no pointers.
type rowMeta struct {
	slot  int64  // where the row goes, or lost
	next  int32  // next row of the same strand, or of the free chain
	refs  int32  // 0: free
	write int32  // deferred write the row belongs to, or noRow for a preserved row
	stamp uint32 // low bits of the step that claimed it: finds a slot listed twice
}

const (
	noRow        = -1
	lost         = -1 // another tenant claimed the slot; the row is never written
	segmentBytes = 16 << 20
	minSegment   = 64 // rows
	maxShift     = 14 // keeps the bookkeeping of a segment of narrow rows small
)

func (s *rowStore) init(rowBytes int64) {
	s.rowBytes, s.freeHead = rowBytes, noRow
	for int64(1)<<s.shift < minSegment || int64(1)<<(s.shift+1)*rowBytes <= segmentBytes && s.shift < maxShift {
		s.shift++
	}
}

// reserve makes sure that n rows can be taken without failing.
func (s *rowStore) reserve(n int64) error {
	for int64(s.free_) < n {
		per := int64(1) << s.shift
		first := int64(len(s.meta))
		if first+per > math.MaxInt32 {
			return status.New(status.OutOfMemory, "cannot hold %d more rows of %d bytes outside the mirror", n, s.rowBytes)
		}
		m, err := rows.Reserve(per*s.rowBytes, rows.MemoryOptions{Purpose: rows.PurposeDeferred, DontDump: true})
		if err != nil {
			return err
		}
		s.segs = append(s.segs, m)
		s.meta = append(s.meta, make([]rowMeta, per)...)
		for i := first + per - 1; i >= first; i-- { // lowest number first
			s.meta[i].next = s.freeHead
			s.freeHead = int32(i)
		}
		s.free_ += int(per)
	}
	return nil
}

// take gives a row with one reference. reserve has made sure that there is one.
func (s *rowStore) take() int32 {
	h := s.freeHead
	m := &s.meta[h]
	s.freeHead = m.next
	s.free_--
	*m = rowMeta{slot: lost, next: noRow, refs: 1, write: noRow}
	return h
}

// drop gives one reference back.
func (s *rowStore) drop(h int32) {
	m := &s.meta[h]
	m.refs--
	if m.refs == 0 {
		m.next, s.freeHead = s.freeHead, h
		s.free_++
	}
}

// dropChain gives back one reference of every row from head on. Rows that come
// free keep their order, so that the next tenant's rows are runs again.
func (s *rowStore) dropChain(head int32) {
	first, last := int32(noRow), int32(noRow)
	for h := head; h != noRow; {
		m := &s.meta[h]
		next := m.next
		m.next = noRow
		if m.refs--; m.refs == 0 {
			if last == noRow {
				first = h
			} else {
				s.meta[last].next = h
			}
			last = h
			s.free_++
		}
		h = next
	}
	if last != noRow {
		s.meta[last].next, s.freeHead = s.freeHead, first
	}
}

func (s *rowStore) at(h int32) unsafe.Pointer { return s.in(s.segs, h) }

// in is at for a caller without the lock, who brings its own list of segments.
func (s *rowStore) in(segs []*rows.Memory, h int32) unsafe.Pointer {
	return segs[h>>s.shift].At(int64(h&(1<<s.shift-1)) * s.rowBytes)
}

// follows reports whether row b lies directly behind row a in memory.
func (s *rowStore) follows(a, b int32) bool { return b == a+1 && a>>s.shift == b>>s.shift }

func (s *rowStore) free() {
	for _, m := range s.segs {
		m.Free()
	}
	s.segs, s.meta, s.freeHead, s.free_ = nil, nil, noRow, 0
}
