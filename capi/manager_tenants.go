package main

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

const maxQuota = 1000

// tenantQuota checks the option.
func tenantQuota(quota, reserved1 C.uint32_t) *status.Error {
	if quota > maxQuota {
		return status.New(status.InvalidArgument, "options.tenant_quota: %d, expected 0 to %d per mille", uint32(quota), maxQuota)
	}
	return reserved("options.reserved1", uint64(reserved1))
}

//export pcgo_manager_tenants
func pcgo_manager_tenants(h C.pc_handle, tenants *C.pc_tenant, space C.uint64_t, num *C.uint64_t) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("num_tenants", num); err != nil {
		return fail(err)
	}
	room, serr := window[C.pc_tenant]("tenants", unsafe.Pointer(tenants), space, 0, m.m.TenantCount())
	if serr != nil {
		return fail(serr)
	}
	i := 0
	for t := range m.m.Tenants() {
		if i == len(room) {
			break
		}
		room[i] = C.pc_tenant{
			isolation: C.pc_hash128{high: C.uint64_t(t.Key.Hash.Hi), low: C.uint64_t(t.Key.Hash.Lo)},
			quota:     C.uint32_t(t.PerMille), quota_pages: C.uint64_t(t.QuotaPages),
			pages: C.uint64_t(t.Pages), active_pages: C.uint64_t(t.ActivePages),
			records: C.uint64_t(t.Records), snapshots: C.uint64_t(t.Snapshots),
			leases: C.uint64_t(t.Queries), query_tokens: C.uint64_t(t.QueryTokens), hit_tokens: C.uint64_t(t.HitTokens),
			evicted: C.uint64_t(t.Evicted), evicted_by_others: C.uint64_t(t.EvictedByOther), evicted_others: C.uint64_t(t.EvictedOthers),
			refused: C.uint64_t(t.Refused),
		}
		if t.Key.Present {
			room[i].present = 1
		}
		i++
	}
	*num = C.uint64_t(m.m.TenantCount())
	return C.PC_OK
}

//export pcgo_manager_set_quota
func pcgo_manager_set_quota(h C.pc_handle, isolation *C.pc_hash128, quota C.uint32_t) (st C.pc_status) {
	m, serr := enterManager(h)
	defer m.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if quota > maxQuota {
		return failNew(status.InvalidArgument, "quota: %d, expected 0 to %d per mille", uint32(quota), maxQuota)
	}
	if err := aligned("isolation", isolation); err != nil {
		return fail(err)
	}
	var key prefix.OptionalHash
	if isolation != nil {
		key = prefix.OptionalHash{Present: true, Hash: hash(*isolation)}
	}
	return fail(m.m.SetQuota(key, int(quota)))
}
