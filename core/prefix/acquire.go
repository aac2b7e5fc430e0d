package prefix

import (
	"slices"

	"libprefixcache/core/status"
)

// Plan says what Acquire would do now, and changes nothing (C-25, C-43).
func (m *Manager) Plan(req *AcquireRequest) (Plan, error) {
	if err := m.checkRequest(req); err != nil {
		return Plan{}, err
	}
	m.scratch = m.scratch[:0]
	collisions := m.counters.HashCollisions
	f := m.plan(req, &m.scratch)
	m.counters.HashCollisions = collisions
	return f.plan, nil
}

// Acquire plans, pins, evicts and allocates in one step. The order of C-50 is
// kept in effect: what will be pinned is counted as active before feasibility is
// judged, and pinned before anything is evicted (C-52). An infeasible plan needs
// no undoing because nothing was done (C-51).
func (m *Manager) Acquire(req *AcquireRequest) (AcquireResult, error) {
	if err := m.checkRequest(req); err != nil {
		return AcquireResult{}, err
	}
	i, f := m.prepare(req)
	if !m.fits(&f, m.leases[i].draft) {
		m.counters.Infeasible++
		return AcquireResult{InsufficientCapacity, 0, f.plan}, nil
	}
	if m.tenants != nil && !m.withinQuota(f.realm, req.Extras, Demand{m.inactive(f.bound), m.inactiveDraft(m.leases[i].draft)}, f.plan.Demand) {
		m.counters.Infeasible++
		return AcquireResult{OverQuota, 0, f.plan}, nil
	}
	m.open(i, req, &f)
	m.evictOwn(m.leases[i].realm, f.plan.Demand, f.record)
	m.evictFor(f.plan.Demand, f.record)
	m.endCause()
	m.touchFound(&f)
	m.fill(i, req, &f)
	return AcquireResult{Acquired, m.leaseID(i), f.plan}, nil
}

// AcquireBatch is Acquire of several requests, all of them or none (D-13): every
// plan is made and pinned first, so that no request of the batch costs another
// one its hit, and only when all demands fit together is anything evicted. On
// false nothing has changed, no record was evicted, and out holds the plans.
// Nothing that this batch computes is visible to it (C-87).
func (m *Manager) AcquireBatch(reqs []AcquireRequest, out []AcquireResult) (bool, error) {
	if len(out) != len(reqs) {
		return false, status.New(status.InvalidArgument, "out has %d entries, expected one for each of %d requests", len(out), len(reqs))
	}
	for i := range reqs {
		if err := m.checkRequest(&reqs[i]); err != nil {
			return false, err
		}
	}
	m.batch = m.batch[:0]
	var total Demand
	for i := range reqs {
		lease, f := m.prepare(&reqs[i])
		m.open(lease, &reqs[i], &f)
		f.realm = m.leases[lease].realm
		m.batch = append(m.batch, f)
		out[i] = AcquireResult{Acquired, m.leaseID(lease), f.plan}
		for pool, n := range f.plan.Demand {
			total[pool] += n
		}
	}
	// What the plans bind is pinned, that is active, by now.
	refused := Acquired
	switch {
	case !m.base.canHold(0, total[BasePages]) || !m.draft.canHold(0, total[DraftPages]):
		refused = InsufficientCapacity
	case !m.batchWithinQuota():
		refused = OverQuota
	}
	if refused != Acquired {
		for i := range out { // none of these leases can be stale
			_ = m.Release(out[i].Lease)
			out[i].Status, out[i].Lease = refused, 0
			m.counters.Infeasible++
		}
		clear(m.batch) // it points into the caller's arrays
		return false, nil
	}
	for i := range m.batch { // the victims come before every record that was hit
		m.touchFound(&m.batch[i])
	}
	m.evictForBatch()
	m.evictFor(total, -1)
	m.endCause()
	for i := range m.batch {
		m.fill(m.leaseSlot(out[i].Lease), &reqs[i], &m.batch[i])
	}
	clear(m.batch)
	return true, nil
}

// RetryBatch is AcquireBatch of a batch that was refused right before, and may now want
// something else: both are one attempt in the counters.
func (m *Manager) RetryBatch(reqs []AcquireRequest, out []AcquireResult) (bool, error) {
	m.counters.Acquires -= uint64(len(reqs))
	m.counters.Infeasible -= uint64(len(reqs))
	return m.AcquireBatch(reqs, out)
}

// prepare plans a request into a lease slot that is not in use yet: its shared
// cells and draft pages are listed, nothing is counted.
func (m *Manager) prepare(req *AcquireRequest) (int32, found) {
	i := m.openLease()
	l := &m.leases[i]
	l.cells, l.segs, l.draft, l.early = l.cells[:0], l.segs[:0], l.draft[:0], l.early[:0]
	if !req.NoAttention { // at once: an array that grows leaves smaller ones behind
		pages := (max(len(req.Tokens), req.TokenCount) + m.cfg.PageTokens - 1) / m.cfg.PageTokens
		l.cells = slices.Grow(l.cells, min(pages, m.cfg.BasePages))
		if req.Mode == Spec {
			l.draft = slices.Grow(l.draft, min(pages, m.cfg.DraftPages))
		}
	}
	f := m.plan(req, &l.cells)
	m.counters.Acquires++
	l.cells = l.cells[:f.bound.at]
	if n := f.plan.BoundDraft; n > 0 {
		for range n {
			l.draft = append(l.draft, -1)
		}
		m.fillDraft(&m.records[f.draft], int32(n), l.draft)
	}
	return i, f
}

// open makes the lease live and pins what the plan binds.
func (m *Manager) open(i int32, req *AcquireRequest, f *found) {
	l := &m.leases[i]
	l.mode, l.attention, l.live = req.Mode, !req.NoAttention, true
	l.realm = f.realm
	if l.realm < 0 {
		l.realm = m.openRealm(req.Extras, !req.NoAttention)
		f.match = m.rootPlace(l.realm)
	} else if f.match.at == 0 {
		f.match = m.rootPlace(l.realm)
	}
	m.realms[l.realm].leases++
	m.leaseFree = m.leaseFree[:len(m.leaseFree)-1]
	m.liveLeases++
	m.pinFound(l, f)
}

// touchFound makes the record of a hit most recent, if it is still there.
func (m *Manager) touchFound(f *found) {
	if f.record >= 0 && m.records[f.record].live && m.records[f.record].id == uint64(f.plan.Record) {
		m.order.Touch(f.record) // C-53, and our improvement of it
	}
}

// fill takes the private pages, for which there is room now, and writes the rest
// of the prompt into them, so that a publication needs no tokens from the caller.
func (m *Manager) fill(i int32, req *AcquireRequest, f *found) {
	l, pl := &m.leases[i], &f.plan
	keep := f.bound.at
	pages := (f.n + m.cfg.PageTokens - 1) / m.cfg.PageTokens
	m.takeCells(l, pages-int(keep))
	at := int(keep) * m.content.width
	media := f.src.media
	if media != nil {
		media = media[at:]
	}
	m.write(l, at, f.src.words[at:], media)
	l.history = f.n
	if n := pl.Demand[DraftPages]; n > 0 {
		m.takeDraft(l, n)
	}
	l.matched = int32(pl.Matched / m.cfg.PageTokens)
	l.settled = max(l.matched, f.match.at) // the cursor relies on all that matched
	if m.cfg.Identity == Keys {
		l.keyed = int32(len(req.Keys))
	}
	l.dependency = int32(pl.Dependency)
	l.cursor, l.miss = f.match, f.src.miss
	m.counters.ReasonCount[pl.Reason]++
	m.asked(l.realm, f.n, pl.Reuse)
	if req.Policy == UseCache {
		m.counters.QueryTokens += uint64(f.n)
		m.counters.HitTokens += uint64(pl.Reuse)
	}
	m.counters.LeasesPeak = max(m.counters.LeasesPeak, uint64(m.liveLeases))
	m.notePeaks()
}

// fits judges a plan in every pool, in time that grows with the nodes of the
// path and never with records or pages (C-40, C-42).
func (m *Manager) fits(f *found, draft []int32) bool {
	pl := &f.plan
	if !m.base.canHold(m.inactive(f.bound), pl.Demand[BasePages]) {
		return false
	}
	if f.plan.Mode != Spec {
		return true // a hybrid hit pins slots, but takes none
	}
	return m.draft.canHold(m.inactiveDraft(draft), pl.Demand[DraftPages])
}

// inactive counts the base pages that pinning the path down to p would activate.
func (m *Manager) inactive(p place) (pages int) {
	// A pinned node may lie below an unpinned one: a lease does not own canonical
	// pages of another producer above its own (C-58). So every node is asked.
	if p.at == 0 {
		return 0
	}
	end := p.at
	for n := p.node; !m.nodes[n].isRoot(); n = m.nodes[n].parent {
		x := &m.nodes[n]
		if x.pins == 0 && !x.shadow {
			pages += int(end - x.start)
		}
		end = x.start
	}
	return pages
}

// pinFound makes the lease an owner of all that the plan binds. The node where
// the shared part ends is split there, so that pins are exact for each node.
func (m *Manager) pinFound(l *lease, f *found) {
	if keep := f.bound.at; keep > 0 {
		if x := &m.nodes[f.bound.node]; keep < x.end {
			f.bound.node = m.split(f.bound.node, keep)
		}
		m.pinPath(l, f.bound)
	}
	m.pinDraft(l)
	l.recurrent, l.partial = f.plan.Recurrent, f.plan.Partial
	m.holdSlot(RecurrentSlots, l.realm, l.recurrent, 1, 0)
	m.holdSlot(PartialSlots, l.realm, l.partial, 1, 0)
}

// Grow appends private pages to the lease, base and draft together or not at
// all (C-54). False means that even eviction would not make room; nothing has
// changed then. The new pages are the last ones of Pages.
func (m *Manager) Grow(id LeaseID, base, draft int) (bool, error) {
	l := m.lookup(id)
	if l == nil {
		return false, staleLease(id)
	}
	if base < 0 || draft < 0 {
		return false, status.New(status.InvalidArgument, "growth is %d base and %d draft pages, expected counts >= 0", base, draft)
	}
	if draft > 0 && l.mode != Spec {
		return false, status.New(status.WrongState, "growth of %d draft pages, expected 0 for a lease that is not speculative", draft)
	}
	if base > 0 && !l.attention {
		return false, status.New(status.WrongState, "growth of %d base pages, expected 0 for a pure recurrent lease", base)
	}
	if base|draft == 0 {
		return true, nil
	}
	if !m.base.canHold(0, base) || !m.draft.canHold(0, draft) || m.tenants != nil && !m.withinQuota(l.realm, nil, Demand{}, Demand{base, draft}) {
		return false, nil
	}
	if m.tenants != nil || base > m.base.free.n || draft > m.draft.free.n {
		m.evictOwn(l.realm, Demand{base, draft}, -1)
		m.evictFor(Demand{base, draft}, -1)
		m.endCause()
	}
	m.takeCells(l, base)
	if draft > 0 {
		m.takeDraft(l, draft)
	}
	// Tokens that arrived before their pages move in now.
	if early := l.early; len(early) > 0 {
		l.early = early[:0]
		m.write(l, l.history-len(early), early, nil)
	}
	m.notePeaks()
	return true, nil
}

// Append adds tokens to the lease's history, accepted or sampled. They need no
// page yet, and are text whatever the prompt was (C-14).
func (m *Manager) Append(id LeaseID, tokens []int32) error {
	l := m.lookup(id)
	if l == nil {
		return staleLease(id)
	}
	if m.cfg.Identity == Keys {
		return status.New(status.Unsupported, "Append on a cache of keys; pass the keys to PublishKeys")
	}
	if len(tokens) > maxTokens-l.history {
		return status.New(status.InvalidArgument, "%d tokens after %d, expected at most %d in all", len(tokens), l.history, maxTokens)
	}
	if !l.attention {
		p := m.cfg.PageTokens
		m.takeCells(l, max(0, (l.history+len(tokens)+p-1)/p-len(l.cells)))
	}
	at := l.history
	l.history += len(tokens)
	w := m.content.width
	if i, off := at/w, at%w; i < len(l.cells) && len(tokens) <= w-off { // decoding stays within a block
		if off == 0 {
			m.content.clearMedia(l.cells[i])
		}
		copy(m.content.cell(l.cells[i])[off:], tokens)
		return nil
	}
	m.write(l, at, tokens, nil)
	return nil
}
