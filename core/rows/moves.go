package rows

import "unsafe"

// Moves carries out moves of rows: one after the other as they are named, or, when
// together they are large and there is a Crew, in parts by several threads at End.
// What is written is the same.
//
//	v.Begin(crew, bytes)
//	v.ScatterTee(...); v.Gather(...); v.Copy(...)    any number
//	v.End()
//
// Between Begin and End the moves must not depend on each other: destinations are
// disjoint from each other and from every source, and no two rows are scattered to
// one slot. (Of two, a scatter keeps the last; so that is for one thread.)
//
// The zero value is ready. It is scratch, to be kept for the next time: it does not
// allocate once it has grown. Not for concurrent use.
type Moves struct {
	crew  *Crew // that works for this, between Begin and End, or nil
	list  []part
	spans []Span // what gathers of the list refer to
}

// part is a share of a move that one thread does in one go. Addresses are of row 0
// of the part.
type part struct {
	kind     partKind
	stream   bool    // both sides bypass the cache, see teeStreamBytes and gatherStreamBytes
	m        *Mirror // scatter, gather
	src, dst unsafe.Pointer
	stride   int64   // bytes between source rows
	slots    []int64 // scatter
	from, to int     // gather: spans
	row, n   int64   // copy: bytes of a row, rows
	dstride  int64   // copy: bytes between destination rows
}

type partKind uint8

const (
	partScatter partKind = iota
	partGather
	partCopy
)

// Begin opens a list of moves of that many bytes together. crew may be nil.
func (v *Moves) Begin(crew *Crew, bytes int64) {
	if crew.take(bytes) {
		v.crew = crew
	}
}

// End returns when every move is done, its stores ordered before all later ones of
// the calling thread.
func (v *Moves) End() {
	crew := v.crew
	if crew == nil {
		return
	}
	list, spans := v.list, v.spans
	v.crew, v.list, v.spans = nil, list[:0], spans[:0]
	if len(list) == 0 {
		crew.owner.Unlock()
		return
	}
	defer clear(list) // whatever happens, no address of the caller is kept
	crew.carryOut(list, spans)
}

// rowsOf is how many rows of a width make a part.
func (v *Moves) rowsOf(width int64) int { return int(max(1, v.crew.least/partsOfLeast/width)) }

// ScatterTee is that of the mirror.
func (v *Moves) ScatterTee(m *Mirror, src unsafe.Pointer, srcStride int64, slots []int64, tee unsafe.Pointer) {
	if v.crew == nil {
		m.ScatterTee(src, srcStride, slots, tee)
		return
	}
	stream := int64(len(slots))*m.rowBytes >= teeStreamBytes
	step := v.rowsOf(m.rowBytes)
	for i := 0; i < len(slots); i += step {
		v.list = append(v.list, part{
			kind: partScatter, stream: stream, m: m, slots: slots[i:min(i+step, len(slots))],
			src: unsafe.Add(src, int64(i)*srcStride), dst: unsafe.Add(tee, int64(i)*m.rowBytes), stride: srcStride,
		})
	}
}

// GatherSpans is that of the mirror.
func (v *Moves) GatherSpans(m *Mirror, dst unsafe.Pointer, spans []Span) {
	if v.crew == nil {
		m.GatherSpans(dst, spans)
		return
	}
	stream := SpanRows(spans)*m.rowBytes >= gatherStreamBytes
	step := int64(v.rowsOf(m.rowBytes))
	// A part is a range of spans; long ones are cut, short ones collected.
	from, room := len(v.spans), step
	cut := func() {
		if to := len(v.spans); to > from {
			v.list = append(v.list, part{kind: partGather, stream: stream, m: m, dst: dst, from: from, to: to})
			from, room = to, step
		}
	}
	for _, s := range spans {
		for s.Len > 0 {
			n := min(s.Len, room)
			v.spans = append(v.spans, Span{Row: s.Row, Slot: s.Slot, Len: n})
			s.Row, s.Slot, s.Len = s.Row+n, s.Slot+n, s.Len-n
			if room -= n; room == 0 {
				cut()
			}
		}
	}
	cut()
}

// CopyRows is the function of that name.
func (v *Moves) CopyRows(dst unsafe.Pointer, dstStride int64, src unsafe.Pointer, srcStride, rowBytes, n int64) {
	if v.crew == nil {
		CopyRows(dst, dstStride, src, srcStride, rowBytes, n)
		return
	}
	step := int64(v.rowsOf(rowBytes))
	for i := int64(0); i < n; i += step {
		v.list = append(v.list, part{
			kind: partCopy, dst: unsafe.Add(dst, i*dstStride), dstride: dstStride,
			src: unsafe.Add(src, i*srcStride), stride: srcStride, row: rowBytes, n: min(step, n-i),
		})
	}
}

// carryOut does a part. spans are those of its list.
func (p *part) carryOut(spans []Span) {
	switch p.kind {
	case partScatter:
		s := p.m.sink(p.src, p.stride, p.dst, 0)
		s.large = p.stream
		s.slots(p.slots)
	case partGather:
		s := p.m.source(p.dst, 0)
		s.stream = p.stream
		s.spans(spans[p.from:p.to])
	case partCopy:
		CopyRows(p.dst, p.dstride, p.src, p.stride, p.row, p.n)
	}
}
