"""Times of calls, counted in buckets: constant memory however long the run."""

from __future__ import annotations

from typing import Any


class Histogram:
    """Nanoseconds, exact up to 15, then in buckets of an eighth of a power of two.

    So a percentile is off by a sixteenth at most.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}  # index of the bucket -> calls
        self.count = 0
        self.total = 0
        self.max = 0

    def add(self, ns: int) -> None:
        """One call."""
        shift = max(0, ns.bit_length() - 4)
        index = (shift << 3) + (ns >> shift)
        self.counts[index] = self.counts.get(index, 0) + 1
        self.count += 1
        self.total += ns
        self.max = max(self.max, ns)

    def percentile(self, quantile: float) -> float:
        """Nanoseconds that ``quantile`` of the calls stayed below; 0 without calls."""
        left = quantile * (self.count - 1)
        for index in sorted(self.counts):
            left -= self.counts[index]
            if left < 0:
                return min(float(self.max), (bucket_start(index) + bucket_start(index + 1) - 1) / 2)
        return float(self.max)

    def document(self) -> dict[str, Any]:
        """For a file: microseconds, and calls by the start of their bucket."""
        return {
            "calls": self.count,
            "p50_us": self.percentile(0.5) / 1e3,
            "p90_us": self.percentile(0.9) / 1e3,
            "p99_us": self.percentile(0.99) / 1e3,
            "max_us": self.max / 1e3,
            "mean_us": self.total / max(1, self.count) / 1e3,
            "buckets_us": [[bucket_start(i) / 1e3, self.counts[i]] for i in sorted(self.counts)],
        }


def bucket_start(index: int) -> int:
    """The least number of nanoseconds that falls into a bucket."""
    return index if index < 16 else (8 + (index & 7)) << ((index >> 3) - 1)
