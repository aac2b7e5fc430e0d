"""The native library: found and loaded on first use, bound through ctypes.

include/prefixcache.h is the documentation of every function; this module only
knows how to reach them. Rules that matter here:

* Nothing is loaded at import. ``load()`` may be called from any thread.
* The handles are ``CDLL`` functions, which release the GIL for the call. A
  ``PyDLL`` call would be 0.1 us cheaper, but ``save`` may wait for a step that
  another Python thread has to consume, and any call may log: with the GIL held,
  both would be deadlocks.
* A line of the log is kept when the library writes it, and given to ``logging`` by
  :func:`tell` when the call is over. Python code in the callback would be where a
  signal that came during the call is handled, and ctypes throws away what a handler
  raises there (KeyboardInterrupt).
* A child of ``fork`` gets the library's own error. Nothing here takes a lock once
  the library is loaded, so that error is always reached.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import operator
import os
import threading
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, py_object
from pathlib import Path
from typing import Any

from prefixcache._errors import OK, PrefixCacheLibraryError, error_of

logger = logging.getLogger("prefixcache")

ABI_VERSION = 2
ENVIRONMENT_VARIABLE = "PREFIXCACHE_LIBRARY"
FILE_NAME = "libprefixcache.so"

OMNI_EAGER = 1
OMNI_ZERO_ON_RELEASE = 2
OMNI_ON_DEVICE = 1  # pc_omni_rows.flags
MAX_COPY_THREADS = 64  # pc_omni_options.copy_threads
JOIN_NEXT_STEP = 0
JOIN_ON_FINISH = 1


class OmniOptions(ctypes.Structure):
    """pc_omni_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("num_blocks", c_int64),
        ("block_size", c_int64),
        ("staging_bytes", c_int64),
        ("staging_depth", c_int64),
        ("staging_capacity_tokens", c_int64),
        ("claim_timeout_ns", c_int64),
        ("copy_chunk_bytes", c_int64),
        ("reserved", c_uint64 * 4),
        ("warm_bytes", c_int64),
        ("copy_threads", c_int64),
    )


OMNI_STATS = (
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
# Names of PC_OMNI_COPY_* and PC_OMNI_WAIT_*, as in docs/metrics.md.
OMNI_COPIES = ("clone", "d2h", "gather", "merge", "save", "commit")
OMNI_WAITS = ("step", "staging", "budget", "read", "landing", "lock")


class OmniStats(ctypes.Structure):
    """pc_omni_stats."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved0", c_uint32),
        *((name, c_uint64) for name in OMNI_STATS),
        ("copied_bytes", c_uint64 * 8),
        ("timed_bytes", c_uint64 * 8),
        ("copy_nanoseconds", c_uint64 * 8),
        ("waits", c_uint64 * 8),
        ("wait_nanoseconds", c_uint64 * 8),
    )


class BufferStats(ctypes.Structure):
    """pc_buffer_stats."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved0", c_uint32),
        ("in_use_bytes", c_uint64),
        ("retained_bytes", c_uint64),
        ("acquired", c_uint64),
        ("recycled", c_uint64),
    )


class SlotState(ctypes.Structure):
    """pc_omni_slot_state."""

    _fields_ = (("state", c_uint32), ("version", c_uint32), ("owner", c_uint64))


class Label(ctypes.Structure):
    """pc_label."""

    _fields_ = (("name", c_char_p), ("value", c_char_p))


class MetricsSource(ctypes.Structure):
    """pc_metrics_source."""

    _fields_ = (("cache", c_uint64), ("labels", POINTER(Label)), ("num_labels", c_uint64))


class LogLevel(ctypes.Structure):
    """The level of pc_log_fn: a struct of one int32 is passed like the int32, but each is a key of its own."""

    _fields_ = (("value", c_int32),)
    __hash__ = object.__hash__  # type: ignore[assignment]  # in C, too; structures have none


LogFunction = ctypes.CFUNCTYPE(None, py_object, LogLevel, c_char_p)

# Name -> (result, arguments). Addresses are passed as plain integers (c_void_p),
# which ctypes converts without making an object.
_STATUS_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "pc_reserve_threads": (c_uint32,),
    "pc_set_log": (LogFunction, py_object, c_int32),
    "pc_buffer_acquire": (c_uint64, c_void_p, c_void_p),
    "pc_buffer_release": (c_uint64,),
    "pc_buffer_get_stats": (POINTER(BufferStats),),
    "pc_omni_create": (POINTER(OmniOptions), POINTER(c_uint64)),
    "pc_omni_shutdown": (c_uint64,),
    "pc_omni_destroy": (POINTER(c_uint64),),
    "pc_omni_set_policy": (c_uint64, c_uint32),
    "pc_omni_open_key": (c_uint64, c_char_p, c_size_t, c_uint64, c_uint32, c_uint32, POINTER(c_uint32)),
    "pc_omni_step_begin": (c_uint64, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p),
    "pc_omni_save": (c_uint64, c_void_p),
    "pc_omni_materialize": (c_uint64, c_uint64, c_void_p, c_size_t),
    "pc_omni_discard": (c_uint64, c_uint64),
    "pc_omni_get_stats": (c_uint64, POINTER(OmniStats)),
    "pc_omni_inspect": (c_uint64, c_uint32, c_void_p, c_size_t, c_void_p, c_void_p, c_uint64),
    "pc_omni_check": (c_uint64,),
    "pc_omni_fail_write": (c_uint64, c_uint64),
    "pc_metrics_text": (c_void_p, c_uint64, c_void_p, c_uint64, POINTER(c_uint64)),
}


# Their callers look themselves whether there is something to tell: errcheck takes a fifth of a microsecond.
_HOT = {"pc_omni_step_begin", "pc_omni_save", "pc_omni_materialize", "pc_omni_discard", "pc_buffer_acquire"}
_HOT |= {"pc_buffer_release"}  # which has nothing to tell, and is called by finalizers
_HOT |= {"pc_context_report", "pc_context_get_request"}  # and these in the middle of what has to be ended first


class Library:
    """The loaded library; its functions are attributes without the ``pc_`` prefix."""

    def __init__(self, path: Path) -> None:
        # RTLD_NODELETE: a Go runtime cannot be unloaded.
        mode = os.RTLD_NOW | getattr(os, "RTLD_NODELETE", 0)
        try:
            self.dll = ctypes.CDLL(str(path), mode=mode)
        except OSError as e:
            raise PrefixCacheLibraryError(f"cannot load {path}: {e}") from e
        self.path = path
        self._check_abi()
        for name in ("pc_version", "pc_last_error", "pc_kernel_name"):
            self._bind(name, c_char_p, ())
        self._bind("pc_status_name", c_char_p, (c_int32,))
        for name, arguments in _STATUS_FUNCTIONS.items():
            self._bind(name, c_int32, arguments)
        # kept[level] = text, all in C: no Python code runs in the callback, whose object
        # must outlive the library's use of it.
        self._log = LogFunction(operator.setitem)
        # Every level: lines are rare, and the logger's own level may change at any time.
        self.set_log(self._log, kept, 4)
        # A library thread that enters Python while the interpreter goes away would
        # hang or crash, so logging ends first.
        atexit.register(self.set_log, LogFunction(), None, 1)

    def __getattr__(self, name: str) -> Any:
        # Only for names that were never bound; bound ones are instance attributes.
        raise AttributeError(f"libprefixcache has no bound function pc_{name}")

    def _bind(self, name: str, result: Any, arguments: tuple[Any, ...]) -> None:
        try:
            function = getattr(self.dll, name)
        except AttributeError as e:
            if name == "pc_abi_version":  # every release has it
                raise PrefixCacheLibraryError(f"{self.path} is not libprefixcache: it lacks {name}") from e
            raise PrefixCacheLibraryError(f"{self.path} lacks {name}; it is too old for this package") from e
        function.restype = result
        function.argtypes = arguments
        if result is c_int32 and name not in _HOT:
            function.errcheck = _tell_after
        setattr(self, name.removeprefix("pc_"), function)

    def _check_abi(self) -> None:
        self._bind("pc_abi_version", c_uint32, ())
        version = self.abi_version()
        if version < ABI_VERSION:
            raise PrefixCacheLibraryError(f"{self.path} has ABI version {version}, this package needs {ABI_VERSION}")

    def error_text(self) -> str:
        """Text of the last failed call on this thread."""
        return str(self.last_error().decode("utf-8", "replace"))

    def check(self, status: int) -> None:
        """Raise the exception that belongs to ``status``; nothing for PC_OK."""
        if status != OK:
            text = self.error_text()  # before a handler of the log may call the library
            if kept:
                tell()
            raise error_of(status, text or self.status_name(status).decode())


#: The lines that were logged and not told yet, oldest first: level -> text.
kept: dict[LogLevel, bytes] = {}


def taken(lines: dict[LogLevel, bytes]) -> Iterator[tuple[int, str]]:
    """The lines that were kept. Any thread; each line is taken by one."""
    for level in list(lines):  # a single C call, beside which nothing is kept
        text = lines.pop(level, None)
        if text is not None:
            yield level.value, text.decode("utf-8", "replace")


def tell() -> None:
    """Give ``logging`` the lines that were kept. What it raises is the caller's."""
    levels = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}
    for level, text in taken(kept):
        logger.log(levels.get(level, logging.INFO), "%s", text)


def _tell_after(status: int, _function: Any, _arguments: Any) -> int:
    if kept and status >= OK:  # else who takes the error's text tells afterwards, and if nobody does, the next call
        tell()
    return status


def cuda_driver() -> str:
    """The file that the library opens as the CUDA driver; "none": it opens none."""
    return os.environ.get("PREFIXCACHE_CUDA_DRIVER") or "libcuda.so.1"


def candidates() -> list[Path]:
    """Places where the library is looked for, best first."""
    override = os.environ.get(ENVIRONMENT_VARIABLE)
    if override:
        return [Path(override).resolve()]
    package = Path(__file__).resolve().parent
    return [package / FILE_NAME, package.parents[1] / "build" / FILE_NAME]


def find() -> Path:
    """The library's file, or PrefixCacheLibraryError with the places tried."""
    places = candidates()
    given = os.environ.get(ENVIRONMENT_VARIABLE)
    if given and not places[0].is_file():
        name = given if given == str(places[0]) else f"{given} ({places[0]})"
        wrong = f"which is no file; expected {FILE_NAME}" if places[0].exists() else "and there is no such file"
        raise PrefixCacheLibraryError(f"{ENVIRONMENT_VARIABLE} is {name}, {wrong}")
    for place in places:
        if place.is_file():
            return place
    tried = ", ".join(str(p) for p in places)
    raise PrefixCacheLibraryError(
        f"{FILE_NAME} not found (tried {tried}); run make in the checkout or set {ENVIRONMENT_VARIABLE}"
    )


_library: Library | None = None
_load_lock = threading.Lock()


def _opened(path: Path) -> Library:
    try:
        return Library(path)
    except PrefixCacheLibraryError as e:
        if os.environ.get(ENVIRONMENT_VARIABLE):
            raise PrefixCacheLibraryError(f"{e} ({ENVIRONMENT_VARIABLE} names it)") from e
        raise


def load() -> Library:
    """The library, loaded by the first caller. Any thread."""
    global _library
    if _library is None:
        with _load_lock:
            if _library is None:
                _library = _opened(find())
    return _library


def _reset_lock_after_fork() -> None:
    # Another thread may have been loading when this process was forked.
    global _load_lock
    _load_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock_after_fork)
