package main

import (
	"testing"
	"time"

	"libprefixcache/core/status"
)

// A call that panics leaves its manager to nobody: not to later calls, and not to one that
// was already waiting for the lock.
func TestNobodyEntersAManagerAfterAPanic(t *testing.T) {
	o, h := made(pcgo_manager_create)
	sized(o)
	o.base_pages = 4
	if st := pcgo_manager_create(o, h); st != 0 {
		t.Fatalf("create: status %d", st)
	}
	m := handles.at(handle(*h).index()).object.(*manager)
	core := m.m
	m.m = nil
	caught := caughtPanics.Load()
	m.mu.Lock()
	states := make(chan status.Code, 2)
	for range 2 {
		go func() { states <- status.Code(pcgo_manager_flush(*h, nil)) }()
	}
	time.Sleep(10 * time.Millisecond)
	m.mu.Unlock()
	for range 2 {
		if st := <-states; st != status.Internal {
			t.Errorf("flush: status %d, want %d", st, status.Internal)
		}
	}
	if n := caughtPanics.Load() - caught; n != 1 {
		t.Errorf("%d calls panicked, want 1: the other one was waiting", n)
	}
	m.m = core
	if st := status.Code(pcgo_manager_flush(*h, nil)); st != status.Internal {
		t.Errorf("flush afterwards: status %d, want %d", st, status.Internal)
	}
	if st := pcgo_manager_destroy(h); st != 0 || *h != 0 {
		t.Errorf("destroy: status %d", st)
	}
}
