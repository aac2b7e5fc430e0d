package omni

import (
	"reflect"
	"testing"

	"libprefixcache/core/status"
)

// planned saves rows of request 1 in block 0 (as far as from..to), and a step of
// request 9 with a hit on that block that is not read yet.
func planned(t *testing.T, cfg Config, key string) (*rig, uint64) {
	r := newRig(t, cfg)
	if key != "h" {
		if err := r.c.SetPolicy(false); err != nil {
			t.Fatal(err)
		}
	}
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{key: 100}, chunk{1, span(0, 4)}))
	r.begin(nil, hitOn(9, 4, 0))
	return r, r.save(map[string]uint64{key: 900}, chunk{9, span(32, 33)})
}

var want100 = []uint64{100, 101, 102, 103, 900}

// A planned read yields the tenant of plan time, whatever happens to the slots
// before it is read.
func TestO26_R04_APlannedReadKeepsItsTenant(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}, committer} {
		cfg.StagingDepth = 64
		for _, key := range []string{"h", "k", "d"} {
			for name, reuse := range map[string]func(r *rig){
				"nothing":  func(r *rig) {},
				"one row":  func(r *rig) { r.discard(r.save(map[string]uint64{key: 200}, chunk{2, span(2, 3)})) },
				"all rows": func(r *rig) { r.discard(r.save(map[string]uint64{key: 200}, chunk{2, span(0, 4)})) },
				"skipped":  func(r *rig) { r.discard(r.save(map[string]uint64{}, chunk{2, span(0, 4)})) },
				"skipped, reused": func(r *rig) {
					r.discard(r.save(map[string]uint64{}, chunk{2, span(0, 4)}))
					r.discard(r.save(map[string]uint64{key: 300}, chunk{2, span(1, 4)}))
				},
				"many tenants": func(r *rig) {
					for i := range uint64(10) {
						r.begin([]uint64{2}, arrive(2)...)
						r.discard(r.save(map[string]uint64{key: 200 + 10*i}, chunk{2, span(0, 4)}))
						r.commit()
					}
				},
			} {
				t.Run(key+" "+name, func(t *testing.T) {
					r, step := planned(t, cfg, key)
					r.commit()
					r.begin([]uint64{1}, arrive(2)...)
					reuse(r)
					r.begin([]uint64{2})
					r.commit()
					r.check()
					if got := r.read(step, key)[9]; !reflect.DeepEqual(got, want100) {
						t.Fatalf("threaded %v: %v", cfg.Threaded, got)
					}
				})
			}
		}
	}
}

// The gather runs without a lock. A later tenant's save in the middle of it is
// repaired by the rows that the save copied aside.
func TestR21_AGatherThatIsOvertakenIsRepaired(t *testing.T) {
	for _, key := range []string{"h", "d"} {
		for at := range 4 {
			cfg := Config{StagingDepth: 8}
			var r *rig
			calls := -1 // not before the read
			cfg.Preempt = func() {
				if calls < 0 {
					return
				}
				if calls++; calls == at+1 {
					calls = -1
					r.begin([]uint64{1}, arrive(2)...)
					r.discard(r.save(map[string]uint64{key: 200}, chunk{2, span(0, 4)}))
					r.begin([]uint64{2})
					calls = 1000
				}
			}
			var step uint64
			r, step = planned(t, cfg, key)
			if key == "d" { // rows in the mirror
				r.begin([]uint64{1})
			}
			calls = 0
			if got := r.read(step, key)[9]; !reflect.DeepEqual(got, want100) {
				t.Fatalf("%s, overtaken at %d: %v", key, at, got)
			}
			if calls < 1000 && at < 3 {
				t.Fatalf("nobody overtook the read at %d", at)
			}
			calls = -1
		}
	}
}

// The guard is never needed; this breaks what makes it so.
func TestGuardSeesAClaimThatPreservedNothing(t *testing.T) {
	r, step := planned(t, Config{}, "k")
	k := r.c.keys[r.keys["k"]]
	k.words[1] = k.words[1].claimed(base(kindStep, 1))
	if err := r.c.Check(); err == nil {
		t.Error("Check did not see it")
	}
	_, err := r.tryRead(step, "k")
	wantErr(t, err, status.Unmatch, "reassigned before this delayed read")
}

func TestS01_S02_R03_ASameStepHitReadsThisStepsRows(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}, committer} {
		for _, key := range []string{"h", "k", "d"} {
			for _, recycled := range []bool{true, false} {
				r := newRig(t, cfg)
				r.w.onWait = func(Queue) bool { return r.commitOne() }
				if key != "h" {
					if err := r.c.SetPolicy(false); err != nil {
						t.Fatal(err)
					}
				}
				var done []uint64
				if recycled { // S-1: committed rows of a former tenant; else S-2: fresh blocks
					r.begin(nil, arrive(1)...)
					r.discard(r.save(map[string]uint64{key: 100}, chunk{1, span(0, 4)}))
					done = []uint64{1}
				}
				r.begin(done, arrive(2)[0], hitOn(3, 4, 0, 2))
				step := r.save(map[string]uint64{key: 500}, chunk{2, span(0, 4)}, chunk{3, span(8, 9)})
				got := r.read(step, key)
				if !reflect.DeepEqual(got[3], []uint64{500, 501, 502, 503, 504}) || !reflect.DeepEqual(got[2], seq(500, 4)) {
					t.Fatalf("key %s recycled %v: %v", key, recycled, got)
				}
			}
		}
	}
}

func TestS07_S17_ASlotOfATenantWithoutTheKeyReadsZeros(t *testing.T) {
	for _, key := range []string{"k", "d"} {
		for _, late := range []bool{false, true} { // the former tenant's write: before the reuse, or pending
			r := newRig(t, Config{Threaded: true})
			r.begin(nil, arrive(1)...)
			r.discard(r.save(map[string]uint64{"h": 1, key: 100}, chunk{1, span(0, 4)}))
			r.begin([]uint64{1}, arrive(2)...)
			if !late {
				r.commit()
			}
			r.discard(r.save(map[string]uint64{"h": 2}, chunk{2, span(0, 3)}))
			r.commit() // a displaced write lands nowhere
			r.begin(nil, hitOn(3, 4, 0, 1))
			step := r.save(map[string]uint64{"h": 3, key: 300}, chunk{3, span(4, 5)})
			if got := r.read(step, key)[3]; !reflect.DeepEqual(got, []uint64{0, 0, 0, 103, 300}) {
				t.Fatalf("key %s late %v: %v", key, late, got)
			}
			if got := r.rows(key, span(0, 4)...); late && !reflect.DeepEqual(got, []uint64{0, 0, 0, 103}) {
				t.Fatalf("key %s: the mirror has %v", key, got)
			}
		}
	}
}

func TestS17_HiddenOfATenantWithoutHiddenIsAnError(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1, "k": 1}, chunk{1, span(0, 4)}))
	r.begin([]uint64{1}, arrive(2)...)
	r.discard(r.save(map[string]uint64{"k": 2}, chunk{2, span(0, 2)}))
	for _, carried := range []map[string]uint64{{"h": 3, "k": 3}, {"k": 3}, {}} { // also when hidden is not emitted
		r.begin([]uint64{3}, hitOn(3, 4, 0, 1))
		step := r.save(carried, chunk{3, span(4, 5)})
		err := r.c.Materialize(step, []Read{{Key: NoKey, Count: 1}})
		wantErr(t, err, status.Unmatch, "key=__hidden_states__ is not readable (2 absent slots of 4)")
	}
}

func TestS09_APlannedReadThatIsNeverFetchedIsForgotten(t *testing.T) {
	for _, end := range []string{"discard", "error", "other key", "request not asked for"} {
		r, step := planned(t, Config{}, "h")
		r.begin([]uint64{1}, arrive(2)...)
		r.discard(r.save(map[string]uint64{"h": 200}, chunk{2, span(0, 2)})) // two rows copied aside
		if s := r.c.Stats(); s.PendingReads != 1 || s.PreservedBytes != 16 {
			t.Fatalf("%+v", s)
		}
		switch end {
		case "discard":
			r.discard(step)
		case "error":
			if err := r.c.Materialize(step, []Read{{Key: 55, Count: 1}}); err == nil {
				t.Fatal("no error")
			}
		case "other key":
			if err := r.c.Materialize(step, nil); err != nil {
				t.Fatal(err)
			}
		default:
			if err := r.c.Materialize(step, []Read{{Key: r.keys["h"], First: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		if s := r.c.Stats(); s.PendingReads != 0 || r.rowsHeld("h") != 0 {
			t.Fatalf("%s: %d reads, %d rows held", end, s.PendingReads, r.rowsHeld("h"))
		}
	}
}

func TestS10_OnlyEmittedKeysArePlanned(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1, "k": 1, "kk": 1}, chunk{1, span(0, 4)}))
	r.begin(nil, hitOn(2, 4, 0))
	step := r.save(map[string]uint64{"h": 2, "kk": 2}, chunk{2, span(4, 5)})
	if n := r.c.Stats().PendingReads; n != 2 {
		t.Fatalf("%d reads planned, want hidden and kk", n)
	}
	r.discard(step)
}

func TestS18_RowsAbsentWhenPlannedReadZerosWhateverHappensLater(t *testing.T) {
	for _, key := range []string{"k", "d"} {
		r := newRig(t, Config{})
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 4)}))
		r.discard(r.save(map[string]uint64{"h": 1, key: 50}, chunk{1, span(1, 2)}))
		r.begin([]uint64{1}, hitOn(2, 4, 0))
		step := r.save(map[string]uint64{"h": 2, key: 60}, chunk{2, span(8, 9)})
		r.begin(nil, arrive(3)...)
		r.discard(r.save(map[string]uint64{"h": 3, key: 70}, chunk{3, span(0, 4)}))
		r.begin([]uint64{3})
		if got := r.read(step, key)[2]; !reflect.DeepEqual(got, []uint64{0, 50, 0, 0, 60}) {
			t.Fatal(got)
		}
	}
}

func TestS20_AbsentHiddenRowsWrittenLaterAreStillAnError(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, hitOn(1, 4, 0))
	step := r.save(map[string]uint64{"h": 1}, chunk{1, span(8, 9)})
	r.begin(nil, arrive(2)...)
	r.discard(r.save(map[string]uint64{"h": 2}, chunk{2, span(0, 4)}))
	_, err := r.tryRead(step, "h")
	wantErr(t, err, status.Unmatch, "4 absent slots")
}

// Blocks of every kind of size: one granule, several, and a rest.
func TestReadersOfAllBlockSizes(t *testing.T) {
	for _, bs := range []int64{1, 2, 63, 64, 65, 100, 128, 130} {
		r := newRig(t, Config{BlockSize: bs, NumBlocks: 8, StagingDepth: 8})
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{"h": 1000}, chunk{1, span(0, 3*bs)}))
		r.begin(nil, hitOn(9, 2*bs, 2, 0))
		a := r.save(map[string]uint64{"h": 9}, chunk{9, span(4*bs, 4*bs+1)})
		r.begin([]uint64{9}, hitOn(9, 2*bs, 0, 1)) // a second reader of block 0
		b := r.save(map[string]uint64{"h": 9}, chunk{9, span(4*bs, 4*bs+1)})
		r.begin([]uint64{1}, arrive(2)...)
		for _, s := range []int64{0, bs - 1, bs / 2, 3*bs - 1} { // edges of granules and blocks
			r.discard(r.save(map[string]uint64{"h": 5000}, chunk{2, span(s, s+1)}))
			r.check()
		}
		n := uint64(bs)
		if got := r.read(a, "h")[9]; !reflect.DeepEqual(got, append(append(seq(1000+2*n, int(bs)), seq(1000, int(bs))...), 9)) {
			t.Fatalf("block size %d: %v", bs, got)
		}
		if got := r.read(b, "h")[9]; !reflect.DeepEqual(got, append(seq(1000, 2*int(bs)), 9)) {
			t.Fatalf("block size %d: %v", bs, got)
		}
	}
}

func TestOneCopyAsideServesAllReaders(t *testing.T) {
	r, step := planned(t, Config{StagingDepth: 32}, "h")
	steps := []uint64{step}
	for range 7 {
		r.begin([]uint64{9}, hitOn(9, 4, 0))
		steps = append(steps, r.save(map[string]uint64{"h": 900}, chunk{9, span(32, 33)}))
	}
	r.begin([]uint64{1}, arrive(2)...)
	r.discard(r.save(map[string]uint64{"h": 200}, chunk{2, span(0, 4)}))
	if s := r.c.Stats(); s.PreservedBytes != 4*8 {
		t.Fatalf("%d bytes copied aside for 8 readers of 4 rows, want 32", s.PreservedBytes)
	}
	for _, s := range steps {
		if got := r.read(s, "h")[9]; !reflect.DeepEqual(got, want100) {
			t.Fatal(got)
		}
		r.check()
	}
}
