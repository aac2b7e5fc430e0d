package prefix

import (
	"slices"

	"libprefixcache/core/status"
)

// fitsNow says whether a demand can be met from the free lists alone (C-40).
func (m *Manager) fitsNow(d *Demand) bool {
	return d[BasePages] <= m.base.free.n && d[DraftPages] <= m.draft.free.n &&
		d[RecurrentSlots] <= m.recurrent.free.n && d[PartialSlots] <= m.partial.free.n
}

// evictFor evicts records, next victim first, until the demand fits in all four
// pools at once: the shortest prefix of the order that does (C-41). spare, if
// not -1, comes last. The caller knows that the demand is feasible.
func (m *Manager) evictFor(d Demand, spare int32) {
	for !m.fitsNow(&d) {
		victim := m.order.First()
		if victim == spare {
			if next := m.order.After(victim); next >= 0 {
				victim = next
			}
		}
		if m.cfg.ShortenVictims {
			if need := d[BasePages] - m.base.free.n; need > 0 && m.shorten(victim, need) {
				continue
			}
		}
		m.evict(victim)
	}
}

// evict removes one record and gives back what only it kept (C-65). Nothing is
// scanned: the part of the index that dies hangs together at the record's end.
func (m *Manager) evict(i int32) {
	r := &m.records[i]
	n := &m.counters
	// The mark goes first: everything below looks at what marks are left.
	m.order.Remove(i)
	m.unmark(i)
	realm := m.nodes[r.node].realm
	m.dropSlot(RecurrentSlots, realm, r.recurrent, 0, 1)
	m.dropSlot(PartialSlots, realm, r.partial, 0, 1)
	if r.tail >= 0 {
		m.putShadowCell(r.tail)
	}
	if r.draftLast >= 0 {
		n.Reclaimed[DraftPages] += uint64(m.dropDraft(i))
	}
	end := r.node
	n.Reclaimed[BasePages] += uint64(m.trim(end))
	n.EvictedRecords++
	m.byID.remove(m.records, i)
	r.live = false
	m.recordCount--
	m.recordFree = append(m.recordFree, i)
}

// goneCells are the first n cells at a list that is given back with them, or the tail of
// one that stays with its node.
type goneCells struct {
	list list
	n    int32
}

// trim takes everything out of the index that no record covers any more, from
// node id towards the root, and frees what no lease owns (C-16). It returns the
// number of pages freed.
func (m *Manager) trim(id int32) int {
	gone := m.gone[:0]
	var shadow bool
	owned, ownedFrom := int32(-1), int32(0)
	realm := m.nodes[id].realm
	for {
		x := &m.nodes[id]
		if x.isRoot() || x.child >= 0 {
			break
		}
		// A leaf is covered as far as its deepest record. Deeper nodes are gone by
		// now, so what one record dies of is looked at once, from its end upwards.
		keep := x.start
		if x.deep >= 0 {
			keep = m.records[x.deep].at
		}
		if keep == x.end {
			break
		}
		up, part := x.parent, keep > x.start
		shadow = x.shadow
		switch {
		case part && x.pins > 0:
			owned, ownedFrom = id, keep
		case part:
			gone = append(gone, goneCells{list{at: x.list.at + uint32(keep-x.start)}, x.end - keep})
			if !shadow {
				m.indexed -= int(x.end - keep)
			}
			x.end = keep
			x.gen++ // places behind keep mean nothing any more
		case x.pins > 0: // unmapped although active (C-65)
			m.detach(id)
		default:
			m.detach(id)
			gone = append(gone, goneCells{x.list, x.end - x.start})
			x.list = list{}
			m.freeNode(id)
		}
		if part {
			break
		}
		id = up
	}
	freed := 0
	for _, g := range slices.Backward(gone) { // ascending, like the record listed them (C-17)
		m.freeCells(m.lists.ids[g.list.at:g.list.at+uint32(g.n)], shadow)
		m.lists.put(g.list)
		freed += int(g.n)
	}
	m.gone = gone
	if owned >= 0 { // the rest lives on with its owners
		m.split(owned, ownedFrom)
		m.detach(owned)
	}
	if !shadow {
		m.charge(realm, -freed, 0)
	}
	if m.realms[realm].leases == 0 {
		m.closeRealm(realm)
	}
	if shadow {
		return 0
	}
	return freed
}

// enforceLimit evicts records that were there before keep until the limit holds.
func (m *Manager) enforceLimit(keep int32) {
	m.enforceOwn(keep)
	for m.recordCount > m.cfg.MaxRecords {
		victim := m.order.First()
		if victim == keep && m.recordCount > 1 {
			victim = m.order.After(victim)
		}
		m.evict(victim)
	}
	m.endCause()
}

// EvictRecord drops one record (C-65). Its pages in use stay with their leases.
func (m *Manager) EvictRecord(id RecordID) error {
	i := m.recordByID(id)
	if i < 0 {
		return status.New(status.NotFound, "record %d is not resident", id)
	}
	m.evict(i)
	return nil
}

func (m *Manager) recordByID(id RecordID) int32 {
	if m.byID.slot == nil {
		m.byID.build(m.records, m.recordCount)
	}
	return m.byID.find(m.records, uint64(id))
}

// Invalidate drops every record of an adapter, of one generation or, when
// generation is nil, of all. No page in use is touched: it stays with its leases
// until they end. Those leases computed their state with the weights that are
// now wrong, so what they publish later is dropped (PublishResult.Stale).
func (m *Manager) Invalidate(adapter Hash128, generation *uint64) (records int) {
	return m.forget(func(r *realm) bool {
		return r.adapter.Present && r.adapter.ID == adapter && (generation == nil || r.adapter.Generation == *generation)
	})
}

// Flush drops every record, under the same rule: nothing that was computed, or
// is being computed, before the flush can be found after it.
func (m *Manager) Flush() (records int) { return m.forget(func(*realm) bool { return true }) }

func (m *Manager) forget(match func(*realm) bool) (records int) {
	// A dead realm is no longer found: the next acquire with its extras opens a fresh one.
	for i := range m.realms {
		if r := &m.realms[i]; r.root >= 0 && !r.dead && match(r) {
			r.dead = true
			delete(m.realmOf, r.name)
		}
	}
	for i := m.order.First(); i >= 0; {
		next := m.order.After(i)
		if m.realms[m.nodes[m.records[i].node].realm].dead {
			m.evict(i)
			records++
		}
		i = next
	}
	for i := range m.realms { // those without records were not closed by an eviction
		if r := &m.realms[i]; r.root >= 0 && r.dead {
			m.closeRealm(int32(i))
		}
	}
	return records
}
