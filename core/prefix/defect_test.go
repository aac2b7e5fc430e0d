package prefix

import "testing"

func TestD02_TextMediaPairsAreNotMediaTextPairs(t *testing.T) {
	// Equal in the original: a text position had no tag, a media position one.
	a := AcquireRequest{Tokens: []int32{0x00030213, 777}, Media: []Hash128{{}, {0x1122334455667788, 0x99aabbccddeeff00}}}
	var t2 uint32 = 0x99aabbcc
	b := AcquireRequest{Tokens: []int32{888, int32(t2)}, Media: []Hash128{{0x5566778813000302, 0xddeeff0011223344}, {}}}
	if digest(t, ChainRoot, a.Tokens, a.Media, nil) == digest(t, ChainRoot, b.Tokens, b.Media, nil) {
		t.Error("digests are equal")
	}
	h := newHost(t, Config{PageTokens: 2, Hash: func(uint32, []int32) uint64 { return 0 }})
	h.run(a)
	b.Tokens, b.Media = append(b.Tokens, 1), append(b.Media, Hash128{})
	wantEqual(t, "hit", h.hit(b), 0)
	a.Tokens, a.Media = append(a.Tokens, 1), append(a.Media, Hash128{})
	wantEqual(t, "hit of the same", h.hit(a), 2)
}

func TestD03_TrimmedPagesAreNotPinned(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	tok, media := tokens(1, 16), make([]Hash128, 16)
	for i := 2; i < 10; i++ {
		media[i] = d1
	}
	r := h.run(AcquireRequest{Tokens: tok[:8], Media: media[:8]})
	id, p := h.acquire(AcquireRequest{Tokens: tok, Media: media})
	// Both blocks match, but the boundaries at 8 and at 4 would split the item.
	want := Plan{Kind: NoReusablePrefix, Reason: ReasonMediaBoundary, Record: r.Record, Recurrent: -1, Partial: -1, Demand: Demand{4}}
	wantEqual(t, "plan", p, want)
	for _, page := range h.recordPages(r.Record, BasePages) {
		wantEqual(t, "counts of a trimmed page", h.refs(BasePages, page), [2]int32{0, 1})
	}
	for _, page := range h.pages(id, BasePages) {
		wantEqual(t, "counts of a page that prefill writes", h.refs(BasePages, page), [2]int32{1, 0})
	}
	wantEqual(t, "publication", h.publish(id, 16).Status, Published)
}

func TestD04_HybridCandidatesThatSplitMediaAreMisses(t *testing.T) {
	h := newHost(t, Config{RecurrentSlots: 4, PartialSlots: 4})
	tok, media := tokens(1, 200), make([]Hash128, 200)
	for i := 120; i < 140; i++ {
		media[i] = d1
	}
	id, _ := h.acquire(AcquireRequest{Mode: Hybrid, Tokens: tok, Media: media})
	h.checkpoint(id, 130)
	h.checkpoint(id, 119)
	h.release(id)
	p := plan(t, h, AcquireRequest{Mode: Hybrid, Tokens: tok, Media: media})
	wantEqual(t, "start", p.Reuse, 119)
	wantEqual(t, "pages and tail", [2]int{p.BoundBase, p.PartialTokens}, [2]int{0, 119})
	text := plan(t, h, AcquireRequest{Mode: Hybrid, Tokens: tok[:121], Media: media[:121]})
	wantEqual(t, "start of a prompt cut in the item", text.Reuse, 119)
	if err := h.EvictRecord(2); err != nil {
		t.Fatal(err)
	}
	p = plan(t, h, AcquireRequest{Mode: Hybrid, Tokens: tok, Media: media})
	wantEqual(t, "start", p.Reuse, 0)
	wantEqual(t, "reason", p.Reason, ReasonMediaBoundary)
}

func TestD17_OrdinaryAndHybridRecordsOfOnePathExcludeEachOther(t *testing.T) {
	tok := tokens(1, 8)
	h := hybridHost(t)
	ordinary := h.run(AcquireRequest{Tokens: tok})
	id, _ := h.acquire(hybrid(tok))
	r := h.checkpoint(id, 8)
	wantEqual(t, "hybrid over ordinary", r, PublishResult{ExistingRecord, ordinary.Record, 2, false})
	wantEqual(t, "free slots", h.Free(RecurrentSlots), 8)
	h.release(id)

	h = hybridHost(t)
	id, _ = h.acquire(hybrid(tok))
	first := h.checkpoint(id, 8)
	h.release(id)
	r = h.run(AcquireRequest{Tokens: tok})
	wantEqual(t, "ordinary over hybrid", r, PublishResult{ExistingRecord, first.Record, 2, false})
}
