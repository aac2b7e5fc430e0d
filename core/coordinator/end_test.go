package coordinator

import (
	"testing"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// stop brings a request into a stage, and names it.
type stop struct {
	name string
	go_  func(r *rig, q *live)
}

// stops are the places at which a handle can be dropped, in the order of a
// request's life. Batches are two sequences of 6 and 5 tokens.
func stops(kind Kind) []stop {
	two := [][]int32{{21}, {22}}
	return []stop{
		{"admitted", func(r *rig, q *live) {}},
		{"prepared", func(r *rig, q *live) { r.must(r.prepare(q)) }},
		{"prefill in flight", func(r *rig, q *live) { r.prefill(q) }},
		{"captured", func(r *rig, q *live) { r.must(r.captures(q)) }},
		{"finalised", func(r *rig, q *live) { r.must(r.finalize(q, 900, 901)) }},
		{"decode prepared", func(r *rig, q *live) { r.must(r.prepareDecode(q)) }},
		{"decode in flight", func(r *rig, q *live) { r.launch(q, two) }},
		{"completed", func(r *rig, q *live) { r.must(r.complete(q, two, 0)) }},
		{"compaction begun", func(r *rig, q *live) { r.must(r.beginCompaction(q, []int32{0, -1}, 1)) }},
		{"compacted", func(r *rig, q *live) { r.must(r.compactBatch(q, []int32{0, -1}, 1)) }},
		{"decode after compaction", func(r *rig, q *live) { r.must(r.prepareDecode(q)) }},
	}
}

func stopped(t *testing.T, kind Kind, n int, options ...option) (*rig, *live) {
	r := newRig(t, kind, options...)
	a := prompts(seq(1, 6), seq(2, 5))
	a.Mode = modeOf(kind)
	q, err := r.begin(a)
	r.must(err)
	for _, s := range stops(kind)[:n+1] {
		s.go_(r, q)
	}
	return r, q
}

func everyStop(t *testing.T, f func(t *testing.T, kind Kind, n int)) {
	for kind := KindVanilla; kind <= KindEAGLE; kind++ {
		for n, s := range stops(kind) {
			t.Run(kind.String()+"/"+s.name, func(t *testing.T) { f(t, kind, n) })
		}
	}
}

func TestC103_FinishIsLegalEverywhere(t *testing.T) {
	everyStop(t, func(t *testing.T, kind Kind, n int) {
		r, q := stopped(t, kind, n)
		pending := needsDrain(r.c, q.h)
		awaiting := r.stage(q.h).AwaitingDraft
		flight := in(StagePrefill, StageCaptured, StageAwaitingDraft, StageDecode, StageCompaction)
		if got := r.stage(q.h); got.Pending != (flight&(1<<got.Stage) != 0) {
			t.Errorf("stage %v: pending %v", got.Stage, got.Pending)
		}
		before := r.c.Metrics()
		r.must(r.finish(q))
		if len(r.ran) > 1 || (len(r.ran) == 1) != pending {
			t.Errorf("pending %v, but the list is %v", pending, r.ran)
		}
		after := r.c.Metrics()
		published := after.PublicationAttempts - before.PublicationAttempts
		if want := 2 * count(awaiting); published != want { // frozen prompt endpoints of both
			t.Errorf("%d publications, want %d", published, want)
		}
		_, err := r.c.Request(q.h)
		r.wantCode(err, status.BadHandle)
		n, err = r.c.Finish(0, nil)
		if n != 0 || err != nil {
			t.Errorf("finish of the empty handle: %d, %v", n, err)
		}
		r.publish(prompts(seq(7, 9)))
		r.emptied()
	})
}

func TestC103_FinishSyncFailures(t *testing.T) {
	everyStop(t, func(t *testing.T, kind Kind, n int) {
		r, q := stopped(t, kind, n)
		if !needsDrain(r.c, q.h) {
			r.must(r.finish(q))
			return
		}
		// The synchroniser throws: nothing has changed, the handle lives.
		r.failAt = 0
		stage := r.stage(q.h).Stage
		if err := r.finish(q); err != errBroken {
			t.Fatal(err)
		}
		if got := r.stage(q.h); got.Stage != stage || !got.Pending {
			t.Fatalf("after an exception: %+v", got)
		}
		// It fails: poisoned, quarantined, the handle is dead.
		free := r.free()
		r.syncFails = true
		r.wantCode(r.finish(q), status.Poisoned)
		if needsDrain(r.c, q.h) || r.c.Quarantined() != 1 || r.free() != free {
			t.Errorf("quarantined %d, free %v, want 1 and %v", r.c.Quarantined(), r.free(), free)
		}
		r.check()
	})
}

// TensorRT-LLM #15018: a dropped handle leaves no orphaned page.
func TestC104_HandleDroppedInEveryPhase(t *testing.T) {
	everyStop(t, func(t *testing.T, kind Kind, n int) {
		r := newRig(t, kind)
		free := r.free()
		a := prompts(seq(1, 6), seq(2, 5))
		a.Mode = modeOf(kind)
		q, err := r.begin(a)
		r.must(err)
		for _, s := range stops(kind)[:n+1] {
			s.go_(r, q)
		}
		before, drains := r.c.Metrics(), needsDrain(r.c, q.h)
		r.must(r.drop(q, true))
		for cache, table := range r.c.tables() {
			if drains && table != nil && table.UploadPending() {
				t.Errorf("the stream was drained, and the next upload of table %d would wait (C-78)", cache)
			}
		}
		after := r.c.Metrics()
		if after.PublicationAttempts != before.PublicationAttempts {
			t.Error("a dropped handle published")
		}
		if r.c.Active() != 0 || r.c.Poisoned() {
			t.Errorf("active %d, poisoned %v", r.c.Active(), r.c.Poisoned())
		}
		// Everything but the published records is free again.
		if after.CurrentRecords == 0 && r.free() != free {
			t.Errorf("free %v, want %v", r.free(), free)
		}
		r.check()
		// vllm #43569: nothing unwritten became findable. A hit is checked cell
		// by cell on the device.
		q = r.full(a)
		if n < 4 && r.info(q.h, 0).PrefillStart != 0 {
			t.Errorf("start %d after a request that never finalised", r.info(q.h, 0).PrefillStart)
		}
		r.must(r.finish(q))
		r.emptied()
	})
}

// The same with a list out and half executed.
func TestC104_HandleDroppedWithAListOut(t *testing.T) {
	r := newRig(t, KindHybrid)
	free := r.free()
	q, err := r.begin(prompts(seq(1, 6), seq(2, 5)))
	r.must(err)
	n, err := r.c.PreparePrefill(q.h, r.dst)
	r.must(err)
	r.dev.execute(r.c, r.dst[0])
	if _, err := r.c.Finish(q.h, r.dst); status.CodeOf(err) != status.Busy {
		t.Errorf("finish with a list out: %v", err)
	}
	r.dev.sync()
	r.must(r.c.Abandon(q.h, true))
	if r.free() != free || n < 2 {
		t.Errorf("free %v, want %v", r.free(), free)
	}
	r.publish(prompts(seq(1, 6), seq(2, 5)))
	r.emptied()
}

// vllm #46283: abort while device work is pending; neither freed too early nor
// never.
func TestC105_QuarantineKeepsEverything(t *testing.T) {
	everyStop(t, func(t *testing.T, kind Kind, n int) {
		r, q := stopped(t, kind, n)
		free := r.free()
		if !needsDrain(r.c, q.h) {
			r.must(r.c.Abandon(q.h, false)) // nothing pending: no drain is asked for
			r.emptied()
			return
		}
		r.wantCode(r.c.Abandon(q.h, false), status.Poisoned) // the drain failed, or threw
		if r.free() != free || r.c.Active() != 1 {
			t.Fatalf("free %v, active %d; want %v and 1", r.free(), r.c.Active(), free)
		}
		r.check()
		r.wantCode(r.c.Abandon(q.h, true), status.BadHandle) // no second quarantine
		_, err := r.begin(prompts(seq(1, 6)))
		r.wantCode(err, status.Poisoned)
		r.wantCode(r.c.Shutdown(false), status.Poisoned) // fails again: retry later
		if r.free() != free {
			t.Fatal("a failed shutdown released pages")
		}
		r.wantCode(r.c.Close(), status.Busy)
		r.must(r.c.Shutdown(true))
		r.must(r.c.Close())
		r.emptied()
	})
}

func TestC106_D07_PoisonIsForLife(t *testing.T) {
	r := newRig(t, KindVanilla, requests(2))
	q, err := r.begin(prompts(seq(1, 6)))
	r.must(err)
	r.must(r.prepare(q))
	healthy := prompts(seq(2, 6))
	healthy.Slots = []int32{1}
	other := r.full(healthy)
	r.wantCode(r.drop(q, false), status.Poisoned)
	// Only begin looks at the flag: the other request ends in order.
	r.must(r.decode(other, [][]int32{{1}}))
	r.must(r.finish(other))
	r.must(r.c.Shutdown(true))
	for range 2 {
		_, err := r.begin(prompts(seq(1, 6)))
		r.wantCode(err, status.Poisoned)
		r.must(r.c.Shutdown(true))
	}
	r.emptied()
}

func TestC107_ShutdownIsRepeatableAndClosesNothing(t *testing.T) {
	r := newRig(t, KindVanilla)
	r.must(r.c.Shutdown(false))
	q, err := r.begin(prompts(seq(1, 6)))
	r.must(err)
	r.wantCode(r.c.Shutdown(true), status.RequestFailed)
	r.toSettled(q) // the live request was not harmed
	r.must(r.finish(q))
	r.must(r.c.Shutdown(false))
	r.must(r.c.Shutdown(true))
	r.publish(prompts(seq(1, 6))) // begin still works
	r.emptied()
}

func TestC108_CloseRefusesWhileSomethingIsOwned(t *testing.T) {
	r := newRig(t, KindVanilla)
	r.must(r.c.Close())
	q, err := r.begin(prompts(seq(1, 6)))
	r.must(err)
	r.wantCode(r.c.Close(), status.Busy)
	r.must(r.prepare(q))
	r.wantCode(r.drop(q, false), status.Poisoned)
	r.wantCode(r.c.Close(), status.Busy)
	r.must(r.c.Shutdown(true))
	r.must(r.c.Close())
}

// D-16: in each stage exactly the calls of the diagram in doc.go are legal; any
// other is a contract error without effect.
func TestD16_EveryCallOutOfOrderIsAnErrorWithoutEffect(t *testing.T) {
	const prepare, captures, finalize, decode, complete, begin, compact = 0, 1, 2, 3, 4, 5, 6
	legal := map[Stage][]int{
		StageAdmitted: {prepare}, StagePrefill: {captures, finalize}, StageCaptured: {finalize},
		StageAwaitingDraft: {decode, begin}, StageSettled: {decode, begin}, StageDecode: {complete},
		StageCompaction: {compact}, StageFinishing: {},
	}
	everyStop(t, func(t *testing.T, kind Kind, n int) {
		r, q := stopped(t, kind, n)
		req := &r.c.requests[0]
		allowed := map[int]bool{}
		for _, call := range legal[req.stage] {
			allowed[call] = true
		}
		adv := make([]Advance, len(q.seqs))
		var common []int32
		for i := range adv {
			s := r.info(q.h, i)
			adv[i] = Advance{Tokens: []int32{5}, Committed: s.Committed + 1}
			if kind == KindEAGLE {
				common = append(common, s.Common)
			}
		}
		for call, f := range []func() error{
			func() error { _, err := r.c.PreparePrefill(q.h, r.dst); return err },
			func() error { _, err := r.c.EnqueuePrefillCaptures(q.h, r.dst); return err },
			func() error { return r.c.FinalizePrefill(q.h, adv, common) },
			func() error { _, err := r.c.PrepareDecodeStep(q.h, Headroom{}, r.dst); return err },
			func() error { _, err := r.c.CompleteDecodeStep(q.h, adv, nil, common, r.dst); return err },
			func() error { _, err := r.c.BeginCompaction(q.h, make([]int32, len(q.seqs)), 0, r.dst); return err },
			func() error { _, err := r.c.CompactBatch(q.h, r.dst); return err },
		} {
			if allowed[call] {
				continue
			}
			before, metrics := *req, r.c.Metrics()
			seqs := append([]sequence(nil), req.seqs...)
			r.wantCode(f(), status.WrongState)
			if req.stage != before.stage || req.pending != before.pending || req.awaiting != before.awaiting || r.c.op != opNone || r.c.Metrics() != metrics {
				t.Errorf("call %d in stage %v changed the request", call, before.stage)
			}
			for i := range seqs {
				if seqs[i] != req.seqs[i] {
					t.Errorf("call %d in stage %v changed sequence %d", call, before.stage, i)
				}
			}
		}
		r.wantCode(r.c.Report(q.h, Done, 0), status.WrongState)
		r.must(r.finish(q))
		r.emptied()
	})
}

func TestReport_ChecksItsArguments(t *testing.T) {
	r := newRig(t, KindVanilla, requests(2))
	idle := prompts(seq(2, 6))
	idle.Slots = []int32{3}
	other, err := r.begin(idle)
	r.must(err)
	q, err := r.begin(prompts(seq(1, 6)))
	r.must(err)
	n, err := r.c.PreparePrefill(q.h, r.dst)
	r.must(err)
	for _, c := range []struct {
		outcome  Outcome
		executed int
	}{{3, n}, {-1, n}, {Done, n - 1}, {Done, n + 1}, {EnqueueFailed, -1}, {EnqueueFailed, n + 1}, {SyncFailed, 0}} {
		r.wantCode(r.c.Report(q.h, c.outcome, c.executed), status.InvalidArgument)
	}
	if !r.stage(q.h).InFlight || r.stage(other.h).InFlight {
		t.Errorf("a report is due for %v and %v, want true and false", r.stage(q.h).InFlight, r.stage(other.h).InFlight)
	}
	r.wantCode(r.c.Report(other.h, Done, n), status.WrongState)
	r.wantCode(r.c.Abandon(other.h, true), status.Busy)
	r.wantCode(r.c.Shutdown(true), status.Busy)
	_, err = r.begin(prompts(seq(1, 6)))
	r.wantCode(err, status.Busy)
	for i := range n {
		r.dev.execute(r.c, r.dst[i])
	}
	r.must(r.c.Report(q.h, Done, n))
	if r.stage(q.h).InFlight {
		t.Error("a report is due for a list that was reported")
	}
	r.must(r.finish(q))
	r.must(r.drop(other, true))
	r.emptied()
}

func TestSteps_AreRefusedWhenTheSliceIsTooShort(t *testing.T) {
	everyStop(t, func(t *testing.T, kind Kind, n int) {
		r, q := stopped(t, kind, n)
		stage := r.stage(q.h)
		short := r.dst[:r.c.MaxCommands()-1]
		for _, f := range []func() (int, error){
			func() (int, error) { return r.c.PreparePrefill(q.h, short) },
			func() (int, error) { return r.c.EnqueuePrefillCaptures(q.h, short) },
			func() (int, error) { return r.c.PrepareDecodeStep(q.h, Headroom{}, short) },
			func() (int, error) { return r.c.CompleteDecodeStep(q.h, nil, nil, nil, short) },
			func() (int, error) { return r.c.BeginCompaction(q.h, nil, 0, short) },
			func() (int, error) { return r.c.CompactBatch(q.h, short) },
		} {
			_, err := f()
			if got := status.CodeOf(err); got != status.BufferTooSmall && got != status.WrongState {
				t.Errorf("code %d, want BufferTooSmall or WrongState", got)
			}
		}
		if r.stage(q.h) != stage {
			t.Errorf("stage %+v, want %+v", r.stage(q.h), stage)
		}
		r.must(r.drop(q, true))
		r.emptied()
	})
}

// xllm #828: ten thousand requests, and the pools are what they were.
func TestRequests_LeaveNoPageBehind(t *testing.T) {
	r := newRig(t, KindVanilla, pages(64), records(12))
	for i := range int32(10000) {
		q := r.full(prompts(seq(i%50, 3+i%29)))
		r.must(r.finish(q))
		if free, m := r.c.Manager().Free(prefix.BasePages), r.c.Metrics(); free+12*8 < 64 || m.CurrentRecords > 12 {
			t.Fatalf("request %d: %d pages free, %d records", i, free, m.CurrentRecords)
		}
		if i%1000 == 0 {
			r.check()
		}
	}
	r.emptied()
}
