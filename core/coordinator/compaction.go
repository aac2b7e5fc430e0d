package coordinator

import "libprefixcache/core/status"

// BeginCompaction validates the one authoritative old-to-new mapping and
// uploads it, before any slot state moves. An EAGLE request whose draft
// initialisation is in flight is settled first: synchronise, publish.
//
// Until CompactBatch the device mapping must stay alive and unchanged. A begin
// that fails leaves nothing begun (D-15).
func (c *Coordinator) BeginCompaction(h Handle, oldToNew []int32, newBatch int32, dst []Command) (int, error) {
	const what = "beginBatchCompaction"
	r, err := c.enter(what, h, in(StageSettled, StageAwaitingDraft))
	if err != nil {
		return 0, err
	}
	if err := c.checkRoom(what, dst); err != nil {
		return 0, err
	}
	if err := checkMapping(r, oldToNew, newBatch); err != nil {
		return 0, err
	}
	if err := c.checkDense(r); err != nil {
		return 0, err
	}
	r.mapping = append(r.mapping[:0], oldToNew...)
	r.newBatch = newBatch
	c.payload = append(c.payload[:0], oldToNew...)
	l := list{dst: dst}
	c.open(opBeginCompaction, r)
	if r.stage == StageAwaitingDraft {
		c.putSync(&l)
	}
	l.put(Command{Kind: CmdUploadMapping, Count: int32(len(oldToNew))})
	return c.handOut(&l), nil
}

// checkMapping is C-100: one entry a sequence, survivors keep their order and
// fill the new batch without a gap, because slot state moves in place.
func checkMapping(r *request, oldToNew []int32, newBatch int32) error {
	if len(oldToNew) != len(r.seqs) {
		return invalid("beginBatchCompaction: mapping has %d entries for %d sequences", len(oldToNew), len(r.seqs))
	}
	if newBatch < 0 || int(newBatch) > len(r.seqs) {
		return invalid("beginBatchCompaction: new batch is %d, expected [0,%d]", newBatch, len(r.seqs))
	}
	next := int32(0)
	for old, to := range oldToNew {
		switch {
		case to == -1:
		case to != next || to >= newBatch:
			return invalid("beginBatchCompaction: sequence %d moves to %d, expected -1 or the next of [0,%d), %d", old, to, newBatch, next)
		default:
			next++
		}
	}
	if next != newBatch {
		return invalid("beginBatchCompaction: mapping keeps %d sequences, expected %d", next, newBatch)
	}
	return nil
}

// checkDense: compaction moves whole rows and the state of slots 0..b-1, so it
// is for a request that is alone and sits there. Requests with resident slots
// retire sequences without moving anything.
func (c *Coordinator) checkDense(r *request) error {
	if c.active > 1 {
		return status.New(status.WrongState, "beginBatchCompaction: %d requests are active, expected this one alone", c.active)
	}
	for i := range r.seqs {
		if r.seqs[i].slot != int32(i) {
			return status.New(status.WrongState, "beginBatchCompaction: sequence %d sits in slot %d, expected its batch index", i, r.seqs[i].slot)
		}
	}
	return nil
}

// CompactBatch moves rows and slot state by the mapping, synchronises, and only
// then retires leases (C-101, C-102). KV pages are never copied.
func (c *Coordinator) CompactBatch(h Handle, dst []Command) (int, error) {
	r, err := c.enter("compactBatch", h, in(StageCompaction))
	if err != nil {
		return 0, err
	}
	if err := c.checkRoom("compactBatch", dst); err != nil {
		return 0, err
	}
	l := list{dst: dst}
	c.payload = append(c.payload[:0], r.mapping...)
	c.open(opCompact, r)
	for cache, t := range c.tables() {
		if t == nil || (Cache(cache) == Draft && !r.eagle()) {
			continue
		}
		if err := t.CompactRows(r.mapping, r.newBatch); err != nil {
			return 0, c.breakOff(r, err)
		}
		t.plan(Cache(cache), &l)
	}
	batch := int32(len(r.mapping))
	l.put(Command{Kind: CmdCompactState, Cache: Base, Count: batch, New: r.newBatch})
	if r.eagle() {
		l.put(Command{Kind: CmdCompactState, Cache: Draft, Count: batch, New: r.newBatch})
	}
	c.putSync(&l)
	l.put(Command{Kind: CmdSetActiveBatch, Cache: Base, New: r.newBatch})
	if r.eagle() {
		l.put(Command{Kind: CmdSetActiveBatch, Cache: Draft, New: r.newBatch})
	}
	return c.handOut(&l), nil
}

// commitCompaction moves survivors down and releases what retired.
func (c *Coordinator) commitCompaction(r *request) error {
	var failed error
	kept := 0
	for old := range r.seqs {
		s := r.seqs[old]
		c.slotBusy[s.slot] = false
		to := r.mapping[old]
		if to == -1 {
			if err := c.manager.Release(s.lease); err != nil {
				failed = err
			}
			continue
		}
		s.slot = to
		r.seqs[to] = s
		kept++
	}
	r.seqs = r.seqs[:kept]
	for i := range r.seqs {
		c.slotBusy[r.seqs[i].slot] = true
	}
	r.mapping, r.newBatch = r.mapping[:0], none
	r.pending, r.stage = false, StageSettled
	if kept == 0 {
		r.stage = StageFinishing
	}
	return failed
}
