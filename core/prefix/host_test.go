package prefix

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"libprefixcache/core/status"
)

// host drives a manager in tests; every call that must not fail stops the test.
type host struct {
	testing.TB
	*Manager
}

func newHost(t testing.TB, cfg Config) *host {
	t.Helper()
	if cfg.PageTokens == 0 {
		cfg.PageTokens = 128
	}
	if cfg.BasePages == 0 {
		cfg.BasePages = 64
	}
	if cfg.MaxRecords == 0 {
		cfg.MaxRecords = DefaultMaxRecords
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t, m}
	t.Cleanup(func() {
		if err := h.Check(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// tokens makes a prompt of its own for each seed.
func tokens(seed uint64, n int) []int32 {
	r := rand.New(rand.NewPCG(seed, 9))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(150000))
	}
	return out
}

func join(parts ...[]int32) []int32 { return slices.Concat(parts...) }

func (h *host) acquire(req AcquireRequest) (LeaseID, Plan) {
	h.Helper()
	a, err := h.Acquire(&req)
	if err != nil {
		h.Fatal(err)
	}
	if a.Status != Acquired {
		h.Fatalf("no room for %+v", a.Plan)
	}
	return a.Lease, a.Plan
}

func (h *host) vanilla(t []int32) (LeaseID, Plan) {
	h.Helper()
	return h.acquire(AcquireRequest{Tokens: t})
}

func (h *host) publish(id LeaseID, resident int) PublishResult {
	h.Helper()
	r, err := h.Publish(id, resident)
	if err != nil {
		h.Fatal(err)
	}
	return r
}

func (h *host) release(ids ...LeaseID) {
	h.Helper()
	for _, id := range ids {
		if err := h.Release(id); err != nil {
			h.Fatal(err)
		}
	}
}

// run is a whole request: acquire, publish all of it, release.
func (h *host) run(req AcquireRequest) PublishResult {
	h.Helper()
	id, _ := h.acquire(req)
	r := h.publish(id, len(req.Tokens))
	h.release(id)
	return r
}

// hit is the prefill start that a request would get.
func (h *host) hit(req AcquireRequest) int {
	h.Helper()
	p, err := h.Plan(&req)
	if err != nil {
		h.Fatal(err)
	}
	return p.Reuse
}

func (h *host) grow(id LeaseID, base, draft int) bool {
	h.Helper()
	ok, err := h.Grow(id, base, draft)
	if err != nil {
		h.Fatal(err)
	}
	return ok
}

func (h *host) append(id LeaseID, t []int32) {
	h.Helper()
	if err := h.Append(id, t); err != nil {
		h.Fatal(err)
	}
}

func (h *host) pages(id LeaseID, pool Resource) []int32 {
	h.Helper()
	n, err := h.PageCount(id, pool)
	if err != nil {
		h.Fatal(err)
	}
	out := make([]int32, n)
	if err := h.Pages(id, pool, 0, out); err != nil {
		h.Fatal(err)
	}
	return out
}

func (h *host) recordPages(id RecordID, pool Resource) []int32 {
	h.Helper()
	p, err := h.RecordPages(id, pool, nil)
	if err != nil {
		h.Fatal(err)
	}
	return p
}

// refs is (active, cache) of one slot.
func (h *host) refs(pool Resource, slot int32) [2]int32 {
	h.Helper()
	a, c := make([]int32, h.Capacity(pool)), make([]int32, h.Capacity(pool))
	if err := h.References(pool, a, c); err != nil {
		h.Fatal(err)
	}
	return [2]int32{a[slot], c[slot]}
}

func (h *host) order() (ids []RecordID) {
	for r := range h.AllRecords() {
		ids = append(ids, r.ID)
	}
	return
}

// checkpoint publishes one at length and retires the reservation.
func (h *host) checkpoint(id LeaseID, length int) PublishResult {
	h.Helper()
	info, err := h.Lease(id)
	if err != nil {
		h.Fatal(err)
	}
	slots, ok, err := h.Reserve(id, info.Attention && length%h.cfg.PageTokens != 0)
	if err != nil || !ok {
		h.Fatalf("reserve: %v %v", ok, err)
	}
	r, err := h.PublishHybrid(id, length, slots)
	if err != nil {
		h.Fatal(err)
	}
	if err := h.Retire(id, slots); err != nil {
		h.Fatal(err)
	}
	return r
}

// refused runs f, which must fail with a code and change nothing.
func (h *host) refused(want status.Code, what string, f func() error) {
	h.Helper()
	before := h.state()
	err := f()
	if got := status.CodeOf(err); got != want {
		h.Errorf("%s: %v (code %d), want code %d", what, err, got, want)
	}
	if after := h.state(); after != before {
		h.Errorf("%s changed something:\n%s\nbefore:\n%s", what, after, before)
	}
	if err := h.Check(); err != nil {
		h.Errorf("after %s: %v", what, err)
	}
}

// state is everything that Dump shows.
func (h *host) state() string {
	var b strings.Builder
	if err := h.Dump(&b); err != nil {
		h.Fatal(err)
	}
	return b.String()
}

func wantEqual[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// everyField has cmp look into unexported fields, too.
var everyField = cmp.Exporter(func(reflect.Type) bool { return true })

func wantSlice[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), everyField); diff != "" {
		t.Errorf("%s is not the expected one (-want +got):\n%s", what, diff)
	}
}

// recordTokens is the words of a record's path: its tokens with 0 at media positions,
// including the tail of a checkpoint; on the keys level the keys, four words each.
func (h *host) recordTokens(id RecordID) (out []int32) {
	h.Helper()
	i := h.recordByID(id)
	if i < 0 {
		h.Fatalf("record %d is not resident", id)
	}
	r := &h.records[i]
	cells := make([]int32, r.at)
	h.fillCells(r.node, r.at, cells)
	for _, c := range cells {
		out = append(out, h.content.cell(c)...)
	}
	if r.tail >= 0 {
		n := h.content.width
		if h.cfg.Identity == Tokens {
			n = int(r.exact) % h.cfg.PageTokens
		}
		out = append(out, h.content.cell(r.tail)[:n]...)
	}
	return out
}
