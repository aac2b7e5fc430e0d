package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

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
		// Checkpoints of one length may differ in their tails only: any of them will do.
		if got := w.m.byID(pl.Record); rec != nil && got != nil && got.exact == rec.exact && slices.Equal(got.blocks, rec.blocks) {
			rec = got
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
	l.keyed, l.settled = len(req.Keys), want.found
	for _, r := range w.m.recs { // blocks without pages can match too
		for at, b := range r.blocks {
			if at < len(l.pos)/P && b == l.prefix((at+1)*P) {
				l.settled = max(l.settled, at+1)
			}
		}
	}
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

// rekey gives a block that is not settled another key, now and then.
func (w *world) rekey(l *modelLease) {
	P := w.m.cfg.PageTokens
	if blocks := len(l.pos) / P; blocks > l.settled && w.r.IntN(4) == 0 {
		b := l.settled + w.r.IntN(blocks-l.settled)
		l.pos[b*P+w.r.IntN(P)] = fmt.Sprintf("t%d", w.r.IntN(3))
		l.keyed = min(l.keyed, b)
	}
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
		w.rekey(l)
		keys := w.keys(l, len(l.pos)/P)
		first := w.r.IntN(min(len(keys), l.keyed) + 1)
		got, err = w.mgr.PublishKeys(l.id, first, keys[first:], resident)
		if err == nil {
			l.keyed, l.settled = max(l.keyed, c), max(l.settled, c)
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
	want = want && !(l.stale && len(victims) > 0)
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
		w.rekey(l)
		keys := w.keys(l, L/P)
		first := w.r.IntN(min(len(keys), l.keyed) + 1)
		got, err = w.mgr.PublishHybridKeys(l.id, first, keys[first:], Checkpoint{L, OpaqueIdentity([]byte(l.prefix(L)))}, slots)
		l.keyed, l.settled = max(l.keyed, L/P), max(l.settled, L/P)
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
