package simulation

import (
	"slices"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// leaseWorld is one prefix manager used directly, as a host without a coordinator
// does: leases of every mode, by tokens or by keys, with a few records and fewer
// pages. The state of each page is kept beside it, and is the identity of what was
// computed there.
type leaseWorld struct {
	r    *rng
	m    *prefix.Manager
	log  func(format string, args ...any)
	done counts

	cfg      prefix.Config
	p        int
	modes    []prefix.Mode
	pure     bool // hybrid without attention
	realms   []*prefix.Extras
	asked    []*history
	leases   []*simLease
	released prefix.LeaseID    // one of the leases that ended
	known    []map[uint64]bool // by realm: every prefix that was published since it was last forgotten

	state     [2][]uint64 // of base and draft pages, by position
	users     [2][]int    // live leases that hold the page
	recurrent []uint64
	partial   [][]uint64
	batch     []prefix.AcquireRequest
	results   []prefix.AcquireResult
}

// simLease is a lease with what its sequence has computed so far.
type simLease struct {
	id      prefix.LeaseID
	number  int
	mode    prefix.Mode
	h       *history
	written [2]int // positions whose state is in base and draft pages
	pages   [2][]int32
	slots   []prefix.Reservation // reserved and kept
	rec     int32                // restored snapshot, -1: none or let go
	stale   bool
	keyed   int // keys level: blocks whose keys were given
}

func newLeaseWorld(r *rng) world {
	w := &leaseWorld{r: r, p: []int{1, 2, 3, 4}[r.n(4)], realms: simRealms()}
	w.cfg = prefix.Config{PageTokens: w.p, BasePages: r.in(20, 60), DraftPages: r.in(20, 60), RecurrentSlots: r.in(2, 9), PartialSlots: r.in(2, 6),
		MaxRecords: r.n(20), OriginalRecency: r.oneIn(4), ShortenVictims: r.oneIn(3)}
	if w.cfg.ZeroOnRelease = r.oneIn(4); r.oneIn(3) {
		w.cfg.TenantQuota = r.in(200, 800)
	}
	switch r.n(6) {
	case 0:
		w.modes = []prefix.Mode{prefix.Vanilla}
	case 1:
		w.modes = []prefix.Mode{prefix.Spec, prefix.Spec, prefix.Vanilla}
	case 2:
		w.modes = []prefix.Mode{prefix.Hybrid, prefix.Hybrid, prefix.Vanilla}
	case 3:
		w.modes, w.pure, w.cfg.BasePages = []prefix.Mode{prefix.Hybrid}, true, 0
	default:
		w.modes = []prefix.Mode{prefix.Vanilla, prefix.Hybrid, prefix.Spec}
	}
	if r.oneIn(4) {
		w.cfg.Identity = prefix.Keys
	}
	if r.oneIn(3) {
		w.cfg.Hash = func(uint32, []int32) uint64 { return 3 }
	}
	var err error
	if w.m, err = prefix.New(w.cfg); err != nil {
		failf("New: %v", err)
	}
	for range w.realms {
		w.known = append(w.known, map[uint64]bool{})
	}
	for i, n := range [2]int{w.cfg.BasePages, w.cfg.DraftPages} {
		w.state[i], w.users[i] = make([]uint64, n*w.p), make([]int, n)
	}
	w.recurrent = make([]uint64, w.cfg.RecurrentSlots)
	for range w.cfg.PartialSlots {
		w.partial = append(w.partial, make([]uint64, w.p))
	}
	return w
}

func (w *leaseWorld) trace(say func(string, ...any)) {
	w.log = say
	cfg := w.cfg
	cfg.Hash = nil
	say("%+v, weak hash %v, modes %v, pure %v", cfg, w.cfg.Hash != nil, w.modes, w.pure)
}

func (w *leaseWorld) say(format string, args ...any) {
	if w.log != nil {
		w.log(format, args...)
	}
}

func (w *leaseWorld) counts() counts { return w.done }
func (w *leaseWorld) check() error   { return w.m.Check() }

func (w *leaseWorld) step(r *rng) {
	w.r = r
	w.done.operations++
	w.done.calls++
	if len(w.leases) == 0 || r.n(100) < 25 && len(w.leases) < 6 {
		w.acquire()
		return
	}
	l := w.leases[r.n(len(w.leases))]
	switch n := r.n(80); {
	case n < 18:
		w.append(l)
	case n < 30:
		w.grow(l)
	case n < 55:
		w.publish(l)
	case n < 57:
		w.letGo(l)
	case n < 60:
		w.readAll(l)
	case n < 62:
		w.evictOne()
	case n == 62 && r.oneIn(10):
		w.forget()
	case n == 63 && w.cfg.TenantQuota > 0:
		key := w.realms[r.in(3, 6)].Isolation
		if err := w.m.SetQuota(key, r.n(1001)); err != nil {
			failf("quota: %v", err)
		}
	default:
		w.release(l)
	}
	for t := range w.m.Tenants() {
		if t.Pages > max(t.QuotaPages, t.ActivePages) {
			failf("tenant %v holds %d pages, %d of them in use, its quota is %d", t.Key, t.Pages, t.ActivePages, t.QuotaPages)
		}
	}
}

// acquire takes one lease, or a batch of them: all or none.
func (w *leaseWorld) acquire() {
	n := 1
	if w.r.oneIn(4) {
		n = w.r.in(2, 3)
	}
	w.batch, w.results = w.batch[:0], w.results[:0]
	var leases []*simLease
	for range n {
		l := &simLease{number: int(w.done.operations), mode: w.modes[w.r.n(len(w.modes))], h: w.prompt(), rec: -1}
		w.batch = append(w.batch, w.request(l))
		w.results = append(w.results, prefix.AcquireResult{})
		leases = append(leases, l)
	}
	free, records := w.free(), w.m.Records()
	ok, err := true, error(nil)
	if n == 1 {
		var plan prefix.Plan
		if plan, err = w.m.Plan(&w.batch[0]); err == nil {
			w.results[0], err = w.m.Acquire(&w.batch[0])
			ok = w.results[0].Status == prefix.Acquired
			if plan != w.results[0].Plan {
				failf("plan says %+v, acquire %+v", plan, w.results[0].Plan)
			}
		}
	} else {
		ok, err = w.m.AcquireBatch(w.batch, w.results)
	}
	w.say("acquire %d: %v %v", n, ok, err)
	if err != nil {
		failf("acquire: %v", err)
	}
	if !ok {
		if w.free() != free || w.m.Records() != records {
			failf("an acquire without capacity changed something (C-51)")
		}
		return
	}
	for i, l := range leases {
		w.bind(l, &w.results[i])
	}
	for _, l := range leases { // nothing that the batch computes is visible to it
		w.compute(l)
	}
	w.leases = append(w.leases, leases...)
}

func (w *leaseWorld) request(l *simLease) prefix.AcquireRequest {
	req := prefix.AcquireRequest{Mode: l.mode, Extras: w.realms[l.h.realm], NoAttention: w.pure}
	if w.r.oneIn(20) {
		req.Policy = prefix.Bypass
	}
	if w.cfg.Identity == prefix.Tokens {
		req.Tokens, req.Media = l.h.tokens, l.h.media
		return req
	}
	req.TokenCount = len(l.h.tokens)
	req.Keys = w.keys(l.h, 0, req.TokenCount/w.p)
	l.keyed = len(req.Keys)
	for n := 1; l.mode == prefix.Hybrid && n < req.TokenCount; n++ {
		req.Checkpoints = append(req.Checkpoints, prefix.Checkpoint{Length: n, Digest: key(l.h, n)})
	}
	return req
}

// key is what a runtime that hashes its blocks itself would pass for n tokens.
func key(h *history, n int) prefix.Hash128 {
	return prefix.Hash128{Hi: h.digest[n] * 3, Lo: h.digest[n]}
}

func (w *leaseWorld) keys(h *history, from, to int) (keys []prefix.Hash128) {
	for i := from; i < to; i++ {
		keys = append(keys, key(h, (i+1)*w.p))
	}
	return keys
}

// bind reads what the lease shares, at once, and takes note of its pages.
func (w *leaseWorld) bind(l *simLease, res *prefix.AcquireResult) {
	pl := &res.Plan
	l.id, l.rec = res.Lease, pl.Recurrent
	n := len(l.h.tokens)
	w.say("  lease %d: mode %d, realm %d, %d tokens %v: reuse %d, bound %d and %d, record %d", l.number, l.mode, l.h.realm, n, l.h.tokens, pl.Reuse, pl.BoundBase, pl.BoundDraft, pl.Record)
	if pl.Reuse < 0 || n > 0 && pl.Reuse >= n || l.h.splits(int32(pl.Reuse)) && w.cfg.Identity == prefix.Tokens {
		failf("lease %d reuses %d of %d tokens", l.number, pl.Reuse, n)
	}
	if pl.Reuse > 0 && !w.known[l.h.realm][l.h.digest[pl.Reuse]] {
		failf("lease %d reuses %d tokens that nobody published", l.number, pl.Reuse)
	}
	w.take(l, pl.BoundBase, pl.BoundDraft)
	l.written = [2]int{pl.BoundBase * w.p, pl.BoundDraft * w.p}
	w.readAll(l)
	if pl.Recurrent >= 0 && w.recurrent[pl.Recurrent] != l.h.digest[pl.Reuse] {
		failf("lease %d restores snapshot %d, which is not that of its first %d tokens", l.number, pl.Recurrent, pl.Reuse)
	}
	for i := range pl.PartialTokens {
		if pos := pl.BoundBase*w.p + i; w.partial[pl.Partial][i] != l.h.digest[pos+1] {
			failf("lease %d restores partial snapshot %d, which is not that of its first %d tokens", l.number, pl.Partial, pl.Reuse)
		}
	}
}

// take reads the pages of a lease: those it had are the same, those that it does not
// share are nobody else's.
func (w *leaseWorld) take(l *simLease, base, draft int) {
	for i, shared := range [2]int{max(base, len(l.pages[0])), max(draft, len(l.pages[1]))} {
		n, err := w.m.PageCount(l.id, prefix.Resource(i))
		if err != nil {
			failf("lease %d: %v", l.number, err)
		}
		pages := make([]int32, n)
		if err := w.m.Pages(l.id, prefix.Resource(i), 0, pages); err != nil {
			failf("lease %d: %v", l.number, err)
		}
		had := len(l.pages[i])
		if n < had || !slices.Equal(pages[:had], l.pages[i]) {
			failf("lease %d had %v pages %v, now %v", l.number, prefix.Resource(i), l.pages[i], pages)
		}
		for j := had; j < n; j++ {
			if j >= shared && w.users[i][pages[j]] != 0 {
				failf("lease %d got %v page %d, which another lease holds", l.number, prefix.Resource(i), pages[j])
			}
			w.users[i][pages[j]]++
		}
		l.pages[i] = pages
	}
}

// compute writes the state of every position that has a page and was not computed yet.
func (w *leaseWorld) compute(l *simLease) {
	for i := range l.pages {
		end := min(len(l.h.tokens)-i, len(l.pages[i])*w.p) // the draft's state depends on the next token
		for pos := l.written[i]; pos < end; pos++ {
			w.state[i][int(l.pages[i][pos/w.p])*w.p+pos%w.p] = l.state(i, pos)
		}
		l.written[i] = max(l.written[i], end)
	}
}

func (l *simLease) state(pool, pos int) uint64 {
	if pool == 1 {
		return l.h.draft(int32(pos))
	}
	return l.h.base(int32(pos))
}

// readAll wants everything that the lease computed, or found computed, to be there.
func (w *leaseWorld) readAll(l *simLease) {
	for i := range l.pages {
		for pos := range l.written[i] {
			if page := l.pages[i][pos/w.p]; w.state[i][int(page)*w.p+pos%w.p] != l.state(i, pos) {
				failf("lease %d: %v page %d, position %d, holds the state of another prefix", l.number, prefix.Resource(i), page, pos)
			}
		}
	}
	if w.cfg.Identity == prefix.Tokens { // its history, as the manager keeps it
		n := w.r.n(len(l.h.tokens) + 1)
		out := make([]int32, len(l.h.tokens)-n)
		if err := w.m.History(l.id, n, out); err != nil {
			failf("history of lease %d: %v", l.number, err)
		}
		for i, t := range out {
			if at := n + i; t != l.h.tokens[at] && (at >= len(l.h.media) || l.h.media[at].IsZero()) {
				failf("history of lease %d is %v from %d on, want %v", l.number, out, n, l.h.tokens[n:])
			}
		}
	}
}

func (w *leaseWorld) append(l *simLease) {
	tokens := make([]int32, w.r.in(1, 6))
	for i := range tokens {
		tokens[i] = int32(w.r.n(2))
	}
	if len(l.h.tokens) > 60 {
		return
	}
	l.h.add(tokens...)
	if w.cfg.Identity == prefix.Tokens {
		if err := w.m.Append(l.id, tokens); err != nil {
			failf("append to lease %d: %v", l.number, err)
		}
	}
	w.say("lease %d appends %v", l.number, tokens)
	w.compute(l)
}

func (w *leaseWorld) grow(l *simLease) {
	base, draft := w.r.n(3), 0
	if l.mode == prefix.Spec {
		draft = w.r.n(3)
	}
	if w.pure {
		base = 0
	}
	free, records := w.free(), w.m.Records()
	ok, err := w.m.Grow(l.id, base, draft)
	w.say("lease %d grows by %d and %d: %v", l.number, base, draft, ok)
	if err != nil {
		failf("grow of lease %d: %v", l.number, err)
	}
	if !ok {
		if w.free() != free || w.m.Records() != records {
			failf("a grow without capacity changed something")
		}
		return
	}
	w.take(l, 0, 0)
	w.compute(l)
}

// publish publishes what the lease has computed, or less.
func (w *leaseWorld) publish(l *simLease) {
	if l.mode == prefix.Hybrid {
		w.publishHybrid(l)
		return
	}
	resident := l.written[0]
	if l.mode == prefix.Spec {
		resident = min(resident, l.written[1])
	}
	if resident > 0 && w.r.oneIn(3) {
		resident = w.r.in(1, resident)
	}
	blocks := resident / w.p
	if all := len(l.h.tokens); all/w.p > len(l.pages[0]) && w.cfg.Identity == prefix.Tokens {
		if _, err := w.m.Publish(l.id, all); status.CodeOf(err) != status.InvalidArgument {
			failf("publish of %d tokens of lease %d, which has %d pages: %v (C-55)", all, l.number, len(l.pages[0]), err)
		}
	}
	var res prefix.PublishResult
	var err error
	if w.cfg.Identity == prefix.Keys {
		first := w.r.n(min(l.keyed, blocks) + 1)
		res, err = w.m.PublishKeys(l.id, first, w.keys(l.h, first, len(l.h.tokens)/w.p), resident)
		if err == nil {
			l.keyed = max(l.keyed, blocks)
		}
	} else {
		res, err = w.m.Publish(l.id, resident)
	}
	w.say("lease %d publishes %d tokens: %+v %v", l.number, resident, res, err)
	info, _ := w.m.Lease(l.id)
	if legal := blocks >= max(1, info.Dependency); legal != (err == nil) || !legal && status.CodeOf(err) != status.InvalidArgument {
		failf("publish of %d blocks of lease %d, which has to publish %d: %v", blocks, l.number, info.Dependency, err)
	}
	if err == nil {
		w.published(l, res, blocks*w.p)
	}
}

func (w *leaseWorld) published(l *simLease, res prefix.PublishResult, length int) {
	if res.Stale != l.stale {
		failf("publication of lease %d is stale: %v, want %v", l.number, res.Stale, l.stale)
	}
	if l.stale {
		return
	}
	known := w.known[l.h.realm]
	for n := w.p; n <= length; n += w.p {
		known[l.h.digest[n]] = true
	}
	known[l.h.digest[length]] = true
}

// publishHybrid captures a checkpoint and publishes it.
func (w *leaseWorld) publishHybrid(l *simLease) {
	length := len(l.h.tokens)
	if !w.pure {
		length = l.written[0]
	}
	if length == 0 {
		return
	}
	if w.r.oneIn(3) {
		length = w.r.in(1, length)
	}
	partial := !w.pure && length%w.p != 0
	evicted := w.m.Counters().EvictedRecords
	slots, ok, err := w.m.Reserve(l.id, partial)
	if err != nil {
		failf("reserve of lease %d: %v", l.number, err)
	}
	if l.stale && w.m.Counters().EvictedRecords != evicted {
		failf("reserve of lease %d, whose snapshot is dropped, evicts", l.number)
	}
	w.say("lease %d reserves %+v: %v", l.number, slots, ok)
	if !ok {
		return
	}
	for _, o := range w.leases {
		held := o.rec == slots.Recurrent
		for _, s := range o.slots {
			held = held || s.Recurrent == slots.Recurrent || partial && s.Partial == slots.Partial
		}
		if held {
			failf("lease %d reserves snapshots %+v, which lease %d holds", l.number, slots, o.number)
		}
	}
	w.recurrent[slots.Recurrent] = l.h.digest[length]
	if partial {
		for i := range length % w.p {
			w.partial[slots.Partial][i] = l.h.digest[length/w.p*w.p+i+1]
		}
	}
	if w.r.oneIn(5) {
		l.slots = append(l.slots, slots)
		return
	}
	var res prefix.PublishResult
	if w.cfg.Identity == prefix.Keys {
		first := w.r.n(min(l.keyed, length/w.p) + 1)
		res, err = w.m.PublishHybridKeys(l.id, first, w.keys(l.h, first, length/w.p), prefix.Checkpoint{Length: length, Digest: key(l.h, length)}, slots)
		l.keyed = max(l.keyed, length/w.p)
	} else {
		res, err = w.m.PublishHybrid(l.id, length, slots)
	}
	w.say("lease %d publishes its checkpoint of %d tokens: %+v %v", l.number, length, res, err)
	if err == nil {
		err = w.m.Retire(l.id, slots)
	}
	if err != nil {
		failf("publish or retire of lease %d: %v", l.number, err)
	}
	w.published(l, res, length)
}

// letGo ends the use of the snapshots that a hit restored.
func (w *leaseWorld) letGo(l *simLease) {
	if l.mode != prefix.Hybrid {
		return
	}
	if err := w.m.ReleaseRestored(l.id); err != nil {
		failf("release of restored snapshots: %v", err)
	}
	l.rec = -1
}

func (w *leaseWorld) evictOne() {
	for r := range w.m.AllRecords() {
		if w.r.oneIn(3) {
			w.say("record %d is evicted", r.ID)
			if err := w.m.EvictRecord(r.ID); err != nil {
				failf("evict: %v", err)
			}
			return
		}
	}
}

func (w *leaseWorld) forget() {
	gone := func(int) bool { return true }
	if w.r.oneIn(2) {
		w.m.Flush()
	} else {
		g := uint64(w.r.in(1, 2))
		gone = func(realm int) bool { return realm == int(g) }
		w.m.Invalidate(prefix.Hash128{Lo: 7}, &g)
	}
	w.say("flush or invalidate")
	for i := range w.known {
		if gone(i) {
			clear(w.known[i])
		}
	}
	for _, l := range w.leases {
		l.stale = l.stale || gone(l.h.realm)
	}
}

func (w *leaseWorld) release(l *simLease) {
	w.readAll(l)
	w.say("lease %d is released", l.number)
	if err := w.m.Release(l.id); err != nil {
		failf("release of lease %d: %v", l.number, err)
	}
	for i := range l.pages {
		for _, p := range l.pages[i] {
			w.users[i][p]--
		}
	}
	w.leases = slices.DeleteFunc(w.leases, func(o *simLease) bool { return o == l })
	if w.released != 0 && status.CodeOf(w.m.Release(w.released)) != status.BadHandle {
		failf("a lease that was released before could be released again (C-64)")
	}
	if w.released == 0 || w.r.oneIn(8) {
		w.released = l.id
	}
	if len(w.asked) < 24 {
		w.asked = append(w.asked, l.h)
	} else {
		w.asked[w.r.n(24)] = l.h
	}
}

func (w *leaseWorld) prompt() *history {
	media := w.cfg.Identity == prefix.Tokens
	return drawPrompt(w.r, w.asked, len(w.realms), 24, 48, media)
}

func (w *leaseWorld) free() (n [4]int) {
	for i := range n {
		n[i] = w.m.Free(prefix.Resource(i))
	}
	return n
}

func (w *leaseWorld) finish(r *rng) {
	w.r = r
	for len(w.leases) > 0 {
		w.release(w.leases[0])
	}
	if err := w.m.Check(); err != nil {
		failf("%v", err)
	}
	w.m.Flush()
	for i, n := range w.free() {
		if want := w.m.Capacity(prefix.Resource(i)); n != want {
			failf("pool %v: %d of %d are free after a flush without leases (C-71)", prefix.Resource(i), n, want)
		}
	}
}
