"""The layout of a step's rows, frozen when the step is saved.

A result buffer of one key holds, for each request of the batch in order, its hit rows
and then its new rows (the layout of ``pc_omni_rows``). In decode the batch rarely
changes, so layouts are compared with the last step's and used again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import torch


class RowPlan:
    """How many rows each request has in a result buffer, and where. Immutable."""

    __slots__ = ("_places", "ends", "hits", "rows", "sizes")

    def __init__(self, sizes: list[int], hits: dict[int, int], places: dict[int, int] | None = None) -> None:
        self.sizes = sizes
        self.ends = list(accumulate(sizes))
        self.rows = self.ends[-1] if sizes else 0
        self.hits = hits  # position in the batch -> hit tokens
        self._places = places

    def part(self, positions: Sequence[int]) -> RowPlan:
        """The plan of a buffer for some requests of the batch, in ascending order."""
        places = {p: i for i, p in enumerate(positions)}
        return RowPlan([self.sizes[i] for i in positions], {}, places)

    def start(self, position: int) -> int:
        """The first row of a request."""
        return self.ends[position] - self.sizes[position]

    def shape(self, row_shape: torch.Size) -> tuple[int, ...]:
        """Shape of the buffer."""
        return (self.rows, *row_shape)

    def views(
        self, buffer: torch.Tensor, req_ids: Sequence[str], positions: Sequence[int] | None
    ) -> dict[str, torch.Tensor]:
        """The rows of each of ``req_ids``, which are at ``positions`` in the batch; None: are all of it.

        Several share the memory of the buffer and nothing else: not ``unbind`` or ``split``,
        whose views autograd takes for parts of one tensor. Those cannot be changed in place by
        what has a gradient, and changing one is a change of all. (They cost more as well.)
        """
        views: Sequence[torch.Tensor]
        if len(self.sizes) == 1:
            if positions is None:
                return {req_ids[0]: buffer}
            views = (buffer,)
        else:
            views = torch.unsafe_split_with_sizes(buffer, self.sizes) if self.sizes else ()
        if positions is not None:
            places = self._places
            views = [views[p if places is None else places[p]] for p in positions]
        return dict(zip(req_ids, views, strict=True))


class BatchLayout:
    """Who is in the batch, in row order, with how many new rows each. Immutable."""

    __slots__ = ("_index", "_new", "counts", "counts_at", "ids", "num_requests", "requests", "requests_at", "scheduled")

    def __init__(self, ids: list[str], scheduled: dict[str, int], numbers: Iterable[int]) -> None:
        self.ids = ids
        self.scheduled = scheduled
        self.num_requests = len(ids)
        # As the library reads them, with their addresses.
        self.counts = array("q", [scheduled[r] for r in ids])
        self.requests = array("Q", numbers)
        self.counts_at = self.counts.buffer_info()[0]
        self.requests_at = self.requests.buffer_info()[0]
        self._new: RowPlan | None = None
        self._index: dict[str, int] | None = None

    # The lazy parts may be built twice by two threads; the results are equal.

    @property
    def new(self) -> RowPlan:
        """The plan of a step without hits."""
        if self._new is None:
            self._new = RowPlan(self.counts.tolist(), {})
        return self._new

    @property
    def index(self) -> dict[str, int]:
        """Request id -> position in the batch."""
        if self._index is None:
            self._index = {r: i for i, r in enumerate(self.ids)}
        return self._index

    @property
    def names(self) -> dict[int, str]:
        """Request number -> id."""
        return dict(zip(self.requests, self.ids, strict=True))

    def plan(self, hits: dict[str, int]) -> RowPlan:
        """Result rows when the requests in ``hits`` have that many prefix tokens."""
        by_position = {i: hits[r] for i, r in enumerate(self.ids) if r in hits} if hits else {}
        if not by_position:
            return self.new
        return RowPlan([n + by_position.get(i, 0) for i, n in enumerate(self.counts)], by_position)

    def span(self, position: int) -> tuple[int, int]:
        """A request's new rows [start, end) among the rows of the step."""
        end = self.new.ends[position]
        return end - self.counts[position], end


def runs(positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending positions as runs (first, count)."""
    first = count = 0
    for p in positions:
        if count and first + count == p:
            count += 1
            continue
        if count:
            yield first, count
        first, count = p, 1
    if count:
        yield first, count
