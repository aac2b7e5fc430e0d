package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestShorten_AVictimGivesWhatIsNeededAndKeepsItsPlace(t *testing.T) {
	for _, on := range []bool{false, true} {
		h := newHost(t, Config{PageTokens: 4, BasePages: 12, ShortenVictims: on})
		long := h.run(AcquireRequest{Tokens: tokens(1, 32)}).Record // 8 of 12 pages
		short := h.run(AcquireRequest{Tokens: tokens(2, 8)}).Record
		path := h.recordPages(long, BasePages)
		id, _ := h.vanilla(tokens(3, 12)) // 3 pages, 2 are free
		if !on {
			wantSlice(t, "order", h.order(), []RecordID{short})
			continue
		}
		wantSlice(t, "order", h.order(), []RecordID{long, short})
		wantSlice(t, "path of the victim", h.recordPages(long, BasePages), path[:4])
		wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: tokens(1, 33)}), 16)
		c := h.Counters()
		wantEqual(t, "evicted, shortened, reclaimed", [3]uint64{c.EvictedRecords, c.ShortenedRecords, c.Reclaimed[BasePages]}, [3]uint64{0, 1, 4})
		if !h.grow(id, 7, 0) { // 3 are free: the 4 that are left of the victim
			t.Fatal("no room")
		}
		wantSlice(t, "order", h.order(), []RecordID{short})
		// Publishing the same again extends what is left.
		h.release(id)
		h.run(AcquireRequest{Tokens: tokens(1, 32)})
		wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: tokens(1, 33)}), 32)
	}
}

// In random traffic the invariants hold, and whatever is found is what was asked for.
func TestShorten_RandomTraffic(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	h := newHost(t, Config{PageTokens: 2, BasePages: 60, DraftPages: 60, RecurrentSlots: 4, PartialSlots: 4, MaxRecords: 20, ShortenVictims: true})
	type running struct {
		id  LeaseID
		tok []int32
	}
	var live []running
	for step := range 6000 {
		if len(live) > 3 || len(live) > 0 && r.IntN(3) == 0 {
			i := r.IntN(len(live))
			l := live[i]
			if h.grow(l.id, 1, 0) && r.IntN(2) == 0 {
				more := tokens(uint64(step), 2)
				h.append(l.id, more)
				l.tok = join(l.tok, more)
			}
			if info, _ := h.Lease(l.id); info.Mode == Vanilla && len(l.tok) > 1 && len(l.tok)/2 <= info.Base {
				h.publish(l.id, len(l.tok))
			}
			h.release(l.id)
			live = slices.Delete(live, i, i+1)
		} else {
			tok := make([]int32, 1+r.IntN(60))
			for i := range tok {
				tok[i] = int32(r.IntN(12) / 11)
			}
			a, err := h.Acquire(&AcquireRequest{Mode: []Mode{Vanilla, Vanilla, Hybrid}[r.IntN(3)], Tokens: tok})
			if err != nil {
				t.Fatal(err)
			}
			if a.Status == Acquired {
				live = append(live, running{a.Lease, tok})
				got := make([]int32, len(tok))
				if err := h.History(a.Lease, 0, got); err != nil || !slices.Equal(got, tok) {
					t.Fatalf("step %d: lease holds %v, want %v", step, got, tok)
				}
			}
		}
		if err := h.Check(); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
	if c := h.Counters(); c.ShortenedRecords < 100 || c.EvictedRecords < 100 {
		t.Errorf("%d shortened, %d evicted: too few to mean much", c.ShortenedRecords, c.EvictedRecords)
	}
}

// One victim is cut many times; each cut finds its place from where the former ones came by.
func TestShorten_OneVictimManyTimes(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(9, seed))
		h := newHost(t, Config{PageTokens: 4, BasePages: 800, ShortenVictims: true})
		scrambled(h.Manager, r, 1+r.IntN(6))
		prompt := tokens(1, 4*800)
		long := h.run(AcquireRequest{Tokens: prompt[:4*750]}).Record
		path := h.recordPages(long, BasePages)
		for left := 750; left > 100; {
			n := 1 + r.IntN(100)
			h.vanilla(tokens(uint64(n), 4*n))
			if err := h.Check(); err != nil {
				t.Fatal(err)
			}
			hit := h.hit(AcquireRequest{Tokens: prompt}) / 4
			if hit > left || left-hit > 132 {
				t.Fatalf("%d blocks are left of %d after %d were wanted", hit, left, n)
			}
			if left = hit; left > 100 {
				wantSlice(t, "path of the victim", h.recordPages(long, BasePages), path[:left])
			}
		}
	}
}
