"""What the calls of the omni cache cost, beside a bare copy of the same bytes."""

from __future__ import annotations

import time

import numpy as np

from prefixcache.replay.histogram import Histogram

_COPY_BYTES = 64 << 20


class StepCosts:
    """Seconds of the cache's calls, step by step, beside a bare copy of the same bytes.

    Of undisturbed steps: read at once, with no other step waiting and the output thread idle.
    """

    _COLUMNS = ("new_step", "save", "materialize", "total", "bare copy")

    def __init__(self) -> None:
        self._decode: list[tuple[float, ...]] = []
        self._prefill: list[tuple[float, ...]] = []
        self.histograms = {name: Histogram() for name in self._COLUMNS[:3]}
        self._source = np.ones(1 << 20, np.uint8)
        self._target = np.ones(1 << 20, np.uint8)

    def add(self, decode: bool, begin_s: float, save_s: float, materialize_s: float, nbytes: int) -> None:
        """One step. ``nbytes``: row bytes that went in, and prefix bytes that came out."""
        total = begin_s + save_s + materialize_s
        costs = (begin_s, save_s, materialize_s, total, self._copy(nbytes))
        (self._decode if decode else self._prefill).append(costs)
        for histogram, seconds in zip(self.histograms.values(), costs[:3], strict=True):
            histogram.add(round(seconds * 1e9))

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
        head = f"{'undisturbed steps, us (p50/p99)':<31}" + "".join(f"{c:>18}" for c in self._COLUMNS)
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
