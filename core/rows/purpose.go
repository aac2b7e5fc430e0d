package rows

import (
	"sync"
	"sync/atomic"
)

// Purpose says what a Memory is for. Memory is counted per purpose, so that a
// user who asks where the bytes went gets an answer in terms of the caches.
type Purpose uint8

const (
	PurposeOther    Purpose = iota
	PurposeMirror           // durable rows of the omni keys
	PurposeResult           // tensors returned to the user (Arena)
	PurposeDeferred         // rows waiting for their request to finish
	PurposeStaging          // landing buffers between device and mirror
	PurposeMeta             // packed slot words, indexes

	NumPurposes
)

var purposeNames = [NumPurposes]string{"other", "mirror", "result", "deferred", "staging", "meta"}

func (p Purpose) String() string {
	if p < NumPurposes {
		return purposeNames[p]
	}
	return "invalid"
}

// counters are process-wide: several caches may live in one process, and the
// address space they share is what runs out.
var counters [NumPurposes]struct {
	reserved atomic.Int64
	regions  atomic.Int64
}

// live links every Memory that was not freed. It is walked only when somebody
// asks for resident bytes.
var live struct {
	sync.Mutex
	head *Memory
}

// Usage is what one purpose holds.
type Usage struct {
	Reserved int64 // bytes of address space
	Regions  int64 // number of Memory values
}

// UsageOf returns the counters of one purpose. It never blocks.
func UsageOf(p Purpose) Usage {
	if p >= NumPurposes {
		return Usage{}
	}
	return Usage{Reserved: counters[p].reserved.Load(), Regions: counters[p].regions.Load()}
}

// ResidentOf returns the bytes of physical memory behind one purpose. It asks
// the kernel page by page (mincore) and holds off Free meanwhile: for reports,
// never for a step.
func ResidentOf(p Purpose) int64 {
	live.Lock()
	defer live.Unlock()
	var n int64
	for m := live.head; m != nil; m = m.next {
		if m.purpose == p {
			n += m.Resident()
		}
	}
	return n
}

func (m *Memory) register() {
	counters[m.purpose].reserved.Add(m.size)
	counters[m.purpose].regions.Add(1)
	live.Lock()
	m.next = live.head
	if m.next != nil {
		m.next.prev = m
	}
	live.head = m
	live.Unlock()
}

func (m *Memory) unregister() {
	live.Lock()
	if m.prev != nil {
		m.prev.next = m.next
	} else {
		live.head = m.next
	}
	if m.next != nil {
		m.next.prev = m.prev
	}
	m.next, m.prev = nil, nil
	live.Unlock()
	counters[m.purpose].reserved.Add(-m.size)
	counters[m.purpose].regions.Add(-1)
}
