package main

/*
#include <string.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"libprefixcache/core/prefix"
	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

//export pcgo_metrics_text
func pcgo_metrics_text(sources *C.pc_metrics_source, num C.uint64_t, text *C.char, space C.uint64_t, size *C.uint64_t) (st C.pc_status) {
	defer guard(&st)
	if err := out("size", size); err != nil {
		return fail(err)
	}
	room, err := slice[byte]("text", unsafe.Pointer(text), space)
	if err != nil {
		return fail(err)
	}
	list, err := slice[C.pc_metrics_source]("sources", unsafe.Pointer(sources), num)
	if err != nil {
		return fail(err)
	}
	var p page
	for i := range list {
		if err := p.source(i, &list[i]); err != nil {
			return fail(err)
		}
	}
	p.process()
	s := p.text()
	if len(room) > 0 {
		n := copy(room[:len(room)-1], s)
		room[n] = 0
	}
	*size = C.uint64_t(len(s))
	return C.PC_OK
}

const maxLabel = 1 << 12

// cString copies a string of the host.
func cString(s *C.char) (string, bool) {
	if s == nil {
		return "", false
	}
	n := C.strnlen(s, maxLabel+1)
	return C.GoStringN(s, C.int(n)), n <= maxLabel
}

// source adds what one cache has. The objects are entered one after the other.
func (p *page) source(i int, s *C.pc_metrics_source) *status.Error {
	in, err := slice[C.pc_label]("sources.labels", unsafe.Pointer(s.labels), uint64(s.num_labels))
	if err != nil {
		return err
	}
	labels := make([]label, len(in))
	for j := range in {
		var named, valued bool
		labels[j].name, named = cString(in[j].name)
		labels[j].value, valued = cString(in[j].value)
		if !named || !valued {
			return status.New(status.InvalidArgument, "sources[%d].labels[%d]: a null or more than %d bytes, expected a name and a value", i, j, maxLabel)
		}
	}
	switch handle(s.cache).kind() {
	case kindOmni:
		o, err := enterOmni(s.cache)
		if err != nil {
			return err
		}
		defer o.entry.leave()
		if o.cache.Broken() {
			return p.refused(leftBroken(kindOmni, "cache"), i, "omni", labels)
		}
		stats := o.stats()
		if err := p.begin(i, "omni", labels); err != nil {
			return err
		}
		p.add(mUsable, 1)
		p.omni(&stats)
	case kindContext:
		x, err := enterContext(s.cache)
		if err != nil {
			return p.refused(err, i, "context", labels)
		}
		metrics, stats, tenants := x.figures()
		if err := p.begin(i, "context", labels); err != nil {
			return err
		}
		p.add(mUsable, 1)
		p.manager(&stats)
		p.tenants(tenants)
		p.coordinator(&metrics, &stats)
	case kindManager:
		m, err := enterManager(s.cache)
		if err != nil {
			return p.refused(err, i, "context", labels)
		}
		stats, tenants := m.figures()
		if err := p.begin(i, "context", labels); err != nil {
			return err
		}
		p.add(mUsable, 1)
		p.manager(&stats)
		p.tenants(tenants)
		p.wait("lock", stats.lock_waits, stats.lock_wait_nanoseconds)
	default:
		return status.New(status.BadHandle, "sources[%d].cache: %#x, expected an omni cache, a coordinator or a page manager", i, uint64(s.cache))
	}
	return nil
}

// refused tells of a cache that could not be entered because an internal error left it
// half-changed: one gauge and no more, and those beside it are told of as ever.
func (p *page) refused(why *status.Error, i int, kind string, labels []label) *status.Error {
	if why.Code != status.Internal {
		return why
	}
	err := p.begin(i, kind, labels)
	if err == nil {
		p.add(mUsable, 0)
	}
	return err
}

// figures is everything that is told of a coordinator; it has been entered.
func (x *contextCache) figures() (C.pc_context_metrics, C.pc_manager_stats, []prefix.TenantInfo) {
	defer x.exit()
	m := manager{mu: &x.mu, m: x.c.Manager()}
	return x.metrics(), m.stats(), slices.Collect(m.m.Tenants())
}

// figures is everything that is told of a manager; it has been entered.
func (m *manager) figures() (C.pc_manager_stats, []prefix.TenantInfo) {
	defer m.exit()
	return m.stats(), slices.Collect(m.m.Tenants())
}

func (p *page) wait(cause string, count, nanoseconds C.uint64_t) {
	p.add(mWaits, uint64(count), "cause", cause)
	p.seconds(mWaitSeconds, uint64(nanoseconds), "cause", cause)
}

var (
	omniCopies = [...]string{C.PC_OMNI_COPY_CLONE: "clone", C.PC_OMNI_COPY_D2H: "d2h", C.PC_OMNI_COPY_GATHER: "gather",
		C.PC_OMNI_COPY_MERGE: "merge", C.PC_OMNI_COPY_SAVE: "save", C.PC_OMNI_COPY_COMMIT: "commit"}
	omniWaits = [...]string{C.PC_OMNI_WAIT_STEP: "step", C.PC_OMNI_WAIT_STAGING: "staging", C.PC_OMNI_WAIT_BUDGET: "budget",
		C.PC_OMNI_WAIT_READ: "read", C.PC_OMNI_WAIT_LANDING: "landing", C.PC_OMNI_WAIT_LOCK: "lock"}
)

func (p *page) omni(s *C.pc_omni_stats) {
	n := func(m metric, v C.uint64_t, labels ...string) { p.add(m, uint64(v), labels...) }
	// A token of a result is one that was asked for; the cache knows no others.
	n(mQueryTokens, s.hit_tokens+s.tokens_saved)
	n(mHitTokens, s.hit_tokens)
	p.ratio(mUsageRatio, uint64(s.staged_bytes), uint64(s.staging_bytes), "pool", "staging")
	n(mLiveRequests, s.live_requests)
	n(mLiveRequestsPeak, s.live_requests_peak)
	for i, direction := range omniCopies {
		n(mCopiedBytes, s.copied_bytes[i], "direction", direction)
		n(mCopiedBytesTimed, s.timed_bytes[i], "direction", direction)
		p.seconds(mCopySeconds, uint64(s.copy_nanoseconds[i]), "direction", direction)
	}
	for i, cause := range omniWaits {
		p.wait(cause, s.waits[i], s.wait_nanoseconds[i])
	}
	n(mPinnedBytes, s.pinned_bytes)
	n(mOmniSteps, s.steps_saved, "outcome", "saved")
	n(mOmniSteps, s.steps_materialized, "outcome", "materialized")
	n(mOmniSteps, s.steps_discarded, "outcome", "discarded")
	n(mOmniReads, s.reads_used, "outcome", "used")
	n(mOmniReads, s.reads_dropped, "outcome", "dropped")
	for _, v := range [...]struct {
		m metric
		v C.uint64_t
	}{
		{mOmniRows, s.rows_saved}, {mOmniRowBytes, s.saved_bytes}, {mOmniHits, s.hits}, {mOmniPreserved, s.preserved_bytes},
		{mOmniAbsent, s.absent_rows}, {mOmniDisplaced, s.displaced_rows}, {mOmniDeferred, s.deferred_writes}, {mOmniFlushes, s.flushes},
		{mOmniFailed, s.failed_writes}, {mOmniPendingWrites, s.pending_writes}, {mOmniPendingReads, s.pending_reads},
		{mOmniDepth, s.unconsumed_steps}, {mOmniDepthPeak, s.unconsumed_steps_peak}, {mOmniDepthLimit, s.staging_depth},
		{mOmniStaged, s.staged_bytes}, {mOmniStagedPeak, s.staged_bytes_peak}, {mOmniStagedLimit, s.staging_bytes},
		{mOmniReserved, s.reserved_bytes}, {mOmniKeys, s.keys},
	} {
		n(v.m, v.v)
	}
	p.seconds(mOmniQueueAge, uint64(s.queue_age_nanoseconds))
	p.seconds(mOmniQueueAgePeak, uint64(s.queue_age_nanoseconds_peak))
}

func (p *page) manager(s *C.pc_manager_stats) {
	n := func(m metric, v C.uint64_t, labels ...string) { p.add(m, uint64(v), labels...) }
	n(mQueryTokens, s.query_tokens)
	n(mHitTokens, s.hit_tokens)
	for i := range s.capacity {
		if s.capacity[i] == 0 {
			continue // a pool that this cache does not have
		}
		pool := prefix.Resource(i).String()
		p.ratio(mUsageRatio, uint64(s.active[i]), uint64(s.capacity[i]), "pool", pool)
		n(mContextPages, s.active[i], "pool", pool, "state", "active")
		n(mContextPages, s.capacity[i]-s.active[i]-s.free[i], "pool", pool, "state", "cached")
		n(mContextPages, s.free[i], "pool", pool, "state", "free")
		n(mContextPagesPeak, s.active_peak[i], "pool", pool)
		n(mContextReclaimed, s.reclaimed[i], "pool", pool)
	}
	n(mContextRecords, s.records)
	n(mContextLeases, s.leases)
	n(mContextLeasesPeak, s.leases_peak)
	n(mContextBlocks, s.base_blocks, "model", "base")
	n(mContextBlocks, s.draft_blocks, "model", "draft")
	n(mContextAcquires, s.acquires)
	n(mContextInfeasible, s.infeasible)
	for r := range prefix.NumReasons {
		n(mContextReasons, s.reasons[r], "reason", strings.ReplaceAll(prefix.Reason(r).String(), "-", "_"))
	}
	n(mContextEvicted, s.evicted_records)
	n(mContextShortened, s.shortened_records)
	n(mContextStale, s.stale_publications)
	n(mContextCollisions, s.hash_collisions)
}

// tenants adds what each tenant has: few series, because a host that sets quotas has
// few tenants, and core forgets those at rest.
func (p *page) tenants(list []prefix.TenantInfo) {
	for i := range list {
		t := &list[i]
		name := "none"
		if t.Key.Present {
			name = fmt.Sprintf("%016x%016x", t.Key.Hash.Hi, t.Key.Hash.Lo)
		}
		p.add(mTenantPages, uint64(t.ActivePages), "tenant", name, "state", "active")
		p.add(mTenantPages, uint64(t.Pages-t.ActivePages), "tenant", name, "state", "cached")
		p.add(mTenantQueryTokens, t.QueryTokens, "tenant", name)
		p.add(mTenantHitTokens, t.HitTokens, "tenant", name)
		p.add(mTenantEvicted, t.Evicted, "tenant", name)
		p.add(mTenantEvictedByOthers, t.EvictedByOther, "tenant", name)
		p.add(mTenantRefused, t.Refused, "tenant", name)
	}
}

func (p *page) coordinator(s *C.pc_context_metrics, m *C.pc_manager_stats) {
	n := func(m metric, v C.uint64_t, labels ...string) { p.add(m, uint64(v), labels...) }
	n(mLiveRequests, s.active_requests)
	n(mLiveRequestsPeak, s.active_requests_peak)
	n(mCopiedBytes, s.uploaded_bytes, "direction", "upload")
	n(mCopiedBytes, s.captured_bytes, "direction", "capture")
	n(mCopiedBytes, s.restored_bytes, "direction", "restore")
	n(mCopiedBytes, s.moved_bytes, "direction", "compact")
	p.wait("lock", m.lock_waits, m.lock_wait_nanoseconds)
	p.wait("upload", s.upload_waits, s.upload_wait_nanoseconds)
	p.wait("synchronize", s.synchronizations, s.synchronization_nanoseconds)
	n(mPinnedBytes, s.pinned_bytes)
	n(mContextSequences, s.admitted_sequences, "outcome", "admitted")
	n(mContextSequences, s.hit_sequences, "outcome", "hit")
	n(mContextSequences, s.media_aware_sequences, "outcome", "media")
	n(mContextSequences, s.lookup_bypass_sequences, "outcome", "bypass")
	n(mContextSequences, s.forced_cold_sequences, "outcome", "forced_cold")
	n(mContextPlans, s.standard_plans, "plan", "standard")
	n(mContextPlans, s.no_reusable_prefix_plans, "plan", "no_reusable_prefix")
	n(mContextPlans, s.full_input_rewind_plans, "plan", "full_input_rewind")
	n(mContextMatched, s.matched_tokens)
	n(mContextMediaSkipped, s.skipped_media_positions)
	n(mContextPublications, s.committed_publications, "outcome", "committed")
	n(mContextPublications, s.existing_publications, "outcome", "existing")
	n(mContextPairs, s.spec_pair_publications)
	n(mContextRestores, s.hybrid_restores)
	n(mContextPressureSkips, s.hybrid_snapshot_pressure_skips)
	n(mContextCaptureSyncs, s.hybrid_capture_synchronizations)
	n(mContextReplays, s.spec_full_page_replays)
	p.seconds(mContextPlanning, uint64(s.planning_nanoseconds))
	n(mContextQuarantined, s.quarantined_requests)
	p.add(mContextPoisoned, uint64(s.poisoned))
	n(mContextSnapshotBytes, s.snapshot_bytes)
}

// process adds what belongs to no cache.
func (p *page) process() {
	p.base = ""
	b := arena.Stats()
	p.add(mBufferBytes, uint64(b.LiveBytes), "state", "in_use")
	p.add(mBufferBytes, uint64(b.FreeBytes), "state", "retained")
	p.add(mBuffers, uint64(b.Hits), "source", "recycled")
	p.add(mBuffers, uint64(b.Misses), "source", "fresh")
	p.add(mBuildInfo, 1, "version", C.GoString(C.pc_version()), "kernel", rows.Kernel())
}
