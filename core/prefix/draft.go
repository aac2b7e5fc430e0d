package prefix

import "slices"

// draftPool is the pool of draft pages, and the forest they form.
//
// Draft pages are never made canonical block by block (C-27): a lease binds the
// first pages of one record and continues with its own. So the page before a
// draft page in any path that has it is always the same one, and all paths
// together are a forest over prev. Both counts of C-16 are kept as "paths that
// end here, plus children that have a count": a page is active, or cached, while
// its number is not zero, and pinning a path or marking a record costs only the
// pages whose state changes.
type draftPool struct {
	pagePool
	prev   []int32
	owners []int32 // leases that end here + active children
	marks  []int32 // records that end here + cached children
	gone   []int32 // scratch
}

func newDraftPool(size int) draftPool {
	return draftPool{pagePool: newPagePool(size), prev: make([]int32, size), owners: make([]int32, size), marks: make([]int32, size)}
}

// take appends n private pages to a path; the last page of path, if any, must
// be owned by the same lease, whose end moves to the new last page.
func (d *draftPool) take(n int, path []int32) []int32 {
	had := len(path)
	path = d.pagePool.take(n, path)
	for i := had; i < len(path); i++ {
		d.owners[path[i]] = 1 // its child in the path, or the lease's end
		if i == 0 {
			d.prev[path[i]] = -1
		} else {
			d.prev[path[i]] = path[i-1]
		}
	}
	return path
}

// inactive counts the pages of the path that ends at page that a pin would activate.
func (d *draftPool) inactive(page int32) (n int) {
	for ; page >= 0 && d.owners[page] == 0; page = d.prev[page] {
		n++
	}
	return n
}

func (d *draftPool) pin(page int32) {
	for ; page >= 0; page = d.prev[page] {
		d.owners[page]++
		if d.owners[page] > 1 {
			return
		}
		d.active++
	}
}

func (d *draftPool) unpin(page int32) (freed int) { return d.leave(page, d.owners, true) }

func (d *draftPool) mark(page int32) {
	for ; page >= 0; page = d.prev[page] {
		d.marks[page]++
		if d.marks[page] > 1 {
			return
		}
	}
}

func (d *draftPool) unmark(page int32) (freed int) { return d.leave(page, d.marks, false) }

// leave takes one path end away from count, and frees the pages that have
// neither count left, lowest block first (C-17).
func (d *draftPool) leave(page int32, count []int32, owner bool) (freed int) {
	gone := d.gone[:0]
	for ; page >= 0; page = d.prev[page] {
		count[page]--
		if count[page] > 0 {
			break
		}
		if owner {
			d.active--
		}
		if d.owners[page]|d.marks[page] != 0 {
			continue
		}
		gone = append(gone, page) // the pages before it hang below this one
	}
	slices.Reverse(gone)
	d.free.put(gone)
	d.gone = gone
	return len(gone)
}

// fillDraft copies the first n draft pages of a record into out[:n].
func (m *Manager) fillDraft(r *record, n int32, out []int32) {
	page := r.draftLast
	for at := r.at; at > n; at-- {
		page = m.draft.prev[page]
	}
	for at := n; at > 0; at-- {
		out[at-1] = page
		page = m.draft.prev[page]
	}
}

// setDraft gives a record its draft path, the one that ends at page, and makes
// it the newest for every boundary it covers (C-28, C-29).
func (m *Manager) setDraft(i, page int32) {
	m.draft.mark(page)
	m.draftClock++
	r := &m.records[i]
	r.draftLast, r.draftSeq = page, m.draftClock
	m.draftEntries += int(r.at)
	for n := r.node; !m.nodes[n].isRoot(); n = m.nodes[n].parent {
		m.nodes[n].draft = i
	}
}

// dropDraft takes an unmarked record's draft path away (C-31).
func (m *Manager) dropDraft(i int32) (freed int) {
	r := &m.records[i]
	m.draftEntries -= int(r.at)
	freed = m.draft.unmark(r.draftLast)
	m.chargeDraft(m.nodes[r.node].realm, -freed, 0)
	r.draftLast = -1
	for n := r.node; !m.nodes[n].isRoot() && m.nodes[n].draft == i; n = m.nodes[n].parent {
		m.nodes[n].draft = m.newestDraft(n)
	}
	return freed
}

func (m *Manager) newer(a, b int32) int32 {
	if a < 0 || b >= 0 && m.records[b].draftSeq > m.records[a].draftSeq {
		return b
	}
	return a
}

// newestDraft is the newest record with a draft path that ends in or below a node.
func (m *Manager) newestDraft(n int32) int32 { return m.newestDraftFrom(n, 0) }

// newestDraftFrom looks only at records that end at block at of the node or deeper.
func (m *Manager) newestDraftFrom(n, at int32) int32 {
	best := int32(-1)
	for i := m.nodes[n].deep; i >= 0 && m.records[i].at >= at; i = m.records[i].above {
		if m.records[i].draftLast >= 0 {
			best = m.newer(best, i)
		}
	}
	for c := m.nodes[n].child; c >= 0; c = m.nodes[c].sibling {
		best = m.newer(best, m.nodes[c].draft)
	}
	return best
}

// draftReach is the deepest boundary of a node that a draft path covers. One does.
func (m *Manager) draftReach(x *node) int32 {
	for c := x.child; c >= 0; c = m.nodes[c].sibling {
		if m.nodes[c].draft >= 0 {
			return x.end
		}
	}
	i := x.deep
	for m.records[i].draftLast < 0 {
		i = m.records[i].above
	}
	return m.records[i].at
}

// longestDraft finds the last block boundary at or above p that some record's
// draft path covers, and the newest record that covers it (C-29). p.at = 0: none.
func (m *Manager) longestDraft(p place) (place, int32) {
	for ; !m.nodes[p.node].isRoot(); p.node, p.at = m.nodes[p.node].parent, m.nodes[p.node].start {
		x := &m.nodes[p.node]
		if x.draft < 0 {
			continue
		}
		// The newest of all that end here or below covers p nearly always: a node may have
		// very many children, where many prompts begin alike, and none is looked at then.
		if newest := &m.records[x.draft]; newest.node != p.node || newest.at >= p.at {
			return p, x.draft
		}
		p.at = min(p.at, m.draftReach(x))
		return p, m.newestDraftFrom(p.node, p.at)
	}
	return place{node: p.node}, -1
}
