package rows

import (
	"bytes"
	"unsafe"
)

// Scan looks for bytes that are not zero and makes no page present: a page that is not
// there reads as zeros, and reading it would map it, all the 2 MiB around it as well.
// A page that was swapped out counts as not there. One user at a time; what it knows of
// a stretch of 64 MiB it asks for when it gets there, so it is quickest in order.
type Scan struct {
	m      *Memory
	lo, hi int64  // the stretch
	vec    []byte // for each page of it, from mincore
}

// NewScan returns a scan of m, which must not be freed before its last use.
func NewScan(m *Memory) *Scan {
	return &Scan{m: m, vec: make([]byte, min(touchPiece, m.size)/PageBytes)}
}

// Zero reports whether n bytes from off on are all zero. The range is inside.
func (s *Scan) Zero(off, n int64) bool {
	for end := off + n; off < end; {
		next := min(end, off&^(PageBytes-1)+PageBytes)
		if s.present(off) && !zero(unsafe.Slice((*byte)(s.m.At(off)), next-off)) {
			return false
		}
		off = next
	}
	return true
}

// present reports whether the page of byte off has memory.
func (s *Scan) present(off int64) bool {
	if off < s.lo || off >= s.hi {
		s.lo = off - off%touchPiece
		s.hi = min(s.lo+touchPiece, s.m.size)
		part := s.vec[:(s.hi-s.lo)/PageBytes]
		if sysMincore(unsafe.Slice((*byte)(s.m.At(s.lo)), s.hi-s.lo), part) != nil {
			for i := range part { // nobody knows: all of it is looked at
				part[i] = 1
			}
		}
	}
	return s.vec[(off-s.lo)/PageBytes]&1 != 0
}

var zeros [PageBytes]byte

// zero reports whether the bytes of a page, or of a part of one, are zero.
func zero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }
