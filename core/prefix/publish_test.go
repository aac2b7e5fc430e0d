package prefix

import (
	"testing"

	"libprefixcache/core/status"
)

func TestC55_PublishPreconditions(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 16, RecurrentSlots: 2, PartialSlots: 2})
	v, _ := h.vanilla(tokens(1, 10))
	h.refused(status.InvalidArgument, "resident -1", func() error { _, err := h.Publish(v, -1); return err })
	h.refused(status.InvalidArgument, "no full block", func() error { _, err := h.Publish(v, 3); return err })
	h.refused(status.InvalidArgument, "nothing", func() error { _, err := h.Publish(v, 0); return err })
	h.append(v, tokens(2, 10)) // 20 tokens in 3 pages
	h.refused(status.InvalidArgument, "5 blocks of 3 pages", func() error { _, err := h.Publish(v, 20); return err })
	// The count is capped by both the history and the resident length.
	wantEqual(t, "blocks", h.publish(v, 11).Blocks, 2)
	wantEqual(t, "blocks", h.publish(v, 12).Blocks, 3)
	if !h.grow(v, 2, 0) {
		t.Fatal("no room")
	}
	wantEqual(t, "blocks", h.publish(v, 1000).Blocks, 5)

	h.run(spec(tokens(3, 12)))
	s, p := h.acquire(spec(append(tokens(3, 12), 1)))
	wantEqual(t, "dependency", p.Dependency, 3)
	h.refused(status.InvalidArgument, "the replayed block left out", func() error { _, err := h.Publish(s, 8); return err })
	wantEqual(t, "status", h.publish(s, 12).Status, ExistingRecord)
	h.release(s)
	h.refused(status.BadHandle, "released lease", func() error { _, err := h.Publish(s, 12); return err })
	h.refused(status.Unsupported, "keys on a token cache", func() error { _, err := h.PublishKeys(v, 0, nil, 4); return err })
}

func TestC55_KeysMustAgreeWithWhatWasMatched(t *testing.T) {
	k := newHost(t, Config{PageTokens: 4, DraftPages: 16, Identity: Keys})
	key := []Hash128{{0, 1}, {0, 2}, {0, 3}, {0, 4}}
	id, _ := k.acquire(AcquireRequest{Mode: Spec, Keys: key[:3], TokenCount: 13})
	if _, err := k.PublishKeys(id, 0, key[:3], 12); err != nil {
		t.Fatal(err)
	}
	k.release(id)
	id, p := k.acquire(AcquireRequest{Mode: Spec, Keys: key, TokenCount: 17})
	wantEqual(t, "plan", [2]int{p.Matched, p.Dependency}, [2]int{12, 3})
	changed := []Hash128{{0, 1}, {0, 2}, {0, 9}, {0, 4}}
	k.refused(status.InvalidArgument, "block 3 changed after the replay", func() error { _, err := k.PublishKeys(id, 0, changed, 16); return err })
	k.refused(status.InvalidArgument, "keys with a gap before them", func() error { _, err := k.PublishKeys(id, 5, key, 16); return err })
	k.refused(status.Unsupported, "tokens on a key cache", func() error { _, err := k.Publish(id, 16); return err })
	k.refused(status.Unsupported, "tokens on a key cache", func() error { return k.Append(id, []int32{1}) })
	// Only what is new needs to be given.
	r, err := k.PublishKeys(id, 3, key[3:], 16)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "blocks", r.Blocks, 4)
	wantEqual(t, "hit", plan(t, k, AcquireRequest{Keys: key, TokenCount: 17}).Reuse, 16)
	// Blocks that were neither matched nor published may still get other keys.
	if !k.grow(id, 2, 2) {
		t.Fatal("no room")
	}
	if _, err := k.PublishKeys(id, 4, []Hash128{{0, 5}, {0, 6}}, 20); err != nil {
		t.Fatal(err)
	}
	if r, err = k.PublishKeys(id, 5, []Hash128{{0, 7}}, 24); err != nil || r.Blocks != 6 {
		t.Fatal(r, err)
	}
}

func TestC55_KeysThatOnlyTheBaseSideMatchedAreSettledToo(t *testing.T) {
	k := newHost(t, Config{PageTokens: 4, DraftPages: 16, RecurrentSlots: 2, Identity: Keys})
	key := []Hash128{{0, 1}, {0, 2}, {0, 3}}
	v, _ := k.acquire(AcquireRequest{Keys: key, TokenCount: 13})
	if _, err := k.PublishKeys(v, 0, key, 12); err != nil {
		t.Fatal(err)
	}
	other := []Hash128{{0, 1}, {0, 2}, {0, 9}}
	for _, mode := range []Mode{Spec, Hybrid} { // no draft path, no checkpoint: nothing is reused
		id, p := k.acquire(AcquireRequest{Mode: mode, Keys: key, TokenCount: 13})
		wantEqual(t, "reuse", p.Reuse, 0)
		slots := Reservation{-1, -1}
		if mode == Hybrid {
			slots, _, _ = k.Reserve(id, false)
		}
		k.refused(status.InvalidArgument, "another key for a block of the prompt", func() (err error) {
			if mode == Hybrid {
				_, err = k.PublishHybridKeys(id, 0, other, Checkpoint{12, other[2]}, slots)
			} else {
				_, err = k.PublishKeys(id, 0, other, 12)
			}
			return err
		})
	}
	wantEqual(t, "hit", plan(t, k, AcquireRequest{Keys: other, TokenCount: 13}).Reuse, 8)
}

func TestC55_KeysThatNothingMatchedMayStillChange(t *testing.T) {
	k := newHost(t, Config{PageTokens: 4, Identity: Keys})
	k.runKey(Hash128{7, 7}) // a child of the root that does not match, so that the table is asked
	id, _ := k.acquire(AcquireRequest{Keys: []Hash128{{0, 1}, {0, 2}}, TokenCount: 9})
	want := []Hash128{{0, 5}, {0, 6}}
	if _, err := k.PublishKeys(id, 0, want, 8); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "hit with the keys of the prompt", plan(t, k, AcquireRequest{Keys: []Hash128{{0, 1}, {0, 2}}, TokenCount: 9}).Reuse, 0)
	wantEqual(t, "hit with the keys that were published", plan(t, k, AcquireRequest{Keys: want, TokenCount: 9}).Reuse, 8)
}

// runKey publishes one block by its key.
func (h *host) runKey(key Hash128) {
	h.Helper()
	id, _ := h.acquire(AcquireRequest{Keys: []Hash128{key}, TokenCount: h.cfg.PageTokens})
	if _, err := h.PublishKeys(id, 1, nil, h.cfg.PageTokens); err != nil {
		h.Fatal(err)
	}
	h.release(id)
}

func TestC56_DraftUpgrade(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 16})
	base := h.run(AcquireRequest{Tokens: tokens(1, 12)})
	other := h.run(AcquireRequest{Tokens: tokens(2, 12)})
	canonical := h.recordPages(base.Record, BasePages)
	id, p := h.acquire(spec(tokens(1, 12)))
	wantEqual(t, "reuse", p.Reuse, 0)
	r := h.publish(id, 12)
	wantEqual(t, "result", r, PublishResult{Published, base.Record, 3, false})
	wantSlice(t, "base path", h.recordPages(base.Record, BasePages), canonical)
	wantSlice(t, "draft path", h.recordPages(base.Record, DraftPages), h.pages(id, DraftPages))
	wantSlice(t, "order", h.order(), []RecordID{other.Record, base.Record})
	h.release(id)
	for _, page := range h.recordPages(base.Record, DraftPages) {
		wantEqual(t, "counts of a draft page", h.refs(DraftPages, page), [2]int32{0, 1})
	}
	wantEqual(t, "a spec hit then", h.hit(spec(append(tokens(1, 12), 1))), 8)
}

func TestC57_PublishIsOneTransactionAndKeepsTheLimit(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, MaxRecords: 2})
	var ids []RecordID
	for i := range uint64(4) {
		ids = append(ids, h.run(AcquireRequest{Tokens: tokens(i, 8)}).Record)
		if h.Records() > 2 {
			t.Errorf("%d records after a publication", h.Records())
		}
	}
	wantSlice(t, "records", h.order(), ids[2:])
	wantEqual(t, "evicted", h.Counters().EvictedRecords, 2)
	// Existing records never cost another one.
	h.run(AcquireRequest{Policy: Bypass, Tokens: tokens(2, 8)})
	wantSlice(t, "records", h.order(), []RecordID{ids[3], ids[2]})

	// Limit 0: published, and gone at once.
	m, err := New(Config{PageTokens: 4, BasePages: 8})
	if err != nil {
		t.Fatal(err)
	}
	z := &host{t, m}
	id, _ := z.vanilla(tokens(1, 8))
	wantEqual(t, "result", z.publish(id, 8), PublishResult{Published, 0, 2, false})
	wantEqual(t, "records", z.Records(), 0)
	wantEqual(t, "index", z.IndexedPages(), 0)
	wantEqual(t, "result again", z.publish(id, 8), PublishResult{Published, 0, 2, false})
	z.release(id)
	wantEqual(t, "free", z.Free(BasePages), 8)
	if err := z.Check(); err != nil {
		t.Error(err)
	}
}

func TestC58_PublicationNeverRebindsTheProducer(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 16})
	tok := tokens(1, 12)
	a, _ := h.vanilla(tok[:8])
	b, _ := h.vanilla(tok) // cold too
	pa, pb := h.pages(a, BasePages), h.pages(b, BasePages)
	h.publish(a, 8)
	r := h.publish(b, 12)
	// The record's path is a's pages and then b's; b keeps all of its own.
	wantSlice(t, "canonical path", h.recordPages(r.Record, BasePages), append(append([]int32(nil), pa...), pb[2]))
	wantSlice(t, "pages of b", h.pages(b, BasePages), pb)
	if !h.grow(b, 1, 0) {
		t.Fatal("no room")
	}
	h.append(b, tokens(2, 4))
	h.publish(b, 16) // continues below pages that are not all its own
	h.release(a)
	free := h.Free(BasePages)
	h.release(b)
	wantEqual(t, "duplicates that came back", h.Free(BasePages)-free, 2)
	wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: join(tok, tokens(2, 5))}), 16)
}

func TestC58_EvictedPagesComeBackUnderAnotherProducer(t *testing.T) {
	// a's first pages leave the index while a still owns them; c publishes the
	// same blocks; then a publishes again: its lower pages return to the index
	// under c's upper ones, and b, which shares a's pages, must notice nothing.
	h := newHost(t, Config{PageTokens: 4, BasePages: 64})
	tok := tokens(1, 24)
	a, _ := h.vanilla(tok)
	short, long := h.publish(a, 8), h.publish(a, 20)
	b, pb := h.vanilla(join(tok[:20], tokens(2, 3)))
	wantEqual(t, "bound", pb.BoundBase, 5)
	for _, r := range []RecordID{short.Record, long.Record} {
		if err := h.EvictRecord(r); err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, "index", h.IndexedPages(), 0)
	c := h.run(AcquireRequest{Tokens: tok[:12]})
	pages := h.recordPages(c.Record, BasePages)
	own := h.pages(a, BasePages)
	r := h.publish(a, 24)
	wantSlice(t, "path", h.recordPages(r.Record, BasePages), append(pages, own[3:6]...))
	d, pd := h.vanilla(append(append([]int32(nil), tok...), 7))
	wantEqual(t, "bound by d", pd.BoundBase, 6)
	if err := h.Check(); err != nil {
		t.Fatal(err)
	}
	h.release(b)
	if err := h.Check(); err != nil {
		t.Fatal(err)
	}
	h.release(a, d)
	h.Flush()
	wantEqual(t, "free", h.Free(BasePages), 64)
}

func TestC59_AFailedPublishLeavesEverything(t *testing.T) {
	k := newHost(t, Config{PageTokens: 4, Identity: Keys})
	id, _ := k.acquire(AcquireRequest{TokenCount: 12})
	if _, err := k.PublishKeys(id, 0, []Hash128{{0, 1}, {0, 2}}, 8); err != nil {
		t.Fatal(err)
	}
	// Pages 0 and 1 have identities; giving one another name must fail whole.
	k.refused(status.InvalidArgument, "page mapped to another key", func() error {
		_, err := k.PublishKeys(id, 0, []Hash128{{0, 1}, {0, 9}, {0, 3}}, 12)
		return err
	})
	wantEqual(t, "hit on the refused path", plan(t, k, AcquireRequest{Keys: []Hash128{{0, 1}, {0, 9}}, TokenCount: 9}).Reuse, 4)
}

func TestLastPagesAreThoseOfTheGrowthBefore(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 16})
	id, _ := h.acquire(spec(tokens(1, 6)))
	if !h.grow(id, 3, 2) {
		t.Fatal("no room")
	}
	for pool, n := range map[Resource]int{BasePages: 3, DraftPages: 2} {
		all, last := h.pages(id, pool), make([]int32, n)
		ok(t, h.LastPages(id, pool, last))
		wantSlice(t, "last pages", last, all[len(all)-n:])
	}
	h.refused(status.InvalidArgument, "more pages than there are", func() error { return h.LastPages(id, BasePages, make([]int32, 6)) })
	wantEqual(t, "covers its history", h.Covers(id, 6), true)
	wantEqual(t, "covers more", h.Covers(id, 7), false)
	h.release(id)
	wantEqual(t, "covers, released", h.Covers(id, 1), false)
	h.refused(status.BadHandle, "released lease", func() error { return h.LastPages(id, BasePages, nil) })
}

func TestC60_TheResultNamesWhatIsThere(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	id, _ := h.vanilla(tokens(1, 11))
	r := h.publish(id, 11)
	wantEqual(t, "result", r, PublishResult{Published, 1, 2, false})
	wantSlice(t, "canonical pages", h.recordPages(r.Record, BasePages), h.pages(id, BasePages)[:2])
	wantEqual(t, "result again", h.publish(id, 8), PublishResult{ExistingRecord, 1, 2, false})
	wantEqual(t, "result of one block", h.publish(id, 7), PublishResult{Published, 2, 1, false})
}

// A lease remembers the record that it published last. Whatever happened to that record
// since, publishing the same length again leaves the lease's own prefix findable.
func TestC57_WhatWasPublishedLastMayBeGoneSince(t *testing.T) {
	tok := tokens(1, 32)
	for _, c := range []struct {
		name string
		do   func(h *host, r RecordID)
	}{
		{"evicted", func(h *host, r RecordID) { ok(h, h.EvictRecord(r)) }},
		{"evicted, and another record in its place", func(h *host, r RecordID) {
			ok(h, h.EvictRecord(r))
			h.run(AcquireRequest{Tokens: tokens(2, 32)})
		}},
		{"shortened", func(h *host, r RecordID) { h.run(AcquireRequest{Tokens: tokens(3, 44)}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, Config{PageTokens: 4, BasePages: 26, ShortenVictims: true})
			a, _ := h.vanilla(tok)
			b, _ := h.vanilla(tok) // cold too: its pages are not those of the record
			h.publish(a, 32)
			r := h.publish(b, 32)
			wantEqual(t, "result", r, PublishResult{ExistingRecord, r.Record, 8, false})
			h.release(a)
			c.do(h, r.Record)
			if hit := h.hit(AcquireRequest{Tokens: append(tok, 1)}); hit == 32 {
				t.Fatal("the record is still there")
			}
			again := h.publish(b, 32)
			wantEqual(t, "status", again.Status, Published)
			wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: append(tok, 1)}), 32)
			wantEqual(t, "result again", h.publish(b, 32), PublishResult{ExistingRecord, again.Record, 8, false})
			h.release(b)
			ok(h, h.Check())
		})
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
