package coordinator

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"libprefixcache/core/status"
)

// mirror is a device copy of a table that only the commands may change.
type mirror []int32

func (m mirror) apply(t *testing.T, table *PageTable) (commands []Command) {
	t.Helper()
	dst := make([]Command, table.UploadCommands())
	n, err := table.PlanUpload(Base, dst)
	if err != nil {
		t.Fatal(err)
	}
	stride := int(2 * table.Width())
	for _, c := range dst[:n] {
		if c.Kind == CmdUploadRows {
			copy(m[int(c.Slot)*stride:], table.Rows(c.Slot, c.Count))
		}
	}
	table.FinishUpload(true)
	return dst[:n]
}

func newTable(t *testing.T, maxBatch, width, pages int32) (*PageTable, mirror) {
	t.Helper()
	table, err := NewPageTable(maxBatch, width, pages)
	if err != nil {
		t.Fatal(err)
	}
	return table, make(mirror, maxBatch*2*width)
}

func wantCode(t *testing.T, err error, code status.Code) {
	t.Helper()
	if got := status.CodeOf(err); got != code {
		t.Fatalf("code %d (%v), want %d", got, err, code)
	}
}

func TestPageTable_ConstructionAndIdentity(t *testing.T) {
	for _, a := range [][3]int32{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {-1, 1, 1}, {1, 1, math.MaxInt32/2 + 1}, {1 << 15, 1 << 15, 1}} {
		_, err := NewPageTable(a[0], a[1], a[2])
		wantCode(t, err, status.InvalidArgument)
	}
	table, m := newTable(t, 3, 2, 7) // one page more than the identity uses
	m.apply(t, table)
	if table.IsIdentity() {
		t.Error("an empty table claims to be the identity")
	}
	if err := table.SetIdentity(); err != nil {
		t.Fatal(err)
	}
	m.apply(t, table)
	if want := (mirror{0, 1, 7, 8, 2, 3, 9, 10, 4, 5, 11, 12}); !slices.Equal(m, want) || !table.IsIdentity() {
		t.Errorf("identity is %v, want %v", m, want)
	}
	if err := table.SetIdentity(); err != nil || len(m.apply(t, table)) != 0 {
		t.Error("setting the identity again dirtied a row")
	}
	// The identity's own pages set by hand are no longer known to be it.
	if err := table.SetRow(0, []int32{0, 1}); err != nil || table.IsIdentity() {
		t.Errorf("after SetRow: err %v, identity %v", err, table.IsIdentity())
	}
	if err := table.SetIdentity(); err != nil || !table.IsIdentity() {
		t.Fatal(err)
	}
	if err := table.AppendRow(0, nil); err != nil || table.IsIdentity() {
		t.Errorf("after AppendRow: err %v, identity %v", err, table.IsIdentity())
	}
	for _, bad := range []struct {
		slot  int32
		pages []int32
	}{{3, nil}, {-1, nil}, {0, []int32{1}}, {1, []int32{1, 2}}} { // rows are full
		wantCode(t, table.AppendRow(bad.slot, bad.pages), status.InvalidArgument)
	}
	small, _ := newTable(t, 3, 2, 5)
	wantCode(t, small.SetIdentity(), status.InvalidArgument)
}

func TestC72_SetRowsChecksAllBeforeAnyChange(t *testing.T) {
	good := RowUpdate{0, []int32{5, 6}}
	for name, bad := range map[string][]RowUpdate{
		"slot below":       {good, {-1, nil}},
		"slot beyond":      {good, {4, nil}},
		"too many pages":   {good, {1, []int32{1, 2, 3, 4}}},
		"page beyond":      {good, {1, []int32{9}}},
		"hole inside":      {good, {1, []int32{1, -1, 2}}},
		"same slot twice":  {good, {1, nil}, {0, []int32{1}}},
		"twice and beyond": {{2, []int32{8}}, {2, []int32{9}}},
	} {
		t.Run(name, func(t *testing.T) {
			table, m := newTable(t, 4, 3, 9)
			if err := table.SetIdentity(); err == nil {
				t.Fatal("identity of 12 pages fits 9?")
			}
			m.apply(t, table)
			wantCode(t, table.SetRows(bad), status.InvalidArgument)
			if len(m.apply(t, table)) != 0 || table.RowLength(0) != 0 {
				t.Error("a refused update left a trace")
			}
		})
	}
}

func TestPageTable_NoRowsAreNoChange(t *testing.T) {
	table, m := newTable(t, 2, 2, 9)
	m.apply(t, table)
	if err := table.SetRows(nil); err != nil || len(m.apply(t, table)) != 0 {
		t.Errorf("no updates: %v, or something is uploaded", err)
	}
	wantCode(t, table.AppendRow(0, []int32{9}), status.InvalidArgument)
	if table.RowLength(0) != 0 || len(m.apply(t, table)) != 0 {
		t.Error("a refused page left a trace")
	}
}

// "Same slot twice" is found with a stamp for each call. When it wraps, a slot that was
// set 2^32 calls ago must not count as set by this one.
func TestC72_TheStampOfACallWraps(t *testing.T) {
	table, _ := newTable(t, 4, 3, 9)
	if err := table.SetRows([]RowUpdate{{1, []int32{2}}}); err != nil { // stamp 1
		t.Fatal(err)
	}
	table.stamp = math.MaxUint32
	if err := table.SetRows([]RowUpdate{{1, []int32{3}}}); err != nil {
		t.Errorf("slot 1 was set twice? %v", err)
	}
	wantCode(t, table.SetRows([]RowUpdate{{2, nil}, {2, nil}}), status.InvalidArgument)
}

func TestC73_UnchangedRowsStayClean(t *testing.T) {
	table, m := newTable(t, 4, 3, 9)
	rows := []RowUpdate{{0, []int32{1, 2}}, {1, []int32{3}}, {3, nil}}
	if err := table.SetRows(rows); err != nil {
		t.Fatal(err)
	}
	m.apply(t, table)
	rows[1].Pages = []int32{4}
	if err := table.SetRows(rows); err != nil {
		t.Fatal(err)
	}
	for slot, want := range []bool{false, true, false, false} {
		if table.Dirty(int32(slot)) != want {
			t.Errorf("row %d dirty %v, want %v", slot, !want, want)
		}
	}
	if table.SetRow(1, nil) != nil || table.RowLength(1) != 0 { // count 0 clears
		t.Error("an empty update did not clear its row")
	}
}

func TestC74_CompactRowsChecksTheMapping(t *testing.T) {
	for name, a := range map[string]struct {
		mapping []int32
		batch   int32
	}{
		"too long":            {[]int32{0, 1, 2, 3, -1}, 4},
		"batch negative":      {nil, -1},
		"batch too large":     {[]int32{0}, 5},
		"destination beyond":  {[]int32{0, 2}, 2},
		"destination below":   {[]int32{0, -2}, 1},
		"destination twice":   {[]int32{0, 0}, 2},
		"destination missing": {[]int32{1, -1}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			table, m := newTable(t, 4, 2, 9)
			if err := table.SetRow(1, []int32{3}); err != nil {
				t.Fatal(err)
			}
			m.apply(t, table)
			wantCode(t, table.CompactRows(a.mapping, a.batch), status.InvalidArgument)
			if table.RowLength(1) != 1 || len(m.apply(t, table)) != 0 {
				t.Error("a refused compaction left a trace")
			}
		})
	}
}

func TestC75_CompactionMovesRowsNotPages(t *testing.T) {
	table, m := newTable(t, 4, 2, 9)
	if err := table.SetRows([]RowUpdate{{0, []int32{1}}, {1, []int32{2, 3}}, {2, []int32{4}}, {3, []int32{5}}}); err != nil {
		t.Fatal(err)
	}
	m.apply(t, table)
	// A permutation is fine here; row 3 lies beyond the mapping and is cleared.
	if err := table.CompactRows([]int32{1, 0, -1}, 2); err != nil {
		t.Fatal(err)
	}
	m.apply(t, table)
	if want := (mirror{2, 3, 11, 12, 1, -1, 10, -1, -1, -1, -1, -1, -1, -1, -1, -1}); !slices.Equal(m, want) {
		t.Errorf("got %v, want %v", m, want)
	}
	if err := table.CheckInvariants(); err != nil {
		t.Error(err)
	}
}

func TestC76_UploadIsMaximalRunsBetweenWaitAndRecord(t *testing.T) {
	table, _ := newTable(t, 6, 2, 9)
	dst := make([]Command, table.UploadCommands())
	plan := func() []Command {
		n, err := table.PlanUpload(Draft, dst)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(dst[:n])
	}
	wantList(t, plan(), Command{Kind: CmdUploadRows, Cache: Draft, Count: 6}, Command{Kind: CmdRecordUpload, Cache: Draft})
	if _, err := table.PlanUpload(Draft, dst); status.CodeOf(err) != status.WrongState {
		t.Errorf("a second upload was handed out: %v", err)
	}
	table.FinishUpload(true)
	wantList(t, plan()) // nothing is dirty
	for _, slot := range []int32{0, 2, 3, 5} {
		if err := table.SetRow(slot, []int32{slot}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := table.PlanUpload(Draft, dst[:1]); status.CodeOf(err) != status.BufferTooSmall {
		t.Errorf("short buffer: %v", err)
	}
	want := []Command{{Kind: CmdWaitUpload, Cache: Draft}, {Kind: CmdUploadRows, Cache: Draft, Count: 1},
		{Kind: CmdUploadRows, Cache: Draft, Slot: 2, Count: 2}, {Kind: CmdUploadRows, Cache: Draft, Slot: 5, Count: 1}, {Kind: CmdRecordUpload, Cache: Draft}}
	wantList(t, plan(), want...)
	table.FinishUpload(false) // nothing is known to have arrived: dirty again
	wantList(t, plan(), want...)
}

func TestC77_OnlyDirtyRowsTravel(t *testing.T) {
	table, m := newTable(t, 3, 2, 9)
	m.apply(t, table)
	m[4] = 77 // planted in clean row 1
	if err := table.SetRow(0, []int32{8}); err != nil {
		t.Fatal(err)
	}
	m.apply(t, table)
	if m[4] != 77 || m[0] != 8 {
		t.Errorf("mirror %v: the marker in row 1 must survive", m)
	}
}

func TestC78_StagingIsRewrittenOnlyAfterTheEarlierCopy(t *testing.T) {
	table, m := newTable(t, 2, 2, 9)
	m.apply(t, table)
	if !table.UploadPending() {
		t.Fatal("an upload left no event")
	}
	for range 3 {
		if err := table.SetRow(0, []int32{int32(table.RowLength(0)) + 1}); err != nil {
			t.Fatal(err)
		}
		if got := m.apply(t, table); len(got) > 0 && got[0].Kind != CmdWaitUpload {
			t.Fatalf("upload %v does not wait for the one before", got)
		}
		if err := table.SetRow(0, nil); err != nil {
			t.Fatal(err)
		}
	}
	// Uploads of a coordinator and of its table's owner, in turn. Only the former are on
	// the stream that a synchronisation is of.
	dst := make([]Command, table.UploadCommands())
	page := int32(0)
	upload := func(direct, ok bool) (waits bool) {
		t.Helper()
		page = 1 - page
		if err := table.SetRow(0, []int32{page}); err != nil {
			t.Fatal(err)
		}
		l := list{dst: dst}
		if direct {
			n, err := table.PlanUpload(Base, dst)
			if l.n = n; err != nil {
				t.Fatal(err)
			}
		} else {
			table.plan(Base, &l)
		}
		table.FinishUpload(ok)
		return dst[0].Kind == CmdWaitUpload
	}
	for i, s := range []struct {
		direct, failed, drained bool
		waits                   bool // the next one
	}{
		{drained: false, waits: true},
		{drained: true, waits: false},
		{direct: true, drained: true, waits: true},
		{drained: true, waits: false},
		{direct: true, drained: false, waits: true},
		{failed: true, drained: true, waits: true}, // did it wait for the one before?
		{drained: true, waits: false},
		{failed: true, drained: true, waits: false},
		{direct: true, failed: true, drained: true, waits: true},
		{direct: true, drained: true, waits: true},
	} {
		upload(s.direct, !s.failed)
		if s.drained {
			table.Drained()
		}
		if table.UploadPending() != s.waits {
			t.Errorf("after upload %d, %+v: pending is %v", i, s, table.UploadPending())
		}
	}
	if !upload(false, true) {
		t.Error("an upload does not wait for one of another stream")
	}
	table.Drained()
	if upload(false, true) {
		t.Error("an upload waits although the stream was drained")
	}
	// A row that changes while its upload is out is dirty again.
	_ = table.SetRow(1, []int32{4})
	if n, err := table.PlanUpload(Base, dst); n == 0 || err != nil {
		t.Fatal(n, err)
	}
	_ = table.SetRow(1, []int32{5})
	table.FinishUpload(true)
	if !table.Dirty(1) {
		t.Error("a change during the upload got lost")
	}
}

func TestC79_FirstUploadIsTheWholeTable(t *testing.T) {
	table, m := newTable(t, 5, 3, 9)
	got := m.apply(t, table)
	if len(got) != 2 || got[0] != (Command{Kind: CmdUploadRows, Count: 5}) {
		t.Errorf("first upload is %v", got)
	}
	for i, v := range m {
		if v != -1 {
			t.Fatalf("entry %d is %d, want -1", i, v)
		}
	}
}

func TestPageTable_CorruptRowIsNotUploaded(t *testing.T) {
	table, m := newTable(t, 2, 3, 9)
	m.apply(t, table)
	if err := table.SetRow(0, []int32{1, 2}); err != nil {
		t.Fatal(err)
	}
	table.Rows(0, 1)[2] = 5 // live after a -1 in the V half
	wantCode(t, table.CheckInvariants(), status.Internal)
	_, err := table.PlanUpload(Base, make([]Command, table.UploadCommands()))
	wantCode(t, err, status.Internal)
}

// The table against a list of rows, with a mirror that only commands change.
func TestPageTable_RandomAgainstModel(t *testing.T) {
	const batch, width, pages = 5, 4, 40
	rng := rand.New(rand.NewPCG(1, 2))
	table, m := newTable(t, batch, width, pages)
	model := make([][]int32, batch)
	some := func() []int32 {
		row := make([]int32, rng.IntN(width+1))
		for i := range row {
			row[i] = rng.Int32N(pages)
		}
		return row
	}
	for range 20000 {
		switch rng.IntN(4) {
		case 0:
			slot := rng.Int32N(batch)
			row := some()
			if err := table.SetRow(slot, row); err != nil {
				t.Fatal(err)
			}
			model[slot] = row
		case 1:
			slot := rng.Int32N(batch)
			row := some()
			err := table.AppendRow(slot, row)
			if fits := len(model[slot])+len(row) <= width; (err == nil) != fits {
				t.Fatalf("append of %d to %d: %v", len(row), len(model[slot]), err)
			} else if fits {
				model[slot] = append(slices.Clone(model[slot]), row...)
			}
		case 2:
			mapping := make([]int32, rng.IntN(batch+1))
			next := int32(0)
			for i, old := range rng.Perm(len(mapping)) {
				mapping[old] = -1
				if rng.IntN(3) > 0 && i >= 0 {
					mapping[old] = next
					next++
				}
			}
			if err := table.CompactRows(mapping, next); err != nil {
				t.Fatal(err)
			}
			moved := make([][]int32, batch)
			for old, to := range mapping {
				if to >= 0 {
					moved[to] = model[old]
				}
			}
			model = moved
		case 3:
			m.apply(t, table)
			for b, row := range model {
				for i := range width {
					k, v := int32(-1), int32(-1)
					if i < len(row) {
						k, v = row[i], row[i]+pages
					}
					if at := b*2*width + i; m[at] != k || m[at+width] != v {
						t.Fatalf("row %d entry %d: K %d V %d, want %d %d", b, i, m[at], m[at+width], k, v)
					}
				}
			}
		}
	}
	if err := table.CheckInvariants(); err != nil {
		t.Error(err)
	}
}
