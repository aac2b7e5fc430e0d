package omni

import (
	"testing"

	"libprefixcache/core/status"
)

// S-14: whatever a save waits for, or does without the lock, a shutdown in the middle
// ends it: with the text that hosts look for, no step, and nothing left behind.
func TestS14_AShutdownInTheMiddleEndsASave(t *testing.T) {
	steps := map[string]uint64{"h": 1}
	deferred := map[string]uint64{"d": 1}
	for name, c := range map[string]struct {
		cfg    Config
		before func(r *rig)
		save   map[string]uint64
		inCopy bool // the shutdown comes while rows are copied, not while somebody waits

		deferred int64 // bytes of rows that were deferred before
	}{
		"for a staging page":  {Config{Threaded: true, StagingDepth: 1}, func(r *rig) { r.save(steps, chunk{1, span(0, 1)}) }, steps, false, 0},
		"for the former step": {committer, func(r *rig) { r.discard(r.save(steps, chunk{1, span(0, 1)})) }, steps, false, 0},
		"for the budget": {Config{Threaded: true, BudgetBytes: 20}, func(r *rig) {
			r.discard(r.save(deferred, chunk{1, span(0, 2)}))
		}, deferred, false, 16},
		"while rows are staged": {committer, func(*rig) {}, steps, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var r *rig
			armed := false
			shut := func() {
				if armed {
					armed = false
					r.c.Shutdown()
				}
			}
			if c.inCopy {
				c.cfg.Preempt = shut
			}
			r = newRig(t, c.cfg)
			r.begin(nil, arrive(1)...)
			c.before(r)
			r.w.onWait = func(Queue) bool {
				was := armed
				shut()
				return was
			}
			saved := r.c.Stats().StepsSaved
			armed = true
			_, err := r.trySave(c.save, chunk{1, span(4, 6)})
			wantErr(t, err, status.Unmatch, "shut down")
			// Deferred rows stay: planned reads may refer to them.
			if s := r.c.Stats(); s.StepsSaved != saved || s.StagedBytes != c.deferred {
				t.Errorf("%d steps saved, %d bytes staged, want %d and %d", s.StepsSaved, s.StagedBytes, saved, c.deferred)
			}
			r.check()
			if _, err := r.trySave(c.save, chunk{1, span(4, 6)}); status.CodeOf(err) != status.Unmatch {
				t.Errorf("a save after it: %v", err)
			}
		})
	}
}

// a shutdown waits for the job that runs, and one that gives up leaves everything
// that the job holds, which comes back once, when it ends.
func TestR18_AShutdownThatGivesUpWaitingTakesNothingFromTheJob(t *testing.T) {
	r := newRig(t, committer)
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}))
	j, _ := r.c.NextJob()
	r.onlyBy(nil)
	r.c.Shutdown()
	if s := r.c.Stats(); s.StagedBytes != 8 || s.PendingWrites != 1 || r.c.pages[0] != pageByWrite {
		t.Errorf("while it runs: %d bytes staged, %d writes, page held by %b", s.StagedBytes, s.PendingWrites, r.c.pages[0])
	}
	wantErr(t, r.c.Free(), status.Busy, "1 jobs")
	r.c.JobDone(&j, r.c.RunHost(&j))
	if s := r.c.Stats(); s.StagedBytes != 0 || s.PendingWrites != 0 || r.c.pages[0] != 0 || r.rows("h", 0)[0] != 1 {
		t.Errorf("after it: %d bytes staged, %d writes, page held by %b", s.StagedBytes, s.PendingWrites, r.c.pages[0])
	}
}
