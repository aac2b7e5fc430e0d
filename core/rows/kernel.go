package rows

// Kernel is the name of the active kernel implementation: generic, sse2 or avx2.
func Kernel() string { return "generic" }

// KernelError says why the kernel that PREFIXCACHE_KERNEL (or the last
// SelectKernel) asked for is not the active one; nil when it is.
func KernelError() error { return nil }

// SelectKernel makes the named kernel active; "" or "auto" is the best one this
// CPU runs. On an error, which KernelError repeats, the best one is active.
// PREFIXCACHE_KERNEL is applied at load; a host that sets its environment later
// passes the value here before it opens a cache.
func SelectKernel(name string) error { return nil }
