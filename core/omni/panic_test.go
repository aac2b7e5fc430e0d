package omni

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// ending runs a call and says how it ended: with its own panic, refused, or otherwise.
func ending(call func()) (how string) {
	defer func() {
		switch r := recover(); {
		case r == nil:
		case r == any(ErrBroken):
			how = "refused"
		default:
			how = "panicked"
		}
	}()
	call()
	return "returned"
}

// hang is how long something may take that takes no time: nothing but a fault takes longer.
const hang = time.Minute

func until(t *testing.T, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to that")
		}
	}
}

// asleepForALock is how many goroutines sleep until a mutex is free.
func asleepForALock() int {
	stacks := make([]byte, 1<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(" [sync.Mutex.Lock"))
}

// A call that panics leaves its cache to nobody: not to later calls, not to one that was
// waiting for the lock, and not to one that had given the lock up meanwhile.
func TestNobodyGoesOnAfterAPanic(t *testing.T) {
	panics := func(r *rig) string { // as any call that panics does
		return ending(func() {
			r.c.mu.Lock()
			defer r.c.mu.Unlock()
			panic("half-changed")
		})
	}
	// rest blocks whoever comes to a preemption point next.
	rest := func(stop *atomic.Pointer[func()]) (there, goOn chan struct{}) {
		there, goOn = make(chan struct{}), make(chan struct{})
		f := func() { close(there); <-goOn }
		stop.Store(&f)
		return there, goOn
	}
	for _, p := range []struct {
		name   string
		cfg    Config
		asleep bool // the call sleeps in a wait, and is not at a preemption point
		before func(r *rig) uint64
		call   func(r *rig, step uint64)
	}{
		{"a save copies rows", Config{}, false,
			func(*rig) uint64 { return 0 },
			func(r *rig, _ uint64) { r.save(map[string]uint64{"h": 2}, chunk{1, span(4, 6)}) }},
		{"a step begins and writes", Config{}, false,
			func(r *rig) uint64 { r.discard(r.save(map[string]uint64{"d": 1}, chunk{1, span(0, 4)})); return 0 },
			func(r *rig, _ uint64) { r.begin([]uint64{1}) }},
		{"rows are gathered", Config{}, false,
			func(r *rig) uint64 {
				r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 4)}))
				r.begin(nil, hitOn(2, 4, 0))
				return r.save(map[string]uint64{"h": 5}, chunk{2, span(8, 9)})
			},
			func(r *rig, step uint64) { r.read(step, "h") }},
		{"a save waits for a staging page", Config{Threaded: true, StagingDepth: 1}, true,
			func(r *rig) uint64 { r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}); return 0 },
			func(r *rig, _ uint64) { r.save(map[string]uint64{"h": 2}, chunk{1, span(1, 2)}) }},
		{"the committer waits for a job", Config{Threaded: true}, true,
			func(*rig) uint64 { return 0 },
			func(r *rig, _ uint64) { r.c.AwaitJob() }},
	} {
		t.Run(p.name, func(t *testing.T) {
			var stop atomic.Pointer[func()]
			w := newCondWaiter()
			p.cfg.Waiter = w
			p.cfg.Preempt = func() {
				if f := stop.Swap(nil); f != nil {
					(*f)()
				}
			}
			r := newRig(t, p.cfg)
			r.begin(nil, arrive(1)...)
			step := p.before(r)
			var there, goOn chan struct{}
			if !p.asleep {
				there, goOn = rest(&stop)
			}
			ended := make(chan string)
			go func() { ended <- ending(func() { p.call(r, step) }) }()
			if p.asleep {
				until(t, func() bool {
					r.c.mu.Mutex.Lock()
					defer r.c.mu.Mutex.Unlock()
					return slices.Max(r.c.parked[:]) > 0
				})
			} else {
				<-there
			}
			// Two more wait for the lock; the first of them panics.
			r.c.mu.Mutex.Lock()
			others := make(chan string)
			for range 2 {
				go func() { others <- panics(r) }()
			}
			until(t, func() bool { return asleepForALock() == 2 })
			r.c.mu.Mutex.Unlock()
			if a, b := <-others, <-others; a == b || a == "returned" || b == "returned" {
				t.Errorf("of two that waited for the lock one %s, one %s; expected the first to panic and the second to be refused", a, b)
			}
			if goOn != nil {
				close(goOn)
			}
			select {
			case how := <-ended:
				if how != "refused" {
					t.Errorf("the call beside it %s", how)
				}
			case <-time.After(hang):
				t.Fatal("the call beside it still waits")
			}
			if how := ending(func() { r.c.Stats() }); how != "refused" {
				t.Errorf("afterwards a call %s", how)
			}
			if !r.c.Broken() { // and the lock is free
				t.Error("there is no mark")
			}
		})
	}
}

// Whoever catches the panic sees its own value.
func TestAPanicIsPassedOnAsItWas(t *testing.T) {
	r := newRig(t, Config{})
	cause := errors.New("half-changed")
	defer func() {
		if p := recover(); p != any(cause) {
			t.Errorf("%v, want %v", p, cause)
		}
	}()
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	panic(cause)
}

// What is outside the lock may panic too: the embedding layer says so.
func TestBreakRefusesWhoComesNext(t *testing.T) {
	r := newRig(t, Config{})
	if r.c.Broken() {
		t.Error("broken from the start")
	}
	r.c.Break()
	r.c.Break()
	if how := ending(func() { _ = r.c.Discard(1) }); how != "refused" || !r.c.Broken() {
		t.Errorf("a call %s; broken: %v", how, r.c.Broken())
	}
}
