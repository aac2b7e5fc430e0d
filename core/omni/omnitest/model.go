package omnitest

import "libprefixcache/core/omni"

// model is what the cache must do, without any of how: for each key the row of
// each slot, or none. It knows nothing of schedules, steps in flight, budgets or
// threads, because none of them may show in a result.
type model struct {
	blockSize int64
	wants     bool
	live      map[uint64]bool
	hits      map[uint64][]int64             // request: slots of its hit, for the coming save
	rows      map[string]map[int64]string    // key, slot: row; no entry: absent
	visible   map[string]int64               // key: row bytes
	steps     map[uint64]map[string][]string // step, key: every row of the result, or nil
	missing   map[uint64]map[uint64]bool     // step, request: hidden rows are missing
}

func newModel(blockSize int64, wants bool) *model {
	return &model{blockSize: blockSize, wants: wants, live: map[uint64]bool{}, hits: map[uint64][]int64{},
		rows: map[string]map[int64]string{}, visible: map[string]int64{},
		steps: map[uint64]map[string][]string{}, missing: map[uint64]map[uint64]bool{}}
}

func (m *model) begin(finished []uint64, arrivals []omni.NewRequest) (accepted []bool) {
	for _, q := range finished {
		delete(m.live, q)
	}
	clear(m.hits)
	for _, a := range arrivals {
		ok := !m.live[a.Request] && a.HitTokens > 0
		m.live[a.Request] = true
		if ok {
			var slots []int64
			for i := int64(0); i < a.HitTokens; i++ {
				slots = append(slots, a.Blocks[i/m.blockSize]*m.blockSize+i%m.blockSize)
			}
			m.hits[a.Request] = slots
		}
		accepted = append(accepted, ok)
	}
	return accepted
}

// modelKey is one carried key of a save.
type modelKey struct {
	name  string
	bytes int64
	rows  []string
}

// layout is the number of result rows of each request: hit rows and new rows.
func (m *model) layout(reqs []uint64, counts []int64) (n int64) {
	for i, q := range reqs {
		n += int64(len(m.hits[q])) + counts[i]
	}
	return n
}

func (m *model) save(step uint64, reqs []uint64, counts, slots []int64, keys []modelKey) {
	carried := map[string]bool{}
	for _, k := range keys {
		carried[k.name] = true
		if len(slots) > 0 {
			m.visible[k.name] = k.bytes
		}
	}
	for name := range m.visible {
		if m.rows[name] == nil {
			m.rows[name] = map[int64]string{}
		}
		if !carried[name] {
			for _, s := range slots {
				delete(m.rows[name], s)
			}
		}
	}
	for _, k := range keys {
		for i, s := range slots {
			m.rows[k.name][s] = k.rows[i]
		}
	}
	out, missing := map[string][]string{}, map[uint64]bool{}
	for _, k := range keys {
		at := 0
		for b, q := range reqs {
			for _, s := range m.hits[q] {
				row, ok := m.rows[k.name][s]
				if !ok {
					row = string(make([]byte, k.bytes))
				}
				out[k.name] = append(out[k.name], row)
			}
			for range counts[b] {
				out[k.name] = append(out[k.name], k.rows[at])
				at++
			}
		}
	}
	for _, q := range reqs {
		for _, s := range m.hits[q] {
			if _, ok := m.rows[omni.HiddenKey][s]; m.wants && !ok {
				missing[q] = true
			}
		}
	}
	m.steps[step], m.missing[step] = out, missing
	clear(m.hits)
}
