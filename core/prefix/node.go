package prefix

// node is a run of blocks that nothing has split yet. Its cells are a list, one for
// each of blocks [start, end) of every sequence that goes through it.
//
// A node is attached while a record ends in it or below it: then it is in the
// index and findable. When the last such record goes, a node that leases still
// own is detached: it keeps its pages until they are released (C-52, C-65).
//
// Two links lead towards the root. parent is the place in the index. up is the
// node whose pages precede this one's in the leases that own both; it differs
// from parent only after a detached node came back under pages of another producer.
type node struct {
	parent, up       int32
	child            int32 // first of the children, -1 = leaf
	sibling, elder   int32 // next and previous child of the same parent
	start, end       int32 // blocks
	pins             int32 // leases that own all the cells
	deep             int32 // record that ends deepest in (start, end]; others follow by record.above
	draft            int32 // newest record with a draft path that ends in or below, -1 = none
	realm            int32
	gen              uint32 // raised whenever positions in it may have lost their meaning
	hash             uint32
	list             list
	attached, shadow bool
}

func (m *Manager) newNode() int32 {
	var id int32
	if n := len(m.nodeFree); n > 0 {
		id, m.nodeFree = m.nodeFree[n-1], m.nodeFree[:n-1]
	} else {
		id = int32(len(m.nodes))
		m.nodes = append(m.nodes, node{})
	}
	m.nodes[id] = node{parent: -1, up: -1, child: -1, sibling: -1, elder: -1,
		deep: -1, draft: -1, gen: m.nodes[id].gen}
	return id
}

func (m *Manager) freeNode(id int32) {
	x := &m.nodes[id]
	m.lists.put(x.list)
	x.list = list{}
	x.gen++
	x.attached = false
	m.nodeFree = append(m.nodeFree, id)
}

// isRoot: only a root has no blocks.
func (x *node) isRoot() bool { return x.end == 0 }

// link makes a detached node a child of p, and findable under the hash of its
// first block below p.
func (m *Manager) link(id, p int32, hash uint32) {
	x, par := &m.nodes[id], &m.nodes[p]
	x.parent = p
	x.sibling, x.elder = par.child, -1
	if par.child >= 0 {
		m.nodes[par.child].elder = id
	}
	par.child = id
	x.hash = hash
	m.table.insert(id, hash)
}

func (m *Manager) unlink(id int32) {
	x := &m.nodes[id]
	par := &m.nodes[x.parent]
	if x.elder >= 0 {
		m.nodes[x.elder].sibling = x.sibling
	} else {
		par.child = x.sibling
	}
	if x.sibling >= 0 {
		m.nodes[x.sibling].elder = x.elder
	}
	m.table.remove(id, x.hash)
	x.sibling, x.elder = -1, -1
}

// attach puts a node with cells under p in the index.
func (m *Manager) attach(id, p int32, hash uint32) {
	m.link(id, p, hash)
	x := &m.nodes[id]
	x.attached, x.realm = true, m.nodes[p].realm
	if !x.shadow {
		m.indexed += int(x.end - x.start)
	}
}

// detach takes a childless node without records out of the index.
func (m *Manager) detach(id int32) {
	m.unlink(id)
	x := &m.nodes[id]
	x.attached, x.draft = false, -1
	x.gen++
	if !x.shadow {
		m.indexed -= int(x.end - x.start)
	}
}

// split cuts a node at block s, start < s < end. The new node takes the upper part,
// towards the root, and the old id keeps the lower: so children, cursors at the end and
// the bottoms of segments stay valid, and pins are simply copied. It returns the new node.
func (m *Manager) split(id, s int32) int32 {
	top := m.newNode()
	lower := m.lists.take(m.nodes, int(m.nodes[id].end-s))
	x, u := &m.nodes[id], &m.nodes[top]
	copy(m.lists.ids[lower.at:], m.cells(x)[s-x.start:])
	gen := u.gen
	*u = *x
	u.gen, u.child = gen, -1
	u.end, x.start = s, s
	x.list = lower
	x.up = top
	if !x.attached {
		return top
	}
	// The upper half inherits the place among the siblings and in the table.
	if u.elder >= 0 {
		m.nodes[u.elder].sibling = top
	} else {
		m.nodes[u.parent].child = top
	}
	if u.sibling >= 0 {
		m.nodes[u.sibling].elder = top
	}
	m.table.replace(id, top, x.hash)
	m.link(id, top, m.content.hashCell(top, m.first(x)))
	m.splitMarks(id, top, s)
	return top
}

// childAt finds the child of p whose first block is block at of src, -1 = none.
// An only child is compared at once; among several the table finds candidates.
// Content decides in either case, never the hash.
func (m *Manager) childAt(p int32, src *source, at int32) int32 {
	only := m.nodes[p].child
	if only < 0 {
		return -1
	}
	if m.nodes[only].sibling < 0 && !src.miss.is(p, at) && m.sameBlock(src, at, m.first(&m.nodes[only])) {
		return only
	}
	h := m.hashSource(p, src, at)
	for i, mask := m.table.home(h); ; i = (i + 1) & mask {
		s := m.table.slot[i]
		switch {
		case s.node < 0:
			return -1
		case s.hash != h || m.nodes[s.node].parent != p:
		case m.sameBlock(src, at, m.first(&m.nodes[s.node])):
			return s.node
		default:
			m.counters.HashCollisions++
		}
	}
}
