package gpu_test

import (
	"runtime"
	"sync"
	"testing"

	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

func TestEnqueue_AllocatesNothing(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Policy(simcuda.Eager)
	var d gpu.Device = f.d
	rows := gpu.Copy2D{Dst: f.a, Src: f.a + 2048, DstPitch: 64, SrcPitch: 64, Width: 32, Height: 4}
	region := []gpu.Region{{Name: "rows", Addr: uintptr(f.a), Bytes: 64}}
	n := testing.AllocsPerRun(100, func() {
		if d.Check(f.s, region) != nil || d.CopyToDevice(f.s, f.a, ptr(f.host), 64) != nil ||
			d.CopyOnDevice(f.s, f.a+64, f.a, 64) != nil || d.Fill(f.s, f.a, 1, 64) != nil ||
			d.CopyToHost(f.s, ptr(f.host), f.a, 64) != nil || d.CopyRows(f.s, &rows) != nil ||
			d.Record(f.e, f.s) != nil || d.WaitEvent(f.s, f.e) != nil || d.Await(f.e) != nil {
			t.Error("a call failed")
		}
		d.Done(f.e)
		d.Idle(f.s)
	})
	if n != 0 {
		t.Errorf("%v allocations a round, expected 0", n)
	}
	f.close(t)
}

// The driver's odd stream handles look like bad pointers. A stack that grows over
// one, and a collection that sees one, must not mind (handle.go).
func TestHandle_OddValuesSurviveTheCollector(t *testing.T) {
	f := newFixture(t, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		simcuda.SetDevice(t, 0)
		if err := grow(f, 200); err != nil {
			t.Error(err)
		}
		runtime.GC()
		if err := f.d.Drain(gpu.PerThreadStream); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	f.close(t)
}

//go:noinline
func grow(f *fixture, depth int) error {
	var pad [512]byte
	pad[depth] = 1
	if depth > 0 {
		if err := grow(f, depth-1); err != nil {
			return err
		}
	}
	return f.d.Fill(gpu.PerThreadStream, f.a, pad[depth], 64)
}
