package prefix

import "testing"

// Tokens are asked for by leases that were acquired and looked: not by one that
// bypasses the cache, nor by one that found no room.
func TestCountersQueryAndHitTokens(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 8})
	h.run(AcquireRequest{Tokens: tokens(1, 8)})
	c := h.Counters()
	wantEqual(t, "queries of a cold prompt", c.QueryTokens, 8)
	wantEqual(t, "hits of a cold prompt", c.HitTokens, 0)
	id, p := h.vanilla(append(tokens(1, 8), 1, 2, 3))
	wantEqual(t, "reused", p.Reuse, 8)
	h.release(id)
	id, _ = h.acquire(AcquireRequest{Tokens: append(tokens(1, 8), 1), Policy: Bypass})
	h.release(id)
	if a, err := h.Acquire(&AcquireRequest{Tokens: tokens(3, 100)}); err != nil || a.Status != InsufficientCapacity {
		t.Fatalf("%+v, %v, want no room", a, err)
	}
	c = h.Counters()
	wantEqual(t, "queries", c.QueryTokens, 8+11)
	wantEqual(t, "hits", c.HitTokens, 8)
}

// A peak is what was active at once, by whichever call it became so.
func TestCountersPeaks(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 16, DraftPages: 16, RecurrentSlots: 4, PartialSlots: 4})
	a, _ := h.acquire(spec(tokens(1, 8)))
	b, _ := h.vanilla(tokens(2, 4))
	if ok, err := h.Grow(b, 3, 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	h.release(a)
	h.release(b)
	c, _ := h.acquire(hybrid(tokens(3, 4)))
	for range 2 {
		if _, ok, err := h.Reserve(c, true); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	h.release(c)
	wantEqual(t, "peaks", h.Counters().ActivePeak, [resourceCount]uint64{2 + 1 + 3, 2, 2, 2})
	wantEqual(t, "leases", h.Counters().LeasesPeak, 2)
}
