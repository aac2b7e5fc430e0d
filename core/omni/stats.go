package omni

// Stats are counters since New and, where it says gauge, what is now. Bytes unless
// said otherwise.
type Stats struct {
	StepsSaved        uint64
	StepsMaterialized uint64
	StepsDiscarded    uint64
	RowsSaved         uint64 // rows, over all keys
	SavedBytes        uint64
	Hits              uint64 // hit spans opened
	HitTokens         uint64 // tokens of these
	GatheredBytes     uint64 // hit rows given out
	PreservedBytes    uint64 // rows copied aside because their slot was claimed
	AbsentRows        uint64 // hit rows that read zeros
	DisplacedRows     uint64 // rows that lost their slot before they were written
	DeferredWrites    uint64 // deferred writes finished
	Flushes           uint64 // writes forced by the budget
	StagingWaits      uint64 // saves that waited for a staging page
	FailedWrites      uint64
	StagedBytesPeak   int64

	LiveRequests    int   // gauge
	UnconsumedSteps int   // gauge
	PendingWrites   int   // gauge: writes that have not ended, deferred included
	PendingReads    int   // gauge: planned reads that are open
	StagedBytes     int64 // gauge: charged to the budget
	ReservedBytes   int64 // gauge: address space of this cache
	Keys            int   // gauge: visible keys
}

// Stats returns the counters. It changes nothing.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.LiveRequests = c.reqs.live
	s.UnconsumedSteps = len(c.steps.open)
	s.PendingWrites = c.pendingWrites()
	s.StagedBytes = c.staged
	s.Keys = len(c.visible)
	for _, p := range c.devicePages {
		if p.mem != nil {
			s.ReservedBytes += p.mem.Size()
		}
	}
	for _, k := range c.keys {
		s.PendingReads += k.readers
		s.ReservedBytes += k.reserved()
	}
	return s
}

// reserved is the address space of a key.
func (k *key) reserved() (n int64) {
	if k.mirror != nil {
		n = k.mirror.Memory().Size()
	}
	for _, m := range k.mem {
		n += m.Size()
	}
	if k.landing != nil {
		n += k.landing.Size()
	}
	for _, m := range k.store.segs {
		n += m.Size()
	}
	return n
}
