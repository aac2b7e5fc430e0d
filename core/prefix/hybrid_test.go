package prefix

import (
	"testing"

	"libprefixcache/core/status"
)

func TestC62_AfterPublishAndRetireTheSlotIsCachedOnly(t *testing.T) {
	h := hybridHost(t)
	tok := tokens(1, 11)
	id, _ := h.acquire(hybrid(tok))
	slots, ok, err := h.Reserve(id, true)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	wantEqual(t, "reserved slot", h.refs(RecurrentSlots, slots.Recurrent), [2]int32{1, 0})
	r, err := h.PublishHybrid(id, 11, slots)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "result", r, PublishResult{Published, 1, 2, false})
	wantEqual(t, "published slot", h.refs(RecurrentSlots, slots.Recurrent), [2]int32{1, 1})
	if err := h.Retire(id, slots); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "retired recurrent slot", h.refs(RecurrentSlots, slots.Recurrent), [2]int32{0, 1})
	wantEqual(t, "retired partial slot", h.refs(PartialSlots, slots.Partial), [2]int32{0, 1})
	h.refused(status.WrongState, "retiring again", func() error { return h.Retire(id, slots) })

	// An existing checkpoint: the new slots are not kept.
	again, _, _ := h.Reserve(id, true)
	r, err = h.PublishHybrid(id, 11, again)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "status", r.Status, ExistingRecord)
	if err := h.Retire(id, again); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "slots of the duplicate", h.refs(RecurrentSlots, again.Recurrent), [2]int32{0, 0})
	h.release(id)

	// A hit pins the slots; releasing the restored ones is idempotent.
	id, p := h.acquire(hybrid(append(tok, 1)))
	wantEqual(t, "restored slot", h.refs(RecurrentSlots, p.Recurrent), [2]int32{1, 1})
	for range 2 {
		if err := h.ReleaseRestored(id); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "released slot", h.refs(RecurrentSlots, p.Recurrent), [2]int32{0, 1})
	}
	h.release(id)
	// Reserved and never published: the release drops them.
	id, _ = h.acquire(hybrid(tok))
	h.Reserve(id, true)
	h.release(id)
	wantEqual(t, "free recurrent slots", h.Free(RecurrentSlots), 7)
	wantEqual(t, "free partial slots", h.Free(PartialSlots), 7)
}

// A slot that two records list holds the state of one of them: a hit on the other would
// restore it.
func TestC62_ASlotIsTheSnapshotOfOneRecord(t *testing.T) {
	h := hybridHost(t)
	id, _ := h.acquire(hybrid(tokens(1, 11)))
	reserve := func(partial bool) Reservation {
		slots, ok, err := h.Reserve(id, partial)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		return slots
	}
	a, b := reserve(true), reserve(true)
	first, err := h.PublishHybrid(id, 6, a)
	if err != nil {
		t.Fatal(err)
	}
	for _, slots := range []Reservation{a, {a.Recurrent, b.Partial}, {b.Recurrent, a.Partial}} {
		h.refused(status.WrongState, "another length with the same slots", func() error {
			_, err := h.PublishHybrid(id, 7, slots)
			return err
		})
	}
	h.refused(status.WrongState, "an aligned length", func() error {
		_, err := h.PublishHybrid(id, 8, Reservation{a.Recurrent, -1})
		return err
	})
	again, err := h.PublishHybrid(id, 6, a)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the same once more", again, PublishResult{ExistingRecord, first.Record, 1, false})
	if err := h.EvictRecord(first.Record); err != nil {
		t.Fatal(err)
	}
	if _, err := h.PublishHybrid(id, 7, a); err != nil { // captured again, after the record had gone
		t.Fatal(err)
	}
	h.release(id)

	k := newHost(t, Config{PageTokens: 4, BasePages: 16, RecurrentSlots: 2, PartialSlots: 2, Identity: Keys})
	id, _ = k.acquire(AcquireRequest{Mode: Hybrid, TokenCount: 11})
	slots, _, _ := k.Reserve(id, true)
	publish := func(digest uint64) error {
		_, err := k.PublishHybridKeys(id, 0, []Hash128{{1, 1}}, Checkpoint{6, Hash128{2, digest}}, slots)
		return err
	}
	for range 2 {
		if err := publish(1); err != nil {
			t.Fatal(err)
		}
	}
	k.refused(status.WrongState, "another digest with the same slots", func() error { return publish(2) })
	k.release(id)
}

func TestReserve_EvictsOrSaysNone(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, RecurrentSlots: 2, PartialSlots: 1})
	id, _ := h.acquire(hybrid(tokens(1, 11)))
	a := h.checkpoint(id, 11).Record
	h.checkpoint(id, 8)
	// Both recurrent slots are cached: the oldest record goes.
	slots, ok, err := h.Reserve(id, false)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := h.Record(a); err == nil {
		t.Error("the least recent record is still there")
	}
	_, ok, _ = h.Reserve(id, false) // evicts the other one
	wantEqual(t, "second reservation", ok, true)
	before := h.state()
	_, ok, err = h.Reserve(id, false)
	if ok || err != nil {
		t.Errorf("third reservation of two slots: %v %v", ok, err)
	}
	wantEqual(t, "state", h.state(), before)
	h.refused(status.WrongState, "publishing with slots of nobody", func() error { _, err := h.PublishHybrid(id, 8, Reservation{7, -1}); return err })
	h.refused(status.InvalidArgument, "a partial slot for an aligned length", func() error {
		_, err := h.PublishHybrid(id, 8, Reservation{slots.Recurrent, 0})
		return err
	})
	h.refused(status.InvalidArgument, "no partial slot for a partial page", func() error { _, err := h.PublishHybrid(id, 9, slots); return err })
	h.refused(status.InvalidArgument, "length beyond the history", func() error { _, err := h.PublishHybrid(id, 12, slots); return err })
	pure, _ := h.acquire(AcquireRequest{Mode: Hybrid, NoAttention: true, Tokens: tokens(2, 5)})
	h.refused(status.InvalidArgument, "a partial slot without attention", func() error { _, _, err := h.Reserve(pure, true); return err })
}

func TestReserve_EvictsNothingForALeaseThatWasFlushed(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, RecurrentSlots: 1, PartialSlots: 1})
	stale, _ := h.acquire(hybrid(tokens(1, 11)))
	h.Flush()
	id, _ := h.acquire(hybrid(tokens(2, 11)))
	kept := h.checkpoint(id, 11).Record
	h.release(id)
	before := h.state()
	_, ok, err := h.Reserve(stale, true)
	if ok || err != nil {
		t.Errorf("reserved for what will be dropped: %v %v", ok, err)
	}
	wantEqual(t, "state", h.state(), before)
	if err := h.EvictRecord(kept); err != nil {
		t.Fatal(err)
	}
	if _, ok, err = h.Reserve(stale, true); !ok || err != nil {
		t.Errorf("a free slot: %v %v", ok, err)
	}
	h.release(stale)
}

func TestC63_StandardAndHybridPublicationDoNotMix(t *testing.T) {
	h := hybridHost(t)
	v, _ := h.vanilla(tokens(1, 8))
	y, _ := h.acquire(hybrid(tokens(2, 8)))
	slots, _, _ := h.Reserve(y, false)
	h.refused(status.WrongState, "publish on a hybrid lease", func() error { _, err := h.Publish(y, 8); return err })
	h.refused(status.WrongState, "hybrid publish on a vanilla lease", func() error { _, err := h.PublishHybrid(v, 8, slots); return err })
	h.refused(status.WrongState, "reserve on a vanilla lease", func() error { _, _, err := h.Reserve(v, false); return err })
	h.refused(status.WrongState, "retire on a vanilla lease", func() error { return h.Retire(v, slots) })
	h.refused(status.WrongState, "release restored on a vanilla lease", func() error { return h.ReleaseRestored(v) })
}

func TestC61_WhetherTheSnapshotWasWrittenIsTheCallersBusiness(t *testing.T) {
	h := hybridHost(t)
	id, _ := h.acquire(hybrid(tokens(1, 8)))
	slots, _, _ := h.Reserve(id, false)
	r, err := h.PublishHybrid(id, 8, slots) // the manager knows no device
	if err != nil || r.Status != Published {
		t.Errorf("publication: %+v %v", r, err)
	}
	wantEqual(t, "restart", h.hit(hybrid(tokens(1, 9))), 8)
}
