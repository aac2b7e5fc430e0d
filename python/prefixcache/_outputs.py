"""A step's outputs on their way into a save: sorted by kind, then placed."""

from __future__ import annotations

from typing import Any

import torch

from prefixcache._buffers import ARENA_BYTES, allocate
from prefixcache._cache import OmniCache
from prefixcache._config import HIDDEN_KEY, ModelCachePolicy
from prefixcache._errors import OmniPrefixCacheUnmatchError
from prefixcache._leftovers import replicate
from prefixcache._rows import KeyTable, is_step_rows, locate
from prefixcache._step import StepContext


def sort_outputs(
    context: StepContext,
    keys: KeyTable,
    policy: ModelCachePolicy,
    hidden: torch.Tensor | None,
    mm: dict[str, Any],
    n: int,
    padded: int,
) -> list[torch.Tensor]:
    """Sort outputs into rows, with their keys in the context, and leftovers.

    Returns the tensors of ``context.keys``, each with ``n`` rows or more.
    """
    sources: list[torch.Tensor] = []
    match, deferred = keys.match, policy.deferred_keys
    if hidden is not None:
        rows = hidden.shape[0] if hidden.dim() >= 2 else 0
        if rows < n:
            raise OmniPrefixCacheUnmatchError(f"hidden_states has {rows} rows, need {n}")
        key = match(HIDDEN_KEY, hidden, n, rows, False)
        if key is None:
            context.foreign_hidden = replicate("hidden_states", hidden[:n])
        else:
            sources.append(hidden)
            context.keys.append(key)
    for name, value in mm.items():
        if name == HIDDEN_KEY:
            continue  # the name is reserved; such an output is dropped
        key = match(name, value, n, padded, name in deferred)
        if key is not None:
            sources.append(value)
            context.keys.append(key)
            continue
        # Rows that were not cached for their kind go by the spans too, without padding.
        leftover = value[:n] if is_step_rows(value, n, padded) else value
        context.leftovers[name] = replicate(name, leftover)
    return sources


def place_rows(
    context: StepContext, cache: OmniCache, sources: list[torch.Tensor], n: int, *, keep_large: bool
) -> list[torch.Tensor]:
    """Make the result buffers, and tell the library where the rows are and go.

    keep_large: leave rows from 1 MiB on in the library, so that the engine does not pay
    for their copy; ``materialize`` gets them.

    Returns the copies of sources that had to be made; they own rows.
    """
    plan, library, put = context.plan, cache.library, cache.put_rows
    owners: list[torch.Tensor] = []
    for i, (key, tensor) in enumerate(zip(context.keys, sources, strict=True)):
        if key.plan is not plan:
            key.fit(plan)
        nbytes, stride = key.buffer_bytes, key.row_bytes
        if tensor.is_contiguous() and tensor.is_cpu and not tensor.is_neg() and not tensor.is_conj():
            address = tensor.data_ptr()
        else:
            owner, address, stride = locate(key.name, tensor, n, stride)
            owners.append(owner)
        if keep_large and nbytes >= ARENA_BYTES:
            context.buffers.append(None)
            context.kept = True
            put(i, key.number, address, stride, 0, 0)
        else:
            buffer = allocate(library, key.buffer_shape, key.dtype, nbytes)
            context.buffers.append(buffer)
            put(i, key.number, address, stride, buffer.data_ptr(), nbytes)
    return owners
