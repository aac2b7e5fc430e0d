package prefix

import "slices"

// basePool: every page is free, private or in one node, and active says how many
// have an owner (C-70).
func (c *checker) basePool() {
	m := c.m
	active := 0
	for _, n := range c.pageOwner {
		if n > 0 {
			active++
		}
	}
	if active != m.base.active {
		c.fail("%d base pages active, counted %d (C-68)", m.base.active, active)
	}
	for cell := range m.base.free.all() {
		c.use(cell, 4)
	}
	for _, cell := range m.content.spare {
		c.use(cell, 4)
	}
	for cell, use := range c.cached {
		if use == 0 {
			c.fail("cell %d is lost (C-70)", cell)
		}
		if cell < m.cfg.BasePages && c.pageOwner[cell] > 0 && use == 4 {
			c.fail("page %d is free and in use (C-16)", cell)
		}
	}
}

// lists: every array of cells is a node's or free, once, and none is lost.
func (c *checker) lists() {
	l := &c.m.lists
	taken := make([]bool, len(l.ids))
	count := 0
	note := func(a list) {
		if a.size == 0 || c.err != nil {
			return
		}
		if int(a.at)+a.room() > len(l.ids) || slices.Contains(taken[a.at:a.end()], true) {
			c.fail("list of %d cells at %d is beyond the %d there are, or there twice", a.room(), a.at, len(l.ids))
			return
		}
		for i := a.at; i < a.end(); i++ {
			taken[i] = true
			count++
		}
	}
	for i := range c.m.nodes {
		note(c.m.nodes[i].list)
	}
	for size := range l.free {
		for next := l.free[size]; next > 0; {
			if note(list{next - 1, uint8(size)}); c.err != nil {
				return
			}
			next = uint32(l.ids[next-1])
		}
	}
	if count != len(l.ids) {
		c.fail("%d of %d places for cells are in a list or free", count, len(l.ids))
	}
}

// draftPool rebuilds the forest's counts from its path ends (C-27, C-68).
func (c *checker) draftPool() {
	m := c.m
	d := &m.draft
	owners, marks, free := make([]int32, d.size), make([]int32, d.size), make([]bool, d.size)
	up := func(count []int32, page int32) {
		for ; page >= 0; page = d.prev[page] {
			count[page]++
			if count[page] > 1 {
				return
			}
		}
	}
	for i := range m.leases {
		if l := &m.leases[i]; l.live && len(l.draft) > 0 {
			up(owners, l.draft[len(l.draft)-1])
			for k := range l.draft {
				if k > 0 && d.prev[l.draft[k]] != l.draft[k-1] {
					c.fail("lease %d: draft page %d does not follow %d (C-27)", i, l.draft[k], l.draft[k-1])
				}
			}
		}
	}
	for i := m.order.First(); i >= 0; i = m.order.After(i) {
		if p := m.records[i].draftLast; p >= 0 {
			up(marks, p)
		}
	}
	for page := range d.free.all() {
		if page < 0 || int(page) >= d.size || free[page] {
			c.fail("draft page %d is free twice, or does not exist", page)
			return
		}
		free[page] = true
	}
	active := 0
	for p := range owners {
		if owners[p] > 0 {
			active++
		}
		if free[p] != (owners[p]|marks[p] == 0) {
			c.fail("draft page %d: free %v, owners %d, marks %d (C-16)", p, free[p], owners[p], marks[p])
		}
		if !free[p] && (owners[p] != d.owners[p] || marks[p] != d.marks[p]) {
			c.fail("draft page %d has %d/%d, counted %d/%d (C-68)", p, d.owners[p], d.marks[p], owners[p], marks[p])
		}
	}
	if active != d.active {
		c.fail("%d draft pages active, counted %d", d.active, active)
	}
}

// slots recounts the snapshot slots, which do have counts of their own (C-68, C-70).
func (c *checker) slots() {
	m := c.m
	for k, p := range [...]*slotPool{&m.recurrent, &m.partial} {
		want := make([]slotRefs, len(p.refs))
		count := func(s int32, active, cache int32) {
			if s >= 0 {
				want[s].active += active
				want[s].cache += cache
			}
		}
		for i := range m.leases {
			l := &m.leases[i]
			if !l.live {
				continue
			}
			count([]int32{l.recurrent, l.partial}[k], 1, 0)
			for _, s := range [][]int32{l.reserved, l.reservedPartial}[k] {
				count(s, 1, 0)
			}
		}
		for i := m.order.First(); i >= 0; i = m.order.After(i) {
			r := &m.records[i]
			count([]int32{r.recurrent, r.partial}[k], 0, 1)
		}
		active, used := 0, 0
		for s := range want {
			if want[s] != p.refs[s] {
				c.fail("slot %d of pool %d has %v, counted %v (C-68)", s, k+2, p.refs[s], want[s])
			}
			if want[s].active > 0 {
				active++
			}
			if want[s] != (slotRefs{}) {
				used++
			}
		}
		seen := make([]bool, len(p.refs))
		for s := range p.free.all() {
			if s < 0 || int(s) >= len(seen) || seen[s] || p.refs[s] != (slotRefs{}) {
				c.fail("slot %d is free twice, in use, or does not exist", s)
				return
			}
			seen[s] = true
		}
		if active != p.active || used+p.free.n != len(p.refs) {
			c.fail("pool %d: active %d of %d, used %d, free %d (C-70)", k+2, p.active, active, used, p.free.n)
		}
	}
}

// empty is C-71.
func (c *checker) empty() {
	m := c.m
	if m.liveLeases > 0 || m.recordCount > 0 {
		return
	}
	for pool := range resourceCount {
		if m.Free(pool) != m.Capacity(pool) {
			c.fail("no lease and no record, but %d of %d %s slots are free (C-71)", m.Free(pool), m.Capacity(pool), pool)
		}
	}
	if shadows := int(m.content.count() - m.content.base); len(m.content.spare) != shadows || m.Nodes() > 0 {
		c.fail("no lease and no record, but %d nodes and %d of %d shadow cells are left", m.Nodes(), shadows-len(m.content.spare), shadows)
	}
}
