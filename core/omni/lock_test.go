package omni

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"
	"unsafe"
)

// O-44: the lock is free wherever the cache waits or moves rows. O-45: wherever the
// lock is free, the tables are whole. O-46: the copies of a job need no lock.
func TestO44_O45_O46_TheLockCoversTablesOnly(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}, committer} {
		var r *rig
		places := 0
		free := func() {
			if r == nil || r.c == nil {
				return
			}
			if !r.c.mu.TryLock() {
				t.Fatal("the lock is held while the cache waits or moves rows")
			}
			r.c.mu.Unlock()
			places++
			r.check()
		}
		cfg.Preempt = free
		cfg.BudgetBytes = 200
		r = newRig(t, cfg)
		r.onlyBy(func() bool { free(); return r.commitOne() })
		for i := range int64(40) {
			q := uint64(i % 3)
			r.begin([]uint64{q}, hitOn(q, 4*min(i, 1), i%3))
			step := r.save(map[string]uint64{"h": 1, "d": 2, "k": 3}, chunk{q, span(i%9, i%9+12)}, chunk{8, span(30, 31)})
			r.read(step, "k")
		}
		if places < 200 {
			t.Fatalf("%d places, the test looks at nothing", places)
		}
	}
	r := newRig(t, committer)
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 5}, chunk{1, span(0, 4)}))
	j, _ := r.c.NextJob()
	r.c.mu.Lock() // for as long as the copies run
	err := r.c.RunHost(&j)
	r.c.mu.Unlock()
	r.c.JobDone(&j, err)
	if got := r.rows("h", span(0, 4)...); !reflect.DeepEqual(got, seq(5, 4)) {
		t.Fatal(got)
	}
}

func TestEngineCallsMustNotOverlap(t *testing.T) {
	var r *rig
	tried := 0
	cfg := Config{Preempt: func() {
		if tried++; tried == 1 {
			if err := r.tryBegin(nil); err == nil || r.c.SetPolicy(true) == nil {
				t.Error("a second engine call was let in")
			}
			if _, err := r.c.OpenKey("x", 1, 1, 0); err == nil {
				t.Error("open_key during save")
			}
		}
	}}
	r = newRig(t, cfg)
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 5}, chunk{1, span(0, 4)}))
	if tried == 0 {
		t.Fatal("not tried")
	}
	r.begin(nil)
}

// condWaiter parks real goroutines.
type condWaiter struct {
	mu   sync.Mutex
	wake [numQueues]chan struct{}
}

func newCondWaiter() *condWaiter {
	w := &condWaiter{}
	for q := range w.wake {
		w.wake[q] = make(chan struct{})
	}
	return w
}

func (w *condWaiter) Now() int64 { return time.Now().UnixNano() }
func (w *condWaiter) Wake(q Queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.wake[q])
	w.wake[q] = make(chan struct{})
}
func (w *condWaiter) Wait(mu *sync.Mutex, q Queue, deadline int64) bool {
	w.mu.Lock()
	ch := w.wake[q]
	w.mu.Unlock()
	mu.Unlock()
	defer mu.Lock()
	var timer <-chan time.Time
	if deadline != NoDeadline {
		timer = time.After(time.Duration(deadline - time.Now().UnixNano()))
	}
	select {
	case <-ch:
		return true
	case <-timer:
		return false
	}
}

// lockSeer notes what a thread finds that is woken and wants the lock.
type lockSeer struct {
	stepWaiter
	lock        *meteredMutex
	free, taken int
}

func (w *lockSeer) Wake(Queue) {
	if w.lock.TryLock() {
		w.free++
		w.lock.Mutex.Unlock()
	} else {
		w.taken++
	}
}

// A thread that is woken while its waker still holds the lock goes to sleep once more.
func TestWakingIsDoneBehindTheLock(t *testing.T) {
	w := &lockSeer{}
	r := newRig(t, Config{Threaded: true, InlineBytes: -1, Waiter: w})
	w.lock = &r.c.mu
	r.begin(nil, arrive(1)...)
	for q := range r.c.parked {
		r.c.parked[q]++ // somebody sleeps there
	}
	step := r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 4)})
	r.commit()
	r.discard(step)
	for q := range r.c.parked {
		r.c.parked[q]--
	}
	if w.taken > 0 || w.free < 2 {
		t.Errorf("%d wakes with the lock free and %d with the lock held, expected at least 2 and none", w.free, w.taken)
	}
}

// TestThreads runs an engine, a committer and three consumers for real; every row
// read is checked against what it must be. Meant for the race detector.
func TestThreads(t *testing.T) {
	for _, inline := range []int64{-1, 0} {
		t.Run(fmt.Sprint(inline), func(t *testing.T) { runThreads(t, inline) })
	}
}

type threadStep struct {
	id   uint64
	bufs map[KeyID][]uint64
	want map[KeyID][]uint64
}

func runThreads(t *testing.T, inline int64) {
	const blocks, blockSize, keys = 24, 16, 3
	c, err := New(Config{NumBlocks: blocks, BlockSize: blockSize, StagingDepth: 4, StagingCapacity: 256, BudgetBytes: 4000,
		Threaded: true, InlineBytes: inline, Waiter: newCondWaiter()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetPolicy(false); err != nil {
		t.Fatal(err)
	}
	var ids [keys]KeyID
	for i := range ids {
		if ids[i], err = c.OpenKey(fmt.Sprint("k", i), 8, 0, Schedule(i/2)); err != nil {
			t.Fatal(err)
		}
	}
	var committerDone, consumers sync.WaitGroup
	committerDone.Add(1)
	go func() {
		defer committerDone.Done()
		for {
			j, ok := c.AwaitJob()
			if !ok {
				return
			}
			c.JobDone(&j, c.RunHost(&j))
		}
	}()
	steps := make(chan threadStep, 16)
	for range 3 {
		consumers.Add(1)
		go func() {
			defer consumers.Done()
			for st := range steps {
				var reads []Read
				for id, b := range st.bufs {
					reads = append(reads, Read{Key: id, Count: 1, Dst: unsafe.Pointer(&b[0]), DstBytes: int64(8 * len(b))})
				}
				if err := c.Materialize(st.id, reads); err != nil {
					t.Error(err)
				}
				for id, b := range st.bufs {
					if !reflect.DeepEqual(b, st.want[id]) {
						t.Errorf("step %d key %d: %v, want %v", st.id, id, b, st.want[id])
					}
				}
			}
		}()
	}
	rng := rand.New(rand.NewPCG(7, 7))
	var model [keys][blocks * blockSize]uint64
	n := 600
	if testing.Short() {
		n = 150
	}
	for i := range n {
		q := uint64(i % 5)
		var hit []int64
		for range rng.IntN(3) {
			hit = append(hit, rng.Int64N(blocks))
		}
		if err := c.StepBegin([]uint64{q}, []NewRequest{{Request: q, HitTokens: int64(len(hit)) * blockSize, Blocks: hit}}, nil); err != nil {
			t.Fatal(err)
		}
		at, rowsN := rng.Int64N(blocks*blockSize-20), 1+rng.Int64N(20)
		a := SaveArgs{Requests: []uint64{q}, Counts: []int64{rowsN}, Slots: span(at, at+rowsN)}
		st := threadStep{bufs: map[KeyID][]uint64{}, want: map[KeyID][]uint64{}}
		for k, id := range ids {
			if rng.IntN(4) == 0 {
				for _, s := range a.Slots {
					model[k][s] = 0
				}
				continue
			}
			src := make([]uint64, rowsN)
			for j := range src {
				src[j] = rng.Uint64()
				model[k][a.Slots[j]] = src[j]
			}
			var want []uint64
			for _, b := range hit {
				want = append(want, model[k][b*blockSize:(b+1)*blockSize]...)
			}
			buf := make([]uint64, len(want)+len(src))
			r := KeyRows{Key: id, Rows: unsafe.Pointer(&src[0]), Stride: 8}
			if rng.IntN(2) == 0 {
				r.Dst, r.DstBytes = unsafe.Pointer(&buf[0]), int64(8*len(buf))
			}
			a.Rows = append(a.Rows, r)
			st.bufs[id], st.want[id] = buf, append(want, src...)
		}
		if st.id, err = c.Save(&a); err != nil {
			t.Fatal(err)
		}
		for _, r := range a.Rows {
			clear(unsafe.Slice((*uint64)(r.Rows), rowsN))
		}
		if i%50 == 0 {
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
		}
		steps <- st
	}
	close(steps)
	consumers.Wait()
	c.Shutdown()
	committerDone.Wait()
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	if err := c.Free(); err != nil {
		t.Fatal(err)
	}
}
