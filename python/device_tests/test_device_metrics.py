"""Metrics of rows on a device: bytes and time of the clone and of the copy to the host,
pinned memory, the wait for a step's landing; and that a small step pays for none of it."""

from __future__ import annotations

import ctypes
import time

import exposition
import pytest
import sim_driver
from omni_host import Host, eventually, rows
from test_device_omni import CudaArray

from prefixcache import PrefixCacheError
from prefixcache.metrics import prometheus_text

WIDTH = 4096  # float32: a row is 16 KiB, 64 of them are 1 MiB
ROW = 4 * WIDTH


@pytest.fixture(params=["eager", "threaded"])
def host(request, driver):
    h = Host(eager=request.param == "eager", num_blocks=34 * 64 // 4)
    yield h
    h.check()
    h.manager.shutdown()
    handle = ctypes.c_uint64(h.manager.handle)
    assert h.manager._cache.library.omni_destroy(handle) == 0


def step(host, driver, count):
    """A step of request A with `count` rows on the device; its id."""
    host.begin({"A": count})
    start = host.view.computed["A"]
    array = CudaArray(driver, rows("A", start, start + count, "wide", WIDTH))
    made = host.save({"wide": array}, hidden=None)
    array.free()
    return made


def discard(host, made):
    """The step is written when it is consumed."""
    host.manager.discard_step(made)
    eventually(lambda: host.manager.stats()["pending_writes"] == 0)


def value(host, name, **labels):
    return exposition.read(prometheus_text(host.manager)).value(name, cache="omni", **labels)


def test_bytes_and_time_of_large_steps(host, driver):
    host.arrive("A", list(range(48)))
    began = time.monotonic()
    for _ in range(2):
        discard(host, step(host, driver, 64))
    most = time.monotonic() - began
    for direction in ("clone", "d2h"):
        assert value(host, "copy_bytes_total", direction=direction) == 2 * 64 * ROW
        # The second step has read the events of the first.
        assert value(host, "copy_timed_bytes_total", direction=direction) == 64 * ROW
        assert 0 <= value(host, "copy_seconds_total", direction=direction) < most
    assert value(host, "copy_bytes_total", direction="save") == 0
    assert value(host, "copy_bytes_total", direction="commit") == 2 * 64 * ROW
    # Steps that were consumed before the next one share a page; pages are powers of two.
    assert value(host, "pinned_bytes") == 64 * ROW


def test_only_some_large_steps_record_more_events(host, driver):
    host.arrive("A", list(range(48)))
    records = []
    for count in (1, 1, 64, 1, 64):
        before = driver.calls(b"cuEventRecord")
        discard(host, step(host, driver, count))
        records.append(driver.calls(b"cuEventRecord") - before)
    assert records == [2, 2, 2 + 4, 2, 2]


def test_a_failed_event_spoils_a_figure_and_not_the_step(host, driver):
    host.arrive("A", list(range(34 * 64 // 4)))
    for n in range(34):
        if n == 16:
            driver.fail(1, sim_driver.ENQUEUE)  # the event before the clone
        discard(host, step(host, driver, 64))
    assert value(host, "copy_bytes_total", direction="clone") == 34 * 64 * ROW
    # Every sixteenth is timed: of steps 0, 16 and 32, the second has no figure.
    assert value(host, "copy_timed_bytes_total", direction="clone") == 2 * 64 * ROW
    assert value(host, "failed_writes_total") == 0


def test_wait_for_a_landing(driver):
    host = Host(eager=False, num_blocks=34 * 64 // 4)
    host.arrive("A", list(range(48)))
    host.begin({"A": 4})
    array = CudaArray(driver, rows("A", 0, 4, "wide", WIDTH))
    made = host.save({"wide": array}, hidden=None)
    host.read(made, "A")
    waits = value(host, "waits_total", cause="landing")
    assert waits == 1
    assert value(host, "wait_seconds_total", cause="landing") > 0
    eventually(lambda: host.manager.stats()["pending_writes"] == 0)
    array.free()
    host.manager.shutdown()
    handle = ctypes.c_uint64(host.manager.handle)
    assert host.manager._cache.library.omni_destroy(handle) == 0


def test_memory_that_cannot_be_pinned_is_told(host, driver, caplog):
    host.arrive("A", list(range(48)))
    first = step(host, driver, 4)  # opens the device, and holds its page
    host.begin({"A": 4})
    array = CudaArray(driver, rows("A", 4, 8, "wide", WIDTH))
    driver.fail(2, sim_driver.CREATE)  # the page's event is the first
    with pytest.raises(PrefixCacheError, match="cuMemHostRegister"):
        host.save({"wide": array}, hidden=None)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{4 * ROW} bytes of host memory could not be pinned for rows from a device: cuMem" in record.getMessage()
    second = host.save({"wide": array}, hidden=None)  # tried again
    host.manager.discard_step(first)
    discard(host, second)
    array.free()
