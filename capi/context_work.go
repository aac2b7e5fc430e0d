package main

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/coordinator"
	"libprefixcache/core/status"
	"libprefixcache/gpu"
)

// A step of core leaves a list of commands. What is ours goes to the device at
// once; what belongs to the runtime is handed out as pc_work. The walk:
//
//	step --> carryOut --(a runtime command)--> pc_work --> host
//	           |  ^                                          |
//	           |  +---------- pc_context_report -------------+
//	           +--(the end)--> core's Report: the step is committed

// payloads of one request in pinned memory: lengths, slots, mapping.
const payloads = 3

// payload is one of the pinned arrays of a request. Each request has its own, so
// that one request's copy may still be running when the next one is prepared.
func (x *contextCache) payload(h coordinator.Handle, which int) *C.int32_t {
	index := int(h & 0xffff) // core's place in its table of requests
	return (*C.int32_t)(unsafe.Add(x.pinned, 4*x.maxBatch*(payloads*index+which)))
}

const (
	payloadLengths = iota
	payloadSlots
	payloadMapping
)

func (x *contextCache) fillPayload(h coordinator.Handle, which int, values []int32) *C.int32_t {
	p := x.payload(h, which)
	copy(unsafe.Slice((*int32)(p), x.maxBatch), values)
	return p
}

// checkWork checks the output that every step has.
func checkWork(work *C.pc_work) *status.Error {
	if err := out("work", work); err != nil {
		return err
	}
	if err := outSize("work", work, work.struct_size, unsafe.Sizeof(*work)); err != nil {
		return err
	}
	work.count = 0
	return nil
}

// begin takes the outcome of core's step function and starts on its list.
func (x *contextCache) begin(h coordinator.Handle, n int, err error, work *C.pc_work) C.pc_status {
	if err != nil || n == 0 {
		return fail(err)
	}
	x.count, x.next, x.handed = n, 0, 0
	return x.carryOut(h, work)
}

// carryOut goes on with the list until the host has to do something, or the end.
func (x *contextCache) carryOut(h coordinator.Handle, work *C.pc_work) C.pc_status {
	for x.next < x.count {
		c := &x.commands[x.next]
		if c.Kind.Runtime() || c.Kind == coordinator.CmdSynchronize {
			x.handOut(h, work)
			return C.PC_OK
		}
		if err := x.exec(h, c); err != nil {
			if t := x.tables[c.Cache]; t != nil {
				t.breakOff()
			}
			// The error of the device is the one to tell.
			_ = x.c.Report(h, coordinator.EnqueueFailed, x.next)
			x.count = 0
			return fail(err)
		}
		x.next++
	}
	n := x.count
	x.count = 0
	return fail(x.c.Report(h, coordinator.Done, n))
}

// exec carries out one command that is ours.
func (x *contextCache) exec(h coordinator.Handle, c *coordinator.Command) error {
	switch c.Kind {
	case coordinator.CmdWaitUpload, coordinator.CmdUploadRows, coordinator.CmdRecordUpload:
		return x.tables[c.Cache].exec(c, x.stream)
	case coordinator.CmdUploadMapping:
		p := x.fillPayload(h, payloadMapping, x.c.CompactionMapping())
		dst := x.deviceMapping[h&0xffff]
		if dst == 0 {
			return nil
		}
		return x.dev.CopyToDevice(x.stream, gpu.Addr(dst), unsafe.Pointer(p), int64(c.Count)*4)
	}
	return x.store.exec(x.dev, x.stream, c)
}

// handOut gives the host every command up to the next one of ours.
func (x *contextCache) handOut(h coordinator.Handle, work *C.pc_work) {
	for i := x.next; i < x.count && work.count < C.PC_MAX_WORK; i++ {
		c := &x.commands[i]
		item := C.pc_work_item{model: C.uint32_t(c.Cache), count: C.int32_t(c.Count)}
		switch c.Kind {
		case coordinator.CmdSynchronize:
			item.op = C.PC_WORK_SYNCHRONIZE
		case coordinator.CmdSetReuseLengths:
			item.op = C.PC_WORK_RESET_LENGTHS
			item.values = x.fillPayload(h, payloadLengths, x.c.ReuseLengths())
			item.slots = x.fillPayload(h, payloadSlots, x.c.Slots())
		case coordinator.CmdCompactState:
			item.op = C.PC_WORK_COMPACT_SLOTS
			item.values = x.payload(h, payloadMapping)
			item.device_values = C.uint64_t(x.deviceMapping[h&0xffff])
		case coordinator.CmdSetActiveBatch:
			item.op = C.PC_WORK_SET_BATCH
			item.count = C.int32_t(c.New)
		default:
			return
		}
		// As bytes, for the reason that buffers.go has.
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&work.items[work.count])), unsafe.Sizeof(item)), unsafe.Slice((*byte)(unsafe.Pointer(&item)), unsafe.Sizeof(item)))
		work.count++
		x.handed++
	}
}

//export pcgo_context_report
func pcgo_context_report(ctx, request C.pc_handle, outcome C.uint32_t, work *C.pc_work) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := checkWork(work); err != nil {
		return fail(err)
	}
	h := coordinator.Handle(request)
	if err := x.ownThread(); err != nil {
		return fail(err) // the thread of the step can still report
	}
	info, err := x.c.Request(h)
	if err != nil {
		return fail(err)
	}
	switch {
	case !info.InFlight || x.handed == 0:
		return failNew(status.WrongState, "report: the request has no work outstanding")
	case outcome == C.PC_WORK_DONE:
		x.next += x.handed
		x.handed = 0
		return x.carryOut(h, work)
	case outcome == C.PC_WORK_FAILED:
		x.count, x.handed = 0, 0
		return fail(x.c.Report(h, coordinator.EnqueueFailed, x.next))
	case outcome == C.PC_WORK_SYNC_FAILED:
		if !x.synchronises() {
			return failNew(status.InvalidArgument, "outcome: PC_WORK_SYNC_FAILED, but the work has no PC_WORK_SYNCHRONIZE")
		}
		x.count, x.handed = 0, 0
		return fail(x.c.Report(h, coordinator.SyncFailed, x.next))
	}
	return failNew(status.InvalidArgument, "outcome: %d, expected PC_WORK_DONE (0) to PC_WORK_SYNC_FAILED (2)", uint32(outcome))
}

// synchronises reports whether the host has a synchronisation in hand.
func (x *contextCache) synchronises() bool {
	for i := x.next; i < x.next+x.handed; i++ {
		if x.commands[i].Kind == coordinator.CmdSynchronize {
			return true
		}
	}
	return false
}
