package main

import (
	"testing"

	"libprefixcache/core/omni/omnitest"
	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// The random traffic of core/omni's tests, with most rows on a device whose work
// runs late and in a random order between streams, and with driver calls that fail.
// Every row of every result is compared with the model; the simulator reports use
// before an event, reuse under a copy, use after free, and leaks.
func TestDeviceTraceAgainstModel(t *testing.T) {
	for _, mode := range []string{"eager", "threaded", "committer"} {
		t.Run(mode, func(t *testing.T) {
			simcuda.EachSeed(t, seeds(200), func(t testing.TB, seed uint64) {
				s := newStage(t, seed)
				s.landed = make([]gpu.Event, 8)
				if seed%5 == 0 {
					simcuda.Policy(simcuda.Late)
				}
				omnitest.Run(t, omnitest.Trace{Mode: mode, Seed: seed, Steps: 12, Device: s})
				ok(t, given(s.quiesce))
				ok(t, given(s.close))
				s.end()
			})
		})
	}
}
