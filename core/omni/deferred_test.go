package omni

import (
	"reflect"
	"strings"
	"testing"
)

func TestO08_O13_StatesMoveOneStepAtATime(t *testing.T) {
	legal := map[[2]writeState]bool{
		{writeFree, writeOpen}: true, {writeOpen, writeQueued}: true, {writeQueued, writeCopying}: true,
		{writeCopying, writeWritten}: true, {writeCopying, writeFailed}: true,
	}
	for from := writeFree; from <= writeFailed; from++ {
		for to := writeFree; to <= writeFailed; to++ {
			d := deferredTable{writes: []write{{number: 5, state: from}}}
			err := d.move(0, to)
			switch {
			case legal[[2]writeState{from, to}]:
				if err != nil || d.writes[0].state != to {
					t.Errorf("%v -> %v: %v", from, to, err)
				}
			case err == nil || !strings.Contains(err.Error(), "illegal transition "+from.String()+" -> "+to.String()) || d.writes[0].state != from:
				t.Errorf("%v -> %v was not refused cleanly: %v, now %v", from, to, err, d.writes[0].state)
			}
		}
	}
}

// deferredRig has request 1 with one open write on slots 0 to 3.
func deferredRig(t *testing.T, cfg Config) *rig {
	r := newRig(t, cfg)
	if err := r.c.SetPolicy(false); err != nil {
		t.Fatal(err)
	}
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"d": 100}, chunk{1, span(0, 4)}))
	return r
}

func (r *rig) rowsHeld(key string) int {
	s := &r.c.keys[r.keys[key]].store
	return len(s.meta) - s.free_
}

func TestO09_AWriteThatEndedIsNeverPendingAgain(t *testing.T) {
	for _, fails := range []bool{false, true} {
		r := deferredRig(t, Config{Threaded: true})
		w := r.c.defs.oldest
		if !r.c.isPending(w, 1) {
			t.Fatal("not pending at first")
		}
		r.begin([]uint64{1})
		if fails {
			r.c.FailWrite(1)
		}
		r.commit()
		if r.c.isPending(w, 1) {
			t.Fatalf("pending after it ended (failed: %v)", fails)
		}
		if !fails {
			r.begin(nil, arrive(3)...)
			r.discard(r.save(map[string]uint64{"d": 1}, chunk{3, span(4, 5)})) // reuses the entry
			if r.c.isPending(w, 1) {
				t.Fatal("pending again")
			}
		}
	}
}

func TestO10_O32_R07_OneClaimantAndNoSecondQueueing(t *testing.T) {
	r := deferredRig(t, Config{Threaded: true})
	w := r.c.defs.oldest
	r.begin([]uint64{1})
	for range 3 { // escalating again changes nothing
		r.c.enqueue(w, true)
		r.c.enqueue(w, false)
		r.check()
	}
	j, ok := r.c.NextJob()
	if !ok {
		t.Fatal("no job")
	}
	if _, again := r.c.NextJob(); again {
		t.Fatal("a job was given out while one runs")
	}
	r.c.enqueue(w, true)
	if r.c.defs.qHead != none {
		t.Fatal("a write was queued after its copy began")
	}
	r.c.JobDone(&j, r.c.RunHost(&j))
	if n := r.commit(); n != 0 {
		t.Fatalf("%d more jobs", n)
	}
}

func TestO11_R13_ChunksGoToAnOpenWriteOnly(t *testing.T) {
	r := deferredRig(t, Config{Threaded: true})
	first := r.c.defs.oldest
	r.discard(r.save(map[string]uint64{"d": 104}, chunk{1, span(4, 5)}))
	if r.c.defs.pending != 1 {
		t.Fatal("a chunk of an open write opened another")
	}
	r.c.enqueue(first, false) // what a budget flush does
	r.discard(r.save(map[string]uint64{"d": 105}, chunk{1, span(5, 6)}))
	j, _ := r.c.NextJob()
	r.discard(r.save(map[string]uint64{"d": 106}, chunk{1, span(6, 7)}))
	if n := len(j.Copies); n != 1 || j.Copies[0].Bytes != 5*8 {
		t.Fatalf("the closed write has %d copies", n)
	}
	r.c.JobDone(&j, r.c.RunHost(&j))
	if r.c.defs.pending != 1 {
		t.Fatalf("%d writes pending, want the second", r.c.defs.pending)
	}
	r.begin([]uint64{1})
	r.commit()
	if got := r.rows("d", span(0, 7)...); !reflect.DeepEqual(got, seq(100, 7)) {
		t.Fatal(got)
	}
}

func TestO12_RowsAreHeldUntilTheWriteEnds(t *testing.T) {
	r := deferredRig(t, Config{Threaded: true})
	r.begin([]uint64{1})
	j, _ := r.c.NextJob()
	if err := r.c.RunHost(&j); err != nil || r.rowsHeld("d") != 4 {
		t.Fatalf("%d rows held while copying, want 4", r.rowsHeld("d"))
	}
	r.c.JobDone(&j, nil)
	if r.rowsHeld("d") != 0 {
		t.Fatalf("%d rows held after the end", r.rowsHeld("d"))
	}
}

func TestO13_TheFirstFailureIsKept(t *testing.T) {
	r := newRig(t, Config{Threaded: true})
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 1)}, chunk{2, span(1, 2)}))
	r.begin([]uint64{1, 2})
	j, _ := r.c.NextJob()
	r.c.JobDone(&j, errFailPoint)
	first := r.c.fatal.Error()
	r.c.JobDone(&j, errFailPoint) // reported twice
	r.c.JobDone(&j, nil)
	if s := r.c.Stats(); s.FailedWrites != 1 || s.DeferredWrites != 0 {
		t.Fatalf("%+v", s)
	}
	r.c.FailWrite(1)
	r.commit()
	if r.c.fatal.Error() != first || !strings.Contains(first, "write failed") || !strings.Contains(first, "req #1") {
		t.Fatalf("text is %q, was %q", r.c.fatal, first)
	}
}

func TestO18_AtMostOneOpenWrite(t *testing.T) {
	r := newRig(t, Config{BudgetBytes: 100, Threaded: true})
	r.w.onWait = func(Queue) bool { return r.commitOne() }
	r.begin(nil, arrive(1, 2)...)
	for i := range int64(40) {
		r.discard(r.save(map[string]uint64{"d": uint64(i)}, chunk{1, span(i, i+1)}, chunk{2, span(i+1, i+2)}))
		open := map[uint64]int{}
		for w := r.c.defs.oldest; w != none; w = r.c.defs.writes[w].newer {
			if r.c.defs.writes[w].state == writeOpen {
				open[r.c.defs.writes[w].req]++
			}
		}
		if open[1] > 1 || open[2] > 1 {
			t.Fatalf("open writes: %v", open)
		}
		r.check()
	}
}

func TestO19_R12_ASlotLostAndWonBackHasTheNewRow(t *testing.T) {
	r := deferredRig(t, Config{Threaded: true})
	r.discard(r.save(map[string]uint64{"d": 200}, chunk{2, span(1, 3)}))
	r.discard(r.save(map[string]uint64{"d": 300}, chunk{1, span(1, 2)}))
	for _, order := range [][]uint64{{1}, {2}} {
		r.begin(order)
		r.commit()
	}
	if got := r.rows("d", span(0, 4)...); !reflect.DeepEqual(got, []uint64{100, 300, 201, 103}) {
		t.Fatal(got)
	}
}

func TestO20_LaterRequestOfTheBatchWinsASlot(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}, committer} {
		r := newRig(t, cfg)
		r.begin(nil, arrive(1, 2)...)
		step := r.save(map[string]uint64{"h": 100, "d": 100}, chunk{1, span(0, 4)}, chunk{2, span(2, 6)})
		if got := r.read(step, "h"); !reflect.DeepEqual(got[1], seq(100, 4)) || !reflect.DeepEqual(got[2], seq(104, 4)) {
			t.Fatal(got)
		}
		r.begin([]uint64{1, 2})
		r.commit()
		want := []uint64{100, 101, 104, 105, 106, 107}
		if h, d := r.rows("h", span(0, 6)...), r.rows("d", span(0, 6)...); !reflect.DeepEqual(h, want) || !reflect.DeepEqual(d, want) {
			t.Fatalf("hidden %v, deferred %v, want %v", h, d, want)
		}
	}
}

func TestR11_AWriteThatNamesASlotTwiceKeepsTheLastRow(t *testing.T) {
	r := deferredRig(t, Config{Threaded: true})
	r.discard(r.save(map[string]uint64{"d": 200}, chunk{1, []int64{2, 3, 2}}))
	if err := r.c.SetPolicy(true); err == nil {
		t.Fatal("the policy changed in the middle")
	}
	r.begin(nil, hitOn(5, 4, 0))
	step := r.save(map[string]uint64{"d": 900}, chunk{5, span(8, 9)})
	if got := r.read(step, "d")[5]; !reflect.DeepEqual(got, []uint64{100, 101, 202, 201, 900}) {
		t.Fatalf("read back %v", got)
	}
	r.begin([]uint64{1})
	r.commit()
	if got := r.rows("d", span(0, 4)...); !reflect.DeepEqual(got, []uint64{100, 101, 202, 201}) {
		t.Fatalf("mirror %v", got)
	}
}

func TestDeferredCopiesAreCutAndJoined(t *testing.T) {
	for _, chunkBytes := range []int64{1, 16, 1 << 20} {
		r := newRig(t, Config{Threaded: true, CopyChunkBytes: chunkBytes})
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{"d": 0}, chunk{1, span(0, 8)}))
		r.begin([]uint64{1})
		j, _ := r.c.NextJob()
		want := map[int64]int{1: 8, 16: 4, 1 << 20: 1}[chunkBytes]
		if len(j.Copies) != want {
			t.Errorf("chunks of %d bytes: %d copies, want %d", chunkBytes, len(j.Copies), want)
		}
		r.c.JobDone(&j, r.c.RunHost(&j))
		if got := r.rows("d", span(0, 8)...); !reflect.DeepEqual(got, seq(0, 8)) {
			t.Error(got)
		}
	}
}
