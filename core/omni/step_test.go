package omni

import (
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

func TestO21_EachStepIsConsumedOnce(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	step := func() uint64 { return r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)}) }
	a, b := step(), step()
	if a != 1 || b != 2 {
		t.Fatalf("ids %d, %d, want 1, 2", a, b)
	}
	r.read(a, "h")
	r.discard(b)
	for _, id := range []uint64{a, b, 0, 99} {
		wantErr(t, r.c.Discard(id), status.Unmatch, "step context")
		wantErr(t, r.c.Materialize(id, nil), status.Unmatch, "missing")
	}
}

func TestO22_AMaterializeThatFailsHasConsumedTheStep(t *testing.T) {
	r := newRig(t, Config{StagingDepth: 1})
	r.begin(nil, arrive(1)...)
	for _, bad := range []Read{
		{Key: 0, First: 0, Count: 2},
		{Key: 0, First: -1, Count: 1},
		{Key: 77, Count: 1},
		{Key: 0, Count: 1, DstBytes: 7},
		{Key: 0, Count: 1, DstBytes: 8},
	} {
		step := r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 1)})
		if err := r.c.Materialize(step, []Read{bad}); err == nil {
			t.Fatalf("%+v was accepted", bad)
		}
		wantErr(t, r.c.Discard(step), status.Unmatch, "missing")
		r.check() // and its page is free again: the next save needs it
	}
}

func TestO23_O41_StepsAreConsumedInAnyOrder(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}, committer} {
		cfg.StagingDepth = 3
		r := newRig(t, cfg)
		r.begin(nil, arrive(1)...)
		save := func(v uint64) uint64 {
			s := r.save(map[string]uint64{"h": v, "d": v + 50}, chunk{1, span(int64(v)%8, int64(v)%8+2)})
			r.commit()
			return s
		}
		old := save(1000)
		for v := uint64(1001); v < 1020; v++ { // the other pages go round, the oldest stays held
			a, b := save(v), save(v+500)
			if got := r.read(b, "d")[1]; got[0] != v+550 {
				t.Fatalf("second step has %v", got)
			}
			if got := r.read(a, "h")[1]; !reflect.DeepEqual(got, seq(v, 2)) {
				t.Fatalf("first step has %v, want %v", got, seq(v, 2))
			}
		}
		if got := r.read(old, "h")[1]; !reflect.DeepEqual(got, seq(1000, 2)) {
			t.Fatalf("oldest step has %v", got)
		}
	}
}

func TestO24_WritesDoNotDependOnTheConsumer(t *testing.T) {
	for _, cfg := range []Config{{}, committer} {
		for _, discard := range []bool{true, false} {
			r := newRig(t, cfg)
			r.begin(nil, arrive(1)...)
			step := r.save(map[string]uint64{"h": 10, "d": 20}, chunk{1, span(0, 4)})
			if discard {
				r.discard(step)
			} else {
				r.read(step, "h")
			}
			r.begin([]uint64{1})
			r.commit()
			if h, d := r.rows("h", span(0, 4)...), r.rows("d", span(0, 4)...); !reflect.DeepEqual(h, seq(10, 4)) || !reflect.DeepEqual(d, seq(20, 4)) {
				t.Fatalf("discard %v: %v %v", discard, h, d)
			}
		}
	}
}

// The layout of a result: for every request its hit rows, then its new rows, also
// with no new rows, and for every way a batch can be cut into reads.
func TestO25_PrefixFirstThenNewRows(t *testing.T) {
	for _, given := range []bool{false, true} {
		r := newRig(t, Config{NumBlocks: 64})
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{"h": 100}, chunk{1, span(0, 8)}))
		r.begin(nil, append(arrive(2), hitOn(3, 8, 0, 1), hitOn(4, 4, 1), NewRequest{Request: 5})...)
		a, _ := r.args(map[string]uint64{"h": 200}, chunk{2, span(20, 23)}, chunk{3, span(24, 26)}, chunk{4, nil}, chunk{5, span(28, 29)}, chunk{6, nil})
		want := [][]uint64{seq(200, 3), append(seq(100, 8), 203, 204), seq(104, 4), {205}, nil}
		var all []uint64
		begins := []int{0}
		for _, w := range want {
			all = append(all, w...)
			begins = append(begins, len(all))
		}
		for first := range want {
			for count := range len(want) - first + 1 {
				buf := make([]uint64, len(all))
				for i := range buf {
					buf[i] = 0xBAD
				}
				if given {
					a.Rows[0].Dst, a.Rows[0].DstBytes = unsafe.Pointer(&buf[0]), int64(8*len(all))
				}
				step, err := r.c.Save(a)
				if err != nil {
					t.Fatal(err)
				}
				from, to := begins[first], begins[first+count]
				read := Read{Key: a.Rows[0].Key, First: int64(first), Count: int64(count), DstBytes: int64(8 * (to - from))}
				if to > from {
					read.Dst = unsafe.Pointer(&buf[from])
				}
				if err := r.c.Materialize(step, []Read{read}); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(buf[from:to], all[from:to]) && to > from {
					t.Fatalf("dst at save: %v; requests %d+%d: %v, want %v", given, first, count, buf[from:to], all[from:to])
				}
				for i, v := range buf {
					if !given && (i < from || i >= to) && v != 0xBAD {
						t.Fatalf("row %d outside the read was written", i)
					}
				}
				// The same hits again for the next cut.
				r.begin([]uint64{2, 3, 4, 5}, append(arrive(2), hitOn(3, 8, 0, 1), hitOn(4, 4, 1), NewRequest{Request: 5})...)
			}
		}
	}
}

func TestReadsMayRepeatRequestsAndKeys(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1, 2)...)
	step := r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 2)}, chunk{2, span(2, 4)})
	var a, b, c [2]uint64
	h := r.keys["h"]
	if err := r.c.Materialize(step, []Read{
		{Key: h, First: 1, Count: 1, Dst: unsafe.Pointer(&a), DstBytes: 16},
		{Key: h, First: 0, Count: 1, Dst: unsafe.Pointer(&b), DstBytes: 16},
		{Key: h, First: 1, Count: 1, Dst: unsafe.Pointer(&c), DstBytes: 16},
		{Key: h, First: 2, Count: 0},
	}); err != nil {
		t.Fatal(err)
	}
	if a != [2]uint64{12, 13} || b != [2]uint64{10, 11} || c != a {
		t.Fatal(a, b, c)
	}
}

// beyondMemory has 8 bytes up to the end of the address space.
var beyondMemory = unsafe.Add(unsafe.Pointer(nil), -8)

// Every destination that Materialize may be given wrongly, and that the step is used
// up all the same (O-22).
func TestMaterializeRefusesBadDestinations(t *testing.T) {
	buf := make([]byte, 64)
	at := func(i int) unsafe.Pointer { return unsafe.Pointer(&buf[i]) }
	for _, c := range []struct {
		name  string
		reads []Read // of key 0; request 0 and request 1 have 16 bytes each
		text  string
	}{
		{"beyond memory", []Read{{First: 0, Count: 1, Dst: beyondMemory, DstBytes: 16}}, "expected an address with 16 bytes behind it"},
		{"the same", []Read{{First: 0, Count: 1, Dst: at(0), DstBytes: 16}, {First: 1, Count: 1, Dst: at(0), DstBytes: 16}},
			"dst of reads[1], key __hidden_states__, overlaps the dst of reads[0]"},
		{"half of it", []Read{{First: 0, Count: 1, Dst: at(8), DstBytes: 16}, {First: 1, Count: 1, Dst: at(0), DstBytes: 16}}, "dst of reads[1]"},
		{"within a longer one", []Read{{First: 0, Count: 2, Dst: at(0), DstBytes: 32}, {First: 1, Count: 1, Dst: at(16), DstBytes: 16}}, "dst of reads[1]"},
		{"with one of a row", []Read{
			{First: 0, Count: 1, Dst: at(0), DstBytes: 16}, {First: 1, Count: 1, Dst: at(32), DstBytes: 16}, {First: 0, Count: 1, Dst: at(24), DstBytes: 16},
		}, "dst of reads[2], key __hidden_states__, overlaps the dst of reads[1]"},
		{"between two of a row", []Read{
			{First: 0, Count: 1, Dst: at(0), DstBytes: 16}, {First: 1, Count: 1, Dst: at(32), DstBytes: 16}, {First: 0, Count: 1, Dst: at(16), DstBytes: 16},
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{StagingDepth: 1})
			r.begin(nil, arrive(1, 2)...)
			a, _ := r.args(map[string]uint64{"h": 10}, chunk{1, span(0, 2)}, chunk{2, span(2, 4)})
			for i := range c.reads {
				c.reads[i].Key = a.Rows[0].Key
			}
			step, err := r.c.Save(a)
			if err != nil {
				t.Fatal(err)
			}
			if err = r.c.Materialize(step, c.reads); (err != nil) != (c.text != "") || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Fatalf("%v, expected %q", err, c.text)
			}
			if open := r.c.Stats().UnconsumedSteps; open != 0 {
				t.Fatalf("%d steps are not consumed", open)
			}
		})
	}
}

// Every argument Save may be given wrongly, and that a refused save uses no id and
// leaves nothing behind.
func TestSaveRefusesBadArguments(t *testing.T) {
	for _, c := range []struct {
		name   string
		break_ func(a *SaveArgs, r *rig)
		code   status.Code
		text   string
	}{
		{"slots missing", func(a *SaveArgs, r *rig) { a.Slots = a.Slots[:3] }, status.Unmatch, "slot mapping covers 3 of 4"},
		{"slot too large", func(a *SaveArgs, r *rig) { a.Slots[2] = 64 }, status.Unmatch, "slots[2] is 64, expected 0 to 63"},
		{"S-19 slot negative", func(a *SaveArgs, r *rig) { a.Slots[0] = -1 }, status.Unmatch, "slots[0] is -1"},
		{"counts short", func(a *SaveArgs, r *rig) { a.Counts = a.Counts[:1] }, status.InvalidArgument, "counts has 1 entries, expected 2"},
		{"count negative", func(a *SaveArgs, r *rig) { a.Counts[1] = -1 }, status.InvalidArgument, "counts[1] is -1"},
		{"count huge", func(a *SaveArgs, r *rig) { a.Counts[0] = 1 << 62 }, status.InvalidArgument, "counts[0] is"},
		{"request twice", func(a *SaveArgs, r *rig) { a.Requests[1] = 1 }, status.InvalidArgument, "requests[1] is req #1, which is requests[0]"},
		{"key unknown", func(a *SaveArgs, r *rig) { a.Rows[0].Key = 9 }, status.InvalidArgument, "key is 9"},
		{"key negative", func(a *SaveArgs, r *rig) { a.Rows[0].Key = NoKey }, status.InvalidArgument, "key is -1"},
		{"key twice", func(a *SaveArgs, r *rig) { a.Rows = append(a.Rows, a.Rows[0]) }, status.InvalidArgument, "which is rows[0] already"},
		{"rows null", func(a *SaveArgs, r *rig) { a.Rows[0].Rows = nil }, status.InvalidArgument, "is null, expected 4 rows"},
		{"stride small", func(a *SaveArgs, r *rig) { a.Rows[0].Stride = 7 }, status.InvalidArgument, "row_stride of key __hidden_states__ is 7"},
		{"dst short", func(a *SaveArgs, r *rig) { a.Rows[0].DstBytes-- }, status.BufferTooSmall, "dst_bytes of key"},
		{"dst long", func(a *SaveArgs, r *rig) { a.Rows[0].DstBytes++ }, status.InvalidArgument, "dst_bytes of key"},
		{"dst overlaps", func(a *SaveArgs, r *rig) { a.Rows[0].Dst = unsafe.Add(a.Rows[0].Rows, 24) }, status.InvalidArgument, "overlaps the rows"},
		{"rows beyond memory", func(a *SaveArgs, r *rig) { a.Rows[0].Rows = beyondMemory }, status.InvalidArgument, "expected an address with 32 bytes behind it"},
		{"dst beyond memory", func(a *SaveArgs, r *rig) { a.Rows[0].Dst = beyondMemory }, status.InvalidArgument, "dst of key __hidden_states__ is 0xfffffffffffffff8"},
		{"oversize", func(a *SaveArgs, r *rig) {
			a.Counts[0], a.Slots = 1001, append(span(0, 64), make([]int64, 1002-64)...)
			a.Rows[0].Dst = nil
		}, status.Unmatch, "staging capacity is 1000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{StagingCapacity: 1000, StagingDepth: 1})
			r.begin(nil, arrive(1, 2)...)
			a, _ := r.args(map[string]uint64{"h": 10}, chunk{1, span(0, 3)}, chunk{2, span(4, 5)})
			buf := make([]byte, 40)
			a.Rows[0].Dst, a.Rows[0].DstBytes = unsafe.Pointer(&buf[0]), 32
			r.begin(nil)
			before, bytes := r.c.Stats(), string(buf)
			c.break_(a, r)
			_, err := r.c.Save(a)
			wantErr(t, err, c.code, c.text)
			if after := r.c.Stats(); after != before || string(buf) != bytes {
				t.Fatalf("stats %+v, were %+v", after, before)
			}
			if info, _ := r.c.Key(0); info.Visible {
				t.Fatal("a refused save made a key visible")
			}
			if id := r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 3)}); id != 1 {
				t.Fatalf("the next save has id %d, want 1", id)
			}
		})
	}
}

func TestNothingIsPublishedWithoutRows(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	id := r.open("k")
	if _, err := r.c.Save(&SaveArgs{Requests: []uint64{1}, Counts: []int64{0}, Rows: []KeyRows{{Key: id}}}); status.CodeOf(err) != status.InvalidArgument {
		t.Fatalf("a key without rows: %v", err)
	}
	r.discard(r.save(map[string]uint64{"h": 1, "k": 1}, chunk{1, span(0, 4)}))
	// A step without rows but with a hit: the prefix alone.
	r.begin(nil, hitOn(2, 4, 0))
	step := r.save(map[string]uint64{"k": 0}, chunk{2, nil})
	if got := r.read(step, "k")[2]; !reflect.DeepEqual(got, seq(1, 4)) {
		t.Fatal(got)
	}
	if v := r.states("k", 0)[0].Version; v != 1 {
		t.Fatalf("a step without rows claimed a slot: version %d", v)
	}
	r.discard(r.save(map[string]uint64{}))
	r.discard(r.save(nil, chunk{1, nil}))
}

func TestKeysOpenAndMismatch(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	id, err := r.c.OpenKey("k", 16, 1, JoinOnFinish)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.c.OpenKey("k", 8, 7, JoinNextStep) // invisible: another shape is fine
	if err != nil || again != id {
		t.Fatal(again, err)
	}
	r.keys["k"] = id
	r.discard(r.save(map[string]uint64{"k": 10}, chunk{1, span(0, 4)}))
	if _, err := r.c.OpenKey("k", 8, 7, JoinNextStep); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		bytes int64
		dtype uint32
		sched Schedule
	}{{16, 7, 0}, {8, 8, 0}, {8, 7, 1}} {
		_, err := r.c.OpenKey("k", c.bytes, c.dtype, c.sched)
		wantErr(t, err, status.KeyMismatch, "hand it out uncached")
	}
	// S-8: the step goes on without the key, whose slots become absent.
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{1, span(0, 2)}))
	if s := r.states("k", 0, 2); s[0].State != Skipped || s[1].State != Committed {
		t.Fatal(s)
	}
	for _, c := range []struct {
		name  string
		bytes int64
		sched Schedule
		text  string
	}{
		{"", 8, 0, "name has 0 bytes"}, {strings.Repeat("x", 5000), 8, 0, "name has 5000 bytes"},
		{"x", 0, 0, "row_bytes of key x is 0"}, {"x", 1 << 40, 0, "row_bytes"}, {"x", 8, 2, "schedule of key x is 2"},
		{HiddenKey, 8, JoinOnFinish, "never deferred"},
	} {
		_, err := r.c.OpenKey(c.name, c.bytes, 1, c.sched)
		wantErr(t, err, status.InvalidArgument, c.text)
	}
	q := newRig(t, Config{})
	if err := q.c.SetPolicy(false); err != nil {
		t.Fatal(err)
	}
	_, err = q.c.OpenKey(HiddenKey, 8, 1, JoinNextStep)
	wantErr(t, err, status.InvalidArgument, "does not want hidden states")
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		text string
	}{
		{Config{}, "num_blocks is 0"},
		{Config{NumBlocks: 1}, "block_size is 0"},
		{Config{NumBlocks: -1, BlockSize: 4}, "num_blocks is -1"},
		{Config{NumBlocks: 1 << 30, BlockSize: 1 << 30}, "at most 1099511627776 slots"},
		{Config{NumBlocks: 1, BlockSize: 1, BudgetBytes: -1}, "staging_bytes is -1"},
		{Config{NumBlocks: 1, BlockSize: 1, StagingDepth: 5000}, "staging_depth is 5000"},
		{Config{NumBlocks: 1, BlockSize: 1, StagingCapacity: -3}, "staging_capacity_tokens is -3"},
		{Config{NumBlocks: 1, BlockSize: 1, CopyChunkBytes: -3}, "copy_chunk_bytes is -3"},
		{Config{NumBlocks: 1, BlockSize: 1, CopyThreads: -1}, "copy_threads is -1, expected 1 to 64, or 0 for the default"},
		{Config{NumBlocks: 1, BlockSize: 1, WarmBytes: -1}, "warm_bytes is -1, expected 0 to 9223372036854775807"},
		{Config{NumBlocks: 0, BlockSize: 1}, "num_blocks is 0, expected 1 to 2147483647"},
	} {
		_, err := New(c.cfg)
		wantErr(t, err, status.InvalidArgument, c.text)
	}
}

// S-13: a key costs address space when it is opened, and memory where rows are.
func TestS13_TheFirstSaveTouchesOnlyItsRows(t *testing.T) {
	r := newRig(t, Config{NumBlocks: 1 << 20, BlockSize: 16}) // 128 MiB of rows of 8 bytes
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 1, "d": 1}, chunk{1, span(1<<23, 1<<23+4)}))
	for _, name := range []string{"h", "d"} {
		if n := r.c.keys[r.keys[name]].mirror.Memory().Resident(); n > 4<<20 {
			t.Errorf("key %s: %d bytes resident after a save of 4 rows", name, n)
		}
	}
}
