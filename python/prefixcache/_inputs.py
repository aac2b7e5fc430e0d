"""What the scheduler and the view hand over, brought into the form the library reads."""

from __future__ import annotations

from array import array
from numbers import Integral
from typing import Any

import torch

from prefixcache._errors import OmniPrefixCacheUnmatchError, PrefixCacheArgumentError


def hit_blocks(request: Any, hit_tokens: int, block_size: int) -> array[int]:
    """The block ids of a hit, copied.

    ``request.block_ids`` is a list for each KV group, of which the first counts, or one
    flat list of integers. Blocks behind the hit are left out; too few, or none, is for
    the library to refuse.
    """
    blocks = getattr(request, "block_ids", None)
    if blocks is None or len(blocks) == 0:
        return array("q")
    first = blocks[0]
    # Arrays and tensors count as groups unless they are single numbers.
    if isinstance(first, list) or (not isinstance(first, Integral) and getattr(first, "ndim", 1) != 0):
        blocks = () if first is None else first
    try:
        return array("q", list(blocks[: -(-hit_tokens // block_size)]))
    except (TypeError, OverflowError) as e:
        raise PrefixCacheArgumentError(f"block_ids of req {request.req_id}: {e}") from e


def slot_array(slots: Any, num_tokens: int) -> torch.Tensor:
    """The step's slots as contiguous int64 in host memory; exactly ``num_tokens`` of them."""
    if not isinstance(slots, torch.Tensor):
        slots = torch.as_tensor(slots)
    if slots.numel() != num_tokens:
        raise OmniPrefixCacheUnmatchError(
            f"slot mapping covers {slots.numel()} of {num_tokens} scheduled tokens; the view and the scheduler disagree"
        )
    if slots.dtype is torch.int64 and slots.is_cpu and slots.is_contiguous():
        return slots
    if slots.is_floating_point() or slots.is_complex() or slots.dtype is torch.bool:
        raise PrefixCacheArgumentError(f"slot mapping has dtype {slots.dtype}, expected int64")
    return slots.to("cpu", torch.int64).contiguous()
