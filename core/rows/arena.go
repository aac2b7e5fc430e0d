package rows

import (
	"unsafe"

	"libprefixcache/core/status"
)

// ArenaMinBytes is the size from which a result is worth an arena buffer: below
// it the caller's own allocator recycles pages well enough.
const ArenaMinBytes = 1 << 20

// ArenaOptions are the choices of NewArena.
type ArenaOptions struct {
	// Purpose is the counter the buffers are charged to (default: result).
	Purpose Purpose
	// RetainBytes caps the free buffers that are kept for reuse. 0 is the
	// default of 1 GiB, a negative number keeps none.
	RetainBytes int64
	DontDump    bool
}

// ArenaStats are counters since NewArena and what is held now.
type ArenaStats struct {
	LiveBuffers, LiveBytes int64 // handed out
	FreeBuffers, FreeBytes int64 // kept for reuse
	Hits, Misses           int64 // Get served from a free buffer, or by new memory
	Evicted                int64 // free buffers given back to the system
}

// Arena hands out large buffers for results and takes them back when the last
// view of the result has died. Safe for concurrent use.
type Arena struct{ opt ArenaOptions }

// NewArena returns an empty arena.
func NewArena(o ArenaOptions) *Arena { return &Arena{opt: o} }

// Get returns a buffer of at least bytes bytes, aligned to 2 MiB, and the id that
// gives it back. Its contents are undefined: whoever gets it writes all of it.
func (a *Arena) Get(bytes int64) (ptr unsafe.Pointer, id uint64, err error) {
	return nil, 0, status.New(status.Unsupported, "rows: arena is not built yet")
}

// Put gives a buffer back. An id that is not live is an InvalidArgument error.
func (a *Arena) Put(id uint64) error {
	return status.New(status.Unsupported, "rows: arena is not built yet")
}

// Trim gives all free buffers back to the system and returns their bytes.
func (a *Arena) Trim() int64 { return 0 }

// Close gives all free buffers back; buffers still live are given back at their
// Put. Get fails afterwards.
func (a *Arena) Close() {}

// Stats returns the counters.
func (a *Arena) Stats() ArenaStats { return ArenaStats{} }
