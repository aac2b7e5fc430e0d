"""Section: the omni cache on torch tensors, through the Python drop-in.

Random request traffic (python/tests/omni_trace.py) whose outputs are on the GPU, against
a dictionary of rows; then the original manager, where it is at hand; then what outputs
may look like (torch_outputs.py). The outputs come from three kinds of models: fresh
tensors on the default stream, fresh tensors on a side stream that are dropped behind the
save, and static buffers that a CUDA graph overwrites with every replay.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_outputs
from omni_host import HIDDEN
from omni_trace import BLOCK, RowModel, Step, Traffic
from output_builder import OutputBuilder
from report import NotRunError, check

from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheManager, OmniPrefixCacheUnmatchError, PrefixCacheConfig

DEPTH, BLOCKS, MAX_TOKENS, WIDTH = 5, 24, 128, 6
KEYS = (HIDDEN, "k", "d", "left")
POLICY = ModelCachePolicy(deferred_keys=frozenset({"d"}))
SLOW = 400_000  # cycles of a kernel in front of the outputs: they are late


class FreshTensors:
    """New tensors each step, overwritten behind the save and dropped."""

    def __init__(self, stream: torch.cuda.Stream, *, drop: bool) -> None:
        self.stream, self.drop = stream, drop
        self.alive: list[torch.Tensor] = []

    def compute(self, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        torch.cuda._sleep(SLOW)
        return {k: v.pin_memory().to("cuda", non_blocking=True) for k, v in outputs.items()}

    def padded(self, n: int) -> int:
        return n

    def next_forward(self, outputs: dict[str, torch.Tensor]) -> None:
        if not self.drop:
            for t in outputs.values():
                t.fill_(-7)
            return
        # Dropped and at once given to somebody else by the caching allocator.
        shapes = [(t.shape, t.dtype) for t in outputs.values()]
        outputs.clear()
        self.alive = [torch.full(shape, -7, dtype=dtype, device="cuda") for shape, dtype in shapes]


class GraphReplay:
    """Static buffers, padded to a multiple of 8 rows, overwritten by each replay."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        shapes = {k: (MAX_TOKENS,) if k == "left" else (MAX_TOKENS, WIDTH) for k in KEYS}
        dtypes = {k: torch.float32 if k == "left" else torch.float64 for k in KEYS}
        self.inputs = {k: torch.zeros(shapes[k], dtype=dtypes[k], device="cuda") for k in KEYS}
        self.outputs = {k: torch.zeros_like(t) for k, t in self.inputs.items()}
        torch.cuda.synchronize()
        self._forward()  # warm, outside of the capture
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self._forward()

    def _forward(self) -> None:
        for k in KEYS:
            torch.mul(self.inputs[k], 1, out=self.outputs[k])

    def compute(self, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        torch.cuda._sleep(SLOW)
        for k, v in outputs.items():
            self.inputs[k][: len(v)].copy_(v.pin_memory(), non_blocking=True)
        self.graph.replay()
        n = max((len(v) for v in outputs.values()), default=0)
        return {k: self.outputs[k][: self.padded(n) if k != "left" else n] for k in outputs}

    def padded(self, n: int) -> int:
        return -(-n // 8) * 8

    def next_forward(self, _: dict[str, torch.Tensor]) -> None:
        for t in self.inputs.values():
            t.fill_(-7)
        self.graph.replay()


Model = FreshTensors | GraphReplay


class Engine:
    """A manager between a model on the GPU and its consumers."""

    def __init__(self, model: Model, manager: type = OmniPrefixCacheManager, config: type = PrefixCacheConfig,
                 policy: Any = POLICY) -> None:  # fmt: skip
        self.model = model
        settings = {"num_blocks": BLOCKS, "block_size": BLOCK, "staging_depth": DEPTH, "gpu_staging_bytes": 64_000}
        self.manager = manager(config(**settings), self, eager=False)
        self.manager.register_policy(policy)
        self.current: Step

    def batch_req_ids(self) -> list[str]:
        return self.current.batch

    def step_slots_cpu(self, req_ids: list[str], _: dict[str, int]) -> torch.Tensor:
        assert req_ids == self.current.batch
        return torch.tensor(self.current.slots, dtype=torch.int64)

    def save(self, step: Step) -> int:
        self.current = step
        self.manager.new_step_starts(step.output)
        n = len(step.slots)
        with torch.cuda.stream(self.model.stream):
            outputs = self.model.compute({**step.outputs, "left": step.leftover})
            hidden = outputs.get(HIDDEN)
            mm = {k: v for k, v in outputs.items() if k != HIDDEN}
            number = self.manager.save_outputs(
                hidden, mm, num_tokens_unpadded=n, num_tokens_padded=self.model.padded(n)
            )
            del hidden, mm
            self.model.next_forward(outputs)
        return number


def expect(model: RowModel, step: Step) -> dict[str, Any]:
    """Key -> request -> rows, and the requests that have to be refused."""
    model.save(step.slots, step.outputs)
    refused = {r for r, slots in step.hits.items() if any(model.rows.get((HIDDEN, s)) is None for s in slots)}
    want: dict[str, Any] = {"refused": refused & set(step.batch)}
    for key, rows in step.outputs.items():
        want[key], at = {}, 0
        for r in step.batch:
            n = step.output.num_scheduled_tokens[r]
            new, at = rows[at : at + n], at + n
            if r not in want["refused"]:
                prefix = [model.prefix(key, step.hits[r], rows)] if r in step.hits else []
                want[key][r] = torch.cat([*prefix, new])
    return want


def compare(engine: Engine, number: int, step: Step, want: dict[str, Any], ids: list[str]) -> None:
    """Materialize a step and compare every row. Raises AssertionError."""
    if want["refused"].intersection(ids):
        try:
            engine.manager.materialize(number, ids)
        except OmniPrefixCacheUnmatchError:
            return
        raise AssertionError(f"step {number}: a hit on rows that do not exist was answered")
    out = engine.manager.materialize(number, ids)
    got = dict(out.mm_outputs)
    left = got.pop("left")
    if HIDDEN in step.outputs:
        got[HIDDEN] = out.hidden_states
    assert got.keys() == step.outputs.keys(), f"step {number}: keys {sorted(got)}, expected {sorted(step.outputs)}"
    for key, by_request in got.items():
        for r in ids:
            rows = by_request[r]
            assert rows.is_cpu and rows.dtype == want[key][r].dtype, (
                f"step {number}: {key} is {rows.dtype}, {rows.device}"
            )
            assert torch.equal(rows, want[key][r]), f"step {number}: rows of {key}, request {r}, are others"
    at = 0
    for r in step.batch:
        n = step.output.num_scheduled_tokens[r]
        if r in ids:
            assert torch.equal(left[r], step.leftover[at : at + n]), (
                f"step {number}: the leftover of {r} is another one"
            )
        at += n


def traffic(make: Callable[[], Model], seeds: int, steps: int) -> str:
    """Random traffic, consumed late and in any order on this thread."""
    hits = rows = 0
    for seed in range(seeds):
        source, rows_of, pick = Traffic(seed, num_blocks=BLOCKS), RowModel(), random.Random(seed)
        engine = Engine(make())
        waiting: list[tuple[int, Step, dict[str, Any]]] = []
        for _ in range(steps):
            step = source.step()
            want = expect(rows_of, step)
            waiting.append((engine.save(step), step, want))
            hits, rows = hits + len(step.hits), rows + len(step.slots)
            while len(waiting) == DEPTH or (waiting and pick.random() < 0.5):
                number, step, want = waiting.pop(pick.randrange(len(waiting)))
                compare(engine, number, step, want, list(step.batch))
        for number, step, want in waiting:
            compare(engine, number, step, want, list(step.batch))
        stats = engine.manager.stats()
        assert stats["unconsumed_steps"] == stats["failed_writes"] == 0, stats
        engine.manager.shutdown()
        torch.cuda.synchronize()
    assert hits > 0
    return f"{seeds} runs of {steps} steps, {rows} tokens, {hits} hits"


def builder_thread(make: Callable[[], Model], steps: int) -> str:
    """The same with an output builder that runs behind the engine."""
    source, rows_of = Traffic(77, num_blocks=BLOCKS), RowModel()
    engine = Engine(make())
    with OutputBuilder(lambda *job: compare(engine, *job)) as builder:
        for _ in range(steps):
            step = source.step()
            want = expect(rows_of, step)
            builder.put(engine.save(step), step, want, list(step.batch))
    engine.manager.shutdown()
    return f"{steps} steps"


# ---------------------------------------------------------------------- original


def load_original() -> Any:
    """The original manager's modules. Raises NotRunError without ../shared."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "reference" / "omni"
    if not (folder / "load_reference.py").is_file():
        raise NotRunError("the original manager is not here (../shared)")
    sys.path.insert(0, str(folder))
    try:
        import load_reference  # noqa: F401
        from vllm_omni.core.prefix_cache import interface, manager
    finally:
        sys.path.remove(str(folder))
    return manager, interface


def against_original(steps: int) -> str:
    """Byte for byte. What its known defects would spoil is left out of the traffic."""
    manager, interface = load_original()
    source = Traffic(5, num_blocks=BLOCKS, same_step=False, sparse=False, preempt=False)
    stream = torch.cuda.Stream()
    ours = Engine(FreshTensors(stream, drop=False))
    policy = interface.ModelCachePolicy(deferred_keys=POLICY.deferred_keys)
    theirs = Engine(
        FreshTensors(stream, drop=False), manager.OmniPrefixCacheManager, interface.PrefixCacheConfig, policy
    )
    compared = 0
    for _ in range(steps):
        step = source.step()
        got = ours.manager.materialize(ours.save(step), step.batch)
        try:
            want = theirs.manager.materialize(theirs.save(step), step.batch)
        except Exception as e:
            raise NotRunError(f"the original manager failed: {type(e).__name__}: {e}") from e
        assert (got.hidden_states is None) == (want.hidden_states is None)
        assert got.mm_outputs.keys() == want.mm_outputs.keys()
        pairs = [(got.hidden_states or {}, want.hidden_states or {})]
        pairs += [(got.mm_outputs[k], want.mm_outputs[k]) for k in want.mm_outputs]
        for a, b in pairs:
            assert list(a) == list(b)
            for r in a:
                assert a[r].dtype == b[r].dtype and torch.equal(a[r], b[r]), f"request {r} differs"
                compared += a[r].shape[0]
    ours.manager.shutdown()
    theirs.manager.shutdown()
    return f"{steps} steps, {compared} rows"


def main() -> None:
    side = torch.cuda.Stream()
    default = torch.cuda.default_stream()
    check(
        "omni, torch: fresh tensors on the default stream",
        lambda: traffic(lambda: FreshTensors(default, drop=False), 4, 80),
    )
    check(
        "omni, torch: tensors dropped behind the save, on a side stream",
        lambda: traffic(lambda: FreshTensors(side, drop=True), 4, 80),
    )
    check("omni, torch: CUDA-graph replay with static buffers", lambda: traffic(lambda: GraphReplay(side), 4, 80))
    check("omni, torch: an output builder on another thread", lambda: builder_thread(lambda: GraphReplay(side), 150))
    torch_outputs.run_all()
    check("omni, torch: byte for byte as the original manager", lambda: against_original(120))


if __name__ == "__main__":
    main()
