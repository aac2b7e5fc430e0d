package omni

import (
	"reflect"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

// Faults that users of comparable caches reported, as scenarios on this one. Blocks
// of 4 slots; those that are another file's rule are tested there: same-step hits in
// TestS01, delayed reads in TestO26, the budget in TestO36, requests without end in
// TestFieldMemoryDoesNotGrowWithRequests, sparse keys in TestS07.

// KV received from another node is taken for a local hit.
func TestFieldHitOnRowsNeverWritten(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, hitOn(2, 8, 5, 6))
	step := r.save(map[string]uint64{"h": 1}, chunk{2, span(0, 1)})
	_, err := r.tryRead(step, "h")
	wantErr(t, err, status.Unmatch, "req #2")
}

// A copy of live output races with the next forward: rig overwrites every
// source after Save, so every test here would notice; this one reads late.
func TestFieldR01_TheNextForwardOverwritesTheSource(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}, committer} {
		r := newRig(t, cfg)
		r.begin(nil, arrive(1)...)
		a := r.save(map[string]uint64{"h": 10, "d": 20}, chunk{1, span(0, 4)})
		b := r.save(map[string]uint64{"h": 30, "d": 40}, chunk{1, span(4, 8)})
		if got := r.read(b, "d")[1]; !reflect.DeepEqual(got, seq(40, 4)) {
			t.Fatal(got)
		}
		if got := r.read(a, "h")[1]; !reflect.DeepEqual(got, seq(10, 4)) {
			t.Fatal(got)
		}
		r.begin([]uint64{1})
		r.commit()
		if h, d := r.rows("h", span(0, 8)...), r.rows("d", span(0, 8)...); !reflect.DeepEqual(h, append(seq(10, 4), seq(30, 4)...)) || !reflect.DeepEqual(d, append(seq(20, 4), seq(40, 4)...)) {
			t.Fatal(h, d)
		}
	}
}

// A read of rows that land one step late: it waits for the write, or reads the
// producer, never zeros.
func TestFieldRowsThatLandLate(t *testing.T) {
	r := newRig(t, committer)
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 10, "d": 20}, chunk{1, span(0, 4)}))
	r.begin(nil, hitOn(2, 4, 0))
	step := r.save(map[string]uint64{"h": 30, "d": 40}, chunk{2, span(4, 5)})
	if r.c.Stats().PendingWrites != 3 {
		t.Fatal("the deferred write or this step is not pending")
	}
	var h, d [5]uint64
	if err := r.c.Materialize(step, []Read{{Key: r.keys["h"], Count: 1, Dst: unsafe.Pointer(&h), DstBytes: 40}, {Key: r.keys["d"], Count: 1, Dst: unsafe.Pointer(&d), DstBytes: 40}}); err != nil {
		t.Fatal(err)
	}
	if h != [5]uint64{10, 11, 12, 13, 30} || d != [5]uint64{20, 21, 22, 23, 40} {
		t.Fatal(h, d)
	}
}

// Deferred rows: the step's own result is this step's rows only, and the mirror has
// them only after the finish.
func TestFieldDeferredRowsAppearAfterTheFinish(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	for i := range int64(3) {
		step := r.save(map[string]uint64{"d": 10 * uint64(i)}, chunk{1, span(4*i, 4*i+2)})
		if got := r.read(step, "d")[1]; !reflect.DeepEqual(got, seq(10*uint64(i), 2)) {
			t.Fatal(got)
		}
	}
	if got := r.rows("d", 0, 4, 8, 9); !reflect.DeepEqual(got, []uint64{0, 0, 0, 0}) {
		t.Fatalf("before the finish: %v", got)
	}
	r.begin([]uint64{1})
	if got := r.rows("d", 0, 4, 8, 9); !reflect.DeepEqual(got, []uint64{0, 10, 20, 21}) {
		t.Fatalf("after it: %v", got)
	}
}

// A key above some size is silently not cached: here a huge key and a small one.
func TestFieldHugeKey(t *testing.T) {
	r := newRig(t, Config{})
	const huge = 3 << 20
	big, err := r.c.OpenKey("big", huge, 1, JoinNextStep)
	if err != nil {
		t.Fatal(err)
	}
	r.begin(nil, arrive(1)...)
	a, _ := r.args(map[string]uint64{"h": 10}, chunk{1, span(0, 4)})
	src := make([]byte, 4*huge)
	for i := range src {
		src[i] = byte(i * 7 >> 3)
	}
	dst := make([]byte, 5*huge)
	a.Rows = append(a.Rows, KeyRows{Key: big, Rows: unsafe.Pointer(&src[0]), Stride: huge, Dst: unsafe.Pointer(&dst[0]), DstBytes: 4 * huge})
	step, err := r.c.Save(a)
	if err != nil {
		t.Fatal(err)
	}
	r.discard(step)
	r.begin(nil, hitOn(2, 4, 0))
	a, _ = r.args(map[string]uint64{"h": 50}, chunk{2, span(8, 9)})
	a.Rows = append(a.Rows, KeyRows{Key: big, Rows: unsafe.Pointer(&src[0]), Stride: huge, Dst: unsafe.Pointer(&dst[0]), DstBytes: 5 * huge})
	if step, err = r.c.Save(a); err != nil {
		t.Fatal(err)
	}
	var h [5]uint64
	if err := r.c.Materialize(step, []Read{{Key: big, Count: 1, Dst: unsafe.Pointer(&dst[0]), DstBytes: 5 * huge}, {Key: r.keys["h"], Count: 1, Dst: unsafe.Pointer(&h), DstBytes: 40}}); err != nil {
		t.Fatal(err)
	}
	if h != [5]uint64{10, 11, 12, 13, 50} || string(dst[:4*huge]) != string(src) || string(dst[4*huge:]) != string(src[:huge]) {
		t.Fatal("prefix is not complete")
	}
}

// Every step blocks on something: 8 requests, 100 steps, nobody consumes late.
func TestFieldSaveWaitsForNobody(t *testing.T) {
	r := newRig(t, Config{Threaded: true})
	r.onlyBy(nil)
	r.begin(nil, arrive(0, 1, 2, 3, 4, 5, 6, 7)...)
	for i := range int64(100) {
		var cs []chunk
		for q := range int64(8) {
			cs = append(cs, chunk{uint64(q), span(8*q+i%8, 8*q+i%8+1)})
		}
		r.read(r.save(map[string]uint64{"h": uint64(i), "d": 1}, cs...), "h")
	}
	if r.w.waits != 0 {
		t.Fatalf("%d waits", r.w.waits)
	}
}

// A cache that returns its own object: what a reader does to a result must not show
// in the next hit.
func TestFieldResultsAreTheReadersOwn(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	buf := [4]uint64{}
	a, _ := r.args(map[string]uint64{"h": 10}, chunk{1, span(0, 4)})
	a.Rows[0].Dst, a.Rows[0].DstBytes = unsafe.Pointer(&buf), 32
	step, err := r.c.Save(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.c.Materialize(step, nil); err != nil {
		t.Fatal(err)
	}
	buf = [4]uint64{9, 9, 9, 9}
	for q := uint64(2); q < 4; q++ {
		r.begin(nil, hitOn(q, 4, 0))
		got := r.read(r.save(map[string]uint64{"h": 50}, chunk{q, span(8, 9)}), "h")[q]
		if !reflect.DeepEqual(got, []uint64{10, 11, 12, 13, 50}) {
			t.Fatal(got)
		}
		clear(got)
	}
}

// Aborted requests drop their deferred rows although their blocks stay hittable.
func TestFieldAbortedRowsCanBeHit(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}} {
		r := newRig(t, cfg)
		if err := r.c.SetPolicy(false); err != nil {
			t.Fatal(err)
		}
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{"d": 10}, chunk{1, span(0, 8)}))
		r.begin([]uint64{1}, hitOn(2, 8, 0, 1))
		step := r.save(map[string]uint64{"d": 50}, chunk{2, span(8, 9)})
		if got := r.read(step, "d")[2]; !reflect.DeepEqual(got, append(seq(10, 8), 50)) {
			t.Fatal(got)
		}
	}
}

// Rows indexed by the full sequence instead of by the scheduled counts.
func TestFieldSpansFollowScheduledCounts(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 8)}))
	r.begin(nil, hitOn(2, 8, 0, 1), NewRequest{Request: 3})
	step := r.save(map[string]uint64{"h": 100}, chunk{2, span(8, 10)}, chunk{3, span(12, 16)})
	got := r.read(step, "h")
	if !reflect.DeepEqual(got[2], append(seq(10, 8), 100, 101)) || !reflect.DeepEqual(got[3], seq(102, 4)) {
		t.Fatal(got)
	}
}

// what a step returns was fixed when it was saved; a new batch, a new
// key and a finish in between change nothing.
func TestR02_R17_AStepIsASnapshot(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1, 2)...)
	step := r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 2)}, chunk{2, span(2, 4)})
	r.begin([]uint64{1, 2}, arrive(3)...)
	r.discard(r.save(map[string]uint64{"h": 90, "new": 5}, chunk{3, span(0, 4)}))
	if err := func() error {
		s := r.save(map[string]uint64{"h": 1}, chunk{3, span(0, 1)})
		return r.c.Materialize(s, []Read{{Key: r.keys["new"], Count: 1, DstBytes: 8}})
	}(); status.CodeOf(err) != status.InvalidArgument {
		t.Fatalf("a key the step does not have: %v", err)
	}
	if got := r.read(step, "h"); !reflect.DeepEqual(got[1], seq(10, 2)) || !reflect.DeepEqual(got[2], seq(12, 2)) {
		t.Fatal(got)
	}
}

// a deferred write that ends between plan and read. The plan holds its
// rows, so it does not matter who is first.
func TestR16_R20_AWriteThatEndsBetweenPlanAndRead(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		r, step := planned(t, Config{Threaded: true, StagingDepth: 8}, "d")
		r.begin([]uint64{1}, arrive(2)...)
		r.commit()
		if reuse { // and its rows' memory is wanted by others
			for range 3 {
				r.discard(r.save(map[string]uint64{"d": 700}, chunk{2, span(0, 4)}))
			}
			r.begin([]uint64{2})
			r.commit()
		}
		if got := r.read(step, "d")[9]; !reflect.DeepEqual(got, want100) {
			t.Fatal(got)
		}
	}
}

func TestBytesOfNoShapeAreLost(t *testing.T) {
	for _, width := range []int64{1, 3, 31, 32, 33, 63, 64, 65, 4095, 4097} {
		r := newRig(t, Config{})
		if err := r.c.SetPolicy(false); err != nil {
			t.Fatal(err)
		}
		for i, sched := range []Schedule{JoinNextStep, JoinOnFinish} {
			id, err := r.c.OpenKey([]string{"a", "b"}[i], width, 1, sched)
			if err != nil {
				t.Fatal(err)
			}
			r.begin([]uint64{1, 2}, arrive(1)...)
			stride := width + 5
			src := make([]byte, 8*stride)
			for i := range src {
				src[i] = byte(i*13 + int(width))
			}
			var want []byte
			for i := range int64(8) {
				want = append(want, src[i*stride:i*stride+width]...)
			}
			step, err := r.c.Save(&SaveArgs{Requests: []uint64{1}, Counts: []int64{8}, Slots: []int64{0, 1, 2, 3, 7, 6, 5, 4},
				Rows: []KeyRows{{Key: id, Rows: unsafe.Pointer(&src[0]), Stride: stride}}})
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 8*width)
			if err := r.c.Materialize(step, []Read{{Key: id, Count: 1, Dst: unsafe.Pointer(&got[0]), DstBytes: 8 * width}}); err != nil || string(got) != string(want) {
				t.Fatalf("width %d: %v", width, err)
			}
			r.begin([]uint64{1}, hitOn(2, 8, 0, 1))
			a := &SaveArgs{Requests: []uint64{2}, Counts: []int64{0}, Rows: []KeyRows{{Key: id}}}
			if step, err = r.c.Save(a); err != nil {
				t.Fatal(err)
			}
			if err := r.c.Materialize(step, []Read{{Key: id, Count: 1, Dst: unsafe.Pointer(&got[0]), DstBytes: 8 * width}}); err != nil {
				t.Fatal(err)
			}
			for i, row := range []int{0, 1, 2, 3, 7, 6, 5, 4} {
				if string(got[int64(i)*width:int64(i+1)*width]) != string(want[int64(row)*width:int64(row+1)*width]) {
					t.Fatalf("width %d schedule %d slot %d", width, sched, i)
				}
			}
		}
	}
}
