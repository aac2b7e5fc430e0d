package rows

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A shared move against the same by one thread, in turn: "x-one" is the ratio of
// the medians. Rows of 4 KiB in blocks of 16 at random, source and tee warm or not as
// the size has it.
func BenchmarkCrew(b *testing.B) {
	const width, most = 4 << 10, 32 << 20
	m, err := NewMirror(8*most/width, width, MirrorOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.Free)
	_ = m.Touch(0, m.Slots())
	bufs := [2]*Memory{}
	for i := range bufs {
		if bufs[i], err = Reserve(most, MemoryOptions{}); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(bufs[i].Free)
		_ = bufs[i].Touch(0, most)
	}
	for _, threads := range []int{2, 4} {
		crew := NewCrew(threads, 512<<10)
		b.Cleanup(crew.Close)
		for size := int64(512 << 10); size <= most; size *= 2 {
			n := size / width
			slots := make([]int64, 0, n)
			var spans []Span
			for i := int64(0); i < n; i += 16 {
				at := (i * 8191 * 16) % m.Slots() / 16 * 16
				spans = append(spans, Span{Row: i, Slot: at, Len: 16})
				for j := range int64(16) {
					slots = append(slots, at+j)
				}
			}
			run := func(name string, f func(c *Crew)) {
				b.Run(fmt.Sprintf("%s/%d/%d-KiB", name, threads, size>>10), func(b *testing.B) {
					shared, alone := make([]int64, b.N), make([]int64, b.N)
					for i := range b.N {
						t0 := time.Now()
						f(crew)
						t1 := time.Now()
						f(nil)
						t2 := time.Now()
						shared[i], alone[i] = t1.Sub(t0).Nanoseconds(), t2.Sub(t1).Nanoseconds()
					}
					slices.Sort(alone)
					slices.Sort(shared)
					a, s := alone[b.N/2], shared[b.N/2]
					b.ReportMetric(float64(s)/1e3, "us")
					b.ReportMetric(float64(a)/1e3, "us-alone")
					b.ReportMetric(float64(a)/float64(s), "x-one")
					b.ReportMetric(0, "ns/op")
				})
			}
			var v Moves
			run("tee", func(c *Crew) {
				v.Begin(c, size)
				v.ScatterTee(m, bufs[0].Base(), width, slots, bufs[1].Base())
				v.End()
			})
			run("gather", func(c *Crew) {
				v.Begin(c, size)
				v.GatherSpans(m, bufs[1].Base(), spans)
				v.End()
			})
		}
	}
}
