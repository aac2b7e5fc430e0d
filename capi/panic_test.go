package main

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
)

// panicObject is an object behind the C interface, with a call that it can be asked for
// and a way to have that panic.
type panicObject struct {
	handle       uint64
	lock, unlock func()
	empty        func() (mend func())
	call         func() status.Code
	metrics      func() status.Code // or nil: it is no source of metrics
	destroy      func() status.Code
}

// panicObjects are a coordinator with its manager and its table, and a manager and a
// table of their own.
func panicObjects(t *testing.T) map[string]panicObject {
	mo, manage := made(pcgo_manager_create)
	sized(mo)
	mo.base_pages = 4
	must0(t, pcgo_manager_create(mo, manage))
	to, table := made(pcgo_table_create)
	sized(to)
	to.flags, to.max_batch, to.row_width, to.num_pages = hostMemory, 1, 4, 4
	must0(t, pcgo_table_create(to, table))
	_, used := made(pcgo_table_create)
	must0(t, pcgo_table_create(to, used))
	co, context := made(pcgo_context_create)
	sized(co)
	co.flags, co.max_batch = hostMemory, 1
	co.base.table, co.base.num_pages, co.base.max_batch, co.base.capacity_tokens = *used, 4, 1, 4*128
	must0(t, pcgo_context_create(co, context))
	_, inside := made(pcgo_context_create)
	must0(t, pcgo_context_manager(*context, inside))

	m := handles.at(handle(*manage).index()).object.(*manager)
	n := handles.at(handle(*inside).index()).object.(*manager)
	b := handles.at(handle(*table).index()).object.(*pageTable)
	x := handles.at(handle(*context).index()).object.(*contextCache)
	u := x.tables[0]
	t.Cleanup(func() { // memory of a broken object is given up, and stays planned
		for _, most := range []*memoryPlan{&m.most, &b.most, &x.most, &u.most} {
			most.end()
		}
	})
	none := func() status.Code { return 0 }
	return map[string]panicObject{
		"manager": {uint64(*manage), m.mu.Lock, m.mu.Unlock,
			func() func() { was := m.m; m.m = nil; return func() { m.m = was } },
			func() status.Code { return status.Code(pcgo_manager_flush(*manage, nil)) },
			func() status.Code { return metricsOf(pcgo_metrics_text, uint64(*manage)) },
			func() status.Code { return status.Code(pcgo_manager_destroy(manage)) }},
		"table": {uint64(*table), b.mu.Lock, b.mu.Unlock,
			func() func() { was := b.t; b.t = nil; return func() { b.t = was } },
			func() status.Code { return status.Code(pcgo_table_check(*table)) },
			nil,
			func() status.Code { return status.Code(pcgo_table_destroy(table)) }},
		"context": {uint64(*context), x.mu.Lock, x.mu.Unlock,
			func() func() { was := x.c; x.c = nil; return func() { x.c = was } },
			func() status.Code { return status.Code(pcgo_context_shutdown(*context, 0)) },
			func() status.Code { return metricsOf(pcgo_metrics_text, uint64(*context)) },
			func() status.Code { return status.Code(pcgo_context_destroy(context)) }},
		"manager of the context": {uint64(*inside), x.mu.Lock, x.mu.Unlock,
			func() func() { was := n.m; n.m = nil; return func() { n.m = was } },
			func() status.Code { return status.Code(pcgo_manager_flush(*inside, nil)) },
			func() status.Code { return metricsOf(pcgo_metrics_text, uint64(*inside)) },
			none},
		"table of the context": {uint64(*used), u.mu.Lock, u.mu.Unlock,
			func() func() { was := u.t; u.t = nil; return func() { u.t = was } },
			func() status.Code { return status.Code(pcgo_table_check(*used)) },
			nil,
			func() status.Code { return status.Code(pcgo_table_destroy(used)) }},
	}
}

// metricsOf asks for the metrics of one object.
func metricsOf[S, B any, N ~uint64, R ~int32](text func(*S, N, *B, N, *N) R, cache uint64) status.Code {
	st, _ := metricsPage(text, cache)
	return st
}

// metricsPage asks for the metrics of several.
func metricsPage[S, B any, N ~uint64, R ~int32](text func(*S, N, *B, N, *N) R, caches ...uint64) (status.Code, string) {
	sources, size := make([]S, len(caches)), new(N)
	for i := range caches {
		*(*uint64)(unsafe.Pointer(&sources[i])) = caches[i]
	}
	page := make([]byte, 1<<16)
	st := text(&sources[0], N(len(sources)), (*B)(unsafe.Pointer(&page[0])), N(len(page)), size)
	return status.Code(st), string(page[:*size])
}

// The metrics of a cache beside a broken one are told as ever.
func TestTheMetricsOfABrokenCache(t *testing.T) {
	for _, name := range []string{"manager", "manager of the context", "context"} {
		t.Run(name, func(t *testing.T) {
			objects := panicObjects(t)
			cache := must[*omniCache](t)(newOmni(omni.Config{NumBlocks: 1, BlockSize: 4}))
			h, refused := handles.add(kindOmni, cache)
			if refused != nil {
				t.Fatal(refused)
			}
			whole := uint64(h)
			cache.entry = handles.at(h.index())
			for _, usable := range []string{"1", "0"} {
				st, page := metricsPage(pcgo_metrics_text, objects[name].handle, whole)
				if st != 0 {
					t.Fatalf("status %d", st)
				}
				for _, line := range []string{`usable{cache="context"} ` + usable, `usable{cache="omni"} 1`} {
					if !strings.Contains(page, "\nprefixcache_"+line+"\n") {
						t.Errorf("no %s among\n%s", line, page)
					}
				}
				if told := strings.Contains(page, `records{cache="context"}`); told != (usable == "1") {
					t.Errorf("usable %s: records are told of: %v", usable, told)
				}
				mend := objects[name].empty()
				if st := objects[name].call(); st != status.Internal {
					t.Fatalf("status %d, want %d", st, status.Internal)
				}
				mend()
			}
			if st := destroyed(pcgo_omni_destroy, whole); st != 0 {
				t.Errorf("destroy: status %d", st)
			}
		})
	}
}

// A call that panics leaves its object to nobody: not to later calls, and not to one that
// was already waiting for the lock. It can still be destroyed.
func TestNobodyEntersAnObjectAfterAPanic(t *testing.T) {
	for _, name := range []string{"manager", "table", "context", "manager of the context", "table of the context"} {
		t.Run(name, func(t *testing.T) {
			o := panicObjects(t)[name]
			mend := o.empty()
			caught := caughtPanics.Load()
			o.lock()
			states := make(chan status.Code, 2)
			for range 2 {
				go func() { states <- o.call() }()
			}
			untilAsleep(t, 2)
			o.unlock()
			for range 2 {
				if st := <-states; st != status.Internal {
					t.Errorf("status %d, want %d", st, status.Internal)
				}
			}
			if n := caughtPanics.Load() - caught; n != 1 {
				t.Errorf("%d calls panicked, want 1: the other one was waiting", n)
			}
			mend()
			if st := o.call(); st != status.Internal {
				t.Errorf("afterwards: status %d, want %d", st, status.Internal)
			}
			if st := o.destroy(); st != 0 {
				t.Errorf("destroy: status %d", st)
			}
		})
	}
}

// A coordinator, its manager and its table change the same state: after a panic in one
// of them nobody goes on with it. What has its own state goes on.
func TestAPanicIsKnownToAllWhoShareTheState(t *testing.T) {
	for _, c := range []struct {
		panics  string
		broken  []string
		working []string
	}{
		{"context", []string{"context", "manager of the context", "table of the context"}, []string{"manager", "table"}},
		{"manager of the context", []string{"context", "manager of the context"}, []string{"manager", "table", "table of the context"}},
		{"table of the context", []string{"context", "table of the context"}, []string{"manager", "table", "manager of the context"}},
		{"manager", []string{"manager"}, []string{"context", "manager of the context"}},
	} {
		t.Run(c.panics, func(t *testing.T) {
			objects := panicObjects(t)
			mend := objects[c.panics].empty()
			if st := objects[c.panics].call(); st != status.Internal {
				t.Fatalf("status %d, want %d", st, status.Internal)
			}
			mend()
			caught := caughtPanics.Load()
			for _, name := range c.broken {
				if st := objects[name].call(); st != status.Internal {
					t.Errorf("%s: status %d, want %d", name, st, status.Internal)
				}
			}
			for _, name := range c.working {
				if st := objects[name].call(); st != 0 {
					t.Errorf("%s: status %d", name, st)
				}
			}
			for _, name := range []string{"context", "table of the context", "manager", "table"} {
				if st := objects[name].destroy(); st != 0 {
					t.Errorf("destroy of %s: status %d", name, st)
				}
			}
			if n := caughtPanics.Load() - caught; n != 0 {
				t.Errorf("%d more panics", n)
			}
		})
	}
}

// Metrics and destroy look at an object in the middle of a call: a panic there leaves no
// lock held, either.
func TestAPanicInAPartOfACallLeavesNoLockHeld(t *testing.T) {
	for _, name := range []string{"manager", "manager of the context", "context"} {
		for _, part := range []string{"metrics", "destroy"} {
			if part == "destroy" && name != "context" {
				continue // these do nothing under the lock
			}
			t.Run(name+"/"+part, func(t *testing.T) {
				objects := panicObjects(t)
				o := objects[name]
				mend := o.empty()
				ask := o.metrics
				if part == "destroy" {
					ask = o.destroy
				}
				ended := make(chan status.Code, 3)
				go func() {
					ended <- ask()
					mend()
					ended <- o.call()
					ended <- objects["context"].destroy()
				}()
				for i, want := range []status.Code{status.Internal, status.Internal, 0} {
					select {
					case st := <-ended:
						if st != want {
							t.Errorf("call %d: status %d, want %d", i, st, want)
						}
					case <-time.After(hang):
						t.Fatal("a lock is held")
					}
				}
			})
		}
	}
}

// The lock of an omni cache is core's, and so is the mark: a panic in core, on a thread of
// the library's own, or out here.
func TestNobodyEntersAnOmniCacheAfterAPanic(t *testing.T) {
	for _, c := range []struct {
		name   string
		panics func(o *omniCache, h uint64, armed *atomic.Bool)
	}{
		{"in a call", func(_ *omniCache, h uint64, armed *atomic.Bool) {
			armed.Store(true)
			oneRow(pcgo_omni_save, h)
		}},
		{"before a call", func(_ *omniCache, h uint64, _ *atomic.Bool) { nowhere(pcgo_omni_materialize, h) }},
		{"on the committer's thread", func(o *omniCache, h uint64, armed *atomic.Bool) {
			oneRow(pcgo_omni_save, h)
			o.cache.FailWrite(1)
			armed.Store(true) // the error names the request
			_ = o.cache.StepBegin([]uint64{7}, nil, nil)
		}},
		{"on the warmer's thread", func(o *omniCache, _ uint64, armed *atomic.Bool) {
			armed.Store(true)
			o.warmer.start()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var armed atomic.Bool
			boom := func() {
				if armed.Swap(false) {
					panic("half-changed")
				}
			}
			caught := caughtPanics.Load()
			o := must[*omniCache](t)(newOmni(omni.Config{NumBlocks: 1, BlockSize: 4, Threaded: true, WarmBytes: 1 << 20,
				Preempt: boom, NameOf: func(uint64) string { boom(); return "?" }}))
			h, err := handles.add(kindOmni, o)
			if err != nil {
				t.Fatal(err)
			}
			o.entry = handles.at(h.index())
			must[omni.KeyID](t)(o.cache.OpenKey("k", 8, 0, omni.JoinOnFinish))
			c.panics(o, uint64(h), &armed)
			for end := time.Now().Add(hang); !o.cache.Broken(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("there is no mark")
				}
			}
			if st, page := metricsPage(pcgo_metrics_text, uint64(h)); st != 0 || !strings.Contains(page, `usable{cache="omni"} 0`) {
				t.Errorf("metrics: status %d, %s", st, page)
			}
			if st := oneRow(pcgo_omni_save, uint64(h)); st != status.Internal {
				t.Errorf("a save: status %d, want %d", st, status.Internal)
			}
			if !o.committer.Stop(hang) {
				t.Error("the committer goes on")
			}
			if st := destroyed(pcgo_omni_destroy, uint64(h)); st != 0 {
				t.Errorf("destroy: status %d", st)
			}
			if n := caughtPanics.Load() - caught; n != 1 {
				t.Errorf("%d panics were told, want 1", n)
			}
		})
	}
}

// oneRow saves a row of the first key, of request 7.
func oneRow[H ~uint64, A any, R ~int32](save func(H, *A) R, h uint64) status.Code {
	args := new(A)
	sized(args)
	row, request, count, slot := [8]byte{}, uint64(7), int64(1), int64(1)
	rows := omni.KeyRows{Rows: unsafe.Pointer(&row), Stride: 8}
	type layout struct {
		size, flags      uint32
		stream           uint64
		requests, counts unsafe.Pointer
		numRequests      uint64
		slots            unsafe.Pointer
		numSlots         int64
		rows             unsafe.Pointer
		numRows          uint64
	}
	a := (*layout)(unsafe.Pointer(args))
	a.requests, a.counts, a.numRequests = unsafe.Pointer(&request), unsafe.Pointer(&count), 1
	a.slots, a.numSlots, a.rows, a.numRows = unsafe.Pointer(&slot), 1, unsafe.Pointer(&rows), 1
	return status.Code(save(H(h), args))
}

// nowhere has a call read where there is no memory.
func nowhere[H, S, N ~uint64, B any, R ~int32](materialize func(H, S, *B, N) R, h uint64) {
	var reads *B
	*(*uintptr)(unsafe.Pointer(&reads)) = 8
	materialize(H(h), 1, reads, 1)
}

func destroyed[H ~uint64, R ~int32](destroy func(*H) R, h uint64) status.Code {
	v := H(h)
	return status.Code(destroy(&v))
}

func must0[S ~int32](t *testing.T, st S) {
	t.Helper()
	if st != 0 {
		t.Fatalf("status %d", st)
	}
}
