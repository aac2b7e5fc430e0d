package main

/*
#include "shim.h"
*/
import "C"

import (
	"math"
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
)

// The calls of an engine in their order, and those that consume a step.

//export pcgo_omni_set_policy
func pcgo_omni_set_policy(cache C.pc_handle, needsHidden C.uint32_t) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	if needsHidden > 1 {
		return failNew(status.InvalidArgument, "needs_hidden: %d, expected 0 or 1", uint32(needsHidden))
	}
	if err := o.lockEngine(); err != nil {
		return fail(err)
	}
	defer o.engine.Unlock()
	return fail(o.cache.SetPolicy(needsHidden == 1))
}

const maxKeyName = 4096

//export pcgo_omni_open_key
func pcgo_omni_open_key(cache C.pc_handle, name *C.char, nameSize C.size_t, rowBytes C.uint64_t, typeTag, schedule C.uint32_t, key *C.uint32_t) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	if name == nil || nameSize == 0 || nameSize > maxKeyName {
		return failNew(status.InvalidArgument, "name: null or %d bytes, expected 1 to %d bytes", uint64(nameSize), maxKeyName)
	}
	if rowBytes > math.MaxInt64 { // core refuses the others and names the key
		return failNew(status.InvalidArgument, "row_bytes: %d, expected 1 to 2^31", uint64(rowBytes))
	}
	if schedule > C.PC_OMNI_JOIN_ON_FINISH {
		return failNew(status.InvalidArgument, "schedule: %d, expected PC_OMNI_JOIN_NEXT_STEP (0) or PC_OMNI_JOIN_ON_FINISH (1)", uint32(schedule))
	}
	if err := out("key", key); err != nil {
		return fail(err)
	}
	if err := o.lockEngine(); err != nil {
		return fail(err)
	}
	defer o.engine.Unlock()
	id, kerr := o.cache.OpenKey(C.GoStringN(name, C.int(nameSize)), int64(rowBytes), uint32(typeTag), omni.Schedule(schedule))
	if kerr != nil {
		return fail(kerr)
	}
	short := tellMemory(&o.most, o.cache.MostBytes(), "omni cache", "lower num_blocks, the size of a step or the staging memory")
	switch {
	case o.warmer == nil:
	case short:
		o.warmer.stop()
	default:
		o.warmer.start()
	}
	*key = C.uint32_t(id)
	return C.PC_OK
}

//export pcgo_omni_step_begin
func pcgo_omni_step_begin(cache C.pc_handle, finished *C.uint64_t, numFinished C.size_t, arrivals *C.pc_omni_new_request, numArrivals C.size_t, hitAccepted *C.uint8_t) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	done, err := slice[uint64]("finished", unsafe.Pointer(finished), uint64(numFinished))
	if err != nil {
		return fail(err)
	}
	in, err := slice[C.pc_omni_new_request]("arrivals", unsafe.Pointer(arrivals), uint64(numArrivals))
	if err != nil {
		return fail(err)
	}
	var accepted []bool
	if hitAccepted != nil {
		accepted = unsafe.Slice((*bool)(unsafe.Pointer(hitAccepted)), len(in))
	}
	if err := o.lockEngine(); err != nil {
		return fail(err)
	}
	defer o.engine.Unlock()
	o.arrivals = o.arrivals[:0]
	defer func() { clear(o.arrivals) }() // keeps no address of the caller
	for i := range in {
		a := &in[i]
		if a.hit_tokens < 0 {
			return failNew(status.InvalidArgument, "arrivals[%d].hit_tokens: %d, expected >= 0", i, int64(a.hit_tokens))
		}
		blocks, err := slice[int64]("arrivals.blocks", unsafe.Pointer(a.blocks), int64(a.num_blocks))
		if err != nil {
			return fail(err)
		}
		o.arrivals = append(o.arrivals, omni.NewRequest{Request: uint64(a.request), HitTokens: int64(a.hit_tokens), Blocks: blocks})
	}
	return o.done(o.cache.StepBegin(done, o.arrivals, accepted))
}

//export pcgo_omni_save
func pcgo_omni_save(cache C.pc_handle, args *C.pc_omni_save_args) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	if args == nil {
		return failNew(status.InvalidArgument, "args: null, expected a pc_omni_save_args")
	}
	if err := inSize("args", args, args.struct_size, unsafe.Offsetof(args.event)); err != nil {
		return fail(err)
	}
	var event C.uint64_t
	if uintptr(args.struct_size) >= unsafe.Sizeof(*args) {
		event = args.event
	}
	if args.flags != 0 {
		return failNew(status.Unsupported, "args.flags: %#x, expected 0", uint32(args.flags))
	}
	for i := range args.reserved {
		if err := reserved("args.reserved", uint64(args.reserved[i])); err != nil {
			return fail(err)
		}
	}
	requests, err := slice[uint64]("args.requests", unsafe.Pointer(args.requests), uint64(args.num_requests))
	if err != nil {
		return fail(err)
	}
	counts, err := slice[int64]("args.counts", unsafe.Pointer(args.counts), uint64(args.num_requests))
	if err != nil {
		return fail(err)
	}
	slots, err := slice[int64]("args.slots", unsafe.Pointer(args.slots), int64(args.num_slots))
	if err != nil {
		return fail(err)
	}
	in, err := slice[C.pc_omni_rows]("args.rows", unsafe.Pointer(args.rows), uint64(args.num_rows))
	if err != nil {
		return fail(err)
	}
	for i := range in {
		if in[i].flags&^C.PC_OMNI_ON_DEVICE != 0 {
			return failNew(status.Unsupported, "args.rows[%d].flags: %#x, expected PC_OMNI_ON_DEVICE or 0", i, uint32(in[i].flags))
		}
		if in[i].dst == nil && in[i].dst_bytes != 0 {
			return failNew(status.InvalidArgument, "args.rows[%d].dst: null with dst_bytes %d, expected an address, or 0 bytes", i, uint64(in[i].dst_bytes))
		}
	}
	rows, err := slice[omni.KeyRows]("args.rows", unsafe.Pointer(args.rows), uint64(args.num_rows))
	if err != nil {
		return fail(err)
	}
	if err := o.lockEngine(); err != nil {
		return fail(err)
	}
	defer o.engine.Unlock()
	o.save = omni.SaveArgs{Requests: requests, Counts: counts, Slots: slots, Rows: rows, Stream: uint64(args.stream), Event: uint64(event)}
	step, serr := o.cache.Save(&o.save)
	o.report()
	o.save = omni.SaveArgs{}
	if serr != nil {
		return fail(serr)
	}
	args.step = C.uint64_t(step)
	return C.PC_OK
}

//export pcgo_omni_materialize
func pcgo_omni_materialize(cache C.pc_handle, step C.uint64_t, reads *C.pc_omni_read, numReads C.size_t) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	list, err := omniReads(reads, numReads)
	if err != nil {
		// The step is used up all the same (O-22).
		_ = o.cache.Materialize(uint64(step), nil)
		return fail(err)
	}
	return o.done(o.cache.Materialize(uint64(step), list))
}

// omniReads checks the reads; they have the layout of the core's.
func omniReads(reads *C.pc_omni_read, numReads C.size_t) ([]omni.Read, *status.Error) {
	in, err := slice[C.pc_omni_read]("reads", unsafe.Pointer(reads), uint64(numReads))
	if err != nil {
		return nil, err
	}
	for i := range in {
		if err := reserved("reads.reserved0", uint64(in[i].reserved0)); err != nil {
			return nil, err
		}
	}
	return slice[omni.Read]("reads", unsafe.Pointer(reads), uint64(numReads))
}

//export pcgo_omni_discard
func pcgo_omni_discard(cache C.pc_handle, step C.uint64_t) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	return o.done(o.cache.Discard(uint64(step)))
}
