package omni

import (
	"sync"

	"libprefixcache/core/status"
)

// ErrBroken is what every call panics with, once another one has panicked while it
// changed the tables: nobody knows how far that came.
var ErrBroken = status.New(status.Internal, "the cache was left unusable by an internal error in an earlier call")

// meteredMutex is the cache's lock. It counts the calls that found it taken and what
// they waited; one that finds it free pays for nothing but the lock. The counters are
// guarded by the lock itself.
//
// Whoever is to be woken is woken behind the lock: a thread that finds it taken as soon
// as it runs would go to sleep again, and waking one takes as long as the rest of a
// call.
//
// A call that panics gives the lock up like any other, but with a mark: whoever takes
// it next, or takes it again in the middle of a call, ends with ErrBroken.
type meteredMutex struct {
	sync.Mutex
	waiter Waiter
	wait   Waited
	wakes  [numQueues]bool
	any    bool // of wakes
	broken bool
}

// Lock shadows that of the embedded mutex.
func (l *meteredMutex) Lock() {
	if !l.TryLock() {
		l.await()
	}
	if l.broken {
		l.Mutex.Unlock()
		panic(ErrBroken)
	}
}

// relock is Lock for a call that has given the lock up and will give it up once more,
// however it ends.
func (l *meteredMutex) relock() {
	if !l.TryLock() {
		l.await()
	}
	l.verify()
}

// verify ends the call that holds the lock if another one panicked meanwhile.
func (l *meteredMutex) verify() {
	if l.broken {
		panic(ErrBroken)
	}
}

func (l *meteredMutex) await() {
	began := l.waiter.Now()
	l.Mutex.Lock()
	l.wait.add(l.waiter.Now() - began)
}

// Unlock shadows that of the embedded mutex. Deferred, it notices a panic, marks the
// lock before others come in, and passes the panic on.
func (l *meteredMutex) Unlock() {
	if r := recover(); r != nil {
		l.abandon()
		panic(r)
	}
	if !l.any {
		l.Mutex.Unlock()
		return
	}
	l.unlockAndWake()
}

func (l *meteredMutex) unlockAndWake() {
	wakes := l.wakes
	l.wakes, l.any = [numQueues]bool{}, false
	l.Mutex.Unlock()
	for q, wake := range wakes {
		if wake {
			l.waiter.Wake(Queue(q))
		}
	}
}

// abandon gives the lock up for good. Whoever sleeps wakes and finds the mark.
func (l *meteredMutex) abandon() {
	l.broken = true
	for q := range l.wakes {
		l.wake(Queue(q))
	}
	l.unlockAndWake()
}

// wake has a queue woken when the lock is given up.
func (l *meteredMutex) wake(q Queue) { l.wakes[q], l.any = true, true }

// Break is for a panic outside the lock, by which the caller's own state may be
// half-changed: from here on every call ends with ErrBroken.
func (c *Cache) Break() {
	c.mu.Mutex.Lock()
	c.mu.abandon()
}

// Broken says whether a call has panicked.
func (c *Cache) Broken() bool {
	c.mu.Mutex.Lock()
	defer c.mu.Mutex.Unlock()
	return c.mu.broken
}
