package rows

import (
	"unsafe"

	"libprefixcache/core/status"
)

// SlabOptions are the choices of NewSlab.
type SlabOptions struct {
	// Purpose is the counter the segments are charged to (default: deferred).
	Purpose Purpose
	// RetainBytes caps the wholly free segments that are kept for reuse. 0 is the
	// default of 64 MiB, a negative number keeps none.
	RetainBytes int64
	DontDump    bool
}

// SlabStats is what a Slab holds now, and its counters since NewSlab.
type SlabStats struct {
	LiveChunks, LiveBytes int64 // allocated, rounded to the 64-byte granule
	Segments, Reserved    int64 // address space held
	Allocs, Frees         int64
}

// Slab allocates chunks of any size for rows that wait for their request to
// finish. Safe for concurrent use; O(1) per operation.
type Slab struct{ opt SlabOptions }

// NewSlab returns an empty slab.
func NewSlab(o SlabOptions) *Slab { return &Slab{opt: o} }

// Alloc returns a chunk of at least bytes bytes, aligned to 64, and the id that
// frees it. Its contents are undefined.
func (s *Slab) Alloc(bytes int64) (ptr unsafe.Pointer, id uint64, err error) {
	return nil, 0, status.New(status.Unsupported, "rows: slab is not built yet")
}

// Free gives a chunk back. An id that is not live is an InvalidArgument error.
func (s *Slab) Free(id uint64) error {
	return status.New(status.Unsupported, "rows: slab is not built yet")
}

// Trim gives every wholly free segment back to the system and returns the bytes.
func (s *Slab) Trim() int64 { return 0 }

// Close frees everything, live chunks too.
func (s *Slab) Close() {}

// Stats returns the counters.
func (s *Slab) Stats() SlabStats { return SlabStats{} }
