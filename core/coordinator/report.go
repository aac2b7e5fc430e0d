package coordinator

import "libprefixcache/core/status"

// open marks a list as being built for r. The request counts as pending from
// here on: commands may run as soon as they are handed out (D-8).
func (c *Coordinator) open(op opKind, r *request) {
	c.op, c.opRequest, c.opSync, c.opCount = op, r.index(), -1, 0
	c.opWasPending = r.pending
	r.pending = true
}

func (c *Coordinator) putSync(l *list) {
	c.opSync = l.n
	l.put(Command{Kind: CmdSynchronize})
}

// handOut closes the list and returns its length.
func (c *Coordinator) handOut(l *list) int {
	c.opCount = l.n
	return l.n
}

// breakOff abandons a half-built list after an error that no argument can
// cause. Nothing of it was handed out.
func (c *Coordinator) breakOff(r *request, err error) error {
	if c.op != opNone {
		c.finishUploads(false)
		c.op = opNone
		r.pending = c.opWasPending
	}
	return c.fail(r, err)
}

// fail leaves a request only Finish and Abandon. Its errors come from below
// after every argument was checked, so they are faults of ours, whatever code
// the manager gave them.
func (c *Coordinator) fail(r *request, err error) error {
	r.stage = StageFinishing
	return internal(err)
}

func internal(err error) error {
	if err == nil || status.CodeOf(err) == status.Internal {
		return err
	}
	return status.New(status.Internal, "coordinator and manager disagree: %v", err)
}

// finishUploads ends the uploads that the list carried.
func (c *Coordinator) finishUploads(ok bool) {
	for _, t := range c.tables() {
		if t != nil {
			t.FinishUpload(ok)
		}
	}
}

// drained notes that the stream has no work left.
func (c *Coordinator) drained() {
	for _, t := range c.tables() {
		if t != nil {
			t.Drained()
		}
	}
}

// Report tells the outcome of the list that is out for this request; executed
// is the number of its commands that were carried out in full, counted from the
// start. Done commits the step. After EnqueueFailed the request can only be
// finished or abandoned, except that a begun compaction and a finish are as
// before. After SyncFailed the request is quarantined, the handle is dead and
// the coordinator poisoned: Report returns Poisoned.
func (c *Coordinator) Report(h Handle, outcome Outcome, executed int) error {
	r, err := c.find(h)
	if err != nil {
		return err
	}
	if c.op == opNone || c.opRequest != r.index() {
		return status.New(status.WrongState, "report: no list of this request is out")
	}
	switch {
	case outcome < Done || outcome > SyncFailed:
		return invalid("report: outcome is %d, expected 0..2", outcome)
	case outcome == SyncFailed && c.opSync < 0:
		return invalid("report: a failed synchronize, but the list of %v has none", c.op)
	case outcome == Done && executed != c.opCount, executed < 0 || executed > c.opCount:
		return invalid("report: %d commands executed of %d", executed, c.opCount)
	}
	op, sync := c.op, c.opSync
	c.op = opNone
	c.finishUploads(outcome == Done)
	if op == opComplete && executed >= sync { // attempted, whatever became of it
		c.metrics.HybridCaptureSyncs++
	}
	synced := sync >= 0 && executed > sync
	if synced {
		c.drained()
	}
	switch outcome {
	case SyncFailed:
		c.quarantine(r)
		return status.New(status.Poisoned, "%v: the synchronisation failed, the request is quarantined", op)
	case EnqueueFailed:
		return c.enqueueFailed(op, r, synced)
	}
	return c.commitOp(op, r)
}

// commitOp is the second half of each step.
func (c *Coordinator) commitOp(op opKind, r *request) error {
	var err error
	switch op {
	case opPrepare:
		r.stage = StagePrefill
		for i := range r.seqs {
			c.metrics.HybridRestores += count(r.seqs[i].restore != none)
		}
	case opCapture:
		r.stage = StageCaptured
	case opDecode:
		r.stage = StageDecode
	case opComplete:
		r.pending, r.stage = false, StageSettled
		err = c.publishStaged(r)
	case opBeginCompaction:
		r.stage = StageCompaction
		err = c.publishFrozen(r)
	case opCompact:
		err = c.commitCompaction(r)
	case opFinish:
		r.pending = false
		err = internal(c.publishFrozen(r))
		if e := c.release(r); err == nil {
			err = e
		}
		return err
	}
	if err != nil {
		return c.fail(r, err)
	}
	return nil
}

// enqueueFailed: some command did not run, for a reason that leaves the stream
// usable.
func (c *Coordinator) enqueueFailed(op opKind, r *request, synced bool) error {
	switch op {
	case opFinish:
		return nil // as before: pending, may be finished again
	case opBeginCompaction:
		// Nothing is begun (D-15). The mapping copy touches no page of ours, so
		// the request is as pending as it was before, or settled by now.
		r.mapping, r.newBatch = r.mapping[:0], none
		r.pending = c.opWasPending && !synced
		if synced && r.stage == StageAwaitingDraft {
			r.stage = StageSettled
			if err := c.publishFrozen(r); err != nil {
				return c.fail(r, err)
			}
		}
		return nil
	default:
		r.stage = StageFinishing
		return nil
	}
}
