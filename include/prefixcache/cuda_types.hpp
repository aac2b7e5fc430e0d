/*
 * cudaStream_t, cudaError_t and two of its values: from the CUDA headers where the
 * compiler finds them, else declared here, so that a runtime and its tests compile
 * on a machine without a toolkit. Define PREFIXCACHE_NO_CUDA_HEADERS to take ours
 * in any case; then include no CUDA runtime header in the same translation unit.
 */
#ifndef PREFIXCACHE_CUDA_TYPES_HPP
#define PREFIXCACHE_CUDA_TYPES_HPP

#if !defined(PREFIXCACHE_NO_CUDA_HEADERS) && defined(__has_include)
#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#define PREFIXCACHE_HAS_CUDA_HEADERS 1
#endif
#endif

#ifndef PREFIXCACHE_HAS_CUDA_HEADERS
struct CUstream_st;
typedef struct CUstream_st* cudaStream_t;
typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorUnknown = 999,
} cudaError_t;
#endif

#endif  // PREFIXCACHE_CUDA_TYPES_HPP
