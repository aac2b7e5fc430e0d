package main

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/status"
)

// maxElements bounds every array that crosses the ABI, so that a length that
// was never initialised is refused instead of followed.
const maxElements = 1 << 40

// slice views a caller's array for the length of the call.
func slice[T any, N ~uint64 | ~int64](argument string, p unsafe.Pointer, n N) ([]T, *status.Error) {
	var zero T
	if n < 0 || uint64(n) > maxElements/uint64(max(1, unsafe.Sizeof(zero))) {
		return nil, status.New(status.InvalidArgument, "%s: length %d, expected 0 to %d", argument, n, uint64(maxElements)/uint64(max(1, unsafe.Sizeof(zero))))
	}
	if n == 0 {
		return nil, nil
	}
	if p == nil {
		return nil, status.New(status.InvalidArgument, "%s: null with length %d, expected an array", argument, n)
	}
	if uintptr(p)%unsafe.Alignof(zero) != 0 {
		return nil, status.New(status.InvalidArgument, "%s: address %#x is not aligned to %d bytes", argument, uintptr(p), unsafe.Alignof(zero))
	}
	return unsafe.Slice((*T)(p), int(n)), nil
}

// disjoint checks that two outputs of n and m entries, each of which may be null, are
// aligned and do not lie on each other: the later one would silently replace the earlier.
func disjoint[A, B any](first string, a *A, n uint64, second string, b *B, m uint64) *status.Error {
	if err := aligned(first, a); err != nil {
		return err
	}
	if err := aligned(second, b); err != nil {
		return err
	}
	x, y := uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(b))
	if a == nil || b == nil || n == 0 || m == 0 || (x <= y && uint64(y-x) >= n*uint64(unsafe.Sizeof(*a))) || (y <= x && uint64(x-y) >= m*uint64(unsafe.Sizeof(*b))) {
		return nil
	}
	return status.New(status.InvalidArgument, "%s and %s: %#x and %#x overlap, expected outputs apart from each other", first, second, x, y)
}

// out checks an output pointer.
func out[T any](argument string, p *T) *status.Error {
	if p == nil {
		return status.New(status.InvalidArgument, "%s: null, expected the address of an output", argument)
	}
	return aligned(argument, p)
}

// aligned refuses addresses that no compiler gives a T; null passes. The runtime ends the process when
// it meets one while the collector runs.
func aligned[T any](argument string, p *T) *status.Error {
	if a := unsafe.Alignof(*p); uintptr(unsafe.Pointer(p))%a != 0 {
		return status.New(status.InvalidArgument, "%s: address %#x is not aligned to %d bytes", argument, uintptr(unsafe.Pointer(p)), a)
	}
	return nil
}

// maxStructBytes is beyond every struct that a header will ever have: a larger
// struct_size was never set.
const maxStructBytes = 1 << 16

// statsMinBytes is the least that a caller of statistics has: struct_size, and the
// field beside it.
const statsMinBytes = 8

// outSize checks the size a caller wrote into a struct that a call fills. A larger one
// of a newer header is welcome: fill leaves alone what we do not know.
func outSize[T any](argument string, p *T, size C.uint32_t, minimum uintptr) *status.Error {
	if err := aligned(argument, p); err != nil {
		return err
	}
	if uintptr(size) < minimum {
		return status.New(status.Unsupported, "%s.struct_size: %d, expected %d (sizeof the struct in prefixcache.h; at least %d)", argument, uint32(size), unsafe.Sizeof(*p), minimum)
	}
	if uintptr(size) > maxStructBytes {
		return status.New(status.Unsupported, "%s.struct_size: %d, expected %d (was the struct zeroed and its struct_size set?)", argument, uint32(size), unsafe.Sizeof(*p))
	}
	return nil
}

// inSize is outSize for a struct that a call reads: a larger one is accepted only when
// what we do not know is zero, so that no setting is ignored.
func inSize[T any](argument string, p *T, size C.uint32_t, minimum uintptr) *status.Error {
	if err := outSize(argument, p, size, minimum); err != nil {
		return err
	}
	known := unsafe.Sizeof(*p)
	for off := known; off < uintptr(size); off++ {
		if *(*byte)(unsafe.Add(unsafe.Pointer(p), off)) != 0 {
			return status.New(status.Unsupported, "%s: byte %d is set, but this library knows only the first %d bytes: it is older than the host's header", argument, off, known)
		}
	}
	return nil
}

// options copies the caller's struct; fields that an older header does not have are 0.
func options[T any](p *T, size C.uint32_t) (o T) {
	n := min(uintptr(size), unsafe.Sizeof(o))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&o)), n), unsafe.Slice((*byte)(unsafe.Pointer(p)), n))
	return o
}

// reserved checks that a field which has no meaning yet is zero.
func reserved(argument string, v uint64) *status.Error {
	if v != 0 {
		return status.New(status.Unsupported, "%s: %d, expected 0 (reserved)", argument, v)
	}
	return nil
}

// fill copies the part of a statistics struct that the caller has room for, and
// keeps the struct_size that the caller wrote.
func fill[T any](dst *T, size C.uint32_t, src T) {
	n := min(uintptr(size), unsafe.Sizeof(src))
	const header = 4 // struct_size stays
	copy(unsafe.Slice((*byte)(unsafe.Pointer(dst)), n)[header:], unsafe.Slice((*byte)(unsafe.Pointer(&src)), n)[header:])
}
