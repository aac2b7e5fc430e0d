package gpu_test

import (
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"testing"

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
	simcuda.EachSeed(t, seeds(), func(t testing.TB, seed uint64) {
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
			simcuda.EachSeed(t, 20, func(t testing.TB, seed uint64) {
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
