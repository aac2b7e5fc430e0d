package prefix

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"unsafe"

	"libprefixcache/core/rows"
)

// Manager is the CUDA-free manager of pages, records and leases. It starts no
// goroutine and takes no lock: the caller serialises all calls.
type Manager struct {
	cfg Config

	base      pagePool
	draft     draftPool
	recurrent slotPool
	partial   slotPool

	content  content
	table    table
	nodes    []node
	nodeFree []int32
	indexed  int // base pages in the index (C-69)

	realms    []realm
	realmFree []int32
	realmOf   map[string]int32
	name      []byte // scratch of findRealm

	records      []record
	recordFree   []int32
	byID         recordIndex
	recordCount  int
	lastRecord   uint64
	draftClock   uint64
	draftEntries int // block boundaries with a draft page, over all records (C-69)
	order        Order
	lists        cellLists
	gone         []goneCells // scratch
	tenants      *tenants    // nil: not counted

	leases     []lease
	leaseFree  []int32
	liveLeases int

	scratch  []int32
	batch    []found // plans of AcquireBatch, between pinning and filling
	counters Counters
}

// Counters since creation; they only rise.
type Counters struct {
	Acquires         uint64
	Infeasible       uint64                // acquires that found no room
	ReasonCount      [reasonCount]uint64   // by Reason, of acquired leases
	EvictedRecords   uint64                // C-66
	Reclaimed        [resourceCount]uint64 // went back to a free list at an eviction (C-66)
	HashCollisions   uint64                // equal table hash, other content: harmless, and a sign of a bad hash
	ShortenedRecords uint64                // Config.ShortenVictims
	StalePublishes   uint64                // dropped because of an Invalidate or a Flush
	QueryTokens      uint64                // prompt tokens of the leases that looked for cached state
	HitTokens        uint64                // of these, tokens that need no computing
	ActivePeak       [resourceCount]uint64 // most slots that leases owned at once
	LeasesPeak       uint64
}

const maxTouch = 256 << 20 // bytes

// New makes a manager whose pools are free and whose index is empty.
func New(cfg Config) (*Manager, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := rows.Probe(cfg.tableBytes(), fmt.Sprintf("a manager of %d base and %d draft pages", cfg.BasePages, cfg.DraftPages)); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, base: newPagePool(cfg.BasePages), draft: newDraftPool(cfg.DraftPages),
		recurrent: newSlotPool(cfg.RecurrentSlots), partial: newSlotPool(cfg.PartialSlots),
		realmOf: make(map[string]int32), order: cfg.Order, lists: newCellLists(cfg.BasePages)}
	if m.order == nil {
		m.order = newLRU()
	}
	if cfg.TenantQuota > 0 {
		m.tenants = newTenants(m)
		m.order = tenantOrder{m.order, m.tenants}
	}
	width := cfg.cellWords()
	m.content = content{width: width, base: int32(cfg.BasePages), seed: maphash.MakeSeed(), hash: cfg.Hash, zero: cfg.ZeroOnRelease}
	if n := cfg.BasePages * width; n > 0 {
		// Prompts are nobody's business: they stay out of core dumps.
		slab, err := rows.NewMirror(int64(cfg.BasePages), int64(width)*4, rows.MirrorOptions{DontDump: true})
		if err != nil {
			return nil, err
		}
		m.content.slab = slab
		m.content.words = unsafe.Slice((*int32)(slab.Row(0)), n)
		runtime.AddCleanup(m, func(s *rows.Mirror) { s.Free() }, slab)
	}
	m.table.init(1024)
	return m, nil
}

// Touch makes the memory of the tokens present, so that no request pays for page faults;
// as far as is decent. For a new manager, unless memory is short.
func (m *Manager) Touch() {
	if s := m.content.slab; s != nil {
		_ = s.Touch(0, min(s.Slots(), maxTouch/s.RowBytes())) // the range is inside
	}
}

// notePeaks is called where active slots have just become more.
func (m *Manager) notePeaks() {
	p := &m.counters.ActivePeak
	p[BasePages] = max(p[BasePages], uint64(m.base.active))
	p[DraftPages] = max(p[DraftPages], uint64(m.draft.active))
	p[RecurrentSlots] = max(p[RecurrentSlots], uint64(m.recurrent.active))
	p[PartialSlots] = max(p[PartialSlots], uint64(m.partial.active))
}
