package simulation

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// world is one machine with everything around it, made from a seed.
type world interface {
	// step makes one operation, with choices from r alone.
	step(r *rng)
	// finish brings everything to rest and looks at what is left.
	finish(r *rng)
	// check verifies the structure. It changes nothing.
	check() error
	// counts is what the run did so far.
	counts() counts
	// trace turns the log on, which costs more than the run itself.
	trace(say func(format string, args ...any))
}

// counts are the two figures of a run: operations, which are calls begun, threads
// resumed, device work carried out, and faults; and calls into the machine alone.
type counts struct{ operations, calls uint64 }

// plan is a run: a seed, how many operations it has, and which of these are played.
// Every operation has choices of its own, so one that is left out does not change
// what the others ask for.
type plan struct {
	seed   uint64
	length int
	keep   []int // nil: all
}

func (p plan) operation(i int) rng { return rng{scramble(p.seed*0xd1342543de82ef95 + uint64(i) + 1)} }

// failure is why a run failed. Worlds panic with one.
type failure struct{ text string }

func failf(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

// outcome of a run.
type outcome struct {
	counts
	failed string
	at     int // operation of the plan, or its length: in finish
	log    []string
}

// care is how closely a run is watched. It changes nothing that the machine does.
type care uint8

const (
	fast    care = iota // the structure is verified at the end of the plan
	careful             // after every operation
	logged              // and a log is kept
)

// play runs a plan.
func play(start func(r *rng) world, p plan, how care) (out outcome) {
	var w world
	defer func() {
		if w != nil {
			out.counts = w.counts()
		}
		switch e := recover().(type) {
		case nil:
		case failure:
			out.failed = e.text
		default:
			out.failed = fmt.Sprintf("panic: %v\n%s", e, debug.Stack())
		}
	}()
	out.at = -1
	r := p.operation(-1)
	w = start(&r)
	if how == logged {
		w.trace(func(format string, args ...any) {
			out.log = append(out.log, fmt.Sprintf("%5d  ", out.at)+fmt.Sprintf(format, args...))
		})
	}
	look := func() {
		if err := w.check(); err != nil {
			failf("%v", err)
		}
	}
	one := func(i int) {
		out.at = i
		r := p.operation(i)
		w.step(&r)
		if how >= careful {
			look()
		}
	}
	if p.keep == nil {
		for i := range p.length {
			one(i)
		}
	} else {
		for _, i := range p.keep {
			one(i)
		}
	}
	out.at = p.length
	r = p.operation(p.length)
	look()
	w.finish(&r)
	return out
}

// shrink drops operations of a failing plan while it still fails, in ever smaller
// pieces, for a limited time.
func shrink(start func(r *rng) world, p plan, limit time.Duration) (plan, outcome) {
	best := play(start, p, careful)
	keep := p.keep
	if keep == nil {
		for i := range min(best.at+1, p.length) {
			keep = append(keep, i)
		}
	}
	end := time.Now().Add(limit)
	for size := len(keep) / 2; size > 0; {
		dropped := false
		for at := 0; at < len(keep) && time.Now().Before(end); {
			less := plan{p.seed, p.length, append(slices.Clone(keep[:at]), keep[min(at+size, len(keep)):]...)}
			if out := play(start, less, careful); out.failed != "" {
				keep, best, dropped = less.keep, out, true
				for len(keep) > 0 && keep[len(keep)-1] > out.at { // it failed before these
					keep = keep[:len(keep)-1]
				}
			} else {
				at += size
			}
		}
		if !dropped || size > 1 {
			size /= 2
		}
	}
	if keep == nil {
		keep = []int{}
	}
	return plan{p.seed, p.length, keep}, play(start, plan{p.seed, p.length, keep}, logged)
}

// explore plays plan after plan until the budget is used up, and fails the test with
// the smallest plan that it finds for the first one that fails.
func explore(t *testing.T, start func(r *rng) world, length int) {
	if *runSeed != 0 {
		p := plan{seed: *runSeed, length: length, keep: parseKeep(t, *runKeep)}
		out := play(start, p, logged)
		for _, l := range out.log {
			t.Log(l)
		}
		if out.failed == "" {
			t.Logf("seed %d: %d operations, nothing found", p.seed, out.operations)
			return
		}
		t.Fatalf("operation %d: %s", out.at, out.failed)
	}
	var all counts
	began := time.Now()
	seed := *firstSeed
	for ; all.operations < budget(); seed++ {
		if all.operations > 0 && *minutes > 0 && time.Since(began) > time.Duration(*minutes*float64(time.Minute)) {
			break
		}
		p := plan{seed: seed, length: length}
		out := play(start, p, fast)
		all.operations += out.operations
		all.calls += out.calls
		if out.failed == "" {
			continue
		}
		t.Logf("found after %d operations: seed %d, operation %d: %s", all.operations, seed, out.at, out.failed)
		if *noShrink {
			t.FailNow()
		}
		small, again := shrink(start, p, 10*time.Second)
		for _, l := range again.log {
			t.Log(l)
		}
		command := fmt.Sprintf("go test ./core/simulation -count=1 -run '^%s$' -v -sim.seed %d", t.Name(), seed)
		if small.keep != nil {
			command += " -sim.keep " + formatKeep(small.keep)
		}
		t.Fatalf("operation %d: %s\n%d of %d operations are enough; run them again with\n%s",
			again.at, again.failed, len(small.keep), length, command)
	}
	spent := time.Since(began).Seconds()
	t.Logf("%d operations, of which %d calls into the cache, seeds %d to %d, %.0f operations a second",
		all.operations, all.calls, *firstSeed, seed-1, float64(all.operations)/spent)
}

// formatKeep writes a list of operations as ranges: 3,5-9.
func formatKeep(keep []int) string {
	var parts []string
	for i := 0; i < len(keep); {
		j := i
		for j+1 < len(keep) && keep[j+1] == keep[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(keep[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", keep[i], keep[j]))
		}
		i = j + 1
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ",")
}

func parseKeep(t testing.TB, text string) (keep []int) {
	if text == "" {
		return nil
	}
	keep = []int{}
	if text == "none" {
		return keep
	}
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(low)
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(high)
		}
		if err != nil {
			t.Fatalf("-sim.keep: %q, expected numbers and ranges like 3,5-9", part)
		}
		for ; from <= to; from++ {
			keep = append(keep, from)
		}
	}
	return keep
}
