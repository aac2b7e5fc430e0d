package prefix

// record is one published endpoint. It stores where it ends in the index, not
// its path: the path is the walk from the root (C-32 holds by construction).
type record struct {
	id    uint64
	node  int32 // holds block at-1; the realm's root for at = 0
	at    int32 // full blocks
	exact int32 // tokens of a hybrid checkpoint, 0 for an ordinary record

	above, below int32 // neighbours in the node's list; above is nearer to the root

	tail               int32 // shadow cell with the content after the full blocks, -1 = none
	recurrent, partial int32 // snapshot slots, -1 = none
	draftLast          int32 // draft page of block at-1, -1 = no draft path
	draftSeq           uint64
	live               bool
}

var blankRecord = record{above: -1, below: -1, tail: -1, recurrent: -1, partial: -1, draftLast: -1, live: true}

// shallower orders the records of one node: by block, then by exact length.
func (r *record) shallower(o *record) bool {
	return r.at < o.at || r.at == o.at && r.exact < o.exact
}

// addRecord marks p in the index and makes the record most recent (C-35).
func (m *Manager) addRecord(p place, exact int32) int32 {
	var i int32
	if n := len(m.recordFree); n > 0 {
		i, m.recordFree = m.recordFree[n-1], m.recordFree[:n-1]
	} else {
		i = int32(len(m.records))
		m.records = append(m.records, record{})
	}
	m.lastRecord++
	m.recordCount++
	r := &m.records[i]
	*r = blankRecord // and then the fields in place: a literal is built beside it, and read back before it is all stored
	r.id, r.at, r.exact, r.node = m.lastRecord, p.at, exact, p.node
	m.byID.add(m.records, m.recordCount, i)
	m.order.Add(i)
	m.mark(i)
	return i
}

// mark enters a record in its node's list. Endpoints are published at the deep
// end nearly always, so the search starts there.
func (m *Manager) mark(i int32) {
	r := &m.records[i]
	x := &m.nodes[r.node]
	below, above := int32(-1), x.deep
	for above >= 0 && r.shallower(&m.records[above]) {
		below, above = above, m.records[above].above
	}
	r.above, r.below = above, below
	if above >= 0 {
		m.records[above].below = i
	}
	if below >= 0 {
		m.records[below].above = i
	} else {
		x.deep = i
	}
}

func (m *Manager) unmark(i int32) {
	r := &m.records[i]
	if r.above >= 0 {
		m.records[r.above].below = r.below
	}
	if r.below >= 0 {
		m.records[r.below].above = r.above
	} else {
		m.nodes[r.node].deep = r.above
	}
}

// splitMarks moves the records that end at or above block s from a node to the
// new upper half.
func (m *Manager) splitMarks(id, top, s int32) {
	x, u := &m.nodes[id], &m.nodes[top]
	cut, low := x.deep, int32(-1)
	for cut >= 0 && m.records[cut].at > s {
		low, cut = cut, m.records[cut].above
	}
	u.deep = cut
	if cut >= 0 {
		m.records[cut].below = -1
		if low >= 0 {
			m.records[low].above = -1
		} else {
			x.deep = -1
		}
	}
	for i := cut; i >= 0; i = m.records[i].above {
		m.records[i].node = top
	}
	if d := x.draft; d >= 0 && m.records[d].node == top {
		x.draft = m.newestDraft(id)
	}
}

// recordAt finds the record at p with the key of a checkpoint of exact tokens,
// or of an ordinary record when exact is 0. An ordinary record and a checkpoint
// of the same aligned length have the same key (C-33), so either finds the other
// (D-17). tail is a filled cell with the content behind the full blocks, -1 = none.
func (m *Manager) recordAt(p place, exact, tail int32) int32 {
	for i := m.nodes[p.node].deep; i >= 0 && m.records[i].at >= p.at; i = m.records[i].above {
		r := &m.records[i]
		if r.at != p.at {
			continue
		}
		if m.sameLength(r.exact, exact) && (r.tail < 0) == (tail < 0) && (tail < 0 || m.content.equalCells(r.tail, tail)) {
			return i
		}
	}
	return -1
}

// sameLength compares exact lengths of records with equal block counts; 0
// stands for "no more than the full blocks".
func (m *Manager) sameLength(a, b int32) bool {
	p := int32(m.cfg.PageTokens)
	return a == b || a%p == 0 && b%p == 0
}
