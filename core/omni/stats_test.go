package omni

import (
	"sync"
	"testing"
	"unsafe"
)

// tickWaiter is a clock on which every reading is a microsecond after the last one, so
// that a duration is the number of readings.
type tickWaiter struct {
	stepWaiter
	ticks int64
	mu    sync.Mutex
}

func (w *tickWaiter) Now() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ticks++
	return w.now + 1000*w.ticks
}

// tickRig is a rig on that clock; whoever waits waits for wake.
func tickRig(t *testing.T, cfg Config, wake func(r *rig) bool) *rig {
	t.Helper()
	w := &tickWaiter{}
	cfg.Waiter = w
	r := newRig(t, cfg)
	w.onWait = func(Queue) bool { return wake(r) }
	return r
}

func never(*rig) bool         { return false }
func byCommitter(r *rig) bool { return r.commitOne() }
func wantWait(t *testing.T, r *rig, w Wait, count uint64) {
	t.Helper()
	for i, got := range r.c.Stats().Waits {
		want := uint64(0)
		if Wait(i) == w {
			want = count
		}
		if got.Count != want || (got.Nanoseconds > 0) != (want > 0) {
			t.Errorf("wait %d: %+v, want %d of them", i, got, want)
		}
	}
}

// Tokens count once, rows once for each key.
func TestStatsTokensAreThoseOfTheSteps(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1, 2)...)
	r.discard(r.save(map[string]uint64{"h": 1, "k": 1}, chunk{1, span(0, 5)}, chunk{2, span(8, 10)}))
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(5, 6)}))
	if s := r.c.Stats(); s.TokensSaved != 8 || s.RowsSaved != 15 {
		t.Fatalf("%d tokens, %d rows, want 8 and 15", s.TokensSaved, s.RowsSaved)
	}
}

// A planned read, one hit for one key, is used when it is read, and dropped when its
// step is discarded or nobody asks for its key.
func TestStatsReadsUsedAndDropped(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1, "k": 1}, chunk{1, span(0, 8)}))
	for i, c := range []struct {
		read          bool
		used, dropped uint64
	}{{true, 2, 2}, {false, 2, 6}} { // two hits of two keys; only h is ever read
		q := uint64(10 * (i + 1))
		r.begin(nil, hitOn(q, 8, 0, 1), hitOn(q+1, 4, 0))
		step := r.save(map[string]uint64{"h": 1, "k": 1}, chunk{q, span(16, 17)}, chunk{q + 1, span(20, 21)})
		if c.read {
			r.read(step, "h")
		} else {
			r.discard(step)
		}
		if s := r.c.Stats(); s.ReadsUsed != c.used || s.ReadsDropped != c.dropped {
			t.Fatalf("after step %d: %d used, %d dropped, want %d and %d", i, s.ReadsUsed, s.ReadsDropped, c.used, c.dropped)
		}
	}
	// Read twice in one call, it is used once, and the other key's is dropped all the same.
	r.begin(nil, hitOn(3, 4, 0))
	step := r.save(map[string]uint64{"h": 1, "k": 1}, chunk{3, span(24, 25)})
	var dst [2][5]uint64
	reads := make([]Read, len(dst))
	for i := range dst {
		reads[i] = Read{Key: r.open("h"), Count: 1, Dst: unsafe.Pointer(&dst[i]), DstBytes: int64(unsafe.Sizeof(dst[i]))}
	}
	if err := r.c.Materialize(step, reads); err != nil || dst[0] != dst[1] {
		t.Fatalf("%v: %v", err, dst)
	}
	if s := r.c.Stats(); s.ReadsUsed != 3 || s.ReadsDropped != 7 {
		t.Fatalf("%d used, %d dropped, want 3 and 7", s.ReadsUsed, s.ReadsDropped)
	}
	if r.c.Notices()&NoticeDropped == 0 || r.c.Notices() != 0 {
		t.Fatal("a dropped read left no notice, or one that stays")
	}
}

// Bytes of every copy on the host, each against what the step carried.
func TestStatsMovesOfAStep(t *testing.T) {
	r := newRig(t, Config{Threaded: true, InlineBytes: -1})
	r.begin(nil, arrive(1)...)
	step := r.save(map[string]uint64{"h": 1, "d": 1}, chunk{1, span(0, 8)}) // two keys of 8 bytes a row
	r.commit()
	r.begin([]uint64{1})
	r.commit()
	r.discard(step)
	r.begin(nil, hitOn(2, 4, 0))
	step = r.save(map[string]uint64{"h": 1}, chunk{2, span(8, 11)})
	r.read(step, "h")
	r.commit()
	want := [NumMoves]uint64{MoveSave: 8*8*2 + 3*8, MoveCommit: 8*8*2 + 3*8, MoveGather: 4 * 8, MoveMerge: 3 * 8}
	for m, got := range r.c.Stats().Moves {
		if got.Bytes != want[m] || got.TimedBytes != 0 || got.Nanoseconds != 0 {
			t.Errorf("move %d: %+v, want %d bytes, none of them timed", m, got, want[m])
		}
	}
	if s := r.c.Stats(); s.GatheredBytes != 32 {
		t.Errorf("gathered %d bytes, want 32", s.GatheredBytes)
	}
}

// The clock is read around large copies only, and then twice.
func TestStatsLargeMovesAreTimed(t *testing.T) {
	const rows, width = 64, 2 * timedBytes / 64
	for _, threaded := range []bool{false, true} {
		r := tickRig(t, Config{NumBlocks: 32, Threaded: threaded, InlineBytes: -1}, never)
		if err := r.c.SetPolicy(false); err != nil { // the hit below has no hidden rows
			t.Fatal(err)
		}
		id, err := r.c.OpenKey("wide", width, 7, JoinNextStep)
		if err != nil {
			t.Fatal(err)
		}
		src, dst := make([]byte, rows*width), make([]byte, (rows+1)*width)
		step := func(q uint64, slots []int64, hit int64) {
			t.Helper()
			n := int64(len(slots))
			step, err := r.c.Save(&SaveArgs{Requests: []uint64{q}, Counts: []int64{n}, Slots: slots,
				Rows: []KeyRows{{Key: id, Rows: unsafe.Pointer(&src[0]), Stride: width}}})
			if err != nil {
				t.Fatal(err)
			}
			r.commit()
			if err := r.c.Materialize(step, []Read{{Key: id, Count: 1, Dst: unsafe.Pointer(&dst[0]), DstBytes: (hit + n) * width}}); err != nil {
				t.Fatal(err)
			}
		}
		r.begin(nil, arrive(1)...)
		step(1, span(0, rows), 0)
		r.begin(nil, hitOn(2, rows, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
		step(2, span(64, 65), rows) // a row of its own, which is small
		want := [NumMoves]Moved{MoveSave: {(rows + 1) * width, rows * width, 1000}, MoveGather: {rows * width, rows * width, 1000},
			MoveMerge: {(rows + 1) * width, rows * width, 1000}}
		if threaded {
			want[MoveCommit] = want[MoveSave]
		}
		if got := r.c.Stats().Moves; got != want {
			t.Errorf("threaded %v: %+v, want %+v", threaded, got, want)
		}
	}
}

func TestStatsWaits(t *testing.T) {
	t.Run("step", func(t *testing.T) {
		r := tickRig(t, Config{Threaded: true, InlineBytes: -1}, byCommitter)
		r.begin(nil, arrive(1)...)
		r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)})
		r.save(map[string]uint64{"h": 1}, chunk{1, span(1, 2)})
		wantWait(t, r, WaitStep, 1)
	})
	t.Run("staging", func(t *testing.T) {
		var step uint64
		r := tickRig(t, Config{StagingDepth: 1}, func(r *rig) bool { r.discard(step); return true })
		r.begin(nil, arrive(1)...)
		step = r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)})
		r.save(map[string]uint64{"h": 1}, chunk{1, span(1, 2)})
		wantWait(t, r, WaitStaging, 1)
		if s := r.c.Stats(); s.StagingWaits != 1 || r.c.Notices() != NoticeStaging {
			t.Fatalf("%d staging waits, want 1 and a notice", s.StagingWaits)
		}
	})
	t.Run("budget", func(t *testing.T) {
		r := tickRig(t, Config{Threaded: true, BudgetBytes: 16}, byCommitter)
		r.begin(nil, arrive(1, 2)...)
		r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 2)}))
		r.discard(r.save(map[string]uint64{"d": 1}, chunk{2, span(4, 6)}))
		wantWait(t, r, WaitBudget, 1)
		if s := r.c.Stats(); s.Flushes != 1 || r.c.Notices() != NoticeFlush {
			t.Fatalf("%d flushes, want 1 and a notice", s.Flushes)
		}
	})
	t.Run("read", func(t *testing.T) {
		r := tickRig(t, Config{Threaded: true, InlineBytes: -1}, byCommitter)
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 4)}))
		r.commit()
		r.begin(nil, NewRequest{Request: 2}, hitOn(3, 4, 1))
		// The hit is on rows that request 2 brings in this very step.
		r.read(r.save(map[string]uint64{"h": 9}, chunk{2, span(4, 8)}, chunk{3, span(8, 9)}), "h")
		wantWait(t, r, WaitRead, 1)
	})
	t.Run("lock", func(t *testing.T) {
		r := tickRig(t, Config{}, never)
		began := make(chan struct{})
		done := make(chan struct{})
		r.c.mu.Lock()
		go func() {
			close(began)
			r.c.Stats()
			close(done)
		}()
		<-began
		w := r.c.cfg.Waiter.(*tickWaiter)
		for { // the clock was read: it is about to sleep
			w.mu.Lock()
			asked := w.ticks > 0
			w.mu.Unlock()
			if asked {
				break
			}
		}
		r.c.mu.Unlock()
		<-done
		wantWait(t, r, WaitLock, 1)
	})
}

func TestStatsPeaks(t *testing.T) {
	r := newRig(t, Config{StagingDepth: 8})
	r.begin(nil, arrive(1, 2, 3)...)
	var steps []uint64
	for i := range int64(5) {
		steps = append(steps, r.save(map[string]uint64{"h": 1}, chunk{1, span(i, i+1)}))
	}
	for _, s := range steps {
		r.discard(s)
	}
	r.begin([]uint64{1, 2, 3}, arrive(4)...)
	if s := r.c.Stats(); s.UnconsumedStepsPeak != 5 || s.UnconsumedSteps != 0 || s.LiveRequestsPeak != 3 || s.LiveRequests != 1 ||
		s.StagingDepth != 8 || s.BudgetBytes != DefaultBudgetBytes {
		t.Fatalf("%+v, want peaks of 5 steps and 3 requests", s)
	}
}

// The next write in the queue has waited since its request finished.
func TestStatsQueueAge(t *testing.T) {
	r := tickRig(t, Config{Threaded: true}, never)
	w := r.c.cfg.Waiter.(*tickWaiter)
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 2)}))
	if age := r.c.Stats().QueueAge; age != 0 {
		t.Fatalf("age of an empty queue is %d", age)
	}
	r.begin([]uint64{1})
	w.now += 5_000_000
	if age := r.c.Stats().QueueAge; age != 5_001_000 {
		t.Fatalf("age is %d ns, want five milliseconds and one reading", age)
	}
	w.now += 2_000_000
	r.commit()
	if s := r.c.Stats(); s.QueueAge != 0 || s.QueueAgePeak != 7_002_000 {
		t.Fatalf("age is %d and at most %d ns, want 0 and seven milliseconds and two readings", s.QueueAge, s.QueueAgePeak)
	}
}

// Rows on a device: what is cloned there, and what lands.
func TestStatsDeviceMoves(t *testing.T) {
	r, _ := newDeviceRig(t, Config{Threaded: true})
	r.begin(nil, arrive(1)...)
	step := r.mustSaveOn(map[string]uint64{"h": 1, "k": 1}, chunk{1, span(0, 3)})
	r.read(step, "h")
	s := r.c.Stats()
	if s.Moves[MoveClone].Bytes != 2*3*8 || s.Moves[MoveLand].Bytes != pageAlign+3*8 || s.Moves[MoveSave].Bytes != 0 {
		t.Fatalf("%+v, want 48 bytes cloned and one key's rows behind the other's page", s.Moves)
	}
	if s.Waits[WaitLanded].Count != 1 || s.PageBytes != minPageBytes {
		t.Fatalf("%+v waits, %d bytes of pages, want one wait and %d bytes", s.Waits, s.PageBytes, minPageBytes)
	}
}
