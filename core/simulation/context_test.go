package simulation

import (
	"libprefixcache/core/coordinator"
	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// contextWorld is one coordinator with its prefix manager, the requests of its
// runtime, the device and the model.
type contextWorld struct {
	r    *rng
	c    *coordinator.Coordinator
	m    *contextModel
	dev  *accelerator
	log  func(format string, args ...any)
	done counts

	kind     coordinator.Kind
	strict   bool // room enough: the model is exact
	poisoned bool
	realms   []*prefix.Extras
	asked    []*history // prompts so far, to fork off
	live     []*player
	dst      []coordinator.Command
	pages    []int32

	// The list that is out.
	out       *player
	op        listOp
	n, at     int
	failAt    int // before this command; -1: not
	syncFails bool

	begun int
	ended coordinator.Handle  // of a request that is gone
	want  coordinator.Metrics // the counters that the model predicts
	pace  contextPace
}

// contextPace is what a run is like.
type contextPace struct {
	fault, sync int // one list in so many breaks off; one in so many cannot synchronise; 0: none
	drop        int // how likely a handle is dropped
	forget      int // one operation in so many flushes or invalidates
	prompt      int // tokens, at most
	requests    int32
}

const (
	simStream   = 0x51
	simMaxBatch = 4
	simCapacity = 32 // tokens of a row
)

func newContextWorld(r *rng) world {
	w := &contextWorld{r: r, kind: coordinator.Kind(r.n(4)), strict: r.oneIn(2), realms: simRealms(), failAt: -1}
	w.pace = contextPace{drop: r.n(4), forget: []int{60, 200, 1000}[r.n(3)], prompt: r.in(6, 24), requests: int32(r.in(1, 3))}
	if r.oneIn(2) {
		w.pace.fault = r.in(5, 60)
	}
	if r.oneIn(4) {
		w.pace.sync = r.in(20, 200)
	}
	p := []int32{1, 2, 4, 4}[r.n(4)]
	room, keep, snapshots := int32(r.in(8, 60)), int32(r.n(13)), int64(r.in(1, 6))
	if w.strict {
		room, keep, snapshots = 500, 100_000, 500
	}
	cfg := coordinator.DefaultConfig()
	cfg.Enabled, cfg.Kind, cfg.TokensPerPage, cfg.MaxBatch, cfg.Stream = true, w.kind, p, simMaxBatch, simStream
	cfg.MaxRequests, cfg.MaxRecords = w.pace.requests, keep
	cfg.OriginalRecency, cfg.ShortenVictims, cfg.ZeroOnRelease = r.oneIn(4), r.oneIn(4), r.oneIn(4)
	if !w.strict && r.oneIn(3) {
		cfg.TenantQuota = r.in(300, 900)
	}
	cfg.Base = coordinator.CacheResources{Pages: room, PaddedCapacity: simCapacity, MaxBatch: simMaxBatch}
	cfg.RecurrentBudget, cfg.RecurrentSlotBytes = snapshots*100, 100
	cfg.PartialBudget, cfg.PartialSlotBytes = snapshots*100, 100
	if r.oneIn(3) { // a hash that collides all the time must change nothing
		cfg.Hash = func(_ uint32, words []int32) uint64 { return uint64(words[0] & 1) }
	}
	var err error
	table := func(c *coordinator.CacheResources) {
		if c.Table, err = coordinator.NewPageTable(simMaxBatch, simCapacity/p, c.Pages); err != nil {
			failf("page table: %v", err)
		}
	}
	if w.kind != coordinator.KindPureRecurrent {
		table(&cfg.Base)
	}
	if w.kind == coordinator.KindEAGLE {
		cfg.Draft = &coordinator.CacheResources{Pages: room, PaddedCapacity: simCapacity, MaxBatch: simMaxBatch}
		cfg.DraftMaxBatch, cfg.Spec = simMaxBatch, &coordinator.Spec{VerifySize: 3, DraftingStep: 2, DraftingTopK: 2}
		if p < 2 {
			cfg.FutureTokens = 1
		}
		table(cfg.Draft)
	}
	if w.c, err = coordinator.New(cfg); err != nil {
		failf("New: %v", err)
	}
	w.m, w.dev = newContextModel(w.kind, p, len(w.realms)), newAccelerator(w.c)
	w.dst, w.pages = make([]coordinator.Command, w.c.MaxCommands()), make([]int32, simCapacity)
	return w
}

func (w *contextWorld) trace(say func(string, ...any)) {
	w.log = say
	cfg := w.c.Config()
	say("%v, %d tokens a page, %d pages, %d records, quota %d, zero %v, weak hash %v, strict %v, pace %+v", w.kind, cfg.TokensPerPage,
		cfg.Base.Pages, cfg.MaxRecords, cfg.TenantQuota, cfg.ZeroOnRelease, cfg.Hash != nil, w.strict, w.pace)
}

func (w *contextWorld) say(format string, args ...any) {
	if w.log != nil {
		w.log(format, args...)
	}
}

func (w *contextWorld) counts() counts { return w.done }

// step makes one call, carries out part of the list that is out, or lets the device
// do some work.
func (w *contextWorld) step(r *rng) {
	w.r = r
	w.done.operations++
	switch {
	case r.oneIn(w.pace.forget), w.strict && w.c.Manager().Capacity(prefix.BasePages) > 0 && w.c.Manager().Free(prefix.BasePages) < 150:
		w.forget()
	case w.dev.queued() > 0 && r.oneIn(8):
		w.say("the device works")
		w.dev.drain(w.dev.head + r.in(1, w.dev.queued()))
	case w.out != nil:
		if r.oneIn(24) {
			w.whileOut()
		} else {
			w.carryOn()
		}
	case len(w.live) == 0 || r.oneIn(12):
		w.admit()
	default:
		p := w.live[r.n(len(w.live))]
		switch n := r.n(40); {
		case n == 0:
			w.end(p)
		case n <= w.pace.drop:
			w.drop(p)
		case n == 5:
			w.outOfOrder(p)
		case n == 6:
			w.mischief()
		default:
			w.advance(p)
		}
	}
	if len(w.live) > 0 {
		w.compare(w.live[r.n(len(w.live))])
	}
}

// check verifies everything that can be seen.
func (w *contextWorld) check() error {
	if err := w.c.Manager().Check(); err != nil {
		return err
	}
	cfg := w.c.Config()
	for _, r := range [...]*coordinator.CacheResources{&cfg.Base, cfg.Draft} {
		if r != nil && r.Table != nil {
			if err := r.Table.CheckInvariants(); err != nil {
				return err
			}
		}
	}
	for _, p := range w.live {
		w.compare(p)
	}
	got, want := w.c.Metrics(), &w.want
	if got.AdmittedSequences != want.AdmittedSequences || got.HitSequences != want.HitSequences || got.ReusedTokens != want.ReusedTokens ||
		got.MediaAwareSequences != want.MediaAwareSequences || got.LookupBypassSequences != want.LookupBypassSequences ||
		got.PublicationAttempts != want.PublicationAttempts || got.SpecPairPublications != want.SpecPairPublications ||
		got.QuarantinedRequests != want.QuarantinedRequests || got.ActiveRequests != int64(len(w.live))+want.QuarantinedRequests {
		failf("metrics\n%v\nthe model says\n%v", got, *want)
	}
	if w.strict && got.CurrentRecords != w.m.records() {
		failf("%d records, the model says %d", got.CurrentRecords, w.m.records())
	}
	return nil
}

// compare holds a request against what the model knows of it.
func (w *contextWorld) compare(p *player) {
	got, err := w.c.Request(p.h)
	if err != nil {
		failf("a live request: %v", err)
	}
	if got.Stage != p.stage || got.AwaitingDraft != p.awaiting || int(got.Batch) != len(p.seqs) || got.InFlight != (w.out == p) {
		failf("request is %+v, the model says %v, awaiting %v, batch %d", got, p.stage, p.awaiting, len(p.seqs))
	}
	switch {
	case w.out == p || p.stage == coordinator.StageFinishing:
		return
	case got.Pending != (p.stage != coordinator.StageAdmitted && p.stage != coordinator.StageSettled):
		failf("pending is %v in stage %v (C-102, D-8)", got.Pending, p.stage)
	case p.stage == coordinator.StageDecode: // the histories ran ahead
		return
	}
	for i, h := range p.seqs {
		s := w.sequence(p, i)
		if s.Tokens != h.len() || s.Committed != h.committed || s.PublishedBlocks != p.published[i] || s.PublishedExact != p.exact[i] {
			failf("sequence %d is %+v, the model says %d tokens, %d committed, %d blocks, exact %d", i, s, h.len(), h.committed, p.published[i], p.exact[i])
		}
	}
}

func (w *contextWorld) sequence(p *player, i int) coordinator.SequenceInfo {
	s, err := w.c.Sequence(p.h, i)
	if err != nil {
		failf("sequence %d of a live request: %v", i, err)
	}
	return s
}

func (w *contextWorld) free() (n [4]int) {
	for i := range n {
		n[i] = w.c.Manager().Free(prefix.Resource(i))
	}
	return n
}

// finish ends every request and wants every page back.
func (w *contextWorld) finish(r *rng) {
	w.r = r
	for len(w.live) > 0 {
		p := w.live[0]
		if w.out != nil { // nothing else is answered before it
			p = w.out
		}
		w.dev.sync()
		err := w.c.Abandon(p.h, true)
		w.say("abandon #%d: %v", p.number, err)
		if err != nil {
			failf("abandon: %v", err)
		}
		w.remove(p)
	}
	if w.want.QuarantinedRequests > 0 {
		free := w.free()
		w.wantCode(w.c.Shutdown(false), status.Poisoned, "shutdown without a drain")
		w.wantCode(w.c.Close(), status.Busy, "close with a quarantined request")
		if w.free() != free || w.c.Quarantined() != int(w.want.QuarantinedRequests) {
			failf("a quarantined request lost pages")
		}
	}
	w.dev.sync()
	if err := w.c.Shutdown(true); err != nil {
		failf("shutdown: %v", err)
	}
	if err := w.c.Close(); err != nil {
		failf("close: %v", err)
	}
	if w.c.Poisoned() != w.poisoned {
		failf("poisoned is %v after a shutdown, want %v (D-7)", w.c.Poisoned(), w.poisoned)
	}
	w.c.Flush()
	for i, n := range w.free() {
		if want := w.c.Manager().Capacity(prefix.Resource(i)); n != want {
			failf("pool %v: %d of %d are free after a flush without requests", prefix.Resource(i), n, want)
		}
	}
	if err := w.c.Manager().Check(); err != nil {
		failf("%v", err)
	}
}

func (w *contextWorld) wantCode(err error, code status.Code, what string) {
	if status.CodeOf(err) != code {
		failf("%s: %v (code %d), want code %d", what, err, status.CodeOf(err), code)
	}
}
