package main

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// arena holds the result buffers of the whole process: they outlive the cache
// that filled them, because views of them are in the hands of the host.
var arena = rows.NewArena(rows.ArenaOptions{})

const maxBufferBytes = 1 << 46

//export pcgo_buffer_acquire
func pcgo_buffer_acquire(bytes C.uint64_t, data *unsafe.Pointer, buffer *C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	if bytes == 0 || bytes > maxBufferBytes {
		return failNew(status.InvalidArgument, "bytes: %d, expected 1 to 2^46", uint64(bytes))
	}
	if err := out("data", data); err != nil {
		return fail(err)
	}
	if err := out("buffer", buffer); err != nil {
		return fail(err)
	}
	if err := disjoint("data", data, 1, "buffer", buffer, 1); err != nil {
		return fail(err)
	}
	p, id, err := arena.Get(int64(bytes))
	if err != nil {
		return fail(err)
	}
	h, aerr := handles.add(kindBuffer, id)
	if aerr != nil {
		_ = arena.Put(id)
		return fail(aerr)
	}
	// As a number: storing a pointer would make the collector look at the one that was
	// there before, and the host may have left anything there.
	*(*uintptr)(unsafe.Pointer(data)), *buffer = uintptr(p), C.pc_handle(h)
	return C.PC_OK
}

//export pcgo_buffer_release
func pcgo_buffer_release(buffer C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	id, err := handles.remove(handle(buffer), kindBuffer, "buffer")
	if err != nil {
		return fail(err)
	}
	return fail(arena.Put(id.(uint64)))
}

//export pcgo_buffer_get_stats
func pcgo_buffer_get_stats(stats *C.pc_buffer_stats) (st C.pc_status) {
	defer guard(&st)
	if err := out("stats", stats); err != nil {
		return fail(err)
	}
	if err := outSize("stats", stats, stats.struct_size, statsMinBytes); err != nil {
		return fail(err)
	}
	s := arena.Stats()
	fill(stats, stats.struct_size, C.pc_buffer_stats{
		in_use_bytes:   C.uint64_t(s.LiveBytes),
		retained_bytes: C.uint64_t(s.FreeBytes),
		acquired:       C.uint64_t(s.Hits + s.Misses),
		recycled:       C.uint64_t(s.Hits),
	})
	return C.PC_OK
}
