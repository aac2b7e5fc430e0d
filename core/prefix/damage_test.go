package prefix

import (
	"strings"
	"testing"
)

// The checks of records and counters, one by one; check_test.go has those of pages.
func TestCheck_SaysWhichRecordIsDamaged(t *testing.T) {
	build := func() (h *host, ordinary, checkpoint *record) {
		m, err := New(Config{PageTokens: 4, BasePages: 16, DraftPages: 16, RecurrentSlots: 2, PartialSlots: 2, MaxRecords: 9})
		if err != nil {
			t.Fatal(err)
		}
		h = &host{t, m} // not newHost, which checks at the end
		h.run(AcquireRequest{Tokens: tokens(1, 8)})
		y, _ := h.acquire(hybrid(tokens(3, 6)))
		h.checkpoint(y, 6)
		h.vanilla(tokens(4, 9))
		for r := range h.AllRecords() {
			if _, err := h.Record(r.ID); err != nil { // makes the index by id
				t.Fatal(err)
			}
			i := h.recordByID(r.ID)
			if h.records[i].exact == 0 {
				ordinary = &h.records[i]
			} else {
				checkpoint = &h.records[i]
			}
		}
		return h, ordinary, checkpoint
	}
	for _, d := range []struct {
		says   string
		damage func(h *host, ordinary, checkpoint *record)
	}{
		{"is dead, unnamed or listed twice", func(_ *host, r, _ *record) { r.live = false }},
		{"is dead, unnamed or listed twice", func(_ *host, r, c *record) { r.id = c.id }},
		{"outside its node", func(_ *host, r, _ *record) { r.at += 99 }},
		{"places for cells are in a list or free", func(h *host, r, _ *record) { h.nodes[r.node].list.size = 0 }},
		{"blocks and room for", func(h *host, r, _ *record) { h.nodes[r.node].end += 64 }},
		{"or there twice", func(h *host, r, _ *record) { h.nodes[r.node].list.at += 1 << 20 }},
		{"or there twice", func(h *host, _, _ *record) { h.lists.free[3] = 1 << 20 }},
		{"or there twice", func(h *host, r, _ *record) { l := h.nodes[r.node].list; h.lists.free[1] = l.at + 2 }},
		{"or there twice", func(h *host, r, _ *record) { l := h.nodes[r.node].list; h.lists.free[l.size] = l.at + 1 }},
		{"places for cells are in a list or free", func(h *host, _, _ *record) { h.lists.ids = append(h.lists.ids, 0) }},
		{"is free twice, or does not exist", func(h *host, _, _ *record) { h.draft.free.ring[h.draft.free.head] = 99 }},
		{"is free twice, in use, or", func(h *host, _, _ *record) { q := &h.recurrent.free; q.ring[q.head] = q.ring[(q.head+1)%len(q.ring)] }},
		{"is ordinary but has parts of a checkpoint", func(_ *host, r, _ *record) { r.recurrent = 1 }},
		{"is malformed (C-32)", func(_ *host, _, c *record) { c.recurrent = -1 }},
		{"checkpoint record", func(_ *host, _, c *record) { c.partial = -1 }},
		{"records in the order", func(h *host, _, _ *record) { h.recordCount++ }},
		{"records by id, counted", func(h *host, _, _ *record) { h.byID.used++ }},
		{"live leases, counted", func(h *host, _, _ *record) { h.liveLeases++ }},
	} {
		h, ordinary, checkpoint := build()
		if err := h.Check(); err != nil {
			t.Fatal(err)
		}
		d.damage(h, ordinary, checkpoint)
		if err := h.Check(); err == nil || !strings.Contains(err.Error(), d.says) {
			t.Errorf("Check says %v, want %q", err, d.says)
		}
	}
}
