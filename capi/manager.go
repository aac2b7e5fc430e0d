package main

/*
#include "shim.h"
*/
import "C"

import (
	"math/rand/v2"
	"unsafe"

	"libprefixcache/core/coordinator"
	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// manager is what a handle of a manager stands for: one of its own, or the one
// inside a coordinator, whose lock it then shares.
type manager struct {
	mu         *meteredMutex
	m          *prefix.Manager
	pageTokens uint64
	keyed      bool
	owned      bool   // by a coordinator: queries, invalidate and flush only
	pages      bool   // has base pages; without, hybrid means pure recurrent
	entry      *entry // of the manager's handle
	args       sequenceArgs
	req        prefix.AcquireRequest
	most       memoryPlan
	text       []byte // of an outcome that is told often
}

func newManager(mu *meteredMutex, m *prefix.Manager) *manager {
	return &manager{mu: mu, m: m, pages: m.Capacity(prefix.BasePages) > 0, pageTokens: uint64(m.Config().PageTokens)}
}

// open gives the manager its handle.
func (m *manager) open() (handle, *status.Error) {
	h, err := handles.add(kindManager, m)
	if err == nil {
		m.entry = handles.at(h.index())
	}
	return h, err
}

// enterManager locks the manager of a handle; leave, or unlock, undoes it.
func enterManager(h C.pc_handle) (*manager, *status.Error) { return lockManager(h, false) }

// enterOwn is enterManager for calls that a coordinator's manager refuses.
func enterOwn(h C.pc_handle) (*manager, *status.Error) { return lockManager(h, true) }

func lockManager(h C.pc_handle, own bool) (*manager, *status.Error) {
	e, err := handles.enter(handle(h), kindManager, "manager")
	if err != nil {
		return nil, err
	}
	m := e.object.(*manager)
	if own && m.owned {
		e.leave()
		return nil, status.New(status.WrongState, "manager: it belongs to a coordinator, which leases its pages itself; expected one from pc_manager_create")
	}
	if !m.mu.TryLock() { // Lock is this, but not placed inline
		m.mu.await()
	}
	if m.mu.broken {
		m.unlock()
		return nil, leftBroken(kindManager, "manager")
	}
	return m, nil
}

func (m *manager) unlock() {
	m.mu.Unlock()
	m.entry.leave()
}

// leave is deferred by every export that enters, whether that succeeded or not. It is
// unlock and guard in one, since two deferred calls take as long as a step of decoding.
func (m *manager) leave(st *C.pc_status) {
	r := recover()
	if m != nil {
		if r != nil {
			m.mu.broken = true // before others come in
		}
		m.mu.Unlock()
		m.entry.leave()
	}
	if r != nil {
		caught(st, r) // without the lock: the host's log may call back
	}
}

// exit is unlock for a part of a call: a panic is marked and passed on.
func (m *manager) exit() {
	if r := recover(); r != nil {
		m.mu.broken = true
		defer panic(r)
	}
	m.unlock()
}

const managerFlags = C.PC_ORIGINAL_RECENCY | C.PC_BLOCK_KEYS | C.PC_SHORTEN_VICTIMS | C.PC_WEAK_HASH | C.PC_ZERO_ON_RELEASE

// tableHash is the hash that a flag asks for: nil for core's own.
func tableHash(flags C.uint32_t) func(parent uint32, words []int32) uint64 {
	if flags&C.PC_WEAK_HASH == 0 {
		return nil
	}
	return func(uint32, []int32) uint64 { return 7 }
}

// Limits of core, told in the names of pc_manager_options.
const (
	maxPageTokens = 1 << 20
	maxSlots      = 1<<30 - 1
)

// level refuses calls that name blocks the way this manager does not.
func (m *manager) level(keyed bool) *status.Error {
	if keyed == m.keyed {
		return nil
	}
	return otherLevel(keyed)
}

func otherLevel(keyed bool) *status.Error {
	if keyed {
		return status.New(status.WrongState, "manager: it was made without PC_BLOCK_KEYS, expected the call without keys")
	}
	return status.New(status.WrongState, "manager: it was made with PC_BLOCK_KEYS, expected the call that takes keys")
}

// recordLimit reads the convention 0: default, -1: none.
func recordLimit(v C.int32_t) (int32, *status.Error) {
	switch {
	case v == 0:
		return prefix.DefaultMaxRecords, nil
	case v == -1:
		return 0, nil
	case v < 0:
		return 0, status.New(status.InvalidArgument, "options.max_records: %d, expected -1 (none), 0 (default) or more", int32(v))
	}
	return int32(v), nil
}

//export pcgo_manager_create
func pcgo_manager_create(in *C.pc_manager_options, result *C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	if err := out("manager", result); err != nil {
		return fail(err)
	}
	if in == nil {
		return failNew(status.InvalidArgument, "options: null, expected a pc_manager_options")
	}
	if err := inSize("options", in, in.struct_size, unsafe.Offsetof(in.tenant_quota)); err != nil {
		return fail(err)
	}
	options := options(in, in.struct_size)
	if options.flags&^managerFlags != 0 {
		return failNew(status.Unsupported, "options.flags: %#x, expected PC_ORIGINAL_RECENCY | PC_BLOCK_KEYS | PC_SHORTEN_VICTIMS | PC_WEAK_HASH | PC_ZERO_ON_RELEASE", uint32(options.flags))
	}
	for _, v := range options.reserved {
		if err := reserved("options.reserved", uint64(v)); err != nil {
			return fail(err)
		}
	}
	if err := tenantQuota(options.tenant_quota, options.reserved1); err != nil {
		return fail(err)
	}
	records, serr := recordLimit(options.max_records)
	if serr != nil {
		return fail(serr)
	}
	cfg := prefix.Config{
		PageTokens: int(options.tokens_per_page), BasePages: int(options.base_pages), DraftPages: int(options.draft_pages),
		RecurrentSlots: int(options.recurrent_slots), PartialSlots: int(options.partial_slots), MaxRecords: int(records),
		OriginalRecency: options.flags&C.PC_ORIGINAL_RECENCY != 0,
		ShortenVictims:  options.flags&C.PC_SHORTEN_VICTIMS != 0,
		ZeroOnRelease:   options.flags&C.PC_ZERO_ON_RELEASE != 0,
		TenantQuota:     int(options.tenant_quota),
		Hash:            tableHash(options.flags),
		LeaseMask:       rand.Uint64() | 3<<62 | 3<<30,
	}
	if cfg.PageTokens == 0 {
		cfg.PageTokens = int(coordinator.DefaultTokensPerPage)
	}
	for _, f := range [...]struct {
		name  string
		value C.int32_t
		most  C.int32_t
	}{{"tokens_per_page", options.tokens_per_page, maxPageTokens}, {"base_pages", options.base_pages, maxSlots},
		{"draft_pages", options.draft_pages, maxSlots}, {"recurrent_slots", options.recurrent_slots, maxSlots},
		{"partial_slots", options.partial_slots, maxSlots}, {"max_records", max(0, options.max_records), maxSlots}} {
		if f.value < 0 || f.value > f.most {
			return failNew(status.InvalidArgument, "options.%s: %d, expected 0 to %d", f.name, int32(f.value), int32(f.most))
		}
	}
	keyed := options.flags&C.PC_BLOCK_KEYS != 0
	if keyed {
		cfg.Identity = prefix.Keys
	}
	core, err := prefix.New(cfg)
	if err != nil {
		return fail(err)
	}
	m := newManager(new(meteredMutex), core)
	m.keyed = keyed
	h, herr := m.open()
	if herr != nil {
		return fail(herr)
	}
	if !tellMemory(&m.most, cfg.MostBytes(), "page manager", lowerPages) {
		core.Touch()
	}
	*result = C.pc_handle(h)
	return C.PC_OK
}

//export pcgo_manager_destroy
func pcgo_manager_destroy(h *C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	if err := aligned("manager", h); err != nil {
		return fail(err)
	}
	if h == nil || *h == 0 {
		return C.PC_OK
	}
	m, err := enterManager(*h)
	if err != nil && err.Code != status.Internal { // one that a panic left unusable can still be freed
		return fail(err)
	}
	if err == nil {
		owned := m.owned
		m.unlock()
		if owned {
			return failNew(status.WrongState, "manager: it belongs to a coordinator, which frees it")
		}
	}
	object, err := handles.remove(handle(*h), kindManager, "manager")
	if err != nil {
		return fail(err)
	}
	*h = 0
	m = object.(*manager)
	m.most.end()
	if !m.mu.broken {
		m.m.Close()
	}
	return C.PC_OK
}
