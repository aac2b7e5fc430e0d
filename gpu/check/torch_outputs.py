"""What outputs on the GPU may look like, and what is refused. Used by torch_omni.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from output_builder import OutputBuilder
from report import check

from prefixcache import PrefixCacheError
from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheManager, PrefixCacheConfig

N, BLOCK = 8, 4


class OneRequest:
    """A manager and a request of N tokens a step, always on the same blocks."""

    def __init__(self, policy: ModelCachePolicy | None = None) -> None:
        config = PrefixCacheConfig(num_blocks=4, block_size=BLOCK, staging_capacity_tokens=64)
        self.manager = OmniPrefixCacheManager(config, self, eager=False)
        self.manager.register_policy(policy or ModelCachePolicy())
        self.names: list[str] = []
        self.count = 0

    def batch_req_ids(self) -> list[str]:
        return self.names

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: dict[str, int]) -> torch.Tensor:
        return torch.arange(N, dtype=torch.int64)

    def begin(self) -> None:
        gone, self.count = set(self.names), self.count + 1
        self.names = [f"r{self.count}"]
        new = SimpleNamespace(req_id=self.names[0], num_computed_tokens=0, block_ids=([0, 1],))
        self.manager.new_step_starts(
            SimpleNamespace(num_scheduled_tokens={self.names[0]: N}, finished_req_ids=gone, scheduled_new_reqs=[new])
        )

    def save(self, hidden: Any, mm: dict[str, Any], event: Any = None) -> int:
        return self.manager.save_outputs(hidden, mm, num_tokens_unpadded=N, num_tokens_padded=N, event=event)

    def step(self, hidden: Any, mm: dict[str, Any]) -> int:
        self.begin()
        return self.save(hidden, mm)

    def read(self, step: int) -> tuple[torch.Tensor, dict[str, Any]]:
        out = self.manager.materialize(step, self.names)
        return out.hidden_states[self.names[0]], {k: v[self.names[0]] for k, v in out.mm_outputs.items()}


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    want = want.cpu()
    assert got.is_cpu and got.dtype == want.dtype and got.shape == want.shape, (
        f"{what}: {got.dtype}, {tuple(got.shape)}"
    )
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (got, want)]  # a scalar has no bytes to view
    assert torch.equal(*as_bytes), f"{what}: other bytes"


def random_bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Any bits at all; a cache of bytes has no business with values."""
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, device="cuda").bool()
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8, device="cuda").view(dtype)


def every_type() -> str:
    names = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool",
             "complex64", "float8_e4m3fn", "float8_e5m2")  # fmt: skip
    dtypes = [getattr(torch, name) for name in names if hasattr(torch, name)]
    for dtype in dtypes:
        host = OneRequest()
        hidden, mm = random_bits((N, 16), dtype), random_bits((N, 2, 8), dtype)
        got, got_mm = host.read(host.step(hidden, {"mm": mm}))
        same(got, hidden, f"hidden {dtype}")
        same(got_mm["mm"], mm, f"mm {dtype}")
        host.manager.shutdown()
    return ", ".join(str(d).removeprefix("torch.") for d in dtypes)


def every_layout() -> str:
    wide = torch.randn(N + 5, 40, device="cuda")
    layouts = {
        "rows of a wider buffer": wide[:N, 4:20],
        "every second row": wide[:, :16].repeat_interleave(2, 0)[::2][:N],
        "columns": torch.randn(16, N, device="cuda").t(),
        "every second column": wide[:N, :32:2],
        "expanded": torch.randn(1, 16, device="cuda").expand(N, 16),
        "one row for all, wide": torch.randn(N, 1, device="cuda").expand(N, 16),
        "offset": wide.flatten()[3 : 3 + N * 16].view(N, 16),
    }
    for name, hidden in layouts.items():
        host = OneRequest()
        want = hidden.clone()
        got, _ = host.read(host.step(hidden, {}))
        same(got, want, name)
        host.manager.shutdown()
    conjugate = torch.randn(N, 16, dtype=torch.complex64, device="cuda").conj()
    host = OneRequest()
    got, _ = host.read(host.step(conjugate, {}))
    assert torch.equal(got, conjugate.resolve_conj().cpu()), "conjugate"
    host.manager.shutdown()
    return ", ".join([*layouts, "conjugate"])


def leftovers() -> str:
    host = OneRequest(ModelCachePolicy(deferred_keys=frozenset({"late"})))
    ref = torch.arange(5.0, device="cuda")
    mm = {
        "late": torch.randn(N, 4, device="cuda"),
        "ref": ref,
        "scalar": torch.tensor(3.5, device="cuda"),
        "list": [torch.ones(2, 3, device="cuda"), "text"],
        "dict": {"a": torch.zeros(4, device="cuda"), "b": 7},
        "host": torch.full((3,), 2.0),
    }
    want = {"late": mm["late"].cpu().clone(), "ref": ref.cpu().clone(), "scalar": mm["scalar"].cpu().clone()}
    hidden = torch.randn(N, 8, device="cuda")
    torch.cuda._sleep(2_000_000)
    step = host.step(hidden, mm)
    for t in (hidden, mm["late"], ref, mm["scalar"], mm["list"][0], mm["dict"]["a"], mm["host"]):
        t.fill_(-7)
    _, got = host.read(step)
    for key, tensor in want.items():
        same(got[key], tensor, key)
    same(got["list"][0], torch.ones(2, 3), "a tensor in a list")
    same(got["dict"]["a"], torch.zeros(4), "a tensor in a dict")
    same(got["host"], torch.full((3,), 2.0), "a host tensor")
    assert got["list"][1] == "text" and got["dict"]["b"] == 7
    host.manager.shutdown()
    return ""


class Interface:
    """Only __cuda_array_interface__, as CuPy or Numba have it."""

    def __init__(self, tensor: torch.Tensor, stream: int | None) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3, "stream": stream}


class Capsule:
    """Only DLPack, as JAX or TensorRT have it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.tensor.__dlpack_device__()
        return int(kind), index

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.tensor.__dlpack__(stream=stream)


def foreign_arrays() -> str:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        hidden, mm = torch.randn(N, 8, device="cuda"), torch.randn(N, 2, 4, device="cuda")
        want = hidden.cpu(), mm.cpu()
        for wrapped in (Interface(mm, stream.cuda_stream), Capsule(mm)):
            host = OneRequest()
            got, got_mm = host.read(host.step(hidden, {"mm": wrapped}))
            same(got, want[0], "hidden")
            same(got_mm["mm"], want[1], type(wrapped).__name__)
            host.manager.shutdown()
    return "__cuda_array_interface__, DLPack"


def mixed_places() -> str:
    host = OneRequest()
    hidden, mm = torch.randn(N, 8, device="cuda"), torch.randn(N, 8)
    got, got_mm = host.read(host.step(hidden, {"mm": mm}))
    same(got, hidden, "device rows")
    same(got_mm["mm"], mm, "host rows")
    host.manager.shutdown()
    return ""


def capture_is_refused() -> str:
    host = OneRequest()
    hidden, ref = torch.randn(N, 8, device="cuda").mul_(2), torch.randn(5, device="cuda")  # the kernel is loaded
    want = hidden.clone()
    host.read(host.step(hidden, {"ref": ref}))
    host.begin()
    event = torch.cuda.Event()
    event.record()
    saves = {"rows": ({}, None), "with what is no rows": ({"ref": ref}, None), "with an event": ({}, event)}
    refused = dict.fromkeys(saves, "")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # nothing that a save does first may get into the capture, or fork it
        hidden.mul_(2)
        for what, (mm, ready) in saves.items():
            try:
                host.save(hidden, mm, ready)
            except PrefixCacheError as e:
                refused[what] = str(e)
    for what, why in refused.items():
        assert "captur" in why, f"a save of {what} was not refused: {why!r}"
    graph.replay()
    step = host.save(hidden, {"ref": ref})  # the same step, outside of the capture
    got, got_mm = host.read(step)
    same(got, want * 2, "after the replay")
    same(got_mm["ref"], ref, "what is no rows")
    host.manager.shutdown()
    return ", ".join(saves) + ": and the graph is good"


def event_of_a_graph_is_refused() -> str:
    """Recorded in the forward that was captured, and given to the save behind its replay."""
    host = OneRequest()
    hidden = torch.randn(N, 8, device="cuda").mul_(2)
    want = hidden.clone()
    host.read(host.step(hidden, {}))
    host.begin()
    event = torch.cuda.Event()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden.mul_(2)
        event.record()
    graph.replay()
    # Of torch's own event torch may tell first.
    for given, error in ((event, RuntimeError), (event.cuda_event, PrefixCacheError)):
        try:
            host.save(hidden, {}, event=given)
        except error:
            continue
        raise AssertionError(f"{type(given).__name__} was not refused")
    step = host.save(hidden, {})  # in stream order, which is right
    got, _ = host.read(step)
    same(got, want * 2, "after the replay")
    host.manager.shutdown()
    return "torch.cuda.Event, cudaEvent_t"


def behind_an_event() -> str:
    """Outputs that another stream computes late; the save is told by an event alone."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for as_number in (False, True):
        host = OneRequest()
        hidden, ref = torch.zeros(N, 8, device="cuda"), torch.zeros(5, device="cuda")
        host.read(host.step(hidden, {}))  # the device is open
        host.begin()
        side.wait_stream(main)
        event = torch.cuda.Event()
        refused = ""
        try:
            host.save(hidden, {}, event=event)
        except PrefixCacheError as e:
            refused = str(e)
        assert "never recorded" in refused, f"it was not refused: {refused!r}"
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            hidden.fill_(3.0)
            ref.fill_(4.0)
            event.record(side)
        mm = {} if as_number else {"ref": ref}  # an event that is not torch's orders rows alone
        step = host.save(hidden, mm, event=event.cuda_event if as_number else event)
        hidden.fill_(-7.0)  # behind the event as well: the save has made this stream wait
        ref.fill_(-7.0)
        got, got_mm = host.read(step)
        same(got, torch.full((N, 8), 3.0), "rows")
        if not as_number:
            same(got_mm["ref"], torch.full((5,), 4.0), "what is no rows")
        host.manager.shutdown()
    return "torch.cuda.Event, cudaEvent_t"


WIDE = 65536  # floats a row: 2 MiB a step


def dropped_behind_an_event() -> str:
    """Tensors of another stream, dropped behind the save: its next ones must not take their memory before they are read."""
    side = torch.cuda.Stream()
    shapes = ((N, WIDE), (WIDE,))
    with torch.cuda.stream(side):
        first = torch.empty(shapes[0], device="cuda").data_ptr()
        at_once = first == torch.empty(shapes[0], device="cuda").data_ptr()
    for as_number in (False, True):
        host = OneRequest()
        hidden, ref = (torch.zeros(shape, device="cuda") for shape in shapes)
        host.read(host.step(hidden, {"ref": ref}))  # the device is open, pages of this size are pinned
        host.begin()
        with torch.cuda.stream(side):
            hidden, ref = torch.full(shapes[0], 3.0, device="cuda"), torch.full(shapes[1], 4.0, device="cuda")
            event = torch.cuda.Event()
            event.record(side)
        torch.cuda._sleep(100_000_000)  # the stream of the save gets to them late
        mm = {} if as_number else {"ref": ref}  # an event that is not torch's orders rows alone
        step = host.save(hidden, mm, event=event.cuda_event if as_number else event)
        del hidden, ref, mm
        with torch.cuda.stream(side):
            others = [torch.full(shape, -7.0, device="cuda") for shape in shapes * 8]
        side.synchronize()
        got, got_mm = host.read(step)
        same(got, torch.full(shapes[0], 3.0), "rows")
        if not as_number:
            same(got_mm["ref"], torch.full(shapes[1], 4.0), "what is no rows")
        del others
        host.manager.shutdown()
    return "torch.cuda.Event, cudaEvent_t" + ("" if at_once else "; this allocator does not reuse memory at once")


def outlives_the_manager() -> str:
    host = OneRequest()
    hidden = torch.randn(N, 8, device="cuda")
    got, _ = host.read(host.step(hidden, {}))
    host.manager.shutdown()
    del host
    same(got, hidden, "rows after shutdown")
    return ""


def other_thread() -> str:
    """A thread that has no CUDA context and no torch stream of its own."""
    host = OneRequest()
    hidden = torch.randn(N, 8, device="cuda")
    torch.cuda._sleep(20_000_000)
    step = host.step(hidden, {})
    result: list[Any] = []
    with OutputBuilder(lambda: result.append(host.read(step))) as builder:
        builder.put()
    same(result[0][0], hidden, "rows")
    host.manager.shutdown()
    return ""


def run_all() -> None:
    for name, body in (
        ("every element type", every_type),
        ("every layout", every_layout),
        ("outputs that are no rows, overwritten behind the save", leftovers),
        ("arrays of other libraries", foreign_arrays),
        ("rows on the GPU and on the host in one step", mixed_places),
        ("rows of another stream, behind an event", behind_an_event),
        ("rows of another stream, behind an event, dropped behind the save", dropped_behind_an_event),
        ("a save inside a graph capture is refused", capture_is_refused),
        ("an event that a graph capture recorded is refused", event_of_a_graph_is_refused),
        ("results outlive the manager", outlives_the_manager),
        ("materialize on a thread without CUDA", other_thread),
    ):
        check(f"omni, torch: {name}", body)
