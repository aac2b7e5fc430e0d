"""A progress bar on stderr, and the end that Ctrl-C asks for."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import IO, Any


class ProgressBar:
    """One line, drawn anew at most ten times a second.

    ``shown`` None: only on a terminal.
    """

    def __init__(self, total: int, shown: bool | None, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty() if shown is None else shown
        self._total = max(1, total)
        self._started = time.monotonic()
        self._next = 0.0
        self._drawn = 0  # columns of the last line

    def update(self, done: int, what: str = "") -> None:
        """``done`` requests have ended; ``what`` is said behind their number."""
        now = time.monotonic()
        if not self._shown or (now < self._next and done < self._total):
            return
        self._next = now + 0.1
        filled = 24 * done // self._total
        line = (
            f"[{'#' * filled}{'.' * (24 - filled)}] {done:,}/{self._total:,} requests  "
            f"{now - self._started:.0f} s  {what}"
        )[: self._columns() - 1]  # a line that wraps could not be drawn over
        self._stream.write("\r" + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(line)

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 200
        except OSError:  # no terminal
            return 200

    @property
    def seconds(self) -> float:
        """Since the bar was made."""
        return max(time.monotonic() - self._started, 1e-9)

    def close(self) -> None:
        """Leave the line."""
        if self._shown and self._drawn:
            self._stream.write("\n")
            self._stream.flush()


class Interrupt:
    """Ctrl-C as a question that loops ask between two requests, while the cache is at rest.

    The first one sets :attr:`asked`; the second one raises KeyboardInterrupt where the
    program is; from the third on the system's default ends the process. Only the main thread
    can listen; elsewhere nothing changes.
    """

    def __init__(self) -> None:
        self.asked = False
        self._former: Any = None
        self._listens = False

    def __enter__(self) -> Interrupt:
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._former = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listens:
            signal.signal(signal.SIGINT, self._former)

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.asked:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.asked = True


def memory_of_process() -> dict[str, int]:
    """Bytes: resident now, and at most so far. Empty where /proc does not tell."""
    names = {"VmRSS": "resident", "VmHWM": "peak"}
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            fields = dict(line.split(":", 1) for line in status)
        return {short: int(fields[name].split()[0]) * 1024 for name, short in names.items()}
    except (OSError, KeyError, ValueError):
        return {}


def mib(nbytes: float) -> str:
    """Bytes as readers like them."""
    return f"{nbytes / (1 << 20):,.1f} MiB"
