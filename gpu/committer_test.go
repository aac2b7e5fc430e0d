package gpu_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"libprefixcache/core/status"
	"libprefixcache/gpu"
)

// hang is how long something may take that takes no time: nothing but a fault takes longer.
const hang = time.Minute

// jobs is a Source with a fixed list.
type jobs struct {
	mu     sync.Mutex
	parker gpu.Parker
	queue  []int
	closed bool
	done   map[int]error
}

func (q *jobs) AwaitJob() (int, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queue) == 0 && !q.closed {
		q.parker.Wait(&q.mu, gpu.NoDeadline)
	}
	if q.closed {
		return 0, false
	}
	j := q.queue[0]
	q.queue = q.queue[1:]
	return j, true
}

func (q *jobs) JobDone(j *int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.done[*j] = err
	q.parker.Wake()
}

func (q *jobs) put(j int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, j)
	q.parker.Wake()
}

// wait parks until n jobs are done.
func (q *jobs) wait(t *testing.T, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	deadline := gpu.Now() + int64(hang)
	for len(q.done) < n {
		if !q.parker.Wait(&q.mu, deadline) {
			t.Fatalf("%d of %d jobs done after %v", len(q.done), n, hang)
		}
	}
}

func (q *jobs) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.parker.Wake()
}

var processors = runtime.GOMAXPROCS(0) // before the first committer

// A committer, asleep or not, leaves every thread of the host a Go processor: one that
// comes back from a wait for the device without one goes on 10 to 100 µs later.
func TestCommitter_TakesNoProcessorFromCallers(t *testing.T) {
	const committers = 3
	q := &jobs{done: map[int]error{}}
	var all []*gpu.Committer
	for range committers {
		c, err := gpu.StartCommitter(gpu.NewHost(), q, func(*int) error { return nil })
		ok(t, err)
		all = append(all, c)
	}
	if n := runtime.GOMAXPROCS(0); n < processors+committers {
		t.Errorf("%d processors for %d callers and %d committers", n, processors, committers)
	}
	q.close()
	for _, c := range all {
		if !c.Stop(hang) {
			t.Fatal("a committer did not end")
		}
	}
}

func TestCommitter_RunsJobsInOrderOnItsOwnBoundThread(t *testing.T) {
	f := newFixture(t, 5)
	q := &jobs{done: map[int]error{}}
	var order []int
	c, err := gpu.StartCommitter(f.d, q, func(j *int) error {
		order = append(order, *j)
		// Bound: the calls need no context of the caller.
		if err := f.d.Fill(f.s, f.a, byte(*j), 64); err != nil {
			return err
		}
		return f.d.Drain(f.s)
	})
	ok(t, err)
	const n = 100
	for j := range n {
		q.put(j)
		if j%10 == 0 {
			q.wait(t, j+1)
		}
	}
	q.wait(t, n)
	q.close()
	if !c.Stop(hang) {
		t.Fatal("the committer did not end")
	}
	for j := range n {
		if order[j] != j || q.done[j] != nil {
			t.Fatalf("job %d ran as %d with %v", j, order[j], q.done[j])
		}
	}
	f.close(t)
}

// a job that panics fails, and the committer lives on.
func TestCommitter_SurvivesAPanic(t *testing.T) {
	q := &jobs{done: map[int]error{}}
	c, err := gpu.StartCommitter(gpu.NewHost(), q, func(j *int) error {
		if *j == 0 {
			panic("boom")
		}
		return nil
	})
	ok(t, err)
	q.put(0)
	q.put(1)
	q.wait(t, 2)
	refused(t, q.done[0], status.Internal, "boom")
	ok(t, q.done[1])
	q.close()
	if !c.Stop(hang) {
		t.Fatal("the committer did not end")
	}
}

func TestCommitter_StopIsBounded(t *testing.T) {
	q := &jobs{done: map[int]error{}}
	goOn := make(chan struct{})
	c, err := gpu.StartCommitter(gpu.NewHost(), q, func(*int) error { <-goOn; return nil })
	ok(t, err)
	q.put(0)
	q.close()
	// The job may or may not have been taken before close; only a taken one hangs.
	_ = c.Stop(10 * time.Millisecond)
	close(goOn)
	if !c.Stop(hang) {
		t.Fatal("the committer did not end")
	}
}

func TestParker_DeadlineAndWake(t *testing.T) {
	var mu sync.Mutex
	var p gpu.Parker
	mu.Lock()
	start := gpu.Now()
	for p.Wait(&mu, start+int64(20*time.Millisecond)) { // a wake for no reason is allowed
	}
	if took := gpu.Now() - start; took < int64(20*time.Millisecond) {
		t.Errorf("returned %d ns before the deadline", int64(20*time.Millisecond)-took)
	}
	if late := gpu.Now(); p.Wait(&mu, late-1) {
		t.Error("a deadline in the past was not noticed")
	}
	flag := false
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for !flag {
				p.Wait(&mu, gpu.NoDeadline)
			}
		})
	}
	mu.Unlock()
	time.Sleep(5 * time.Millisecond)
	mu.Lock()
	flag = true
	p.Wake()
	mu.Unlock()
	wg.Wait() // the test's timeout is the assertion
}
