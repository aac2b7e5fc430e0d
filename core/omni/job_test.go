package omni

import (
	"fmt"
	"reflect"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

// onlyBy parks with fn as what other threads do meanwhile; fn nil: nothing.
func (r *rig) onlyBy(fn func() bool) {
	if fn == nil {
		fn = func() bool { return false }
	}
	r.w.onWait = func(Queue) bool { return fn() }
}

// O-27, O-28, O-29: when a job's end can be seen at all, everything that follows
// from it can be seen.
func TestO27_O28_O29_R08_R09_TheEndOfAJobIsOnePiece(t *testing.T) {
	for _, fails := range []bool{false, true} {
		for _, key := range []string{"h", "d"} {
			r := newRig(t, committer)
			r.begin(nil, arrive(1)...)
			step := r.save(map[string]uint64{key: 10}, chunk{1, span(0, 4)})
			r.begin([]uint64{1}, arrive(2)...)
			r.discard(step)
			j, _ := r.c.NextJob()
			if s := r.c.Stats(); s.StagedBytes != 32 || s.PendingWrites != 1 || r.states(key, 0)[0].State != InTransit {
				t.Fatalf("while it runs: %+v", s)
			}
			var err error
			if fails {
				err = errFailPoint
			}
			r.c.JobDone(&j, err)
			s := r.c.Stats()
			if s.StagedBytes != 0 || s.PendingWrites != 0 || r.c.pages[0] != 0 {
				t.Fatalf("after it: %+v, page held by %b", s, r.c.pages[0])
			}
			if done := r.states(key, 0)[0].State == Committed; done == fails {
				t.Fatalf("committed %v, failed %v", done, fails)
			}
			if (r.c.fatal != nil) != fails {
				t.Fatalf("failure recorded: %v, want %v", r.c.fatal, fails)
			}
		}
	}
}

// O-30: a save folds what happened before into its checks before it claims.
func TestO30_AFailureIsSeenBeforeTheFirstClaim(t *testing.T) {
	r := newRig(t, committer)
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 4)}))
	r.c.FailWrite(1)
	before := r.states("h", span(0, 8)...)
	_, err := r.trySave(map[string]uint64{"h": 2}, chunk{1, span(0, 8)}) // waits, and the write fails meanwhile
	wantErr(t, err, status.Unmatch, "write failed")
	if got := r.states("h", span(0, 8)...); !reflect.DeepEqual(got, before) || r.c.last != 1 {
		t.Fatalf("the save left a trace: %v, was %v", got, before)
	}
}

// Every wait is bounded, and says what it waited for.
func TestO31_EveryWaitIsBounded(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		run  func(r *rig) error
		code status.Code
		text string
	}{
		{"former step", committer, func(r *rig) error {
			r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}))
			_, err := r.trySave(map[string]uint64{"h": 1}, chunk{1, span(0, 1)})
			return err
		}, status.Unmatch, "step 1 (JOIN_NEXT_STEP) did not reach done within 7ns (state=QUEUED, in_flight_tasks=1)"},
		{"budget", Config{Threaded: true, BudgetBytes: 8}, func(r *rig) error {
			r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 1)}))
			_, err := r.trySave(map[string]uint64{"d": 1}, chunk{1, span(1, 2)})
			return err
		}, status.Unmatch, "deferred write 1 (JOIN_ON_FINISH) did not reach done within 7ns (state=QUEUED, in_flight_tasks=1)"},
		{"staging", Config{StagingDepth: 2}, func(r *rig) error {
			r.save(nil)
			r.save(nil)
			_, err := r.trySave(nil)
			return err
		}, status.StagingTimeout, "unconsumed step contexts (ids=[1, 2])"},
		{"rows of this step", committer, func(r *rig) error {
			r.begin(nil, hitOn(2, 4, 0))
			step := r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 4)}, chunk{2, span(4, 5)})
			_, err := r.tryRead(step, "h")
			return err
		}, status.Unmatch, "step 1 (JOIN_NEXT_STEP) did not reach done within 7ns"},
	} {
		for _, timeout := range []int64{7, -1} {
			t.Run(fmt.Sprint(c.name, timeout), func(t *testing.T) {
				cfg := c.cfg
				cfg.Timeout = timeout
				r := newRig(t, cfg)
				r.begin(nil, arrive(1)...)
				r.onlyBy(nil)
				text := c.text
				if timeout < 0 {
					text = text[:12] // at once, without a wait
				}
				wantErr(t, c.run(r), c.code, text)
				if timeout < 0 && r.w.waits > 0 {
					t.Error("it waited")
				}
				if timeout > 0 && r.w.now != timeout {
					t.Errorf("the clock is at %d, want one deadline of %d", r.w.now, timeout)
				}
				r.check()
				r.commit()
			})
		}
	}
}

// O-33: writes of one slot happen in claim order, though the committer is late and
// other steps are written by the saving thread.
func TestO33_R06_ALateOldWriteNeverFollowsANewerOne(t *testing.T) {
	r := newRig(t, Config{Threaded: true})
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"d": 100}, chunk{1, span(0, 4)}))
	r.begin([]uint64{1})
	late, _ := r.c.NextJob()
	r.discard(r.save(map[string]uint64{"d": 200}, chunk{2, span(0, 4)}))
	r.begin([]uint64{2})
	if _, ok := r.c.NextJob(); ok {
		t.Fatal("two writers at once")
	}
	r.c.JobDone(&late, r.c.RunHost(&late))
	r.commit()
	if got := r.rows("d", span(0, 4)...); !reflect.DeepEqual(got, seq(200, 4)) {
		t.Fatal(got)
	}
}

// O-34: the same calls give the same results, states, versions and rows in every
// mode, however late the committer is.
func TestO34_AllModesGiveTheSame(t *testing.T) {
	dump := func(cfg Config, commitEvery int) string {
		cfg.StagingDepth = 4
		r := newRig(t, cfg)
		out := ""
		for i := range int64(30) {
			q := uint64(i % 3)
			r.begin([]uint64{q}, hitOn(q, 4*(1+i%2), i%4, (i+1)%4))
			vals := map[string]uint64{"h": uint64(i) * 100, "k": uint64(i) * 1000, "d": uint64(i) * 10000}
			delete(vals, []string{"k", "d", ""}[i%3])
			s := i % 11
			step := r.save(vals, chunk{q, span(s, s+5)}, chunk{7, span(s+20, s+22)})
			if i > 5 {
				got, err := r.tryRead(step, "h")
				out += fmt.Sprintln(i, got, err)
			} else {
				r.discard(step)
			}
			if commitEvery > 0 && int(i)%commitEvery == 0 {
				r.commit()
			}
		}
		r.begin([]uint64{0, 1, 2, 7})
		r.commit()
		for _, k := range []string{"h", "k", "d"} {
			out += fmt.Sprintln(k, r.states(k, span(0, 64)...), r.rows(k, span(0, 64)...))
		}
		return out
	}
	want := dump(Config{}, 0)
	for name, got := range map[string]string{
		"threaded":           dump(Config{Threaded: true}, 1),
		"threaded, late":     dump(Config{Threaded: true}, 0),
		"committer":          dump(committer, 1),
		"committer, late":    dump(committer, 7),
		"small budget":       dump(Config{BudgetBytes: 100}, 0),
		"threaded, small":    dump(Config{Threaded: true, BudgetBytes: 50}, 5),
		"committer, 1 byte":  dump(Config{Threaded: true, InlineBytes: -1, BudgetBytes: 1}, 3),
		"inline from 1 byte": dump(Config{Threaded: true, InlineBytes: 1}, 2),
		"shared":             dump(Config{CopyThreads: 3, ShareBytes: 1}, 0),
		"committer, shared":  dump(Config{Threaded: true, InlineBytes: -1, CopyThreads: 3, ShareBytes: 1}, 4),
	} {
		if got != want {
			t.Errorf("%s differs from eager:\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestInlineBytesDecidesWhoWrites(t *testing.T) {
	for _, c := range []struct {
		inline int64
		rows   int64
		jobs   int
	}{{64, 7, 0}, {64, 8, 1}, {-1, 1, 1}, {0, 100, 0}} {
		r := newRig(t, Config{NumBlocks: 64, Threaded: true, InlineBytes: c.inline})
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, c.rows)}))
		if n := r.commit(); n != c.jobs {
			t.Errorf("inline below %d bytes, step of %d: %d jobs, want %d", c.inline, 8*c.rows, n, c.jobs)
		}
	}
}

// Destinations given to Save are filled before it returns, in every mode.
func TestSaveFillsItsDestinations(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}, committer} {
		r := newRig(t, cfg)
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{"k": 10}, chunk{1, span(0, 4)}))
		r.begin(nil, hitOn(2, 4, 0))
		a, src := r.args(map[string]uint64{"k": 50, "d": 60}, chunk{1, span(4, 6)}, chunk{2, span(8, 10)}, chunk{3, span(12, 13)})
		bufs := make([][9]uint64, 2)
		for i := range a.Rows {
			a.Rows[i].Dst, a.Rows[i].DstBytes = unsafe.Pointer(&bufs[i]), 72
		}
		step, err := r.c.Save(a)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range src {
			clear(b)
		}
		for i, row := range a.Rows {
			v := uint64(50)
			if row.Key == r.keys["d"] {
				v = 60
			}
			if want := [9]uint64{v, v + 1, 0, 0, 0, 0, v + 2, v + 3, v + 4}; bufs[i] != want {
				t.Fatalf("%v, want %v", bufs[i], want)
			}
		}
		r.discard(step)
		r.begin([]uint64{1, 2, 3})
		r.commit()
		if k, d := r.rows("k", 4, 5, 8, 9, 12), r.rows("d", 4, 5, 8, 9, 12); !reflect.DeepEqual(k, seq(50, 5)) || !reflect.DeepEqual(d, seq(60, 5)) {
			t.Fatal(k, d)
		}
	}
}
