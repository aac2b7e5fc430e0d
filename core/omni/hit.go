package omni

import "libprefixcache/core/status"

// NewRequest is one arrival of a scheduler output.
type NewRequest struct {
	Request   uint64
	HitTokens int64   // tokens the scheduler found computed; 0: no hit
	Blocks    []int64 // the request's blocks in order; at least HitTokens/BlockSize
}

// hit is a prefix hit that StepBegin opened for the coming save.
type hit struct {
	req    uint64
	tokens int64
	first  int32 // its blocks in hitList.blocks: first, tokens/BlockSize of them
}

// hitList holds the hits of one step. Block ids are copied here and the caller's
// table is never read again (O-17).
type hitList struct {
	hits   []hit
	blocks []int64
}

func (l *hitList) reset() { l.hits, l.blocks = l.hits[:0], l.blocks[:0] }

// StepBegin takes in one scheduler output: finishes first, then arrivals (O-14),
// all or nothing (S-16). accepted, when not nil, has one entry for each arrival:
// whether a hit was opened. A live request opens none (O-15). The hits belong to
// the next save that succeeds and are gone at the next StepBegin.
//
// Rows of finished and aborted requests reach the mirror alike (O-16): in eager
// mode before this returns, else through the committer.
func (c *Cache) StepBegin(finished []uint64, arrivals []NewRequest, accepted []bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if c.closed {
		return status.New(status.Closed, "step_begin: the cache is shut down")
	}
	if c.fatal != nil {
		return c.fatal
	}
	if accepted != nil && len(accepted) != len(arrivals) {
		return status.New(status.InvalidArgument, "hit_accepted has %d entries, expected %d", len(accepted), len(arrivals))
	}
	if err := c.admit(finished, arrivals); err != nil {
		return err
	}

	// Nothing fails from here on.
	first := c.finish(finished)
	c.hits.reset()
	for i := range arrivals {
		took := c.arrive(&arrivals[i])
		if accepted != nil {
			accepted[i] = took
		}
	}
	if c.cfg.Threaded {
		c.due()
		if first != none {
			c.wake(Committer)
		}
		return nil
	}
	return c.drainInline()
}

// admit checks an output without changing anything that can be seen: marks in
// request entries, and entries that are taken away again when it refuses. A mark
// tells finished from live, and finds an arrival that is listed twice.
func (c *Cache) admit(finished []uint64, arrivals []NewRequest) error {
	r := &c.reqs
	if r.epoch++; r.epoch == 0 { // wrapped: old marks would look new
		for i := range r.slab {
			r.slab[i].mark, r.slab[i].born = 0, 0
		}
		r.epoch = 1
	}
	for _, num := range finished {
		if e := r.find(num); e != none {
			r.slab[e].mark = r.epoch
		}
	}
	for i := range arrivals {
		a := &arrivals[i]
		e := r.find(a.Request)
		var err error
		switch {
		case e == none:
			if err = c.checkHit(a); err == nil {
				e = r.get(a.Request) // may move the slab: not in one expression
				r.slab[e].born = r.epoch
			}
		case r.slab[e].born == r.epoch: // the second of two: live by then
		case r.slab[e].live && r.slab[e].mark != r.epoch: // continuation
		default:
			if err = c.checkHit(a); err == nil {
				r.slab[e].born = r.epoch
			}
		}
		if err != nil {
			c.unborn(arrivals[:i])
			return err
		}
	}
	return nil
}

// unborn takes away the entries that admit made.
func (c *Cache) unborn(arrivals []NewRequest) {
	r := &c.reqs
	for i := range arrivals {
		e := r.find(arrivals[i].Request)
		if e == none || r.slab[e].born != r.epoch {
			continue
		}
		r.slab[e].born = 0
		if !r.slab[e].live && r.slab[e].open == none {
			r.remove(e)
		}
	}
}

// checkHit refuses a hit that could not be served (S-5, S-6, S-19).
func (c *Cache) checkHit(a *NewRequest) error {
	if a.HitTokens == 0 {
		return nil
	}
	need := a.HitTokens / c.cfg.BlockSize
	switch {
	case a.HitTokens < 0 || a.HitTokens > maxHitTokens:
		return status.New(status.InvalidArgument, "req %s has %d hit tokens, expected 0 to %d", c.nameOf(a.Request), a.HitTokens, int64(maxHitTokens))
	case len(a.Blocks) == 0:
		return status.New(status.Unmatch, "prefix hit of %d tokens for req %s carries no block_ids", a.HitTokens, c.nameOf(a.Request))
	case a.HitTokens%c.cfg.BlockSize != 0:
		return status.New(status.Unmatch, "prefix hit not block aligned: req %s has %d hit tokens, block size is %d", c.nameOf(a.Request), a.HitTokens, c.cfg.BlockSize)
	case int64(len(a.Blocks)) < need:
		return status.New(status.Unmatch, "prefix hit of %d tokens for req %s needs %d block_ids, got %d", a.HitTokens, c.nameOf(a.Request), need, len(a.Blocks))
	}
	for i, b := range a.Blocks[:need] {
		if b < 0 || b >= c.cfg.NumBlocks {
			return status.New(status.Unmatch, "block_ids[%d] of req %s is %d, expected 0 to %d", i, c.nameOf(a.Request), b, c.cfg.NumBlocks-1)
		}
	}
	return nil
}

// finish forgets requests and queues their open writes. It returns the first
// write queued, or none.
func (c *Cache) finish(finished []uint64) int32 {
	first := none
	for _, num := range finished {
		e := c.reqs.find(num)
		if e == none {
			continue
		}
		if w := c.reqs.slab[e].open; w != none {
			c.enqueue(w, false)
			if first == none {
				first = w
			}
		}
		c.reqs.remove(e)
	}
	return first
}

// arrive marks a request live and opens its hit.
func (c *Cache) arrive(a *NewRequest) bool {
	e := c.reqs.get(a.Request)
	if c.reqs.slab[e].live {
		return false
	}
	c.reqs.setLive(e)
	c.stats.LiveRequestsPeak = max(c.stats.LiveRequestsPeak, c.reqs.live)
	if a.HitTokens == 0 {
		return false
	}
	first := int32(len(c.hits.blocks))
	c.hits.blocks = append(c.hits.blocks, a.Blocks[:a.HitTokens/c.cfg.BlockSize]...)
	c.hits.hits = append(c.hits.hits, hit{req: a.Request, tokens: a.HitTokens, first: first})
	c.stats.Hits++
	c.stats.HitTokens += uint64(a.HitTokens)
	return true
}
