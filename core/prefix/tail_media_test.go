package prefix

import "testing"

// A checkpoint's tail takes its digests from the lease's cell, out of the very array
// that may have to grow for them. With ZeroOnRelease the former array was cleared
// before they were read: the tail became text, and any prompt with zeros there hit
// another prompt's media. Found by the simulator.
func TestCheckpointTailKeepsItsDigestsWhileMediaGrow(t *testing.T) {
	for _, zero := range []bool{false, true} {
		m, err := New(Config{PageTokens: 4, RecurrentSlots: 4, MaxRecords: 4, ZeroOnRelease: zero})
		if err != nil {
			t.Fatal(err)
		}
		image := Hash128{1, 5}
		acquire := func(media ...Hash128) AcquireResult {
			res, err := m.Acquire(&AcquireRequest{Mode: Hybrid, NoAttention: true, Tokens: make([]int32, len(media)), Media: media})
			if err != nil || res.Status != Acquired {
				t.Fatal(res, err)
			}
			return res
		}
		l := acquire(image, image).Lease
		for length := 1; length <= 2; length++ { // the array has room for the first tail
			slots, ok, err := m.Reserve(l, false)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if _, err := m.PublishHybrid(l, length, slots); err != nil {
				t.Fatal(err)
			}
		}
		if got := acquire(Hash128{}, Hash128{}, Hash128{}).Plan.Reuse; got != 0 {
			t.Errorf("zero %v: a prompt of text reuses %d tokens of another prompt's media", zero, got)
		}
		if got := acquire(image, image, Hash128{}).Plan.Reuse; got != 2 {
			t.Errorf("zero %v: the same media reuse %d tokens, want 2", zero, got)
		}
	}
}
