package rows

import (
	"sync"
	"sync/atomic"
)

// Crew is a few threads that carry out one large move together with the thread
// that asks for it: one core gets only a fraction of a socket's memory bandwidth.
//
// The threads start with the first move that is large enough, sleep between moves
// and end with Close. Waking one costs the caller about 10 µs, and it arrives 5 to
// 10 µs later: hence DefaultShareBytes. Whoever finds the crew at work for somebody else
// moves alone. All methods may be called on any thread, and on a nil Crew, which
// never shares. Close must not run beside a move.
//
//	[no threads] --first large move--> [asleep] <--move--> [at work]
//	                                       | Close
//	                                    [ended]
//
// A futex and not a channel, because a goroutine that a channel wakes is the next
// one of its waker's processor, and others take it from there only after a pause
// of 50 µs or more.
type Crew struct {
	helpers int   // threads beside the caller's
	least   int64 // bytes of a move that is shared

	owner   sync.Mutex // held by the Moves that the crew works for
	started bool
	ended   sync.WaitGroup
	running atomic.Int32 // helpers

	// The move at work. A helper touches list and spans only with a part it claimed,
	// and the caller changes them only when no part is left.
	list  []part
	spans []Span
	// claims is how many parts there are (upper half) and how many were asked for
	// (lower half), in one word: a helper that comes late sees that all are gone,
	// whatever the caller has begun meanwhile.
	claims  atomic.Uint64
	left    atomic.Uint32 // parts that are not done
	failure atomic.Pointer[any]

	calls   atomic.Uint32 // changes when there is work, and at Close
	closed  atomic.Bool
	waiting atomic.Bool // the caller sleeps until left is 0
}

const (
	// DefaultShareBytes is the smallest move that is shared. 2 MiB take one thread
	// 90 µs; what a second saves of that is lost again when it comes late.
	DefaultShareBytes = 4 << 20
	// partsOfLeast is how many parts such a move has. A part is then short enough that
	// all threads end together, and long enough that taking it costs nothing.
	partsOfLeast = 16
	// waitSpins is how long the caller looks for the last part before it sleeps:
	// about 20 µs, the time of a part.
	waitSpins = 20_000
	// MaxCopyThreads bounds a crew: a socket's bandwidth is used up by then.
	MaxCopyThreads = 64
)

// DefaultCopyThreads is the number of threads of a crew, the caller's included,
// when nobody chose one: half the processors, at least two of them and at most
// four, because the model's own host threads need some, too.
func DefaultCopyThreads() int { return min(processors, max(2, min(4, processors/2))) }

// NewCrew returns a crew of threads, the caller's included, for moves of least
// bytes (0 is DefaultShareBytes) or more; nil for 1 thread, which never shares. No
// thread is started yet.
func NewCrew(threads int, least int64) *Crew {
	if threads <= 1 {
		return nil
	}
	if least == 0 {
		least = DefaultShareBytes
	}
	return &Crew{helpers: min(threads, MaxCopyThreads) - 1, least: least}
}

// Running is how many threads were started and have not ended; tests look at it.
func (c *Crew) Running() int {
	if c == nil {
		return 0
	}
	return int(c.running.Load())
}

// take makes the crew the caller's, if it is worth it and nobody else has it.
func (c *Crew) take(bytes int64) bool {
	return c != nil && bytes >= c.least && c.owner.TryLock()
}

// carryOut does every part of list, which is not empty, and gives the crew back. A
// panic in a part ends up with the caller, and only when no thread is in the
// memory of the move any more.
func (c *Crew) carryOut(list []part, spans []Span) {
	defer c.owner.Unlock()
	if !c.started {
		c.started = true
		c.start()
	}
	c.list, c.spans = list, spans
	c.left.Store(uint32(len(list)))
	c.claims.Store(uint64(len(list)) << 32)
	c.calls.Add(1)
	futexWake(&c.calls, min(c.helpers, len(list)-1))
	c.work()
	c.await()
	c.list, c.spans = nil, nil
	if p := c.failure.Swap(nil); p != nil {
		panic(*p)
	}
}

// work does parts until none is left to claim.
func (c *Crew) work() {
	for {
		claim := c.claims.Add(1) - 1
		if i := uint32(claim); uint64(i) < claim>>32 {
			c.do(i)
			continue
		}
		return
	}
}

// do carries out a part that was claimed.
func (c *Crew) do(i uint32) {
	defer func() {
		if r := recover(); r != nil {
			c.fail(r)
		}
		if c.left.Add(^uint32(0)) == 0 && c.waiting.Load() {
			futexWake(&c.left, 1)
		}
	}()
	c.list[i].carryOut(c.spans)
}

// fail keeps the first panic. (Apart, so that only a panic allocates.)
func (c *Crew) fail(panicked any) { c.failure.CompareAndSwap(nil, &panicked) }

// await returns when every part is done.
func (c *Crew) await() {
	for range waitSpins {
		if c.left.Load() == 0 {
			return
		}
	}
	c.waiting.Store(true)
	for n := c.left.Load(); n != 0; n = c.left.Load() {
		futexWait(&c.left, n)
	}
	c.waiting.Store(false)
}

// start starts the helpers.
func (c *Crew) start() {
	OwnThreads(c.helpers)
	c.ended.Add(c.helpers)
	c.running.Store(int32(c.helpers))
	for range c.helpers {
		go c.help()
	}
}

func (c *Crew) help() {
	defer c.ended.Done()
	defer c.running.Add(-1)
	for {
		seen := c.calls.Load() // before the look: what comes after it changes the word
		if c.closed.Load() {
			return
		}
		c.work()
		futexWait(&c.calls, seen)
	}
}

// Close ends the threads and waits for that.
func (c *Crew) Close() {
	if c == nil {
		return
	}
	c.owner.Lock()
	defer c.owner.Unlock()
	if !c.started || c.closed.Swap(true) {
		return
	}
	c.calls.Add(1)
	futexWake(&c.calls, c.helpers)
	c.ended.Wait()
	OwnThreads(-c.helpers)
}
