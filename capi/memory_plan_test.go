package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Each cache is told once that all together pass the limit, whichever is to blame; a cache
// that is gone does not count.
func TestACacheIsToldOnceThatThePlansPassTheLimit(t *testing.T) {
	const MiB = 1 << 20
	root := system(t, map[string]string{"/proc/meminfo": "MemTotal: 102400 kB\n"}) // 100 MiB
	var first, second, third memoryPlan
	defer func() {
		if first.end(); planned.Load() != 0 {
			t.Errorf("%d bytes are planned by nobody", planned.Load())
		}
	}()
	for i, step := range []struct {
		plan  *memoryPlan
		bytes int64 // -1: the end
		total int64
		over  bool
	}{
		{&first, 60 * MiB, 60 * MiB, false},
		{&first, 100 * MiB, 100 * MiB, false}, // a key more; just as much as there is
		{&second, MiB, 101 * MiB, true},
		{&second, 2 * MiB, 102 * MiB, false},
		{&third, 0, 102 * MiB, false}, // no key yet
		{&first, 101 * MiB, 103 * MiB, true},
		{&second, -1, 101 * MiB, false},
		{&first, 70 * MiB, 70 * MiB, false},
		{&third, 31 * MiB, 101 * MiB, true},
		{&third, -1, 70 * MiB, false},
	} {
		if step.bytes < 0 {
			step.plan.end()
			if planned.Load() != step.total {
				t.Errorf("step %d: %d bytes planned, expected %d", i, planned.Load(), step.total)
			}
			continue
		}
		total := step.plan.set(step.bytes)
		limit, over := step.plan.passes(total, root)
		if total != step.total || over != step.over || over && limit.bytes != 100*MiB {
			t.Errorf("step %d: %d bytes planned, limit %d passed: %v, expected %d and %v", i, total, limit.bytes, over, step.total, step.over)
		}
	}
}

// A system that says nothing limits nothing, and small plans are not worth a question.
func TestPlansWithoutALimit(t *testing.T) {
	var p, q, r memoryPlan
	if _, over := p.passes(p.set(1<<40), system(t, nil)); over {
		t.Error("a limit out of nowhere")
	}
	p.end()
	root := system(t, map[string]string{"/proc/meminfo": "MemTotal: 1 kB\n"})
	if _, over := q.passes(q.set(leastPlanned-1), root); over {
		t.Error("a small plan was compared")
	}
	if _, over := q.passes(q.set(leastPlanned), root); !over {
		t.Error("a plan was not compared")
	}
	q.end()
	// The next cache reads again what is allowed.
	if err := os.WriteFile(filepath.Join(root, "proc/meminfo"), []byte("MemTotal: 100000 kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, over := r.passes(r.set(leastPlanned), root); over {
		t.Error("the limit of before counts")
	}
	r.end()
}
