package main

import (
	"testing"
	"time"

	"libprefixcache/core/status"
)

// A call that panics leaves its object to nobody: not to later calls, and not to one that
// was already waiting for the lock. It can still be destroyed.
func TestNobodyEntersAnObjectAfterAPanic(t *testing.T) {
	mo, manage := made(pcgo_manager_create)
	sized(mo)
	mo.base_pages = 4
	must0(t, pcgo_manager_create(mo, manage))
	to, table := made(pcgo_table_create)
	sized(to)
	to.flags, to.max_batch, to.row_width, to.num_pages = hostMemory, 1, 4, 4
	must0(t, pcgo_table_create(to, table))
	_, used := made(pcgo_table_create) // by the coordinator
	must0(t, pcgo_table_create(to, used))
	co, context := made(pcgo_context_create)
	sized(co)
	co.flags, co.max_batch = hostMemory, 1
	co.base.table, co.base.num_pages, co.base.max_batch, co.base.capacity_tokens = *used, 4, 1, 4*128
	must0(t, pcgo_context_create(co, context))

	m := handles.at(handle(*manage).index()).object.(*manager)
	b := handles.at(handle(*table).index()).object.(*pageTable)
	x := handles.at(handle(*context).index()).object.(*contextCache)
	defer func() { // memory of a broken object is given up, and stays planned
		x.most.end()
		b.most.end()
		x.tables[0].most.end()
	}()
	for _, c := range []struct {
		name         string
		lock, unlock func()
		empty        func() (mend func())
		call         func() status.Code
		destroy      func() status.Code
	}{
		{"manager", m.mu.Lock, m.mu.Unlock,
			func() func() { was := m.m; m.m = nil; return func() { m.m = was } },
			func() status.Code { return status.Code(pcgo_manager_flush(*manage, nil)) },
			func() status.Code { return status.Code(pcgo_manager_destroy(manage)) }},
		{"table", b.mu.Lock, b.mu.Unlock,
			func() func() { was := b.t; b.t = nil; return func() { b.t = was } },
			func() status.Code { return status.Code(pcgo_table_check(*table)) },
			func() status.Code { return status.Code(pcgo_table_destroy(table)) }},
		{"context", x.mu.Lock, x.mu.Unlock,
			func() func() { was := x.c; x.c = nil; return func() { x.c = was } },
			func() status.Code { return status.Code(pcgo_context_shutdown(*context, 0)) },
			func() status.Code { return status.Code(pcgo_context_destroy(context)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			mend := c.empty()
			caught := caughtPanics.Load()
			c.lock()
			states := make(chan status.Code, 2)
			for range 2 {
				go func() { states <- c.call() }()
			}
			time.Sleep(10 * time.Millisecond)
			c.unlock()
			for range 2 {
				if st := <-states; st != status.Internal {
					t.Errorf("status %d, want %d", st, status.Internal)
				}
			}
			if n := caughtPanics.Load() - caught; n != 1 {
				t.Errorf("%d calls panicked, want 1: the other one was waiting", n)
			}
			mend()
			if st := c.call(); st != status.Internal {
				t.Errorf("afterwards: status %d, want %d", st, status.Internal)
			}
			if st := c.destroy(); st != 0 {
				t.Errorf("destroy: status %d", st)
			}
		})
	}
}

func must0[S ~int32](t *testing.T, st S) {
	t.Helper()
	if st != 0 {
		t.Fatalf("status %d", st)
	}
}
