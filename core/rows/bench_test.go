package rows

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"
	"unsafe"
)

// Rows go to random slots of a mirror far larger than the caches; a batch is 256
// rows, or what makes 8 MiB. Every kernel is timed in turn with a memmove a row
// or run, which is what a program without these kernels would do, so that a busy
// neighbour meets both: "x-copy" is the ratio of the medians. Machines differ, and
// so do minutes on one of them; compare ratios, not GB/s.
//
//	go test -run '^$' -bench 'Scatter|Gather' ./core/rows
const benchMirror = 256 << 20

type benchCase struct {
	m     *Mirror
	src   unsafe.Pointer
	dst   unsafe.Pointer
	slots []int64 // every slot once, as far as a million go, in runs
	batch int
	pos   int

	// The batch at work, in the two other ways to name slots.
	runs  []Run
	spans []Span
}

func newBenchCase(b *testing.B, width, run int64) *benchCase {
	count := benchMirror / width
	batch := min(256, max(run, (8<<20)/width))
	m, err := NewMirror(count, width, MirrorOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.Free)
	_ = m.Touch(0, count)
	bufs := [2]*Memory{}
	for i := range bufs {
		if bufs[i], err = Reserve(max(HugeBytes, batch*width), MemoryOptions{}); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(bufs[i].Free)
		_ = bufs[i].Touch(0, bufs[i].Size())
	}
	c := &benchCase{m: m, src: bufs[0].Base(), dst: bufs[1].Base(), batch: int(batch)}
	for _, r := range rand.New(rand.NewSource(1)).Perm(int(count / run)) {
		if len(c.slots) >= 1<<20 {
			break
		}
		for i := range run {
			c.slots = append(c.slots, int64(r)*run+i)
		}
	}
	return c
}

func (c *benchCase) next() []int64 {
	if c.pos += c.batch; c.pos+c.batch > len(c.slots) {
		c.pos = 0
	}
	return c.slots[c.pos : c.pos+c.batch]
}

func (c *benchCase) name(slots []int64) {
	c.runs = AppendRuns(c.runs[:0], slots)
	c.spans = c.spans[:0]
	var row int64
	for _, r := range c.runs {
		c.spans = append(c.spans, Span{Row: row, Slot: r.Slot, Len: r.Len})
		row += r.Len
	}
}

func (c *benchCase) at(p unsafe.Pointer, i int) unsafe.Pointer {
	return unsafe.Add(p, int64(i)*c.m.RowBytes())
}

func (c *benchCase) run(b *testing.B, kernel string, f, plain func(slots []int64)) {
	b.Run(fmt.Sprintf("%s/%d", kernel, c.m.RowBytes()), func(b *testing.B) {
		withKernel(b, kernel)
		mine, theirs := make([]int64, b.N), make([]int64, b.N)
		b.ReportAllocs()
		b.ResetTimer()
		for i := range b.N {
			s, t := c.next(), c.next()
			c.name(s)
			t0 := time.Now()
			f(s)
			t1 := time.Now()
			plain(t)
			mine[i], theirs[i] = t1.Sub(t0).Nanoseconds(), time.Since(t1).Nanoseconds()
		}
		b.StopTimer()
		slices.Sort(mine)
		slices.Sort(theirs)
		a, p := float64(mine[b.N/2]), float64(theirs[b.N/2])
		bytes := float64(int64(c.batch) * c.m.RowBytes())
		b.ReportMetric(a, "ns/op")
		b.ReportMetric(bytes/a, "GB/s")
		b.ReportMetric(bytes/p, "copy-GB/s")
		b.ReportMetric(p/a, "x-copy")
	})
}

var benchWidths = []int64{64, 128, 200, 256, 512, 1000, 1024, 4096, 16384, 65536, 1 << 20}

// Bytes are counted once, though each is stored twice.
func BenchmarkScatterTee(b *testing.B) {
	for _, w := range benchWidths {
		c := newBenchCase(b, w, 1)
		for _, k := range Kernels() {
			c.run(b, k, func(slots []int64) { c.m.ScatterTee(c.src, w, slots, c.dst) }, func(slots []int64) {
				for i, s := range slots {
					copyPlain(c.m.Row(s), c.at(c.src, i), w)
					copyPlain(c.at(c.dst, i), c.at(c.src, i), w)
				}
			})
		}
	}
}

func BenchmarkGather(b *testing.B) { benchGather(b, 1) }

// BenchmarkGatherBlocks reads runs of 16 slots, as a hit on KV blocks does.
func BenchmarkGatherBlocks(b *testing.B) { benchGather(b, 16) }

func benchGather(b *testing.B, run int64) {
	for _, w := range benchWidths {
		if w*run > 1<<20 {
			continue
		}
		c := newBenchCase(b, w, run)
		for _, k := range Kernels() {
			c.run(b, k, func([]int64) { c.m.GatherSpans(c.dst, c.spans) }, func(slots []int64) {
				for i := 0; i < len(slots); i += int(run) {
					copyPlain(c.at(c.dst, i), c.m.Row(slots[i]), run*w)
				}
			})
		}
	}
}

func BenchmarkAppendRuns(b *testing.B) {
	slots := make([]int64, 4096)
	for i := range slots {
		slots[i] = int64(i + i/16*16)
	}
	var runs []Run
	b.ReportAllocs()
	for range b.N {
		runs = AppendRuns(runs[:0], slots)
	}
}

func BenchmarkArena(b *testing.B) {
	a := NewArena(ArenaOptions{})
	defer a.Close()
	b.ReportAllocs()
	for range b.N {
		_, id, _ := a.Get(3 << 20)
		_ = a.Put(id)
	}
}
