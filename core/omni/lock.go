package omni

import "sync"

// meteredMutex is the cache's lock. It counts the calls that found it taken and what
// they waited; one that finds it free pays for nothing but the lock. The counters are
// guarded by the lock itself.
type meteredMutex struct {
	sync.Mutex
	waiter Waiter
	wait   Waited
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
