"""The layout of a step's rows, frozen when the step is saved.

A result buffer of one key holds, for each request of the batch in order, its hit rows
and then its new rows (the layout of ``pc_omni_rows``). In decode the batch rarely
changes, so layouts are compared with the last step's and used again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from prefixcache._rows import Key


class BatchLayout:
    """Who is in the batch, in row order, with how many new rows each. Immutable."""

    __slots__ = ("_index", "counts", "ids", "num_requests", "plain", "requests", "scheduled", "total")

    def __init__(self, ids: list[str], scheduled: dict[str, int], numbers: Sequence[int]) -> None:
        self.ids = ids
        self.scheduled = scheduled
        self.counts = array("q", [scheduled[r] for r in ids])
        self.requests = array("Q", numbers)
        self.num_requests = len(ids)
        self.total = sum(self.counts)
        self.plain = RowPlan(self.counts.tolist(), {})
        self._index: dict[str, int] | None = None

    @property
    def index(self) -> dict[str, int]:
        """Request id -> position in the batch."""
        # Two threads may both build it; the results are equal.
        if self._index is None:
            self._index = {r: i for i, r in enumerate(self.ids)}
        return self._index

    @property
    def names(self) -> dict[int, str]:
        """Request number -> id."""
        return dict(zip(self.requests, self.ids, strict=True))

    def plan(self, hits: dict[str, int]) -> RowPlan:
        """Destination rows when requests in ``hits`` have that many prefix tokens."""
        if not hits:
            return self.plain
        by_position = {i: hits[r] for i, r in enumerate(self.ids) if r in hits}
        if not by_position:
            return self.plain
        return RowPlan([n + by_position.get(i, 0) for i, n in enumerate(self.counts)], by_position)

    def span(self, position: int) -> tuple[int, int]:
        """New rows [start, end) of a request, among the rows of the step."""
        ends = self.plain.ends
        return ends[position] - self.counts[position], ends[position]


class RowPlan:
    """Rows of every request in a result buffer."""

    __slots__ = ("ends", "hits", "places", "rows", "sizes", "uniform")

    def __init__(self, sizes: list[int], hits: dict[int, int]) -> None:
        self.sizes = sizes
        # Position in the batch -> position in this plan, when it has a part of the batch.
        self.places: dict[int, int] | None = None
        self.ends = list(accumulate(sizes))
        self.rows = self.ends[-1] if sizes else 0
        self.hits = hits  # position -> hit tokens
        # The rows of every request when that is one number, else -1.
        self.uniform = sizes[0] if sizes and sizes.count(sizes[0]) == len(sizes) else -1

    def shape(self, row_shape: torch.Size) -> tuple[int, ...]:
        """Shape of the buffer; a uniform one has a dimension for the requests, which
        makes its views cheap."""
        if self.uniform >= 0:
            return (len(self.sizes), self.uniform, *row_shape)
        return (self.rows, *row_shape)

    def part(self, positions: Sequence[int]) -> RowPlan:
        """The plan of a buffer for some requests of the batch, in ascending order."""
        part = RowPlan([self.sizes[i] for i in positions], {})
        part.places = {p: i for i, p in enumerate(positions)}
        return part

    def place(self, position: int) -> int:
        """Which view of this plan belongs to a position in the batch."""
        return position if self.places is None else self.places[position]

    def views(self, buffer: torch.Tensor) -> Sequence[torch.Tensor]:
        """One view for each request of the batch."""
        if self.uniform >= 0:
            return buffer.unbind(0)
        return buffer.split(self.sizes) if self.sizes else ()


class StepContext:
    """What ``materialize`` needs; it never looks at the live batch."""

    __slots__ = ("buffers", "foreign_hidden", "keys", "layout", "leftovers", "plan")

    def __init__(self, layout: BatchLayout, plan: RowPlan) -> None:
        self.layout = layout
        self.plan = plan
        self.keys: list[Key] = []
        # One for each key: the buffer that save filled, None where the library keeps the rows.
        self.buffers: list[torch.Tensor | None] = []
        self.leftovers: dict[str, Any] = {}
        # Hidden rows that could not be cached (another width than the cached ones).
        self.foreign_hidden: torch.Tensor | None = None
