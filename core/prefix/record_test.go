package prefix

import (
	"testing"

	"libprefixcache/core/status"
)

func hybrid(t []int32) AcquireRequest { return AcquireRequest{Mode: Hybrid, Tokens: t} }

func hybridHost(t testing.TB) *host {
	return newHost(t, Config{PageTokens: 4, RecurrentSlots: 8, PartialSlots: 8})
}

func TestC32_RecordsAreValidByConstruction(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 16, RecurrentSlots: 4, PartialSlots: 4})
	v, _ := h.vanilla(tokens(1, 9))
	s, _ := h.acquire(spec(tokens(2, 9)))
	y, _ := h.acquire(hybrid(tokens(3, 9)))
	p, _ := h.acquire(AcquireRequest{Mode: Hybrid, NoAttention: true, Tokens: tokens(4, 9)})
	// What would make an invalid record is refused before anything changes.
	h.refused(status.InvalidArgument, "no full block", func() error { _, err := h.Publish(v, 3); return err })
	h.refused(status.InvalidArgument, "length 0", func() error { _, err := h.PublishHybrid(y, 0, Reservation{0, -1}); return err })
	h.refused(status.InvalidArgument, "no recurrent slot", func() error { _, err := h.PublishHybrid(y, 8, Reservation{-1, -1}); return err })
	h.publish(v, 9)
	h.publish(s, 9)
	h.checkpoint(y, 9)
	h.checkpoint(y, 3)
	h.checkpoint(p, 9)
	var got []RecordInfo
	for r := range h.AllRecords() {
		got = append(got, r)
		base := len(h.recordPages(r.ID, BasePages))
		if want := r.Blocks; base != want && r.ID != 5 {
			t.Errorf("record %d has %d base pages, want %d", r.ID, base, want)
		}
		if n := len(h.recordPages(r.ID, DraftPages)); n != 0 && n != base {
			t.Errorf("record %d has %d draft pages, want none or %d", r.ID, n, base)
		}
	}
	wantSlice(t, "records", got, []RecordInfo{
		{ID: 1, Blocks: 2, Recurrent: -1, Partial: -1},
		{ID: 2, Blocks: 2, Recurrent: -1, Partial: -1, HasDraft: true},
		{ID: 3, Blocks: 2, Exact: 9, Recurrent: 0, Partial: 0},
		{ID: 4, Blocks: 0, Exact: 3, Recurrent: 1, Partial: 1},
		{ID: 5, Blocks: 2, Exact: 9, Recurrent: 2, Partial: -1}})
	wantSlice(t, "base path of a pure recurrent record", h.recordPages(5, BasePages), nil)
}

func TestC33_KeysAreExact(t *testing.T) {
	h := hybridHost(t)
	tok := tokens(1, 12)
	id, _ := h.acquire(hybrid(tok))
	for _, n := range []int{5, 6, 7, 8} { // the same full block, four exact lengths
		wantEqual(t, "status", h.checkpoint(id, n).Status, Published)
	}
	for _, n := range []int{5, 6, 7, 8} {
		wantEqual(t, "status again", h.checkpoint(id, n).Status, ExistingRecord)
		wantEqual(t, "restart", h.hit(hybrid(tok[:n+1])), n)
	}
	other := append([]int32(nil), tok...)
	other[5]++
	o, _ := h.acquire(hybrid(other))
	wantEqual(t, "same length, other tail", h.checkpoint(o, 6).Status, Published)
}

func TestC34_ADuplicateMakesTheFirstRecordMostRecent(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	a := h.run(AcquireRequest{Tokens: tokens(1, 8)})
	b := h.run(AcquireRequest{Tokens: tokens(2, 8)})
	pages := h.recordPages(a.Record, BasePages)
	again := h.run(AcquireRequest{Policy: Bypass, Tokens: tokens(1, 8)})
	wantEqual(t, "status", again.Status, ExistingRecord)
	wantEqual(t, "record", again.Record, a.Record)
	wantSlice(t, "pages", h.recordPages(a.Record, BasePages), pages)
	wantSlice(t, "order", h.order(), []RecordID{b.Record, a.Record})
}

func TestC35_IdsRiseFromOneAndAreNeverReused(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	for i := range uint64(5) {
		r := h.run(AcquireRequest{Tokens: tokens(i, 8)})
		wantEqual(t, "id", r.Record, RecordID(i+1))
		if err := h.EvictRecord(r.Record); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Record(r.Record); status.CodeOf(err) != status.NotFound {
			t.Errorf("record %d is still there: %v", r.Record, err)
		}
	}
}

func TestC36_OnlyUseChangesRecency(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 32})
	a := h.run(AcquireRequest{Tokens: tokens(1, 8)}).Record
	b := h.run(AcquireRequest{Tokens: tokens(2, 8)}).Record
	c := h.run(AcquireRequest{Tokens: tokens(3, 8)}).Record
	steps := []struct {
		what string
		do   func()
		want []RecordID
	}{
		{"reading", func() { h.hit(AcquireRequest{Tokens: tokens(1, 9)}); h.recordPages(a, BasePages) }, []RecordID{a, b, c}},
		{"duplicate insert", func() { h.run(AcquireRequest{Policy: Bypass, Tokens: tokens(1, 8)}) }, []RecordID{b, c, a}},
		{"hit", func() { id, _ := h.vanilla(tokens(2, 9)); h.release(id) }, []RecordID{c, a, b}},
		{"attaching a draft path", func() { h.run(spec(tokens(3, 8))) }, []RecordID{a, b, c}},
		{"bypass", func() { id, _ := h.acquire(AcquireRequest{Policy: Bypass, Tokens: tokens(1, 9)}); h.release(id) }, []RecordID{a, b, c}},
	}
	for _, s := range steps {
		s.do()
		wantSlice(t, "order after "+s.what, h.order(), s.want)
	}
}

func TestC37_ADraftPathIsAttachedOnce(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, DraftPages: 32})
	base := h.run(AcquireRequest{Tokens: tokens(1, 8)})
	pages := h.recordPages(base.Record, BasePages)
	first, _ := h.acquire(spec(tokens(1, 8)))
	up := h.publish(first, 8)
	wantEqual(t, "upgrade", up, PublishResult{Published, base.Record, 2, false})
	wantSlice(t, "base path", h.recordPages(base.Record, BasePages), pages)
	draft := h.recordPages(base.Record, DraftPages)
	wantSlice(t, "draft path", draft, h.pages(first, DraftPages))
	second, _ := h.acquire(AcquireRequest{Mode: Spec, Policy: Bypass, Tokens: tokens(1, 8)})
	wantEqual(t, "second upgrade", h.publish(second, 8).Status, ExistingRecord)
	wantSlice(t, "draft path", h.recordPages(base.Record, DraftPages), draft)
}

func TestC38_CandidatesAreStrictlyShorterLongestFirst(t *testing.T) {
	h := hybridHost(t)
	tok := tokens(1, 20)
	id, _ := h.acquire(hybrid(tok))
	for _, n := range []int{3, 18, 8, 9, 13} {
		h.checkpoint(id, n)
	}
	for n, want := range map[int]int{20: 18, 19: 18, 18: 13, 14: 13, 13: 9, 10: 9, 9: 8, 8: 3, 4: 3, 3: 0, 2: 0} {
		wantEqual(t, "restart", h.hit(hybrid(tok[:n])), want)
	}
}

func TestC39_OtherRecordsKeepTheirPaths(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	stem := tokens(1, 12)
	var ids []RecordID
	paths := map[RecordID][]int32{}
	for i := range 6 {
		r := h.run(AcquireRequest{Tokens: join(stem[:4*(1+i%3)], tokens(uint64(10+i), 8))}).Record
		ids = append(ids, r)
		paths[r] = h.recordPages(r, BasePages)
	}
	for _, gone := range ids {
		if err := h.EvictRecord(gone); err != nil {
			t.Fatal(err)
		}
		delete(paths, gone)
		for id, want := range paths {
			wantSlice(t, "path", h.recordPages(id, BasePages), want)
		}
	}
	h.refused(status.NotFound, "evicting it again", func() error { return h.EvictRecord(ids[0]) })
}
