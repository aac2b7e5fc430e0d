package prefix

// index makes sure that the first c blocks of a lease are in the index and
// returns the place where they end, and from which block on they are new. A block that
// is there already keeps its page; a missing one gets the lease's (C-22, C-58). The
// caller adds a record at the place.
func (m *Manager) index(l *lease, c int32) (end place, fresh int32) {
	fresh = c
	if !m.settle(&l.cursor) {
		l.cursor = m.anchor(l) // eviction took what the cursor knew
	}
	switch p := l.cursor; {
	case p.at < c:
		fresh = m.extend(l, c)
	case p.at > c:
		// Asked for less than is known to be there: only the end moves.
		p.at = c
		m.climb(&p)
		return p, c
	}
	l.settled = max(l.settled, c)
	return l.cursor, fresh
}

// extend moves the cursor to block c: over what another sequence has published
// meanwhile, and then over what it inserts.
func (m *Manager) extend(l *lease, c int32) (fresh int32) {
	p := l.cursor
	if x := &m.nodes[p.node]; x.child >= 0 || p.at < x.end { // not so when a sequence is decoded
		// Compare the lease's own cells: blocks of the lease itself equal by id.
		src := source{cells: l.cells, miss: l.miss}
		p = m.descend(p, &src, c, nil)
		l.cursor, l.miss = p, src.miss
	}
	fresh = p.at
	for p.at < c {
		p = m.insert(l, p, c)
	}
	l.cursor = p
	return fresh
}

// hashOwn is the table hash of a lease's block under a parent.
func (m *Manager) hashOwn(l *lease, parent, at int32) uint32 {
	if l.miss.is(parent, at) {
		return l.miss.hash
	}
	return m.content.hashCell(parent, l.cells[at])
}

// anchor finds the deepest place where a lease's own pages still are in the
// index; used when eviction took the blocks that its cursor knew.
func (m *Manager) anchor(l *lease) place {
	if len(l.segs) > 0 && l.segs[0].bottom >= 0 {
		s := l.segs[0]
		for n := s.bottom; ; n = m.nodes[n].up {
			x := &m.nodes[n]
			if x.attached {
				return place{n, x.end, x.gen}
			}
			if x.start <= s.start {
				break
			}
		}
	}
	return m.rootPlace(l.realm)
}

// insert puts blocks of the lease from p.at on into the index below p, up to
// block c or to the end of the lease's segment there, and returns the new end.
// The caller has found that block p.at is not in the index below p.
func (m *Manager) insert(l *lease, p place, c int32) place {
	if p.at < m.nodes[p.node].end {
		p.node = m.split(p.node, p.at)
	}
	k := len(l.segs) - 1
	for l.segs[k].start > p.at {
		k--
	}
	s := l.segs[k]
	if s.bottom >= 0 {
		// Pages in a node, and yet not in the index: the node was detached. It
		// may be shared, so it comes back as it is (C-52).
		return m.reattach(l, s, p, c)
	}
	end := min(c, s.end)
	x := &m.nodes[p.node]
	// before: the lease's run of nodes that ends exactly here, in the very node
	// that the new blocks come under.
	var before *segment
	if k > 0 && p.at == s.start && l.segs[k-1].bottom == p.node {
		before = &l.segs[k-1]
	}
	fresh := l.cells[p.at:end]
	node := p.node
	if before != nil && x.pins == 1 && x.child < 0 {
		// Only this lease holds the leaf: it simply becomes longer.
		m.lists.add(m.nodes, node, fresh)
		x.end = end
		if !x.shadow {
			m.indexed += int(end - p.at)
		}
	} else {
		node = m.newNode()
		m.lists.store(m.nodes, node, fresh)
		x := &m.nodes[node]
		x.start, x.end = p.at, end
		x.pins, x.shadow = 1, !l.attention
		if before != nil {
			x.up = p.node // one run with the nodes above; otherwise a run of its own
		}
		m.attach(node, p.node, m.hashOwn(l, p.node, p.at))
	}
	if before == nil {
		l.own(k, node, p.at, end)
	} else {
		before.bottom, before.end = node, end
		l.segs[k].start = end
		switch {
		case end < s.end:
		case k == len(l.segs)-1: // nearly always
			l.segs = l.segs[:k]
		default:
			l.segs = append(l.segs[:k], l.segs[k+1:]...)
		}
	}
	return place{node, end, m.nodes[node].gen}
}

// own turns cells [at, end) of private segment k into a run of nodes that is only node.
func (l *lease) own(k int, node, at, end int32) {
	s := l.segs[k]
	var parts [3]segment
	n := 0
	if at > s.start {
		parts[n] = segment{-1, s.start, at}
		n++
	}
	parts[n] = segment{node, at, end}
	n++
	if end < s.end {
		parts[n] = segment{-1, end, s.end}
		n++
	}
	l.segs = replace(l.segs, k, parts[:n])
}

// replace puts parts, at most three, in the place of element k.
func replace(segs []segment, k int, parts []segment) []segment {
	rest := len(segs) - k - 1
	for range len(parts) - 1 {
		segs = append(segs, segment{})
	}
	copy(segs[k+len(parts):], segs[k+1:k+1+rest])
	copy(segs[k:], parts)
	return segs[:k+len(parts)+rest]
}

// reattach brings nodes back into the index that eviction had taken out while
// leases owned them: the one that holds block p.at, cut at p.at and at c if need be.
func (m *Manager) reattach(l *lease, s segment, p place, c int32) place {
	n := s.bottom
	for m.nodes[n].start > p.at {
		n = m.nodes[n].up
	}
	if x := &m.nodes[n]; x.start < p.at {
		m.split(n, p.at)
	}
	if x := &m.nodes[n]; x.end > c {
		n = m.split(n, c)
	}
	m.attach(n, p.node, m.hashOwn(l, p.node, p.at))
	x := &m.nodes[n]
	return place{n, x.end, x.gen}
}
