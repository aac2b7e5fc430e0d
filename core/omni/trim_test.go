package omni

import "testing"

// A wave of deferred rows must not hold its memory until the cache is freed.
func TestRowsOutsideTheMirrorAreGivenBackAfterAWave(t *testing.T) {
	r := newRig(t, Config{NumBlocks: 1 << 12, BlockSize: 16, BudgetBytes: 1 << 30, StagingCapacity: 1 << 16})
	// step saves the slots for one request, which then finishes.
	step := func(req uint64, slots []int64) {
		r.begin(nil, arrive(req)...)
		r.discard(r.save(map[string]uint64{"d": 1}, chunk{req, slots}))
		r.begin([]uint64{req})
	}
	step(1, span(0, 1))
	k := r.c.keys[r.keys["d"]]
	small := k.reserved()
	for req := uint64(2); req < 6; req++ { // at once: 4 segments' worth and more
		r.begin(nil, arrive(req)...)
		r.discard(r.save(map[string]uint64{"d": 1}, chunk{req, span(0, 1<<16)}))
	}
	wave := k.reserved()
	r.begin([]uint64{2, 3, 4, 5})
	if wave <= small {
		t.Fatalf("%d bytes in the wave, %d before it", wave, small)
	}
	step(6, span(0, 1))
	if got := k.reserved(); got != wave {
		t.Errorf("%d bytes directly after the wave, expected the %d to stay for the next one", got, wave)
	}
	for req := uint64(7); req < 7+3*trimWindow; req++ {
		step(req, span(0, 4))
	}
	r.check()
	if got := k.reserved(); got != small {
		t.Errorf("%d bytes long after the wave of %d, expected %d as before it", got, wave, small)
	}
	if c := cap(k.store.meta); c > 4<<k.store.shift {
		t.Errorf("book-keeping of %d rows is kept", c)
	}
	if got := r.rows("d", 0, 3, 4); got[0] != 1 || got[1] != 4 || got[2] == 0 {
		t.Errorf("rows are %v", got)
	}
}

// Rows come from the lowest segment that has one, so the last ones run empty.
func TestRowStoreFillsFromTheBottom(t *testing.T) {
	var s rowStore
	s.init(segmentBytes>>6, false) // 64 rows a segment
	defer s.free()
	if err := s.reserve(4 * 64); err != nil {
		t.Fatal(err)
	}
	var held []int32
	for range 4 * 64 {
		held = append(held, s.take())
	}
	for _, h := range held[10:] {
		s.drop(h)
	}
	for i := range 20 {
		if h := s.take(); h >= 64 {
			t.Errorf("row %d is %d, expected one of the first segment", i, h)
		}
	}
	for want := 4; want > 1; want-- {
		s.window()
		s.window()
		if m := s.surplus(); m == nil || len(s.segs) != want-1 {
			t.Fatalf("%d segments left of %d", len(s.segs), want)
		} else {
			m.Free()
		}
	}
	if s.surplus() != nil {
		t.Error("the segment in use was given back")
	}
}
