package main

/*
#include "shim.h"
*/
import "C"

import (
	"math"
	"runtime"
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

// enterOmni holds the cache of a handle until guard releases it.
func enterOmni(h C.pc_handle) (*omniCache, *entry, *status.Error) {
	e, err := handles.enter(handle(h), kindOmni, "cache")
	if err != nil {
		return nil, nil, err
	}
	return e.object.(*omniCache), e, nil
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
	defer guard(&st, nil)
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
		o.warmer = &warmer{cache: o.cache}
	}
	o.device.landed = make([]gpu.Event, cfg.StagingDepth)
	if cfg.Threaded {
		// Bound to no device: there may never be one. runJob binds the thread when
		// the first job has to wait for one.
		if o.committer, err = gpu.StartCommitter[omni.Job](gpu.NewHost(), o.cache, o.runJob); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// close stops the cache and gives everything back. No call is inside.
func (o *omniCache) close() (err error) {
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
	// On a thread of its own: the caller's may have another context, or be a
	// finalizer's. It ends with the goroutine, and the context it got with it.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		err = o.closeDevice()
	}()
	<-done
	return err
}

func (o *omniCache) closeDevice() error {
	err := twice(o.device.dev.Bind)
	for _, step := range [...]func() error{o.device.quiesce, o.cache.Free, o.device.close} {
		if e := step(); err == nil {
			err = e
		}
	}
	return err
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
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	o.cache.Shutdown()
	return o.done(nil) // a write may have failed behind the last call
}

//export pcgo_omni_destroy
func pcgo_omni_destroy(cache *C.pc_handle) (st C.pc_status) {
	defer guard(&st, nil)
	if cache == nil || *cache == 0 {
		return C.PC_OK
	}
	h := handle(*cache)
	// Shutdown first: it wakes the calls that remove would wait for.
	if e, _ := handles.enter(h, kindOmni, "*cache"); e != nil {
		e.object.(*omniCache).cache.Shutdown()
		e.object.(*omniCache).report()
		e.leave()
	}
	object, broken, err := handles.remove(h, kindOmni, "*cache")
	if err != nil {
		return fail(err)
	}
	*cache = 0
	if broken {
		// The panic may have left its lock held: its memory is given up.
		logLine(C.PC_LOG_ERROR, "an omni cache that an internal error left unusable was destroyed; its memory is not returned")
		return C.PC_OK
	}
	return fail(object.(*omniCache).close())
}

//export pcgo_omni_set_policy
func pcgo_omni_set_policy(cache C.pc_handle, needsHidden C.uint32_t) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	if needsHidden > 1 {
		return failNew(status.InvalidArgument, "needs_hidden: %d, expected 0 or 1", uint32(needsHidden))
	}
	if err := o.lockEngine(); err != nil {
		return fail(err)
	}
	defer o.engine.Unlock()
	return fail(o.cache.SetPolicy(needsHidden == 1))
}

const maxKeyName = 4096

//export pcgo_omni_open_key
func pcgo_omni_open_key(cache C.pc_handle, name *C.char, nameSize C.size_t, rowBytes C.uint64_t, typeTag, schedule C.uint32_t, key *C.uint32_t) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	if name == nil || nameSize == 0 || nameSize > maxKeyName {
		return failNew(status.InvalidArgument, "name: null or %d bytes, expected 1 to %d bytes", uint64(nameSize), maxKeyName)
	}
	if rowBytes == 0 || rowBytes > 1<<31 {
		return failNew(status.InvalidArgument, "row_bytes: %d, expected 1 to 2^31", uint64(rowBytes))
	}
	if schedule > C.PC_OMNI_JOIN_ON_FINISH {
		return failNew(status.InvalidArgument, "schedule: %d, expected PC_OMNI_JOIN_NEXT_STEP (0) or PC_OMNI_JOIN_ON_FINISH (1)", uint32(schedule))
	}
	if err := out("key", key); err != nil {
		return fail(err)
	}
	if err := o.lockEngine(); err != nil {
		return fail(err)
	}
	defer o.engine.Unlock()
	id, kerr := o.cache.OpenKey(C.GoStringN(name, C.int(nameSize)), int64(rowBytes), uint32(typeTag), omni.Schedule(schedule))
	if kerr != nil {
		return fail(kerr)
	}
	tellMemory(&o.most, o.cache.MostBytes(), "omni cache", "lower num_blocks, the size of a step or the staging memory")
	if o.warmer != nil {
		o.warmer.start()
	}
	*key = C.uint32_t(id)
	return C.PC_OK
}

//export pcgo_omni_step_begin
func pcgo_omni_step_begin(cache C.pc_handle, finished *C.uint64_t, numFinished C.size_t, arrivals *C.pc_omni_new_request, numArrivals C.size_t, hitAccepted *C.uint8_t) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	done, err := slice[uint64]("finished", unsafe.Pointer(finished), uint64(numFinished))
	if err != nil {
		return fail(err)
	}
	in, err := slice[C.pc_omni_new_request]("arrivals", unsafe.Pointer(arrivals), uint64(numArrivals))
	if err != nil {
		return fail(err)
	}
	var accepted []bool
	if hitAccepted != nil {
		accepted = unsafe.Slice((*bool)(unsafe.Pointer(hitAccepted)), len(in))
	}
	if err := o.lockEngine(); err != nil {
		return fail(err)
	}
	defer o.engine.Unlock()
	o.arrivals = o.arrivals[:0]
	defer func() { clear(o.arrivals) }() // keeps no address of the caller
	for i := range in {
		a := &in[i]
		if a.hit_tokens < 0 {
			return failNew(status.InvalidArgument, "arrivals[%d].hit_tokens: %d, expected >= 0", i, int64(a.hit_tokens))
		}
		blocks, err := slice[int64]("arrivals.blocks", unsafe.Pointer(a.blocks), int64(a.num_blocks))
		if err != nil {
			return fail(err)
		}
		o.arrivals = append(o.arrivals, omni.NewRequest{Request: uint64(a.request), HitTokens: int64(a.hit_tokens), Blocks: blocks})
	}
	return o.done(o.cache.StepBegin(done, o.arrivals, accepted))
}

//export pcgo_omni_save
func pcgo_omni_save(cache C.pc_handle, args *C.pc_omni_save_args) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	if args == nil {
		return failNew(status.InvalidArgument, "args: null, expected a pc_omni_save_args")
	}
	if err := inSize("args", args, args.struct_size, unsafe.Sizeof(*args)); err != nil {
		return fail(err)
	}
	if args.flags != 0 {
		return failNew(status.Unsupported, "args.flags: %#x, expected 0", uint32(args.flags))
	}
	for i := range args.reserved {
		if err := reserved("args.reserved", uint64(args.reserved[i])); err != nil {
			return fail(err)
		}
	}
	requests, err := slice[uint64]("args.requests", unsafe.Pointer(args.requests), uint64(args.num_requests))
	if err != nil {
		return fail(err)
	}
	counts, err := slice[int64]("args.counts", unsafe.Pointer(args.counts), uint64(args.num_requests))
	if err != nil {
		return fail(err)
	}
	slots, err := slice[int64]("args.slots", unsafe.Pointer(args.slots), int64(args.num_slots))
	if err != nil {
		return fail(err)
	}
	in, err := slice[C.pc_omni_rows]("args.rows", unsafe.Pointer(args.rows), uint64(args.num_rows))
	if err != nil {
		return fail(err)
	}
	for i := range in {
		if in[i].flags&^C.PC_OMNI_ON_DEVICE != 0 {
			return failNew(status.Unsupported, "args.rows[%d].flags: %#x, expected PC_OMNI_ON_DEVICE or 0", i, uint32(in[i].flags))
		}
		if in[i].dst == nil && in[i].dst_bytes != 0 {
			return failNew(status.InvalidArgument, "args.rows[%d].dst: null with dst_bytes %d, expected an address, or 0 bytes", i, uint64(in[i].dst_bytes))
		}
	}
	rows, err := slice[omni.KeyRows]("args.rows", unsafe.Pointer(args.rows), uint64(args.num_rows))
	if err != nil {
		return fail(err)
	}
	if err := o.lockEngine(); err != nil {
		return fail(err)
	}
	defer o.engine.Unlock()
	o.save = omni.SaveArgs{Requests: requests, Counts: counts, Slots: slots, Rows: rows, Stream: uint64(args.stream)}
	step, serr := o.cache.Save(&o.save)
	o.report()
	o.save = omni.SaveArgs{}
	if serr != nil {
		return fail(serr)
	}
	args.step = C.uint64_t(step)
	return C.PC_OK
}

//export pcgo_omni_materialize
func pcgo_omni_materialize(cache C.pc_handle, step C.uint64_t, reads *C.pc_omni_read, numReads C.size_t) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	list, err := omniReads(reads, numReads)
	if err != nil {
		// The step is used up all the same (O-22).
		_ = o.cache.Discard(uint64(step))
		return fail(err)
	}
	return o.done(o.cache.Materialize(uint64(step), list))
}

// omniReads checks the reads; they have the layout of the core's.
func omniReads(reads *C.pc_omni_read, numReads C.size_t) ([]omni.Read, *status.Error) {
	in, err := slice[C.pc_omni_read]("reads", unsafe.Pointer(reads), uint64(numReads))
	if err != nil {
		return nil, err
	}
	for i := range in {
		if err := reserved("reads.reserved0", uint64(in[i].reserved0)); err != nil {
			return nil, err
		}
	}
	return slice[omni.Read]("reads", unsafe.Pointer(reads), uint64(numReads))
}

//export pcgo_omni_discard
func pcgo_omni_discard(cache C.pc_handle, step C.uint64_t) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	return o.done(o.cache.Discard(uint64(step)))
}

//export pcgo_omni_get_stats
func pcgo_omni_get_stats(cache C.pc_handle, stats *C.pc_omni_stats) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	if err := out("stats", stats); err != nil {
		return fail(err)
	}
	if err := outSize("stats", stats, stats.struct_size, statsMinBytes); err != nil {
		return fail(err)
	}
	fill(stats, stats.struct_size, o.stats())
	return C.PC_OK
}

//export pcgo_omni_inspect
func pcgo_omni_inspect(cache C.pc_handle, key C.uint32_t, slots *C.int64_t, numSlots C.size_t, states *C.pc_omni_slot_state, rows unsafe.Pointer, rowsBytes C.uint64_t) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	in, err := slice[int64]("slots", unsafe.Pointer(slots), uint64(numSlots))
	if err != nil {
		return fail(err)
	}
	res, err := slice[omni.SlotState]("states", unsafe.Pointer(states), uint64(numSlots))
	if err != nil {
		return fail(err)
	}
	if rowsBytes > 1<<62 {
		return failNew(status.InvalidArgument, "rows_bytes: %d, expected at most 2^62", uint64(rowsBytes))
	}
	return fail(o.cache.Inspect(omni.KeyID(key), in, res, rows, int64(rowsBytes)))
}

//export pcgo_omni_check
func pcgo_omni_check(cache C.pc_handle) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	return fail(o.cache.Check())
}

//export pcgo_omni_fail_write
func pcgo_omni_fail_write(cache C.pc_handle, nth C.uint64_t) (st C.pc_status) {
	o, e, err := enterOmni(cache)
	if err != nil {
		return fail(err)
	}
	defer guard(&st, e)
	o.cache.FailWrite(uint64(nth))
	return C.PC_OK
}
