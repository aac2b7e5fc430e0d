package main

/*
#include "shim.h"
*/
import "C"

import (
	"strconv"
	"unsafe"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// What a lease goes through, from acquire to publish.

// noCapacity is the outcome that a busy server sees often: its text is made once.
var noCapacity = status.New(status.RequestFailed, "no capacity: the pages wanted are in use, even with every record evicted")

// overQuota is the same for a tenant.
var overQuota = status.New(status.RequestFailed, "quota: the tenant's leases and the pages wanted exceed what it may hold, even with every record of it evicted")

// refused says what a demand failed for: now, or for good when what the lease holds and
// wants is more than there is of a pool, or more than its tenant may have.
func (m *manager) refused(now *status.Error, held, want, most prefix.Demand) C.pc_status {
	for pool := range want {
		if want[pool] > 0 && held[pool]+want[pool] > most[pool] {
			return m.never(prefix.Resource(pool), held[pool], want[pool], most[pool], now == overQuota)
		}
	}
	return fail(now)
}

// What a pool has, and the option that says how much.
var poolNames = [...][2]string{prefix.BasePages: {"base page", "base_pages"}, prefix.DraftPages: {"draft page", "draft_pages"},
	prefix.RecurrentSlots: {"recurrent snapshot", "recurrent_slots"}, prefix.PartialSlots: {"partial snapshot", "partial_slots"}}

// never is the outcome for a demand that is met on no day. A host may well ask again and
// again: its text is put together in place.
func (m *manager) never(pool prefix.Resource, held, want, most int, ofTenant bool) C.pc_status {
	name := poolNames[pool]
	text := append(m.text[:0], "beyond capacity: "...)
	if ofTenant {
		text = append(m.text[:0], "quota: "...)
	}
	first := want
	if held > 0 {
		first = held
	}
	text = append(strconv.AppendInt(text, int64(first), 10), ' ')
	text = append(text, name[0]...)
	if first != 1 {
		text = append(text, 's')
	}
	if held > 0 {
		text = append(text, " held and "...)
		text = strconv.AppendInt(text, int64(want), 10)
	}
	if ofTenant {
		text = append(text, " wanted, the tenant may hold "...)
	} else {
		text = append(text, " wanted, the pool has "...)
	}
	text = append(strconv.AppendInt(text, int64(most), 10), " in all"...)
	if !ofTenant {
		text = append(append(append(text, " ("...), name[1]...), ')')
	}
	m.text = text
	setErrorText(text)
	return C.PC_REQUEST_FAILED
}

// Exports on the hot path do their work in a method: with few returns Go can
// place the deferred calls inline, which saves tens of nanoseconds.

//export pcgo_manager_acquire
func pcgo_manager_acquire(h C.pc_handle, mode, lookup C.uint32_t, sequence *C.pc_sequence, plan *C.pc_plan,
	basePages *C.int32_t, numBase C.uint64_t, draftPages *C.int32_t, numDraft C.uint64_t, lease *C.pc_handle) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	st = m.acquire(mode, lookup, sequence, plan, basePages, numBase, draftPages, numDraft, lease)
	m.forget()
	return st
}

// forget drops what points into the host's memory, which the host may give back:
// the collector must not find such a pointer, refused calls included.
func (m *manager) forget() { m.req = prefix.AcquireRequest{} }

func (m *manager) acquire(mode, lookup C.uint32_t, sequence *C.pc_sequence, plan *C.pc_plan,
	basePages *C.int32_t, numBase C.uint64_t, draftPages *C.int32_t, numDraft C.uint64_t, lease *C.pc_handle) C.pc_status {
	if err := out("lease", lease); err != nil {
		return fail(err)
	}
	if err := m.plan(mode, lookup, sequence, plan); err != nil {
		return fail(err)
	}
	pages := (uint64(sequence.num_tokens) + m.pageTokens - 1) / m.pageTokens
	if !m.pages {
		pages = 0
	}
	base, err := pageRoom("base_pages", basePages, numBase, pages)
	if err != nil {
		return fail(err)
	}
	if mode != C.PC_PLAN_SPEC {
		pages = 0
	}
	draft, err := pageRoom("draft_pages", draftPages, numDraft, pages)
	if err == nil {
		err = disjoint("base_pages", basePages, uint64(len(base)), "draft_pages", draftPages, uint64(len(draft)))
	}
	if err == nil { // a lease that was written over could never be released
		err = disjoint("lease", lease, 1, "plan", plan, 1)
	}
	if err == nil {
		err = disjoint("lease", lease, 1, "base_pages", basePages, uint64(len(base)))
	}
	if err == nil {
		err = disjoint("lease", lease, 1, "draft_pages", draftPages, uint64(len(draft)))
	}
	if err != nil {
		return fail(err)
	}
	res, aerr := m.m.Acquire(&m.req)
	if aerr != nil {
		return fail(aerr)
	}
	writePlan(plan, &res.Plan)
	if res.Status != prefix.Acquired {
		all := prefix.Demand{res.Plan.BoundBase + res.Plan.Demand[prefix.BasePages], res.Plan.BoundDraft + res.Plan.Demand[prefix.DraftPages]}
		if res.Status == prefix.OverQuota {
			return m.refused(overQuota, prefix.Demand{}, all, m.m.QuotaOf(m.req.Extras))
		}
		return m.refused(noCapacity, prefix.Demand{}, all, m.m.Pools())
	}
	// The room was checked: reading the pages cannot fail.
	if err := m.m.Pages(res.Lease, prefix.BasePages, 0, base); err != nil {
		return fail(err)
	}
	if err := m.m.Pages(res.Lease, prefix.DraftPages, 0, draft); err != nil {
		return fail(err)
	}
	*lease = C.pc_handle(res.Lease)
	return C.PC_OK
}

// plan checks what acquire and lookup have in common and fills m.req.
func (m *manager) plan(mode, lookup C.uint32_t, sequence *C.pc_sequence, plan *C.pc_plan) *status.Error {
	if mode > C.PC_PLAN_SPEC {
		return status.New(status.InvalidArgument, "mode: %d, expected PC_PLAN_VANILLA (0) to PC_PLAN_SPEC (2)", uint32(mode))
	}
	if lookup > C.PC_LOOKUP_BYPASS {
		return status.New(status.InvalidArgument, "lookup: %d, expected PC_LOOKUP_USE_CACHE (0) or PC_LOOKUP_BYPASS (1)", uint32(lookup))
	}
	if err := out("plan", plan); err != nil {
		return err
	}
	if err := outSize("plan", plan, plan.struct_size, unsafe.Sizeof(*plan)); err != nil {
		return err
	}
	m.req = prefix.AcquireRequest{Mode: prefix.Mode(mode), Policy: prefix.LookupPolicy(lookup), NoAttention: mode == C.PC_PLAN_HYBRID && !m.pages}
	return m.args.request(sequence, m.keyed, &m.req)
}

// pageRoom views an optional output of exactly `want` pages.
func pageRoom(argument string, p *C.int32_t, have C.uint64_t, want uint64) ([]int32, *status.Error) {
	if p == nil {
		return nil, nil
	}
	if uint64(have) < want {
		return nil, status.New(status.BufferTooSmall, "%s: room for %d pages, expected %d", argument, uint64(have), want)
	}
	return slice[int32](argument, unsafe.Pointer(p), want)
}

func writePlan(dst *C.pc_plan, p *prefix.Plan) {
	fill(dst, dst.struct_size, C.pc_plan{
		mode: C.uint32_t(p.Mode), kind: C.uint32_t(p.Kind), replay: C.uint32_t(p.Replay), reason: C.uint32_t(p.Reason),
		matched: C.int32_t(p.Matched), reuse: C.int32_t(p.Reuse),
		bound_base: C.int32_t(p.BoundBase), bound_draft: C.int32_t(p.BoundDraft),
		demand_base: C.int32_t(p.Demand[prefix.BasePages]), demand_draft: C.int32_t(p.Demand[prefix.DraftPages]),
		recurrent_slot: C.int32_t(p.Recurrent), partial_slot: C.int32_t(p.Partial), partial_tokens: C.int32_t(p.PartialTokens),
		dependency: C.int32_t(p.Dependency), record: C.uint64_t(p.Record),
	})
}

//export pcgo_manager_append
func pcgo_manager_append(h, lease C.pc_handle, tokens *C.int32_t, numTokens C.uint64_t) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := m.level(false); err != nil {
		return fail(err)
	}
	t, serr := slice[int32]("tokens", unsafe.Pointer(tokens), numTokens)
	if serr != nil {
		return fail(serr)
	}
	return fail(m.m.Append(prefix.LeaseID(lease), t))
}

//export pcgo_manager_grow
func pcgo_manager_grow(h, lease C.pc_handle, base, draft C.int32_t, basePages, draftPages *C.int32_t) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if basePages != nil || draftPages != nil {
		if err := growthOutputs(base, draft, basePages, draftPages); err != nil {
			return fail(err)
		}
	}
	return m.grow(prefix.LeaseID(lease), base, draft, basePages, draftPages)
}

// grow appends pages and tells which, to outputs that growthOutputs has checked. Core
// allocates them at the end of the lease.
func (m *manager) grow(id prefix.LeaseID, base, draft C.int32_t, basePages, draftPages *C.int32_t) C.pc_status {
	ok, err := m.m.Grow(id, int(base), int(draft))
	if err != nil {
		return fail(err)
	}
	if !ok {
		return m.noGrowth(id, prefix.Demand{int(base), int(draft)})
	}
	if basePages != nil {
		if err := m.m.LastPages(id, prefix.BasePages, unsafe.Slice((*int32)(basePages), int(base))); err != nil {
			return fail(err)
		}
	}
	if draftPages != nil {
		if err := m.m.LastPages(id, prefix.DraftPages, unsafe.Slice((*int32)(draftPages), int(draft))); err != nil {
			return fail(err)
		}
	}
	return C.PC_OK
}

func (m *manager) noGrowth(id prefix.LeaseID, want prefix.Demand) C.pc_status {
	var held prefix.Demand
	for pool := range prefix.RecurrentSlots {
		held[pool], _ = m.m.PageCount(id, pool) // the lease and the pool were just looked at
	}
	if m.m.Feasible(want) {
		return m.refused(overQuota, held, want, m.m.LeaseQuota(id))
	}
	return m.refused(noCapacity, held, want, m.m.Pools())
}

func growthOutputs(base, draft C.int32_t, basePages, draftPages *C.int32_t) *status.Error {
	return disjoint("base_pages", basePages, uint64(max(0, base)), "draft_pages", draftPages, uint64(max(0, draft)))
}

// checkPublication checks the optional output before anything changes.
func checkPublication(p *C.pc_publication) *status.Error {
	if p == nil {
		return nil
	}
	return outSize("publication", p, p.struct_size, unsafe.Sizeof(*p))
}

func published(p *C.pc_publication, res prefix.PublishResult, err error) C.pc_status {
	if err != nil {
		return fail(err)
	}
	if p != nil {
		v := C.pc_publication{status: C.uint32_t(res.Status), record: C.uint64_t(res.Record), blocks: C.int32_t(res.Blocks)}
		if res.Stale {
			v.stale = 1
		}
		fill(p, p.struct_size, v)
	}
	return C.PC_OK
}

//export pcgo_manager_publish
func pcgo_manager_publish(h, lease C.pc_handle, resident C.int64_t, publication *C.pc_publication) (st C.pc_status) {
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
	return m.publish(prefix.LeaseID(lease), resident, publication)
}

// publish publishes by tokens. Core caps the length at what the history covers;
// a host that claims more has lost count.
func (m *manager) publish(id prefix.LeaseID, resident C.int64_t, publication *C.pc_publication) C.pc_status {
	if !m.m.Covers(id, int(resident)) {
		return m.beyond(id, resident)
	}
	res, err := m.m.Publish(id, int(resident))
	if publication == nil && err == nil {
		return C.PC_OK
	}
	return published(publication, res, err)
}

func (m *manager) beyond(id prefix.LeaseID, resident C.int64_t) C.pc_status {
	n, err := m.m.HistoryLength(id)
	if err != nil {
		return fail(err)
	}
	return failNew(status.InvalidArgument, "resident: %d tokens, expected at most %d, the history of the lease", int64(resident), n)
}

//export pcgo_manager_advance
func pcgo_manager_advance(h, lease C.pc_handle, tokens *C.int32_t, numTokens C.uint64_t, resident C.int64_t, base, draft C.int32_t,
	basePages, draftPages *C.int32_t, publication *C.pc_publication) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	return m.advance(prefix.LeaseID(lease), tokens, numTokens, resident, base, draft, basePages, draftPages, publication)
}

func (m *manager) advance(id prefix.LeaseID, tokens *C.int32_t, numTokens C.uint64_t, resident C.int64_t, base, draft C.int32_t,
	basePages, draftPages *C.int32_t, publication *C.pc_publication) C.pc_status {
	t, serr := slice[int32]("tokens", unsafe.Pointer(tokens), numTokens)
	if serr != nil {
		return fail(serr)
	}
	if base < 0 || draft < 0 {
		return failNew(status.InvalidArgument, "base and draft: %d and %d pages, expected counts >= 0", int32(base), int32(draft))
	}
	if err := m.level(false); err != nil {
		return fail(err)
	}
	if err := checkPublication(publication); err != nil {
		return fail(err)
	}
	if basePages != nil || draftPages != nil {
		if err := growthOutputs(base, draft, basePages, draftPages); err != nil {
			return fail(err)
		}
	}
	if len(t) > 0 {
		if err := m.m.Append(id, t); err != nil {
			return fail(err)
		}
	}
	if resident != 0 {
		if st := m.publish(id, resident, publication); st != C.PC_OK {
			return st
		}
	}
	return m.grow(id, base, draft, basePages, draftPages)
}

//export pcgo_manager_publish_keys
func pcgo_manager_publish_keys(h, lease C.pc_handle, first C.uint64_t, keys *C.pc_hash128, numKeys C.uint64_t, resident C.int64_t, publication *C.pc_publication) (st C.pc_status) {
	m, serr := enterOwn(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	k, serr := m.keyArgs(first, keys, numKeys, publication)
	if serr != nil {
		return fail(serr)
	}
	res, err := m.m.PublishKeys(prefix.LeaseID(lease), int(first), k, int(resident))
	return published(publication, res, err)
}

func (m *manager) keyArgs(first C.uint64_t, keys *C.pc_hash128, numKeys C.uint64_t, publication *C.pc_publication) ([]prefix.Hash128, *status.Error) {
	if err := m.level(true); err != nil {
		return nil, err
	}
	if first > 1<<31-1 {
		return nil, status.New(status.InvalidArgument, "first: block %d, expected below 2^31", uint64(first))
	}
	if err := checkPublication(publication); err != nil {
		return nil, err
	}
	return slice[prefix.Hash128]("keys", unsafe.Pointer(keys), numKeys)
}
