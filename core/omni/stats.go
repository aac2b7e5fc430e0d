package omni

// Wait is what a call waited for.
type Wait uint8

const (
	WaitStep    Wait = iota // a save: the former step's write
	WaitStaging             // a save: a free staging page
	WaitBudget              // a save: deferred writes, for room in the budget
	WaitRead                // Materialize: the write of rows that it reads
	WaitLanded              // Materialize: its step's copy from the device
	WaitLock                // any call: the cache's lock
	NumWaits
)

// Waited is how often and how long.
type Waited struct{ Count, Nanoseconds uint64 }

func (w *Waited) add(ns int64) {
	w.Count++
	w.Nanoseconds += uint64(max(ns, 0))
}

// Move is a kind of copy, by where rows go.
type Move uint8

const (
	MoveClone  Move = iota // rows on a device to memory of ours there; only Bytes
	MoveLand               // from there to a staging page; only Bytes
	MoveGather             // hit rows to a result
	MoveMerge              // new rows to a result, at Materialize
	MoveSave               // new rows of the caller to the cache and, by the same loads, to a result
	MoveCommit             // staged and deferred rows to the mirror
	NumMoves
)

// Moved is what copies moved. The clock is read around those of timedBytes or more:
// TimedBytes in Nanoseconds is the bandwidth, whatever Bytes is.
type Moved struct{ Bytes, TimedBytes, Nanoseconds uint64 }

// timedBytes take longer to copy than fifty clock readings.
const timedBytes = 64 << 10

func (m *Moved) add(bytes, ns int64) {
	m.Bytes += uint64(bytes)
	if bytes >= timedBytes && ns > 0 {
		m.TimedBytes += uint64(bytes)
		m.Nanoseconds += uint64(ns)
	}
}

// Notice is a bit for something that an operator should hear of.
type Notice uint32

const (
	NoticeFlush   Notice = 1 << iota // deferred rows were written early, for the budget
	NoticeStaging                    // a save waited for a staging page
	NoticeDropped                    // a planned read was not used
	NoticeFailed                     // a write failed
)

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
	TokensSaved       uint64 // rows of the steps, each once whatever its keys
	ReadsUsed         uint64 // planned reads (one hit, one key) that were given out
	ReadsDropped      uint64 // and that were not: the step was discarded, or nobody asked
	Moves             [NumMoves]Moved
	Waits             [NumWaits]Waited

	UnconsumedStepsPeak int
	LiveRequestsPeak    int
	QueueAgePeak        int64 // ns a write waited for the committer at most; threaded mode only

	LiveRequests    int   // gauge
	UnconsumedSteps int   // gauge
	PendingWrites   int   // gauge: writes that have not ended, deferred included
	PendingReads    int   // gauge: planned reads that are open
	StagedBytes     int64 // gauge: charged to the budget
	ReservedBytes   int64 // gauge: address space of this cache
	Keys            int   // gauge: visible keys
	StagingDepth    int   // from the Config
	BudgetBytes     int64 // likewise
	QueueAge        int64 // gauge: ns that the next write has waited for the committer
	PageBytes       int64 // gauge: of ReservedBytes, staging pages that rows from a device land on
}

// Stats returns the counters. Like Inspect it changes nothing, but a step that waits to
// be written does not wait beyond it: somebody may be looking for the end of that.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due()
	s := c.stats
	s.LiveRequests = c.reqs.live
	s.UnconsumedSteps = len(c.steps.open)
	s.PendingWrites = c.pendingWrites()
	s.StagedBytes = c.staged
	s.Keys = len(c.visible)
	s.StagingDepth, s.BudgetBytes = c.cfg.StagingDepth, c.cfg.BudgetBytes
	s.Waits[WaitLock] = c.mu.wait
	s.QueueAge = c.queueAge()
	for _, p := range c.devicePages {
		if p.mem != nil {
			s.ReservedBytes += p.mem.Size()
			s.PageBytes += p.mem.Size()
		}
	}
	for _, k := range c.keys {
		s.PendingReads += k.readers
		s.ReservedBytes += k.reserved()
	}
	return s
}

func (c *Cache) now() int64 { return c.cfg.Waiter.Now() }

// clock is the time before a copy of about n bytes, or none for a small one.
func (c *Cache) clock(n int64) int64 {
	if n < timedBytes {
		return noTime
	}
	return c.now()
}

const noTime = -1

// since is the nanoseconds from then on.
func (c *Cache) since(then int64) int64 {
	if then == noTime {
		return 0
	}
	return c.now() - then
}

// waited counts a wait that began at `began`. Caller holds mu.
func (c *Cache) waited(w Wait, began int64) { c.stats.Waits[w].add(c.now() - began) }

// queueAge is how long the next write has been waiting for the committer.
func (c *Cache) queueAge() int64 {
	switch s := &c.job; {
	case s.step != 0 && !s.stepTaken && !s.stepHeld:
		return max(c.now()-s.stepQueued, 0)
	case c.cfg.Threaded && c.defs.qHead != none:
		return max(c.now()-c.defs.writes[c.defs.qHead].queued, 0)
	}
	return 0
}

// aged notes how long the write that is taken now has waited. Eager mode has no queue.
func (c *Cache) aged(queued int64) {
	if c.cfg.Threaded {
		c.stats.QueueAgePeak = max(c.stats.QueueAgePeak, c.now()-queued)
	}
}

// note leaves a notice for whoever calls Notices next.
func (c *Cache) note(n Notice) {
	if c.notices.Load()&uint32(n) == 0 {
		c.notices.Or(uint32(n))
	}
}

// Notices takes the notices since the last call. Any thread, no lock; cheap when there
// are none, so that it can follow every call.
func (c *Cache) Notices() Notice {
	if c.notices.Load() == 0 {
		return 0
	}
	return Notice(c.notices.Swap(0))
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
