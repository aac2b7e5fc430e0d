package prefix

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// model is the specification written down as directly as possible: prefixes are
// strings, the index is a map, records carry their whole paths, and eviction is
// simulated count by count. It shares nothing with the tree. Page ids are the
// manager's: which free page a lease gets is the pool's business (C-17), that it
// was free is checked here.
type model struct {
	cfg    Config
	refs   [resourceCount]map[int32]*[2]int // in use: active, cache
	index  map[string]int32                 // prefix -> canonical base page
	recs   []*modelRecord                   // least recent first
	nextID uint64
	seq    int
	evict  Counters
}

type modelRecord struct {
	id        uint64
	exact     int
	exactKey  string
	blocks    []string
	base      []int32
	draft     []int32
	seq       int
	rec, part int32
}

type modelLease struct {
	id        LeaseID
	mode      Mode
	attention bool
	realm     string
	pos       []string // one per token: what it is
	base      []int32
	draft     []int32
	matched   int
	dep       int
	rec, part int32
	reserved  []Reservation
	keyed     int // keys level: blocks whose keys the manager has
	settled   int // and those that can no longer change
	stale     bool
}

func newModel(cfg Config) *model {
	m := &model{cfg: cfg, index: map[string]int32{}}
	for i := range m.refs {
		m.refs[i] = map[int32]*[2]int{}
	}
	return m
}

func (l *modelLease) prefix(n int) string { return l.realm + strings.Join(l.pos[:n], ",") }

func (m *model) add(pool Resource, id int32, active, cache int) {
	r := m.refs[pool][id]
	if r == nil {
		r = &[2]int{}
		m.refs[pool][id] = r
	}
	r[0] += active
	r[1] += cache
	if r[0] < 0 || r[1] < 0 {
		panic(fmt.Sprintf("model: pool %s slot %d below zero", pool, id))
	}
	if *r == [2]int{} {
		delete(m.refs[pool], id)
	}
}

func (m *model) capacity(pool Resource) int {
	return [...]int{m.cfg.BasePages, m.cfg.DraftPages, m.cfg.RecurrentSlots, m.cfg.PartialSlots}[pool]
}

func (m *model) free(pool Resource) int { return m.capacity(pool) - len(m.refs[pool]) }

func (r *modelRecord) resources(pool Resource) []int32 {
	one := func(s int32) []int32 {
		if s < 0 {
			return nil
		}
		return []int32{s}
	}
	switch pool {
	case BasePages:
		return r.base
	case DraftPages:
		return r.draft
	case RecurrentSlots:
		return one(r.rec)
	default:
		return one(r.part)
	}
}

// planEviction is C-40..C-42, literally.
func (m *model) planEviction(d Demand, last *modelRecord) (victims []*modelRecord, ok bool) {
	var have Demand
	fits := func() bool {
		for p := range d {
			if have[p] < d[p] {
				return false
			}
		}
		return true
	}
	for p := range d {
		have[p] = m.free(Resource(p))
	}
	if fits() {
		return nil, true
	}
	order := slices.Clone(m.recs)
	if i := slices.Index(order, last); i >= 0 {
		order = append(slices.Delete(order, i, i+1), last)
	}
	var cache [resourceCount]map[int32]int
	for p := range cache {
		cache[p] = map[int32]int{}
	}
	for _, r := range order {
		victims = append(victims, r)
		for p := range resourceCount {
			for _, id := range r.resources(p) {
				if _, seen := cache[p][id]; !seen {
					cache[p][id] = m.refs[p][id][1]
				}
				cache[p][id]--
				if cache[p][id] == 0 && m.refs[p][id][0] == 0 {
					have[p]++
				}
			}
		}
		if fits() {
			return victims, true
		}
	}
	return nil, false
}

func (m *model) drop(r *modelRecord) {
	m.recs = slices.DeleteFunc(m.recs, func(o *modelRecord) bool { return o == r })
	m.evict.EvictedRecords++
	for p := range resourceCount {
		for i, id := range r.resources(p) {
			m.add(p, id, 0, -1)
			refs := m.refs[p][id]
			if refs == nil {
				m.evict.Reclaimed[p]++
			}
			if p == BasePages && (refs == nil || refs[1] == 0) {
				delete(m.index, r.blocks[i])
			}
		}
	}
}

func (m *model) touch(r *modelRecord) {
	if i := slices.Index(m.recs, r); i >= 0 {
		m.recs = append(slices.Delete(m.recs, i, i+1), r)
	}
}

func (m *model) byID(id RecordID) *modelRecord {
	for _, r := range m.recs {
		if r.id == uint64(id) {
			return r
		}
	}
	return nil
}

// modelPlan plans a request over strings.
type modelPlan struct {
	matched, reuse, bound int
	found                 int // blocks in the index, before any trim
	kind                  PlanKind
	replay                ReplayMode
	dep                   int
	record                *modelRecord // nil for vanilla
	rec, part             int32
	demand                Demand
}

func (m *model) plan(l *modelLease, media []bool, policy LookupPolicy) modelPlan {
	P, n := m.cfg.PageTokens, len(l.pos)
	pages := (n + P - 1) / P
	pl := modelPlan{rec: -1, part: -1}
	if n == 0 {
		return pl
	}
	splits := func(at int) bool { return at > 0 && at < len(media) && media[at-1] && media[at] }
	k := 0
	if policy == UseCache {
		for k < n/P {
			if _, ok := m.index[l.prefix((k+1)*P)]; !ok {
				break
			}
			k++
		}
	}
	pl.found = k
	trim := func(keep int) {
		want := keep
		for splits(keep * P) {
			keep--
		}
		pl.bound, pl.reuse = keep, keep*P
		if keep != want {
			pl.matched, pl.kind = keep*P, Standard
			if keep == 0 {
				pl.kind = NoReusablePrefix
			}
		}
	}
	switch {
	case policy == Bypass:
		pl.kind = NoReusablePrefix
	case l.mode == Vanilla:
		pl.matched = k * P
		switch {
		case k > 0 && k*P == n:
			pl.kind = FullInputRewind
			trim(k - 1)
		case k == 0:
			pl.kind = NoReusablePrefix
		default:
			trim(k)
		}
	case l.mode == Spec:
		pair := 0
		for ; k > 0 && pair == 0; k-- {
			for _, r := range m.recs {
				if len(r.draft) >= k && r.blocks[k-1] == l.prefix(k*P) && (pl.record == nil || r.seq > pl.record.seq) {
					pl.record, pair = r, k
				}
			}
		}
		if pair == 0 {
			pl.kind = NoReusablePrefix
			break
		}
		pl.matched, pl.replay = pair*P, FullPageReplay
		switch {
		case pair*P == n:
			pl.kind = FullInputRewind
		case pair == 1:
			pl.kind = NoReusablePrefix
		}
		trim(pair - 1)
		if pl.bound > 0 {
			pl.dep = pl.bound + 1
		} else {
			pl.record = nil
		}
	case l.mode == Hybrid:
		pl.kind = NoReusablePrefix
		for L := n - 1; L > 0 && pl.record == nil; L-- {
			if splits(L) {
				continue
			}
			for _, r := range m.recs {
				if r.exact == L && r.exactKey == l.prefix(L) {
					pl.record, pl.kind, pl.matched, pl.reuse, pl.bound = r, Standard, L, L, L/P
					pl.rec, pl.part = r.rec, r.part
				}
			}
		}
	}
	if !l.attention {
		pl.bound = 0
		return pl
	}
	pl.demand[BasePages] = pages - pl.bound
	if l.mode == Spec {
		pl.demand[DraftPages] = pages - pl.bound
	}
	return pl
}

// publish is 9.3 and 9.4 for the first c blocks, exact = 0 for an ordinary record.
func (m *model) publish(l *modelLease, c, exact int, slots Reservation) (PublishStatus, *modelRecord) {
	P := m.cfg.PageTokens
	var blocks []string
	for i := range c {
		blocks = append(blocks, l.prefix((i+1)*P))
	}
	length := exact
	if exact == 0 {
		length = c * P
	}
	for _, r := range m.recs {
		have := r.exact
		if have == 0 {
			have = len(r.blocks) * P
		}
		same := have == length
		if same && r.exact != 0 {
			same = r.exactKey == l.prefix(length)
		} else if same {
			same = r.blocks[len(r.blocks)-1] == l.prefix(length)
		}
		if !same {
			continue
		}
		m.touch(r)
		if l.mode == Spec && r.draft == nil {
			m.seq++
			r.draft, r.seq = slices.Clone(l.draft[:c]), m.seq
			for _, p := range r.draft {
				m.add(DraftPages, p, 0, 1)
			}
			return Published, r
		}
		return ExistingRecord, r
	}
	m.nextID++
	r := &modelRecord{id: m.nextID, exact: exact, blocks: blocks, rec: slots.Recurrent, part: slots.Partial}
	if exact > 0 {
		r.exactKey = l.prefix(exact)
	}
	if l.attention {
		for i, b := range blocks {
			page, ok := m.index[b]
			if !ok {
				page = l.base[i]
				m.index[b] = page
			}
			r.base = append(r.base, page)
		}
	}
	if l.mode == Spec {
		m.seq++
		r.draft, r.seq = slices.Clone(l.draft[:c]), m.seq
	}
	for p := range resourceCount {
		for _, id := range r.resources(p) {
			m.add(p, id, 0, 1)
		}
	}
	m.recs = append(m.recs, r)
	if len(m.recs) > m.cfg.MaxRecords {
		m.drop(m.recs[0])
	}
	return Published, m.byID(RecordID(r.id))
}

// compare holds the manager against the model, C-67..C-71 included.
func (m *model) compare(t *testing.T, mgr *Manager, what string) {
	t.Helper()
	bad := func(format string, args ...any) {
		t.Helper()
		var b strings.Builder
		mgr.Dump(&b)
		t.Fatalf("after %s: %s\n%s", what, fmt.Sprintf(format, args...), b.String())
	}
	if err := mgr.Check(); err != nil {
		bad("%v", err)
	}
	for p := range resourceCount {
		n := m.capacity(p)
		active, cache := make([]int32, n), make([]int32, n)
		if err := mgr.References(p, active, cache); err != nil {
			bad("%v", err)
		}
		if mgr.Free(p) != m.free(p) {
			bad("%s free %d, model %d", p, mgr.Free(p), m.free(p))
		}
		for i := range n {
			var want [2]int
			if r := m.refs[p][int32(i)]; r != nil {
				want = *r
			}
			if int(active[i]) != want[0] || int(cache[i]) != want[1] {
				bad("%s %d has %d/%d, model %d/%d (C-68)", p, i, active[i], cache[i], want[0], want[1])
			}
		}
	}
	if mgr.IndexedPages() != len(m.index) {
		bad("index has %d pages, model %d (C-69)", mgr.IndexedPages(), len(m.index))
	}
	i := 0
	for info := range mgr.AllRecords() {
		if i >= len(m.recs) || uint64(info.ID) != m.recs[i].id {
			bad("record %d at position %d, model has %d records", info.ID, i, len(m.recs))
		}
		r := m.recs[i]
		base, _ := mgr.RecordPages(info.ID, BasePages, nil)
		draft, _ := mgr.RecordPages(info.ID, DraftPages, nil)
		if !slices.Equal(base, r.base) || !slices.Equal(draft, r.draft) || info.Exact != r.exact || info.Recurrent != r.rec || info.Partial != r.part {
			bad("record %d is %v %v %+v, model %+v", info.ID, base, draft, info, *r)
		}
		for k := range r.base {
			if m.index[r.blocks[k]] != r.base[k] {
				bad("record %d block %d: index %d, path %d (C-67)", info.ID, k, m.index[r.blocks[k]], r.base[k])
			}
		}
		i++
	}
	if i != len(m.recs) {
		bad("%d records, model %d", i, len(m.recs))
	}
	c := mgr.Counters()
	if c.EvictedRecords != m.evict.EvictedRecords || c.Reclaimed != m.evict.Reclaimed {
		bad("evicted %d reclaimed %v, model %d %v (C-66)", c.EvictedRecords, c.Reclaimed, m.evict.EvictedRecords, m.evict.Reclaimed)
	}
}
