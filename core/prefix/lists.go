package prefix

import "math/bits"

// cellLists keeps the cells of every node, an array of ids each. Room comes in powers
// of two: an array that is given back serves the next list of its size, and a list that
// grows moves to twice the room, so a decoded block costs the same at any length.
//
// An array is read from front to back: pages long unused cost a cache miss for every
// sixteen ids, and the processor sees the next one coming.
type cellLists struct {
	ids  []int32
	free [32]uint32 // by size: 1 + where the first free array begins, whose first id says the same of the next
}

// newCellLists has room for lists of all base pages, twice: half of it may be free arrays
// of sizes that nobody wants before all are put together anew.
func newCellLists(pages int) cellLists { return cellLists{ids: make([]int32, 0, idsPerPage*pages)} }

const idsPerPage = 4

// list is where the cells of one node are: room for 1<<size ids, none when size is 0.
type list struct {
	at   uint32
	size uint8
}

func (l list) room() int {
	if l.size == 0 {
		return 0
	}
	return 1 << l.size
}

func (l list) end() uint32 { return l.at + uint32(l.room()) }

// take hands out room for n > 0 ids. The lists of nodes may move.
func (c *cellLists) take(nodes []node, n int) list {
	l := listFor(n)
	if first := c.free[l.size]; first > 0 {
		l.at = first - 1
		c.free[l.size] = uint32(c.ids[l.at])
		return l
	}
	if len(c.ids)+l.room() > cap(c.ids) {
		c.compact(nodes, l.room())
	}
	l.at = uint32(len(c.ids))
	c.ids = c.ids[:len(c.ids)+l.room()]
	return l
}

// listFor has the size that n > 0 ids need.
func listFor(n int) list { return list{size: uint8(max(1, bits.Len(uint(n-1))))} }

// compact puts the lists of all nodes together anew, each with the room that it needs
// now. It takes time in proportion to the index, about 10 ms for a million pages, and
// comes again when what is free then was taken, about half of the room.
func (c *cellLists) compact(nodes []node, more int) {
	used := more
	for i := range nodes {
		if x := &nodes[i]; x.list.size > 0 {
			used += listFor(int(x.end - x.start)).room()
		}
	}
	most := cap(c.ids)
	if used > most { // sequences without pages have lists, too: what is made for pages is enough for these
		most = 2 * used
	}
	ids := make([]int32, 0, most)
	for i := range nodes {
		x := &nodes[i]
		if x.list.size == 0 {
			continue
		}
		n := x.end - x.start
		l := listFor(int(n))
		l.at = uint32(len(ids))
		ids = ids[:l.end()]
		copy(ids[l.at:], c.ids[x.list.at:x.list.at+uint32(n)])
		x.list = l
	}
	*c = cellLists{ids: ids}
}

func (c *cellLists) put(l list) {
	if l.size > 0 {
		c.ids[l.at] = int32(c.free[l.size])
		c.free[l.size] = l.at + 1
	}
}

// store gives a node without a list one.
func (c *cellLists) store(nodes []node, id int32, cells []int32) {
	l := c.take(nodes, len(cells))
	copy(c.ids[l.at:], cells)
	nodes[id].list = l
}

// add puts cells behind those of a node.
func (c *cellLists) add(nodes []node, id int32, cells []int32) {
	x := &nodes[id]
	n := x.end - x.start
	if len(cells) == 1 && int(n) < x.list.room() { // what decoding does
		c.ids[x.list.at+uint32(n)] = cells[0]
		return
	}
	if need := int(n) + len(cells); need > x.list.room() {
		l := c.take(nodes, need)
		copy(c.ids[l.at:], c.ids[x.list.at:x.list.at+uint32(n)])
		c.put(x.list)
		x.list = l
	}
	copy(c.ids[x.list.at+uint32(n):], cells)
}

// first is the cell of a node's first block.
func (m *Manager) first(x *node) int32 { return m.lists.ids[x.list.at] }

// cells are those of a node, one for each block.
func (m *Manager) cells(x *node) []int32 {
	end := x.list.at + uint32(x.end-x.start)
	return m.lists.ids[x.list.at:end:end]
}
