package coordinator

import (
	"fmt"
	"unsafe"

	"libprefixcache/core/prefix"
	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Coordinator owns the request table over one prefix manager. All calls must
// be serialised by the caller; it never blocks and never calls back.
type Coordinator struct {
	cfg     Config
	p       int32 // tokens per page
	manager *prefix.Manager

	requests []request
	active   int32 // live and quarantined (C-81)
	poisoned bool  // never cleared (C-106, D-7)

	// slotBusy says which resident slots live requests hold.
	slotBusy []bool

	// The list that is out. Only one at a time, over all requests.
	op           opKind
	opRequest    int
	opCount      int // commands handed out
	opSync       int // index of the first synchronize, -1
	opWasPending bool
	payload      []int32 // lengths of CmdSetReuseLengths, or mapping
	slots        []int32 // live slots of CmdSetReuseLengths

	wanted  []prefix.AcquireRequest // of the batch that Begin admits
	results []prefix.AcquireResult

	scratch []int32 // page ids of one row
	seen    []uint32
	stamp   uint32

	snapshots [2]int32 // recurrent and partial slots
	metrics   Metrics
}

// opKind is the step whose list is out.
type opKind uint8

const (
	opNone opKind = iota
	opPrepare
	opCapture
	opDecode
	opComplete
	opBeginCompaction
	opCompact
	opFinish
)

var opNames = [...]string{"none", "preparePrefill", "enqueuePrefillCaptures", "prepareDecodeStep",
	"completeDecodeStep", "beginBatchCompaction", "compactBatch", "finish"}

func (o opKind) String() string { return opNames[o] }

// New checks the whole configuration and builds an empty coordinator.
// No device work follows from it.
func New(cfg Config) (*Coordinator, error) {
	recurrent, partial, err := cfg.normalise()
	if err != nil {
		return nil, err
	}
	c := &Coordinator{cfg: cfg, p: cfg.TokensPerPage, snapshots: [2]int32{recurrent, partial}, opSync: -1}
	store := prefix.Config{
		PageTokens:      int(cfg.TokensPerPage),
		RecurrentSlots:  int(recurrent),
		PartialSlots:    int(partial),
		MaxRecords:      int(cfg.MaxRecords),
		OriginalRecency: cfg.OriginalRecency,
		ShortenVictims:  cfg.ShortenVictims,
		TenantQuota:     cfg.TenantQuota,
		ZeroOnRelease:   cfg.ZeroOnRelease,
		Hash:            cfg.Hash,
	}
	width := int32(0)
	if cfg.Kind.attention() {
		store.BasePages = int(cfg.Base.Pages)
		width = cfg.Base.Table.Width()
	}
	if cfg.Kind == KindEAGLE {
		store.DraftPages = int(cfg.Draft.Pages)
		width = max(width, cfg.Draft.Table.Width())
	}
	need := int64(cfg.MaxRequests)*int64(unsafe.Sizeof(request{})) +
		int64(cfg.MaxBatch)*int64(unsafe.Sizeof(prefix.AcquireRequest{})+unsafe.Sizeof(prefix.AcquireResult{})+16)
	if err := rows.Probe(need, fmt.Sprintf("coordinator of %d requests and a batch of %d", cfg.MaxRequests, cfg.MaxBatch)); err != nil {
		return nil, err
	}
	if c.manager, err = prefix.New(store); err != nil {
		return nil, err
	}
	c.requests = make([]request, cfg.MaxRequests)
	c.slotBusy = make([]bool, cfg.MaxBatch)
	c.seen = make([]uint32, cfg.MaxBatch)
	c.scratch = make([]int32, width)
	c.wanted = make([]prefix.AcquireRequest, 0, cfg.MaxBatch)
	c.results = make([]prefix.AcquireResult, 0, cfg.MaxBatch)
	c.payload = make([]int32, 0, cfg.MaxBatch)
	c.slots = make([]int32, 0, cfg.MaxBatch)
	return c, nil
}

// MaxCommands is the room that every step's command slice must have: it is
// checked before anything changes, so that no step can fail for room later.
func (c *Coordinator) MaxCommands() int {
	n := 2*int(c.cfg.MaxBatch) + 8
	for _, t := range c.tables() {
		if t != nil {
			n += t.UploadCommands()
		}
	}
	return n
}

func (c *Coordinator) checkRoom(what string, dst []Command) error {
	if n := c.MaxCommands(); len(dst) < n {
		return status.New(status.BufferTooSmall, "%s: room for %d commands, expected at least %d", what, len(dst), n)
	}
	return nil
}

func (c *Coordinator) tables() [2]*PageTable {
	t := [2]*PageTable{}
	if c.cfg.Kind.attention() {
		t[Base] = c.cfg.Base.Table
	}
	if c.cfg.Kind == KindEAGLE {
		t[Draft] = c.cfg.Draft.Table
	}
	return t
}

// Config returns the configuration with defaults filled in.
func (c *Coordinator) Config() Config { return c.cfg }

// SnapshotCounts returns the recurrent and partial-KV slots that the budgets
// paid for.
func (c *Coordinator) SnapshotCounts() (recurrent, partial int32) {
	return c.snapshots[0], c.snapshots[1]
}

// Manager gives access to records, pools and checks. Callers that change state
// through it beside live requests are on their own.
func (c *Coordinator) Manager() *prefix.Manager { return c.manager }

// Poisoned reports whether a synchronisation failed once.
func (c *Coordinator) Poisoned() bool { return c.poisoned }

// Active is the number of live and quarantined requests.
func (c *Coordinator) Active() int { return int(c.active) }

// Quarantined is the number of requests whose pages wait for a drain.
func (c *Coordinator) Quarantined() int {
	n := 0
	for i := range c.requests {
		if c.requests[i].state == entryQuarantined {
			n++
		}
	}
	return n
}

// ReuseLengths and Slots are the payload of CmdSetReuseLengths in the list that
// is out: start lengths and resident slots, in batch order. Views, read only,
// valid until the next call.
func (c *Coordinator) ReuseLengths() []int32 { return c.payload }
func (c *Coordinator) Slots() []int32        { return c.slots }

// CompactionMapping is the payload of CmdUploadMapping and CmdCompactState.
func (c *Coordinator) CompactionMapping() []int32 { return c.payload }

// Invalidate drops every published record of an adapter (all generations when
// generation is nil) and returns how many. Pages in use stay with their
// requests, whose later publications under that adapter are dropped.
func (c *Coordinator) Invalidate(adapter prefix.Hash128, generation *uint64) int {
	return c.manager.Invalidate(adapter, generation)
}

// Flush drops every published record, under the same rule.
func (c *Coordinator) Flush() int { return c.manager.Flush() }

// Metrics returns the counters, with occupancy as of now.
func (c *Coordinator) Metrics() Metrics {
	m := c.metrics
	n := c.manager.Counters()
	m.ActiveRequests = int64(c.active)
	m.CurrentRecords = int64(c.manager.Records())
	m.EvictedRecords = int64(n.EvictedRecords)
	for pool, out := range [...]*PoolMetrics{&m.BasePages, &m.DraftPages, &m.RecurrentSnapshots, &m.PartialSnapshots} {
		*out = PoolMetrics{
			Capacity:  int64(c.manager.Capacity(prefix.Resource(pool))),
			Free:      int64(c.manager.Free(prefix.Resource(pool))),
			Reclaimed: int64(n.Reclaimed[pool]),
		}
	}
	return m
}
