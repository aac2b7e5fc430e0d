package prefix

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// batchManager holds a few published prompts of two-token pages.
func batchManager(t *testing.T, rng *rand.Rand, pages int) *Manager {
	t.Helper()
	m, err := New(Config{PageTokens: 2, BasePages: pages, DraftPages: pages, RecurrentSlots: 4, PartialSlots: 4, MaxRecords: 8})
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		req := randomBatch(rng, 1)[0]
		res, err := m.Acquire(&req)
		if err != nil {
			t.Fatal(err)
		}
		if res.Status == Acquired {
			if len(req.Tokens) >= 2 {
				if _, err := m.Publish(res.Lease, len(req.Tokens)); err != nil && res.Plan.Dependency == 0 {
					t.Fatal(err)
				}
			}
			if err := m.Release(res.Lease); err != nil {
				t.Fatal(err)
			}
		}
	}
	return m
}

func randomBatch(rng *rand.Rand, n int) []AcquireRequest {
	reqs := make([]AcquireRequest, n)
	for i := range reqs {
		reqs[i].Mode = []Mode{Vanilla, Spec}[rng.IntN(2)]
		reqs[i].Tokens = make([]int32, 1+rng.IntN(14))
		for j := range reqs[i].Tokens {
			reqs[i].Tokens[j] = rng.Int32N(2)
		}
		if rng.IntN(4) == 0 {
			reqs[i].Extras = &Extras{Isolation: OptionalHash{Present: true, Hash: Hash128{Lo: rng.Uint64N(2)}}}
		}
	}
	return reqs
}

// A batch is all or nothing (D-13): refused, it leaves records, pools and
// recency as they were; admitted, it holds what the plans said before, also
// where acquiring one after the other would have evicted a later hit.
func TestD13_BatchIsAllOrNothing(t *testing.T) {
	admitted, refused, saved := 0, 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := batchManager(t, rng, 20)
		reqs := randomBatch(rng, 2+rng.IntN(4))
		plans := make([]Plan, len(reqs))
		for i := range reqs {
			plans[i], _ = m.Plan(&reqs[i])
		}
		records, evicted := m.Records(), m.Counters().EvictedRecords
		free := [2]int{m.Free(BasePages), m.Free(DraftPages)}
		victim := m.order.First()

		out := make([]AcquireResult, len(reqs))
		ok, err := m.AcquireBatch(reqs, out)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i := range out {
			want, got := plans[i], out[i].Plan
			got.Reason, want.Reason = 0, 0 // the first of a batch may make its extras known
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d: request %d is not planned as alone (-alone +batch):\n%s", seed, i, diff)
			}
		}
		if !ok {
			refused++
			now := [2]int{m.Free(BasePages), m.Free(DraftPages)}
			if m.Records() != records || m.Counters().EvictedRecords != evicted || now != free || m.order.First() != victim {
				t.Fatalf("seed %d: a refused batch left %d of %d records, free %v of %v", seed, m.Records(), records, now, free)
			}
			for i := range out {
				if out[i].Lease != 0 || out[i].Status != InsufficientCapacity {
					t.Fatalf("seed %d: refused, but %+v", seed, out[i])
				}
			}
			continue
		}
		admitted++
		saved += int(min(1, m.Counters().EvictedRecords-evicted))
		for i := range out {
			n, err := m.PageCount(out[i].Lease, BasePages)
			if want := (len(reqs[i].Tokens) + 1) / 2; err != nil || n != want {
				t.Fatalf("seed %d: %d pages (%v), want %d", seed, n, err, want)
			}
			if err := m.Release(out[i].Lease); err != nil {
				t.Fatal(err)
			}
		}
		m.Flush()
		if err := m.Check(); err != nil || m.Free(BasePages) != 20 || m.Free(DraftPages) != 20 {
			t.Fatalf("seed %d: free %d and %d afterwards, %v", seed, m.Free(BasePages), m.Free(DraftPages), err)
		}
	}
	if admitted < 500 || refused < 200 || saved < 100 {
		t.Errorf("%d admitted (%d with eviction), %d refused: too few to mean much", admitted, saved, refused)
	}
	m := batchManager(t, rand.New(rand.NewPCG(1, 1)), 20)
	if _, err := m.AcquireBatch(make([]AcquireRequest, 2), make([]AcquireResult, 1)); err == nil {
		t.Error("a result slice of another length was accepted")
	}
}
