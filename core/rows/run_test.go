package rows

import (
	"math"
	"math/rand"
	"slices"
	"testing"
)

// appendSpans is AppendRuns for slots that belong to the rows row, row+1, ….
func appendSpans(dst []Span, row int64, slots []int64) []Span {
	for _, r := range AppendRuns(nil, slots) {
		dst = append(dst, Span{Row: row, Slot: r.Slot, Len: r.Len})
		row += r.Len
	}
	return dst
}

func TestAppendRuns(t *testing.T) {
	for _, c := range []struct {
		slots []int64
		want  []Run
	}{
		{nil, nil},
		{[]int64{5}, []Run{{5, 1}}},
		{[]int64{5, 6, 7}, []Run{{5, 3}}},
		{[]int64{7, 6, 5}, []Run{{7, 1}, {6, 1}, {5, 1}}},
		{[]int64{5, 5, 6}, []Run{{5, 1}, {5, 2}}},
		{[]int64{0, 1, 3, 4, 5, 9}, []Run{{0, 2}, {3, 3}, {9, 1}}},
	} {
		if got := AppendRuns(nil, c.slots); !slices.Equal(got, c.want) {
			t.Errorf("AppendRuns(%v) is %v, expected %v", c.slots, got, c.want)
		}
	}
}

// Runs and spans name the same slots in the same order, and none could be joined
// to the next.
func TestRunsKeepSlotsAndOrder(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for i := 0; i < 300; i++ {
		slots := randomSlots(r, 1+r.Intn(100), 60)
		runs := AppendRuns([]Run{{99, 1}}, slots)
		spans := appendSpans(nil, 10, slots)
		if runs[0] != (Run{99, 1}) {
			t.Fatal("AppendRuns changed what was there before")
		}
		runs = runs[1:]
		var back []int64
		for j, x := range runs {
			for s := x.Slot; s < x.Slot+x.Len; s++ {
				back = append(back, s)
			}
			if j > 0 && runs[j-1].Slot+runs[j-1].Len == x.Slot {
				t.Fatalf("runs %v and %v are one", runs[j-1], x)
			}
			if spans[j].Slot != x.Slot || spans[j].Len != x.Len {
				t.Fatalf("span %v is not run %v", spans[j], x)
			}
		}
		if !slices.Equal(back, slots) || SpanRows(spans) != int64(len(slots)) {
			t.Fatalf("runs of %v are %v", slots, runs)
		}
		for j, m := range expand(spans) {
			if m.row != int64(10+j) || m.slot != slots[j] {
				t.Fatalf("spans of %v are %v", slots, spans)
			}
		}
	}
}

func TestFirstOutside(t *testing.T) {
	for _, c := range []struct {
		slots []int64
		want  int
	}{{nil, -1}, {[]int64{0, 9}, -1}, {[]int64{0, 10}, 1}, {[]int64{-1}, 0}, {[]int64{3, math.MinInt64, 99}, 1}} {
		if got := FirstOutside(c.slots, 10); got != c.want {
			t.Errorf("FirstOutside(%v, 10) is %d, expected %d", c.slots, got, c.want)
		}
	}
}
