package main

import (
	"bytes"
	"runtime"
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
	mu.Lock()
	done := make(chan struct{})
	began := time.Now()
	go func() {
		enter()
		close(done)
	}()
	untilAsleep(t, 1)
	asleep := time.Now()
	time.Sleep(2 * time.Millisecond)
	least := time.Since(asleep)
	mu.Unlock()
	<-done
	most := time.Since(began)
	if got := time.Duration(mu.nanoseconds); mu.waits != 1 || got < least || got > most {
		t.Fatalf("%d waits of %v, want one of %v to %v", mu.waits, got, least, most)
	}
}

// hang is how long something may take that takes no time: nothing but a fault takes longer.
const hang = time.Minute

// untilAsleep returns when n goroutines sleep until a mutex is free, however long they take
// to get there.
func untilAsleep(t *testing.T, n int) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for end := time.Now().Add(hang); ; time.Sleep(time.Millisecond) {
		text := stacks[:runtime.Stack(stacks, true)]
		if bytes.Count(text, []byte(" [sync.Mutex.Lock")) >= n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no %d goroutines wait for a lock:\n%s", n, text)
		}
	}
}
