package omni

import (
	"unsafe"

	"libprefixcache/core/rows"
)

func copyRow(dst, src unsafe.Pointer, n int64) { rows.Copy(dst, src, n) }

// Claims make a step the owner of its slots, for every visible key at once. All of
// them run inside Save's one critical section, and nothing here can fail.

// claimStep claims slots of an immediate key for a step (O-4). A slot listed twice
// is claimed once; of its rows the last in batch order wins, because rows are
// moved in that order (O-20). It reports whether there was one.
func (c *Cache) claimStep(k *key, slots []int64, step uint64) (repeated bool) {
	b := base(kindStep, step)
	words := k.words
	if k.readers == 0 {
		for _, s := range slots {
			if w := words[s]; w&^versionMask != b {
				words[s] = w.claimed(b)
			} else {
				repeated = true
			}
		}
		return repeated
	}
	for _, s := range slots {
		w := words[s]
		if w&^versionMask == b {
			repeated = true
			continue
		}
		if c.read(k, s) {
			c.preserve(k, s)
		}
		words[s] = w.claimed(b)
	}
	return repeated
}

// claimSkipped claims slots of a key that this step does not carry: their new
// tenant has no row, so a hit must read zeros (an error for hidden) and never the
// former tenant's row (S-7), and a row on its way here never lands (S-17).
func (c *Cache) claimSkipped(k *key, slots []int64) {
	b := base(kindSkipped, 0)
	for _, s := range slots {
		w := k.words[s]
		if w == 0 { // never claimed: reads as absent as it is
			continue
		}
		if k.readers > 0 && c.read(k, s) {
			c.preserve(k, s)
		}
		if c.cfg.ZeroOnRelease {
			c.zeroMirror(k, s, w)
		}
		c.displace(k, s, w, none)
		k.words[s] = w.claimed(b)
	}
}

// claimDeferred takes rows for one request's chunk of a deferred key, claims their
// slots for the write, and leaves the rows' numbers in handles for the copy.
func (c *Cache) claimDeferred(k *key, id KeyID, w int32, slots []int64, step uint64, handles []int32) []int32 {
	d := &c.defs
	st := d.strandOf(w, id)
	b := base(kindDeferred, d.writes[w].number)
	meta := k.store.meta
	for _, s := range slots {
		old := k.words[s]
		if k.readers > 0 && c.read(k, s) {
			c.preserve(k, s)
		}
		if c.cfg.ZeroOnRelease {
			c.zeroMirror(k, s, old)
		}
		again := false // listed twice in this very chunk: one claim, the last row wins
		if old.kind() == kindDeferred {
			m := &meta[k.rowOf[s]]
			again = m.write == w && m.stamp == uint32(step)
			c.displace(k, s, old, w)
		}
		h := k.store.take()
		meta[h].slot, meta[h].write, meta[h].stamp = s, w, uint32(step)
		t := &d.strands[st]
		if t.tail == noRow {
			t.head = h
		} else {
			meta[t.tail].next = h
		}
		t.tail = h
		k.rowOf[s] = h
		if again {
			k.words[s] = b | old&versionMask
		} else {
			k.words[s] = old.claimed(b)
		}
		handles = append(handles, h)
	}
	d.writes[w].bytes += int64(len(slots)) * k.rowBytes
	return handles
}

// displace marks the deferred row that holds a slot as lost, if there is one: the
// write it belongs to will leave it out (O-5, R-6), whatever state that write is in.
// A read that was planned on the row keeps it. A write that claims its own slot again
// supersedes its row and displaces nobody.
func (c *Cache) displace(k *key, slot int64, w word, by int32) {
	if w.kind() != kindDeferred {
		return
	}
	m := &k.store.meta[k.rowOf[slot]]
	m.slot = lost
	if m.write != by {
		c.stats.DisplacedRows++
	}
}
