"""Tensors as rows of bytes, and the cache's keys.

A row is what one token has for one key: all dimensions after the first. The library
sees an address, a stride and a size; dtype and shape stay here.
"""

from __future__ import annotations

import ctypes
import logging
import math
from typing import Any

import torch

from prefixcache import _ffi
from prefixcache._batch import RowPlan
from prefixcache._device import DeviceRows, refuse_capture, require_host
from prefixcache._errors import KEY_MISMATCH, PrefixCacheArgumentError

logger = logging.getLogger("prefixcache")

# dtype -> the number that the library compares; dtypes unknown today simply follow.
_type_tags: dict[torch.dtype, int] = {}


def is_step_rows(value: Any, num_tokens: int, padded: int) -> bool:
    """Whether ``value`` holds one row for each scheduled token.

    A tensor of two dimensions or more whose first is the number of scheduled tokens,
    or that number padded for a CUDA graph. Another output that has this size by chance
    cannot be told apart.
    """
    if isinstance(value, torch.Tensor):
        # The bytes of a quantized tensor mean nothing without its quantizer.
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            return False
    elif not isinstance(value, DeviceRows):
        return False
    if value.dim() < 2:
        return False
    rows: int = value.shape[0]
    return rows == num_tokens or (rows == padded and rows > num_tokens)


def locate(name: str, tensor: torch.Tensor, num_tokens: int, row_bytes: int) -> tuple[torch.Tensor, int, int]:
    """Where the first ``num_tokens`` rows are: (owner, address, stride in bytes).

    The owner has to live until the call that reads them returns. It is the tensor
    itself unless a row is not one piece of memory, or is a lazy conjugate or negation,
    whose memory holds other values than the tensor shows.
    """
    if not tensor.is_cpu and not tensor.is_cuda:
        require_host(name, tensor)
    if tensor.is_neg() or tensor.is_conj():
        if tensor.is_cuda:
            refuse_capture()
        tensor = tensor[:num_tokens].resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return tensor, tensor.data_ptr(), row_bytes
    stride = tensor.stride(0) * tensor.element_size()
    if num_tokens == 1 or stride < row_bytes or not tensor[0].is_contiguous():
        if tensor.is_cuda:
            refuse_capture()
        tensor = tensor[:num_tokens].contiguous()
        stride = row_bytes
    return tensor, tensor.data_ptr(), stride


class Key:
    """One named tensor of the cache."""

    __slots__ = (
        "buffer_bytes",
        "buffer_shape",
        "dtype",
        "name",
        "number",
        "plan",
        "row_bytes",
        "row_shape",
        "seen_padded",
        "seen_shape",
        "seen_tokens",
        "visible",
    )

    def __init__(self, name: str, number: int, dtype: torch.dtype, row_shape: torch.Size, row_bytes: int) -> None:
        self.name = name
        self.number = number
        self.dtype = dtype
        self.row_shape = row_shape
        self.row_bytes = row_bytes
        # Set by the first save that carries the key; its shape is fixed from then on.
        self.visible = False
        # What match accepted last; in decode it comes again and again.
        self.seen_shape: torch.Size | None = None
        self.seen_tokens = self.seen_padded = -1
        # The plan that buffer_shape and buffer_bytes were worked out for.
        self.plan: RowPlan | None = None
        self.buffer_shape: tuple[int, ...] = ()
        self.buffer_bytes = 0

    def fit(self, plan: RowPlan) -> None:
        """Work out the result buffer of this key for a plan."""
        self.plan = plan
        self.buffer_shape = plan.shape(self.row_shape)
        self.buffer_bytes = plan.rows * self.row_bytes


class KeyTable:
    """The keys of one cache, by name. Engine thread only."""

    def __init__(self, library: _ffi.Library, cache: int) -> None:
        self._library = library
        self._cache = cache
        self._keys: dict[str, Key] = {}
        self._refused: set[str] = set()

    def get(self, name: str) -> Key | None:
        """The key, whether visible or not."""
        return self._keys.get(name)

    def forget_unsaved(self) -> None:
        """Keys that no save has carried are opened anew: their schedule may be another one now."""
        self._keys = {name: key for name, key in self._keys.items() if key.visible}

    def match(self, name: str, value: Any, num_tokens: int, padded: int, deferred: bool) -> Key | None:
        """The key that an output belongs to, opened at first sight.

        None for what is not rows of the step, for every output of a step without tokens
        unless the key is visible, and for rows of another width or dtype than the cached
        ones: two kinds of rows cannot be joined, so these are handed out and not cached
        (with one warning for a name).
        """
        key = self._keys.get(name)
        if (
            key is not None
            and type(value) is torch.Tensor
            and value.layout is torch.strided
            and not value.is_nested  # it has no shape, and raises when asked for one
            and value.shape == key.seen_shape
            and key.seen_tokens == num_tokens
            and key.seen_padded == padded
            and value.dtype is key.dtype
        ):
            return key
        if not is_step_rows(value, num_tokens, padded):
            return None
        if key is None or key.dtype is not value.dtype or key.row_shape != value.shape[1:]:
            if num_tokens == 0:
                return None
            key = self._open(name, value, _ffi.JOIN_ON_FINISH if deferred else _ffi.JOIN_NEXT_STEP, key)
        elif num_tokens == 0 and not key.visible:
            return None
        if key is not None:
            key.seen_shape, key.seen_tokens, key.seen_padded = value.shape, num_tokens, padded
        return key

    def _open(self, name: str, tensor: torch.Tensor, schedule: int, former: Key | None) -> Key | None:
        shape, dtype = tensor.shape[1:], tensor.dtype
        row_bytes = math.prod(shape) * tensor.element_size()
        if former is not None and former.visible:
            self._refuse(former, shape, dtype)
            return None
        if row_bytes == 0:
            raise PrefixCacheArgumentError(f"{name} has rows of width 0 (shape {tuple(tensor.shape)}), need 1 or more")
        if not isinstance(name, str):
            raise PrefixCacheArgumentError(f"mm_outputs has the name {name!r}, expected a string")
        text = name.encode("utf-8", "surrogatepass")
        number = ctypes.c_uint32()
        tag = _type_tags.setdefault(dtype, len(_type_tags) + 1)
        status = self._library.omni_open_key(self._cache, text, len(text), row_bytes, tag, schedule, number)
        if status == KEY_MISMATCH:
            if former is not None:
                self._refuse(former, shape, dtype)
            return None
        self._library.check(status)
        self._keys[name] = key = Key(name, number.value, dtype, shape, row_bytes)
        return key

    def _refuse(self, key: Key, shape: torch.Size, dtype: torch.dtype) -> None:
        if key.name not in self._refused:
            self._refused.add(key.name)
            logger.warning(
                "%s came with rows %s %s but is cached as %s %s; such steps are handed out and not cached",
                key.name,
                tuple(shape),
                dtype,
                tuple(key.row_shape),
                key.dtype,
            )
