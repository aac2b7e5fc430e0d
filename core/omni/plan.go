package omni

import "libprefixcache/core/rows"

// piece is n consecutive rows of a planned read that do not come from the mirror.
// Those that do are rows.Spans.
type piece struct {
	row, n int64
	src    int32 // row of the key's store, to which the plan holds a reference; or zeros
}

// zeros is the source of rows that were absent when planned: they read as zeros,
// whatever happens to their slots later (S-18).
const zeros = noRow

// plan is one (request, key) prefix: what Materialize copies, decided when the
// step was published. Spans, pieces and readers are ranges of the step context.
type plan struct {
	batch               int32
	key                 int32 // in stepCtx.keys
	rows                int64
	absent              int64
	spans, spansEnd     int32
	pieces, piecesEnd   int32
	readers, readersEnd int32
	given               bool // a read has had it
}

// planHits decides where every hit row of this step will come from. It runs inside
// publish, after the step's own claims: rows that another request computes in this
// very step are found under their new owner (S-1, S-2), and no later step can have
// touched anything (S-20). Planned are hidden, when the policy wants it, and the
// keys that this step emits, no others (S-10).
func (c *Cache) planHits(x *stepCtx) {
	for i := range x.hits {
		h := &x.hits[i]
		h.hiddenAbsent = 0
		if !c.wantsHidden {
			continue
		}
		emitted := c.hidden != NoKey && c.keys[c.hidden].carried >= 0
		if !emitted { // nothing will be read, but a missing row is still an error
			h.hiddenAbsent = c.countAbsent(h)
		}
	}
	for ki := range x.keys {
		xk := &x.keys[ki]
		xk.plans = int32(len(x.plans))
		for i := range x.hits {
			h := &x.hits[i]
			n := c.planOne(x, int32(ki), h)
			if xk.id == c.hidden {
				h.hiddenAbsent = n
			} else {
				c.stats.AbsentRows += uint64(n)
			}
		}
		xk.plansEnd = int32(len(x.plans))
	}
}

// countAbsent is the number of hidden rows of a hit that do not exist.
func (c *Cache) countAbsent(h *ctxHit) int64 {
	if c.hidden == NoKey || !c.keys[c.hidden].visible {
		return h.tokens
	}
	words, absent := c.keys[c.hidden].words, int64(0)
	for _, b := range c.hits.blocks[h.first:h.firstEnd] {
		for _, w := range words[b*c.cfg.BlockSize : (b+1)*c.cfg.BlockSize] {
			absent += int64(btoi(w.kind() == kindNever || w.kind() == kindSkipped))
		}
	}
	return absent
}

// planOne plans one key of one hit and returns its absent rows. Work is by block:
// the common case, a block of rows that are all in the mirror, is one scan of its
// words, one entry in its reader list and one longer piece.
func (c *Cache) planOne(x *stepCtx, ki int32, h *ctxHit) int64 {
	k, pi := x.keys[ki].k, int32(len(x.plans))
	p := plan{batch: h.batch, key: ki, rows: h.tokens, spans: int32(len(x.spans)), pieces: int32(len(x.pieces)), readers: int32(len(x.readers))}
	bs := c.cfg.BlockSize
	row := int64(0)
	for _, b := range c.hits.blocks[h.first:h.firstEnd] {
		for off := int64(0); off < bs; off += granuleRows {
			n := min(bs-off, granuleRows)
			first := b*bs + off
			words := k.words[first : first+n]
			mask, versions, newest := scanWords(words)
			if mask == fullMask(n) {
				x.addSpan(p.spans, row, first, n)
			} else {
				p.absent += c.planMixed(x, k, &p, row, first, words)
			}
			if mask != 0 {
				c.addReader(x, k, reader{mask: mask, versions: versions, plan: pi, row: row, granule: b*c.perBlock + off/granuleRows})
				x.wait = max(x.wait, newest)
			}
			row += n
		}
	}
	p.spansEnd, p.piecesEnd, p.readersEnd = int32(len(x.spans)), int32(len(x.pieces)), int32(len(x.readers))
	k.readers++
	x.plans = append(x.plans, p)
	return p.absent
}

// scanWords finds the rows that are, or with their step will be, in the mirror:
// which, the sum of their versions, and the newest step among their owners.
func scanWords(words []word) (mask uint64, versions uint32, newest uint64) {
	for i, w := range words {
		if w.kind() == kindStep {
			mask |= 1 << uint(i)
			versions += w.version()
			newest = max(newest, w.owner())
		}
	}
	return mask, versions, newest
}

func fullMask(n int64) uint64 { return ^uint64(0) >> uint(64-n) }

// planMixed plans a granule whose rows do not all come from the mirror. Rows of a
// deferred write are read from the write's own memory, which the plan keeps alive:
// in transit always wins over the mirror.
func (c *Cache) planMixed(x *stepCtx, k *key, p *plan, row, first int64, words []word) (absent int64) {
	for i, w := range words {
		r := row + int64(i)
		switch w.kind() {
		case kindStep:
			x.addSpan(p.spans, r, first+int64(i), 1)
		case kindDeferred:
			h := k.rowOf[first+int64(i)]
			k.store.meta[h].refs++
			if c.batch.device > 0 && k.store.meta[h].stamp == uint32(x.id) {
				x.wait = x.id // a row of this very step: its job brings it
			}
			x.addPiece(p.pieces, k, r, h)
		default:
			absent++
			x.addPiece(p.pieces, k, r, zeros)
		}
	}
	return absent
}

// addSpan appends mirror rows, or lengthens the last span of the plan when they go
// on there.
func (x *stepCtx) addSpan(from int32, row, slot, n int64) {
	if i := len(x.spans) - 1; i >= int(from) {
		if last := &x.spans[i]; last.Row+last.Len == row && last.Slot+last.Len == slot {
			last.Len += n
			return
		}
	}
	x.spans = append(x.spans, rows.Span{Row: row, Slot: slot, Len: n})
}

// addPiece does the same for one row of the store, or of zeros.
func (x *stepCtx) addPiece(from int32, k *key, row int64, src int32) {
	if i := len(x.pieces) - 1; i >= int(from) {
		last := &x.pieces[i]
		if last.row+last.n == row && (src == zeros && last.src == zeros ||
			src != zeros && last.src != zeros && k.store.follows(last.src+int32(last.n)-1, src)) {
			last.n++
			return
		}
	}
	x.pieces = append(x.pieces, piece{row: row, n: 1, src: src})
}

// closePlans ends every planned read of a context: no claim looks for them any
// more, and rows they held go back. Overlays stay until dropOverlays.
func (c *Cache) closePlans(x *stepCtx) {
	for i := range x.plans {
		p := &x.plans[i]
		if p.given {
			c.stats.ReadsUsed++
		} else {
			c.stats.ReadsDropped++
			c.note(NoticeDropped)
		}
		k := x.keys[p.key].k
		for r := p.readers; r < p.readersEnd; r++ {
			c.dropReader(x, k, int(r))
		}
		k.readers--
		for _, q := range x.pieces[p.pieces:p.piecesEnd] {
			if q.src != zeros {
				for h := q.src; h < q.src+int32(q.n); h++ {
					k.store.drop(h)
				}
			}
		}
	}
}

// dropOverlays gives the rows back that were copied aside.
func (c *Cache) dropOverlays(x *stepCtx) {
	for _, o := range x.overlays {
		x.keys[x.plans[o.plan].key].k.store.drop(o.handle)
	}
	x.overlays = x.overlays[:0]
}
