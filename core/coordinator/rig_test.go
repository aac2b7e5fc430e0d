package coordinator

import (
	"errors"
	"testing"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// rig is a runtime in small: it drives a coordinator the way its
// documentation prescribes and computes states on the simulated device.
type rig struct {
	t   *testing.T
	c   *Coordinator
	dev *device
	dst []Command
	ran []Command // the last list, as executed

	// Faults, armed for the next list: fail before command failAt (-1: never);
	// syncFails makes a synchronize fail.
	failAt    int
	syncFails bool
}

const testStream = 0x51

type option func(*Config)

// newRig makes a coordinator of 4 slots with rows of 8 pages of 4 tokens,
// unless the options say otherwise.
func newRig(t *testing.T, kind Kind, options ...option) *rig {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Enabled, cfg.Kind, cfg.TokensPerPage, cfg.MaxBatch, cfg.Stream = true, kind, 4, 4, testStream
	cfg.Base = CacheResources{Pages: 64, PaddedCapacity: 32}
	if kind == KindEAGLE {
		cfg.Draft = &CacheResources{Pages: 64, PaddedCapacity: 32}
		cfg.DraftMaxBatch = 4
		cfg.Spec = &Spec{VerifySize: 3, DraftingStep: 2, DraftingTopK: 2}
	}
	cfg.RecurrentBudget, cfg.RecurrentSlotBytes = 800, 100
	cfg.PartialBudget, cfg.PartialSlotBytes = 800, 100
	for _, o := range options {
		o(&cfg)
	}
	fill := func(r *CacheResources, maxBatch int32) {
		r.MaxBatch = maxBatch
		if kind.attention() {
			var err error
			if r.Table, err = NewPageTable(maxBatch, r.PaddedCapacity/cfg.TokensPerPage, r.Pages); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(&cfg.Base, cfg.MaxBatch)
	if cfg.Draft != nil {
		fill(cfg.Draft, cfg.DraftMaxBatch)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, c: c, dst: make([]Command, c.MaxCommands()), failAt: -1}
	r.dev = newDevice(t, c)
	return r
}

func pages(n int32) option    { return func(c *Config) { c.Base.Pages = n; setDraft(c, n) } }
func requests(n int32) option { return func(c *Config) { c.MaxRequests = n } }
func records(n int32) option  { return func(c *Config) { c.MaxRecords = n } }
func perPage(p, row int32) option {
	return func(c *Config) {
		c.TokensPerPage, c.Base.PaddedCapacity = p, p*row
		if c.Draft != nil {
			c.Draft.PaddedCapacity = p * row
		}
	}
}
func setDraft(c *Config, n int32) {
	if c.Draft != nil {
		c.Draft.Pages = n
	}
}
func slots(recurrent, partial int64) option {
	return func(c *Config) { c.RecurrentBudget, c.PartialBudget = recurrent*100, partial*100 }
}

// run executes a list of n commands and reports. It returns what the report
// returned; errBroken stands for a list that was broken off.
func (r *rig) run(h Handle, n int, err error) error {
	r.ran = append(r.ran[:0], r.dst[:n]...)
	if err != nil || n == 0 {
		return err
	}
	failAt, syncFails := r.failAt, r.syncFails
	r.failAt, r.syncFails = -1, false
	for i, cmd := range r.ran {
		if i == failAt {
			return r.broken(h, i)
		}
		if cmd.Kind == CmdSynchronize && syncFails {
			return r.c.Report(h, SyncFailed, i)
		}
		r.dev.execute(r.c, cmd)
	}
	if failAt == n {
		return r.broken(h, n)
	}
	return r.c.Report(h, Done, n)
}

var errBroken = errors.New("a command failed")

func (r *rig) broken(h Handle, executed int) error {
	if err := r.c.Report(h, EnqueueFailed, executed); err != nil {
		r.t.Errorf("report of a failed list: %v", err)
	}
	return errBroken
}

// live is a request with what the test knows of its sequences.
type live struct {
	h     Handle
	mode  ExecutionMode
	seqs  []*history
	slots []int32
	start []int32 // committed at the start of the decode round
}

func prompts(tokens ...[]int32) Admission {
	a := Admission{}
	for _, s := range tokens {
		a.Sequences = append(a.Sequences, SequenceAdmission{Tokens: s})
	}
	return a
}

// seq is n tokens that are unlike those of another base.
func seq(base, n int32) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = base*1000 + int32(i)
	}
	return out
}

func (r *rig) begin(a Admission) (*live, error) {
	h, err := r.c.Begin(&a, testStream)
	if err != nil {
		return nil, err
	}
	q := &live{h: h, mode: a.Mode}
	for i := range a.Sequences {
		s := newHistory(a.Sequences[i])
		info := r.info(h, i)
		s.committed, s.common = info.PrefillStart, info.PrefillStart
		q.seqs = append(q.seqs, s)
		q.slots = append(q.slots, info.Slot)
	}
	return q, nil
}

func (r *rig) info(h Handle, i int) SequenceInfo {
	r.t.Helper()
	s, err := r.c.Sequence(h, i)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) stage(h Handle) RequestInfo {
	r.t.Helper()
	s, err := r.c.Request(h)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) prepare(q *live) error {
	n, err := r.c.PreparePrefill(q.h, r.dst)
	return r.run(q.h, n, err)
}

// prefill enqueues the model's work over the suffix. It starts where the
// device lengths say and finds every reused cell checked.
func (r *rig) prefill(q *live) {
	d, attention, recurrent := r.dev, r.c.cfg.Kind.attention(), r.c.cfg.Kind.recurrent()
	for i, s := range q.seqs {
		slot, n := q.slots[i], s.len()
		d.enqueue(func() {
			start := d.lengths[Base][slot]
			if start != s.committed {
				r.t.Errorf("sequence %d starts at %d on the device, %d on the host", i, start, s.committed)
				return
			}
			for pos := int32(0); attention && pos < n; pos++ {
				r.touch(Base, slot, pos, s.base(pos), pos < start)
			}
			if recurrent {
				want := uint64(0)
				if start > 0 {
					want = s.base(start - 1)
				}
				if d.recurrent[slot] != want {
					r.t.Errorf("sequence %d starts at %d with a foreign recurrent state", i, start)
				}
				d.recurrent[slot] = s.base(n - 1)
			}
			d.lengths[Base][slot] = n
		})
	}
}

// touch checks a cell that was reused, or writes one that is computed.
func (r *rig) touch(cache Cache, slot, pos int32, want uint64, reused bool) {
	k, v := r.dev.cell(cache, slot, pos)
	if !reused {
		*k, *v = want, want+2
	} else if *k != want || *v != want+2 {
		r.t.Errorf("cache %d slot %d position %d holds a foreign state", cache, slot, pos)
	}
}

func (r *rig) captures(q *live) error {
	n, err := r.c.EnqueuePrefillCaptures(q.h, r.dst)
	return r.run(q.h, n, err)
}

// finalize samples one token a sequence, synchronises, and for EAGLE enqueues
// the draft initialisation.
func (r *rig) finalize(q *live, sampled ...int32) error {
	r.dev.sync()
	adv := make([]Advance, len(q.seqs))
	var common []int32
	for i, s := range q.seqs {
		adv[i] = Advance{Tokens: sampled[i : i+1], Committed: s.len()}
		if q.mode == ModeEAGLE {
			common = append(common, s.len())
		}
	}
	for i, s := range q.seqs {
		s.committed = s.len()
		s.add(sampled[i])
		if q.mode == ModeEAGLE {
			r.ingest(q, i, s.committed)
		}
	}
	return r.c.FinalizePrefill(q.h, adv, common)
}

// ingest enqueues the draft's work on positions [common, to).
func (r *rig) ingest(q *live, i int, to int32) {
	s, slot := q.seqs[i], q.slots[i]
	from := s.common
	s.common = to
	r.dev.enqueue(func() {
		if from > r.dev.lengths[Draft][slot] {
			r.t.Errorf("sequence %d: the draft holds %d tokens, work starts at %d", i, r.dev.lengths[Draft][slot], from)
		}
		for pos := int32(0); pos < to; pos++ {
			r.touch(Draft, slot, pos, s.draft(pos), pos < from)
		}
		r.dev.lengths[Draft][slot] = to
	})
}

// full is everything up to the first decode step, one sampled token a sequence
// that starts with 900.
func (r *rig) full(a Admission) *live {
	r.t.Helper()
	q, err := r.begin(a)
	if err != nil {
		r.t.Fatal(err)
	}
	r.toSettled(q)
	return q
}

func (r *rig) toSettled(q *live) {
	r.t.Helper()
	r.must(r.prepare(q))
	r.prefill(q)
	r.must(r.captures(q))
	sampled := make([]int32, len(q.seqs))
	for i := range sampled {
		sampled[i] = 900 + int32(i)
	}
	r.must(r.finalize(q, sampled...))
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) prepareDecode(q *live) error {
	n, err := r.c.PrepareDecodeStep(q.h, Headroom{}, r.dst)
	return r.run(q.h, n, err)
}

// decode runs one round: tokens[i] are what sequence i accepts, the last of
// them the new lookahead; done lists sequences that ended.
func (r *rig) decode(q *live, tokens [][]int32, done ...int32) error {
	if err := r.prepareDecode(q); err != nil {
		return err
	}
	r.launch(q, tokens)
	return r.complete(q, tokens, done...)
}

// launch enqueues a round's model work; the histories advance here.
func (r *rig) launch(q *live, tokens [][]int32) {
	d, kind := r.dev, r.c.cfg.Kind
	q.start = q.start[:0]
	for i, s := range q.seqs {
		q.start = append(q.start, s.committed)
		if q.mode == ModeEAGLE {
			r.ingest(q, i, s.committed)
		}
		from, slot := s.committed, q.slots[i]
		s.add(tokens[i]...)
		s.committed = from + int32(len(tokens[i]))
		to, reach := s.committed, from+1
		if q.mode == ModeEAGLE {
			reach = from + r.c.cfg.Spec.VerifySize
		}
		d.enqueue(func() {
			if d.lengths[Base][slot] != from {
				r.t.Errorf("sequence %d: %d tokens on the device, %d on the host", i, d.lengths[Base][slot], from)
			}
			for pos := int32(0); kind.attention() && pos < reach; pos++ {
				want := uint64(3) // rejected candidates leave rubbish behind
				if pos < to {
					want = s.base(pos)
				}
				r.touch(Base, slot, pos, want, pos < from)
			}
			if kind.recurrent() {
				if d.recurrent[slot] != s.base(from-1) {
					r.t.Errorf("sequence %d: recurrent state is not that of %d tokens", i, from)
				}
				d.recurrent[slot] = s.base(to - 1)
			}
			if q.mode == ModeEAGLE { // candidates beyond the ingested state
				for pos := from; pos < from+int32(r.c.cfg.draftReach()); pos++ {
					r.touch(Draft, slot, pos, 5, false)
				}
			}
			d.lengths[Base][slot] = to
		})
	}
}

// complete is the decoder's own synchronisation and the second half.
func (r *rig) complete(q *live, tokens [][]int32, done ...int32) error {
	r.dev.sync()
	adv := make([]Advance, len(q.seqs))
	var common []int32
	for i, s := range q.seqs {
		adv[i] = Advance{Tokens: tokens[i], Committed: s.committed}
		if q.mode == ModeEAGLE {
			common = append(common, s.common)
		}
	}
	n, err := r.c.CompleteDecodeStep(q.h, adv, done, common, r.dst)
	return r.run(q.h, n, err)
}

// compact begins and carries out a compaction.
func (r *rig) compact(q *live, mapping []int32, batch int32) error {
	if err := r.beginCompaction(q, mapping, batch); err != nil {
		return err
	}
	return r.compactBatch(q, mapping, batch)
}

func (r *rig) beginCompaction(q *live, mapping []int32, batch int32) error {
	n, err := r.c.BeginCompaction(q.h, mapping, batch, r.dst)
	return r.run(q.h, n, err)
}

func (r *rig) compactBatch(q *live, mapping []int32, batch int32) error {
	n, err := r.c.CompactBatch(q.h, r.dst)
	if err := r.run(q.h, n, err); err != nil {
		return err
	}
	seqs := make([]*history, batch)
	for old, to := range mapping {
		if to >= 0 {
			seqs[to] = q.seqs[old]
		}
	}
	q.seqs, q.slots = seqs, q.slots[:batch]
	return nil
}

func (r *rig) finish(q *live) error {
	n, err := r.c.Finish(q.h, r.dst)
	return r.run(q.h, n, err)
}

// drop is the destructor of a handle: drain if need be, then abandon.
func (r *rig) drop(q *live, drains bool) error {
	if needsDrain(r.c, q.h) && drains {
		r.dev.sync()
	}
	return r.c.Abandon(q.h, drains)
}

// publish runs a prompt and finishes; hit says where a prompt would start.
func (r *rig) publish(a Admission) { r.t.Helper(); r.must(r.finish(r.full(a))) }

func (r *rig) hit(a Admission) int32 {
	r.t.Helper()
	q, err := r.begin(a)
	if err != nil {
		r.t.Fatal(err)
	}
	start := r.info(q.h, 0).PrefillStart
	r.must(r.drop(q, true))
	return start
}

// check asks the manager for its structural invariants, and holds the metrics
// against their identities.
func (r *rig) check() {
	r.t.Helper()
	if err := r.c.manager.Check(); err != nil {
		r.t.Fatal(err)
	}
	checkMetrics(r.t, r.c.Metrics())
}

func checkMetrics(t *testing.T, m Metrics) {
	t.Helper()
	switch {
	case m.StandardPlans+m.NoReusablePrefixPlans+m.FullInputRewindPlans != m.AdmittedSequences,
		m.MatchedTokens < m.ReusedTokens,
		m.HitSequences > m.AdmittedSequences,
		m.ForcedColdSequences > m.LookupBypassSequences,
		m.CommittedPublications+m.ExistingPublications != m.PublishedEndpoints,
		m.PublicationAttempts != m.PublishedEndpoints,
		m.SpecPairPublications > m.PublishedEndpoints:
		t.Fatalf("metrics contradict themselves:\n%v", m)
	}
}

// free is what no lease and no record holds.
func (r *rig) free() (n [4]int) {
	for i := range n {
		n[i] = r.c.manager.Free(prefix.Resource(i))
	}
	return n
}

// emptied fails unless everything can be had back: no lease is left.
func (r *rig) emptied() {
	r.t.Helper()
	r.c.Flush()
	for i, n := range r.free() {
		if want := r.c.manager.Capacity(prefix.Resource(i)); n != want {
			r.t.Fatalf("pool %v: %d of %d free after a flush without requests", prefix.Resource(i), n, want)
		}
	}
	r.check()
}

func (r *rig) wantCode(err error, code status.Code) {
	r.t.Helper()
	wantCode(r.t, err, code)
}

// needsDrain says whether a request that is dropped now would leave device work running
// on its pages: what a runtime asks before it lets go.
func needsDrain(c *Coordinator, h Handle) bool {
	info, err := c.Request(h)
	return err == nil && info.Pending
}
