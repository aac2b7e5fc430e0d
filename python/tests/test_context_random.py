"""Random operations on the manager level, held against the model after each one.

Prompts over two token ids and pages of two tokens: prefixes meet, split and are evicted
all the time. ``PREFIXCACHE_RANDOM_STEPS`` makes it longer, ``PREFIXCACHE_RANDOM_SEED``
another run.
"""

from __future__ import annotations

import os
import random

import pytest
from context_model import BASE, DRAFT, HYBRID, PARTIAL, RECURRENT, SPEC, VANILLA, Lease, Model

from prefixcache import PrefixCacheError
from prefixcache.context import (
    AcquireStatus,
    AdapterIdentity,
    BlockKeyExtras,
    CacheResourceType,
    ContextCacheLookupPolicy,
    ContextCacheManager,
    ContextCacheSequenceAdmission,
    Hash128,
    HybridSnapshotReservation,
    PublishStatus,
    ReusePlanMode,
)

STEPS = int(os.environ.get("PREFIXCACHE_RANDOM_STEPS", "1500"))
SEED = int(os.environ.get("PREFIXCACHE_RANDOM_SEED", "1"))
P = 2


def extras(salt: int) -> BlockKeyExtras | None:
    return BlockKeyExtras(adapter=AdapterIdentity(Hash128(0, salt))) if salt else None


class Walk:
    """The cache and the model, side by side."""

    def __init__(self, seed: int, modes, capacity, limit: int, original: bool, weak_hash: bool) -> None:
        self.random = random.Random(seed)
        self.modes = modes
        base, draft, recurrent, partial = capacity
        self.cache = ContextCacheManager(
            base_pages=base,
            draft_pages=draft,
            recurrent_slots=recurrent,
            partial_slots=partial,
            tokens_per_page=P,
            max_records=limit,
            original_recency=original,
            weak_hash=weak_hash,
        )
        self.model = Model(P, capacity, limit, original)
        self.live: list[tuple[object, Lease]] = []

    def run(self, steps: int) -> None:
        operations = [self.acquire] * 5 + [self.append, self.grow] * 3 + [self.publish] * 5 + [self.release] * 3
        operations += [self.reserve, self.snapshot, self.restored] * (3 if HYBRID in self.modes else 0)
        for step in range(steps):
            rare = self.random.random()
            if rare < 0.01:
                operation = self.random.choice([self.evict, self.invalidate, self.flush])
            else:
                operation = self.random.choice(operations)
            try:
                operation()
                self.compare()
            except Exception as e:
                e.add_note(f"step {step}: {operation.__name__}\n{self.cache.dump()}")
                raise
        for lease, _ in self.live:
            lease.release()
        self.cache.flush()
        assert all(pool["free"] == pool["capacity"] for pool in self.cache.metrics()["pools"].values()), "C-71"

    # ------------------------------------------------------------------- operations

    def pick(self, *modes):
        fitting = [x for x in self.live if x[1].mode in (modes or range(3))]
        return self.random.choice(fitting) if fitting else (None, None)

    def acquire(self) -> None:
        r = self.random
        if len(self.live) == 4:
            return
        mode, salt, bypass = r.choice(self.modes), r.choice([0, 0, 0, 1]), r.random() < 0.05
        tokens = [r.randrange(2) for _ in range(r.randint(1, 12))]
        matched, reuse, kind, bound, hit = self.model.plan(mode, salt, tokens, bypass)
        pages = -(-len(tokens) // P) if self.model.capacity[BASE] else 0
        demand = {BASE: pages - len(bound[BASE])}
        if mode == SPEC:
            demand[DRAFT] = pages - len(bound[DRAFT])
        feasible = self.model.fits(demand, dict(enumerate(bound)))
        sequence = ContextCacheSequenceAdmission(tokens, extras(salt))
        if not bypass:
            assert self.cache.lookup(sequence, ReusePlanMode(mode)).reuse_token_length == reuse
        result = self.cache.acquire(sequence, ReusePlanMode(mode), ContextCacheLookupPolicy(int(bypass)))
        plan = result.plan
        assert (plan.matched_token_length, plan.reuse_token_length, plan.kind) == (matched, reuse, kind)
        assert (plan.bound_base_pages, plan.bound_draft_pages) == (len(bound[BASE]), len(bound[DRAFT]))
        assert plan.recurrent_slot == (bound[RECURRENT] or [None])[0]
        assert plan.partial_kv_slot == (bound[PARTIAL] or [None])[0]
        if mode != VANILLA:
            assert plan.record == (hit.id if hit else None)
        assert (result.status is AcquireStatus.ACQUIRED) == feasible
        if not feasible:
            return
        lease = Lease(mode, salt, list(tokens), tuple(list(b) for b in bound))
        lease.dependency = len(bound[BASE]) + 1 if mode == SPEC and bound[BASE] else 0
        lease.restored = (list(bound[RECURRENT]), list(bound[PARTIAL]))
        self.model.leases.append(lease)
        self.model.evict_for(demand, hit)
        if hit is not None:
            self.model.touch(hit)
        self.take(lease, BASE, result.lease.base_pages())
        self.take(lease, DRAFT, result.lease.draft_pages())
        self.live.append((result.lease, lease))

    def take(self, lease: Lease, pool: int, pages: list[int]) -> None:
        """The lease has grown by slots that were free."""
        had = len(lease.held[pool])
        assert pages[:had] == lease.held[pool], "what it had it keeps"
        new = pages[had:]
        used = self.model.active(pool).keys() | self.model.cached(pool).keys()
        assert len(set(new)) == len(new)
        assert not set(new) & used, f"slots {set(new) & used} of pool {pool} are in use"
        lease.held[pool].extend(new)

    def append(self) -> None:
        handle, lease = self.pick()
        if lease and len(lease.history) < 24:
            tokens = [self.random.randrange(2) for _ in range(self.random.randint(1, 3))]
            self.cache.append(handle, tokens)
            lease.history += tokens

    def grow(self) -> None:
        handle, lease = self.pick()
        if lease is None or not self.model.capacity[BASE]:
            return
        demand = {BASE: self.random.choice([0, 1, 1, 2, 30])}
        if lease.mode == SPEC:
            demand[DRAFT] = self.random.choice([0, 1, 1, 2])
        feasible = self.model.fits(demand, {})
        assert self.cache.grow(handle, demand[BASE], demand.get(DRAFT, 0)) == feasible
        if feasible:
            self.model.evict_for(demand, None)
            self.take(lease, BASE, handle.base_pages())
            self.take(lease, DRAFT, handle.draft_pages())

    def publish(self) -> None:
        handle, lease = self.pick(VANILLA, SPEC)
        if lease is None:
            return
        resident = self.random.randint(0, len(lease.history))
        k = resident // P
        room = min(len(lease.held[BASE]), len(lease.held[DRAFT]) if lease.mode == SPEC else k)
        if k < max(1, lease.dependency) or k > room:
            before = self.cache.dump()
            with pytest.raises(PrefixCacheError):
                self.cache.publish(handle, resident)
            assert self.cache.dump() == before
            return
        self.published(
            lease, self.cache.publish(handle, resident), k, lambda new: self.model.publish(lease, resident, new)
        )

    def published(self, lease, out, k, by_the_model) -> None:
        assert (out.stale, out.blocks) == (lease.stale, k)
        if lease.stale:
            assert (out.status, out.record) == (PublishStatus.PUBLISHED, None)
            return
        existing, record = by_the_model(out.record)
        assert (out.status is PublishStatus.EXISTING_RECORD) == existing
        assert out.record == (record.id if record else None)

    def reserve(self) -> None:
        handle, lease = self.pick(HYBRID)
        if lease is None or len(lease.reserved) == 2:
            return
        partial = self.random.random() < 0.5 and self.model.capacity[BASE] > 0
        demand = {RECURRENT: 1, PARTIAL: int(partial)}
        feasible = self.model.fits(demand, {})
        if lease.stale:  # nothing is evicted for what would be dropped
            feasible = all(n <= self.model.free(pool) for pool, n in demand.items())
        out = self.cache.reserve(handle, partial)
        assert (out is not None) == feasible
        if out is None:
            return
        self.model.evict_for(demand, None)
        assert (out.partial_kv_slot is not None) == partial
        self.take(lease, RECURRENT, [*lease.held[RECURRENT], out.recurrent_slot])
        if partial:
            self.take(lease, PARTIAL, [*lease.held[PARTIAL], out.partial_kv_slot])
        lease.reserved.append((out.recurrent_slot, out.partial_kv_slot))

    def snapshot(self) -> None:
        """Publish one of the reservations, or give it up unwritten."""
        handle, lease = self.pick(HYBRID)
        if lease is None or not lease.reserved:
            return
        slots = self.random.choice(lease.reserved)
        lengths = [
            n
            for n in range(1, len(lease.history) + 1)
            if (n % P != 0 and self.model.capacity[BASE] > 0) == (slots[1] is not None)
            and (-(-n // P) <= len(lease.held[BASE]) or not self.model.capacity[BASE])
        ]
        held = HybridSnapshotReservation(*slots)
        if lengths and self.random.random() < 0.8:
            n = self.random.choice(lengths)
            out = self.cache.publish_hybrid(handle, n, held)
            self.published(lease, out, n // P, lambda new: self.model.publish_hybrid(lease, n, slots, new))
        self.cache.retire(handle, held)
        lease.reserved.remove(slots)
        lease.held[RECURRENT].remove(slots[0])
        if slots[1] is not None:
            lease.held[PARTIAL].remove(slots[1])

    def restored(self) -> None:
        handle, lease = self.pick(HYBRID)
        if lease is None:
            return
        self.cache.release_restored(handle)
        for pool, slots in zip((RECURRENT, PARTIAL), lease.restored, strict=True):
            for slot in slots:
                lease.held[pool].remove(slot)
            slots.clear()

    def release(self) -> None:
        handle, lease = self.pick()
        if lease is not None:
            handle.release()
            self.live.remove((handle, lease))
            self.model.leases.remove(lease)

    def evict(self) -> None:
        if self.model.records:
            record = self.random.choice(self.model.records)
            assert self.cache.evict(record.id)
            self.model.records.remove(record)
        assert not self.cache.evict(10**9)

    def invalidate(self) -> None:
        gone = [r for r in self.model.records if r.salt == 1]
        assert self.cache.invalidate(Hash128(0, 1)) == len(gone)
        self.model.records = [r for r in self.model.records if r.salt != 1]
        for _, lease in self.live:
            lease.stale |= lease.salt == 1

    def flush(self) -> None:
        assert self.cache.flush() == len(self.model.records)
        self.model.records.clear()
        for _, lease in self.live:
            lease.stale = True

    # ---------------------------------------------------------------------- compare

    def compare(self) -> None:
        self.cache.check_invariants()
        records = self.cache.records()
        assert [r.id for r in records] == [r.id for r in self.model.records], "records in order of recency"
        for got, want in zip(records, self.model.records, strict=True):
            base = want.paths[BASE] if self.model.capacity[BASE] else []
            assert (list(got.base_pages), list(got.draft_pages)) == (base, want.paths[DRAFT])
            assert got.recurrent_slot == (want.paths[RECURRENT] or [None])[0]
            assert got.partial_kv_slot == (want.paths[PARTIAL] or [None])[0]
            assert got.exact_length == (len(want.tokens) if want.exact else 0)
        for pool in CacheResourceType:
            active, cached = self.cache.references(pool)
            count = self.model.active(pool), self.model.cached(pool)
            assert active == [count[0][i] for i in range(self.model.capacity[pool])], pool.name
            assert cached == [count[1][i] for i in range(self.model.capacity[pool])], pool.name
            assert self.cache.free(pool) == self.model.free(pool)
        m = self.cache.metrics()
        assert m["leases"] == len(self.live)
        assert m["base_blocks"] == len(self.model.cached(BASE))
        assert m["draft_blocks"] == sum(len(r.paths[DRAFT]) for r in self.model.records)


@pytest.mark.parametrize(
    "modes, capacity, limit, original",
    [
        ([VANILLA], (16, 0, 0, 0), 1024, False),
        ([VANILLA], (16, 0, 0, 0), 1024, True),
        ([VANILLA], (24, 0, 0, 0), 3, False),
        ([VANILLA], (24, 0, 0, 0), 0, False),
        ([SPEC], (20, 20, 0, 0), 1024, False),
        ([VANILLA, SPEC, SPEC], (24, 18, 0, 0), 6, False),
        ([HYBRID], (20, 0, 5, 4), 1024, False),
        ([HYBRID], (30, 0, 8, 8), 3, False),
        ([HYBRID], (0, 0, 4, 0), 1024, False),
    ],
)
def test_random_operations(modes, capacity, limit, original):
    Walk(SEED, modes, capacity, limit, original, weak_hash=False).run(STEPS)


@pytest.mark.parametrize("modes", [[VANILLA], [VANILLA, SPEC], [HYBRID]])
def test_random_operations_when_every_lookup_collides(modes):
    """Identity is compared, so nothing changes but the time that it takes."""
    walk = Walk(SEED, modes, (24, 18, 6, 6), 8, False, weak_hash=True)
    walk.run(STEPS // 3)
    assert walk.cache.metrics()["hash_collisions"] > 5
