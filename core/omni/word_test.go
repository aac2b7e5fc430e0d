package omni

import (
	"reflect"
	"testing"
)

var committer = Config{Threaded: true, InlineBytes: -1} // every step through jobs

func TestO01_KeysAreIndependent(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1, "d": 1}, chunk{1, span(0, 4)}))
	if h, d := r.states("h", 2)[0], r.states("d", 2)[0]; h.State != Committed || d.State != InTransit {
		t.Fatalf("hidden is %v and deferred is %v, want COMMITTED and IN_TRANSIT", h.State, d.State)
	}
}

func TestO02_OnlyRowsInTransitHaveAnOwner(t *testing.T) {
	r := newRig(t, committer)
	r.begin(nil, arrive(1)...)
	a := r.save(map[string]uint64{"h": 1, "d": 1, "k": 1}, chunk{1, span(0, 4)})
	for _, key := range []string{"h", "d", "k"} {
		if s := r.states(key, 0)[0]; s.State != InTransit || s.Owner == 0 {
			t.Errorf("%s after save: %+v", key, s)
		}
		if s := r.states(key, 9)[0]; s != (SlotState{}) {
			t.Errorf("%s, slot never claimed: %+v", key, s)
		}
	}
	r.discard(a)
	r.begin([]uint64{1})
	r.commit()
	r.begin(nil, arrive(2)...)
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{2, span(0, 1)}))
	r.commit()
	want := map[string][]State{"h": {Committed, Committed, Absent}, "d": {Skipped, Committed, Absent}, "k": {Skipped, Committed, Absent}}
	for _, key := range []string{"h", "d", "k"} {
		for i, s := range r.states(key, 0, 1, 9) {
			if s.State != want[key][i] || s.Owner != 0 {
				t.Errorf("%s slot %d: %+v, want %v without an owner", key, i, s, want[key][i])
			}
		}
	}
	// Numbers of writes run ahead of those of steps, which what is committed is compared with.
	r.begin(nil, arrive(4, 5, 6, 7)...)
	r.discard(r.save(map[string]uint64{"d": 1}, chunk{4, span(20, 21)}, chunk{5, span(24, 25)}, chunk{6, span(28, 29)}, chunk{7, span(32, 33)}))
	r.begin([]uint64{4, 5, 6, 7})
	r.commit()
	for i, s := range r.states("d", 20, 24, 28, 32) {
		if s.State != Committed || s.Owner != 0 {
			t.Errorf("deferred write %d of one step: %+v", i+1, s)
		}
	}
}

func TestO03_NothingLeadsBackToAbsent(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1, "d": 1, "k": 1}, chunk{1, span(0, 4)}))
	for _, carried := range []map[string]uint64{{"h": 2}, {"d": 3}, {"k": 4}, {}, {"h": 5, "d": 5, "k": 5}} {
		r.begin([]uint64{1}, arrive(1)...)
		r.discard(r.save(carried, chunk{1, span(0, 4)}))
		for _, key := range []string{"h", "d", "k"} {
			for _, s := range r.states(key, span(0, 4)...) {
				if s.State == Absent {
					t.Fatalf("%s is ABSENT after a save that carries %v", key, carried)
				}
			}
		}
	}
}

func TestO04_ClaimRaisesVersionByOne(t *testing.T) {
	for _, cfg := range []Config{{}, committer} {
		r := newRig(t, cfg)
		r.begin(nil, arrive(1, 2)...)
		version := func(key string, slot int64) uint32 { return r.states(key, slot)[0].Version }
		for want := uint32(1); want < 6; want++ {
			r.discard(r.save(map[string]uint64{"h": 1, "d": 1}, chunk{1, []int64{0, 1, 1, 1}}))
			for _, key := range []string{"h", "d"} {
				if version(key, 0) != want || version(key, 1) != want {
					t.Fatalf("%s after %d claims: slot 0 has version %d, slot 1, listed three times, %d", key, want, version(key, 0), version(key, 1))
				}
			}
			if want == 3 {
				r.begin([]uint64{1}, arrive(1)...) // commits the deferred rows
			}
			r.commit()
			if version("h", 0) != want || version("d", 0) != want {
				t.Fatal("commit changed a version")
			}
		}
		r.discard(r.save(map[string]uint64{}, chunk{1, span(0, 1)})) // a claim without the keys
		if version("h", 0) != 6 || version("d", 0) != 6 || version("h", 5) != 0 {
			t.Fatalf("versions %d, %d, %d, want 6, 6, 0", version("h", 0), version("d", 0), version("h", 5))
		}
		r.c.FailWrite(1)
		step, err := r.trySave(map[string]uint64{"h": 1}, chunk{1, span(0, 1)})
		if err == nil {
			r.commit()
			r.discard(step)
		}
		if version("h", 0) != 7 {
			t.Fatalf("version is %d after a claim whose write failed, want 7", version("h", 0))
		}
	}
}

func TestO05_ClaimTakesExactlyTheRowsItNames(t *testing.T) {
	r := newRig(t, Config{Threaded: true})
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"d": 100, "dd": 100}, chunk{1, span(0, 6)}))
	r.discard(r.save(map[string]uint64{"d": 200, "dd": 200}, chunk{1, span(0, 1)})) // its own row again
	if n := r.c.Stats().DisplacedRows; n != 0 {
		t.Fatalf("a write displaced %d rows of its own", n)
	}
	r.discard(r.save(map[string]uint64{"d": 300, "dd": 300}, chunk{2, span(2, 4)}))
	if n := r.c.Stats().DisplacedRows; n != 4 {
		t.Fatalf("%d rows displaced, want slots 2 and 3 of two keys", n)
	}
	r.begin([]uint64{1})
	j, _ := r.c.NextJob()
	var rows int64
	for _, c := range j.Copies {
		rows += c.Bytes / 8
	}
	if rows != 8 {
		t.Errorf("the first write copies %d rows, want 4 of each key", rows)
	}
	r.c.JobDone(&j, r.c.RunHost(&j))
	if got := r.rows("d", span(0, 6)...); !reflect.DeepEqual(got, []uint64{200, 101, 0, 0, 104, 105}) {
		t.Errorf("mirror has %v", got)
	}
}

func TestO06_R05_CommitChangesOnlyRowsStillOwned(t *testing.T) {
	r := newRig(t, Config{Threaded: true})
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"d": 100}, chunk{1, span(0, 4)}))
	r.begin([]uint64{1})
	j, _ := r.c.NextJob() // the copies are decided, two slots are lost only now
	r.discard(r.save(map[string]uint64{"d": 200}, chunk{2, span(1, 2)}))
	r.discard(r.save(map[string]uint64{}, chunk{2, span(2, 3)}))
	r.c.JobDone(&j, r.c.RunHost(&j))
	var got []State
	for _, s := range r.states("d", span(0, 4)...) {
		got = append(got, s.State)
	}
	if want := []State{Committed, InTransit, Skipped, Committed}; !reflect.DeepEqual(got, want) {
		t.Fatalf("states %v, want %v", got, want)
	}
	r.begin([]uint64{2})
	r.commit()
	if got := r.rows("d", span(0, 4)...); !reflect.DeepEqual(got, []uint64{100, 200, 0, 103}) {
		t.Fatalf("rows %v", got)
	}
}

func TestO07_RowsOfAFailedWriteStayInTransit(t *testing.T) {
	for _, key := range []string{"h", "d"} {
		r := newRig(t, committer)
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{key: 1}, chunk{1, span(0, 4)}))
		if key == "d" {
			r.begin([]uint64{1})
		}
		before := r.states(key, 0)[0]
		r.c.FailWrite(1)
		r.commit()
		if got := r.states(key, 0)[0]; got.State != InTransit || got != before {
			t.Errorf("%s: %+v, was %+v", key, got, before)
		}
		r.check()
	}
}

func TestWordKeepsItsParts(t *testing.T) {
	for _, k := range []kind{kindNever, kindStep, kindDeferred, kindSkipped} {
		for _, owner := range []uint64{0, 1, maxOwner} {
			w := base(k, owner)
			for v := range uint32(5) {
				if w.kind() != k || w.owner() != owner || w.version() != v {
					t.Fatalf("kind %d owner %d version %d read back as %d %d %d", k, owner, v, w.kind(), w.owner(), w.version())
				}
				w = w.claimed(base(k, owner))
			}
		}
	}
	w := base(kindDeferred, maxOwner) | versionMask
	if n := w.claimed(base(kindStep, 3)); n.version() != 0 || n.owner() != 3 || n.kind() != kindStep {
		t.Fatalf("a version that wraps spills over: %x", uint64(n))
	}
}
