"""What is left of an object that was closed: it says so, and its end is no error."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from context_host import Kind, Rig, prompt

from prefixcache import PrefixCacheArgumentError, PrefixCacheError
from prefixcache.context import (
    ContextCacheBatchAdmission,
    ContextCacheConfig,
    ContextCacheCoordinator,
    ContextCacheManager,
    ContextCachePhysicalResources,
    ContextCacheSequenceAdmission,
    DeploymentConfig,
    KVPageTable,
    ModelConfig,
    SpecConfig,
)
from prefixcache.metrics import prometheus_text

BAD_HANDLE = -2


def manager() -> ContextCacheManager:
    return ContextCacheManager(base_pages=16, tokens_per_page=4)


MANAGER: dict[str, Callable[[ContextCacheManager], Any]] = {
    "acquire": lambda m: m.acquire([1]),
    "lookup": lambda m: m.lookup([1]),
    "records": lambda m: m.records(),
    "evict": lambda m: m.evict(1),
    "flush": lambda m: m.flush(),
    "metrics": lambda m: m.metrics(),
    "dump": lambda m: m.dump(),
    "tenants": lambda m: m.tenants(),
    "prometheus_text": prometheus_text,
}
COORDINATOR: dict[str, Callable[[ContextCacheCoordinator], Any]] = {
    "begin_request": lambda c: c.begin_request(ContextCacheBatchAdmission([ContextCacheSequenceAdmission([1])])),
    "metrics": lambda c: c.metrics(),
    "shutdown": lambda c: c.shutdown(),
    "move_slot_state": lambda c: c.move_slot_state([0]),
    "prometheus_text": prometheus_text,
}
TABLE: dict[str, Callable[[KVPageTable], Any]] = {
    "num_pages": lambda t: t.num_pages,
    "set_row": lambda t: t.set_row(0, [1]),
    "set_rows": lambda t: t.set_rows([(0, [1])]),
    "compact_rows": lambda t: t.compact_rows([0, 1], 2),
    "row": lambda t: t.row(0),
    "device_row": lambda t: t.device_row(0),
    "upload": lambda t: t.upload(),
    "check_invariants": lambda t: t.check_invariants(),
}


def refused(call: Callable[[Any], Any], thing: Any, name: str) -> None:
    with pytest.raises(PrefixCacheError, match=f"this {name} is closed, expected an open one") as e:
        call(thing)
    assert e.value.status == BAD_HANDLE


@pytest.mark.parametrize("name", MANAGER)
def test_a_closed_manager_says_so(name):
    m = manager()
    m.close()
    refused(MANAGER[name], m, "ContextCacheManager")
    m.close()


@pytest.mark.parametrize("name", COORDINATOR)
def test_a_closed_coordinator_says_so(name):
    rig = Rig(Kind.VANILLA)
    rig.coordinator.close()
    refused(COORDINATOR[name], rig.coordinator, "ContextCacheCoordinator")
    rig.close()


@pytest.mark.parametrize("name", TABLE)
def test_a_closed_table_says_so(name):
    table = KVPageTable(2, 4, 16)
    table.close()
    refused(TABLE[name], table, "KVPageTable")
    table.close()


@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_the_manager_of_a_coordinator_goes_with_it(end):
    rig = Rig(Kind.VANILLA)
    view = rig.coordinator.manager()
    rig.coordinator.close()
    if end == "dropped":
        del rig.coordinator
    refused(lambda v: v.records(), view, "ManagerView")
    assert view.handle == 0


def test_a_closed_table_is_no_resource():
    rig = Rig(Kind.VANILLA)
    rig.close()
    with pytest.raises(PrefixCacheError, match=r"resources\.base_page_table: this KVPageTable is closed"):
        ContextCacheCoordinator(
            ContextCacheConfig(enabled=True),
            DeploymentConfig(ModelConfig(max_batch_size=2)),
            Kind.VANILLA,
            ContextCachePhysicalResources(rig.base, rig.table),
        )


def test_leases_may_end_after_their_manager():
    """``with manager, lease`` in the wrong order: closing freed the lease, and its end says nothing."""
    m = manager()
    with m.acquire(prompt(9)).lease as first:
        second = m.acquire(prompt(5)).lease
        m.close()
        assert not first.valid()
        refused(lambda lease: lease.base_pages(), second, "ContextCacheManager")
    assert first.handle == 0
    m.release(second)
    second.release()
    assert second.handle == 0
    with manager() as other:
        lease = other.acquire([1]).lease
        refused(m.release, lease, "ContextCacheManager")  # which never had it
        assert lease.valid()


def objects() -> dict[str, Any]:
    rig, m = Rig(Kind.VANILLA), manager()
    live = rig.coordinator.begin_request(ContextCacheBatchAdmission([ContextCacheSequenceAdmission([1, 2])]))
    return {
        "ContextCacheManager": m,
        "CacheRequestLease": m.acquire([1]).lease,
        "ContextCacheCoordinator": rig.coordinator,
        "ManagerView": rig.coordinator.manager(),
        "RequestHandle": live.admission.request,
        "KVPageTable": rig.table,
    }


@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_what_is_a_handle_stays_in_its_process(make):
    for name, thing in objects().items():
        with pytest.raises(TypeError, match=f"^{name} cannot be pickled or copied"):
            make(thing)


def test_a_table_that_is_none():
    rig = Rig(Kind.VANILLA)
    resources = ContextCachePhysicalResources(rig.base, "table")
    with pytest.raises(PrefixCacheArgumentError, match=r"resources\.base_page_table: 'table', expected a KVPageTable"):
        ContextCacheCoordinator(
            ContextCacheConfig(enabled=True), DeploymentConfig(ModelConfig(max_batch_size=2)), Kind.VANILLA, resources
        )
    rig.close()


def test_base_and_draft_have_a_table_each():
    rig = Rig(Kind.EAGLE)
    rig.close()
    table = KVPageTable(4, 16, 64)
    deployment = DeploymentConfig(ModelConfig(max_batch_size=4), draft=ModelConfig(max_batch_size=4))
    deployment.spec = SpecConfig(3, 2, 1, [0])
    resources = ContextCachePhysicalResources(rig.base, table, rig.draft, table)
    with pytest.raises(PrefixCacheError, match=r"options\.draft\.table: 0x[0-9a-f]+, the table of options\.base"):
        ContextCacheCoordinator(ContextCacheConfig(enabled=True), deployment, Kind.EAGLE, resources)
    table.close()  # which is nobody's


def test_what_ends_a_with_block_goes_on_where_its_end_is_refused():
    """Ctrl-C is still Ctrl-C to who waits for it, though a live request keeps the coordinator, and that its table."""
    rig = Rig(Kind.VANILLA)
    with pytest.raises(KeyboardInterrupt) as e, rig.table, rig.coordinator:
        live = rig.begin([1, 2, 3])
        raise KeyboardInterrupt
    coordinator, table = e.value.__notes__
    assert "live or quarantined" in coordinator and "use" in table
    with pytest.raises(PrefixCacheError, match="live or quarantined"), rig.coordinator:
        pass
    live.request.close()
    rig.close()


def test_a_lease_that_ends_with_an_error_lets_it_pass():
    m = manager()
    lease = m.acquire([1, 2]).lease
    twin = type(lease)(m, type(lease._handle)(lease.handle))
    lease.release()
    with pytest.raises(KeyError) as e, twin:
        raise KeyError
    assert "stale" in e.value.__notes__[0]
    with pytest.raises(PrefixCacheError, match="stale"), twin:
        pass
    twin._handle.value = 0
    m.close()
