package prefix

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
)

var (
	steps = flag.Int("prefix.steps", 20000, "steps of the random run against the model, over all variants; 1000000 for a soak")
	seed  = flag.Uint64("prefix.seed", 1, "seed of the random run")
)

// TestRandomRunAgainstModel drives every operation in random order and holds the
// manager against the model after each, with C-67..C-71 checked as well. The
// variants make pools small and records few, so that eviction, detaching and
// re-publishing over foreign pages happen all the time.
func TestRandomRunAgainstModel(t *testing.T) {
	weak := func(uint32, []int32) uint64 { return 3 }
	variants := []struct {
		name   string
		cfg    Config
		modes  []Mode
		shadow bool
	}{
		{"vanilla", Config{PageTokens: 4, BasePages: 40, MaxRecords: 12}, []Mode{Vanilla}, false},
		{"vanilla-original-recency", Config{PageTokens: 4, BasePages: 40, MaxRecords: 100, OriginalRecency: true}, []Mode{Vanilla}, false},
		{"vanilla-one-token-pages", Config{PageTokens: 1, BasePages: 120, MaxRecords: 9}, []Mode{Vanilla}, false},
		{"vanilla-no-records", Config{PageTokens: 4, BasePages: 40}, []Mode{Vanilla}, false},
		{"weak-hash", Config{PageTokens: 2, BasePages: 90, MaxRecords: 30, Hash: weak}, []Mode{Vanilla, Vanilla, Spec, Hybrid}, false},
		{"spec", Config{PageTokens: 4, BasePages: 60, DraftPages: 50, MaxRecords: 14}, []Mode{Spec, Spec, Spec, Vanilla}, false},
		{"hybrid", Config{PageTokens: 4, BasePages: 60, RecurrentSlots: 9, PartialSlots: 6, MaxRecords: 14}, []Mode{Hybrid, Hybrid, Hybrid, Vanilla}, false},
		{"pure-recurrent", Config{PageTokens: 4, RecurrentSlots: 9, MaxRecords: 8}, []Mode{Hybrid}, true},
		{"keys", Config{PageTokens: 3, BasePages: 70, DraftPages: 60, RecurrentSlots: 8, PartialSlots: 5, MaxRecords: 20, Identity: Keys},
			[]Mode{Vanilla, Hybrid, Spec}, false},
		{"keys-pure-recurrent", Config{PageTokens: 3, RecurrentSlots: 8, MaxRecords: 20, Identity: Keys}, []Mode{Hybrid}, true},
		{"everything", Config{PageTokens: 3, BasePages: 70, DraftPages: 60, RecurrentSlots: 8, PartialSlots: 5, MaxRecords: 20},
			[]Mode{Vanilla, Hybrid, Spec}, false},
	}
	for i, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			cfg := v.cfg
			if cfg.Hash != nil {
				cfg.DraftPages, cfg.RecurrentSlots, cfg.PartialSlots = 70, 8, 6
			}
			// Neither changes what the model sees; Check looks at both.
			cfg.ZeroOnRelease = i%2 == 0
			cfg.TenantQuota = 1000 * (i % 3 % 2)
			mgr, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			w := &world{t: t, r: rand.New(rand.NewPCG(*seed, uint64(len(v.name)))), mgr: mgr, m: newModel(cfg), modes: v.modes,
				shadow: v.shadow, seen: map[string]int{}}
			w.realms = []*Extras{nil,
				{Adapter: Adapter{true, Hash128{1, 1}, 1}},
				{Adapter: Adapter{true, Hash128{1, 1}, 2}}}
			for i := range *steps / len(variants) {
				w.step()
				w.m.compare(t, mgr, fmt.Sprintf("step %d", i))
			}
			for len(w.leases) > 0 {
				w.release(0)
			}
			mgr.Flush()
			w.evict(append([]*modelRecord(nil), w.m.recs...))
			w.m.compare(t, mgr, "the end") // C-71: everything is free again
			t.Log(w.seen)
		})
	}
}
