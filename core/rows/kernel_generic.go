package rows

import "unsafe"

// genericKernel is plain Go: the twin that every other kernel is tested against,
// and what runs where there is no assembly.
var genericKernel = kernel{
	name:     "generic",
	stream:   copyPlain,
	tee:      teeGeneric,
	plain:    copyPlain,
	prefetch: func(unsafe.Pointer, int64) {},
	fence:    func() {},
}

// teeBlock is small enough that the second copy of a block reads L1.
const teeBlock = 4 << 10

func teeGeneric(dst, tee, src unsafe.Pointer, n int64) {
	for ; n > teeBlock; n -= teeBlock {
		copyPlain(dst, src, teeBlock)
		copyPlain(tee, src, teeBlock)
		dst, tee, src = unsafe.Add(dst, teeBlock), unsafe.Add(tee, teeBlock), unsafe.Add(src, teeBlock)
	}
	copyPlain(dst, src, n)
	copyPlain(tee, src, n)
}

// copyPlain is one memmove. It may be used where no kernel is worth a call.
func copyPlain(dst, src unsafe.Pointer, n int64) {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
}
