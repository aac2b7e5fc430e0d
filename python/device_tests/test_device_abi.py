"""Device rows through the C ABI: results, refusals, and every driver call failing once."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from ctypes import byref

import abi
import pytest
import sim_driver
from abi import (
    DEVICE,
    EAGER,
    INVALID,
    OK,
    UNMATCH,
    UNSUPPORTED,
    WRONG_STATE,
    NewRequest,
    OmniOptions,
    OmniStats,
    Read,
    Rows,
    SaveArgs,
    SlotState,
    error,
    values,
)

ON_DEVICE = 1
ROW = 16
NAMES = (b"__hidden_states__", b"audio.codes")  # the second one is deferred


@pytest.fixture(scope="module")
def lib():
    return abi.load()


class Cache:
    """A cache with a hidden key and a deferred one, driven through the ABI."""

    def __init__(self, lib, driver, flags=0, stream=0, depth=2):
        self.lib, self.driver, self.stream = lib, driver, stream
        options = OmniOptions(struct_size=ctypes.sizeof(OmniOptions), flags=flags, num_blocks=16, block_size=4,
                              staging_depth=depth, claim_timeout_ns=60_000_000_000)  # fmt: skip
        self.handle = ctypes.c_uint64()
        assert lib.pc_omni_create(byref(options), byref(self.handle)) == OK, error(lib)
        self.keys = []
        for schedule, name in enumerate(NAMES):
            key = ctypes.c_uint32()
            assert lib.pc_omni_open_key(self.handle, name, ctypes.c_size_t(len(name)), ctypes.c_uint64(ROW),
                                        ctypes.c_uint32(1), ctypes.c_uint32(schedule), byref(key)) == OK  # fmt: skip
            self.keys.append(key.value)

    def begin(self, finished=(), arrivals=()):
        done = (ctypes.c_uint64 * max(1, len(finished)))(*finished)
        self.blocks = [(ctypes.c_int64 * max(1, len(b)))(*b) for _, _, b in arrivals]
        new = (NewRequest * max(1, len(arrivals)))(
            *[
                NewRequest(r, hit, ctypes.addressof(b), len(b) if hit else 0)
                for (r, hit, _), b in zip(arrivals, self.blocks, strict=True)
            ]
        )
        return self.lib.pc_omni_step_begin(
            self.handle, done, ctypes.c_size_t(len(finished)), new, ctypes.c_size_t(len(arrivals)), None
        )

    def save(
        self, request, slots, sources, strides=(ROW, ROW), flags=(ON_DEVICE, ON_DEVICE), stream=None, event=0, size=None
    ):
        """(status, step); sources are addresses."""
        n = len(slots)
        requests, counts = (ctypes.c_uint64 * 1)(request), (ctypes.c_int64 * 1)(n)
        where = (ctypes.c_int64 * n)(*slots)
        rows = (Rows * len(sources))(
            *[
                Rows(key=k, flags=f, rows=a, row_stride=s)
                for k, f, a, s in zip(self.keys, flags, sources, strides, strict=True)
            ]
        )
        args = SaveArgs(struct_size=size or ctypes.sizeof(SaveArgs), event=event,
                        stream=self.stream if stream is None else stream,
                        requests=ctypes.addressof(requests), counts=ctypes.addressof(counts), num_requests=1,
                        slots=ctypes.addressof(where), num_slots=n, rows=ctypes.addressof(rows),
                        num_rows=len(sources))  # fmt: skip
        return self.lib.pc_omni_save(self.handle, byref(args)), args.step

    def read(self, step, count):
        """(status, rows of both keys) of a step of one request with count rows in all."""
        out = [(ctypes.c_uint8 * (count * ROW))() for _ in self.keys]
        reads = (Read * len(out))(
            *[
                Read(key=k, count=1, dst=ctypes.addressof(o), dst_bytes=len(o))
                for k, o in zip(self.keys, out, strict=True)
            ]
        )
        status = self.lib.pc_omni_materialize(self.handle, ctypes.c_uint64(step), reads, ctypes.c_size_t(len(out)))
        return status, [bytes(o) for o in out]

    def stats(self):
        s = OmniStats(struct_size=ctypes.sizeof(OmniStats))
        assert self.lib.pc_omni_get_stats(self.handle, byref(s)) == OK
        return values(s)

    def inspect(self, key, slots):
        where = (ctypes.c_int64 * len(slots))(*slots)
        states, rows = (SlotState * len(slots))(), (ctypes.c_uint8 * (len(slots) * ROW))()
        assert self.lib.pc_omni_inspect(self.handle, self.keys[key], where, ctypes.c_size_t(len(slots)), states, rows,
                                        ctypes.c_uint64(len(rows))) == OK  # fmt: skip
        return [x.state for x in states], bytes(rows)

    def settled(self, key, slots):
        """Rows of slots once they are all committed. The next step begins: a step that nobody consumed waits for that."""
        assert self.begin() == OK
        end = time.monotonic() + 60
        while True:
            states, rows = self.inspect(key, slots)
            if states == [2] * len(slots):
                return rows
            assert time.monotonic() < end, states
            time.sleep(0.0005)

    def check(self):
        assert self.lib.pc_omni_check(self.handle) == OK, error(self.lib)

    def destroy(self):
        return self.lib.pc_omni_destroy(byref(self.handle))


@pytest.fixture(params=["threaded", "eager"])
def flags(request):
    return EAGER if request.param == "eager" else 0


@pytest.fixture
def cache(lib, driver, flags):
    stream = driver.stream()
    c = Cache(lib, driver, flags, stream)
    yield c
    if c.handle.value:
        c.check()
        assert c.destroy() == OK, error(lib)
    driver.drain(stream)
    driver.end_stream(stream)


def bytes_of(n, seed):
    return bytes((seed * 37 + i * 11 + i // 256) % 251 for i in range(n * ROW))


@pytest.mark.parametrize("seed", range(40))
def test_steps_on_a_device_read_back(lib, driver, flags, seed):
    """Static output buffers, overwritten by the next forward right after the save."""
    driver.reset(seed, policy=seed % 3)
    stream = [0, 2][seed % 2] if seed % 4 < 2 else driver.stream(seed % 2)  # 0: torch's default, 2: per thread
    c = Cache(lib, driver, flags, stream)
    buffers = [driver.alloc(bytes(8 * ROW)) for _ in NAMES]
    assert c.begin(arrivals=[(1, 0, [])]) == OK
    steps, words = [], ROW // 4
    for i in range(6):
        if i and c.begin() != OK:
            raise AssertionError(error(lib))
        slots = [4 * i, 4 * i + 1, 4 * i + 2]
        for k, b in enumerate(buffers):
            driver.launch(stream, b, 3 * words, 1000 * i + 100 * k)
        status, step = c.save(1, slots, buffers)
        assert status == OK, error(lib)
        steps.append(step)
        if len(steps) == 2:  # the consumer is a step late
            back = len(steps) - 2 + i - 1
            status, out = c.read(steps.pop(0), 3)
            assert status == OK, error(lib)
            for k, o in enumerate(out):
                want = b"".join((1000 * back + 100 * k + w).to_bytes(4, "little") for w in range(3 * words))
                assert o == want, (seed, back, k)
    assert c.read(steps.pop(), 3)[0] == OK
    # A request that hits what was saved, and the deferred key before its request ends.
    assert c.begin(arrivals=[(2, 4, [1])]) == OK
    for b in buffers:
        driver.launch(stream, b, words, 7)
    status, step = c.save(2, [40], buffers)
    assert status == OK, error(lib)
    status, out = c.read(step, 5)
    assert status == UNMATCH and "absent slots" in error(lib)  # slot 7 was never written
    assert c.begin(finished=[1]) == OK
    deferred = c.settled(1, [0, 1, 2])
    assert deferred == b"".join((100 + w).to_bytes(4, "little") for w in range(3 * words))
    c.check()
    assert c.destroy() == OK, error(lib)
    driver.drain(stream)
    for b in buffers:
        driver.free(b)
    if stream > 2:
        driver.end_stream(stream)


def test_a_hit_on_deferred_rows_that_are_in_transit(lib, driver, cache):
    data = [bytes_of(4, k) for k in range(2)]
    buffers = [driver.alloc(d) for d in data]
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    status, step = cache.save(1, [0, 1, 2, 3], buffers)
    assert status == OK and cache.read(step, 4) == (OK, data)
    assert cache.inspect(1, [0])[0] == [1]  # deferred: in transit until the request ends
    assert cache.begin(arrivals=[(2, 4, [0])]) == OK
    status, step = cache.save(2, [8], buffers)
    assert status == OK
    assert cache.read(step, 5) == (OK, [d + d[:ROW] for d in data])
    for b in buffers:
        driver.free(b)


def test_rows_apart_and_rows_on_the_host_in_one_step(lib, driver, cache):
    """A stride on the device, and a second key that the model left on the CPU."""
    wide = bytes_of(8, 3)
    address = driver.alloc(wide)
    host = (ctypes.c_uint8 * (4 * ROW))(*bytes_of(4, 9))
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    status, step = cache.save(1, [0, 1, 2, 3], [address, ctypes.addressof(host)], (2 * ROW, ROW), (ON_DEVICE, 0))
    assert status == OK, error(lib)
    want = b"".join(wide[2 * i * ROW : (2 * i + 1) * ROW] for i in range(4))
    assert cache.read(step, 4) == (OK, [want, bytes(host)])
    assert cache.settled(0, [0, 1, 2, 3]) == want
    driver.free(address)


def test_a_host_with_an_older_header_has_no_event(lib, driver, cache):
    address = driver.alloc(bytes_of(2, 3))
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    status, step = cache.save(1, [0, 1], [address, address], event=0xDEAD, size=SaveArgs.event.offset)
    assert status == OK, error(lib)
    assert cache.read(step, 2) == (OK, [bytes_of(2, 3)] * 2)
    driver.free(address)


@pytest.mark.parametrize(
    "what", ["host pointer", "too short", "capturing", "foreign stream", "no stream", "destination", "flag", "event"]
)
def test_a_refused_save_enqueues_nothing_and_changes_nothing(lib, driver, cache, what):
    data = [bytes_of(2, k) for k in range(2)]
    buffers = [driver.alloc(d) for d in data]
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    assert cache.save(1, [0, 1], buffers)[0] == OK
    cache.settled(0, [0, 1])
    before, copies = cache.stats(), driver.calls(b"cuMemcpyDtoDAsync_v2")
    events, seen = driver.calls(b"cuEventRecord"), cache.inspect(0, range(16))
    host = (ctypes.c_uint8 * (2 * ROW))()
    if what == "host pointer":
        status, _ = cache.save(1, [2, 3], [buffers[0], ctypes.addressof(host)])
        assert status == INVALID and "host memory" in error(lib) and NAMES[1].decode() in error(lib)
    elif what == "too short":
        short = driver.alloc(data[1][:-1])
        status, _ = cache.save(1, [2, 3], [buffers[0], short])
        driver.free(short)
        assert status == INVALID and f"{NAMES[1].decode()} is {short:#x} with 32 bytes, of which 31 are" in error(lib)
    elif what == "capturing":
        driver.capture(cache.stream)
        status, _ = cache.save(1, [2, 3], buffers)
        assert status == WRONG_STATE and "captured" in error(lib)
        assert driver.end_capture(cache.stream) == 1  # still good
    elif what == "foreign stream":
        other, stream = ctypes.c_void_p(), ctypes.c_void_p()
        d = driver.dll
        assert d.cuCtxCreate_v2(byref(other), 0, 0) == 0 and d.cuStreamCreate(byref(stream), 1) == 0
        assert d.cuCtxPopCurrent_v2(byref(ctypes.c_void_p())) == 0
        status, _ = cache.save(1, [2, 3], buffers, stream=stream.value)
        assert status == INVALID and "another CUDA context" in error(lib)
        assert d.cuCtxPushCurrent_v2(other) == 0 and d.cuStreamDestroy_v2(stream) == 0
        assert d.cuCtxPopCurrent_v2(byref(ctypes.c_void_p())) == 0
    elif what == "no stream":
        gone = driver.stream()
        driver.end_stream(gone)
        driver.provoked.append("cuStreamGetCtx: stream")
        status, _ = cache.save(1, [2, 3], buffers, stream=gone)
        assert status == INVALID and f"stream {gone:#x} was destroyed" in error(lib)
    elif what == "event":
        gone = driver.event(cache.stream)
        driver.end_event(gone)
        events = driver.calls(b"cuEventRecord")
        driver.provoked.append(f"cuEventQuery: event {gone:#x} was destroyed")
        status, _ = cache.save(1, [2, 3], buffers, event=gone)
        assert status == INVALID and f"event {gone:#x} was destroyed" in error(lib)
    elif what == "destination":
        status = save_with_destination(cache, buffers[0])
        assert status == INVALID and "expected null" in error(lib)
    else:
        status, _ = cache.save(1, [2, 3], buffers, flags=(ON_DEVICE, 2))
        assert status == UNSUPPORTED and "flags" in error(lib)
    assert cache.stats() == before and cache.inspect(0, range(16)) == seen
    assert driver.calls(b"cuMemcpyDtoDAsync_v2") == copies and driver.calls(b"cuEventRecord") == events
    cache.check()
    status, step = cache.save(1, [2, 3], buffers)
    assert status == OK and step == 2, error(lib)
    assert cache.read(step, 2) == (OK, data)
    for b in buffers:
        driver.free(b)


@pytest.mark.parametrize("current", [True, False], ids=["a context is current", "none is"])
def test_a_first_save_in_the_wrong_context_binds_the_cache_to_nothing(lib, driver, flags, current):
    """Of two devices the thread, or the stream, is that of the other: refused, and put right by the host."""
    driver.dll.simcuda_devices(2)
    data = [bytes_of(2, k) for k in range(2)]
    buffers = [driver.alloc(d) for d in data]
    contexts = []
    for device in (0, 1):
        contexts.append(ctypes.c_void_p())
        driver._call("cuDevicePrimaryCtxRetain", byref(contexts[-1]), device)

    def enter(device):
        driver._call("cuCtxSetCurrent", contexts[device] if device is not None else None)

    enter(1)
    wrong = driver.stream()
    enter(0)
    stream = driver.stream()
    cache = Cache(lib, driver, flags, stream)
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    enter(1 if current else None)
    for _ in range(2):
        status, _ = cache.save(1, [0, 1], buffers, stream=wrong)
        assert status == INVALID and "memory of device 0; expected device 1" in error(lib)
    if current:
        enter(0)
    status, step = cache.save(1, [0, 1], buffers)
    assert status == OK and step == 1, error(lib)
    assert cache.read(step, 2) == (OK, data)
    assert cache.destroy() == OK, error(lib)
    enter(1)
    driver.end_stream(wrong)
    enter(0)
    for b in buffers:
        driver.free(b)
    driver.end_stream(stream)


def save_with_destination(cache, address):
    out = (ctypes.c_uint8 * (2 * ROW))()
    requests, counts, slots = (ctypes.c_uint64 * 1)(1), (ctypes.c_int64 * 1)(2), (ctypes.c_int64 * 2)(2, 3)
    rows = (Rows * 1)(Rows(key=cache.keys[0], flags=ON_DEVICE, rows=address, row_stride=ROW,
                           dst=ctypes.addressof(out), dst_bytes=len(out)))  # fmt: skip
    args = SaveArgs(struct_size=ctypes.sizeof(SaveArgs), stream=cache.stream, requests=ctypes.addressof(requests),
                    counts=ctypes.addressof(counts), num_requests=1, slots=ctypes.addressof(slots), num_slots=2,
                    rows=ctypes.addressof(rows), num_rows=1)  # fmt: skip
    return cache.lib.pc_omni_save(cache.handle, byref(args))


def test_nobody_waits_for_the_copy(lib, driver):
    """With the producer's stream held, save returns, and a step in front of it is read."""
    stream = driver.stream()
    c = Cache(lib, driver, 0, stream)
    data = [bytes_of(2, k) for k in range(2)]
    buffers = [driver.alloc(d) for d in data]
    assert c.begin(arrivals=[(1, 0, [])]) == OK
    status, first = c.save(1, [0, 1], buffers)
    assert status == OK
    c.settled(0, [0, 1])
    driver.hold(stream)
    status, second = c.save(1, [2, 3], buffers)
    assert status == OK  # and did not hang
    assert c.inspect(0, [2])[0] == [1]
    assert c.read(first, 2) == (OK, data)  # what is not needed is not waited for
    driver.release(stream)
    assert c.read(second, 2) == (OK, data)
    assert c.destroy() == OK
    for b in buffers:
        driver.free(b)
    driver.end_stream(stream)


def test_driver_calls_do_not_depend_on_the_rows(lib, driver):
    """One copy a key, one landing, two records and one wait, whatever the step has."""
    counts = []
    for n in (1, 60):
        driver.reset(1, sim_driver.EAGER)
        c = Cache(lib, driver, 0, 0)
        buffers = [driver.alloc(bytes_of(n, k)) for k in range(2)]
        assert c.begin(arrivals=[(1, 0, [])]) == OK
        for _ in range(2):
            status, step = c.save(1, list(range(n)), buffers)
            assert status == OK and c.read(step, n)[0] == OK
        c.settled(0, list(range(n)))
        names = (b"cuMemcpyDtoDAsync_v2", b"cuMemcpyDtoHAsync_v2", b"cuEventRecord", b"cuStreamWaitEvent")
        counts.append([driver.calls(name) for name in names])
        assert driver.dll.simcuda_pageable() == 0  # every copy went to pinned memory
        assert c.destroy() == OK
        for b in buffers:
            driver.free(b)
    assert counts[0] == counts[1] == [4, 2, 4, 2]


def script(c, buffers, log):
    """Steps, hits, finishes; every outcome is appended to log. True: all went well."""
    lib, good = c.lib, True

    def note(status, what):
        nonlocal good
        log.append((what, status, "" if status == OK else error(lib)))
        good = good and status == OK
        return status == OK

    note(c.begin(arrivals=[(1, 0, [])]), "begin")
    for i in range(3):
        slots = [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3]
        before = c.stats()
        status, step = c.save(1, slots, buffers)
        if not note(status, "save"):
            if status != DEVICE:
                return False  # sticky
            after = c.stats()
            for name in ("steps_saved", "rows_saved", "unconsumed_steps", "failed_writes", "keys"):
                assert after[name] == before[name], (name, log)
            status, step = c.save(1, slots, buffers)  # the one failure is over
            if not note(status, "save again"):
                return False
        status, out = c.read(step, 4)
        if note(status, "read"):
            assert out == c.data, log
        if not note(c.begin(), "begin"):
            return False
    note(c.begin(arrivals=[(2, 8, [0, 1])]), "hit")
    status, step = c.save(2, [32, 33, 34, 35], buffers)
    if status == DEVICE:
        note(status, "save")
        status, step = c.save(2, [32, 33, 34, 35], buffers)
    if note(status, "save"):
        status, out = c.read(step, 12)
        if note(status, "read"):
            assert out == [3 * d for d in c.data], log
    if note(c.begin(finished=[1, 2]), "finish"):
        end = time.monotonic() + 60
        while c.stats()["pending_writes"] and time.monotonic() < end:
            time.sleep(0.0005)
        gauges = c.stats()
        assert gauges["failed_writes"] or not (gauges["staged_bytes"] or gauges["unconsumed_steps"]), gauges
    return good


def test_every_driver_call_fails_once(lib, driver, flags):
    """Whatever fails: an error with the CUDA name, no partial change, nothing leaked."""
    seen = set()
    for n in range(1, 2000):
        driver.reset(n, n % 3)
        stream = driver.stream()
        data = [bytes_of(4, k) for k in range(2)]
        buffers = [driver.alloc(d) for d in data]
        c = Cache(lib, driver, flags, stream)
        c.data = data
        driver.fail(n)
        log = []
        good = script(c, buffers, log)
        for what, status, text in log:
            if status != OK:
                seen.add(what)
                assert status in (DEVICE, UNMATCH), log
                assert re.search(r"\bcu[A-Z]\w+: CUDA_ERROR_OUT_OF_MEMORY", text), log
        c.check()
        fired = not driver_armed(driver)
        destroyed = c.destroy()
        if destroyed != OK:
            assert destroyed == DEVICE and "CUDA_ERROR_OUT_OF_MEMORY" in error(lib)
        fired_in_destroy = not driver_armed(driver)
        driver.fail(0)
        driver.drain(stream)
        for b in buffers:
            driver.free(b)
        driver.end_stream(stream)
        assert not driver.faults(), (n, log, driver.faults())
        assert not driver.leaks(), (n, log, driver.leaks())
        if not fired_in_destroy:  # n is past the last call
            assert good and not fired
            assert n > 60
            assert {"save"} <= seen, seen
            return
    raise AssertionError("the calls never end")


@pytest.mark.parametrize("call", [b"cuEventDestroy_v2", b"cuMemHostUnregister", b"cuMemFreeAsync", b"cuMemPoolDestroy"])
def test_what_a_destroy_could_not_give_back_is_told_with_the_call(lib, driver, call):
    """Each call that gives something back fails from the first of its name on."""
    stream = driver.stream()
    cache = Cache(lib, driver, 0, stream)
    rows = [driver.alloc(bytes_of(1, k)) for k in range(2)]
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    status, step = cache.save(1, [0], rows)
    assert status == OK and cache.read(step, 1)[0] == OK, error(lib)
    driver.dll.simcuda_fail_call(call, sim_driver.OUT_OF_MEMORY)
    assert cache.destroy() == DEVICE and cache.handle.value == 0
    assert f"{call.decode().removesuffix('_v2')}: CUDA_ERROR_OUT_OF_MEMORY" in error(lib)
    driver.reset(0)


@pytest.mark.parametrize("call", [b"cuStreamSynchronize", b"cuStreamGetCtx"])
def test_a_destroy_keeps_pages_that_it_cannot_wait_for(lib, driver, call):
    """The step's copy to its page is queued, and stays so."""
    driver.reset(1, sim_driver.LATE)
    stream = driver.stream()
    cache = Cache(lib, driver, 0, stream)
    rows = [driver.alloc(bytes_of(1, k)) for k in range(2)]
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    status, step = cache.save(1, [0], rows)
    assert status == OK and lib.pc_omni_discard(cache.handle, ctypes.c_uint64(step)) == OK, error(lib)
    driver.dll.simcuda_fail_call(call, sim_driver.OUT_OF_MEMORY)
    assert cache.destroy() == DEVICE and cache.handle.value == 0
    assert f"{call.decode()}: CUDA_ERROR_OUT_OF_MEMORY" in error(lib)
    assert any("registration" in leak for leak in driver.leaks())
    driver.step()
    assert not driver.faults()
    driver.reset(0)


@pytest.mark.parametrize("then", ["save", "destroy"])
@pytest.mark.parametrize("own", [True, False], ids=["a stream of its own", "a stream"])
def test_copies_of_a_failed_save_that_nobody_could_wait_for(lib, driver, own, then):
    """What they write to is neither used nor given back before they are done, by whichever thread."""
    driver.reset(1, sim_driver.LATE)
    context, stream = ctypes.c_void_p(), driver.stream()
    driver._call("cuCtxGetCurrent", byref(context))
    cache = Cache(lib, driver, 0, 2 if own else stream)
    rows = [driver.alloc(bytes_of(4, k)) for k in range(4)]
    assert cache.begin(arrivals=[(1, 0, [])]) == OK
    status, step = cache.save(1, [0, 1, 2, 3], rows[:2])
    assert status == OK and cache.read(step, 4)[0] == OK, error(lib)
    cache.settled(0, [0, 1, 2, 3])

    def fail():
        driver._call("cuCtxSetCurrent", context)
        driver.dll.simcuda_fail_call(b"cuEventRecord", sim_driver.OUT_OF_MEMORY)  # the copies are queued by then
        driver.dll.simcuda_fail_all(sim_driver.WAIT, sim_driver.OUT_OF_MEMORY)
        assert cache.save(1, [4, 5, 6, 7], rows[:2])[0] == DEVICE
        driver.dll.simcuda_fail_call(None, 0)
        driver.dll.simcuda_fail_all(0, 0)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    if then == "save":
        status, step = cache.save(1, [4, 5, 6, 7], rows[2:])
        assert status == OK, error(lib)
        assert cache.read(step, 4) == (OK, [bytes_of(4, k) for k in (2, 3)])
    assert cache.destroy() == OK, error(lib)
    driver.step()
    for address in rows:
        driver.free(address)
    driver.end_stream(stream)


def driver_armed(driver):
    """Whether the failure is still to come; found by the count of calls."""
    return driver.dll.simcuda_armed() != 0


def test_a_lost_context_is_a_sticky_failure(lib, driver):
    for nth in range(1, 12):
        driver.reset(nth)
        stream = driver.stream()
        buffers = [driver.alloc(bytes_of(4, k)) for k in range(2)]
        c = Cache(lib, driver, 0, stream)
        driver.fail_operation(nth)
        texts = []
        assert c.begin(arrivals=[(1, 0, [])]) == OK
        for i in range(8):
            status, step = c.save(1, [i, i + 8], buffers)
            if status != OK:
                texts.append(error(lib))
                assert status in (DEVICE, UNMATCH)
                continue
            if c.read(step, 2)[0] != OK:
                texts.append(error(lib))
        assert texts and all("CUDA_ERROR_ILLEGAL_ADDRESS" in t for t in texts), (nth, texts)
        c.check()
        c.destroy()  # reports the loss; a lost context gives nothing back, and is gone
        assert not driver.faults()
    driver.reset(0)  # what a lost context keeps is gone with the context
