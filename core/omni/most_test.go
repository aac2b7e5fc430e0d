package omni

import (
	"testing"
	"unsafe"
)

// The figures are those of docs/sizing.md, worked out by hand.
func TestMostBytesIsTheSizingFormula(t *testing.T) {
	const slots, row = 1 << 20, 64
	const table = 8 * slots             // words
	const links = 8*slots/16 + 1<<20/16 // of blocks of 16, and their bits, rounded up
	for _, c := range []struct {
		name  string
		cfg   Config
		sched Schedule
		bytes int64
	}{
		{"eager", Config{}, JoinNextStep, 0},
		{"threaded, steps too small to be staged", Config{Threaded: true}, JoinNextStep, 0},
		{"threaded", Config{Threaded: true, StagingCapacity: 1 << 16, StagingDepth: 3}, JoinNextStep, 3 << 16 * row},
		{"deferred, the budget is the limit", Config{BudgetBytes: 1 << 20}, JoinOnFinish, 4*slots + 1<<20/row*(row+24)},
		{"deferred, the slots are the limit", Config{BudgetBytes: 1 << 40}, JoinOnFinish, 4*slots + slots*(row+24)},
	} {
		c.cfg.NumBlocks, c.cfg.BlockSize = slots/16, 16
		r := newRig(t, c.cfg)
		if got := r.c.MostBytes(); got != 0 {
			t.Errorf("%s: %d bytes without a key", c.name, got)
		}
		for i, name := range []string{"one", "two"} {
			if _, err := r.c.OpenKey(name, row, 0, c.sched); err != nil {
				t.Fatal(err)
			}
			keys := int64(i + 1)
			mirror := keys * (slots*row + table)
			want := mirror + keys*c.bytes
			if c.cfg.BudgetBytes == 1<<20 { // one budget for all
				want = mirror + keys*4*slots + 1<<20/row*(row+24)
			}
			if got := r.c.MostBytes(); got < want || got > want+keys*2*links {
				t.Errorf("%s, %d keys: %d bytes, expected %d and up to %d for links", c.name, keys, got, want, keys*2*links)
			}
		}
	}
	if rowBooks != unsafe.Sizeof(rowMeta{}) {
		t.Errorf("rowMeta has %d bytes", unsafe.Sizeof(rowMeta{}))
	}
}

// Options that multiply to more than a number holds give a large figure, not a negative one.
func TestMostBytesOfAbsurdOptions(t *testing.T) {
	r := newRig(t, Config{Threaded: true, StagingCapacity: maxStepRows, StagingDepth: maxDepth, BudgetBytes: 1 << 61})
	for _, s := range []Schedule{JoinNextStep, JoinOnFinish} {
		if _, err := r.c.OpenKey([]string{"n", "d"}[s], maxRowBytes, 0, s); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.c.MostBytes(); got != mostBytes {
		t.Errorf("%d bytes, expected %d", got, int64(mostBytes))
	}
}
