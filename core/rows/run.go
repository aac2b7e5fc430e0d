package rows

// Run is Len consecutive slots from Slot on. Rows of consecutive slots are
// contiguous in a Mirror, so a run is one copy.
type Run struct{ Slot, Len int64 }

// Span pairs Len consecutive source (or destination) rows from Row on with Len
// consecutive slots from Slot on. A plan that leaves rows out, or that takes
// them from several places, is a list of spans.
type Span struct{ Row, Slot, Len int64 }

// AppendRuns appends the slots, in order, as runs of consecutive slots. The
// result names the same slots in the same order; it is shortest for that order.
// It allocates only when dst has to grow.
func AppendRuns(dst []Run, slots []int64) []Run {
	for i := 0; i < len(slots); {
		j := i + 1
		for j < len(slots) && slots[j] == slots[j-1]+1 {
			j++
		}
		dst = append(dst, Run{Slot: slots[i], Len: int64(j - i)})
		i = j
	}
	return dst
}

// SpanRows is the number of rows in spans.
func SpanRows(spans []Span) int64 {
	var n int64
	for _, s := range spans {
		n += s.Len
	}
	return n
}

// FirstOutside returns the index of the first slot outside [0, limit), or -1.
// It is the check that callers owe the kernels.
func FirstOutside(slots []int64, limit int64) int {
	for i, s := range slots {
		if uint64(s) >= uint64(limit) {
			return i
		}
	}
	return -1
}
