package main

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"libprefixcache/core/status"
)

// A handle is kind (8 bits) | generation (40 bits) | index (16 bits). The
// generation of each index starts at a random value, so that a handle of
// another copy of the library in the same process is refused too.
type handle uint64

type kind uint8

const (
	kindOmni    kind = 1
	kindContext kind = 2
	kindBuffer  kind = 3
	kindManager kind = 4
	kindTable   kind = 5
)

var kindNames = [...]string{kindOmni: "an omni cache", kindContext: "a context cache", kindBuffer: "a buffer",
	kindManager: "a page manager", kindTable: "a page table"}

func (k kind) known() bool { return k > 0 && int(k) < len(kindNames) }

func (k kind) String() string {
	if !k.known() {
		return "an unknown object"
	}
	return kindNames[k]
}

const (
	indexBits = 16
	genBits   = 40
	genMask   = 1<<genBits - 1
	maxIndex  = 1 << indexBits
)

func makeHandle(k kind, gen uint64, index int) handle {
	return handle(uint64(k)<<(indexBits+genBits) | (gen&genMask)<<indexBits | uint64(index))
}

func (h handle) kind() kind { return kind(h >> (indexBits + genBits)) }
func (h handle) index() int { return int(h & (maxIndex - 1)) }

// entry is one place of the handle table.
//
// users is what makes destroy safe while other threads are inside a call: a
// call adds one user before it looks at the object, and destroy first makes the
// handle unreachable (live = 0), then waits until no user is left.
type entry struct {
	live   atomic.Uint64 // the handle, or 0
	users  atomic.Int64
	object any
	gen    uint64 // owned by the table's lock
}

// table maps handles to objects. Look-ups take no lock and do not allocate.
type table struct {
	mu   sync.Mutex // guards free, used and gen
	free []int
	used int
	// Entries are found through a fixed directory of chunks, so that a look-up
	// never races with growth.
	chunks [maxIndex / chunkSize]atomic.Pointer[[chunkSize]entry]
}

const chunkSize = 256

var handles table

func (t *table) at(index int) *entry {
	c := t.chunks[index/chunkSize].Load()
	if c == nil {
		return nil
	}
	return &c[index%chunkSize]
}

// add gives object a handle.
func (t *table) add(k kind, object any) (handle, *status.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var index int
	if n := len(t.free); n > 0 {
		index = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		if t.used == maxIndex {
			return 0, status.New(status.OutOfMemory, "too many live objects: %d, expected at most %d", t.used, maxIndex)
		}
		index = t.used
		t.used++
		if index%chunkSize == 0 {
			c := new([chunkSize]entry)
			for i := range c {
				c[i].gen = rand.Uint64()
			}
			t.chunks[index/chunkSize].Store(c)
		}
	}
	e := t.at(index)
	e.gen++
	if e.gen&genMask == 0 {
		e.gen++
	}
	e.object = object
	h := makeHandle(k, e.gen, index)
	e.live.Store(uint64(h))
	return h, nil
}

// enter looks h up and keeps its object alive until leave.
func (t *table) enter(h handle, k kind, argument string) (*entry, *status.Error) {
	e := t.at(h.index())
	if e == nil || h.kind() != k {
		return nil, badHandle(h, k, argument)
	}
	e.users.Add(1)
	if e.live.Load() != uint64(h) {
		e.users.Add(-1)
		return nil, badHandle(h, k, argument)
	}
	return e, nil
}

func leftBroken(k kind, argument string) *status.Error {
	return status.New(status.Internal, "%s: %s was left unusable by an internal error in an earlier call; destroy it and create a new one", argument, k)
}

func badHandle(h handle, k kind, argument string) *status.Error {
	if h == 0 {
		return status.New(status.BadHandle, "%s: 0 is not a handle, expected %s", argument, k)
	}
	if h.kind() != k && h.kind().known() {
		return status.New(status.BadHandle, "%s: %#x is a handle of %s, expected %s", argument, uint64(h), h.kind(), k)
	}
	return status.New(status.BadHandle, "%s: %#x is stale or was never issued, expected %s", argument, uint64(h), k)
}

func (e *entry) leave() { e.users.Add(-1) }

// remove makes h unreachable, waits for calls that are inside, and returns the
// object. Of two threads that remove the same handle one gets an error.
func (t *table) remove(h handle, k kind, argument string) (object any, err *status.Error) {
	e := t.at(h.index())
	if h == 0 || e == nil || h.kind() != k || !e.live.CompareAndSwap(uint64(h), 0) {
		return nil, badHandle(h, k, argument)
	}
	// Calls are short or bounded by the claim timeout; destroy is rare, so
	// a growing sleep is simpler than a wake-up that every call would pay for.
	for pause := time.Microsecond; e.users.Load() != 0; pause = min(2*pause, 5*time.Millisecond) {
		runtime.Gosched()
		time.Sleep(pause)
	}
	object = e.object
	t.mu.Lock()
	e.object = nil
	t.free = append(t.free, h.index())
	t.mu.Unlock()
	return object, nil
}
