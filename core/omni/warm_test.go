package omni

import (
	"testing"

	"libprefixcache/core/status"
)

func TestWarmMakesTheBeginningOfEachMirrorPresent(t *testing.T) {
	// 1 MiB of rows a key, in pages of 4 KiB.
	r := newRig(t, Config{NumBlocks: 1 << 13, BlockSize: 16, WarmBytes: 3 << 19})
	present := func(name string) int64 { return r.c.keys[r.keys[name]].mirror.Memory().Resident() }
	warm := func() (pieces int) {
		for ; ; pieces++ {
			n, done := r.c.Warm(1 << 18)
			if done {
				return pieces
			}
			if n == 0 {
				t.Fatal("no progress")
			}
		}
	}
	if n := warm(); n != 0 {
		t.Fatalf("%d pieces without a key", n)
	}
	r.open("a")
	if n := warm(); n != 4 || present("a") != 1<<20 {
		t.Errorf("%d pieces, %d bytes present", n, present("a"))
	}
	r.open("b")
	r.open("e")
	if n := warm(); n != 2 || present("b") != 1<<19 || present("e") != 0 {
		t.Errorf("%d pieces, %d and %d bytes present, expected the cap to end it", n, present("b"), present("e"))
	}
	// Rows are as they were, and nothing of it counts as written.
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"a": 9}, chunk{1, span(0, 2)}))
	if got := r.rows("a", 0, 1, 2); got[0] != 9 || got[1] != 10 || got[2] != 0 {
		t.Errorf("rows are %v", got)
	}
}

// A key that no save has carried may be opened with another width, and the next step may
// begin, while its memory is made present.
func TestWarmStandsInNobodysWay(t *testing.T) {
	var r *rig
	var beside func()
	cfg := Config{NumBlocks: 1 << 12, BlockSize: 16, WarmBytes: 1 << 19, Preempt: func() {
		if f := beside; f != nil {
			beside = nil
			f()
		}
	}}
	r = newRig(t, cfg)
	first, err := r.c.OpenKey("a", 8, 0, JoinNextStep)
	if err != nil {
		t.Fatal(err)
	}
	old := r.c.keys[first].mirror.Memory()
	beside = func() {
		r.check()
		if again, err := r.c.OpenKey("a", 16, 0, JoinNextStep); err != nil || again != first {
			t.Errorf("opened again: key %d, %v", again, err)
		}
		r.check()
	}
	if n, done := r.c.Warm(1 << 18); n != 1<<18 || done {
		t.Fatalf("warmed %d bytes, done: %v", n, done)
	}
	if beside != nil || old.Base() != nil {
		t.Error("the memory of the former width was not given back")
	}
	// What it had is there for the other.
	for sum := int64(0); ; {
		n, done := r.c.Warm(1 << 18)
		if sum += n; done {
			if sum != 1<<19 || r.c.keys[first].mirror.Memory().Resident() != 1<<19 {
				t.Errorf("warmed %d bytes", sum)
			}
			break
		}
	}

	// The write of a device step goes to the committer as if nobody were there.
	d, _ := newDeviceRig(t, Config{Threaded: true, WarmBytes: 1 << 20, Preempt: cfg.Preempt})
	d.begin(nil, arrive(1)...)
	step, err := d.saveOn(map[string]uint64{"h": 10}, chunk{1, span(0, 4)})
	if err != nil {
		t.Fatal(err)
	}
	d.read(step, "h")
	beside = func() { d.begin(nil) }
	d.c.parked[Committer] = 1
	if n, _ := d.c.Warm(1 << 18); n == 0 || d.w.asked != 1 {
		t.Errorf("warmed %d bytes, the committer was woken %d times", n, d.w.asked)
	}
	d.c.parked[Committer] = 0
	d.runOne()
}

// Memory that is being made present does not go while it is.
func TestFreeWaitsForWarm(t *testing.T) {
	var r *rig
	cfg := Config{WarmBytes: 1 << 20, Timeout: -1, Preempt: func() {
		if r != nil && r.c.warming != nil {
			r.c.Shutdown()
			wantErr(t, r.c.Free(), status.Busy, "a warming")
		}
	}}
	r = newRig(t, cfg)
	r.open("a")
	if n, done := r.c.Warm(1 << 18); n == 0 || done {
		t.Errorf("warmed %d bytes, done: %v", n, done)
	}
	if err := r.c.Free(); err != nil {
		t.Error(err)
	}
}

// Beside an engine call it stays out of the way; after shutdown there is nothing left.
func TestWarmWaitsForEngineCalls(t *testing.T) {
	var r *rig
	inside := 0
	r = newRig(t, Config{WarmBytes: 1 << 20, Preempt: func() {
		if r != nil && r.c.engine {
			inside++
			if n, done := r.c.Warm(1 << 18); n != 0 || done {
				t.Errorf("warmed %d bytes beside an engine call, done: %v", n, done)
			}
		}
	}})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"a": 1}, chunk{1, span(0, 4)}))
	if inside == 0 {
		t.Fatal("the save ran through without a gap")
	}
	if n, done := r.c.Warm(1 << 18); n == 0 || done {
		t.Errorf("warmed %d bytes, done: %v", n, done)
	}
	r.c.Shutdown()
	if n, done := r.c.Warm(1 << 18); n != 0 || !done {
		t.Errorf("after shutdown: %d bytes, done: %v", n, done)
	}
}
