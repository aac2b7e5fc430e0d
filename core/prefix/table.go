package prefix

import "fmt"

// table maps (parent node, first block) to a child node: open addressing with
// linear probing, and backward-shift deletion, so that a table that churns for
// days needs no rebuild. The hash lies beside the id: an entry in the way costs
// no look at its node, which would be a cache miss.
type table struct {
	slot []tableSlot
	used int
}

type tableSlot struct {
	node int32 // -1 = empty
	hash uint32
}

// init makes the table empty; slots is a power of two.
func (t *table) init(slots int) {
	t.slot = make([]tableSlot, slots)
	for i := range t.slot {
		t.slot[i].node = -1
	}
}

// home is where the search for a hash begins, and mask is what keeps it in the table.
func (t *table) home(hash uint32) (i, mask uint32) {
	mask = uint32(len(t.slot) - 1)
	return hash & mask, mask
}

// insert keeps the table at most two thirds full; it doubles, so growth is rare and
// over once the index has reached its size.
func (t *table) insert(id int32, hash uint32) {
	if 3*(t.used+1) > 2*len(t.slot) {
		old := t.slot
		t.init(2 * len(old))
		for _, o := range old {
			if o.node >= 0 {
				t.place(o)
			}
		}
	}
	t.place(tableSlot{id, hash})
	t.used++
}

func (t *table) place(s tableSlot) {
	i, mask := t.home(s.hash)
	for t.slot[i].node >= 0 {
		i = (i + 1) & mask
	}
	t.slot[i] = s
}

// find returns the slot of a node, if it is in the table.
func (t *table) find(id int32, hash uint32) (i uint32, ok bool) {
	i, mask := t.home(hash)
	for t.slot[i].node != id {
		if t.slot[i].node < 0 {
			return i, false
		}
		i = (i + 1) & mask
	}
	return i, true
}

// must returns the slot of a node that is in the table: a search that went on for ever
// would hold the lock of a server's cache.
func (t *table) must(id int32, hash uint32) uint32 {
	i, ok := t.find(id, hash)
	if !ok {
		panic(fmt.Sprintf("prefix: node %d is not in the table", id))
	}
	return i
}

// replace renames an entry in place: the upper half of a split keeps the hash
// of the node it was cut from.
func (t *table) replace(old, new int32, hash uint32) { t.slot[t.must(old, hash)].node = new }

func (t *table) remove(id int32, hash uint32) {
	hole := t.must(id, hash)
	// Close the hole with a later entry of the same cluster, and go on from there,
	// until an empty slot ends the cluster: no tombstones are left behind.
	for i, mask := hole, uint32(len(t.slot)-1); ; {
		i = (i + 1) & mask
		o := t.slot[i]
		if o.node < 0 {
			break
		}
		// o may move into the hole unless its home lies between the hole and itself.
		if (i-o.hash)&mask >= (i-hole)&mask {
			t.slot[hole] = o
			hole = i
		}
	}
	t.slot[hole].node = -1
	t.used--
}
