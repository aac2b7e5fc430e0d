package prefix

import "math/bits"

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
	cell = m.walk(r, floor, cell, keep-1)
	tail := chain{m.content.next[cell], x.last, int(drop)}
	m.clearCells(tail)
	m.base.put(tail)
	r.at, r.cell, r.way = keep, cell, -1
	x.end, x.last = keep, cell
	x.gen++ // places behind the new end mean nothing any more
	m.indexed -= int(drop)
	m.charge(x.realm, -int(drop), 0)
	m.counters.ShortenedRecords++
	m.counters.Reclaimed[BasePages] += uint64(drop)
	return true
}

const shortenPages = 32

// setWay notes a cell about half way of the new blocks at the end of a record, a power of
// two of blocks before it: a first waypoint. A few blocks need none.
func (r *record) setWay(cells []int32) {
	n := len(cells)
	r.wayBack = uint8(bits.Len(uint(n))) - 2
	r.way = cells[n-1<<r.wayBack]
}

// waypoints are places on the path of one record, from its beginning on. The victim that
// was cut last is nearly always the next one, too: it is walked once then, and not for
// every request that it makes room for, each link of a page long unused being a cache miss.
type waypoints struct {
	record uint64 // its id
	n      int
	at     [8]struct{ block, cell int32 }
}

// walk finds the cell of block to of a record that ends behind it, in the node of block
// from, whose cell is given.
func (m *Manager) walk(r *record, from, cell, to int32) int32 {
	w := &m.ways
	if w.record != r.id {
		*w = waypoints{record: r.id}
	}
	gap, known := (r.at-from)/int32(len(w.at)), from
	for _, p := range w.at[:w.n] {
		if from < p.block && p.block <= to {
			from, cell = p.block, p.cell
		}
		known = p.block
	}
	if block := r.at - 1<<r.wayBack; r.way >= 0 && from < block && block <= to {
		from, cell = block, r.way
	}
	next := m.content.next
	for from < to {
		run := adjacent(next[:m.content.base], cell, to-from+1)
		if from += run; from > to {
			return cell + run - 1
		}
		if cell = next[cell+run-1]; from-known >= gap && w.n < len(w.at) {
			w.at[w.n].block, w.at[w.n].cell = from, cell
			w.n, known = w.n+1, from
		}
	}
	return cell
}
