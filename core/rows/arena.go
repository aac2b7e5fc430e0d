package rows

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"libprefixcache/core/status"
)

// DefaultArenaRetain is what an Arena keeps for reuse unless told otherwise: two
// prefill steps of 64 × 256 rows of 4 KiB for two keys, and room to spare.
const DefaultArenaRetain = 1 << 30

// ArenaOptions are the choices of NewArena.
type ArenaOptions struct {
	// RetainBytes caps the free buffers that are kept for reuse: more of them
	// means fewer page faults and more memory held. 0 is DefaultArenaRetain, a
	// negative number keeps none.
	RetainBytes int64
	DontDump    bool // see MemoryOptions
}

// ArenaStats are counters since NewArena and what is held now.
type ArenaStats struct {
	LiveBuffers, LiveBytes int64 // handed out
	FreeBuffers, FreeBytes int64 // kept for reuse
	Hits, Misses           int64 // Get served from a free buffer, or by new memory
	Evicted                int64 // free buffers given back to the system
}

// Arena hands out large buffers for results and takes them back when the last
// view of the result has died. A fault on fresh memory costs more than the copy
// that causes it, so buffers keep their pages; they are huge ones.
//
// Safe for concurrent use. The lock is held for a few list operations, never for
// a system call. A buffer is reused for requests of half its size or more, so in
// the worst case twice the bytes that are live are reserved.
type Arena struct {
	retain   int64
	dontDump bool
	zero     atomic.Bool

	mu      sync.Mutex
	closed  bool
	entries []arenaEntry // index = buffer; there are as many as were ever live at once
	spare   int32        // unused entries, linked by inClass
	classes [arenaClasses]int32
	filled  [(arenaClasses + 63) / 64]uint64 // a bit per class that has free buffers
	newest  int32                            // free buffers by the time they were freed
	oldest  int32
	stats   ArenaStats
}

type arenaEntry struct {
	mem     *Memory // nil while the entry is spare
	asked   int64   // bytes of the Get
	gen     uint32
	class   int32
	free    bool
	inClass links // last freed first, whose pages are warmest
	inAge   links
}

type links struct{ prev, next int32 }

// Classes are multiples of 2 MiB: every one up to 32 MiB, then eight to each
// doubling, so that lengths that vary from step to step meet again and at most
// an eighth is wasted.
const (
	arenaExact   = 16
	arenaSteps   = 8
	arenaClasses = arenaExact + 21*arenaSteps
	maxArena     = maxReserve
)

// arenaClass returns the class of a size and the bytes of its buffers.
func arenaClass(n int64) (class int32, bytes int64) {
	u := (n + HugeBytes - 1) / HugeBytes
	if u <= arenaExact {
		return int32(u - 1), u * HugeBytes
	}
	shift := bits.Len64(uint64(u-1)) - 4
	m := (u + 1<<shift - 1) >> shift // 9 to 16
	return int32(arenaExact + (shift-1)*arenaSteps + int(m) - 9), m << shift * HugeBytes
}

// NewArena returns an empty arena.
func NewArena(o ArenaOptions) *Arena {
	a := &Arena{retain: o.RetainBytes, dontDump: o.DontDump, spare: none, newest: none, oldest: none}
	if a.retain == 0 {
		a.retain = DefaultArenaRetain
	}
	for i := range a.classes {
		a.classes[i] = none
	}
	return a
}

// Get returns a buffer of at least bytes bytes, aligned to 2 MiB, and the id that
// gives it back. Its contents are undefined, rows of other requests among them:
// whoever gets it writes all of it.
func (a *Arena) Get(bytes int64) (ptr unsafe.Pointer, id uint64, err error) {
	if bytes <= 0 {
		return nil, 0, status.New(status.InvalidArgument, "rows: bytes is %d, expected more than 0", bytes)
	}
	if bytes > maxArena {
		return nil, 0, status.New(status.OutOfMemory, "rows: cannot reserve %d bytes (result): more than the address space", bytes)
	}
	class, size := arenaClass(bytes)
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, 0, status.New(status.Closed, "rows: the arena is closed")
	}
	if i := a.find(class, size); i != none {
		e := &a.entries[i]
		a.unlinkFree(i)
		a.stats.Hits++
		ptr, id = a.handOut(i), makeID(i, e.gen)
		e.asked = bytes
		a.mu.Unlock()
		return ptr, id, nil
	}
	a.stats.Misses++
	a.mu.Unlock()

	mem, err := Reserve(size, MemoryOptions{Purpose: PurposeResult, DontDump: a.dontDump})
	if err != nil {
		return nil, 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.spare
	if i != none {
		a.spare = a.entries[i].inClass.next
	} else {
		i = int32(len(a.entries))
		a.entries = append(a.entries, arenaEntry{gen: 1})
	}
	e := &a.entries[i]
	e.mem, e.class, e.asked = mem, class, bytes
	return a.handOut(i), makeID(i, e.gen), nil
}

// Put gives a buffer back. An id that is not live is an InvalidArgument error
// and changes nothing.
func (a *Arena) Put(id uint64) error {
	index, gen := splitID(id)
	a.mu.Lock()
	if int(index) >= len(a.entries) || a.entries[index].gen != gen || a.entries[index].mem == nil || a.entries[index].free {
		a.mu.Unlock()
		return status.New(status.InvalidArgument, "rows: arena buffer %#x is not live: given back already, or never handed out", id)
	}
	i, e := int32(index), &a.entries[index]
	e.gen = nextGen(gen)
	poison(e.mem.base, e.mem.size)
	if a.zero.Load() { // nobody but us knows the buffer now: the stale id is refused
		mem, bytes := e.mem, e.asked
		a.mu.Unlock()
		if mem.size > a.retain { // it will not be kept: what was never written need not become present
			mem.Wipe()
			sysDiscard(unsafe.Slice((*byte)(mem.base), mem.size)) // what was swapped out, too
		} else {
			Zero(mem.base, bytes)
		}
		a.mu.Lock()
		e = &a.entries[i]
	}
	a.stats.LiveBuffers--
	a.stats.LiveBytes -= e.mem.size
	a.linkFree(i)
	limit := a.retain
	if a.closed {
		limit = -1
	}
	a.mu.Unlock()
	a.evict(limit)
	return nil
}

// ZeroOnRelease clears every buffer that is given back from now on, before it may be
// handed out again or goes back to the system.
func (a *Arena) ZeroOnRelease() { a.zero.Store(true) }

// Close gives all free buffers back; a buffer still live is given back at its
// Put, because a view of it may outlive the cache. Get fails afterwards.
func (a *Arena) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.evict(-1)
}

// Stats returns the counters.
func (a *Arena) Stats() ArenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// evict gives the free buffers that were freed first back to the system until
// at most limit bytes are kept. Unmapping happens outside the lock.
func (a *Arena) evict(limit int64) (bytes int64) {
	for {
		a.mu.Lock()
		i := a.oldest
		if i == none || a.stats.FreeBytes <= limit {
			a.mu.Unlock()
			return bytes
		}
		e := &a.entries[i]
		a.unlinkFree(i)
		mem := e.mem
		e.mem = nil
		e.inClass.next = a.spare
		a.spare = i
		a.stats.Evicted++
		a.mu.Unlock()
		bytes += mem.Size()
		mem.Free()
	}
}
