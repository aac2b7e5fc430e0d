package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"libprefixcache/core/status"
)

func tenantKey(n int) OptionalHash {
	if n == 0 {
		return OptionalHash{}
	}
	return OptionalHash{true, Hash128{uint64(n), 0}}
}

func tenantInfo(m *Manager, n int) TenantInfo {
	for t := range m.Tenants() {
		if t.Key == tenantKey(n) {
			return t
		}
	}
	return TenantInfo{}
}

// ask acquires a prompt of n tokens for a tenant, publishes and releases it.
func ask(t *testing.T, m *Manager, tenant int, tok []int32) AcquireStatus {
	t.Helper()
	res, err := m.Acquire(&AcquireRequest{Tokens: tok, Extras: &Extras{Isolation: tenantKey(tenant)}})
	if err != nil {
		t.Fatal(err)
	}
	if res.Status == Acquired {
		publishAll(t, m, res.Lease, Vanilla, len(tok))
		if err := m.Release(res.Lease); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return res.Status
}

func TestOneTenantCannotFlushAnother(t *testing.T) {
	for _, quota := range []int{0, 1000, 500} {
		m, err := New(Config{PageTokens: 4, BasePages: 40, MaxRecords: 40, TenantQuota: quota})
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(4) { // 16 pages of tenant 1
			ask(t, m, 1, tokens(100*i, 16))
		}
		for i := range uint64(50) { // 200 pages of tenant 2
			ask(t, m, 2, tokens(100*i, 16))
		}
		found := 0
		for i := range uint64(4) {
			n, _, err := m.Lookup(&AcquireRequest{Tokens: tokens(100*i, 16), Extras: &Extras{Isolation: tenantKey(1)}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			found += n
		}
		if want := map[int]int{0: 0, 1000: 0, 500: 16}[quota]; found != want {
			t.Errorf("quota %d: %d blocks of tenant 1 are left, expected %d", quota, found, want)
		}
		one, two := tenantInfo(m, 1), tenantInfo(m, 2)
		switch quota {
		case 0:
			if m.TenantCount() != 0 || one != (TenantInfo{}) {
				t.Errorf("tenants are counted: %+v", one)
			}
		case 1000: // counted, not limited
			if one.EvictedByOther != 4 || two.EvictedOthers != 4 || one.Evicted != 4 || two.Pages != 40 {
				t.Errorf("%+v and %+v", one, two)
			}
		case 500:
			if one.EvictedByOther != 0 || two.EvictedOthers != 0 || one.Pages != 16 || two.Pages != 20 || two.Records != 5 || two.Evicted != 45 {
				t.Errorf("%+v and %+v", one, two)
			}
			if two.Queries != 50 || two.QueryTokens != 800 || two.HitTokens != 0 || one.QuotaPages != 20 || one.PerMille != 500 {
				t.Errorf("%+v and %+v", one, two)
			}
		}
	}
}

// A batch is judged and makes room tenant by tenant.
func TestABatchEvictsForEachOfItsTenants(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 100, MaxRecords: 100, TenantQuota: 200})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(5) {
		for tenant := 1; tenant <= 3; tenant++ {
			ask(t, m, tenant, tokens(100*i, 16)) // 20 of 20 pages each
		}
	}
	reqs := make([]AcquireRequest, 3)
	for i, tenant := range []int{1, 2, 1} {
		reqs[i] = AcquireRequest{Tokens: tokens(uint64(9000+i), 24), Extras: &Extras{Isolation: tenantKey(tenant)}}
	}
	out := make([]AcquireResult, 3)
	ok, err := m.AcquireBatch(reqs, out)
	if !ok || err != nil {
		t.Fatal(ok, err, out)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for tenant, want := range []TenantStats{1: {Pages: 20, Evicted: 3}, 2: {Pages: 18, Evicted: 2}, 3: {Pages: 20}} {
		if got := tenantInfo(m, tenant); got.Pages != want.Pages || got.Evicted != want.Evicted || got.EvictedByOther != 0 {
			t.Errorf("tenant %d: %+v, expected %+v", tenant, got, want)
		}
	}
	// Together the two of tenant 1 would pass its quota: none is admitted.
	var before, after strings.Builder
	_ = m.Dump(&before)
	reqs[0].Tokens, reqs[1].Tokens, reqs[2].Tokens = tokens(1, 16), tokens(2, 4), tokens(3, 20)
	if ok, err := m.AcquireBatch(reqs, out); ok || err != nil || out[1].Status != OverQuota {
		t.Errorf("%v, %v, %+v", ok, err, out)
	}
	_ = m.Dump(&after)
	if before.String() != after.String() {
		t.Errorf("a refused batch changed\n%s\nto\n%s", before.String(), after.String())
	}
}

// What its leases own counts; a demand beyond the quota is refused and changes nothing.
func TestADemandBeyondTheQuotaIsRefused(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 40, MaxRecords: 40, TenantQuota: 250})
	if err != nil {
		t.Fatal(err)
	}
	e := &Extras{Isolation: tenantKey(1)}
	held, err := m.Acquire(&AcquireRequest{Tokens: tokens(1, 24), Extras: e}) // 6 of 10 pages
	if err != nil || held.Status != Acquired {
		t.Fatal(held, err)
	}
	var before, after strings.Builder
	_ = m.Dump(&before)
	res, err := m.Acquire(&AcquireRequest{Tokens: tokens(500, 20), Extras: e})
	if err != nil || res.Status != OverQuota || res.Lease != 0 || res.Plan.Demand[BasePages] != 5 {
		t.Errorf("5 pages more: %+v, %v", res, err)
	}
	if ok, err := m.Grow(held.Lease, 5, 0); ok || err != nil {
		t.Errorf("growth by 5: %v, %v", ok, err)
	}
	out := make([]AcquireResult, 2)
	if ok, err := m.AcquireBatch([]AcquireRequest{{Tokens: tokens(500, 8), Extras: e}, {Tokens: tokens(600, 12), Extras: e}}, out); ok || err != nil || out[0].Status != OverQuota {
		t.Errorf("a batch of 2 and 3 pages: %v, %v, %+v", ok, err, out)
	}
	_ = m.Dump(&after)
	if before.String() != after.String() {
		t.Errorf("a refused demand changed\n%s\nto\n%s", before.String(), after.String())
	}
	if got := tenantInfo(m, 1); got.Refused != 3 || got.Pages != 6 || got.ActivePages != 6 {
		t.Errorf("%+v", got)
	}
	if ok, err := m.Grow(held.Lease, 4, 0); !ok || err != nil {
		t.Errorf("growth by 4: %v, %v", ok, err)
	}
	// Others are not concerned.
	if got := ask(t, m, 2, tokens(500, 40)); got != Acquired {
		t.Errorf("tenant 2: %v", got)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestSetQuotaActsAtOnceAndAsLeasesEnd(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 100, MaxRecords: 100, TenantQuota: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(10) {
		ask(t, m, 1, tokens(100*i, 16)) // 40 pages
	}
	held, err := m.Acquire(&AcquireRequest{Tokens: tokens(7000, 80), Extras: &Extras{Isolation: tenantKey(1)}}) // 20 more
	if err != nil {
		t.Fatal(err)
	}
	publishAll(t, m, held.Lease, Vanilla, 80)
	if err := m.SetQuota(tenantKey(1), 300); err != nil {
		t.Fatal(err)
	}
	if got := tenantInfo(m, 1); got.Pages > 30 || got.ActivePages != 20 || got.PerMille != 300 {
		t.Errorf("after the quota was lowered: %+v", got)
	}
	if err := m.SetQuota(tenantKey(1), 100); err != nil {
		t.Fatal(err)
	}
	if got := tenantInfo(m, 1); got.Pages != 20 || got.ActivePages != 20 {
		t.Errorf("a quota below what leases own: %+v", got)
	}
	if err := m.Release(held.Lease); err != nil {
		t.Fatal(err)
	}
	if got := tenantInfo(m, 1); got.Pages != 0 {
		t.Errorf("after the lease ended: %+v", got)
	}
	if err := m.SetQuota(tenantKey(1), 0); err != nil || tenantInfo(m, 1).PerMille != 1000 {
		t.Errorf("back to the default: %v, %+v", err, tenantInfo(m, 1))
	}
	for _, q := range []int{-1, 1001} {
		if err := m.SetQuota(tenantKey(1), q); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("quota %d: %v", q, err)
		}
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	off, err := New(Config{PageTokens: 4, BasePages: 4, MaxRecords: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := off.SetQuota(tenantKey(1), 100); status.CodeOf(err) != status.WrongState {
		t.Errorf("quota without tenants: %v", err)
	}
}

// Salts come and go by the million; what is remembered of them does not grow.
func TestIdleTenantsAreForgotten(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 8, MaxRecords: 8, TenantQuota: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SetQuota(tenantKey(5), 500); err != nil {
		t.Fatal(err)
	}
	for n := range 5 * maxIdleTenants {
		res, err := m.Acquire(&AcquireRequest{Tokens: tokens(1, 5), Extras: &Extras{Isolation: tenantKey(1000 + n)}})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Release(res.Lease); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if n := m.TenantCount(); n > maxIdleTenants+2 || len(m.tenants.all) > maxIdleTenants+3 {
		t.Errorf("%d tenants are remembered in %d entries", n, len(m.tenants.all))
	}
	if tenantInfo(m, 5).PerMille != 500 {
		t.Error("a quota that was set is forgotten")
	}
}

// Hybrid: snapshot slots are shared like records.
func TestSnapshotsOfOneTenantDoNotPushOutAnothers(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 200, RecurrentSlots: 8, PartialSlots: 8, MaxRecords: 100, TenantQuota: 500})
	if err != nil {
		t.Fatal(err)
	}
	snapshot := func(tenant int, first uint64) {
		t.Helper()
		res, err := m.Acquire(&AcquireRequest{Mode: Hybrid, Tokens: tokens(first, 8), Extras: &Extras{Isolation: tenantKey(tenant)}})
		if err != nil || res.Status != Acquired {
			t.Fatal(res, err)
		}
		publishAll(t, m, res.Lease, Hybrid, 8)
		if err := m.Release(res.Lease); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(4) { // with the 4 of tenant 2 all slots are taken
		snapshot(1, 100*i)
	}
	for i := range uint64(30) {
		snapshot(2, 100*i)
	}
	if one, two := tenantInfo(m, 1), tenantInfo(m, 2); one.Records != 4 || one.Evicted != 0 || two.Records != 4 {
		t.Errorf("%+v and %+v", one, two)
	}
}

// Random traffic of four tenants, with an eye on each decision: what is refused for the
// quota could not have been had, what is granted stays below it, and a record of another
// tenant goes only when the demand is below the quota and pages are short all the same.
func TestQuotasUnderRandomTraffic(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 11))
			cfg := Config{PageTokens: 4, BasePages: 60, DraftPages: 60, RecurrentSlots: 6 * int(seed%2), PartialSlots: 6, MaxRecords: 12,
				TenantQuota: []int{250, 400, 700, 1000}[seed%4], ShortenVictims: seed%3 == 0,
				ZeroOnRelease: seed%2 == 1}
			m, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			type live struct {
				id     LeaseID
				tenant int
				mode   Mode
				n      int
			}
			var leases []live
			outcomes := map[AcquireStatus]int{}
			for range 1200 {
				before := map[int]TenantInfo{}
				for n := range 4 {
					before[n] = tenantInfo(m, n)
				}
				free := m.Free(BasePages)
				tenant, others := -1, true // who may lose records
				want := 0
				switch k := r.IntN(10); {
				case k < 4 || len(leases) == 0:
					tenant = r.IntN(4)
					req := AcquireRequest{Mode: []Mode{Vanilla, Vanilla, Spec, Hybrid}[r.IntN(4)],
						Tokens: tokens(uint64(100*r.IntN(6)), 4+r.IntN(50)), Extras: &Extras{Isolation: tenantKey(tenant)}}
					if cfg.RecurrentSlots == 0 && req.Mode == Hybrid {
						req.Mode = Vanilla
					}
					if r.IntN(3) == 0 {
						req.Extras.Adapter = Adapter{true, Hash128{1, 1}, uint64(r.IntN(2))}
					}
					res, err := m.Acquire(&req)
					if err != nil {
						t.Fatal(err)
					}
					outcomes[res.Status]++
					want = res.Plan.Demand[BasePages]
					info := before[tenant]
					quota := max(1, cfg.BasePages*cfg.TenantQuota/1000)
					if info.PerMille != 0 {
						quota = info.QuotaPages
					}
					pinned := 0 // by the hit, and in nobody's hands before: counted from outside
					if res.Status == OverQuota {
						pinned = m.inactivePages(t, &req)
					}
					switch res.Status {
					case Acquired:
						if now := tenantInfo(m, tenant); info.Pages <= quota && now.Pages > quota {
							t.Fatalf("tenant %d holds %d pages of %d", tenant, now.Pages, quota)
						}
						leases = append(leases, live{res.Lease, tenant, req.Mode, len(req.Tokens)})
						if all, active, most := draftOf(m, tenant); all > max(most, active) {
							t.Fatalf("tenant %d holds %d draft pages of %d, %d of them in use", tenant, all, most, active)
						}
					case OverQuota:
						_, active, most := draftOf(m, tenant)
						if want+pinned+info.ActivePages <= quota && res.Plan.Demand[DraftPages]+res.Plan.BoundDraft+active <= most {
							t.Fatalf("%d pages are refused, %d pinned, %d of %d in use", want, pinned, info.ActivePages, quota)
						}
					}
					if res.Status != Acquired && before[tenant].Records != tenantInfo(m, tenant).Records {
						t.Fatal("a refused demand evicted")
					}
					others = want > free
				case k < 6:
					i := r.IntN(len(leases))
					tenant, want = leases[i].tenant, 1+r.IntN(3)
					if leases[i].mode == Hybrid {
						break
					}
					draft := 0
					if leases[i].mode == Spec {
						draft = want
					}
					ok, err := m.Grow(leases[i].id, want, draft)
					if err != nil {
						t.Fatal(err)
					}
					if info := before[tenant]; !ok && info.ActivePages+want <= info.QuotaPages && draftFits(m, tenant, draft) && m.Feasible(Demand{want, draft}) {
						t.Fatalf("growth by %d is refused with %d of %d in use", want, info.ActivePages, info.QuotaPages)
					}
				case k < 8:
					i := r.IntN(len(leases))
					if l := leases[i]; l.mode == Hybrid {
						if res, ok, err := m.Reserve(l.id, false); err != nil {
							t.Fatal(err)
						} else if ok {
							if _, err := m.PublishHybrid(l.id, l.n/4*4, res); err != nil {
								t.Fatal(err)
							}
							if err := m.Retire(l.id, res); err != nil {
								t.Fatal(err)
							}
						}
					} else if l.n >= 4 {
						if _, err := m.Publish(l.id, l.n); err != nil && !strings.Contains(err.Error(), "replayed") {
							t.Fatal(err)
						}
					}
				case k < 9:
					i := r.IntN(len(leases))
					if err := m.Release(leases[i].id); err != nil {
						t.Fatal(err)
					}
					leases = slices.Delete(leases, i, i+1)
				default:
					if r.IntN(3) == 0 {
						if err := m.SetQuota(tenantKey(r.IntN(4)), []int{0, 100, 300, 600, 1000}[r.IntN(5)]); err != nil {
							t.Fatal(err)
						}
					} else if r.IntN(6) == 0 {
						m.Flush()
					}
				}
				if err := m.Check(); err != nil {
					t.Fatal(err)
				}
				for n := range 4 {
					if now := tenantInfo(m, n); tenant >= 0 && n != tenant && !others && now.Pages < before[n].Pages {
						t.Fatalf("tenant %d lost pages to a demand of tenant %d that fitted", n, tenant)
					}
				}
			}
			if cfg.TenantQuota < 500 && outcomes[OverQuota] == 0 || outcomes[Acquired] < 100 {
				t.Errorf("%v: nothing was put to the test", outcomes)
			}
		})
	}
}

// draftOf is what a tenant holds of the draft pages, what of that is in use, and what it may hold.
func draftOf(m *Manager, n int) (all, active, most int) {
	x := &m.tenants.all[m.tenants.of[tenantKey(n)]]
	return x.draft.all, x.draft.active, x.drafts
}

func draftFits(m *Manager, tenant, want int) bool {
	_, active, most := draftOf(m, tenant)
	return want == 0 || want <= most-active
}

// inactivePages counts the pages that a hit of req would bind and that no lease owns.
func (m *Manager) inactivePages(t *testing.T, req *AcquireRequest) (n int) {
	t.Helper()
	pl, err := m.Plan(req)
	if err != nil {
		t.Fatal(err)
	}
	_, pages, err := m.Lookup(req, nil)
	if err != nil {
		t.Fatal(err)
	}
	active, cache := make([]int32, m.cfg.BasePages), make([]int32, m.cfg.BasePages)
	if err := m.References(BasePages, active, cache); err != nil {
		t.Fatal(err)
	}
	for _, p := range pages[:pl.BoundBase] {
		if active[p] == 0 {
			n++
		}
	}
	return n
}
