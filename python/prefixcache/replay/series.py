"""What a run looked like as it went on: counters and gauges at some of its requests."""

from __future__ import annotations

from typing import Any

_POINTS = 200  # as many as a chart can show


class Series:
    """Up to about 200 samples, evenly spaced over the requests of a run.

    Counters are kept as totals since the start, so that any two samples give the rate
    between them.
    """

    def __init__(self, requests: int) -> None:
        self._stride = max(1, requests // _POINTS)
        self._due = 0
        self.at: list[int] = []  # requests that had begun
        self.values: dict[str, list[int]] = {}

    def due(self, request: int) -> bool:
        """Whether a sample is wanted now: gauges may be slow to read."""
        return request >= self._due

    def add(self, request: int, **values: int) -> None:
        """A sample after ``request`` requests; every sample has the same names."""
        if self.at and self.at[-1] == request:
            return
        self._due = (request // self._stride + 1) * self._stride
        self.at.append(request)
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def document(self) -> dict[str, Any]:
        """For a file."""
        return {"request": self.at, **self.values}
