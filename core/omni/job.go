package omni

import (
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// JobKind says what a Job writes.
type JobKind uint8

const (
	StepWrite     JobKind = 1 // the immediate rows of a step, from its staging page
	DeferredWrite JobKind = 2 // the deferred rows of a request
)

func (k JobKind) String() string {
	if k == StepWrite {
		return "step write"
	}
	return "deferred write"
}

// Job is a write as plain values: a list of copies into mirrors. Whoever takes it
// carries the copies out, on any thread and with no lock, and reports with
// JobDone. Commands come first: what has to have happened on the device. Both are
// valid until JobDone. Rows that lost their slot before the job
// was taken are not in it (O-5).
type Job struct {
	ID       uint64
	Kind     JobKind
	Step     uint64 // StepWrite
	Write    uint64 // DeferredWrite
	Request  uint64 // DeferredWrite
	Commands []Command
	Copies   []Copy

	write int32
	fails bool  // a test's fail point
	moved int64 // what RunHost copied, and how long it took
	took  int64
}

// Copy is one contiguous copy. Ranges never overlap.
type Copy struct {
	Dst, Src unsafe.Pointer
	Bytes    int64
}

// jobState is the committer's side of the cache. One job runs at a time: there is
// one writer per key (O-33), and a later write of a slot always follows an earlier.
type jobState struct {
	active bool
	id     uint64
	copies []Copy // of the running deferred job

	// The step that waits for the committer; at most one, because the next save
	// waits for it before it claims.
	step       uint64 // 0: none
	stepPage   int
	stepBytes  int64
	stepCopies []Copy
	stepTaken  bool
	stepLands  bool // its page lands first
	stepHeld   bool // and nobody has asked for it yet, see handOver
	stepDue    bool // a reader is to ask at its end
	missed     bool // such a step failed: deferred rows that it should have brought are not there
	stepQueued int64
	await      [1]Command
}

// NextJob gives the next write to carry out: a waiting step first, then deferred
// writes in queue order. It never blocks; false means that there is none, that one
// is running, or that the cache is shut down. Threaded mode only.
func (c *Cache) NextJob() (Job, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.takeJob()
}

// AwaitJob is NextJob that parks on the Committer queue; false means shut down.
func (c *Cache) AwaitJob() (Job, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed {
		if j, ok := c.takeJob(); ok {
			return j, true
		}
		c.wait(Committer, NoDeadline)
	}
	return Job{}, false
}

// takeJob claims a job: taking it out of the queue and marking it as copying is
// one critical section (O-10).
func (c *Cache) takeJob() (Job, bool) {
	s := &c.job
	if s.active || c.closed {
		return Job{}, false
	}
	j := Job{ID: s.id + 1, write: none}
	switch {
	case s.step != 0 && !s.stepTaken:
		s.stepTaken = true
		if !s.stepHeld {
			c.aged(s.stepQueued)
		}
		s.stepHeld, s.stepDue = false, false
		j.Kind, j.Step, j.Copies = StepWrite, s.step, s.stepCopies
		if s.stepLands {
			s.await[0] = Command{Kind: AwaitLanded, Page: s.stepPage}
			j.Commands = s.await[:]
		}
	case c.defs.qHead != none:
		w := c.defs.qHead
		c.aged(c.defs.writes[w].queued)
		c.defs.dequeue(w)
		c.defs.mustMove(w, writeCopying)
		s.copies = c.appendCopies(s.copies[:0], w)
		j.Kind, j.Write, j.Request, j.Copies, j.write = DeferredWrite, c.defs.writes[w].number, c.defs.writes[w].req, s.copies, w
	default:
		return Job{}, false
	}
	s.id++
	s.active = true
	j.fails = c.failPoint()
	return j, true
}

// appendCopies lists what a deferred write has to copy: the rows that still own
// their slot, in the order they were saved, neighbours together.
func (c *Cache) appendCopies(dst []Copy, w int32) []Copy {
	d := &c.defs
	for s := d.writes[w].strands; s != none; s = d.strands[s].next {
		k := c.keys[d.strands[s].key]
		most := max(c.cfg.CopyChunkBytes/k.rowBytes, 1) * k.rowBytes
		prev, prevSlot := int32(noRow), int64(0)
		for h := d.strands[s].head; h != noRow; h = k.store.meta[h].next {
			slot := k.store.meta[h].slot
			if slot == lost {
				prev = noRow
				continue
			}
			if prev != noRow && slot == prevSlot+1 && k.store.follows(prev, h) && dst[len(dst)-1].Bytes < most {
				dst[len(dst)-1].Bytes += k.rowBytes
			} else {
				dst = append(dst, Copy{Dst: k.mirror.Row(slot), Src: k.store.at(h), Bytes: k.rowBytes})
			}
			prev, prevSlot = h, slot
		}
	}
	return dst
}

// Run carries a job out: its commands through the Executor, then its copies. It
// holds no lock.
func (c *Cache) Run(j *Job) error {
	if len(j.Commands) > 0 {
		if err := c.cfg.Executor.Execute(j.Commands); err != nil {
			return err
		}
	}
	return c.RunHost(j)
}

// RunHost carries out the copies of a job on host memory. It holds no lock.
func (c *Cache) RunHost(j *Job) error {
	if j.fails {
		return errFailPoint
	}
	began := c.now()
	for i := range j.Copies {
		c.preempt()
		rows.Copy(j.Copies[i].Dst, j.Copies[i].Src, j.Copies[i].Bytes)
		j.moved += j.Copies[i].Bytes
	}
	j.took = c.since(began)
	return nil
}

var errFailPoint = status.New(status.Internal, "fail point")

// JobDone reports the outcome of a job. Everything that follows from it, bytes
// back, staging page back, rows committed or the failure recorded, happens before
// any waiter can look (O-27, O-28, O-29).
func (c *Cache) JobDone(j *Job, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.job.active || j.ID != c.job.id {
		return
	}
	c.finishJob(j, err)
}

func (c *Cache) finishJob(j *Job, err error) {
	s := &c.job
	s.active = false
	c.stats.Moves[MoveCommit].add(j.moved, j.took)
	switch j.Kind {
	case StepWrite:
		c.staged -= s.stepBytes
		if err != nil {
			c.leavePage(s.stepPage)
		}
		c.releasePage(s.stepPage, pageByWrite)
		if err == nil {
			c.written = j.Step
		} else {
			s.missed = s.stepLands
			c.fail(err, "step %d", j.Step)
		}
		s.step, s.stepTaken, s.stepBytes, s.stepLands = 0, false, 0, false
	case DeferredWrite:
		switch {
		case err != nil:
			c.defs.mustMove(j.write, writeFailed)
			c.fail(err, "deferred write %d of req %s", j.Write, c.nameOf(j.Request))
		case s.missed:
			// Its rows may be those that did not come, and nothing will be read again.
			c.defs.mustMove(j.write, writeFailed)
		default:
			c.defs.mustMove(j.write, writeWritten)
			c.commit(j.write)
			c.stats.DeferredWrites++
		}
		c.retire(j.write)
		c.zeroLate()
	}
	c.wake(Callers)
}

// drainInline carries out every queued write on this thread (eager mode). The
// lock is given up while rows are copied.
func (c *Cache) drainInline() error {
	for {
		j, ok := c.takeJob()
		if !ok {
			return c.fatal
		}
		var err error
		c.unlocked(func() { err = c.Run(&j) })
		c.finishJob(&j, err)
		if c.fatal != nil {
			return c.fatal
		}
	}
}

// dropPending forgets the step that did not begin, at shutdown. Deferred rows stay
// where they are: they will never be written, but planned reads may refer to them.
func (c *Cache) dropPending() {
	if s := &c.job; s.step != 0 && !s.stepTaken {
		c.staged -= s.stepBytes
		c.leavePage(s.stepPage)
		c.releasePage(s.stepPage, pageByWrite)
		s.step, s.stepBytes, s.stepLands, s.stepHeld, s.stepDue = 0, 0, false, false, false
	}
}

// handOver wakes the committer for the write of a step whose rows come from a device.
// It is not woken by the save: it could only wait for the device, as whoever wants the
// new rows does, and two threads that one event wakes are in each other's way. Nor by the
// one that reads them, who would wait for its processor. The write is wanted by the next
// save, so the next step begins with this, or, if somebody still reads then, the last
// reader ends with it; and a thread that needs the write by then does it itself (carryOut).
func (c *Cache) handOver() {
	if s := &c.job; s.stepHeld {
		s.stepHeld, s.stepDue, s.stepQueued = false, false, c.now()
		c.wake(Committer)
	}
}

// due hands a device step over unless somebody reads it.
func (c *Cache) due() {
	if s := &c.job; s.stepHeld {
		if s.stepDue = true; c.running == 0 || c.steps.has(s.step) {
			c.handOver()
		}
	}
}

// carryOut does the write of a device step on this thread, which would have to wait for
// it, unless somebody is at work. landed: it has seen the page land. Caller holds mu,
// which is given up meanwhile.
func (c *Cache) carryOut(step uint64, landed bool) {
	if s := &c.job; s.step != step || s.stepTaken || !s.stepLands {
		return
	}
	if j, ok := c.takeJob(); ok {
		if landed {
			j.Commands = nil
		}
		var err error
		c.unlocked(func() { err = c.Run(&j) })
		c.finishJob(&j, err)
		if c.defs.qHead != none {
			c.wake(Committer) // it may have looked meanwhile, and found a job running
		}
	}
}
