package prefix

// shorten frees need pages, and a few more, from the deep end of a victim that
// would give back more than that, and leaves the rest of it in its place in the
// order (Config.ShortenVictims). False: the record is not of the kind, or has no
// more than that to give; it is evicted then.
func (m *Manager) shorten(i int32, need int) bool {
	r := &m.records[i]
	x := &m.nodes[r.node]
	// An ordinary record that ends a leaf nobody uses: cutting it concerns nothing else.
	if r.exact != 0 || r.draftLast >= 0 || x.shadow || x.pins > 0 || x.child >= 0 || x.deep != i {
		return false
	}
	floor, cell := x.start, x.first
	if r.above >= 0 {
		floor, cell = m.records[r.above].at, m.content.next[m.records[r.above].cell]
	}
	// More at a time than asked for, so that the walk below is not taken for
	// every page of a growing decode.
	drop := max(int32(need), min(shortenPages, (r.at-floor)/2))
	keep := r.at - drop
	if keep <= floor {
		return false
	}
	next := m.content.next
	for left := keep - floor - 1; left > 0; { // to the cell of block keep-1, run by run
		run := adjacent(next[:m.content.base], cell, left+1)
		if run > left {
			cell += left
			break
		}
		cell, left = next[cell+run-1], left-run
	}
	tail := chain{m.content.next[cell], x.last, int(drop)}
	m.clearCells(tail)
	m.base.put(tail)
	r.at, r.cell = keep, cell
	x.end, x.last = keep, cell
	x.gen++ // places behind the new end mean nothing any more
	m.indexed -= int(drop)
	m.charge(x.realm, -int(drop), 0)
	m.counters.ShortenedRecords++
	m.counters.Reclaimed[BasePages] += uint64(drop)
	return true
}

const shortenPages = 32
