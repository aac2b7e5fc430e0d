package prefix

// A tenant is all sequences with one isolation key, or all without one. Realms of
// different tenants share no page, so every page that is not free belongs to exactly
// one, and counting is an addition where pages are taken, pinned and freed.
//
// With Config.TenantQuota a tenant may hold so many base pages, draft pages, records and snapshots
// and no more, in use or cached:
//
//   - A demand that would take it beyond that is met from its own records, least recent
//     first, before anybody else's is looked at.
//   - A demand that its own records cannot meet is refused (OverQuota). As with C-42 that
//     is a subtraction: what its leases own, what the hit would pin, and the demand
//     against the quota.
//   - So nobody is ever beyond its quota when somebody else's record is evicted, and with
//     quotas that add up to the pool nobody's record ever is.
//
// Off, there are no tenants: nothing is counted, and the order of eviction is Order's.
type tenants struct {
	m     *Manager
	all   []tenant
	of    map[OptionalHash]int32
	spare int32 // unused entries, linked by next
	// Tenants that hold nothing, least recent first: they keep their counters until
	// there are too many of them.
	idle      lruEnds
	idleCount int
	record    []tenantRecord
	cause     [2]int32 // who evicts now, and another one of the same batch; -1 = nobody
}

type tenant struct {
	key       OptionalHash
	perMille  int // of its own, 0 = the default
	pages     int // quota of base pages
	records   int // of records
	snapshots int // of records with a snapshot, which each take a recurrent slot
	partials  int // of records with a partial page
	drafts    int // of draft pages
	realms    int32
	list      lruEnds      // its records, least recent first
	link      lruLink      // among the idle
	want      Demand       // of the batch that is judged
	slots     [2]slotCount // recurrent, partial
	draft     slotCount    // draft pages
	partial   int          // records with a partial page
	TenantStats
}

// TenantStats are counters of a tenant since it was first seen, and what it holds.
type TenantStats struct {
	Pages       int // base pages in use or cached
	ActivePages int // in use by leases
	Records     int
	Snapshots   int // of these, with a snapshot

	Queries        uint64 // leases
	QueryTokens    uint64 // of their prompts
	HitTokens      uint64 // reused
	Evicted        uint64 // records, for whatever reason
	EvictedByOther uint64 // to make room for another tenant
	EvictedOthers  uint64 // of other tenants, to make room for this one
	Refused        uint64 // demands beyond the quota
}

type lruEnds struct{ first, last int32 }

// tenantRecord is the place of a record in its tenant's list.
type tenantRecord struct {
	lruLink
	tenant int32
}

// maxIdleTenants bounds what is remembered of tenants that hold nothing.
const maxIdleTenants = 1024

func newTenants(m *Manager) *tenants {
	return &tenants{m: m, of: make(map[OptionalHash]int32), spare: -1, idle: lruEnds{-1, -1}, cause: [2]int32{-1, -1}}
}

// isolation is the key of a tenant.
func isolation(e *Extras) OptionalHash {
	if e == nil || !e.Isolation.Present {
		return OptionalHash{}
	}
	return e.Isolation
}

// limit sets what a share allows.
func (s *tenants) limit(x *tenant) {
	share := x.perMille
	if share == 0 {
		share = s.m.cfg.TenantQuota
	}
	x.pages = max(1, s.m.cfg.BasePages*share/1000)
	x.records = max(1, s.m.cfg.MaxRecords*share/1000)
	x.snapshots = max(1, s.m.cfg.RecurrentSlots*share/1000)
	x.partials = max(1, s.m.cfg.PartialSlots*share/1000)
	x.drafts = max(1, s.m.cfg.DraftPages*share/1000)
}

// open returns the tenant of a key, a new one if it is not known.
func (s *tenants) open(key OptionalHash) int32 {
	if t, ok := s.of[key]; ok {
		return t
	}
	t := s.spare
	if t >= 0 {
		s.spare = s.all[t].link.next
	} else {
		t = int32(len(s.all))
		s.all = append(s.all, tenant{})
	}
	s.all[t] = tenant{key: key, list: lruEnds{-1, -1}}
	s.limit(&s.all[t])
	s.of[key] = t
	s.rest(t)
	return t
}

// enter counts a realm of a tenant, leave takes it away again.
func (s *tenants) enter(key OptionalHash) int32 {
	t := s.open(key)
	if s.all[t].realms == 0 && s.all[t].perMille == 0 {
		s.wake(t)
	}
	s.all[t].realms++
	return t
}

func (s *tenants) leave(t int32) {
	if s.all[t].realms--; s.all[t].realms == 0 && s.all[t].perMille == 0 {
		s.rest(t)
	}
}

// rest puts a tenant among the idle, and forgets the one that is there longest when
// there are too many.
func (s *tenants) rest(t int32) {
	s.all[t].link = lruLink{s.idle.last, -1}
	if s.idle.last >= 0 {
		s.all[s.idle.last].link.next = t
	} else {
		s.idle.first = t
	}
	s.idle.last = t
	if s.idleCount++; s.idleCount > maxIdleTenants {
		old := s.idle.first
		s.wake(old)
		delete(s.of, s.all[old].key)
		s.all[old] = tenant{link: lruLink{-1, s.spare}}
		s.spare = old
	}
}

func (s *tenants) wake(t int32) {
	k := s.all[t].link
	if k.prev >= 0 {
		s.all[k.prev].link.next = k.next
	} else {
		s.idle.first = k.next
	}
	if k.next >= 0 {
		s.all[k.next].link.prev = k.prev
	} else {
		s.idle.last = k.prev
	}
	s.idleCount--
}

// tenantOrder keeps, beside the order of all records, one for each tenant.
type tenantOrder struct {
	Order
	s *tenants
}

func (o tenantOrder) Add(r int32) {
	o.Order.Add(r)
	s := o.s
	for int(r) >= len(s.record) {
		s.record = append(s.record, tenantRecord{lruLink{-1, -1}, -1})
	}
	s.record[r].tenant = s.m.realms[s.m.nodes[s.m.records[r].node].realm].tenant
	s.push(r)
}

func (o tenantOrder) Touch(r int32) {
	o.Order.Touch(r)
	o.s.pull(r)
	o.s.push(r)
}

func (o tenantOrder) Remove(r int32) {
	o.Order.Remove(r)
	o.s.pull(r)
	o.s.blame(o.s.record[r].tenant)
}

func (s *tenants) push(r int32) {
	k := &s.record[r]
	x := &s.all[k.tenant]
	k.lruLink = lruLink{x.list.last, -1}
	if x.list.last >= 0 {
		s.record[x.list.last].next = r
	} else {
		x.list.first = r
	}
	x.list.last = r
	x.Records++
	if s.m.records[r].exact != 0 {
		x.Snapshots++
	}
	if s.m.records[r].partial >= 0 {
		x.partial++
	}
}

func (s *tenants) pull(r int32) {
	k := s.record[r]
	x := &s.all[k.tenant]
	if k.prev >= 0 {
		s.record[k.prev].next = k.next
	} else {
		x.list.first = k.next
	}
	if k.next >= 0 {
		s.record[k.next].prev = k.prev
	} else {
		x.list.last = k.prev
	}
	x.Records--
	if s.m.records[r].exact != 0 {
		x.Snapshots--
	}
	if s.m.records[r].partial >= 0 {
		x.partial--
	}
}

// blame counts an eviction for the one who suffers it and the one who causes it.
func (s *tenants) blame(victim int32) {
	s.all[victim].Evicted++
	for _, by := range s.cause {
		if by >= 0 && by != victim {
			s.all[victim].EvictedByOther++
			s.all[by].EvictedOthers++
			return
		}
	}
}
