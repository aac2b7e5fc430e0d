"""Memory of results: torch's own below 1 MiB, the library's arena from there on.

Large fresh allocations cost a page fault for every 4 KiB on first touch, which is
most of a prefill's time; the arena recycles huge pages. A buffer goes back when the
last tensor that views it dies, whichever thread drops it, and never earlier: results
stay valid after the manager that made them is gone.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch

from prefixcache import _ffi

# Below this, torch's allocator has warm memory and the wrapping costs more.
ARENA_BYTES = 1 << 20

# Said wherever a tensor is made: the default may be another device, whose addresses are none for the library.
HOST = torch.device("cpu")

# Empty tensors by dtype, made many at a time, that get memory when a result needs them. Results
# are plain tensors, also of an engine in inference mode: the thread that takes them may be in
# none, and could neither change an inference tensor nor train on it. To leave the mode for each
# would cost as much as two small buffers.
_blanks: dict[torch.dtype, list[torch.Tensor]] = {}
_BLANKS = 64

_PyBUF_WRITE = 0x200
_Pair = ctypes.c_uint64 * 2  # the address and the handle of a buffer

# Buffers in use, by the id of the weak reference (which a memoryview makes unhashable).
# Not weakref.finalize, which costs three times as much and would give buffers back at
# exit, when views may still be read.
_lent: dict[int, tuple[weakref.ref[memoryview], _ffi.Library, int]] = {}


def _give_back(memory: weakref.ref[memoryview]) -> None:
    _, library, buffer = _lent.pop(id(memory))
    library.buffer_release(buffer)


_memory_at: Any = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.restype = ctypes.py_object
_memory_at.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


def allocate(library: _ffi.Library, shape: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    """An uninitialised contiguous plain tensor of ``shape``; ``nbytes`` is its size. Any thread."""
    try:
        tensor = _blanks[dtype].pop()
    except (KeyError, IndexError):
        with torch.inference_mode(False):
            tensor, *_blanks[dtype] = [torch.empty(0, dtype=dtype, device=HOST) for _ in range(_BLANKS)]
    if nbytes < ARENA_BYTES:
        return tensor.resize_(shape)
    out = _Pair()
    at = ctypes.addressof(out)
    status = library.buffer_acquire(nbytes, at, at + 8)
    if status:
        library.check(status)
    data, buffer = out
    memory = _memory_at(data, nbytes, _PyBUF_WRITE)
    # torch's storage holds `memory`, so its end is the end of the last view.
    lease = weakref.ref(memory, _give_back)
    _lent[id(lease)] = (lease, library, buffer)
    return tensor.set_(torch.frombuffer(memory, dtype=dtype)).resize_(shape)
