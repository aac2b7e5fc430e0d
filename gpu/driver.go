package gpu

/*
#cgo LDFLAGS: -lcuda -ldl
#cgo noescape gpu_stream_context
#cgo noescape gpu_stream_capturing
#cgo noescape gpu_stream_query
#cgo noescape gpu_stream_wait
#cgo noescape gpu_enter
#cgo noescape gpu_alloc
#cgo noescape gpu_host_alloc
#cgo noescape gpu_pool_create
#cgo noescape gpu_pool_alloc
#cgo noescape gpu_pointer_info
#cgo nocallback gpu_admit
#cgo nocallback gpu_admit_thread
#cgo nocallback gpu_admit_contexts
#cgo nocallback gpu_stream_context
#cgo nocallback gpu_stream_capturing
#cgo nocallback gpu_stream_query
#cgo nocallback gpu_event_query
#cgo nocallback gpu_enter
#cgo nocallback gpu_host_alloc
#cgo nocallback gpu_pool_create
#cgo nocallback gpu_pool_alloc
#cgo nocallback gpu_pointer_info
#include "driver.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/status"
)

// This file is the only one of ours that uses cgo: a Go function per C function
// of driver.h, so that the types of C stay in here. Results are CUresult values.

// Results that say something about the argument.
const (
	notReady      = int(C.CUDA_ERROR_NOT_READY)
	invalidHandle = int(C.CUDA_ERROR_INVALID_HANDLE)
	deinitialized = int(C.CUDA_ERROR_DEINITIALIZED)
	invalidValue  = int(C.CUDA_ERROR_INVALID_VALUE)
	capturedEvent = int(C.CUDA_ERROR_CAPTURED_EVENT)
)

// admit is the check in front of every enqueue; it returns nil when the work may
// be enqueued. name says what a and b are to the caller.
func admit(call string, ctx Context, ordinal int, s Stream, a, b Addr) error {
	v := uint64(C.gpu_admit(C.uintptr_t(ctx), C.int(ordinal), C.uintptr_t(s), C.uintptr_t(a), C.uintptr_t(b)))
	if v == 0 {
		return nil
	}
	return refuse(call, v, ordinal, s, a, b)
}

// admitThread is the part of admit that looks at this thread's context.
func admitThread(call string, ctx Context, ordinal int) error {
	v := uint64(C.gpu_admit_thread(C.uintptr_t(ctx)))
	if v == 0 {
		return nil
	}
	return refuse(call, v, ordinal, 0, 0, 0)
}

// admitContexts is the part of admit that holds for good.
func admitContexts(call string, ctx Context, ordinal int, s Stream) error {
	v := uint64(C.gpu_admit_contexts(C.uintptr_t(ctx), C.uintptr_t(s)))
	if v == 0 {
		return nil
	}
	return refuse(call, v, ordinal, s, 0, 0)
}

// refuse puts a verdict of gpu_admit into words.
func refuse(call string, v uint64, ordinal int, s Stream, a, b Addr) error {
	code := int(uint32(v))
	addr := a
	if (v>>40)&0xff != 0 {
		addr = b
	}
	by := admitCalls[v>>48]
	switch (v >> 32) & 0xff {
	case C.GPU_FOREIGN_THREAD:
		return status.New(status.InvalidArgument, "%s: another CUDA context is current on this thread; expected the one the cache was created in (device %d)", call, ordinal)
	case C.GPU_FOREIGN_STREAM:
		return status.New(status.InvalidArgument, "%s: stream %#x belongs to another CUDA context, expected that of device %d", call, uintptr(s), ordinal)
	case C.GPU_CAPTURING:
		return status.New(status.WrongState, "%s: stream %#x is being captured into a CUDA graph, expected a stream that runs its work", call, uintptr(s))
	case C.GPU_NOT_DEVICE_MEMORY:
		return status.New(status.InvalidArgument, "%s: %#x is not device memory, expected an address on device %d", call, uintptr(addr), ordinal)
	case C.GPU_NO_STREAM:
		return noStream(call, by, code, s)
	case C.GPU_FOREIGN_DEVICE:
		return status.New(status.InvalidArgument, "%s: %#x is memory of another device, expected device %d", call, uintptr(addr), ordinal)
	}
	by = call + ": " + by
	switch v >> 48 {
	case C.GPU_CALL_STREAM_CONTEXT, C.GPU_CALL_IS_CAPTURING:
		return cudaError(by, code, "stream %#x", uintptr(s))
	case C.GPU_CALL_POINTER:
		return cudaError(by, code, "%#x", uintptr(addr))
	}
	return cudaError(by, code, "device %d", ordinal)
}

var admitCalls = [...]string{
	C.GPU_CALL_GET_CURRENT:    "cuCtxGetCurrent",
	C.GPU_CALL_SET_CURRENT:    "cuCtxSetCurrent",
	C.GPU_CALL_PUSH_CURRENT:   "cuCtxPushCurrent",
	C.GPU_CALL_STREAM_CONTEXT: "cuStreamGetCtx",
	C.GPU_CALL_IS_CAPTURING:   "cuStreamIsCapturing",
	C.GPU_CALL_POINTER:        "cuPointerGetAttributes",
}

// noStream is the refusal of a stream that the driver does not know.
func noStream(call, by string, code int, s Stream) error {
	return status.New(status.InvalidArgument, "%s: stream %#x was destroyed or is none (%s: %s), expected a stream that lives", call, uintptr(s), by, errorName(code))
}

func driverInit() int             { return int(C.gpu_init()) }
func driverPath() string          { return C.GoString(C.gpu_driver_path()) }
func driverReason() string        { return C.GoString(C.gpu_driver_reason()) }
func errorName(code int) string   { return C.GoString(C.gpu_error_name(C.int(code))) }
func errorReason(code int) string { return C.GoString(C.gpu_error_reason(C.int(code))) }

func streamContext(s Stream) (Context, int) {
	var c C.uintptr_t
	r := C.gpu_stream_context(C.uintptr_t(s), &c)
	return Context(c), int(r)
}

func streamCapturing(s Stream) (bool, int) {
	var c C.int
	r := C.gpu_stream_capturing(C.uintptr_t(s), &c)
	return c != 0, int(r)
}

// streamQuery and streamWait return a verdict for refuse, or what the driver said.
func streamQuery(c Context, ordinal int, s Stream) (refused uint64, code int) {
	var v C.ulonglong
	r := C.gpu_stream_query(C.uintptr_t(c), C.int(ordinal), C.uintptr_t(s), &v)
	return uint64(v), int(r)
}

func streamWait(c Context, ordinal int, s Stream) (refused uint64, code int) {
	var v C.ulonglong
	r := C.gpu_stream_wait(C.uintptr_t(c), C.int(ordinal), C.uintptr_t(s), &v)
	return uint64(v), int(r)
}

func relaxCapture() int { return int(C.gpu_relax_capture()) }

func eventQuery(c Context, e Event) int {
	return int(C.gpu_event_query(C.uintptr_t(c), C.uintptr_t(e)))
}
func eventWait(c Context, e Event) int { return int(C.gpu_event_wait(C.uintptr_t(c), C.uintptr_t(e))) }

func enter(c Context) (mode, code int) {
	var m C.int
	r := C.gpu_enter(C.uintptr_t(c), &m)
	return int(m), int(r)
}
func leave(mode int) { C.gpu_leave(C.int(mode)) }

func hostAlloc(bytes int64) (unsafe.Pointer, int) {
	var p unsafe.Pointer
	r := C.gpu_host_alloc(&p, C.size_t(bytes))
	return p, int(r)
}

func hostRegister(p unsafe.Pointer, bytes int64) int {
	return int(C.gpu_host_register(p, C.size_t(bytes)))
}
func hostUnregister(p unsafe.Pointer) int { return int(C.gpu_host_unregister(p)) }

func hostFree(p unsafe.Pointer) int { return int(C.gpu_host_free(p)) }

func deviceAlloc(bytes int64) (Addr, int) {
	var a C.uintptr_t
	r := C.gpu_alloc(C.size_t(bytes), &a)
	return Addr(a), int(r)
}
func deviceFree(a Addr) int { return int(C.gpu_free(C.uintptr_t(a))) }

func poolCreate(ordinal int) (uintptr, int) {
	var p C.uintptr_t
	r := C.gpu_pool_create(C.int(ordinal), &p)
	return uintptr(p), int(r)
}
func poolDestroy(pool uintptr) int { return int(C.gpu_pool_destroy(C.uintptr_t(pool))) }

func poolAlloc(pool uintptr, s Stream, bytes int64) (Addr, int) {
	var a C.uintptr_t
	r := C.gpu_pool_alloc(C.uintptr_t(pool), C.uintptr_t(s), C.size_t(bytes), &a)
	return Addr(a), int(r)
}
func freeAsync(s Stream, a Addr) int { return int(C.gpu_free_async(C.uintptr_t(s), C.uintptr_t(a))) }

func copyRows(s Stream, c *Copy2D) int {
	return int(C.gpu_copy_rows(C.uintptr_t(s), c.DstHost, C.uintptr_t(c.Dst), C.size_t(c.DstPitch),
		c.SrcHost, C.uintptr_t(c.Src), C.size_t(c.SrcPitch), C.size_t(c.Width), C.size_t(c.Height)))
}

func pointerInfo(addr uintptr) (PointerInfo, int) {
	var p C.gpu_pointer
	if r := C.gpu_pointer_info(C.uintptr_t(addr), &p); r != 0 {
		return PointerInfo{Ordinal: -1}, int(r)
	}
	return PointerInfo{
		Device:  p._type == C.CU_MEMORYTYPE_DEVICE,
		Known:   p._type != 0,
		Managed: p.managed != 0,
		Ordinal: int(p.ordinal),
		Base:    uintptr(p.base),
		Bytes:   int64(p.bytes),
	}, 0
}
