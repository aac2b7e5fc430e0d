package gpu_test

import (
	"encoding/binary"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"libprefixcache/core/status"
	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// pipeline is the traffic of a stage-output cache in small: a model rewrites one
// static buffer each step; the cache freezes it with a device copy on the model's
// stream, copies the frozen rows to pinned staging on a stream of its own
// behind an event, and reads them when a second event is reached. Staging has few
// slots, so a slot is used again and again. Guards can be left out, to show
// that each is needed.
type pipeline struct {
	d             *gpu.CUDA
	model, copies gpu.Stream
	static        gpu.Addr
	slots         []slot

	noFreeze, noOrder, noAwait bool
	wrong                      int
}

type slot struct {
	frozen        gpu.Addr
	staging       []byte
	frozenE, done gpu.Event
	step          uint32 // 0: free
}

const stepWords = 32

func newPipeline(t testing.TB, seed uint64, depth int) *pipeline {
	p := &pipeline{d: open(t, seed)}
	p.model = must[gpu.Stream](t)(p.d.NewStream(0))
	p.copies = must[gpu.Stream](t)(p.d.NewStream(gpu.NonBlocking))
	p.static = must[gpu.Addr](t)(p.d.Alloc(p.model, stepWords*4))
	for range depth {
		s := slot{
			frozen:  must[gpu.Addr](t)(p.d.Alloc(p.model, stepWords*4)),
			staging: pinned(t, p.d, stepWords*4),
			frozenE: must[gpu.Event](t)(p.d.NewEvent(0)),
			done:    must[gpu.Event](t)(p.d.NewEvent(0)),
		}
		p.slots = append(p.slots, s)
	}
	return p
}

// save is one step: the model computes, the cache takes the rows along.
func (p *pipeline) save(t testing.TB, step uint32) {
	s := &p.slots[int(step)%len(p.slots)]
	if s.step != 0 {
		p.read(t, s) // the slot's former step has to be consumed before
	}
	simcuda.Launch(t, uintptr(p.model), uintptr(p.static), stepWords, step*1000)
	src := p.static
	if !p.noFreeze {
		ok(t, p.d.CopyOnDevice(p.model, s.frozen, p.static, stepWords*4))
		src = s.frozen
	}
	if !p.noOrder {
		ok(t, p.d.Record(s.frozenE, p.model))
		ok(t, p.d.WaitEvent(p.copies, s.frozenE))
	}
	ok(t, p.d.CopyToHost(p.copies, ptr(s.staging), src, stepWords*4))
	ok(t, p.d.Record(s.done, p.copies))
	s.step = step
}

// read checks the rows of a slot and gives it back.
func (p *pipeline) read(t testing.TB, s *slot) {
	if !p.noAwait {
		ok(t, p.d.Await(s.done))
	}
	simcuda.HostReads(ptr(s.staging), stepWords*4)
	for i := range stepWords {
		if got := binary.LittleEndian.Uint32(s.staging[i*4:]); got != s.step*1000+uint32(i) {
			p.wrong++
			break
		}
	}
	s.step = 0
}

func (p *pipeline) finish(t testing.TB) {
	for i := range p.slots {
		if p.slots[i].step != 0 {
			p.read(t, &p.slots[i])
		}
	}
	ok(t, p.d.Drain(p.copies))
	for i := range p.slots {
		s := &p.slots[i]
		ok(t, p.d.Free(p.model, s.frozen))
		ok(t, p.d.FreeEvent(s.frozenE))
		ok(t, p.d.FreeEvent(s.done))
	}
	ok(t, p.d.Free(p.model, p.static))
	ok(t, p.d.Drain(p.model))
	ok(t, p.d.FreeStream(p.model))
	ok(t, p.d.FreeStream(p.copies))
}

// seeds is how many orders of work a test goes through; GPU_SEEDS sets it for a
// soak.
func seeds() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("GPU_SEEDS"), 10, 32); err == nil {
		return n
	}
	return 3000
}

func TestPipeline_ManySeeds(t *testing.T) {
	eachSeed(t, seeds(), func(t testing.TB, seed uint64) {
		p := newPipeline(t, seed, 1+int(seed%4))
		for step := range uint32(20) {
			p.save(t, step+1)
		}
		p.finish(t)
		if p.wrong != 0 {
			t.Errorf("%d steps with wrong rows", p.wrong)
		}
		if n := simcuda.Pageable() + simcuda.ImplicitWaits(); n != 0 {
			t.Errorf("%d calls that stall a real host", n)
		}
	})
}

// Each guard is needed: without it the simulator reports, whatever runs when.
func TestPipeline_EachGuardIsNeeded(t *testing.T) {
	for name, off := range map[string]func(*pipeline){
		"R-1 freeze before the next forward": func(p *pipeline) { p.noFreeze = true },
		"R-1 event before another stream":    func(p *pipeline) { p.noOrder = true },
		"R-14 wait before staging is read":   func(p *pipeline) { p.noAwait = true },
	} {
		t.Run(name, func(t *testing.T) {
			eachSeed(t, 20, func(t testing.TB, seed uint64) {
				p := newPipeline(t, seed, 2)
				off(p)
				for step := range uint32(6) {
					p.save(t, step+1)
				}
				if r := faults(); r == "" {
					t.Error("nothing was reported")
				}
			})
		})
	}
}

// Whichever call fails: an error with its name, and everything can be given back.
func TestPipeline_EveryCallFailsOnce(t *testing.T) {
	for n := 1; ; n++ {
		simcuda.Start(t, uint64(n))
		abandoned = false
		d, err := gpu.OpenCUDA(0)
		ok(t, err)
		simcuda.FailNth(simcuda.Enqueue|simcuda.Create|simcuda.Wait, n, simcuda.OutOfMemory)
		err = roundTrip(d)
		simcuda.FailNth(0, 0, 0)
		if err == nil {
			ok(t, d.Close())
			if n < 10 {
				t.Fatalf("only %d calls were failed", n-1)
			}
			return
		}
		if status.CodeOf(err) != status.Device || !strings.Contains(err.Error(), "CUDA_ERROR_OUT_OF_MEMORY") {
			t.Fatalf("call %d: error is %v", n, err)
		}
		ok(t, d.Close())
		for _, f := range append(simcuda.Report(), simcuda.Leaks()...) {
			t.Errorf("call %d: %s", n, f)
		}
	}
}

// roundTrip makes, uses and frees one of everything, in the order that a cache
// would, and gives back what it has when a step fails.
func roundTrip(d *gpu.CUDA) (err error) {
	s, err := d.NewStream(gpu.NonBlocking)
	if err != nil {
		return err
	}
	defer d.FreeStream(s)
	e, err := d.NewEvent(0)
	if err != nil {
		return err
	}
	defer d.FreeEvent(e)
	host, err := d.AllocHost(4096)
	if err != nil {
		return err
	}
	defer func() {
		// Pinned memory may go only after its copies. The one failure of the test
		// may hit the first Drain.
		if d.Drain(s) != nil {
			_ = d.Drain(s)
		}
		if free := d.FreeHost(host); err == nil {
			err = free
		}
	}()
	a, err := d.Alloc(s, 4096)
	if err != nil {
		return err
	}
	defer d.Free(s, a)
	for _, step := range []func() error{
		func() error { return d.CopyToDevice(s, a, host, 1024) },
		func() error { return d.Fill(s, a+2048, 1, 64) },
		func() error { return d.CopyOnDevice(s, a+1024, a, 512) },
		func() error { return d.CopyToHost(s, host, a, 1024) },
		func() error { return d.Record(e, s) },
		func() error { return d.WaitEvent(s, e) },
		func() error { return d.Await(e) },
		func() error { return d.Drain(s) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func TestEnqueue_AllocatesNothing(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Policy(simcuda.Eager)
	var d gpu.Device = f.d
	rows := gpu.Copy2D{Dst: f.a, Src: f.a + 2048, DstPitch: 64, SrcPitch: 64, Width: 32, Height: 4}
	region := []gpu.Region{{Name: "rows", Addr: uintptr(f.a), Bytes: 64}}
	n := testing.AllocsPerRun(100, func() {
		if d.Check(f.s, region) != nil || d.CopyToDevice(f.s, f.a, ptr(f.host), 64) != nil ||
			d.CopyOnDevice(f.s, f.a+64, f.a, 64) != nil || d.Fill(f.s, f.a, 1, 64) != nil ||
			d.CopyToHost(f.s, ptr(f.host), f.a, 64) != nil || d.CopyRows(f.s, &rows) != nil ||
			d.Record(f.e, f.s) != nil || d.WaitEvent(f.s, f.e) != nil || d.Await(f.e) != nil {
			t.Error("a call failed")
		}
		d.Done(f.e)
		d.Idle(f.s)
	})
	if n != 0 {
		t.Errorf("%v allocations a round, expected 0", n)
	}
	f.close(t)
}

// The driver's odd stream handles look like bad pointers. A stack that grows over
// one, and a collection that sees one, must not mind (handle.go).
func TestHandle_OddValuesSurviveTheCollector(t *testing.T) {
	f := newFixture(t, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		simcuda.SetDevice(t, 0)
		if err := grow(f, 200); err != nil {
			t.Error(err)
		}
		runtime.GC()
		if err := f.d.Drain(gpu.PerThreadStream); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	f.close(t)
}

//go:noinline
func grow(f *fixture, depth int) error {
	var pad [512]byte
	pad[depth] = 1
	if depth > 0 {
		if err := grow(f, depth-1); err != nil {
			return err
		}
	}
	return f.d.Fill(gpu.PerThreadStream, f.a, pad[depth], 64)
}

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
	deadline := gpu.Now() + int64(10*time.Second)
	for len(q.done) < n {
		if !q.parker.Wait(&q.mu, deadline) {
			t.Fatalf("%d of %d jobs done after 10 s", len(q.done), n)
		}
	}
}

func (q *jobs) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.parker.Wake()
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
	if !c.Stop(10 * time.Second) {
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
	if !c.Stop(10 * time.Second) {
		t.Fatal("the committer did not end")
	}
}

func TestCommitter_StopIsBounded(t *testing.T) {
	q := &jobs{done: map[int]error{}}
	hang := make(chan struct{})
	c, err := gpu.StartCommitter(gpu.NewHost(), q, func(*int) error { <-hang; return nil })
	ok(t, err)
	q.put(0)
	q.close()
	// The job may or may not have been taken before close; only a taken one hangs.
	_ = c.Stop(10 * time.Millisecond)
	close(hang)
	if !c.Stop(10 * time.Second) {
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
