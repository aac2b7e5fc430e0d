package coordinator

import (
	"slices"
	"strings"
	"testing"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

func TestNew_RefusesWhatDoesNotFitTogether(t *testing.T) {
	table := func(batch, width, pages int32) *PageTable {
		pt, err := NewPageTable(batch, width, pages)
		if err != nil {
			t.Fatal(err)
		}
		return pt
	}
	good := func(kind Kind) Config {
		c := DefaultConfig()
		c.Enabled, c.Kind, c.MaxBatch = true, kind, 2
		c.Base = CacheResources{Pages: 9, MaxBatch: 2, PaddedCapacity: 256, Table: table(2, 2, 9)}
		if kind == KindEAGLE {
			c.DraftMaxBatch, c.Spec = 3, &Spec{VerifySize: 2, DraftingStep: 1, DraftingTopK: 1}
			c.Draft = &CacheResources{Pages: 8, MaxBatch: 3, PaddedCapacity: 128, Table: table(3, 1, 8)}
		}
		c.RecurrentBudget, c.RecurrentSlotBytes, c.PartialBudget, c.PartialSlotBytes = 100, 10, 100, 20
		return c
	}
	for kind := KindVanilla; kind <= KindEAGLE; kind++ {
		c := good(kind)
		if kind == KindPureRecurrent {
			c.Base.Table, c.Base.Pages = nil, 0
		}
		got, err := New(c)
		if err != nil {
			t.Fatalf("%v: %v", kind, err)
		}
		c = good(kind)
		if kind != KindPureRecurrent {
			c.TokensPerPage, c.MaxRequests = 0, 0
			if _, err := New(c); err != nil {
				t.Errorf("%v: 0 does not stand for the defaults: %v", kind, err)
			}
		}
		r, p := got.SnapshotCounts()
		if want := [2]int32{[]int32{0, 10, 10, 0}[kind], []int32{0, 5, 0, 0}[kind]}; [2]int32{r, p} != want {
			t.Errorf("%v: %d recurrent and %d partial slots, want %v", kind, r, p, want)
		}
		if free := got.Manager().Capacity(prefix.BasePages); free != []int{9, 9, 0, 9}[kind] {
			t.Errorf("%v: %d base pages", kind, free)
		}
	}
	for name, a := range map[string]struct {
		kind Kind
		edit func(c *Config)
	}{
		"not enabled":            {KindVanilla, func(c *Config) { c.Enabled = false }},
		"kind":                   {KindVanilla, func(c *Config) { c.Kind = 4 }},
		"records":                {KindVanilla, func(c *Config) { c.MaxRecords = -1 }},
		"requests":               {KindVanilla, func(c *Config) { c.MaxRequests = -1 }},
		"tokens per page":        {KindVanilla, func(c *Config) { c.TokensPerPage = -1 }},
		"batch":                  {KindVanilla, func(c *Config) { c.MaxBatch = 0 }},
		"negative future tokens": {KindVanilla, func(c *Config) { c.FutureTokens = -1 }},
		"zero-byte partial slot": {KindHybrid, func(c *Config) { c.PartialSlotBytes = 0 }},
		"vanilla with draft":     {KindVanilla, func(c *Config) { c.Draft = &CacheResources{} }},
		"pool against table":     {KindVanilla, func(c *Config) { c.Base.Pages = 8 }},
		"batch against cache":    {KindVanilla, func(c *Config) { c.Base.MaxBatch = 3 }},
		"batch against table":    {KindVanilla, func(c *Config) { c.MaxBatch, c.Base.MaxBatch = 3, 3 }},
		"row against capacity":   {KindVanilla, func(c *Config) { c.Base.PaddedCapacity = 384 }},
		"capacity not padded":    {KindVanilla, func(c *Config) { c.Base.PaddedCapacity = 257 }},
		"no table":               {KindVanilla, func(c *Config) { c.Base.Table = nil }},
		"negative budget":        {KindVanilla, func(c *Config) { c.PartialBudget = -1 }},
		"no recurrent slot":      {KindPureRecurrent, func(c *Config) { c.RecurrentBudget = 9 }},
		"no partial slot":        {KindHybrid, func(c *Config) { c.PartialBudget = 19 }},
		"zero-byte slot":         {KindHybrid, func(c *Config) { c.RecurrentSlotBytes = 0 }},
		"EAGLE without draft":    {KindEAGLE, func(c *Config) { c.Draft = nil }},
		"EAGLE without table":    {KindEAGLE, func(c *Config) { c.Draft.Table = nil }},
		"EAGLE without config":   {KindEAGLE, func(c *Config) { c.Spec = nil }},
		"verify size":            {KindEAGLE, func(c *Config) { c.Spec.VerifySize = 0 }},
		"drafting step":          {KindEAGLE, func(c *Config) { c.Spec.DraftingStep = 0 }},
		"drafting overflow":      {KindEAGLE, func(c *Config) { c.Spec.DraftingStep, c.Spec.DraftingTopK = 1<<16, 1<<15 }},
		"negative drafting pair": {KindEAGLE, func(c *Config) { c.Spec.DraftingStep, c.Spec.DraftingTopK = -1, -1 }},
		"draft pool":             {KindEAGLE, func(c *Config) { c.Draft.Pages = 7 }},
		"draft batch":            {KindEAGLE, func(c *Config) { c.DraftMaxBatch = 2 }},
		"draft row":              {KindEAGLE, func(c *Config) { c.Draft.PaddedCapacity = 256 }},
		"one table for both":     {KindEAGLE, func(c *Config) { c.Draft, c.DraftMaxBatch = &c.Base, 2 }},
		"future tokens":          {KindEAGLE, func(c *Config) { c.FutureTokens = 129 }},
	} {
		c := good(a.kind)
		a.edit(&c)
		if _, err := New(c); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestC81_OneRequestAtATime(t *testing.T) {
	r := newRig(t, KindVanilla)
	q, err := r.begin(prompts(seq(1, 5)))
	r.must(err)
	_, err = r.begin(prompts(seq(2, 5)))
	r.wantCode(err, status.RequestFailed)
	r.must(r.drop(q, true))
	if _, err = r.begin(prompts(seq(2, 5))); err != nil {
		t.Fatal(err)
	}
}

func TestC81_ATableOfRequestsWhenAsked(t *testing.T) {
	r := newRig(t, KindVanilla, requests(2))
	a, b := prompts(seq(1, 9)), prompts(seq(1, 9))
	a.Slots, b.Slots = []int32{2}, []int32{0}
	qa, qb := r.full(a), (*live)(nil)
	// The second finds what the first one published, while both live.
	qb, err := r.begin(b)
	r.must(err)
	if got := r.info(qb.h, 0).PrefillStart; got != 8 {
		t.Errorf("second request starts at %d, want 8", got)
	}
	_, err = r.begin(prompts(seq(3, 1)))
	r.wantCode(err, status.RequestFailed)
	r.toSettled(qb)
	for i := range int32(6) { // interleaved steps in resident slots 2 and 0
		r.must(r.decode(qa, [][]int32{{100 + i}}))
		r.must(r.decode(qb, [][]int32{{200 + i}}))
	}
	n, err := r.c.BeginCompaction(qa.h, []int32{-1}, 0, r.dst)
	if n != 0 {
		t.Error("compaction beside another request was begun")
	}
	r.wantCode(err, status.WrongState)
	r.must(r.finish(qa))
	c := prompts(seq(4, 3))
	c.Slots = []int32{0} // held by b
	_, err = r.begin(c)
	r.wantCode(err, status.InvalidArgument)
	r.must(r.finish(qb))
	r.emptied()
}

func TestC82_StaleForeignAndEmptyHandles(t *testing.T) {
	r, other := newRig(t, KindVanilla), newRig(t, KindVanilla)
	q := r.full(prompts(seq(1, 5)))
	foreign, err := other.begin(prompts(seq(1, 5)))
	r.must(err)
	stale := q.h
	r.must(r.finish(q))
	q, err = r.begin(prompts(seq(1, 5)))
	r.must(err)
	before := r.c.Metrics()
	for name, h := range map[string]Handle{"empty": 0, "stale": stale, "foreign": foreign.h, "invented": q.h + 1, "beyond": q.h | 0xffff} {
		calls := map[string]func() error{
			"prepare":  func() error { _, err := r.c.PreparePrefill(h, r.dst); return err },
			"captures": func() error { _, err := r.c.EnqueuePrefillCaptures(h, r.dst); return err },
			"finalize": func() error { return r.c.FinalizePrefill(h, nil, nil) },
			"decode":   func() error { _, err := r.c.PrepareDecodeStep(h, Headroom{}, r.dst); return err },
			"complete": func() error { _, err := r.c.CompleteDecodeStep(h, nil, nil, nil, r.dst); return err },
			"begin":    func() error { _, err := r.c.BeginCompaction(h, nil, 0, r.dst); return err },
			"compact":  func() error { _, err := r.c.CompactBatch(h, r.dst); return err },
			"report":   func() error { return r.c.Report(h, Done, 0) },
			"request":  func() error { _, err := r.c.Request(h); return err },
			"sequence": func() error { _, err := r.c.Sequence(h, 0); return err },
			"finish":   func() error { _, err := r.c.Finish(h, r.dst); return err },
			"abandon":  func() error { return r.c.Abandon(h, true) },
		}
		for call, f := range calls {
			want := status.BadHandle
			if h == 0 && (call == "finish" || call == "abandon") {
				want = status.OK
			}
			if got := status.CodeOf(f()); got != want {
				t.Errorf("%s with %s handle: code %d, want %d", call, name, got, want)
			}
		}
	}
	if after := r.c.Metrics(); after != before {
		t.Errorf("bad handles moved counters:\n%v", after)
	}
	if r.info(q.h, 0).Tokens != 5 {
		t.Error("the live request was harmed")
	}
}

func TestC84_LeasesGoBeforeTheRequestFlag(t *testing.T) {
	r := newRig(t, KindVanilla, pages(8))
	for range 3 { // each takes the whole pool: a leftover lease would show
		q, err := r.begin(prompts(seq(1, 32)))
		r.must(err)
		if r.c.Active() != 1 || r.free()[prefix.BasePages] != 0 {
			t.Fatal("the request does not own the pool")
		}
		r.must(r.drop(q, true))
		if r.c.Active() != 0 || r.free()[prefix.BasePages] != 8 {
			t.Fatal("the request left something behind")
		}
	}
}

func TestC85_AFailedBeginLeavesNothing(t *testing.T) {
	long, big := prompts(seq(1, 33)), prompts(seq(1, 4), seq(2, 4), seq(3, 4), seq(4, 4), seq(5, 4))
	media := prompts(seq(1, 4))
	media.Sequences[0].Media = make([]prefix.Hash128, 3)
	mode, lookup, commit := prompts(seq(1, 4)), prompts(seq(1, 4)), prompts(seq(1, 4))
	mode.Mode, lookup.Lookup, commit.Commit = 2, 2, -1
	eagle := prompts(seq(1, 4))
	eagle.Mode = ModeEAGLE
	slot, count, twice := prompts(seq(1, 4), seq(2, 4)), prompts(seq(1, 4)), prompts(seq(1, 4), seq(2, 4))
	slot.Slots, count.Slots, twice.Slots = []int32{0, 4}, []int32{0, 1}, []int32{1, 1}
	for name, a := range map[string]Admission{
		"no sequence": {}, "batch too large": big, "empty prompt": prompts(seq(1, 4), nil), "row too long": long,
		"media length": media, "mode": mode, "lookup": lookup, "commit": commit, "EAGLE on vanilla": eagle,
		"slot beyond": slot, "slots not one each": count, "slot twice": twice,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, KindVanilla)
			before := r.c.Metrics()
			_, err := r.begin(a)
			r.wantCode(err, status.InvalidArgument)
			if got := r.c.Metrics(); got != before {
				t.Errorf("counters moved:\n%v", got)
			}
			r.publish(prompts(seq(1, 4))) // the next begin works
			r.emptied()
		})
	}
	r := newRig(t, KindVanilla)
	ok := prompts(seq(1, 4))
	_, err := r.c.Begin(&ok, testStream+1)
	r.wantCode(err, status.InvalidArgument)
	// The stream is looked at before the policies, poison before activity.
	_, err = r.c.Begin(&mode, testStream+1)
	if err == nil || !strings.Contains(err.Error(), "stream") {
		t.Errorf("a foreign stream is not reported first: %v", err)
	}
}

func TestC86_VanillaRequestsOnAnEAGLEDeployment(t *testing.T) {
	r := newRig(t, KindEAGLE)
	a := prompts(seq(1, 13))
	a.Mode = ModeEAGLE
	r.publish(a)
	a.Mode = ModeVanilla
	q, err := r.begin(a)
	r.must(err)
	if got := r.info(q.h, 0); got.PrefillStart != 12 || got.DraftPages != 0 {
		t.Errorf("vanilla on a paired record: %+v, want start 12 and no draft page", got)
	}
	r.must(r.prepare(q))
	for _, cmd := range r.ran {
		if cmd.Cache == Draft {
			t.Errorf("a vanilla request emitted %v", cmd)
		}
	}
	r.must(r.drop(q, true))
	// The other way round: base-only state is no use for EAGLE (C-49).
	r.c.Flush()
	r.publish(a)
	a.Mode = ModeEAGLE
	if got := r.hit(a); got != 0 {
		t.Errorf("EAGLE on a base-only record starts at %d, want 0", got)
	}
	r.emptied()
}

// An EAGLE batch fits both models; a vanilla one is no business of the draft's.
func TestC86_TheSmallerOfTwoBatchesLimitsEAGLE(t *testing.T) {
	r := newRig(t, KindEAGLE, func(c *Config) { c.DraftMaxBatch = 2 })
	a := prompts(seq(1, 5), seq(2, 5), seq(3, 5))
	a.Mode = ModeEAGLE
	_, err := r.begin(a)
	r.wantCode(err, status.InvalidArgument)
	a.Sequences, a.Slots = a.Sequences[:2], []int32{0, 2}
	_, err = r.begin(a)
	r.wantCode(err, status.InvalidArgument) // the draft has no slot 2
	a.Slots = nil
	r.publish(a)
	r.publish(prompts(seq(1, 5), seq(2, 5), seq(3, 5)))
	r.emptied()
}

func TestC87_IdenticalColdPromptsOfABatchAreBothCold(t *testing.T) {
	r := newRig(t, KindVanilla)
	q := r.full(prompts(seq(1, 9), seq(1, 9)))
	for i := range 2 {
		if got := r.info(q.h, i); got.PrefillStart != 0 || got.PublishedBlocks != 2 {
			t.Errorf("sequence %d: %+v, want start 0 and 2 blocks", i, got)
		}
	}
	m := r.c.Metrics()
	if m.CurrentRecords != 1 || m.CommittedPublications != 1 || m.ExistingPublications != 1 {
		t.Errorf("one record and one existing publication expected:\n%v", m)
	}
	r.must(r.finish(q))
	r.emptied()
}

func TestC88_StartCommittedAndCommonAreTheReuseLength(t *testing.T) {
	r := newRig(t, KindEAGLE)
	a := prompts(seq(1, 17))
	a.Mode = ModeEAGLE
	r.publish(a)
	q, err := r.begin(a)
	r.must(err)
	// 4 paired blocks, one is replayed (8.3).
	if got := r.info(q.h, 0); got.PrefillStart != 12 || got.Committed != 12 || got.Common != 12 || got.Matched != 16 || got.Frozen != -1 {
		t.Errorf("got %+v, want start = committed = common = 12, matched 16", got)
	}
	r.must(r.drop(q, true))
}

// media returns a prompt with one media run [from, to).
func mediaPrompt(base, n, from, to int32, digest uint64) Admission {
	a := prompts(seq(base, n))
	a.Sequences[0].Media = make([]prefix.Hash128, n)
	for i := from; i < to; i++ {
		a.Sequences[0].Media[i] = prefix.Hash128{Hi: 1, Lo: digest}
	}
	return a
}

func TestC89_ReuseNeverSplitsAMediaRun(t *testing.T) {
	// D-3: nothing beyond the start is bound, so nothing shared is rewritten;
	// the device checks that every reused cell still holds its state.
	for _, c := range []struct{ n, from, to, want int32 }{
		{20, 0, 0, 16}, {20, 2, 7, 16}, {17, 10, 17, 8}, {17, 3, 17, 0}, {20, 14, 18, 12}, {20, 12, 16, 16}, {20, 16, 20, 16},
	} {
		r := newRig(t, KindVanilla)
		a := mediaPrompt(1, c.n, c.from, c.to, 9)
		r.publish(a)
		q := r.full(a)
		got := r.info(q.h, 0)
		if got.PrefillStart != c.want {
			t.Errorf("%d tokens, media [%d,%d): start %d, want %d", c.n, c.from, c.to, got.PrefillStart, c.want)
		}
		skipped := max(0, min(c.to, c.want)-c.from)
		if got.SkippedMedia != skipped { // D-12
			t.Errorf("%d media positions reported as skipped, want %d", got.SkippedMedia, skipped)
		}
		r.must(r.finish(q))
		r.publish(a) // and the cached state survived that run
		r.emptied()
	}
}

func TestD04_HybridCheckpointInsideAMediaRunIsAMiss(t *testing.T) {
	r := newRig(t, KindHybrid)
	short, long := mediaPrompt(1, 6, 4, 6, 9), mediaPrompt(1, 12, 4, 9, 9)
	r.publish(short)
	q := r.full(long) // the checkpoint at 6 would split the run [4,9)
	if got := r.info(q.h, 0).PrefillStart; got != 0 {
		t.Errorf("start %d, want 0", got)
	}
	r.must(r.finish(q))
	r.emptied()
}

func TestD01_MediaSequencesGrowTextTokens(t *testing.T) {
	r := newRig(t, KindVanilla)
	a := mediaPrompt(1, 7, 1, 5, 9)
	q := r.full(a)
	r.must(r.decode(q, [][]int32{{901}}, 0)) // committed 8: the second block closes with a generated token
	r.must(r.finish(q))
	again := mediaPrompt(1, 7, 1, 5, 9)
	again.Sequences[0].Tokens = append(again.Sequences[0].Tokens, 900, 5)
	again.Sequences[0].Media = append(again.Sequences[0].Media, prefix.Hash128{}, prefix.Hash128{})
	if got := r.hit(again); got != 8 {
		t.Errorf("start %d, want 8", got)
	}
	r.emptied()
}

func TestD13_AFailedBatchLeavesNoCounter(t *testing.T) {
	r := newRig(t, KindVanilla, pages(11), requests(2))
	clock := int64(0)
	r.c.cfg.Clock = func() int64 { clock += 5; return clock }
	r.publish(prompts(seq(1, 9)))
	before, records := r.c.Metrics(), r.c.Manager().Records()
	if before.PlanningNanoseconds != 5 {
		t.Fatalf("planning took %d ns, want 5", before.PlanningNanoseconds)
	}
	// The first two sequences fit, the third does not.
	_, err := r.begin(prompts(seq(1, 9), seq(2, 16), seq(3, 20)))
	r.wantCode(err, status.RequestFailed)
	after := r.c.Metrics()
	if after.PlanningNanoseconds <= before.PlanningNanoseconds {
		t.Error("the time of a failed admission was not counted")
	}
	after.PlanningNanoseconds = before.PlanningNanoseconds
	if after != before || r.c.Manager().Records() != records {
		t.Errorf("a failed batch left traces: before\n%v\nafter\n%v", before, after)
	}
	if got := r.hit(prompts(seq(1, 9))); got != 8 {
		t.Errorf("the cached prompt starts at %d, want 8", got)
	}
	r.emptied()
}

// A host that is told "not now" comes again: what fits on no day is told apart.
func TestBegin_ARefusalSaysWhetherTheBatchCanEverFit(t *testing.T) {
	quota := func(c *Config) { c.TenantQuota = 500 }
	one, long := prompts(seq(1, 12)), prompts(seq(2, 8), seq(3, 28))
	one.Sequences[0].Extras = &prefix.Extras{Isolation: prefix.OptionalHash{Present: true, Hash: prefix.Hash128{Hi: 1}}}
	cached := prompts(seq(3, 28)) // in a pool of 6: of its 7 pages 4 are cached
	for _, c := range []struct {
		says  string
		first *Admission
		batch Admission
		opts  []option
	}{
		{"begin: beyond capacity: sequence 1 needs 7 base pages, the pool has 6 in all", nil, long, []option{pages(6)}},
		{"begin: beyond capacity: sequence 0 needs 7 base pages, the pool has 6 in all", func() *Admission { a := prompts(seq(3, 16)); return &a }(), cached, []option{pages(6)}},
		{"begin: no capacity for the batch of 2: 9 base and 0 draft pages wanted, the pools have 8 and 0 in all", nil, long, []option{pages(8)}},
		{"begin: quota: sequence 0 needs 3 base pages, its tenant may hold 2 in all", nil, one, []option{pages(4), quota}},
		{"begin: no room below the quota of its tenants for the batch of 2: 9 base and 0 draft pages wanted, the pools have 16 and 0 in all", nil, long, []option{pages(16), quota}},
	} {
		r := newRig(t, KindVanilla, c.opts...)
		if c.first != nil {
			r.publish(*c.first)
		}
		_, err := r.begin(c.batch)
		r.wantCode(err, status.RequestFailed)
		if err.Error() != c.says {
			t.Errorf("%v\nwant %s", err, c.says)
		}
	}
}

// The same where the first sequence alone would fit by evicting a record: the
// record stays.
func TestD13_AFailedBatchEvictsNothing(t *testing.T) {
	for _, kind := range []Kind{KindVanilla, KindHybrid, KindEAGLE} {
		r := newRig(t, kind, pages(11))
		a := prompts(seq(1, 9))
		a.Mode = modeOf(kind)
		r.publish(a)
		before := r.c.Metrics()
		batch := prompts(seq(2, 32), seq(3, 16)) // 8 + 4 of 11 pages
		batch.Mode = a.Mode
		_, err := r.begin(batch)
		r.wantCode(err, status.RequestFailed)
		if after := r.c.Metrics(); after != before || after.CurrentRecords != 1 {
			t.Errorf("%v: before\n%v\nafter\n%v", kind, before, after)
		}
		r.check()
		batch.Sequences = batch.Sequences[:1] // alone it fits
		q := r.full(batch)
		r.must(r.finish(q))
		r.emptied()
	}
}

// A batch costs none of its own sequences their hit, in whatever order they
// come.
func TestBegin_ABatchDoesNotEvictItsOwnHits(t *testing.T) {
	r := newRig(t, KindVanilla, pages(11))
	r.publish(prompts(seq(1, 9)))
	q := r.full(prompts(seq(2, 30), seq(1, 9))) // 8 pages, then 2 shared and 1
	if got := r.info(q.h, 1).PrefillStart; got != 8 {
		t.Errorf("start %d, want 8", got)
	}
	r.must(r.finish(q))
	r.emptied()
}

func TestBegin_ReasonsPerSequence(t *testing.T) {
	r := newRig(t, KindVanilla)
	r.publish(prompts(seq(1, 8)))
	adapter := prompts(seq(1, 8))
	adapter.Sequences[0].Extras = &prefix.Extras{Adapter: prefix.Adapter{Present: true, ID: prefix.Hash128{Lo: 3}}}
	bypass := prompts(seq(1, 8))
	bypass.Lookup = Bypass
	for name, c := range map[string]struct {
		a    Admission
		want prefix.Reason
	}{
		"short":   {prompts(seq(1, 3)), prefix.ReasonPromptTooShort},
		"other":   {prompts(seq(2, 9)), prefix.ReasonFirstBlock},
		"full":    {prompts(seq(1, 8)), prefix.ReasonFullInput},
		"adapter": {adapter, prefix.ReasonExtrasUnknown},
		"bypass":  {bypass, prefix.ReasonBypass},
		"longer":  {prompts(slices.Concat(seq(1, 8), seq(7, 8))), prefix.ReasonDiverged},
		"all":     {prompts(slices.Concat(seq(1, 8), seq(7, 1))), prefix.ReasonNone},
	} {
		q, err := r.begin(c.a)
		r.must(err)
		if got := r.info(q.h, 0).Reason; got != c.want {
			t.Errorf("%s: reason %v, want %v", name, got, c.want)
		}
		r.must(r.drop(q, true))
	}
}

func TestInvalidateAndFlush_NeverTouchPagesInUse(t *testing.T) {
	r := newRig(t, KindVanilla)
	a := prompts(seq(1, 9))
	id := prefix.Hash128{Lo: 3}
	a.Sequences[0].Extras = &prefix.Extras{Adapter: prefix.Adapter{Present: true, ID: id, Generation: 1}}
	r.publish(a)
	r.publish(prompts(seq(1, 9)))
	q := r.full(a)
	other := uint64(2)
	if n := r.c.Invalidate(id, &other); n != 0 {
		t.Errorf("generation 2 dropped %d records", n)
	}
	if n := r.c.Invalidate(id, nil); n != 1 {
		t.Errorf("%d records dropped, want 1", n)
	}
	for i := range int32(8) { // the device checks that its pages stay its own
		r.must(r.decode(q, [][]int32{{i}}))
	}
	r.must(r.finish(q))
	if got := r.hit(a); got != 0 {
		t.Errorf("an invalidated adapter starts at %d", got)
	}
	if got := r.hit(prompts(seq(1, 9))); got != 8 {
		t.Errorf("another adapter's prompt starts at %d, want 8", got)
	}
	if n := r.c.Flush(); n != 1 || r.hit(prompts(seq(1, 9))) != 0 {
		t.Errorf("flush dropped %d records, want 1", n)
	}
	r.emptied()
}

// What is dropped because of a flush is no publication, neither in the counters nor in the
// state of its sequence; the manager counts it by itself.
func TestInvalidateAndFlush_WhatIsDroppedIsNotPublished(t *testing.T) {
	for kind := KindVanilla; kind <= KindEAGLE; kind++ {
		r := newRig(t, kind)
		a := prompts(seq(1, 9))
		a.Mode = modeOf(kind)
		q, err := r.begin(a)
		r.must(err)
		r.must(r.prepare(q))
		r.prefill(q)
		r.must(r.captures(q))
		r.c.Flush() // the snapshot is staged
		r.must(r.finalize(q, 1))
		r.must(r.decode(q, [][]int32{{2}}, 0))
		m, s := r.c.Metrics(), r.info(q.h, 0)
		if m.PublicationAttempts|m.CommittedPublications|m.ExistingPublications|m.PublishedEndpoints|m.SpecPairPublications != 0 {
			t.Errorf("%v: publications counted: %+v", kind, m)
		}
		if s.PublishedBlocks != 0 || s.PublishedExact != 0 || s.Staged || m.CurrentRecords != 0 {
			t.Errorf("%v: %d blocks and a snapshot of %d published, staged %v, %d records; want none", kind, s.PublishedBlocks, s.PublishedExact, s.Staged, m.CurrentRecords)
		}
		if n := r.c.Manager().Counters().StalePublishes; n == 0 {
			t.Errorf("%v: no stale publication counted", kind)
		}
		r.must(r.finish(q))
		r.emptied()
	}
}

// C-53: a vanilla hit refreshes its record here; a flag brings the original's rule
// back.
func TestC53_RecencyOfAVanillaHit(t *testing.T) {
	for _, original := range []bool{false, true} {
		r := newRig(t, KindVanilla, records(2), func(c *Config) { c.OriginalRecency = original })
		r.publish(prompts(seq(1, 8)))
		r.publish(prompts(seq(2, 8)))
		if got := r.hit(prompts(append(seq(1, 8), 5))); got != 8 {
			t.Fatalf("start %d, want 8", got)
		}
		r.publish(prompts(seq(3, 8))) // pushes the least recent record out
		first, second := r.hit(prompts(append(seq(1, 8), 5))), r.hit(prompts(append(seq(2, 8), 5)))
		if want := [2]int32{8, 0}; !original && [2]int32{first, second} != want {
			t.Errorf("starts %d and %d, want %v", first, second, want)
		}
		if want := [2]int32{0, 8}; original && [2]int32{first, second} != want {
			t.Errorf("original rule: starts %d and %d, want %v", first, second, want)
		}
		r.emptied()
	}
}

// With the flag an eviction leaves the rest of its victim findable.
func TestShortenVictims(t *testing.T) {
	for _, on := range []bool{false, true} {
		r := newRig(t, KindVanilla, pages(9), func(c *Config) { c.ShortenVictims = on })
		r.publish(prompts(seq(1, 25))) // 6 of 9 pages of 4 stay cached
		r.publish(prompts(seq(2, 17))) // takes 5
		want := int32(0)
		if on {
			want = 12
		}
		if got := r.hit(prompts(append(seq(1, 25), 5))); got != want {
			t.Errorf("shorten %v: start %d, want %d", on, got, want)
		}
		r.emptied()
	}
}

func TestBegin_ForcedColdStaysInTheIdentities(t *testing.T) {
	// The original's retry can never succeed; the branch must not disturb.
	r := newRig(t, KindVanilla, pages(9), requests(2))
	r.publish(prompts(seq(1, 9)))
	hold := prompts(seq(2, 28))
	hold.Slots = []int32{3}
	q := r.full(hold) // 7 of 9 pages; 2 are cached
	before, counted := r.c.Metrics(), r.c.Manager().Counters()
	_, err := r.begin(prompts(slices.Concat(seq(1, 8), seq(5, 9))))
	r.wantCode(err, status.RequestFailed)
	if got := r.c.Metrics(); got != before {
		t.Errorf("counters moved:\n%v", got)
	}
	counted.Acquires, counted.Infeasible = counted.Acquires+1, counted.Infeasible+1 // with the retry, it is one attempt
	if got := r.c.Manager().Counters(); got != counted {
		t.Errorf("counters of the manager are %+v, want %+v", got, counted)
	}
	r.must(r.finish(q))
	r.emptied()
}

// What hits beyond a quota cost is counted once, too: without them it would be more.
func TestBegin_ARefusalBelowTheQuotaIsCountedOnce(t *testing.T) {
	r := newRig(t, KindVanilla, requests(2), func(c *Config) { c.TenantQuota = 125 }) // 8 of 64 pages
	r.publish(prompts(seq(1, 9)))
	hold := prompts(seq(2, 25))
	hold.Slots = []int32{3}
	q := r.full(hold) // 7 of 8
	counted := r.c.Manager().Counters()
	_, err := r.begin(prompts(slices.Concat(seq(2, 24), seq(5, 8))))
	r.wantCode(err, status.RequestFailed)
	counted.Acquires, counted.Infeasible = counted.Acquires+1, counted.Infeasible+1
	if got := r.c.Manager().Counters(); got != counted {
		t.Errorf("counters of the manager are %+v, want %+v", got, counted)
	}
	for tenant := range r.c.Manager().Tenants() {
		if tenant.Refused != 1 {
			t.Errorf("%d refusals, want 1", tenant.Refused)
		}
	}
	r.must(r.finish(q))
	r.emptied()
}
