package main

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"unsafe"

	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// These tests run the omni cache on the simulated CUDA driver. They say nothing
// about a GPU.
func TestMain(m *testing.M) { simcuda.Main(m) }

// seeds is how many random orders a test goes through; GPU_SEEDS sets it for a soak.
func seeds(n uint64) uint64 {
	if s, err := strconv.ParseUint(os.Getenv("GPU_SEEDS"), 10, 32); err == nil {
		return s
	}
	if testing.Short() {
		return n / 10
	}
	return n
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

// stage is the model in front of a cache: its stream, and the device memory that it
// computes rows in.
type stage struct {
	*omniDevice
	t      testing.TB
	model  *gpu.CUDA
	stream gpu.Stream
	live   map[gpu.Addr]bool
}

func newStage(t testing.TB, seed uint64) *stage {
	simcuda.Start(t, seed)
	s := &stage{omniDevice: &omniDevice{}, t: t, live: map[gpu.Addr]bool{}}
	s.model = must[*gpu.CUDA](t)(gpu.OpenCUDA(0))
	switch seed % 4 {
	case 0:
		s.stream = gpu.LegacyStream // torch's default
	case 1:
		s.stream = gpu.PerThreadStream
	case 2:
		s.stream = must[gpu.Stream](t)(s.model.NewStream(gpu.NonBlocking))
	case 3:
		s.stream = must[gpu.Stream](t)(s.model.NewStream(0))
	}
	return s
}

// given runs what gives something back.
func given(parts func(*giving)) error {
	g := &giving{}
	parts(g)
	return g.err
}

// end gives back what the model has. What the cache left behind is a leak.
func (s *stage) end() {
	for a := range s.live {
		ok(s.t, s.model.Free(s.stream, a))
	}
	ok(s.t, s.model.Drain(s.stream))
	if s.stream > gpu.PerThreadStream {
		ok(s.t, s.model.FreeStream(s.stream))
	}
	ok(s.t, s.model.Close())
}

func (s *stage) Stream() uint64 { return uint64(s.stream) }

// Upload is a forward: rows appear in memory that the model allocates for them, some
// time after the call.
func (s *stage) Upload(b []byte) unsafe.Pointer {
	a := must[gpu.Addr](s.t)(s.model.Alloc(s.stream, int64(len(b))))
	s.live[a] = true
	ok(s.t, s.model.CopyToDevice(s.stream, a, unsafe.Pointer(&b[0]), int64(len(b))))
	return pointer(a)
}

// Overwrite is the next forward, and the end of the memory: all of it stream-ordered.
func (s *stage) Overwrite(p unsafe.Pointer, n int64) {
	a := gpu.Addr(uintptr(p))
	ok(s.t, s.model.Fill(s.stream, a, 0xEE, n))
	ok(s.t, s.model.Free(s.stream, a))
	delete(s.live, a)
}

func (s *stage) Break(rng *rand.Rand) {
	simcuda.FailNth(simcuda.Enqueue|simcuda.Create|simcuda.Ask, 1+rng.IntN(60), simcuda.OutOfMemory)
}

func (s *stage) Mend() { simcuda.FailNth(0, 0, 0) }

// pointer is a device address as core carries it: never followed.
func pointer(a gpu.Addr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }
