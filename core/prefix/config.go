package prefix

import "libprefixcache/core/status"

// DefaultMaxRecords is the record limit that a host gets when it names none.
const DefaultMaxRecords = 1024

// Identity says what the content of a block is.
type Identity uint8

const (
	// Tokens: page-many token words and media digests, compared one by one.
	Tokens Identity = iota
	// Keys: one 128-bit key that the caller computed over the block and all
	// before it. The cache trusts it: only Tokens makes collisions harmless.
	Keys
)

// Config is fixed for the life of a manager.
type Config struct {
	PageTokens     int // tokens per page; > 0
	BasePages      int // capacity of each pool; >= 0
	DraftPages     int
	RecurrentSlots int
	PartialSlots   int
	MaxRecords     int // >= 0; 0 publishes nothing durable. No default here: see DefaultMaxRecords

	Identity Identity

	// OriginalRecency keeps the original's rule that a vanilla hit refreshes no
	// record (C-53). Off, a vanilla hit makes its record most recent.
	OriginalRecency bool

	// ShortenVictims cuts a victim that has more pages than are needed, instead of
	// evicting it: it keeps its leading blocks and its place in the order. That
	// goes beyond C-41, which evicts whole records; on the conversation trace it
	// keeps a little more of what is hit, for a little more time.
	ShortenVictims bool

	// TenantQuota is the share, in per mille, of base pages and of records that one
	// tenant may hold unless SetQuota says otherwise; see tenant.go. 0: tenants are
	// neither limited nor counted. 1000: counted, not limited.
	TenantQuota int

	// ZeroOnRelease clears tokens and digests that nothing can find any more; see zero.go.
	ZeroOnRelease bool

	// Hash is the table hash of a block, nil for the built-in one. Tests plant
	// a weak one: identity must not depend on it.
	Hash func(parent uint32, words []int32) uint64

	// LeaseMask is XORed to the ids of leases, so that another manager's lease, which may well
	// have the same slot and generation, is refused, and texts have the number that the host
	// has. 0, or with the top two bits of both halves set: no lease gets the id 0 then.
	LeaseMask uint64

	// Order decides which record is evicted next, nil for least recently used.
	Order Order
}

const maxCapacity = 1<<30 - 1 // page ids and their doubles fit int32, and where a list is uint32

func (c *Config) check() error {
	if c.PageTokens <= 0 || c.PageTokens > 1<<20 {
		return status.New(status.InvalidArgument, "PageTokens is %d, expected 1..%d", c.PageTokens, 1<<20)
	}
	for _, f := range [...]struct {
		name  string
		value int
	}{{"BasePages", c.BasePages}, {"DraftPages", c.DraftPages}, {"RecurrentSlots", c.RecurrentSlots},
		{"PartialSlots", c.PartialSlots}, {"MaxRecords", c.MaxRecords}} {
		if f.value < 0 || f.value > maxCapacity {
			return status.New(status.InvalidArgument, "%s is %d, expected 0..%d", f.name, f.value, maxCapacity)
		}
	}
	if c.TenantQuota < 0 || c.TenantQuota > 1000 {
		return status.New(status.InvalidArgument, "TenantQuota is %d per mille, expected 0..1000", c.TenantQuota)
	}
	if c.Identity > Keys {
		return status.New(status.InvalidArgument, "Identity is %d, expected 0 (tokens) or 1 (keys)", c.Identity)
	}
	return nil
}

// MostBytes is what a manager may come to hold, by the formula of docs/sizing.md. What
// live leases hold is left out: it is small beside the rest, and nobody knows it before.
func (c *Config) MostBytes() int64 {
	records := min(c.MaxRecords, max(c.BasePages, c.RecurrentSlots))
	return int64(c.BasePages)*int64(c.cellWords())*4 + c.tableBytes() + int64(records)*recordBytes
}

// recordBytes is a record with the run of blocks that it ends; `make load` measures it.
const recordBytes = 380

// cellWords is how many int32 words the content of a block has: its tokens, or one
// 128-bit key.
func (c *Config) cellWords() int {
	if c.Identity == Keys {
		return 4
	}
	return c.PageTokens
}

// tableBytes is what New takes of the Go heap: the free lists and counts of all pools,
// and the lists of nodes.
func (c *Config) tableBytes() int64 {
	return (4+4*idsPerPage)*int64(c.BasePages) + 16*int64(c.DraftPages) + 12*int64(c.RecurrentSlots+c.PartialSlots)
}
