package coordinator

import (
	"fmt"
	"strings"

	"libprefixcache/core/prefix"
)

// Metrics are the cumulative counters that the original has, plus occupancy at the
// moment of reading. All admission counters of a batch are added together,
// when the whole batch was admitted (D-13); only PlanningNanoseconds also
// counts work that led to nothing.
type Metrics struct {
	AdmittedSequences     int64
	HitSequences          int64 // matched length > 0
	MediaAwareSequences   int64
	LookupBypassSequences int64 // bypass policy, or forced cold
	ForcedColdSequences   int64
	StandardPlans         int64 // the three kinds add up to AdmittedSequences
	NoReusablePrefixPlans int64
	FullInputRewindPlans  int64
	MatchedTokens         int64 // >= ReusedTokens
	ReusedTokens          int64
	SkippedMediaPositions int64 // media positions inside reused prefixes (D-12)
	SpecFullPageReplays   int64
	PublicationAttempts   int64 // = PublishedEndpoints
	CommittedPublications int64 // new records and draft upgrades
	ExistingPublications  int64
	PublishedEndpoints    int64 // = Committed + Existing
	SpecPairPublications  int64
	HybridRestores        int64
	HybridPressureSkips   int64 // a capture was skipped for want of a slot
	HybridCaptureSyncs    int64 // decode-end captures that needed a synchronisation
	PlanningNanoseconds   int64
	QuarantinedRequests   int64 // requests taken into quarantine so far
	ActiveRequests        int64 // at reading: live and quarantined
	ActiveRequestsPeak    int64
	CurrentRecords        int64 // at reading
	EvictedRecords        int64
	BasePages             PoolMetrics
	DraftPages            PoolMetrics
	RecurrentSnapshots    PoolMetrics
	PartialSnapshots      PoolMetrics
}

// PoolMetrics is one resource pool at the moment of reading.
type PoolMetrics struct {
	Capacity  int64
	Free      int64
	Reclaimed int64 // returned to the free list by evictions so far (C-66)
}

// Degradations counts what an operator should hear of: sequences forced cold, captures
// skipped for want of a slot, requests taken into quarantine.
func (c *Coordinator) Degradations() (forcedCold, skipped, quarantined int64) {
	m := &c.metrics
	return m.ForcedColdSequences, m.HybridPressureSkips, m.QuarantinedRequests
}

// countPlan counts one sequence of a batch that was admitted.
func (m *Metrics) countPlan(p *prefix.Plan, s *sequence, media, bypass bool) {
	m.AdmittedSequences++
	m.MatchedTokens += int64(p.Matched)
	m.ReusedTokens += int64(p.Reuse)
	m.SkippedMediaPositions += int64(s.skippedMedia)
	m.HitSequences += count(p.Matched > 0)
	m.MediaAwareSequences += count(media)
	m.LookupBypassSequences += count(bypass)
	m.ForcedColdSequences += count(s.forcedCold)
	m.SpecFullPageReplays += count(p.Replay == prefix.FullPageReplay)
	m.StandardPlans += count(p.Kind == prefix.Standard)
	m.NoReusablePrefixPlans += count(p.Kind == prefix.NoReusablePrefix)
	m.FullInputRewindPlans += count(p.Kind == prefix.FullInputRewind)
}

func count(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// String is one "name value" pair a line, in the order of the fields.
func (m Metrics) String() string {
	var b strings.Builder
	for _, f := range [...]struct {
		name string
		v    int64
	}{
		{"admitted", m.AdmittedSequences}, {"hits", m.HitSequences}, {"media-aware", m.MediaAwareSequences},
		{"bypass", m.LookupBypassSequences}, {"forced-cold", m.ForcedColdSequences},
		{"plans.standard", m.StandardPlans}, {"plans.no-prefix", m.NoReusablePrefixPlans},
		{"plans.rewind", m.FullInputRewindPlans}, {"tokens.matched", m.MatchedTokens},
		{"tokens.reused", m.ReusedTokens}, {"media.skipped", m.SkippedMediaPositions},
		{"spec.replays", m.SpecFullPageReplays}, {"publications.attempts", m.PublicationAttempts},
		{"publications.committed", m.CommittedPublications}, {"publications.existing", m.ExistingPublications},
		{"publications.endpoints", m.PublishedEndpoints}, {"spec.pairs", m.SpecPairPublications},
		{"hybrid.restores", m.HybridRestores}, {"hybrid.pressure-skips", m.HybridPressureSkips},
		{"hybrid.capture-syncs", m.HybridCaptureSyncs}, {"planning.ns", m.PlanningNanoseconds},
		{"requests.quarantined", m.QuarantinedRequests}, {"requests.active", m.ActiveRequests}, {"requests.active-peak", m.ActiveRequestsPeak},
		{"records", m.CurrentRecords}, {"records.evicted", m.EvictedRecords},
	} {
		fmt.Fprintf(&b, "%s %d\n", f.name, f.v)
	}
	for _, p := range [...]struct {
		name string
		v    PoolMetrics
	}{{"base", m.BasePages}, {"draft", m.DraftPages}, {"recurrent", m.RecurrentSnapshots}, {"partial", m.PartialSnapshots}} {
		fmt.Fprintf(&b, "pool.%s free %d of %d, reclaimed %d\n", p.name, p.v.Free, p.v.Capacity, p.v.Reclaimed)
	}
	return b.String()
}
