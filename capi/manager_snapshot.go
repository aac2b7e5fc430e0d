package main

/*
#include "shim.h"
*/
import "C"

import (
	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

//export pcgo_manager_reserve
func pcgo_manager_reserve(h, lease C.pc_handle, needPartial C.uint32_t, recurrent, partial *C.int32_t) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if needPartial > 1 {
		return failNew(status.InvalidArgument, "need_partial: %d, expected 0 or 1", uint32(needPartial))
	}
	if err := out("recurrent_slot", recurrent); err != nil {
		return fail(err)
	}
	if err := out("partial_slot", partial); err != nil {
		return fail(err)
	}
	if err := disjoint("recurrent_slot", recurrent, 1, "partial_slot", partial, 1); err != nil {
		return fail(err)
	}
	r, ok, err := m.m.Reserve(prefix.LeaseID(lease), needPartial == 1)
	if err != nil {
		return fail(err)
	}
	if !ok {
		d := prefix.Demand{prefix.RecurrentSlots: 1, prefix.PartialSlots: int(needPartial)}
		if m.m.Feasible(d) {
			if l, err := m.m.Lease(prefix.LeaseID(lease)); err == nil && l.Stale {
				return fail(noSnapshotForStale)
			}
			return fail(noSnapshotInQuota)
		}
		return m.refused(noSnapshot, prefix.Demand{}, d, m.m.Pools())
	}
	*recurrent, *partial = C.int32_t(r.Recurrent), C.int32_t(r.Partial)
	return C.PC_OK
}

var noSnapshot = status.New(status.RequestFailed, "no snapshot slot: all are in use, even with every record evicted")
var noSnapshotForStale = status.New(status.RequestFailed, "no snapshot slot: what this lease publishes is dropped, since it was flushed or invalidated, and nothing is evicted for it")
var noSnapshotInQuota = status.New(status.RequestFailed, "quota: the tenant's leases hold the snapshots that it may hold, and the free slots and its own records do not suffice")

//export pcgo_manager_publish_hybrid
func pcgo_manager_publish_hybrid(h, lease C.pc_handle, length C.int64_t, recurrent, partial C.int32_t, publication *C.pc_publication) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := m.level(false); err != nil {
		return fail(err)
	}
	if err := checkPublication(publication); err != nil {
		return fail(err)
	}
	res, err := m.m.PublishHybrid(prefix.LeaseID(lease), int(length), prefix.Reservation{Recurrent: int32(recurrent), Partial: int32(partial)})
	return published(publication, res, err)
}

//export pcgo_manager_publish_hybrid_keys
func pcgo_manager_publish_hybrid_keys(h, lease C.pc_handle, first C.uint64_t, keys *C.pc_hash128, numKeys C.uint64_t, at *C.pc_checkpoint, recurrent, partial C.int32_t, publication *C.pc_publication) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if at == nil {
		return failNew(status.InvalidArgument, "checkpoint: null, expected a pc_checkpoint")
	}
	if err := aligned("checkpoint", at); err != nil {
		return fail(err)
	}
	k, serr := m.keyArgs(first, keys, numKeys, publication)
	if serr != nil {
		return fail(serr)
	}
	slots := prefix.Reservation{Recurrent: int32(recurrent), Partial: int32(partial)}
	res, err := m.m.PublishHybridKeys(prefix.LeaseID(lease), int(first), k, checkpoint(at), slots)
	return published(publication, res, err)
}

//export pcgo_manager_retire
func pcgo_manager_retire(h, lease C.pc_handle, recurrent, partial C.int32_t) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	return fail(m.m.Retire(prefix.LeaseID(lease), prefix.Reservation{Recurrent: int32(recurrent), Partial: int32(partial)}))
}

//export pcgo_manager_release_restored
func pcgo_manager_release_restored(h, lease C.pc_handle) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	return fail(m.m.ReleaseRestored(prefix.LeaseID(lease)))
}

//export pcgo_manager_release
func pcgo_manager_release(h C.pc_handle, lease *C.pc_handle) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := aligned("lease", lease); err != nil {
		return fail(err)
	}
	if lease == nil || *lease == 0 {
		return C.PC_OK
	}
	if err := m.m.Release(prefix.LeaseID(*lease)); err != nil {
		return fail(err)
	}
	*lease = 0
	return C.PC_OK
}
