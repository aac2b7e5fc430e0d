package omni_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"libprefixcache/core/omni/omnitest"
)

// traceSeeds is how many random runs a test makes; OMNI_TRACES sets it for a soak.
func traceSeeds() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("OMNI_TRACES"), 10, 32); err == nil {
		return n
	}
	if testing.Short() {
		return 2
	}
	return 12
}

func TestTraceAgainstModel(t *testing.T) {
	for _, mode := range []string{"eager", "threaded", "committer", "shared"} {
		steps := 200
		if mode == "shared" { // waking threads for a few bytes takes its time
			steps = 30
		}
		for seed := range traceSeeds() {
			t.Run(fmt.Sprintf("%s/%d", mode, seed+1), func(t *testing.T) {
				omnitest.Run(t, omnitest.Trace{Mode: mode, Seed: seed + 1, Steps: steps})
			})
		}
	}
}
