"""Outputs that the cache does not take: copied at save, handed out per request.

The model overwrites its output buffers in the next forward, so whatever
``materialize`` will hand out is copied while the step is saved (:func:`replicate`).
What a request receives depends on the value alone (:func:`element_of`): a tensor
whose first dimension is the number of scheduled tokens is cut to the request's
span; any other tensor, array or byte buffer goes whole to every request, each its own copy.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import torch

from prefixcache._device import device_rows, require_host
from prefixcache._errors import WRONG_STATE
from prefixcache._landing import Landing

try:
    from numpy import ndarray
except ImportError:  # torch does without, and so does the cache
    ndarray = array  # type: ignore[assignment,misc]

# Contents that somebody may overwrite in place, like those of a tensor.
_BUFFERS = (torch.Tensor, ndarray, bytearray, array)


def replicate(name: str, value: Any, landing: Callable[[], Landing] | None = None) -> Any:
    """A copy of ``value`` that shares no memory of tensors, arrays or byte buffers with it.

    Mappings, lists and tuples are rebuilt; other values are passed on as they are.
    A tensor keeps all its rows, also those past the scheduled tokens. One on a CUDA
    device is copied through ``landing()``, and readable once that has waited; so is an
    array of another library there that torch can take, which becomes a tensor.
    """

    def own(buffer: Any) -> Any:
        if not isinstance(buffer, torch.Tensor):
            return copy.copy(buffer)
        if buffer.is_cuda and landing is not None:
            return landing().copy(buffer)
        require_host(name, buffer)
        if buffer.layout is not torch.strided:
            return buffer.detach().clone()
        return buffer.detach().clone(memory_format=torch.contiguous_format)

    def other(leaf: Any) -> Any:
        try:
            array = device_rows(name, leaf)
            tensor = None if array is None else array.tensor(name)
        except Exception as e:  # what torch cannot take is passed on, too
            if getattr(e, "status", None) == WRONG_STATE:
                raise  # the stream is being captured
            return leaf
        return leaf if tensor is None else own(tensor)

    return _rebuild(value, own, other)


def element_of(value: Any, start: int, end: int, total: int) -> Any:
    """What the request with rows ``[start, end)`` of ``total`` receives of a replica.

    tensor, first dimension ``total``   rows [start, end)
    other tensor, 0-dimensional too     a copy (a 0-d tensor was an IndexError once, S-11)
    dict                                the same rules for each entry
    array, bytearray                    a copy
    list, tuple                         whole; tensors and arrays in it copied, never shared (S-15)
    anything else                       the same object
    """
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 or value.is_nested or value.shape[0] != total:
            return value.clone()
        # Other layouts have no views; all but COO are not cut at all.
        if value.is_sparse:
            return value.narrow_copy(0, start, end - start)
        value = value if value.layout is torch.strided else value.to_dense()
        return value[start:end].detach()  # no view for autograd, as in RowPlan.views
    if isinstance(value, dict):
        return {key: element_of(item, start, end, total) for key, item in value.items()}
    return _rebuild(value, lambda b: b.clone() if isinstance(b, torch.Tensor) else copy.copy(b))


def unpinned(value: Any) -> Any:
    """A replica whose tensors are in ordinary memory: pinned memory is scarce, and results live long."""
    return _rebuild(value, lambda b: b.clone() if isinstance(b, torch.Tensor) and b.is_pinned() else b)


def _rebuild(value: Any, replace: Callable[[Any], Any], other: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
    """``value`` with every tensor and array replaced and every container made anew; other: of what is neither."""
    if isinstance(value, _BUFFERS):
        return replace(value)
    if isinstance(value, Mapping):
        return {key: _rebuild(item, replace, other) for key, item in value.items()}
    if isinstance(value, list):
        return [_rebuild(item, replace, other) for item in value]
    if isinstance(value, tuple):
        items = [_rebuild(item, replace, other) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value  # of a type that may not be made from a list
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    return other(value)
