package main

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
)

//export pcgo_omni_get_stats
func pcgo_omni_get_stats(cache C.pc_handle, stats *C.pc_omni_stats) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	if err := out("stats", stats); err != nil {
		return fail(err)
	}
	if err := outSize("stats", stats, stats.struct_size, statsMinBytes); err != nil {
		return fail(err)
	}
	fill(stats, stats.struct_size, o.stats())
	return C.PC_OK
}

//export pcgo_omni_inspect
func pcgo_omni_inspect(cache C.pc_handle, key C.uint32_t, slots *C.int64_t, numSlots C.size_t, states *C.pc_omni_slot_state, rows unsafe.Pointer, rowsBytes C.uint64_t) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	in, err := slice[int64]("slots", unsafe.Pointer(slots), uint64(numSlots))
	if err != nil {
		return fail(err)
	}
	res, err := slice[omni.SlotState]("states", unsafe.Pointer(states), uint64(numSlots))
	if err != nil {
		return fail(err)
	}
	if rowsBytes > 1<<62 {
		return failNew(status.InvalidArgument, "rows_bytes: %d, expected at most 2^62", uint64(rowsBytes))
	}
	return fail(o.cache.Inspect(omni.KeyID(key), in, res, rows, int64(rowsBytes)))
}

//export pcgo_omni_check
func pcgo_omni_check(cache C.pc_handle) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	return fail(o.cache.Check())
}

//export pcgo_omni_fail_write
func pcgo_omni_fail_write(cache C.pc_handle, nth C.uint64_t) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	o.cache.FailWrite(uint64(nth))
	return C.PC_OK
}

// stats puts core's counters, and those of the device, into the struct of the header.
func (o *omniCache) stats() C.pc_omni_stats {
	s := o.cache.Stats()
	c := C.pc_omni_stats{
		steps_saved:                C.uint64_t(s.StepsSaved),
		steps_materialized:         C.uint64_t(s.StepsMaterialized),
		steps_discarded:            C.uint64_t(s.StepsDiscarded),
		rows_saved:                 C.uint64_t(s.RowsSaved),
		saved_bytes:                C.uint64_t(s.SavedBytes),
		hits:                       C.uint64_t(s.Hits),
		hit_tokens:                 C.uint64_t(s.HitTokens),
		gathered_bytes:             C.uint64_t(s.GatheredBytes),
		preserved_bytes:            C.uint64_t(s.PreservedBytes),
		absent_rows:                C.uint64_t(s.AbsentRows),
		displaced_rows:             C.uint64_t(s.DisplacedRows),
		deferred_writes:            C.uint64_t(s.DeferredWrites),
		flushes:                    C.uint64_t(s.Flushes),
		staging_waits:              C.uint64_t(s.StagingWaits),
		failed_writes:              C.uint64_t(s.FailedWrites),
		live_requests:              C.uint64_t(s.LiveRequests),
		unconsumed_steps:           C.uint64_t(s.UnconsumedSteps),
		pending_writes:             C.uint64_t(s.PendingWrites),
		pending_reads:              C.uint64_t(s.PendingReads),
		staged_bytes:               C.uint64_t(s.StagedBytes),
		staged_bytes_peak:          C.uint64_t(s.StagedBytesPeak),
		reserved_bytes:             C.uint64_t(s.ReservedBytes),
		keys:                       C.uint64_t(s.Keys),
		tokens_saved:               C.uint64_t(s.TokensSaved),
		reads_used:                 C.uint64_t(s.ReadsUsed),
		reads_dropped:              C.uint64_t(s.ReadsDropped),
		live_requests_peak:         C.uint64_t(s.LiveRequestsPeak),
		unconsumed_steps_peak:      C.uint64_t(s.UnconsumedStepsPeak),
		staging_depth:              C.uint64_t(s.StagingDepth),
		staging_bytes:              C.uint64_t(s.BudgetBytes),
		pinned_bytes:               C.uint64_t(s.PageBytes),
		queue_age_nanoseconds:      C.uint64_t(s.QueueAge),
		queue_age_nanoseconds_peak: C.uint64_t(s.QueueAgePeak),
	}
	for i, m := range s.Moves {
		c.copied_bytes[i], c.timed_bytes[i], c.copy_nanoseconds[i] = C.uint64_t(m.Bytes), C.uint64_t(m.TimedBytes), C.uint64_t(m.Nanoseconds)
	}
	for i, w := range s.Waits {
		c.waits[i], c.wait_nanoseconds[i] = C.uint64_t(w.Count), C.uint64_t(w.Nanoseconds)
	}
	w := &o.device.watch
	for i, t := range [...]*deviceTime{omni.MoveClone: &w.clone, omni.MoveLand: &w.land} {
		c.timed_bytes[i], c.copy_nanoseconds[i] = C.uint64_t(t.bytes.Load()), C.uint64_t(t.nanoseconds.Load())
	}
	return c
}

// The numbers of the header are those of core.
const (
	_ = -(C.PC_OMNI_COPY_COMMIT ^ uint(omni.MoveCommit))
	_ = -(C.PC_OMNI_COPY_D2H ^ uint(omni.MoveLand))
	_ = -(C.PC_OMNI_COPY_GATHER ^ uint(omni.MoveGather))
	_ = -(C.PC_OMNI_COPY_MERGE ^ uint(omni.MoveMerge))
	_ = -(C.PC_OMNI_COPY_SAVE ^ uint(omni.MoveSave))
	_ = -(C.PC_OMNI_WAIT_STAGING ^ uint(omni.WaitStaging))
	_ = -(C.PC_OMNI_WAIT_BUDGET ^ uint(omni.WaitBudget))
	_ = -(C.PC_OMNI_WAIT_READ ^ uint(omni.WaitRead))
	_ = -(C.PC_OMNI_WAIT_LANDING ^ uint(omni.WaitLanded))
	_ = -(C.PC_OMNI_WAIT_LOCK ^ uint(omni.WaitLock))
)
