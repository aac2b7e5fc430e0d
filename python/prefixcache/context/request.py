"""The handle of a live request, and the answer of the admission that gives one.

Its end, when it was not finished, is the abnormal exit: drain the stream if device work
may be in flight, then give the pages back; nothing more is published (C-104). Where the
stream cannot be drained the whole request is quarantined and the coordinator poisoned
(C-105).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prefixcache import PrefixCacheArgumentError
from prefixcache.context._closing import Closing
from prefixcache.context.state import read_request
from prefixcache.context.types import ContextCacheCoordinatorStatus, RequestState, SequenceStart

if TYPE_CHECKING:
    from prefixcache.context.coordinator import ContextCacheCoordinator


class RequestHandle(Closing):
    """One request. A context manager: what is not finished when the block ends is
    closed; so is what nobody refers to any longer.

    Prefer ``with`` or ``close``: the garbage collector may be late, and it takes the
    drain to whatever thread it runs on.
    """

    def __init__(self, coordinator: ContextCacheCoordinator, handle: int) -> None:
        self._coordinator = coordinator
        self._handle = handle
        # What the device mapping of a begun compaction lies in.
        self._mapping: object = None

    @property
    def handle(self) -> int:
        """pc_handle of the request; 0 once it has ended."""
        return self._handle

    def valid(self) -> bool:
        """Whether the request is live."""
        return self._handle != 0

    def inspect(self) -> RequestState:
        """The state as of now, for tests and diagnosis."""
        if not self._handle:
            raise PrefixCacheArgumentError("inspect: the request handle is empty")
        return read_request(self._coordinator._library, self._coordinator.handle, self._handle)

    def close(self) -> None:
        """The abnormal exit; nothing to do when the request has ended.

        From inside a callback of its own coordinator it takes effect when the step that
        is under way ends. An exception of the synchroniser counts as a failed drain.
        """
        self._end(wait=True)

    def _end(self, wait: bool) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            coordinator = self._coordinator
            coordinator._steps.drop(lambda: coordinator._abandon(handle), wait)

    def __del__(self) -> None:
        # Never waits: the thread that the collector picked may be the one to wait for.
        if getattr(self, "_handle", 0):
            self._end(wait=False)


@dataclass(frozen=True)
class AdmissionResult:
    """An admitted batch."""

    request: RequestHandle
    prefill_starts: list[int]  # first token to compute, of each sequence
    sequences: list[SequenceStart] = field(default_factory=list)


@dataclass(frozen=True)
class BeginRequestResult:
    """``admission`` is None unless the status is OK."""

    status: ContextCacheCoordinatorStatus = ContextCacheCoordinatorStatus.REQUEST_FAILED
    admission: AdmissionResult | None = None
