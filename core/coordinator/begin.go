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
	r, index := c.freeEntry()
	r.mode, r.lookup, r.commit = a.Mode, a.Lookup, a.Commit
	r.stage, r.pending, r.awaiting, r.newBatch = StageAdmitted, false, false, none
	r.seqs = r.seqs[:0]
	// Counters are staged here and added only when the whole batch is in (D-13).
	var staged Metrics
	for i := range a.Sequences {
		s, err := c.admit(a, i, &staged)
		if err != nil {
			// The table flag is cleared only after every lease is gone (C-84).
			for j := range r.seqs {
				_ = c.manager.Release(r.seqs[j].lease)
			}
			r.seqs = r.seqs[:0]
			return 0, err
		}
		r.seqs = append(r.seqs, s)
	}
	for i := range r.seqs {
		c.slotBusy[r.seqs[i].slot] = true
	}
	c.metrics.addAdmission(&staged)
	r.handle, r.state = newHandle(index), entryLive
	c.active++
	return r.handle, nil
}

// checkAdmission is every check of Begin, in the order of 13.3, all before the
// first lease is taken.
func (c *Coordinator) checkAdmission(a *Admission, stream uint64) error {
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

// admit acquires one sequence and counts it into staged.
func (c *Coordinator) admit(a *Admission, i int, staged *Metrics) (sequence, error) {
	adm := &a.Sequences[i]
	req := prefix.AcquireRequest{
		Mode:        c.planMode(a.Mode),
		Policy:      prefix.UseCache,
		NoAttention: !c.cfg.Kind.attention(),
		Tokens:      adm.Tokens,
		Media:       adm.Media,
		Extras:      adm.Extras,
	}
	if a.Lookup == Bypass {
		req.Policy = prefix.Bypass
	}
	start := c.now()
	res, err := c.manager.Acquire(&req)
	forced := false
	if err == nil && res.Status == prefix.InsufficientCapacity && a.Lookup == UseCache &&
		(res.Plan.Reuse > 0 || res.Plan.Kind == prefix.FullInputRewind) {
		// Forced-cold retry: without pinned pages the demand might fit.
		req.Policy = prefix.Bypass
		res, err = c.manager.Acquire(&req)
		forced = err == nil && res.Status == prefix.Acquired
	}
	// The one counter that failed admissions move too: the time was spent.
	c.metrics.PlanningNanoseconds += c.now() - start
	if err != nil {
		return sequence{}, err
	}
	if res.Status != prefix.Acquired {
		return sequence{}, status.New(status.RequestFailed, "begin: no capacity for sequence %d of %d tokens (%d base, %d draft pages wanted)",
			i, len(adm.Tokens), res.Plan.Demand[prefix.BasePages], res.Plan.Demand[prefix.DraftPages])
	}
	s := c.newSequence(&res, adm, a.slot(i))
	s.forcedCold = forced
	staged.countPlan(&res.Plan, &s, len(adm.Media) > 0, forced || a.Lookup == Bypass)
	return s, nil
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
