package main

import (
	"sync"
	"sync/atomic"

	"libprefixcache/gpu"
)

// markedMutex is a lock with a mark on what it guards: a panic left that half-changed,
// and whoever takes the lock lets it go again. Objects that share what they change
// share the lock, and with it the mark. The mark is guarded by the lock itself.
type markedMutex struct {
	sync.Mutex
	broken bool
}

// meteredMutex is the lock of a context object. It counts the calls that found it
// taken and what they waited; the counters are guarded by the lock itself.
type meteredMutex struct {
	markedMutex
	waits, nanoseconds uint64
}

// Lock shadows that of the embedded mutex.
func (l *meteredMutex) Lock() {
	if !l.TryLock() {
		l.await()
	}
}

func (l *meteredMutex) await() {
	began := gpu.Now()
	l.Mutex.Lock()
	l.waits++
	l.nanoseconds += uint64(gpu.Now() - began)
}

// sharedWaits counts waits that are made without the lock, or read under another one.
type sharedWaits struct{ count, nanoseconds atomic.Uint64 }

func (w *sharedWaits) add(ns int64) {
	w.count.Add(1)
	w.nanoseconds.Add(uint64(ns))
}
