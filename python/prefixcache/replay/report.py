"""What the replay tells: a progress bar while it runs, a summary at its end."""

from __future__ import annotations

import sys
import time
from typing import IO

import numpy as np

from prefixcache.replay.checker import CheckResult
from prefixcache.replay.scheduler import SchedulerStats

_COPY_BYTES = 64 << 20


class StepCosts:
    """Seconds of the cache's calls, step by step, beside a bare copy of the same bytes."""

    _COLUMNS = ("new_step", "save", "materialize", "total", "bare copy")

    def __init__(self) -> None:
        self._decode: list[tuple[float, ...]] = []
        self._prefill: list[tuple[float, ...]] = []
        self._source = np.ones(1 << 20, np.uint8)
        self._target = np.ones(1 << 20, np.uint8)

    def add(self, decode: bool, begin_s: float, save_s: float, materialize_s: float, nbytes: int) -> None:
        """One step. ``nbytes``: row bytes that went in, and prefix bytes that came out."""
        total = begin_s + save_s + materialize_s
        costs = (begin_s, save_s, materialize_s, total, self._copy(nbytes))
        (self._decode if decode else self._prefill).append(costs)

    def _copy(self, nbytes: int) -> float:
        # Memory that was touched before: the copy alone, without page faults.
        if nbytes > len(self._source) and len(self._source) < _COPY_BYTES:
            size = min(_COPY_BYTES, 1 << nbytes.bit_length())
            self._source, self._target = np.ones(size, np.uint8), np.ones(size, np.uint8)
        seconds = 0.0
        while nbytes > 0:
            piece = min(nbytes, len(self._source))
            started = time.perf_counter()
            np.copyto(self._target[:piece], self._source[:piece])
            seconds += time.perf_counter() - started
            nbytes -= piece
        return seconds

    def lines(self) -> list[str]:
        """A table: microseconds a step at the median and at the 99th percentile."""
        head = f"{'cost of a step, us (p50 / p99)':<31}" + "".join(f"{c:>18}" for c in self._COLUMNS)
        lines = [head]
        for name, rows in (("decode", self._decode), ("with prefill or hits", self._prefill)):
            if rows:
                table = np.array(rows) * 1e6
                cells = "".join(
                    f"{f'{p50:,.0f} / {p99:,.0f}':>18}" for p50, p99 in np.percentile(table, (50, 99), axis=0).T
                )
                ratio = table[:, 3].sum() / max(table[:, 4].sum(), 1e-9)
                lines.append(f"  {f'{name}, {len(rows):,} steps':<29}{cells}   sum {ratio:.1f} copies")
        return lines


class ProgressBar:
    """One line on stderr, drawn anew at most ten times a second.

    ``shown`` None: only on a terminal.
    """

    def __init__(self, total: int, shown: bool | None, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty() if shown is None else shown
        self._total = max(1, total)
        self._started = time.monotonic()
        self._next = 0.0

    def update(self, done: int, stats: SchedulerStats, check: CheckResult) -> None:
        """``done`` requests have ended."""
        now = time.monotonic()
        if not self._shown or (now < self._next and done < self._total):
            return
        self._next = now + 0.1
        seconds = max(now - self._started, 1e-9)
        filled = 24 * done // self._total
        self._stream.write(
            f"\r[{'#' * filled}{'.' * (24 - filled)}] {done:,}/{self._total:,} requests  "
            f"{stats.computed_tokens / seconds / 1e6:.2f} M tokens/s  {check.rows / 1e6:,.0f} M rows checked  "
            f"{check.wrong:,} wrong  {seconds:.0f} s "
        )
        self._stream.flush()

    def close(self) -> None:
        """Leave the line."""
        if self._shown:
            self._stream.write("\n")
            self._stream.flush()


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
