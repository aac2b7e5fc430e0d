package gpu

import (
	"unsafe"

	"libprefixcache/core/status"
)

func (d *CUDA) Pointer(addr uintptr) (PointerInfo, error) {
	info, code := pointerInfo(addr)
	if code != 0 {
		return info, cudaError("cuPointerGetAttributes", code, "%#x", addr)
	}
	return info, nil
}

func (d *CUDA) AllocHost(bytes int64) (unsafe.Pointer, error) {
	if bytes <= 0 {
		return nil, status.New(status.InvalidArgument, "alloc host: bytes is %d, expected more than 0", bytes)
	}
	if err := d.admitThread("alloc host"); err != nil {
		return nil, err
	}
	p, code := hostAlloc(bytes)
	if code != 0 {
		return nil, cudaError("cuMemHostAlloc", code, "%d bytes", bytes)
	}
	d.pinned.Add(1)
	return p, nil
}

func (d *CUDA) FreeHost(p unsafe.Pointer) error {
	if p == nil {
		return status.New(status.InvalidArgument, "free host: pointer is null")
	}
	if err := d.admitThread("free host"); err != nil {
		return err
	}
	if code := hostFree(p); code != 0 {
		return cudaError("cuMemFreeHost", code, "%#x", uintptr(p))
	}
	d.pinned.Add(-1)
	return nil
}

func (d *CUDA) Register(p unsafe.Pointer, bytes int64) error {
	if err := checkPages("register", p, bytes); err != nil {
		return err
	}
	if err := d.admitThread("register"); err != nil {
		return err
	}
	if code := hostRegister(p, bytes); code != 0 {
		return cudaError("cuMemHostRegister", code, "%#x, %d bytes", uintptr(p), bytes)
	}
	d.registered.Add(1)
	return nil
}

func (d *CUDA) Unregister(p unsafe.Pointer) error {
	if p == nil {
		return status.New(status.InvalidArgument, "unregister: pointer is null")
	}
	if err := d.admitThread("unregister"); err != nil {
		return err
	}
	if code := hostUnregister(p); code != 0 {
		return cudaError("cuMemHostUnregister", code, "%#x", uintptr(p))
	}
	d.registered.Add(-1)
	return nil
}

func (d *CUDA) Alloc(s Stream, bytes int64) (Addr, error) {
	if bytes <= 0 {
		return 0, status.New(status.InvalidArgument, "alloc: bytes is %d, expected more than 0", bytes)
	}
	if err := d.admit("alloc", s, 0, 0); err != nil {
		return 0, err
	}
	var a Addr
	if d.pool != 0 {
		var code int
		if a, code = poolAlloc(d.pool, s, bytes); code != 0 {
			return 0, cudaError("cuMemAllocFromPoolAsync", code, "%d bytes, stream %#x", bytes, uintptr(s))
		}
	} else {
		var code int
		if a, code = deviceAlloc(bytes); code != 0 {
			return 0, cudaError("cuMemAlloc", code, "%d bytes", bytes)
		}
	}
	d.blocks.Add(1)
	return a, nil
}

func (d *CUDA) Free(s Stream, a Addr) error {
	if a == 0 {
		return status.New(status.InvalidArgument, "free: address is null")
	}
	if err := d.admit("free", s, a, 0); err != nil {
		return err
	}
	if d.pool != 0 {
		if code := freeAsync(s, a); code != 0 {
			return cudaError("cuMemFreeAsync", code, "%#x, stream %#x", uintptr(a), uintptr(s))
		}
	} else {
		// Without a pool the block must not go while s still uses it.
		if err := d.Drain(s); err != nil {
			return err
		}
		if code := deviceFree(a); code != 0 {
			return cudaError("cuMemFree", code, "%#x", uintptr(a))
		}
	}
	d.blocks.Add(-1)
	return nil
}

// checkPages refuses memory that the driver would pin more of than was asked
// for: a neighbour's half page must not be unregistered with ours.
func checkPages(call string, p unsafe.Pointer, bytes int64) error {
	const page = 4096
	if p == nil || bytes <= 0 || uintptr(p)%page != 0 || bytes%page != 0 {
		return status.New(status.InvalidArgument, "%s: memory is %#x with %d bytes, expected whole pages of %d", call, uintptr(p), bytes, page)
	}
	return nil
}
