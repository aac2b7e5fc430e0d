package prefix

import "testing"

// specLease acquires a speculative lease of a tenant.
func specLease(t *testing.T, m *Manager, tenant int, prompt []int32) (LeaseID, AcquireStatus) {
	t.Helper()
	res, err := m.Acquire(&AcquireRequest{Mode: Spec, Tokens: prompt, Extras: &Extras{Isolation: tenantKey(tenant)}})
	if err != nil {
		t.Fatal(err)
	}
	return res.Lease, res.Status
}

// served publishes a prompt for a tenant, whatever it finds.
func served(t *testing.T, m *Manager, tenant int, prompt []int32) {
	t.Helper()
	id, st := specLease(t, m, tenant, prompt)
	if st != Acquired {
		t.Fatal(st)
	}
	if _, err := m.Publish(id, len(prompt)); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(id); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}

// The base pages of copies of a prompt that begin together are shared in the end, their
// draft pages are not: a tenant far below its quota of base pages must not push others
// out of the draft pool.
func TestCopiesOfAPromptDoNotPushOthersOutOfTheDraftPool(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 1000, DraftPages: 100, MaxRecords: 1000, TenantQuota: 500})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(4) { // 40 draft pages, all cached
		served(t, m, 1, tokens(i, 40))
	}
	refused := 0
	for round := range uint64(5) {
		var batch []LeaseID
		for n := range 8 { // a copy each, a block longer than the one before
			id, st := specLease(t, m, 2, tokens(100+round, 40+4*n))
			if st == OverQuota {
				refused++
				continue
			}
			batch = append(batch, id)
		}
		for i, id := range batch {
			if _, err := m.Publish(id, 40+4*i); err != nil {
				t.Fatal(err)
			}
			if err := m.Release(id); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
	}
	one, two := tenantInfo(m, 1), tenantInfo(m, 2)
	if one.Records != 4 || one.Evicted != 0 || refused == 0 || two.Records == 0 {
		t.Errorf("%d refused; %+v and %+v", refused, one, two)
	}
	for i := range uint64(4) {
		res, err := m.Plan(&AcquireRequest{Mode: Spec, Tokens: tokens(i, 41), Extras: &Extras{Isolation: tenantKey(1)}})
		if err != nil || res.BoundDraft == 0 {
			t.Errorf("prompt %d of tenant 1 has no draft state left: %+v %v", i, res, err)
		}
	}
}

// What a tenant has cached of the draft pool goes before anybody else's, when it grows
// and in a batch, too; a quota that is lowered is met as its leases end.
func TestATenantsOwnDraftPagesGoFirst(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 1000, DraftPages: 40, MaxRecords: 1000, TenantQuota: 500})
	if err != nil {
		t.Fatal(err)
	}
	served(t, m, 1, tokens(1, 80)) // 20: all that it may have
	served(t, m, 2, tokens(2, 40))
	served(t, m, 2, tokens(3, 40))
	id, st := specLease(t, m, 2, tokens(4, 40))
	if st != Acquired || tenantInfo(m, 2).Records != 1 {
		t.Fatal(st, tenantInfo(m, 2))
	}
	if ok, err := m.Grow(id, 10, 10); !ok || err != nil || tenantInfo(m, 2).Records != 0 {
		t.Fatal(ok, err, tenantInfo(m, 2))
	}
	if ok, err := m.Grow(id, 1, 1); ok || err != nil {
		t.Fatal("beyond the quota", err)
	}
	if ok, err := m.Grow(id, 1, 0); !ok || err != nil {
		t.Fatal("a base page is below it", err)
	}
	out := make([]AcquireResult, 2)
	req := AcquireRequest{Mode: Spec, Tokens: tokens(5, 40), Extras: &Extras{Isolation: tenantKey(1)}}
	if ok, err := m.AcquireBatch([]AcquireRequest{req, req}, out); !ok || err != nil || tenantInfo(m, 1).Records != 0 {
		t.Fatal(ok, err, tenantInfo(m, 1))
	}
	if err := m.SetQuota(tenantKey(2), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Publish(id, 40); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(id); err != nil {
		t.Fatal(err)
	}
	if all, _, most := draftOf(m, 2); all > most || most != 4 {
		t.Errorf("%d draft pages of %d", all, most)
	}
	if two := tenantInfo(m, 2); two.EvictedByOther != 0 {
		t.Errorf("%+v", two)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}
