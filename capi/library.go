package main

/*
#include "shim.h"
*/
import "C"

import (
	"sync"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// kernelName is kept as a C string for the life of the process.
var kernelName = sync.OnceValue(func() *C.char { return C.CString(rows.Kernel()) })

//export pcgo_kernel_name
func pcgo_kernel_name() *C.char { return kernelName() }

//export pcgo_reserve_threads
func pcgo_reserve_threads(threads C.uint32_t) (st C.pc_status) {
	defer guard(&st)
	if threads < 1 || threads > 4096 {
		return failNew(status.InvalidArgument, "threads: %d, expected 1 to 4096", uint32(threads))
	}
	rows.ReserveCallers(int(threads))
	return C.PC_OK
}

//export pcgo_log_installed
func pcgo_log_installed() {
	// The environment was read before anybody could listen.
	if err := rows.KernelError(); err != nil {
		logLine(C.PC_LOG_WARNING, err.Error())
	}
	for _, text := range rows.OnWarning(warning) {
		warning(text)
	}
}

func warning(text string) { logLine(C.PC_LOG_WARNING, text) }
