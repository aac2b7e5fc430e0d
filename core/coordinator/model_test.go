package coordinator

// model is what the cache should answer, as a few maps of prefix digests. It
// never evicts: with room enough it is exact, with little room an upper bound.
type model struct {
	kind Kind
	p    int32

	base    map[uint64]bool // block boundaries that have a base page
	draft   map[uint64]bool // block boundaries of a draft path
	records map[uint64]bool // published block endpoints; true: with a draft path
	exact   map[uint64]bool // recurrent checkpoints

	want Metrics // the counters it can predict
}

func newModel(kind Kind, p int32) *model {
	m := &model{kind: kind, p: p}
	m.flush()
	return m
}

func (m *model) flush() {
	m.base, m.draft, m.records, m.exact = map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}
}

func (m *model) resident() int64 { return int64(len(m.records) + len(m.exact)) }

// splits says whether a reuse boundary would cut a run of media positions.
func (h *history) splits(at int32) bool {
	return at > 0 && int(at) < len(h.media) && !h.media[at-1].IsZero() && !h.media[at].IsZero()
}

// start is where a prompt begins, and whether anything matched.
func (m *model) start(h *history, mode ExecutionMode, lookup LookupPolicy) (start int32, hit bool) {
	n := h.len()
	if lookup == Bypass {
		return 0, false
	}
	if m.kind.recurrent() {
		for l := n - 1; l > 0; l-- {
			if m.exact[h.prefix[l]] && !h.splits(l) {
				return l, true
			}
		}
		return 0, false
	}
	base := int32(0)
	for (base+1)*m.p <= n && m.base[h.prefix[(base+1)*m.p]] {
		base++
	}
	blocks := base
	if mode == ModeEAGLE {
		for blocks > 0 && !m.draft[h.prefix[blocks*m.p]] {
			blocks--
		}
	}
	hit = blocks > 0
	start = blocks * m.p
	if mode == ModeEAGLE {
		start = max(0, start-m.p)
	} else if start == n {
		start -= m.p
	}
	trimmed := false
	for start > 0 && h.splits(start) {
		start -= m.p
		trimmed = true
	}
	return start, hit && (!trimmed || start > 0)
}

// publish is one block endpoint of length tokens.
func (m *model) publish(h *history, length int32, draft bool) {
	m.want.PublicationAttempts++
	if draft {
		m.want.SpecPairPublications++
	}
	end := h.prefix[length/m.p*m.p]
	has, known := m.records[end]
	if known && (has || !draft) {
		m.want.ExistingPublications++
		return
	}
	m.want.CommittedPublications++
	m.records[end] = has || draft
	for k := m.p; k <= length; k += m.p {
		m.base[h.prefix[k]] = true
		if draft {
			m.draft[h.prefix[k]] = true
		}
	}
}

func (m *model) checkpoint(h *history, length int32) {
	m.want.PublicationAttempts++
	switch end := h.prefix[length]; {
	case m.exact[end]:
		m.want.ExistingPublications++
	default:
		m.want.CommittedPublications++
		m.exact[end] = true
	}
}
