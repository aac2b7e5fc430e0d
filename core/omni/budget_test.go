package omni

import (
	"reflect"
	"testing"
)

// The field report "budget cap defeated by a request that keeps appending": a
// budget of 3 chunks, 4 steps of one request with a deferred key.
func TestO36_BudgetOfThreeChunks(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}} {
		cfg.BudgetBytes = 3 * 8
		r := newRig(t, cfg)
		r.begin(nil, arrive(1)...)
		for i := range int64(4) {
			r.discard(r.save(map[string]uint64{"d": 100 + uint64(i)}, chunk{1, span(i, i+1)}))
			if s := r.c.Stats(); s.StagedBytes > cfg.BudgetBytes {
				t.Fatalf("step %d: %d bytes staged", i, s.StagedBytes)
			}
		}
		s := r.c.Stats()
		if s.StagedBytes != 8 || s.Flushes != 1 || s.DeferredWrites != 1 || s.StagedBytesPeak != 24 {
			t.Fatalf("after step 4: %+v, want 1 chunk charged after 1 flush", s)
		}
		if got := r.rows("d", span(0, 4)...); !reflect.DeepEqual(got, []uint64{100, 101, 102, 0}) {
			t.Fatalf("mirror has %v, want 3 rows", got)
		}
	}
}

func TestO35_AStepLargerThanTheBudgetIsAdmittedWhenNothingElseIsHeld(t *testing.T) {
	r := newRig(t, Config{BudgetBytes: 20})
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 4)})) // 32 bytes, nothing to flush
	if s := r.c.Stats(); s.StagedBytes != 32 || s.Flushes != 0 {
		t.Fatalf("%+v", s)
	}
	r.discard(r.save(map[string]uint64{"d": 1}, chunk{2, span(4, 5)}))
	if s := r.c.Stats(); s.StagedBytes != 8 || s.Flushes != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestO35_TheOldestWriteGoesFirst(t *testing.T) {
	r := newRig(t, Config{BudgetBytes: 4 * 8})
	r.begin(nil, arrive(1, 2, 3)...)
	for i, q := range []uint64{1, 2, 1, 3} { // 1 is the oldest, though 2 has not been added to since
		r.discard(r.save(map[string]uint64{"d": 100 * q}, chunk{q, span(int64(i), int64(i)+1)}))
	}
	r.discard(r.save(map[string]uint64{"d": 400}, chunk{2, span(4, 5)}))
	if got := r.rows("d", span(0, 5)...); !reflect.DeepEqual(got, []uint64{100, 0, 100, 0, 0}) {
		t.Fatalf("mirror has %v, want the rows of request 1", got)
	}
	if s := r.c.Stats(); s.StagedBytes != 3*8 {
		t.Fatalf("%d bytes staged", s.StagedBytes)
	}
}

// O-37, R-18: bytes come back exactly once, whatever ends the write.
func TestO37_R18_BytesComeBackOnce(t *testing.T) {
	r := newRig(t, Config{Threaded: true, InlineBytes: -1, BudgetBytes: 1000})
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"h": 1, "d": 1}, chunk{1, span(0, 4)}, chunk{2, span(4, 8)}))
	staged := func(want int64) {
		t.Helper()
		if s := r.c.Stats(); s.StagedBytes != want {
			t.Fatalf("%d bytes staged, want %d", s.StagedBytes, want)
		}
	}
	staged(128)
	r.commit()
	staged(64) // the step's own rows
	r.begin([]uint64{1, 2})
	j, _ := r.c.NextJob()
	staged(64)
	r.c.JobDone(&j, nil)
	r.c.JobDone(&j, nil)
	staged(32)
	r.c.FailWrite(1)
	r.commit()
	staged(0)
}

func TestO38_NothingIsChargedWhenAllWritesEnded(t *testing.T) {
	r := newRig(t, Config{Threaded: true, InlineBytes: -1, BudgetBytes: 64})
	for i := range int64(50) {
		q := uint64(i % 4)
		r.begin([]uint64{q}, arrive(q)...)
		r.discard(r.save(map[string]uint64{"h": 1, "d": 1, "dd": 2}, chunk{q, span(i%9, i%9+3)}, chunk{q + 10, span(20, 22)}))
	}
	r.begin([]uint64{0, 1, 2, 3, 10, 11, 12, 13})
	r.commit()
	if s := r.c.Stats(); s.StagedBytes != 0 || s.PendingWrites != 0 || s.LiveRequests != 0 {
		t.Fatalf("%+v", s)
	}
}

// S-3: a save that fails after it charged gives everything back.
func TestS03_S04_AFailedSaveLeavesNoTrace(t *testing.T) {
	r := newRig(t, Config{StagingDepth: 1, Threaded: true, InlineBytes: -1})
	r.begin(nil, arrive(1)...)
	first := r.save(map[string]uint64{"h": 1, "d": 1}, chunk{1, span(0, 4)})
	r.commit()
	r.begin(nil, hitOn(2, 4, 0))
	before, states := r.c.Stats(), r.states("h", span(0, 16)...)
	for range 3 {
		_, err := r.trySave(map[string]uint64{"h": 2, "d": 2, "k": 2}, chunk{1, span(2, 6)}, chunk{2, span(8, 9)})
		if err == nil {
			t.Fatal("there was no staging page")
		}
		after := r.c.Stats()
		after.StagingWaits, after.ReservedBytes, after.StagedBytesPeak, after.Waits = before.StagingWaits, before.ReservedBytes, before.StagedBytesPeak, before.Waits
		if after != before || !reflect.DeepEqual(r.states("h", span(0, 16)...), states) {
			t.Fatalf("%+v, was %+v", after, before)
		}
		r.check()
	}
	r.discard(first)
	r.accepted[2] = 4
	step := r.save(map[string]uint64{"h": 200}, chunk{2, span(8, 9)})
	if step != 2 {
		t.Fatalf("id %d, want 2", step)
	}
	if got := r.read(step, "h")[2]; !reflect.DeepEqual(got, []uint64{1, 2, 3, 4, 200}) {
		t.Fatalf("the hit after failed saves reads %v", got)
	}
}

// vllm issue 28726: memory is back at its baseline after any number of requests.
func TestFieldMemoryDoesNotGrowWithRequests(t *testing.T) {
	r := newRig(t, Config{NumBlocks: 16})
	size := func() [8]int {
		k := r.c.keys[r.keys["d"]]
		return [8]int{len(r.c.reqs.slab), len(r.c.reqs.index), len(r.c.defs.writes), len(r.c.defs.strands),
			len(r.c.steps.all), len(k.store.meta), int(r.c.Stats().ReservedBytes), cap(r.c.batch.handles)}
	}
	var base [8]int
	for i := range uint64(10000) {
		q := i + 1000
		b := int64(i % 15)
		hit := int64(0)
		if i >= 15 { // every block from 1 on has rows by then
			hit = 4
		}
		r.begin([]uint64{q - 1}, hitOn(q, hit, 1+(b+7)%15))
		step := r.save(map[string]uint64{"h": i, "d": i}, chunk{q, span(4*b+4, 4*b+8)})
		if i%2 == 0 {
			r.read(step, "h")
		} else {
			r.discard(step)
		}
		delete(r.shapes, step)
		if i == 200 {
			base = size()
		}
	}
	if got := size(); got != base {
		t.Fatalf("%v, was %v after 200 requests", got, base)
	}
	r.begin([]uint64{10999})
	if s := r.c.Stats(); s.LiveRequests+s.PendingReads+s.PendingWrites+s.UnconsumedSteps != 0 || s.StagedBytes != 0 {
		t.Fatalf("%+v", s)
	}
}
