"""The C ABI, declared a second time from include/prefixcache.h for the ABI tests.

Kept apart from prefixcache._ffi on purpose: a mistake there must not hide here.
"""

import ctypes
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("PREFIXCACHE_LIBRARY") or ROOT / "build" / "libprefixcache.so")

OK, KEY_MISMATCH = 0, 3
INVALID, BAD_HANDLE, WRONG_STATE, TOO_SMALL, UNSUPPORTED = -1, -2, -3, -4, -5
UNMATCH, STAGING_TIMEOUT = -16, -17
INTERNAL, OUT_OF_MEMORY, DEVICE, FORKED, BUSY, CLOSED = -32, -33, -34, -35, -36, -37
EAGER, ZERO_ON_RELEASE = 1, 2

u8, u32, u64, i64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64


class OmniOptions(ctypes.Structure):
    _fields_ = [("struct_size", u32), ("flags", u32)] + [
        (n, i64)
        for n in (
            "num_blocks",
            "block_size",
            "staging_bytes",
            "staging_depth",
            "staging_capacity_tokens",
            "claim_timeout_ns",
            "copy_chunk_bytes",
        )
    ]
    _fields_ += [("reserved", u64 * 4), ("warm_bytes", i64), ("copy_threads", i64)]


class NewRequest(ctypes.Structure):
    _fields_ = [("request", u64), ("hit_tokens", i64), ("blocks", ctypes.c_void_p), ("num_blocks", i64)]


class Rows(ctypes.Structure):
    _fields_ = [
        ("key", u32),
        ("flags", u32),
        ("rows", ctypes.c_void_p),
        ("row_stride", i64),
        ("dst", ctypes.c_void_p),
        ("dst_bytes", u64),
    ]


class SaveArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("flags", u32),
        ("stream", u64),
        ("requests", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("num_requests", u64),
        ("slots", ctypes.c_void_p),
        ("num_slots", i64),
        ("rows", ctypes.c_void_p),
        ("num_rows", u64),
        ("step", u64),
        ("reserved", u64 * 4),
        ("event", u64),
    ]


class Read(ctypes.Structure):
    _fields_ = [
        ("key", u32),
        ("reserved0", u32),
        ("first", i64),
        ("count", i64),
        ("dst", ctypes.c_void_p),
        ("dst_bytes", u64),
    ]


class SlotState(ctypes.Structure):
    _fields_ = [("state", u32), ("version", u32), ("owner", u64)]


class OmniStats(ctypes.Structure):
    _fields_ = [("struct_size", u32), ("reserved0", u32)] + [
        (n, u64)
        for n in (
            "steps_saved",
            "steps_materialized",
            "steps_discarded",
            "rows_saved",
            "saved_bytes",
            "hits",
            "hit_tokens",
            "gathered_bytes",
            "preserved_bytes",
            "absent_rows",
            "displaced_rows",
            "deferred_writes",
            "flushes",
            "staging_waits",
            "failed_writes",
            "live_requests",
            "unconsumed_steps",
            "pending_writes",
            "pending_reads",
            "staged_bytes",
            "staged_bytes_peak",
            "reserved_bytes",
            "keys",
            "tokens_saved",
            "reads_used",
            "reads_dropped",
            "live_requests_peak",
            "unconsumed_steps_peak",
            "staging_depth",
            "staging_bytes",
            "pinned_bytes",
            "queue_age_nanoseconds",
            "queue_age_nanoseconds_peak",
        )
    ]
    _fields_ += [(n, u64 * 8) for n in ("copied_bytes", "timed_bytes", "copy_nanoseconds", "waits", "wait_nanoseconds")]


def values(s):
    """The fields of a struct by name; an array as a list, which can be compared."""
    return {n: list(v) if isinstance(v := getattr(s, n), ctypes.Array) else v for n, _ in s._fields_}


def load(path=LIBRARY):
    """The library with restypes set; arguments are passed as ctypes objects."""
    lib = ctypes.CDLL(str(path))
    for name in ("pc_version", "pc_status_name", "pc_last_error", "pc_kernel_name"):
        getattr(lib, name).restype = ctypes.c_char_p
    lib.pc_get_api.restype = ctypes.c_void_p
    return lib


def error(lib):
    return lib.pc_last_error().decode()
