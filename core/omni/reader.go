package omni

import "math/bits"

// A planned read looks at mirror rows later, without the lock, so whoever claims
// such a slot meanwhile must first copy the row aside (9.4 of the specification).
// To find the readers of a slot without looking at every plan, each plan enters
// itself into a list per granule: up to granuleRows consecutive slots of a block.
// A claim looks at one bit per slot: the bits of all granules stay in the cache, and
// the heads of the lists would not (S-12).

// granuleRows is the number of slots that one mask covers. Blocks are cut into
// granules separately, so a granule never spans two blocks.
const granuleRows = 64

// link names a reader: step context + 1 in the upper half, index in its readers in
// the lower. 0 ends a list.
type link uint64

func newLink(ctx int32, i int) link { return link(ctx+1)<<32 | link(uint32(i)) }

// reader is one plan's interest in the rows of one granule.
type reader struct {
	mask       uint64 // rows that are still to be read from the mirror
	versions   uint32 // sum of their versions when planned: a guard
	plan       int32  // index in stepCtx.plans
	row        int64  // row of the plan's span that bit 0 stands for
	granule    int64
	next, prev link
}

// overlay is a row that was copied aside: it replaces one row of a plan's result.
type overlay struct {
	plan   int32
	handle int32 // row in the key's store
	row    int64 // row of the plan's span
}

func (c *Cache) reader(l link) *reader {
	return &c.steps.all[int32(l>>32)-1].readers[uint32(l)]
}

// addReader enters a plan into the list of a granule.
func (c *Cache) addReader(x *stepCtx, k *key, r reader) {
	l := newLink(x.index, len(x.readers))
	r.next, r.prev = k.heads[r.granule], 0
	if r.next != 0 {
		c.reader(r.next).prev = l
	}
	k.heads[r.granule] = l
	k.busy[r.granule/64] |= 1 << uint(r.granule%64)
	x.readers = append(x.readers, r)
}

// dropReader takes reader i of a context out of its list.
func (c *Cache) dropReader(x *stepCtx, k *key, i int) {
	r := &x.readers[i]
	if r.next != 0 {
		c.reader(r.next).prev = r.prev
	}
	if r.prev != 0 {
		c.reader(r.prev).next = r.next
	} else if k.heads[r.granule] = r.next; r.next == 0 {
		k.busy[r.granule/64] &^= 1 << uint(r.granule%64)
	}
	r.next, r.prev = 0, 0
}

// read reports whether a planned read may want the row of a slot.
func (c *Cache) read(k *key, slot int64) bool {
	g, _ := c.granuleOf(slot)
	return k.busy[g/64]>>uint(g%64)&1 != 0
}

// granuleOf is the granule of a slot and the slot's bit in it.
func (c *Cache) granuleOf(slot int64) (granule int64, bit uint) {
	var block, off int64
	if c.blockBits >= 0 {
		block, off = slot>>c.blockBits, slot&(c.cfg.BlockSize-1)
	} else {
		block = slot / c.cfg.BlockSize
		off = slot - block*c.cfg.BlockSize
	}
	return block*c.perBlock + off/granuleRows, uint(off % granuleRows)
}

// preserve copies the row of a slot aside for every reader that still needs it,
// once for all of them. It runs immediately before a claim changes the word, so
// the mirror still has the former tenant's row: the barrier of Save has seen every
// earlier step written. Caller holds mu and has reserved a row in the store.
func (c *Cache) preserve(k *key, slot int64) {
	g, bit := c.granuleOf(slot)
	handle := int32(noRow)
	for l := k.heads[g]; l != 0; {
		r := c.reader(l)
		x := c.steps.all[int32(l>>32)-1]
		l = r.next
		if r.mask>>bit&1 == 0 {
			continue
		}
		if handle == noRow {
			handle = k.store.take()
			copyRow(k.store.at(handle), k.mirror.Row(slot), k.rowBytes)
			c.stats.PreservedBytes += uint64(k.rowBytes)
		} else {
			k.store.meta[handle].refs++
		}
		r.mask &^= 1 << bit
		r.versions -= k.words[slot].version()
		x.overlays = append(x.overlays, overlay{plan: r.plan, handle: handle, row: r.row + int64(bit)})
	}
}

// reassigned counts the rows of a reader that were claimed without having been
// preserved. It is always 0; the check stays because the alternative to finding a
// defect here is another tenant's row in a result (O-26, R-21).
func (c *Cache) reassigned(k *key, r *reader) int {
	if r.mask == 0 {
		return 0
	}
	first := c.firstSlot(r.granule)
	var sum uint32
	for m := r.mask; m != 0; m &= m - 1 {
		sum += k.words[first+int64(bits.TrailingZeros64(m))].version()
	}
	if sum != r.versions {
		return bits.OnesCount64(r.mask)
	}
	return 0
}

// firstSlot is the slot of bit 0 of a granule.
func (c *Cache) firstSlot(granule int64) int64 {
	block := granule / c.perBlock
	return block*c.cfg.BlockSize + granule%c.perBlock*granuleRows
}
