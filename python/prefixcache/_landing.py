"""Outputs on a CUDA device that the cache does not take, on their way to the host.

A step's device leftovers are cloned on the current stream, because the next forward may
overwrite them, and go from there to pinned memory on a stream of their own, so that the
forward waits for nothing. One event covers a step.
"""

from __future__ import annotations

from typing import Any

import torch

from prefixcache._device import keep_until_read


class Landing:
    """The device leftovers of one step. Made when the first one is met.

    foreign: they may belong to another stream than the current one.
    """

    __slots__ = ("_cuda", "_done", "_foreign", "_streams")

    def __init__(self, streams: dict[torch.device, Any], foreign: bool = False, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._foreign = foreign
        self._streams = streams  # one for each device, kept by the manager
        self._done: list[Any] = []

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A pinned tensor that has the values of ``tensor`` once :meth:`wait` returned."""
        cuda, device = self._cuda, tensor.device
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = cuda.Stream(device)
        frozen = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self._foreign:
            keep_until_read(tensor)
        side.wait_stream(cuda.current_stream(device))
        with cuda.stream(side):
            host = torch.empty(frozen.shape, dtype=frozen.dtype, device="cpu", pin_memory=frozen.is_cuda)
            host.copy_(frozen, non_blocking=True)
            done = cuda.Event()
            done.record(side)
        # Its memory belongs to the current stream; the copy reads it on another one.
        frozen.record_stream(side)
        self._done.append(done)
        return host

    def wait(self) -> None:
        """Block until every copy is done."""
        for done in self._done:
            done.synchronize()
        self._done.clear()
