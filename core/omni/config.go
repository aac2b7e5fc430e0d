package omni

import (
	"math"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Defaults of the zero values in Config.
const (
	DefaultBudgetBytes     = 512 << 20
	DefaultStagingDepth    = 4
	DefaultStagingCapacity = 1024
	DefaultTimeout         = 30_000_000_000 // ns
	DefaultCopyChunkBytes  = 16 << 20
	DefaultInlineBytes     = 1 << 20
)

// Limits of Config; they keep every index in 32 bits and every byte count in 63.
const (
	maxSlots     = 1 << 40
	maxBlocks    = math.MaxInt32
	maxDepth     = 4096
	maxRowBytes  = 1 << 31
	maxBatch     = 1 << 24
	maxStepRows  = 1 << 28
	maxHitTokens = 1 << 31
)

// Config fixes a cache for its life. A zero field means its default.
type Config struct {
	// NumBlocks and BlockSize give the slots that are mirrored: slot = block *
	// BlockSize + position. Both are required.
	NumBlocks, BlockSize int64
	// BudgetBytes caps the rows that are held outside the mirror: deferred rows
	// and immediate rows that wait for the committer. A save that would pass it
	// first writes the oldest deferred rows; larger means fewer forced writes.
	BudgetBytes int64
	// StagingDepth is how many saved steps may be unconsumed at once (O-39).
	StagingDepth int
	// StagingCapacity is how many rows of one step fit a staging page.
	StagingCapacity int64
	// Timeout bounds every wait (O-31), in nanoseconds of the Waiter's clock.
	// Negative: a call that would have to wait fails at once.
	Timeout int64
	// CopyChunkBytes is the largest single copy of a deferred job. Smaller lets a
	// device stream interleave other work.
	CopyChunkBytes int64
	// Threaded hands writes to a committer that takes them from NextJob. Otherwise
	// (eager) the thread that causes a write carries it out.
	Threaded bool
	// InlineBytes: a threaded step of fewer bytes is written by the saving thread
	// all the same, because waking another thread costs more than the copy.
	// Negative: never, so that every step goes through the committer.
	InlineBytes int64
	// CopyThreads is how many threads, the caller's included, share a copy of
	// ShareBytes or more. More shortens prefills and long hits where one core cannot
	// use the memory's bandwidth, and takes the cores from others meanwhile; 1 never
	// shares. 0 is rows.DefaultCopyThreads.
	CopyThreads int
	// ShareBytes: see CopyThreads. 0 is rows.DefaultShareBytes.
	ShareBytes int64
	// ZeroOnRelease clears every row that stops being readable, see zero.go.
	ZeroOnRelease bool
	// WarmBytes caps what Warm makes present ahead of its first use.
	WarmBytes int64
	// NameOf gives the text that stands for a request in an error; nil prints the
	// number. It runs under the cache's lock and must not call the cache.
	NameOf func(request uint64) string
	// Waiter parks callers. nil: waits fail at once, which is right for one thread
	// in eager mode.
	Waiter Waiter
	// Executor carries out device work. nil: rows have to be on the host.
	Executor Executor
	// Preempt, when set, is called without the lock at every place where another
	// thread may run: around each unlocked part and between its copies. It is for
	// simulators, which run other calls from it; nil costs a comparison. With it, copies
	// are shared only if CopyThreads says so.
	Preempt func()
}

const orDefault = ", or 0 for the default"

// withDefaults fills the zero fields and checks the rest.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.BudgetBytes, DefaultBudgetBytes)
	setDefault(&c.StagingDepth, DefaultStagingDepth)
	setDefault(&c.StagingCapacity, DefaultStagingCapacity)
	setDefault(&c.Timeout, DefaultTimeout)
	setDefault(&c.CopyChunkBytes, DefaultCopyChunkBytes)
	setDefault(&c.InlineBytes, DefaultInlineBytes)
	if c.Preempt != nil {
		setDefault(&c.CopyThreads, 1)
	}
	setDefault(&c.CopyThreads, rows.DefaultCopyThreads())
	setDefault(&c.ShareBytes, rows.DefaultShareBytes)
	if c.Waiter == nil {
		c.Waiter = noWaiter{}
	}
	for _, f := range []struct {
		name     string
		v        int64
		min, max int64
		or       string
	}{
		{"num_blocks", c.NumBlocks, 1, maxBlocks, ""},
		{"block_size", c.BlockSize, 1, math.MaxInt32, ""},
		{"staging_bytes", c.BudgetBytes, 1, math.MaxInt64 >> 1, orDefault},
		{"staging_depth", int64(c.StagingDepth), 1, maxDepth, orDefault},
		{"staging_capacity_tokens", c.StagingCapacity, 1, maxStepRows, orDefault},
		{"copy_chunk_bytes", c.CopyChunkBytes, 1, math.MaxInt64, orDefault},
		{"copy_threads", int64(c.CopyThreads), 1, rows.MaxCopyThreads, orDefault},
		{"share_bytes", c.ShareBytes, 1, math.MaxInt64, orDefault},
		{"warm_bytes", c.WarmBytes, 0, math.MaxInt64, ""},
	} {
		if f.v < f.min || f.v > f.max {
			return c, status.New(status.InvalidArgument, "%s is %d, expected %d to %d%s", f.name, f.v, f.min, f.max, f.or)
		}
	}
	if c.NumBlocks > maxSlots/c.BlockSize {
		return c, status.New(status.InvalidArgument, "num_blocks * block_size is %d * %d, expected at most %d slots", c.NumBlocks, c.BlockSize, int64(maxSlots))
	}
	return c, nil
}

func setDefault[T int | int64](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}
