package simulation

import (
	"slices"
	"testing"
	"time"
)

// toy fails once it has played all of some operations.
type toy struct {
	want   []uint64
	played map[uint64]bool
}

func (w *toy) step(r *rng) {
	w.played[r.x] = true
	for _, x := range w.want {
		if !w.played[x] {
			return
		}
	}
	failf("all of them")
}

func (w *toy) finish(*rng)                {}
func (w *toy) check() error               { return nil }
func (w *toy) counts() counts             { return counts{} }
func (w *toy) trace(func(string, ...any)) {}

// A failing plan becomes the operations that it needs, and its command means the same.
func TestShrink(t *testing.T) {
	p := plan{seed: 5, length: 200}
	needs := []int{3, 4, 5, 150}
	start := func(*rng) world {
		w := &toy{played: map[uint64]bool{}}
		for _, i := range needs {
			w.want = append(w.want, p.operation(i).x)
		}
		return w
	}
	small, out := shrink(start, p, time.Minute)
	if !slices.Equal(small.keep, needs) || out.failed != "all of them" || out.at != 150 {
		t.Errorf("shrunk to %v, which fails with %q at %d", small.keep, out.failed, out.at)
	}
	if text := formatKeep(small.keep); text != "3-5,150" || !slices.Equal(parseKeep(t, text), needs) {
		t.Errorf("%v is written as %q and read as %v", small.keep, text, parseKeep(t, text))
	}
	if got := play(start, plan{5, 200, []int{3, 4, 150}}, fast); got.failed != "" {
		t.Errorf("a plan without one of them fails: %s", got.failed)
	}
}

// The same seed gives the same run, call by call.
func TestSameSeedSameRun(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for name, start := range map[string]func(*rng) world{"omni": newOmniWorld, "context": newContextWorld, "leases": newLeaseWorld} {
		for seed := range seeds {
			p := plan{seed: seed + 1, length: 200}
			a, b := play(start, p, logged), play(start, p, logged)
			if a.failed != b.failed || a.counts != b.counts || !slices.Equal(a.log, b.log) || len(a.log) < 10 {
				t.Errorf("%s, seed %d: %d and %d lines of log, failed %q and %q", name, p.seed, len(a.log), len(b.log), a.failed, b.failed)
			}
		}
	}
}
