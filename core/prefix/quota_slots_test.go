package prefix

import "testing"

// snapshotsOf fills a cache of 8 slots for tenants that may have 4 each: tenant 1 with
// three cached snapshots, and a lease of tenant 2 that reserves.
func snapshotsOf(t *testing.T) (*Manager, LeaseID) {
	t.Helper()
	m, err := New(Config{PageTokens: 4, BasePages: 200, RecurrentSlots: 8, PartialSlots: 8, MaxRecords: 100, TenantQuota: 500})
	if err != nil {
		t.Fatal(err)
	}
	var lease LeaseID
	for tenant, n := range []uint64{1: 3, 2: 1} {
		for i := range n {
			res, err := m.Acquire(&AcquireRequest{Mode: Hybrid, Tokens: tokens(100*i, 10), Extras: &Extras{Isolation: tenantKey(tenant)}})
			if err != nil || res.Status != Acquired {
				t.Fatal(res, err)
			}
			lease = res.Lease
			if tenant == 1 {
				slots, ok, err := m.Reserve(lease, true)
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				if _, err := m.PublishHybrid(lease, 10, slots); err != nil {
					t.Fatal(err)
				}
				if err := m.Release(lease); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return m, lease
}

// A lease that goes on reserving gets what is free, and then no record of another tenant.
func TestReservedSnapshotsOfOneTenantDoNotPushOutAnothers(t *testing.T) {
	m, lease := snapshotsOf(t)
	reserve := func(want bool) (r Reservation) {
		t.Helper()
		before := m.counters.EvictedRecords
		r, ok, err := m.Reserve(lease, false)
		if err != nil || ok != want || !ok && m.counters.EvictedRecords != before {
			t.Fatalf("reserved %v %v, want %v; %d evicted", ok, err, want, m.counters.EvictedRecords-before)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for range 5 { // free slots: beyond the quota, but nobody's loss
		reserve(true)
	}
	reserve(false)
	if one, two := tenantInfo(m, 1), tenantInfo(m, 2); one.Records != 3 || one.Evicted != 0 || two.Refused != 1 {
		t.Errorf("%+v and %+v", one, two)
	}
	if err := m.Release(lease); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}

// What it has cached itself goes first, and suffices.
func TestReservedSnapshotsPushOutTheTenantsOwn(t *testing.T) {
	m, lease := snapshotsOf(t)
	var held []Reservation
	for range 4 {
		r, ok, err := m.Reserve(lease, true)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		held = append(held, r)
	}
	if _, err := m.PublishHybrid(lease, 10, held[0]); err != nil {
		t.Fatal(err)
	}
	if err := m.Retire(lease, held[0]); err != nil { // cached: it has 3 in use and 1 cached
		t.Fatal(err)
	}
	for i := range 3 { // the free slot, its own snapshot's, and no more
		if _, ok, err := m.Reserve(lease, i == 1); err != nil || ok != (i < 2) {
			t.Fatal(i, ok, err)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if one, two := tenantInfo(m, 1), tenantInfo(m, 2); one.Records != 3 || two.Records != 0 {
		t.Errorf("%+v and %+v", one, two)
	}
}

// A pool of partial pages that is smaller than that of recurrent slots is shared out like it.
func TestPartialPagesOfOneTenantDoNotPushOutAnothers(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 400, RecurrentSlots: 40, PartialSlots: 4, MaxRecords: 100, TenantQuota: 500})
	if err != nil {
		t.Fatal(err)
	}
	snapshot := func(tenant int, seed uint64, n int) bool {
		t.Helper()
		res, err := m.Acquire(&AcquireRequest{Mode: Hybrid, Tokens: tokens(seed, n), Extras: &Extras{Isolation: tenantKey(tenant)}})
		if err != nil || res.Status != Acquired {
			t.Fatal(res, err)
		}
		slots, ok, err := m.Reserve(res.Lease, n%4 != 0)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			if _, err := m.PublishHybrid(res.Lease, n, slots); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		if err := m.Release(res.Lease); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		return ok
	}
	for i := range uint64(2) {
		snapshot(1, i, 10)
	}
	snapshot(2, 50, 8) // ends at a page boundary: it needs none, and may go for one that does
	for i := range uint64(6) {
		if !snapshot(2, 100+i, 10) {
			t.Errorf("snapshot %d of tenant 2 had room among its own", i)
		}
	}
	if one, two := tenantInfo(m, 1), tenantInfo(m, 2); one.Records != 2 || one.Evicted != 0 || two.Records != 2 {
		t.Errorf("%+v and %+v", one, two)
	}
	if err := m.SetQuota(tenantKey(2), 250); err != nil { // one of four
		t.Fatal(err)
	}
	if two := tenantInfo(m, 2); two.Records != 1 {
		t.Errorf("%+v", two)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}
