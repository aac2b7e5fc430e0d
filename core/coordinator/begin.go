package coordinator

import (
	"math"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// SequenceAdmission is one logical input, complete, before its cached prefix
// is cut off. Everything is copied during Begin.
type SequenceAdmission struct {
	Tokens []int32
	// Media is empty for text, else one digest a token; zero means that the
	// token is the identity (C-7, C-14).
	Media  []prefix.Hash128
	Extras *prefix.Extras // nil for none; constant over the sequence (C-11)
}

// Admission is one batch, admitted as a whole or not at all.
type Admission struct {
	Sequences []SequenceAdmission
	Mode      ExecutionMode
	Lookup    LookupPolicy
	Commit    CommitPolicy
	// Slots are the resident slots of the sequences, nil for their batch
	// indexes. Live requests must not share a slot.
	Slots []int32
}

// Begin admits a batch: it leases every page the prompts need, reusing what is
// cached. RequestFailed says that no request slot or no capacity is left now,
// Poisoned that the device state is unknown; both leave nothing behind (C-85).
// No device work follows from it.
func (c *Coordinator) Begin(a *Admission, stream uint64) (Handle, error) {
	if err := c.idle("begin"); err != nil {
		return 0, err
	}
	if err := c.checkAdmission(a, stream); err != nil {
		return 0, err
	}
	forced, err := c.acquire(a)
	if err != nil {
		return 0, err
	}
	r, index := c.freeEntry()
	r.mode, r.lookup, r.commit = a.Mode, a.Lookup, a.Commit
	r.stage, r.pending, r.awaiting, r.newBatch = StageAdmitted, false, false, none
	r.seqs = r.seqs[:0]
	for i := range a.Sequences {
		res, adm := &c.results[i], &a.Sequences[i]
		s := c.newSequence(res, adm, a.slot(i))
		cold := forced && c.wanted[i].Policy == prefix.Bypass
		s.forcedCold = cold
		c.metrics.countPlan(&res.Plan, &s, len(adm.Media) > 0, cold || a.Lookup == Bypass)
		c.slotBusy[s.slot] = true
		r.seqs = append(r.seqs, s)
	}
	clear(c.wanted) // it points into the caller's arrays
	r.handle, r.state = newHandle(index), entryLive
	c.active++
	c.metrics.ActiveRequestsPeak = max(c.metrics.ActiveRequestsPeak, int64(c.active))
	return r.handle, nil
}

// checkAdmission is every check of Begin, in the order of 13.3, all before the
// first lease is taken.
func (c *Coordinator) checkAdmission(a *Admission, stream uint64) error {
	if err := c.Ready(a, stream); err != nil {
		return err
	}
	limit := c.cfg.MaxBatch
	if a.Mode == ModeEAGLE {
		limit = min(limit, c.cfg.DraftMaxBatch)
	}
	if n := len(a.Sequences); n < 1 || n > int(limit) {
		return invalid("begin: batch has %d sequences, expected [1,%d]", n, limit)
	}
	for i := range a.Sequences {
		if err := c.checkSequence(a, i); err != nil {
			return err
		}
	}
	return c.checkSlots(a, limit)
}

// Ready is what Begin asks first, whatever the sequences are: a poisoned coordinator
// says so of an empty batch, too.
func (c *Coordinator) Ready(a *Admission, stream uint64) error {
	switch {
	case stream != c.cfg.Stream:
		return invalid("begin: stream is %#x, expected the coordinator's own %#x", stream, c.cfg.Stream)
	case a.Mode != ModeVanilla && a.Mode != ModeEAGLE:
		return invalid("begin: execution mode is %d, expected 0 or 1", a.Mode)
	case a.Lookup != UseCache && a.Lookup != Bypass:
		return invalid("begin: lookup policy is %d, expected 0 or 1", a.Lookup)
	case a.Commit != IncludingGenerated && a.Commit != PrefillOnly:
		return invalid("begin: commit policy is %d, expected 0 or 1", a.Commit)
	case a.Mode == ModeEAGLE && c.cfg.Kind != KindEAGLE:
		return invalid("begin: execution mode is EAGLE, the deployment is %v", c.cfg.Kind)
	case c.poisoned:
		return status.New(status.Poisoned, "begin: a synchronisation failed earlier, the device state is unknown")
	case int(c.active) == len(c.requests):
		return status.New(status.RequestFailed, "begin: %d of %d requests are active", c.active, len(c.requests))
	}
	for i := range c.requests {
		// Compaction moves whole rows and slots: nobody may move in meanwhile.
		if c.requests[i].state == entryLive && c.requests[i].stage == StageCompaction {
			return status.New(status.WrongState, "begin: another request's batch compaction is begun, expected compactBatch first")
		}
	}
	return nil
}

func (c *Coordinator) checkSequence(a *Admission, i int) error {
	s := &a.Sequences[i]
	n := len(s.Tokens)
	if n == 0 || n > math.MaxInt32 {
		return invalid("begin: sequence %d has %d tokens, expected [1,%d]", i, n, math.MaxInt32)
	}
	if len(s.Media) != 0 && len(s.Media) != n { // D-1
		return invalid("begin: sequence %d has %d media digests, expected 0 or one for each of %d tokens", i, len(s.Media), n)
	}
	for cache, t := range c.tables() {
		if t == nil || (Cache(cache) == Draft && a.Mode != ModeEAGLE) {
			continue
		}
		if pages := pagesOf(int32(n), c.p); pages > t.Width() {
			return invalid("begin: sequence %d needs %d pages, a row of table %d holds %d", i, pages, cache, t.Width())
		}
	}
	return nil
}

func (c *Coordinator) checkSlots(a *Admission, limit int32) error {
	if a.Slots != nil && len(a.Slots) != len(a.Sequences) {
		return invalid("begin: %d slots for %d sequences", len(a.Slots), len(a.Sequences))
	}
	c.nextStamp()
	for i := range a.Sequences {
		slot := a.slot(i)
		switch {
		case slot < 0 || slot >= limit:
			return invalid("begin: slot of sequence %d is %d, expected [0,%d)", i, slot, limit)
		case c.seen[slot] == c.stamp:
			return invalid("begin: slot %d is named twice", slot)
		case c.slotBusy[slot]:
			return invalid("begin: slot %d of sequence %d belongs to another live request", slot, i)
		}
		c.seen[slot] = c.stamp
	}
	return nil
}

func (a *Admission) slot(i int) int32 {
	if a.Slots == nil {
		return int32(i)
	}
	return a.Slots[i]
}

func (c *Coordinator) nextStamp() {
	c.stamp++
	if c.stamp == 0 {
		clear(c.seen)
		c.stamp = 1
	}
}

// freeEntry returns an unused entry of the request table; the caller checked
// that there is one.
func (c *Coordinator) freeEntry() (*request, int) {
	for i := range c.requests {
		if c.requests[i].state == entryFree {
			return &c.requests[i], i
		}
	}
	panic("coordinator: active count and request table disagree")
}

// acquire leases the pages of the whole batch, or of none of it (D-13): nothing
// is counted, evicted or kept when it does not fit. forced says that it fitted
// only after the sequences with hits gave them up.
func (c *Coordinator) acquire(a *Admission) (forced bool, err error) {
	n := len(a.Sequences)
	c.wanted, c.results = c.wanted[:n], c.results[:n]
	for i := range a.Sequences {
		adm := &a.Sequences[i]
		c.wanted[i] = prefix.AcquireRequest{
			Mode:        c.planMode(a.Mode),
			Policy:      prefix.LookupPolicy(a.Lookup),
			NoAttention: !c.cfg.Kind.attention(),
			Tokens:      adm.Tokens,
			Media:       adm.Media,
			Extras:      adm.Extras,
		}
	}
	start := c.now()
	ok, err := c.manager.AcquireBatch(c.wanted, c.results)
	// Without its hits a batch would want more of the same quota.
	if err == nil && !ok && c.results[0].Status != prefix.OverQuota && c.giveUpHits() {
		ok, err = c.manager.RetryBatch(c.wanted, c.results)
		forced = ok
	}
	// The one counter that failed admissions move too: the time was spent.
	c.metrics.PlanningNanoseconds += c.now() - start
	if err == nil && !ok {
		err = c.refused()
	}
	if err != nil {
		clear(c.wanted)
	}
	return forced, err
}

// refused says what the batch was refused for: a sequence that no pool and no quota can
// hold, however empty, is named; otherwise it is the batch, and for now.
func (c *Coordinator) refused() error {
	overQuota := c.results[0].Status == prefix.OverQuota
	pools := c.manager.Pools()
	var total prefix.Demand
	for i := range c.results {
		plan := &c.results[i].Plan
		most, what, holder := pools, "beyond capacity", "the pool has"
		if overQuota {
			most, what, holder = c.manager.QuotaOf(c.wanted[i].Extras), "quota", "its tenant may hold"
		}
		for pool, bound := range [...]int{plan.BoundBase, plan.BoundDraft} {
			if all := bound + plan.Demand[pool]; all > most[pool] {
				return status.New(status.RequestFailed, "begin: %s: sequence %d needs %d %v pages, %s %d in all", what, i, all, prefix.Resource(pool), holder, most[pool])
			}
			total[pool] += plan.Demand[pool]
		}
	}
	what := "no capacity"
	if overQuota {
		what = "no room below the quota of its tenants"
	}
	return status.New(status.RequestFailed, "begin: %s for the batch of %d: %d base and %d draft pages wanted, the pools have %d and %d in all",
		what, len(c.results), total[prefix.BasePages], total[prefix.DraftPages], pools[prefix.BasePages], pools[prefix.DraftPages])
}

// giveUpHits turns every sequence whose plan came from the cache into a cold
// one, for the forced-cold retry of 13.3: without pinned pages the demand might
// fit. By counting it never does, since a cold plan needs at least the pages
// that a hit pins plus those it asks for; the branch is kept as the rule has it.
func (c *Coordinator) giveUpHits() (any bool) {
	for i := range c.wanted {
		plan := &c.results[i].Plan
		if c.wanted[i].Policy == prefix.UseCache && (plan.Reuse > 0 || plan.Kind == prefix.FullInputRewind) {
			c.wanted[i].Policy, any = prefix.Bypass, true
		}
	}
	return any
}

func (c *Coordinator) planMode(m ExecutionMode) prefix.Mode {
	switch {
	case m == ModeEAGLE:
		return prefix.Spec
	case c.cfg.Kind.recurrent():
		return prefix.Hybrid
	}
	return prefix.Vanilla
}

// newSequence turns an acquired lease into the state of C-88.
func (c *Coordinator) newSequence(res *prefix.AcquireResult, adm *SequenceAdmission, slot int32) sequence {
	plan := &res.Plan
	reuse := int32(plan.Reuse)
	s := sequence{
		lease: res.Lease, slot: slot,
		tokens: int32(len(adm.Tokens)), matched: int32(plan.Matched), reuse: reuse,
		committed: reuse, common: reuse, frozen: none,
		restore: plan.Recurrent, restorePage: plan.Partial,
		kind: plan.Kind, reason: plan.Reason,
	}
	if c.cfg.Kind.attention() {
		s.basePages = int32(plan.BoundBase + plan.Demand[prefix.BasePages])
	}
	if plan.Mode == prefix.Spec {
		s.draftPages = int32(plan.BoundDraft + plan.Demand[prefix.DraftPages])
	}
	if len(adm.Media) > 0 {
		for _, d := range adm.Media[:reuse] {
			if !d.IsZero() {
				s.skippedMedia++
			}
		}
	}
	return s
}

func (c *Coordinator) now() int64 {
	if c.cfg.Clock == nil {
		return 0
	}
	return c.cfg.Clock()
}
