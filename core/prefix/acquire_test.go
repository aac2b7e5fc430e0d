package prefix

import (
	"math"
	"testing"

	"libprefixcache/core/status"
)

func TestC50_LeasesAreBoundPrefixThenPrivatePages(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 8, DraftPages: 8})
	a := h.run(spec(tokens(1, 8)))
	id, p := h.acquire(spec(append(tokens(1, 8), 1)))
	base, draft := h.pages(id, BasePages), h.pages(id, DraftPages)
	wantSlice(t, "bound base pages", base[:p.BoundBase], h.recordPages(a.Record, BasePages)[:1])
	wantSlice(t, "bound draft pages", draft[:p.BoundDraft], h.recordPages(a.Record, DraftPages)[:1])
	wantEqual(t, "base pages", len(base), 3)
	for _, page := range base[1:] {
		wantEqual(t, "counts of a private page", h.refs(BasePages, page), [2]int32{1, 0})
	}
	// The record of the hit is the last victim, although it was the oldest.
	h = newHost(t, Config{PageTokens: 4, BasePages: 8, DraftPages: 8})
	old := h.run(spec(tokens(1, 12))).Record
	young := h.run(spec(tokens(2, 12))).Record
	h.acquire(spec(append(tokens(1, 12), tokens(3, 8)...))) // 3 private pages, 2 are free
	wantSlice(t, "records left", h.order(), []RecordID{old})
	if _, err := h.Record(young); err == nil {
		t.Error("the other record was not evicted")
	}
}

func TestC51_InsufficientCapacityChangesNothing(t *testing.T) {
	for _, mode := range []Mode{Vanilla, Spec, Hybrid} {
		h := newHost(t, Config{PageTokens: 4, BasePages: 8, DraftPages: 8, RecurrentSlots: 2, PartialSlots: 2})
		if mode == Hybrid {
			id, _ := h.acquire(hybrid(tokens(1, 12)))
			h.checkpoint(id, 10)
			h.release(id)
		} else {
			h.run(AcquireRequest{Mode: mode, Tokens: tokens(1, 12)})
		}
		hold, _ := h.vanilla(tokens(2, 12))
		before, order := h.state(), h.order()
		a, err := h.Acquire(&AcquireRequest{Mode: mode, Tokens: join(tokens(1, 12), tokens(3, 12))})
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "status", a.Status, InsufficientCapacity)
		wantEqual(t, "lease", a.Lease, 0)
		if a.Plan.Matched == 0 {
			t.Errorf("mode %d: the plan is part of the answer, got %+v", mode, a.Plan)
		}
		wantEqual(t, "state", h.state(), before)
		wantSlice(t, "order", h.order(), order)
		h.release(hold)
	}
}

func TestC52_PinsComeBeforeEviction(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 4, OriginalRecency: true})
	r := h.run(AcquireRequest{Tokens: tokens(1, 8)})
	pages := h.recordPages(r.Record, BasePages)
	// Two bound and two private: there is room only because the record goes, and
	// going must not free what this very request uses.
	id, p := h.vanilla(append(tokens(1, 8), tokens(2, 8)...))
	wantEqual(t, "bound", p.BoundBase, 2)
	wantSlice(t, "bound pages", h.pages(id, BasePages)[:2], pages)
	wantEqual(t, "records: two pages were free", h.Records(), 1)
	h.release(id)

	id, _ = h.vanilla(append(tokens(1, 8), 1))
	other, _ := h.vanilla(tokens(3, 4)) // the last free page
	if !h.grow(id, 0, 0) || h.grow(id, 1, 0) {
		t.Error("growth beyond what eviction can free")
	}
	if err := h.EvictRecord(r.Record); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "its index mapping is gone", h.IndexedPages(), 0)
	for _, page := range pages {
		wantEqual(t, "counts of a page that lives on", h.refs(BasePages, page), [2]int32{1, 0})
	}
	wantEqual(t, "free", h.Free(BasePages), 0)
	h.release(other, id)
	wantEqual(t, "free", h.Free(BasePages), 4)
}

func TestC53_VanillaHitsRefreshTheirRecordUnlessTheOriginalRuleIsChosen(t *testing.T) {
	for _, original := range []bool{false, true} {
		h := newHost(t, Config{PageTokens: 4, DraftPages: 32, RecurrentSlots: 4, PartialSlots: 4, OriginalRecency: original})
		a := h.run(AcquireRequest{Tokens: tokens(1, 8)}).Record
		b := h.run(AcquireRequest{Tokens: tokens(2, 8)}).Record
		id, p := h.vanilla(append(tokens(1, 8), 1))
		h.release(id)
		if original {
			wantSlice(t, "order", h.order(), []RecordID{a, b})
			wantEqual(t, "record named", p.Record, 0)
		} else {
			wantSlice(t, "order", h.order(), []RecordID{b, a})
			wantEqual(t, "record named", p.Record, a)
		}
		// Spec and hybrid hits refresh theirs in either case.
		s := h.run(spec(tokens(3, 12))).Record
		y, _ := h.acquire(hybrid(tokens(4, 9)))
		c := h.checkpoint(y, 7).Record
		h.release(y)
		id, _ = h.acquire(spec(tokens(3, 13)))
		h.release(id)
		wantSlice(t, "order after a spec hit", h.order()[2:], []RecordID{c, s})
		id, _ = h.acquire(hybrid(tokens(4, 9)))
		h.release(id)
		wantSlice(t, "order after a hybrid hit", h.order()[2:], []RecordID{s, c})
	}
}

func TestC53_AHitRefreshesNothingBeyondWhatItUsed(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	stem := tokens(1, 8)
	short := h.run(AcquireRequest{Tokens: stem}).Record
	long := h.run(AcquireRequest{Tokens: join(stem, tokens(2, 8))}).Record
	other := h.run(AcquireRequest{Tokens: tokens(3, 8)}).Record
	_, p := h.vanilla(join(stem, tokens(2, 4), tokens(4, 4))) // into the middle of the long one
	wantEqual(t, "record named", p.Record, short)
	wantSlice(t, "order", h.order(), []RecordID{long, other, short})
}

func TestC54_GrowthIsAllOrNothing(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 8, DraftPages: 6, RecurrentSlots: 1})
	v, _ := h.vanilla(tokens(1, 3))
	s, _ := h.acquire(spec(tokens(2, 3)))
	y, _ := h.acquire(hybrid(tokens(3, 3)))
	p, _ := h.acquire(AcquireRequest{Mode: Hybrid, NoAttention: true, Tokens: tokens(4, 3)})
	gone, _ := h.vanilla(tokens(5, 3))
	h.release(gone)
	h.refused(status.BadHandle, "stale lease", func() error { _, err := h.Grow(gone, 1, 0); return err })
	h.refused(status.BadHandle, "empty lease", func() error { _, err := h.Grow(0, 1, 0); return err })
	h.refused(status.BadHandle, "invented lease", func() error { _, err := h.Grow(1<<40|77, 1, 0); return err })
	h.refused(status.InvalidArgument, "negative count", func() error { _, err := h.Grow(v, -1, 0); return err })
	h.refused(status.InvalidArgument, "negative draft count", func() error { _, err := h.Grow(s, 1, -1); return err })
	h.refused(status.WrongState, "draft pages of a vanilla lease", func() error { _, err := h.Grow(v, 0, 1); return err })
	h.refused(status.WrongState, "base pages of a pure recurrent lease", func() error { _, err := h.Grow(p, 1, 0); return err })
	for _, id := range []LeaseID{v, s, y, p} {
		wantEqual(t, "growth by nothing", h.grow(id, 0, 0), true)
	}
	before := h.state()
	wantEqual(t, "growth by INT32_MAX", h.grow(v, math.MaxInt32, 0), false)
	wantEqual(t, "growth by INT32_MAX in both", h.grow(s, math.MaxInt32, math.MaxInt32), false)
	wantEqual(t, "growth of draft only, too much", h.grow(s, 1, 6), false)
	wantEqual(t, "growth of base only, too much", h.grow(s, 6, 1), false)
	wantEqual(t, "state", h.state(), before)
	wantEqual(t, "growth", h.grow(s, 2, 3), true)
	wantEqual(t, "growth", h.grow(y, 1, 0), true)
	wantEqual(t, "base pages", len(h.pages(s, BasePages)), 3)
	wantEqual(t, "draft pages", len(h.pages(s, DraftPages)), 4)
}
