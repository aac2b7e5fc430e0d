//go:build !noasm && !purego

package rows

import (
	"unsafe"

	"github.com/klauspost/cpuid/v2"
)

// machineKernels reads cpuid, once. SSE2 is part of amd64. There is no AVX-512
// kernel: a line is two AVX2 stores, which the write-combining buffers join, and
// the moves are bound by memory.
func machineKernels() []*kernel {
	ks := []*kernel{{
		name: "sse2", stream: streamSSE2, tee: teeSSE2, plain: plainSSE2,
		prefetch: prefetchAMD64, ahead: aheadAMD64, fence: fenceAMD64,
	}}
	// cpuid reports AVX2 only when the system saves the registers, too.
	if cpuid.CPU.Supports(cpuid.AVX, cpuid.AVX2) {
		ks = append(ks, &kernel{
			name: "avx2", stream: streamAVX2, tee: teeAVX2, plain: plainAVX2,
			prefetch: prefetchAMD64, ahead: aheadAMD64, fence: fenceAMD64,
		})
	}
	return ks
}

//go:noescape
func streamSSE2(dst, src unsafe.Pointer, n int64)

//go:noescape
func teeSSE2(dst, tee, src unsafe.Pointer, n int64)

//go:noescape
func plainSSE2(dst, src unsafe.Pointer, n int64)

//go:noescape
func streamAVX2(dst, src unsafe.Pointer, n int64)

//go:noescape
func teeAVX2(dst, tee, src unsafe.Pointer, n int64)

//go:noescape
func plainAVX2(dst, src unsafe.Pointer, n int64)

//go:noescape
func prefetchAMD64(p unsafe.Pointer, n int64)

//go:noescape
func aheadAMD64(base unsafe.Pointer, row int64, slots unsafe.Pointer, stride, n int64)

func fenceAMD64()
