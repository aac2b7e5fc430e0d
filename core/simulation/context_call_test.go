package simulation

import (
	"slices"

	"libprefixcache/core/coordinator"
	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// player is a live request, with the stage that the model believes it is in.
type player struct {
	h                          coordinator.Handle
	number                     int
	eagle, bypass, prefillOnly bool

	seqs  []*history
	slots []int32

	stage     coordinator.Stage
	awaiting  bool    // its prompt endpoints wait for the draft initialisation
	published []int32 // blocks
	exact     []int32
	staged    []bool

	tokens  [][]int32 // of the decode step under way
	done    []int32   // sequences that end with it
	mapping []int32
	batch   int32
}

// listOp is the step whose list is out.
type listOp uint8

const (
	opPrepare listOp = iota
	opCapture
	opDecode
	opComplete
	opBeginCompaction
	opCompact
	opFinish
)

// admit begins a batch of prompts, which fork off prompts that were asked before.
func (w *contextWorld) admit() {
	r := w.r
	a := coordinator.Admission{}
	w.begun++
	p := &player{number: w.begun, bypass: r.oneIn(10), prefillOnly: r.oneIn(3), eagle: w.kind == coordinator.KindEAGLE && !r.oneIn(5)}
	if p.eagle {
		a.Mode = coordinator.ModeEAGLE
	}
	if p.bypass {
		a.Lookup = coordinator.Bypass
	}
	if p.prefillOnly {
		a.Commit = coordinator.PrefillOnly
	}
	for range r.in(1, 3) {
		h := w.prompt()
		p.seqs = append(p.seqs, h)
		a.Sequences = append(a.Sequences, coordinator.SequenceAdmission{Tokens: h.tokens, Media: h.media, Extras: w.realms[h.realm]})
	}
	busy := [simMaxBatch]bool{}
	for _, q := range w.live {
		for _, s := range q.slots {
			busy[s] = true
		}
	}
	first := r.n(simMaxBatch)
	for i := range int32(simMaxBatch) {
		if s := (i + int32(first)) % simMaxBatch; !busy[s] && len(p.slots) < len(p.seqs) {
			p.slots = append(p.slots, s)
		}
	}
	if len(w.live) == 0 && w.want.QuarantinedRequests == 0 && !r.oneIn(3) {
		p.slots = nil
	} else {
		a.Slots = p.slots
	}
	before, free := w.c.Metrics(), w.free()
	w.done.calls++
	var err error
	p.h, err = w.c.Begin(&a, simStream)
	w.say("begin #%d: %d sequences, eagle %v, bypass %v, slots %v: %v", p.number, len(p.seqs), p.eagle, p.bypass, a.Slots, err)
	for _, h := range p.seqs {
		w.say("  realm %d, tokens %v, media %v", h.realm, h.tokens, h.media)
	}
	if err != nil {
		w.judgeBegin(&a, p, err)
		if after := w.c.Metrics(); after.AdmittedSequences != before.AdmittedSequences || after.CurrentRecords != before.CurrentRecords || w.free() != free {
			failf("a refused begin left something behind")
		}
		return
	}
	if w.poisoned {
		failf("begin succeeded on a poisoned coordinator (C-106)")
	}
	n := len(p.seqs)
	p.published, p.exact, p.staged = make([]int32, n), make([]int32, n), make([]bool, n)
	p.slots = p.slots[:0]
	for i, h := range p.seqs {
		start, hit := w.m.start(h, p.eagle, p.bypass)
		got := w.sequence(p, i)
		if got.PrefillStart > start || w.strict && (got.PrefillStart != start || (got.Matched > 0) != hit) {
			failf("sequence %d of %d tokens starts at %d (matched %d), the model says %d (hit %v)", i, h.len(), got.PrefillStart, got.Matched, start, hit)
		}
		h.committed, h.common = got.PrefillStart, got.PrefillStart
		p.slots = append(p.slots, got.Slot)
		w.readReused(p, h, got)
		w.want.AdmittedSequences++
		w.want.HitSequences += one(got.Matched > 0)
		w.want.ReusedTokens += int64(got.PrefillStart)
		w.want.MediaAwareSequences += one(len(h.media) > 0)
		w.want.LookupBypassSequences += one(p.bypass)
	}
	w.live = append(w.live, p)
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func (w *contextWorld) judgeBegin(a *coordinator.Admission, p *player, err error) {
	compacting := false
	for _, q := range w.live {
		compacting = compacting || q.stage == coordinator.StageCompaction
	}
	switch status.CodeOf(err) {
	case status.Poisoned:
		if !w.poisoned {
			failf("begin: %v, but no synchronisation failed", err)
		}
	case status.WrongState:
		if !compacting {
			failf("begin: %v, but no compaction is begun", err)
		}
	case status.InvalidArgument: // too few free slots to name
		if len(a.Slots) == len(p.seqs) {
			failf("begin: %v", err)
		}
	case status.RequestFailed:
		if w.strict && len(w.live)+int(w.want.QuarantinedRequests) < int(w.pace.requests) {
			failf("begin: %v", err)
		}
	default:
		failf("begin: %v", err)
	}
}

// readReused reads what a hit shares, at once: nothing is findable before the device
// has written it, and nobody writes to it afterwards.
func (w *contextWorld) readReused(p *player, h *history, s coordinator.SequenceInfo) {
	d := w.dev
	if !d.attention() || s.PrefillStart == 0 {
		return
	}
	look := func(pool prefix.Resource, cache coordinator.Cache, want func(int32) uint64) {
		n := (s.PrefillStart) / d.p
		if err := w.c.Manager().Pages(s.Lease, pool, 0, w.pages[:n]); err != nil {
			failf("pages of a lease: %v", err)
		}
		for pos := range n * d.p {
			if got := d.kv[cache][w.pages[pos/d.p]*d.p+pos%d.p]; got != want(pos) {
				failf("begin: %v page %d, which the hit shares as block %d, does not hold its prefix", pool, w.pages[pos/d.p], pos/d.p)
			}
		}
	}
	look(prefix.BasePages, coordinator.Base, h.base)
	if p.eagle {
		look(prefix.DraftPages, coordinator.Draft, h.draft)
	}
}

func (w *contextWorld) prompt() *history {
	return drawPrompt(w.r, w.asked, len(w.realms), w.pace.prompt, simCapacity-4, true)
}

// remember keeps a history, as far as it came, for prompts to come.
func (w *contextWorld) remember(h *history) {
	if len(w.asked) < 24 {
		w.asked = append(w.asked, h)
	} else {
		w.asked[w.r.n(24)] = h
	}
}

// remove forgets a request whose pages were given back.
func (w *contextWorld) remove(p *player) {
	for _, h := range p.seqs {
		h.gone = true
		w.remember(h)
	}
	w.forgetPlayer(p)
}

func (w *contextWorld) forgetPlayer(p *player) {
	w.live = slices.DeleteFunc(w.live, func(q *player) bool { return q == p })
	if w.ended == 0 || w.r.oneIn(8) {
		w.ended = p.h
	}
	if w.out == p {
		w.out = nil
	}
}

// hand takes a list over from a call, and plants a fault into it, now and then.
func (w *contextWorld) hand(p *player, op listOp, n int, err error, what string) {
	w.done.calls++
	w.say("%s of #%d: %d commands, %v", what, p.number, n, err)
	if err != nil {
		failf("%s: %v", what, err)
	}
	w.out, w.op, w.n, w.at, w.failAt, w.syncFails = p, op, n, 0, -1, false
	if n == 0 {
		w.out = nil
		w.commit(p)
		return
	}
	if w.pace.fault > 0 && w.r.oneIn(w.pace.fault) {
		w.failAt = w.r.n(n + 1)
	}
	w.syncFails = w.pace.sync > 0 && w.r.oneIn(w.pace.sync)
}

// carryOn executes some commands of the list that is out, and reports.
func (w *contextWorld) carryOn() {
	p := w.out
	for range w.r.in(1, 4) {
		if w.at == w.failAt {
			w.report(p, coordinator.EnqueueFailed)
			return
		}
		if w.at == w.n {
			w.report(p, coordinator.Done)
			return
		}
		cmd := w.dst[w.at]
		if cmd.Kind == coordinator.CmdSynchronize && w.syncFails {
			w.report(p, coordinator.SyncFailed)
			return
		}
		w.say("  %v", cmd)
		if cmd.Kind == coordinator.CmdRestoreRecurrent {
			w.readSnapshot(p, cmd)
		}
		w.dev.execute(w.c, cmd, p.seqs[0])
		w.at++
	}
}

// readSnapshot reads the checkpoint that a hit restores, at once: it was published,
// so the device has written it.
func (w *contextWorld) readSnapshot(p *player, cmd coordinator.Command) {
	h := p.seqs[slices.Index(p.slots, cmd.Slot)]
	if w.dev.snapshots[cmd.Snapshot] != h.base(h.committed-1) {
		failf("snapshot %d, which a hit on %d tokens restores, is not that of its prefix", cmd.Snapshot, h.committed)
	}
}

func (w *contextWorld) report(p *player, outcome coordinator.Outcome) {
	w.done.calls++
	err := w.c.Report(p.h, outcome, w.at)
	w.say("report #%d: outcome %d after %d of %d: %v", p.number, outcome, w.at, w.n, err)
	w.out = nil
	switch outcome {
	case coordinator.SyncFailed:
		w.wantCode(err, status.Poisoned, "report of a failed synchronisation")
		w.quarantined(p)
		return
	case coordinator.EnqueueFailed:
		if err != nil {
			failf("report of a list that broke off: %v", err)
		}
		w.brokeOff(p)
		return
	}
	if err != nil {
		failf("report: %v", err)
	}
	w.commit(p)
}

// quarantined: the state of the device is unknown, so everything that the request
// owns stays owned.
func (w *contextWorld) quarantined(p *player) {
	w.poisoned = true
	w.want.QuarantinedRequests++
	w.forgetPlayer(p)
	if _, err := w.c.Request(p.h); err == nil {
		failf("the handle of a quarantined request is alive")
	}
}

// brokeOff: a command failed, and the stream is usable.
func (w *contextWorld) brokeOff(p *player) {
	switch w.op {
	case opFinish: // as before
	case opBeginCompaction: // nothing is begun; settled, if the synchronisation came through (D-15)
		got, err := w.c.Request(p.h)
		if err != nil {
			failf("request: %v", err)
		}
		if p.awaiting && !got.AwaitingDraft {
			p.stage = coordinator.StageSettled
			w.publishFrozen(p)
		}
	default:
		p.stage = coordinator.StageFinishing
	}
}

// commit is what a step means when its list was carried out.
func (w *contextWorld) commit(p *player) {
	switch w.op {
	case opPrepare:
		p.stage = coordinator.StagePrefill
		for i, h := range p.seqs {
			w.dev.enqueue(modelWork{kind: doPrefill, h: h, slot: p.slots[i], from: h.committed, to: h.len()})
		}
	case opCapture:
		p.stage = coordinator.StageCaptured
	case opDecode:
		w.launch(p)
		p.stage = coordinator.StageDecode
	case opComplete:
		p.stage = coordinator.StageSettled
		w.checkpoints(p)
	case opBeginCompaction:
		p.stage = coordinator.StageCompaction
		w.publishFrozen(p)
	case opCompact:
		w.compacted(p)
	case opFinish:
		w.publishFrozen(p)
		w.remove(p)
	}
}

// advance takes a request one legal step further.
func (w *contextWorld) advance(p *player) {
	switch p.stage {
	case coordinator.StageAdmitted:
		n, err := w.c.PreparePrefill(p.h, w.dst)
		w.hand(p, opPrepare, n, err, "prepare_prefill")
	case coordinator.StagePrefill:
		if w.r.oneIn(4) {
			w.finalize(p)
			return
		}
		n, err := w.c.EnqueuePrefillCaptures(p.h, w.dst)
		w.expectStaged(p, nil, false)
		w.hand(p, opCapture, n, err, "enqueue_prefill_captures")
	case coordinator.StageCaptured:
		w.finalize(p)
	case coordinator.StageSettled, coordinator.StageAwaitingDraft:
		if w.c.Active() == 1 && w.r.oneIn(6) && w.dense(p) {
			w.beginCompaction(p)
		} else {
			w.prepareDecode(p)
		}
	case coordinator.StageDecode:
		w.complete(p)
	case coordinator.StageCompaction:
		n, err := w.c.CompactBatch(p.h, w.dst)
		w.hand(p, opCompact, n, err, "compact_batch")
	case coordinator.StageFinishing:
		w.end(p)
	}
}

// expectStaged reads which sequences have a capture under way, and says whether they
// should: all, or those that are done.
func (w *contextWorld) expectStaged(p *player, done []int32, decodeEnd bool) {
	for i, h := range p.seqs {
		length := h.len()
		if decodeEnd {
			length = h.committed
		}
		want := w.m.recurrent() && !p.bypass && !h.stale && length > p.exact[i] && (!decodeEnd || !p.prefillOnly && slices.Contains(done, int32(i)))
		got := w.sequence(p, i).Staged
		if got && !want || want && !got && w.strict {
			failf("sequence %d has a capture staged: %v, want %v", i, got, want)
		}
		p.staged[i] = got
	}
}

// finalize is the end of prefill: the runtime synchronised and sampled a token.
func (w *contextWorld) finalize(p *player) {
	w.dev.sync()
	adv, common := make([]coordinator.Advance, len(p.seqs)), []int32(nil)
	for i, h := range p.seqs {
		h.prompt = h.len()
		adv[i] = coordinator.Advance{Tokens: []int32{int32(w.r.n(2))}, Committed: h.len()}
		if p.eagle {
			common = append(common, h.len())
		}
		h.committed = h.len()
		h.add(adv[i].Tokens...)
		if p.eagle {
			w.ingest(p, i)
		}
	}
	w.done.calls++
	err := w.c.FinalizePrefill(p.h, adv, common)
	w.say("finalize_prefill of #%d: %v", p.number, err)
	if err != nil {
		failf("finalize_prefill: %v", err)
	}
	switch {
	case p.eagle:
		p.stage, p.awaiting = coordinator.StageAwaitingDraft, true
		return
	case w.m.recurrent():
		w.checkpoints(p)
	default:
		for i, h := range p.seqs {
			w.endpoint(p, i, h.committed, false)
		}
	}
	p.stage = coordinator.StageSettled
}

// ingest enqueues the draft's work up to the committed length.
func (w *contextWorld) ingest(p *player, i int) {
	h := p.seqs[i]
	w.dev.enqueue(modelWork{kind: doIngest, h: h, slot: p.slots[i], from: h.common, to: h.committed})
	h.common = h.committed
}

// endpoint publishes a block endpoint in the model.
func (w *contextWorld) endpoint(p *player, i int, length int32, decodeEnd bool) {
	blocks := length / w.m.p
	if p.bypass || p.seqs[i].stale || decodeEnd && p.prefillOnly || blocks <= p.published[i] {
		return
	}
	p.published[i] = blocks
	w.want.PublicationAttempts++
	w.want.SpecPairPublications += one(p.eagle)
	w.m.publish(p.seqs[i], length, p.eagle)
}

func (w *contextWorld) publishFrozen(p *player) {
	if !p.awaiting {
		return
	}
	p.awaiting = false
	for i, h := range p.seqs {
		w.endpoint(p, i, min(h.common, h.prompt), false)
	}
}

func (w *contextWorld) checkpoints(p *player) {
	for i, h := range p.seqs {
		if p.staged[i] {
			p.staged[i] = false
			if h.stale { // since the capture
				continue
			}
			p.exact[i] = h.committed
			w.want.PublicationAttempts++
			w.m.checkpoint(h, h.committed)
		}
	}
}

func (w *contextWorld) prepareDecode(p *player) {
	fits := true // a row that would not fit is the one failure of a roomy cache
	if w.dev.attention() {
		for _, h := range p.seqs {
			reach := h.committed + 1
			if p.eagle {
				reach = h.committed + max(w.dev.verify, w.dev.reach)
			}
			fits = fits && reach <= simCapacity
		}
	}
	n, err := w.c.PrepareDecodeStep(p.h, coordinator.Headroom{}, w.dst)
	if status.CodeOf(err) == status.RequestFailed {
		w.say("prepare_decode_step of #%d: %v", p.number, err)
		if fits && w.strict {
			failf("prepare_decode_step: %v", err)
		}
		p.stage = coordinator.StageFinishing
		return
	}
	if err == nil && !fits {
		failf("prepare_decode_step accepted a row beyond its table")
	}
	w.hand(p, opDecode, n, err, "prepare_decode_step")
}

// launch enqueues a decode step of the model. The histories advance here.
func (w *contextWorld) launch(p *player) {
	p.tokens, p.done = p.tokens[:0], p.done[:0]
	for i, h := range p.seqs {
		tokens := []int32{int32(w.r.n(2))}
		k := modelWork{kind: doDecode, h: h, slot: p.slots[i], from: h.committed}
		if p.eagle {
			w.ingest(p, i)
			for range w.r.n(int(w.dev.verify)) {
				tokens = append(tokens, int32(w.r.n(2)))
			}
			k.list = tokens
		}
		h.add(tokens...)
		h.committed += int32(len(tokens))
		k.to = h.committed
		w.dev.enqueue(k)
		p.tokens = append(p.tokens, tokens)
		if w.r.oneIn(4) {
			p.done = append(p.done, int32(i))
		}
	}
}

func (w *contextWorld) complete(p *player) {
	w.dev.sync() // the decoder's own
	adv, common := make([]coordinator.Advance, len(p.seqs)), []int32(nil)
	for i, h := range p.seqs {
		adv[i] = coordinator.Advance{Tokens: p.tokens[i], Committed: h.committed}
		if p.eagle {
			common = append(common, h.common)
		}
	}
	n, err := w.c.CompleteDecodeStep(p.h, adv, p.done, common, w.dst)
	if w.m.recurrent() {
		w.expectStaged(p, p.done, true)
	}
	if n == 0 && err == nil { // it committed
		p.stage = coordinator.StageSettled
		if p.eagle {
			w.publishFrozen(p)
		}
		for _, i := range p.done {
			if h := p.seqs[i]; p.eagle {
				w.endpoint(p, int(i), h.common, true)
			} else if !w.m.recurrent() {
				w.endpoint(p, int(i), h.committed, true)
			}
		}
	}
	w.hand(p, opComplete, n, err, "complete_decode_step")
}

func (w *contextWorld) dense(p *player) bool {
	for i, s := range p.slots {
		if s != int32(i) {
			return false
		}
	}
	return true
}

func (w *contextWorld) beginCompaction(p *player) {
	p.mapping, p.batch = p.mapping[:0], 0
	for range p.seqs {
		to := int32(-1)
		if !w.r.oneIn(3) {
			to = p.batch
			p.batch++
		}
		p.mapping = append(p.mapping, to)
	}
	n, err := w.c.BeginCompaction(p.h, p.mapping, p.batch, w.dst)
	w.hand(p, opBeginCompaction, n, err, "begin_compaction")
}

// compacted moves what survives, and forgets what retired.
func (w *contextWorld) compacted(p *player) {
	p.stage = coordinator.StageSettled
	if p.batch == 0 {
		p.stage = coordinator.StageFinishing
	}
	seqs, kept := []*history(nil), 0
	for old, to := range p.mapping {
		if to < 0 {
			p.seqs[old].gone = true
			w.remember(p.seqs[old])
			continue
		}
		seqs = append(seqs, p.seqs[old])
		p.published[kept], p.exact[kept], p.staged[kept] = p.published[old], p.exact[old], false
		kept++
	}
	p.seqs, p.slots = seqs, p.slots[:kept]
	p.published, p.exact, p.staged = p.published[:kept], p.exact[:kept], p.staged[:kept]
	for i := range p.slots {
		p.slots[i] = int32(i)
	}
}

// end finishes a request, in any stage.
func (w *contextWorld) end(p *player) {
	n, err := w.c.Finish(p.h, w.dst)
	w.hand(p, opFinish, n, err, "finish")
}

// drop lets go of a handle, in any stage, also with its list out. Without a drain
// nothing of the request may be used again.
func (w *contextWorld) drop(p *player) {
	info, gone := w.c.Request(p.h)
	needs := gone == nil && info.Pending
	drains := !needs || w.pace.sync == 0 || !w.r.oneIn(20)
	if drains && needs {
		w.dev.sync()
	}
	w.done.calls++
	err := w.c.Abandon(p.h, drains)
	w.say("abandon #%d in %v, drained %v: %v", p.number, p.stage, drains, err)
	if drains {
		if err != nil {
			failf("abandon: %v", err)
		}
		w.remove(p)
		return
	}
	w.wantCode(err, status.Poisoned, "abandon without a drain")
	w.quarantined(p)
}

// whileOut makes a call while a list is out: it is refused, unless it drops the very
// request whose list it is.
func (w *contextWorld) whileOut() {
	p, q := w.out, w.live[w.r.n(len(w.live))]
	w.done.calls++
	var err error
	switch w.r.n(6) {
	case 0:
		w.drop(p)
		return
	case 1:
		_, err = w.c.Finish(q.h, w.dst)
	case 2:
		_, err = w.c.PrepareDecodeStep(q.h, coordinator.Headroom{}, w.dst)
	case 3:
		_, err = w.c.Begin(&coordinator.Admission{Sequences: []coordinator.SequenceAdmission{{Tokens: []int32{1}}}}, simStream)
	case 4:
		err = w.c.Shutdown(true)
	case 5:
		if q == p {
			return
		}
		err = w.c.Abandon(q.h, true)
	}
	w.wantCode(err, status.Busy, "a call while a list is out")
}

// outOfOrder makes a call that the stage does not allow.
func (w *contextWorld) outOfOrder(p *player) {
	w.done.calls++
	var err error
	switch p.stage {
	case coordinator.StageAdmitted:
		_, err = w.c.PrepareDecodeStep(p.h, coordinator.Headroom{}, w.dst)
	case coordinator.StageDecode:
		_, err = w.c.EnqueuePrefillCaptures(p.h, w.dst)
	case coordinator.StageCompaction:
		_, err = w.c.CompleteDecodeStep(p.h, nil, nil, nil, w.dst)
	case coordinator.StageSettled:
		if w.c.Active() > 1 || !w.dense(p) { // compaction is for a request alone, in the first slots
			p.mapping, p.batch = p.mapping[:0], int32(len(p.seqs))
			for i := range p.seqs {
				p.mapping = append(p.mapping, int32(i))
			}
			_, err = w.c.BeginCompaction(p.h, p.mapping, p.batch, w.dst)
			break
		}
		fallthrough
	default:
		_, err = w.c.CompactBatch(p.h, w.dst)
	}
	w.wantCode(err, status.WrongState, "a call out of order")
}

// mischief makes a call that is wrong in itself, and must change nothing.
func (w *contextWorld) mischief() {
	w.done.calls++
	switch w.r.n(4) {
	case 0:
		_, err := w.c.PreparePrefill(coordinator.Handle(w.r.next()), w.dst)
		w.wantCode(err, status.BadHandle, "an invented handle")
		if w.ended != 0 {
			w.wantCode(w.c.Abandon(w.ended, true), status.BadHandle, "the handle of a request that is gone")
		}
	case 1:
		p := w.live[w.r.n(len(w.live))]
		w.wantCode(w.c.Report(p.h, coordinator.Done, 0), status.WrongState, "a report without a list")
	case 2:
		w.wantCode(w.c.Close(), status.Busy, "close with live requests")
	case 3:
		err := w.c.Shutdown(false)
		if w.want.QuarantinedRequests > 0 {
			w.wantCode(err, status.Poisoned, "shutdown without a drain")
		} else {
			w.wantCode(err, status.RequestFailed, "shutdown with live requests")
		}
	}
}

// forget flushes, or invalidates an adapter: what was computed before is not found
// again, and what is being computed now is not cached.
func (w *contextWorld) forget() {
	gone := func(int) bool { return true }
	before, n := w.m.records(), 0
	w.done.calls++
	if w.strict || w.r.oneIn(3) {
		n = w.c.Flush()
		w.say("flush: %d records", n)
	} else {
		id, generation := uint64(7), (*uint64)(nil)
		first, last := 1, 2
		if w.r.oneIn(2) {
			g := uint64(w.r.in(1, 2))
			generation, first, last = &g, int(g), int(g)
		}
		gone = func(realm int) bool { return realm >= first && realm <= last }
		n = w.c.Invalidate(prefix.Hash128{Lo: id}, generation)
		w.say("invalidate realms %d to %d: %d records", first, last, n)
	}
	for i := range w.realms {
		if gone(i) {
			w.m.forget(i)
		}
	}
	for _, p := range w.live {
		for _, h := range p.seqs {
			h.stale = h.stale || gone(h.realm)
		}
	}
	if w.strict && int64(n) != before-w.m.records() {
		failf("%d records were forgotten, the model says %d", n, before-w.m.records())
	}
}
