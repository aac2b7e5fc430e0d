package main

import (
	"testing"
	"time"
)

// A call that finds the lock taken is counted with what it waited, one that finds it
// free is not.
func TestMeteredMutexCountsWhoWaits(t *testing.T) {
	var mu meteredMutex
	enter := func() {
		mu.Lock()
		defer mu.Unlock()
	}
	for range 100 {
		enter()
	}
	if mu.waits != 0 || mu.nanoseconds != 0 {
		t.Fatalf("%d waits of %d ns, and nobody was in the way", mu.waits, mu.nanoseconds)
	}
	const held = 20 * time.Millisecond
	mu.Lock()
	asked := make(chan time.Time)
	done := make(chan struct{})
	go func() {
		asked <- time.Now()
		enter()
		close(done)
	}()
	began := <-asked
	time.Sleep(held)
	mu.Unlock()
	<-done
	most := time.Since(began)
	if got := time.Duration(mu.nanoseconds); mu.waits != 1 || got < held/2 || got > most {
		t.Fatalf("%d waits of %v, want one of %v to %v", mu.waits, got, held/2, most)
	}
}
