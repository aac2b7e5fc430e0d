package main

// metric is an index into families. docs/metrics.md explains each.
type metric int

const (
	mQueryTokens metric = iota
	mHitTokens
	mUsageRatio
	mLiveRequests
	mLiveRequestsPeak
	mCopiedBytes
	mCopiedBytesTimed
	mCopySeconds
	mWaits
	mWaitSeconds
	mPinnedBytes
	mUsable

	mOmniSteps
	mOmniRows
	mOmniRowBytes
	mOmniHits
	mOmniReads
	mOmniPreserved
	mOmniAbsent
	mOmniDisplaced
	mOmniDeferred
	mOmniFlushes
	mOmniFailed
	mOmniPendingWrites
	mOmniPendingReads
	mOmniQueueAge
	mOmniQueueAgePeak
	mOmniDepth
	mOmniDepthPeak
	mOmniDepthLimit
	mOmniStaged
	mOmniStagedPeak
	mOmniStagedLimit
	mOmniReserved
	mOmniKeys

	mContextPages
	mContextPagesPeak
	mContextRecords
	mContextLeases
	mContextLeasesPeak
	mContextBlocks
	mContextAcquires
	mContextInfeasible
	mContextReasons
	mContextEvicted
	mContextReclaimed
	mContextShortened
	mContextStale
	mContextCollisions

	mTenantPages
	mTenantQueryTokens
	mTenantHitTokens
	mTenantEvicted
	mTenantEvictedByOthers
	mTenantRefused

	mContextSequences
	mContextPlans
	mContextMatched
	mContextMediaSkipped
	mContextPublications
	mContextPairs
	mContextRestores
	mContextPressureSkips
	mContextCaptureSyncs
	mContextReplays
	mContextPlanning
	mContextQuarantined
	mContextPoisoned
	mContextSnapshotBytes

	mBufferBytes
	mBuffers
	mBuildInfo
	numMetrics
)

var families = [numMetrics]family{
	mQueryTokens:      {"queries_tokens_total", counter, "Tokens that cached state was looked for; omni: tokens whose rows were given out."},
	mHitTokens:        {"hits_tokens_total", counter, "Tokens of the queries that came from the cache."},
	mUsageRatio:       {"usage_ratio", gauge, "Part of a pool that live requests use, 0 to 1."},
	mLiveRequests:     {"live_requests", gauge, "Requests that are live; context: quarantined ones included."},
	mLiveRequestsPeak: {"live_requests_peak", gauge, "Most requests that were live at once."},
	mCopiedBytes:      {"copy_bytes_total", counter, "Bytes copied, by direction."},
	mCopiedBytesTimed: {"copy_timed_bytes_total", counter, "Of the bytes copied, those of copies that were timed: large ones."},
	mCopySeconds:      {"copy_seconds_total", counter, "Time that the timed copies took."},
	mWaits:            {"waits_total", counter, "Calls that had to wait, by cause."},
	mWaitSeconds:      {"wait_seconds_total", counter, "Time that calls waited, by cause."},
	mPinnedBytes:      {"pinned_bytes", gauge, "Page-locked host memory."},
	mUsable:           {"usable", gauge, "1, and 0 for good once an internal error left the cache unusable: destroy it and create a new one."},

	mOmniSteps:         {"steps_total", counter, "Steps by outcome."},
	mOmniRows:          {"saved_rows_total", counter, "Rows saved, over all keys."},
	mOmniRowBytes:      {"saved_bytes_total", counter, "Bytes of the rows saved."},
	mOmniHits:          {"hits_total", counter, "Prefix hits that were opened."},
	mOmniReads:         {"prefix_reads_total", counter, "Planned reads, one key of one hit each, by what became of them."},
	mOmniPreserved:     {"preserved_bytes_total", counter, "Rows copied aside because their slot was claimed while a read was planned on it."},
	mOmniAbsent:        {"absent_rows_total", counter, "Prefix rows that do not exist and read as zeros."},
	mOmniDisplaced:     {"displaced_rows_total", counter, "Deferred rows that lost their slot before they were written."},
	mOmniDeferred:      {"deferred_writes_total", counter, "Deferred writes that ended well."},
	mOmniFlushes:       {"flushes_total", counter, "Deferred writes forced early because the staging memory was full."},
	mOmniFailed:        {"failed_writes_total", counter, "Writes that failed. The first one makes the cache refuse all calls."},
	mOmniPendingWrites: {"pending_writes", gauge, "Writes that have not ended, deferred ones included."},
	mOmniPendingReads:  {"pending_reads", gauge, "Planned reads that have not ended."},
	mOmniQueueAge:      {"queue_age_seconds", gauge, "How long the next write has waited for the background thread."},
	mOmniQueueAgePeak:  {"queue_age_peak_seconds", gauge, "The longest that a write waited for the background thread."},
	mOmniDepth:         {"staging_depth", gauge, "Saved steps that nobody has consumed yet."},
	mOmniDepthPeak:     {"staging_depth_peak", gauge, "Most steps that were unconsumed at once."},
	mOmniDepthLimit:    {"staging_depth_limit", gauge, "Unconsumed steps at which a save waits."},
	mOmniStaged:        {"staged_bytes", gauge, "Rows held outside the mirror."},
	mOmniStagedPeak:    {"staged_bytes_peak", gauge, "Most bytes that were held outside the mirror at once."},
	mOmniStagedLimit:   {"staged_bytes_limit", gauge, "Staged bytes from which on deferred writes are forced."},
	mOmniReserved:      {"reserved_bytes", gauge, "Address space of the cache. Memory is used as rows are written."},
	mOmniKeys:          {"keys", gauge, "Keys that have rows."},

	mContextPages:      {"pages", gauge, "Pages and snapshot slots, by pool and state: active (used by leases), cached (only by records), free."},
	mContextPagesPeak:  {"pages_active_peak", gauge, "Most pages that leases used at once."},
	mContextRecords:    {"records", gauge, "Published prefixes that are cached."},
	mContextLeases:     {"leases", gauge, "Leases that are live."},
	mContextLeasesPeak: {"leases_peak", gauge, "Most leases that were live at once."},
	mContextBlocks:     {"cached_blocks", gauge, "Base: distinct cached blocks. Draft: block boundaries with draft pages."},
	mContextAcquires:   {"acquires_total", counter, "Attempts to acquire a lease."},
	mContextInfeasible: {"infeasible_acquires_total", counter, "Attempts to acquire a lease without capacity, even with every record evicted."},
	mContextReasons:    {"reuse_outcomes_total", counter, "Leases by why they reused nothing, or less than they might."},
	mContextEvicted:    {"evictions_total", counter, "Records removed, for whatever reason."},
	mContextReclaimed:  {"reclaimed_pages_total", counter, "Pages and slots that evictions freed."},
	mContextShortened:  {"shortened_records_total", counter, "Records of which an eviction took the end only."},
	mContextStale:      {"stale_publications_total", counter, "Publications dropped after an invalidation or a flush."},
	mContextCollisions: {"hash_collisions_total", counter, "Candidates whose content was another. Harmless."},

	mTenantPages:           {"tenant_pages", gauge, "Base pages of a tenant, by state. Only with quotas."},
	mTenantQueryTokens:     {"tenant_queries_tokens_total", counter, "Prompt tokens of a tenant's leases."},
	mTenantHitTokens:       {"tenant_hits_tokens_total", counter, "Prompt tokens of a tenant's leases that came from the cache."},
	mTenantEvicted:         {"tenant_evictions_total", counter, "Records of a tenant that were removed, for whatever reason."},
	mTenantEvictedByOthers: {"tenant_evictions_by_others_total", counter, "Records of a tenant that were removed to make room for another one."},
	mTenantRefused:         {"tenant_refusals_total", counter, "Demands of a tenant beyond its quota."},

	mContextSequences:     {"sequences_total", counter, "Sequences admitted, by what they are. One sequence may be several."},
	mContextPlans:         {"plans_total", counter, "Sequences admitted, by plan."},
	mContextMatched:       {"matched_tokens_total", counter, "Tokens that were found cached, reused or not."},
	mContextMediaSkipped:  {"skipped_media_tokens_total", counter, "Media positions inside reused prefixes."},
	mContextPublications:  {"publications_total", counter, "Publications, by what they left behind."},
	mContextPairs:         {"pair_publications_total", counter, "Publications of base and draft together."},
	mContextRestores:      {"snapshot_restores_total", counter, "Recurrent snapshots that were restored."},
	mContextPressureSkips: {"snapshot_skips_total", counter, "Snapshots that were not captured because every slot was in use."},
	mContextCaptureSyncs:  {"capture_synchronizations_total", counter, "Ends of decoding that needed a synchronisation for a snapshot."},
	mContextReplays:       {"draft_replays_total", counter, "Sequences whose last matched page is computed again for the draft."},
	mContextPlanning:      {"planning_seconds_total", counter, "Time spent looking up and allocating for admissions."},
	mContextQuarantined:   {"quarantined_requests_total", counter, "Requests set aside because a synchronisation failed."},
	mContextPoisoned:      {"poisoned", gauge, "1 for good once a synchronisation has failed: destroy the coordinator and create a new one."},
	mContextSnapshotBytes: {"snapshot_bytes", gauge, "Device memory of snapshots."},

	mBufferBytes: {"result_buffer_bytes", gauge, "Result buffers of the process: in use by the host, or retained for reuse."},
	mBuffers:     {"result_buffers_total", counter, "Result buffers handed out, by where their memory came from."},
	mBuildInfo:   {"build_info", gauge, "1; the library's version and row kernel."},
}
