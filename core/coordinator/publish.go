package coordinator

import "libprefixcache/core/prefix"

// publishBlocks publishes the full blocks of the first length tokens (C-98).
// The count starts at 0 for each sequence even after a hit, so a hit publishes
// its prefix again: that is what refreshes its record.
func (c *Coordinator) publishBlocks(r *request, s *sequence, length int32, decodeEnd bool) error {
	blocks := length / c.p
	if r.lookup == Bypass || (decodeEnd && r.commit == PrefillOnly) || blocks <= s.published {
		return nil
	}
	res, err := c.manager.Publish(s.lease, int(length))
	if err != nil || res.Stale { // a dropped one is the manager's to count
		return err
	}
	s.published = blocks
	c.countPublication(res.Status)
	c.metrics.SpecPairPublications += count(r.eagle())
	return nil
}

// publishFrozen publishes the prompt endpoints of an EAGLE request whose draft
// initialisation is now known to have finished.
func (c *Coordinator) publishFrozen(r *request) error {
	if !r.awaiting {
		return nil
	}
	r.awaiting = false
	for i := range r.seqs {
		s := &r.seqs[i]
		length := min(s.frozen, s.common)
		s.frozen = none
		if err := c.publishBlocks(r, s, length, false); err != nil {
			return err
		}
	}
	return nil
}

// publishStaged publishes and retires every staged capture. The device has
// finished writing them (C-61).
func (c *Coordinator) publishStaged(r *request) error {
	for i := range r.seqs {
		s := &r.seqs[i]
		if !s.staged {
			continue
		}
		s.staged = false
		res, err := c.manager.PublishHybrid(s.lease, int(s.stagedLength), s.stagedSlots)
		if err != nil {
			return err
		}
		if !res.Stale {
			s.exact = s.stagedLength
			c.countPublication(res.Status)
		}
		if err := c.manager.Retire(s.lease, s.stagedSlots); err != nil {
			return err
		}
	}
	return nil
}

func (c *Coordinator) countPublication(st prefix.PublishStatus) {
	c.metrics.PublicationAttempts++
	c.metrics.PublishedEndpoints++
	c.metrics.CommittedPublications += count(st == prefix.Published)
	c.metrics.ExistingPublications += count(st == prefix.ExistingRecord)
}
