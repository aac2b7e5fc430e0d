package prefix

import (
	"math/rand/v2"
	"testing"
)

// The structural rules, read off the public queries while leases of every kind
// come and go. That Check agrees with a model is TestRandomRunAgainstModel.

// traffic runs random requests on small pools and calls look after each step.
func traffic(t *testing.T, look func(h *host, live []LeaseID)) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 60, DraftPages: 50, RecurrentSlots: 6, PartialSlots: 5, MaxRecords: 15})
	w := &world{t: t, r: rand.New(rand.NewPCG(67, 71)), mgr: h.Manager, m: newModel(h.cfg), modes: []Mode{Vanilla, Hybrid, Spec},
		seen: map[string]int{}, realms: []*Extras{nil, adapter(1), adapter(2)}}
	for range 600 {
		w.step()
		var live []LeaseID
		for _, l := range w.leases {
			live = append(live, l.id)
		}
		look(h, live)
	}
	for len(w.leases) > 0 {
		w.release(0)
	}
	h.Flush()
	look(h, nil)
}

func TestC67_EveryRecordsPathIsWhatTheIndexHas(t *testing.T) {
	traffic(t, func(h *host, _ []LeaseID) {
		for r := range h.AllRecords() {
			path := h.recordPages(r.ID, BasePages)
			if len(path) != r.Blocks {
				t.Fatalf("record %+v has %d pages", r, len(path))
			}
			i := h.recordByID(r.ID)
			src := source{cells: path}
			at := h.descend(h.rootPlace(h.nodes[h.records[i].node].realm), &src, int32(len(path)), nil)
			if int(at.at) != len(path) {
				t.Fatalf("record %d: the index follows its path for %d of %d blocks", r.ID, at.at, len(path))
			}
		}
	})
}

func TestC68_CountsAreThoseOfLeasesAndRecords(t *testing.T) {
	traffic(t, func(h *host, live []LeaseID) {
		for _, pool := range []Resource{BasePages, DraftPages} {
			active, cache := map[int32]int32{}, map[int32]int32{}
			for _, id := range live {
				for _, p := range h.pages(id, pool) {
					active[p]++
				}
			}
			for r := range h.AllRecords() {
				for _, p := range h.recordPages(r.ID, pool) {
					cache[p]++
				}
			}
			a, c := make([]int32, h.Capacity(pool)), make([]int32, h.Capacity(pool))
			if err := h.References(pool, a, c); err != nil {
				t.Fatal(err)
			}
			distinct := 0
			for p := range a {
				if a[p] != active[int32(p)] || c[p] != cache[int32(p)] {
					t.Fatalf("%s page %d has %d/%d, want %d/%d", pool, p, a[p], c[p], active[int32(p)], cache[int32(p)])
				}
				if a[p] > 0 {
					distinct++
				}
			}
			wantEqual(t, "active pages", h.Active(pool), distinct)
		}
	})
}

func TestC69_IndexSizesAreThoseOfThePaths(t *testing.T) {
	traffic(t, func(h *host, _ []LeaseID) {
		base, draft := map[int32]bool{}, 0
		for r := range h.AllRecords() {
			for _, p := range h.recordPages(r.ID, BasePages) {
				base[p] = true
			}
			draft += len(h.recordPages(r.ID, DraftPages))
		}
		wantEqual(t, "pages in the index", h.IndexedPages(), len(base))
		wantEqual(t, "draft entries", h.DraftEntries(), draft)
	})
}

func TestC70_FreeAndUsedSlotsAddUp(t *testing.T) {
	traffic(t, func(h *host, _ []LeaseID) {
		for pool := range resourceCount {
			n := h.Capacity(pool)
			a, c := make([]int32, n), make([]int32, n)
			if err := h.References(pool, a, c); err != nil {
				t.Fatal(err)
			}
			used := 0
			for i := range a {
				if a[i]+c[i] > 0 {
					used++
				}
			}
			wantEqual(t, "free + used "+pool.String(), h.Free(pool)+used, n)
		}
	})
}

func TestC71_WithoutLeasesAndRecordsEverythingIsFree(t *testing.T) {
	empty := 0
	traffic(t, func(h *host, live []LeaseID) {
		if len(live) > 0 || h.Records() > 0 {
			return
		}
		empty++
		for pool := range resourceCount {
			wantEqual(t, "free "+pool.String(), h.Free(pool), h.Capacity(pool))
		}
		wantEqual(t, "nodes", h.Nodes(), 0)
	})
	if empty == 0 {
		t.Error("the cache was never empty")
	}
}
