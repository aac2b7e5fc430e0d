package gpu_test

import (
	"os"
	"strings"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"libprefixcache/core/status"
	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

func TestMain(m *testing.M) {
	if os.Getenv(noDriver) != "" || os.Getenv(untouched) != "" {
		os.Exit(m.Run()) // a process of one of the TestLoad
	}
	simcuda.Main(m)
}

const (
	noDriver  = "GPU_TEST_NO_DRIVER"
	untouched = "GPU_TEST_UNTOUCHED"
)

// uintptrOf is the raw value of a handle of gorgonia.org/cu.
func uintptrOf[T cu.Stream | cu.Event](h T) uintptr { return *(*uintptr)(unsafe.Pointer(&h)) }

// open starts the simulated driver with a seed and opens a device on it.
func open(t testing.TB, seed uint64) *gpu.CUDA {
	t.Helper()
	simcuda.Start(t, seed)
	d, err := gpu.OpenCUDA(0)
	ok(t, err)
	closing(t, d)
	return d
}

// closing closes d after the cleanups that come later, unless it was abandoned.
func closing(t testing.TB, d gpu.Device) {
	abandoned = false
	t.Cleanup(func() {
		if !abandoned {
			ok(t, d.Close())
		}
	})
}

// abandoned says that the simulator was reset under the device: nothing of it
// can be freed any more.
var abandoned bool

// ok ends the test on an error of a step that is not what the test is about.
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

// refused asserts an error with a code and a fragment of its text.
func refused(t testing.TB, err error, code status.Code, fragment string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, expected code %d with %q", code, fragment)
	}
	if status.CodeOf(err) != code || !strings.Contains(err.Error(), fragment) {
		t.Fatalf("error is %d %q, expected code %d with %q", status.CodeOf(err), err, code, fragment)
	}
}

// faults returns and clears what the simulator found, for tests that provoke it.
func faults() string {
	r := strings.Join(simcuda.Report(), "\n")
	simcuda.Reset(1)
	abandoned = true
	return r
}
