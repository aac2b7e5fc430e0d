package omni

import (
	"fmt"

	"libprefixcache/core/rows"
)

// With Config.ZeroOnRelease nothing of a row is left in memory once it cannot be read
// any more (the promise, word for word, is in prefixcache.h):
//
//	mirror row      when a claim takes its slot without writing it at once: the claim of
//	                a step without the key, or of a deferred chunk
//	row of a store  when its last holder lets go
//	staging page    when its step is consumed and written
//	all of it       before the memory goes back to the system
//
// A step that carries an immediate key writes over the former row, which is as good.

// pageUse is what has to be cleared on a staging page.
type pageUse struct {
	rows  int64
	keys  []KeyID
	bytes int64 // of the page of a device step
}

// lateRow is a mirror row that could not be cleared when its slot was claimed: the
// job that runs was still about to write to it.
type lateRow struct {
	k    *key
	slot int64
}

// zeroMirror clears the row of a slot that is being claimed. w is its word before.
func (c *Cache) zeroMirror(k *key, slot int64, w word) {
	switch w.kind() {
	case kindStep: // every step that claimed before is written
		rows.Zero(k.mirror.Row(slot), k.rowBytes)
	case kindDeferred: // cleared when that was claimed, unless its write is under way
		if m := &k.store.meta[k.rowOf[slot]]; c.defs.writes[m.write].state == writeCopying {
			c.late = append(c.late, lateRow{k, slot})
		}
	}
}

// zeroLate clears what zeroMirror could not, when the job has ended.
func (c *Cache) zeroLate() {
	for _, l := range c.late {
		if l.k.words[l.slot].kind() != kindStep {
			rows.Zero(l.k.mirror.Row(l.slot), l.k.rowBytes)
		}
	}
	c.late = c.late[:0]
}

// notePage remembers what a step puts on its staging page.
func (c *Cache) notePage(a *SaveArgs) {
	if !c.cfg.ZeroOnRelease {
		return
	}
	u := &c.pageUse[c.batch.page]
	u.rows, u.keys = c.batch.n, u.keys[:0]
	for i := range a.Rows {
		u.keys = append(u.keys, a.Rows[i].Key)
	}
}

// zeroPage clears a staging page that nobody holds any more.
func (c *Cache) zeroPage(p int) {
	u := &c.pageUse[p]
	for _, id := range u.keys {
		if k := c.keys[id]; k.landing != nil {
			rows.Zero(k.page(p, c.cfg.StagingCapacity), min(u.rows, c.cfg.StagingCapacity)*k.rowBytes)
		}
	}
	if m := c.devicePages[p].mem; m != nil {
		rows.Zero(m.Base(), min(u.bytes, m.Size()))
	}
	*u = pageUse{keys: u.keys[:0]}
}

// leavePage is for a step whose copy from a device nobody has seen land: it may be under
// way, so the page is not touched. Its memory is cleared when it goes.
func (c *Cache) leavePage(p int) { c.pageUse[p].bytes = 0 }

// wipe clears the memory of a key before it goes back to the system.
func (k *key) wipe() {
	if k.mirror != nil {
		k.mirror.Memory().Wipe()
	}
	if k.landing != nil {
		k.landing.Wipe()
	}
	for _, m := range k.store.segs {
		m.Wipe()
	}
}

// checkZero looks at the memory: nothing of a released row may be left. What was never
// written is not even read: that would make memory present.
func (c *Cache) checkZero() error {
	if len(c.late) > 0 && !c.job.active {
		return fmt.Errorf("%d rows wait to be cleared by a job, and none runs", len(c.late))
	}
	late := map[lateRow]bool{}
	for _, l := range c.late {
		late[l] = true
	}
	for id, k := range c.keys {
		mirror := rows.NewScan(k.mirror.Memory())
		for s, w := range k.words {
			switch w.kind() {
			case kindStep: // readable, or about to be
				continue
			case kindDeferred:
				// A write that failed may have copied some of its rows: they belong to the
				// slot's tenant still, and go with the memory.
				if st := c.defs.writes[k.store.meta[k.rowOf[s]].write].state; st == writeCopying || st == writeFailed {
					continue
				}
			}
			if !late[lateRow{k, int64(s)}] && !mirror.Zero(int64(s)*k.rowBytes, k.rowBytes) {
				return fmt.Errorf("key %s: slot %d holds a row that was released", k.name, s)
			}
		}
		for i, m := range k.store.segs {
			segment, first := rows.NewScan(m), i<<k.store.shift
			for h := range 1 << k.store.shift {
				if k.store.meta[first+h].refs == 0 && !segment.Zero(int64(h)*k.rowBytes, k.rowBytes) {
					return fmt.Errorf("key %s: free row %d is not zero", k.name, first+h)
				}
			}
		}
		if k.landing == nil {
			continue
		}
		landing, page := rows.NewScan(k.landing), c.cfg.StagingCapacity*k.rowBytes
		for p, holder := range c.pages {
			if holder == 0 && !landing.Zero(int64(p)*page, page) {
				return fmt.Errorf("key %d: free staging page %d is not zero", id, p)
			}
		}
	}
	for p, holder := range c.pages {
		// After a failed write or a shutdown a copy that nobody waited for may still land;
		// no step uses the page any more, and its memory is cleared when it goes.
		if m := c.devicePages[p].mem; holder == 0 && m != nil && c.fatal == nil && !c.closed && !rows.NewScan(m).Zero(0, m.Size()) {
			return fmt.Errorf("free device page %d is not zero", p)
		}
	}
	return nil
}
