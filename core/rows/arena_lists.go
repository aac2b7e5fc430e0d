package rows

import (
	"math/bits"
	"unsafe"

	"libprefixcache/core/status"
)

// The lists of an Arena. Everything here runs under its lock.

// find returns a free buffer of the class, or of the next larger class that has
// one, as long as it is not over twice the size: taking a larger one beats
// faulting in a new one, but not at any price.
func (a *Arena) find(class int32, size int64) int32 {
	for w := int(class) / 64; w < len(a.filled); w++ {
		set := a.filled[w]
		if w == int(class)/64 {
			set &= ^uint64(0) << (class % 64)
		}
		if set == 0 {
			continue
		}
		i := a.classes[w*64+bits.TrailingZeros64(set)]
		if a.entries[i].mem.size > 2*size {
			return none
		}
		return i
	}
	return none
}

func (a *Arena) handOut(i int32) unsafe.Pointer {
	e := &a.entries[i]
	e.free = false
	a.stats.LiveBuffers++
	a.stats.LiveBytes += e.mem.size
	return e.mem.base
}

func (a *Arena) linkFree(i int32) {
	e := &a.entries[i]
	e.free = true
	e.inClass = links{none, a.classes[e.class]}
	if n := e.inClass.next; n != none {
		a.entries[n].inClass.prev = i
	}
	a.classes[e.class] = i
	a.filled[e.class/64] |= 1 << (e.class % 64)

	e.inAge = links{none, a.newest}
	if n := e.inAge.next; n != none {
		a.entries[n].inAge.prev = i
	} else {
		a.oldest = i
	}
	a.newest = i
	a.stats.FreeBuffers++
	a.stats.FreeBytes += e.mem.size
}

func (a *Arena) unlinkFree(i int32) {
	e := &a.entries[i]
	e.free = false
	if p := e.inClass.prev; p != none {
		a.entries[p].inClass.next = e.inClass.next
	} else if a.classes[e.class] = e.inClass.next; e.inClass.next == none {
		a.filled[e.class/64] &^= 1 << (e.class % 64)
	}
	if n := e.inClass.next; n != none {
		a.entries[n].inClass.prev = e.inClass.prev
	}
	if p := e.inAge.prev; p != none {
		a.entries[p].inAge.next = e.inAge.next
	} else {
		a.newest = e.inAge.next
	}
	if n := e.inAge.next; n != none {
		a.entries[n].inAge.prev = e.inAge.prev
	} else {
		a.oldest = e.inAge.prev
	}
	a.stats.FreeBuffers--
	a.stats.FreeBytes -= e.mem.size
}

// Check compares the lists with the entries and the counters. For tests.
func (a *Arena) Check() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var want ArenaStats
	spare := 0
	for i := range a.entries {
		switch e := &a.entries[i]; {
		case e.mem == nil:
			spare++
		case e.free:
			want.FreeBuffers++
			want.FreeBytes += e.mem.size
		default:
			want.LiveBuffers++
			want.LiveBytes += e.mem.size
		}
	}
	var aged, classed int64
	for i, prev := a.newest, none; i != none; prev, i = i, a.entries[i].inAge.next {
		if aged++; !a.entries[i].free || a.entries[i].inAge.prev != prev || aged > want.FreeBuffers {
			return status.New(status.Internal, "rows: arena: age list is broken at buffer %d", i)
		}
	}
	for c, first := range a.classes {
		if (first != none) != (a.filled[c/64]>>(c%64)&1 == 1) {
			return status.New(status.Internal, "rows: arena: bit of class %d is wrong", c)
		}
		for i, prev := first, none; i != none; prev, i = i, a.entries[i].inClass.next {
			e := &a.entries[i]
			if classed++; !e.free || int(e.class) != c || e.inClass.prev != prev || classed > want.FreeBuffers {
				return status.New(status.Internal, "rows: arena: list of class %d is broken at buffer %d", c, i)
			}
		}
	}
	n := 0
	for i := a.spare; i != none; i = a.entries[i].inClass.next {
		n++
	}
	want.Hits, want.Misses, want.Evicted = a.stats.Hits, a.stats.Misses, a.stats.Evicted
	if aged != want.FreeBuffers || classed != want.FreeBuffers || n != spare || want != a.stats {
		return status.New(status.Internal, "rows: arena: counters %+v, entries say %+v", a.stats, want)
	}
	return nil
}
