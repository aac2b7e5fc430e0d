"""Slots of a step, read from vLLM's block table on the CPU.

The manager needs two things from the engine in every step: the order of the
batch, and the KV slot of every scheduled token. `FullAttentionGroupView` has
the interface of vLLM-Omni's class of the same name and gives the same slots,
but for the whole batch in one vector operation instead of some ten tensor
operations a request.

What it reads from the runner's input batch:

    req_ids                            batch order
    req_id_to_index                    request id -> row of the tables
    num_computed_tokens_cpu            first position that is scheduled, by row
    block_table[0].block_table.cpu/np  block ids, (rows, blocks), int32

The slot of position p is ``table[row, p // block_size] * block_size +
p % block_size``. Positions past the width of the table have no slot and are
left out; the manager then refuses the save because the count is off.

Thread rule: engine thread only, like everything that reads the live batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prefixcache._errors import OmniPrefixCacheUnmatchError

_Array = NDArray[np.int64]

__all__ = ["FullAttentionGroupView", "check_block_layout"]


def check_block_layout(block_table: Any, block_size: int, error: type[Exception] = OmniPrefixCacheUnmatchError) -> None:
    """Refuse block tables whose ids are not the scheduler's blocks.

    Two of vLLM's layouts break the slot formula: an attention backend that
    splits a block into several kernel blocks (the table then holds kernel
    ids), and decode context parallel (tokens of a block lie on several ranks).

    Raises ``error`` for those, and when the table's own block size is not
    ``block_size``.
    """
    parts = int(getattr(block_table, "blocks_per_kv_block", 1))
    ranks = int(getattr(block_table, "dcp_world_size", 1))
    table_block_size = int(getattr(block_table, "kv_cache_block_size", block_size))
    text = None
    if parts != 1 or getattr(block_table, "use_hybrid_blocks", False):
        text = (
            f"the omni prefix cache needs kernel_block_size == block_size, but each block of {block_size} tokens "
            f"is split into {parts} kernel blocks: choose a --block-size that the attention backend supports, "
            "or turn enable_prefix_caching off"
        )
    elif ranks != 1:
        text = (
            f"the omni prefix cache does not support decode context parallel (dcp_world_size={ranks}): "
            "turn enable_prefix_caching off"
        )
    elif table_block_size != int(block_size):
        text = f"block_size {block_size} of the omni prefix cache does not match the block table's ({table_block_size})"
    if text is not None:
        raise error(text)


class FullAttentionGroupView:
    """View over KV-cache group 0 of a vLLM input batch.

    ``input_batch`` is kept and read anew in each step. ``block_size`` is the
    scheduler's, in tokens.
    """

    #: Class of the refusals; a host that catches its own class sets it.
    error_type: type[Exception] = OmniPrefixCacheUnmatchError

    def __init__(self, input_batch: Any, block_size: int) -> None:
        check_block_layout(input_batch.block_table[0], block_size, self.error_type)
        self._input_batch = input_batch
        self.block_size = int(block_size)
        # vLLM's block sizes are powers of two: then position -> block is a shift.
        self._shift = self.block_size.bit_length() - 1 if self.block_size & (self.block_size - 1) == 0 else -1

    def batch_req_ids(self) -> list[str]:
        """Request ids in the order of the batch's rows; the caller's own list."""
        return list(self._input_batch.req_ids)

    def step_slots_cpu(self, req_ids: Sequence[str], num_scheduled_tokens: Mapping[str, int]) -> torch.Tensor:
        """Slots of this step's tokens, concatenated in the order of ``req_ids``.

        A request that is missing from ``num_scheduled_tokens`` counts as 0, and
        so does a count below 0. Returns a new int64 tensor, (tokens,). Raises
        KeyError for an id that is not in the batch but has tokens scheduled.
        """
        batch = self._input_batch
        total = len(req_ids)
        counts = np.fromiter(map(num_scheduled_tokens.get, req_ids, repeat(0)), np.int64, total)
        index = batch.req_id_to_index
        if counts.min(initial=1) <= 0:
            keep = np.flatnonzero(counts > 0)
            counts = counts[keep]
            req_ids = [req_ids[i] for i in keep.tolist()]
        rows = np.fromiter(map(index.__getitem__, req_ids), np.int64, len(req_ids))
        buffer = batch.block_table[0].block_table
        table = buffer.np if hasattr(buffer, "np") else buffer.cpu.numpy()
        first = np.asarray(batch.num_computed_tokens_cpu)[rows].astype(np.int64, copy=False)
        return torch.from_numpy(self._slots(table, rows, first, counts))

    def _slots(self, table: NDArray[np.int32], rows: _Array, first: _Array, counts: _Array) -> _Array:
        tokens = int(counts.sum())
        if tokens == len(counts):  # decode: one token a request
            block = self._block_of(first)
            if tokens and int(block.max()) >= table.shape[1]:
                inside = block < table.shape[1]
                rows, first, block = rows[inside], first[inside], block[inside]
            return self._first_slot(table[rows, block]) + self._place_in(first, block)
        # Prefill: work on pieces, one for each block that a request touches, and
        # go down to tokens only for one repeat and one addition.
        end = first + counts
        low = self._block_of(first)
        pieces = self._block_of(end - 1) - low + 1
        owner = np.repeat(np.arange(len(counts)), pieces)
        block = np.arange(len(owner)) + (low - np.cumsum(pieces) + pieces)[owner]
        if int(block.max()) >= table.shape[1]:
            inside = block < table.shape[1]
            owner, block = owner[inside], block[inside]
        start = np.maximum(block * self.block_size, first[owner])
        length = np.minimum((block + 1) * self.block_size, end[owner]) - start
        # Inside a piece, slot minus index in the flat order is constant.
        before = np.cumsum(length) - length
        shift = self._first_slot(table[rows[owner], block]) + self._place_in(start, block) - before
        slots = np.repeat(shift, length)
        slots += np.arange(len(slots))
        return slots

    def _first_slot(self, blocks: NDArray[np.int32]) -> _Array:
        # In int64, which a factor of that type does not bring about before numpy 2.
        slots: _Array = np.multiply(blocks, self.block_size, dtype=np.int64)
        return slots

    def _block_of(self, position: _Array) -> _Array:
        return position >> self._shift if self._shift >= 0 else position // self.block_size

    def _place_in(self, position: _Array, block: _Array) -> _Array:
        place: _Array = position - block * self.block_size
        return place
