package rows

import "unsafe"

// genericKernel is plain Go: the twin that every other kernel is tested against,
// and what runs where there is no assembly.
//
// There is no prefetch in Go: without one a gather copies run by run.
var genericKernel = kernel{
	name:   "generic",
	stream: copyPlain,
	tee: func(dst, tee, src unsafe.Pointer, n int64) {
		copyPlain(dst, src, n)
		copyPlain(tee, src, n)
	},
	plain: copyPlain,
	fence: func() {},
}

// copyPlain is one memmove. It may be used where no kernel is worth a call.
func copyPlain(dst, src unsafe.Pointer, n int64) {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
}
