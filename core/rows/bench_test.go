package rows

import (
	"fmt"
	"math/rand"
	"testing"
	"unsafe"
)

// Rows go to random slots of a mirror far larger than the caches; a batch is 256
// rows, or what makes 8 MiB. "copy" is a memmove a row: what a program without
// these kernels would do. Compare within one run; machines and neighbours differ.
//
//	go test -run '^$' -bench 'Scatter|Gather' ./core/rows
const benchMirror = 256 << 20

type benchCase struct {
	m     *Mirror
	src   unsafe.Pointer
	dst   unsafe.Pointer
	slots [][]int64
}

func newBenchCase(b *testing.B, width, run int64) *benchCase {
	count := benchMirror / width
	batch := min(256, max(1, (8<<20)/width))
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
	c := &benchCase{m: m, src: bufs[0].Base(), dst: bufs[1].Base()}
	r := rand.New(rand.NewSource(1))
	for range 32 {
		var s []int64
		for int64(len(s)) < batch {
			for at, i := r.Int63n(count/run)*run, int64(0); i < run && int64(len(s)) < batch; i++ {
				s = append(s, at+i)
			}
		}
		c.slots = append(c.slots, s)
	}
	return c
}

func (c *benchCase) run(b *testing.B, kernel string, f func(slots []int64)) {
	b.Run(fmt.Sprintf("%s/%d", kernel, c.m.RowBytes()), func(b *testing.B) {
		if kernel != "copy" {
			withKernel(b, kernel)
		}
		b.ReportAllocs()
		bytes := int64(len(c.slots[0])) * c.m.RowBytes()
		for i := range b.N {
			f(c.slots[i%len(c.slots)])
		}
		b.ReportMetric(float64(bytes)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GB/s")
	})
}

var benchWidths = []int64{64, 256, 1000, 1024, 4096, 16384, 65536, 1 << 20}

func (c *benchCase) at(p unsafe.Pointer, i int) unsafe.Pointer {
	return unsafe.Add(p, int64(i)*c.m.RowBytes())
}

func BenchmarkScatter(b *testing.B) {
	for _, w := range benchWidths {
		c := newBenchCase(b, w, 1)
		c.run(b, "copy", func(slots []int64) {
			for i, s := range slots {
				copyPlain(c.m.Row(s), c.at(c.src, i), w)
			}
		})
		for _, k := range Kernels() {
			c.run(b, k, func(slots []int64) { c.m.Scatter(c.src, w, slots) })
		}
	}
}

// Bytes are counted once, though each is stored twice.
func BenchmarkScatterTee(b *testing.B) {
	for _, w := range benchWidths {
		c := newBenchCase(b, w, 1)
		c.run(b, "copy", func(slots []int64) {
			for i, s := range slots {
				copyPlain(c.m.Row(s), c.at(c.src, i), w)
				copyPlain(c.at(c.dst, i), c.at(c.src, i), w)
			}
		})
		for _, k := range Kernels() {
			c.run(b, k, func(slots []int64) { c.m.ScatterTee(c.src, w, slots, c.dst) })
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
		c.run(b, "copy", func(slots []int64) {
			for i := 0; i < len(slots); i += int(run) {
				n := min(int(run), len(slots)-i)
				copyPlain(c.at(c.dst, i), c.m.Row(slots[i]), int64(n)*w)
			}
		})
		for _, k := range Kernels() {
			c.run(b, k, func(slots []int64) { c.m.Gather(c.dst, slots) })
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

func BenchmarkSlab(b *testing.B) {
	s := NewSlab(SlabOptions{})
	defer s.Close()
	var ids [256]uint64
	r := rand.New(rand.NewSource(1))
	sizes := make([]int64, 1024)
	for i := range sizes {
		sizes[i] = randomSize(r)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		k := i % len(ids)
		if ids[k] != 0 {
			_ = s.Free(ids[k])
		}
		_, ids[k], _ = s.Alloc(sizes[i%len(sizes)])
	}
}
