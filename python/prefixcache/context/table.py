"""The page table of one model.

For each batch slot K page ids, then V page ids, -1 where unused:
``int32[max_batch_size][2][max_pages_per_seq]``. Host state decides; ``upload`` copies
the rows that changed to a device copy whose address never changes.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

from prefixcache import PrefixCacheArgumentError, PrefixCacheError
from prefixcache.context import _abi
from prefixcache.context._arguments import address, flag, int32, integers, uint64
from prefixcache.context._closing import Closing, Handle


class KVPageTable(Handle, Closing):
    """Make one per model, before the coordinator, and close it after.

    While a coordinator has live requests, it alone changes the rows. Errors are
    ``PrefixCacheError``; nothing has changed then.
    """

    def __init__(
        self,
        max_batch_size: int,
        max_pages_per_seq: int,
        num_pages: int,
        *,
        host_memory: bool = True,
        device_address: int = 0,
    ) -> None:
        """All entries -1, all rows dirty (C-79).

        ``num_pages`` are the K pages of the pool; V ids are K id + num_pages.
        ``device_address`` is the caller's device copy; 0: the library allocates one.
        """
        self._library = _abi.load()
        self._host_memory = bool(host_memory)
        self._handle = ctypes.c_uint64()
        options = _abi.sized(_abi.TableOptions)
        options.flags = _abi.HOST_MEMORY if flag("host_memory", host_memory) else 0
        options.max_batch = int32("max_batch_size", max_batch_size)
        options.row_width = int32("max_pages_per_seq", max_pages_per_seq)
        options.num_pages = int32("num_pages", num_pages)
        options.device_address = uint64("device_address", device_address)
        self._check(self._library.table_create(ctypes.byref(options), ctypes.byref(self._handle)))

    @property
    def handle(self) -> int:
        """pc_handle of the table; 0 once it is closed."""
        return self._handle.value

    def _info(self) -> Any:
        info = _abi.sized(_abi.TableInfo)
        self._check(self._library.table_get_info(self.handle, ctypes.byref(info)))
        return info

    @property
    def max_batch_size(self) -> int:
        """Rows."""
        return int(self._info().max_batch)

    @property
    def max_pages_per_seq(self) -> int:
        """Pages of a row."""
        return int(self._info().row_width)

    @property
    def num_pages(self) -> int:
        """Pages of the K pool."""
        return int(self._info().num_pages)

    @property
    def is_identity(self) -> bool:
        """Whether it is as ``set_identity`` left it."""
        return bool(self._info().is_identity)

    @property
    def dirty_rows(self) -> int:
        """Rows that the next upload will copy."""
        return int(self._info().dirty_rows)

    @property
    def device_pointer(self) -> int:
        """Address of the device copy; one for life."""
        return int(self._info().device_address)

    def set_identity(self) -> None:
        """Slot b gets pages b * max_pages_per_seq and following."""
        self._check(self._library.table_set_identity(self.handle))

    def set_row(self, slot: int, pages: Sequence[int]) -> None:
        """``set_rows`` of one row."""
        self.set_rows([(slot, pages)])

    def set_rows(self, updates: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Pages of whole rows; no pages clear a row. All or nothing (C-72)."""
        try:
            pairs = [(slot, row) for slot, row in updates]
        except (TypeError, ValueError) as e:
            raise PrefixCacheArgumentError(f"updates: {updates!r}, expected pairs of a slot and its pages") from e
        slots = integers("slots", [slot for slot, _ in pairs])
        pages, offsets = array("i"), array("q", [0])
        for _, row in pairs:
            pages += integers("pages", row)
            offsets.append(len(pages))
        self._check(
            self._library.table_set_rows(self.handle, address(slots), len(slots), address(pages), address(offsets))
        )

    def compact_rows(self, old_to_new: Sequence[int], new_batch: int) -> None:
        """Moves rows, -1 drops one; every row that is no destination becomes empty (C-74)."""
        mapping = integers("old_to_new", old_to_new)
        self._check(
            self._library.table_compact_rows(self.handle, address(mapping), len(mapping), int32("new_batch", new_batch))
        )

    def upload(self, stream: int = 0) -> bool:
        """Copies dirty rows in order on the stream; False when there are none (C-76)."""
        uploaded = ctypes.c_uint32()
        self._check(self._library.table_upload(self.handle, uint64("stream", stream), ctypes.byref(uploaded)))
        return bool(uploaded.value)

    def row(self, slot: int) -> tuple[list[int], list[int]]:
        """K and V ids of a row on the host side, -1 where unused."""
        width = self.max_pages_per_seq
        out = (ctypes.c_int32 * (2 * width))()
        self._check(self._library.table_get_row(self.handle, int32("slot", slot), out))
        return list(out[:width]), list(out[width:])

    def device_row(self, slot: int) -> tuple[list[int], list[int]]:
        """The same of the device copy, for tables in host memory only."""
        if not self._host_memory:
            raise PrefixCacheError("device_row: the device copy may be on a GPU, expected a table with host_memory")
        info = self._info()
        width, at = info.row_width, int32("slot", slot)
        if not 0 <= at < info.max_batch:
            raise PrefixCacheArgumentError(f"slot: {slot}, expected 0 to {info.max_batch - 1}")
        out = (ctypes.c_int32 * (2 * width)).from_address(info.device_address + at * 8 * width)
        return list(out[:width]), list(out[width:])

    def check_invariants(self) -> None:
        """Raises when an id is neither -1 nor a page, or a row has a hole."""
        self._check(self._library.table_check(self.handle))

    def close(self) -> None:
        """Waits for a pending upload and frees. Refused while a coordinator uses it."""
        self._check(self._library.table_destroy(ctypes.byref(self._handle)))

    def __del__(self) -> None:
        # A table in use is leaked rather than pulled from under its coordinator.
        handle = getattr(self, "_handle", None)
        if handle is not None and handle.value:
            self._library.table_destroy(ctypes.byref(handle))
