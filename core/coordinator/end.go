package coordinator

import "libprefixcache/core/status"

// Finish ends a request normally; legal in every stage (C-103). With work
// pending its list is one synchronize, and the report completes the end: an
// EAGLE request publishes its frozen prompt endpoints, staged captures are
// dropped. The empty handle is fine.
func (c *Coordinator) Finish(h Handle, dst []Command) (int, error) {
	if h == 0 {
		return 0, nil
	}
	r, err := c.find(h)
	if err != nil {
		return 0, err
	}
	if err := c.idle("finish"); err != nil {
		return 0, err
	}
	if !r.pending {
		return 0, c.release(r)
	}
	if err := c.checkRoom("finish", dst); err != nil {
		return 0, err
	}
	l := list{dst: dst}
	c.open(opFinish, r)
	c.putSync(&l)
	return c.handOut(&l), nil
}

// Abandon is the abnormal exit: the handle was dropped without Finish, in any
// stage, also with a list out. drained says that the stream was synchronised
// successfully after the last command; it is looked at only when NeedsDrain.
// Nothing is published (C-104). Without a drain the whole request is
// quarantined and the coordinator poisoned; Abandon returns Poisoned then.
func (c *Coordinator) Abandon(h Handle, drained bool) error {
	if h == 0 {
		return nil
	}
	r, err := c.find(h)
	if err != nil {
		return err
	}
	if c.op != opNone {
		if c.opRequest != r.index() {
			return c.idle("abandon")
		}
		c.finishUploads(false)
		c.op = opNone
	}
	if r.pending && !drained {
		c.quarantine(r)
		return status.New(status.Poisoned, "abandon: the stream could not be drained, the request is quarantined")
	}
	if r.pending {
		c.drained()
	}
	return c.release(r)
}

// release frees every lease, then the table entry (C-84).
func (c *Coordinator) release(r *request) error {
	var failed error
	for i := range r.seqs {
		s := &r.seqs[i]
		if err := c.manager.Release(s.lease); err != nil {
			failed = err
		}
		c.slotBusy[s.slot] = false
	}
	r.seqs, r.mapping = r.seqs[:0], r.mapping[:0]
	r.state, r.handle, r.pending, r.awaiting = entryFree, 0, false, false
	c.active--
	return internal(failed)
}

// quarantine keeps everything a request owns: its pages may still be written.
// The table entry stays taken, the handle is dead (C-105).
func (c *Coordinator) quarantine(r *request) {
	r.state, r.handle = entryQuarantined, 0
	c.poisoned = true
	c.metrics.QuarantinedRequests++
}

// Shutdown releases quarantined requests before physical memory is freed.
// drained says that the stream was synchronised; it is looked at only when
// Quarantined is not 0. Poisoned: it was not, retry later. RequestFailed: a
// live handle still exists. It can be repeated and closes nothing (C-107); a
// poisoned coordinator stays poisoned (D-7).
func (c *Coordinator) Shutdown(drained bool) error {
	if err := c.idle("shutdown"); err != nil {
		return err
	}
	if n := c.Quarantined(); n > 0 {
		if !drained {
			return status.New(status.Poisoned, "shutdown: %d quarantined requests and no drained stream", n)
		}
		c.drained()
		for i := range c.requests {
			if r := &c.requests[i]; r.state == entryQuarantined {
				if err := c.release(r); err != nil {
					return err
				}
			}
		}
	}
	if c.active > 0 {
		return status.New(status.RequestFailed, "shutdown: %d live requests", c.active)
	}
	return nil
}

// Close says whether the coordinator may be destroyed. Busy: a request is live
// or quarantined, and freeing its memory would pull it from under running work
// (C-108).
func (c *Coordinator) Close() error {
	if c.active > 0 {
		return status.New(status.Busy, "close: %d requests are live or quarantined", c.active)
	}
	return nil
}
