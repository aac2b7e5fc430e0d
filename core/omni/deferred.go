package omni

import "libprefixcache/core/status"

// writeState is where a deferred write is in its life. It moves one step to the
// right at a time, or to failed; written and failed are final (O-8, O-13).
//
//	open ──▶ queued ──▶ copying ──▶ written
//	                       └──────▶ failed
//
// open is PENDING of the specification. Host rows need no stage between copying
// and written: the rows are on the host from the start.
type writeState uint8

const (
	writeFree writeState = iota
	writeOpen
	writeQueued
	writeCopying
	writeWritten
	writeFailed
)

var writeStateNames = [...]string{"FREE", "PENDING", "QUEUED", "COPYING", "WRITTEN", "FAILED"}

func (s writeState) String() string { return writeStateNames[s] }

// write is the deferred rows of one request: one strand of rows for each key. It
// takes rows in every save (O-11: only while open) and is written when the request
// finishes or memory presses.
type write struct {
	number uint64 // 1, 2, 3, …: owner of its deferred words
	req    uint64
	bytes  int64 // its rows, charged to the budget until it ends (O-37)
	state  writeState

	strands      int32 // first strand
	queued       int64 // when it was, by the clock; threaded mode only
	older, newer int32 // all writes that have not ended, by age
	qPrev, qNext int32 // queue
}

// strand is a write's rows of one key, in the order they were saved.
type strand struct {
	key        KeyID
	head, tail int32 // rows in key.store
	next       int32 // strand of the same write
}

// deferredTable holds the deferred writes that have not ended, as slabs.
type deferredTable struct {
	writes  []write
	strands []strand

	freeWrite, freeStrand int32
	last                  uint64 // last write number given out
	oldest, newest        int32
	qHead, qTail          int32
	pending               int
}

func (d *deferredTable) init() {
	d.freeWrite, d.freeStrand = none, none
	d.oldest, d.newest, d.qHead, d.qTail = none, none, none, none
}

// move changes a write's state, or refuses a step the life does not have (O-8).
func (d *deferredTable) move(w int32, to writeState) error {
	from := d.writes[w].state
	if ok := to == from+1 && from >= writeFree && to <= writeWritten || to == writeFailed && from == writeCopying; !ok {
		return status.New(status.Internal, "deferred write %d: illegal transition %v -> %v", d.writes[w].number, from, to)
	}
	d.writes[w].state = to
	return nil
}

// mustMove is move where a refusal is a defect of ours.
func (d *deferredTable) mustMove(w int32, to writeState) {
	if err := d.move(w, to); err != nil {
		panic(err)
	}
}

// openWrite returns the open write of a request entry, a new one if it has none
// (O-18). Rows that the old one lost do not matter: the loss is marked on the row
// and not on the slot, so a slot that comes back is simply another row (O-19).
func (c *Cache) openWrite(entry int32) int32 {
	r := &c.reqs.slab[entry]
	if r.open != none {
		return r.open
	}
	d := &c.defs
	w := d.freeWrite
	if w == none {
		d.writes = append(d.writes, write{})
		w = int32(len(d.writes) - 1)
	} else {
		d.freeWrite = d.writes[w].qNext
	}
	// Registration time is not refreshed by later chunks: the budget takes the oldest.
	d.last++
	d.writes[w] = write{number: d.last, req: r.num, strands: none, older: d.newest, newer: none, qPrev: none, qNext: none}
	d.mustMove(w, writeOpen)
	if d.newest != none {
		d.writes[d.newest].newer = w
	} else {
		d.oldest = w
	}
	d.newest = w
	d.pending++
	r.open = w
	return w
}

// strandOf returns the write's strand for a key, a new one if it has none.
func (d *deferredTable) strandOf(w int32, id KeyID) int32 {
	for s := d.writes[w].strands; s != none; s = d.strands[s].next {
		if d.strands[s].key == id {
			return s
		}
	}
	s := d.freeStrand
	if s == none {
		d.strands = append(d.strands, strand{})
		s = int32(len(d.strands) - 1)
	} else {
		d.freeStrand = d.strands[s].next
	}
	d.strands[s] = strand{key: id, head: noRow, tail: noRow, next: d.writes[w].strands}
	d.writes[w].strands = s
	return s
}

// enqueue closes a write and queues it, at the head when somebody waits for it.
// A write is never queued twice, nor after its copy began (O-32).
func (c *Cache) enqueue(w int32, head bool) {
	d := &c.defs
	p := &d.writes[w]
	switch p.state {
	case writeOpen:
		// The request's next chunk opens another write (O-36). The request may be gone,
		// or its number already somebody else's.
		if e := c.reqs.find(p.req); e != none && c.reqs.slab[e].open == w {
			c.reqs.slab[e].open = none
		}
		d.mustMove(w, writeQueued)
		if c.cfg.Threaded {
			p.queued = c.now()
		}
	case writeQueued:
		if !head || d.qHead == w {
			return
		}
		d.dequeue(w)
	default:
		return
	}
	if head {
		p.qPrev, p.qNext = none, d.qHead
		if d.qHead != none {
			d.writes[d.qHead].qPrev = w
		} else {
			d.qTail = w
		}
		d.qHead = w
		return
	}
	p.qPrev, p.qNext = d.qTail, none
	if d.qTail != none {
		d.writes[d.qTail].qNext = w
	} else {
		d.qHead = w
	}
	d.qTail = w
}

// dequeue takes a write out of the queue.
func (d *deferredTable) dequeue(w int32) {
	p := &d.writes[w]
	if p.qPrev != none {
		d.writes[p.qPrev].qNext = p.qNext
	} else {
		d.qHead = p.qNext
	}
	if p.qNext != none {
		d.writes[p.qNext].qPrev = p.qPrev
	} else {
		d.qTail = p.qPrev
	}
	p.qPrev, p.qNext = none, none
}

// retire takes a write that ended out of the table of pending ones and gives its
// bytes back, once (O-37). The rows of a failed write stay where they are: their
// words are in transit for good (O-7), and nothing will be read again (O-42).
func (c *Cache) retire(w int32) {
	d := &c.defs
	p := &d.writes[w]
	if p.older != none {
		d.writes[p.older].newer = p.newer
	} else {
		d.oldest = p.newer
	}
	if p.newer != none {
		d.writes[p.newer].older = p.older
	} else {
		d.newest = p.older
	}
	d.pending--
	c.staged -= p.bytes
	p.bytes = 0
	if p.state == writeFailed {
		return
	}
	for s := p.strands; s != none; {
		t := &d.strands[s]
		next := t.next
		t.next, d.freeStrand = d.freeStrand, s
		s = next
	}
	*p = write{qNext: d.freeWrite, strands: none}
	d.freeWrite = w
}

// commit turns the words of a written write's rows into committed ones, where it
// still owns them (O-6), and lets its rows go. Rows stay while a planned read
// refers to them.
func (c *Cache) commit(w int32) {
	d := &c.defs
	for s := d.writes[w].strands; s != none; s = d.strands[s].next {
		k := c.keys[d.strands[s].key]
		for h := d.strands[s].head; h != noRow; h = k.store.meta[h].next {
			if m := &k.store.meta[h]; m.slot != lost {
				k.words[m.slot] = k.words[m.slot].committed()
			}
		}
		k.store.dropChain(d.strands[s].head)
	}
}
