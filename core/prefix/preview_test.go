package prefix

// evictionPlan is what a demand would cost.
type evictionPlan struct {
	Feasible  bool
	Victims   []RecordID // in order; empty when the demand fits now or never
	Reclaimed Demand     // what the victims would give back
}

// preview simulates C-40 to C-42 literally: it walks records from the next victim on, last
// (0 = none) at the very end, and stops at the shortest prefix whose resources cover the
// demand in all four pools at once. It counts every page; Acquire and Grow have to come to
// the same answer without. With Config.ShortenVictims a victim may only be shortened.
func preview(h *host, d Demand, last RecordID) evictionPlan {
	h.Helper()
	m, p, spare := h.Manager, evictionPlan{}, int32(-1)
	if last != 0 {
		spare = m.recordByID(last)
	}
	if p.Feasible = m.fitsNow(&d); p.Feasible || !m.Feasible(d) {
		return p
	}
	var active, cache [resourceCount][]int32
	for pool := range resourceCount {
		active[pool], cache[pool] = make([]int32, m.Capacity(pool)), make([]int32, m.Capacity(pool))
		if err := m.References(pool, active[pool], cache[pool]); err != nil {
			h.Fatal(err)
		}
	}
	release := func(pool Resource, slots ...int32) {
		for _, s := range slots {
			if cache[pool][s]--; cache[pool][s] == 0 && active[pool][s] == 0 {
				p.Reclaimed[pool]++
			}
		}
	}
	victim := func(i int32) (enough bool) {
		r := &m.records[i]
		p.Victims = append(p.Victims, RecordID(r.id))
		for _, pool := range [...]Resource{BasePages, DraftPages} {
			pages, _ := m.RecordPages(RecordID(r.id), pool, nil)
			release(pool, pages...)
		}
		if r.recurrent >= 0 {
			release(RecurrentSlots, r.recurrent)
		}
		if r.partial >= 0 {
			release(PartialSlots, r.partial)
		}
		for pool, n := range d {
			if m.Free(Resource(pool))+p.Reclaimed[pool] < n {
				return false
			}
		}
		return true
	}
	for i := m.order.First(); i >= 0; i = m.order.After(i) {
		if i != spare && victim(i) {
			p.Feasible = true
			return p
		}
	}
	p.Feasible = spare >= 0 && victim(spare)
	return p
}
