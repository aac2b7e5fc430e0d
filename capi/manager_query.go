package main

/*
#include "shim.h"
*/
import "C"

import (
	"strings"
	"unsafe"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// Queries: nothing in this file changes a reference count or the recency of a
// record, except invalidate, flush and evict, which remove records.

//export pcgo_manager_lookup
func pcgo_manager_lookup(h C.pc_handle, mode C.uint32_t, sequence *C.pc_sequence, plan *C.pc_plan) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	defer m.forget()
	if err := m.plan(mode, C.PC_LOOKUP_USE_CACHE, sequence, plan); err != nil {
		return fail(err)
	}
	p, err := m.m.Plan(&m.req)
	if err != nil {
		return fail(err)
	}
	writePlan(plan, &p)
	return C.PC_OK
}

// pagePool maps PC_BASE and PC_DRAFT to a pool.
func pagePool(model C.uint32_t) (prefix.Resource, *status.Error) {
	switch model {
	case C.PC_BASE:
		return prefix.BasePages, nil
	case C.PC_DRAFT:
		return prefix.DraftPages, nil
	}
	return 0, status.New(status.InvalidArgument, "model: %d, expected PC_BASE (0) or PC_DRAFT (1)", uint32(model))
}

// window cuts the part of a list of n entries that the caller has room for.
func window[T any](argument string, p unsafe.Pointer, space C.uint64_t, first C.uint64_t, n int) ([]T, *status.Error) {
	room, err := slice[T](argument, p, space)
	if err != nil {
		return nil, err
	}
	if uint64(first) > uint64(n) {
		return nil, status.New(status.InvalidArgument, "first: %d, expected at most %d, the number of entries", uint64(first), n)
	}
	return room[:min(len(room), n-int(first))], nil
}

func (m *manager) leasePages(id prefix.LeaseID, model C.uint32_t, first C.uint64_t, pages *C.int32_t, space C.uint64_t, num *C.uint64_t) error {
	if err := out("num_pages", num); err != nil {
		return err
	}
	pool, serr := pagePool(model)
	if serr != nil {
		return serr
	}
	n, err := m.m.PageCount(id, pool)
	if err != nil {
		return err
	}
	room, serr := window[int32]("pages", unsafe.Pointer(pages), space, first, n)
	if serr != nil {
		return serr
	}
	if err := m.m.Pages(id, pool, int(first), room); err != nil {
		return err
	}
	*num = C.uint64_t(n)
	return nil
}

//export pcgo_manager_lease_pages
func pcgo_manager_lease_pages(h, lease C.pc_handle, model C.uint32_t, first C.uint64_t, pages *C.int32_t, space C.uint64_t, num *C.uint64_t) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	return fail(m.leasePages(prefix.LeaseID(lease), model, first, pages, space, num))
}

//export pcgo_manager_invalidate
func pcgo_manager_invalidate(h C.pc_handle, adapter *C.pc_hash128, generation, removed *C.uint64_t) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if adapter == nil {
		return failNew(status.InvalidArgument, "adapter: null, expected a pc_hash128")
	}
	if err := aligned("adapter", adapter); err != nil {
		return fail(err)
	}
	if err := aligned("generation", generation); err != nil {
		return fail(err)
	}
	if err := aligned("removed", removed); err != nil {
		return fail(err)
	}
	var gen *uint64
	if generation != nil {
		v := uint64(*generation)
		gen = &v
	}
	n := m.m.Invalidate(hash(*adapter), gen)
	if removed != nil {
		*removed = C.uint64_t(n)
	}
	return C.PC_OK
}

//export pcgo_manager_flush
func pcgo_manager_flush(h C.pc_handle, removed *C.uint64_t) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := aligned("removed", removed); err != nil {
		return fail(err)
	}
	n := m.m.Flush()
	if removed != nil {
		*removed = C.uint64_t(n)
	}
	return C.PC_OK
}

//export pcgo_manager_evict
func pcgo_manager_evict(h C.pc_handle, record C.uint64_t) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	return fail(m.m.EvictRecord(prefix.RecordID(record)))
}

//export pcgo_manager_records
func pcgo_manager_records(h C.pc_handle, records *C.pc_record, space C.uint64_t, num *C.uint64_t) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("num_records", num); err != nil {
		return fail(err)
	}
	room, serr := window[C.pc_record]("records", unsafe.Pointer(records), space, 0, m.m.Records())
	if serr != nil {
		return fail(serr)
	}
	i := 0
	for r := range m.m.AllRecords() {
		if i == len(room) {
			break
		}
		v := C.pc_record{id: C.uint64_t(r.ID), blocks: C.int32_t(r.Blocks), exact_length: C.int32_t(r.Exact),
			recurrent_slot: C.int32_t(r.Recurrent), partial_slot: C.int32_t(r.Partial)}
		if m.pages {
			v.base_pages = v.blocks
		}
		if r.HasDraft {
			v.draft_pages = v.blocks
		}
		room[i] = v
		i++
	}
	*num = C.uint64_t(m.m.Records())
	return C.PC_OK
}

//export pcgo_manager_record_pages
func pcgo_manager_record_pages(h C.pc_handle, record C.uint64_t, model C.uint32_t, first C.uint64_t, pages *C.int32_t, space C.uint64_t, num *C.uint64_t) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("num_pages", num); err != nil {
		return fail(err)
	}
	pool, serr := pagePool(model)
	if serr != nil {
		return fail(serr)
	}
	path, err := m.m.RecordPages(prefix.RecordID(record), pool, nil)
	if err != nil {
		return fail(err)
	}
	room, serr := window[int32]("pages", unsafe.Pointer(pages), space, first, len(path))
	if serr != nil {
		return fail(serr)
	}
	copy(room, path[first:])
	*num = C.uint64_t(len(path))
	return C.PC_OK
}

//export pcgo_manager_references
func pcgo_manager_references(h C.pc_handle, resource C.uint32_t, first C.uint64_t, active, cached *C.int32_t, count C.uint64_t) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if resource > C.PC_RESOURCE_PARTIAL_KV {
		return failNew(status.InvalidArgument, "resource: %d, expected PC_RESOURCE_BASE_PAGE (0) to PC_RESOURCE_PARTIAL_KV (3)", uint32(resource))
	}
	pool := prefix.Resource(resource)
	n := uint64(m.m.Capacity(pool))
	if uint64(first) > n || uint64(count) > n-uint64(first) {
		return failNew(status.InvalidArgument, "first and count: %d and %d, expected a range within the %d of the pool", uint64(first), uint64(count), n)
	}
	if err := disjoint("active", active, uint64(count), "cached", cached, uint64(count)); err != nil {
		return fail(err)
	}
	counts := make([]int32, 2*n)
	if err := m.m.References(pool, counts[:n], counts[n:]); err != nil {
		return fail(err)
	}
	for i, dst := range [...]*C.int32_t{active, cached} {
		if dst != nil && count > 0 {
			copy(unsafe.Slice((*int32)(dst), int(count)), counts[uint64(i)*n+uint64(first):])
		}
	}
	return C.PC_OK
}

//export pcgo_manager_get_stats
func pcgo_manager_get_stats(h C.pc_handle, stats *C.pc_manager_stats) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("stats", stats); err != nil {
		return fail(err)
	}
	if err := outSize("stats", stats, stats.struct_size, statsMinBytes); err != nil {
		return fail(err)
	}
	fill(stats, stats.struct_size, m.stats())
	return C.PC_OK
}

// stats puts core's counters into the struct of the header.
func (m *manager) stats() C.pc_manager_stats {
	n := m.m.Counters()
	s := C.pc_manager_stats{
		records: C.uint64_t(m.m.Records()), leases: C.uint64_t(m.m.Leases()), base_blocks: C.uint64_t(m.m.IndexedPages()), draft_blocks: C.uint64_t(m.m.DraftEntries()),
		acquires: C.uint64_t(n.Acquires), infeasible: C.uint64_t(n.Infeasible),
		evicted_records:    C.uint64_t(n.EvictedRecords),
		stale_publications: C.uint64_t(n.StalePublishes), hash_collisions: C.uint64_t(n.HashCollisions),
		query_tokens: C.uint64_t(n.QueryTokens), hit_tokens: C.uint64_t(n.HitTokens),
		shortened_records: C.uint64_t(n.ShortenedRecords), leases_peak: C.uint64_t(n.LeasesPeak),
		lock_waits: C.uint64_t(m.mu.waits), lock_wait_nanoseconds: C.uint64_t(m.mu.nanoseconds),
	}
	for i := range s.capacity {
		s.capacity[i] = C.uint64_t(m.m.Capacity(prefix.Resource(i)))
		s.free[i] = C.uint64_t(m.m.Free(prefix.Resource(i)))
		s.active[i] = C.uint64_t(m.m.Active(prefix.Resource(i)))
		s.reclaimed[i] = C.uint64_t(n.Reclaimed[i])
		s.active_peak[i] = C.uint64_t(n.ActivePeak[i])
	}
	for i, count := range n.ReasonCount {
		s.reasons[i] = C.uint64_t(count)
	}
	return s
}

//export pcgo_manager_check
func pcgo_manager_check(h C.pc_handle) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	return fail(m.m.Check())
}

//export pcgo_manager_dump
func pcgo_manager_dump(h C.pc_handle, text *C.char, space C.uint64_t, size *C.uint64_t) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("size", size); err != nil {
		return fail(err)
	}
	room, serr := slice[byte]("text", unsafe.Pointer(text), space)
	if serr != nil {
		return fail(serr)
	}
	var b strings.Builder
	if err := m.m.Dump(&b); err != nil {
		return fail(err)
	}
	if len(room) > 0 {
		n := copy(room[:len(room)-1], b.String())
		room[n] = 0
	}
	*size = C.uint64_t(b.Len())
	return C.PC_OK
}
