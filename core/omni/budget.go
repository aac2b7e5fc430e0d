package omni

import "libprefixcache/core/status"

// awaitStep waits until the former step is in the mirror (phase 1 of save). A slot
// it wrote may be reused now, and preserve can only copy rows that are there.
func (c *Cache) awaitStep() error {
	if c.job.step == 0 {
		return c.fatal // it may have failed while addresses were checked, without the lock
	}
	defer c.waited(WaitStep, c.now())
	step, end := c.job.step, c.deadline()
	c.carryOut(step, false)
	for c.job.step == step {
		if c.closed {
			return errShutDown("save")
		}
		if !c.wait(Callers, end) && c.job.step == step {
			return status.New(status.Unmatch, "step %d (JOIN_NEXT_STEP) did not reach done within %v (state=%s, in_flight_tasks=%d)",
				step, c.timeout(), c.stepState(), c.pendingWrites())
		}
	}
	if c.fatal != nil {
		return c.failedBefore("step", step)
	}
	return nil
}

func (c *Cache) stepState() writeState {
	if c.job.stepTaken {
		return writeCopying
	}
	return writeQueued
}

// charge takes bytes of the budget for a save. While they do not fit, the oldest
// deferred write is written, also one that this very save would add to: a request
// that keeps appending cannot pin the budget (O-36). A step that does not fit when
// nothing is left to write is admitted (O-35).
func (c *Cache) charge(bytes int64) error {
	var end int64
	for waited := false; c.staged+bytes > c.cfg.BudgetBytes && c.defs.oldest != none; {
		// The head of the queue, because somebody waits; everything else goes on as if
		// the request had finished.
		w := c.defs.oldest
		number := c.defs.writes[w].number
		c.stats.Flushes++
		c.note(NoticeFlush)
		c.enqueue(w, true)
		if !c.cfg.Threaded {
			if err := c.drainInline(); err != nil {
				return err
			}
			if c.closed {
				return errShutDown("save")
			}
			continue
		}
		c.wake(Committer)
		if !waited {
			waited, end = true, c.deadline()
		}
		if err := c.awaitDeferred(w, number, end); err != nil {
			return err
		}
	}
	if c.staged += bytes; c.staged > c.stats.StagedBytesPeak {
		c.stats.StagedBytesPeak = c.staged
	}
	return nil
}

// awaitDeferred waits until a deferred write has ended.
func (c *Cache) awaitDeferred(w int32, number uint64, end int64) error {
	defer c.waited(WaitBudget, c.now())
	for c.isPending(w, number) {
		if c.closed {
			return errShutDown("save")
		}
		if !c.wait(Callers, end) && c.isPending(w, number) {
			return status.New(status.Unmatch, "deferred write %d (JOIN_ON_FINISH) did not reach done within %v (state=%v, in_flight_tasks=%d)",
				number, c.timeout(), c.defs.writes[w].state, c.pendingWrites())
		}
	}
	if c.fatal != nil {
		return c.failedBefore("deferred", number)
	}
	return nil
}

// isPending reports whether the write that had entry w when its number was number
// has not ended.
func (c *Cache) isPending(w int32, number uint64) bool {
	p := &c.defs.writes[w]
	return p.number == number && p.state < writeWritten
}
