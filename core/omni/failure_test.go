package omni

import (
	"testing"

	"libprefixcache/core/status"
)

// Every way a write can fail, and every entry that must report it from then on.
func TestO42_R10_AWriteFailureIsSticky(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		fail func(r *rig) error // the call that meets it first, in eager mode
	}{
		{"eager step", Config{}, func(r *rig) error {
			_, err := r.trySave(map[string]uint64{"h": 1, "d": 1}, chunk{1, span(0, 1)})
			return err
		}},
		{"eager deferred", Config{}, func(r *rig) error {
			r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 1)}))
			return r.tryBegin([]uint64{1})
		}},
		{"eager flush", Config{BudgetBytes: 8}, func(r *rig) error {
			r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 1)}))
			_, err := r.trySave(map[string]uint64{"d": 1}, chunk{1, span(1, 2)})
			return err
		}},
		{"committer step", committer, func(r *rig) error {
			r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}))
			r.commit()
			return r.tryBegin(nil)
		}},
		{"committer deferred", Config{Threaded: true}, func(r *rig) error {
			r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 1)}))
			r.begin([]uint64{1})
			r.commit()
			return r.tryBegin(nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.cfg)
			r.begin(nil, arrive(1)...)
			kept := r.save(nil)
			other := r.save(nil)
			r.c.FailWrite(1)
			err := c.fail(r)
			wantErr(t, err, status.Unmatch, "write failed")
			first := err.Error()
			for range 3 {
				if err := r.tryBegin([]uint64{1}, arrive(5)...); err == nil || err.Error() != first {
					t.Fatalf("StepBegin: %v", err)
				}
				if _, err := r.trySave(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}); err == nil || err.Error() != first {
					t.Fatalf("Save: %v", err)
				}
			}
			if err := r.c.Materialize(kept, nil); err == nil || err.Error() != first {
				t.Fatalf("Materialize: %v", err)
			}
			if err := r.c.Discard(other); err != nil { // does not fold
				t.Fatal(err)
			}
			s := r.c.Stats()
			if s.FailedWrites != 1 || s.UnconsumedSteps != 0 {
				t.Fatalf("%+v", s)
			}
			// Saved are those whose Save succeeded: each of them is consumed.
			if s.StepsSaved != s.StepsMaterialized+s.StepsDiscarded {
				t.Fatalf("%d steps saved, %d materialized, %d discarded", s.StepsSaved, s.StepsMaterialized, s.StepsDiscarded)
			}
			if err := r.c.SetPolicy(true); err != nil {
				t.Fatal(err)
			}
			r.check()
			r.c.Shutdown()
		})
	}
}

// O-43: whoever waits for the write that fails is woken with the failure.
func TestO43_AWaiterIsWokenByAFailure(t *testing.T) {
	fails := func(r *rig) { r.c.FailWrite(1) }
	woken := func(r *rig, err error) {
		t.Helper()
		wantErr(t, err, status.Unmatch, "write failed before done")
		if r.w.waits != 1 || r.w.woken == 0 {
			t.Errorf("waited %d times, woken %d", r.w.waits, r.w.woken)
		}
	}
	r := newRig(t, committer)
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}))
	fails(r)
	_, err := r.trySave(map[string]uint64{"h": 1}, chunk{1, span(0, 1)})
	woken(r, err)

	r = newRig(t, committer)
	r.begin(nil, arrive(1)[0], hitOn(2, 4, 0))
	step := r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 4)}, chunk{2, span(4, 5)})
	fails(r)
	_, err = r.tryRead(step, "h")
	woken(r, err)

	r = newRig(t, Config{Threaded: true, BudgetBytes: 8})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 1)}))
	fails(r)
	_, err = r.trySave(map[string]uint64{"d": 1}, chunk{1, span(1, 2)})
	woken(r, err)
}

// A deferred write fails while a save waits for a page, or copies to the one it has: the
// save is one of the calls that report it, and not the last one that goes well.
func TestO42_AWriteThatFailsBesideASaveStopsIt(t *testing.T) {
	for _, place := range []string{"waits", "copies", "lands"} {
		t.Run(place, func(t *testing.T) {
			var r *rig
			var first uint64
			dev := &fakeDevice{lands: map[int]func(){}, pins: map[int]int64{}}
			fails := func() bool {
				if first == 0 || r.c.fatal != nil || place == "lands" && len(dev.lands) == 0 {
					return false
				}
				r.c.FailWrite(1)
				done := r.commitOne()
				if place == "waits" {
					r.discard(first)
				}
				return done
			}
			cfg := Config{Threaded: true, StagingDepth: 1, InlineBytes: 1 << 20}
			if place != "waits" {
				cfg = Config{Threaded: true, StagingDepth: 2, InlineBytes: -1, ZeroOnRelease: true, Executor: dev, Preempt: func() { fails() }}
			}
			r = newRig(t, cfg)
			r.begin(nil, arrive(1, 2)...)
			step := r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 1)})
			r.begin([]uint64{1}) // queued
			first = step
			save := r.trySave
			switch place {
			case "waits":
				r.w.onWait = func(Queue) bool { return fails() }
			case "lands":
				save = r.saveOn
			}
			_, err := save(map[string]uint64{"h": 1}, chunk{2, span(4, 5)})
			wantErr(t, err, status.Unmatch, "write failed")
			s := r.c.Stats()
			if s.FailedWrites != 1 || s.StepsSaved != 1 || s.StagedBytes != 0 || s.Keys != 1 || s.UnconsumedSteps != btoi(place != "waits") {
				t.Errorf("%+v", s)
			}
			for _, land := range dev.lands { // on a page that is free by now
				land()
			}
			r.check()
			first = 0
		})
	}
}

func TestFailPointCountsWrites(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.c.FailWrite(3)
	for i := range 2 {
		if _, err := r.trySave(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}); err != nil {
			t.Fatal(i, err)
		}
	}
	r.c.FailWrite(0)
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}))
}

// a committer that reports a failure goes on with the next job.
func TestR19_TheCommitterSurvivesAFailure(t *testing.T) {
	r := newRig(t, Config{Threaded: true})
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 1)}, chunk{2, span(1, 2)}))
	r.begin([]uint64{1, 2})
	r.c.FailWrite(1)
	if n := r.commit(); n != 2 {
		t.Fatalf("%d jobs ran, want 2", n)
	}
	if s := r.c.Stats(); s.FailedWrites != 1 || s.DeferredWrites != 1 || s.StagedBytes != 0 {
		t.Fatalf("%+v", s)
	}
}

// S-14: shutdown waits for what runs and drops what is pending.
func TestS14_ShutdownWaitsForRunningWork(t *testing.T) {
	r := newRig(t, committer)
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"h": 1, "d": 1}, chunk{1, span(0, 4)}))
	r.begin([]uint64{1})
	j, _ := r.c.NextJob()
	waited := false
	r.onlyBy(func() bool {
		waited = true
		if err := r.c.Free(); status.CodeOf(err) != status.Busy {
			t.Errorf("Free while a job runs: %v", err)
		}
		r.c.JobDone(&j, r.c.RunHost(&j))
		return true
	})
	r.c.Shutdown()
	if !waited || r.rows("h", 0)[0] != 1 {
		t.Fatal("it did not wait for the running job")
	}
	if _, ok := r.c.NextJob(); ok {
		t.Fatal("a pending write was given out after shutdown")
	}
	if _, ok := r.c.AwaitJob(); ok {
		t.Fatal("AwaitJob gave a job after shutdown")
	}
	r.c.Shutdown()
}

func TestShutDownText(t *testing.T) {
	r := newRig(t, Config{StagingDepth: 1})
	r.begin(nil, arrive(1)...)
	step := r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)})
	if err := r.c.Free(); status.CodeOf(err) != status.WrongState {
		t.Fatalf("Free of a running cache: %v", err)
	}
	r.onlyBy(func() bool { // a save waits for a page when the cache stops
		r.onlyBy(nil)
		r.c.Shutdown()
		return true
	})
	_, err := r.trySave(map[string]uint64{"h": 1}, chunk{1, span(0, 1)})
	wantErr(t, err, status.Unmatch, "shut down")
	_, err = r.trySave(nil)
	wantErr(t, err, status.Unmatch, "shut down")
	wantErr(t, r.tryBegin(nil), status.Closed, "shut down")
	_, err = r.c.OpenKey("x", 1, 1, 0)
	wantErr(t, err, status.Closed, "shut down")
	if got := r.read(step, "h")[1]; got[0] != 1 { // what was saved can still be read
		t.Fatal(got)
	}
	if err := r.c.Free(); err != nil {
		t.Fatal(err)
	}
	if err := r.c.Free(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, r.c.Discard(step), status.Unmatch, "missing")
}

// A reader that waits for rows nobody will write any more is told so.
func TestShutdownWakesAReaderOfUnwrittenRows(t *testing.T) {
	r := newRig(t, committer)
	r.begin(nil, arrive(1)[0], hitOn(2, 4, 0))
	step := r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 4)}, chunk{2, span(4, 5)})
	r.onlyBy(func() bool {
		r.onlyBy(nil)
		r.c.Shutdown()
		return true
	})
	_, err := r.tryRead(step, "h")
	wantErr(t, err, status.Unmatch, "shut down")
}

func TestShutdownDropsThePendingStep(t *testing.T) {
	r := newRig(t, committer)
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}))
	r.c.Shutdown()
	if s := r.c.Stats(); s.StagedBytes != 0 || s.PendingWrites != 0 || r.c.pages[0] != 0 || r.rows("h", 0)[0] != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()
}
