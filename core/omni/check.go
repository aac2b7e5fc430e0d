package omni

import (
	"fmt"
	"math/bits"

	"libprefixcache/core/status"
)

// Check verifies the structure of the cache: what the package comment lists as
// invariants, as far as it shows in the tables. It is slow, changes nothing, and
// reports the first thing that is wrong as an Internal error.
func (c *Cache) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freed {
		return nil
	}
	if err := c.check(); err != nil {
		return status.New(status.Internal, "check: %v", err)
	}
	return nil
}

func (c *Cache) check() error {
	if err := c.reqs.check(); err != nil {
		return err
	}
	refs := make([][]int32, len(c.keys)) // references to rows, counted again
	for i, k := range c.keys {
		refs[i] = make([]int32, len(k.store.meta))
	}
	if err := c.checkDeferred(refs); err != nil {
		return err
	}
	if err := c.checkSteps(refs); err != nil {
		return err
	}
	for id, k := range c.keys {
		if err := c.checkKey(k, refs[id]); err != nil {
			return fmt.Errorf("key %s: %w", k.name, err)
		}
	}
	if c.cfg.ZeroOnRelease {
		return c.checkZero()
	}
	return nil
}

// check verifies the hash index and the free list.
func (r *requests) check() error {
	used, live := 0, 0
	for _, v := range r.index {
		if v == 0 {
			continue
		}
		used++
		e := v - 1
		live += btoi(r.slab[e].live)
		if r.find(r.slab[e].num) != e {
			return fmt.Errorf("request %d is not found under its number", r.slab[e].num)
		}
	}
	if used != r.used || live != r.live {
		return fmt.Errorf("%d requests of which %d live, counted %d and %d", r.used, r.live, used, live)
	}
	free := 0
	for e := r.free; e != none; e = r.slab[e].next {
		free++
	}
	if free+used != len(r.slab) {
		return fmt.Errorf("%d request entries, but %d used and %d free", len(r.slab), used, free)
	}
	return nil
}

// checkDeferred verifies writes, their rows and the budget.
func (c *Cache) checkDeferred(refs [][]int32) error {
	d, staged, pending := &c.defs, c.batch.charged, 0
	if c.job.step != 0 {
		staged += c.job.stepBytes
	}
	// The age list holds exactly the writes that have not ended.
	prev := none
	for w := d.oldest; w != none; w = d.writes[w].newer {
		p := &d.writes[w]
		pending++
		staged += p.bytes
		if p.older != prev {
			return fmt.Errorf("write %d: older is %d, expected %d", p.number, p.older, prev)
		}
		prev = w
		if p.state < writeOpen || p.state > writeCopying {
			return fmt.Errorf("write %d is %v and among the pending ones", p.number, p.state)
		}
		e := c.reqs.find(p.req)
		if isOpen := e != none && c.reqs.slab[e].open == w; isOpen != (p.state == writeOpen) {
			return fmt.Errorf("write %d of req %d is %v, open write of its request: %v (O-18)", p.number, p.req, p.state, isOpen)
		}
		if err := c.checkWrite(w, refs); err != nil {
			return err
		}
	}
	if prev != d.newest || pending != d.pending {
		return fmt.Errorf("%d pending writes ending in %d, counted %d ending in %d", d.pending, d.newest, pending, prev)
	}
	for w := range d.writes { // failed writes keep their rows
		if d.writes[w].state == writeFailed {
			if err := c.checkWrite(int32(w), refs); err != nil {
				return err
			}
		}
	}
	if staged != c.staged {
		return fmt.Errorf("%d bytes staged, counted %d (O-37)", c.staged, staged)
	}
	prev = none
	for w := d.qHead; w != none; w = d.writes[w].qNext {
		if d.writes[w].state != writeQueued || d.writes[w].qPrev != prev {
			return fmt.Errorf("write %d is in the queue and %v (O-32)", d.writes[w].number, d.writes[w].state)
		}
		prev = w
	}
	if prev != d.qTail {
		return fmt.Errorf("queue ends in %d, expected %d", prev, d.qTail)
	}
	return nil
}

// checkWrite verifies the rows of one write against the words they stand for.
func (c *Cache) checkWrite(w int32, refs [][]int32) error {
	d, bytes := &c.defs, int64(0)
	p := &d.writes[w]
	for s := p.strands; s != none; s = d.strands[s].next {
		id := d.strands[s].key
		k := c.keys[id]
		for h := d.strands[s].head; h != noRow; h = k.store.meta[h].next {
			m := &k.store.meta[h]
			refs[id][h]++
			bytes += k.rowBytes
			if m.write != w {
				return fmt.Errorf("write %d has row %d of write entry %d", p.number, h, m.write)
			}
			if m.slot == lost {
				continue
			}
			if word := k.words[m.slot]; word.kind() != kindDeferred || word.owner() != p.number || k.rowOf[m.slot] != h {
				return fmt.Errorf("write %d, key %s: row %d is for slot %d, whose word says kind %d owner %d row %d",
					p.number, k.name, h, m.slot, word.kind(), word.owner(), k.rowOf[m.slot])
			}
		}
	}
	if p.state != writeFailed && bytes != p.bytes {
		return fmt.Errorf("write %d is charged %d bytes, has %d", p.number, p.bytes, bytes)
	}
	return nil
}

// checkSteps verifies contexts, their readers and the staging pages.
func (c *Cache) checkSteps(refs [][]int32) error {
	pages := make([]pageHolder, len(c.pages))
	if c.job.step != 0 {
		pages[c.job.stepPage] |= pageByWrite
	}
	// Counted from the contexts, to compare with what keys and pages say.
	readers, inUse := map[*key]int{}, 0
	ids := map[*key]int{}
	for id, k := range c.keys {
		ids[k] = id
	}
	for _, x := range c.steps.all {
		if x.id == 0 {
			continue
		}
		inUse++
		if x.page >= 0 {
			if pages[x.page]&pageByStep != 0 {
				return fmt.Errorf("staging page %d belongs to two steps (O-41)", x.page)
			}
			pages[x.page] |= pageByStep
		}
		for _, o := range x.overlays {
			refs[ids[x.keys[x.plans[o.plan].key].k]][o.handle]++
		}
		if x.plansClosed {
			continue
		}
		for i := range x.plans {
			p := &x.plans[i]
			k := x.keys[p.key].k
			readers[k]++
			for _, q := range x.pieces[p.pieces:p.piecesEnd] {
				for h := q.src; q.src != zeros && h < q.src+int32(q.n); h++ {
					refs[ids[k]][h]++
				}
			}
			for r := p.readers; r < p.readersEnd; r++ {
				if n := c.reassigned(k, &x.readers[r]); n > 0 {
					return fmt.Errorf("step %d, key %s: %d rows were claimed under a reader (O-26)", x.id, k.name, n)
				}
				if !c.listed(k, newLink(x.index, int(r))) {
					return fmt.Errorf("step %d, key %s: reader %d is in no list", x.id, k.name, r)
				}
			}
		}
	}
	if want := len(c.steps.open) + c.running; inUse != want {
		return fmt.Errorf("%d steps in use, expected %d", inUse, want)
	}
	for p := range pages {
		if pages[p] != c.pages[p] && !c.engine { // a save in progress holds one more
			return fmt.Errorf("staging page %d is held by %b, expected %b", p, c.pages[p], pages[p])
		}
	}
	for _, k := range c.keys {
		if k.readers != readers[k] {
			return fmt.Errorf("key %s has %d planned reads, counted %d", k.name, k.readers, readers[k])
		}
	}
	return nil
}

// listed reports whether a reader is in the list of its granule.
func (c *Cache) listed(k *key, want link) bool {
	for l := k.heads[c.reader(want).granule]; l != 0; l = c.reader(l).next {
		if l == want {
			return true
		}
	}
	return false
}

// checkKey verifies words and the row store.
func (c *Cache) checkKey(k *key, refs []int32) error {
	// Every row is free with no reference, or used with exactly those counted.
	free := 0
	for i, c := range k.store.chains {
		n := int32(0)
		for h := c.head; h != noRow; h = k.store.meta[h].next {
			if k.store.meta[h].refs != 0 || int(h>>k.store.shift) != i {
				return fmt.Errorf("row %d is free in segment %d and has %d references", h, i, k.store.meta[h].refs)
			}
			n++
		}
		if n != c.n || n > 0 && i < k.store.low {
			return fmt.Errorf("segment %d has %d free rows, counted %d; the lowest with one is %d", i, n, c.n, k.store.low)
		}
		free += int(n)
	}
	used := 0
	for h := range k.store.meta {
		if got, want := k.store.meta[h].refs, refs[int32(h)]; got != want {
			return fmt.Errorf("row %d has %d references, counted %d", h, got, want)
		}
		used += btoi(k.store.meta[h].refs > 0)
	}
	if free != k.store.free_ || free+used != len(k.store.meta) {
		return fmt.Errorf("%d rows, %d used, %d free, %d counted free", len(k.store.meta), used, k.store.free_, free)
	}
	// Words: a deferred one stands for a row that carries its slot.
	for s, w := range k.words {
		switch w.kind() {
		case kindNever:
			if w != 0 || !k.visible && w != 0 {
				return fmt.Errorf("slot %d was never claimed and has word %x (O-3)", s, uint64(w))
			}
		case kindStep:
			if w.owner() > c.last {
				return fmt.Errorf("slot %d belongs to step %d of %d", s, w.owner(), c.last)
			}
		case kindDeferred:
			if h := k.rowOf[s]; k.store.meta[h].slot != int64(s) || k.store.meta[h].refs == 0 {
				return fmt.Errorf("slot %d stands for row %d, which is for slot %d", s, h, k.store.meta[h].slot)
			}
		case kindSkipped:
			if w.owner() != 0 {
				return fmt.Errorf("slot %d is skipped and owned by %d (O-2)", s, w.owner())
			}
		}
	}
	// Reader lists and their bits agree.
	for g, l := range k.heads {
		if busy := k.busy[g/64]>>uint(g%64)&1 != 0; busy != (l != 0) {
			return fmt.Errorf("granule %d is marked as read: %v, its list begins with %x", g, busy, l)
		}
		for ; l != 0; l = c.reader(l).next {
			if r := c.reader(l); r.granule != int64(g) || bits.Len64(r.mask) > int(min(granuleRows, c.cfg.BlockSize)) {
				return fmt.Errorf("granule %d lists a reader of granule %d, mask %x", g, r.granule, r.mask)
			}
		}
	}
	return nil
}
