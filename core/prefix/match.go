package prefix

import "slices"

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
	hash       uint32
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

func (m *Manager) hashSource(parent int32, src *source, at int32) uint32 {
	if src.miss.is(parent, at) {
		return src.miss.hash
	}
	var h uint32
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

const (
	compareWords = 8192 // compared at a time, so that an early difference costs little
	aheadCells   = 16   // how far the links are followed ahead of the comparison; a power of two
	aheadBytes   = 2048 // as far ahead of it the cells are asked for, if that is fewer than aheadCells
	rangeWords   = 2048 // shorter runs of adjacent cells are compared cell by cell, with the next run on its way
)

// common counts how many of n blocks of src, from block at on, equal the cells
// of a chain; last is the cell of the last equal one. Cells are appended to out
// when it is not nil.
func (m *Manager) common(src *source, at, cell, n int32, out *[]int32) (same, last int32) {
	c := &m.content
	if out == nil || src.cells != nil || src.media != nil || cell >= c.base {
		return m.commonByBlock(src, at, cell, n, out)
	}
	last = -1
	w := c.width
	most := max(1, int32(compareWords/w))
	for same < n {
		room := min(n-same, most)
		words := src.words[int(at+same)*w:]
		run, had := adjacent(c.next[:c.base], cell, room), len(*out)
		var got int32
		if run == room || int(run)*w >= rangeWords {
			// Neighbours in memory: one comparison.
			got = run
			slab := c.words[int(cell)*w : int(cell+run)*w]
			if words = words[:len(slab)]; !equalWords(words, slab) {
				for got = 0; equalWords(words[int(got)*w:int(got+1)*w], slab[int(got)*w:int(got+1)*w]); {
					got++
				}
			}
			if got > 0 {
				// The links of a run are its ids, one further.
				*out = append(append(*out, cell), c.next[cell:cell+got-1]...)
			}
		} else {
			run = room
			*out = c.scattered(words, cell, room, *out)
		}
		*out = c.textOnly(*out, had)
		if got = int32(len(*out) - had); got > 0 {
			same += got
			last = (*out)[len(*out)-1]
		}
		if got < run {
			break
		}
		cell = c.next[last]
	}
	return same, last
}

// scattered compares words with a chain of n cells that lie anywhere, and
// appends the equal ones to out. The links and the cells are cache misses each;
// so the links are followed some way ahead of the comparison.
func (c *content) scattered(words []int32, cell, n int32, out []int32) []int32 {
	if haveKernels && c.width%4 == 0 {
		had := len(out)
		out = slices.Grow(out, int(n))[:had+int(n)]
		_ = words[int(n)*c.width-1]
		same := comparePages(&words[0], &c.words[0], &c.next[0], cell, int64(n), int64(c.width)*4, max(aheadCells/4, min(aheadCells, aheadBytes/int64(c.width*4))), &out[had])
		return out[:had+int(same)]
	}
	return c.scatteredGo(words, cell, n, out)
}

// scatteredGo is the plain twin. It cannot prefetch; reading the first word of a
// cell long before it is compared comes near.
func (c *content) scatteredGo(words []int32, cell, n int32, out []int32) []int32 {
	var ahead [aheadCells]int32
	w, slab, next := c.width, c.words, c.next
	read, early := int32(0), int32(0)
	for same := int32(0); same < n; same++ {
		for ; read < min(n, same+aheadCells); read++ {
			ahead[read%aheadCells] = cell
			early += slab[int(cell)*w]
			cell = next[cell]
		}
		id := ahead[same%aheadCells]
		if !equalWords(words[:w], slab[int(id)*w:int(id+1)*w]) {
			break
		}
		words = words[w:]
		out = append(out, id)
	}
	c.early = early // or the compiler would leave the reads out
	return out
}

// textOnly cuts cells off at the first one, from had on, that holds media: the
// words of a text request may equal what lies there, but they are not the same.
func (c *content) textOnly(cells []int32, had int) []int32 {
	if c.mediaOf != nil {
		for i := had; i < len(cells); i++ {
			if c.mediaOf[cells[i]] != 0 {
				return cells[:i]
			}
		}
	}
	return cells
}

// commonByBlock is common for everything unusual: media, content without pages,
// and a lease's own cells.
func (m *Manager) commonByBlock(src *source, at, cell, n int32, out *[]int32) (same, last int32) {
	last = -1
	for same < n && m.sameBlock(src, at+same, cell) {
		if out != nil {
			*out = append(*out, cell)
		}
		last = cell
		same++
		cell = m.content.next[cell]
	}
	return same, last
}
