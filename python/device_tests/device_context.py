"""The runtime of context_host in memory of the simulated driver: what it computes is queued on a stream.

Trouble with the driver may befall a step, but never what the runtime computes by itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from context_host import Cache, Kind, Rig, Row, Synchronizer
from sim_driver import ANY, OUT_OF_MEMORY, Driver

from prefixcache import PrefixCacheError
from prefixcache._errors import WRONG_STATE
from prefixcache.context import ContextCacheCoordinator, KVPageTable


@dataclass(frozen=True)
class Trouble:
    """The nth driver call of a step fails. Or somebody begins a graph capture of the stream: before the
    step (nth is 0), or once the host has done the nth of the things that the step asks of it."""

    step: str
    nth: int
    kinds: int = ANY
    code: int = OUT_OF_MEMORY
    capture: bool = False


class DeviceBytes:
    """Some words of device memory, used like the memoryviews of a host cache."""

    def __init__(self, rig: DeviceRig, address: int, size: int) -> None:
        self.rig, self.address, self.size = rig, address, size

    def __setitem__(self, everything: slice, data: bytes) -> None:
        """Queues work of the model."""
        assert everything == slice(None) and len(data) == self.size
        for i, (word,) in enumerate(struct.iter_unpack("<I", data)):
            self.rig.driver.launch(self.rig.stream, self.address + 4 * i, 1, word)

    def __eq__(self, data: object) -> bool:
        return self.rig.driver.peek(self.address, self.size) == data

    def __repr__(self) -> str:
        return repr(self.rig.driver.peek(self.address, self.size))


class DeviceCache(Cache):
    """Pages and slots on the device."""

    def __init__(self, rig: DeviceRig, **shape: object) -> None:
        super().__init__(**shape)
        self.rig = rig
        self.kv_at = [rig.alloc(len(memory)) for memory in self.kv]
        self.state_at = [rig.alloc(len(memory)) for memory in self.state]
        self.conv_at = [rig.alloc(len(memory)) for memory in self.conv]

    def attention_layers(self):
        layers = zip(super().attention_layers(), self.kv_at, strict=True)
        return [replace(layer, k_base=at) for layer, at in layers]

    def recurrent_layers(self):
        layers = zip(super().recurrent_layers(), self.state_at, self.conv_at, strict=True)
        return [replace(layer, state_base=state, conv_base=conv) for layer, state, conv in layers]

    def k_token(self, page, index, layer=0):
        size = self.token_bytes(layer)
        return DeviceBytes(self.rig, self.kv_at[layer] + page * self.page_bytes(layer) + index * size, size)

    def state_of(self, slot, layer=0):
        size = self.state_bytes(layer)
        return DeviceBytes(self.rig, self.state_at[layer] + slot * size, size)

    def conv_of(self, slot, layer=0):
        size = self.conv_bytes(layer)
        return DeviceBytes(self.rig, self.conv_at[layer] + slot * size, size)

    def reset_for_new_sequences(self, lengths, slots, stream):
        super().reset_for_new_sequences(lengths, slots, stream)
        self.rig.called_back()

    def compact_slot_state(self, old_to_new, new_batch_size, device_mapping, stream):
        """The states move by copies of the library."""
        self.rig.driver.step()
        mapping = struct.pack(f"<{len(old_to_new)}i", *old_to_new)
        assert self.rig.driver.peek(device_mapping, len(mapping)) == mapping
        self.rig.coordinator.move_slot_state(old_to_new, draft=self is self.rig.draft)
        for old, new in enumerate(old_to_new):
            if new >= 0:
                self.lengths[new] = self.lengths[old]
        self.rig.called_back()


class DeviceSynchronizer(Synchronizer):
    """Waits by itself, or has the library wait, and knows whether a wait has failed."""

    def __init__(self, rig: DeviceRig) -> None:
        super().__init__(rig.stream)
        self.rig, self.by_library, self.failed = rig, False, False

    def __call__(self, stream: int) -> int:
        super().__call__(stream)
        if self.rig.captured:  # to wait would spoil the capture
            raise PrefixCacheError("the stream is being captured", WRONG_STATE)
        coordinator = self.rig.coordinator
        if self.by_library:
            code = coordinator._library.context_synchronize(coordinator.handle)
        else:
            code = self.rig.driver.dll.cuStreamSynchronize(ctypes.c_void_p(stream))
        self.failed |= code != 0
        self.rig.called_back()
        return code


class DeviceCoordinator(ContextCacheCoordinator):
    """Knows its rig's trouble."""

    rig: DeviceRig

    def _step(self, request, name, *rest):
        with self.rig.troubled(name):
            return super()._step(request, name, *rest)

    def _abandon(self, number):
        with self.rig.troubled("close"):
            super()._abandon(number)


class DeviceRig(Rig):
    """A coordinator on a stream of the simulated driver."""

    coordinator_class = DeviceCoordinator
    host_memory = False

    def __init__(self, driver: Driver, kind: Kind, **settings: object) -> None:
        self.driver, self.stream = driver, driver.stream()
        self.memory: list[int] = []
        self.looking = True  # False: checks pass, so that queued work stays queued
        self.trouble: Trouble | None = None  # to come
        self.met: Trouble | None = None
        self.captured, self.capture_in = False, 0
        super().__init__(kind, **settings)
        self.coordinator.rig = self
        self.mapping = self.alloc(4 * self.base.max_batch_size)

    def alloc(self, size: int) -> int:
        self.memory.append(self.driver.alloc(bytes(size)))
        return self.memory[-1]

    def new_cache(self, **shape: object) -> DeviceCache:
        return DeviceCache(self, **shape)

    def new_synchronizer(self) -> DeviceSynchronizer:
        return DeviceSynchronizer(self)

    def synchronize(self) -> None:
        self.driver.drain(self.stream)

    def page(self, slot: int, at: int, draft: bool = False) -> int:
        """By the host's side of the row: work that is queued now finds it on the device."""
        page = (self.draft_table if draft else self.table).row(slot)[0][at]
        assert page >= 0, f"slot {slot} has no page {at}"
        return page

    def check(self, row: Row, slot: int, length: int, eagle: bool, common: int | None = None) -> None:
        """What is on the device once all that is queued has run, page table included."""
        if not self.looking:
            return
        self.driver.step()
        for table in (self.table, self.draft_table if eagle else None):
            if table is not None:
                self.check_device_row(table, slot)
        super().check(row, slot, length, eagle, common)

    def check_device_row(self, table: KVPageTable, slot: int) -> None:
        width = table.max_pages_per_seq
        on_device = self.driver.peek(table.device_pointer + 8 * width * slot, 8 * width)
        k, v = table.row(slot)
        assert struct.unpack(f"<{2 * width}i", on_device) == (*k, *v), f"row of slot {slot}"

    def close(self) -> None:
        super().close()
        for address in self.memory:
            self.driver.free(address)
        self.driver.end_stream(self.stream)

    # ------------------------------------------------------------------ trouble

    @contextmanager
    def troubled(self, step: str) -> Iterator[None]:
        """What the library does inside meets the trouble to come, if it gets that far."""
        trouble = self.trouble
        if trouble is None or trouble.step != step:
            yield
            return
        if not trouble.capture:
            self.driver.fail(trouble.nth, trouble.kinds, trouble.code)
        else:
            self.capture_in = trouble.nth + 1
            self.called_back()
        try:
            yield
        finally:
            if self.captured or not (trouble.capture or self.driver.armed()):
                self.trouble, self.met = None, trouble
            if self.captured:
                assert self.driver.end_capture(self.stream) == 1, "the capture was spoilt"
            self.captured, self.capture_in = False, 0
            self.driver.fail(0)

    def called_back(self) -> None:
        """The host has done something in the middle of a step."""
        if self.capture_in:
            self.capture_in -= 1
            if not self.capture_in:
                self.driver.capture(self.stream)
                self.captured = True
