package main

/*
#include "shim.h"
*/
import "C"

import (
	"math"
	"sync"
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
	"libprefixcache/gpu"
)

// omniCache is what a handle of an omni cache stands for.
type omniCache struct {
	cache     *omni.Cache
	device    *omniDevice
	entry     *entry         // of the cache's handle
	committer *gpu.Committer // the background thread, or nil
	log       limiter
	warmer    *warmer // or nil
	most      memoryPlan

	// engine serialises the engine's calls, which the header says must not
	// overlap, and with that guards the scratch below: it lets a call cross
	// without an allocation.
	engine   sync.Mutex
	arrivals []omni.NewRequest
	save     omni.SaveArgs
}

// enterOmni holds the cache of a handle until leave. Core has the lock, and the mark on it.
func enterOmni(h C.pc_handle) (*omniCache, *status.Error) {
	e, err := handles.enter(handle(h), kindOmni, "cache")
	if err != nil {
		return nil, err
	}
	return e.object.(*omniCache), nil
}

// leave is deferred by every export that enters, whether that succeeded or not: guard,
// and the end of what enterOmni began.
func (o *omniCache) leave(st *C.pc_status) {
	r := recover()
	if o != nil {
		if r != nil && r != any(omni.ErrBroken) {
			o.cache.Break() // core has, unless the panic was out here
		}
		o.entry.leave()
	}
	if r != nil {
		caught(st, r)
	}
}

// lockEngine refuses to overlap two engine calls.
func (o *omniCache) lockEngine() *status.Error {
	if !o.engine.TryLock() {
		return status.New(status.Busy, "cache: another engine call (set_policy, open_key, step_begin, save) is running; they must not overlap")
	}
	return nil
}

// The arrays of pc_omni_rows and pc_omni_read are used as they are: these lines
// do not compile when the C and the Go layout differ.
const (
	_ = -(unsafe.Sizeof(C.pc_omni_rows{}) ^ unsafe.Sizeof(omni.KeyRows{}))
	_ = -(unsafe.Offsetof(C.pc_omni_rows{}.flags) ^ unsafe.Offsetof(omni.KeyRows{}.Place))
	_ = -(C.PC_OMNI_ON_DEVICE ^ omni.OnDevice)
	_ = -(unsafe.Sizeof(C.pc_omni_read{}) ^ unsafe.Sizeof(omni.Read{}))
	_ = -(unsafe.Sizeof(C.pc_omni_slot_state{}) ^ unsafe.Sizeof(omni.SlotState{}))
)

//export pcgo_omni_create
func pcgo_omni_create(in *C.pc_omni_options, cache *C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	if err := out("cache", cache); err != nil {
		return fail(err)
	}
	if in == nil {
		return failNew(status.InvalidArgument, "options: null, expected a pc_omni_options")
	}
	if err := inSize("options", in, in.struct_size, unsafe.Offsetof(in.warm_bytes)); err != nil {
		return fail(err)
	}
	options := options(in, in.struct_size)
	if options.flags&^(C.PC_OMNI_EAGER|C.PC_OMNI_ZERO_ON_RELEASE) != 0 {
		return failNew(status.Unsupported, "options.flags: %#x, expected PC_OMNI_EAGER | PC_OMNI_ZERO_ON_RELEASE", uint32(options.flags))
	}
	for i := range options.reserved {
		if err := reserved("options.reserved", uint64(options.reserved[i])); err != nil {
			return fail(err)
		}
	}
	threaded := options.flags&C.PC_OMNI_EAGER == 0
	o, err := newOmni(omni.Config{
		NumBlocks:       int64(options.num_blocks),
		BlockSize:       int64(options.block_size),
		BudgetBytes:     int64(options.staging_bytes),
		StagingDepth:    int(options.staging_depth),
		StagingCapacity: int64(options.staging_capacity_tokens),
		Timeout:         int64(options.claim_timeout_ns),
		CopyChunkBytes:  int64(options.copy_chunk_bytes),
		Threaded:        threaded,
		ZeroOnRelease:   options.flags&C.PC_OMNI_ZERO_ON_RELEASE != 0,
		WarmBytes:       int64(options.warm_bytes),
		CopyThreads:     int(options.copy_threads),
	})
	if err != nil {
		return fail(err)
	}
	h, herr := handles.add(kindOmni, o)
	if herr != nil {
		_ = o.close()
		return fail(herr)
	}
	o.entry = handles.at(h.index())
	tellHugePages()
	*cache = C.pc_handle(h)
	return C.PC_OK
}

// newOmni makes a cache with what it stands on: a clock and places to sleep, a
// device that is opened when rows are on one, and the thread that writes.
func newOmni(cfg omni.Config) (*omniCache, error) {
	if cfg.StagingDepth == 0 {
		cfg.StagingDepth = omni.DefaultStagingDepth
	}
	cfg.Waiter = &waiter{}
	o := &omniCache{device: &omniDevice{}}
	o.device.log = &o.log
	cfg.Executor = o.device
	var err error
	if o.cache, err = omni.New(cfg); err != nil {
		return nil, err
	}
	if cfg.ZeroOnRelease {
		arena.ZeroOnRelease()
	}
	if cfg.WarmBytes > 0 {
		o.warmer = &warmer{cache: o}
	}
	o.device.landed = make([]gpu.Event, cfg.StagingDepth)
	if cfg.Threaded {
		// Bound to no device: there may never be one. runJob binds the thread when
		// the first job has to wait for one.
		if o.committer, err = gpu.StartCommitter[omni.Job](gpu.NewHost(), o, o.runJob); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// close stops the cache and gives everything back. No call is inside.
func (o *omniCache) close() error {
	defer o.most.end()
	o.cache.Shutdown()
	if o.warmer != nil {
		o.warmer.wait()
	}
	if o.committer != nil {
		o.committer.Stop(math.MaxInt64) // what it waits for may still be written to
	}
	if o.device.dev == nil {
		return o.cache.Free()
	}
	return giveBack("omni cache", o.device.dev, func(g *giving) {
		o.device.quiesce(g)
		g.came(o.cache.Free()) // once: a second call has nothing left to do, and says so
		o.device.close(g)
	})
}

// AwaitJob and JobDone are core's for the committer, whose thread no panic may leave: a
// broken cache has no more jobs.
func (o *omniCache) AwaitJob() (job omni.Job, ok bool) {
	defer o.survive()
	return o.cache.AwaitJob()
}

func (o *omniCache) JobDone(job *omni.Job, err error) {
	defer o.survive()
	o.cache.JobDone(job, err)
}

// warm is core's for the warmer, whose thread is ours, too.
func (o *omniCache) warm(piece int64) (bytes int64, done bool) {
	done = true
	defer o.survive()
	return o.cache.Warm(piece)
}

// survive is deferred by what runs on a thread of ours. Core's lock has the mark.
func (o *omniCache) survive() {
	if r := recover(); r != nil {
		var nobodys C.pc_status
		caught(&nobodys, r)
	}
}

// runJob turns a panic into a failed write: the loop never ends because of one.
func (o *omniCache) runJob(job *omni.Job) (err error) {
	defer func() {
		if r := recover(); r != nil {
			caughtPanics.Add(1)
			err = status.New(status.Internal, "internal error: %v (%s)", r, panicPlace())
		}
	}()
	if len(job.Commands) > 0 {
		if err := o.device.bind(); err != nil {
			return err
		}
	}
	return o.cache.Run(job)
}

//export pcgo_omni_shutdown
func pcgo_omni_shutdown(cache C.pc_handle) (st C.pc_status) {
	o, err := enterOmni(cache)
	defer o.leave(&st)
	if err != nil {
		return fail(err)
	}
	o.cache.Shutdown()
	return o.done(nil) // a write may have failed behind the last call
}

//export pcgo_omni_destroy
func pcgo_omni_destroy(cache *C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	if err := aligned("cache", cache); err != nil {
		return fail(err)
	}
	if cache == nil || *cache == 0 {
		return C.PC_OK
	}
	h := handle(*cache)
	// Shutdown first: it wakes the calls that remove would wait for. What becomes of it is
	// told below.
	pcgo_omni_shutdown(*cache)
	object, err := handles.remove(h, kindOmni, "*cache")
	if err != nil {
		return fail(err)
	}
	*cache = 0
	if object.(*omniCache).cache.Broken() {
		// Nobody knows what still writes to its memory.
		logLine(C.PC_LOG_ERROR, "an omni cache that an internal error left unusable was destroyed; its memory is not returned")
		return C.PC_OK
	}
	return fail(object.(*omniCache).close())
}
