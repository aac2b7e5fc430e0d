package simcuda

import "testing"

// EachSeed runs f for many seeds as one test; cleanups run after each seed.
func EachSeed(t *testing.T, n uint64, f func(t testing.TB, seed uint64)) {
	for seed := range n {
		s := &scope{TB: t}
		f(s, seed)
		s.end()
		if t.Failed() {
			t.Fatalf("failed at seed %d", seed)
		}
	}
}

// scope is a testing.TB with cleanups of its own.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for len(s.cleanups) > 0 {
		f := s.cleanups[len(s.cleanups)-1]
		s.cleanups = s.cleanups[:len(s.cleanups)-1]
		f()
	}
}
