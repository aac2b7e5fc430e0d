package prefix

import (
	"testing"

	"libprefixcache/core/status"
)

func TestC64_ReleaseDropsEverythingOnce(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 16, DraftPages: 16, RecurrentSlots: 2, PartialSlots: 2})
	for _, req := range []AcquireRequest{{Tokens: tokens(1, 9)}, spec(tokens(2, 9)), hybrid(tokens(3, 9)),
		{Mode: Hybrid, NoAttention: true, Tokens: tokens(4, 9)}, {}} {
		id, _ := h.acquire(req)
		h.release(id)
		h.refused(status.BadHandle, "second release", func() error { return h.Release(id) })
		for pool := range resourceCount {
			wantEqual(t, "free "+pool.String(), h.Free(pool), h.Capacity(pool))
		}
	}
	h.release(0) // the empty lease
	// A slot is reused under a new generation: the old id stays dead.
	a, _ := h.vanilla(tokens(1, 4))
	h.release(a)
	b, _ := h.vanilla(tokens(1, 4))
	if a == b {
		t.Error("a lease id was reused")
	}
	h.refused(status.BadHandle, "the old id", func() error { return h.Release(a) })
	h.release(b)
}

// Two leases hold the snapshot that both were hits of; what one gives up twice, in whatever
// way, is given up once.
func TestC64_RestoredSnapshotsAreGivenUpOnce(t *testing.T) {
	h := hybridHost(t)
	id, _ := h.acquire(hybrid(tokens(1, 7)))
	h.checkpoint(id, 6)
	h.release(id)
	a, p := h.acquire(hybrid(tokens(1, 7)))
	b, _ := h.acquire(hybrid(tokens(1, 7)))
	counts := func(what string, active int32) {
		t.Helper()
		wantEqual(t, "recurrent counts "+what, h.refs(RecurrentSlots, p.Recurrent), [2]int32{active, 1})
		wantEqual(t, "partial counts "+what, h.refs(PartialSlots, p.Partial), [2]int32{active, 1})
	}
	counts("of two hits", 2)
	for range 2 {
		if err := h.ReleaseRestored(a); err != nil {
			t.Fatal(err)
		}
		counts("once one is restored", 1)
	}
	h.release(a)
	counts("once its lease ended", 1)
	h.release(b) // not restored at all
	counts("without leases", 0)
}

func TestC65_EvictionUnmapsPagesThatAreStillActive(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 8})
	id, _ := h.acquire(spec(tokens(1, 8)))
	r := h.publish(id, 8)
	if err := h.EvictRecord(r.Record); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "index", h.IndexedPages(), 0)
	wantEqual(t, "draft entries", h.DraftEntries(), 0)
	for _, pool := range []Resource{BasePages, DraftPages} {
		for _, page := range h.pages(id, pool) {
			wantEqual(t, "counts", h.refs(pool, page), [2]int32{1, 0})
		}
	}
	wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: append(tokens(1, 8), 1)}), 0)
	// The owner may publish again: the same pages are mapped anew.
	h.publish(id, 8)
	wantEqual(t, "index", h.IndexedPages(), 2)
}

func TestC66_ReclaimedCountsOnlyWhatWasFreedThen(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 16, RecurrentSlots: 2, PartialSlots: 2})
	stem := tokens(1, 4)
	a := h.run(spec(join(stem, tokens(2, 4))))
	b := h.run(AcquireRequest{Tokens: join(stem, tokens(3, 4))})
	y, _ := h.acquire(hybrid(tokens(4, 6)))
	c := h.checkpoint(y, 6)
	h.release(y)
	hold, _ := h.vanilla(append(join(stem, tokens(3, 4)), 1)) // both pages of b stay active
	want := Counters{}
	for _, s := range []struct {
		record    RecordID
		reclaimed [4]uint64
	}{
		{a.Record, [4]uint64{1, 2, 0, 0}}, // the stem is shared with b
		{b.Record, [4]uint64{1, 2, 0, 0}}, // nothing: active
		{c.Record, [4]uint64{2, 2, 1, 1}},
	} {
		if err := h.EvictRecord(s.record); err != nil {
			t.Fatal(err)
		}
		want.EvictedRecords++
		wantEqual(t, "reclaimed", h.Counters().Reclaimed, s.reclaimed)
		wantEqual(t, "evicted", h.Counters().EvictedRecords, want.EvictedRecords)
	}
	h.release(hold) // not counted later either
	wantEqual(t, "reclaimed", h.Counters().Reclaimed, [4]uint64{2, 2, 1, 1})
}
