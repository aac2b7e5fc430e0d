"""What the coordinator needs of a runtime's physical cache, and one in host memory.

A runtime implements :class:`HybridCacheManager` over its own buffers, one for the base
model and one for an EAGLE draft. :class:`HostCacheManager` is the one for tests, CPU
hosts and examples.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Protocol, TypeVar

from prefixcache import PrefixCacheMemoryError
from prefixcache.context._arguments import instances, integer, member
from prefixcache.context.table import KVPageTable


class DataType(IntEnum):
    """Element types of cache buffers."""

    HALF = 0
    BFLOAT16 = 1
    FLOAT = 2
    FP8 = 3
    INT8 = 4


T = TypeVar("T", "AttentionShape", "RecurrentShape")
SIZE_OF = {DataType.HALF: 2, DataType.BFLOAT16: 2, DataType.FLOAT: 4, DataType.FP8: 1, DataType.INT8: 1}


@dataclass(frozen=True)
class AttentionLayerBuffers:
    """One attention layer.

    Page i of K is at ``k_base + i * tokens_per_page * kv_heads * head_dim`` elements,
    laid out [token][head][dim]; the V pool begins directly after the last K page.
    """

    k_base: int  # address
    kv_heads: int
    head_dim: int
    type: DataType = DataType.HALF


@dataclass(frozen=True)
class RecurrentLayerBuffers:
    """One recurrent layer.

    Slot s of the state is at ``state_base + s * heads * head_dim * state_size``
    elements, slot s of the convolution state at ``conv_base + s * conv_dim * conv_kernel``.
    """

    state_base: int  # address
    conv_base: int  # address
    heads: int
    head_dim: int
    state_size: int
    conv_dim: int
    conv_kernel: int
    state_type: DataType = DataType.FLOAT
    conv_type: DataType = DataType.HALF


class HybridCacheManager(Protocol):
    """What a runtime implements over its buffers.

    Calls come from the thread that is inside the coordinator, with the GIL held. What
    they enqueue goes on ``stream``. An exception breaks the step off and passes
    through: the request can only be finished or closed then.
    """

    @property
    def num_pages(self) -> int:
        """K pages of the pool; 0 without attention."""

    @property
    def max_batch_size(self) -> int:
        """Live slots."""

    @property
    def padded_capacity(self) -> int:
        """Tokens of a slot, a multiple of a page."""

    def attention_layers(self) -> Sequence[AttentionLayerBuffers]:
        """Buffers of each attention layer; looked at for hybrid models only."""

    def recurrent_layers(self) -> Sequence[RecurrentLayerBuffers]:
        """Buffers of each recurrent layer; hybrid and pure recurrent models."""

    def reset_for_new_sequences(self, lengths: Sequence[int], slots: Sequence[int], stream: int) -> None:
        """New sequences: the device length of ``slots[i]`` becomes ``lengths[i]``, and
        ``len(lengths)`` the active batch, when no other request is live: the slots of
        others stay active. ``slots`` is 0, 1, 2, ... unless the admission named others."""

    def compact_slot_state(
        self, old_to_new: Sequence[int], new_batch_size: int, device_mapping: int, stream: int
    ) -> None:
        """Lengths, recurrent and convolution state of slot s go to ``old_to_new[s]``, or
        nowhere when that is -1. Survivors keep their order and only move down. KV pages
        stay. ``device_mapping`` is the address that begin_batch_compaction was given."""

    def set_active_batch_size(self, batch_size: int) -> None:
        """Host side only."""


@dataclass(frozen=True)
class ContextCachePhysicalResources:
    """Physical caches of the runtime, kept alive by the coordinator."""

    base_cache: HybridCacheManager
    base_page_table: KVPageTable | None = None  # None: pure recurrent
    draft_cache: HybridCacheManager | None = None
    draft_page_table: KVPageTable | None = None


@dataclass(frozen=True)
class AttentionShape:
    """One attention layer of a :class:`HostCacheManager`."""

    kv_heads: int
    head_dim: int
    type: DataType = DataType.HALF


@dataclass(frozen=True)
class RecurrentShape:
    """One recurrent layer: a state of heads x head_dim x state_size elements, and a
    convolution state of conv_dim x conv_kernel."""

    heads: int
    head_dim: int
    state_size: int
    conv_dim: int
    conv_kernel: int
    state_type: DataType = DataType.FLOAT
    conv_type: DataType = DataType.HALF


class HostCacheManager:
    """A physical cache in plain memory.

    ``kv[layer]`` is the K pool followed by the V pool, ``state[layer]`` and
    ``conv[layer]`` the recurrent slots, each a ctypes byte array that numpy can view
    with ``frombuffer``. ``lengths[slot]`` are what a device would hold.
    """

    def __init__(
        self,
        *,
        num_pages: int = 0,
        max_batch_size: int,
        max_pages_per_seq: int = 0,
        tokens_per_page: int = 128,
        attention: Sequence[AttentionShape] = (),
        recurrent: Sequence[RecurrentShape] = (),
    ) -> None:
        num_pages = integer("num_pages", num_pages, 0, 2**31 - 1)
        max_batch_size = integer("max_batch_size", max_batch_size, 1, 2**31 - 1)
        max_pages_per_seq = integer("max_pages_per_seq", max_pages_per_seq, 0, 2**31 - 1)
        tokens_per_page = integer("tokens_per_page", tokens_per_page, 1, 2**31 - 1)
        self.num_pages = num_pages
        self.max_batch_size = max_batch_size
        self.padded_capacity = max_pages_per_seq * tokens_per_page
        self.tokens_per_page = tokens_per_page
        self.attention = _shapes("attention", attention, AttentionShape)
        self.recurrent = _shapes("recurrent", recurrent, RecurrentShape)
        self.kv = [_memory(2 * num_pages * self.page_bytes(i)) for i in range(len(self.attention))]
        self.state = [_memory(max_batch_size * self.state_bytes(i)) for i in range(len(self.recurrent))]
        self.conv = [_memory(max_batch_size * self.conv_bytes(i)) for i in range(len(self.recurrent))]
        self.lengths = [0] * max_batch_size
        self.active_batch = 0

    def token_bytes(self, layer: int = 0) -> int:
        """Bytes of one token in one pool of a layer."""
        shape = self.attention[_index("layer", layer, len(self.attention))]
        return shape.kv_heads * shape.head_dim * SIZE_OF[shape.type]

    def page_bytes(self, layer: int = 0) -> int:
        """Bytes of one page in one pool of a layer."""
        return self.tokens_per_page * self.token_bytes(layer)

    def state_bytes(self, layer: int = 0) -> int:
        """Bytes of the state of one slot in one layer."""
        shape = self.recurrent[_index("layer", layer, len(self.recurrent))]
        return shape.heads * shape.head_dim * shape.state_size * SIZE_OF[shape.state_type]

    def conv_bytes(self, layer: int = 0) -> int:
        """Bytes of the convolution state of one slot in one layer."""
        shape = self.recurrent[_index("layer", layer, len(self.recurrent))]
        return shape.conv_dim * shape.conv_kernel * SIZE_OF[shape.conv_type]

    def recurrent_slot_bytes(self) -> int:
        """Bytes of one recurrent snapshot, over all layers: for the budget."""
        return sum(self.state_bytes(i) + self.conv_bytes(i) for i in range(len(self.recurrent)))

    def partial_slot_bytes(self) -> int:
        """Bytes of one partial-page snapshot, over all layers: for the budget."""
        return sum(2 * self.page_bytes(i) for i in range(len(self.attention)))

    def k_token(self, page: int, index: int, layer: int = 0) -> memoryview:
        """Writable bytes of one token in a page; a V page is ``page + num_pages``."""
        size = self.token_bytes(layer)
        page, index = _index("page", page, 2 * self.num_pages), _index("index", index, self.tokens_per_page)
        at = (page * self.tokens_per_page + index) * size
        return memoryview(self.kv[layer]).cast("B")[at : at + size]

    def state_of(self, slot: int, layer: int = 0) -> memoryview:
        """Writable bytes of the state of a slot."""
        size, slot = self.state_bytes(layer), _index("slot", slot, self.max_batch_size)
        return memoryview(self.state[layer]).cast("B")[slot * size : (slot + 1) * size]

    def conv_of(self, slot: int, layer: int = 0) -> memoryview:
        """Writable bytes of the convolution state of a slot."""
        size, slot = self.conv_bytes(layer), _index("slot", slot, self.max_batch_size)
        return memoryview(self.conv[layer]).cast("B")[slot * size : (slot + 1) * size]

    def attention_layers(self) -> list[AttentionLayerBuffers]:
        return [
            AttentionLayerBuffers(ctypes.addressof(kv), shape.kv_heads, shape.head_dim, shape.type)
            for kv, shape in zip(self.kv, self.attention, strict=True)
        ]

    def recurrent_layers(self) -> list[RecurrentLayerBuffers]:
        return [
            RecurrentLayerBuffers(
                ctypes.addressof(state),
                ctypes.addressof(conv),
                s.heads,
                s.head_dim,
                s.state_size,
                s.conv_dim,
                s.conv_kernel,
                s.state_type,
                s.conv_type,
            )
            for state, conv, s in zip(self.state, self.conv, self.recurrent, strict=True)
        ]

    def reset_for_new_sequences(self, lengths: Sequence[int], slots: Sequence[int], stream: int) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            self.lengths[slot] = length
        self.active_batch = len(lengths)

    def compact_slot_state(
        self, old_to_new: Sequence[int], new_batch_size: int, device_mapping: int, stream: int
    ) -> None:
        for old, new in enumerate(old_to_new):  # ascending: survivors only move down
            if new < 0 or new == old:
                continue
            self.lengths[new] = self.lengths[old]
            for layer in range(len(self.recurrent)):
                self.state_of(new, layer)[:] = self.state_of(old, layer)
                self.conv_of(new, layer)[:] = self.conv_of(old, layer)

    def set_active_batch_size(self, batch_size: int) -> None:
        self.active_batch = batch_size


def _shapes(argument: str, values: Sequence[T], kind: type[T]) -> list[T]:
    """``values`` as shapes whose sizes and element types can be multiplied."""
    out = []
    for i, shape in enumerate(instances(argument, values, kind)):
        read: dict[str, Any] = {}
        for name in (f.name for f in fields(kind)):
            what, value = f"{argument}[{i}].{name}", getattr(shape, name)
            read[name] = member(what, value, DataType) if name.endswith("type") else integer(what, value, 0, 2**31 - 1)
        out.append(replace(shape, **read))
    return out


def _index(argument: str, value: int, count: int) -> int:
    """A number from 0 up; a negative one, as in the unused places of a row, is none from behind."""
    return integer(argument, value, 0, count - 1)


def _memory(size: int) -> Any:
    try:
        return (ctypes.c_uint8 * size)()
    except (MemoryError, OverflowError, ValueError) as e:
        raise PrefixCacheMemoryError(f"a cache of {size} bytes cannot be had in host memory") from e
