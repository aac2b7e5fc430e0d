package prefix

import (
	"iter"

	"libprefixcache/core/status"
)

// Queries change nothing: no reference, no recency, no counter (C-25, C-36).

// Free is the number of free slots of a pool.
func (m *Manager) Free(pool Resource) int {
	switch pool {
	case BasePages:
		return m.base.free.n
	case DraftPages:
		return m.draft.free.n
	case RecurrentSlots:
		return m.recurrent.free.n
	case PartialSlots:
		return m.partial.free.n
	}
	return 0
}

// Active is the number of slots of a pool that a lease owns. What is neither
// free nor active is cached only: evicting all records would free exactly that.
func (m *Manager) Active(pool Resource) int {
	switch pool {
	case BasePages:
		return m.base.active
	case DraftPages:
		return m.draft.active
	case RecurrentSlots:
		return m.recurrent.active
	case PartialSlots:
		return m.partial.active
	}
	return 0
}

// Capacity is the size of a pool.
func (m *Manager) Capacity(pool Resource) int {
	switch pool {
	case BasePages:
		return m.cfg.BasePages
	case DraftPages:
		return m.cfg.DraftPages
	case RecurrentSlots:
		return m.cfg.RecurrentSlots
	case PartialSlots:
		return m.cfg.PartialSlots
	}
	return 0
}

// Pools are the sizes of all pools.
func (m *Manager) Pools() (size Demand) {
	for pool := range size {
		size[pool] = m.Capacity(Resource(pool))
	}
	return size
}

// Feasible says whether a demand can be met now, with eviction if need be (C-41,
// C-42). It takes constant time. A negative demand is never feasible (C-20).
func (m *Manager) Feasible(d Demand) bool {
	for _, n := range d {
		if n < 0 {
			return false
		}
	}
	return m.base.canHold(0, d[BasePages]) && m.draft.canHold(0, d[DraftPages]) &&
		m.recurrent.canHold(0, d[RecurrentSlots]) && m.partial.canHold(0, d[PartialSlots])
}

// Config returns what the manager was made with.
func (m *Manager) Config() Config { return m.cfg }

// Counters returns a copy of the counters.
func (m *Manager) Counters() Counters { return m.counters }

// Records is the number of resident records, Leases that of live leases.
func (m *Manager) Records() int { return m.recordCount }
func (m *Manager) Leases() int  { return m.liveLeases }

// IndexedPages is the number of base pages that the index maps, DraftEntries
// that of the block boundaries over all draft paths (C-69), Nodes that of runs.
func (m *Manager) IndexedPages() int { return m.indexed }
func (m *Manager) DraftEntries() int { return m.draftEntries }
func (m *Manager) Nodes() int        { return len(m.nodes) - len(m.nodeFree) }

// RecordInfo describes one record.
type RecordInfo struct {
	ID        RecordID
	Blocks    int   // full blocks
	Exact     int   // tokens of a checkpoint, 0 for an ordinary record
	Recurrent int32 // snapshot slot, -1 = none
	Partial   int32
	HasDraft  bool
}

func (m *Manager) info(i int32) RecordInfo {
	r := &m.records[i]
	return RecordInfo{RecordID(r.id), int(r.at), int(r.exact), r.recurrent, r.partial, r.draftLast >= 0}
}

// AllRecords yields the resident records, next victim first. The manager must
// not be changed meanwhile.
func (m *Manager) AllRecords() iter.Seq[RecordInfo] {
	return func(yield func(RecordInfo) bool) {
		for i := m.order.First(); i >= 0 && yield(m.info(i)); i = m.order.After(i) {
		}
	}
}

// Record describes one record by id.
func (m *Manager) Record(id RecordID) (RecordInfo, error) {
	i := m.recordByID(id)
	if i < 0 {
		return RecordInfo{}, status.New(status.NotFound, "record %d is not resident", id)
	}
	return m.info(i), nil
}

// RecordPages appends the whole page path of a record: base pages (none for a
// pure recurrent one) or draft pages.
func (m *Manager) RecordPages(id RecordID, pool Resource, out []int32) ([]int32, error) {
	i := m.recordByID(id)
	if i < 0 {
		return out, status.New(status.NotFound, "record %d is not resident", id)
	}
	r := &m.records[i]
	n := int(r.at)
	switch {
	case pool > DraftPages:
		return out, status.New(status.InvalidArgument, "pool is %d, expected 0 (base) or 1 (draft)", pool)
	case pool == DraftPages && r.draftLast < 0, m.nodes[r.node].shadow && pool == BasePages, n == 0:
		return out, nil
	}
	at := len(out)
	out = append(out, make([]int32, n)...)
	if pool == DraftPages {
		m.fillDraft(r, r.at, out[at:])
	} else {
		m.fillCells(r.node, r.at, out[at:])
	}
	return out, nil
}

// fillCells writes the cells of blocks [0, at) of the path through node id.
func (m *Manager) fillCells(id, at int32, out []int32) {
	for ; !m.nodes[id].isRoot(); id = m.nodes[id].parent {
		x := &m.nodes[id]
		copy(out[x.start:], m.cells(x)[:min(at, x.end)-x.start])
	}
}

// Lookup appends the base pages of the longest cached prefix of a request and
// returns its length in blocks (C-24), whatever the request's mode would reuse.
func (m *Manager) Lookup(req *AcquireRequest, out []int32) (int, []int32, error) {
	if err := m.checkRequest(req); err != nil {
		return 0, out, err
	}
	r := m.findRealm(req.Extras, !req.NoAttention)
	if r < 0 {
		return 0, out, nil
	}
	src := source{words: req.Tokens, media: req.Media}
	if m.cfg.Identity == Keys {
		src.words = keyWords(req.Keys)
	}
	m.scratch = m.scratch[:0]
	collisions := m.counters.HashCollisions
	p := m.descend(m.rootPlace(r), &src, int32(len(src.words)/m.content.width), &m.scratch)
	m.counters.HashCollisions = collisions
	if !req.NoAttention {
		out = append(out, m.scratch...)
	}
	return int(p.at), out, nil
}

// References writes the active and the cache count of every slot of a pool (C-68).
// They are counted afresh from leases and records, so it takes time in proportion.
func (m *Manager) References(pool Resource, active, cache []int32) error {
	n := m.Capacity(pool)
	if pool >= resourceCount {
		return status.New(status.InvalidArgument, "pool is %d, expected 0..%d", pool, resourceCount-1)
	}
	if len(active) < n || len(cache) < n {
		return status.New(status.BufferTooSmall, "room for %d and %d counts, pool %s has %d slots", len(active), len(cache), pool, n)
	}
	clear(active[:n])
	clear(cache[:n])
	if pool == RecurrentSlots || pool == PartialSlots {
		p := &m.recurrent
		if pool == PartialSlots {
			p = &m.partial
		}
		for i, r := range p.refs {
			active[i], cache[i] = r.active, r.cache
		}
		return nil
	}
	for i := range m.leases {
		l := &m.leases[i]
		if !l.live {
			continue
		}
		pages := l.draft
		if pool == BasePages {
			if pages = l.cells; !l.attention {
				continue
			}
		}
		for _, p := range pages {
			active[p]++
		}
	}
	for i := m.order.First(); i >= 0; i = m.order.After(i) {
		r := &m.records[i]
		switch {
		case pool == DraftPages && r.draftLast >= 0:
			for p := r.draftLast; p >= 0; p = m.draft.prev[p] {
				cache[p]++
			}
		case pool == BasePages && !m.nodes[r.node].shadow:
			for id, at := r.node, r.at; !m.nodes[id].isRoot(); id = m.nodes[id].parent {
				x := &m.nodes[id]
				for _, cell := range m.cells(x)[:min(at, x.end)-x.start] {
					cache[cell]++
				}
			}
		}
	}
	return nil
}
