"""The worker's persistent batch, laid out like vLLM's ``InputBatch``.

It has the attributes that a group view reads, and it changes as vLLM's does:
requests that a step does not schedule leave their rows, arrivals fill the holes,
and rows from the end fill what is left. So the order of the batch is neither the
order of arrival nor the scheduler's.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from prefixcache.replay.scheduler import Request, StepPlan


class InputBatch:
    """Rows of the running requests: ids, computed tokens and block table."""

    def __init__(self, max_rows: int, max_blocks: int, block_size: int) -> None:
        self.req_ids: list[str] = []
        self.req_id_to_index: dict[str, int] = {}
        self.num_computed_tokens_cpu = np.zeros(max_rows, np.int32)
        self.table = np.zeros((max_rows, max_blocks), np.int32)
        buffer = SimpleNamespace(np=self.table, cpu=torch.from_numpy(self.table))
        self.block_table = [SimpleNamespace(block_table=buffer, kv_cache_block_size=block_size)]
        self.requests: list[Request] = []

    def update(self, plan: StepPlan) -> None:
        """Bring the rows to what this step computes, before the forward."""
        rows, step = self.requests, plan.step
        holes = []
        for i, request in enumerate(rows):
            if request.scheduled_in != step:
                holes.append(i)
                request.row = -1
        arrivals = [request for request, _ in plan.scheduled if request.row < 0]
        if holes or arrivals:
            self._replace(holes, arrivals)
            self.req_ids = [request.id for request in rows]
            self.req_id_to_index = {req: i for i, req in enumerate(self.req_ids)}
        for request in rows:
            have, blocks = request.written_blocks, request.blocks
            if len(blocks) > have:
                self.table[request.row, have : len(blocks)] = blocks[have:]
                request.written_blocks = len(blocks)
        self.num_computed_tokens_cpu[: len(rows)] = [request.computed for request in rows]

    def _replace(self, holes: list[int], arrivals: list[Request]) -> None:
        rows = self.requests
        for request in arrivals:
            request.written_blocks = 0
            request.row = holes.pop(0) if holes else len(rows)
            if request.row == len(rows):
                rows.append(request)
            else:
                rows[request.row] = request
        for hole in reversed(holes):
            last = rows.pop()
            if hole < len(rows):
                rows[hole] = last
                self.table[hole, : last.written_blocks] = self.table[last.row, : last.written_blocks]
                last.row = hole
