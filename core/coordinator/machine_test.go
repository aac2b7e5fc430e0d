package coordinator

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

var machineSteps = flag.Int("machine-steps", 24000, "operations of the random run, over all kinds")

// TestMachine_RandomAgainstModel plays whole requests at random: hits, media,
// adapters, several requests at once, compaction, failures of every kind, calls
// out of order, handles dropped anywhere. After every operation the structural
// oracles (C-67..C-71), the metrics and the model are asked; the simulated
// device checks the content of every cell that is reused.
func TestMachine_RandomAgainstModel(t *testing.T) {
	episode := 0
	for done := 0; done < *machineSteps && !t.Failed(); episode++ {
		rng := rand.New(rand.NewPCG(7, uint64(episode)))
		m := newMachine(t, rng, episode)
		for i := 0; i < 1500 && !m.over && !t.Failed(); i++ {
			m.step()
			m.verify()
			done++
		}
		m.end()
		if t.Failed() {
			t.Logf("episode %d: %s; the last actions: %v", episode, m.name, m.trace[max(0, len(m.trace)-12):])
		}
	}
}

// player is one live request, with the stage the test believes it is in.
type player struct {
	*live
	commit    CommitPolicy
	lookup    LookupPolicy
	stage     Stage
	awaiting  bool
	stale     bool
	hit       bool // some sequence starts from a snapshot
	published []int32
	exact     []int32
	staged    []bool
	tokens    [][]int32
	done      []int32
	mapping   []int32
	batch     int32
}

type machine struct {
	*rig
	m      *model
	rng    *rand.Rand
	name   string
	strict bool // room enough: the model is exact
	over   bool
	live   []*player
	trace  []string
}

func newMachine(t *testing.T, rng *rand.Rand, episode int) *machine {
	kind := Kind(episode % 4)
	strict := episode/4%2 == 0
	limit := int32(1 + rng.IntN(2))
	room, keep, snaps := int32(40), int32(1+rng.IntN(12)), int64(1+rng.IntN(6))
	if strict {
		room, keep, snaps = 3000, 100000, 3000
	}
	weak := func(c *Config) {} // a hash that collides all the time must change nothing
	if episode%3 == 0 {
		weak = func(c *Config) { c.Hash = func(parent uint32, words []int32) uint64 { return uint64(words[0] & 1) } }
	}
	r := newRig(t, kind, pages(room), requests(limit), records(keep), slots(snaps, snaps), weak)
	m := &machine{rig: r, m: newModel(kind, r.c.p), rng: rng, strict: strict,
		name: fmt.Sprintf("%v, strict %v, %d requests, %d pages, %d records, %d snapshots", kind, strict, limit, room, keep, snaps)}
	return m
}

func (m *machine) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

// step does one thing: a new request, the next step of one, or mischief.
func (m *machine) step() {
	if m.rng.IntN(400) == 0 || (m.strict && m.free()[prefix.BasePages] < 200 && m.c.cfg.Kind.attention()) {
		m.note("flush")
		m.c.Flush()
		m.m.flush()
		for _, p := range m.live {
			p.stale = true
		}
		return
	}
	if len(m.live) == 0 || m.rng.IntN(12) == 0 {
		m.admit()
		return
	}
	p := m.live[m.rng.IntN(len(m.live))]
	switch m.rng.IntN(30) {
	case 0:
		m.finishPlayer(p)
	case 1:
		m.dropPlayer(p)
	case 2:
		m.outOfOrder(p)
	default:
		m.advance(p)
	}
}

// admission draws prompts from few families, so that prefixes are shared.
func (m *machine) admission() Admission {
	a := Admission{Lookup: LookupPolicy(count(m.rng.IntN(10) == 0)), Commit: CommitPolicy(m.rng.IntN(2))}
	if m.c.cfg.Kind == KindEAGLE && m.rng.IntN(5) > 0 {
		a.Mode = ModeEAGLE
	}
	batch := 1 + m.rng.IntN(3)
	for range batch {
		n := 1 + m.rng.Int32N(24)
		s := SequenceAdmission{Tokens: make([]int32, n)}
		for i := range s.Tokens {
			s.Tokens[i] = int32(count(m.rng.IntN(9) == 0))
		}
		if m.rng.IntN(4) == 0 {
			s.Media = make([]prefix.Hash128, n)
			from := m.rng.Int32N(n)
			for i := from; i < min(n, from+m.rng.Int32N(9)); i++ {
				s.Media[i] = prefix.Hash128{Lo: 1 + m.rng.Uint64N(2)}
			}
		}
		if m.rng.IntN(4) == 0 {
			s.Extras = &prefix.Extras{Isolation: prefix.OptionalHash{Present: true, Hash: prefix.Hash128{Hi: m.rng.Uint64N(2)}}}
		}
		a.Sequences = append(a.Sequences, s)
	}
	for _, slot := range m.rng.Perm(4) {
		busy := slices.ContainsFunc(m.live, func(p *player) bool { return slices.Contains(p.slots, int32(slot)) })
		if !busy && len(a.Slots) < batch {
			a.Slots = append(a.Slots, int32(slot))
		}
	}
	if m.c.cfg.MaxRequests == 1 && m.rng.IntN(3) > 0 {
		a.Slots = nil
	}
	return a
}

func (m *machine) admit() {
	a := m.admission()
	if len(m.live) == int(m.c.cfg.MaxRequests) {
		_, err := m.begin(a)
		m.note("begin while full: %v", err)
		m.wantCode(err, status.RequestFailed)
		return
	}
	if slices.ContainsFunc(m.live, func(p *player) bool { return p.stage == StageCompaction }) {
		_, err := m.begin(a)
		m.wantCode(err, status.WrongState)
		return
	}
	if a.Slots != nil && len(a.Slots) < len(a.Sequences) {
		return // not enough free slots to name
	}
	before := m.c.Metrics()
	q, err := m.begin(a)
	m.note("begin %d sequences: %v", len(a.Sequences), err)
	if err != nil {
		if m.strict {
			m.t.Fatalf("begin: %v", err)
		}
		m.wantCode(err, status.RequestFailed)
		if after := m.c.Metrics(); after.AdmittedSequences != before.AdmittedSequences || after.BasePages.Free < before.BasePages.Free {
			m.t.Fatal("a failed begin left something behind")
		}
		return
	}
	p := &player{live: q, commit: a.Commit, lookup: a.Lookup}
	n := len(q.seqs)
	p.published, p.exact, p.staged = make([]int32, n), make([]int32, n), make([]bool, n)
	w := &m.m.want
	for i, h := range q.seqs {
		start, hit := m.m.start(h, a.Mode, a.Lookup)
		got := m.info(q.h, i)
		if got.PrefillStart > start || (m.strict && (got.PrefillStart != start || (got.Matched > 0) != hit)) {
			m.t.Fatalf("sequence %d of %d tokens starts at %d (matched %d), the model says %d (hit %v); %+v", i, h.len(), got.PrefillStart, got.Matched, start, hit, got)
		}
		p.hit = p.hit || got.PrefillStart > 0
		w.AdmittedSequences++
		w.HitSequences += count(got.Matched > 0)
		w.ReusedTokens += int64(got.PrefillStart)
		w.MediaAwareSequences += count(len(h.media) > 0)
		w.LookupBypassSequences += count(a.Lookup == Bypass)
	}
	m.live = append(m.live, p)
}

func (m *machine) remove(p *player) {
	m.live = slices.DeleteFunc(m.live, func(q *player) bool { return q == p })
}

// arm plants a fault into the next list, sometimes.
func (m *machine) arm() {
	switch m.rng.IntN(60) {
	case 0:
		m.failAt = m.rng.IntN(6)
	case 1:
		m.syncFails = m.rng.IntN(12) == 0
	}
}

// judge looks at the outcome of a list. It returns whether the step committed.
func (m *machine) judge(p *player, err error) bool {
	m.failAt, m.syncFails = -1, false
	switch {
	case err == nil:
		return true
	case err == errBroken:
		p.stage = StageFinishing
	case status.CodeOf(err) == status.Poisoned:
		m.poisoned()
	default:
		m.t.Fatalf("stage %v: %v", p.stage, err)
	}
	return false
}

// poisoned ends the episode: what is quarantined stays owned until a drain.
func (m *machine) poisoned() {
	m.over = true
	free := m.free()
	m.wantCode(m.c.Shutdown(false), status.Poisoned)
	if m.free() != free || m.c.Quarantined() != 1 {
		m.t.Fatal("a quarantined request lost pages")
	}
}

// frozen publishes the prompt endpoints of an EAGLE request in the model.
func (m *machine) frozen(p *player, common []int32) {
	if !p.awaiting {
		return
	}
	p.awaiting = false
	for i, h := range p.seqs {
		m.endpoint(p, i, min(common[i], h.prompt), false)
	}
}

func (m *machine) endpoint(p *player, i int, length int32, decodeEnd bool) {
	if p.stale || p.lookup == Bypass || (decodeEnd && p.commit == PrefillOnly) || length/m.m.p <= p.published[i] {
		return
	}
	p.published[i] = length / m.m.p
	m.m.publish(p.seqs[i], length, p.mode == ModeEAGLE)
}

// captured stages checkpoints in the model; without room the cache decides.
func (m *machine) captured(p *player, i int, length int32, decodeEnd bool) {
	if p.stale || p.lookup == Bypass || (decodeEnd && p.commit == PrefillOnly) || length <= p.exact[i] {
		return
	}
	p.staged[i] = m.strict || m.c.requests[p.h&0xffff].seqs[i].staged
}

func (m *machine) checkpoints(p *player) {
	for i, h := range p.seqs {
		if p.staged[i] {
			p.staged[i] = false
			if p.stale { // since the capture
				continue
			}
			p.exact[i] = h.committed
			m.m.checkpoint(h, h.committed)
		}
	}
}

func commons(p *player) (out []int32) {
	for _, h := range p.seqs {
		out = append(out, h.common)
	}
	return out
}

// advance takes one request one legal step further.
func (m *machine) advance(p *player) {
	m.note("%v of %#x", p.stage, uint64(p.h)>>16)
	m.arm()
	kind := m.c.cfg.Kind
	switch p.stage {
	case StageAdmitted:
		if m.judge(p, m.prepare(p.live)) {
			m.prefill(p.live)
			p.stage = StagePrefill
		}
	case StagePrefill, StageCaptured:
		if p.stage == StagePrefill && m.rng.IntN(5) > 0 {
			err := m.captures(p.live)
			if m.judge(p, err) {
				p.stage = StageCaptured
				for i, h := range p.seqs {
					if kind.recurrent() {
						m.captured(p, i, h.len(), false)
					}
				}
			}
			return
		}
		m.failAt, m.syncFails = -1, false
		sampled := make([]int32, len(p.seqs))
		for i := range sampled {
			sampled[i] = m.rng.Int32N(2)
			p.seqs[i].prompt = p.seqs[i].len()
		}
		m.must(m.finalize(p.live, sampled...))
		switch {
		case p.mode == ModeEAGLE:
			p.stage, p.awaiting = StageAwaitingDraft, true
			return
		case kind.recurrent():
			m.checkpoints(p)
		default:
			for i, h := range p.seqs {
				m.endpoint(p, i, h.committed, false)
			}
		}
		p.stage = StageSettled
	case StageSettled, StageAwaitingDraft:
		if m.c.Active() == 1 && m.rng.IntN(4) == 0 && m.dense(p) {
			m.startCompaction(p)
			return
		}
		m.startDecode(p)
	case StageDecode:
		m.completeDecode(p)
	case StageCompaction:
		if !m.judge(p, m.compactBatch(p.live, p.mapping, p.batch)) {
			return
		}
		p.stage = StageSettled
		if p.batch == 0 {
			p.stage = StageFinishing
		}
		keep := 0
		for old, to := range p.mapping {
			if to >= 0 {
				p.published[keep], p.exact[keep], p.staged[keep] = p.published[old], p.exact[old], false
				keep++
			}
		}
		p.published, p.exact, p.staged = p.published[:keep], p.exact[:keep], p.staged[:keep]
		for i := range p.slots {
			p.slots[i] = int32(i)
		}
	case StageFinishing:
		m.failAt, m.syncFails = -1, false
		m.finishPlayer(p)
	}
}

func (m *machine) dense(p *player) bool {
	for i, s := range p.slots {
		if s != int32(i) {
			return false
		}
	}
	return true
}

func (m *machine) startDecode(p *player) {
	// A row that would not fit is the one failure a roomy cache has.
	fits := true
	if m.c.cfg.Kind.attention() {
		for _, h := range p.seqs {
			reach := int64(h.committed) + 1
			if p.mode == ModeEAGLE {
				reach = int64(h.committed) + max(int64(m.c.cfg.Spec.VerifySize), m.c.cfg.draftReach())
			}
			fits = fits && reach <= int64(m.c.cfg.Base.PaddedCapacity)
		}
	}
	err := m.prepareDecode(p.live)
	if code := status.CodeOf(err); code == status.RequestFailed {
		m.failAt, m.syncFails = -1, false
		if fits && m.strict {
			m.t.Fatalf("decode: %v", err)
		}
		p.stage = StageFinishing
		return
	}
	if !m.judge(p, err) {
		return
	}
	if !fits {
		m.t.Fatal("a row beyond the table was accepted")
	}
	p.tokens, p.done = nil, nil
	for i := range p.seqs {
		n := 1
		if p.mode == ModeEAGLE {
			n = 1 + m.rng.IntN(int(m.c.cfg.Spec.VerifySize))
		}
		t := make([]int32, n)
		for j := range t {
			t[j] = m.rng.Int32N(2)
		}
		p.tokens = append(p.tokens, t)
		if m.rng.IntN(4) == 0 {
			p.done = append(p.done, int32(i))
		}
	}
	m.launch(p.live, p.tokens)
	p.stage = StageDecode
}

func (m *machine) completeDecode(p *player) {
	syncsBefore := m.c.Metrics().HybridCaptureSyncs
	err := m.complete(p.live, p.tokens, p.done...)
	if m.c.cfg.Kind.recurrent() {
		for _, i := range p.done {
			if err == nil && m.strict {
				m.captured(p, int(i), p.seqs[i].committed, true)
			} else if err == nil {
				p.staged[i] = m.info(p.h, int(i)).PublishedExact == p.seqs[i].committed && p.exact[i] < p.seqs[i].committed
			}
		}
	}
	if m.c.Metrics().HybridCaptureSyncs > syncsBefore+1 {
		m.t.Fatal("more than one synchronisation in a step")
	}
	if !m.judge(p, err) {
		return
	}
	p.stage = StageSettled
	switch {
	case p.mode == ModeEAGLE:
		m.frozen(p, commons(p))
		for _, i := range p.done {
			m.endpoint(p, int(i), p.seqs[i].common, true)
		}
	case m.c.cfg.Kind.recurrent():
		m.checkpoints(p)
	default:
		for _, i := range p.done {
			m.endpoint(p, int(i), p.seqs[i].committed, true)
		}
	}
}

func (m *machine) startCompaction(p *player) {
	p.mapping, p.batch = nil, 0
	for range p.seqs {
		to := int32(-1)
		if m.rng.IntN(3) > 0 {
			to = p.batch
			p.batch++
		}
		p.mapping = append(p.mapping, to)
	}
	err := m.beginCompaction(p.live, p.mapping, p.batch)
	if err == errBroken { // nothing begun; settled if the synchronisation came through (D-15)
		m.failAt, m.syncFails = -1, false
		if got := m.stage(p.h); p.awaiting && !got.AwaitingDraft {
			p.stage = StageSettled
			m.frozen(p, commons(p))
		}
		return
	}
	if m.judge(p, err) {
		m.frozen(p, commons(p))
		p.stage = StageCompaction
	}
}

func (m *machine) finishPlayer(p *player) {
	m.note("finish in %v", p.stage)
	common := commons(p)
	if p.awaiting {
		for i := range p.seqs {
			common[i] = m.info(p.h, i).Common
		}
		m.frozen(p, common)
	}
	m.must(m.finish(p.live))
	m.remove(p)
}

func (m *machine) dropPlayer(p *player) {
	drains := m.rng.IntN(20) > 0 || !needsDrain(m.c, p.h)
	m.note("drop in %v, drains %v", p.stage, drains)
	err := m.drop(p.live, drains)
	m.remove(p)
	if drains {
		m.must(err)
		return
	}
	m.wantCode(err, status.Poisoned)
	m.poisoned()
}

// outOfOrder makes a call that the stage does not allow.
func (m *machine) outOfOrder(p *player) {
	var err error
	switch p.stage {
	case StageAdmitted:
		_, err = m.c.PrepareDecodeStep(p.h, Headroom{}, m.dst)
	case StageDecode:
		_, err = m.c.EnqueuePrefillCaptures(p.h, m.dst)
	case StageCompaction:
		_, err = m.c.CompleteDecodeStep(p.h, nil, nil, nil, m.dst)
	default:
		_, err = m.c.CompactBatch(p.h, m.dst)
	}
	m.note("out of order in %v", p.stage)
	m.wantCode(err, status.WrongState)
}

// verify holds everything that can be seen against the model.
func (m *machine) verify() {
	m.check()
	for _, p := range m.live {
		if m.over {
			break
		}
		got := m.stage(p.h)
		if got.Stage != p.stage || got.AwaitingDraft != p.awaiting || int(got.Batch) != len(p.seqs) {
			m.t.Fatalf("request %+v, the model says %v, awaiting %v; %v", got, p.stage, p.awaiting, m.trace[max(0, len(m.trace)-5):])
		}
		if p.stage == StageDecode || p.stage == StageFinishing {
			continue // the histories ran ahead
		}
		for i, h := range p.seqs {
			s := m.info(p.h, i)
			if s.Tokens != h.len() || s.Committed != h.committed || s.PublishedBlocks != p.published[i] || s.PublishedExact != p.exact[i] {
				m.t.Fatalf("sequence %d: %+v, the model says %d tokens, %d committed, %d blocks, exact %d", i, s, h.len(), h.committed, p.published[i], p.exact[i])
			}
		}
	}
	got, want := m.c.Metrics(), &m.m.want
	if got.AdmittedSequences != want.AdmittedSequences || got.HitSequences != want.HitSequences || got.ReusedTokens != want.ReusedTokens ||
		got.MediaAwareSequences != want.MediaAwareSequences || got.LookupBypassSequences != want.LookupBypassSequences ||
		got.PublicationAttempts != want.PublicationAttempts || got.SpecPairPublications != want.SpecPairPublications {
		m.t.Fatalf("metrics\n%v\nthe model says\n%v", got, *want)
	}
	if m.strict && (got.CurrentRecords != m.m.resident() || got.CommittedPublications != want.CommittedPublications || got.ExistingPublications != want.ExistingPublications) {
		m.t.Fatalf("metrics\n%v\nthe model says %d records and\n%v\n%v", got, m.m.resident(), *want, m.trace[max(0, len(m.trace)-8):])
	}
}

// end finishes what lives and wants every pool back.
func (m *machine) end() {
	if m.t.Failed() {
		return
	}
	for _, p := range slices.Clone(m.live) {
		if needsDrain(m.c, p.h) {
			m.dev.sync()
		}
		if _, err := m.c.Request(p.h); err == nil { // a failed list may have quarantined it
			m.must(m.c.Abandon(p.h, true))
		}
	}
	m.dev.sync()
	m.must(m.c.Shutdown(true))
	m.emptied()
}
