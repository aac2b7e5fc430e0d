"""A step's outputs on their way into a save: sorted by kind, then placed.

In decode the outputs of a step look like those of the last one; :class:`Repeat` places
them without sorting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prefixcache import _ffi
from prefixcache._batch import RowPlan
from prefixcache._buffers import ARENA_BYTES, allocate
from prefixcache._cache import ADDRESS_WORD, ROWS_WORDS, TARGET_WORD, OmniCache
from prefixcache._config import HIDDEN_KEY, ModelCachePolicy
from prefixcache._device import DeviceRows, current_stream, device_rows, keep_until_read, refuse_capture, stream_of
from prefixcache._errors import OmniPrefixCacheUnmatchError, PrefixCacheArgumentError
from prefixcache._landing import Landing
from prefixcache._leftovers import replicate
from prefixcache._rows import KeyTable, is_step_rows, locate
from prefixcache._step import Buffers, StepContext


def sort_outputs(
    context: StepContext,
    keys: KeyTable,
    policy: ModelCachePolicy,
    hidden: torch.Tensor | None,
    mm: Mapping[str, Any],
    n: int,
    padded: int,
    streams: dict[torch.device, Any],
    foreign: bool = False,
) -> list[torch.Tensor | DeviceRows]:
    """Sort outputs into rows, with their keys in the context, and leftovers.

    streams: the copy streams of leftovers on devices, by device; filled here.
    foreign: outputs on a device may belong to another stream than the current one.

    Returns the tensors of ``context.keys``, each with ``n`` rows or more.
    """
    sources: list[torch.Tensor | DeviceRows] = []

    def landing() -> Landing:
        if context.landing is None:
            refuse_capture()
            context.landing = Landing(streams, foreign)
        return context.landing

    match, deferred = keys.match, policy.deferred_keys
    if hidden is not None:
        if not isinstance(hidden, torch.Tensor):
            hidden = _array("hidden_states", hidden)
        elif hidden.layout is not torch.strided or hidden.is_nested:
            kind = "nested" if hidden.is_nested else hidden.layout
            raise PrefixCacheArgumentError(f"hidden_states is {kind}, expected a dense tensor")
        if hidden.dim() < 2:
            raise OmniPrefixCacheUnmatchError(
                f"hidden_states has shape {tuple(hidden.shape)}, expected (rows, width) with {n} rows or more"
            )
        rows = hidden.shape[0]
        if rows < n:
            raise OmniPrefixCacheUnmatchError(f"hidden_states has {rows} rows, need {n}")
        key = match(HIDDEN_KEY, hidden, n, rows, False)
        if key is None:
            if isinstance(hidden, DeviceRows):
                hidden = hidden.tensor("hidden_states")
            context.foreign_hidden = replicate("hidden_states", hidden[:n], landing)
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
        if not isinstance(value, torch.Tensor) and (array := device_rows(name, value)) is not None:
            key = match(name, array, n, padded, name in deferred)
            if key is not None:
                sources.append(array)
                context.keys.append(key)
                continue
            value = array.tensor(name)
        # Rows that were not cached for their kind go by the spans too, without padding.
        leftover = value[:n] if is_step_rows(value, n, padded) else value
        context.leftovers[name] = replicate(name, leftover, landing)
    return sources


def _array(name: str, value: Any) -> DeviceRows:
    array = device_rows(name, value)
    if array is None:
        raise PrefixCacheArgumentError(
            f"{name} is a {type(value).__name__}, expected a tensor or an array on a CUDA device"
        )
    return array


def place_rows(
    context: StepContext,
    cache: OmniCache,
    sources: list[torch.Tensor | DeviceRows],
    n: int,
    *,
    keep_large: bool,
    foreign: bool = False,
) -> tuple[list[object], int]:
    """Make the result buffers, and tell the library where the rows are and go.

    keep_large: leave rows from 1 MiB on in the library, so that the engine does not pay
    for their copy; ``materialize`` gets them.
    foreign: as for :func:`sort_outputs`.

    Returns the copies of sources that had to be made, which own rows, and the stream of
    rows on a device.
    """
    plan, library, put = context.plan, cache.library, cache.put_rows
    owners: list[object] = []
    streams: list[int | None] = []  # of rows on a device
    for i, (key, tensor) in enumerate(zip(context.keys, sources, strict=True)):
        if key.plan is not plan:
            key.fit(plan)
        nbytes, stride = key.buffer_bytes, key.row_bytes
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
            address = tensor.data_ptr()
        elif not tensor.is_cpu:
            if isinstance(tensor, DeviceRows):
                owner, (address, stride) = tensor.owner, tensor.locate(key.name, stride)
            else:
                owner, address, stride = locate(key.name, tensor, n, stride)
                if foreign:
                    keep_until_read(tensor)
            owners.append(owner)
            streams.append(stream_of(tensor))
            # Results are host memory: the library keeps the rows until they have landed.
            context.buffers.append(None)
            context.kept = True
            put(i, key.number, address, stride, 0, 0, _ffi.OMNI_ON_DEVICE)
            continue
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
    return owners, _one_stream(streams) if streams else 0


class Repeat:
    """What the outputs of a saved step looked like, when all of them were rows in host memory."""

    __slots__ = ("_hidden", "_looks", "_names", "_padded", "_plan", "_tokens", "keys")

    def __init__(
        self, context: StepContext, looks: list[tuple[Any, ...]], names: list[str], tokens: int, padded: int
    ) -> None:
        self.keys = context.keys
        self._plan = context.plan
        self._tokens, self._padded = tokens, padded
        self._looks = looks
        self._names = names
        self._hidden = len(looks) > len(names)

    @classmethod
    def of(
        cls,
        context: StepContext,
        sources: list[torch.Tensor | DeviceRows],
        owners: list[object],
        mm: Mapping[str, Any],
        n: int,
        padded: int,
    ) -> Repeat | None:
        """From a step that was sorted and placed; None when the next one has to be, too."""
        hidden = int(any(key.name == HIDDEN_KEY for key in context.keys))
        if not n or owners or context.kept or len(context.keys) != len(mm) + hidden:
            return None
        looks = []  # the third: whether a tensor may be a lazy negation or conjugate, which bfloat16 has not
        for key, source in zip(context.keys, sources, strict=True):
            if type(source) is not torch.Tensor:
                return None
            lazy = key.dtype is not torch.bfloat16
            looks.append((source.shape, key.dtype, lazy, key.buffer_shape, key.buffer_bytes))
        return cls(context, looks, list(mm), n, padded)

    def fits(self, plan: RowPlan, n: int, padded: int) -> bool:
        """Whether a step has the same requests with the same rows."""
        return plan is self._plan and n == self._tokens and padded == self._padded

    def place(self, cache: OmniCache, hidden: torch.Tensor | None, mm: Mapping[str, Any]) -> Buffers | None:
        """The result buffers, as of :func:`place_rows`; None when the outputs look different.

        The library still has the rows of the last step, of which only addresses change.
        """
        if [*mm] != self._names or (hidden is not None) is not self._hidden:
            return None
        values = [*mm.values()] if hidden is None else [hidden, *mm.values()]
        words, at = cache.row_words, 0
        buffers: Buffers = []
        try:
            for value, (shape, dtype, lazy, target, nbytes) in zip(values, self._looks):  # noqa: B905
                if (
                    type(value) is not torch.Tensor
                    or value.dtype is not dtype
                    or value.shape != shape
                    or value.layout is not torch.strided
                    or not value.is_cpu
                    or not value.is_contiguous()
                    or (lazy and (value.is_neg() or value.is_conj()))
                ):
                    return None
                buffer = allocate(cache.library, target, dtype, nbytes)
                words[at + ADDRESS_WORD] = value.data_ptr()
                words[at + TARGET_WORD] = buffer.data_ptr()
                at += ROWS_WORDS
                buffers.append(buffer)
        except RuntimeError:  # of a tensor without a shape (nested) or an address: the long way knows them
            return None
        return buffers


def _one_stream(streams: list[int | None]) -> int:
    """The stream of a save: all of its device rows have to be produced on one."""
    known = {s for s in streams if s is not None}
    if len(known) > 1:
        raise PrefixCacheArgumentError(
            f"outputs of one step were produced on streams {sorted(known)}: order them behind one of these"
        )
    return known.pop() if known else current_stream()
