package simulation

import (
	"libprefixcache/core/coordinator"
	"libprefixcache/core/prefix"
)

// history is what the host knows of one sequence. digest[i] names its first i tokens
// with everything that sets them apart: it is the identity of a prefix, and the state
// that belongs behind it.
type history struct {
	realm  int
	tokens []int32
	media  []prefix.Hash128
	digest []uint64

	prompt    int32
	committed int32
	common    int32 // draft state
	stale     bool  // flushed or invalidated since it began
	gone      bool  // its pages were given back
}

func newHistory(realm int, tokens []int32, media []prefix.Hash128) *history {
	h := &history{realm: realm, media: media, digest: make([]uint64, 1, len(tokens)+16), prompt: int32(len(tokens))}
	h.digest[0] = mix(1, uint64(realm))
	h.add(tokens...)
	return h
}

func (h *history) add(tokens ...int32) {
	for _, t := range tokens {
		i := len(h.tokens)
		if i < len(h.media) && !h.media[i].IsZero() {
			h.digest = append(h.digest, mix(h.digest[i], mix(2+h.media[i].Hi, h.media[i].Lo)))
		} else {
			h.digest = append(h.digest, mix(h.digest[i], uint64(uint32(t))<<8))
		}
		h.tokens = append(h.tokens, t)
	}
}

// mix folds v into a digest; 0 is left for "no state".
func mix(h, v uint64) uint64 { return scramble(h^scramble(v+0x51)) | 1 }

func (h *history) len() int32 { return int32(len(h.tokens)) }

// base and draft are the state of a position. The draft's depends on the following
// token, too.
func (h *history) base(pos int32) uint64  { return h.digest[pos+1] }
func (h *history) draft(pos int32) uint64 { return h.digest[pos+2] ^ 1<<40 }

// splits says whether a boundary would cut a run of media positions.
func (h *history) splits(at int32) bool {
	return at > 0 && int(at) < len(h.media) && !h.media[at-1].IsZero() && !h.media[at].IsZero()
}

// drawPrompt forks off one that was asked before, or is new; from few tokens, so that
// prefixes meet by chance as well. A new one has up to length tokens, none more than
// most; with media, some positions are media.
func drawPrompt(r *rng, asked []*history, realms, length, most int, withMedia bool) *history {
	n, realm := r.in(1, length), 0
	var tokens []int32
	var media []prefix.Hash128
	if len(asked) > 0 && !r.oneIn(4) {
		old := asked[r.n(len(asked))]
		cut := min(r.in(1, len(old.tokens)), most)
		if r.oneIn(3) {
			cut = min(len(old.tokens), most)
		}
		realm = old.realm
		tokens = append(tokens, old.tokens[:cut]...)
		if cut <= len(old.media) {
			media = append(media, old.media[:cut]...)
		}
		n = min(max(n, cut), cut+r.n(6))
		if r.oneIn(3) { // other media at the same places
			for i := range media {
				if d := &media[i]; !d.IsZero() {
					d.Lo ^= 3 // 5 and 6
				}
			}
		}
		if r.oneIn(12) { // the same tokens as somebody else's
			realm = r.n(realms)
		}
	} else if r.oneIn(2) {
		realm = r.n(realms)
	}
	for len(tokens) < n {
		tokens = append(tokens, []int32{0, 0, 0, 1, 1, -1}[r.n(6)])
	}
	if media == nil && withMedia && r.oneIn(5) {
		media = make([]prefix.Hash128, 0, n)
	}
	if media != nil {
		for len(media) < n {
			media = append(media, prefix.Hash128{})
		}
		from, d := r.n(n), []prefix.Hash128{{Lo: 5}, {Lo: 6}, {Hi: 1, Lo: 5}}[r.n(3)]
		for i := from; i < min(n, from+r.n(6)); i++ {
			media[i] = d
		}
	}
	return newHistory(realm, tokens, media)
}

// contextModel is what the cache may answer: a few sets of prefixes. It never evicts:
// with room enough it is exact, with little room an upper bound. realms are dropped
// as a whole when they are invalidated.
type contextModel struct {
	kind   coordinator.Kind
	p      int32
	realms []prefixes
}

type prefixes struct {
	base    map[uint64]bool // block boundaries that have a base page
	draft   map[uint64]bool // block boundaries of a draft path
	records map[uint64]bool // published block endpoints; true: with a draft path
	exact   map[uint64]bool // recurrent checkpoints
}

func newContextModel(kind coordinator.Kind, p int32, realms int) *contextModel {
	m := &contextModel{kind: kind, p: p, realms: make([]prefixes, realms)}
	for i := range m.realms {
		m.forget(i)
	}
	return m
}

func (m *contextModel) forget(realm int) {
	m.realms[realm] = prefixes{map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}}
}

func (m *contextModel) records() (n int64) {
	for i := range m.realms {
		n += int64(len(m.realms[i].records) + len(m.realms[i].exact))
	}
	return n
}

// start is where a prompt begins, and whether anything matched.
func (m *contextModel) start(h *history, eagle, bypass bool) (start int32, hit bool) {
	n, of := h.len(), &m.realms[h.realm]
	if bypass {
		return 0, false
	}
	if m.recurrent() {
		for l := n - 1; l > 0; l-- {
			if of.exact[h.digest[l]] && !h.splits(l) {
				return l, true
			}
		}
		return 0, false
	}
	blocks := int32(0)
	for (blocks+1)*m.p <= n && of.base[h.digest[(blocks+1)*m.p]] {
		blocks++
	}
	for eagle && blocks > 0 && !of.draft[h.digest[blocks*m.p]] {
		blocks--
	}
	hit = blocks > 0
	start = blocks * m.p
	if eagle {
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

func (m *contextModel) recurrent() bool {
	return m.kind == coordinator.KindHybrid || m.kind == coordinator.KindPureRecurrent
}

// publish is one block endpoint of length tokens.
func (m *contextModel) publish(h *history, length int32, draft bool) {
	if h.stale {
		return
	}
	of := &m.realms[h.realm]
	end := h.digest[length/m.p*m.p]
	of.records[end] = of.records[end] || draft
	for k := m.p; k <= length; k += m.p {
		of.base[h.digest[k]] = true
		if draft {
			of.draft[h.digest[k]] = true
		}
	}
}

func (m *contextModel) checkpoint(h *history, length int32) {
	if !h.stale {
		m.realms[h.realm].exact[h.digest[length]] = true
	}
}

// simRealms are the sets of extras that the prompts of a run come with. Any two differ
// in one field.
func simRealms() []*prefix.Extras {
	span := func(change func(*prefix.MediaSpan)) *prefix.Extras {
		s := prefix.MediaSpan{Content: prefix.Hash128{Lo: 1}, Placement: prefix.Hash128{Lo: 2}, Offset: 3, Order: 4, Modality: 5}
		change(&s)
		return &prefix.Extras{Spans: []prefix.MediaSpan{s}}
	}
	some := func(hi, lo uint64) prefix.OptionalHash {
		return prefix.OptionalHash{Present: true, Hash: prefix.Hash128{Hi: hi, Lo: lo}}
	}
	adapter := func(id, generation uint64) *prefix.Extras {
		return &prefix.Extras{Adapter: prefix.Adapter{Present: true, ID: prefix.Hash128{Lo: id}, Generation: generation}}
	}
	return []*prefix.Extras{
		nil,
		adapter(7, 1), adapter(7, 2), adapter(8, 1),
		{Isolation: some(0, 0)}, {Isolation: some(0, 9)}, {Isolation: some(1, 9)},
		{Position: some(0, 9)}, {Embedding: some(0, 9)},
		span(func(*prefix.MediaSpan) {}), span(func(s *prefix.MediaSpan) { s.Content.Hi = 1 }), span(func(s *prefix.MediaSpan) { s.Placement.Lo++ }),
		span(func(s *prefix.MediaSpan) { s.Offset++ }), span(func(s *prefix.MediaSpan) { s.Order++ }), span(func(s *prefix.MediaSpan) { s.Modality++ }),
	}
}
