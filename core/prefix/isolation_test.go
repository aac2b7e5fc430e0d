package prefix

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// identities are sequences of equal tokens that differ in one thing each: nothing of
// one may ever be given to another.
func identities(tok []int32) (reqs []AcquireRequest, names []string) {
	a, b, zero := Hash128{1, 2}, Hash128{2, 1}, Hash128{}
	with := func(name string, media []Hash128, e *Extras) {
		reqs = append(reqs, AcquireRequest{Tokens: tok, Media: media, Extras: e})
		names = append(names, name)
	}
	digests := func(at int, d Hash128) []Hash128 {
		m := make([]Hash128, len(tok))
		m[at] = d
		return m
	}
	with("plain", nil, nil)
	for i, h := range []Hash128{zero, a, b} {
		o := OptionalHash{true, h}
		with(fmt.Sprint("isolation ", i), nil, &Extras{Isolation: o})
		with(fmt.Sprint("position ", i), nil, &Extras{Position: o})
		with(fmt.Sprint("embedding ", i), nil, &Extras{Embedding: o})
		with(fmt.Sprint("adapter ", i), nil, &Extras{Adapter: Adapter{true, h, 0}})
		with(fmt.Sprint("adapter generation ", i), nil, &Extras{Adapter: Adapter{true, h, 1}})
		with(fmt.Sprint("isolation and adapter ", i), nil, &Extras{Isolation: o, Adapter: Adapter{true, h, 0}})
	}
	span := MediaSpan{Content: a, Placement: b, Offset: 1, Order: 0, Modality: 1}
	for i, s := range []MediaSpan{span, {b, b, 1, 0, 1}, {a, a, 1, 0, 1}, {a, b, 2, 0, 1}, {a, b, 1, 1, 1}, {a, b, 1, 0, 2}} {
		with(fmt.Sprint("span ", i), nil, &Extras{Spans: []MediaSpan{s}})
	}
	with("spans", nil, &Extras{Spans: []MediaSpan{span, {b, b, 2, 1, 1}}})
	with("spans the other way round", nil, &Extras{Spans: []MediaSpan{{b, b, 2, 1, 1}, span}})
	with("media a", digests(0, a), nil)
	with("media b", digests(0, b), nil)
	with("media a one further", digests(1, a), nil)
	with("media whose digest has the token's bits", digests(0, Hash128{0, uint64(uint32(tok[0]))}), nil)
	with("media a, isolated", digests(0, a), &Extras{Isolation: OptionalHash{true, a}})
	return reqs, names
}

// Two sequences that differ in isolation, adapter, media or position identity never
// share a page, although every lookup collides: all pairs, all modes, both orders.
func TestDifferentIdentitiesNeverShareAPage(t *testing.T) {
	reqs, names := identities(tokens(1, 12))
	for _, mode := range []Mode{Vanilla, Spec, Hybrid} {
		for i := range reqs {
			for j := range reqs {
				if i == j {
					continue
				}
				m, err := New(Config{PageTokens: 4, BasePages: 16, DraftPages: 16, RecurrentSlots: 4, PartialSlots: 4, MaxRecords: 8,
					Hash: func(uint32, []int32) uint64 { return 7 }})
				if err != nil {
					t.Fatal(err)
				}
				var pages [2][]int32
				for k, req := range []AcquireRequest{reqs[i], reqs[j]} {
					req.Mode = mode
					res, err := m.Acquire(&req)
					if err != nil || res.Status != Acquired {
						t.Fatal(res, err)
					}
					if res.Plan.Matched != 0 || res.Plan.BoundBase != 0 || res.Plan.BoundDraft != 0 || res.Plan.Recurrent != -1 {
						t.Errorf("mode %d: %s hits %s: %+v", mode, names[j], names[i], res.Plan)
					}
					publishAll(t, m, res.Lease, mode, 12)
					n, _ := m.PageCount(res.Lease, BasePages)
					pages[k] = make([]int32, n)
					if err := m.Pages(res.Lease, BasePages, 0, pages[k]); err != nil {
						t.Fatal(err)
					}
				}
				for _, p := range pages[0] {
					for _, q := range pages[1] {
						if p == q {
							t.Errorf("mode %d: %s and %s share page %d", mode, names[i], names[j], p)
						}
					}
				}
				if err := m.Check(); err != nil {
					t.Fatal(err)
				}
				// Each finds its own again: the test could tell a hit.
				for k, req := range []AcquireRequest{reqs[i], reqs[j]} {
					if n, found, err := m.Lookup(&req, nil); err != nil || n != 3 || fmt.Sprint(found) != fmt.Sprint(pages[k][:3]) {
						t.Errorf("mode %d: request %d finds %d blocks %v, has %v (%v)", mode, k, n, found, pages[k], err)
					}
				}
			}
		}
	}
}

// publishAll publishes what a lease has computed, in the way of its mode.
func publishAll(t *testing.T, m *Manager, l LeaseID, mode Mode, resident int) {
	t.Helper()
	if mode != Hybrid {
		if _, err := m.Publish(l, resident); err != nil {
			t.Fatal(err)
		}
		return
	}
	r, ok, err := m.Reserve(l, false)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, err := m.PublishHybrid(l, resident, r); err != nil {
		t.Fatal(err)
	}
	if err := m.Retire(l, r); err != nil {
		t.Fatal(err)
	}
}

// All of them at once in one manager that is much too small: whatever is evicted and
// handed on, a record's pages are what its own identity finds, and nobody else's.
func TestIdentitiesStayApartUnderEviction(t *testing.T) {
	reqs, names := identities(tokens(1, 16))
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 5))
		m, err := New(Config{PageTokens: 4, BasePages: 40, MaxRecords: 12, ShortenVictims: seed%2 == 1,
			Hash: func(uint32, []int32) uint64 { return 7 }})
		if err != nil {
			t.Fatal(err)
		}
		type live struct {
			who int
			id  LeaseID
		}
		var leases []live
		for range 1500 {
			if len(leases) > 0 && r.IntN(2) == 0 {
				k := r.IntN(len(leases))
				if err := m.Release(leases[k].id); err != nil {
					t.Fatal(err)
				}
				leases[k] = leases[len(leases)-1]
				leases = leases[:len(leases)-1]
				continue
			}
			who := r.IntN(len(reqs))
			req := reqs[who]
			n := 5 + r.IntN(12)
			if req.Tokens = req.Tokens[:n]; req.Media != nil {
				req.Media = req.Media[:n]
			}
			res, err := m.Acquire(&req)
			if err != nil {
				t.Fatal(err)
			}
			if res.Status != Acquired {
				continue
			}
			leases = append(leases, live{who, res.Lease})
			if r.IntN(4) > 0 {
				publishAll(t, m, res.Lease, Vanilla, n)
			}
			owner := map[int32]int{}
			claim := func(who int, pages []int32) {
				for _, p := range pages {
					if o, ok := owner[p]; ok && o != who {
						t.Fatalf("seed %d: page %d is held by %s and by %s", seed, p, names[o], names[who])
					}
					owner[p] = who
				}
			}
			for _, l := range leases {
				n, _ := m.PageCount(l.id, BasePages)
				pages := make([]int32, n)
				if err := m.Pages(l.id, BasePages, 0, pages); err != nil {
					t.Fatal(err)
				}
				claim(l.who, pages)
			}
			for who := range reqs {
				_, pages, err := m.Lookup(&reqs[who], nil)
				if err != nil {
					t.Fatal(err)
				}
				claim(who, pages)
			}
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		if m.Counters().EvictedRecords < 100 || m.Counters().HashCollisions == 0 {
			t.Errorf("seed %d: %+v: nothing was put to the test", seed, m.Counters())
		}
	}
}
