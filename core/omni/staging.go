package omni

import (
	"math"
	"time"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// pageHolder says who holds a staging page: a fixed range of rows in every key's
// landing buffer. 0 is a free page. No byte of a held page is rewritten (O-41).
type pageHolder uint8

const (
	pageByStep  pageHolder = 1 << iota // until the step is consumed (O-40)
	pageByWrite                        // until the committer has written the step
)

// claimPage takes the lowest free page for a step, waiting for one if need be. A
// step always takes one, also when nothing is staged: that is what limits how far
// consumers may lag behind (O-39).
func (c *Cache) claimPage() (int, error) {
	if c.closed {
		return -1, errShutDown("save")
	}
	p := c.freePage()
	if p < 0 {
		if err := c.awaitPage(); err != nil {
			return -1, err
		}
		p = c.freePage()
	}
	c.pages[p] = pageByStep
	return p, nil
}

// awaitPage waits until a page is free.
func (c *Cache) awaitPage() error {
	defer c.waited(WaitStaging, c.now())
	c.stats.StagingWaits++
	c.note(NoticeStaging)
	for end := c.deadline(); ; {
		late := !c.wait(Callers, end)
		switch {
		case c.stopped() != nil:
			return c.stopped()
		case c.freePage() >= 0:
			return nil
		case late:
			return status.New(status.StagingTimeout,
				"none of %d staging slots came free within %v; unconsumed step contexts (ids=%s) or a stuck write (in_flight_tasks=%d)",
				len(c.pages), c.timeout(), c.steps.ids(), c.pendingWrites())
		}
	}
}

// freePage is the lowest free page, or -1.
func (c *Cache) freePage() int {
	for p, h := range c.pages {
		if h == 0 {
			return p
		}
	}
	return -1
}

// releasePage takes one holder away; a holder that is gone already is fine.
func (c *Cache) releasePage(p int, h pageHolder) {
	if c.pages[p]&h == 0 {
		return
	}
	if c.pages[p] &^= h; c.pages[p] == 0 {
		if c.cfg.ZeroOnRelease {
			c.zeroPage(p)
		}
		c.wake(Callers)
	}
}

// reserveLanding makes sure that a key has its landing pages.
func (c *Cache) reserveLanding(k *key) error {
	if k.landing != nil {
		return nil
	}
	pages := int64(len(c.pages)) * c.cfg.StagingCapacity // in rows: 2^40 at most
	if pages > math.MaxInt64/k.rowBytes {
		return status.New(status.OutOfMemory, "cannot reserve %d staging pages of %d rows of %d bytes for key %s: more than the address space",
			len(c.pages), c.cfg.StagingCapacity, k.rowBytes, k.name)
	}
	m, err := rows.Reserve(pages*k.rowBytes, rows.MemoryOptions{Purpose: rows.PurposeStaging, DontDump: true})
	if err != nil {
		return err
	}
	k.landing = m
	return nil
}

func (c *Cache) timeout() time.Duration { return time.Duration(max(c.cfg.Timeout, 0)) }

// pendingWrites counts the writes that have not ended.
func (c *Cache) pendingWrites() int { return c.defs.pending + btoi(c.job.step != 0) }
