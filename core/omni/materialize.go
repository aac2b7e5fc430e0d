package omni

import (
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Read is one destination of Materialize: requests First … First+Count-1 of the
// step's batch, in the layout of results. For a key that Save was given a Dst for,
// that is the part of that buffer where request First begins, and only hit rows
// are filled in; otherwise new rows are too. With Key NoKey nothing is filled, and
// the call only reports what is wrong with these requests.
type Read struct {
	Key          KeyID
	First, Count int64
	Dst          unsafe.Pointer
	DstBytes     int64 // exactly the bytes of the layout
}

// Materialize consumes a step and fills the reads. The id is used up even when it
// fails (O-22), except when there is no such step. Any thread; steps in any order
// (O-23).
func (c *Cache) Materialize(step uint64, reads []Read) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, err := c.steps.pop(step)
	if err != nil {
		return err
	}
	c.stats.StepsMaterialized++ // used up, whatever becomes of the reads
	c.running++
	defer c.endRead(x)
	if c.fatal != nil {
		return c.fatal
	}
	if err := c.checkReads(x, reads); err != nil {
		return err
	}
	// The device first: its event wakes this thread together with the committer, which
	// then has often written the step before this thread asks for that.
	if x.base != nil {
		if err := c.awaitLanded(x, reads); err != nil {
			return err
		}
	}
	// A same-step hit reads rows that the committer may not have written yet; all
	// other sources are there. "Written up to step N" is all there is to wait for.
	gathers := c.gathers(x, reads)
	if gathers && x.wait > c.written {
		if err := c.awaitWritten(x); err != nil {
			return err
		}
	}
	kept := x.keepsRows()
	switch {
	case kept && gathers:
		// The page goes back before the longer part: hit readers never hold one (O-40).
		c.mergeNew(x, reads)
		c.givePageBack(x)
		fallthrough
	case gathers:
		x.pinSegments()
		var bytes, took int64
		c.unlocked(func() {
			began := c.clock(bytesOf(reads))
			bytes = c.gather(x, reads)
			took = c.since(began)
		})
		c.stats.GatheredBytes += uint64(bytes)
		c.stats.Moves[MoveGather].add(bytes, took)
		if err := c.guard(x); err != nil {
			return err
		}
		// Closed before the overlay: from here on no claim adds to the list, which the
		// overlay then reads without the lock.
		c.closePlans(x)
		x.plansClosed = true
		if len(x.overlays) > 0 {
			x.pinSegments()
			c.unlocked(func() { c.overlay(x, reads) })
		}
	case kept:
		c.mergeNew(x, reads)
	}
	return nil
}

// endRead frees the context in every way out of Materialize.
func (c *Cache) endRead(x *stepCtx) {
	if c.mu.broken {
		return // by another call: its lists may be half-changed, and nobody looks any more
	}
	if !x.plansClosed {
		c.closePlans(x)
	}
	c.dropOverlays(x)
	c.givePageBack(x)
	c.steps.put(x)
	if c.running--; c.running == 0 && c.job.stepDue {
		c.handOver()
	}
	if c.closed {
		c.wake(Callers) // Shutdown waits for this
	}
}

// checkReads checks the reads against the step, and raises what is wrong with the
// requests they name.
func (c *Cache) checkReads(x *stepCtx, reads []Read) error {
	batch := int64(len(x.starts) - 1)
	for i := range reads {
		r := &reads[i]
		if r.First < 0 || r.Count < 0 || r.First > batch || r.Count > batch-r.First {
			return status.New(status.Unmatch, "reads[%d] names requests %d to %d, outside the save snapshot of %d requests (step %d)",
				i, r.First, r.First+r.Count-1, batch, x.id)
		}
		// Whatever the key: a hit without its hidden rows means that scheduler and
		// cache have diverged, and nothing of this request may be used.
		for j := range x.hits {
			h := &x.hits[j]
			if h.hiddenAbsent > 0 && int64(h.batch) >= r.First && int64(h.batch) < r.First+r.Count {
				why := ""
				if h.hiddenAbsent == h.tokens {
					why = "no source, "
				}
				return status.New(status.Unmatch, "hit span for req %s key=%s is not readable (%s%d absent slots of %d)",
					c.nameOf(h.req), HiddenKey, why, h.hiddenAbsent, h.tokens)
			}
		}
		if r.Key == NoKey {
			continue
		}
		k, err := c.key(r.Key)
		if err != nil {
			return err
		}
		if x.key(r.Key) == nil {
			return status.New(status.InvalidArgument, "reads[%d] is key %s, which step %d does not have", i, k.name, x.id)
		}
		want := (x.offs[r.First+r.Count] - x.offs[r.First]) * k.rowBytes
		switch {
		case r.DstBytes < want:
			return status.New(status.BufferTooSmall, "dst_bytes of reads[%d], key %s, is %d, expected %d", i, k.name, r.DstBytes, want)
		case r.DstBytes > want:
			return status.New(status.InvalidArgument, "dst_bytes of reads[%d], key %s, is %d, expected %d", i, k.name, r.DstBytes, want)
		case want > 0 && r.Dst == nil:
			return status.New(status.InvalidArgument, "dst of reads[%d], key %s, is null, expected %d bytes", i, k.name, want)
		case beyond(r.Dst, want):
			return status.New(status.InvalidArgument, "dst of reads[%d], key %s, is %#x, expected an address with %d bytes behind it",
				i, k.name, uintptr(r.Dst), want)
		}
	}
	return c.checkReadOverlap(reads)
}

// key finds a key that the step emits.
func (x *stepCtx) key(id KeyID) *ctxKey {
	for i := range x.keys {
		if x.keys[i].id == id {
			return &x.keys[i]
		}
	}
	return nil
}

// keepsRows reports whether new rows are still on the staging page.
func (x *stepCtx) keepsRows() bool {
	for i := range x.keys {
		if x.keys[i].kept {
			return true
		}
	}
	return false
}

// pinSegments notes where rows outside the mirror are: segments never move, but the
// list of them may grow once the lock is given up.
func (x *stepCtx) pinSegments() {
	for i := range x.keys {
		x.keys[i].segs = x.keys[i].k.store.segs
	}
}

// gathers reports whether any read has hit rows to fill in.
func (c *Cache) gathers(x *stepCtx, reads []Read) bool {
	if len(x.plans) == 0 {
		return false
	}
	for i := range reads {
		if reads[i].Key == NoKey {
			continue
		}
		xk := x.key(reads[i].Key)
		for p := xk.plans; p < xk.plansEnd; p++ {
			if reads[i].covers(&x.plans[p]) {
				return true
			}
		}
	}
	return false
}

func (r *Read) covers(p *plan) bool {
	return int64(p.batch) >= r.First && int64(p.batch) < r.First+r.Count
}

// awaitWritten waits until the rows that plans read from the mirror are there.
func (c *Cache) awaitWritten(x *stepCtx) error {
	defer c.waited(WaitRead, c.now())
	end := c.deadline()
	c.carryOut(x.wait, x.landed)
	for x.wait > c.written {
		if c.fatal != nil {
			return c.failedBefore("step", x.wait)
		}
		if c.closed && !(c.job.step == x.wait && c.job.stepTaken) { // nobody will write it
			return errShutDown("materialize")
		}
		if !c.wait(Callers, end) && x.wait > c.written && c.fatal == nil {
			return status.New(status.Unmatch, "step %d (JOIN_NEXT_STEP) did not reach done within %v (state=%v, in_flight_tasks=%d)",
				x.wait, c.timeout(), c.stepState(), c.pendingWrites())
		}
	}
	return nil
}

// mergeNew is copyNew with what it cost.
func (c *Cache) mergeNew(x *stepCtx, reads []Read) {
	var bytes, took int64
	c.unlocked(func() {
		began := c.clock(bytesOf(reads))
		bytes = c.copyNew(x, reads)
		took = c.since(began)
	})
	c.stats.Moves[MoveMerge].add(bytes, took)
}

// bytesOf is how much the reads can give out at most.
func bytesOf(reads []Read) (n int64) {
	for i := range reads {
		n += reads[i].DstBytes
	}
	return n
}

// copyNew fills in new rows from the staging page. No lock is held.
func (c *Cache) copyNew(x *stepCtx, reads []Read) (bytes int64) {
	x.moves.Begin(c.crew, bytesOf(reads))
	for i := range reads {
		r := &reads[i]
		if r.Key == NoKey {
			continue
		}
		xk := x.key(r.Key)
		if !xk.kept {
			continue
		}
		k := xk.k
		page := c.newRows(x, xk)
		// One copy for requests between hits: their rows are neighbours on both sides.
		for b, end := r.First, r.First+r.Count; b < end; {
			e := b + 1
			for e < end && x.newRow(e) == x.offs[e] {
				e++
			}
			row := x.starts[b]
			dst := unsafe.Add(r.Dst, (x.newRow(b)-x.offs[r.First])*k.rowBytes)
			n := x.starts[e] - row
			x.moves.CopyRows(dst, k.rowBytes, unsafe.Add(page, row*k.rowBytes), k.rowBytes, k.rowBytes, n)
			bytes += n * k.rowBytes
			b = e
		}
	}
	x.moves.End()
	return bytes
}

// gather fills in hit rows, straight into the result. No lock is held: a row that
// is claimed and overwritten meanwhile has been copied aside before, and overlay
// repairs it.
func (c *Cache) gather(x *stepCtx, reads []Read) (bytes int64) {
	x.moves.Begin(c.crew, bytesOf(reads))
	for i := range reads {
		r := &reads[i]
		if r.Key == NoKey {
			continue
		}
		xk := x.key(r.Key)
		k := xk.k
		for p := xk.plans; p < xk.plansEnd; p++ {
			pl := &x.plans[p]
			if !r.covers(pl) {
				continue
			}
			dst := unsafe.Add(r.Dst, (x.offs[pl.batch]-x.offs[r.First])*k.rowBytes)
			// A simulator gets a say between spans; otherwise the kernel sees them all,
			// to prefetch across them.
			if spans := x.spans[pl.spans:pl.spansEnd]; c.cfg.Preempt == nil {
				x.moves.GatherSpans(k.mirror, dst, spans)
			} else {
				for i := range spans {
					c.preempt()
					k.mirror.GatherSpans(dst, spans[i:i+1])
				}
			}
			for _, q := range x.pieces[pl.pieces:pl.piecesEnd] {
				c.preempt()
				to := unsafe.Add(dst, q.row*k.rowBytes)
				if q.src == zeros {
					rows.Zero(to, q.n*k.rowBytes)
				} else {
					rows.Copy(to, k.store.in(xk.segs, q.src), q.n*k.rowBytes)
				}
			}
			bytes += pl.rows * k.rowBytes
			pl.given = true
		}
	}
	x.moves.End()
	return bytes
}

// guard checks that no row was claimed under a reader without being preserved.
func (c *Cache) guard(x *stepCtx) error {
	for i := range x.plans {
		p := &x.plans[i]
		k := x.keys[p.key].k
		for r := p.readers; r < p.readersEnd; r++ {
			if n := c.reassigned(k, &x.readers[r]); n > 0 {
				return status.New(status.Unmatch, "%d hit slots reassigned before this delayed read (step %d, key=%s)", n, x.id, k.name)
			}
		}
	}
	return nil
}

// overlay replaces rows that were copied aside. The plans are closed, so the list
// is final, and no lock is needed.
func (c *Cache) overlay(x *stepCtx, reads []Read) {
	for _, o := range x.overlays {
		pl := &x.plans[o.plan]
		xk := &x.keys[pl.key]
		k := xk.k
		for i := range reads {
			if r := &reads[i]; r.Key == xk.id && r.covers(pl) {
				row := x.offs[pl.batch] - x.offs[r.First] + o.row
				copyRow(unsafe.Add(r.Dst, row*k.rowBytes), k.store.in(xk.segs, o.handle), k.rowBytes)
			}
		}
	}
}
