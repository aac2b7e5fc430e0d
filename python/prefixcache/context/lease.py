"""What one sequence holds of a manager, and the answer of an acquire."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefixcache._staying import Staying
from prefixcache.context import _abi
from prefixcache.context._closing import left
from prefixcache.context.types import AcquireStatus, ReusePlan

if TYPE_CHECKING:
    from prefixcache.context.manager import ContextCacheManager


class CacheRequestLease(Staying):
    """What one sequence uses: shared pages first, private pages after them.

    A context manager: the end of the block releases it, and so does the last reference.
    """

    def __init__(self, manager: ContextCacheManager, handle: ctypes.c_uint64) -> None:
        self.manager = manager
        self._handle = handle

    @property
    def handle(self) -> int:
        """pc_handle of the lease; 0 once it was released."""
        return self._handle.value

    def valid(self) -> bool:
        """Whether it still holds anything."""
        return self._handle.value != 0 and self.manager.handle != 0

    def base_pages(self) -> list[int]:
        """Ids of its base pages in order: the shared ones, then its own."""
        return self.manager._lease_pages(self, _abi.BASE)

    def draft_pages(self) -> list[int]:
        """The same of the draft model."""
        return self.manager._lease_pages(self, _abi.DRAFT)

    def release(self) -> None:
        """Drops every page and slot that it owns; once it is empty, does nothing (C-64).

        It is empty, too, once its manager is closed, which freed it.
        """
        self.manager.release(self)

    def __enter__(self) -> CacheRequestLease:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        left(self.release, error)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        # With its manager gone, so is the lease.
        if handle is not None and handle.value and self.manager.handle:
            self.manager._library.manager_release(self.manager.handle, ctypes.byref(handle))


@dataclass(frozen=True)
class AcquireResult:
    """``lease`` is None when the capacity did not suffice; the plan says for what."""

    status: AcquireStatus
    lease: CacheRequestLease | None
    plan: ReusePlan
