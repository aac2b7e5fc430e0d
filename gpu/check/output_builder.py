"""A thread that reads steps behind the engine, as an output builder does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

PATIENCE_S = 20.0  # for what is left when the block ends; less than a section has


class OutputBuilder:
    """Calls ``work`` with each job, in order, on a thread that ends with the block, also when the block raises.

    What a job raised comes out of the next ``put``, and of the block: it may be why the block raised.
    """

    def __init__(self, work: Callable[..., object]) -> None:
        self._work = work
        self._jobs: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._wrong: BaseException | None = None
        # A daemon: one that waits for a device for good must not keep the section from its end.
        self._thread = threading.Thread(target=self._build, daemon=True)

    def _build(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._work(*job)
            except BaseException as e:  # the steps behind it are consumed all the same
                self._wrong = self._wrong or e

    def __enter__(self) -> OutputBuilder:
        self._thread.start()
        return self

    def put(self, *job: Any) -> None:
        if self._wrong is not None:
            raise self._wrong
        self._jobs.put(job)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._jobs.put(None)
        self._thread.join(PATIENCE_S)
        if self._wrong is not None and self._wrong is not error:
            raise self._wrong
        if kind is None and self._thread.is_alive():
            raise TimeoutError(f"the builder thread is not done {PATIENCE_S:.0f} s behind the last step")
