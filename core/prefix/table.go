package prefix

// table maps (parent node, first block) to a child node: open addressing with
// linear probing over node ids, and backward-shift deletion, so that a table
// that churns for days needs no rebuild. The full hash lives in the node.
type table struct {
	slot []int32 // node id, -1 = empty
	used int
}

func (t *table) init(nodes int) {
	n := 64
	for n < 2*nodes {
		n *= 2
	}
	t.slot = make([]int32, n)
	for i := range t.slot {
		t.slot[i] = -1
	}
}

// insert keeps the table at most half full; it doubles, so growth is rare and
// over once the index has reached its size.
func (t *table) insert(nodes []node, id int32) {
	if 2*(t.used+1) > len(t.slot) {
		old := t.slot
		t.init(len(old))
		for _, o := range old {
			if o >= 0 {
				t.place(nodes, o)
			}
		}
	}
	t.place(nodes, id)
	t.used++
}

func (t *table) place(nodes []node, id int32) {
	mask := uint64(len(t.slot) - 1)
	i := nodes[id].hash & mask
	for t.slot[i] >= 0 {
		i = (i + 1) & mask
	}
	t.slot[i] = id
}

// find returns the slot of a node that is in the table.
func (t *table) find(nodes []node, id int32) uint64 {
	mask := uint64(len(t.slot) - 1)
	i := nodes[id].hash & mask
	for t.slot[i] != id {
		i = (i + 1) & mask
	}
	return i
}

// replace renames an entry in place: the upper half of a split keeps the hash
// of the node it was cut from.
func (t *table) replace(nodes []node, old, new int32) { t.slot[t.find(nodes, old)] = new }

func (t *table) remove(nodes []node, id int32) {
	mask := uint64(len(t.slot) - 1)
	hole := t.find(nodes, id)
	// Close the hole with a later entry of the same cluster, and go on from there,
	// until an empty slot ends the cluster: no tombstones are left behind.
	for i := hole; ; {
		i = (i + 1) & mask
		o := t.slot[i]
		if o < 0 {
			break
		}
		// o may move into the hole unless its home lies between the hole and itself.
		if (i-nodes[o].hash)&mask >= (i-hole)&mask {
			t.slot[hole] = o
			hole = i
		}
	}
	t.slot[hole] = -1
	t.used--
}
