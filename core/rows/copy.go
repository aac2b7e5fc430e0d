package rows

import "unsafe"

// pieceBytes bounds one call into memmove or assembly. A thread in there cannot
// be preempted, so a longer piece would make every stop-the-world wait for it:
// 1 MiB is 100 µs at 10 GB/s. It is not shorter, because memmove reads lines that
// it only writes below about that length, at half the speed.
const pieceBytes = 1 << 20

// Copy moves n bytes with ordinary stores. The ranges must not overlap.
func Copy(dst, src unsafe.Pointer, n int64) {
	for n > pieceBytes {
		copyPlain(dst, src, pieceBytes)
		dst, src, n = unsafe.Add(dst, pieceBytes), unsafe.Add(src, pieceBytes), n-pieceBytes
	}
	copyPlain(dst, src, n)
}

// CopyRows moves n rows of rowBytes between two strided places with ordinary
// stores; strides are in bytes. Where both strides are rowBytes it is one Copy.
func CopyRows(dst unsafe.Pointer, dstStride int64, src unsafe.Pointer, srcStride, rowBytes, n int64) {
	if dstStride == rowBytes && srcStride == rowBytes {
		Copy(dst, src, n*rowBytes)
		return
	}
	for i := int64(0); i < n; i++ {
		Copy(unsafe.Add(dst, i*dstStride), unsafe.Add(src, i*srcStride), rowBytes)
	}
}

// Zero clears n bytes.
func Zero(p unsafe.Pointer, n int64) {
	for n > pieceBytes {
		clear(unsafe.Slice((*byte)(p), pieceBytes))
		p, n = unsafe.Add(p, pieceBytes), n-pieceBytes
	}
	clear(unsafe.Slice((*byte)(p), n))
}
