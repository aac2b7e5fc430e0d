"""A saved step until it is consumed: what to read for it, and how it is handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prefixcache._batch import BatchLayout, RowPlan, runs
from prefixcache._config import HIDDEN_KEY, StageCacheOutputs
from prefixcache._errors import OmniPrefixCacheUnmatchError
from prefixcache._inputs import unhashable
from prefixcache._landing import Landing
from prefixcache._leftovers import element_of, unpinned
from prefixcache._rows import Key

# (key number, first request, requests, address, bytes): one destination of a read.
Read = tuple[int, int, int, int, int]

# A read of no rows, which only reports what is wrong with its requests.
NO_KEY = 0xFFFFFFFF

Buffers = list["torch.Tensor | None"]

# Makes the buffer of a key for a plan.
Allocate = Callable[[Key, RowPlan], torch.Tensor]


class StepContext:
    """What ``materialize`` needs, all of it taken at save: the live batch has moved on."""

    __slots__ = ("buffers", "foreign_hidden", "kept", "keys", "landing", "layout", "leftovers", "plan")

    def __init__(
        self, layout: BatchLayout, plan: RowPlan, keys: list[Key] | None = None, buffers: Buffers | None = None
    ) -> None:
        self.layout = layout
        self.plan = plan
        self.keys: list[Key] = [] if keys is None else keys
        # One for each key: what save filled, None where the library keeps the rows.
        self.buffers: Buffers = [] if buffers is None else buffers
        self.kept = False  # some are
        self.leftovers: dict[str, Any] = {}
        # Hidden rows that could not be cached (another width than the cached ones).
        self.foreign_hidden: torch.Tensor | None = None
        self.landing: Landing | None = None  # of leftovers that come from a device

    def positions(self, step_id: int, req_ids: Sequence[str]) -> Sequence[int]:
        """Where the requests are in the batch.

        Raises OmniPrefixCacheUnmatchError for a request that was not in it, and for one
        with a hit when its hidden rows cannot be joined to the cached ones.
        """
        index = self.layout.index
        try:
            outside = set(req_ids).difference(index)
        except TypeError:
            raise unhashable("req_ids", req_ids) from None
        if outside:
            raise OmniPrefixCacheUnmatchError(
                f"materialize(step {step_id}) got req ids outside the save snapshot: {sorted(outside, key=str)[:8]}"
            )
        positions = [index[r] for r in req_ids]
        if self.foreign_hidden is not None:
            for r, i in zip(req_ids, positions, strict=True):
                if i in self.plan.hits:
                    raise OmniPrefixCacheUnmatchError(
                        f"hit span for req {r} key={HIDDEN_KEY} is not readable (cached with another width or dtype)"
                    )
        return positions

    def read(
        self, positions: Sequence[int] | None, wants_hidden: bool, allocate: Allocate
    ) -> tuple[Buffers, RowPlan, Sequence[Read]]:
        """Every key's buffer, and what the library has to put into them.

        Where save filled the buffer only hit rows are missing. Elsewhere one is made now,
        for the requests asked for and no others; its plan is the second result.
        """
        plan = self.plan
        if not plan.hits and not self.kept:
            return self.buffers, plan, ()
        buffers = list(self.buffers)
        reads: list[Read] = []
        asked = plan.hits if positions is None else set(positions)
        hits = [i for i in plan.hits if i in asked]
        part = plan
        wanted: Sequence[int] = ()
        if self.kept:
            wanted = range(len(plan.sizes)) if positions is None else sorted(asked)
            part = plan if positions is None else plan.part(wanted)
        hidden = False
        for k, (key, filled) in enumerate(zip(self.keys, self.buffers, strict=True)):
            size = key.row_bytes
            hidden |= key.name == HIDDEN_KEY
            if filled is not None:
                at = filled.data_ptr()
                reads += [(key.number, i, 1, at + plan.start(i) * size, plan.sizes[i] * size) for i in hits]
                continue
            buffers[k] = buffer = allocate(key, part)
            at = buffer.data_ptr()
            for first, count in runs(wanted):
                nbytes = sum(plan.sizes[first : first + count]) * size
                reads.append((key.number, first, count, at, nbytes))
                at += nbytes
        if wants_hidden and not hidden:
            # A hit promises hidden rows also where this step computed none.
            reads += [(NO_KEY, i, 1, 0, 0) for i in hits]
        return buffers, part, reads

    def outputs(
        self,
        buffers: Buffers,
        part: RowPlan,
        req_ids: Sequence[str],
        positions: Sequence[int] | None,
    ) -> StageCacheOutputs:
        """The result, once the library has filled the buffers that :meth:`read` gave."""
        layout = self.layout
        only_rows = not self.leftovers and self.foreign_hidden is None
        # The rows of a batch of one are the buffer. All else is made here, and has to be plain, too.
        if torch.is_inference_mode_enabled() and not (only_rows and layout.num_requests == 1):
            with torch.inference_mode(False):
                return self.outputs(buffers, part, req_ids, positions)
        hidden: dict[str, torch.Tensor] | None = None
        mm: dict[str, dict[str, Any]] = {}
        for key, filled, buffer in zip(self.keys, self.buffers, buffers):  # noqa: B905
            plan = part if filled is None else self.plan
            result = plan.views(buffer, req_ids, positions)
            if key.name == HIDDEN_KEY:
                hidden = result
            else:
                mm[key.name] = result
        if only_rows:
            return StageCacheOutputs(hidden, mm)

        if self.landing is not None:
            self.landing.wait()
        spans = [layout.span(i) for i in (range(layout.num_requests) if positions is None else positions)]
        total = layout.new.rows
        if self.landing is not None:
            self.leftovers = unpinned(self.leftovers)
            self.foreign_hidden = unpinned(self.foreign_hidden)
        if self.foreign_hidden is not None:
            hidden = layout.new.views(self.foreign_hidden, req_ids, positions)
        for name, value in self.leftovers.items():
            mm[name] = {r: element_of(value, *span, total) for r, span in zip(req_ids, spans, strict=True)}
        return StageCacheOutputs(hidden, mm)
