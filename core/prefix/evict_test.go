package prefix

import (
	"testing"

	"libprefixcache/core/status"
)

func TestC40_WhatFitsEvictsNothing(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 6})
	h.run(AcquireRequest{Tokens: tokens(1, 8)})
	p := preview(h, Demand{4}, 0)
	if !p.Feasible || len(p.Victims) != 0 || p.Reclaimed != (Demand{}) {
		t.Errorf("plan %+v", p)
	}
	h.vanilla(tokens(2, 16))
	wantEqual(t, "records", h.Records(), 1)
}

func TestC41_VictimsAreTheShortestPrefixInOrder(t *testing.T) {
	// Four records of one page each, all in one stem page, and one of a draft.
	h := newHost(t, Config{PageTokens: 4, BasePages: 8, DraftPages: 6})
	stem := tokens(1, 4)
	var ids []RecordID
	for i := range uint64(3) {
		ids = append(ids, h.run(AcquireRequest{Tokens: join(stem, tokens(10+i, 4))}).Record)
	}
	s := h.run(spec(tokens(20, 8))).Record
	hold, _ := h.vanilla(join(stem, tokens(11, 4), tokens(9, 1))) // the second record's pages are active, and it is most recent
	// Free: 8 base pages - (1 stem + 3 + 2) - 1 private = 1; 4 draft pages.
	order := []RecordID{ids[0], ids[2], s, ids[1]}
	wantSlice(t, "order", h.order(), order)
	for _, c := range []struct {
		demand  Demand
		last    RecordID
		victims []RecordID
		back    Demand
	}{
		{Demand{1, 4}, 0, nil, Demand{}},
		{Demand{2}, 0, order[:1], Demand{1}},
		{Demand{3}, 0, order[:2], Demand{2}},
		{Demand{4}, 0, order[:3], Demand{4, 2}},            // both pages of the paired record come at once
		{Demand{0, 5}, 0, order[:3], Demand{4, 2}},         // a prefix: records that free no draft page go too
		{Demand{2}, ids[0], []RecordID{ids[2]}, Demand{1}}, // the override moves to the end
		{Demand{5}, ids[0], []RecordID{ids[2], s, ids[1], ids[0]}, Demand{4, 2}},
	} {
		p := preview(h, c.demand, c.last)
		if c.demand[BasePages] == 5 { // the stem and the second record's page stay with the lease
			wantEqual(t, "feasible", p.Feasible, true)
		}
		wantSlice(t, "victims", p.Victims, c.victims)
		wantEqual(t, "reclaimed", p.Reclaimed, c.back)
	}
	// And the real thing does what the preview says.
	if !h.grow(hold, 3, 0) {
		t.Fatal("no room")
	}
	wantSlice(t, "order after growth", h.order(), order[2:])
}

func TestC42_InfeasibleIsEmptyAndChangesNothing(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 6})
	h.run(AcquireRequest{Tokens: tokens(1, 8)})
	hold, _ := h.vanilla(tokens(2, 7))
	p := preview(h, Demand{5}, 0)
	if p.Feasible || len(p.Victims) != 0 || p.Reclaimed != (Demand{}) {
		t.Errorf("plan %+v", p)
	}
	before := h.state()
	wantEqual(t, "growth", h.grow(hold, 5, 0), false)
	wantEqual(t, "state", h.state(), before)
}

func TestC43_PlanningNeverModifiesAndChecksItsArguments(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 6})
	h.run(AcquireRequest{Tokens: tokens(1, 16)})
	before := h.state()
	plan(t, h, AcquireRequest{Tokens: tokens(2, 24)}) // of 6 pages, with one record of 4
	wantEqual(t, "feasible", h.Feasible(Demand{6}), true)
	wantEqual(t, "feasible beyond the capacity", h.Feasible(Demand{7}), false)
	wantEqual(t, "feasible, negative", h.Feasible(Demand{0, -1}), false)
	h.refused(status.InvalidArgument, "media of another length", func() error {
		_, err := h.Plan(&AcquireRequest{Tokens: tokens(2, 4), Media: make([]Hash128, 3)})
		return err
	})
	wantEqual(t, "state", h.state(), before)
}
