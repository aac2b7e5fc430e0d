package prefix

// slotCount is how many snapshot slots of one pool, or draft pages, a tenant holds.
type slotCount struct {
	all    int // in use by leases, or cached
	active int // in use by leases
}

// slotPool is a pool whose slots are counted one by one, for their tenant as well.
// (Restored, reserved and published slots are all of the same tenant: it alone can hit
// what it published.)
func (m *Manager) slotPool(pool Resource) *slotPool {
	if pool == PartialSlots {
		return &m.partial
	}
	return &m.recurrent
}

func (m *Manager) takeSlot(pool Resource, realm int32) int32 {
	m.chargeSlots(pool, realm, 1, 1)
	return m.slotPool(pool).take()
}

// holdSlot and dropSlot are hold and drop of a slot that is in use; none (-1) is fine.
func (m *Manager) holdSlot(pool Resource, realm, s, active, cache int32) {
	if s < 0 {
		return
	}
	p := m.slotPool(pool)
	before := p.active
	_ = p.hold(s, active, cache)
	m.chargeSlots(pool, realm, 0, p.active-before)
}

func (m *Manager) dropSlot(pool Resource, realm, s, active, cache int32) {
	if s < 0 {
		return
	}
	p := m.slotPool(pool)
	before, all := p.active, 0
	if freed, _ := p.drop(s, active, cache); freed {
		all = -1
		if cache > 0 {
			m.counters.Reclaimed[pool]++
		}
	}
	m.chargeSlots(pool, realm, all, p.active-before)
}

func (m *Manager) chargeSlots(pool Resource, realm int32, all, active int) {
	if m.tenants != nil {
		x := &m.tenants.all[m.realms[realm].tenant].slots[pool-RecurrentSlots]
		x.all += all
		x.active += active
	}
}

// chargePartial counts a record that has got a partial page.
func (m *Manager) chargePartial(realm, slot int32) {
	if m.tenants != nil && slot >= 0 {
		m.tenants.all[m.realms[realm].tenant].partial++
	}
}

// slotsWithinQuota says whether a tenant may reserve a snapshot. A free slot it may
// have: what its leases hold beyond the quota is cached by nobody, and a publication
// settles it. Where slots are short, its leases must leave room below the quota, or its
// own cached snapshots must suffice, so that nobody else's is evicted.
func (m *Manager) slotsWithinQuota(l *lease, d *Demand) bool {
	s := m.tenants
	if s == nil || m.fitsNow(d) {
		return true
	}
	x := &s.all[m.realms[l.realm].tenant]
	if x.slots[0].active < x.snapshots && (d[PartialSlots] == 0 || x.slots[1].active < x.partials) {
		return true
	}
	for i, p := range [...]*slotPool{&m.recurrent, &m.partial} {
		if c := x.slots[i]; d[RecurrentSlots+Resource(i)] > p.free.n+c.all-c.active {
			x.Refused++
			return false
		}
	}
	return true
}

// evictOwnSlots makes room for a snapshot among a tenant's own records, least recent
// first, until it fits or the tenant may have another one at somebody else's cost.
func (m *Manager) evictOwnSlots(l *lease, d *Demand) {
	s := m.tenants
	if s == nil {
		return
	}
	t := m.realms[l.realm].tenant
	s.cause[0] = t
	for x := &s.all[t]; x.list.first >= 0 && !m.fitsNow(d); {
		if x.slots[0].all < x.snapshots && (d[PartialSlots] == 0 || x.slots[1].all < x.partials) {
			return
		}
		m.evict(x.list.first)
	}
}
