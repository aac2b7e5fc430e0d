package rows

import "sync/atomic"

// Purpose says what a Memory is for: in the error when it cannot be had, and in the
// counters.
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
// address space they share is what runs out. Nothing decides by them; the tests see
// by them that whatever was reserved is given back.
var counters [NumPurposes]struct {
	reserved atomic.Int64 // bytes of address space
	regions  atomic.Int64 // Memory values
}

func (m *Memory) register() {
	counters[m.purpose].reserved.Add(m.size)
	counters[m.purpose].regions.Add(1)
}

func (m *Memory) unregister() {
	counters[m.purpose].reserved.Add(-m.size)
	counters[m.purpose].regions.Add(-1)
}
