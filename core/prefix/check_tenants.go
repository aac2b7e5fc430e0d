package prefix

// tenants counts again what each tenant holds, and looks at its quota.
func (c *checker) tenants() {
	m, s := c.m, c.m.tenants
	if s == nil {
		return
	}
	want := make([]TenantStats, len(s.all))
	realms := make([]int32, len(s.all))
	owner, active := make([]int32, m.cfg.BasePages), make([]bool, m.cfg.BasePages)
	slots, partial := make([][2]slotCount, len(s.all)), make([]int, len(s.all))
	slotOwner := [2][]int32{make([]int32, m.cfg.RecurrentSlots), make([]int32, m.cfg.PartialSlots)}
	slot := func(realm int32, pool int, list ...int32) {
		t := m.realms[realm].tenant
		for _, x := range list {
			if x < 0 || slotOwner[pool][x] != 0 {
				continue
			}
			slotOwner[pool][x] = t + 1
			slots[t][pool].all++
			if [...]*slotPool{&m.recurrent, &m.partial}[pool].refs[x].active > 0 { // recounted by slots
				slots[t][pool].active++
			}
		}
	}
	drafts, draftOwner := make([]slotCount, len(s.all)), make([]int32, m.cfg.DraftPages)
	draft := func(realm, page int32) { // and all before it
		t := m.realms[realm].tenant
		for ; page >= 0 && draftOwner[page] == 0; page = m.draft.prev[page] {
			draftOwner[page] = t + 1
			drafts[t].all++
			if m.draft.owners[page] > 0 { // recounted by forest
				drafts[t].active++
			}
		}
		if page >= 0 && draftOwner[page] != t+1 {
			c.fail("draft page %d is held by tenants %d and %d", page, draftOwner[page]-1, t)
		}
	}
	hold := func(realm int32, pages []int32, lease bool) {
		t := m.realms[realm].tenant
		for _, p := range pages {
			if owner[p] != 0 && owner[p] != t+1 {
				c.fail("page %d is held by tenants %d and %d", p, owner[p]-1, t)
			}
			if owner[p] == 0 {
				want[t].Pages++
			}
			if lease && !active[p] {
				active[p] = true
				want[t].ActivePages++
			}
			owner[p] = t + 1
		}
	}
	var pages []int32
	for i := range m.leases {
		if l := &m.leases[i]; l.live {
			slot(l.realm, 0, append(l.reserved[:len(l.reserved):len(l.reserved)], l.recurrent)...)
			slot(l.realm, 1, append(l.reservedPartial[:len(l.reservedPartial):len(l.reservedPartial)], l.partial)...)
			if n := len(l.draft); n > 0 {
				draft(l.realm, l.draft[n-1])
			}
		}
		if l := &m.leases[i]; l.live && l.attention {
			n, _ := m.PageCount(m.leaseID(int32(i)), BasePages)
			pages = append(pages[:0], make([]int32, n)...)
			if err := m.Pages(m.leaseID(int32(i)), BasePages, 0, pages); err != nil {
				c.fail("pages of lease %d: %v", i, err)
			}
			hold(l.realm, pages, true)
		}
	}
	for i := m.order.First(); i >= 0; i = m.order.After(i) {
		r := &m.records[i]
		realm := m.nodes[r.node].realm
		t := m.realms[realm].tenant
		want[t].Records++
		slot(realm, 0, r.recurrent)
		slot(realm, 1, r.partial)
		draft(realm, r.draftLast)
		if r.exact != 0 {
			want[t].Snapshots++
		}
		if r.partial >= 0 {
			partial[t]++
		}
		if s.record[i].tenant != t {
			c.fail("record %d is listed for tenant %d, expected %d", r.id, s.record[i].tenant, t)
		}
		if !m.nodes[r.node].shadow {
			pages = append(pages[:0], make([]int32, r.at)...)
			m.fillCells(r.node, r.at, pages)
			hold(realm, pages, false)
		}
	}
	for i := range m.realms {
		if m.realms[i].root >= 0 {
			realms[m.realms[i].tenant]++
		}
	}
	idle := 0
	for t := range s.all {
		x := &s.all[t]
		if x.Pages != want[t].Pages || x.ActivePages != want[t].ActivePages || x.Records != want[t].Records || x.Snapshots != want[t].Snapshots || x.realms != realms[t] {
			c.fail("tenant %d holds %+v in %d realms; counted %+v and %d", t, want[t], realms[t], x.TenantStats, x.realms)
		}
		if x.slots != slots[t] || x.partial != partial[t] {
			c.fail("tenant %d holds snapshot slots %+v and %d records with a partial page, counted %+v and %d", t, slots[t], partial[t], x.slots, x.partial)
		}
		if x.draft != drafts[t] || x.draft.all > max(x.drafts, x.draft.active) {
			c.fail("tenant %d holds draft pages %+v of %d, counted %+v", t, drafts[t], x.drafts, x.draft)
		}
		if x.Pages > max(x.pages, x.ActivePages) || x.beyondRecords() && m.cfg.MaxRecords > 0 {
			c.fail("tenant %d holds %d pages of %d, %d records of %d, %d snapshots of %d, %d partial pages of %d",
				t, x.Pages, x.pages, x.Records, x.records, x.Snapshots, x.snapshots, x.partial, x.partials)
		}
		n := 0
		for r, prev := x.list.first, int32(-1); r >= 0 && x.pages > 0; r, prev = s.record[r].next, r {
			if n++; s.record[r].prev != prev || s.record[r].tenant != int32(t) || n > x.Records {
				c.fail("list of tenant %d is broken at record %d", t, r)
				return
			}
		}
		if n != x.Records {
			c.fail("list of tenant %d has %d records, counted %d", t, n, x.Records)
		}
		if x.pages > 0 && x.realms == 0 && x.perMille == 0 {
			idle++
		}
		if x.want != (Demand{}) {
			c.fail("tenant %d still wants %d pages", t, x.want)
		}
	}
	if idle != s.idleCount || idle > maxIdleTenants {
		c.fail("%d tenants are idle, counted %d", idle, s.idleCount)
	}
	if s.cause != [2]int32{-1, -1} {
		c.fail("evictions are still blamed on tenant %d", s.cause[0])
	}
}
