package coordinator

import (
	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// Headroom is how many tokens beyond the committed length the next step may
// write. Zero means the default: 1 for base, and for EAGLE the verify size
// (base) and drafting step times top-k (draft).
type Headroom struct {
	Base, Draft int32
}

// PrepareDecodeStep grows and uploads every row that the next step needs.
// RequestFailed: a row would exceed the table, or no page is obtainable; the
// request can only be finished then (C-94).
func (c *Coordinator) PrepareDecodeStep(h Handle, room Headroom, dst []Command) (int, error) {
	r, err := c.enter("prepareDecodeStep", h, in(StageSettled, StageAwaitingDraft))
	if err != nil {
		return 0, err
	}
	if err := c.checkRoom("prepareDecodeStep", dst); err != nil {
		return 0, err
	}
	if room, err = c.headroom(r, room); err != nil {
		return 0, err
	}
	l := list{dst: dst}
	if c.cfg.Kind.attention() {
		grew, err := c.growRows(r, room)
		if err != nil {
			return 0, err
		}
		if grew {
			c.open(opDecode, r) // the mark precedes the first upload (D-8)
			if err := c.bindGrownRows(r, &l); err != nil {
				return 0, c.breakOff(r, err)
			}
			return c.handOut(&l), nil
		}
	}
	r.pending, r.stage = true, StageDecode
	return 0, nil
}

func (c *Coordinator) headroom(r *request, room Headroom) (Headroom, error) {
	switch {
	case room.Base < 0 || room.Draft < 0:
		return room, invalid("prepareDecodeStep: headroom is %d and %d tokens, expected >= 0", room.Base, room.Draft)
	case !r.eagle() && room.Draft != 0:
		return room, invalid("prepareDecodeStep: draft headroom is %d, expected 0 outside EAGLE", room.Draft)
	}
	if room.Base == 0 {
		room.Base = 1
		if r.eagle() {
			room.Base = c.cfg.Spec.VerifySize
		}
	}
	if r.eagle() && room.Draft == 0 {
		room.Draft = int32(c.cfg.draftReach())
	}
	return room, nil
}

// reach is pages(committed + room), 64 bit: both may be near the limit.
func (c *Coordinator) reach(s *sequence, room int32) int64 {
	return (int64(s.committed) + int64(room) + int64(c.p) - 1) / int64(c.p)
}

// growRows gives every lease the pages of its working set. All rows are checked
// against the table before the first grows; growth of earlier sequences stays
// when a later one fails, but no row was written then (C-94).
func (c *Coordinator) growRows(r *request, room Headroom) (grew bool, err error) {
	for i := range r.seqs {
		s := &r.seqs[i]
		base, draft := c.reach(s, room.Base), int64(0)
		if r.eagle() {
			draft = c.reach(s, room.Draft)
		}
		if base <= int64(s.basePages) && draft <= int64(s.draftPages) {
			continue
		}
		grew = true
		if base > int64(c.cfg.Base.Table.Width()) || (r.eagle() && draft > int64(c.cfg.Draft.Table.Width())) {
			r.stage = StageFinishing
			return false, status.New(status.RequestFailed, "prepareDecodeStep: sequence %d needs %d base and %d draft pages, more than a row holds", i, base, draft)
		}
	}
	if !grew {
		return false, nil
	}
	for i := range r.seqs {
		s := &r.seqs[i]
		moreBase := max(0, int32(c.reach(s, room.Base))-s.basePages)
		moreDraft := int32(0)
		if r.eagle() {
			moreDraft = max(0, int32(c.reach(s, room.Draft))-s.draftPages)
		}
		if moreBase == 0 && moreDraft == 0 {
			continue
		}
		ok, err := c.manager.Grow(s.lease, int(moreBase), int(moreDraft))
		if err != nil {
			return false, c.fail(r, err)
		}
		if !ok {
			r.stage = StageFinishing
			if c.manager.Feasible(prefix.Demand{int(moreBase), int(moreDraft)}) { // then it is the tenant that may not have them
				most := c.manager.LeaseQuota(s.lease)
				if int(s.basePages+moreBase) <= most[prefix.BasePages] && int(s.draftPages+moreDraft) <= most[prefix.DraftPages] {
					return false, status.New(status.RequestFailed, "prepareDecodeStep: no room below the quota of its tenant for sequence %d: %d and %d more pages wanted, live requests of the tenant hold the rest of its %d and %d (tenant_quota)",
						i, moreBase, moreDraft, most[prefix.BasePages], most[prefix.DraftPages])
				}
				return false, status.New(status.RequestFailed, "prepareDecodeStep: quota: sequence %d holds %d base and %d draft pages, %d and %d more wanted, its tenant may hold %d and %d in all (tenant_quota)",
					i, s.basePages, s.draftPages, moreBase, moreDraft, most[prefix.BasePages], most[prefix.DraftPages])
			}
			return false, status.New(status.RequestFailed, "prepareDecodeStep: no page for sequence %d: %d base and %d draft pages held, %d and %d more wanted, the pools have %d and %d in all",
				i, s.basePages, s.draftPages, moreBase, moreDraft, c.manager.Capacity(prefix.BasePages), c.manager.Capacity(prefix.DraftPages))
		}
		s.basePages += moreBase
		s.draftPages += moreDraft
	}
	return true, nil
}

// bindGrownRows appends the new pages to the rows that grew.
func (c *Coordinator) bindGrownRows(r *request, l *list) error {
	for cache, t := range c.tables() {
		if t == nil || (Cache(cache) == Draft && !r.eagle()) {
			continue
		}
		for i := range r.seqs {
			s := &r.seqs[i]
			have := t.RowLength(s.slot)
			if have == s.pages(Cache(cache)) {
				continue
			}
			pages, err := c.leasePages(Cache(cache), s, have, s.pages(Cache(cache)))
			if err != nil {
				return err
			}
			if err := t.AppendRow(s.slot, pages); err != nil {
				return err
			}
		}
		t.plan(Cache(cache), l)
	}
	return nil
}

// CompleteDecodeStep applies a decode step after the decoder's own
// synchronisation, and publishes the sequences that ended with it: publishable
// lists their batch indexes. For EAGLE, common excludes accepted tokens whose
// draft state is not materialised yet. Only a hybrid request with captures has
// device work: the captures and one synchronize (C-97).
func (c *Coordinator) CompleteDecodeStep(h Handle, advances []Advance, publishable, common []int32, dst []Command) (int, error) {
	const what = "completeDecodeStep"
	r, err := c.enter(what, h, in(StageDecode))
	if err != nil {
		return 0, err
	}
	if err := c.checkRoom(what, dst); err != nil {
		return 0, err
	}
	// All arguments before any change (C-95, D-6).
	if err := checkAdvances(what, r, advances, common); err != nil {
		return 0, err
	}
	for i := range advances {
		if err := c.checkDecodeAdvance(r, i, &advances[i], common); err != nil {
			return 0, err
		}
	}
	if err := c.checkPublishable(r, publishable); err != nil {
		return 0, err
	}
	if err := c.applyAdvances(r, advances); err != nil {
		return 0, c.fail(r, err)
	}
	if c.cfg.Kind.recurrent() {
		return c.captureCompleted(r, publishable, dst)
	}
	r.pending, r.stage = false, StageSettled
	if r.eagle() {
		for i := range r.seqs {
			r.seqs[i].common = common[i]
		}
		// Verification synchronised after the draft initialisation.
		if err := c.publishFrozen(r); err != nil {
			return 0, c.fail(r, err)
		}
	}
	for _, i := range publishable {
		s := &r.seqs[i]
		length := s.committed
		if r.eagle() {
			length = s.common
		}
		if err := c.publishBlocks(r, s, length, true); err != nil {
			return 0, c.fail(r, err)
		}
	}
	return 0, nil
}

// checkDecodeAdvance holds an advance against C-95 and C-96: after each step
// the history is the committed tokens and exactly one lookahead. C-95 knows nothing of
// pages. What is refused beyond it is what C-98 could not publish, which counts full
// blocks: a last page that the runtime has begun without asking for it is its own
// affair, as is a draft that lags behind (its step may reach less far than a verification
// accepts, so pages of the common length are not always there).
func (c *Coordinator) checkDecodeAdvance(r *request, i int, a *Advance, common []int32) error {
	s := &r.seqs[i]
	n := len(a.Tokens)
	switch {
	case s.tokens != s.committed+1:
		return status.New(status.Internal, "completeDecodeStep: sequence %d has %d tokens, %d committed", i, s.tokens, s.committed)
	case n < 1 || (!r.eagle() && n != 1):
		return invalid("completeDecodeStep: sequence %d accepted %d tokens, expected 1, or at least 1 for EAGLE", i, n)
	case int64(a.Committed) != int64(s.committed)+int64(n):
		return invalid("completeDecodeStep: sequence %d is committed to %d, expected %d", i, a.Committed, int64(s.committed)+int64(n))
	case c.cfg.Kind.attention() && a.Committed/c.p > s.basePages:
		return invalid("completeDecodeStep: sequence %d is committed to %d, beyond its %d pages", i, a.Committed, s.basePages)
	}
	if !r.eagle() {
		return nil
	}
	switch {
	case common[i] < s.common || common[i] > a.Committed:
		return invalid("completeDecodeStep: common length of sequence %d is %d, expected [%d,%d]", i, common[i], s.common, a.Committed)
	case common[i]/c.p > s.draftPages:
		return invalid("completeDecodeStep: common length of sequence %d is %d, beyond its %d draft pages", i, common[i], s.draftPages)
	}
	return nil
}

func (c *Coordinator) checkPublishable(r *request, publishable []int32) error {
	if len(publishable) == 0 {
		return nil
	}
	c.nextStamp()
	for _, i := range publishable {
		if i < 0 || int(i) >= len(r.seqs) {
			return invalid("completeDecodeStep: publishable slot is %d, expected [0,%d)", i, len(r.seqs))
		}
		if c.seen[i] == c.stamp {
			return invalid("completeDecodeStep: publishable slot %d occurs twice", i)
		}
		c.seen[i] = c.stamp
	}
	return nil
}

// captureCompleted captures the sequences that ended, then synchronises once
// for all of them; the report publishes.
func (c *Coordinator) captureCompleted(r *request, publishable []int32, dst []Command) (int, error) {
	l := list{dst: dst}
	for _, i := range publishable {
		s := &r.seqs[i]
		if err := c.stageCapture(r, s, s.committed, true, &l); err != nil {
			return 0, c.breakOff(r, err)
		}
	}
	if l.n == 0 {
		r.pending, r.stage = false, StageSettled
		return 0, nil
	}
	c.open(opComplete, r)
	c.putSync(&l)
	return c.handOut(&l), nil
}
