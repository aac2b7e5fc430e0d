"""What the scheduler and the view hand over, brought into the form the library reads."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from operator import index
from typing import Any

import torch

from prefixcache._device import refuse_capture
from prefixcache._errors import OmniPrefixCacheUnmatchError, PrefixCacheArgumentError
from prefixcache._values import misfit

MAX_COUNT = (1 << 63) - 1


def token_count(value: Any, what: str, *names: object) -> int:
    """An integer of any type; ``what`` (with ``names`` filled in) is its name in errors."""
    try:
        n = index(value)
    except TypeError:
        raise PrefixCacheArgumentError(f"{what.format(*names)} is {value!r}, expected an integer") from None
    if n > MAX_COUNT:
        raise PrefixCacheArgumentError(f"{what.format(*names)} is {n}, expected at most 2^63 - 1")
    return n


def token_counts(scheduled: Mapping[Any, Any]) -> dict[Any, int]:
    """``num_scheduled_tokens`` with plain integers, none below zero."""
    what = "num_scheduled_tokens[{!r}]"
    counts = {r: token_count(n, what, r) for r, n in scheduled.items()}
    if counts and min(counts.values()) < 0:
        r, n = next((r, n) for r, n in counts.items() if n < 0)
        raise PrefixCacheArgumentError(f"{what.format(r)} is {n}, expected 0 or more")
    return counts


def step_counts(unpadded: Any, padded: Any) -> tuple[int, int]:
    """The two counts of a step as integers; without a padded one they are equal.

    A padded one below the other says, as in the original, that nothing was padded.
    """
    n = token_count(unpadded, "num_tokens_unpadded")
    if n < 0:
        raise PrefixCacheArgumentError(f"num_tokens_unpadded is {n}, expected 0 or more")
    return n, n if padded is None else token_count(padded, "num_tokens_padded")


def listed(name: str, values: Iterable[Any]) -> list[Any]:
    """Any iterable as a list; a text is one of letters, which nobody means."""
    if not isinstance(values, str):
        with suppress(TypeError):
            return list(values)
    raise PrefixCacheArgumentError(f"{name} is a {type(values).__name__}, expected an iterable of ids or requests")


def unhashable(name: str, ids: Iterable[Any]) -> PrefixCacheArgumentError:
    """The error for ids of which one, as a TypeError has shown, cannot be looked up."""
    wrong = next((r for r in ids if not _has_hash(r)), None)
    return PrefixCacheArgumentError(f"{name} has {wrong!r}, expected ids that can be hashed")


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def request_id(requests: Sequence[Any], position: int) -> Any:
    """The id of a new request. Raises PrefixCacheArgumentError when it has none that can be hashed."""
    what = f"scheduled_new_reqs[{position}]"
    try:
        r = requests[position].req_id
    except AttributeError:
        raise PrefixCacheArgumentError(f"{what} is {requests[position]!r}, expected an object with req_id") from None
    if not _has_hash(r):
        raise PrefixCacheArgumentError(f"req_id of {what} is {r!r}, expected an id that can be hashed")
    return r


def mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """``value``, if it is a mapping."""
    if type(value) is not dict and not isinstance(value, Mapping):  # dict apart: the other test takes a microsecond
        raise PrefixCacheArgumentError(f"{name} is a {type(value).__name__}, expected a mapping")
    return value


def hit_blocks(request: Any, hit_tokens: int, block_size: int) -> array[int]:
    """The block ids of a hit, copied.

    ``request.block_ids`` is a list for each KV group, of which the first counts, or one
    flat list of integers. Blocks behind the hit are left out; too few, or none, is for
    the library to refuse.
    """
    blocks = getattr(request, "block_ids", None)
    if blocks is None:
        return array("q")
    try:
        if not isinstance(blocks, list | tuple):
            blocks = list(blocks)
        if not blocks:
            return array("q")
        first = blocks[0]
        # Arrays and tensors count as groups unless they are single numbers.
        if isinstance(first, list):
            blocks = first
        elif not isinstance(first, Integral) and getattr(first, "ndim", 1) != 0:
            blocks = () if first is None else list(first)
        blocks = blocks[: -(-hit_tokens // block_size)]
        return array("q", blocks)
    except (TypeError, OverflowError) as e:
        raise PrefixCacheArgumentError(
            f"block_ids of req {request.req_id}{misfit(blocks, 'q')}, expected integers, or a list of them for each"
            " KV group"
        ) from e


def slot_array(slots: Any, num_tokens: int) -> torch.Tensor:
    """The step's slots as contiguous int64 in host memory; exactly ``num_tokens`` of them."""
    if (
        type(slots) is torch.Tensor
        and slots.dtype is torch.int64
        and slots.is_cpu
        and slots.layout is torch.strided
        and slots.is_contiguous()
        and slots.numel() == num_tokens
    ):
        return slots
    if not isinstance(slots, torch.Tensor):
        slots = _slot_tensor(slots)
    if slots.numel() != num_tokens:
        raise OmniPrefixCacheUnmatchError(
            f"slot mapping covers {slots.numel()} of {num_tokens} scheduled tokens; the view and the scheduler disagree"
        )
    if slots.layout is not torch.strided or slots.is_meta:
        raise PrefixCacheArgumentError(f"slot mapping is {slots.layout} on {slots.device}, expected a dense tensor")
    if slots.is_floating_point() or slots.is_complex() or slots.dtype is torch.bool:
        raise PrefixCacheArgumentError(f"slot mapping has dtype {slots.dtype}, expected int64")
    if slots.is_cuda:  # torch waits for the copy
        refuse_capture()
    return slots.to("cpu", torch.int64).contiguous()


def _slot_tensor(slots: Any) -> torch.Tensor:
    """Slots that are no tensor: an array of any integers and strides, on a device too, or a sequence."""
    try:
        if hasattr(slots, "__cuda_array_interface__"):
            return torch.as_tensor(slots, device="cuda")
        if not hasattr(slots, "__array__"):
            return torch.tensor([index(slot) for slot in slots], dtype=torch.int64, device="cpu")
        import numpy as np  # whoever has an array has it

        values = np.asarray(slots)
    except (TypeError, ValueError, RuntimeError, ImportError) as e:
        raise PrefixCacheArgumentError(f"slot mapping is a {type(slots).__name__}, expected int64 numbers: {e}") from e
    if values.size and values.dtype.kind not in "iu":
        raise PrefixCacheArgumentError(f"slot mapping has dtype {values.dtype}, expected int64")
    return torch.from_numpy(values.astype(np.int64))  # a copy: torch wants its own byte order, and to write
