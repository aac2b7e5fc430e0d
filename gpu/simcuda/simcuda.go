// Package simcuda lets Go tests run package gpu on the simulated CUDA driver of
// cpp_tests/simcuda, whose header documents the functions that this package
// passes on. It is imported by tests only.
//
//	func TestMain(m *testing.M) { simcuda.Main(m) }
//
//	func TestX(t *testing.T) {
//		simcuda.Start(t, seed) // fails t for every fault and leak at its end
//		d, err := gpu.OpenCUDA(0)
package simcuda

/*
#cgo LDFLAGS: -lcuda
#cgo CFLAGS: -I${SRCDIR}/../../cpp_tests/simcuda
#include <stdlib.h>
#include "simcuda.h"

extern CUresult cutramp_init(void);
extern void *cutramp_symbol(const char *name);

// The control functions live in the driver that the trampolines opened.
#define FIND(name) ((__typeof__(&name))cutramp_symbol(#name))
static int present(void) { return FIND(simcuda_reset) != NULL; }
static void sim_reset(uint64_t seed) { FIND(simcuda_reset)(seed); }
static void sim_policy(int p) { FIND(simcuda_policy)(p); }
static void sim_devices(int n) { FIND(simcuda_devices)(n); }
static void sim_pools(int on) { FIND(simcuda_pools)(on); }
static void sim_adjacent(int on) { FIND(simcuda_adjacent)(on); }
static int sim_step(int n) { return FIND(simcuda_step)(n); }
static void sim_hold(uintptr_t s) { FIND(simcuda_hold)((CUstream)s); }
static void sim_release(uintptr_t s) { FIND(simcuda_release)((CUstream)s); }
static void sim_fail_nth(int kinds, int n, int code) { FIND(simcuda_fail_nth)(kinds, n, (CUresult)code); }
static void sim_fail_operation(int n, int code) { FIND(simcuda_fail_operation)(n, (CUresult)code); }
static void sim_capture(uintptr_t s, int mode) { FIND(simcuda_capture)((CUstream)s, (CUstreamCaptureMode)mode); }
static int sim_end_capture(uintptr_t s) { return FIND(simcuda_end_capture)((CUstream)s); }
static int sim_record(uintptr_t e, uintptr_t s) { return FIND(cuEventRecord)((CUevent)e, (CUstream)s); }
static int sim_launch(uintptr_t s, uint64_t dst, size_t words, uint32_t v) { return FIND(simcuda_launch)((CUstream)s, dst, words, v); }
static void sim_host_reads(const void *p, size_t n) { FIND(simcuda_host_access)(p, n, 0); }
static int sim_report(char *t, size_t n) { return FIND(simcuda_report)(t, n); }
static int sim_leaks(char *t, size_t n) { return FIND(simcuda_leaks)(t, n); }
static uint64_t sim_calls(const char *name) { return FIND(simcuda_calls)(name); }
static uint64_t sim_nanoseconds(void) { return FIND(simcuda_nanoseconds)(); }
static uint64_t sim_finished(void) { return FIND(simcuda_finished)(); }
static uint64_t sim_woken(void) { return FIND(simcuda_woken)(); }
static uint64_t sim_ran(void) { return FIND(simcuda_ran)(); }
static uint64_t sim_queued(void) { return FIND(simcuda_queued)(); }
static uint64_t sim_pageable(void) { return FIND(simcuda_pageable)(); }
static uint64_t sim_implicit(void) { return FIND(simcuda_implicit_waits)(); }
*/
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"gorgonia.org/cu"
)

// What runs when, instead of SIMCUDA_RANDOM.
const (
	Late  = C.SIMCUDA_LATE
	Eager = C.SIMCUDA_EAGER
)

// Kinds of calls for FailNth, and the two results that tests ask for.
const (
	Enqueue = C.SIMCUDA_ENQUEUE
	Wait    = C.SIMCUDA_WAIT
	Create  = C.SIMCUDA_CREATE
	Ask     = C.SIMCUDA_ASK

	OutOfMemory    = C.CUDA_ERROR_OUT_OF_MEMORY
	IllegalAddress = C.CUDA_ERROR_ILLEGAL_ADDRESS
)

// Capture modes.
const (
	Global  = C.CU_STREAM_CAPTURE_MODE_GLOBAL
	Relaxed = C.CU_STREAM_CAPTURE_MODE_RELAXED
)

// Main builds the simulated driver, makes it the driver of this process, and runs
// the tests. It replaces os.Exit(m.Run()).
func Main(m *testing.M) {
	if err := use(); err != nil {
		fmt.Fprintln(os.Stderr, "simcuda:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// use makes the simulated driver the driver of this process. It has to come
// before the first use of CUDA. A PREFIXCACHE_CUDA_DRIVER that is set is kept,
// and has to be a simulated driver.
func use() error {
	if os.Getenv("PREFIXCACHE_CUDA_DRIVER") == "" {
		_, here, _, _ := runtime.Caller(0)
		root := filepath.Dir(filepath.Dir(filepath.Dir(here)))
		if err := build(root); err != nil {
			return err
		}
		os.Setenv("PREFIXCACHE_CUDA_DRIVER", filepath.Join(root, "build", "cuda", "libsimcuda.so"))
	}
	if C.cutramp_init() != 0 || C.present() == 0 {
		return fmt.Errorf("%s is not a simulated driver", os.Getenv("PREFIXCACHE_CUDA_DRIVER"))
	}
	return nil
}

// build runs make under a lock: several packages may be tested at once.
func build(root string) error {
	dir := filepath.Join(root, "build", "cuda")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(dir, "simcuda.lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if out, err := exec.Command("make", "-s", "-C", root, "cuda-sim").CombinedOutput(); err != nil {
		return fmt.Errorf("make cuda-sim: %v\n%s", err, out)
	}
	return nil
}

// Start forgets everything of an earlier test, makes device 0 current on this
// goroutine's thread, and at the end of the test reports faults and leaks.
func Start(tb testing.TB, seed uint64) {
	tb.Helper()
	runtime.LockOSThread()
	C.sim_reset(C.uint64_t(seed))
	SetDevice(tb, 0)
	tb.Cleanup(func() {
		for _, f := range Report() {
			tb.Errorf("seed %d: %s", seed, f)
		}
		for _, l := range Leaks() {
			tb.Errorf("seed %d: leaked %s", seed, l)
		}
		C.sim_reset(0)
		runtime.UnlockOSThread()
	})
}

// SetDevice makes the primary context of a device current on this thread.
func SetDevice(tb testing.TB, ordinal int) {
	tb.Helper()
	ctx, err := cu.Device(ordinal).RetainPrimaryCtx()
	if err == nil {
		err = cu.SetCurrentContext(ctx)
	}
	if err != nil {
		tb.Fatalf("device %d: %v", ordinal, err)
	}
}

// NoContext leaves this thread without a context.
func NoContext() { cu.SetCurrentContext(cu.CUContext{}) }

func Reset(seed uint64)     { C.sim_reset(C.uint64_t(seed)) }
func Policy(p int)          { C.sim_policy(C.int(p)) }
func Devices(n int)         { C.sim_devices(C.int(n)) }
func Step(n int) int        { return int(C.sim_step(C.int(n))) }
func Hold(s uintptr)        { C.sim_hold(C.uintptr_t(s)) }
func Release(s uintptr)     { C.sim_release(C.uintptr_t(s)) }
func Ran() uint64           { return uint64(C.sim_ran()) }
func Queued() uint64        { return uint64(C.sim_queued()) }
func Pageable() uint64      { return uint64(C.sim_pageable()) }
func ImplicitWaits() uint64 { return uint64(C.sim_implicit()) }
func Finished() int64       { return int64(C.sim_finished()) }
func Woken() int64          { return int64(C.sim_woken()) }
func Nanoseconds() uint64   { return uint64(C.sim_nanoseconds()) }

// Pools says whether devices have memory pools.
func Pools(supported bool) {
	on := 0
	if supported {
		on = 1
	}
	C.sim_pools(C.int(on))
}

// Adjacent has device memory follow the former without a gap until the reset.
func Adjacent() { C.sim_adjacent(1) }

// FailNth lets the n-th call of these kinds fail; 0 cancels.
func FailNth(kinds, n, code int) { C.sim_fail_nth(C.int(kinds), C.int(n), C.int(code)) }

// FailOperation lets the n-th operation that runs fail, and loses the context.
func FailOperation(n, code int) { C.sim_fail_operation(C.int(n), C.int(code)) }

func Capture(s uintptr, mode int) { C.sim_capture(C.uintptr_t(s), C.int(mode)) }

// EndCapture reports whether the capture was still good.
func EndCapture(s uintptr) bool {
	return C.sim_end_capture(C.uintptr_t(s)) == C.CU_STREAM_CAPTURE_STATUS_ACTIVE
}

// Record is the model's own: also into a graph that it captures.
func Record(event, stream uintptr) { C.sim_record(C.uintptr_t(event), C.uintptr_t(stream)) }

// Launch enqueues work of the model: words value, value+1, ... at dst.
func Launch(tb testing.TB, s, dst uintptr, words int, value uint32) {
	tb.Helper()
	if r := C.sim_launch(C.uintptr_t(s), C.uint64_t(dst), C.size_t(words), C.uint32_t(value)); r != 0 {
		tb.Fatalf("launch: CUresult %d", int(r))
	}
}

// HostReads declares what the CPU is about to do.
func HostReads(p unsafe.Pointer, n int64) { C.sim_host_reads(p, C.size_t(n)) }

// Report is what went wrong since the reset, Leaks what is still live.
func Report() []string { return lines(func(b *C.char, n C.size_t) C.int { return C.sim_report(b, n) }) }
func Leaks() []string  { return lines(func(b *C.char, n C.size_t) C.int { return C.sim_leaks(b, n) }) }

func lines(f func(*C.char, C.size_t) C.int) []string {
	const size = 1 << 16
	b := (*C.char)(C.malloc(size))
	defer C.free(unsafe.Pointer(b))
	if f(b, size) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(C.GoString(b), "\n"), "\n")
}

// Calls counts the calls of one driver function, "" of all.
func Calls(name string) uint64 {
	if name == "" {
		return uint64(C.sim_calls(nil))
	}
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return uint64(C.sim_calls(c))
}
