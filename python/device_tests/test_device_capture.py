"""What goes on beside a CUDA graph capture of somebody else, and what a thread's context is afterwards.

A capture in global mode, torch's default, is lost when any thread makes a call that the
driver counts as unsafe: one that waits, allocates, pins or gives back.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p

import abi
import pytest
from abi import OK, WRONG_STATE, error
from abi_context import World
from context_host import KV, Kind, Rig
from device_context import DeviceRig
from sim_driver import NON_BLOCKING, Driver
from test_device_abi import Cache, bytes_of

from prefixcache import PrefixCacheError
from prefixcache.context import (
    ContextCacheBatchAdmission,
    ContextCacheConfig,
    ContextCacheCoordinator,
    ContextCacheCoordinatorStatus,
    ContextCacheDeploymentKind,
    ContextCacheExecutionMode,
    ContextCachePhysicalResources,
    ContextCacheSequenceAdmission,
    ContextCacheSequenceAdvance,
    DeploymentConfig,
    HostCacheManager,
    KVPageTable,
    ModelConfig,
    SpecConfig,
    _abi,
)

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
ACTIVE = 1


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    return abi.load()


def current(driver: Driver) -> int | None:
    context = c_void_p()
    assert driver.dll.cuCtxGetCurrent(byref(context)) == 0
    return context.value


@pytest.fixture(params=["pools", "no pools"], autouse=True)
def memory(driver: Driver, request) -> None:
    """With and without stream-ordered allocation."""
    driver.dll.simcuda_pools(request.param == "pools")


@contextmanager
def captured(driver: Driver, mode: int, flags: int = NON_BLOCKING) -> Iterator[None]:
    """Inside, this thread captures a stream that nobody else uses."""
    model = driver.stream(flags)
    driver.dll.simcuda_capture(c_void_p(model), mode)
    yield
    assert driver.end_capture(model) == ACTIVE, "the capture was spoilt"
    driver.end_stream(model)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_a_cache_lives_and_dies_beside_a_capture(lib, driver, mode):
    """The first save opens the device, each one pins a further page; destroy gives all back."""
    stream = driver.stream()
    cache = Cache(lib, driver, 0, stream, depth=4)
    rows = [driver.alloc(bytes_of(2, k)) for k in range(2)]
    with captured(driver, mode):
        steps = []
        for i in range(4):
            assert cache.begin(arrivals=[] if i else [(1, 0, [])]) == OK
            status, step = cache.save(1, [2 * i, 2 * i + 1], rows)
            assert status == OK, error(lib)
            steps.append(step)
        for step in steps:
            assert cache.read(step, 2)[0] == OK, error(lib)
        assert cache.destroy() == OK, error(lib)
    for address in rows:
        driver.free(address)
    driver.end_stream(stream)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
@pytest.mark.parametrize("flags", [NON_BLOCKING, 0], ids=["", "blocking"])
@pytest.mark.parametrize("name", ["table", "context"])
def test_tables_and_coordinators_come_and_go_beside_a_capture(driver, name, flags, mode):
    """Nothing is enqueued, so not even a capture that the default stream would join is in the way."""
    world = World()
    values = world.good(f"{name}_create")
    values["options"].flags &= ~_abi.HOST_MEMORY
    if name == "context":
        table = KVPageTable(4, 4, 16, host_memory=False)
        world.objects.append(table)
        values["options"].base.table = table.handle
    else:
        memory = driver.alloc(bytes(4096))
    with captured(driver, mode, flags):
        assert world.call(f"{name}_create", values) == OK, world.error()
        assert world.call(f"{name}_destroy", {name: byref(values[name])}) == OK, world.error()
        if name == "table":
            values["options"].device_address = memory
            assert world.call("table_create", values) == OK, world.error()
            assert world.call("table_destroy", {"table": byref(values["table"])}) == OK, world.error()
    if name == "table":
        driver.free(memory)
    for thing in world.objects:
        if isinstance(thing, Rig):
            thing.live.finish()
        thing.close()


@pytest.mark.parametrize("kind", [Kind.VANILLA, Kind.HYBRID])
def test_a_coordinator_is_made_while_its_stream_is_captured(driver, kind):
    """It enqueues nothing until a request is prepared."""
    real = driver.stream

    def captured_stream():
        stream = real()
        driver.capture(stream)
        return stream

    driver.stream = captured_stream
    rig = DeviceRig(driver, kind)
    assert driver.end_capture(rig.stream) == ACTIVE
    rig.close()


def test_a_table_is_destroyed_beside_a_capture_that_the_default_stream_would_join(driver):
    """Work on the legacy stream is refused while a blocking stream is captured."""
    table = KVPageTable(4, 8, 32, host_memory=False)
    with captured(driver, GLOBAL, flags=0):
        table.close()


@pytest.mark.parametrize("ended", [False, True], ids=["while it goes on", "after it"])
def test_an_event_of_a_capture_is_refused(lib, driver, ended):
    """The common mistake is the second: recorded in the captured forward, saved behind the replay."""
    stream, model = driver.stream(), driver.stream()
    cache = Cache(lib, driver, 0, stream)
    rows = [driver.alloc(bytes_of(1, k)) for k in range(2)]
    driver.dll.simcuda_capture(c_void_p(model), RELAXED)
    driver.provoked.append("cuEventRecord on stream")  # the model does, and may
    event = driver.event(model)
    if ended:
        driver.end_capture(model)
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    status, _ = cache.save(1, [0], rows, event=event)
    assert status == WRONG_STATE, error(lib)
    assert "graph" in error(lib)
    driver.end_capture(model)
    status, step = cache.save(1, [0], rows)
    assert status == OK, error(lib)
    assert cache.read(step, 1)[0] == OK, error(lib)
    cache.destroy()
    driver.end_event(event)
    for address in rows:
        driver.free(address)
    driver.end_stream(model)
    driver.end_stream(stream)


@pytest.mark.parametrize("opened", [False, True], ids=["first save", "later"])
def test_a_save_inside_the_capture_that_recorded_its_event_keeps_it(lib, driver, opened):
    """The stream is looked at first: it is the event that the driver ends a capture for."""
    stream = driver.stream()
    cache = Cache(lib, driver, 0, stream)
    rows = [driver.alloc(bytes_of(1, k)) for k in range(2)]
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    if opened:
        assert cache.save(1, [1], rows)[0] == OK, error(lib)
    driver.capture(stream)
    driver.provoked.append("cuEventRecord on stream")  # the model does, and may
    event = driver.event(stream)
    status, _ = cache.save(1, [0], rows, event=event)
    assert status == WRONG_STATE and "is being captured" in error(lib)
    assert driver.end_capture(stream) == ACTIVE
    cache.destroy()
    driver.end_event(event)
    for address in rows:
        driver.free(address)
    driver.end_stream(stream)


def test_a_thread_without_a_context_has_none_after_materialize(lib, driver):
    """Else torch would take the cache's device for the thread's own."""
    stream = driver.stream()
    cache = Cache(lib, driver, 0, stream)
    rows = [driver.alloc(bytes_of(2, k)) for k in range(2)]
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    status, step = cache.save(1, [0, 1], rows)
    assert status == OK
    seen = []

    def reader():
        before = current(driver)
        seen.extend([before, cache.read(step, 2)[0], current(driver)])

    thread = threading.Thread(target=reader)
    thread.start()
    thread.join()
    assert seen == [None, OK, None]
    cache.destroy()
    for address in rows:
        driver.free(address)
    driver.end_stream(stream)


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_farther_apart_than_a_copy_can_step(lib, driver, rows):
    stream = driver.stream()
    cache = Cache(lib, driver, 0, stream)
    buffers = [driver.alloc(bytes_of(rows, k)) for k in range(2)]
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    status, step = cache.save(1, list(range(rows)), buffers, strides=(1 << 31, 1 << 31))
    if rows == 1:
        assert status == OK, error(lib)
        assert driver.calls(b"cuMemcpy2DAsync_v2") == 0
        assert cache.read(step, 1)[0] == OK
    else:
        assert status != OK
        assert "row_stride" in error(lib) and str((1 << 31) - 1) in error(lib)
    cache.destroy()
    for address in buffers:
        driver.free(address)
    driver.end_stream(stream)


def test_a_table_is_given_back_whatever_device_is_current(driver):
    driver.dll.simcuda_devices(2)
    table = KVPageTable(4, 8, 32, host_memory=False)
    own, other = current(driver), c_void_p()
    assert driver.dll.cuDevicePrimaryCtxRetain(byref(other), 1) == 0
    assert driver.dll.cuCtxSetCurrent(other) == 0  # torch.cuda.set_device(1), or a finalizer's thread
    table.close()
    assert current(driver) == other.value
    assert driver.dll.cuCtxSetCurrent(ctypes.c_void_p(own)) == 0
    driver.dll.simcuda_devices(1)


def test_a_synchronisation_that_cannot_be_tried_poisons_nothing(driver):
    stream = driver.stream()
    table = KVPageTable(2, 8, 32, host_memory=False)
    shape = {"num_pages": 32, "max_pages_per_seq": 8, "tokens_per_page": 4}
    cache = HostCacheManager(max_batch_size=2, attention=[KV], **shape)
    config = ContextCacheConfig(enabled=True, tokens_per_page=4, host_memory=False)
    deployment = DeploymentConfig(ModelConfig(max_batch_size=2))
    resources = ContextCachePhysicalResources(cache, table)
    vanilla = ContextCacheDeploymentKind.VANILLA
    with ContextCacheCoordinator(config, deployment, vanilla, resources, stream) as coordinator:
        admission = ContextCacheBatchAdmission([ContextCacheSequenceAdmission(list(range(9)))])
        request = coordinator.begin_request(admission, stream).admission.request
        coordinator.prepare_prefill(request)
        driver.dll.simcuda_capture(c_void_p(stream), RELAXED)
        with pytest.raises(PrefixCacheError, match="captured"):
            coordinator.finish(request)
        assert driver.end_capture(stream) == ACTIVE
        assert not coordinator.metrics()["poisoned"]
        assert coordinator.finish(request) == ContextCacheCoordinatorStatus.OK
    table.close()
    driver.end_stream(stream)


@pytest.mark.parametrize("why", ["capture", "driver"])
def test_work_of_ours_that_cannot_follow_the_hosts_breaks_the_step_off(driver, why):
    """Synchronise, then upload the mapping: the only list where our command follows one of the host's."""
    stream = driver.stream()
    shape = {"num_pages": 32, "max_pages_per_seq": 8, "tokens_per_page": 4}
    tables = [KVPageTable(2, 8, 32, host_memory=False) for _ in range(2)]
    caches = [HostCacheManager(max_batch_size=2, attention=[KV], **shape) for _ in range(2)]
    deployment = DeploymentConfig(ModelConfig(max_batch_size=2))
    deployment.draft, deployment.spec = ModelConfig(max_batch_size=2), SpecConfig(6, 5, 1, [0])
    config = ContextCacheConfig(enabled=True, tokens_per_page=4, host_memory=False, max_requests=2)
    resources = ContextCachePhysicalResources(caches[0], tables[0], caches[1], tables[1])
    mapping = driver.alloc(bytes(8))
    spoil = []

    def synchronise(of):
        driver.drain(of)
        if spoil:
            spoil.clear()
            if why == "capture":
                driver.capture(stream)
            else:
                driver.fail(1)
        return 0

    kind, eagle = ContextCacheDeploymentKind.EAGLE, ContextCacheExecutionMode.EAGLE
    with ContextCacheCoordinator(config, deployment, kind, resources, stream, synchronise) as coordinator:
        admission = ContextCacheBatchAdmission([ContextCacheSequenceAdmission(list(range(9)))], execution_mode=eagle)
        request = coordinator.begin_request(admission, stream).admission.request
        coordinator.prepare_prefill(request)
        coordinator.enqueue_prefill_captures(request)
        coordinator.finalize_prefill_publication(request, [ContextCacheSequenceAdvance([7], 9)], [9])
        spoil.append(why)
        with pytest.raises(PrefixCacheError, match="captured" if why == "capture" else "OUT_OF_MEMORY"):
            coordinator.begin_batch_compaction(request, [0], 1, mapping)
        if why == "capture":
            assert driver.end_capture(stream) == ACTIVE
        driver.fail(0)
        other = coordinator.begin_request(
            ContextCacheBatchAdmission([ContextCacheSequenceAdmission([1])], slots=[1]), stream
        )
        assert other.admission is not None, "one request's step stands in nobody's way"
        for live in (other.admission.request, request):
            assert coordinator.finish(live) == ContextCacheCoordinatorStatus.OK
    for table in tables:
        table.close()
    driver.free(mapping)
    driver.end_stream(stream)


def test_a_request_dropped_by_a_thread_with_another_stream_is_quarantined(driver):
    """The collector takes the drain to whatever thread it runs on, which waits for a stream of its own."""
    each = 2  # CU_STREAM_PER_THREAD
    table = KVPageTable(2, 8, 32, host_memory=False)
    cache = HostCacheManager(max_batch_size=2, attention=[KV], num_pages=32, max_pages_per_seq=8, tokens_per_page=4)
    config = ContextCacheConfig(enabled=True, tokens_per_page=4, host_memory=False)
    deployment = DeploymentConfig(ModelConfig(max_batch_size=2))
    coordinator = ContextCacheCoordinator(
        config,
        deployment,
        ContextCacheDeploymentKind.VANILLA,
        ContextCachePhysicalResources(cache, table),
        each,
        driver.drain,
    )
    own = c_void_p(current(driver))
    request = coordinator.begin_request(
        ContextCacheBatchAdmission([ContextCacheSequenceAdmission(list(range(9)))]), each
    ).admission.request
    coordinator.prepare_prefill(request)

    def drop() -> None:
        assert driver.dll.cuCtxSetCurrent(own) == 0
        request.close()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert coordinator.metrics()["quarantined_requests"] == 1
    assert coordinator.shutdown() is ContextCacheCoordinatorStatus.OK
    coordinator.close()
    table.close()
