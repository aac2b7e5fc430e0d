package gpu

import (
	"runtime"
	"sync/atomic"

	"gorgonia.org/cu"

	"libprefixcache/core/status"
)

// CUDA is a Device on one context of the CUDA driver. Its zero value is not
// usable; make one with OpenCUDA. Safe for use by many threads.
type CUDA struct {
	ctx     Context
	ordinal int
	name    string
	pool    uintptr // memory pool of our own; 0 when the device has none
	lent    bool    // the thread that opened it had no context, and got ctx
	closed  atomic.Bool

	// What callers hold, for Close and for statistics.
	events, streams, blocks, pinned, registered atomic.Int64
}

var _ Device = (*CUDA)(nil)

// Probe initialises the driver and reports why CUDA cannot be used, or nil. It
// creates no context.
func Probe() error {
	code := driverInit()
	if code == 0 {
		return nil
	}
	if why := driverReason(); why != "" {
		return status.New(status.Device, "cuInit: %s: no CUDA driver: %s", errorName(code), why)
	}
	return cudaError("cuInit", code, "driver %s", driverPath())
}

// OpenCUDA adopts the CUDA context of the caller: the one current on this thread
// or, when there is none, that of s, which may be captured: nothing is enqueued. The
// driver is initialised by the first call in the process.
func OpenCUDA(s Stream) (*CUDA, error) {
	if err := Probe(); err != nil {
		return nil, err
	}
	current, err := cu.CurrentContext()
	if err != nil {
		return nil, wrap("cuCtxGetCurrent", err, "")
	}
	d := &CUDA{ctx: rawContext(current)}
	if d.ctx == 0 && s > PerThreadStream && s != UnnamedStream {
		// Threads share a context without all having it current.
		var code int
		if d.ctx, code = streamContext(s); code == invalidHandle {
			return nil, noStream("open", "cuStreamGetCtx", code, s)
		} else if code != 0 {
			return nil, cudaError("cuStreamGetCtx", code, "stream %#x", uintptr(s))
		}
		if err := cu.SetCurrentContext(d.ctx.cu()); err != nil {
			return nil, wrap("cuCtxSetCurrent", err, "")
		}
		d.lent = true
	}
	if d.ctx == 0 {
		return nil, status.New(status.InvalidArgument, "no CUDA context is current on this thread, expected the one of the model (create it first: torch.cuda.init(), cudaFree(0))")
	}
	if err := d.describe(); err != nil {
		d.PutBack()
		return nil, err
	}
	if err := admitContexts("open", d.ctx, d.ordinal, s); err != nil {
		d.PutBack()
		return nil, err
	}
	return d, d.openPool()
}

// PutBack is for a device that was opened in vain: the thread that OpenCUDA gave a context,
// for want of one, has none again. It may be the wrong one.
func (d *CUDA) PutBack() {
	if d.lent {
		d.lent = cu.SetCurrentContext(Context(0).cu()) != nil
	}
}

func (d *CUDA) describe() error {
	dev, err := cu.CurrentDevice()
	if err != nil {
		return wrap("cuCtxGetDevice", err, "")
	}
	d.ordinal = int(dev)
	if d.name, err = dev.Name(); err != nil {
		return wrap("cuDeviceGetName", err, "device %d", d.ordinal)
	}
	return nil
}

// openPool makes the pool that Alloc takes from. A device without memory pools
// (some virtual GPUs) leaves it zero, and Alloc falls back to plain allocation.
func (d *CUDA) openPool() error {
	supported, err := cu.Device(d.ordinal).Attribute(memoryPoolsSupported)
	if err != nil || supported == 0 {
		return nil
	}
	pool, code := poolCreate(d.ordinal)
	if code != 0 {
		return cudaError("cuMemPoolCreate", code, "device %d", d.ordinal)
	}
	d.pool = pool
	return nil
}

// memoryPoolsSupported is CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, which cu
// does not name.
const memoryPoolsSupported cu.DeviceAttribute = 115

func (d *CUDA) Name() string     { return d.name }
func (d *CUDA) IsHost() bool     { return false }
func (d *CUDA) Ordinal() int     { return d.ordinal }
func (d *CUDA) Context() Context { return d.ctx }

// Live counts what was made through d and not freed.
func (d *CUDA) Live() (events, streams, blocks, pinned, registered int64) {
	return d.events.Load(), d.streams.Load(), d.blocks.Load(), d.pinned.Load(), d.registered.Load()
}

// Bind makes the context current on a thread of ours and keeps that thread's
// driver calls out of other threads' graph captures.
func (d *CUDA) Bind() error {
	if err := cu.SetCurrentContext(d.ctx.cu()); err != nil {
		return wrap("cuCtxSetCurrent", err, "")
	}
	// CUDA_ERROR_NOT_FOUND: a driver older than capture modes cannot be spoiled.
	relaxCapture()
	return nil
}

func (d *CUDA) Enter() (func(), error) {
	runtime.LockOSThread()
	mode, code := enter(d.ctx)
	if code != 0 {
		runtime.UnlockOSThread()
		if code == deinitialized {
			return nil, ErrEnded
		}
		return nil, cudaError("cuCtxPushCurrent", code, "device %d", d.ordinal)
	}
	return func() {
		leave(mode)
		runtime.UnlockOSThread()
	}, nil
}

// Close gives the memory pool back. With something still live it changes
// nothing and says what: work on the device may use it.
func (d *CUDA) Close() error {
	if e, s, b, p, r := d.Live(); e|s|b|p|r != 0 {
		return status.New(status.Busy, "close: %d events, %d streams, %d device blocks, %d pinned blocks and %d registrations are live, expected none", e, s, b, p, r)
	}
	if d.closed.Swap(true) || d.pool == 0 {
		return nil
	}
	if err := d.admitThread("close"); err != nil {
		d.closed.Store(false)
		return err
	}
	if code := poolDestroy(d.pool); code != 0 {
		d.closed.Store(false) // it may be tried again
		return cudaError("cuMemPoolDestroy", code, "")
	}
	return nil
}

// admit checks one enqueue; a and b are device addresses or 0.
func (d *CUDA) admit(call string, s Stream, a, b Addr) error {
	return admit(call, d.ctx, d.ordinal, s, a, b)
}

// admitThread checks this thread's context only: the per-thread stream belongs
// to the thread, and nobody captures on ours.
func (d *CUDA) admitThread(call string) error { return admitThread(call, d.ctx, d.ordinal) }

// Check implements Device. Every region is looked at before it returns nil.
func (d *CUDA) Check(s Stream, regions []Region) error {
	if err := d.admit("check", s, 0, 0); err != nil {
		return err
	}
	for i := range regions {
		if err := d.checkRegion(&regions[i]); err != nil {
			return err
		}
	}
	return nil
}

func (d *CUDA) checkRegion(r *Region) error {
	if err := checkSpan(r.Name, r.Addr, r.Bytes); err != nil || r.Bytes == 0 {
		return err
	}
	info, code := pointerInfo(r.Addr)
	if code != 0 {
		return cudaError("cuPointerGetAttributes", code, "%s %#x", r.Name, r.Addr)
	}
	switch {
	case r.Place == OnDevice && !info.Device:
		return status.New(status.InvalidArgument, "%s is %#x, which is no memory of device %d (host memory, or freed)", r.Name, r.Addr, d.ordinal)
	case r.Place == OnDevice && info.Ordinal != d.ordinal:
		return status.New(status.InvalidArgument, "%s is %#x, memory of device %d; expected device %d", r.Name, r.Addr, info.Ordinal, d.ordinal)
	case r.Place != OnDevice && info.Device && !info.Managed:
		return status.New(status.InvalidArgument, "%s is %#x, which is device memory; expected host memory", r.Name, r.Addr)
	case r.Place == Pinned && !info.Known:
		return status.New(status.InvalidArgument, "%s is %#x, which is pageable; expected pinned or registered host memory", r.Name, r.Addr)
	case r.Place == OnDevice:
		return d.checkEnd(r, info)
	}
	return nil
}

// checkEnd decides about a region that passes the end of the allocation that it begins in.
// Allocators map pieces of memory side by side, so what is behind may be one more.
func (d *CUDA) checkEnd(r *Region, in PointerInfo) error {
	for end := r.Addr; ; {
		next := in.Base + uintptr(in.Bytes)
		if next <= end || next-r.Addr >= uintptr(r.Bytes) {
			return nil // the driver does not say where it ends, or behind the region
		}
		end = next
		var code int
		if in, code = pointerInfo(end); code != 0 {
			return cudaError("cuPointerGetAttributes", code, "%s %#x, behind %d bytes", r.Name, r.Addr, end-r.Addr)
		}
		if !in.Device || in.Ordinal != d.ordinal {
			return status.New(status.InvalidArgument, "%s is %#x with %d bytes, of which %d are memory of device %d", r.Name, r.Addr, r.Bytes, end-r.Addr, d.ordinal)
		}
	}
}

// checkSpan refuses a null or overflowing range.
func checkSpan(name string, addr uintptr, bytes int64) error {
	switch {
	case bytes < 0:
		return status.New(status.InvalidArgument, "%s: bytes is %d, expected at least 0", name, bytes)
	case bytes == 0:
		return nil
	case addr == 0:
		return status.New(status.InvalidArgument, "%s is null, expected %d bytes", name, bytes)
	case addr+uintptr(bytes) < addr:
		return status.New(status.InvalidArgument, "%s is %#x with %d bytes, which passes the end of the address space", name, addr, bytes)
	}
	return nil
}
