"""The C ABI from the side of a caller who gets things wrong.

Every mistake is an error whose text names the argument, and changes nothing.
"""

import ctypes
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from ctypes import byref, c_void_p
from functools import partial

import pytest
from abi import (
    BAD_HANDLE,
    BUSY,
    EAGER,
    FORKED,
    INVALID,
    KEY_MISMATCH,
    LIBRARY,
    OK,
    ROOT,
    STAGING_TIMEOUT,
    TOO_SMALL,
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
    load,
    values,
)

ROW = 64


@pytest.fixture(scope="module")
def lib():
    return load()


def options(**kw):
    o = OmniOptions(struct_size=ctypes.sizeof(OmniOptions), flags=EAGER, num_blocks=8, block_size=4)
    for k, v in kw.items():
        setattr(o, k, v)
    return o


@pytest.fixture
def cache(lib):
    h = ctypes.c_uint64()
    assert lib.pc_omni_create(byref(options(staging_depth=2, claim_timeout_ns=-1)), byref(h)) == OK, error(lib)
    yield h
    assert lib.pc_omni_destroy(byref(h)) == OK
    assert h.value == 0


def open_key(lib, cache, name=b"__hidden_states__", row=ROW, tag=1, schedule=0):
    key = ctypes.c_uint32(2**32 - 1)
    st = lib.pc_omni_open_key(cache, name, ctypes.c_size_t(len(name)), ctypes.c_uint64(row), tag, schedule, byref(key))
    return st, key.value


class Step:
    """One save of one request, with every array alive."""

    def __init__(self, key, slots, request=1, row=ROW, fill=7, dst=True):
        n = len(slots)
        self.requests = (ctypes.c_uint64 * 1)(request)
        self.counts = (ctypes.c_int64 * 1)(n)
        self.slots = (ctypes.c_int64 * n)(*slots)
        self.data = (ctypes.c_uint8 * (n * row))(*([fill] * (n * row)))
        self.dst = (ctypes.c_uint8 * (n * row))()
        self.rows = (Rows * 1)(
            Rows(
                key=key,
                rows=ctypes.addressof(self.data),
                row_stride=row,
                dst=ctypes.addressof(self.dst) if dst else None,
                dst_bytes=n * row if dst else 0,
            )
        )
        self.args = SaveArgs(
            struct_size=ctypes.sizeof(SaveArgs),
            requests=ctypes.addressof(self.requests),
            counts=ctypes.addressof(self.counts),
            num_requests=1,
            slots=ctypes.addressof(self.slots),
            num_slots=n,
            rows=ctypes.addressof(self.rows),
            num_rows=1,
        )


def stats(lib, cache):
    s = OmniStats(struct_size=ctypes.sizeof(OmniStats))
    assert lib.pc_omni_get_stats(cache, byref(s)) == OK, error(lib)
    return values(s)


def inspect(lib, cache, key, slots, row=ROW):
    s = (ctypes.c_int64 * len(slots))(*slots)
    states = (SlotState * len(slots))()
    rows = (ctypes.c_uint8 * (len(slots) * row))()
    st = lib.pc_omni_inspect(cache, key, s, ctypes.c_size_t(len(slots)), states, rows, ctypes.c_uint64(len(rows)))
    assert st == OK, error(lib)
    return [(x.state, x.owner) for x in states], bytes(rows)


def test_version_names_and_table(lib):
    header = (ROOT / "include" / "prefixcache.h").read_text()
    part = {p: header.split(f"#define PC_VERSION_{p} ")[1].split()[0] for p in ("MAJOR", "MINOR", "PATCH")}
    assert lib.pc_version().decode() == "{MAJOR}.{MINOR}.{PATCH}".format(**part)
    assert lib.pc_status_name(0) == b"PC_OK"
    assert lib.pc_status_name(-16) == b"PC_ERROR_UNMATCH"
    assert lib.pc_status_name(12345) == b"PC_UNKNOWN"
    assert lib.pc_kernel_name().decode() in ("generic", "sse2", "avx2", "avx512")
    assert lib.pc_get_api(1) is not None and lib.pc_get_api(2) is not None
    for version in (0, 999):
        assert lib.pc_get_api(version) is None
        assert lib.pc_last_error().decode().startswith(f"version: {version}, expected 1 to {lib.pc_abi_version()}: ")
        assert "version" in error(lib)


def test_every_status_of_the_header_has_its_name(lib):
    import re

    header = (ROOT / "include" / "prefixcache.h").read_text()
    enum = header.split("typedef int32_t pc_status;")[1].split("};")[0]
    found = re.findall(r"(PC_\w+) = (-?\d+)", enum)
    assert len(found) > 15
    for name, number in found:
        assert lib.pc_status_name(int(number)).decode() == name


def test_a_whole_walk(lib, cache):
    st, key = open_key(lib, cache)
    assert st == OK
    assert lib.pc_omni_step_begin(cache, None, 0, None, 0, None) == OK
    step = Step(key, [0, 1, 2, 3], fill=9)
    assert lib.pc_omni_save(cache, byref(step.args)) == OK, error(lib)
    assert step.args.step == 1
    assert bytes(step.dst) == bytes([9]) * 4 * ROW
    assert lib.pc_omni_materialize(cache, ctypes.c_uint64(1), None, 0) == OK
    # A hit of all four tokens by another request, plus one token of its own.
    blocks = (ctypes.c_int64 * 2)(0, 1)
    arrival = (NewRequest * 1)(NewRequest(2, 4, ctypes.addressof(blocks), 2))
    accepted = (ctypes.c_uint8 * 1)()
    finished = (ctypes.c_uint64 * 1)(1)
    assert lib.pc_omni_step_begin(cache, finished, 1, arrival, 1, accepted) == OK
    assert list(accepted) == [1]
    nxt = Step(key, [4], request=2, fill=5)
    full = (ctypes.c_uint8 * (5 * ROW))()
    nxt.rows[0].dst, nxt.rows[0].dst_bytes = ctypes.addressof(full), len(full)
    assert lib.pc_omni_save(cache, byref(nxt.args)) == OK, error(lib)
    reads = (Read * 1)(Read(key=key, first=0, count=1, dst=ctypes.addressof(full), dst_bytes=len(full)))
    assert lib.pc_omni_materialize(cache, ctypes.c_uint64(nxt.args.step), reads, 1) == OK, error(lib)
    assert bytes(full) == bytes([9]) * 4 * ROW + bytes([5]) * ROW
    assert lib.pc_omni_check(cache) == OK, error(lib)
    assert lib.pc_last_error() == b""


@pytest.mark.parametrize(
    "field, value, expected",
    [
        ("struct_size", 0, UNSUPPORTED),
        ("struct_size", 8, UNSUPPORTED),
        ("struct_size", 2**32 - 1, UNSUPPORTED),
        ("flags", 1 << 31, UNSUPPORTED),
        ("num_blocks", 0, INVALID),
        ("num_blocks", -1, INVALID),
        ("num_blocks", 2**62, INVALID),
        ("block_size", 0, INVALID),
        ("block_size", -4, INVALID),
        ("staging_depth", -1, INVALID),
        ("staging_depth", 2**40, INVALID),
        ("staging_bytes", -1, INVALID),
        ("staging_capacity_tokens", -1, INVALID),
        ("copy_chunk_bytes", -1, INVALID),
        ("reserved", (ctypes.c_uint64 * 4)(0, 0, 0, 1), UNSUPPORTED),
    ],
)
def test_create_refuses(lib, field, value, expected):
    h = ctypes.c_uint64(77)
    assert lib.pc_omni_create(byref(options(**{field: value})), byref(h)) == expected
    assert field in error(lib)
    assert h.value == 77


def test_create_refuses_null(lib):
    h = ctypes.c_uint64(77)
    assert lib.pc_omni_create(None, byref(h)) == INVALID and "options" in error(lib)
    assert lib.pc_omni_create(byref(options()), None) == INVALID and "cache" in error(lib)


def test_num_blocks_times_block_size_overflow(lib):
    h = ctypes.c_uint64()
    assert lib.pc_omni_create(byref(options(num_blocks=2**31 - 1, block_size=2**31 - 1)), byref(h)) == INVALID
    assert "num_blocks" in error(lib)


def calls(lib, h):
    """Every omni function with a handle, as (name, thunk)."""
    key = ctypes.c_uint32()
    s = OmniStats(struct_size=ctypes.sizeof(OmniStats))
    slot, state = (ctypes.c_int64 * 1)(0), (SlotState * 1)()
    step = Step(0, [0])
    return [
        ("shutdown", lambda: lib.pc_omni_shutdown(h)),
        ("set_policy", lambda: lib.pc_omni_set_policy(h, 1)),
        ("open_key", lambda: lib.pc_omni_open_key(h, b"k", ctypes.c_size_t(1), ctypes.c_uint64(8), 0, 0, byref(key))),
        ("step_begin", lambda: lib.pc_omni_step_begin(h, None, 0, None, 0, None)),
        ("save", lambda: lib.pc_omni_save(h, byref(step.args))),
        ("materialize", lambda: lib.pc_omni_materialize(h, ctypes.c_uint64(1), None, 0)),
        ("discard", lambda: lib.pc_omni_discard(h, ctypes.c_uint64(1))),
        ("get_stats", lambda: lib.pc_omni_get_stats(h, byref(s))),
        ("inspect", lambda: lib.pc_omni_inspect(h, 0, slot, ctypes.c_size_t(1), state, None, ctypes.c_uint64(0))),
        ("check", lambda: lib.pc_omni_check(h)),
        ("fail_write", lambda: lib.pc_omni_fail_write(h, ctypes.c_uint64(0))),
        ("destroy", lambda: lib.pc_omni_destroy(byref(h))),
    ]


@pytest.mark.parametrize("handle", [1, 2**64 - 1, 0x0123456789ABCDEF, (1 << 56) | 5])
def test_invented_handles(lib, handle):
    for name, call in calls(lib, ctypes.c_uint64(handle)):
        assert call() == BAD_HANDLE, name
        assert "cache" in error(lib), name


def test_zero_handle(lib):
    for name, call in calls(lib, ctypes.c_uint64(0))[:-1]:
        assert call() == BAD_HANDLE, name
    zero = ctypes.c_uint64(0)
    assert lib.pc_omni_destroy(byref(zero)) == OK
    assert lib.pc_omni_destroy(None) == OK
    odd = ctypes.c_void_p(ctypes.addressof((ctypes.c_uint64 * 2)()) + 1)
    assert lib.pc_omni_destroy(odd) == INVALID and "aligned" in error(lib)


def test_stale_handle(lib):
    h = ctypes.c_uint64()
    assert lib.pc_omni_create(byref(options()), byref(h)) == OK
    old = ctypes.c_uint64(h.value)
    assert lib.pc_omni_destroy(byref(h)) == OK
    again = ctypes.c_uint64()
    assert lib.pc_omni_create(byref(options()), byref(again)) == OK  # takes the same place in the table
    assert again.value != old.value
    for name, call in calls(lib, old):
        assert call() == BAD_HANDLE, name
    assert lib.pc_omni_destroy(byref(again)) == OK


def test_handle_of_another_kind(lib, cache):
    data, buffer = c_void_p(), ctypes.c_uint64()
    assert lib.pc_buffer_acquire(ctypes.c_uint64(1 << 20), byref(data), byref(buffer)) == OK
    assert data.value % 64 == 0
    assert lib.pc_omni_check(buffer) == BAD_HANDLE and "buffer" in error(lib)
    assert lib.pc_buffer_release(cache) == BAD_HANDLE and "omni cache" in error(lib)
    assert lib.pc_buffer_release(buffer) == OK
    assert lib.pc_buffer_release(buffer) == BAD_HANDLE


def test_buffer_arguments(lib):
    data, buffer = c_void_p(), ctypes.c_uint64()
    for size in (0, 2**46 + 1, 2**64 - 1):
        assert lib.pc_buffer_acquire(ctypes.c_uint64(size), byref(data), byref(buffer)) == INVALID
        assert "bytes" in error(lib)
    assert lib.pc_buffer_acquire(ctypes.c_uint64(1), None, byref(buffer)) == INVALID
    assert lib.pc_buffer_acquire(ctypes.c_uint64(1), byref(data), None) == INVALID


@pytest.mark.parametrize("threads, expected", [(0, INVALID), (4097, INVALID), (1, OK), (8, OK)])
def test_reserve_threads(lib, threads, expected):
    assert lib.pc_reserve_threads(threads) == expected


def test_set_log_level():
    """In a process of its own: here the log may be that of the Python package."""
    code = """
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)(lambda *_: None)
for level in (0, 5, -1):
    assert lib.pc_set_log(callback, None, level) == INVALID and "level" in error(lib)
assert lib.pc_set_log(callback, None, 4) == OK
assert lib.pc_set_log(None, None, 0) == OK
"""
    p = child_process(after=code)
    assert p.returncode == 0, p.stderr


@pytest.mark.parametrize(
    "name, row, schedule, expected, word",
    [
        (b"", 8, 0, INVALID, "name"),
        (b"x" * 4097, 8, 0, INVALID, "name"),
        (b"k", 0, 0, INVALID, "row_bytes of key k is 0,"),
        (b"k", 2**31 + 1, 0, INVALID, "row_bytes of key k is 2147483649,"),
        (b"k", 2**63, 0, INVALID, "row_bytes: 9223372036854775808"),
        (b"k", 8, 2, INVALID, "schedule"),
    ],
)
def test_open_key_refuses(lib, cache, name, row, schedule, expected, word):
    st, key = open_key(lib, cache, name, row, 1, schedule)
    assert st == expected and word in error(lib) and key == 2**32 - 1


def test_key_mismatch_only_after_a_save(lib, cache):
    _, key = open_key(lib, cache, row=ROW)
    assert open_key(lib, cache, row=2 * ROW)[0] == OK  # not visible yet
    assert open_key(lib, cache, row=ROW) == (OK, key)
    step = Step(key, [0])
    assert lib.pc_omni_save(cache, byref(step.args)) == OK
    for kw in ({"row": 2 * ROW}, {"tag": 9}):
        assert open_key(lib, cache, **kw)[0] == KEY_MISMATCH, kw
        assert "__hidden_states__" in error(lib)
    assert open_key(lib, cache, schedule=1)[0] == INVALID  # the hidden state is never deferred
    assert open_key(lib, cache) == (OK, key)


def test_policy_after_a_save(lib, cache):
    assert lib.pc_omni_set_policy(cache, 2) == INVALID and "needs_hidden" in error(lib)
    assert lib.pc_omni_set_policy(cache, 1) == OK
    _, key = open_key(lib, cache)
    step = Step(key, [0])
    assert lib.pc_omni_save(cache, byref(step.args)) == OK
    assert lib.pc_omni_set_policy(cache, 0) == WRONG_STATE


def break_save(step, what):
    """Break one thing of a good save; return a word that the error must contain."""
    a, r = step.args, step.rows[0]
    if what == "requests null":
        a.requests = None
        return "requests"
    if what == "counts null":
        a.counts = None
        return "counts"
    if what == "slots null":
        a.slots = None
        return "slots"
    if what == "rows null":
        a.rows = None
        return "rows"
    if what == "num_slots negative":
        a.num_slots = -1
        return "slots"
    if what == "num_requests huge":
        a.num_requests = 2**63
        return "requests"
    if what == "num_rows huge":
        a.num_rows = 2**63
        return "rows"
    if what == "slot negative":
        step.slots[2] = -1
        return "slot"
    if what == "slot too large":
        step.slots[2] = 32
        return "slot"
    if what == "count negative":
        step.counts[0] = -4
        return "count"
    if what == "count huge":
        step.counts[0] = 2**62
        return ""
    if what == "unknown key":
        r.key = 1000
        return "key"
    if what == "no data":
        r.rows = None
        return "rows"
    if what == "stride short":
        r.row_stride = ROW - 1
        return "stride"
    if what == "stride negative":
        r.row_stride = -ROW
        return "stride"
    if what == "stride overflows":
        r.row_stride = 2**62
        return "stride"
    if what == "dst short":
        r.dst_bytes = 4 * ROW - 1
        return "dst_bytes"
    if what == "dst long":
        r.dst_bytes = 4 * ROW + 1
        return "dst_bytes"
    if what == "dst bytes without dst":
        r.dst = None
        return "dst"
    if what == "dst overlaps rows":
        r.dst = r.rows + ROW
        return "overlap"
    if what == "row flags":
        r.flags = 2
        return "flags"
    if what == "flags":
        a.flags = 1
        return "flags"
    if what == "reserved":
        a.reserved[0] = 1
        return "reserved"
    if what == "struct_size":
        a.struct_size = 16
        return "struct_size"
    raise AssertionError(what)


BROKEN = [
    "requests null", "counts null", "slots null", "rows null", "num_slots negative", "num_requests huge",
    "num_rows huge", "slot negative", "slot too large", "count negative", "count huge", "unknown key", "no data",
    "stride short", "stride negative", "stride overflows", "dst short", "dst long", "dst bytes without dst",
    "dst overlaps rows", "row flags", "flags", "reserved", "struct_size",
]  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_refused_save_leaves_no_trace(lib, cache, what):
    _, key = open_key(lib, cache)
    good = Step(key, [0, 1, 2, 3], fill=1)
    assert lib.pc_omni_save(cache, byref(good.args)) == OK
    before, seen = stats(lib, cache), inspect(lib, cache, key, range(32))
    bad = Step(key, [0, 1, 2, 3], fill=2)
    word = break_save(bad, what)
    st = lib.pc_omni_save(cache, byref(bad.args))
    assert st in (INVALID, UNSUPPORTED, TOO_SMALL, UNMATCH), (what, st)
    assert word in error(lib), (what, error(lib))
    assert bad.args.step == 0
    assert stats(lib, cache) == before
    assert inspect(lib, cache, key, range(32)) == seen
    assert lib.pc_omni_check(cache) == OK, error(lib)
    # And the corrected call works, with the next step id.
    again = Step(key, [0, 1, 2, 3], fill=2)
    assert lib.pc_omni_save(cache, byref(again.args)) == OK, error(lib)
    assert again.args.step == 2


def test_a_stream_is_looked_at_for_rows_on_a_device_only(lib, cache):
    """As the header has it: a host may always say its stream. An event would promise an order that is not kept."""
    _, key = open_key(lib, cache)
    step = Step(key, [0])
    step.args.stream = 5
    assert lib.pc_omni_save(cache, byref(step.args)) == OK, error(lib)
    step.args.event = 5
    assert lib.pc_omni_save(cache, byref(step.args)) == INVALID
    assert "event" in error(lib)


def test_the_same_key_or_request_twice(lib, cache):
    _, key = open_key(lib, cache)
    step = Step(key, [0, 1])
    twice = (Rows * 2)(step.rows[0], step.rows[0])
    step.args.rows, step.args.num_rows = ctypes.addressof(twice), 2
    assert lib.pc_omni_save(cache, byref(step.args)) == INVALID and "key" in error(lib)
    step = Step(key, [0, 1])
    requests, counts = (ctypes.c_uint64 * 2)(5, 5), (ctypes.c_int64 * 2)(1, 1)
    step.args.requests, step.args.counts = ctypes.addressof(requests), ctypes.addressof(counts)
    step.args.num_requests = 2
    assert lib.pc_omni_save(cache, byref(step.args)) == INVALID and "request" in error(lib)
    assert stats(lib, cache)["steps_saved"] == 0


@pytest.mark.parametrize(
    "hit, blocks, word",
    [
        (4, None, "carries no block_ids"),
        (4, [], "carries no block_ids"),
        (6, [0, 1], "not block aligned"),
        (8, [0], "block"),
        (4, [-1], "block"),
        (4, [8], "block"),
        (-4, [0], "hit_tokens"),
        (2**62, [0], ""),
    ],
)
def test_a_refused_step_begin_changes_nothing(lib, cache, hit, blocks, word):
    """One bad arrival in the middle: the good ones before and after are not live either."""
    good = (ctypes.c_int64 * 1)(0)
    bad = (ctypes.c_int64 * len(blocks))(*blocks) if blocks else None
    live = (ctypes.c_uint64 * 1)(1)
    first = (NewRequest * 1)(NewRequest(1, 0, None, 0))
    assert lib.pc_omni_step_begin(cache, None, 0, first, 1, None) == OK
    before = stats(lib, cache)
    arrivals = (NewRequest * 3)(
        NewRequest(2, 4, ctypes.addressof(good), 1),
        NewRequest(3, hit, ctypes.addressof(bad) if bad else None, len(blocks or [])),
        NewRequest(4, 4, ctypes.addressof(good), 1),
    )
    accepted = (ctypes.c_uint8 * 3)(9, 9, 9)
    st = lib.pc_omni_step_begin(cache, live, 1, arrivals, 3, accepted)
    assert st in (INVALID, UNMATCH) and word in error(lib), (st, error(lib))
    assert list(accepted) == [9, 9, 9]
    assert stats(lib, cache) == before


def test_step_begin_lengths(lib, cache):
    n = ctypes.c_size_t
    assert lib.pc_omni_step_begin(cache, None, n(1), None, n(0), None) == INVALID and "finished" in error(lib)
    assert lib.pc_omni_step_begin(cache, None, n(0), None, n(1), None) == INVALID and "arrivals" in error(lib)
    some = (ctypes.c_uint64 * 1)(1)
    assert lib.pc_omni_step_begin(cache, some, n(2**63), None, n(0), None) == INVALID


def test_step_ids_are_consumed_once(lib, cache):
    _, key = open_key(lib, cache)
    step = Step(key, [0])
    assert lib.pc_omni_save(cache, byref(step.args)) == OK
    one = ctypes.c_uint64(1)
    for unknown in (0, 2, 2**64 - 1):
        assert lib.pc_omni_materialize(cache, ctypes.c_uint64(unknown), None, 0) == UNMATCH
        assert f"step context {unknown} missing" in error(lib)
    assert lib.pc_omni_discard(cache, one) == OK
    assert lib.pc_omni_discard(cache, one) == UNMATCH
    assert lib.pc_omni_materialize(cache, one, None, 0) == UNMATCH and "step context 1 missing" in error(lib)


@pytest.mark.parametrize("what", ["key", "first", "count", "dst", "short", "long", "reserved"])
def test_materialize_arguments(lib, cache, what):
    _, key = open_key(lib, cache)
    step = Step(key, [0, 1], dst=False)
    assert lib.pc_omni_save(cache, byref(step.args)) == OK
    out = (ctypes.c_uint8 * (2 * ROW))()
    read = Read(key=key, first=0, count=1, dst=ctypes.addressof(out), dst_bytes=2 * ROW)
    if what == "key":
        read.key = 55
    elif what == "first":
        read.first = 1
    elif what == "count":
        read.count = -1
    elif what == "dst":
        read.dst = None
    elif what == "short":
        read.dst_bytes -= 1
    elif what == "long":
        read.dst_bytes += 1
    else:
        read.reserved0 = 3
    st = lib.pc_omni_materialize(cache, ctypes.c_uint64(1), (Read * 1)(read), 1)
    assert st == UNMATCH if what in ("first", "count") else st in (INVALID, UNSUPPORTED, TOO_SMALL), st
    assert ("outside the save snapshot" in error(lib)) is (st == UNMATCH)
    assert bytes(out) == bytes(2 * ROW)
    # The step is used up all the same, and counted as what it was used for.
    stats = OmniStats(struct_size=ctypes.sizeof(OmniStats))
    assert lib.pc_omni_get_stats(cache, byref(stats)) == OK
    assert (stats.steps_saved, stats.steps_materialized, stats.steps_discarded) == (1, 1, 0)


def test_staging_timeout_names_the_steps(lib, cache):
    _, key = open_key(lib, cache)
    for i in range(2):
        assert lib.pc_omni_save(cache, byref(Step(key, [i]).args)) == OK
    third = Step(key, [2])
    assert lib.pc_omni_save(cache, byref(third.args)) == STAGING_TIMEOUT
    assert "unconsumed step contexts (ids=[1, 2])" in error(lib)
    assert lib.pc_omni_discard(cache, ctypes.c_uint64(1)) == OK
    assert lib.pc_omni_save(cache, byref(third.args)) == OK
    assert third.args.step == 3


def test_inspect_arguments(lib, cache):
    _, key = open_key(lib, cache)
    assert lib.pc_omni_save(cache, byref(Step(key, [0]).args)) == OK
    states, rows = (SlotState * 1)(), (ctypes.c_uint8 * ROW)()

    def call(key=key, slot=0, states=states, rows=rows, size=ROW):
        return lib.pc_omni_inspect(
            cache, key, (ctypes.c_int64 * 1)(slot), ctypes.c_size_t(1), states, rows, ctypes.c_uint64(size)
        )

    assert call() == OK
    assert call(rows=None, size=0) == OK
    assert call(key=99) == INVALID
    assert call(slot=-1) == INVALID and "slot" in error(lib)
    assert call(slot=32) == INVALID
    assert call(states=None) == INVALID
    assert call(size=ROW - 1) == TOO_SMALL


def test_a_failed_write_is_sticky(lib, cache):
    _, key = open_key(lib, cache)
    assert lib.pc_omni_fail_write(cache, ctypes.c_uint64(1)) == OK
    step = Step(key, [0])
    first = lib.pc_omni_save(cache, byref(step.args))
    assert first != OK and "write failed" in error(lib)
    for _ in range(2):
        assert lib.pc_omni_step_begin(cache, None, 0, None, 0, None) == UNMATCH and "write failed" in error(lib)
        assert lib.pc_omni_save(cache, byref(Step(key, [0]).args)) == UNMATCH and "write failed" in error(lib)


def test_older_stats_struct(lib, cache):
    s = OmniStats(struct_size=24, steps_saved=5, steps_materialized=77, steps_discarded=88)
    assert lib.pc_omni_get_stats(cache, byref(s)) == OK
    assert (s.struct_size, s.steps_saved, s.steps_materialized, s.steps_discarded) == (24, 0, 0, 88)
    s.struct_size = 4
    assert lib.pc_omni_get_stats(cache, byref(s)) == UNSUPPORTED
    assert lib.pc_omni_get_stats(cache, None) == INVALID


@pytest.mark.parametrize("name", ["omni", "buffer"])
def test_newer_stats_struct(lib, cache, name):
    """Results are filled as far as the library knows, whatever a newer host has behind that."""
    size = ctypes.sizeof(OmniStats) if name == "omni" else 40
    room = (ctypes.c_uint8 * (size + 16))(*[0xAB] * (size + 16))
    ctypes.c_uint32.from_buffer(room).value = size + 16
    call = partial(lib.pc_omni_get_stats, cache) if name == "omni" else lib.pc_buffer_get_stats
    assert call(byref(room)) == OK, error(lib)
    assert bytes(room[size:]) == b"\xab" * 16 and bytes(room[size - 8 : size]) != b"\xab" * 8


def test_error_text_is_per_thread(lib, cache):
    assert lib.pc_omni_check(ctypes.c_uint64(1)) == BAD_HANDLE
    seen = []

    def other():
        seen.append(lib.pc_last_error())
        lib.pc_omni_get_stats(cache, None)
        seen.append(lib.pc_last_error())

    t = threading.Thread(target=other)
    t.start()
    t.join()
    assert seen[0] == b"" and b"stats" in seen[1]
    assert b"cache" in lib.pc_last_error()
    assert lib.pc_omni_check(cache) == OK and lib.pc_last_error() == b""


def test_shutdown_is_repeatable_and_final(lib):
    h = ctypes.c_uint64()
    assert lib.pc_omni_create(byref(options(flags=0)), byref(h)) == OK
    _, key = open_key(lib, h)
    step = Step(key, [0])
    assert lib.pc_omni_save(h, byref(step.args)) == OK
    assert lib.pc_omni_shutdown(h) == OK
    assert lib.pc_omni_shutdown(h) == OK
    assert lib.pc_omni_save(h, byref(Step(key, [1]).args)) == UNMATCH and "shut down" in error(lib)
    assert lib.pc_omni_discard(h, ctypes.c_uint64(1)) == OK
    assert lib.pc_omni_destroy(byref(h)) == OK


def test_destroy_wakes_a_save_that_waits(lib):
    h = ctypes.c_uint64()
    assert lib.pc_omni_create(byref(options(staging_depth=1, claim_timeout_ns=600 * 10**9)), byref(h)) == OK
    _, key = open_key(lib, h)
    assert lib.pc_omni_save(h, byref(Step(key, [0]).args)) == OK
    result = []

    def engine():
        step = Step(key, [1])
        result.append((lib.pc_omni_save(h, byref(step.args)), error(lib)))

    t = threading.Thread(target=engine)
    t.start()
    for _ in range(30_000):
        if stats(lib, h)["staging_waits"]:
            break
        time.sleep(0.002)
    # Two engine calls at once are refused, not raced.
    assert lib.pc_omni_step_begin(h, None, 0, None, 0, None) == BUSY
    copy = ctypes.c_uint64(h.value)
    assert lib.pc_omni_destroy(byref(copy)) == OK
    t.join(60)
    assert not t.is_alive()
    assert result and result[0][0] == UNMATCH and "shut down" in result[0][1]


def test_many_caches_leave_no_memory(lib):
    def rss():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    def cycle(n):
        for i in range(n):
            h = ctypes.c_uint64()
            assert lib.pc_omni_create(byref(options(flags=i % 2)), byref(h)) == OK
            _, key = open_key(lib, h)
            assert lib.pc_omni_save(h, byref(Step(key, [0]).args)) == OK
            assert lib.pc_omni_destroy(byref(h)) == OK

    cycle(300)
    before = rss()
    cycle(1500)
    assert rss() - before < 8 << 20


def in_child(path, queue_fd):
    lib = ctypes.CDLL(path)  # the parent's copy, already in the process
    lib.pc_last_error.restype = ctypes.c_char_p
    h = ctypes.c_uint64()
    st = lib.pc_omni_create(byref(options()), byref(h))
    os.write(queue_fd, f"{st} {lib.pc_last_error().decode()}".encode())


def test_fork_after_load(lib, cache):
    r, w = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(str(LIBRARY), w))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    text = os.read(r, 4096).decode()
    os.close(r), os.close(w)
    assert text.startswith(str(FORKED)) and "spawn" in text
    assert lib.pc_omni_check(cache) == OK  # the parent is unharmed


PROGRAM = """
import sys; sys.path.insert(0, {tests!r})
import ctypes, signal, faulthandler
{before}
from abi import *
lib = load({library!r})
{after}
h = ctypes.c_uint64()
o = OmniOptions(struct_size=ctypes.sizeof(OmniOptions), flags={flags}, num_blocks=4, block_size=4)
assert lib.pc_omni_create(ctypes.byref(o), ctypes.byref(h)) == 0
print(lib.pc_version().decode(), lib.pc_kernel_name().decode())
"""


def child_process(before="", after="", env=None, flags=1, library=None):
    code = PROGRAM.format(
        tests=str(ROOT / "python" / "tests"), library=str(library or LIBRARY), before=before, after=after, flags=flags
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})}
    )


@pytest.mark.parametrize("before, after", [("import torch", ""), ("", "import torch"), ("", "")])
def test_loads_around_torch_and_exits_cleanly_without_destroy(before, after):
    for flags in (0, 1):
        p = child_process(before, after, flags=flags)
        assert p.returncode == 0, p.stderr
        assert p.stdout.split()[0] == load().pc_version().decode()


def test_no_driver_is_touched_at_load():
    """A driver path that does not exist does not matter until a device is asked for."""
    p = child_process(env={"PREFIXCACHE_CUDA_DRIVER": "/nonexistent/libcuda.so.1"})
    assert p.returncode == 0, p.stderr


@pytest.mark.parametrize("name", ["generic", "sse2", "avx2"])
def test_a_forced_kernel_is_the_one_that_runs(name):
    with open("/proc/cpuinfo") as f:
        supported = name != "avx2" or " avx2 " in f.read()
    p = child_process(env={"PREFIXCACHE_KERNEL": name})
    assert p.returncode == 0, p.stderr
    assert (p.stdout.split()[1] == name) is supported


def test_an_unknown_kernel_is_one_warning():
    after = (
        "lines = []\n"
        "cb = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)"
        "(lambda u, level, text: lines.append((level, text)))\n"
        "assert lib.pc_set_log(cb, None, 2) == 0\n"
        "assert len(lines) == 1 and lines[0][0] == 2 and b'PREFIXCACHE_KERNEL' in lines[0][1], lines"
    )
    p = child_process(after=after, env={"PREFIXCACHE_KERNEL": "mmx"})
    assert p.returncode == 0, p.stderr


def test_two_copies_in_one_process(tmp_path, lib, cache):
    other = tmp_path / "libprefixcache-copy.so"
    shutil.copy(LIBRARY, other)
    copy = load(other)
    h = ctypes.c_uint64()
    assert copy.pc_omni_create(byref(options()), byref(h)) == OK
    assert lib.pc_omni_check(h) == BAD_HANDLE
    assert copy.pc_omni_check(cache) == BAD_HANDLE
    assert copy.pc_omni_destroy(byref(h)) == OK


def test_host_signal_handlers_survive(lib, cache):
    """The host's own handlers stay in charge after the library was loaded."""
    seen = []
    old = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        _, key = open_key(lib, cache)
        hangs = time.monotonic() + 60
        steps = 0
        while steps < 3000 or (not seen and time.monotonic() < hangs):
            steps += 1
            step = Step(key, [0])
            assert lib.pc_omni_save(cache, byref(step.args)) == OK
            assert lib.pc_omni_discard(cache, ctypes.c_uint64(step.args.step)) == OK
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert seen
