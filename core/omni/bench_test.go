package omni

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"libprefixcache/core/rows"
)

// stepBench is a decode batch over long-lived requests: every request has its own
// blocks, and each step writes the next slot of each.
type stepBench struct {
	c      *Cache
	a      SaveArgs
	reads  []Read
	src    []*rows.Memory
	dst    []*rows.Memory
	pos    int64
	blocks int64
	block  int64
}

const benchBlock = 16

func newStepBench(tb testing.TB, batch int, keys, deferred int, rowBytes, blocksEach int64, cfg Config) *stepBench {
	s := &stepBench{block: benchBlock, blocks: blocksEach}
	cfg.NumBlocks, cfg.BlockSize = int64(batch)*blocksEach+1024, benchBlock
	cfg.StagingCapacity = max(int64(batch)*256, 1024)
	c, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	s.c = c
	tb.Cleanup(func() { c.Shutdown(); c.Free() })
	var arrivals []NewRequest
	for i := range batch {
		s.a.Requests = append(s.a.Requests, uint64(i))
		s.a.Counts = append(s.a.Counts, 1)
		arrivals = append(arrivals, NewRequest{Request: uint64(i)})
	}
	s.a.Slots = make([]int64, batch)
	for i := range keys + deferred {
		name, sched := fmt.Sprint("mm", i), JoinNextStep
		if i == 0 {
			name = HiddenKey
		}
		if i >= keys {
			sched = JoinOnFinish
		}
		id, err := c.OpenKey(name, rowBytes, 1, sched)
		if err != nil {
			tb.Fatal(err)
		}
		src, dst := benchMem(tb, int64(batch)*rowBytes), benchMem(tb, int64(batch)*rowBytes)
		s.src, s.dst = append(s.src, src), append(s.dst, dst)
		s.a.Rows = append(s.a.Rows, KeyRows{Key: id, Rows: src.Base(), Stride: rowBytes, Dst: dst.Base(), DstBytes: int64(batch) * rowBytes})
		s.reads = append(s.reads, Read{Key: id, Count: int64(batch), Dst: dst.Base(), DstBytes: int64(batch) * rowBytes})
	}
	if err := c.StepBegin(nil, arrivals, nil); err != nil {
		tb.Fatal(err)
	}
	return s
}

func benchMem(tb testing.TB, n int64) *rows.Memory {
	m, err := rows.Reserve(n, rows.MemoryOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(m.Free)
	if err := m.Touch(0, n); err != nil {
		tb.Fatal(err)
	}
	return m
}

func (s *stepBench) step(tb testing.TB) {
	for i := range s.a.Slots {
		s.a.Slots[i] = int64(i)*s.blocks*s.block + s.pos
	}
	s.pos = (s.pos + 1) % (s.blocks * s.block)
	if err := s.c.StepBegin(nil, nil, nil); err != nil {
		tb.Fatal(err)
	}
	id, err := s.c.Save(&s.a)
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.c.Materialize(id, s.reads); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkDecode is StepBegin + Save + Materialize of one decode step. Every step
// is followed by a bare copy of the same bytes, so that both see the same machine;
// "copies" is the step's time in copies, for which the target at 256 is 2.
func BenchmarkDecode(b *testing.B) {
	for _, batch := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			s := newStepBench(b, batch, 2, 0, 4096, 8, Config{})
			for range 8 * benchBlock {
				s.step(b)
			}
			b.SetBytes(int64(batch) * 2 * 4096)
			b.ReportAllocs()
			n := int64(batch) * 2 * 4096
			from, to := benchMem(b, n), benchMem(b, n)
			var steps, copies time.Duration
			for b.Loop() {
				t0 := time.Now()
				s.step(b)
				t1 := time.Now()
				rows.Copy(to.Base(), from.Base(), n)
				steps, copies = steps+t1.Sub(t0), copies+time.Since(t1)
			}
			b.ReportMetric(float64(steps.Nanoseconds())/float64(b.N), "ns/step")
			b.ReportMetric(float64(steps)/float64(copies), "copies")
		})
	}
}

// BenchmarkDecodeBookkeeping has rows of 8 bytes: what is left is the tables.
func BenchmarkDecodeBookkeeping(b *testing.B) {
	for _, batch := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			s := newStepBench(b, batch, 2, 0, 8, 8, Config{})
			for range 8 * benchBlock {
				s.step(b)
			}
			b.ReportAllocs()
			for b.Loop() {
				s.step(b)
			}
		})
	}
}

func BenchmarkDecodeDeferred(b *testing.B) {
	s := newStepBench(b, 256, 1, 1, 4096, 8, Config{BudgetBytes: 64 << 20})
	for range 8 * benchBlock {
		s.step(b)
	}
	b.SetBytes(256 * 2 * 4096)
	b.ReportAllocs()
	for b.Loop() {
		s.step(b)
	}
}

func BenchmarkBareCopy(b *testing.B) {
	for _, batch := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			n := int64(batch) * 2 * 4096
			src, dst := benchMem(b, n), benchMem(b, n)
			b.SetBytes(n)
			for b.Loop() {
				rows.Copy(dst.Base(), src.Base(), n)
			}
		})
	}
}

// hitBench saves a step whose one request has a hit of n tokens.
func (s *stepBench) hitStep(tb testing.TB, req uint64, blocks []int64, out []*rows.Memory) uint64 {
	n := int64(len(blocks)) * s.block
	if err := s.c.StepBegin([]uint64{req}, []NewRequest{{Request: req, HitTokens: n, Blocks: blocks}}, nil); err != nil {
		tb.Fatal(err)
	}
	a := SaveArgs{Requests: []uint64{req}, Counts: []int64{1}, Slots: []int64{s.c.slots - 1}}
	for i := range s.a.Rows {
		r := s.a.Rows[i]
		r.Dst, r.DstBytes = out[i].Base(), (n+1)*r.Stride
		a.Rows = append(a.Rows, r)
	}
	id, err := s.c.Save(&a)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

func BenchmarkHit(b *testing.B) {
	for _, tokens := range []int64{256, 4096} {
		b.Run(fmt.Sprint(tokens), func(b *testing.B) {
			s := newStepBench(b, 16, 2, 0, 4096, tokens/benchBlock, Config{})
			for range tokens {
				s.step(b)
			}
			var blocks []int64
			for i := range tokens / benchBlock {
				blocks = append(blocks, i)
			}
			out := []*rows.Memory{benchMem(b, (tokens+1)*4096), benchMem(b, (tokens+1)*4096)}
			reads := []Read{
				{Key: s.a.Rows[0].Key, Count: 1, Dst: out[0].Base(), DstBytes: (tokens + 1) * 4096},
				{Key: s.a.Rows[1].Key, Count: 1, Dst: out[1].Base(), DstBytes: (tokens + 1) * 4096}}
			b.SetBytes(2 * tokens * 4096)
			b.Run("cache", func(b *testing.B) {
				for b.Loop() {
					if err := s.c.Materialize(s.hitStep(b, 1000, blocks, out), reads); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("plan", func(b *testing.B) {
				for b.Loop() {
					if err := s.c.Discard(s.hitStep(b, 1000, blocks, out)); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkPendingReads is a 64-request decode step with 16 pending reads of 4096
// rows that share no slot with it. It takes turns with the same step without any,
// and "change-%" is the difference; the target is less than 10.
func BenchmarkPendingReads(b *testing.B) {
	quiet, loaded := pendingBench(b, 0), pendingBench(b, 16)
	var without, with time.Duration
	for b.Loop() {
		t0 := time.Now()
		quiet.step(b)
		t1 := time.Now()
		loaded.step(b)
		without, with = without+t1.Sub(t0), with+time.Since(t1)
	}
	b.ReportMetric(float64(without.Nanoseconds())/float64(b.N), "ns/quiet")
	b.ReportMetric(float64(with.Nanoseconds())/float64(b.N), "ns/pending")
	b.ReportMetric(100*(float64(with)/float64(without)-1), "change-%")
}

func pendingBench(b *testing.B, pending int) *stepBench {
	const rowBytes = 4096
	s := newStepBench(b, 64, 2, 0, rowBytes, 8, Config{StagingDepth: 64})
	for range 8 * benchBlock {
		s.step(b)
	}
	// 4096 rows that nobody writes any more, in the spare blocks.
	fill := SaveArgs{Requests: []uint64{0}, Counts: []int64{4096}}
	var blocks []int64
	first := int64(64*8) * benchBlock
	for i := range int64(4096) {
		fill.Slots = append(fill.Slots, first+i)
	}
	for i := range int64(4096 / benchBlock) {
		blocks = append(blocks, first/benchBlock+i)
	}
	big := benchMem(b, 4097*rowBytes)
	for i := range s.a.Rows {
		fill.Rows = append(fill.Rows, KeyRows{Key: s.a.Rows[i].Key, Rows: big.Base(), Stride: rowBytes})
	}
	id, err := s.c.Save(&fill)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.c.Discard(id); err != nil {
		b.Fatal(err)
	}
	out := []*rows.Memory{benchMem(b, 4097*rowBytes), benchMem(b, 4097*rowBytes)}
	for i := range pending {
		s.hitStep(b, uint64(1000+i), blocks, out)
	}
	return s
}

// TestNoAllocations: a step costs no allocation once the cache has seen its shape,
// whatever requests come and go.
func TestNoAllocations(t *testing.T) {
	for _, cfg := range []struct {
		name     string
		keys     int
		deferred int
		cfg      Config
	}{
		{"immediate", 2, 0, Config{}},
		{"deferred", 1, 1, Config{BudgetBytes: 4 << 20}},
		{"shared", 2, 0, Config{CopyThreads: 2, ShareBytes: 1 << 10}},
	} {
		t.Run(cfg.name, func(t *testing.T) {
			s := newStepBench(t, 64, cfg.keys, cfg.deferred, 512, 8, cfg.cfg)
			for range 2 * 8 * benchBlock {
				s.step(t)
			}
			if n := testing.AllocsPerRun(200, func() { s.step(t) }); n != 0 {
				t.Errorf("a decode step allocates %v times", n)
			}
			// A request that comes with a hit, saves and goes, under a new number each time.
			blocks := []int64{0, 1, 2, 3}
			out := benchMem(t, int64(len(s.a.Rows))*65*512)
			arrivals, finished := []NewRequest{{Blocks: blocks, HitTokens: 64}}, []uint64{0}
			a := SaveArgs{Requests: []uint64{0}, Counts: []int64{1}, Slots: []int64{s.c.slots - 1}}
			var reads []Read
			for i := range s.a.Rows {
				r := s.a.Rows[i]
				dst := unsafe.Add(out.Base(), i*65*512)
				r.Dst, r.DstBytes = dst, 65*512
				if i > 0 {
					r.Dst = nil
				}
				a.Rows = append(a.Rows, r)
				reads = append(reads, Read{Key: r.Key, Count: 1, Dst: dst, DstBytes: 65 * 512})
			}
			num := uint64(1 << 40)
			arriveAndGo := func() {
				finished[0] = num
				num++
				arrivals[0].Request, a.Requests[0] = num, num
				if err := s.c.StepBegin(finished, arrivals, nil); err != nil {
					t.Fatal(err)
				}
				id, err := s.c.Save(&a)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.c.Materialize(id, reads); err != nil {
					t.Fatal(err)
				}
			}
			for range 300 {
				arriveAndGo()
			}
			if n := testing.AllocsPerRun(200, arriveAndGo); n != 0 {
				t.Errorf("an arrival with a hit allocates %v times", n)
			}
		})
	}
}
