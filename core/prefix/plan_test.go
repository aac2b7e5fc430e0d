package prefix

import (
	"math/rand/v2"
	"testing"

	"libprefixcache/core/status"
)

const P = 128 // as in the tables of the specification

func plan(t testing.TB, h *host, req AcquireRequest) Plan {
	t.Helper()
	p, err := h.Plan(&req)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestC44_SomethingIsAlwaysExecuted(t *testing.T) {
	everyPlan(t, func(req AcquireRequest, n int, p Plan) {
		if n > 0 && p.Reuse >= n || p.Reuse > p.Matched || p.BoundBase != p.Reuse/4 {
			t.Errorf("mode %d, %d tokens: %+v", req.Mode, n, p)
		}
		if req.Policy == Bypass && n > 0 && (p.Kind != NoReusablePrefix || p.Matched != 0 || p.Reason != ReasonBypass) {
			t.Errorf("bypass: %+v", p)
		}
	})
}

func TestC45_BoundAndDemandedPagesAddUp(t *testing.T) {
	everyPlan(t, func(req AcquireRequest, n int, p Plan) {
		pages, draft := (n+3)/4, p.BoundDraft+p.Demand[DraftPages]
		if p.BoundBase+p.Demand[BasePages] != pages || req.Mode == Spec && draft != pages || req.Mode != Spec && draft != 0 {
			t.Errorf("mode %d, %d tokens: %+v, want %d pages", req.Mode, n, p, pages)
		}
	})
}

// everyPlan visits plans for prompts of every length, mode and policy over a
// cache of all kinds of prefixes of one text, at 4 tokens a page.
func everyPlan(t *testing.T, visit func(req AcquireRequest, n int, p Plan)) {
	r := rand.New(rand.NewPCG(1, 1))
	h := newHost(t, Config{PageTokens: 4, BasePages: 400, DraftPages: 400, RecurrentSlots: 40, PartialSlots: 40})
	tok := tokens(1, 40)
	for range 30 {
		n := 1 + r.IntN(39)
		if n >= 4 {
			h.run(spec(tok[:n]))
		}
		id, _ := h.acquire(hybrid(tok[:n]))
		h.checkpoint(id, 1+r.IntN(n))
		h.release(id)
	}
	for n := range 41 {
		for _, mode := range []Mode{Vanilla, Hybrid, Spec} {
			for _, policy := range []LookupPolicy{UseCache, Bypass} {
				req := AcquireRequest{Mode: mode, Policy: policy, Tokens: tok[:n]}
				visit(req, n, plan(t, h, req))
			}
		}
		p := plan(t, h, AcquireRequest{Mode: Hybrid, NoAttention: true, Tokens: tok[:n]})
		wantEqual(t, "demand without attention", p.Demand, Demand{})
	}
	wantEqual(t, "plan for no tokens", plan(t, h, AcquireRequest{}), Plan{Recurrent: -1, Partial: -1, Reason: ReasonPromptTooShort})
}

func TestC44_BadRequestsAreRefused(t *testing.T) {
	h, k := newHost(t, Config{}), newHost(t, Config{Identity: Keys})
	for what, f := range map[string]func() error{
		"unknown policy":        func() error { _, err := h.Plan(&AcquireRequest{Policy: 2}); return err },
		"unknown mode":          func() error { _, err := h.Plan(&AcquireRequest{Mode: 3}); return err },
		"vanilla, no attention": func() error { _, err := h.Plan(&AcquireRequest{NoAttention: true}); return err },
		"short media array": func() error {
			_, err := h.Plan(&AcquireRequest{Tokens: tokens(1, 3), Media: make([]Hash128, 2)})
			return err
		},
		"keys on a token cache":   func() error { _, err := h.Plan(&AcquireRequest{Keys: []Hash128{{}}, TokenCount: 128}); return err },
		"tokens on a key cache":   func() error { _, err := k.Plan(&AcquireRequest{Tokens: tokens(1, 3)}); return err },
		"negative count":          func() error { _, err := k.Plan(&AcquireRequest{TokenCount: -1}); return err },
		"more keys than blocks":   func() error { _, err := k.Plan(&AcquireRequest{Keys: make([]Hash128, 2), TokenCount: 255}); return err },
		"acquire, unknown policy": func() error { _, err := h.Acquire(&AcquireRequest{Policy: 7}); return err },
		"lookup, unknown mode":    func() error { _, _, err := h.Lookup(&AcquireRequest{Mode: 9}, nil); return err },
	} {
		h.refused(status.InvalidArgument, what, f)
	}
	// Fewer keys than full blocks only limit the match.
	key := []Hash128{{0, 1}, {0, 2}, {0, 3}}
	id, _ := k.acquire(AcquireRequest{Keys: key, TokenCount: 3*P + 1})
	if _, err := k.PublishKeys(id, 0, key, 3*P); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "hit with two of three keys", plan(t, k, AcquireRequest{Keys: key[:2], TokenCount: 3*P + 1}).Reuse, 2*P)
}

// cacheBlocks publishes the first n full blocks of a text.
func cacheBlocks(h *host, text []int32, n int, mode Mode) {
	if n > 0 {
		h.run(AcquireRequest{Mode: mode, Tokens: text[:n*P]})
	}
}

func TestC46_VanillaPlans(t *testing.T) {
	text := tokens(1, 400)
	for _, c := range []struct {
		n, cached, hole       int // hole: text diverges in this block of what is cached, -1 = nowhere
		bound, matched, reuse int
		demand                int
		kind                  PlanKind
		reason                Reason
	}{
		{130, 1, -1, 1, 128, 128, 1, Standard, ReasonNone},
		{128, 1, -1, 0, 128, 0, 1, FullInputRewind, ReasonFullInput},
		{256, 2, -1, 1, 256, 128, 1, FullInputRewind, ReasonFullInput},
		{257, 2, -1, 2, 256, 256, 1, Standard, ReasonNone},
		{384, 2, -1, 2, 256, 256, 1, Standard, ReasonDiverged},
		{384, 3, 1, 1, 128, 128, 2, Standard, ReasonDiverged},
		{257, 0, -1, 0, 0, 0, 3, NoReusablePrefix, ReasonExtrasUnknown},
		{257, 2, 0, 0, 0, 0, 3, NoReusablePrefix, ReasonFirstBlock},
		{100, 2, -1, 0, 0, 0, 1, NoReusablePrefix, ReasonPromptTooShort},
	} {
		h := newHost(t, Config{})
		stored := append([]int32(nil), text...)
		if c.hole >= 0 {
			stored[c.hole*P+5]++
		}
		cacheBlocks(h, stored, c.cached, Vanilla)
		want := Plan{Kind: c.kind, Reason: c.reason, Matched: c.matched, Reuse: c.reuse, BoundBase: c.bound, Recurrent: -1, Partial: -1,
			Demand: Demand{c.demand}}
		if c.matched == c.cached*P && c.matched > 0 { // all of the record was hit
			want.Record = 1
		}
		got := plan(t, h, AcquireRequest{Tokens: text[:c.n]})
		wantEqual(t, "plan", got, want)
		id, again := h.vanilla(text[:c.n])
		wantEqual(t, "acquired plan", again, got)
		wantEqual(t, "pages", len(h.pages(id, BasePages)), c.bound+c.demand)
		h.release(id)
	}
}

func TestC47_HybridPlans(t *testing.T) {
	text := tokens(1, 400)
	for _, c := range []struct {
		n           int
		checkpoints []int
		differs     int // this checkpoint was made after another text in its last token, 0 = none
		reuse       int
		bound       int
		demand      int
		partial     int
		noAttention bool
		reason      Reason
	}{
		{131, []int{130}, 0, 130, 1, 1, 2, false, ReasonNone},
		{130, []int{130}, 0, 0, 0, 2, 0, false, ReasonCheckpointLong},
		{130, []int{130, 128}, 0, 128, 1, 1, 0, false, ReasonNone},
		{300, []int{129, 257}, 257, 129, 1, 2, 1, false, ReasonCheckpointShort},
		{4, []int{3}, 0, 3, 0, 0, 0, true, ReasonNone},
		{4, nil, 0, 0, 0, 0, 0, true, ReasonExtrasUnknown},
		{300, []int{256}, 0, 256, 2, 1, 0, false, ReasonNone},
	} {
		h := newHost(t, Config{RecurrentSlots: 4, PartialSlots: 4})
		for _, at := range c.checkpoints {
			tok := append([]int32(nil), text[:max(at, c.n)]...)
			if at == c.differs {
				tok[at-1]++
			}
			id, _ := h.acquire(AcquireRequest{Mode: Hybrid, NoAttention: c.noAttention, Policy: Bypass, Tokens: tok})
			h.checkpoint(id, at)
			h.release(id)
		}
		req := AcquireRequest{Mode: Hybrid, NoAttention: c.noAttention, Tokens: text[:c.n]}
		p := plan(t, h, req)
		got := []int{p.Reuse, p.Matched, p.BoundBase, p.Demand[BasePages], p.PartialTokens, int(p.Reason)}
		wantSlice(t, "plan", got, []int{c.reuse, c.reuse, c.bound, c.demand, c.partial, int(c.reason)})
		wantEqual(t, "recurrent slot bound", p.Recurrent >= 0, c.reuse > 0)
		wantEqual(t, "partial slot bound", p.Partial >= 0, c.partial > 0)
		wantEqual(t, "standard", p.Kind == Standard, c.reuse > 0)
		id, _ := h.acquire(req)
		if p.Recurrent >= 0 {
			wantEqual(t, "counts of the restored slot", h.refs(RecurrentSlots, p.Recurrent), [2]int32{1, 1})
		}
		h.release(id)
	}
}

func TestC47_AnAttentionRecordIsNoRecurrentOne(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, RecurrentSlots: 4, PartialSlots: 4})
	tok := tokens(1, 9)
	id, _ := h.acquire(hybrid(tok))
	h.checkpoint(id, 8)
	h.release(id)
	wantEqual(t, "pure recurrent hit", h.hit(AcquireRequest{Mode: Hybrid, NoAttention: true, Tokens: tok}), 0)
	h.run(AcquireRequest{Tokens: tokens(2, 8)}) // ordinary records have no checkpoint
	p := plan(t, h, hybrid(tokens(2, 8)))
	wantEqual(t, "reason", p.Reason, ReasonNoCheckpoint)
	wantEqual(t, "reuse", p.Reuse, 0)
}

func TestC48_SpeculativePlans(t *testing.T) {
	text := tokens(1, 1000)
	for _, c := range []struct {
		n, paired, base int
		matched, reuse  int
		demand          int
		kind            PlanKind
		dep             int
		record          bool
		replay          ReplayMode
		reason          Reason
	}{
		{257, 2, 0, 256, 128, 2, Standard, 2, true, FullPageReplay, ReasonReplay},
		{256, 2, 0, 256, 128, 1, FullInputRewind, 2, true, FullPageReplay, ReasonFullInput},
		{129, 1, 0, 128, 0, 2, NoReusablePrefix, 0, false, FullPageReplay, ReasonReplay},
		{128, 1, 0, 128, 0, 1, FullInputRewind, 0, false, FullPageReplay, ReasonFullInput},
		{1000, 5, 0, 640, 512, 4, Standard, 5, true, FullPageReplay, ReasonDiverged},
		{257, 0, 2, 0, 0, 3, NoReusablePrefix, 0, false, NoReplay, ReasonNoDraft},
		{1000, 3, 5, 384, 256, 6, Standard, 3, true, FullPageReplay, ReasonDraftShorter},
	} {
		h := newHost(t, Config{DraftPages: 64})
		cacheBlocks(h, text, c.base, Vanilla)
		cacheBlocks(h, text, c.paired, Spec)
		p := plan(t, h, spec(text[:c.n]))
		want := Plan{Mode: Spec, Kind: c.kind, Replay: c.replay, Reason: c.reason, Matched: c.matched, Reuse: c.reuse, BoundBase: c.reuse / P,
			BoundDraft: c.reuse / P, Dependency: c.dep, Recurrent: -1, Partial: -1, Demand: Demand{c.demand, c.demand}}
		if c.record {
			want.Record = p.Record
			wantEqual(t, "a record is named", p.Record != 0, true)
		}
		wantEqual(t, "plan", p, want)
	}
}

func TestC49_BaseOnlyStateIsNeverUsedByASpeculativeRequest(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 32})
	tok := tokens(1, 16)
	h.run(AcquireRequest{Tokens: tok})
	id, p := h.acquire(spec(append(tok, 1)))
	wantEqual(t, "reuse", p.Reuse, 0)
	wantEqual(t, "reason", p.Reason, ReasonNoDraft)
	for _, page := range h.pages(id, BasePages) {
		wantEqual(t, "counts of a page of the lease", h.refs(BasePages, page), [2]int32{1, 0})
	}
	// The other way round is welcome: a vanilla request uses paired records.
	h.run(spec(tokens(2, 8)))
	wantEqual(t, "vanilla hit on a paired record", h.hit(AcquireRequest{Tokens: append(tokens(2, 8), 1)}), 8)
}
