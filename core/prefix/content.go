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
	width  int     // int32 words in a cell: page tokens, or 4 for one 128-bit key
	base   int32   // cells below are base pages
	words  []int32 // base cells, which live in slab outside the Go heap
	slab   *rows.Mirror
	shadow [][]int32
	spare  []int32 // free shadow cells

	mediaOf   []int32 // 1 + media entry of a cell, 0 = text only; nil until media is seen
	media     []Hash128
	mediaFree []int32

	seed  maphash.Seed
	hash  func(parent uint32, words []int32) uint64
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
	if len(c.spare) == 0 {
		end := c.count()
		c.shadow = append(c.shadow, make([]int32, shadowChunk*c.width))
		for id := c.count(); id > end; id-- {
			c.spare = append(c.spare, id-1)
		}
		if c.mediaOf != nil {
			c.mediaOf = append(c.mediaOf, make([]int32, shadowChunk)...)
		}
	}
	id := c.spare[len(c.spare)-1]
	c.spare = c.spare[:len(c.spare)-1]
	return id
}

// count is the number of cells, whether they are used or not.
func (c *content) count() int32 { return c.base + int32(len(c.shadow))*shadowChunk }

// clearMedia makes a cell text only. Freeing a page does not look at it, so what a
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
		streamed := c.stream(cells, words)
		words, cells = words[streamed*c.width:], cells[streamed:]
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

// stream writes whole pages past the cache, if there are many, and returns how many: a
// long prompt's tokens are read again at the next hit at the earliest, and plain stores
// to cold memory cost three times as much (28 KiB: 0.9 µs against 2.9).
func (c *content) stream(cells, words []int32) (pages int) {
	full := len(words) / c.width
	if !haveKernels || c.width%lineWords != 0 || full*c.width < streamWords || cells[0] >= c.base {
		return 0
	}
	for pages < full {
		some := min(full-pages, max(1, pieceWords/c.width))
		fillPages(&words[pages*c.width], &c.words[0], &cells[pages], int64(some), int64(c.width)*4)
		pages += some
	}
	return pages
}

const (
	lineWords   = 16      // a cache line
	streamWords = 1024    // from this length on
	pieceWords  = 1 << 18 // in one go: in there a thread cannot be stopped, and 1 MiB is 100 µs
)

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
		c.mediaOf = make([]int32, c.count())
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
