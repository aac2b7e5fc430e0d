/* loader.h - how the trampolines of libcuda.a find the real driver.
 *
 * libcuda.a stands in for -lcuda at link time. Nothing of it touches the driver
 * when the library is loaded; the driver library is opened when the first call
 * needs it, from $PREFIXCACHE_CUDA_DRIVER or else as libcuda.so.1.
 *
 * Every symbol here is hidden: two libraries in one process may each carry a
 * copy, and a libcuda.so.1 that somebody loaded globally must not be shadowed. */
#ifndef PREFIXCACHE_CUDA_LOADER_H
#define PREFIXCACHE_CUDA_LOADER_H

#include "cuda.h"

/* Opens the driver and calls its cuInit(0), once per process. Returns what that
 * returned, or CUDA_ERROR_SHARED_OBJECT_INIT_FAILED when there is no driver. */
CUresult cutramp_init(void);

/* The path that was opened or tried, and why opening it failed ("" if it did
 * not). Both are valid after cutramp_init and live as long as the process. */
const char *cutramp_path(void);
const char *cutramp_reason(void);

/* Looks a symbol up in the driver; null when the driver or the symbol is absent. */
void *cutramp_symbol(const char *name);

/* Resolves into *slot and returns null when there is nothing to
 * call; *slot then remembers that, so a missing symbol costs no second search. */
void *cutramp_resolve(void *_Atomic *slot, const char *name);

#define CUTRAMP_STRING(x) CUTRAMP_STRING_(x)
#define CUTRAMP_STRING_(x) #x

/* The name goes through the preprocessor once more so that the _v2 renames of
 * cuda.h apply to the looked-up string as they do to the function. */
#define TRAMPOLINE(name, params, args)                                                    \
    static void *_Atomic slot;                                                            \
    void *f = atomic_load_explicit(&slot, memory_order_acquire);                          \
    if (__builtin_expect(f == NULL, 0)) f = cutramp_resolve(&slot, CUTRAMP_STRING(name)); \
    return ((CUresult(CUDAAPI *) params)f)args;

#endif
