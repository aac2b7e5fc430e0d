package prefix

import "testing"

func TestCheck_NoticesEveryKindOfDamage(t *testing.T) {
	build := func() *host {
		h := &host{t, nil}
		m, err := New(Config{PageTokens: 4, BasePages: 16, DraftPages: 16, RecurrentSlots: 2, PartialSlots: 2, MaxRecords: 9})
		if err != nil {
			t.Fatal(err)
		}
		h.Manager = m
		h.run(spec(tokens(1, 8)))
		h.run(AcquireRequest{Tokens: join(tokens(1, 4), tokens(2, 4))})
		y, _ := h.acquire(hybrid(tokens(3, 6)))
		h.checkpoint(y, 6)
		h.vanilla(join(tokens(1, 8), tokens(4, 2)))
		if err := h.Check(); err != nil {
			t.Fatal(err)
		}
		return h
	}
	for what, damage := range map[string]func(*host){
		"C-67: a record ends behind what the index has": func(h *host) { h.records[0].at++ },
		"C-68: a pin too many":                          func(h *host) { h.nodes[h.leases[1].segs[0].bottom].pins++ },
		"C-68: a snapshot count too many":               func(h *host) { h.recurrent.refs[0].cache++ },
		"C-68: active pages miscounted":                 func(h *host) { h.base.active++ },
		"C-68: a draft mark too many":                   func(h *host) { h.draft.marks[h.records[0].draftLast]++ },
		"C-69: index size":                              func(h *host) { h.indexed-- },
		"C-69: draft entries":                           func(h *host) { h.draftEntries++ },
		"C-70: a page is lost":                          func(h *host) { h.base.free.takeOne() },
		"C-70: a page is free twice":                    func(h *host) { h.base.free.ring[h.base.free.head+1] = h.base.free.ring[h.base.free.head] },
		"a child in the wrong place":                    func(h *host) { h.nodes[h.records[0].node].start-- },
		"content that changed under its hash":           func(h *host) { h.content.words[int(h.pages(h.leaseID(1), BasePages)[0])*4]++ },
		"C-71: a lost lease": func(h *host) {
			h.Flush()
			for i := range h.leases {
				h.leases[i].live = false
			}
			h.liveLeases = 0
		},
	} {
		h := build()
		damage(h)
		if h.Check() == nil {
			t.Errorf("Check did not notice: %s", what)
		}
	}
}
