package simulation

import (
	"iter"
	"math"
	"sync"

	"libprefixcache/core/omni"
)

// thread is one simulated thread of a host: a coroutine that runs one call at a time
// and gives control back wherever the cache's lock is free. Which thread goes on is
// the scheduler's choice alone, so a run of many threads is as repeatable as one.
//
//	         start                pause (Preempt, device)
//	[idle] ─────────▶ [running] ◀──────────────────────────▶ [ready]
//	   ▲                  │  ▲                resume
//	   └──────────────────┘  └──resume── [parked: queue, deadline]
//	        the call ends                 woken, or the clock reached the deadline
type thread struct {
	w     *omniWorld
	name  string
	next  func() (struct{}, bool)
	yield func(struct{}) bool
	call  func()

	state    threadState
	queue    omni.Queue
	deadline int64
	woken    bool
	timedOut bool // in its present call: some wait ended by the clock
	page     int  // landing that it waits for, -1 = none
}

type threadState uint8

const (
	idle   threadState = iota
	ready              // may go on
	parked             // sleeps in the cache
	waits              // for the device
)

func newThread(w *omniWorld, name string) *thread {
	t := &thread{w: w, name: name, page: -1}
	t.next, _ = iter.Pull(func(yield func(struct{}) bool) {
		for t.yield = yield; yield(struct{}{}); {
			t.call()
			t.state = idle
		}
	})
	t.next() // to its first yield
	return t
}

// start begins a call and runs it until it gives control back.
func (t *thread) start(call func()) {
	t.call, t.timedOut = call, false
	t.resume()
}

func (t *thread) resume() {
	t.state = ready
	before := t.w.running
	t.w.running = t
	t.next()
	t.w.running = before
}

// pause gives control back; the thread goes on when it is resumed.
func (t *thread) pause(s threadState) {
	t.state = s
	t.yield(struct{}{})
}

// runnable says whether the thread can go on now.
func (t *thread) runnable() bool {
	switch t.state {
	case ready:
		return true
	case parked:
		return t.woken || t.w.now >= t.deadline
	case waits:
		return t.w.dev.hasLanded(t.page)
	}
	return false
}

// simWaiter is the cache's clock and the place where its callers sleep.
type simWaiter struct{ w *omniWorld }

func (s simWaiter) Now() int64 { return s.w.now }

func (s simWaiter) Wait(mu *sync.Mutex, q omni.Queue, deadline int64) bool {
	t := s.w.running
	mu.Unlock()
	t.queue, t.deadline, t.woken = q, deadline, false
	t.pause(parked)
	mu.Lock()
	t.timedOut = t.timedOut || !t.woken
	return t.woken
}

func (s simWaiter) Wake(q omni.Queue) {
	for _, t := range s.w.threads {
		if t.state == parked && t.queue == q {
			t.woken = true
		}
	}
}

// nextDeadline is when the clock alone will let somebody go on.
func (w *omniWorld) nextDeadline() int64 {
	next := int64(math.MaxInt64)
	for _, t := range w.threads {
		if t.state == parked && !t.woken {
			next = min(next, t.deadline)
		}
	}
	return next
}
