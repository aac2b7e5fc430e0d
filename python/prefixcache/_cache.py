"""One cache of the library: its handle, and its calls with their arguments packed.

Packing into a kept buffer takes a third of a microsecond; filling a ctypes structure
of the same size takes three. What is as it was in the last step is not packed again:
the rest are a few words. The layouts are those of include/prefixcache.h.
"""

from __future__ import annotations

import ctypes
import re
import struct
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from prefixcache import _ffi
from prefixcache._batch import BatchLayout
from prefixcache._errors import OK, PrefixCacheError, error_of
from prefixcache._ffi import kept, tell
from prefixcache._step import Read

_SAVE_ARGS = struct.Struct("=IIQQQQQqQQQ4QQ")
_SLOTS_WORD, _STEP_WORD = 5, 9  # words of 8 bytes in _SAVE_ARGS
_ROWS = struct.Struct("=IIQqQQ")
ROWS_WORDS, ADDRESS_WORD, TARGET_WORD = 5, 1, 3  # words in _ROWS: all, and where these are
_READ = struct.Struct("=IIqqQQ")
_NEW_REQUEST = struct.Struct("=QqQq")

# Request number, hit tokens, block ids.
Arrival = tuple[int, int, "array[int]"]


class OmniCache:
    """A cache of the library. Engine calls must not overlap; see the header.

    names: request number -> id, for error texts; may be called on any thread.
    """

    def __init__(self, options: _ffi.OmniOptions, names: Callable[[], dict[int, str]]) -> None:
        self.library = _ffi.load()
        self._names = names
        handle = ctypes.c_uint64()
        self._check(self.library.omni_create(options, handle))
        self.handle = handle.value
        # Frees the cache with this object, not at exit: other threads may be in it then.
        weakref.finalize(self, _destroy, self.library, self.handle).atexit = False
        self._save_args = bytearray(_SAVE_ARGS.size)
        self._save_args_at = _address(self._save_args)
        self._save_words = memoryview(self._save_args).cast("Q")
        #: One word, to be cleared before :meth:`save`, which sets it to the id once the step is saved.
        self.saved_step = self._save_words[_STEP_WORD : _STEP_WORD + 1]
        self._saved: tuple[object, ...] = ()  # what the arguments were packed for
        self._rows = bytearray(8 * _ROWS.size)
        self._rows_at = _address(self._rows)
        #: The rows that were put, as words: for a step like the last one, of which only addresses differ.
        self.row_words = memoryview(self._rows).cast("Q")

    def set_policy(self, needs_hidden: bool) -> None:
        self._check(self.library.omni_set_policy(self.handle, 1 if needs_hidden else 0))

    def begin(self) -> None:
        """A step in which nothing finishes or arrives."""
        status = self.library.omni_step_begin(self.handle, None, 0, None, 0, None)
        if status != OK:
            raise self._error(status, self.library.last_error())
        if kept:
            tell()

    def begin_with(self, finished: array[int], arrivals: Sequence[Arrival], fresh: dict[str, int]) -> bytearray:
        """A step with finishes and arrivals; for each arrival, whether its hit was opened.

        fresh: id -> number of the arrivals that the cache has no name for yet.
        """
        accepted = bytearray(len(arrivals) or 1)
        packed = b"".join(
            _NEW_REQUEST.pack(number, hit, blocks.buffer_info()[0] if blocks else 0, len(blocks))
            for number, hit, blocks in arrivals
        )
        status = self.library.omni_step_begin(
            self.handle,
            finished.buffer_info()[0] if finished else 0,
            len(finished),
            packed or 0,
            len(arrivals),
            _address(accepted),
        )
        if status != OK:
            raise self._error(status, self.library.last_error(), {number: r for r, number in fresh.items()})
        if kept:
            tell()
        return accepted

    def put_rows(self, i: int, key: int, address: int, stride: int, target: int, nbytes: int, flags: int = 0) -> None:
        """Key ``i`` of the coming save. ``target`` 0: the library keeps the rows."""
        if (i + 1) * _ROWS.size > len(self._rows):
            self._rows = self._rows + bytearray(len(self._rows))
            self._rows_at = _address(self._rows)
            self.row_words = memoryview(self._rows).cast("Q")
            self._saved = ()
        _ROWS.pack_into(self._rows, i * _ROWS.size, key, flags, address, stride, target, nbytes)

    def save(
        self, layout: BatchLayout, slots_at: int, num_slots: int, num_keys: int, stream: int = 0, event: int = 0
    ) -> int:
        """Save the rows that were put; the step's id. stream, event: of rows on a device."""
        words, packed = self._save_words, (layout, num_slots, num_keys, stream, event)
        if packed != self._saved:
            _SAVE_ARGS.pack_into(
                self._save_args,
                0,
                _SAVE_ARGS.size,
                0,  # flags
                stream,
                layout.requests_at,
                layout.counts_at,
                layout.num_requests,
                0,  # slots
                num_slots,
                self._rows_at,
                num_keys,
                0,  # step
                0,
                0,
                0,
                0,
                event,
            )
            self._saved = packed
        words[_SLOTS_WORD] = slots_at
        status = self.library.omni_save(self.handle, self._save_args_at)
        if status != OK:
            raise self._error(status, self.library.last_error(), layout.names)
        if kept:
            tell()
        return self.saved_step[0]

    def drop(self, step: int) -> None:
        """Discard a step; nothing when there is none of this id (any more)."""
        self.library.omni_discard(self.handle, step)
        if kept:
            tell()

    def materialize(self, step: int, reads: Sequence[Read], layout: BatchLayout) -> None:
        packed = None
        if reads:
            packed = b"".join([_READ.pack(key, 0, first, count, at, nbytes) for key, first, count, at, nbytes in reads])
        status = self.library.omni_materialize(self.handle, step, packed, len(reads))
        if status != OK:
            raise self._error(status, self.library.last_error(), layout.names)
        if kept:
            tell()

    def discard(self, step: int, layout: BatchLayout) -> None:
        status = self.library.omni_discard(self.handle, step)
        if status != OK:
            raise self._error(status, self.library.last_error(), layout.names)
        if kept:
            tell()

    def shutdown(self) -> None:
        self._check(self.library.omni_shutdown(self.handle))

    def stats(self) -> dict[str, Any]:
        stats = _ffi.OmniStats()
        stats.struct_size = ctypes.sizeof(stats)
        self._check(self.library.omni_get_stats(self.handle, stats))
        out: dict[str, Any] = {name: getattr(stats, name) for name in _ffi.OMNI_STATS}
        columns = zip(_ffi.OMNI_COPIES, stats.copied_bytes, stats.timed_bytes, stats.copy_nanoseconds)  # noqa: B905
        out["copies"] = {name: {"bytes": n, "timed_bytes": t, "seconds": ns / 1e9} for name, n, t, ns in columns}
        waits = zip(_ffi.OMNI_WAITS, stats.waits, stats.wait_nanoseconds)  # noqa: B905
        out["waits"] = {name: {"count": n, "seconds": ns / 1e9} for name, n, ns in waits}
        return out

    def _check(self, status: int) -> None:
        if status != OK:
            raise self._error(status, self.library.last_error())

    def _error(self, status: int, last: bytes, names: dict[int, str] | None = None) -> PrefixCacheError:
        """The library's error, with ids where its text has request numbers (``req #7``).

        last: the text, taken before anything else: a handler of the log may call the library,
        and so may whatever a garbage collection ends.
        """
        if kept:
            tell()
        text = last.decode("utf-8", "replace") or self.library.status_name(status).decode()
        if "#" in text:  # not of any other name: a key may be called feat#1
            known = self._names() | (names or {})
            text = re.sub(r"(?<=\breq )#(\d+)", lambda m: str(known.get(int(m[1]), m[0])), text)
        return error_of(status, text)


def _destroy(library: _ffi.Library, handle: int) -> None:
    library.omni_destroy(ctypes.c_uint64(handle))


def _address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
