package coordinator

import (
	"fmt"
	"testing"
)

func benchCoordinator(b *testing.B, batch, capacity, p int32) (*Coordinator, []Command) {
	b.Helper()
	cfg := DefaultConfig()
	cfg.Enabled, cfg.Kind, cfg.TokensPerPage, cfg.MaxBatch = true, KindVanilla, p, batch
	width := capacity / p
	table, err := NewPageTable(batch, width, batch*width)
	if err != nil {
		b.Fatal(err)
	}
	cfg.Base = CacheResources{Pages: batch * width, MaxBatch: batch, PaddedCapacity: capacity, Table: table}
	c, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	c.Manager().Touch()
	return c, make([]Command, c.MaxCommands())
}

// settle admits batch prompts of n tokens and takes them to the first decode.
func settle(b *testing.B, c *Coordinator, dst []Command, batch, n int32) (Handle, []Advance) {
	b.Helper()
	a := Admission{}
	adv := make([]Advance, batch)
	for i := range batch {
		a.Sequences = append(a.Sequences, SequenceAdmission{Tokens: seq(i, n)})
		adv[i] = Advance{Tokens: []int32{1}, Committed: n}
	}
	h, err := c.Begin(&a, 0)
	if err != nil {
		b.Fatal(err)
	}
	k, err := c.PreparePrefill(h, dst)
	reportTo(b, c, h, k, err)
	reportTo(b, c, h, 0, func() error { _, err := c.EnqueuePrefillCaptures(h, dst); return err }())
	reportTo(b, c, h, 0, c.FinalizePrefill(h, adv, nil))
	return h, adv
}

func reportTo(b *testing.B, c *Coordinator, h Handle, n int, err error) {
	if err == nil && n > 0 {
		err = c.Report(h, Done, n)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// One decode round, prepare and complete, growth included where pages end.
func BenchmarkDecodeStep(b *testing.B) {
	for _, s := range []struct{ batch, tokens, p int32 }{{1, 1000, 128}, {1, 100000, 128}, {64, 1000, 128}, {64, 1000, 16}, {64, 30000, 16}} {
		b.Run(fmt.Sprintf("batch=%d/context=%d/page=%d", s.batch, s.tokens, s.p), func(b *testing.B) {
			const steps = 2048
			c, dst := benchCoordinator(b, s.batch, (s.tokens+steps+2*s.p)/s.p*s.p, s.p)
			h, adv := settle(b, c, dst, s.batch, s.tokens)
			at := int32(0)
			b.ReportAllocs()
			for b.Loop() {
				if at == steps {
					b.StopTimer()
					n, err := c.Finish(h, dst)
					reportTo(b, c, h, n, err)
					h, adv = settle(b, c, dst, s.batch, s.tokens)
					at = 0
					b.StartTimer()
				}
				at++
				n, err := c.PrepareDecodeStep(h, Headroom{}, dst)
				reportTo(b, c, h, n, err)
				for i := range adv {
					adv[i].Committed = s.tokens + at
				}
				n, err = c.CompleteDecodeStep(h, adv, nil, nil, dst)
				reportTo(b, c, h, n, err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(s.batch), "ns/sequence")
		})
	}
}

// A whole request that hits all but its last tokens: begin to finish.
func BenchmarkRequest(b *testing.B) {
	for _, n := range []int32{1000, 32768} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			c, dst := benchCoordinator(b, 1, 33024, 128)
			tokens := seq(1, n)
			a := Admission{Sequences: []SequenceAdmission{{Tokens: tokens}}}
			adv := []Advance{{Tokens: []int32{1}, Committed: n}}
			b.ReportAllocs()
			for b.Loop() {
				h, err := c.Begin(&a, 0)
				reportTo(b, c, h, 0, err)
				k, err := c.PreparePrefill(h, dst)
				reportTo(b, c, h, k, err)
				k, err = c.EnqueuePrefillCaptures(h, dst)
				reportTo(b, c, h, k, err)
				reportTo(b, c, h, 0, c.FinalizePrefill(h, adv, nil))
				k, err = c.Finish(h, dst)
				reportTo(b, c, h, k, err)
			}
		})
	}
}
