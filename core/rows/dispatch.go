package rows

import (
	"os"
	"sync/atomic"
	"unsafe"

	"libprefixcache/core/status"
)

// kernel is one implementation of the primitives that rows are moved with. All
// write exactly dst[0:n] (and tee[0:n]); ranges are disjoint and any alignment
// is allowed. n is at most pieceBytes, 0 included.
type kernel struct {
	name string
	// stream copies with non-temporal stores, which fence orders.
	stream func(dst, src unsafe.Pointer, n int64)
	// tee copies to dst like stream and to tee with ordinary stores.
	tee func(dst, tee, src unsafe.Pointer, n int64)
	// plain copies with ordinary stores.
	plain func(dst, src unsafe.Pointer, n int64)
	// prefetch asks for the lines that p[0:n] begins in; nil when it cannot.
	prefetch func(p unsafe.Pointer, n int64)
	// ahead asks for the first and the last line of n short rows, whose slots are
	// stride bytes apart; nil when it cannot.
	ahead func(base unsafe.Pointer, row int64, slots unsafe.Pointer, stride, n int64)
	// fence orders the stores of stream and tee before all later stores.
	fence func()
}

// EnvKernel is the environment variable that forces a kernel.
const EnvKernel = "PREFIXCACHE_KERNEL"

var (
	// supported lists the kernels this CPU runs, the best one last. It is
	// written once, before anything else of the package runs.
	supported = append([]*kernel{&genericKernel}, machineKernels()...)
	active    atomic.Pointer[kernel]
	selectErr atomic.Pointer[status.Error]
)

// knownKernels are the names that mean something on some machine or in some
// build, so that the error can tell "cannot" from "what is that".
var knownKernels = []string{"generic", "sse2", "avx2", "avx512"}

func init() {
	// A wrong value must not keep a process from loading the library: the host
	// asks KernelError when it opens a cache.
	_ = SelectKernel(os.Getenv(EnvKernel))
}

// Kernel is the name of the active kernel: generic, sse2 or avx2.
func Kernel() string { return active.Load().name }

// KernelError says why the kernel that PREFIXCACHE_KERNEL (or the last
// SelectKernel) asked for is not the active one; nil when it is.
func KernelError() error {
	if e := selectErr.Load(); e != nil {
		return e
	}
	return nil
}

// SelectKernel makes the named kernel active; "" or "auto" is the best one this
// CPU runs. On an error, which KernelError repeats, the best one is active.
//
// PREFIXCACHE_KERNEL is applied at load. Go sees the environment of the start of
// the process, so a host that sets the variable later passes its value here. A
// batch that is running keeps the kernel it began with.
func SelectKernel(name string) error {
	best := supported[len(supported)-1]
	if name == "" || name == "auto" {
		active.Store(best)
		selectErr.Store(nil)
		return nil
	}
	for _, k := range supported {
		if k.name == name {
			active.Store(k)
			selectErr.Store(nil)
			return nil
		}
	}
	e := status.New(status.InvalidArgument, "rows: %s is %q, expected one of %v; using %s", EnvKernel, name, Kernels(), best.name)
	for _, k := range knownKernels {
		if k == name {
			e = status.New(status.Unsupported, "rows: %s is %q, which this CPU or this build does not have; expected one of %v; using %s", EnvKernel, name, Kernels(), best.name)
		}
	}
	active.Store(best)
	selectErr.Store(e)
	return e
}

// Kernels are the names that SelectKernel accepts here, the best one last.
func Kernels() []string {
	names := make([]string, len(supported))
	for i, k := range supported {
		names[i] = k.name
	}
	return names
}
