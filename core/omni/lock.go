package omni

import "sync"

// meteredMutex is the cache's lock. It counts the calls that found it taken and what
// they waited; one that finds it free pays for nothing but the lock. The counters are
// guarded by the lock itself.
//
// Whoever is to be woken is woken behind the lock: a thread that finds it taken as soon
// as it runs would go to sleep again, and waking one takes as long as the rest of a
// call.
type meteredMutex struct {
	sync.Mutex
	waiter Waiter
	wait   Waited
	wakes  [numQueues]bool
	any    bool // of wakes
}

// Lock shadows that of the embedded mutex.
func (l *meteredMutex) Lock() {
	if !l.TryLock() {
		l.await()
	}
}

func (l *meteredMutex) await() {
	began := l.waiter.Now()
	l.Mutex.Lock()
	l.wait.add(l.waiter.Now() - began)
}

// Unlock shadows that of the embedded mutex.
func (l *meteredMutex) Unlock() {
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

// wake has a queue woken when the lock is given up.
func (l *meteredMutex) wake(q Queue) { l.wakes[q], l.any = true, true }
