package rows

import (
	"math/bits"

	"libprefixcache/core/status"
)

// freeLists are the two-level segregated lists of free blocks. The first level
// is the power of two of a size in granules, the second cuts it into fitSteps
// equal parts; a bit per list tells whether it is empty, so the smallest list
// that is sure to fit is found with two bit scans.
type freeLists struct {
	levels uint32               // bit l: some list of level l is not empty
	steps  [fitLevels]uint16    // bit p: list p of the level is not empty
	heads  [fitLevels][16]int32 // first block of each list
}

const (
	fitBits   = 4
	fitSteps  = 1 << fitBits
	fitLevels = 32 - fitBits + 1 // level 0 holds the sizes below fitSteps, one each
)

func (f *freeLists) init() {
	*f = freeLists{}
	for l := range f.heads {
		for p := range f.heads[l] {
			f.heads[l][p] = none
		}
	}
}

// fitList is the list that a free block of this size is in: sizes from its lower
// bound up to the next list's.
func fitList(units uint32) (level, step int) {
	if units < fitSteps {
		return 0, int(units)
	}
	top := bits.Len32(units) - 1
	return top - fitBits + 1, int(units>>(top-fitBits)) & (fitSteps - 1)
}

// find returns a free block of at least units, or none. Every block of the list
// it takes one from is large enough, so no list is ever searched. A block of
// just the size in the list below is found only when it is the first there.
func (f *freeLists) find(nodes []blockNode, units uint32) int32 {
	l, p := fitList(units)
	if i := f.heads[l][p]; i != none && nodes[i].units >= units {
		return i
	}
	// The next list up, where every block is larger.
	if p++; p == fitSteps {
		l, p = l+1, 0
	}
	if l >= fitLevels {
		return none
	}
	if set := f.steps[l] & (^uint16(0) << p); set != 0 {
		return f.heads[l][bits.TrailingZeros16(set)]
	}
	set := f.levels & (^uint32(0) << (l + 1))
	if set == 0 {
		return none
	}
	l = bits.TrailingZeros32(set)
	return f.heads[l][bits.TrailingZeros16(f.steps[l])]
}

// insert puts a block first, so that the pages freed last are used next.
func (f *freeLists) insert(nodes []blockNode, i int32) {
	l, p := fitList(nodes[i].units)
	n := &nodes[i]
	n.prevFree, n.nextFree = none, f.heads[l][p]
	if n.nextFree != none {
		nodes[n.nextFree].prevFree = i
	}
	f.heads[l][p] = i
	f.steps[l] |= 1 << p
	f.levels |= 1 << l
}

func (f *freeLists) remove(nodes []blockNode, i int32) {
	n := &nodes[i]
	if n.nextFree != none {
		nodes[n.nextFree].prevFree = n.prevFree
	}
	if n.prevFree != none {
		nodes[n.prevFree].nextFree = n.nextFree
		return
	}
	l, p := fitList(n.units)
	if f.heads[l][p] = n.nextFree; n.nextFree != none {
		return
	}
	if f.steps[l] &^= 1 << p; f.steps[l] == 0 {
		f.levels &^= 1 << l
	}
}

// check returns the number of listed blocks, or what is wrong with the lists.
func (f *freeLists) check(nodes []blockNode) (listed int64, err error) {
	for l := range f.heads {
		if (f.steps[l] != 0) != (f.levels>>l&1 == 1) {
			return 0, status.New(status.Internal, "rows: slab: bit of level %d is wrong", l)
		}
		for p, first := range f.heads[l] {
			if (first != none) != (f.steps[l]>>p&1 == 1) {
				return 0, status.New(status.Internal, "rows: slab: bit of list %d/%d is wrong", l, p)
			}
			for i, prev := first, none; i != none; prev, i = i, nodes[i].nextFree {
				n := &nodes[i]
				nl, np := fitList(n.units)
				if listed++; n.state != blockFree || n.prevFree != prev || nl != l || np != p || listed > int64(len(nodes)) {
					return 0, status.New(status.Internal, "rows: slab: list %d/%d is broken at block %d", l, p, i)
				}
			}
		}
	}
	return listed, nil
}
