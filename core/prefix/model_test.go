package prefix

import (
	"fmt"
	"math/rand/v2"
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
	keyed     int // blocks whose keys the manager has
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

// modelPlan is section 8 over strings.
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

// world is a random run of a manager beside its model.
type world struct {
	t      *testing.T
	r      *rand.Rand
	mgr    *Manager
	m      *model
	leases []*modelLease
	realms []*Extras
	modes  []Mode
	shadow bool // hybrid without attention
	asked  []asked
	seen   map[string]int
}

// prompt is new, or forks off something that was asked before: whole, cut, with
// another continuation, or with other media at the same tokens.
func (w *world) prompt() (tokens []int32, media []Hash128, pos []string, isMedia []bool) {
	n := w.r.IntN(30)
	if w.r.IntN(8) == 0 {
		n = w.r.IntN(80)
	}
	if len(w.asked) > 0 && w.r.IntN(4) > 0 {
		old := w.asked[w.r.IntN(len(w.asked))]
		cut := w.r.IntN(len(old.tokens) + 1)
		if w.r.IntN(3) == 0 {
			cut = len(old.tokens)
		}
		tokens, media = slices.Clone(old.tokens[:cut]), slices.Clone(old.media[:cut])
		n = cut + w.r.IntN(3)*w.r.IntN(8)
	}
	for i := len(tokens); i < n; i++ {
		tokens, media = append(tokens, int32(w.r.IntN(3)/2)), append(media, Hash128{})
	}
	if n > 0 && w.r.IntN(6) == 0 {
		lo, d := w.r.IntN(n), Hash128{7, uint64(w.r.IntN(2))}
		for i := lo; i < min(n, lo+w.r.IntN(12)); i++ {
			media[i] = d
		}
	}
	if ask := (asked{tokens, media}); len(w.asked) < 40 {
		w.asked = append(w.asked, ask)
	} else {
		w.asked[w.r.IntN(40)] = ask
	}
	isMedia = make([]bool, n)
	for i := range tokens {
		isMedia[i] = !media[i].IsZero()
		if isMedia[i] {
			pos = append(pos, fmt.Sprintf("m%v", media[i]))
		} else {
			pos = append(pos, fmt.Sprintf("t%d", tokens[i]))
		}
	}
	if !slices.Contains(isMedia, true) && w.r.IntN(2) == 0 {
		media = nil
	}
	return
}

type asked struct {
	tokens []int32
	media  []Hash128
}

func (w *world) evict(victims []*modelRecord) {
	for _, v := range victims {
		w.m.drop(v)
	}
}

func (w *world) acquire() {
	t := w.t
	tokens, media, pos, isMedia := w.prompt()
	k := w.r.IntN(len(w.realms))
	req := &AcquireRequest{Mode: w.modes[w.r.IntN(len(w.modes))], Tokens: tokens, Media: media, Extras: w.realms[k]}
	if w.r.IntN(20) == 0 {
		req.Policy = Bypass
	}
	req.NoAttention = req.Mode == Hybrid && w.shadow
	if w.m.cfg.Identity == Keys { // a cache of keys knows no media
		media, isMedia = nil, nil
	}
	l := &modelLease{mode: req.Mode, attention: !req.NoAttention, realm: fmt.Sprintf("r%d;%v;", k, req.NoAttention), pos: pos, rec: -1, part: -1}
	if w.m.cfg.Identity == Keys {
		req.Tokens, req.Media, req.TokenCount = nil, nil, len(tokens)
		req.Keys = w.keys(l, len(tokens)/w.m.cfg.PageTokens)
		if req.Mode == Hybrid {
			for n := range len(tokens) {
				req.Checkpoints = append(req.Checkpoints, Checkpoint{n, OpaqueIdentity([]byte(l.prefix(n)))})
			}
		}
	}
	want := w.m.plan(l, isMedia, req.Policy)
	query, err := w.mgr.Plan(req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.mgr.Acquire(req)
	if err != nil {
		t.Fatal(err)
	}
	pl := got.Plan
	if query != pl {
		t.Fatalf("Plan says %+v, Acquire %+v", query, pl)
	}
	rec := want.record
	if req.Mode == Vanilla {
		// The deepest record that ends on the matched path (C-53, improved).
		for _, r := range w.m.recs {
			at := len(r.blocks)
			if !w.m.cfg.OriginalRecency && req.Policy == UseCache && at > 0 && at <= want.found && r.blocks[at-1] == l.prefix(at*w.m.cfg.PageTokens) &&
				(rec == nil || at > len(rec.blocks) || at == len(rec.blocks) && r.exact > rec.exact) {
				rec = r
			}
		}
	}
	if (rec == nil) != (pl.Record == 0) || rec != nil && rec.id != uint64(pl.Record) {
		t.Fatalf("plan names record %d, model %+v", pl.Record, rec)
	}
	if pl.Matched != want.matched || pl.Reuse != want.reuse || pl.BoundBase != want.bound || pl.Kind != want.kind || pl.Demand != want.demand ||
		pl.Replay != want.replay || pl.Dependency != want.dep || pl.Recurrent != want.rec || pl.Partial != want.part {
		t.Fatalf("plan for %v mode %d: %+v, model %+v", tokens, req.Mode, pl, want)
	}
	// Bind in the model before eviction is planned (C-50).
	P := w.m.cfg.PageTokens
	for i := range want.bound {
		l.base = append(l.base, w.m.index[l.prefix((i+1)*P)])
	}
	if req.Mode == Spec && want.bound > 0 {
		l.draft = slices.Clone(want.record.draft[:want.bound])
	}
	pin := func(d int) {
		for _, p := range l.base {
			w.m.add(BasePages, p, d, 0)
		}
		for _, p := range l.draft {
			w.m.add(DraftPages, p, d, 0)
		}
		if want.rec >= 0 {
			w.m.add(RecurrentSlots, want.rec, d, 0)
		}
		if want.part >= 0 {
			w.m.add(PartialSlots, want.part, d, 0)
		}
	}
	pin(1)
	victims, ok := w.m.planEviction(want.demand, rec)
	if ok != (got.Status == Acquired) {
		t.Fatalf("acquire status %d, model feasible %v (demand %v)", got.Status, ok, want.demand)
	}
	if !ok {
		pin(-1)
		w.m.compare(t, w.mgr, "infeasible acquire")
		w.seen["infeasible"]++
		return
	}
	w.evict(victims)
	w.m.touch(rec)
	l.id, l.matched, l.dep, l.rec, l.part = got.Lease, want.matched/P, want.dep, want.rec, want.part
	l.keyed = len(req.Keys)
	w.adopt(l, want.bound)
	w.leases = append(w.leases, l)
	w.seen[fmt.Sprintf("acquire-%d-%s", req.Mode, pl.Reason)]++
	if len(victims) > 0 {
		w.seen["evicting-acquire"]++
	}
}

// keys are what a runtime that hashes its blocks itself would pass.
func (w *world) keys(l *modelLease, n int) (keys []Hash128) {
	for i := range n {
		keys = append(keys, OpaqueIdentity([]byte(l.prefix((i+1)*w.m.cfg.PageTokens))))
	}
	return
}

// adopt reads a lease's pages from the manager: the old ones must be the same,
// the new ones must have been free.
func (w *world) adopt(l *modelLease, bound int) {
	w.t.Helper()
	for _, pool := range []Resource{BasePages, DraftPages} {
		old := &l.base
		if pool == DraftPages {
			old = &l.draft
		}
		n, err := w.mgr.PageCount(l.id, pool)
		if err != nil {
			w.t.Fatal(err)
		}
		pages := make([]int32, n)
		if err := w.mgr.Pages(l.id, pool, 0, pages); err != nil {
			w.t.Fatal(err)
		}
		if n < len(*old) || !slices.Equal(pages[:len(*old)], *old) {
			w.t.Fatalf("lease has %s pages %v, model %v", pool, pages, *old)
		}
		for _, p := range pages[len(*old):] {
			if w.m.refs[pool][p] != nil {
				w.t.Fatalf("%s page %d was handed out while in use", pool, p)
			}
			w.m.add(pool, p, 1, 0)
		}
		*old = pages
	}
}

func (w *world) grow(l *modelLease) {
	base, draft := w.r.IntN(3), 0
	if l.mode == Spec {
		draft = w.r.IntN(3)
	}
	if !l.attention {
		base = 0
	}
	ok, err := w.mgr.Grow(l.id, base, draft)
	if err != nil {
		w.t.Fatal(err)
	}
	victims, want := w.m.planEviction(Demand{base, draft}, nil)
	if ok != want {
		w.t.Fatalf("grow %d/%d is %v, model %v", base, draft, ok, want)
	}
	if ok {
		w.evict(victims)
		w.adopt(l, 0)
		w.seen["grow"]++
	} else {
		w.seen["grow-infeasible"]++
	}
}

func (w *world) append(l *modelLease) {
	tokens := make([]int32, 1+w.r.IntN(6))
	for i := range tokens {
		tokens[i] = int32(w.r.IntN(2))
		l.pos = append(l.pos, fmt.Sprintf("t%d", tokens[i]))
	}
	if w.m.cfg.Identity == Keys {
		return
	}
	if err := w.mgr.Append(l.id, tokens); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) publish(l *modelLease) {
	P := w.m.cfg.PageTokens
	resident := w.r.IntN(len(l.pos) + 1)
	if w.r.IntN(2) == 0 {
		resident = len(l.pos)
	}
	c := resident / P
	legal := c >= 1 && c <= len(l.base) && (l.mode != Spec || c <= len(l.draft)) && l.dep <= c
	var got PublishResult
	var err error
	if w.m.cfg.Identity == Keys {
		keys := w.keys(l, len(l.pos)/P)
		first := w.r.IntN(min(len(keys), l.keyed) + 1)
		got, err = w.mgr.PublishKeys(l.id, first, keys[first:], resident)
		if err == nil {
			l.keyed = max(l.keyed, c)
		}
	} else {
		got, err = w.mgr.Publish(l.id, resident)
	}
	if (err == nil) != legal {
		w.t.Fatalf("publish of %d blocks: %v, model legal %v", c, err, legal)
	}
	if err != nil {
		w.seen["publish-refused"]++
		return
	}
	w.published(l, got, c, 0, Reservation{-1, -1})
}

func (w *world) published(l *modelLease, got PublishResult, c, exact int, slots Reservation) {
	w.t.Helper()
	if got.Stale != l.stale {
		w.t.Fatalf("publish says stale %v, want %v", got.Stale, l.stale)
	}
	if l.stale {
		w.seen["publish-stale"]++
		return
	}
	want, rec := w.m.publish(l, c, exact, slots)
	if got.Status != want || (rec == nil) != (got.Record == 0) || rec != nil && rec.id != uint64(got.Record) {
		w.t.Fatalf("publish of %d blocks (exact %d): %+v, model %d %+v", c, exact, got, want, rec)
	}
	w.seen[fmt.Sprintf("publish-%d-%d", l.mode, want)]++
}

func (w *world) publishHybrid(l *modelLease) {
	P := w.m.cfg.PageTokens
	if len(l.pos) == 0 {
		return
	}
	L := 1 + w.r.IntN(len(l.pos))
	if l.attention && L > len(l.base)*P {
		L = len(l.base) * P
	}
	if L == 0 {
		return
	}
	partial := l.attention && L%P != 0
	slots, ok, err := w.mgr.Reserve(l.id, partial)
	if err != nil {
		w.t.Fatal(err)
	}
	d := Demand{RecurrentSlots: 1}
	if partial {
		d[PartialSlots] = 1
	}
	victims, want := w.m.planEviction(d, nil)
	if ok != want {
		w.t.Fatalf("reserve is %v, model %v", ok, want)
	}
	if !ok {
		w.seen["reserve-none"]++
		return
	}
	w.evict(victims)
	w.m.add(RecurrentSlots, slots.Recurrent, 1, 0)
	if partial {
		w.m.add(PartialSlots, slots.Partial, 1, 0)
	}
	if w.r.IntN(4) == 0 { // kept for the release to drop
		l.reserved = append(l.reserved, slots)
		return
	}
	var got PublishResult
	if w.m.cfg.Identity == Keys {
		keys := w.keys(l, L/P)
		first := w.r.IntN(min(len(keys), l.keyed) + 1)
		got, err = w.mgr.PublishHybridKeys(l.id, first, keys[first:], Checkpoint{L, OpaqueIdentity([]byte(l.prefix(L)))}, slots)
		l.keyed = max(l.keyed, L/P)
	} else {
		got, err = w.mgr.PublishHybrid(l.id, L, slots)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.published(l, got, L/P, L, slots)
	if err := w.mgr.Retire(l.id, slots); err != nil {
		w.t.Fatal(err)
	}
	w.retire(slots)
}

func (w *world) retire(slots Reservation) {
	w.m.add(RecurrentSlots, slots.Recurrent, -1, 0)
	if slots.Partial >= 0 {
		w.m.add(PartialSlots, slots.Partial, -1, 0)
	}
}

func (w *world) restored(l *modelLease) {
	if l.rec >= 0 {
		w.m.add(RecurrentSlots, l.rec, -1, 0)
	}
	if l.part >= 0 {
		w.m.add(PartialSlots, l.part, -1, 0)
	}
	l.rec, l.part = -1, -1
}

func (w *world) release(i int) {
	l := w.leases[i]
	w.leases = slices.Delete(w.leases, i, i+1)
	if err := w.mgr.Release(l.id); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range l.base {
		w.m.add(BasePages, p, -1, 0)
	}
	for _, p := range l.draft {
		w.m.add(DraftPages, p, -1, 0)
	}
	for _, s := range l.reserved {
		w.retire(s)
	}
	w.restored(l)
	if err := w.mgr.Release(l.id); err == nil {
		w.t.Fatal("a released lease could be released again")
	}
}

func (w *world) forget() {
	gone := func(*modelLease) bool { return true }
	if w.r.IntN(2) == 0 {
		w.mgr.Flush()
		w.evict(slices.Clone(w.m.recs))
	} else {
		k := 1 + w.r.IntN(len(w.realms)-1)
		a := w.realms[k].Adapter
		gen := &a.Generation
		w.mgr.Invalidate(a.ID, gen)
		realm := fmt.Sprintf("r%d;", k)
		for _, r := range slices.Clone(w.m.recs) {
			if strings.HasPrefix(r.exactKey, realm) || len(r.blocks) > 0 && strings.HasPrefix(r.blocks[0], realm) {
				w.m.drop(r)
			}
		}
		gone = func(l *modelLease) bool { return strings.HasPrefix(l.realm, realm) }
	}
	for _, l := range w.leases {
		l.stale = l.stale || gone(l)
	}
	w.seen["forget"]++
}

func (w *world) step() {
	r := w.r.IntN(100)
	if len(w.leases) == 0 || r < 25 && len(w.leases) < 6 {
		w.acquire()
		return
	}
	i := w.r.IntN(len(w.leases))
	l := w.leases[i]
	switch {
	case r < 40:
		w.append(l)
	case r < 50:
		w.grow(l)
	case r < 75 && l.mode != Hybrid:
		w.publish(l)
	case r < 75:
		w.publishHybrid(l)
	case r < 78 && l.mode == Hybrid:
		if err := w.mgr.ReleaseRestored(l.id); err != nil {
			w.t.Fatal(err)
		}
		w.restored(l)
	case r < 80 && len(w.m.recs) > 0:
		v := w.m.recs[w.r.IntN(len(w.m.recs))]
		if err := w.mgr.EvictRecord(RecordID(v.id)); err != nil {
			w.t.Fatal(err)
		}
		w.m.drop(v)
	case r == 80 && w.r.IntN(10) == 0:
		w.forget()
	default:
		w.release(i)
	}
}
