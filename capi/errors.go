package main

/*
#cgo CFLAGS: -std=gnu11 -I${SRCDIR}/../include
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
)

// fail sets the calling thread's error text and returns the status: the one
// place where an error of ours becomes a number of the C ABI.
func fail(err error) C.pc_status {
	if err == nil {
		return C.PC_OK
	}
	setErrorText(err.Error())
	return C.pc_status(status.CodeOf(err))
}

func setErrorText[T string | []byte](text T) {
	if room := C.pcshim_error_room(C.size_t(len(text))); room != nil {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(room)), len(text)), text)
	}
}

// failNew is fail with a new error.
func failNew(code status.Code, format string, args ...any) C.pc_status {
	return fail(status.New(code, format, args...))
}

// caughtPanics counts panics that were turned into PC_ERROR_INTERNAL.
var caughtPanics atomic.Uint64

// guard is deferred by every export that enters no object; those that do have the
// leave of theirs. A panic must not unwind into C: it becomes an internal error with
// its text and place, and the object is marked unusable before others come in, because
// nobody knows how far the operation came.
func guard(st *C.pc_status) {
	if r := recover(); r != nil {
		caught(st, r)
	}
}

// caught makes a status of a panic. That core refuses a broken cache is no news.
func caught(st *C.pc_status, r any) {
	if r == any(omni.ErrBroken) {
		*st = fail(leftBroken(kindOmni, "cache"))
		return
	}
	caughtPanics.Add(1)
	text := fmt.Sprintf("internal error: %v (%s)", r, panicPlace())
	logLine(C.PC_LOG_ERROR, text+"\n"+string(debug.Stack()))
	*st = failNew(status.Internal, "%s", text)
}

// panicPlace names the first frame of ours below the panic: the lowest one, when a
// deferred call has passed it on.
func panicPlace() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	place, below := "place unknown", false
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			below = true
		case below && f.Func != nil && !isRuntime(f.Function):
			place, below = fmt.Sprintf("%s:%d", f.Function, f.Line), false
		}
		if !more {
			return place
		}
	}
}

func isRuntime(name string) bool { return len(name) > 8 && name[:8] == "runtime." }
