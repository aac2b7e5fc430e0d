package main

/*
#include "shim.h"
*/
import "C"

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"libprefixcache/core/coordinator"
	"libprefixcache/core/status"
	"libprefixcache/gpu"
)

// contextCache is what a handle of a coordinator stands for: core's state
// machine, and what carries out its commands.
type contextCache struct {
	mu      meteredMutex // serialises every call; shared with the manager's handle
	c       *coordinator.Coordinator
	manager handle
	active  atomic.Int64 // requests; read by the tables without mu
	closing bool         // destroy has begun

	dev    gpu.Device
	stream gpu.Stream
	thread int // that enqueues, where each thread has a stream of its own; 0: none yet
	tables [2]*pageTable
	store  snapshotStore
	most   memoryPlan

	// The list in hand: commands[:count], of which next are done. handed of them
	// are with the host, waiting for its report.
	commands            []coordinator.Command
	count, next, handed int

	pinned        unsafe.Pointer // per request: lengths, slots, mapping
	maxBatch      int
	deviceMapping []uint64 // by core's place of the request

	pinnedBytes int64 // of pinned, where it is page-locked
	syncs       sharedWaits
	log         limiter
	entry       *entry // of the coordinator's handle
	told        degradations

	args     admissionArgs
	advances []coordinator.Advance
}

// enterContext locks the coordinator of a handle, and its tables; leave undoes it.
func enterContext(h C.pc_handle) (*contextCache, *status.Error) {
	e, err := handles.enter(handle(h), kindContext, "context")
	if err != nil {
		return nil, err
	}
	x := e.object.(*contextCache)
	x.lock()
	if x.broken() {
		x.unlock()
		e.leave()
		return nil, leftBroken(kindContext, "context")
	}
	return x, nil
}

func (x *contextCache) lock() {
	x.mu.Lock()
	for _, t := range x.tables { // a step changes rows that others may be reading
		if t != nil {
			t.mu.Lock()
		}
	}
}

// broken says whether a panic left the coordinator, its manager or a table half-changed.
// The caller holds the locks.
func (x *contextCache) broken() bool {
	broken := x.mu.broken
	for _, t := range x.tables {
		broken = broken || t != nil && t.mu.broken
	}
	return broken
}

// giveUp marks the coordinator, and its tables, whose rows a step was changing. The
// caller holds the locks.
func (x *contextCache) giveUp() {
	x.mu.broken = true
	for _, t := range x.tables {
		if t != nil {
			t.mu.broken = true
		}
	}
}

func (x *contextCache) unlock() {
	was, is := x.told, x.told
	if !x.broken() { // else nobody knows what core would say
		if x.active.Store(int64(x.c.Active())); x.c.Active() == 0 {
			x.thread = 0
		}
		is = x.degradations()
		x.told = is
	}
	for _, t := range x.tables {
		if t != nil {
			t.mu.Unlock()
		}
	}
	x.mu.Unlock()
	if was != is {
		x.tell(was, is)
	}
}

// leave is deferred by every export that enters: unlock and guard in one, as for a manager.
func (x *contextCache) leave(st *C.pc_status) {
	r := recover()
	if x != nil {
		if r != nil {
			x.giveUp() // before others come in
		}
		x.unlock()
		x.entry.leave()
	}
	if r != nil {
		caught(st, r) // without the lock: the host's log may call back
	}
}

// exit is leave for a part of a call: a panic is marked and passed on.
func (x *contextCache) exit() {
	if r := recover(); r != nil {
		x.giveUp()
		defer panic(r)
	}
	x.unlock()
	x.entry.leave()
}

var processStart = time.Now()

// clock feeds the planning time counter: core has no clock of its own.
func clock() int64 { return int64(time.Since(processStart)) }

//export pcgo_context_create
func pcgo_context_create(options *C.pc_context_options, context *C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	if err := out("context", context); err != nil {
		return fail(err)
	}
	x := &contextCache{}
	cfg, err := x.config(options)
	if err == nil {
		err = x.open(options, cfg)
	}
	if err != nil {
		_ = x.close()
		if dev, is := x.dev.(*gpu.CUDA); is {
			dev.PutBack()
		}
		return fail(err)
	}
	h, herr := handles.add(kindContext, x)
	if herr == nil {
		x.entry = handles.at(h.index())
		m := newManager(&x.mu, x.c.Manager())
		m.owned = true
		if x.manager, herr = m.open(); herr != nil {
			_, _ = handles.remove(h, kindContext, "context")
		}
	}
	if herr != nil {
		_ = x.close()
		return fail(herr)
	}
	if !tellMemory(&x.most, x.mostBytes(), "context cache", lowerPages) {
		x.c.Manager().Touch()
	}
	*context = C.pc_handle(h)
	return C.PC_OK
}

// open makes core's object, then everything on the device.
func (x *contextCache) open(options *C.pc_context_options, cfg *coordinator.Config) (err error) {
	if x.c, err = coordinator.New(*cfg); err != nil {
		return err
	}
	final := x.c.Config()
	x.maxBatch = int(final.MaxBatch)
	x.commands = make([]coordinator.Command, x.c.MaxCommands())
	x.deviceMapping = make([]uint64, final.MaxRequests)
	if x.dev, err = openDevice(options.flags, gpu.Stream(options.stream)); err != nil {
		return err
	}
	for _, t := range x.tables {
		if t != nil && t.dev.IsHost() != x.dev.IsHost() {
			return status.New(status.InvalidArgument, "options: a page table is on %s, the coordinator on %s, expected one PC_HOST_MEMORY for both", t.dev.Name(), x.dev.Name())
		}
		if t != nil && t.dev.Context() != x.dev.Context() {
			return status.New(status.InvalidArgument, "options: a page table was made in CUDA context %#x, the coordinator is in %#x, expected one context for both", uintptr(t.dev.Context()), uintptr(x.dev.Context()))
		}
	}
	x.stream = streamOn(x.dev, options.stream)
	bytes := int64(payloads*x.maxBatch*int(final.MaxRequests)) * 4
	if x.pinned, err = x.dev.AllocHost(bytes); err != nil {
		return err
	}
	if !x.dev.IsHost() {
		x.pinnedBytes = bytes
	}
	return x.store.open(x.dev, x.c)
}

// mostBytes leaves the page tables out, which are objects of their own.
func (x *contextCache) mostBytes() int64 {
	cfg := x.c.Manager().Config()
	n := cfg.MostBytes()
	if x.dev.IsHost() {
		n += x.store.bytes
	}
	return n
}

// ownThread refuses a thread that means another stream than the one that was enqueued on,
// since each has a stream of its own: neither its work nor its waits are ordered with that.
func (x *contextCache) ownThread() error {
	if x.thread != 0 && x.thread != syscall.Gettid() {
		return status.New(status.InvalidArgument, "context: its stream is %d, of which each thread has its own, and thread %d works on it; expected that thread, or a stream that was created", uintptr(x.stream), x.thread)
	}
	return nil
}

// admit refuses a thread, or a stream, that nothing can be enqueued on. Of threads with
// streams of their own the first one works on it until no request is live.
func (x *contextCache) admit(regions ...gpu.Region) error {
	if err := x.ownThread(); err != nil {
		return err
	}
	if err := x.dev.Check(x.stream, regions); err != nil {
		return err
	}
	if x.stream == gpu.PerThreadStream {
		x.thread = syscall.Gettid()
	}
	return nil
}

// pendingHere is ownThread for an end of a request that work of the device is pending of.
func (x *contextCache) pendingHere(h coordinator.Handle) error {
	err := x.ownThread()
	if err != nil {
		if info, unknown := x.c.Request(h); unknown != nil || !info.Pending {
			return nil // core has the better error
		}
	}
	return err
}

// close gives back what open got so far.
func (x *contextCache) close() error {
	x.most.end()
	for _, t := range x.tables {
		if t == nil {
			continue
		}
		t.mu.Lock()
		if t.user == x {
			t.user = nil
		}
		t.mu.Unlock()
	}
	if x.dev == nil {
		return nil
	}
	return giveBack("context cache", x.dev, func(g *giving) {
		x.store.close(g, x.dev)
		if x.pinned != nil {
			g.back(func() error { return x.dev.FreeHost(x.pinned) })
		}
		g.back(x.dev.Close)
	})
}

//export pcgo_context_destroy
func pcgo_context_destroy(h *C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	if err := aligned("context", h); err != nil {
		return fail(err)
	}
	if h == nil || *h == 0 {
		return C.PC_OK
	}
	x, err := enterContext(*h)
	if err != nil && err.Code != status.Internal { // one that a panic left unusable can still be let go
		return fail(err)
	}
	if err == nil {
		if err := x.beginClose(); err != nil {
			return fail(err)
		}
	}
	object, err := handles.remove(handle(*h), kindContext, "context")
	if err != nil {
		return fail(err)
	}
	*h = 0
	x = object.(*contextCache)
	_, _ = handles.remove(x.manager, kindManager, "manager")
	if x.letGo() { // nobody knows what is running on its memory and tables: they are given up
		return C.PC_OK
	}
	x.c.Manager().Close()
	return fail(x.close())
}

// beginClose asks core whether the coordinator may be destroyed. From here on nobody
// begins (C-108).
func (x *contextCache) beginClose() error {
	defer x.exit()
	err := x.c.Close()
	x.closing = x.closing || err == nil
	return err
}

// letGo says whether a coordinator that nobody can enter any more is broken. Its tables
// are, too, then.
func (x *contextCache) letGo() (broken bool) {
	x.lock()
	defer x.unlock()
	if broken = x.broken(); broken {
		x.giveUp()
	}
	return broken
}

//export pcgo_context_manager
func pcgo_context_manager(h C.pc_handle, manager *C.pc_handle) (st C.pc_status) {
	x, serr := enterContext(h)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("manager", manager); err != nil {
		return fail(err)
	}
	*manager = C.pc_handle(x.manager)
	return C.PC_OK
}

//export pcgo_context_shutdown
func pcgo_context_shutdown(h C.pc_handle, drained C.uint32_t) (st C.pc_status) {
	x, serr := enterContext(h)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if drained > 1 {
		return failNew(status.InvalidArgument, "drained: %d, expected 0 or 1", uint32(drained))
	}
	return fail(x.c.Shutdown(drained == 1))
}

//export pcgo_context_synchronize
func pcgo_context_synchronize(h C.pc_handle) (st C.pc_status) {
	x, serr := enterContext(h)
	if serr != nil {
		return fail(serr)
	}
	if err := x.ownThread(); err != nil {
		x.leave(&st)
		return fail(err)
	}
	// The wait may be long: others may look meanwhile. The handle stays held.
	dev, stream := x.dev, x.stream
	x.unlock()
	defer func() {
		if r := recover(); r != nil {
			x.lock()
			x.giveUp()
			x.unlock()
			caught(&st, r)
		}
		x.entry.leave()
	}()
	began := gpu.Now()
	err := dev.Drain(stream)
	x.syncs.add(gpu.Now() - began)
	return fail(err)
}
