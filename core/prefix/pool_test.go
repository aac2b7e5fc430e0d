package prefix

import (
	"math"
	"testing"

	"libprefixcache/core/status"
)

func TestC15_IdsArePoolLocal(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 4, DraftPages: 4, RecurrentSlots: 2, PartialSlots: 2})
	spec, _ := h.acquire(AcquireRequest{Mode: Spec, Tokens: tokens(1, 5)})
	hybrid, _ := h.acquire(AcquireRequest{Mode: Hybrid, Tokens: tokens(2, 5)})
	slots, ok, err := h.Reserve(hybrid, true)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	wantSlice(t, "base pages", h.pages(spec, BasePages), []int32{0, 1})
	wantSlice(t, "draft pages", h.pages(spec, DraftPages), []int32{0, 1})
	wantEqual(t, "slots", slots, Reservation{0, 0})
}

func TestC16_ASlotIsFreeWhenBothCountsAreZero(t *testing.T) {
	// Both orders of release, in a page pool and in a slot pool.
	for _, leaseFirst := range []bool{true, false} {
		h := newHost(t, Config{PageTokens: 4, BasePages: 4, DraftPages: 4, RecurrentSlots: 1, PartialSlots: 1})
		spec, _ := h.acquire(AcquireRequest{Mode: Spec, Tokens: tokens(1, 4)})
		hybrid, _ := h.acquire(AcquireRequest{Mode: Hybrid, Tokens: tokens(2, 6)})
		a, b := h.publish(spec, 4), h.checkpoint(hybrid, 6)
		free := func() [4]int {
			return [4]int{h.Free(BasePages), h.Free(DraftPages), h.Free(RecurrentSlots), h.Free(PartialSlots)}
		}
		wantEqual(t, "free slots, all held", free(), [4]int{1, 3, 0, 0})
		if leaseFirst {
			h.release(spec, hybrid)
			wantEqual(t, "free slots after the leases", free(), [4]int{2, 3, 0, 0}) // one private page of the hybrid lease
		}
		for _, r := range []RecordID{a.Record, b.Record} {
			if err := h.EvictRecord(r); err != nil {
				t.Fatal(err)
			}
		}
		if !leaseFirst {
			wantEqual(t, "free slots after the records", free(), [4]int{1, 3, 1, 1})
			h.release(spec, hybrid)
		}
		wantEqual(t, "free slots at the end", free(), [4]int{4, 4, 1, 1})
	}
}

func TestC17_FreeListsAreFIFO(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 4})
	var ids []LeaseID
	for i := range 3 { // pages 0, 1, 2
		id, _ := h.vanilla(tokens(uint64(i), 3))
		wantSlice(t, "page", h.pages(id, BasePages), []int32{int32(i)})
		ids = append(ids, id)
	}
	h.release(ids[1], ids[2])
	id, _ := h.vanilla(tokens(9, 12))
	wantSlice(t, "pages: 3 was free longest, then 1, then 2", h.pages(id, BasePages), []int32{3, 1, 2})

	// An evicted record gives its pages back in the order of its path.
	h = newHost(t, Config{PageTokens: 4, BasePages: 4, DraftPages: 4})
	h.run(AcquireRequest{Mode: Spec, Tokens: tokens(1, 16)})
	spec, _ := h.acquire(AcquireRequest{Mode: Spec, Tokens: tokens(2, 16)})
	wantSlice(t, "base pages", h.pages(spec, BasePages), []int32{0, 1, 2, 3})
	wantSlice(t, "draft pages", h.pages(spec, DraftPages), []int32{0, 1, 2, 3})

	p := newSlotPool(3)
	for i := range int32(3) {
		wantEqual(t, "slot", p.take(), i)
	}
	p.drop(1, 1, 0)
	p.drop(2, 1, 0)
	wantEqual(t, "slot", p.take(), 1)
}

func TestC18_ADemandIsAllOrNothing(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 8, DraftPages: 2, RecurrentSlots: 1})
	id, _ := h.acquire(AcquireRequest{Mode: Spec, Tokens: tokens(1, 4)})
	before := h.state()
	if h.grow(id, 2, 2) { // draft does not fit, base would
		t.Error("growth succeeded with one draft page free")
	}
	wantEqual(t, "state", h.state(), before)
	a, err := h.Acquire(&AcquireRequest{Mode: Spec, Tokens: tokens(2, 8)})
	if err != nil || a.Status != InsufficientCapacity || a.Lease != 0 {
		t.Errorf("acquire: %+v %v", a, err)
	}
	wantEqual(t, "state", h.state(), before)
	hybrid, _ := h.acquire(AcquireRequest{Mode: Hybrid, Tokens: tokens(3, 6)})
	before = h.state()
	if _, ok, err := h.Reserve(hybrid, true); ok || err != nil { // a recurrent slot is free, no partial one
		t.Errorf("reserve: %v %v", ok, err)
	}
	wantEqual(t, "state", h.state(), before)
}

func TestC19_NewSlotsAreActiveOnce(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 8, RecurrentSlots: 1, PartialSlots: 1})
	spec, _ := h.acquire(AcquireRequest{Mode: Spec, Tokens: tokens(1, 6)})
	hybrid, _ := h.acquire(AcquireRequest{Mode: Hybrid, Tokens: tokens(2, 6)})
	h.Reserve(hybrid, true)
	h.grow(spec, 2, 1)
	for pool, pages := range map[Resource][]int32{BasePages: h.pages(spec, BasePages), DraftPages: h.pages(spec, DraftPages), RecurrentSlots: {0}, PartialSlots: {0}} {
		for _, p := range pages {
			wantEqual(t, pool.String()+" counts", h.refs(pool, p), [2]int32{1, 0})
		}
	}
}

func TestC20_BadPoolArgumentsAreRefused(t *testing.T) {
	for _, cfg := range []Config{{PageTokens: 0}, {PageTokens: -4}, {PageTokens: 4, BasePages: -1}, {PageTokens: 4, DraftPages: -1},
		{PageTokens: 4, RecurrentSlots: -1}, {PageTokens: 4, PartialSlots: -1}, {PageTokens: 4, MaxRecords: -1}, {PageTokens: 4, BasePages: math.MaxInt32},
		{PageTokens: 4, Identity: 2}} {
		if _, err := New(cfg); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("New(%+v): %v", cfg, err)
		}
	}
	h := newHost(t, Config{PageTokens: 4, BasePages: 4, RecurrentSlots: 1})
	if h.Feasible(Demand{-1}) || h.Feasible(Demand{0, 0, 0, -1}) || !h.Feasible(Demand{4, 0, 1}) || h.Feasible(Demand{5}) {
		t.Error("Feasible is wrong")
	}
	id, _ := h.vanilla(tokens(1, 6))
	h.refused(status.InvalidArgument, "reading 3 of 2 pages", func() error { return h.Pages(id, BasePages, 0, make([]int32, 3)) })
	h.refused(status.InvalidArgument, "reading pages from -1", func() error { return h.Pages(id, BasePages, -1, make([]int32, 1)) })
	h.refused(status.InvalidArgument, "reading pages of a slot pool", func() error { return h.Pages(id, RecurrentSlots, 0, nil) })
	h.refused(status.InvalidArgument, "counts of pool 9", func() error { return h.References(9, nil, nil) })
	h.refused(status.BufferTooSmall, "counts into too little", func() error { return h.References(BasePages, make([]int32, 3), make([]int32, 4)) })

	p := newSlotPool(2)
	s := p.take()
	p.refs[s].cache = math.MaxInt32
	for what, f := range map[string]func() error{
		"reference to a free slot":     func() error { return p.hold(1, 1, 0) },
		"reference to slot 2 of 2":     func() error { return p.hold(2, 1, 0) },
		"reference to slot -1":         func() error { return p.hold(-1, 0, 1) },
		"count beyond INT32_MAX":       func() error { return p.hold(s, 0, 1) },
		"release below zero":           func() error { _, err := p.drop(s, 2, 0); return err },
		"release of a free slot":       func() error { _, err := p.drop(1, 0, 1); return err },
		"release of slot out of range": func() error { _, err := p.drop(7, 1, 0); return err },
	} {
		before := append([]slotRefs(nil), p.refs...)
		if f() == nil {
			t.Errorf("%s was accepted", what)
		}
		wantSlice(t, "counts after "+what, p.refs, before)
	}
}

func TestC21_ReleaseAndSteadyStateDoNotAllocate(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 64, DraftPages: 64, RecurrentSlots: 4, PartialSlots: 4, MaxRecords: 6})
	n := uint64(0)
	prompts := make([][]int32, 64)
	for i := range prompts {
		prompts[i] = join(tokens(1, 10), tokens(uint64(i%17)+2, 10))
	}
	extra := tokens(99, 4)
	for _, mode := range []Mode{Vanilla, Spec, Hybrid} {
		step := func() {
			tok := prompts[n%64]
			n++
			a, err := h.Acquire(&AcquireRequest{Mode: mode, Tokens: tok})
			if err != nil || a.Status != Acquired {
				t.Fatal(a, err)
			}
			draft := 0
			if mode == Spec {
				draft = 1
			}
			h.grow(a.Lease, 1, draft)
			h.append(a.Lease, extra)
			if mode == Hybrid {
				h.checkpoint(a.Lease, 21)
				h.checkpoint(a.Lease, 24)
			} else {
				h.publish(a.Lease, 20)
				h.publish(a.Lease, 24)
			}
			h.release(a.Lease)
		}
		for range 500 {
			step()
		}
		if got := testing.AllocsPerRun(500, step); got != 0 {
			t.Errorf("mode %d allocates %v times a request", mode, got)
		}
	}
}
