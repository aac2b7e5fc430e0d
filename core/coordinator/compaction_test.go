package coordinator

import (
	"testing"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

func TestC100_MappingRules(t *testing.T) {
	for _, c := range []struct {
		mapping []int32
		batch   int32
		ok      bool
	}{
		{[]int32{0, -1, 1}, 2, true},
		{[]int32{0, 1, 2}, 3, true},
		{[]int32{-1, -1, -1}, 0, true},
		{[]int32{-1, 0, -1}, 1, true},
		{[]int32{1, 0, 2}, 3, false},
		{[]int32{0, 2, -1}, 2, false},
		{[]int32{0, 0, 1}, 2, false},
		{[]int32{0, 1, 2}, 2, false},
		{[]int32{0, -1, -1}, 2, false},
		{[]int32{0, -2, 1}, 2, false},
		{[]int32{0, 1}, 2, false},
		{[]int32{0, 1, 2, 3}, 4, false},
		{[]int32{0, 1, 2}, 4, false},
		{[]int32{-1, -1, -1}, -1, false},
	} {
		r := newRig(t, KindVanilla)
		q := r.full(prompts(seq(1, 6), seq(2, 3), seq(3, 9)))
		err := r.beginCompaction(q, c.mapping, c.batch)
		if (err == nil) != c.ok {
			t.Errorf("%v to %d: %v", c.mapping, c.batch, err)
		}
		if !c.ok {
			r.wantCode(err, status.InvalidArgument)
			if got := r.stage(q.h); got.Stage != StageSettled || got.Pending || got.CompactionBatch != -1 {
				t.Errorf("%v: a refused begin left %+v", c.mapping, got)
			}
			r.must(r.decode(q, [][]int32{{1}, {1}, {1}}))
		} else {
			wantList(t, r.ran, Command{Kind: CmdUploadMapping, Count: 3})
			if got := r.stage(q.h); got.Stage != StageCompaction || !got.Pending || got.CompactionBatch != c.batch {
				t.Errorf("%v: begun is %+v", c.mapping, got)
			}
			r.must(r.compactBatch(q, c.mapping, c.batch))
		}
		r.must(r.finish(q))
		r.emptied()
	}
}

func TestC101_CompactionOrder(t *testing.T) {
	r := newRig(t, KindEAGLE)
	a := prompts(seq(1, 6), seq(2, 3), seq(3, 9))
	a.Mode = ModeEAGLE
	q := r.full(a)
	r.must(r.beginCompaction(q, []int32{-1, 0, 1}, 2))
	// EAGLE settles its draft initialisation first, and publishes.
	wantList(t, r.ran, Command{Kind: CmdSynchronize}, Command{Kind: CmdUploadMapping, Count: 3})
	if m := r.c.Metrics(); m.SpecPairPublications != 2 || r.stage(q.h).AwaitingDraft {
		t.Errorf("%d pairs published, awaiting %v; want 2 and false", m.SpecPairPublications, r.stage(q.h).AwaitingDraft)
	}
	r.must(r.compactBatch(q, []int32{-1, 0, 1}, 2))
	wantList(t, r.ran,
		Command{Kind: CmdUploadRows, Count: 3}, Command{Kind: CmdRecordUpload},
		Command{Kind: CmdUploadRows, Cache: Draft, Count: 3}, Command{Kind: CmdRecordUpload, Cache: Draft},
		Command{Kind: CmdCompactState, Count: 3, New: 2}, Command{Kind: CmdCompactState, Cache: Draft, Count: 3, New: 2},
		Command{Kind: CmdSynchronize},
		Command{Kind: CmdSetActiveBatch, New: 2}, Command{Kind: CmdSetActiveBatch, Cache: Draft, New: 2})
	if r.dev.active != [2]int32{2, 2} {
		t.Errorf("active batches %v", r.dev.active)
	}
	// Survivors go on in their new slots; the device checks their state.
	for range 3 {
		r.must(r.decode(q, [][]int32{{1, 2}, {3}}))
	}
	r.must(r.compact(q, []int32{-1, 0}, 1))
	r.must(r.decode(q, [][]int32{{3}}, 0))
	r.must(r.compact(q, []int32{-1}, 0))
	if got := r.stage(q.h); got.Phase != PhaseFinishing || got.Pending || got.Batch != 0 {
		t.Errorf("compacted to nothing: %+v", got)
	}
	r.must(r.finish(q))
	r.emptied()
}

func TestC101_EveryKindCompacts(t *testing.T) {
	for kind := KindVanilla; kind <= KindEAGLE; kind++ {
		r := newRig(t, kind)
		a := prompts(seq(1, 6), seq(2, 3), seq(3, 9), seq(4, 5))
		a.Mode = modeOf(kind)
		q := r.full(a)
		r.must(r.decode(q, [][]int32{{1}, {1}, {1}, {1}}, 0, 2))
		r.must(r.compact(q, []int32{-1, 0, -1, 1}, 2))
		for range 4 {
			r.must(r.decode(q, [][]int32{{1}, {1}}))
		}
		r.must(r.decode(q, [][]int32{{1}, {1}}, 0, 1))
		r.must(r.finish(q))
		r.emptied()
	}
}

func TestC102_RetiredLeasesGoOnlyAfterTheSynchronisation(t *testing.T) {
	r := newRig(t, KindVanilla)
	q := r.full(prompts(seq(1, 8), seq(2, 8)))
	r.c.Flush()
	before := r.c.Manager().Free(prefix.BasePages)
	r.must(r.beginCompaction(q, []int32{0, -1}, 1))
	n, err := r.c.CompactBatch(q.h, r.dst)
	r.must(err)
	if got := r.c.Manager().Free(prefix.BasePages); got != before {
		t.Errorf("%d pages free before the synchronisation, want %d", got, before)
	}
	r.must(r.run(q.h, n, nil))
	if got := r.c.Manager().Free(prefix.BasePages); got != before+2 {
		t.Errorf("%d pages free afterwards, want %d", got, before+2)
	}
	r.must(r.finish(q))

	// And not at all when it fails: everything is quarantined, retired leases too.
	q = r.full(prompts(seq(1, 8), seq(2, 8)))
	r.c.Flush()
	before = r.c.Manager().Free(prefix.BasePages)
	r.must(r.beginCompaction(q, []int32{0, -1}, 1))
	n, err = r.c.CompactBatch(q.h, r.dst)
	r.syncFails = true
	r.wantCode(r.run(q.h, n, err), status.Poisoned)
	if got := r.c.Manager().Free(prefix.BasePages); got != before || r.c.Quarantined() != 1 {
		t.Errorf("%d pages free, %d quarantined", got, r.c.Quarantined())
	}
	r.must(r.c.Shutdown(true))
	r.emptied()
}

func TestD15_AFailedBeginLeavesNothingBegun(t *testing.T) {
	for _, kind := range []Kind{KindVanilla, KindEAGLE} {
		// The mapping tensor cannot be reshaped, or the copy fails; for EAGLE
		// also the synchroniser throws before.
		for failAt := range map[Kind]int{KindVanilla: 1, KindEAGLE: 2}[kind] {
			r := newRig(t, kind)
			a := prompts(seq(1, 6), seq(2, 5))
			a.Mode = modeOf(kind)
			q := r.full(a)
			stage, pending := r.stage(q.h).Stage, r.stage(q.h).Pending
			r.failAt = failAt
			if err := r.beginCompaction(q, []int32{-1, 0}, 1); err != errBroken {
				t.Fatal(err)
			}
			if kind == KindEAGLE && failAt == 1 { // the synchronisation itself succeeded
				stage, pending = StageSettled, false
			}
			if got := r.stage(q.h); got.Stage != stage || got.Pending != pending || got.CompactionBatch != -1 {
				t.Errorf("%v, failed at %d: %+v, want %v pending %v", kind, failAt, got, stage, pending)
			}
			_, err := r.c.CompactBatch(q.h, r.dst)
			r.wantCode(err, status.WrongState)
			r.must(r.compact(q, []int32{-1, 0}, 1)) // and the retry works
			r.must(r.decode(q, [][]int32{{1}}, 0))
			r.must(r.finish(q))
			r.emptied()
		}
	}
}

func TestC101_AFailedCompactionCanOnlyEnd(t *testing.T) {
	for failAt := range 5 {
		r := newRig(t, KindVanilla)
		q := r.full(prompts(seq(1, 6), seq(2, 5)))
		r.must(r.beginCompaction(q, []int32{-1, 0}, 1))
		n, err := r.c.CompactBatch(q.h, r.dst)
		r.failAt = failAt
		if err := r.run(q.h, n, err); err != errBroken {
			t.Fatalf("failed at %d: %v", failAt, err)
		}
		if got := r.stage(q.h); got.Stage != StageFinishing || !got.Pending || got.Batch != 2 {
			t.Errorf("failed at %d: %+v", failAt, got)
		}
		r.must(r.finish(q))
		r.publish(prompts(seq(3, 9)))
		r.emptied()
	}
}

func TestBeginCompaction_NeedsItsBatchIndexes(t *testing.T) {
	r := newRig(t, KindVanilla)
	a := prompts(seq(1, 6))
	a.Slots = []int32{2}
	q := r.full(a)
	_, err := r.c.BeginCompaction(q.h, []int32{-1}, 0, r.dst)
	r.wantCode(err, status.WrongState)
	r.must(r.finish(q))
}

func TestBegin_NobodyMovesInDuringACompaction(t *testing.T) {
	r := newRig(t, KindVanilla, requests(2))
	q := r.full(prompts(seq(1, 6), seq(2, 5)))
	r.must(r.beginCompaction(q, []int32{-1, 0}, 1))
	late := prompts(seq(3, 6))
	late.Slots = []int32{3}
	_, err := r.begin(late)
	r.wantCode(err, status.WrongState)
	r.must(r.compactBatch(q, []int32{-1, 0}, 1))
	p := r.full(late)
	r.must(r.decode(q, [][]int32{{1}}))
	r.must(r.decode(p, [][]int32{{1}}))
	r.must(r.finish(q))
	r.must(r.finish(p))
	r.emptied()
}
