package simulation

import (
	"encoding/binary"
	"unsafe"
)

// omniModel is what the cache must do, without any of how: for each key, the tag of
// the row that each slot has. It knows nothing of threads, steps in flight, staging
// or budgets, because none of them may show in a result.
//
// A row is a function of its identity: of its key and of its tag, which no other row
// of the run has. So a row that reaches a reader it does not belong to is wrong.
type omniModel struct {
	blockSize int64
	lastTag   uint32
	keys      []modelKey
	live      [omniRequests]bool
	hits      [omniRequests][]int64 // slots of the hit that the coming save serves
}

type modelKey struct {
	visible bool
	rows    []uint32 // by slot; 0: no row
}

func (m *omniModel) begin(finished []uint64, arrivals []arrival, accepted []bool) {
	for _, q := range finished {
		m.live[q] = false
	}
	for q := range m.hits {
		m.hits[q] = m.hits[q][:0]
	}
	for i, a := range arrivals {
		accepted[i] = !m.live[a.request] && a.tokens > 0
		m.live[a.request] = true
		for t := int64(0); accepted[i] && t < a.tokens; t++ {
			m.hits[a.request] = append(m.hits[a.request], a.blocks[t/m.blockSize]*m.blockSize+t%m.blockSize)
		}
	}
}

type arrival struct {
	request uint64
	tokens  int64
	blocks  []int64
}

// save is a step that the cache accepted. tags[i] is the tag of row i for every key
// that is carried; the step's result is written down in s.
func (m *omniModel) save(s *savedStep, slots []int64, firstTag uint32) {
	if len(slots) > 0 {
		for k := range m.keys {
			key := &m.keys[k]
			if s.carried[k] {
				key.visible = true
			}
			if !key.visible {
				continue
			}
			for i, slot := range slots {
				key.rows[slot] = 0
				if s.carried[k] {
					key.rows[slot] = firstTag + uint32(i)
				}
			}
		}
	}
	for k := range m.keys {
		s.want[k] = s.want[k][:0]
		if !s.carried[k] {
			continue
		}
		tag := firstTag
		for b, q := range s.requests {
			for _, slot := range m.hits[q] {
				s.want[k] = append(s.want[k], m.keys[k].rows[slot])
			}
			for range s.counts[b] {
				s.want[k] = append(s.want[k], tag)
				tag++
			}
		}
	}
	s.missing = s.missing[:0]
	for _, q := range s.requests {
		missing := false
		for _, slot := range m.hits[q] {
			missing = missing || s.wantsHidden && (!m.keys[0].visible || m.keys[0].rows[slot] == 0)
		}
		s.missing = append(s.missing, missing)
	}
	for q := range m.hits {
		m.hits[q] = m.hits[q][:0]
	}
}

// pattern is 8 bytes that a row of this key and tag repeats; never zero, which is
// what an absent row reads as.
func pattern(key int, tag uint32) uint64 {
	if tag == 0 {
		return 0
	}
	return scramble(uint64(key)<<32|uint64(tag)) | 0x0101010101010101
}

// writeRow and isRow know what a row looks like. Rows have up to 16 bytes.
func writeRow(to []byte, key int, tag uint32) {
	p := pattern(key, tag)
	if len(to) == 8 {
		binary.LittleEndian.PutUint64(to, p)
		return
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], p)
	binary.LittleEndian.PutUint64(b[8:], p)
	copy(to, b[:])
}

func isRow(row []byte, key int, tag uint32) bool {
	var want [16]byte
	writeRow(want[:len(row)], key, tag)
	return string(row) == string(want[:len(row)])
}

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
