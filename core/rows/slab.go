package rows

import (
	"sync"
	"unsafe"

	"libprefixcache/core/status"
)

const (
	// slabGranule is the unit of sizes and the alignment of chunks: a line, so
	// that streamed moves of chunks have no ragged head.
	slabGranule = lineBytes
	// segmentBytes is how much address space a Slab takes at a time. Larger
	// chunks get a segment of their own size.
	segmentBytes = 32 << 20
	maxChunk     = 1 << 37 // granules of it fit 31 bits

	// DefaultSlabRetain is what a Slab keeps in wholly free segments: enough that
	// load that comes and goes does not map and fault the same memory each time.
	DefaultSlabRetain = 2 * segmentBytes
)

// SlabOptions are the choices of NewSlab.
type SlabOptions struct {
	// RetainBytes caps the wholly free segments that are kept for reuse. 0 is
	// DefaultSlabRetain, a negative number keeps none.
	RetainBytes int64
	DontDump    bool // see MemoryOptions
}

// SlabStats is what a Slab holds now, and its counters since NewSlab.
type SlabStats struct {
	LiveChunks, LiveBytes int64 // allocated, rounded up to 64 bytes
	FreeBytes             int64 // in segments and not allocated
	Segments, Reserved    int64 // address space held: LiveBytes + FreeBytes
	Allocs, Frees         int64
}

// Slab allocates chunks of any size for rows that wait for their request to
// finish, and takes them back one by one in any order. Safe for concurrent use.
//
// It is a two-level segregated fit: Alloc and Free take a bounded number of
// steps whatever is live, neighbours that are free are always joined, and the
// book-keeping lies beside the chunks, not in them, where an overrun could reach
// it. A chunk is never moved, so a segment stays while anything in it is live.
// The lock is held for an mmap when a segment is added, and for nothing else that
// can wait.
type Slab struct {
	retain   int64
	dontDump bool

	mu       sync.Mutex
	closed   bool
	segments []segment // index is blockNode.segment
	spareSeg []int32   // unused indexes of segments
	nodes    []blockNode
	spare    int32 // unused nodes, linked by nextFree
	idle     int64 // bytes of wholly free segments
	fit      freeLists
	stats    SlabStats
}

type segment struct {
	mem   *Memory // nil while the index is unused
	units uint32
	first int32 // node at offset 0
}

// blockNode is a stretch of a segment, live or free. Nodes of a segment form a
// chain in address order that covers it.
type blockNode struct {
	segment            int32
	offset, units      uint32 // in granules
	gen                uint32
	state              blockState
	prev, next         int32 // neighbours by address
	prevFree, nextFree int32 // neighbours in a free list
}

type blockState uint8

const (
	blockSpare blockState = iota
	blockFree
	blockLive
)

// NewSlab returns an empty slab.
func NewSlab(o SlabOptions) *Slab {
	s := &Slab{retain: o.RetainBytes, dontDump: o.DontDump, spare: none}
	if s.retain == 0 {
		s.retain = DefaultSlabRetain
	}
	s.fit.init()
	return s
}

// Alloc returns a chunk of at least bytes bytes, aligned to 64, and the id that
// frees it. Its contents are undefined.
func (s *Slab) Alloc(bytes int64) (ptr unsafe.Pointer, id uint64, err error) {
	if bytes <= 0 {
		return nil, 0, status.New(status.InvalidArgument, "rows: bytes is %d, expected more than 0", bytes)
	}
	if bytes > maxChunk {
		return nil, 0, status.New(status.OutOfMemory, "rows: cannot allocate %d bytes (deferred): a chunk has at most %d", bytes, int64(maxChunk))
	}
	units := uint32((bytes + slabGranule - 1) / slabGranule)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, status.New(status.Closed, "rows: the slab is closed")
	}
	i := s.fit.find(s.nodes, units)
	if i == none {
		if i, err = s.addSegment(units); err != nil {
			return nil, 0, err
		}
	}
	s.takeFree(i)
	if rest := s.nodes[i].units - units; rest > 0 {
		s.split(i, units)
	}
	n := &s.nodes[i]
	n.state = blockLive
	s.stats.Allocs++
	s.stats.LiveChunks++
	s.stats.LiveBytes += int64(units) * slabGranule
	return s.address(n), makeID(i, n.gen), nil
}

// Free gives a chunk back. An id that is not live is an InvalidArgument error
// and changes nothing.
func (s *Slab) Free(id uint64) error {
	index, gen := splitID(id)
	s.mu.Lock()
	if int64(index) >= int64(len(s.nodes)) || s.nodes[index].gen != gen || s.nodes[index].state != blockLive {
		s.mu.Unlock()
		return status.New(status.InvalidArgument, "rows: slab chunk %#x is not live: freed already, or never allocated", id)
	}
	i, n := int32(index), &s.nodes[index]
	n.gen = nextGen(gen)
	bytes := int64(n.units) * slabGranule
	poison(s.address(n), bytes)
	s.stats.Frees++
	s.stats.LiveChunks--
	s.stats.LiveBytes -= bytes
	i = s.join(i)
	s.giveFree(i)
	var drop *Memory
	if s.idle > s.retain && s.wholeSegment(i) {
		drop = s.removeSegment(i)
	}
	s.mu.Unlock()
	drop.Free() // outside the lock: it is a system call
	return nil
}

// Trim gives every wholly free segment back to the system and returns the bytes.
func (s *Slab) Trim() (bytes int64) {
	var drop []*Memory
	s.mu.Lock()
	for k := range s.segments {
		if g := &s.segments[k]; g.mem != nil && s.nodes[g.first].state == blockFree && s.wholeSegment(g.first) {
			bytes += g.mem.Size()
			drop = append(drop, s.removeSegment(g.first))
		}
	}
	s.mu.Unlock()
	for _, m := range drop {
		m.Free()
	}
	return bytes
}

// Close frees everything, live chunks too: nobody may use one any more.
func (s *Slab) Close() {
	s.mu.Lock()
	segments := s.segments
	s.closed = true
	s.segments, s.spareSeg, s.nodes, s.spare, s.idle = nil, nil, nil, none, 0
	s.fit.init()
	s.stats = SlabStats{Allocs: s.stats.Allocs, Frees: s.stats.Frees}
	s.mu.Unlock()
	for _, g := range segments {
		g.mem.Free()
	}
}

// Stats returns the counters.
func (s *Slab) Stats() SlabStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.FreeBytes = st.Reserved - st.LiveBytes
	return st
}
