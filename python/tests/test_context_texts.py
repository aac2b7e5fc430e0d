"""Texts of refusals: they have the names and the numbers that the host knows.

A host tells by them what to do: try again, or never again.
"""

from __future__ import annotations

import ctypes
import re

import pytest
from abi_context import BAD_HANDLE, INVALID, OK, REQUEST_FAILED, UNSUPPORTED, WRONG_STATE, World, hashes

from prefixcache.context import (
    BlockKeyExtras,
    ContextCacheManager,
    ContextCacheSequenceAdmission,
    Hash128,
    ReusePlanMode,
    _abi,
)

POOLS = ("base_pages", "draft_pages", "recurrent_slots", "partial_slots")


@pytest.fixture
def world():
    return World()


def acquired(world, manager, length, mode=0, tenant=None):
    """Status, lease and plan of pc_manager_acquire for a new prompt."""
    lease, plan = ctypes.c_uint64(0), _abi.sized(_abi.Plan)
    extras = ctypes.pointer(_abi.Extras(present=8, isolation=_abi.Hash(tenant, 0))) if tenant else None
    sequence = world.sequence(list(range(length)))
    if extras:
        world.keep.append(extras)
        sequence.extras = extras
    status = world.lib.manager_acquire(
        manager.handle, mode, 0, ctypes.byref(sequence), ctypes.byref(plan), None, 0, None, 0, ctypes.byref(lease)
    )
    return status, lease, plan


# --------------------------------------------------- never fits, or not now


def test_a_prompt_larger_than_the_pool_says_never_and_one_that_waits_says_now(world):
    with ContextCacheManager(base_pages=4, tokens_per_page=8) as manager:
        status, _, plan = acquired(world, manager, 33)
        assert (status, plan.bound_base + plan.demand_base) == (REQUEST_FAILED, 5)
        assert world.error() == "beyond capacity: 5 base pages wanted, the pool has 4 in all (base_pages)"
        status, lease, _ = acquired(world, manager, 32)
        assert status == OK
        assert acquired(world, manager, 8)[0] == REQUEST_FAILED
        assert world.error().startswith("no capacity:")
        assert world.lib.manager_release(manager.handle, ctypes.byref(lease)) == OK
        assert acquired(world, manager, 8)[0] == OK  # so it was for now


def test_a_prompt_that_is_cached_in_part_counts_whole(world):
    with ContextCacheManager(base_pages=4, tokens_per_page=8) as manager:
        with manager.acquire(list(range(32))).lease as lease:
            manager.publish(lease, 32)
        status, _, plan = acquired(world, manager, 33)
        assert (status, plan.bound_base, plan.demand_base) == (REQUEST_FAILED, 4, 1)
        assert "5 base pages wanted, the pool has 4" in world.error()


def test_the_draft_pages_that_were_forgotten_are_named(world):
    with ContextCacheManager(base_pages=8, tokens_per_page=8) as manager:
        assert acquired(world, manager, 9, ReusePlanMode.SPEC)[0] == REQUEST_FAILED
        assert world.error() == "beyond capacity: 2 draft pages wanted, the pool has 0 in all (draft_pages)"


@pytest.mark.parametrize(
    "base, says", [(1, "no capacity:"), (3, "beyond capacity: 2 base pages held and 3 wanted, .*4 in all")]
)
def test_growth_says_never_when_the_lease_alone_would_be_too_large(world, base, says):
    with ContextCacheManager(base_pages=4, tokens_per_page=8) as manager:
        lease, other = (manager.acquire([i] * 16).lease for i in range(2))
        who = manager.handle, lease.handle
        assert world.lib.manager_grow(*who, base, 0, None, None) == REQUEST_FAILED
        assert re.match(says, world.error()), world.error()
        assert world.lib.manager_advance(*who, None, 0, 0, base, 0, None, None, None) == REQUEST_FAILED
        assert re.match(says, world.error()), world.error()
        lease.release()
        other.release()


@pytest.mark.parametrize("pools, partial, says", [
    ({"partial_slots": 2}, False, "beyond capacity: 1 recurrent snapshot wanted, the pool has 0 in all (recurrent_slots)"),
    ({"recurrent_slots": 2}, True, "beyond capacity: 1 partial snapshot wanted, the pool has 0 in all (partial_slots)"),
    ({"recurrent_slots": 1, "partial_slots": 1}, False, "no snapshot slot: all are in use, even with every record evicted"),
])  # fmt: skip
def test_a_snapshot_without_slots_says_never(world, pools, partial, says):
    manager = ContextCacheManager(base_pages=4, tokens_per_page=8, **pools)
    with manager, manager.acquire(list(range(9)), ReusePlanMode.HYBRID).lease as lease:
        if says.startswith("no"):
            manager.reserve(lease, False)
        slots = ctypes.c_int32(7), ctypes.c_int32(7)
        status = world.lib.manager_reserve(manager.handle, lease.handle, partial, *map(ctypes.byref, slots))
        assert (status, world.error()) == (REQUEST_FAILED, says)
        assert [s.value for s in slots] == [7, 7]


def test_a_snapshot_of_a_flushed_lease_says_what_becomes_of_it(world):
    manager = ContextCacheManager(base_pages=4, tokens_per_page=8, recurrent_slots=1, tenant_quota=1000)
    with manager, manager.acquire(list(range(8)), ReusePlanMode.HYBRID).lease as lease:
        manager.flush()
        with manager.acquire(list(range(8)), ReusePlanMode.HYBRID).lease as other:
            slots = manager.reserve(other, False)
            manager.publish_hybrid(other, 8, slots)
        slots = ctypes.c_int32(7), ctypes.c_int32(7)
        status = world.lib.manager_reserve(manager.handle, lease.handle, 0, *map(ctypes.byref, slots))
        assert status == REQUEST_FAILED
        assert world.error().startswith("no snapshot slot: what this lease publishes is dropped")
        assert [s.value for s in slots] == [7, 7]
        assert len(manager.records()) == 1


def test_a_prompt_larger_than_the_quota_says_never(world):
    with ContextCacheManager(base_pages=8, tokens_per_page=8, tenant_quota=500) as manager:
        status, _, _ = acquired(world, manager, 33, tenant=1)
        assert status == REQUEST_FAILED
        assert world.error() == "quota: 5 base pages wanted, the tenant may hold 4 in all"
        extras = BlockKeyExtras(isolation_digest=Hash128(1, 0))
        with manager.acquire(ContextCacheSequenceAdmission(list(range(16)), extras)).lease as lease:
            assert acquired(world, manager, 24, tenant=1)[0] == REQUEST_FAILED
            assert world.error().startswith("quota: the tenant's leases")
            assert world.lib.manager_grow(manager.handle, lease.handle, 3, 0, None, None) == REQUEST_FAILED
            assert world.error() == "quota: 2 base pages held and 3 wanted, the tenant may hold 4 in all"


# ----------------------------------------------------- numbers that a host has


def test_the_number_of_a_lease_is_the_handle_that_was_given(world):
    with ContextCacheManager(base_pages=4, recurrent_slots=1, tokens_per_page=8) as manager:
        _, lease, _ = acquired(world, manager, 9)
        handle, slots = lease.value, (ctypes.c_int32(), ctypes.c_int32())
        assert world.lib.manager_reserve(manager.handle, handle, 0, *map(ctypes.byref, slots)) == WRONG_STATE
        assert f"lease {handle:#x} is not hybrid" in world.error()
        assert world.lib.manager_release(manager.handle, ctypes.byref(lease)) == OK
        assert world.lib.manager_publish(manager.handle, handle, 8, None) == BAD_HANDLE
        assert f"lease {handle:#x} is empty, stale or was never issued" in world.error()
        again = ctypes.c_uint64(handle)
        assert world.lib.manager_release(manager.handle, ctypes.byref(again)) == BAD_HANDLE
        assert f"{handle:#x}" in world.error()
        assert world.lib.manager_publish(manager.handle, 0, 8, None) == BAD_HANDLE
        assert "lease 0x0 is empty" in world.error()
        _, second, _ = acquired(world, manager, 9)
        assert second.value != handle
        assert f"lease {second.value:#x}:" in manager.dump()


# ------------------------------------------- names of the header, values, expectations

TEXTS = [
    ("manager_publish", {"resident": 3}, "resident is 3, which holds no full block; expected at least 4"),
    ("manager_publish_keys", {"resident": 3}, "resident is 3, which holds no full block; expected at least 4"),
    ("manager_publish_keys", {"num_keys": 0}, "keys reach block 0; expected that of block 0 at least, to publish one"),
    ("manager_set_quota", {"quota": 1001}, "quota: 1001, expected 0 to 1000 per mille"),
]


@pytest.mark.parametrize("name, wrong, says", TEXTS, ids=[f"{n}-{next(iter(w))}" for n, w, _ in TEXTS])
def test_an_argument_is_named_with_its_value_and_what_was_expected(world, name, wrong, says):
    world.refused(name, world.good(name), INVALID, f"^{re.escape(says)}$", **wrong)


@pytest.mark.parametrize("name, argument, least", [
    ("manager_create", "options", 64),
    ("context_create", "options", None),
    ("manager_get_stats", "stats", 8),
    ("manager_publish", "publication", None),
])  # fmt: skip
def test_the_size_of_a_struct_is_that_of_the_header(world, name, argument, least):
    values = world.good(name)
    size = ctypes.sizeof(values[argument])
    values[argument].struct_size = 4
    assert world.call(name, values) == UNSUPPORTED
    text = re.fullmatch(
        rf"{argument}\.struct_size: 4, expected {size} \(sizeof the struct in prefixcache\.h; at least (\d+)\)",
        world.error(),
    )
    assert text, world.error()
    assert int(text[1]) <= size and least in (None, int(text[1]))


def test_extras_have_a_text_for_each_field(world):
    values = world.good("manager_acquire")
    for field, says in (("present", r"^extras\.present: 0x40, expected only PC_EXTRA_ bits \(0xf\)$"),
                        ("reserved0", r"^extras\.reserved0: 64, expected 0 \(reserved\)$")):  # fmt: skip
        extras = ctypes.pointer(_abi.Extras(**{field: 0x40}))
        world.keep.append(extras)
        values["sequence"].extras = extras
        world.refused("manager_acquire", values, UNSUPPORTED, says)


@pytest.mark.parametrize("field", ["max_batch", "row_width", "num_pages"])
def test_a_page_table_has_the_names_of_its_options(world, field):
    values = world.good("table_create")
    setattr(values["options"], field, 0)
    world.refused("table_create", values, INVALID, f"^page table: {field} is 0, expected > 0$")


def test_a_call_for_another_kind_of_lease_names_the_one_that_is_meant(world):
    manager = ContextCacheManager(base_pages=4, recurrent_slots=2, partial_slots=2, tokens_per_page=8)
    with manager, manager.acquire(list(range(9)), ReusePlanMode.HYBRID).lease as lease:
        assert world.lib.manager_publish(manager.handle, lease.handle, 8, None) == WRONG_STATE
        assert world.error() == "publish of a hybrid lease, expected publish_hybrid"
    slots = ctypes.c_int32(), ctypes.c_int32()
    manager = ContextCacheManager(base_pages=0, recurrent_slots=2, tokens_per_page=8)
    with manager, manager.acquire(list(range(9)), ReusePlanMode.HYBRID).lease as lease:
        assert world.lib.manager_reserve(manager.handle, lease.handle, 1, *map(ctypes.byref, slots)) == INVALID
        assert world.error() == "need_partial is 1, expected 0 for a pure recurrent lease"


def test_keys_beyond_the_full_blocks_are_named(world):
    manager = world.keyed()
    sequence = world.sequence(keys=hashes(1, 2, 3), num_keys=3, num_tokens=10)
    plan, lease = _abi.sized(_abi.Plan), ctypes.c_uint64(5)
    arguments = (
        manager.handle,
        0,
        0,
        ctypes.byref(sequence),
        ctypes.byref(plan),
        None,
        0,
        None,
        0,
        ctypes.byref(lease),
    )
    assert world.lib.manager_acquire(*arguments) == INVALID
    assert world.error() == "sequence.num_keys is 3, expected at most 2, the full blocks of 10 tokens"
    assert lease.value == 5
