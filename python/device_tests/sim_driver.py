"""The simulated CUDA driver, for tests in Python: device memory, streams, failures.

cpp_tests/simcuda/simcuda.h documents the control functions. The process must have
PREFIXCACHE_CUDA_DRIVER set to the simulated driver before libprefixcache opens one, so
that both talk to the same.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

ENQUEUE, WAIT, CREATE, FREE, ASK, ANY = 1, 2, 4, 8, 16, 31
RANDOM, LATE, EAGER = 0, 1, 2
OUT_OF_MEMORY, ILLEGAL_ADDRESS = 2, 700
NON_BLOCKING = 1


class Driver:
    """Device 0 of the simulated driver; its context is current on the calling thread."""

    def __init__(self) -> None:
        self.dll = ctypes.CDLL(os.environ["PREFIXCACHE_CUDA_DRIVER"])
        self.provoked: list[str] = []  # parts of faults that a test asks for
        self.dll.simcuda_calls.restype = c_uint64
        self.dll.simcuda_calls.argtypes = [c_char_p]
        for name in ("simcuda_queued", "simcuda_pageable", "simcuda_implicit_waits"):
            getattr(self.dll, name).restype = c_uint64

    def reset(self, seed: int, policy: int = RANDOM) -> None:
        """Forget everything but contexts."""
        self.dll.simcuda_reset(c_uint64(seed))
        self.dll.simcuda_policy(policy)
        self._call("cuInit", 0)
        context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *args: object) -> None:
        code = getattr(self.dll, name)(*args)
        assert code == 0, f"{name} returned CUresult {code}"

    def alloc(self, data: bytes) -> int:
        """Device memory with these bytes."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(max(1, len(data))))
        self.poke(address.value, data)
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", c_uint64(address))

    def poke(self, address: int, data: bytes) -> None:
        assert not data or self.dll.simcuda_poke(c_uint64(address), data, c_size_t(len(data)))

    def peek(self, address: int, size: int) -> bytes:
        """Device bytes as they are now, whatever is queued."""
        out = ctypes.create_string_buffer(size)
        assert self.dll.simcuda_peek(c_uint64(address), out, c_size_t(size)), f"{address:#x} is no device memory"
        return out.raw

    def step(self, operations: int = 1 << 30) -> None:
        """Runs queued work, and nobody hears of it: the library still has to wait for what it needs."""
        self.dll.simcuda_step(operations)

    def stream(self, flags: int = NON_BLOCKING) -> int:
        made = c_void_p()
        self._call("cuStreamCreate", byref(made), flags)
        return made.value or 0

    def end_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy_v2", c_void_p(stream))

    def event(self, stream: int) -> int:
        """An event that is recorded on the stream."""
        made = c_void_p()
        self._call("cuEventCreate", byref(made), 0)
        self._call("cuEventRecord", made, c_void_p(stream))
        return made.value or 0

    def end_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", c_void_p(event))

    def launch(self, stream: int, address: int, words: int, value: int) -> None:
        """Work of the model: words value, value+1, ... at address."""
        self._call("simcuda_launch", c_void_p(stream), c_uint64(address), c_size_t(words), c_uint32(value))

    def drain(self, stream: int) -> None:
        self._call("cuStreamSynchronize", c_void_p(stream))

    def capture(self, stream: int) -> None:
        self.dll.simcuda_capture(c_void_p(stream), c_int(2))

    def end_capture(self, stream: int) -> int:
        return self.dll.simcuda_end_capture(c_void_p(stream))

    def hold(self, stream: int) -> None:
        self.dll.simcuda_hold(c_void_p(stream))

    def release(self, stream: int) -> None:
        self.dll.simcuda_release(c_void_p(stream))

    def fail(self, nth: int, kinds: int = ANY, code: int = OUT_OF_MEMORY) -> None:
        """The nth driver call from now fails; 0: none."""
        self.dll.simcuda_fail_nth(kinds, nth, code)

    def armed(self) -> bool:
        """Whether that failure is still to come."""
        return self.dll.simcuda_armed() != 0

    def fail_operation(self, nth: int, code: int = ILLEGAL_ADDRESS) -> None:
        """The nth operation that runs fails, and the context is lost."""
        self.dll.simcuda_fail_operation(nth, code)

    def calls(self, name: bytes | None = None) -> int:
        return self.dll.simcuda_calls(name)

    def faults(self) -> list[str]:
        return self._lines(self.dll.simcuda_report)

    def leaks(self) -> list[str]:
        return self._lines(self.dll.simcuda_leaks)

    def _lines(self, function: object) -> list[str]:
        text = ctypes.create_string_buffer(1 << 16)
        function(text, c_size_t(len(text)))
        return text.value.decode().splitlines()
