package rows

import "unsafe"

// Scatter writes row i of the source to slots[i]. Source rows are srcStride
// bytes apart. Neighbouring slots are moved in one piece when the source is
// contiguous too.
func (m *Mirror) Scatter(src unsafe.Pointer, srcStride int64, slots []int64) {
	for i, s := range slots {
		Copy(m.Row(s), unsafe.Add(src, int64(i)*srcStride), m.rowBytes)
	}
}

// ScatterRuns is Scatter with the slots given as runs.
func (m *Mirror) ScatterRuns(src unsafe.Pointer, srcStride int64, runs []Run) {
	for _, r := range runs {
		CopyRows(m.Row(r.Slot), m.rowBytes, src, srcStride, m.rowBytes, r.Len)
		src = unsafe.Add(src, r.Len*srcStride)
	}
}

// ScatterSpans writes rows Row, Row+1, … of the source to the slots of each span.
func (m *Mirror) ScatterSpans(src unsafe.Pointer, srcStride int64, spans []Span) {
	for _, s := range spans {
		CopyRows(m.Row(s.Slot), m.rowBytes, unsafe.Add(src, s.Row*srcStride), srcStride, m.rowBytes, s.Len)
	}
}

// ScatterTee is Scatter that also writes row i to tee + i × RowBytes, from the
// same loads: the mirror's copy bypasses the cache, the tee's stays in it.
func (m *Mirror) ScatterTee(src unsafe.Pointer, srcStride int64, slots []int64, tee unsafe.Pointer) {
	m.Scatter(src, srcStride, slots)
	CopyRows(tee, m.rowBytes, src, srcStride, m.rowBytes, int64(len(slots)))
}

// ScatterTeeRuns is ScatterTee with the slots given as runs.
func (m *Mirror) ScatterTeeRuns(src unsafe.Pointer, srcStride int64, runs []Run, tee unsafe.Pointer) {
	m.ScatterRuns(src, srcStride, runs)
	CopyRows(tee, m.rowBytes, src, srcStride, m.rowBytes, RunRows(runs))
}

// ScatterTeeSpans writes rows Row, Row+1, … of the source to the slots of each
// span and to the same rows of tee.
func (m *Mirror) ScatterTeeSpans(src unsafe.Pointer, srcStride int64, spans []Span, tee unsafe.Pointer) {
	m.ScatterSpans(src, srcStride, spans)
	for _, s := range spans {
		CopyRows(unsafe.Add(tee, s.Row*m.rowBytes), m.rowBytes, unsafe.Add(src, s.Row*srcStride), srcStride, m.rowBytes, s.Len)
	}
}
