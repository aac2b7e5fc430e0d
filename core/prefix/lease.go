package prefix

import "libprefixcache/core/status"

// lease is one request's ownership: cells at the front that it shares with the
// index, and private ones behind them.
//
// cells has one cell for each block it holds, in order. segs says who keeps
// them: a run of nodes that the lease pins, or the lease alone. Nearly always
// there are two segments, one of each; more appear when another producer
// published the same blocks first (C-58) or when nodes came back under other parents.
type lease struct {
	gen       uint32
	live      bool
	mode      Mode
	attention bool

	realm      int32
	cells      []int32
	segs       []segment
	draft      []int32
	history    int      // tokens
	early      []int32  // tokens of the history that have no page yet
	matched    int32    // blocks matched at acquisition: their content is settled
	dependency int32    // blocks that a publication must cover (C-48), 0 = none
	settled    int32    // keys level: blocks whose keys can no longer change
	keyed      int32    // keys level: blocks whose keys a caller has given
	cursor     place    // how far the sequence is known to be in the index
	miss       lookup   // where the prompt left it
	last       struct { // what was published last: most decode steps end no block, and publish that again
		record, blocks int32
		id             uint64
	}

	recurrent, partial int32 // slots bound by a hit, -1 = none
	reserved           []int32
	reservedPartial    []int32
}

// segment is cells [start, end) of a lease. bottom is the lowest node of a run
// of pinned nodes linked by up, or -1 for cells that only this lease has.
// The nodes of a run are found by walking up from bottom, so
// splits need not be told.
type segment struct {
	bottom, start, end int32
}

// openLease returns a free lease slot; nothing counts until live is set.
func (m *Manager) openLease() int32 {
	if n := len(m.leaseFree); n > 0 {
		return m.leaseFree[n-1]
	}
	m.leases = append(m.leases, lease{})
	i := int32(len(m.leases) - 1)
	m.leaseFree = append(m.leaseFree, i)
	return i
}

func (m *Manager) leaseID(i int32) LeaseID {
	return (LeaseID(m.leases[i].gen)<<32 | LeaseID(i+1)) ^ LeaseID(m.cfg.LeaseMask)
}

// leaseSlot is the slot of a live lease.
func (m *Manager) leaseSlot(id LeaseID) int32 { return int32(uint32(id)^uint32(m.cfg.LeaseMask)) - 1 }

// lookup is nil for an id that is stale, foreign or invented; small enough for the
// compiler to place it inline.
func (m *Manager) lookup(id LeaseID) *lease {
	id ^= LeaseID(m.cfg.LeaseMask)
	if i := uint(uint32(id)) - 1; i < uint(len(m.leases)) {
		if l := &m.leases[i]; l.live && l.gen == uint32(id>>32) {
			return l
		}
	}
	return nil
}

// find is lookup with an error, never a crash.
func (m *Manager) find(id LeaseID) (*lease, error) {
	if l := m.lookup(id); l != nil {
		return l, nil
	}
	return nil, staleLease(id)
}

func staleLease(id LeaseID) error {
	return status.New(status.BadHandle, "lease %#x is empty, stale or was never issued", uint64(id))
}

// pinPath takes ownership of the path from the root down to p, which must end at
// the end of its node, and writes the lease's segments.
func (m *Manager) pinPath(l *lease, p place) {
	below := int32(-1)
	for n := p.node; !m.nodes[n].isRoot(); n = m.nodes[n].parent {
		x := &m.nodes[n]
		m.pinNode(x)
		// Segments come out lowest first: the present one goes on while the
		// ownership link and the index agree.
		if below >= 0 && m.nodes[below].up == n {
			l.segs[len(l.segs)-1].start = x.start
		} else {
			l.segs = append(l.segs, segment{n, x.start, x.end})
		}
		below = n
	}
	for i, j := 0, len(l.segs)-1; i < j; i, j = i+1, j-1 {
		l.segs[i], l.segs[j] = l.segs[j], l.segs[i]
	}
}

func (m *Manager) pinNode(x *node) {
	if x.pins == 0 && !x.shadow {
		m.base.active += int(x.end - x.start)
		m.charge(x.realm, 0, int(x.end-x.start))
	}
	x.pins++
}

// unpinSegment gives up the nodes of a segment, lowest first.
func (m *Manager) unpinSegment(s segment) {
	// The walk needs up of a node after that node may have been freed.
	for n, top := s.bottom, false; !top; {
		x := &m.nodes[n]
		up := x.up
		top = x.start <= s.start
		x.pins--
		if x.pins == 0 {
			if !x.shadow {
				m.base.active -= int(x.end - x.start)
				m.charge(x.realm, 0, -int(x.end-x.start))
			}
			if !x.attached {
				m.freeCells(m.cells(x), x.shadow)
				if !x.shadow {
					m.charge(x.realm, -int(x.end-x.start), 0)
				}
				m.freeNode(n)
			}
		}
		n = up
	}
}

// freeCells puts cells back where they came from, the first of them to be used before the others.
func (m *Manager) freeCells(cells []int32, shadow bool) {
	m.clearCells(cells)
	if shadow {
		m.content.spare = append(m.content.spare, cells...)
	} else {
		m.base.free.put(cells)
	}
}

// takeCells appends n private cells to a lease. For pages, capacity was checked.
func (m *Manager) takeCells(l *lease, n int) {
	if n == 0 {
		return
	}
	had := int32(len(l.cells))
	switch {
	case l.attention && n == 1:
		l.cells = append(l.cells, m.base.takeOne())
		m.charge(l.realm, 1, 1)
	case l.attention:
		l.cells = m.base.take(n, l.cells)
		m.charge(l.realm, n, n)
	default:
		for range n {
			l.cells = append(l.cells, m.content.takeShadow())
		}
	}
	end := int32(len(l.cells))
	if k := len(l.segs); k > 0 && l.segs[k-1].bottom < 0 {
		l.segs[k-1].end = end
	} else {
		l.segs = append(l.segs, segment{-1, had, end})
	}
}

// write puts words of the history, from position at on, into the lease's cells.
// What has no cell yet waits in early.
func (m *Manager) write(l *lease, at int, words []int32, media []Hash128) {
	w := m.content.width
	first, off := at/w, at%w
	if off != 0 && first < len(l.cells) { // continue a block that was begun: text only
		words = words[copy(m.content.cell(l.cells[first])[off:], words):]
		first++
	}
	if len(words) == 0 {
		return
	}
	n := min(len(words), max(0, len(l.cells)-first)*w)
	if n > 0 {
		if media != nil {
			media = media[:n]
		}
		m.content.fill(l.cells[first:], words[:n], media)
	}
	if n < len(words) {
		l.early = add(l.early, m.cfg.ZeroOnRelease, words[n:]...)
	}
}

// Release ends the lease and drops everything it still owns, exactly once. The
// empty id is a no-op; a released id is stale (C-64).
func (m *Manager) Release(id LeaseID) error {
	if id == 0 {
		return nil
	}
	l, err := m.find(id)
	if err != nil {
		return err
	}
	for _, s := range l.segs {
		if s.bottom >= 0 {
			m.unpinSegment(s)
			continue
		}
		m.freeCells(l.cells[s.start:s.end], !l.attention)
		if l.attention {
			m.base.active -= int(s.end - s.start)
			m.charge(l.realm, -int(s.end-s.start), -int(s.end-s.start))
		}
	}
	m.unpinDraft(l)
	m.dropRestored(l)
	for _, s := range l.reserved {
		m.dropSlot(RecurrentSlots, l.realm, s, 1, 0)
	}
	for _, s := range l.reservedPartial {
		m.dropSlot(PartialSlots, l.realm, s, 1, 0)
	}
	m.clearTokens(l)
	r := l.realm
	*l = lease{gen: l.gen + 1, cells: l.cells[:0], segs: l.segs[:0], draft: l.draft[:0], early: l.early[:0],
		reserved: l.reserved[:0], reservedPartial: l.reservedPartial[:0]}
	m.leaseFree = append(m.leaseFree, m.leaseSlot(id))
	m.liveLeases--
	if m.tenants != nil { // the realm is still open: what is evicted may be its last record
		m.settleQuota(m.realms[r].tenant)
	}
	m.realms[r].leases--
	if m.realms[r].leases == 0 {
		m.closeRealm(r)
	}
	return nil
}
