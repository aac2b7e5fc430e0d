package prefix

import (
	"testing"

	"libprefixcache/core/status"
)

func TestC22_FirstCommitterWins(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	tok := tokens(1, 8)
	a, _ := h.vanilla(tok) // two producers of the same blocks, both cold
	b, _ := h.vanilla(tok)
	pa, pb := h.pages(a, BasePages), h.pages(b, BasePages)
	h.publish(a, 8)
	r := h.publish(b, 8)
	wantEqual(t, "second publication", r.Status, ExistingRecord)
	wantSlice(t, "canonical path", h.recordPages(r.Record, BasePages), pa)
	wantSlice(t, "pages of the second producer", h.pages(b, BasePages), pb)
	wantEqual(t, "counts of its page", h.refs(BasePages, pb[0]), [2]int32{1, 0})
}

func TestC23_ABlockKeepsItsPage(t *testing.T) {
	// On the keys level a caller could publish a page under a second key: C-59.
	h := newHost(t, Config{PageTokens: 4, Identity: Keys})
	id, _ := h.acquire(AcquireRequest{Keys: []Hash128{{0, 1}, {0, 2}}, TokenCount: 9})
	if _, err := h.PublishKeys(id, 0, []Hash128{{0, 1}, {0, 2}}, 8); err != nil {
		t.Fatal(err)
	}
	h.refused(status.InvalidArgument, "a second key for block 1", func() error {
		_, err := h.PublishKeys(id, 0, []Hash128{{0, 1}, {0, 3}}, 8)
		return err
	})
	h.refused(status.InvalidArgument, "another key for a published block behind what is computed", func() error {
		_, err := h.PublishKeys(id, 0, []Hash128{{0, 1}, {0, 3}}, 4)
		return err
	})
	wantEqual(t, "pages in the index", h.IndexedPages(), 2)
}

func TestC24_LookupStopsAtTheFirstHole(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	tok := tokens(1, 12)
	h.run(AcquireRequest{Tokens: tok})
	tok[5]++ // block 1 is another one, block 2 is the same
	n, pages, err := h.Lookup(&AcquireRequest{Tokens: tok}, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "blocks found", n, 1)
	wantSlice(t, "pages", pages, []int32{0})
}

func TestC25_LookupsHaveNoEffect(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	h.run(AcquireRequest{Tokens: tokens(1, 8)})
	h.run(AcquireRequest{Tokens: tokens(2, 8)})
	before, counters := h.state(), h.Counters()
	for range 3 {
		req := &AcquireRequest{Tokens: tokens(1, 9)}
		if _, _, err := h.Lookup(req, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Plan(req); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Record(1); err != nil {
			t.Fatal(err)
		}
		h.Feasible(Demand{60})
	}
	wantEqual(t, "state", h.state(), before)
	wantEqual(t, "counters", h.Counters(), counters)
}

func TestC26_ErasedPagesAreMappedAnew(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 3})
	x, y := tokens(1, 8), tokens(2, 8)
	r := h.run(AcquireRequest{Tokens: x})
	long := h.run(AcquireRequest{Tokens: join(x[:4], tokens(3, 4))})
	if err := h.EvictRecord(r.Record); err != nil { // its first page is still mapped by the other record
		t.Fatal(err)
	}
	wantEqual(t, "hit on what is left", h.hit(AcquireRequest{Tokens: append(x, 1)}), 4)
	if err := h.EvictRecord(long.Record); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "hit on nothing", h.hit(AcquireRequest{Tokens: append(x, 1)}), 0)
	h.run(AcquireRequest{Tokens: y})
	wantEqual(t, "hit of x on pages that are y's now", h.hit(AcquireRequest{Tokens: append(x, 1)}), 0)
	wantEqual(t, "hit of y", h.hit(AcquireRequest{Tokens: append(y, 1)}), 8)
}

// spec is a request of the EAGLE mode.
func spec(t []int32) AcquireRequest { return AcquireRequest{Mode: Spec, Tokens: t} }

func specHost(t testing.TB) *host { return newHost(t, Config{PageTokens: 4, DraftPages: 64}) }

func TestC27_DraftPagesComeFromOneRecord(t *testing.T) {
	h := specHost(t)
	tok := tokens(1, 16)
	a, _ := h.acquire(spec(tok[:8]))
	b, _ := h.acquire(spec(tok)) // cold as well: its own draft pages
	h.publish(a, 8)
	h.publish(b, 16)
	pa, pb := h.pages(a, DraftPages), h.pages(b, DraftPages)
	c, plan := h.acquire(spec(append(tok, 1)))
	wantSlice(t, "bound draft pages: all of the longer record", h.pages(c, DraftPages)[:plan.BoundDraft], pb[:3])
	wantSlice(t, "bound base pages: the canonical ones", h.pages(c, BasePages)[:plan.BoundBase], h.recordPages(plan.Record, BasePages)[:3])
	wantSlice(t, "draft path of the shorter record", h.recordPages(1, DraftPages), pa)
	h.release(a, b, c)
}

func TestC28_ADraftPathCoversItsRecordOrIsRefused(t *testing.T) {
	h := specHost(t)
	id, _ := h.acquire(spec(tokens(1, 6)))
	h.append(id, tokens(2, 6))
	if !h.grow(id, 1, 0) { // base pages for 3 blocks, draft pages for 2
		t.Fatal("no room")
	}
	h.refused(status.InvalidArgument, "3 blocks with 2 draft pages", func() error { _, err := h.Publish(id, 12); return err })
	wantEqual(t, "draft entries", h.DraftEntries(), 0)
	h.publish(id, 8)
	wantEqual(t, "draft entries", h.DraftEntries(), 2)
}

func TestC29_LongestDraftBoundaryAndNewestRecordWin(t *testing.T) {
	h := specHost(t)
	stem := tokens(1, 12)
	var records []RecordID
	for i := range uint64(3) {
		id, _ := h.acquire(AcquireRequest{Mode: Spec, Policy: Bypass, Tokens: join(stem, tokens(10+i, 4))})
		records = append(records, h.publish(id, 16).Record)
		h.release(id)
	}
	p, err := h.Plan(&AcquireRequest{Mode: Spec, Tokens: join(stem, tokens(50, 8))})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "matched", p.Matched, 12)
	wantEqual(t, "record named: the newest of three", p.Record, records[2])
	if err := h.EvictRecord(records[2]); err != nil {
		t.Fatal(err)
	}
	p, _ = h.Plan(&AcquireRequest{Mode: Spec, Tokens: join(stem, tokens(50, 8))})
	wantEqual(t, "record named then", p.Record, records[1])
	p, _ = h.Plan(&AcquireRequest{Mode: Spec, Tokens: join(stem, tokens(10, 4), tokens(51, 1))})
	wantEqual(t, "record named at a longer boundary", p.Record, records[0])
	wantEqual(t, "matched", p.Matched, 16)
	// The newest, not the one that ends deepest, nor the one that happens to come first.
	id, _ := h.acquire(AcquireRequest{Mode: Spec, Policy: Bypass, Tokens: stem})
	short := h.publish(id, 8).Record
	h.release(id)
	p, _ = h.Plan(&AcquireRequest{Mode: Spec, Tokens: join(stem[:8], tokens(52, 4))})
	wantEqual(t, "record named: the newest, which is shorter", p.Record, short)
	id, _ = h.acquire(AcquireRequest{Mode: Spec, Policy: Bypass, Tokens: join(stem, tokens(13, 4))})
	long := h.publish(id, 16).Record
	h.release(id)
	p, _ = h.Plan(&AcquireRequest{Mode: Spec, Tokens: join(stem[:8], tokens(52, 4))})
	wantEqual(t, "record named: the newest, which is longer", p.Record, long)
}

func TestC30_ARepeatedBlockIsADistinctBoundary(t *testing.T) {
	h := specHost(t)
	same := join(tokens(1, 4), tokens(1, 4), tokens(1, 4)) // the same four tokens three times
	h.run(spec(same))
	wantEqual(t, "draft entries", h.DraftEntries(), 3)
	wantEqual(t, "base pages", h.IndexedPages(), 3)
	for n, want := range map[int]int{5: 0, 9: 4, 13: 8} {
		wantEqual(t, "restart", h.hit(spec(append(same[:n-1:n-1], 7))), want)
	}
	// The same on the keys level, where a key may repeat too.
	k := newHost(t, Config{PageTokens: 4, DraftPages: 8, Identity: Keys})
	key := []Hash128{{5, 5}, {5, 5}, {5, 5}}
	id, _ := k.acquire(AcquireRequest{Mode: Spec, Keys: key, TokenCount: 13})
	if _, err := k.PublishKeys(id, 0, key, 12); err != nil {
		t.Fatal(err)
	}
	p, _ := k.Plan(&AcquireRequest{Mode: Spec, Keys: key[:2], TokenCount: 11})
	wantEqual(t, "matched", p.Matched, 8)
}

func TestC31_EraseRemovesOnlyThisRecordsEntries(t *testing.T) {
	h := specHost(t)
	stem := tokens(1, 8)
	a := h.run(spec(join(stem, tokens(2, 4))))
	b := h.run(spec(join(stem, tokens(3, 8))))
	base := h.run(AcquireRequest{Tokens: join(stem, tokens(4, 4))})
	wantEqual(t, "draft entries", h.DraftEntries(), 3+4)
	if err := h.EvictRecord(base.Record); err != nil { // base only: a no-op for the draft side
		t.Fatal(err)
	}
	wantEqual(t, "draft entries", h.DraftEntries(), 3+4)
	if err := h.EvictRecord(a.Record); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "draft entries", h.DraftEntries(), 4)
	p, _ := h.Plan(&AcquireRequest{Mode: Spec, Tokens: join(stem, tokens(9, 4))})
	wantEqual(t, "record named", p.Record, b.Record)
	wantEqual(t, "matched", p.Matched, 8)
}
