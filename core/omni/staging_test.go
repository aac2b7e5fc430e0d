package omni

import (
	"reflect"
	"testing"

	"libprefixcache/core/status"
)

func TestO39_AtMostDepthStepsAreUnconsumed(t *testing.T) {
	for depth := 1; depth < 5; depth++ {
		r := newRig(t, Config{StagingDepth: depth})
		r.begin(nil, arrive(1)...)
		var steps []uint64
		for i := range depth { // a step always takes a page, with or without rows
			if i%2 == 0 {
				steps = append(steps, r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}))
			} else {
				steps = append(steps, r.save(nil))
			}
		}
		r.onlyBy(nil)
		_, err := r.trySave(nil)
		wantErr(t, err, status.StagingTimeout, "unconsumed step contexts")
		r.onlyBy(func() bool { r.discard(steps[depth-1]); return true })
		if id := r.save(nil); id != uint64(depth)+1 {
			t.Fatalf("id %d", id)
		}
	}
}

// O-40: a page is held by the step until it is consumed and by its write until the
// rows are in the mirror, in whichever order; not by readers of its rows.
func TestO40_R14_R15_WhoHoldsAPage(t *testing.T) {
	refused := []Read{{Key: NoKey, First: 9}}
	for _, consume := range []func(r *rig, step uint64){
		func(r *rig, step uint64) { r.discard(step) },
		func(r *rig, step uint64) { r.read(step, "h") },
		func(r *rig, step uint64) {
			if err := r.c.Materialize(step, nil); err != nil {
				t.Error(err)
			}
		},
		func(r *rig, step uint64) { // also where it fails (O-22)
			if err := r.c.Materialize(step, refused); err == nil {
				t.Error("read of a request that is not in the batch")
			}
		},
	} {
		testHolders(t, consume, true)
		testHolders(t, consume, false)
	}
	// A reader of hit rows gives the page back before it gathers.
	var r *rig
	seen := pageHolder(0xFF)
	calls := -1
	r = newRig(t, Config{StagingDepth: 1, Preempt: func() {
		if calls >= 0 {
			if calls++; calls == 4 {
				seen = r.c.pages[0]
			}
		}
	}})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 4)}))
	r.begin(nil, hitOn(2, 4, 0))
	step := r.save(map[string]uint64{"h": 50}, chunk{2, span(8, 9)})
	calls = 0
	if got := r.read(step, "h")[2]; !reflect.DeepEqual(got, []uint64{10, 11, 12, 13, 50}) || seen != 0 {
		t.Fatalf("%v; page held by %b during the gather", got, seen)
	}
}

// A page whose step has two holders: whoever has to consume the step, and its write.
func testHolders(t *testing.T, consume func(*rig, uint64), consumeFirst bool) {
	t.Helper()
	r := newRig(t, Config{Threaded: true, InlineBytes: -1, StagingDepth: 1})
	r.begin(nil, arrive(1)...)
	step := r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 4)})
	if r.c.pages[0] != pageByStep|pageByWrite {
		t.Fatalf("held by %b", r.c.pages[0])
	}
	end := []func(){func() { consume(r, step) }, func() { r.commit() }}
	if !consumeFirst {
		end[0], end[1] = end[1], end[0]
	}
	end[0]()
	if r.c.pages[0] == 0 {
		t.Fatal("free after one of two holders left")
	}
	end[1]()
	if r.c.pages[0] != 0 {
		t.Fatalf("held by %b", r.c.pages[0])
	}
}

// O-47: discard works while the engine is in any phase of a save, and can unblock it.
func TestO47_DiscardDuringASave(t *testing.T) {
	for at := range 12 {
		var r *rig
		calls, first := -1, uint64(0)
		cfg := Config{Threaded: true, InlineBytes: -1, Preempt: func() {
			if calls >= 0 {
				if calls++; calls == at {
					r.discard(first)
				}
			}
		}}
		r = newRig(t, cfg)
		r.begin(nil, arrive(1)...)
		first = r.save(map[string]uint64{"h": 1, "d": 1}, chunk{1, span(0, 4)})
		r.commit()
		calls = 0
		second := r.save(map[string]uint64{"h": 2, "d": 2}, chunk{1, span(0, 4)})
		hit := calls >= at
		calls = -1
		if !hit || at == 0 {
			r.discard(first)
		}
		r.check()
		if got := r.read(second, "d")[1]; !reflect.DeepEqual(got, seq(2, 4)) {
			t.Fatal(got)
		}
	}
}
