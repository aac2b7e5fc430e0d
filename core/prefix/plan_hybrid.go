package prefix

// planHybrid finds the longest checkpoint on the matched path that is
// strictly shorter than the prompt. Checkpoints are listed in the nodes where
// they end, so only those whose full blocks match are looked at.
func (m *Manager) planHybrid(f *found, req *AcquireRequest) {
	pl := &f.plan
	reach, cut, long := f.match.at, false, false
	at := f.match
	for {
		for i := m.nodes[at.node].deep; i >= 0; i = m.records[i].above {
			r := &m.records[i]
			if r.at > reach || r.exact == 0 || !m.tailMatches(r, f, req) {
				continue // ends deeper than the match, is no checkpoint, or differs behind its blocks
			}
			if int(r.exact) >= f.n {
				long = true // all of the prompt: nothing would be left to execute (C-44)
				continue
			}
			if f.splitsMedia(int(r.exact)) { // D-4
				cut = true
				continue
			}
			m.bindCheckpoint(f, i, req)
			switch pl.Reason {
			case ReasonNone:
				if r.at < reach {
					pl.Reason = ReasonCheckpointShort
				}
			case ReasonPromptTooShort: // for a block, not for this checkpoint
				pl.Reason = ReasonNone
			default:
				pl.Reason = ReasonDiverged
			}
			return
		}
		if m.nodes[at.node].isRoot() {
			break
		}
		at.node = m.nodes[at.node].parent
	}
	pl.Kind = NoReusablePrefix
	f.bound = m.rootPlace(f.realm)
	switch {
	case cut:
		pl.Reason = ReasonMediaBoundary
	case long:
		pl.Reason = ReasonCheckpointLong
	case reach > 0 || m.nodes[m.realms[f.realm].root].deep >= 0:
		pl.Reason = ReasonNoCheckpoint
	}
}

// tailMatches compares what a checkpoint has behind its full blocks with the request.
func (m *Manager) tailMatches(r *record, f *found, req *AcquireRequest) bool {
	p := m.cfg.PageTokens
	if m.cfg.Identity == Keys {
		for i := range req.Checkpoints {
			c := &req.Checkpoints[i]
			if c.Length != int(r.exact) {
				continue
			}
			cell := r.tail
			if cell < 0 { // aligned: the digest is the key of the last block (C-13)
				x := &m.nodes[r.node]
				cell = m.cells(x)[r.at-1-x.start]
			}
			if equalWords(keyWords([]Hash128{c.Digest}), m.content.cell(cell)) {
				return true // a caller may name several snapshots of one length
			}
		}
		return false
	}
	if r.tail < 0 {
		return true
	}
	lo := int(r.at) * p
	hi := min(int(r.exact), f.n)
	if hi < int(r.exact) {
		return false
	}
	var media []Hash128
	if f.src.media != nil {
		media = f.src.media[lo:hi]
	}
	return m.content.equal(r.tail, f.src.words[lo:hi], media)
}

func (m *Manager) bindCheckpoint(f *found, i int32, req *AcquireRequest) {
	r, pl := &m.records[i], &f.plan
	f.record = i
	pl.Record = RecordID(r.id)
	pl.Kind = Standard
	pl.Matched, pl.Reuse = int(r.exact), int(r.exact)
	pl.Recurrent, pl.Partial = r.recurrent, r.partial
	if !req.NoAttention {
		pl.BoundBase = int(r.at)
	}
	if pl.Partial >= 0 {
		pl.PartialTokens = int(r.exact) - int(r.at)*m.cfg.PageTokens
	}
	f.bound = f.match
	f.bound.at = r.at
	m.climb(&f.bound)
}
