package prefix

import "fmt"

// recordIndex finds records by id: open addressing over record numbers, kept at most
// half full. Only queries name records by id, so it is made by the first of them, and a
// host that never asks pays a comparison.
type recordIndex struct {
	slot []int32 // record + 1, 0 = empty; length is a power of two
	used int
}

func (x *recordIndex) home(id uint64) uint64 {
	h := id * 0x9E3779B97F4A7C15
	return (h ^ h>>32) & uint64(len(x.slot)-1)
}

// build enters every live record.
func (x *recordIndex) build(records []record, count int) {
	n := 64
	for n < 4*count {
		n *= 2
	}
	x.slot, x.used = make([]int32, n), 0
	for i := range records {
		if records[i].live {
			x.place(records, int32(i))
		}
	}
}

func (x *recordIndex) place(records []record, i int32) {
	at := x.home(records[i].id)
	for x.slot[at] != 0 {
		at = (at + 1) & uint64(len(x.slot)-1)
	}
	x.slot[at] = i + 1
	x.used++
}

// add enters a new record, if there is an index.
func (x *recordIndex) add(records []record, count int, i int32) {
	switch {
	case x.slot == nil:
	case 2*(x.used+1) > len(x.slot):
		x.build(records, count) // i is live by now
	default:
		x.place(records, i)
	}
}

// find returns the record of an id, or -1.
func (x *recordIndex) find(records []record, id uint64) int32 {
	for at := x.home(id); x.slot[at] != 0; at = (at + 1) & uint64(len(x.slot)-1) {
		if i := x.slot[at] - 1; records[i].id == id {
			return i
		}
	}
	return -1
}

// remove takes a record out. Later entries of the probe chain move up, so that nothing
// piles up.
func (x *recordIndex) remove(records []record, i int32) {
	if x.slot == nil {
		return
	}
	mask := uint64(len(x.slot) - 1)
	hole := x.home(records[i].id)
	for x.slot[hole] != i+1 {
		if x.slot[hole] == 0 {
			panic(fmt.Sprintf("prefix: record %d is not in the index", records[i].id))
		}
		hole = (hole + 1) & mask
	}
	for at := hole; ; {
		at = (at + 1) & mask
		if x.slot[at] == 0 {
			break
		}
		if (at-x.home(records[x.slot[at]-1].id))&mask >= (at-hole)&mask {
			x.slot[hole] = x.slot[at]
			hole = at
		}
	}
	x.slot[hole] = 0
	x.used--
}

// byID looks at the index of records by id, when there is one.
func (c *checker) byID() {
	m := c.m
	if m.byID.slot == nil {
		return
	}
	n := 0
	for i := range m.records {
		if r := &m.records[i]; r.live {
			n++
			if m.byID.find(m.records, r.id) != int32(i) {
				c.fail("record %d is not found by its id", r.id)
			}
		}
	}
	if n != m.byID.used {
		c.fail("%d records by id, counted %d", m.byID.used, n)
	}
}
