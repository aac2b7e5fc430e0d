"""Runs a torch section of gpu/check on host tensors: whether its own logic holds.

usage: cuda_stand_in.py SECTION [CHECK ...]

"cuda" means the host, streams are in order at once, and a graph runs its body again. So what
depends on a GPU is not tried, and the checks of exactly that are left out; but a slip
in the script itself shows here and not on the one machine that it was written for.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
import time
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# They ask for what only a GPU has.
NEEDS_A_GPU = ("arrays of other libraries", "behind an event", "graph capture", "a CUDA graph sees")


class OnTheHost(TorchFunctionMode):
    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        name = getattr(func, "__name__", "")
        if name == "pin_memory" or (name == "to" and "cuda" in args[1:2]):
            return args[0].clone()
        if name == "as_tensor" and hasattr(args[0], "__cuda_array_interface__"):
            array = args[0].__cuda_array_interface__
            count = 1
            for n in array["shape"]:
                count *= n
            memory = (ctypes.c_int32 * count).from_address(array["data"][0])
            return torch.frombuffer(memory, dtype=torch.int32).reshape(array["shape"])
        return func(*args, **kwargs)


class Stream:
    cuda_stream = 0

    def synchronize(self) -> None: ...


class Event:
    def __init__(self, enable_timing: bool = False) -> None: ...
    def synchronize(self) -> None: ...
    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


class Graph:
    def __init__(self) -> None:
        self.body: Any = lambda: None

    def replay(self) -> None:
        self.body()


def stand_in() -> None:
    cuda: Any = torch.cuda
    cuda.Stream, cuda.Event, cuda.CUDAGraph = Stream, Event, Graph
    cuda.graph = lambda graph, stream=None: contextlib.nullcontext()
    cuda.default_stream = cuda.current_stream = lambda *_: Stream()
    cuda.stream = lambda _: contextlib.nullcontext()
    cuda.synchronize = cuda._sleep = lambda *_: None


def main() -> None:
    stand_in()
    import report

    section = importlib.import_module(sys.argv[1])
    carry_out = report.check

    def check(name: str, body: Any) -> None:
        if any(what in name for what in NEEDS_A_GPU):
            report.not_run(name, "needs a GPU")
        else:
            carry_out(name, body)

    for module in (section, sys.modules.get("torch_outputs")):
        if hasattr(module, "check"):
            module.check = check
    if sys.argv[1] == "torch_omni":
        init = section.GraphReplay.__init__

        def captured(self: Any, stream: Any) -> None:
            init(self, stream)
            self.graph.body = self._forward

        section.GraphReplay.__init__ = captured
    with OnTheHost():
        if sys.argv[1] == "torch_figures":
            section.WIDTH, section.SIDE = 64, 64
            with torch.inference_mode():
                section.host_time(0.0)
                section.overlap(0.0)
        else:
            section.main()


if __name__ == "__main__":
    main()
