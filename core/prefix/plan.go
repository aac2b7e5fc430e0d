package prefix

import "libprefixcache/core/status"

// found is a plan together with where in the index it was made.
type found struct {
	plan   Plan
	realm  int32 // -1: no such extras yet
	match  place // all that matched, in blocks
	bound  place // what the lease will share; bound.at <= match.at
	record int32 // spared by eviction and made most recent, -1 = none
	draft  int32 // record whose draft path is bound, -1 = none
	src    source
	n      int // tokens
}

// checkRequest looks for broken contracts before anything is done.
func (m *Manager) checkRequest(req *AcquireRequest) error {
	p := m.cfg.PageTokens
	switch {
	case req.Mode > Spec:
		return status.New(status.InvalidArgument, "Mode is %d, expected 0 (vanilla), 1 (hybrid) or 2 (spec)", req.Mode)
	case req.Policy > Bypass:
		return status.New(status.InvalidArgument, "Policy is %d, expected 0 (use cache) or 1 (bypass)", req.Policy)
	case req.NoAttention && req.Mode != Hybrid:
		return status.New(status.InvalidArgument, "NoAttention is set with Mode %d, expected Mode 1 (hybrid)", req.Mode)
	}
	if m.cfg.Identity == Tokens {
		switch {
		case req.Keys != nil || req.TokenCount != 0 || req.Checkpoints != nil:
			return status.New(status.InvalidArgument, "Keys, TokenCount or Checkpoints given to a cache of tokens")
		case req.Media != nil && len(req.Media) != len(req.Tokens): // D-1
			return status.New(status.InvalidArgument, "Media has %d entries, expected one for each of %d tokens", len(req.Media), len(req.Tokens))
		case int64(len(req.Tokens)) > maxTokens:
			return status.New(status.InvalidArgument, "Tokens has %d entries, expected at most %d", len(req.Tokens), maxTokens)
		}
		return nil
	}
	switch {
	case req.Tokens != nil || req.Media != nil:
		return status.New(status.InvalidArgument, "Tokens or Media given to a cache of keys")
	case req.TokenCount < 0 || int64(req.TokenCount) > maxTokens:
		return status.New(status.InvalidArgument, "TokenCount is %d, expected 0..%d", req.TokenCount, maxTokens)
	case len(req.Keys) > req.TokenCount/p:
		return status.New(status.InvalidArgument, "sequence.num_keys is %d, expected at most %d, the full blocks of %d tokens",
			len(req.Keys), req.TokenCount/p, req.TokenCount)
	}
	return nil
}

const maxTokens = 1<<31 - 1

// plan answers an acquire without changing anything. The cells of
// the matched blocks are appended to cells.
func (m *Manager) plan(req *AcquireRequest, cells *[]int32) found {
	p := m.cfg.PageTokens
	f := found{realm: m.findRealm(req.Extras, !req.NoAttention), record: -1, draft: -1, n: req.TokenCount}
	f.src = source{words: req.Tokens, media: req.Media}
	if m.cfg.Identity == Tokens {
		f.n = len(req.Tokens)
	} else {
		f.src.words = keyWords(req.Keys)
	}
	f.plan = Plan{Mode: req.Mode, Recurrent: -1, Partial: -1}
	pl := &f.plan
	full := int32(len(f.src.words) / m.content.width)
	switch {
	case f.n == 0:
		pl.Reason = ReasonPromptTooShort
	case req.Policy == Bypass:
		pl.Kind, pl.Reason = NoReusablePrefix, ReasonBypass
	case f.realm < 0:
		pl.Kind, pl.Reason = NoReusablePrefix, ReasonExtrasUnknown
	default:
		f.match = m.descend(m.rootPlace(f.realm), &f.src, full, cells)
		pl.Reason = m.matchReason(&f, full)
		switch req.Mode {
		case Vanilla:
			m.planVanilla(&f, full)
		case Hybrid:
			m.planHybrid(&f, req)
		case Spec:
			m.planSpec(&f)
		}
	}
	if f.n == 0 || req.NoAttention {
		return f
	}
	pages := (f.n + p - 1) / p
	pl.Demand[BasePages] = pages - pl.BoundBase // C-45
	if req.Mode == Spec {
		pl.Demand[DraftPages] = pages - pl.BoundDraft
	}
	return f
}

// matchReason explains where the match ended.
func (m *Manager) matchReason(f *found, full int32) Reason {
	switch {
	case full == 0 && f.n < m.cfg.PageTokens:
		return ReasonPromptTooShort
	case f.match.at == full:
		return ReasonNone
	case f.match.at > 0:
		return ReasonDiverged
	case m.nodes[m.realms[f.realm].root].child < 0:
		return ReasonExtrasUnknown
	default:
		return ReasonFirstBlock
	}
}

// splitsMedia says whether a boundary at token position at would cut a run of
// media positions: they are computed together or not at all (C-89). Positions
// behind the array are text (C-14).
func (f *found) splitsMedia(at int) bool {
	return f.src.media != nil && at > 0 && at < len(f.src.media) && !f.src.media[at-1].IsZero() && !f.src.media[at].IsZero()
}

// bind settles how many blocks the lease shares, after cutting back to a media
// boundary. Doing that here, before anything is pinned, is the fix of D-3.
func (m *Manager) bind(f *found, keep int32) {
	p := m.cfg.PageTokens
	want := keep
	for keep > 0 && f.splitsMedia(int(keep)*p) {
		keep--
	}
	pl := &f.plan
	pl.Reuse, pl.BoundBase = int(keep)*p, int(keep)
	if keep != want {
		pl.Matched, pl.Reason = pl.Reuse, ReasonMediaBoundary
	}
	if keep == 0 && (pl.Kind == Standard || keep != want) {
		pl.Kind = NoReusablePrefix
	} else if keep != want {
		pl.Kind = Standard
	}
	f.bound = f.match
	f.bound.at = keep
	m.climb(&f.bound)
}

// planVanilla binds the longest run of cached blocks (C-46).
func (m *Manager) planVanilla(f *found, full int32) {
	p := m.cfg.PageTokens
	keep := f.match.at
	f.plan.Matched = int(keep) * p // before any rewind (C-46)
	if keep > 0 && int(keep)*p == f.n {
		keep-- // at least one token is executed (C-44)
		f.plan.Kind, f.plan.Reason = FullInputRewind, ReasonFullInput
	}
	m.bind(f, keep)
	if f.match.at > 0 && !m.cfg.OriginalRecency {
		if f.record = m.used(f.match); f.record >= 0 {
			f.plan.Record = RecordID(m.records[f.record].id)
		}
	}
}

// used finds the record of a vanilla hit: the deepest one that ends on the
// matched path, so that refreshing it refreshes nothing but what was hit. A record
// that only begins like the prompt is left alone: what they share is about to be
// covered by what this request publishes, and keeping the rest of it costs hits
// (measured on the conversation trace: 0.1350 against 0.1362).
func (m *Manager) used(p place) int32 {
	for {
		for i := m.nodes[p.node].deep; i >= 0; i = m.records[i].above {
			if r := &m.records[i]; r.at <= p.at && r.at > 0 {
				return i
			}
		}
		if m.nodes[p.node].isRoot() {
			return -1
		}
		p.node = m.nodes[p.node].parent
	}
}

// planSpec binds base and draft pages in step (C-48, C-49).
func (m *Manager) planSpec(f *found) {
	p := m.cfg.PageTokens
	pl := &f.plan
	base := f.match.at
	pair, record := m.longestDraft(f.match)
	k := pair.at
	if k == 0 {
		if base > 0 {
			pl.Reason = ReasonNoDraft
		}
		pl.Kind = NoReusablePrefix // C-49
		f.bound = m.rootPlace(f.realm)
		return
	}
	pl.Replay, pl.Matched = FullPageReplay, int(k)*p
	switch {
	case int(k)*p == f.n:
		pl.Kind, pl.Reason = FullInputRewind, ReasonFullInput
	case k < base:
		pl.Reason = ReasonDraftShorter
	case pl.Reason == ReasonNone:
		pl.Reason = ReasonReplay
	}
	m.bind(f, k-1) // the last matched draft block is not provably right (C-48)
	if pl.BoundBase == 0 {
		return
	}
	pl.BoundDraft = pl.BoundBase
	pl.Dependency = pl.BoundBase + 1
	pl.Record = RecordID(m.records[record].id)
	f.record, f.draft = record, record
}
