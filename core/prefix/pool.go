package prefix

import (
	"math"

	"libprefixcache/core/status"
)

// chain is a singly linked list of slots, linked through somebody else's next
// array. first and last mean nothing while n is 0; next[last] never means anything.
type chain struct {
	first, last int32
	n           int
}

// join puts b behind a. O(1): this is what makes trim and release O(1).
func (a *chain) join(next []int32, b chain) {
	switch {
	case b.n == 0:
	case a.n == 0:
		*a = b
	default:
		next[a.last] = b.first
		a.last = b.last
		a.n += b.n
	}
}

// pagePool is one pool of pages. A run of pages and the free list are chains
// through the same next array, so pages move between them by splicing.
//
// The counts of C-16 are not kept for each page: active counts the pages that
// at least one lease owns, and everything that is neither free nor active is
// reclaimable, because a page that nobody owns and no record lists is free
// (C-16). That makes feasibility O(1): see canHold.
type pagePool struct {
	next   []int32
	free   chain // FIFO: allocate at the head, release to the tail (C-17)
	active int
	size   int
}

func newPagePool(size int) pagePool {
	p := pagePool{next: make([]int32, size), size: size}
	for i := range p.next {
		p.next[i] = int32(i) + 1
	}
	p.free = chain{0, int32(size) - 1, size}
	return p
}

// canHold says whether want more private pages can be had, with eviction, once
// pin more cached pages are active. Exact, because only records and leases hold pages.
func (p *pagePool) canHold(pin, want int) bool { return want <= p.size-p.active-pin }

// take cuts n pages from the head of the free list, appends their ids to out, and makes
// them active. The caller checked that they are there.
func (p *pagePool) take(n int, out []int32) []int32 {
	at := p.free.first
	for left := int32(n); left > 0; {
		run := adjacent(p.next, at, left)
		// The links of a run are its ids, one further.
		out = append(append(out, at), p.next[at:at+run-1]...)
		at = p.next[at+run-1]
		left -= run
	}
	p.cut(n, at)
	return out
}

// cut makes the first n pages of the free list active; at is the one behind them.
func (p *pagePool) cut(n int, at int32) {
	p.free.first = at
	p.free.n -= n
	p.active += n
}

// takeOne is take of one page, which is what decoding asks for.
func (p *pagePool) takeOne() int32 {
	page := p.free.first
	p.cut(1, p.next[page])
	return page
}

// adjacent counts the slots of a chain that goes on for at least n, from at on,
// whose ids follow one another.
func adjacent(next []int32, at, n int32) int32 {
	next = next[at:min(at+n, int32(len(next)))]
	want := at + 1
	i := 0
	for ; i+4 < len(next) && next[i] == want && next[i+1] == want+1 && next[i+2] == want+2 && next[i+3] == want+3; i += 4 {
		want += 4
	}
	for ; i+1 < len(next) && next[i] == want; i++ {
		want++
	}
	return int32(i + 1)
}

func (p *pagePool) put(c chain) { p.free.join(p.next, c) }

// slotPool is one pool of snapshot slots with the two counts of C-16 for each.
type slotPool struct {
	refs   []slotRefs
	next   []int32
	free   chain
	active int // slots with an active count
}

type slotRefs struct{ active, cache int32 }

func newSlotPool(size int) slotPool {
	p := newPagePool(size)
	return slotPool{refs: make([]slotRefs, size), next: p.next, free: p.free}
}

func (p *slotPool) canHold(pin, want int) bool { return want <= len(p.refs)-p.active-pin }

// take hands out the slot that has been free longest, active once (C-19).
func (p *slotPool) take() int32 {
	s := p.free.first
	p.free.first = p.next[s]
	p.free.n--
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
	p.free.join(p.next, chain{s, s, 1})
	return true, nil
}
