package omni

import (
	"reflect"
	"testing"
)

// O-20, also where several threads move the rows: of a slot listed twice the last row
// in batch order stays, so one thread moves the rows of such a step.
func TestO20_ASlotListedTwiceIsNotShared(t *testing.T) {
	r := newRig(t, Config{CopyThreads: 3, ShareBytes: 1})
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"h": 100, "d": 100}, chunk{1, span(0, 4)}, chunk{2, span(2, 6)}))
	if n := r.c.crew.Running(); n != 0 {
		t.Errorf("%d threads: the rows of a slot listed twice were shared", n)
	}
	if got, want := r.rows("h", span(0, 6)...), []uint64{100, 101, 104, 105, 106, 107}; !reflect.DeepEqual(got, want) {
		t.Errorf("rows %v, want %v", got, want)
	}
	r.discard(r.save(map[string]uint64{"h": 200, "d": 100}, chunk{1, span(0, 4)}, chunk{2, span(4, 6)}))
	if n := r.c.crew.Running(); n != 2 {
		t.Errorf("%d threads, expected 2: the rows of the next step were not shared", n)
	}
}

func TestFreeEndsTheThreadsThatShareCopies(t *testing.T) {
	c, err := New(Config{NumBlocks: 16, BlockSize: 4, CopyThreads: 4, ShareBytes: 1, Waiter: &stepWaiter{}})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, c: c, w: &stepWaiter{}, keys: map[string]KeyID{}, size: map[string]int64{}, accepted: map[uint64]int64{}, shapes: map[uint64]shape{}}
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 8)}))
	if n := c.crew.Running(); n != 3 {
		t.Errorf("%d threads, expected 3", n)
	}
	c.Shutdown()
	if err := c.Free(); err != nil {
		t.Fatal(err)
	}
	if n := c.crew.Running(); n != 0 {
		t.Errorf("%d threads after Free", n)
	}
}
