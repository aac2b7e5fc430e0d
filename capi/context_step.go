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

// One export per step of a request's walk, in the order of the walk.

//export pcgo_context_begin
func pcgo_context_begin(ctx C.pc_handle, admission *C.pc_admission, starts *C.pc_sequence_start, request *C.pc_handle) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if x.closing {
		return failNew(status.BadHandle, "context: %#x is being destroyed", uint64(ctx))
	}
	defer x.args.forget()
	a, serr := x.args.convert(admission, int32(x.maxBatch))
	if serr == nil {
		serr = out("starts", starts)
	}
	if serr == nil {
		serr = out("request", request)
	}
	if serr == nil {
		serr = disjoint("starts", starts, uint64(admission.num_sequences), "request", request, 1)
	}
	if serr != nil {
		if err := x.ready(admission); err != nil {
			return fail(err) // 13.3 asks for it before anything about the batch
		}
		return fail(serr)
	}
	h, err := x.c.Begin(a, uint64(admission.stream))
	if err != nil {
		return fail(err)
	}
	dst := unsafe.Slice(starts, int(admission.num_sequences))
	for i := range dst {
		s, err := x.c.Sequence(h, i)
		if err != nil {
			return fail(err)
		}
		start := C.pc_sequence_start{prefill_start: C.int32_t(s.PrefillStart), matched: C.int32_t(s.Matched),
			kind: C.uint32_t(s.Kind), reason: C.uint32_t(s.Reason), skipped_media: C.int32_t(s.SkippedMedia)}
		if s.ForcedCold {
			start.forced_cold = 1
		}
		dst[i] = start
	}
	*request = C.pc_handle(h)
	return C.PC_OK
}

// ready is what core asks of an admission before it looks at its batch, which may be
// unreadable.
func (x *contextCache) ready(in *C.pc_admission) error {
	if in == nil || inSize("admission", in, in.struct_size, unsafe.Sizeof(*in)) != nil {
		return nil
	}
	a := policies(in)
	return x.c.Ready(&a, uint64(in.stream))
}

// checkCapture is checkStep for a step that enqueues captures of snapshots and nothing else.
func (x *contextCache) checkCapture(h coordinator.Handle, work *C.pc_work) error {
	if x.store.recurrent.at != 0 {
		return x.checkStep(h, work)
	}
	if err := checkWork(work); err != nil {
		return err
	}
	return nil
}

// plainStep is a step that takes nothing but the request, checked by check.
func plainStep(ctx, request C.pc_handle, work *C.pc_work, check func(*contextCache, coordinator.Handle, *C.pc_work) error,
	step func(*coordinator.Coordinator, coordinator.Handle, []coordinator.Command) (int, error)) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	h := coordinator.Handle(request)
	if err := check(x, h, work); err != nil {
		return fail(err)
	}
	n, err := step(x.c, h, x.commands)
	return x.begin(h, n, err, work)
}

// checkStep checks what every step has in common before core plans it: the output, and
// that this thread can enqueue on the stream. What core has planned it cannot take back.
func (x *contextCache) checkStep(_ coordinator.Handle, work *C.pc_work) error {
	if err := checkWork(work); err != nil {
		return err
	}
	return x.admit()
}

// checkEnd is checkStep for a finish, which enqueues nothing and waits.
func (x *contextCache) checkEnd(h coordinator.Handle, work *C.pc_work) error {
	if err := checkWork(work); err != nil {
		return err
	}
	return x.pendingHere(h)
}

//export pcgo_context_prepare_prefill
func pcgo_context_prepare_prefill(ctx, request C.pc_handle, work *C.pc_work) C.pc_status {
	return plainStep(ctx, request, work, (*contextCache).checkStep, (*coordinator.Coordinator).PreparePrefill)
}

//export pcgo_context_capture_prefill
func pcgo_context_capture_prefill(ctx, request C.pc_handle, work *C.pc_work) C.pc_status {
	return plainStep(ctx, request, work, (*contextCache).checkStep, (*coordinator.Coordinator).EnqueuePrefillCaptures)
}

// advance views the arrays of a pc_advance. publishable is legal in a decode
// step only.
func (x *contextCache) advance(a *C.pc_advance, decode bool) (common, publishable []int32, serr *status.Error) {
	if a == nil {
		return nil, nil, status.New(status.InvalidArgument, "advance: null, expected a pc_advance")
	}
	if serr = inSize("advance", a, a.struct_size, unsafe.Sizeof(*a)); serr != nil {
		return nil, nil, serr
	}
	for _, v := range a.reserved {
		if serr = reserved("advance.reserved", uint64(v)); serr != nil {
			return nil, nil, serr
		}
	}
	n := int(a.num_sequences)
	if n < 1 || n > x.maxBatch {
		return nil, nil, status.New(status.InvalidArgument, "advance.num_sequences: %d, expected the active batch, 1 to %d", n, x.maxBatch)
	}
	cuts, serr := offsets("advance.token_offsets", unsafe.Pointer(a.token_offsets), n)
	if serr != nil {
		return nil, nil, serr
	}
	tokens, serr := slice[int32]("advance.tokens", unsafe.Pointer(a.tokens), cuts[n])
	if serr != nil {
		return nil, nil, serr
	}
	committed, serr := slice[int32]("advance.committed", unsafe.Pointer(a.committed), int64(n))
	if serr != nil {
		return nil, nil, serr
	}
	if a.common != nil {
		if common, serr = slice[int32]("advance.common", unsafe.Pointer(a.common), int64(n)); serr != nil {
			return nil, nil, serr
		}
	}
	if publishable, serr = slice[int32]("advance.publish", unsafe.Pointer(a.publish), a.num_publish); serr != nil {
		return nil, nil, serr
	}
	if !decode && len(publishable) != 0 {
		return nil, nil, status.New(status.InvalidArgument, "advance.num_publish: %d, expected 0 before the first decode step", len(publishable))
	}
	x.advances = x.advances[:0]
	for i := range n {
		x.advances = append(x.advances, coordinator.Advance{Tokens: tokens[cuts[i]:cuts[i+1]:cuts[i+1]], Committed: committed[i]})
	}
	return common, publishable, nil
}

//export pcgo_context_finalize_prefill
func pcgo_context_finalize_prefill(ctx, request C.pc_handle, a *C.pc_advance, work *C.pc_work) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := checkWork(work); err != nil {
		return fail(err)
	}
	common, _, serr := x.advance(a, false)
	if serr != nil {
		return fail(serr)
	}
	err := x.c.FinalizePrefill(coordinator.Handle(request), x.advances, common)
	clear(x.advances)
	return fail(err)
}

//export pcgo_context_prepare_decode
func pcgo_context_prepare_decode(ctx, request C.pc_handle, base, draft C.int32_t, work *C.pc_work) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	h := coordinator.Handle(request)
	if err := x.checkStep(h, work); err != nil {
		return fail(err)
	}
	n, err := x.c.PrepareDecodeStep(h, coordinator.Headroom{Base: int32(base), Draft: int32(draft)}, x.commands)
	return x.begin(h, n, err, work)
}

//export pcgo_context_complete_decode
func pcgo_context_complete_decode(ctx, request C.pc_handle, a *C.pc_advance, work *C.pc_work) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	h := coordinator.Handle(request)
	if err := x.checkCapture(h, work); err != nil {
		return fail(err)
	}
	common, publishable, serr := x.advance(a, true)
	if serr != nil {
		return fail(serr)
	}
	n, err := x.c.CompleteDecodeStep(h, x.advances, publishable, common, x.commands)
	clear(x.advances)
	return x.begin(h, n, err, work)
}

//export pcgo_context_begin_compaction
func pcgo_context_begin_compaction(ctx, request C.pc_handle, oldToNew *C.int32_t, count C.uint64_t, newBatch C.int32_t, deviceMapping C.uint64_t, work *C.pc_work) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := checkWork(work); err != nil {
		return fail(err)
	}
	m, serr := slice[int32]("old_to_new", unsafe.Pointer(oldToNew), count)
	if serr != nil {
		return fail(serr)
	}
	mapping, serr := optional("device_mapping", deviceMapping, len(m))
	if serr != nil {
		return fail(serr)
	}
	if err := x.admit(mapping); err != nil {
		return fail(err)
	}
	h := coordinator.Handle(request)
	n, err := x.c.BeginCompaction(h, m, int32(newBatch), x.commands)
	if err == nil {
		x.deviceMapping[int(h&0xffff)] = uint64(deviceMapping)
	}
	return x.begin(h, n, err, work)
}

//export pcgo_context_compact
func pcgo_context_compact(ctx, request C.pc_handle, work *C.pc_work) C.pc_status {
	return plainStep(ctx, request, work, (*contextCache).checkStep, (*coordinator.Coordinator).CompactBatch)
}

// optional is n int32 of the host in device memory; with address 0 they are left out.
func optional(name string, address C.uint64_t, n int) (gpu.Region, *status.Error) {
	if address%entryBytes != 0 {
		return gpu.Region{}, status.New(status.InvalidArgument, "%s: %#x, expected a multiple of %d", name, uint64(address), entryBytes)
	}
	if address == 0 {
		n = 0
	}
	return gpu.Region{Name: name, Addr: uintptr(address), Bytes: entryBytes * int64(n), Place: gpu.OnDevice}, nil
}

//export pcgo_context_move_slots
func pcgo_context_move_slots(ctx C.pc_handle, model C.uint32_t, oldToNew *C.int32_t, count, lengths C.uint64_t) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if _, err := pagePool(model); err != nil {
		return fail(err)
	}
	m, serr := slice[int32]("old_to_new", unsafe.Pointer(oldToNew), count)
	if serr != nil {
		return fail(serr)
	}
	if len(m) > x.maxBatch {
		return failNew(status.InvalidArgument, "count: %d, expected at most %d", len(m), x.maxBatch)
	}
	next := int32(0)
	for old, to := range m { // checked again: the copies below run in place
		if to != -1 && to != next {
			return failNew(status.InvalidArgument, "old_to_new[%d]: %d, expected -1 or %d, the next new slot", old, to, next)
		}
		if to >= 0 {
			next++
		}
	}
	region, serr := optional("lengths", lengths, x.maxBatch)
	if serr != nil {
		return fail(serr)
	}
	if err := x.admit(region); err != nil {
		return fail(err)
	}
	return fail(x.store.moveSlots(x.dev, x.stream, m, uint64(lengths), model == C.PC_BASE))
}

//export pcgo_context_finish
func pcgo_context_finish(ctx, request C.pc_handle, work *C.pc_work) C.pc_status {
	return plainStep(ctx, request, work, (*contextCache).checkEnd, (*coordinator.Coordinator).Finish)
}

//export pcgo_context_abandon
func pcgo_context_abandon(ctx, request C.pc_handle, drained C.uint32_t) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if drained > 1 {
		return failNew(status.InvalidArgument, "drained: %d, expected 0 or 1", uint32(drained))
	}
	h := coordinator.Handle(request)
	if drained == 1 {
		if err := x.pendingHere(h); err != nil {
			return fail(err)
		}
	}
	info, err := x.c.Request(h)
	if err == nil && info.InFlight {
		x.count, x.handed = 0, 0 // core drops the list with the request
	}
	return fail(x.c.Abandon(h, drained == 1))
}
