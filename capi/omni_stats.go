package main

/*
#include "shim.h"
*/
import "C"

import "libprefixcache/core/omni"

// omniStats puts core's counters into the struct of the header.
func omniStats(s omni.Stats) C.pc_omni_stats {
	return C.pc_omni_stats{
		steps_saved:        C.uint64_t(s.StepsSaved),
		steps_materialized: C.uint64_t(s.StepsMaterialized),
		steps_discarded:    C.uint64_t(s.StepsDiscarded),
		rows_saved:         C.uint64_t(s.RowsSaved),
		saved_bytes:        C.uint64_t(s.SavedBytes),
		hits:               C.uint64_t(s.Hits),
		hit_tokens:         C.uint64_t(s.HitTokens),
		gathered_bytes:     C.uint64_t(s.GatheredBytes),
		preserved_bytes:    C.uint64_t(s.PreservedBytes),
		absent_rows:        C.uint64_t(s.AbsentRows),
		displaced_rows:     C.uint64_t(s.DisplacedRows),
		deferred_writes:    C.uint64_t(s.DeferredWrites),
		flushes:            C.uint64_t(s.Flushes),
		staging_waits:      C.uint64_t(s.StagingWaits),
		failed_writes:      C.uint64_t(s.FailedWrites),
		live_requests:      C.uint64_t(s.LiveRequests),
		unconsumed_steps:   C.uint64_t(s.UnconsumedSteps),
		pending_writes:     C.uint64_t(s.PendingWrites),
		pending_reads:      C.uint64_t(s.PendingReads),
		staged_bytes:       C.uint64_t(s.StagedBytes),
		staged_bytes_peak:  C.uint64_t(s.StagedBytesPeak),
		reserved_bytes:     C.uint64_t(s.ReservedBytes),
		keys:               C.uint64_t(s.Keys),
	}
}
