package prefix

// source is a sequence to be matched against the index, block by block: either
// the words of a request, or the cells that a lease already filled.
type source struct {
	words []int32
	media []Hash128 // nil or one for each word
	cells []int32   // takes precedence
	miss  lookup    // the last table hash that was computed
}

// lookup remembers the table hash of block at under a parent. A lease keeps the
// one where its prompt left the index, so that its publication needs neither to
// hash that block again nor to read it back from memory.
type lookup struct {
	parent, at int32
	hash       uint64
	known      bool
}

func (l *lookup) is(parent, at int32) bool { return l.known && l.parent == parent && l.at == at }

func (m *Manager) block(src *source, at int32) (words []int32, media []Hash128) {
	w := m.content.width
	lo, hi := int(at)*w, int(at+1)*w
	if src.media != nil {
		media = src.media[lo:hi]
	}
	return src.words[lo:hi], media
}

func (m *Manager) sameBlock(src *source, at, cell int32) bool {
	if src.cells != nil {
		return m.content.equalCells(src.cells[at], cell)
	}
	words, media := m.block(src, at)
	return m.content.equal(cell, words, media)
}

func (m *Manager) hashSource(parent int32, src *source, at int32) uint64 {
	if src.miss.is(parent, at) {
		return src.miss.hash
	}
	var h uint64
	if src.cells != nil {
		h = m.content.hashCell(parent, src.cells[at])
	} else {
		words, media := m.block(src, at)
		h = m.content.hashBlock(parent, words, media)
	}
	src.miss = lookup{parent, at, h, true}
	return h
}

// place is a position in the index: the first at blocks of some sequence, ending
// in a node with start < at <= end (or at a root, at 0). cell is the cell of
// block at-1. It survives splits, which move it towards the root; gen tells when
// it has become meaningless.
type place struct {
	node, at, cell int32
	gen            uint32
}

func (m *Manager) rootPlace(r int32) place {
	root := m.realms[r].root
	return place{root, 0, -1, m.nodes[root].gen}
}

// settle follows splits; false when the place is no longer in the index.
func (m *Manager) settle(p *place) bool {
	if x := &m.nodes[p.node]; x.gen != p.gen || !x.attached {
		return false
	}
	m.climb(p)
	return true
}

// climb moves to the node that holds block p.at-1, at or above p.node.
func (m *Manager) climb(p *place) {
	for m.nodes[p.node].start >= p.at && !m.nodes[p.node].isRoot() {
		p.node = m.nodes[p.node].parent
	}
	p.gen = m.nodes[p.node].gen
}

// descend walks from p as far as src matches, up to block limit. Matched cells
// are appended to out when it is not nil.
func (m *Manager) descend(p place, src *source, limit int32, out *[]int32) place {
	for p.at < limit {
		x := &m.nodes[p.node]
		cell := int32(-1)
		if p.at == x.end {
			c := m.childAt(p.node, src, p.at)
			if c < 0 {
				break
			}
			p.node = c
			x = &m.nodes[c]
			cell = x.first
		} else {
			cell = m.content.next[p.cell]
		}
		want := min(limit, x.end) - p.at
		n, last := m.common(src, p.at, cell, want, out)
		if n > 0 {
			p.at += n
			p.cell = last
		}
		if n < want {
			break
		}
	}
	m.climb(&p)
	return p
}

const compareWords = 4096 // compared at a time, so that an early difference costs little

// common counts how many of n blocks of src, from block at on, equal the cells
// of a chain. Cells with adjacent ids are compared as one range.
func (m *Manager) common(src *source, at, cell, n int32, out *[]int32) (same, last int32) {
	c := &m.content
	last = -1
	plain := src.cells == nil && src.media == nil && c.mediaOf == nil
	most := max(1, compareWords/int32(c.width))
	next, w := c.next, int32(c.width)
	for same < n {
		if !plain || cell >= c.base {
			if !m.sameBlock(src, at+same, cell) {
				return same, last
			}
			if out != nil {
				*out = append(*out, cell)
			}
			last = cell
			same++
			cell = next[cell]
			continue
		}
		room := min(n-same, most)
		run := int32(1)
		for run < room && next[cell+run-1] == cell+run {
			run++
		}
		from := int(at+same) * c.width
		got := run
		words := src.words[from : from+int(run*w)]
		if slab := c.words[int(cell)*c.width : int(cell+run)*c.width]; !equalWords(words, slab) {
			for got = 0; equalWords(words[got*w:(got+1)*w], slab[got*w:(got+1)*w]); {
				got++
			}
		}
		if out != nil {
			o := *out
			for i := range got {
				o = append(o, cell+i)
			}
			*out = o
		}
		if got > 0 {
			last = cell + got - 1
		}
		same += got
		if got < run {
			return same, last
		}
		cell = next[last]
	}
	return same, last
}
