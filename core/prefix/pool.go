package prefix

import (
	"iter"
	"math"

	"libprefixcache/core/status"
)

// idQueue holds free slots, the one that has been free longest first (C-17). A slot is
// free once at most, so a ring with a place for each is never too small.
type idQueue struct {
	ring []int32
	head int
	n    int
}

func newIDQueue(size int) idQueue {
	q := idQueue{ring: make([]int32, size), n: size}
	for i := range q.ring {
		q.ring[i] = int32(i)
	}
	return q
}

// take appends the first n slots to out. The caller checked that they are there.
func (q *idQueue) take(n int, out []int32) []int32 {
	if n > q.n {
		panic("prefix: more slots taken than are free")
	}
	q.n -= n
	first := q.ring[q.head:min(q.head+n, len(q.ring))]
	rest := q.ring[:n-len(first)]
	if q.head += n; q.head >= len(q.ring) {
		q.head -= len(q.ring)
	}
	return append(append(out, first...), rest...)
}

// takeOne is take of one slot, which is what decoding asks for.
func (q *idQueue) takeOne() int32 {
	if q.n == 0 {
		panic("prefix: a slot taken when none is free")
	}
	slot := q.ring[q.head]
	q.n--
	if q.head++; q.head == len(q.ring) {
		q.head = 0
	}
	return slot
}

// put frees slots, the first of them to be taken before the others.
func (q *idQueue) put(slots []int32) {
	if len(slots) > len(q.ring)-q.n {
		panic("prefix: more slots freed than were taken")
	}
	at := q.head + q.n
	if at >= len(q.ring) {
		at -= len(q.ring)
	}
	q.n += len(slots)
	copy(q.ring, slots[copy(q.ring[at:], slots):])
}

// all are the free slots in order.
func (q *idQueue) all() iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for i := range q.n {
			if !yield(q.ring[(q.head+i)%len(q.ring)]) {
				return
			}
		}
	}
}

// pagePool is one pool of pages.
//
// The counts of C-16 are not kept for each page: active counts the pages that
// at least one lease owns, and everything that is neither free nor active is
// reclaimable, because a page that nobody owns and no record lists is free
// (C-16). That makes feasibility O(1): see canHold.
type pagePool struct {
	free   idQueue
	active int
	size   int
}

func newPagePool(size int) pagePool { return pagePool{free: newIDQueue(size), size: size} }

// canHold says whether want more private pages can be had, with eviction, once
// pin more cached pages are active. Exact, because only records and leases hold pages.
func (p *pagePool) canHold(pin, want int) bool { return want <= p.size-p.active-pin }

// take appends n free pages to out and makes them active. The caller checked that they
// are there.
func (p *pagePool) take(n int, out []int32) []int32 {
	p.active += n
	return p.free.take(n, out)
}

func (p *pagePool) takeOne() int32 {
	p.active++
	return p.free.takeOne()
}

// slotPool is one pool of snapshot slots with the two counts of C-16 for each.
type slotPool struct {
	refs   []slotRefs
	free   idQueue
	active int // slots with an active count
}

type slotRefs struct{ active, cache int32 }

func newSlotPool(size int) slotPool {
	return slotPool{refs: make([]slotRefs, size), free: newIDQueue(size)}
}

func (p *slotPool) canHold(pin, want int) bool { return want <= len(p.refs)-p.active-pin }

// take hands out the slot that has been free longest, active once (C-19).
func (p *slotPool) take() int32 {
	s := p.free.takeOne()
	p.refs[s].active = 1
	p.active++
	return s
}

// hold adds references to a slot that is in use.
func (p *slotPool) hold(s int32, active, cache int32) error {
	if s < 0 || int(s) >= len(p.refs) {
		return status.New(status.InvalidArgument, "slot is %d, expected 0..%d", s, len(p.refs)-1)
	}
	r := &p.refs[s]
	if r.active|r.cache == 0 {
		return status.New(status.WrongState, "slot %d is free, expected one in use", s)
	}
	if r.active > math.MaxInt32-active || r.cache > math.MaxInt32-cache {
		return status.New(status.WrongState, "a count of slot %d would pass %d", s, math.MaxInt32)
	}
	if r.active == 0 && active > 0 {
		p.active++
	}
	r.active += active
	r.cache += cache
	return nil
}

// drop takes references away, and frees the slot with the last one (C-16).
// freed says whether that happened now.
func (p *slotPool) drop(s int32, active, cache int32) (freed bool, err error) {
	if s < 0 || int(s) >= len(p.refs) {
		return false, status.New(status.InvalidArgument, "slot is %d, expected 0..%d", s, len(p.refs)-1)
	}
	r := &p.refs[s]
	if r.active < active || r.cache < cache || active+cache == 0 {
		return false, status.New(status.WrongState, "slot %d has counts %d/%d, cannot drop %d/%d", s, r.active, r.cache, active, cache)
	}
	if active > 0 && r.active == active {
		p.active--
	}
	r.active -= active
	r.cache -= cache
	if r.active|r.cache != 0 {
		return false, nil
	}
	p.free.put([]int32{s})
	return true, nil
}
