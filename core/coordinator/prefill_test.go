package coordinator

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

func wantList(t *testing.T, got []Command, want ...Command) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the list is not the expected one (-want +got):\n%s", diff)
	}
}

func TestC90_PreparePrefillOrder(t *testing.T) {
	r := newRig(t, KindEAGLE)
	a := prompts(seq(1, 9), seq(2, 5))
	a.Mode = ModeEAGLE
	q, err := r.begin(a)
	r.must(err)
	r.must(r.prepare(q))
	wantList(t, r.ran,
		Command{Kind: CmdUploadRows, Count: 4}, Command{Kind: CmdRecordUpload}, // the first upload is the whole table (C-79)
		Command{Kind: CmdUploadRows, Cache: Draft, Count: 4}, Command{Kind: CmdRecordUpload, Cache: Draft},
		Command{Kind: CmdSetReuseLengths, Count: 2}, Command{Kind: CmdSetReuseLengths, Cache: Draft, Count: 2})
	if got := r.stage(q.h); got.Stage != StagePrefill || !got.Pending || got.Phase != PhaseExecuting {
		t.Errorf("after prepare: %+v", got)
	}
	r.must(r.drop(q, true))

	r = newRig(t, KindHybrid)
	r.publish(prompts(seq(1, 6)))
	q, err = r.begin(prompts(seq(2, 5), seq(1, 7)))
	r.must(err)
	hit := r.info(q.h, 1)
	page := make([]int32, 1)
	r.must(r.c.Manager().Pages(hit.Lease, prefix.BasePages, 1, page))
	r.must(r.prepare(q))
	wantList(t, r.ran,
		Command{Kind: CmdWaitUpload}, Command{Kind: CmdUploadRows, Count: 2}, Command{Kind: CmdRecordUpload},
		Command{Kind: CmdZeroRecurrent, Slot: 0},
		Command{Kind: CmdRestoreRecurrent, Slot: 1, Snapshot: 0},
		Command{Kind: CmdRestorePage, Page: page[0], Tokens: 2, Snapshot: 0},
		Command{Kind: CmdSetReuseLengths, Count: 2})
	if got := r.c.Metrics().HybridRestores; got != 1 {
		t.Errorf("%d restores counted, want 1", got)
	}
	r.must(r.drop(q, true))
	r.emptied()
}

func TestC90_AFailedPrepareCanOnlyEnd(t *testing.T) {
	for kind := KindVanilla; kind <= KindEAGLE; kind++ {
		r := newRig(t, kind)
		a := prompts(seq(1, 6))
		a.Mode = modeOf(kind)
		q, err := r.begin(a)
		r.must(err)
		r.failAt = 1
		if err := r.prepare(q); err != errBroken {
			t.Fatal(err)
		}
		if got := r.stage(q.h); !got.Pending || got.Stage != StageFinishing {
			t.Errorf("%v: %+v, want pending and finishing", kind, got)
		}
		_, err = r.c.PreparePrefill(q.h, r.dst)
		r.wantCode(err, status.WrongState)
		r.must(r.finish(q))
		r.publish(a) // the rows that never arrived are uploaded now
		r.emptied()
	}
}

// What was never uploaded is still dirty, whichever command failed.
func TestC76_AFailedUploadLeavesItsRowsDirty(t *testing.T) {
	r := newRig(t, KindEAGLE)
	a := prompts(seq(1, 6))
	a.Mode = ModeEAGLE
	q, err := r.begin(a)
	r.must(err)
	r.failAt = 0
	if err := r.prepare(q); err != errBroken {
		t.Fatal(err)
	}
	for _, table := range r.c.tables() {
		for slot := range int32(4) {
			if !table.Dirty(slot) {
				t.Errorf("row %d is clean after an upload that failed", slot)
			}
		}
	}
	r.must(r.finish(q))
	r.publish(a)
	r.emptied()
}

// C-62 at the level of a request: after finalize nothing of a hit's or a
// capture's slots is held any more, though the request lives on.
func TestC62_SnapshotsAreHeldNoLongerThanNeeded(t *testing.T) {
	for _, kind := range []Kind{KindHybrid, KindPureRecurrent} {
		r := newRig(t, kind)
		free := r.free()
		r.publish(prompts(seq(1, 6)))
		q, err := r.begin(prompts(seq(1, 7)))
		r.must(err)
		r.c.Flush()
		if got := r.free()[prefix.RecurrentSlots]; got != free[prefix.RecurrentSlots]-1 {
			t.Errorf("%v: %d slots free while a hit waits for its restore", kind, got)
		}
		r.toSettled(q)
		r.c.Flush() // the record that this request published
		for _, pool := range []prefix.Resource{prefix.RecurrentSlots, prefix.PartialSlots} {
			if got := r.free()[pool]; got != free[pool] {
				t.Errorf("%v: %d of %d %v slots free after finalize", kind, got, free[pool], pool)
			}
		}
		r.must(r.finish(q))
		q = r.full(prompts(seq(2, 6))) // captured, published, retired
		r.c.Flush()
		if got := r.free()[prefix.RecurrentSlots]; got != free[prefix.RecurrentSlots] {
			t.Errorf("%v: %d slots free after publication and eviction", kind, got)
		}
		r.must(r.finish(q))
		r.emptied()
	}
}

func TestD08_PendingIsMarkedBeforeTheFirstCommand(t *testing.T) {
	r := newRig(t, KindVanilla)
	q, err := r.begin(prompts(seq(1, 4)))
	r.must(err)
	if needsDrain(r.c, q.h) {
		t.Error("nothing is enqueued after begin")
	}
	n, err := r.c.PreparePrefill(q.h, r.dst)
	r.must(err)
	if !needsDrain(r.c, q.h) {
		t.Error("a list is out, but the request is not pending")
	}
	r.must(r.run(q.h, n, nil))
	r.prefill(q)
	r.must(r.captures(q))
	r.must(r.finalize(q, 900))
	if needsDrain(r.c, q.h) {
		t.Error("settled, but pending")
	}
	n, err = r.c.PrepareDecodeStep(q.h, Headroom{}, r.dst) // grows: position 4 needs a page
	r.must(err)
	if n == 0 || !needsDrain(r.c, q.h) {
		t.Errorf("list of %d is out, pending %v", n, needsDrain(r.c, q.h))
	}
	r.must(r.run(q.h, n, nil))
	r.must(r.drop(q, true))
	r.emptied()
}

func TestD05_ResetLengthsCountsTheBatchOnly(t *testing.T) {
	// A draft cache with room for fewer sequences than the base.
	r := newRig(t, KindEAGLE, func(c *Config) { c.DraftMaxBatch = 2 })
	a := prompts(seq(1, 9), seq(2, 9))
	a.Mode = ModeEAGLE
	q := r.full(a)
	r.must(r.finish(q))
	q, err := r.begin(a)
	r.must(err)
	r.must(r.prepare(q))
	for _, cmd := range r.ran {
		if cmd.Kind == CmdSetReuseLengths && cmd.Count != 2 {
			t.Errorf("%v, want exactly the batch of 2", cmd)
		}
	}
	if got := r.c.ReuseLengths(); !slices.Equal(got, []int32{4, 4}) {
		t.Errorf("lengths %v, want [4 4]", got)
	}
	r.must(r.drop(q, true))
	b := prompts(seq(1, 1), seq(2, 1), seq(3, 1))
	_, err = r.begin(b) // vanilla: base alone counts
	r.must(err)
	r = newRig(t, KindEAGLE, func(c *Config) { c.DraftMaxBatch = 2 })
	b.Mode = ModeEAGLE
	_, err = r.begin(b)
	r.wantCode(err, status.InvalidArgument)
}

func TestC91_CapturesAreSkippedSilently(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(a *Admission)
		opts []option
		want int64 // records afterwards
		skip int64
	}{
		"kept":         {func(a *Admission) {}, nil, 1, 0},
		"prefill only": {func(a *Admission) { a.Commit = PrefillOnly }, nil, 1, 0}, // a prefill endpoint
		"bypass":       {func(a *Admission) { a.Lookup = Bypass }, nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, KindHybrid, c.opts...)
			a := prompts(seq(1, 6))
			c.edit(&a)
			r.publish(a)
			m := r.c.Metrics()
			if m.CurrentRecords != c.want || m.HybridPressureSkips != c.skip {
				t.Errorf("%d records and %d skips, want %d and %d", m.CurrentRecords, m.HybridPressureSkips, c.want, c.skip)
			}
			r.emptied()
		})
	}
	t.Run("pressure", func(t *testing.T) {
		r := newRig(t, KindHybrid, slots(2, 2))
		q := r.full(prompts(seq(1, 6), seq(2, 6), seq(3, 6))) // the third finds no slot
		if m := r.c.Metrics(); m.HybridPressureSkips != 1 || m.CurrentRecords != 2 {
			t.Errorf("skips %d, records %d, want 1 and 2", m.HybridPressureSkips, m.CurrentRecords)
		}
		r.must(r.finish(q))
		r.emptied()
	})
	t.Run("flushed since it began", func(t *testing.T) {
		r := newRig(t, KindHybrid, slots(1, 1), requests(2))
		stale, err := r.begin(prompts(seq(1, 6)))
		r.must(err)
		r.c.Flush()
		a := prompts(seq(2, 6))
		a.Slots = []int32{1}
		r.publish(a)
		r.toSettled(stale)
		if r.must(r.decode(stale, [][]int32{{7}}, 0)); len(r.ran) != 0 {
			t.Errorf("captures of what would be dropped: %v", r.ran)
		}
		r.must(r.finish(stale))
		if got := r.hit(prompts(seq(2, 7))); got != 6 {
			t.Errorf("another request's prompt starts at %d, want 6: its snapshot made room for one that is dropped", got)
		}
		r.emptied()
	})
	t.Run("decode-end of a prefill-only batch", func(t *testing.T) {
		r := newRig(t, KindHybrid)
		a := prompts(seq(1, 6))
		a.Commit = PrefillOnly
		q := r.full(a)
		r.must(r.decode(q, [][]int32{{7}}, 0))
		if len(r.ran) != 0 || r.c.Metrics().CurrentRecords != 1 {
			t.Errorf("list %v, %d records, want none and 1", r.ran, r.c.Metrics().CurrentRecords)
		}
		r.must(r.finish(q))
	})
	t.Run("nothing new since the prefill", func(t *testing.T) {
		r := newRig(t, KindPureRecurrent)
		q := r.full(prompts(seq(1, 6)))
		if got := r.info(q.h, 0).PublishedExact; got != 6 {
			t.Fatalf("published exact length %d, want 6", got)
		}
		r.must(r.finish(q))
		q = r.full(prompts(seq(1, 7))) // from the checkpoint at 6, and a new one at 7
		if got := r.info(q.h, 0); got.PrefillStart != 6 || got.PublishedExact != 7 {
			t.Errorf("%+v, want start 6 and exact 7", got)
		}
		r.must(r.finish(q))
		r.emptied()
	})
}

func TestC80_CaptureAndRestoreMoveExactlyTheTail(t *testing.T) {
	// The device keeps every cell apart; a restore of one token too many or too
	// few changes a reused or a foreign cell.
	for n := int32(1); n < 12; n++ {
		r := newRig(t, KindHybrid)
		r.publish(prompts(seq(1, n)))
		q := r.full(prompts(slices.Concat(seq(1, n), seq(2, 3))))
		if got := r.info(q.h, 0).PrefillStart; got != n {
			t.Errorf("checkpoint %d: start %d", n, got)
		}
		captured := 0
		for _, cmd := range r.ran { // the prefill-end captures of the second run
			if cmd.Kind == CmdCapturePage {
				captured++
				if cmd.Tokens != (n+3)%4 {
					t.Errorf("%v, want %d tokens", cmd, (n+3)%4)
				}
			}
		}
		if want := int(min(1, (n+3)%4)); captured != want {
			t.Errorf("length %d: %d partial captures, want %d", n+3, captured, want)
		}
		r.must(r.finish(q))
		r.emptied()
	}
}

func TestC92_FinalizeChecksEverythingFirst(t *testing.T) {
	tok := []int32{900}
	for name, c := range map[string]struct {
		kind   Kind
		adv    []Advance
		common []int32
	}{
		"one advance short":    {KindVanilla, []Advance{{tok, 6}}, nil},
		"no token":             {KindVanilla, []Advance{{tok, 6}, {nil, 5}}, nil},
		"two tokens":           {KindVanilla, []Advance{{tok, 6}, {[]int32{1, 2}, 5}}, nil},
		"not the whole prompt": {KindVanilla, []Advance{{tok, 6}, {tok, 4}}, nil},
		"beyond the prompt":    {KindVanilla, []Advance{{tok, 6}, {tok, 6}}, nil},
		"negative":             {KindVanilla, []Advance{{tok, 6}, {tok, math.MinInt32}}, nil},
		"common on vanilla":    {KindVanilla, []Advance{{tok, 6}, {tok, 5}}, []int32{6, 5}},
		"common on hybrid":     {KindHybrid, []Advance{{tok, 6}, {tok, 5}}, []int32{6, 5}},
		"common missing":       {KindEAGLE, []Advance{{tok, 6}, {tok, 5}}, nil},
		"common one short":     {KindEAGLE, []Advance{{tok, 6}, {tok, 5}}, []int32{6}},
		"common too small":     {KindEAGLE, []Advance{{tok, 6}, {tok, 5}}, []int32{6, 4}}, // D-14
		"common too large":     {KindEAGLE, []Advance{{tok, 6}, {tok, 5}}, []int32{6, 6}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.kind)
			a := prompts(seq(1, 6), seq(2, 5))
			a.Mode = modeOf(c.kind)
			q, err := r.begin(a)
			r.must(err)
			r.must(r.prepare(q))
			r.prefill(q)
			r.must(r.captures(q))
			r.dev.sync()
			r.wantCode(r.c.FinalizePrefill(q.h, c.adv, c.common), status.InvalidArgument)
			// D-14: still pending, nothing advanced, and a correct retry works.
			if got := r.stage(q.h); !got.Pending || got.Stage != StageCaptured {
				t.Fatalf("after a refused call: %+v", got)
			}
			for i := range q.seqs {
				if got := r.info(q.h, i); got.Tokens != q.seqs[i].len() || got.Committed != 0 {
					t.Fatalf("sequence %d advanced: %+v", i, got)
				}
			}
			r.must(r.finalize(q, 900, 901))
			r.must(r.finish(q))
			r.emptied()
		})
	}
}

func TestC92_VanillaPublishesAtFinalize(t *testing.T) {
	r := newRig(t, KindVanilla)
	q := r.full(prompts(seq(1, 9), seq(2, 3), seq(3, 8)))
	for i, want := range []int32{2, 0, 2} {
		if got := r.info(q.h, i); got.PublishedBlocks != want || got.Tokens != got.Committed+1 {
			t.Errorf("sequence %d: %+v, want %d blocks and one lookahead", i, got, want)
		}
	}
	r.must(r.finish(q))
	r.emptied()
}

func TestC93_EAGLEFreezesThePromptEndpoint(t *testing.T) {
	r := newRig(t, KindEAGLE)
	a := prompts(seq(1, 9))
	a.Mode = ModeEAGLE
	q := r.full(a)
	got, info := r.stage(q.h), r.info(q.h, 0)
	if !got.Pending || !got.AwaitingDraft || info.Frozen != 9 || info.PublishedBlocks != 0 || r.c.Metrics().CurrentRecords != 0 {
		t.Errorf("after finalize: %+v %+v, want pending, frozen at 9 and nothing published", got, info)
	}
	r.must(r.finish(q)) // a prompt-only request still publishes (C-103)
	wantList(t, r.ran, Command{Kind: CmdSynchronize})
	if m := r.c.Metrics(); m.CurrentRecords != 1 || m.SpecPairPublications != 1 {
		t.Errorf("after finish: %d records, %d pairs", m.CurrentRecords, m.SpecPairPublications)
	}
	r.emptied()
}

// modeOf is the execution mode that exercises a kind fully.
func modeOf(kind Kind) ExecutionMode {
	if kind == KindEAGLE {
		return ModeEAGLE
	}
	return ModeVanilla
}
