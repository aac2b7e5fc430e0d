package gpu_test

import (
	"sync"
	"testing"

	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// BenchmarkEnqueue is the host time of calls on the simulated driver. The metric
// driver-ns/op is the part inside the driver; the difference is ours.
func BenchmarkEnqueue(b *testing.B) {
	f := newFixture(b, 1)
	var d gpu.Device = f.d
	calls := map[string]func() error{
		"CopyToHost": func() error { return d.CopyToHost(f.s, ptr(f.host), f.a, 64) },
		"Record":     func() error { return d.Record(f.e, f.s) },
		"WaitEvent":  func() error { return d.WaitEvent(f.s, f.e) },
		"Done":       func() error { _, err := d.Done(f.e); return err },
	}
	for name, call := range calls {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ok(b, d.Record(f.e, f.s))
			simcuda.Policy(simcuda.Eager)
			before, n := simcuda.Nanoseconds(), simcuda.Calls("")
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(simcuda.Nanoseconds()-before)/float64(b.N), "driver-ns/op")
			b.ReportMetric(float64(simcuda.Calls("")-n)/float64(b.N), "driver-calls/op")
			ok(b, d.Drain(f.s))
		})
	}
	f.close(b)
}

// BenchmarkParker: what a hand-over to another thread costs, there and back, and
// what a Wake costs when nobody sleeps.
func BenchmarkParker(b *testing.B) {
	b.Run("WakeNobody", func(b *testing.B) {
		var p gpu.Parker
		b.ReportAllocs()
		for b.Loop() {
			p.Wake()
		}
	})
	b.Run("RoundTrip", func(b *testing.B) {
		var mu sync.Mutex
		var there, back gpu.Parker
		turn, stop := 0, false
		var wg sync.WaitGroup
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for {
				for turn == 0 && !stop {
					there.Wait(&mu, gpu.NoDeadline)
				}
				if stop {
					return
				}
				turn = 0
				back.Wake()
			}
		})
		b.ReportAllocs()
		for b.Loop() {
			mu.Lock()
			turn = 1
			there.Wake()
			for turn == 1 {
				back.Wait(&mu, gpu.NoDeadline)
			}
			mu.Unlock()
		}
		mu.Lock()
		stop = true
		there.Wake()
		mu.Unlock()
		wg.Wait()
	})
}
