package omni

// sourceKind is where the rows of a piece of a planned read come from.
type sourceKind uint8

const (
	fromMirror sourceKind = iota // src is a slot
	fromStore                    // src is a row of the key's store; the plan holds a reference
	fromZero                     // absent when planned: zeros, whatever happens later (S-18)
)

// piece is n consecutive rows of a planned read.
type piece struct {
	row, n, src int64
	kind        sourceKind
}

// plan is one (request, key) prefix: what Materialize copies, decided when the
// step was published. Pieces and readers are ranges of the step context.
type plan struct {
	batch               int32
	key                 int32 // in stepCtx.keys
	rows                int64
	absent              int64
	pieces, piecesEnd   int32
	readers, readersEnd int32
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
	p := plan{batch: h.batch, key: ki, rows: h.tokens, pieces: int32(len(x.pieces)), readers: int32(len(x.readers))}
	bs := c.cfg.BlockSize
	row := int64(0)
	for _, b := range c.hits.blocks[h.first:h.firstEnd] {
		for off := int64(0); off < bs; off += granuleRows {
			n := min(bs-off, granuleRows)
			first := b*bs + off
			words := k.words[first : first+n]
			mask, versions, newest := scanWords(words)
			if mask == fullMask(n) {
				x.addPiece(p.pieces, piece{row: row, n: n, src: first, kind: fromMirror})
			} else {
				p.absent += c.planMixed(x, k, p.pieces, row, first, words)
			}
			if mask != 0 {
				c.addReader(x, k, reader{mask: mask, versions: versions, plan: pi, row: row, granule: b*c.perBlock + off/granuleRows})
				x.wait = max(x.wait, newest)
			}
			row += n
		}
	}
	p.piecesEnd, p.readersEnd = int32(len(x.pieces)), int32(len(x.readers))
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
func (c *Cache) planMixed(x *stepCtx, k *key, from int32, row, first int64, words []word) (absent int64) {
	for i, w := range words {
		r := row + int64(i)
		switch w.kind() {
		case kindStep:
			x.addPiece(from, piece{row: r, n: 1, src: first + int64(i), kind: fromMirror})
		case kindDeferred:
			h := k.rowOf[first+int64(i)]
			k.store.meta[h].refs++
			x.addRow(from, k, r, h)
		default:
			absent++
			x.addPiece(from, piece{row: r, n: 1, kind: fromZero})
		}
	}
	return absent
}

// addPiece appends a piece, or lengthens the last one when it goes on there.
func (x *stepCtx) addPiece(from int32, p piece) {
	if i := len(x.pieces) - 1; i >= int(from) {
		last := &x.pieces[i]
		if last.kind == p.kind && (p.kind == fromZero || last.src+last.n == p.src) {
			last.n += p.n
			return
		}
	}
	x.pieces = append(x.pieces, p)
}

// addRow is addPiece for a row of the store, where numbers of two segments are not
// neighbours.
func (x *stepCtx) addRow(from int32, k *key, row int64, h int32) {
	if i := len(x.pieces) - 1; i >= int(from) {
		last := &x.pieces[i]
		if last.kind == fromStore && k.store.follows(int32(last.src+last.n-1), h) {
			last.n++
			return
		}
	}
	x.pieces = append(x.pieces, piece{row: row, n: 1, src: int64(h), kind: fromStore})
}

// closePlans ends every planned read of a context: no claim looks for them any
// more, and rows they held go back. Overlays stay until dropOverlays.
func (c *Cache) closePlans(x *stepCtx) {
	for i := range x.plans {
		p := &x.plans[i]
		k := x.keys[p.key].k
		for r := p.readers; r < p.readersEnd; r++ {
			c.dropReader(x, k, int(r))
		}
		k.readers--
		for _, q := range x.pieces[p.pieces:p.piecesEnd] {
			if q.kind == fromStore {
				for h := q.src; h < q.src+q.n; h++ {
					k.store.drop(int32(h))
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
