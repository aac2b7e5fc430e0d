package omni

import (
	"unsafe"

	"libprefixcache/core/rows"
)

// KeyRows is one key of a step. Row i of the step is at Rows + i*Stride. With Dst
// the new rows are copied there as well, in the layout of results:
//
//	for each request of the batch, in order:
//	  its hit rows (if it has a hit in this step), left for Materialize
//	  its new rows
//
// Without Dst they stay on a staging page until the step is consumed.
type KeyRows struct {
	Key      KeyID
	Place    Place
	Rows     unsafe.Pointer // may be nil when the step has no rows
	Stride   int64          // bytes, at least the key's row bytes
	Dst      unsafe.Pointer
	DstBytes int64 // exactly the bytes of the layout
}

// SaveArgs is one step. Slices are borrowed for the call.
type SaveArgs struct {
	Requests []uint64 // the batch, each request once
	Counts   []int64  // new rows of each
	Slots    []int64  // slot of each new row, in batch order
	Rows     []KeyRows
	Stream   uint64 // of the producer, for rows on a device; a number that only the Executor understands
	Event    uint64 // behind which rows on a device are ready, likewise; 0: on Stream they are
}

// Save stores a step's rows and returns its id, which Materialize or Discard must
// consume exactly once. All or nothing: an error uses no id and leaves no trace,
// except for the failed write of this very step, which is sticky.
//
// It waits, each time bounded by the timeout, for the former step's write, for
// memory under the budget and for a staging page; never for its own producer.
func (c *Cache) Save(a *SaveArgs) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.leave()
	if c.closed {
		return 0, errShutDown("save")
	}
	if c.fatal != nil {
		return 0, c.fatal
	}
	defer c.uncarry(a)
	if err := c.checkSave(a); err != nil {
		return 0, err
	}
	if c.batch.device > 0 {
		if err := c.admitRows(a); err != nil {
			return 0, err
		}
	}
	if err := c.prepare(a); err != nil {
		return 0, err
	}
	x := c.publish(a)
	var step uint64
	var err error
	if c.batch.device > 0 {
		step, err = c.writeDevice(a, x)
	} else {
		step, err = c.write(a, x)
	}
	if err != nil {
		return 0, err
	}
	c.saved(a)
	return step, nil
}

// prepare makes sure that nothing in publish can fail: room in the budget, a
// staging page, memory for rows. What it took is given back when it fails.
func (c *Cache) prepare(a *SaveArgs) (err error) {
	s := &c.batch
	// Phase 1: the former step is in the mirror. Deferred writes of finished requests
	// are not waited for: their rows are on the host and count in the budget.
	if err = c.awaitStep(); err != nil {
		return err
	}
	c.trimStores()
	s.byCommitter = s.device > 0 ||
		c.cfg.Threaded && s.immediate > 0 && (c.cfg.InlineBytes < 0 || s.immediateBytes >= c.cfg.InlineBytes)
	// Only what will be held outside the mirror is charged: rows written inline never
	// are.
	bytes := s.deferredBytes
	if s.byCommitter {
		bytes += s.immediateBytes
	}
	if err = c.charge(bytes); err != nil {
		return err
	}
	s.charged = bytes
	defer func() {
		if err != nil {
			c.staged -= s.charged
			s.charged = 0
		}
	}()
	if err = c.reserveRows(a); err != nil {
		return err
	}
	if s.page, err = c.claimPage(); err != nil {
		return err
	}
	c.notePage(a)
	if s.device > 0 {
		return c.stageDevice(a)
	}
	if s.byCommitter {
		// The step's own page is claimed and nobody knows of it yet, so a copy that
		// fails here can still be undone.
		var took int64
		c.unlocked(func() {
			began := c.clock(s.immediateBytes)
			c.stage(a)
			took = c.since(began)
		})
		c.stats.Moves[MoveSave].add(s.immediateBytes, took)
		if err = c.stopped(); err != nil {
			c.releasePage(s.page, pageByStep)
		}
	}
	return err
}

// stopped is why a save that had given the lock up must not go on, or nil: a deferred
// write may have failed meanwhile (O-42).
func (c *Cache) stopped() error {
	if c.closed {
		return errShutDown("save")
	}
	return c.fatal
}

// reserveRows has memory for every row of the step that does not go straight to the
// mirror, and for those that it displaces there.
func (c *Cache) reserveRows(a *SaveArgs) error {
	s := &c.batch
	for i := range a.Rows {
		k := c.keys[a.Rows[i].Key]
		if s.n > 0 && s.device == 0 && (a.Rows[i].Dst == nil || s.byCommitter && k.sched == JoinNextStep) {
			if err := c.reserveLanding(k); err != nil {
				return err
			}
		}
		if s.n > 0 && k.sched == JoinOnFinish {
			if err := k.store.reserve(s.n); err != nil {
				return err
			}
		}
	}
	for _, id := range c.visible {
		// Rows of pending reads may have to be copied aside.
		if k := c.keys[id]; k.readers > 0 {
			need := s.n
			if k.sched == JoinOnFinish && k.carried >= 0 {
				need += s.n
			}
			if err := k.store.reserve(need); err != nil {
				return err
			}
		}
	}
	return nil
}

// publish makes the step visible, in one critical section that cannot fail: keys,
// claims, the plans of its hits, its context (O-30, O-45).
func (c *Cache) publish(a *SaveArgs) *stepCtx {
	s := &c.batch
	c.last++
	s.charged = 0
	x := c.steps.get()
	x.id, x.page = c.last, s.page
	x.starts = append(x.starts, s.starts...)
	x.offs = append(x.offs, s.offs...)
	x.hits = append(x.hits, s.hits...)
	s.handles, s.repeated = s.handles[:0], false
	if s.deferredBytes > 0 {
		c.findEntries(a.Requests)
	}
	if s.n > 0 {
		// A key is visible from its first claim on, so that this step's own hits find
		// it (O-30).
		for i := range a.Rows {
			if id := a.Rows[i].Key; !c.keys[id].visible {
				c.keys[id].visible = true
				c.visible = append(c.visible, id)
			}
		}
		for _, id := range c.visible {
			switch k := c.keys[id]; {
			case k.carried < 0:
				c.claimSkipped(k, a.Slots)
			case k.sched == JoinNextStep:
				s.repeated = c.claimStep(k, a.Slots, x.id) || s.repeated
			}
		}
		for i := range a.Rows { // in the order of Rows: write looks for the handles in it
			if k := c.keys[a.Rows[i].Key]; k.sched == JoinOnFinish {
				c.claimChunks(a, k, a.Rows[i].Key, x.id)
			}
		}
	}
	// The set of emitted keys is frozen here.
	for i := range a.Rows {
		x.keys = append(x.keys, ctxKey{id: a.Rows[i].Key, k: c.keys[a.Rows[i].Key], kept: s.n > 0 && a.Rows[i].Dst == nil})
	}
	if len(x.hits) > 0 {
		c.planHits(x)
	}
	c.hits.reset()
	c.steps.open = append(c.steps.open, x.index)
	c.stats.UnconsumedStepsPeak = max(c.stats.UnconsumedStepsPeak, len(c.steps.open))
	return x
}

// saved counts the step of a Save that succeeds.
func (c *Cache) saved(a *SaveArgs) {
	s := &c.batch
	c.stats.StepsSaved++
	c.stats.TokensSaved += uint64(s.n)
	c.stats.RowsSaved += uint64(s.n) * uint64(len(a.Rows))
	c.stats.SavedBytes += uint64(s.immediateBytes + s.deferredBytes)
}

// claimChunks adds every request's rows of one deferred key to its open write.
func (c *Cache) claimChunks(a *SaveArgs, k *key, id KeyID, step uint64) {
	s := &c.batch
	for b := range a.Requests {
		if from, to := s.starts[b], s.starts[b+1]; to > from {
			w := c.openWrite(s.entries[b])
			s.handles = c.claimDeferred(k, id, w, a.Slots[from:to], step, s.handles)
		}
	}
}

// write moves the rows, or hands the step to the committer. Deferred rows go to
// the memory that publish took for them; nobody reads it before Save returns.
func (c *Cache) write(a *SaveArgs, x *stepCtx) (uint64, error) {
	s := &c.batch
	if s.byCommitter {
		j := &c.job
		j.step, j.stepTaken, j.stepPage, j.stepBytes, j.stepQueued = x.id, false, s.page, s.immediateBytes, c.now()
		c.pages[s.page] |= pageByWrite
		j.stepCopies = c.appendStepCopies(j.stepCopies[:0], a)
	}
	// What fails from here on is a write, and sticky: the claims are made.
	fails := s.immediate > 0 && !s.byCommitter && c.failPoint()
	if s.n > 0 && !(s.byCommitter && s.deferredBytes == 0) {
		bytes, took := s.deferredBytes, int64(0)
		if !s.byCommitter {
			bytes += s.immediateBytes
		}
		c.unlocked(func() {
			began := c.clock(bytes)
			c.move(a, bytes, fails)
			took = c.since(began)
		})
		c.stats.Moves[MoveSave].add(bytes, took)
	}
	switch {
	case fails:
		c.fail(errFailPoint, "step %d", x.id)
		if x, err := c.steps.pop(c.last); err == nil {
			c.endStep(x)
		}
		return 0, c.fatal
	case s.byCommitter:
		c.wake(Committer)
	default:
		c.written = x.id
		c.wake(Callers)
	}
	return x.id, nil
}

// appendStepCopies lists the copies from the staging page into the mirrors.
func (c *Cache) appendStepCopies(dst []Copy, a *SaveArgs) []Copy {
	s := &c.batch
	s.runs = rows.AppendRuns(s.runs[:0], a.Slots)
	for i := range a.Rows {
		k := c.keys[a.Rows[i].Key]
		if k.sched != JoinNextStep {
			continue
		}
		src := k.page(s.page, c.cfg.StagingCapacity)
		for _, r := range s.runs {
			dst = append(dst, Copy{Dst: k.mirror.Row(r.Slot), Src: src, Bytes: r.Len * k.rowBytes})
			src = unsafe.Add(src, r.Len*k.rowBytes)
		}
	}
	return dst
}

// stage copies the immediate rows to the step's page, and to their destinations,
// so that the caller may overwrite them before the committer has run.
func (c *Cache) stage(a *SaveArgs) {
	s := &c.batch
	s.moves.Begin(c.crew, s.immediateBytes)
	for i := range a.Rows {
		r := &a.Rows[i]
		if k := c.keys[r.Key]; k.sched == JoinNextStep {
			s.moves.CopyRows(k.page(s.page, c.cfg.StagingCapacity), k.rowBytes, r.Rows, r.Stride, k.rowBytes, s.n)
			if r.Dst != nil {
				c.copyOut(k, r)
			}
		}
	}
	s.moves.End()
}

// move copies rows to where publish said. No lock is held: the mirror rows are
// claimed, and whoever still reads them has its own copy. bytes are all that is moved.
func (c *Cache) move(a *SaveArgs, bytes int64, fails bool) {
	s := &c.batch
	if s.repeated {
		bytes = 0
	}
	s.moves.Begin(c.crew, bytes)
	handles := s.handles
	for i := range a.Rows {
		c.preempt()
		r := &a.Rows[i]
		k := c.keys[r.Key]
		switch {
		case k.sched == JoinOnFinish:
			k.store.fill(handles[:s.n], r.Rows, r.Stride)
			handles = handles[s.n:]
			if r.Dst != nil {
				c.copyOut(k, r)
			} else {
				s.moves.CopyRows(k.page(s.page, c.cfg.StagingCapacity), k.rowBytes, r.Rows, r.Stride, k.rowBytes, s.n)
			}
		case s.byCommitter || fails:
		case r.Dst == nil: // one pass over the source feeds the mirror and the page
			s.moves.ScatterTee(k.mirror, r.Rows, r.Stride, a.Slots, k.page(s.page, c.cfg.StagingCapacity))
		default: // or the mirror and the result, piece by piece around the hits
			for _, t := range s.stretches {
				s.moves.ScatterTee(k.mirror, unsafe.Add(r.Rows, t.row*r.Stride), r.Stride, a.Slots[t.row:t.row+t.n], unsafe.Add(r.Dst, t.off*k.rowBytes))
			}
		}
	}
	s.moves.End()
}

// copyOut copies the step's rows of one key to the caller's destination.
func (c *Cache) copyOut(k *key, r *KeyRows) {
	for _, t := range c.batch.stretches {
		c.batch.moves.CopyRows(unsafe.Add(r.Dst, t.off*k.rowBytes), k.rowBytes, unsafe.Add(r.Rows, t.row*r.Stride), r.Stride, k.rowBytes, t.n)
	}
}

// fill copies source rows to rows of the store, neighbours in one piece.
func (s *rowStore) fill(handles []int32, src unsafe.Pointer, stride int64) {
	for i := 0; i < len(handles); {
		j := i + 1
		for j < len(handles) && s.follows(handles[j-1], handles[j]) {
			j++
		}
		rows.CopyRows(s.at(handles[i]), s.rowBytes, unsafe.Add(src, int64(i)*stride), stride, s.rowBytes, int64(j-i))
		i = j
	}
}

// uncarry forgets which keys the step carried.
func (c *Cache) uncarry(a *SaveArgs) {
	for i := range a.Rows {
		if id := a.Rows[i].Key; id >= 0 && int(id) < len(c.keys) {
			c.keys[id].carried = -1
		}
	}
}
