"""Queries on a manager: what it caches, who uses it, and whether it is sound.

Nothing here changes a reference count or the recency of a record, except
``invalidate``, ``flush`` and ``evict``, which remove records and never touch a page
in use.
"""

from __future__ import annotations

import ctypes
from dataclasses import fields
from typing import Any

from prefixcache import _ffi
from prefixcache._errors import PrefixCacheError
from prefixcache.context import _abi
from prefixcache.context._arguments import SequenceArgument, integer, member, to_hash, uint64
from prefixcache.context._closing import Handle
from prefixcache.context.types import (
    BlockKeySequence,
    CacheRecord,
    CacheResourceType,
    ContextCacheSequenceAdmission,
    Hash128,
    NoReuseReason,
    ReusePlan,
    ReusePlanKind,
    ReusePlanMode,
    SpecReplayMode,
    Tenant,
    Tokens,
)

NOT_FOUND = 4  # PC_NOT_FOUND

POOL_NAMES = {
    CacheResourceType.BASE_PAGE: "base_pages",
    CacheResourceType.DRAFT_PAGE: "draft_pages",
    CacheResourceType.RECURRENT_SNAPSHOT: "recurrent_snapshots",
    CacheResourceType.PARTIAL_KV_SNAPSHOT: "partial_kv_snapshots",
}


def slot_or_none(slot: int) -> int | None:
    """A slot of the C ABI, where -1 is none."""
    return slot if slot >= 0 else None


def to_plan(plan: Any) -> ReusePlan:
    """A pc_plan as a value."""
    return ReusePlan(
        mode=ReusePlanMode(plan.mode),
        kind=ReusePlanKind(plan.kind),
        replay_mode=SpecReplayMode(plan.replay),
        reason=NoReuseReason(plan.reason),
        matched_token_length=plan.matched,
        reuse_token_length=plan.reuse,
        bound_base_pages=plan.bound_base,
        bound_draft_pages=plan.bound_draft,
        demand_base_pages=plan.demand_base,
        demand_draft_pages=plan.demand_draft,
        recurrent_slot=slot_or_none(plan.recurrent_slot),
        partial_kv_slot=slot_or_none(plan.partial_slot),
        partial_tokens=plan.partial_tokens,
        dependency_blocks=plan.dependency,
        record=plan.record or None,
    )


class ManagerView(Handle):
    """A manager that somebody else owns: the one inside a coordinator."""

    def __init__(self, library: _ffi.Library, handle: ctypes.c_uint64) -> None:
        self._library = library
        self._handle = handle

    @property
    def handle(self) -> int:
        """pc_handle of the manager; 0 once it, or the coordinator that owns it, is closed."""
        return self._handle.value

    def records(self) -> list[CacheRecord]:
        """Every resident record, least recently used first.

        While other threads work on the cache, one that goes before its pages were read is left out.
        """
        count = ctypes.c_uint64()
        self._check(self._library.manager_records(self.handle, None, 0, ctypes.byref(count)))
        raw = (_abi.Record * count.value)()
        self._check(self._library.manager_records(self.handle, raw, len(raw), ctypes.byref(count)))
        out = []
        for r in raw[: count.value]:
            try:
                base, draft = self.record_pages(r.id, _abi.BASE), self.record_pages(r.id, _abi.DRAFT)
            except PrefixCacheError as e:
                if e.status != NOT_FOUND:
                    raise
                continue
            out.append(
                CacheRecord(
                    id=r.id,
                    full_block_count=len(base) if r.base_pages else r.blocks,  # it may have been shortened meanwhile
                    exact_length=r.exact_length,
                    base_pages=base,
                    draft_pages=draft,
                    recurrent_slot=slot_or_none(r.recurrent_slot),
                    partial_kv_slot=slot_or_none(r.partial_slot),
                )
            )
        return out

    def record_pages(self, record: int, model: int = 0) -> tuple[int, ...]:
        """Page path of a record: base (0) or draft (1)."""
        call, number = self._library.manager_record_pages, uint64("record", record)
        model = integer("model", model, 0, 1)
        count, room = ctypes.c_uint64(), 0
        while True:
            out = (ctypes.c_int32 * room)()
            self._check(call(self.handle, number, model, 0, out, room, ctypes.byref(count)))
            if count.value <= room:
                return tuple(out[: count.value])
            room = count.value

    def references(self, resource: CacheResourceType) -> tuple[list[int], list[int]]:
        """For each slot of a pool: live leases that use it, records that list it. Slow."""
        resource = member("resource", resource, CacheResourceType)
        size = self._stats().capacity[resource]
        active, cached = (ctypes.c_int32 * size)(), (ctypes.c_int32 * size)()
        self._check(self._library.manager_references(self.handle, resource, 0, active, cached, size))
        return list(active), list(cached)

    def capacity(self, resource: CacheResourceType) -> int:
        """Pages or slots of a pool."""
        return int(self._stats().capacity[member("resource", resource, CacheResourceType)])

    def free(self, resource: CacheResourceType) -> int:
        """Of these, neither cached nor used."""
        return int(self._stats().free[member("resource", resource, CacheResourceType)])

    def lookup(
        self,
        sequence: ContextCacheSequenceAdmission | BlockKeySequence | Tokens,
        mode: ReusePlanMode = ReusePlanMode.VANILLA,
    ) -> ReusePlan:
        """What an acquire of this sequence would find now."""
        argument, plan = SequenceArgument(sequence), _abi.sized(_abi.Plan)
        self._check(
            self._library.manager_lookup(
                self.handle, integer("mode", mode, 0, 2**32 - 1), ctypes.byref(argument.struct), ctypes.byref(plan)
            )
        )
        return to_plan(plan)

    def invalidate(self, adapter: Hash128, generation: int | None = None) -> int:
        """Removes every record made with an adapter, or one generation of it; how many.

        What a live lease of that adapter publishes later is dropped.
        """
        identity, removed = to_hash("adapter", adapter), ctypes.c_uint64()
        wanted = None if generation is None else ctypes.byref(ctypes.c_uint64(uint64("generation", generation)))
        self._check(
            self._library.manager_invalidate(self.handle, ctypes.byref(identity), wanted, ctypes.byref(removed))
        )
        return removed.value

    def flush(self) -> int:
        """Removes every record, under the same rule; how many."""
        removed = ctypes.c_uint64()
        self._check(self._library.manager_flush(self.handle, ctypes.byref(removed)))
        return removed.value

    def evict(self, record: int) -> bool:
        """Removes one record; False when there is none of this id."""
        status = self._library.manager_evict(self.handle, uint64("record", record))
        if status == NOT_FOUND:
            return False
        self._check(status)
        return True

    def tenants(self) -> list[Tenant]:
        """The tenants that are known; empty unless the cache was made with ``tenant_quota``."""
        count, room = ctypes.c_uint64(), 64
        while True:
            out = (_abi.Tenant * room)()
            self._check(self._library.manager_tenants(self.handle, ctypes.addressof(out), room, ctypes.byref(count)))
            if count.value <= room:
                break
            room = count.value + 64  # another thread may add some
        names = [f.name for f in fields(Tenant) if f.name != "isolation"]
        return [
            Tenant(
                Hash128(t.isolation.high, t.isolation.low) if t.present else None,
                **{name: getattr(t, name) for name in names},
            )
            for t in out[: count.value]
        ]

    def set_quota(self, isolation: Hash128 | None, quota: int) -> None:
        """The share of one tenant, in per mille of pages and records; 0: the default again."""
        key = to_hash("isolation", isolation) if isolation is not None else None
        self._check(
            self._library.manager_set_quota(
                self.handle, ctypes.byref(key) if key is not None else None, integer("quota", quota, 0, 2**32 - 1)
            )
        )

    def _stats(self) -> Any:
        stats = _abi.sized(_abi.ManagerStats)
        self._check(self._library.manager_get_stats(self.handle, ctypes.byref(stats)))
        return stats

    def metrics(self) -> dict[str, Any]:
        """Occupancy now and counters since creation.

        ``pools`` maps the name of a pool to its capacity, free, active (used by leases),
        active_peak and reclaimed (freed by evictions so far) slots; ``reasons`` the names of
        :class:`NoReuseReason` to the leases that had it.
        """
        s = self._stats()
        out: dict[str, Any] = {
            name: getattr(s, name)
            for name in (
                "records",
                "leases",
                "base_blocks",
                "draft_blocks",
                "acquires",
                "infeasible",
                "evicted_records",
                "stale_publications",
                "hash_collisions",
                "query_tokens",
                "hit_tokens",
                "shortened_records",
                "leases_peak",
                "lock_waits",
                "lock_wait_nanoseconds",
            )
        }
        out["pools"] = {
            name: {key: getattr(s, key)[resource] for key in ("capacity", "free", "active", "active_peak", "reclaimed")}
            for resource, name in POOL_NAMES.items()
        }
        out["reasons"] = {reason.name.lower(): s.reasons[reason] for reason in NoReuseReason}
        return out

    def check_invariants(self) -> None:
        """Raises a PrefixCacheError that says which structural invariant is broken. Slow."""
        self._check(self._library.manager_check(self.handle))

    def dump(self) -> str:
        """Pools, records, tree and leases as text."""
        size = ctypes.c_uint64()
        self._check(self._library.manager_dump(self.handle, None, 0, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value + 1)
        self._check(self._library.manager_dump(self.handle, text, len(text), ctypes.byref(size)))
        return text.value.decode("utf-8", "replace")
