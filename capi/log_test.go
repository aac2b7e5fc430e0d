package main

import "testing"

// The first line of a subject comes at once, then one an interval with the number of
// those that were left out; subjects do not hide one another.
func TestLimiter(t *testing.T) {
	var l limiter
	for _, step := range []struct {
		at      int64
		about   subject
		ok      bool
		leftOut uint64
	}{
		{5, aboutFlush, true, 0},
		{6, aboutFlush, false, 0},
		{7, aboutStaging, true, 0},
		{4 + logInterval, aboutFlush, false, 0},
		{5 + logInterval, aboutFlush, true, 2},
		{6 + logInterval, aboutStaging, false, 0},
		{5 + 2*logInterval, aboutFlush, true, 0},
		{7 + 9*logInterval, aboutStaging, true, 1},
	} {
		if ok, left := l.admit(step.about, step.at); ok != step.ok || left != step.leftOut {
			t.Fatalf("subject %d at %d: %v with %d left out, want %v with %d", step.about, step.at, ok, left, step.ok, step.leftOut)
		}
	}
	var other limiter // of another cache
	if ok, _ := other.admit(aboutFlush, 6); !ok {
		t.Fatal("one cache hides another")
	}
}
