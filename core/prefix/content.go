package prefix

import (
	"bytes"
	"hash/maphash"
	"unsafe"

	"libprefixcache/core/rows"
)

// content is what blocks are made of, one fixed cell for each block: cell c is
// words[c*width : (c+1)*width]. For attention a cell is a base page, same id. A
// cell beyond the base pool is a shadow: content without a page, for the tails
// of checkpoints and for pure recurrent sequences.
//
// A media position keeps its 128-bit digest beside the cell, and a zero in place
// of the token, so the two kinds of position never compare equal (D-2).
type content struct {
	width   int     // int32 words in a cell: page tokens, or 4 for one 128-bit key
	base    int32   // cells below are base pages
	words   []int32 // base cells, which live in slab outside the Go heap
	slab    *rows.Mirror
	shadow  [][]int32
	next    []int32 // chain links of all cells; the base part is the base pool's
	spare   chain   // free shadow cells
	shadows int

	mediaOf   []int32 // 1 + media entry of a cell, 0 = text only; nil until media is seen
	media     []Hash128
	mediaFree []int32

	seed  maphash.Seed
	hash  func(parent uint32, words []int32) uint64
	early int32   // see scattered
	zero  bool    // Config.ZeroOnRelease
	mixed []int32 // scratch: words and digests of a media block, to be hashed
}

const shadowChunk = 256 // cells

func (c *content) cell(id int32) []int32 {
	if id < c.base {
		at := int(id) * c.width
		return c.words[at : at+c.width : at+c.width]
	}
	id -= c.base
	at := int(id%shadowChunk) * c.width
	return c.shadow[id/shadowChunk][at : at+c.width : at+c.width]
}

// digests returns the media entry of a cell, or nil.
func (c *content) digests(id int32) []Hash128 {
	if c.mediaOf == nil || c.mediaOf[id] == 0 {
		return nil
	}
	at := int(c.mediaOf[id]-1) * c.width
	return c.media[at : at+c.width]
}

// takeShadow hands out one content-only cell; they grow with demand.
func (c *content) takeShadow() int32 {
	if c.spare.n == 0 {
		first := c.base + int32(len(c.shadow))*shadowChunk
		c.shadow = append(c.shadow, make([]int32, shadowChunk*c.width))
		for i := range int32(shadowChunk) {
			c.next = append(c.next, first+i+1)
			if c.mediaOf != nil {
				c.mediaOf = append(c.mediaOf, 0)
			}
		}
		c.spare = chain{first, first + shadowChunk - 1, shadowChunk}
		c.shadows += shadowChunk
	}
	id := c.spare.first
	c.spare.first = c.next[id]
	c.spare.n--
	return id
}

func (c *content) putShadow(ch chain) { c.spare.join(c.next, ch) }

// clearMedia makes a cell text only. Pages are freed by splicing, so what a
// former tenant left behind goes when the cell is filled again, not before.
func (c *content) clearMedia(id int32) {
	if c.mediaOf == nil || c.mediaOf[id] == 0 {
		return
	}
	entry := c.mediaOf[id] - 1
	clear(c.media[int(entry)*c.width : int(entry+1)*c.width])
	c.mediaFree = append(c.mediaFree, entry)
	c.mediaOf[id] = 0
}

func (c *content) clearMediaOf(cells []int32) {
	if c.mediaOf != nil {
		for _, id := range cells {
			c.clearMedia(id)
		}
	}
}

// fill writes the words of cells from position 0; media is nil or as long as words.
func (c *content) fill(cells []int32, words []int32, media []Hash128) {
	if media == nil {
		c.clearMediaOf(cells[:(len(words)+c.width-1)/c.width])
		for i := 0; len(words) > 0; i++ {
			words = words[copy(c.cell(cells[i]), words):]
		}
		return
	}
	for i := 0; len(words) > 0; i++ {
		n := min(c.width, len(words))
		c.clearMedia(cells[i])
		copy(c.cell(cells[i]), words[:n])
		c.fillMedia(cells[i], media[:n])
		words, media = words[n:], media[n:]
	}
}

func hasMedia(media []Hash128) bool {
	for i := range media {
		if media[i].Hi|media[i].Lo != 0 {
			return true
		}
	}
	return false
}

func (c *content) fillMedia(id int32, media []Hash128) {
	if hasMedia(media) {
		c.setMedia(id, c.takeMedia(), media)
	}
}

// copyMedia gives a cell the digests of the first n positions of another one. The
// entry comes first: the array that both are in may grow for it, and is cleared then
// if that is wanted.
func (c *content) copyMedia(id, from int32, n int) {
	if d := c.digests(from); d == nil || !hasMedia(d[:n]) {
		return
	}
	entry := c.takeMedia()
	c.setMedia(id, entry, c.digests(from)[:n])
}

// takeMedia hands out an entry of the media array.
func (c *content) takeMedia() (entry int32) {
	if c.mediaOf == nil {
		c.mediaOf = make([]int32, len(c.next))
	}
	if n := len(c.mediaFree); n > 0 {
		entry, c.mediaFree = c.mediaFree[n-1], c.mediaFree[:n-1]
		return entry
	}
	entry = int32(len(c.media) / c.width)
	c.media = add(c.media, c.zero, make([]Hash128, c.width)...)
	return entry
}

func (c *content) setMedia(id, entry int32, media []Hash128) {
	at := c.media[int(entry)*c.width : int(entry+1)*c.width]
	clear(at[copy(at, media):])
	words := c.cell(id)
	for i := range media {
		if !media[i].IsZero() {
			words[i] = 0
		}
	}
	c.mediaOf[id] = entry + 1
}

// equalWords is a memcmp.
func equalWords(a, b []int32) bool { return bytes.Equal(asBytes(a), asBytes(b)) }

func asBytes(w []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), len(w)*4)
}

// keyWords views block keys as the words of one-key cells.
func keyWords(k []Hash128) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(k))), len(k)*4)
}

// equal compares the first len(words) positions of a cell with a request's,
// token by token and digest by digest. A media position equals the same digest only.
func (c *content) equal(id int32, words []int32, media []Hash128) bool {
	own := c.digests(id)
	if own == nil && (media == nil || !hasMedia(media)) {
		return equalWords(c.cell(id)[:len(words)], words)
	}
	cell := c.cell(id)
	for i := range words {
		var a, b Hash128
		if own != nil {
			a = own[i]
		}
		if media != nil {
			b = media[i]
		}
		if a != b || a.IsZero() && cell[i] != words[i] {
			return false
		}
	}
	return true
}

// equalCells compares two whole cells.
func (c *content) equalCells(a, b int32) bool {
	if a == b {
		return true
	}
	da, db := c.digests(a), c.digests(b)
	if !equalWords(c.cell(a), c.cell(b)) || (da == nil) != (db == nil) {
		return false
	}
	for i := range da {
		if da[i] != db[i] {
			return false
		}
	}
	return true
}

// hashBlock is the table hash of a block under a parent node. It finds
// candidates; it never decides.
func (c *content) hashBlock(parent int32, words []int32, media []Hash128) uint32 {
	if media != nil && hasMedia(media) {
		c.mixed = append(c.mixed[:0], words...)
		for i := range media {
			if !media[i].IsZero() {
				c.mixed[i] = 0
			}
			c.mixed = append(c.mixed, keyWords(media[i:i+1])...)
		}
		words = c.mixed
		if c.zero {
			defer clear(c.mixed)
		}
	}
	if c.hash != nil {
		return uint32(c.hash(uint32(parent), words))
	}
	h := maphash.Bytes(c.seed, asBytes(words)) ^ uint64(parent)*0x9E3779B97F4A7C15
	return uint32((h ^ h>>32) * 0xD6E8FEB86659FD93 >> 32)
}

func (c *content) hashCell(parent, id int32) uint32 {
	return c.hashBlock(parent, c.cell(id), c.digests(id))
}
