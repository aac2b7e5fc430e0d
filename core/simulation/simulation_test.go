package simulation

import (
	"flag"
	"testing"
)

var (
	operations = flag.Uint64("sim.operations", 0, "operations of each machine; 0 for 300 000, or 20 000 with -short")
	minutes    = flag.Float64("sim.minutes", 0, "stop after this time, if the operations do not end before")
	firstSeed  = flag.Uint64("sim.first", 1, "first seed of the runs")
	runSeed    = flag.Uint64("sim.seed", 0, "play this one seed, with a log and all checks")
	runKeep    = flag.String("sim.keep", "", "with -sim.seed: play these operations of its plan only, like 3,5-9")
	noShrink   = flag.Bool("sim.noshrink", false, "report a failure as it was found")
)

// budget of each machine; scripts/run_tests.py asks for 8 million.
func budget() uint64 {
	switch {
	case *operations > 0:
		return *operations
	case testing.Short():
		return 20_000
	}
	return 300_000
}

// TestOmni runs core/omni under every schedule that the seeds lead to.
func TestOmni(t *testing.T) {
	t.Parallel()
	explore(t, newOmniWorld, 1500)
}

// TestContext runs core/coordinator and core/prefix in the same way.
func TestContext(t *testing.T) {
	t.Parallel()
	explore(t, newContextWorld, 1500)
}

// TestLeases runs core/prefix alone, with what a coordinator does not ask it for.
func TestLeases(t *testing.T) {
	t.Parallel()
	explore(t, newLeaseWorld, 1500)
}
