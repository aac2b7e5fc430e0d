package coordinator

import (
	"math"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// PreparePrefill binds every admitted row and resets the logical lengths to
// the reuse boundaries (C-90): base rows, draft rows, recurrent state, lengths,
// in that order.
func (c *Coordinator) PreparePrefill(h Handle, dst []Command) (int, error) {
	r, err := c.enter("preparePrefill", h, in(StageAdmitted))
	if err != nil {
		return 0, err
	}
	if err := c.checkRoom("preparePrefill", dst); err != nil {
		return 0, err
	}
	if err := c.checkRowsAgree(r); err != nil {
		return 0, err
	}
	l := list{dst: dst}
	c.payload, c.slots = c.payload[:0], c.slots[:0]
	for i := range r.seqs {
		c.payload = append(c.payload, r.seqs[i].reuse)
		c.slots = append(c.slots, r.seqs[i].slot)
	}
	c.open(opPrepare, r)
	for cache, t := range c.tables() {
		if t == nil || (Cache(cache) == Draft && !r.eagle()) { // C-86
			continue
		}
		for i := range r.seqs {
			if err := c.bindRow(t, Cache(cache), &r.seqs[i]); err != nil {
				return 0, c.breakOff(r, err)
			}
		}
		t.plan(Cache(cache), &l)
	}
	if c.cfg.Kind.recurrent() {
		for i := range r.seqs {
			if err := c.restoreState(&r.seqs[i], &l); err != nil {
				return 0, c.breakOff(r, err)
			}
		}
	}
	batch := int32(len(r.seqs))
	l.put(Command{Kind: CmdSetReuseLengths, Cache: Base, Count: batch})
	if r.eagle() {
		l.put(Command{Kind: CmdSetReuseLengths, Cache: Draft, Count: batch})
	}
	return c.handOut(&l), nil
}

// checkRowsAgree is the one check of C-90 that precedes the pending mark: base
// and draft rows of an EAGLE request have the same length.
func (c *Coordinator) checkRowsAgree(r *request) error {
	for i := range r.seqs {
		s := &r.seqs[i]
		if r.eagle() && s.basePages != s.draftPages {
			return status.New(status.Internal, "preparePrefill: sequence %d has %d base and %d draft pages, expected as many", i, s.basePages, s.draftPages)
		}
	}
	return nil
}

// bindRow writes all pages of a lease into its table row.
func (c *Coordinator) bindRow(t *PageTable, cache Cache, s *sequence) error {
	pages, err := c.leasePages(cache, s, 0, s.pages(cache))
	if err != nil {
		return err
	}
	return t.SetRow(s.slot, pages)
}

// leasePages reads pages [first, last) of a lease into the scratch row.
func (c *Coordinator) leasePages(cache Cache, s *sequence, first, last int32) ([]int32, error) {
	pool := prefix.BasePages
	if cache == Draft {
		pool = prefix.DraftPages
	}
	out := c.scratch[:last-first]
	return out, c.manager.Pages(s.lease, pool, int(first), out)
}

func (s *sequence) pages(cache Cache) int32 {
	if cache == Draft {
		return s.draftPages
	}
	return s.basePages
}

// restoreState puts a hit's recurrent checkpoint, and the leading tokens of
// its partial page, into place; a cold slot starts from zero.
func (c *Coordinator) restoreState(s *sequence, l *list) error {
	if s.restore == none {
		l.put(Command{Kind: CmdZeroRecurrent, Slot: s.slot})
		return nil
	}
	l.put(Command{Kind: CmdRestoreRecurrent, Slot: s.slot, Snapshot: s.restore})
	if s.restorePage == none {
		return nil
	}
	// The lease's page number reuse/P is its first private page (8.2).
	page, err := c.leasePages(Base, s, s.reuse/c.p, s.reuse/c.p+1)
	if err != nil {
		return err
	}
	l.put(Command{Kind: CmdRestorePage, Page: page[0], Tokens: s.reuse % c.p, Snapshot: s.restorePage})
	return nil
}

// EnqueuePrefillCaptures reserves and enqueues the prefill-end snapshots of a
// hybrid request, before the runtime's own prefill synchronisation (C-91).
// Other kinds have nothing to capture.
func (c *Coordinator) EnqueuePrefillCaptures(h Handle, dst []Command) (int, error) {
	r, err := c.enter("enqueuePrefillCaptures", h, in(StagePrefill))
	if err != nil {
		return 0, err
	}
	if err := c.checkRoom("enqueuePrefillCaptures", dst); err != nil {
		return 0, err
	}
	l := list{dst: dst}
	if c.cfg.Kind.recurrent() {
		for i := range r.seqs {
			s := &r.seqs[i]
			if err := c.stageCapture(r, s, s.tokens, false, &l); err != nil {
				return 0, c.breakOff(r, err)
			}
		}
	}
	if l.n == 0 {
		r.stage = StageCaptured
		return 0, nil
	}
	c.open(opCapture, r)
	return c.handOut(&l), nil
}

// stageCapture reserves snapshot slots for a checkpoint at length and writes
// the capture commands. It skips silently where nothing may or can be kept.
func (c *Coordinator) stageCapture(r *request, s *sequence, length int32, decodeEnd bool, l *list) error {
	if r.lookup == Bypass || length <= s.exact || (decodeEnd && r.commit == PrefillOnly) {
		return nil
	}
	if s.staged || length <= 0 || length > s.tokens {
		return status.New(status.Internal, "capture: length %d of %d tokens, already staged %v", length, s.tokens, s.staged)
	}
	if lease, err := c.manager.Lease(s.lease); err != nil || lease.Stale {
		return err // what it would publish is dropped: its slots would cost others theirs
	}
	tail := length % c.p
	partial := c.cfg.Kind.attention() && tail != 0
	slots, ok, err := c.manager.Reserve(s.lease, partial)
	if err != nil {
		return err
	}
	if !ok { // retention pressure is not an error: the request goes on
		c.metrics.HybridPressureSkips++
		return nil
	}
	s.staged, s.stagedLength, s.stagedSlots = true, length, slots
	l.put(Command{Kind: CmdCaptureRecurrent, Slot: s.slot, Snapshot: slots.Recurrent})
	if partial {
		page, err := c.leasePages(Base, s, length/c.p, length/c.p+1)
		if err != nil {
			return err
		}
		l.put(Command{Kind: CmdCapturePage, Page: page[0], Tokens: tail, Snapshot: slots.Partial})
	}
	return nil
}

// Advance is what one sequence's step produced, observed after the runtime's
// own synchronisation.
type Advance struct {
	Tokens    []int32 // accepted tokens, copied
	Committed int32   // leading tokens whose model state is in the bound cache
}

// FinalizePrefill applies the first sampled token of every sequence and
// publishes the prompt endpoints. The caller has synchronised the base prefill.
// For EAGLE, common caps publication at what base and draft both hold; the
// endpoint is frozen until the draft initialisation has finished (C-93). It
// never has device work.
func (c *Coordinator) FinalizePrefill(h Handle, advances []Advance, common []int32) error {
	r, err := c.enter("finalizePrefillPublication", h, in(StagePrefill, StageCaptured))
	if err != nil {
		return err
	}
	// Every argument of every sequence is checked before any change (C-92, D-14).
	if err := checkAdvances("finalizePrefillPublication", r, advances, common); err != nil {
		return err
	}
	for i := range advances {
		a, s := &advances[i], &r.seqs[i]
		switch {
		case len(a.Tokens) != 1:
			return invalid("finalizePrefillPublication: sequence %d accepted %d tokens, expected 1", i, len(a.Tokens))
		case a.Committed != s.tokens:
			return invalid("finalizePrefillPublication: sequence %d is committed to %d, expected the whole prompt of %d", i, a.Committed, s.tokens)
		case r.eagle() && common[i] != a.Committed:
			return invalid("finalizePrefillPublication: common length of sequence %d is %d, expected the committed %d", i, common[i], a.Committed)
		}
	}
	if err := c.applyAdvances(r, advances); err != nil {
		return c.fail(r, err)
	}
	switch {
	case r.eagle():
		for i := range r.seqs {
			s := &r.seqs[i]
			s.common, s.frozen = common[i], s.committed
		}
		// Still pending: the draft prefill follows the synchronisation.
		r.awaiting, r.stage = true, StageAwaitingDraft
		return nil
	case c.cfg.Kind.recurrent():
		r.pending, r.stage = false, StageSettled
		return c.finalizeHybrid(r)
	default:
		r.pending, r.stage = false, StageSettled
		for i := range r.seqs {
			if err := c.publishBlocks(r, &r.seqs[i], r.seqs[i].committed, false); err != nil {
				return c.fail(r, err)
			}
		}
		return nil
	}
}

func (c *Coordinator) finalizeHybrid(r *request) error {
	// The snapshots that hits were restored from are read no more.
	for i := range r.seqs {
		s := &r.seqs[i]
		if s.restore == none && s.restorePage == none {
			continue
		}
		if err := c.manager.ReleaseRestored(s.lease); err != nil {
			return c.fail(r, err)
		}
		s.restore, s.restorePage = none, none
	}
	if err := c.publishStaged(r); err != nil {
		return c.fail(r, err)
	}
	return nil
}

// checkAdvances is what prefill and decode ask of their arguments alike.
func checkAdvances(what string, r *request, advances []Advance, common []int32) error {
	switch {
	case len(advances) != len(r.seqs):
		return invalid("%s: %d advances for %d sequences", what, len(advances), len(r.seqs))
	case r.eagle() && len(common) != len(r.seqs):
		return invalid("%s: %d common lengths for %d sequences", what, len(common), len(r.seqs))
	case !r.eagle() && len(common) != 0:
		return invalid("%s: %d common lengths, expected none outside EAGLE", what, len(common))
	}
	// C-99, for all sequences before any is changed.
	for i := range advances {
		a, s := &advances[i], &r.seqs[i]
		total := int64(s.tokens) + int64(len(a.Tokens))
		switch {
		case total > math.MaxInt32:
			return invalid("%s: sequence %d would have %d tokens, expected at most %d", what, i, total, math.MaxInt32)
		case a.Committed < s.committed || int64(a.Committed) > total:
			return invalid("%s: sequence %d is committed to %d, expected [%d,%d]", what, i, a.Committed, s.committed, total)
		}
	}
	return nil
}

// applyAdvances appends checked tokens and moves the committed lengths.
func (c *Coordinator) applyAdvances(r *request, advances []Advance) error {
	for i := range advances {
		a, s := &advances[i], &r.seqs[i]
		if err := c.manager.Append(s.lease, a.Tokens); err != nil {
			return err
		}
		s.tokens += int32(len(a.Tokens))
		s.committed = a.Committed
	}
	return nil
}
