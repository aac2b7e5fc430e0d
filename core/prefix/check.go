package prefix

import (
	"fmt"

	"libprefixcache/core/status"
)

// Check verifies every structural invariant, C-67 to C-71 among them, by
// counting everything afresh. It changes nothing and takes time in proportion to
// the whole state. The error names the first thing that is wrong.
func (m *Manager) Check() error {
	c := checker{m: m, pageOwner: make([]int32, m.cfg.BasePages), pins: make([]int32, len(m.nodes)),
		cached: make([]int32, m.content.count())}
	steps := []func(){c.lists, c.records, c.index, c.leases, c.basePool, c.draftPool, c.slots, c.tenants, c.zero, c.byID, c.empty}
	for _, step := range steps {
		if step(); c.err != nil {
			return c.err
		}
	}
	return nil
}

type checker struct {
	m         *Manager
	err       error
	pageOwner []int32 // base page: leases that own it
	pins      []int32 // node: leases that own it
	cached    []int32 // cell: 1 in the index, 2 in a detached node, 3 private, 4 free
	shadows   int     // shadow cells seen
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = status.New(status.Internal, "invariant broken: %s", fmt.Sprintf(format, args...))
	}
}

// use notes what a cell is used for; every cell has one use.
func (c *checker) use(cell, what int32) {
	if cell < 0 || int(cell) >= len(c.cached) {
		c.fail("cell %d does not exist", cell)
		return
	}
	if was := c.cached[cell]; was != 0 {
		c.fail("cell %d is used as %d and as %d", cell, was, what)
	}
	c.cached[cell] = what
	if cell >= m32(c.m.cfg.BasePages) {
		c.shadows++
	}
}

func m32(n int) int32 { return int32(n) }

// walk visits the cells of a node.
func (c *checker) walk(id int32, visit func(block, cell int32)) {
	x := &c.m.nodes[id]
	if room := x.list.room(); int(x.end-x.start) > room {
		c.fail("node %d has %d blocks and room for %d", id, x.end-x.start, room)
		return
	}
	for i, cell := range c.m.cells(x) {
		visit(x.start+int32(i), cell)
	}
}

// records checks order, limit, and that an endpoint is in its node (C-67 with the index
// check below).
func (c *checker) records() {
	m := c.m
	n, seen, entries := 0, map[uint64]bool{}, 0
	for i := m.order.First(); i >= 0 && c.err == nil; i = m.order.After(i) {
		r := &m.records[i]
		n++
		x := &m.nodes[r.node]
		switch {
		case !r.live || r.id == 0 || r.id > m.lastRecord || seen[r.id]:
			c.fail("record %d is dead, unnamed or listed twice", r.id)
		case !x.attached || r.at > x.end || r.at <= x.start && !(x.isRoot() && r.at == 0):
			c.fail("record %d ends at block %d, outside its node", r.id, r.at)
		case r.exact == 0 && (r.at == 0 || r.recurrent >= 0 || r.partial >= 0 || r.tail >= 0):
			c.fail("record %d is ordinary but has parts of a checkpoint", r.id)
		case r.exact != 0 && (r.recurrent < 0 || int(r.exact)/m.cfg.PageTokens != int(r.at)):
			c.fail("checkpoint record %d is malformed (C-32)", r.id)
		case r.exact != 0 && (r.partial >= 0) != (!x.shadow && int(r.exact)%m.cfg.PageTokens != 0):
			c.fail("checkpoint record %d has partial slot %d (C-32)", r.id, r.partial)
		}
		seen[r.id] = true
		if r.draftLast >= 0 {
			entries += int(r.at)
		}
		if r.tail >= 0 {
			c.use(r.tail, 3)
		}
	}
	if n != m.recordCount || n > m.cfg.MaxRecords {
		c.fail("%d records in the order, %d counted, limit %d", n, m.recordCount, m.cfg.MaxRecords)
	}
	if entries != m.draftEntries {
		c.fail("%d draft entries, counted %d (C-69)", m.draftEntries, entries)
	}
}

// index walks every realm's tree.
func (c *checker) index() {
	m := c.m
	indexed, attached := 0, 0
	for i := range m.realms {
		if root := m.realms[i].root; root >= 0 {
			if x := &m.nodes[root]; !x.isRoot() || !x.attached || x.realm != int32(i) {
				c.fail("root of realm %d is malformed", i)
			}
			c.subtree(root, &indexed, &attached)
		}
	}
	if indexed != m.indexed {
		c.fail("%d pages indexed, counted %d (C-69)", m.indexed, indexed)
	}
	used := 0
	for _, s := range m.table.slot {
		if s.node >= 0 {
			used++
		}
	}
	if used != m.table.used || used != attached {
		c.fail("table holds %d nodes, says %d, the trees have %d", used, m.table.used, attached)
	}
}

// subtree checks one node and what is below: links, the list of records, the
// newest draft, and that siblings differ in their first block (C-22).
func (c *checker) subtree(id int32, indexed, attached *int) {
	m := c.m
	x := &m.nodes[id]
	if !x.shadow {
		*indexed += int(x.end - x.start)
	}
	c.walk(id, func(_, cell int32) { c.use(cell, 1) })
	for r, below := x.deep, int32(-1); r >= 0 && c.err == nil; r, below = m.records[r].above, r {
		k := &m.records[r]
		if k.node != id || k.below != below || below >= 0 && m.records[below].shallower(k) {
			c.fail("list of node %d is broken at record %d", id, k.id)
		}
	}
	if x.draft != m.newestDraft(id) && !x.isRoot() {
		c.fail("newest draft of node %d is record %d, expected %d (C-29)", id, x.draft, m.newestDraft(id))
	}
	if x.child < 0 && !x.isRoot() && (x.deep < 0 || m.records[x.deep].at != x.end) {
		c.fail("leaf %d is covered by no record (C-69)", id)
	}
	for k, elder := x.child, int32(-1); k >= 0 && c.err == nil; k, elder = m.nodes[k].sibling, k {
		y := &m.nodes[k]
		*attached++
		if y.parent != id || y.elder != elder || y.start != x.end || y.end <= y.start || !y.attached || y.realm != x.realm || y.shadow != x.shadow {
			c.fail("child %d of node %d is malformed", k, id)
			return
		}
		if h := m.content.hashCell(id, m.first(y)); h != y.hash {
			c.fail("hash of node %d is not that of its first block", k)
		}
		for o := y.sibling; o >= 0; o = m.nodes[o].sibling {
			if m.nodes[o].hash == y.hash && m.content.equalCells(m.first(&m.nodes[o]), m.first(y)) {
				c.fail("nodes %d and %d are the same block (C-22)", k, o)
			}
		}
		if at, ok := m.table.find(k, y.hash); !ok || m.table.slot[at].hash != y.hash {
			c.fail("node %d is not in the table", k)
		}
		c.subtree(k, indexed, attached)
	}
}

// leases checks that segments tile the cells, and counts owners.
func (c *checker) leases() {
	m := c.m
	live, perRealm := 0, make([]int32, len(m.realms))
	detached := map[int32]bool{}
	for i := range m.leases {
		l := &m.leases[i]
		if !l.live {
			continue
		}
		live++
		perRealm[l.realm]++
		end := int32(0)
		for _, s := range l.segs {
			if s.start != end || s.end <= s.start {
				c.fail("lease %d: segment [%d, %d) after block %d", i, s.start, s.end, end)
				return
			}
			end = s.end
			if s.bottom < 0 {
				for _, cell := range l.cells[s.start:s.end] {
					c.use(cell, 3)
				}
				continue
			}
			if m.nodes[s.bottom].end != s.end {
				c.fail("lease %d: run ends at block %d, its node at %d", i, s.end, m.nodes[s.bottom].end)
			}
			for n, done := s.bottom, false; !done; n = m.nodes[n].up {
				x := &m.nodes[n]
				c.pins[n]++
				if !x.attached && !detached[n] {
					detached[n] = true
					c.walk(n, func(_, cell int32) { c.use(cell, 2) })
				}
				c.walk(n, func(b, cell int32) {
					if l.cells[b] != cell {
						c.fail("lease %d: cell %d at block %d, its node %d has %d", i, l.cells[b], b, n, cell)
					}
				})
				if x.start < s.start {
					c.fail("lease %d: node %d starts at %d, before the run's %d", i, n, x.start, s.start)
					return
				}
				done = x.start == s.start
			}
		}
		if int(end) != len(l.cells) {
			c.fail("lease %d: segments end at block %d of %d", i, end, len(l.cells))
		}
		if l.attention {
			for _, p := range l.cells {
				c.pageOwner[p]++
			}
		}
	}
	if live != m.liveLeases {
		c.fail("%d live leases, counted %d", m.liveLeases, live)
	}
	for i := range m.nodes {
		if c.pins[i] != m.nodes[i].pins && (c.pins[i] != 0 || m.nodes[i].attached) {
			c.fail("node %d has %d pins, leases have %d (C-68)", i, m.nodes[i].pins, c.pins[i])
		}
	}
	for i := range m.realms {
		if perRealm[i] != m.realms[i].leases {
			c.fail("realm %d has %d leases, counted %d", i, m.realms[i].leases, perRealm[i])
		}
	}
}
