package gpu

import (
	"unsafe"

	"gorgonia.org/cu"

	"libprefixcache/core/status"
)

// Copies and fills. The driver would accept a pinned host pointer as a device
// address, would record a copy into a graph that is being captured, and on a
// machine with unified paging would even take any pointer: so each call is
// admitted first, and only then handed on.

func (d *CUDA) CopyToDevice(s Stream, dst Addr, src unsafe.Pointer, n int64) error {
	const call = "copy to device"
	if n <= 0 || src == nil || dst == 0 {
		return copySpan(call, uintptr(dst), uintptr(src), n)
	}
	if err := d.admit(call, s, dst, 0); err != nil {
		return err
	}
	if err := cu.MemcpyHtoDAsync(cu.DevicePtr(dst), src, n, s.cu()); err != nil {
		return wrap("cuMemcpyHtoDAsync", err, "dst %#x, src %#x, %d bytes, stream %#x", uintptr(dst), uintptr(src), n, uintptr(s))
	}
	return nil
}

func (d *CUDA) CopyToHost(s Stream, dst unsafe.Pointer, src Addr, n int64) error {
	const call = "copy to host"
	if n <= 0 || dst == nil || src == 0 {
		return copySpan(call, uintptr(dst), uintptr(src), n)
	}
	if err := d.admit(call, s, src, 0); err != nil {
		return err
	}
	if err := cu.MemcpyDtoHAsync(dst, cu.DevicePtr(src), n, s.cu()); err != nil {
		return wrap("cuMemcpyDtoHAsync", err, "dst %#x, src %#x, %d bytes, stream %#x", uintptr(dst), uintptr(src), n, uintptr(s))
	}
	return nil
}

func (d *CUDA) CopyOnDevice(s Stream, dst, src Addr, n int64) error {
	const call = "copy on device"
	if n <= 0 || dst == 0 || src == 0 {
		return copySpan(call, uintptr(dst), uintptr(src), n)
	}
	if overlap(uintptr(dst), uintptr(src), n) {
		return overlapError(call, uintptr(dst), uintptr(src), n)
	}
	if err := d.admit(call, s, dst, src); err != nil {
		return err
	}
	if err := cu.MemcpyDtoDAsync(cu.DevicePtr(dst), cu.DevicePtr(src), n, s.cu()); err != nil {
		return wrap("cuMemcpyDtoDAsync", err, "dst %#x, src %#x, %d bytes, stream %#x", uintptr(dst), uintptr(src), n, uintptr(s))
	}
	return nil
}

func (d *CUDA) CopyRows(s Stream, c *Copy2D) error {
	const call = "copy rows"
	if empty, err := c.check(call); err != nil || empty {
		return err
	}
	if err := d.admit(call, s, c.Dst, c.Src); err != nil {
		return err
	}
	if code := copyRows(s, c); code != 0 {
		return cudaError("cuMemcpy2DAsync", code, "%d rows of %d bytes, pitches %d and %d, stream %#x", c.Height, c.Width, c.DstPitch, c.SrcPitch, uintptr(s))
	}
	return nil
}

func (d *CUDA) Fill(s Stream, dst Addr, value byte, n int64) error {
	const call = "fill"
	if n <= 0 || dst == 0 {
		return checkSpan(call, uintptr(dst), n)
	}
	if err := d.admit(call, s, dst, 0); err != nil {
		return err
	}
	if err := cu.MemsetD8Async(cu.DevicePtr(dst), value, n, s.cu()); err != nil {
		return wrap("cuMemsetD8Async", err, "dst %#x, %d bytes, stream %#x", uintptr(dst), n, uintptr(s))
	}
	return nil
}

// copySpan is the slow half of the argument check of a copy: nil for an empty
// copy, which enqueues nothing.
func copySpan(call string, dst, src uintptr, n int64) error {
	if err := checkSpan(call+": dst", dst, n); err != nil {
		return err
	}
	return checkSpan(call+": src", src, n)
}

func overlap(dst, src uintptr, n int64) bool {
	return dst < src+uintptr(n) && src < dst+uintptr(n)
}

func overlapError(call string, dst, src uintptr, n int64) error {
	return status.New(status.InvalidArgument, "%s: dst %#x and src %#x overlap in %d bytes, expected separate memory", call, dst, src, n)
}

// check tells whether c is well formed and whether there is nothing to copy.
func (c *Copy2D) check(call string) (empty bool, err error) {
	if c.Width < 0 || c.Height < 0 {
		return false, status.New(status.InvalidArgument, "%s: width and height are %d and %d, expected at least 0", call, c.Width, c.Height)
	}
	if c.Width == 0 || c.Height == 0 {
		return true, nil
	}
	if c.DstPitch < c.Width || c.SrcPitch < c.Width {
		return false, status.New(status.InvalidArgument, "%s: pitches are %d (dst) and %d (src), expected at least the width %d", call, c.DstPitch, c.SrcPitch, c.Width)
	}
	if (c.Dst != 0) == (c.DstHost != nil) {
		return false, status.New(status.InvalidArgument, "%s: dst is given as %#x and %#x, expected exactly one of device and host", call, uintptr(c.Dst), uintptr(c.DstHost))
	}
	if (c.Src != 0) == (c.SrcHost != nil) {
		return false, status.New(status.InvalidArgument, "%s: src is given as %#x and %#x, expected exactly one of device and host", call, uintptr(c.Src), uintptr(c.SrcHost))
	}
	return false, nil
}
