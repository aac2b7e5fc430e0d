package prefix

import (
	"strings"
	"testing"
)

// Check has to see when what is counted for a tenant is not what it holds: quotas are
// decided by these numbers alone.
func TestCheck_NoticesDamageToTenants(t *testing.T) {
	build := func() *Manager {
		m, err := New(Config{PageTokens: 4, BasePages: 40, DraftPages: 40, MaxRecords: 40, RecurrentSlots: 4, PartialSlots: 4, TenantQuota: 500})
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(3) {
			ask(t, m, 1, tokens(10+i, 8))
			ask(t, m, 2, tokens(20+i, 8))
		}
		if res, err := m.Acquire(&AcquireRequest{Mode: Spec, Tokens: tokens(40, 8), Extras: &Extras{Isolation: tenantKey(2)}}); err != nil || res.Status != Acquired {
			t.Fatal(res.Status, err)
		} else if _, err := m.Publish(res.Lease, 8); err != nil {
			t.Fatal(err)
		}
		if res, err := m.Acquire(&AcquireRequest{Tokens: tokens(30, 8), Extras: &Extras{Isolation: tenantKey(1)}}); err != nil || res.Status != Acquired {
			t.Fatal(res.Status, err)
		}
		return m
	}
	of := func(m *Manager, n int) *tenant { return &m.tenants.all[m.tenants.of[tenantKey(n)]] }
	for _, d := range []struct {
		says   string
		damage func(m *Manager)
	}{
		{"holds", func(m *Manager) { of(m, 1).Pages++ }},
		{"holds", func(m *Manager) { of(m, 1).ActivePages-- }},
		{"holds", func(m *Manager) { of(m, 2).Records++ }},
		{"holds", func(m *Manager) { of(m, 2).Snapshots++ }},
		{"holds", func(m *Manager) { of(m, 1).realms++ }},
		{"snapshot slots", func(m *Manager) { of(m, 1).slots[0].all++ }},
		{"snapshot slots", func(m *Manager) { of(m, 2).slots[1].active-- }},
		{"partial page", func(m *Manager) { of(m, 1).partial++ }},
		{"draft pages", func(m *Manager) { of(m, 1).draft.all++ }},
		{"draft pages", func(m *Manager) { of(m, 2).draft.active-- }},
		{"records of", func(m *Manager) { of(m, 1).pages = 1 }},
		{"is listed for tenant", func(m *Manager) { m.tenants.record[m.order.First()].tenant++ }},
		{"list of tenant", func(m *Manager) { of(m, 1).list.first = m.tenants.record[of(m, 1).list.first].next }},
		{"list of tenant", func(m *Manager) { of(m, 1).list.first = -1 }},
		{"still wants", func(m *Manager) { of(m, 1).want[BasePages] = 1 }},
		{"are idle", func(m *Manager) { m.tenants.idleCount++ }},
		{"are still blamed", func(m *Manager) { m.tenants.cause[0] = 1 }},
	} {
		m := build()
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		d.damage(m)
		if err := m.Check(); err == nil || !strings.Contains(err.Error(), d.says) {
			t.Errorf("Check says %v, want %q", err, d.says)
		}
	}
}
