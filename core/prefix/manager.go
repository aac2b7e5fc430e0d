package prefix

import (
	"io"

	"libprefixcache/core/status"
)

// Manager is the CUDA-free manager of pages, records and leases. It starts no
// goroutine and takes no lock: the caller serialises all calls (section 9).
type Manager struct{ cfg Config }

var errTodo = status.New(status.Unsupported, "not built yet")

// New makes a manager whose pools are free and whose index is empty.
func New(cfg Config) (*Manager, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Manager{cfg: cfg}, nil
}

// Plan says what Acquire would do, and changes nothing.
func (m *Manager) Plan(req *AcquireRequest) (Plan, error) { return Plan{}, errTodo }

// Acquire plans, pins, evicts and allocates in one step (C-50).
func (m *Manager) Acquire(req *AcquireRequest) (AcquireResult, error) { return AcquireResult{}, errTodo }

// Append adds tokens to the lease's history; they need no page yet (C-14: never media).
func (m *Manager) Append(id LeaseID, tokens []int32) error { return errTodo }

// Grow appends private pages to the lease; false: no capacity, nothing changed (C-54).
func (m *Manager) Grow(id LeaseID, base, draft int) (bool, error) { return false, errTodo }

// Publish makes the full blocks of the first resident tokens of the history findable (9.3).
func (m *Manager) Publish(id LeaseID, resident int) (PublishResult, error) {
	return PublishResult{}, errTodo
}

// PublishKeys is Publish on the block-key level; keys[0] belongs to block first.
func (m *Manager) PublishKeys(id LeaseID, first int, keys []Hash128, resident int) (PublishResult, error) {
	return PublishResult{}, errTodo
}

// PublishHybrid publishes the checkpoint of the first length tokens (9.4).
func (m *Manager) PublishHybrid(id LeaseID, length int, slots Reservation) (PublishResult, error) {
	return PublishResult{}, errTodo
}

// PublishHybridKeys is PublishHybrid on the block-key level.
func (m *Manager) PublishHybridKeys(id LeaseID, first int, keys []Hash128, at Checkpoint, slots Reservation) (PublishResult, error) {
	return PublishResult{}, errTodo
}

// Reserve takes snapshot slots for one capture; false: none obtainable, not an error.
func (m *Manager) Reserve(id LeaseID, needPartial bool) (Reservation, bool, error) {
	return Reservation{-1, -1}, false, errTodo
}

// Retire drops the producer's hold on reserved slots (C-62).
func (m *Manager) Retire(id LeaseID, slots Reservation) error { return errTodo }

// ReleaseRestored drops the pins on the slots that a hybrid hit bound.
func (m *Manager) ReleaseRestored(id LeaseID) error { return errTodo }

// Release ends the lease; the empty id is a no-op (C-64).
func (m *Manager) Release(id LeaseID) error { return errTodo }

// PageCount is the number of pages the lease holds in a page pool.
func (m *Manager) PageCount(id LeaseID, pool Resource) (int, error) { return 0, errTodo }

// Pages copies pages [first, first+len(out)) of the lease into out.
func (m *Manager) Pages(id LeaseID, pool Resource, first int, out []int32) error { return errTodo }

// HistoryLength is the number of tokens in the lease's history.
func (m *Manager) HistoryLength(id LeaseID) (int, error) { return 0, errTodo }

// Invalidate drops every record of an adapter; any generation when generation
// is nil. Pages in use stay with their leases, whose later publications are dropped.
func (m *Manager) Invalidate(adapter Hash128, generation *uint64) int { return 0 }

// Flush drops every record, under the same rule as Invalidate.
func (m *Manager) Flush() int { return 0 }

// EvictRecord drops one record (C-65).
func (m *Manager) EvictRecord(id RecordID) error { return errTodo }

// Free and Capacity count the slots of a pool.
func (m *Manager) Free(pool Resource) int     { return 0 }
func (m *Manager) Capacity(pool Resource) int { return 0 }

// Records is the number of resident records.
func (m *Manager) Records() int { return 0 }

// Check verifies every structural invariant (C-67..C-71); it changes nothing.
func (m *Manager) Check() error { return nil }

// Dump writes the whole state readably.
func (m *Manager) Dump(w io.Writer) error { return nil }

// Counters since creation, monotonic (C-66).
type Counters struct {
	EvictedRecords  uint64
	Reclaimed       [4]uint64 // by Resource: went back to a free list when a record was evicted
	HashCollisions  uint64    // equal table hash, different content
	Acquires        uint64
	Infeasible      uint64
	ReasonCount     [16]uint64 // by Reason, acquired leases only
	StalePublishes  uint64
	InvalidatedRecs uint64
}

// Counters returns a copy.
func (m *Manager) Counters() Counters { return Counters{} }
