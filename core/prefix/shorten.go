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
	floor := x.start
	if r.above >= 0 {
		floor = m.records[r.above].at
	}
	// More at a time than asked for, so that a growing decode does not come here for
	// every page.
	drop := max(int32(need), min(shortenPages, (r.at-floor)/2))
	keep := r.at - drop
	if keep <= floor {
		return false
	}
	m.freeCells(m.cells(x)[keep-x.start:], false)
	r.at, x.end = keep, keep
	x.gen++ // places behind the new end mean nothing any more
	m.indexed -= int(drop)
	m.charge(x.realm, -int(drop), 0)
	m.counters.ShortenedRecords++
	m.counters.Reclaimed[BasePages] += uint64(drop)
	return true
}

const shortenPages = 32
