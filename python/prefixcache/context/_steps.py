"""One step at a time, and what becomes of handles that are dropped meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prefixcache import PrefixCacheError

BUSY = -36  # PC_ERROR_BUSY


class StepLock:
    """Held from the first call of a step to its last report.

    Between the two the library refuses every other step, so a handle that is dropped
    then, by the garbage collector or by a callback, has to wait. It waits in a queue: a
    finalizer must not block, because the thread it runs on may be the one that is inside
    the step.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._busy = False
        self._dropped: deque[Callable[[], None]] = deque()

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """The step called ``name``; an error from inside a callback of another step."""
        try:
            with self._lock:
                if self._busy:
                    raise PrefixCacheError(f"{name}: called from inside another step of this coordinator", BUSY)
                self._busy = True
                try:
                    yield
                finally:
                    self._busy = False
        finally:
            self._run_dropped(wait=False)

    def drop(self, end: Callable[[], None], wait: bool) -> None:
        """Runs ``end`` when no step is under way: now, after waiting, or later."""
        self._dropped.append(end)
        self._run_dropped(wait)

    def _run_dropped(self, wait: bool) -> None:
        # Whoever holds the lock looks again after letting go, so what is queued while
        # somebody else holds it is never forgotten.
        while self._dropped and self._lock.acquire(blocking=wait):
            try:
                if self._busy:  # this very thread is inside a callback of a step
                    return
                self._busy = True
                try:
                    self._dropped.popleft()()
                finally:
                    self._busy = False
            except IndexError:  # another thread was quicker
                return
            finally:
                self._lock.release()
