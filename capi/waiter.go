package main

import (
	"sync"
	"time"

	"libprefixcache/core/omni"
)

// waiter parks threads for an omni cache and is its clock. One per cache; all
// methods run under the cache's lock.
//
// Each queue has one channel that a Wake closes, so that everybody parked on it
// looks again. It is made only when somebody parks: a cache on which nobody
// waits pays nothing.
type waiter struct {
	wake [2]chan struct{}
}

var started = time.Now()

// Now is monotonic.
func (w *waiter) Now() int64 { return int64(time.Since(started)) }

func (w *waiter) Wait(mu *sync.Mutex, q omni.Queue, deadline int64) bool {
	if w.wake[q] == nil {
		w.wake[q] = make(chan struct{})
	}
	woken := w.wake[q]
	mu.Unlock()
	defer mu.Lock()
	if deadline == omni.NoDeadline {
		<-woken
		return true
	}
	timer := time.NewTimer(time.Duration(deadline - w.Now()))
	defer timer.Stop()
	select {
	case <-woken:
		return true
	case <-timer.C:
		return false
	}
}

func (w *waiter) Wake(q omni.Queue) {
	if w.wake[q] != nil {
		close(w.wake[q])
		w.wake[q] = nil
	}
}
