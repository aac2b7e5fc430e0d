package rows

import "unsafe"

// Gather reads the rows of slots, in order, into dst without gaps.
func (m *Mirror) Gather(dst unsafe.Pointer, slots []int64) {
	for i, s := range slots {
		Copy(unsafe.Add(dst, int64(i)*m.rowBytes), m.Row(s), m.rowBytes)
	}
}

// GatherRuns is Gather with the slots given as runs.
func (m *Mirror) GatherRuns(dst unsafe.Pointer, runs []Run) {
	for _, r := range runs {
		Copy(dst, m.Row(r.Slot), r.Len*m.rowBytes)
		dst = unsafe.Add(dst, r.Len*m.rowBytes)
	}
}

// GatherSpans reads the slots of each span to rows Row, Row+1, … of dst. Rows of
// dst that no span names are left alone.
func (m *Mirror) GatherSpans(dst unsafe.Pointer, spans []Span) {
	for _, s := range spans {
		Copy(unsafe.Add(dst, s.Row*m.rowBytes), m.Row(s.Slot), s.Len*m.rowBytes)
	}
}
