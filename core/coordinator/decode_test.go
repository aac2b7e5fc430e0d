package coordinator

import (
	"math"
	"strings"
	"testing"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

func TestC94_OnlyGrownRowsTravel(t *testing.T) {
	r := newRig(t, KindVanilla)
	q := r.full(prompts(seq(1, 6), seq(2, 4), seq(3, 7), seq(4, 8)))
	r.must(r.decode(q, [][]int32{{1}, {1}, {1}, {1}})) // slots 1 and 3 need page for positions 4 and 8
	r.must(r.prepareDecode(q))                         // committed 7, 5, 8, 9: slot 2 grows
	wantList(t, r.ran, Command{Kind: CmdWaitUpload}, Command{Kind: CmdUploadRows, Slot: 2, Count: 1}, Command{Kind: CmdRecordUpload})
	r.launch(q, [][]int32{{1}, {1}, {1}, {1}})
	r.must(r.complete(q, [][]int32{{1}, {1}, {1}, {1}}))
	r.must(r.prepareDecode(q)) // committed 8, 6, 9, 10
	wantList(t, r.ran, Command{Kind: CmdWaitUpload}, Command{Kind: CmdUploadRows, Slot: 0, Count: 1}, Command{Kind: CmdRecordUpload})
	r.must(r.drop(q, true))
	r.emptied()
}

func TestC94_RowWidthIsTheLimit(t *testing.T) {
	r := newRig(t, KindVanilla)
	q := r.full(prompts(seq(1, 31)))
	r.must(r.decode(q, [][]int32{{1}})) // position 31 is the last of 8 pages
	before := r.c.Manager().Free(prefix.BasePages)
	r.wantCode(r.prepareDecode(q), status.RequestFailed)
	if got := r.stage(q.h); got.Phase != PhaseFinishing || got.Pending || r.c.Manager().Free(prefix.BasePages) != before {
		t.Errorf("after a row overflow: %+v", got)
	}
	_, err := r.c.PrepareDecodeStep(q.h, Headroom{}, r.dst)
	r.wantCode(err, status.WrongState)
	r.must(r.finish(q))
	r.emptied()
}

// A tenant that may not have another page hears of its quota, and not of the pool.
func TestC94_ATenantAtItsQuotaIsToldSo(t *testing.T) {
	r := newRig(t, KindVanilla, pages(9), func(c *Config) { c.TenantQuota = 500 })
	q := r.full(prompts(seq(1, 16))) // 4 pages of the 4 that a tenant may hold
	err := r.prepareDecode(q)
	r.wantCode(err, status.RequestFailed)
	if want := "quota: sequence 0 holds 4 base and 0 draft pages, 1 and 0 more wanted, its tenant may hold 4 and 1 in all (tenant_quota)"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	r.must(r.finish(q))
}

// Where it is what its other requests hold, another try may succeed.
func TestC94_ATenantWhoseRequestsHoldItsQuotaIsToldSo(t *testing.T) {
	r := newRig(t, KindVanilla, pages(9), requests(2), func(c *Config) { c.TenantQuota = 500 })
	other := prompts(seq(9, 8))
	other.Slots = []int32{3}
	r.full(other)
	q := r.full(prompts(seq(1, 8))) // 2 + 2 pages of the 4 that a tenant may hold
	err := r.prepareDecode(q)
	r.wantCode(err, status.RequestFailed)
	if want := "no room below the quota of its tenant for sequence 0: 1 and 0 more pages wanted, live requests of the tenant hold the rest of its 4 and 1 (tenant_quota)"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	r.must(r.finish(q))
}

// TensorRT-LLM #1279: an exhausted pool fails the request, nothing else.
func TestC94_AnExhaustedPoolFailsTheRequest(t *testing.T) {
	r := newRig(t, KindVanilla, pages(9), requests(2))
	other := prompts(seq(9, 8))
	other.Slots = []int32{3}
	held := r.full(other)
	r.c.Flush()
	q := r.full(prompts(seq(1, 8), seq(2, 16))) // 2 + 2 + 4 pages of 9: one is left, two are wanted
	err := r.prepareDecode(q)
	r.wantCode(err, status.RequestFailed)
	if want := "no page for sequence 1: 4 base and 0 draft pages held, 1 and 0 more wanted, the pools have 9 and 0 in all"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if got := r.stage(q.h); got.Phase != PhaseFinishing {
		t.Errorf("phase %v", got.Phase)
	}
	// The growth of the first sequence stays, but its row was not written.
	if got := r.info(q.h, 0).BasePages; got != 3 {
		t.Errorf("sequence 0 has %d pages, want 3", got)
	}
	if got := r.c.cfg.Base.Table.RowLength(0); got != 2 {
		t.Errorf("row 0 has %d pages, want 2", got)
	}
	r.must(r.finish(q))
	_, err = r.begin(prompts(seq(3, 32))) // 8 of 9, 2 held
	r.wantCode(err, status.RequestFailed)
	r.must(r.finish(held))
	r.emptied()
}

func TestC94_EAGLEWorkingSet(t *testing.T) {
	r := newRig(t, KindEAGLE) // verify 3, drafting reaches 4
	a := prompts(seq(1, 6))
	a.Mode = ModeEAGLE
	q := r.full(a)
	r.must(r.prepareDecode(q)) // base pages(9) = 3, draft pages(10) = 3
	if got := r.info(q.h, 0); got.BasePages != 3 || got.DraftPages != 3 {
		t.Errorf("%d base and %d draft pages, want 3 and 3", got.BasePages, got.DraftPages)
	}
	wantList(t, r.ran, Command{Kind: CmdWaitUpload}, Command{Kind: CmdUploadRows, Count: 1}, Command{Kind: CmdRecordUpload},
		Command{Kind: CmdWaitUpload, Cache: Draft}, Command{Kind: CmdUploadRows, Cache: Draft, Count: 1}, Command{Kind: CmdRecordUpload, Cache: Draft})
	r.must(r.drop(q, true))
	// Near the end of the row the draft's reach overflows first.
	a = prompts(seq(1, 4), seq(2, 29))
	a.Mode = ModeEAGLE
	q = r.full(a)
	base := r.info(q.h, 0).BasePages
	r.wantCode(r.prepareDecode(q), status.RequestFailed) // pages(29+4) = 9 of 8
	if got := r.info(q.h, 0).BasePages; got != base {
		t.Errorf("sequence 0 grew to %d pages before all rows were checked", got)
	}
	r.must(r.finish(q)) // awaiting: the prompt endpoints still publish
	if got := r.c.Metrics().CurrentRecords; got != 2 {
		t.Errorf("%d records, want 2", got)
	}
	r.emptied()
}

func TestPrepareDecode_HeadroomArgument(t *testing.T) {
	r := newRig(t, KindVanilla)
	q := r.full(prompts(seq(1, 6)))
	for _, bad := range []Headroom{{-1, 0}, {0, -1}, {1, 1}} {
		_, err := r.c.PrepareDecodeStep(q.h, bad, r.dst)
		r.wantCode(err, status.InvalidArgument)
	}
	n, err := r.c.PrepareDecodeStep(q.h, Headroom{Base: 7}, r.dst) // pages(13) = 4
	r.must(r.run(q.h, n, err))
	if got := r.info(q.h, 0).BasePages; got != 4 {
		t.Errorf("%d pages, want 4", got)
	}
	r.must(r.drop(q, true))
	q = r.full(prompts(seq(1, 6)))
	_, err = r.c.PrepareDecodeStep(q.h, Headroom{Base: math.MaxInt32}, r.dst)
	r.wantCode(err, status.RequestFailed)
	r.must(r.finish(q))
}

func TestC95_CompleteChecksEverythingFirst(t *testing.T) {
	one := []int32{5}
	for name, c := range map[string]struct {
		kind   Kind
		adv    []Advance
		done   []int32
		common []int32
	}{
		"one advance short":     {KindVanilla, []Advance{{one, 7}}, nil, nil},
		"no token":              {KindVanilla, []Advance{{one, 7}, {nil, 5}}, nil, nil},
		"two tokens":            {KindVanilla, []Advance{{one, 7}, {[]int32{1, 2}, 7}}, nil, nil},
		"stands still":          {KindVanilla, []Advance{{one, 7}, {one, 5}}, nil, nil},
		"runs ahead":            {KindVanilla, []Advance{{one, 7}, {one, 7}}, nil, nil},
		"goes back":             {KindVanilla, []Advance{{one, 7}, {one, 4}}, nil, nil},
		"common on vanilla":     {KindVanilla, []Advance{{one, 7}, {one, 6}}, nil, []int32{7, 6}},
		"slot beyond":           {KindVanilla, []Advance{{one, 7}, {one, 6}}, []int32{0, 2}, nil}, // D-6
		"slot below":            {KindVanilla, []Advance{{one, 7}, {one, 6}}, []int32{-1}, nil},
		"slot twice":            {KindVanilla, []Advance{{one, 7}, {one, 6}}, []int32{1, 1}, nil},
		"slot twice, hybrid":    {KindHybrid, []Advance{{one, 7}, {one, 6}}, []int32{1, 1}, nil},
		"EAGLE: none":           {KindEAGLE, []Advance{{one, 7}, {nil, 5}}, nil, []int32{6, 5}},
		"EAGLE: short":          {KindEAGLE, []Advance{{one, 7}, {[]int32{1, 2}, 6}}, nil, []int32{6, 5}},
		"EAGLE: common back":    {KindEAGLE, []Advance{{one, 7}, {one, 6}}, nil, []int32{5, 5}},
		"EAGLE: common ahead":   {KindEAGLE, []Advance{{one, 7}, {one, 6}}, nil, []int32{6, 7}},
		"EAGLE: common missing": {KindEAGLE, []Advance{{one, 7}, {one, 6}}, nil, nil},
		"EAGLE: beyond pages":   {KindEAGLE, []Advance{{one, 7}, {make([]int32, 20), 25}}, nil, []int32{6, 5}},
		"EAGLE: slot beyond":    {KindEAGLE, []Advance{{one, 7}, {one, 6}}, []int32{2}, []int32{6, 5}},
		"EAGLE: draft pages":    {KindEAGLE, []Advance{{one, 7}, {make([]int32, 9), 14}}, nil, []int32{6, 14}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.kind)
			a := prompts(seq(1, 6), seq(2, 5))
			a.Mode = modeOf(c.kind)
			q := r.full(a)
			r.must(r.prepareDecode(q))
			records := r.c.Metrics().CurrentRecords
			r.dev.sync()
			_, err := r.c.CompleteDecodeStep(q.h, c.adv, c.done, c.common, r.dst)
			r.wantCode(err, status.InvalidArgument)
			for i, want := range []int32{6, 5} {
				if got := r.info(q.h, i); got.Committed != want || got.Tokens != want+1 {
					t.Fatalf("sequence %d advanced: %+v", i, got)
				}
			}
			if got := r.c.Metrics().CurrentRecords; got != records || r.stage(q.h).Stage != StageDecode {
				t.Fatalf("%d records, stage %v", got, r.stage(q.h).Stage)
			}
			// D-6: the retry with right arguments works.
			tokens := [][]int32{{5}, {6}}
			r.launch(q, tokens)
			r.must(r.complete(q, tokens, 1))
			r.must(r.finish(q))
			r.emptied()
		})
	}
}

func TestC96_HistoryIsCommittedPlusOneLookahead(t *testing.T) {
	for kind := KindVanilla; kind <= KindEAGLE; kind++ {
		r := newRig(t, kind)
		a := prompts(seq(1, 6), seq(2, 3))
		a.Mode = modeOf(kind)
		q := r.full(a)
		for range 5 {
			tokens := [][]int32{{5}, {6}}
			if kind == KindEAGLE {
				tokens = [][]int32{{5, 8, 9}, {6}}
			}
			r.must(r.decode(q, tokens))
			for i := range q.seqs {
				if got := r.info(q.h, i); got.Tokens != got.Committed+1 || got.Committed != q.seqs[i].committed {
					t.Errorf("%v sequence %d: %+v", kind, i, got)
				}
			}
		}
		r.must(r.finish(q))
		r.emptied()
	}
}

func TestC97_AtMostOneSynchronisationPerStep(t *testing.T) {
	r := newRig(t, KindHybrid)
	q := r.full(prompts(seq(1, 6), seq(2, 5), seq(3, 3)))
	r.must(r.decode(q, [][]int32{{1}, {1}, {1}}))
	if len(r.ran) != 0 {
		t.Errorf("no sequence ended, but %v", r.ran)
	}
	r.must(r.decode(q, [][]int32{{1}, {1}, {1}}, 2, 0))
	syncs := 0
	for i, cmd := range r.ran {
		if cmd.Kind == CmdSynchronize {
			syncs++
			if i != len(r.ran)-1 {
				t.Errorf("synchronize is command %d of %d", i, len(r.ran))
			}
		}
	}
	m := r.c.Metrics()
	if syncs != 1 || m.HybridCaptureSyncs != 1 || m.CurrentRecords != 5 {
		t.Errorf("%d synchronisations (%d counted), %d records, want 1, 1 and 5", syncs, m.HybridCaptureSyncs, m.CurrentRecords)
	}
	r.must(r.finish(q))
	r.emptied()
}

func TestC98_EndpointRules(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(a *Admission)
		// blocks published of a prompt of 6, after prefill and at committed 8
		prefill, end int32
		records      int64
	}{
		"both":         {func(*Admission) {}, 1, 2, 2},
		"prefill only": {func(a *Admission) { a.Commit = PrefillOnly }, 1, 1, 1},
		"bypass":       {func(a *Admission) { a.Lookup = Bypass }, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, KindVanilla)
			a := prompts(seq(1, 6))
			c.edit(&a)
			q := r.full(a)
			if got := r.info(q.h, 0).PublishedBlocks; got != c.prefill {
				t.Errorf("%d blocks after prefill, want %d", got, c.prefill)
			}
			r.must(r.decode(q, [][]int32{{1}}))
			r.must(r.decode(q, [][]int32{{1}}, 0)) // committed 8: the lookahead is the ninth
			if got := r.info(q.h, 0).PublishedBlocks; got != c.end || r.c.Metrics().CurrentRecords != c.records {
				t.Errorf("%d blocks, %d records, want %d and %d", got, r.c.Metrics().CurrentRecords, c.end, c.records)
			}
			r.must(r.finish(q))
			r.emptied()
		})
	}
	t.Run("a hit publishes its prefix again", func(t *testing.T) {
		r := newRig(t, KindVanilla)
		r.publish(prompts(seq(1, 8)))
		r.publish(prompts(seq(1, 8))) // vllm #11186: fully cached, existing record
		r.publish(prompts(append(seq(1, 8), 4)))
		m := r.c.Metrics()
		if m.ExistingPublications != 2 || m.CommittedPublications != 1 || m.FullInputRewindPlans != 1 {
			t.Errorf("publications:\n%v", m)
		}
	})
	t.Run("nothing new is not attempted", func(t *testing.T) {
		r := newRig(t, KindVanilla)
		q := r.full(prompts(seq(1, 5)))
		r.must(r.decode(q, [][]int32{{1}}, 0))
		if m := r.c.Metrics(); m.PublicationAttempts != 1 {
			t.Errorf("%d attempts, want 1", m.PublicationAttempts)
		}
		r.must(r.finish(q))
	})
}

// The walk-through of 13.7, pages of 128.
func TestC98_EAGLEWalkThrough(t *testing.T) {
	r := newRig(t, KindEAGLE, perPage(128, 8))
	a := prompts(seq(1, 255))
	a.Mode = ModeEAGLE
	q := r.full(a)
	want := func(when string, blocks, committed, common int32) {
		t.Helper()
		got := r.info(q.h, 0)
		if got.PublishedBlocks != blocks || got.Committed != committed || got.Common != common || got.Tokens != committed+1 {
			t.Errorf("%s: %+v, want %d blocks, committed %d, common %d", when, got, blocks, committed, common)
		}
	}
	want("prefill finalised", 0, 255, 255)
	r.must(r.decode(q, [][]int32{{10, 11}}))
	want("round 1", 1, 257, 255)
	r.must(r.decode(q, [][]int32{{12, 13}}, 0))
	want("round 2", 2, 259, 257)
	r.must(r.finish(q))
	// 2 paired blocks are there: one is bound, one replayed. The device checks
	// both sides of what was bound.
	again := prompts(append(seq(1, 255), 900, 1))
	again.Mode = ModeEAGLE
	q = r.full(again)
	if got := r.info(q.h, 0); got.PrefillStart != 128 || got.Matched != 256 {
		t.Errorf("second run: %+v, want start 128 of 256 matched", got)
	}
	if m := r.c.Metrics(); m.SpecFullPageReplays != 1 {
		t.Errorf("%d replays, want 1", m.SpecFullPageReplays)
	}
	r.must(r.finish(q))
	r.emptied()
}

func TestC99_AdvancesAreValidatedForAllBeforeAny(t *testing.T) {
	r := newRig(t, KindVanilla)
	q := r.full(prompts(seq(1, 6)))
	r.must(r.prepareDecode(q))
	// The history must stay within int32: pretend it is nearly there.
	c := &r.c.requests[0].seqs[0]
	tokens, committed := c.tokens, c.committed
	c.tokens, c.committed = math.MaxInt32, math.MaxInt32-1
	_, err := r.c.CompleteDecodeStep(q.h, []Advance{{[]int32{1}, math.MaxInt32}}, nil, nil, r.dst)
	r.wantCode(err, status.InvalidArgument)
	if c.tokens != math.MaxInt32 {
		t.Error("the history moved")
	}
	c.tokens, c.committed = tokens, committed
	r.must(r.drop(q, true))
	r.emptied()
}

// Model-Optimizer #1577: logits for the whole prompt.
func TestBypass_StartsAtZeroOnManagedPages(t *testing.T) {
	for kind := KindVanilla; kind <= KindEAGLE; kind++ {
		r := newRig(t, kind)
		a := prompts(seq(1, 9))
		a.Mode = modeOf(kind)
		r.publish(a)
		records := r.c.Metrics().CurrentRecords
		a.Lookup = Bypass
		q := r.full(a)
		got := r.info(q.h, 0)
		if got.PrefillStart != 0 || (kind.attention() && got.BasePages != 3) {
			t.Errorf("%v: %+v, want start 0 on own pages", kind, got)
		}
		r.must(r.decode(q, [][]int32{{5}}, 0))
		r.must(r.finish(q))
		if m := r.c.Metrics(); m.CurrentRecords != records || m.LookupBypassSequences != 1 {
			t.Errorf("%v: a bypassed request published, or was not counted:\n%v", kind, m)
		}
		r.emptied()
	}
}

func TestHybrid_DecodeEndCheckpoints(t *testing.T) {
	for _, kind := range []Kind{KindHybrid, KindPureRecurrent} {
		r := newRig(t, kind)
		q := r.full(prompts(seq(1, 6)))
		r.must(r.decode(q, [][]int32{{21}}))
		r.must(r.decode(q, [][]int32{{22}}, 0)) // committed 8 = prompt, 900, 21
		r.must(r.finish(q))
		if got := r.c.Metrics().CurrentRecords; got != 2 {
			t.Errorf("%v: %d records, want 2", kind, got)
		}
		next := append(seq(1, 6), 900, 21)
		if got := r.hit(prompts(next)); got != 6 { // 8 is not shorter than the prompt
			t.Errorf("%v: start %d, want 6", kind, got)
		}
		q = r.full(prompts(append(next, 22, 23, 24)))
		if got := r.info(q.h, 0).PrefillStart; got != 8 {
			t.Errorf("%v: start %d, want 8", kind, got)
		}
		r.must(r.finish(q))
		r.emptied()
	}
}

func TestHybrid_CaptureSyncFailureQuarantines(t *testing.T) {
	r := newRig(t, KindHybrid)
	q := r.full(prompts(seq(1, 6)))
	r.must(r.prepareDecode(q))
	r.launch(q, [][]int32{{1}})
	r.syncFails = true
	r.wantCode(r.complete(q, [][]int32{{1}}, 0), status.Poisoned)
	m := r.c.Metrics()
	if m.HybridCaptureSyncs != 1 || m.CurrentRecords != 1 || r.c.Quarantined() != 1 {
		t.Errorf("%d syncs, %d records, %d quarantined, want 1, 1, 1", m.HybridCaptureSyncs, m.CurrentRecords, r.c.Quarantined())
	}
	r.must(r.c.Shutdown(true))
	r.emptied()
}
