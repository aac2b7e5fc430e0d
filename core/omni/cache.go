package omni

import (
	"strconv"
	"sync/atomic"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Cache is one omni cache. Create it with New; see the package comment for the
// order of calls. SetPolicy, OpenKey, StepBegin and Save are engine calls, of
// which one may run at a time; everything else may run on any thread.
type Cache struct {
	cfg       Config
	slots     int64
	perBlock  int64 // granules of a block
	granules  int64
	blockBits int // log2(BlockSize), or -1

	mu     meteredMutex
	parked [numQueues]int

	engine  bool // an engine call runs
	running int  // Materialize calls between their two locked parts
	closed  bool
	freed   bool
	fatal   error // sticky write failure (O-42)
	failAt  uint64

	wantsHidden bool
	hidden      KeyID
	keys        []*key
	byName      map[string]KeyID
	visible     []KeyID

	last    uint64 // last step id given out
	written uint64 // every step up to this one is in the mirror
	staged  int64  // bytes charged to the budget

	reqs        requests
	hits        hitList // of the step that StepBegin announced
	steps       stepTable
	pages       []pageHolder
	devicePages []devicePage // their memory for steps on a device
	commands    []Command    // scratch of the engine's calls
	defs        deferredTable
	job         jobState
	batch       batchLayout // scratch of Save
	areas       []area      // scratch of Materialize's checks
	pageUse     []pageUse   // Config.ZeroOnRelease, see zero.go
	late        []lateRow
	warmed      int64 // bytes, by Warm
	warming     *key  // whose memory Warm touches without the lock, or nil

	crew *rows.Crew // shares large copies; nil when that is off

	stats   Stats
	notices atomic.Uint32 // Notice bits that nobody has taken yet
}

// New returns an empty cache whose policy wants hidden states. Address space is
// reserved key by key.
func New(cfg Config) (*Cache, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Cache{
		cfg:         cfg,
		slots:       cfg.NumBlocks * cfg.BlockSize,
		perBlock:    (cfg.BlockSize + granuleRows - 1) / granuleRows,
		wantsHidden: true,
		hidden:      NoKey,
		byName:      make(map[string]KeyID),
		pages:       make([]pageHolder, cfg.StagingDepth),
		devicePages: make([]devicePage, cfg.StagingDepth),
		pageUse:     make([]pageUse, cfg.StagingDepth),
		crew:        rows.NewCrew(cfg.CopyThreads, cfg.ShareBytes),
	}
	c.mu.waiter = cfg.Waiter
	c.granules = cfg.NumBlocks * c.perBlock
	c.blockBits = log2(cfg.BlockSize)
	c.reqs.init()
	c.defs.init()
	return c, nil
}

// SetPolicy says whether hidden rows are cached and merged. It belongs to model
// load: once a step was saved, hits of both kinds could be in flight.
func (c *Cache) SetPolicy(wantsHidden bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if c.last > 0 && wantsHidden != c.wantsHidden {
		return status.New(status.WrongState, "set_policy after %d saved steps, expected before the first", c.last)
	}
	c.wantsHidden = wantsHidden
	return nil
}

// Shutdown stops the cache: it waits for running work (bounded by the timeout),
// wakes every waiter with `shut down`, and drops what is pending (S-14). Rows
// already in the mirror stay readable for steps that are not consumed yet.
func (c *Cache) Shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	c.wake(Callers)
	c.wake(Committer)
	if c.busy() {
		for end := c.deadline(); c.busy() && c.wait(Callers, end); {
		}
	}
	c.dropPending()
}

// busy reports whether a call or a job is between its locked parts.
func (c *Cache) busy() bool { return c.engine || c.running > 0 || c.warming != nil || c.job.active }

// Free gives all memory back; the cache must have been shut down. Busy while a
// call or a job still runs.
func (c *Cache) Free() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.freed:
		return nil
	case !c.closed:
		return status.New(status.WrongState, "free of a cache that is not shut down")
	case c.busy():
		return status.New(status.Busy, "free while %d materialize calls, %d jobs, an engine call or a warming still run", c.running, btoi(c.job.active))
	}
	c.freed = true
	c.crew.Close()
	for _, k := range c.keys {
		if c.cfg.ZeroOnRelease {
			k.wipe()
		}
		k.free()
	}
	c.keys, c.visible, c.hidden = nil, nil, NoKey
	clear(c.byName)
	c.hits.reset()
	c.steps.open = c.steps.open[:0]
	return c.freePages() // last: it gives the lock up
}

// enter begins an engine call. Caller holds mu and calls leave afterwards.
func (c *Cache) enter() error {
	if c.engine {
		return status.New(status.Busy, "another engine call is running; step_begin, save, open_key and set_policy must not overlap")
	}
	c.engine = true
	return nil
}

func (c *Cache) leave() {
	c.engine = false
	if c.closed {
		c.wake(Callers) // Shutdown waits for this
	}
}

// unlocked runs f without the lock. f must not escape, so that it stays on the
// stack; the lock is held again even when f panics.
func (c *Cache) unlocked(f func()) {
	c.mu.Unlock()
	defer c.mu.relock()
	c.preempt()
	f()
	c.preempt()
}

func (c *Cache) preempt() {
	if c.cfg.Preempt != nil {
		c.cfg.Preempt()
	}
}

// nameOf is how an error names a request. A caller that has names of its own finds
// the numbers by their sign and replaces them.
func (c *Cache) nameOf(req uint64) string {
	if c.cfg.NameOf != nil {
		return c.cfg.NameOf(req)
	}
	return "#" + strconv.FormatUint(req, 10)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// log2 is the exponent of a power of two, or -1.
func log2(n int64) int {
	if n <= 0 || n&(n-1) != 0 {
		return -1
	}
	e := 0
	for ; n > 1; n >>= 1 {
		e++
	}
	return e
}
