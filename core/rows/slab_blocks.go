package rows

import (
	"unsafe"

	"libprefixcache/core/status"
)

// Segments and blocks of a Slab. Everything here runs under its lock.

func (s *Slab) address(n *blockNode) unsafe.Pointer {
	return s.segments[n.segment].mem.At(int64(n.offset) * slabGranule)
}

func (s *Slab) newNode() int32 {
	if i := s.spare; i != none {
		s.spare = s.nodes[i].nextFree
		return i
	}
	s.nodes = append(s.nodes, blockNode{gen: 1})
	return int32(len(s.nodes) - 1)
}

// dropNode keeps gen, so that an id of an earlier life of the node stays stale.
func (s *Slab) dropNode(i int32) {
	s.nodes[i] = blockNode{gen: s.nodes[i].gen, nextFree: s.spare}
	s.spare = i
}

// addSegment maps a segment that has room for units and returns its one free
// block, which is in the free lists.
func (s *Slab) addSegment(units uint32) (int32, error) {
	bytes := max(segmentBytes, roundUp(int64(units)*slabGranule, HugeBytes))
	mem, err := Reserve(bytes, MemoryOptions{Purpose: PurposeDeferred, DontDump: s.dontDump, DontFork: true})
	if err != nil {
		return none, err
	}
	var k int32
	if n := len(s.spareSeg); n > 0 {
		k, s.spareSeg = s.spareSeg[n-1], s.spareSeg[:n-1]
	} else {
		k = int32(len(s.segments))
		s.segments = append(s.segments, segment{})
	}
	i := s.newNode()
	n := &s.nodes[i]
	n.segment, n.offset, n.units, n.prev, n.next = k, 0, uint32(bytes/slabGranule), none, none
	s.segments[k] = segment{mem: mem, units: n.units, first: i}
	s.stats.Segments++
	s.stats.Reserved += bytes
	s.giveFree(i)
	return i, nil
}

// removeSegment forgets a wholly free segment and returns its memory.
func (s *Slab) removeSegment(i int32) *Memory {
	k := s.nodes[i].segment
	mem := s.segments[k].mem
	s.takeFree(i)
	s.dropNode(i)
	s.segments[k] = segment{first: none}
	s.spareSeg = append(s.spareSeg, k)
	s.stats.Segments--
	s.stats.Reserved -= mem.Size()
	return mem
}

func (s *Slab) wholeSegment(i int32) bool {
	return s.nodes[i].units == s.segments[s.nodes[i].segment].units
}

// giveFree puts a block into the free lists, takeFree takes it out; both keep
// count of the bytes of wholly free segments.
func (s *Slab) giveFree(i int32) {
	s.nodes[i].state = blockFree
	s.fit.insert(s.nodes, i)
	if s.wholeSegment(i) {
		s.idle += int64(s.nodes[i].units) * slabGranule
	}
}

func (s *Slab) takeFree(i int32) {
	s.fit.remove(s.nodes, i)
	if s.wholeSegment(i) {
		s.idle -= int64(s.nodes[i].units) * slabGranule
	}
}

// split cuts block i, which is in no list, after units; the rest becomes free.
func (s *Slab) split(i int32, units uint32) {
	j := s.newNode() // may move s.nodes
	a, b := &s.nodes[i], &s.nodes[j]
	b.segment, b.offset, b.units = a.segment, a.offset+units, a.units-units
	b.prev, b.next = i, a.next
	if a.next != none {
		s.nodes[a.next].prev = j
	}
	a.next, a.units = j, units
	s.giveFree(j)
}

// join merges block i, which is in no list, with its free neighbours and returns
// the merged block. Two free blocks are never neighbours, so two steps do.
func (s *Slab) join(i int32) int32 {
	if j := s.nodes[i].next; j != none && s.nodes[j].state == blockFree {
		s.takeFree(j)
		s.absorb(i, j)
	}
	if j := s.nodes[i].prev; j != none && s.nodes[j].state == blockFree {
		s.takeFree(j)
		s.absorb(j, i)
		i = j
	}
	return i
}

// absorb appends block j to its neighbour i before it.
func (s *Slab) absorb(i, j int32) {
	a, b := &s.nodes[i], &s.nodes[j]
	a.units += b.units
	a.next = b.next
	if b.next != none {
		s.nodes[b.next].prev = i
	}
	s.dropNode(j)
}

// Check walks everything and compares: blocks cover their segment without gaps,
// free neighbours are joined, lists and counters agree with the blocks. For
// tests; it takes time linear in what is live.
func (s *Slab) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	broken := func(format string, args ...any) error {
		return status.New(status.Internal, "rows: slab: "+format, args...)
	}
	var live, liveBytes, free, idle, reserved, segments, used int64
	for k, g := range s.segments {
		if g.mem == nil {
			continue
		}
		segments++
		reserved += g.mem.Size()
		if int64(g.units)*slabGranule != g.mem.Size() {
			return broken("segment %d has %d units and %d bytes", k, g.units, g.mem.Size())
		}
		var at uint32
		for i, prev := g.first, none; i != none; prev, i = i, s.nodes[i].next {
			n := &s.nodes[i]
			used++
			if n.segment != int32(k) || n.offset != at || n.units == 0 || n.prev != prev || at+n.units > g.units {
				return broken("segment %d: block %d %+v, expected offset %d after block %d", k, i, *n, at, prev)
			}
			at += n.units
			switch n.state {
			case blockLive:
				live++
				liveBytes += int64(n.units) * slabGranule
			case blockFree:
				free++
				if prev != none && s.nodes[prev].state == blockFree {
					return broken("segment %d: free blocks %d and %d are not joined", k, prev, i)
				}
				if n.units == g.units {
					idle += g.mem.Size()
				}
			default:
				return broken("segment %d: block %d is spare", k, i)
			}
		}
		if at != g.units {
			return broken("segment %d: blocks cover %d of %d units", k, at, g.units)
		}
	}
	for i := s.spare; i != none; i = s.nodes[i].nextFree {
		if used++; s.nodes[i].state != blockSpare {
			return broken("block %d is in use and spare", i)
		}
	}
	listed, err := s.fit.check(s.nodes)
	if err != nil {
		return err
	}
	st := s.stats
	if listed != free || used != int64(len(s.nodes)) || idle != s.idle ||
		live != st.LiveChunks || liveBytes != st.LiveBytes || segments != st.Segments || reserved != st.Reserved || st.Allocs-st.Frees != live {
		return broken("counted live %d (%d bytes), free %d, listed %d, idle %d, segments %d (%d bytes), nodes %d of %d; has idle %d, %+v",
			live, liveBytes, free, listed, idle, segments, reserved, used, len(s.nodes), s.idle, st)
	}
	return nil
}
