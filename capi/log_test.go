package main

import (
	"slices"
	"testing"
)

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

// A count that rises one by one is told at 1, 2, 4, 8, ..., and one that leaps over a
// power of two is told as well.
func TestDoubled(t *testing.T) {
	var told []int64
	for n := int64(1); n <= 20; n++ {
		if doubled(n-1, n) {
			told = append(told, n)
		}
	}
	if want := []int64{1, 2, 4, 8, 16}; !slices.Equal(told, want) {
		t.Errorf("told at %v, want %v", told, want)
	}
	if !doubled(3, 9) || doubled(9, 15) || doubled(5, 5) {
		t.Error("leaps: want 3 to 9 told, 9 to 15 and 5 to 5 not")
	}
}
