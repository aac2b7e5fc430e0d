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
// in a node with start < at <= end (or at a root, at 0). It survives splits, which
// move it towards the root; gen tells when it has become meaningless.
type place struct {
	node, at int32
	gen      uint32
}

func (m *Manager) rootPlace(r int32) place {
	root := m.realms[r].root
	return place{root, 0, m.nodes[root].gen}
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
		if p.at == x.end {
			c := m.childAt(p.node, src, p.at)
			if c < 0 {
				break
			}
			p.node = c
			x = &m.nodes[c]
		}
		cells := m.cells(x)[p.at-x.start : min(limit, x.end)-x.start]
		n := m.common(src, p.at, cells, out)
		p.at += int32(n)
		if n < len(cells) {
			break
		}
	}
	m.climb(&p)
	return p
}

const (
	compareWords = 8192 // compared at a time, so that an early difference costs little
	aheadBytes   = 2048 // as far ahead of the comparison cells are asked for, 4 to 16 of them
	rangeWords   = 2048 // shorter runs of adjacent cells are compared cell by cell, with the next run on its way
)

// common counts how many blocks of src, from block at on, equal cells, one after the
// other. Those are appended to out when it is not nil.
func (m *Manager) common(src *source, at int32, cells []int32, out *[]int32) (same int) {
	c := &m.content
	if out == nil || src.cells != nil || src.media != nil || cells[0] >= c.base {
		return m.commonByBlock(src, at, cells, out)
	}
	w := c.width
	words := src.words[int(at)*w:][:len(cells)*w]
	for most := max(1, compareWords/w); same < len(cells); {
		some := cells[same:min(same+most, len(cells))]
		run := adjacent(some)
		var got int
		if run == len(some) || run*w >= rangeWords {
			some = some[:run]
			got = c.equalRun(words[same*w:], some)
		} else {
			got = c.equalScattered(words[same*w:], some)
		}
		got = c.textOnly(some[:got])
		*out = append(*out, some[:got]...)
		same += got
		if got < len(some) {
			break
		}
	}
	return same
}

// adjacent counts the cells at the front whose ids follow one another: neighbours in memory.
func adjacent(cells []int32) int {
	id, n := cells[0], 1
	for ; n+4 <= len(cells); n, id = n+4, id+4 {
		if next := cells[n : n+4 : n+4]; next[0] != id+1 || next[1] != id+2 || next[2] != id+3 || next[3] != id+4 {
			break
		}
	}
	for ; n < len(cells) && cells[n] == id+1; n++ {
		id++
	}
	return n
}

// equalRun counts the cells of a run of neighbours that equal words: one comparison, if all do.
func (c *content) equalRun(words, cells []int32) (n int) {
	w := c.width
	slab := c.words[int(cells[0])*w:][:len(cells)*w]
	if equalWords(words[:len(slab)], slab) {
		return len(cells)
	}
	for equalWords(words[n*w:(n+1)*w], slab[n*w:(n+1)*w]) {
		n++
	}
	return n
}

// equalScattered is equalRun of cells that lie anywhere. Each is a cache miss, so some are
// asked for ahead of the comparison.
func (c *content) equalScattered(words, cells []int32) int {
	if haveKernels && c.width%4 == 0 {
		_ = words[len(cells)*c.width-1]
		return int(comparePages(&words[0], &c.words[0], &cells[0], int64(len(cells)), int64(c.width)*4, max(4, min(16, aheadBytes/int64(c.width*4)))))
	}
	return c.equalScatteredGo(words, cells)
}

// equalScatteredGo is the plain twin.
func (c *content) equalScatteredGo(words, cells []int32) int {
	w := c.width
	for i, id := range cells {
		if !equalWords(words[i*w:(i+1)*w], c.words[int(id)*w:int(id+1)*w]) {
			return i
		}
	}
	return len(cells)
}

// textOnly counts the cells before the first that holds media: the words of a text
// request may equal what lies there, but they are not the same.
func (c *content) textOnly(cells []int32) int {
	if c.mediaOf != nil {
		for i, id := range cells {
			if c.mediaOf[id] != 0 {
				return i
			}
		}
	}
	return len(cells)
}

// commonByBlock is common for everything unusual: media, content without pages,
// and a lease's own cells.
func (m *Manager) commonByBlock(src *source, at int32, cells []int32, out *[]int32) (same int) {
	for same < len(cells) && m.sameBlock(src, at+int32(same), cells[same]) {
		same++
	}
	if out != nil {
		*out = append(*out, cells[:same]...)
	}
	return same
}
