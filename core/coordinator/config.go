package coordinator

import (
	"fmt"
	"math"

	"libprefixcache/core/status"
)

const (
	DefaultTokensPerPage int32 = 128
	DefaultMaxRecords    int32 = 1024
	DefaultMaxRequests   int32 = 1

	// maxBatchLimit and maxRequestsLimit keep indexes inside their handle and
	// stamp fields. Real deployments are orders of magnitude below.
	maxBatchLimit    = 1 << 16
	maxRequestsLimit = 1 << 16
)

// CacheResources describes one physical KV/recurrent cache and its page table,
// both owned by the runtime for the life of the coordinator.
type CacheResources struct {
	Pages          int32 // K pages of the pool; 0 for pure recurrent
	MaxBatch       int32 // live batch slots
	PaddedCapacity int32 // tokens of one slot, a multiple of tokens per page

	// Table is nil only where there is no attention.
	Table *PageTable
}

// Config is everything New needs. Zero values mean the default where one is
// named; MaxRecords has no zero default, because 0 is a legal limit: start from
// DefaultConfig.
type Config struct {
	Enabled bool // false by default: an unconfigured cache must not come up
	Kind    Kind

	// TokensPerPage is P, 0 for 128. Smaller pages reuse more of a prompt and
	// cost more bookkeeping.
	TokensPerPage int32
	// MaxRecords bounds how many endpoints stay published; 0 keeps none.
	MaxRecords int32
	// MaxRequests bounds live plus quarantined requests, 0 for 1 (C-81).
	MaxRequests int32

	// Snapshot budgets in bytes, and the size of one slot.
	RecurrentBudget, RecurrentSlotBytes int64
	PartialBudget, PartialSlotBytes     int64

	MaxBatch      int32 // of the deployment; must equal the base cache's
	DraftMaxBatch int32 // EAGLE only
	Spec          *Spec // EAGLE only

	// FutureTokens is on how many following tokens the draft state of a
	// position depends, 0 for EAGLE's 1. Reserved for drafts that look further
	// ahead: it is checked, and changes nothing yet. Ignored by the other kinds.
	FutureTokens int32

	// OriginalRecency restores the original's rule that a vanilla hit does not
	// refresh its record at acquire (C-53).
	OriginalRecency bool

	// ShortenVictims lets an eviction cut a record to what the demand needs
	// instead of evicting it whole; see core/prefix.
	ShortenVictims bool

	// TenantQuota and ZeroOnRelease are those of core/prefix.
	TenantQuota   int
	ZeroOnRelease bool

	// Stream identifies the one stream of this coordinator. Core only compares
	// it.
	Stream uint64

	Base  CacheResources
	Draft *CacheResources // EAGLE only

	// Hash replaces the table hash of core/prefix, nil for the built-in one.
	// Identity never depends on it; tests plant a weak one.
	Hash func(parent uint32, words []int32) uint64

	// Clock returns nanoseconds from any fixed origin and feeds
	// PlanningNanoseconds; nil leaves that counter at 0.
	Clock func() int64
}

// DefaultConfig is the configuration of a disabled coordinator with every
// default filled in.
func DefaultConfig() Config {
	return Config{
		TokensPerPage: DefaultTokensPerPage,
		MaxRecords:    DefaultMaxRecords,
		MaxRequests:   DefaultMaxRequests,
	}
}

func invalid(format string, args ...any) error {
	return status.New(status.InvalidArgument, format, args...)
}

// normalise fills defaults and checks the whole configuration. It
// returns the snapshot slot counts that the budgets pay for.
func (c *Config) normalise() (recurrent, partial int32, err error) {
	if c.TokensPerPage == 0 {
		c.TokensPerPage = DefaultTokensPerPage
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = DefaultMaxRequests
	}
	switch {
	case !c.Enabled:
		return 0, 0, invalid("config: enabled is false, expected true")
	case c.Kind < KindVanilla || c.Kind > KindEAGLE:
		return 0, 0, invalid("config: kind is %d, expected 0..3", c.Kind)
	case c.TokensPerPage < 0:
		return 0, 0, invalid("config: tokens per page is %d, expected > 0", c.TokensPerPage)
	case c.MaxRecords < 0:
		return 0, 0, invalid("config: max records is %d, expected >= 0", c.MaxRecords)
	case c.MaxRequests < 0 || c.MaxRequests > maxRequestsLimit:
		return 0, 0, invalid("config: max requests is %d, expected [1,%d]", c.MaxRequests, maxRequestsLimit)
	case c.MaxBatch <= 0 || c.MaxBatch > maxBatchLimit:
		return 0, 0, invalid("config: max batch is %d, expected [1,%d]", c.MaxBatch, maxBatchLimit)
	case c.RecurrentBudget < 0 || c.PartialBudget < 0:
		return 0, 0, invalid("config: snapshot budgets are %d and %d, expected >= 0", c.RecurrentBudget, c.PartialBudget)
	case c.FutureTokens < 0:
		return 0, 0, invalid("config: future tokens is %d, expected >= 0", c.FutureTokens)
	}
	if err := c.checkSpeculation(); err != nil {
		return 0, 0, err
	}
	if err := c.checkResources("base", &c.Base, c.MaxBatch, c.Kind.attention()); err != nil {
		return 0, 0, err
	}
	if c.Kind == KindEAGLE {
		if err := c.checkResources("draft", c.Draft, c.DraftMaxBatch, true); err != nil {
			return 0, 0, err
		}
		if c.Draft.Table == c.Base.Table {
			return 0, 0, invalid("config: base and draft share one page table, expected two")
		}
	}
	return c.snapshotSlots()
}

func (c *Config) checkSpeculation() error {
	if c.Kind != KindEAGLE {
		if c.Draft != nil {
			return invalid("config: kind %v has a draft cache, expected none", c.Kind)
		}
		return nil
	}
	switch {
	case c.Draft == nil || c.Draft.Table == nil:
		return invalid("config: kind eagle needs a draft cache and a draft page table")
	case c.Spec == nil:
		return invalid("config: kind eagle needs a speculation config")
	case c.Spec.VerifySize <= 0:
		return invalid("config: verify size is %d, expected > 0", c.Spec.VerifySize)
	}
	if n := c.draftReach(); c.Spec.DraftingStep <= 0 || c.Spec.DraftingTopK <= 0 || n > math.MaxInt32 {
		return invalid("config: drafting step %d times top-k %d, expected a product in [1,%d]", c.Spec.DraftingStep, c.Spec.DraftingTopK, math.MaxInt32)
	}
	if c.FutureTokens == 0 {
		c.FutureTokens = 1
	}
	if c.FutureTokens > c.TokensPerPage {
		return invalid("config: future tokens is %d, expected at most one page of %d", c.FutureTokens, c.TokensPerPage)
	}
	return nil
}

// draftReach is how far beyond the committed length drafting writes.
func (c *Config) draftReach() int64 {
	return int64(c.Spec.DraftingStep) * int64(c.Spec.DraftingTopK)
}

func (c *Config) checkResources(name string, r *CacheResources, maxBatch int32, attention bool) error {
	if r.MaxBatch != maxBatch {
		return invalid("config: %s cache has max batch %d, the deployment %d", name, r.MaxBatch, maxBatch)
	}
	if !attention {
		return nil // pages and table of a pure recurrent model are not looked at
	}
	t := r.Table
	switch {
	case t == nil:
		return invalid("config: %s page table is missing", name)
	case r.Pages != t.Pages():
		return invalid("config: %s pool has %d pages, its table %d", name, r.Pages, t.Pages())
	case t.MaxBatch() != maxBatch:
		return invalid("config: %s table has max batch %d, the deployment %d", name, t.MaxBatch(), maxBatch)
	case r.PaddedCapacity%c.TokensPerPage != 0 || t.Width() != r.PaddedCapacity/c.TokensPerPage:
		return invalid("config: %s table rows have %d pages, expected capacity %d / %d", name, t.Width(), r.PaddedCapacity, c.TokensPerPage)
	}
	return nil
}

func (c *Config) snapshotSlots() (recurrent, partial int32, err error) {
	if !c.Kind.recurrent() {
		return 0, 0, nil
	}
	if recurrent, err = SnapshotSlots(c.RecurrentBudget, c.RecurrentSlotBytes); err != nil {
		return 0, 0, err
	}
	if recurrent == 0 {
		return 0, 0, invalid("config: recurrent budget of %d bytes holds no slot of %d", c.RecurrentBudget, c.RecurrentSlotBytes)
	}
	if c.Kind != KindHybrid {
		return recurrent, 0, nil
	}
	if partial, err = SnapshotSlots(c.PartialBudget, c.PartialSlotBytes); err != nil {
		return 0, 0, err
	}
	if partial == 0 {
		return 0, 0, invalid("config: partial-KV budget of %d bytes holds no slot of %d", c.PartialBudget, c.PartialSlotBytes)
	}
	return recurrent, partial, nil
}

// pagesOf is pages(n) = ceil(n / P) without overflow.
func pagesOf(n, p int32) int32 { return int32((int64(n) + int64(p) - 1) / int64(p)) }

func enumName(what string, v int32, names []string) string {
	if v < 0 || int(v) >= len(names) {
		return fmt.Sprintf("%s(%d)", what, v)
	}
	return names[v]
}
