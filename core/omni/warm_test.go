package omni

import "testing"

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
