package prefix

import (
	"iter"

	"libprefixcache/core/status"
)

// The calls of this file do nothing when tenants are not counted.

// charge counts base pages of a realm that were taken or freed, and that leases came to
// own or gave up.
func (m *Manager) charge(realm int32, pages, active int) {
	if m.tenants != nil {
		x := &m.tenants.all[m.realms[realm].tenant]
		x.Pages += pages
		x.ActivePages += active
	}
}

// withinQuota says whether a tenant may take want pages more, once pin of its cached
// ones are in use: exact, because evicting all its records leaves what leases own.
func (m *Manager) withinQuota(realm int32, e *Extras, pin, want Demand) bool {
	s := m.tenants
	if s == nil {
		return true
	}
	var t int32
	if realm >= 0 {
		t = s.m.realms[realm].tenant
	} else {
		t = s.open(isolation(e))
	}
	x := &s.all[t]
	if x.canHold(pin, want) {
		return true
	}
	x.Refused++
	return false
}

func (x *tenant) canHold(pin, want Demand) bool {
	return want[BasePages] <= x.pages-x.ActivePages-pin[BasePages] &&
		(want[DraftPages] == 0 || want[DraftPages] <= x.drafts-x.draft.active-pin[DraftPages])
}

// batchWithinQuota is withinQuota for the leases of a batch together, which are open
// and own what they bind.
func (m *Manager) batchWithinQuota() bool {
	s := m.tenants
	if s == nil {
		return true
	}
	ok := true
	for i := range m.batch {
		x := &s.all[m.realms[m.batch[i].realm].tenant]
		x.want[BasePages] += m.batch[i].plan.Demand[BasePages]
		x.want[DraftPages] += m.batch[i].plan.Demand[DraftPages]
		if !x.canHold(Demand{}, x.want) {
			x.Refused++
			ok = false
		}
	}
	if !ok {
		m.endBatch()
	}
	return ok
}

// evictForBatch makes room below the quota of every tenant of the batch.
func (m *Manager) evictForBatch() {
	s := m.tenants
	if s == nil || len(m.batch) == 0 {
		return
	}
	first := m.realms[m.batch[0].realm].tenant
	other := int32(-1)
	for i := range m.batch {
		t := m.realms[m.batch[i].realm].tenant
		m.evictOwn(m.batch[i].realm, s.all[t].want, -1)
		if t != first {
			other = t
		}
	}
	s.cause = [2]int32{first, other}
	m.endBatch()
}

func (m *Manager) endBatch() {
	for i := range m.batch {
		m.tenants.all[m.realms[m.batch[i].realm].tenant].want = Demand{}
	}
}

// evictOwn evicts a tenant's own records, least recent first and spare last, until it
// may take want pages more. From here on evictions are its doing, until endCause.
func (m *Manager) evictOwn(realm int32, want Demand, spare int32) {
	s := m.tenants
	if s == nil {
		return
	}
	t := m.realms[realm].tenant
	s.cause[0] = t
	for x := &s.all[t]; ; {
		over := x.Pages + want[BasePages] - x.pages
		if over <= 0 && (want[DraftPages] == 0 || x.draft.all+want[DraftPages] <= x.drafts) {
			return
		}
		victim := x.list.first
		if victim == spare && victim >= 0 {
			if next := s.record[victim].next; next >= 0 {
				victim = next
			}
		}
		if victim < 0 {
			return
		}
		if m.cfg.ShortenVictims && over > 0 && m.shorten(victim, over) {
			continue
		}
		m.evict(victim)
	}
}

// beyondRecords: more records, of whatever kind, than the tenant may have.
func (x *tenant) beyondRecords() bool {
	return x.Records > x.records || x.Snapshots > x.snapshots || x.partial > x.partials
}

// enforceOwn is enforceLimit for the records of one tenant.
func (m *Manager) enforceOwn(keep int32) {
	s := m.tenants
	if s == nil || m.cfg.MaxRecords == 0 {
		return
	}
	t := s.record[keep].tenant
	s.cause[0] = t
	for x := &s.all[t]; x.beyondRecords(); {
		victim := x.list.first
		if victim == keep {
			victim = s.record[victim].next
		}
		if victim < 0 {
			return
		}
		m.evict(victim)
	}
}

// endCause says that evictions from here on are nobody's doing.
func (m *Manager) endCause() {
	if m.tenants != nil {
		m.tenants.cause = [2]int32{-1, -1}
	}
}

// settleQuota brings a tenant below a quota that was lowered while its leases owned
// more, now that one has ended.
func (m *Manager) settleQuota(t int32) {
	s := m.tenants
	for x := &s.all[t]; (x.Pages > max(x.pages, x.ActivePages) || x.draft.all > max(x.drafts, x.draft.active) || x.beyondRecords()) && x.list.first >= 0; {
		m.evict(x.list.first)
	}
}

// asked counts a lease and its tokens.
func (m *Manager) asked(realm int32, tokens, hit int) {
	if m.tenants != nil {
		x := &m.tenants.all[m.realms[realm].tenant]
		x.Queries++
		x.QueryTokens += uint64(tokens)
		x.HitTokens += uint64(hit)
	}
}

// SetQuota gives one tenant a share of its own, in per mille of the base pages and of
// the records; 0: the default again. What it holds beyond that and no lease uses is
// evicted now, the rest as its leases end.
func (m *Manager) SetQuota(key OptionalHash, perMille int) error {
	s := m.tenants
	if s == nil {
		return status.New(status.WrongState, "tenant_quota is 0, so tenants are not counted; expected a manager that was made with 1 to 1000")
	}
	if perMille < 0 || perMille > 1000 {
		return status.New(status.InvalidArgument, "quota is %d per mille, expected 0..1000", perMille)
	}
	if !key.Present {
		key = OptionalHash{}
	}
	t := s.open(key)
	x := &s.all[t]
	had := x.perMille != 0
	x.perMille = perMille
	s.limit(x)
	if x.realms == 0 && had != (perMille != 0) {
		if had {
			s.rest(t)
			return nil
		}
		s.wake(t)
	}
	m.settleQuota(t)
	return nil
}

// QuotaOf is how many pages of each pool the tenant of a sequence may hold, and LeaseQuota
// the same for a live lease. No more can be had, whoever ends; the pools themselves where
// tenants are not counted.
func (m *Manager) QuotaOf(e *Extras) Demand {
	if m.tenants != nil {
		if t, ok := m.tenants.of[isolation(e)]; ok {
			return m.tenants.quota(t)
		}
	}
	return m.Pools()
}

func (m *Manager) LeaseQuota(id LeaseID) Demand {
	if l := m.lookup(id); l != nil && m.tenants != nil {
		return m.tenants.quota(m.realms[l.realm].tenant)
	}
	return m.Pools()
}

func (s *tenants) quota(t int32) Demand { return Demand{s.all[t].pages, s.all[t].drafts} }

// TenantInfo describes one tenant.
type TenantInfo struct {
	Key        OptionalHash
	PerMille   int // in force
	QuotaPages int
	TenantStats
}

// Tenants yields the tenants that are known. The manager must not be changed meanwhile.
func (m *Manager) Tenants() iter.Seq[TenantInfo] {
	return func(yield func(TenantInfo) bool) {
		if m.tenants == nil {
			return
		}
		for i := range m.tenants.all {
			x := &m.tenants.all[i]
			if x.pages == 0 { // an unused entry
				continue
			}
			share := x.perMille
			if share == 0 {
				share = m.cfg.TenantQuota
			}
			if !yield(TenantInfo{x.key, share, x.pages, x.TenantStats}) {
				return
			}
		}
	}
}

// TenantCount is how many Tenants yields.
func (m *Manager) TenantCount() int {
	if m.tenants == nil {
		return 0
	}
	return len(m.tenants.of)
}
