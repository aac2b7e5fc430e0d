package omni

import (
	"syscall"
	"testing"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Each request for memory fails once, the first, the second, … of a scenario that needs
// every kind: keys, deferred rows, staging pages, rows copied aside. The call that
// wanted it says so and has done nothing; tried again, it works.
func TestEveryFailedReservationLeavesNoTrace(t *testing.T) {
	defer rows.FailSystem(nil)
	for nth := 1; ; nth++ {
		calls, failed := 0, 0
		rows.FailSystem(func(call string) error {
			if call != "mmap" {
				return nil
			}
			if calls++; calls == nth {
				failed++
				return syscall.ENOMEM
			}
			return nil
		})
		r := newRig(t, Config{NumBlocks: 64, BlockSize: 16, Threaded: true, InlineBytes: -1})
		// try runs one call, again when memory failed it.
		try := func(call func() error) {
			t.Helper()
			before, fails := r.c.Stats(), failed
			err := call()
			if failed == fails {
				if err != nil {
					t.Fatalf("reservation %d: %v", nth, err)
				}
				return
			}
			if status.CodeOf(err) != status.OutOfMemory {
				t.Fatalf("reservation %d failed, the call says %v", nth, err)
			}
			after := r.c.Stats()
			if before.StepsSaved != after.StepsSaved || after.StagedBytes > before.StagedBytes || before.Keys != after.Keys {
				t.Fatalf("reservation %d: %+v became %+v", nth, before, after)
			}
			r.check()
			if err := call(); err != nil {
				t.Fatalf("reservation %d, second try: %v", nth, err)
			}
		}
		for _, name := range []string{"h", "a", "d"} {
			full, sched := name, JoinNextStep
			switch name {
			case "h":
				full = HiddenKey
			case "d":
				sched = JoinOnFinish
			}
			try(func() (err error) { r.keys[name], err = r.c.OpenKey(full, 8, 7, sched); return err })
		}
		var steps []uint64
		save := func(req uint64, from uint64, slots []int64) {
			t.Helper()
			try(func() error {
				step, err := r.trySave(map[string]uint64{"h": from, "a": from, "d": from}, chunk{req, slots})
				if err == nil {
					steps = append(steps, step)
				}
				return err
			})
		}
		r.begin(nil, arrive(1)...)
		save(1, 100, span(0, 32))
		r.begin([]uint64{1}, hitOn(2, 32, 0, 1)) // a planned read, of which rows are copied aside
		save(2, 200, span(32, 34))
		r.begin(nil, arrive(3)...)
		save(3, 300, span(0, 16))
		got := r.read(steps[1], "a")[2]
		for i := range uint64(32) {
			if got[i] != 100+i {
				t.Fatalf("reservation %d: row %d of the hit is %d", nth, i, got[i])
			}
		}
		if got[32] != 200 {
			t.Fatalf("reservation %d: new row is %d", nth, got[32])
		}
		r.discard(steps[0])
		r.discard(steps[2])
		r.check()
		if failed == 0 {
			if nth < 15 {
				t.Errorf("only %d reservations in the scenario", nth-1)
			}
			return
		}
	}
}
