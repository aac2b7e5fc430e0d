package main

import (
	"sync"
	"sync/atomic"
	"time"
)

// warmer makes the mirrors of a cache present in the background. It runs from the
// opening of a key until there is nothing left to do.
type warmer struct {
	cache *omniCache

	mu      sync.Mutex
	running sync.WaitGroup
	active  bool
	again   bool // a key was opened meanwhile
	stopped atomic.Bool
}

const (
	warmPiece = 2 << 20 // one huge page
	warmShare = 10      // of a core: 1 / warmShare
	warmRetry = time.Millisecond
)

// stop ends it for good: memory is short.
func (w *warmer) stop() { w.stopped.Store(true) }

func (w *warmer) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = true
	if !w.active {
		w.active = true
		w.running.Add(1)
		go w.run()
	}
}

// run sleeps nine times as long as it works: whoever serves requests meanwhile keeps
// the memory bus.
func (w *warmer) run() {
	defer w.running.Done()
	for w.next() {
		for done := false; !done && !w.stopped.Load(); {
			var n int64
			began := time.Now()
			n, done = w.cache.warm(warmPiece)
			switch {
			case done:
			case n == 0: // beside an engine call
				time.Sleep(warmRetry)
			default:
				time.Sleep((warmShare - 1) * time.Since(began))
			}
		}
	}
}

// next says whether there may be something to do, and ends the run otherwise.
func (w *warmer) next() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active, w.again = w.again, false
	return w.active
}

// wait returns when no piece is under way; the cache was shut down.
func (w *warmer) wait() { w.running.Wait() }
