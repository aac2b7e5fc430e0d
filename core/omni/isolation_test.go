package omni

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// The rule of this cache is one of slots, because that is how its host addresses rows:
// a hit yields the row of whoever owned the slot when the step was saved, and what that
// owner has not written reads as absent. Which requests may hit which blocks is the
// scheduler's decision; a tenant whose blocks are never in a hit of another's is never
// seen by it (O-26, S-7).
//
// Tenants take over each other's blocks at random, with and without a key, deferred and
// at once, while hits are read late. Every row says whose it is.
func TestO26_AHitYieldsRowsOfTheOwnerWhenPlannedOrNothing(t *testing.T) {
	const blocks, size = 12, 4
	for _, mode := range []string{"eager", "inline", "committer"} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprint(mode, "/", seed), func(t *testing.T) {
				cfg := Config{NumBlocks: blocks, BlockSize: size, StagingDepth: 8, ZeroOnRelease: seed%2 == 0, BudgetBytes: 4096}
				if cfg.Threaded = mode != "eager"; mode == "committer" {
					cfg.InlineBytes = -1
				}
				r := newRig(t, cfg)
				rng := rand.New(rand.NewPCG(seed, 3))
				if err := r.c.SetPolicy(false); err != nil { // rows that are absent read as zeros
					t.Fatal(err)
				}
				names := []string{"a", "b", "d", "e"} // d is deferred
				var owner [blocks]map[string]uint64   // the first row of the block's owner, 0: has none
				for b := range owner {
					owner[b] = map[string]uint64{}
				}
				type pending struct {
					step  uint64
					req   uint64
					wants map[string][]uint64
				}
				var late []pending
				read := func(i int) {
					p := late[i]
					name := names[rng.IntN(len(names))]
					for ; p.wants[name] == nil; name = names[rng.IntN(len(names))] {
					}
					got, err := r.tryRead(p.step, name)
					if err != nil {
						t.Fatal(err)
					}
					if fmt.Sprint(got[p.req]) != fmt.Sprint(p.wants[name]) {
						t.Fatalf("step %d, key %s: rows are %v, expected %v", p.step, name, got[p.req], p.wants[name])
					}
					late[i] = late[len(late)-1]
					late = late[:len(late)-1]
				}
				tag, hits, displaced := uint64(0), 0, 0
				for req := uint64(1); req <= 400; req++ {
					// A hit on blocks of whoever owns them, and a block of its own that may be one of these.
					arrival, wants := NewRequest{Request: req}, map[string][]uint64{}
					own := rng.Int64N(blocks)
					if rng.IntN(3) > 0 {
						for range 1 + rng.IntN(3) {
							if b := rng.Int64N(blocks); b != own {
								arrival.Blocks = append(arrival.Blocks, b)
							}
						}
						arrival.HitTokens = int64(len(arrival.Blocks)) * size
					}
					hits += len(arrival.Blocks)
					r.begin([]uint64{req - 1 - rng.Uint64N(3)}, arrival)
					carried := map[string]uint64{}
					for _, name := range names {
						if rng.IntN(3) > 0 || name == "a" {
							tag += 1000
							carried[name] = tag
						}
					}
					for name := range carried {
						wants[name] = []uint64{}
						for _, b := range arrival.Blocks {
							first := owner[b][name]
							for i := range uint64(size) {
								if first == 0 {
									wants[name] = append(wants[name], 0)
								} else {
									wants[name] = append(wants[name], first+i)
								}
							}
						}
						wants[name] = append(wants[name], seq(carried[name], size)...)
					}
					step := r.save(carried, chunk{req, span(own*size, own*size+size)})
					for _, name := range names {
						if owner[own][name] = carried[name]; carried[name] == 0 {
							displaced++
						}
					}
					late = append(late, pending{step, req, wants})
					for len(late) > 6 || len(late) > 0 && rng.IntN(3) == 0 {
						read(rng.IntN(len(late)))
					}
					if rng.IntN(3) == 0 {
						r.commitOne()
					}
					if req%20 == 0 {
						r.check()
					}
				}
				for len(late) > 0 {
					read(0)
				}
				if hits < 100 || displaced < 50 {
					t.Errorf("%d blocks hit, %d keys displaced: nothing was put to the test", hits, displaced)
				}
			})
		}
	}
}
