package gpu_test

import (
	"bytes"
	"encoding/binary"
	"runtime/debug"
	"strings"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// The simulated driver guards the other tests, so each of its detections is shown
// to work: a scenario that is wrong in one way, and the fault it has to raise.
// Every scenario is run late and eager: a fault must not depend on luck.
func TestSimulator_FindsEachFault(t *testing.T) {
	type scene struct {
		*fixture
		t    *testing.T
		copy gpu.Stream // a second stream
	}
	for _, c := range []struct {
		name, fault string
		run         func(s *scene)
	}{
		{"a read that no event orders after the write", "may not be done", func(s *scene) {
			simcuda.Launch(s.t, uintptr(s.s), uintptr(s.a), 64, 1)
			ok(s.t, s.d.CopyToHost(s.copy, ptr(s.host), s.a, 256))
		}},
		{"a write that no event orders after the read", "may not be done", func(s *scene) {
			ok(s.t, s.d.CopyToHost(s.copy, ptr(s.host), s.a, 256))
			simcuda.Launch(s.t, uintptr(s.s), uintptr(s.a), 64, 1)
		}},
		{"an event that was recorded too early", "may not be done", func(s *scene) {
			ok(s.t, s.d.Record(s.e, s.s))
			simcuda.Launch(s.t, uintptr(s.s), uintptr(s.a), 64, 1)
			ok(s.t, s.d.WaitEvent(s.copy, s.e))
			ok(s.t, s.d.CopyToHost(s.copy, ptr(s.host), s.a, 256))
		}},
		{"stream-ordered memory used on another stream", "may not be done", func(s *scene) {
			b := must[gpu.Addr](s.t)(s.d.Alloc(s.s, 256))
			ok(s.t, s.d.Fill(s.copy, b, 0, 256))
		}},
		{"stream-ordered free while another stream reads", "may not be done", func(s *scene) {
			ok(s.t, s.d.CopyToHost(s.copy, ptr(s.host), s.a, 256))
			ok(s.t, s.d.Free(s.s, s.a))
		}},
		{"the host reads before it waited", "the host reads", func(s *scene) {
			ok(s.t, s.d.CopyToHost(s.s, ptr(s.host), s.a, 256))
			simcuda.HostReads(ptr(s.host[10:]), 4)
		}},
		{"the host reads after waiting for the wrong event", "the host reads", func(s *scene) {
			ok(s.t, s.d.Record(s.e, s.s))
			ok(s.t, s.d.CopyToHost(s.s, ptr(s.host), s.a, 256))
			ok(s.t, s.d.Await(s.e))
			simcuda.HostReads(ptr(s.host), 256)
		}},
		{"pinned memory freed before its copy was seen done", "not seen to be done", func(s *scene) {
			p := must[unsafe.Pointer](s.t)(s.d.AllocHost(256))
			ok(s.t, s.d.CopyToHost(s.s, p, s.a, 256))
			ok(s.t, s.d.FreeHost(p))
		}},
		{"a copy past the end of an allocation", "outside its allocation", func(s *scene) {
			if err := s.d.Fill(s.s, s.a+4000, 0, 97); err == nil {
				s.t.Error("accepted")
			}
		}},
		{"an event nobody recorded", "never recorded", func(s *scene) {
			ok(s.t, s.d.WaitEvent(s.s, s.e))
		}},
		{"memory freed twice", "was freed before", func(s *scene) {
			ok(s.t, cu.MemFree(cu.DevicePtr(must[cu.DevicePtr](s.t)(cu.MemAlloc(64)))))
			p := must[cu.DevicePtr](s.t)(cu.MemAlloc(64))
			ok(s.t, cu.MemFree(p))
			if cu.MemFree(p) == nil {
				s.t.Error("accepted")
			}
		}},
		{"work put into a graph", "which is being captured", func(s *scene) {
			simcuda.Capture(uintptr(s.copy), simcuda.Relaxed)
			ok(s.t, cu.MemsetD8Async(cu.DevicePtr(s.a), 0, 64, *(*cu.Stream)(unsafe.Pointer(&s.copy))))
		}},
		{"a wait that spoils a capture", "spoiled the capture", func(s *scene) {
			simcuda.Capture(uintptr(s.copy), simcuda.Global)
			if cu.Synchronize() == nil {
				s.t.Error("accepted")
			}
		}},
	} {
		for policy, name := range map[int]string{simcuda.Late: "late", simcuda.Eager: "eager"} {
			t.Run(c.name+" "+name, func(t *testing.T) {
				s := &scene{fixture: newFixture(t, 1), t: t}
				s.copy = must[gpu.Stream](t)(s.d.NewStream(gpu.NonBlocking))
				simcuda.Policy(policy)
				c.run(s)
				simcuda.Step(1 << 20)
				if f := faults(); !strings.Contains(f, c.fault) {
					t.Errorf("reported %q, expected %q", f, c.fault)
				}
			})
		}
	}
}

// These two depend on the copy running after the host's mistake, so only late.
func TestSimulator_FindsHostWritesUnderACopy(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Policy(simcuda.Late)
	ok(t, f.d.CopyToDevice(f.s, f.a, ptr(f.host), 256))
	f.host[5]++
	simcuda.Step(1)
	ok(t, f.d.CopyToHost(f.s, ptr(f.host[512:]), f.a, 256))
	if f.host[600] != 0xDB {
		t.Error("the destination of a queued copy looks finished")
	}
	f.host[600] = 1
	simcuda.Step(1)
	r := faults()
	if !strings.Contains(r, "rewrote") || !strings.Contains(r, "wrote to") {
		t.Errorf("reported %q", r)
	}
}

func TestSimulator_HostFaultsOnDeviceMemory(t *testing.T) {
	f := newFixture(t, 1)
	defer f.close(t)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() == nil {
			t.Error("the host read device memory")
		}
	}()
	addr := uintptr(f.a)
	_ = **(**byte)(unsafe.Pointer(&addr))
}

func TestSimulator_ReportsLeaks(t *testing.T) {
	newFixture(t, 1)
	leaks := strings.Join(simcuda.Leaks(), "\n")
	for _, want := range []string{"stream", "event", "memory pool", "device memory", "pinned memory"} {
		if !strings.Contains(leaks, want) {
			t.Errorf("leaks %q lack %q", leaks, want)
		}
	}
	faults()
}

// The legacy stream orders itself with blocking streams and not with others.
func TestSimulator_LegacyStreamSemantics(t *testing.T) {
	simcuda.EachSeed(t, 50, func(t testing.TB, seed uint64) {
		f := newFixture(t, seed)
		simcuda.Launch(t, uintptr(f.s), uintptr(f.a), 64, 100) // f.s is a blocking stream
		ok(t, f.d.CopyToHost(gpu.LegacyStream, ptr(f.host), f.a, 256))
		ok(t, f.d.Fill(f.s, f.a, 0, 256))
		ok(t, f.d.Drain(gpu.LegacyStream))
		if got := binary.LittleEndian.Uint32(f.host[8:]); got != 102 {
			t.Errorf("word is %d, expected 102", got)
		}
		f.close(t)
	})
}

// With the same seed, the same calls run in the same order.
func TestSimulator_IsReproducible(t *testing.T) {
	run := func(seed uint64) []byte {
		simcuda.Reset(seed)
		simcuda.SetDevice(t, 0)
		d, err := gpu.OpenCUDA(0)
		ok(t, err)
		var trace []byte
		var streams [4]gpu.Stream
		var blocks [4]gpu.Addr
		for i := range streams {
			streams[i] = must[gpu.Stream](t)(d.NewStream(gpu.NonBlocking))
			blocks[i] = must[gpu.Addr](t)(d.Alloc(streams[i], 64))
		}
		for i := range 200 {
			ok(t, d.Fill(streams[i%4], blocks[i%4], byte(i), 64))
			trace = append(trace, byte(simcuda.Ran()))
		}
		return trace
	}
	simcuda.Start(t, 0)
	a, b, c := run(7), run(7), run(8)
	abandoned = true
	faults()
	if !bytes.Equal(a, b) || bytes.Equal(a, c) {
		t.Errorf("same seed equal: %v; other seed equal: %v", bytes.Equal(a, b), bytes.Equal(a, c))
	}
}
