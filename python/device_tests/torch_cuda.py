"""A torch with CUDA for tests on the simulated driver: what the package asks of it, noted.

Tensors have their values on the host, where torch computes, and in memory of the simulated
device, which the library reads. So the order of calls shows, and nothing of a GPU does.
"""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace

import torch

from prefixcache._landing import Landing


class Event:
    """As torch's: of another stream, with the number once it was recorded."""

    cuda_event = 0

    def __init__(self, driver, stream):
        self.driver, self.stream = driver, stream

    def record(self):
        self.cuda_event = self.driver.event(self.stream)


class FakeTensor(torch.Tensor):
    """A tensor of a torch with CUDA: its values in the simulated device, its calls noted."""

    is_cpu, is_cuda = False, True

    def data_ptr(self):
        return self.address

    def record_stream(self, stream):
        self.noted.append(("record_stream", self.label, stream.cuda_stream))

    def clone(self, **_):
        self.noted.append(("clone", self.label))
        made = torch.Tensor.clone(self).as_subclass(Clone)
        made.label, made.noted = f"clone of {self.label}", self.noted
        return made

    def detach(self):
        return self

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))


class Clone(FakeTensor):
    """What torch would have on the device; on the host here, as no memory can be pinned."""

    is_cuda = False


class TorchCuda:
    """What the package asks of a torch with CUDA, on one stream of the simulated driver."""

    def __init__(self, driver, monkeypatch):
        self.driver, self.noted, self.addresses = driver, [], []
        self.stream = driver.stream()
        self.capturing = False
        self.given_back = lambda: None
        stream = SimpleNamespace(cuda_stream=self.stream)
        side = SimpleNamespace(cuda_stream="side", wait_stream=lambda _: self.noted.append(("wait_stream",)))
        event = SimpleNamespace(record=lambda _: None, synchronize=lambda: None)
        for name, value in {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "is_current_stream_capturing": lambda: self.capturing,
            "current_stream": lambda device=None: stream,
            "empty_cache": self._empty_cache,
            "Event": type(
                "Event", (Event,), {"wait": lambda e: self._wait(e), "__new__": lambda cls, *_: object.__new__(cls)}
            ),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        fake = SimpleNamespace(
            Stream=lambda device: side,
            Event=lambda: event,
            current_stream=lambda device: stream,
            stream=lambda s: contextlib.nullcontext(),
        )
        monkeypatch.setattr(Landing.__init__, "__defaults__", (*Landing.__init__.__defaults__[:-1], fake))

    def _empty_cache(self):
        self.noted.append(("empty_cache",))
        self.given_back()

    def _wait(self, event):
        self.noted.append(("wait", event.stream))

    def tensor(self, name, values):
        made = values.clone().as_subclass(FakeTensor)
        made.label, made.noted = name, self.noted
        made.address = self.driver.alloc(values.contiguous().view(torch.uint8).numpy().tobytes())
        self.addresses.append(made.address)
        return made

    def end(self):
        for address in self.addresses:
            self.driver.free(address)
        self.driver.end_stream(self.stream)


def end_without_a_context(host, driver):
    """What a test does at its end whose context was lost: nothing can be given back any more."""
    host.destroyed = True
    host.manager.shutdown()
    handle = ctypes.c_uint64(host.manager._cache.handle)
    host.manager._cache.library.omni_destroy(handle)  # reports what a lost context keeps
    assert not driver.faults()
    driver.reset(3)
