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
// read that found them. Memory comes in segments of address space that never move;
// the working set is bounded by the byte budget and by what readers hold. Rows are
// taken from the lowest segment that has one, so that the last segments run empty
// when demand falls, and are given back to the system: see surplus.
type rowStore struct {
	rowBytes int64
	shift    uint // rows of a segment: 1 << shift
	zero     bool // Config.ZeroOnRelease
	segs     []*rows.Memory
	meta     []rowMeta
	chains   []freeChain // of each segment
	low      int         // no segment below has a free row
	free_    int         // rows in all chains

	peak, before int // most rows wanted at once, in this window of saves and in the last
}

// freeChain is the free rows of one segment, linked through rowMeta.next.
type freeChain struct {
	head int32 // or noRow
	n    int32
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

func (s *rowStore) init(rowBytes int64, zero bool) {
	s.rowBytes, s.zero = rowBytes, zero
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
		s.chains = append(s.chains, freeChain{int32(first), int32(per)})
		for i := first; i < first+per; i++ { // lowest number first
			s.meta[i].next = int32(i + 1)
		}
		s.meta[first+per-1].next = noRow
		s.free_ += int(per)
	}
	s.peak = max(s.peak, s.used()+int(n))
	return nil
}

func (s *rowStore) used() int { return len(s.meta) - s.free_ }

// take gives a row with one reference. reserve has made sure that there is one.
func (s *rowStore) take() int32 {
	for s.chains[s.low].n == 0 {
		s.low++
	}
	c := &s.chains[s.low]
	h := c.head
	m := &s.meta[h]
	c.head = m.next
	c.n--
	s.free_--
	*m = rowMeta{slot: lost, next: noRow, refs: 1, write: noRow}
	return h
}

// drop gives one reference back.
func (s *rowStore) drop(h int32) {
	m := &s.meta[h]
	m.refs--
	if m.refs == 0 {
		m.next = noRow
		s.put(h, h, 1)
	}
}

// dropChain gives back one reference of every row from head on. Rows that come
// free keep their order, so that the next tenant's rows are runs again.
func (s *rowStore) dropChain(head int32) {
	first, last, n := int32(noRow), int32(noRow), int32(0)
	for h := head; h != noRow; {
		m := &s.meta[h]
		next := m.next
		m.next = noRow
		if m.refs--; m.refs == 0 {
			if n > 0 && h>>s.shift != last>>s.shift { // another segment
				s.put(first, last, n)
				n = 0
			}
			if n == 0 {
				first = h
			} else {
				s.meta[last].next = h
			}
			last = h
			n++
		}
		h = next
	}
	if n > 0 {
		s.put(first, last, n)
	}
}

// put makes n rows of one segment free, a chain from first to last.
func (s *rowStore) put(first, last, n int32) {
	if s.zero {
		for h, left := first, n; left > 0; h, left = s.meta[h].next, left-1 {
			rows.Zero(s.at(h), s.rowBytes)
		}
	}
	seg := int(first >> s.shift)
	c := &s.chains[seg]
	s.meta[last].next, c.head = c.head, first
	c.n += n
	s.free_ += int(n)
	s.low = min(s.low, seg)
}

// window begins another window of saves: what was wanted in the one before the
// last is no reason any more to keep memory.
func (s *rowStore) window() { s.before, s.peak = s.peak, s.used() }

// surplus takes the last segment out of the store, when it is empty and two windows
// have not needed as many. nil: it is to stay. The caller, who must be the one that
// takes rows, frees it without the lock.
func (s *rowStore) surplus() *rows.Memory {
	last, per := len(s.segs)-1, 1<<s.shift
	if last < 0 || int(s.chains[last].n) < per || max(s.peak, s.before) > last*per {
		return nil
	}
	m := s.segs[last]
	s.segs, s.chains, s.meta = s.segs[:last], s.chains[:last], s.meta[:last*per]
	s.free_ -= per
	s.low = min(s.low, max(0, last-1))
	if cap(s.meta) > 4*len(s.meta) { // its book-keeping goes, too
		s.meta = append(make([]rowMeta, 0, 2*len(s.meta)), s.meta...)
	}
	return m
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
	s.segs, s.meta, s.chains, s.low, s.free_ = nil, nil, nil, 0, 0
}
