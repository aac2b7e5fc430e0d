package omni

import (
	"math"
	"sync"
)

// Queue says what a parked thread waits for.
type Queue uint8

const (
	// Callers wait for a write, a staging page, or running calls to end.
	Callers Queue = iota
	// Committer waits for a job.
	Committer
	numQueues
)

// NoDeadline is a deadline that never passes.
const NoDeadline = math.MaxInt64

// Waiter parks and wakes threads for the cache, and is its only clock. The
// embedding layer supplies it, so that core starts no threads and a simulator
// can decide who runs next.
//
// Now and Wake may be called at any time. Wake wakes everybody parked on a queue; what
// they wait for was changed under the cache's lock, which may be given up by then.
// Wait is called with that lock held, gives it up while it is parked and holds it
// again when it returns; it returns true after a Wake of its queue (or for no reason
// at all: callers check again), and false once the clock has reached deadline.
type Waiter interface {
	Now() int64
	Wait(mu *sync.Mutex, q Queue, deadline int64) bool
	Wake(q Queue)
}

// noWaiter is the default: nobody else runs, so waiting cannot help.
type noWaiter struct{}

func (noWaiter) Now() int64                          { return 0 }
func (noWaiter) Wait(*sync.Mutex, Queue, int64) bool { return false }
func (noWaiter) Wake(Queue)                          {}

// deadline is the end of every wait of one call (O-31). Caller holds mu.
func (c *Cache) deadline() int64 {
	if c.cfg.Timeout < 0 {
		return math.MinInt64
	}
	return c.cfg.Waiter.Now() + c.cfg.Timeout
}

// wait parks once. It counts the parked, so that wake costs a comparison when
// nobody is. Caller holds mu, which is given up meanwhile.
func (c *Cache) wait(q Queue, deadline int64) bool {
	if deadline == math.MinInt64 {
		return false
	}
	if c.mu.any {
		// Whoever is to be woken is what this thread is going to wait for.
		c.mu.Unlock()
		c.mu.relock()
		return true
	}
	c.parked[q]++
	ok := c.cfg.Waiter.Wait(&c.mu.Mutex, q, deadline)
	c.parked[q]--
	c.mu.verify()
	return ok
}

// wake tells everybody on q to look again, as soon as mu is given up. Caller holds mu.
func (c *Cache) wake(q Queue) {
	if c.parked[q] > 0 {
		c.mu.wake(q)
	}
}
