"""Sections: what a step costs the engine, and what it costs the model beside it.

    torch_figures.py host       host time of save and materialize, against the original manager
    torch_figures.py overlap    slowdown of a stream of matrix products while steps are saved

Figures only: nothing here passes or fails. Each is taken in turn with what it is compared
to, and medians are reported.
"""

from __future__ import annotations

import statistics
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from output_builder import OutputBuilder
from report import NotRunError, figure, not_run
from torch_omni import load_original

from prefixcache import omni as product

BLOCK, WIDTH = 16, 2048  # bf16: 4 KiB a row
DEPTH = 4
SIDE = 4096  # of the model's square matrices


class View:
    """Block tables as one matrix, so that the view costs next to nothing."""

    def __init__(self, batch: int, blocks: int) -> None:
        self.ids = [f"r{i}" for i in range(batch)]
        self.table = np.arange(batch * blocks).reshape(batch, blocks)
        self.computed = 0

    def batch_req_ids(self) -> list[str]:
        return self.ids

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: dict[str, int]) -> torch.Tensor:
        at = np.arange(self.computed, self.computed + num_scheduled[req_ids[0]])
        return torch.from_numpy((self.table[:, at // BLOCK] * BLOCK + at % BLOCK).reshape(-1))


class Engine:
    """A manager with hidden rows and one more key of the same shape, on the GPU."""

    def __init__(self, module: Any, batch: int, tokens: int, positions: int) -> None:
        blocks = -(-positions // BLOCK)
        self.view = View(batch, blocks)
        self.tokens, self.positions = tokens, blocks * BLOCK
        config = module.PrefixCacheConfig(
            num_blocks=batch * blocks,
            block_size=BLOCK,
            staging_capacity_tokens=batch * tokens,
            staging_depth=DEPTH,
        )
        self.manager = module.OmniPrefixCacheManager(config, self.view, eager=False)
        self.manager.register_policy(module.ModelCachePolicy())
        n = batch * tokens
        self.hidden, self.mm = (torch.randn(n, WIDTH, device="cuda").to(torch.bfloat16) for _ in range(2))
        self.first = True

    def save(self) -> int:
        view, n = self.view, self.hidden.shape[0]
        new = [
            SimpleNamespace(req_id=r, num_computed_tokens=0, block_ids=(self.view.table[i].tolist(),))
            for i, r in enumerate(view.ids)
        ]
        output = SimpleNamespace(
            num_scheduled_tokens=dict.fromkeys(view.ids, self.tokens),
            finished_req_ids=set(),
            scheduled_new_reqs=new if self.first else [],
        )
        self.first = False
        self.manager.new_step_starts(output)
        step: int = self.manager.save_outputs(self.hidden, {"mm": self.mm}, num_tokens_unpadded=n, num_tokens_padded=n)
        # Positions are used again when the table is full: to the cache it is one more claim.
        view.computed = (view.computed + self.tokens) % (self.positions - self.tokens + 1)
        return step

    def timed_step(self) -> tuple[float, float]:
        """Seconds of the save, and of the materialize behind it. The device is idle before."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        step = self.save()
        saved = time.perf_counter()
        out = self.manager.materialize(step, self.view.ids)
        end = time.perf_counter()
        assert len(out.hidden_states) == len(self.view.ids)
        return saved - start, end - saved


def warm(module: Any, batch: int, tokens: int, positions: int) -> Engine:
    """An engine whose staging is pinned and whose memory is touched."""
    engine = Engine(module, batch, tokens, positions)
    for _ in range(DEPTH + 2):
        engine.timed_step()
    return engine


def original_module() -> Any:
    """Raises NotRunError where it is not at hand."""
    manager, interface = load_original()
    return SimpleNamespace(
        OmniPrefixCacheManager=manager.OmniPrefixCacheManager,
        PrefixCacheConfig=interface.PrefixCacheConfig,
        ModelCachePolicy=interface.ModelCachePolicy,
    )


def host_time(seconds: float) -> None:
    try:
        original = original_module()
    except NotRunError as e:
        original = None
        not_run("figures: host time of the original manager", str(e), optional=True)
    deadline = time.monotonic() + seconds
    for batch, tokens in ((1, 1), (16, 1), (64, 1), (256, 1), (16, 256)):
        what = f"step of {batch} x {tokens} tokens, two keys of 4 KiB, "
        ours = warm(product, batch, tokens, 512)
        try:
            theirs = warm(original, batch, tokens, 512) if original else None
        except Exception as e:
            theirs = None
            not_run(f"{what}the original manager", f"it failed: {type(e).__name__}: {e}", optional=True)
        taken: list[list[tuple[float, float]]] = [[], []]
        until = time.monotonic() + max(0.0, deadline - time.monotonic()) / 3
        rounds = 0
        while rounds < 5 or (rounds < 30 and time.monotonic() < until):
            for engine, times in zip((ours, theirs), taken, strict=True):
                if engine is not None:
                    engine.timed_step()  # the first of a turn finds cold caches
                    times += [engine.timed_step() for _ in range(3)]
            rounds += 1
        for i, part in enumerate(("save, host time", "materialize, host time with its wait")):
            a, b = (statistics.median(t[i] for t in times) * 1e6 if times else None for times in taken)
            figure(what + part, a, "us", b, "the original manager")
        for engine in (ours, theirs):
            if engine is not None:
                engine.manager.shutdown()


class Model:
    """Matrix products of a few milliseconds on a stream of their own."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.a, self.b = (torch.randn(SIDE, SIDE, device="cuda").to(torch.bfloat16) for _ in range(2))
        self.c = torch.empty_like(self.a)
        torch.cuda.synchronize()
        self.count = 1
        seconds = min(self.run(20, None) for _ in range(3)) / 20
        self.count = max(1, round(0.003 / seconds))  # products a step, for about 3 ms

    def run(self, steps: int, engine: Engine | None) -> float:
        """Device seconds of some steps; each is saved by the engine, and read by a builder thread."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        read = OutputBuilder(lambda step: engine.manager.materialize(step, engine.view.ids))
        with read as builder, torch.cuda.stream(self.stream):
            start.record()
            for _ in range(steps):
                for _ in range(self.count):
                    torch.mm(self.a, self.b, out=self.c)
                if engine is not None:
                    builder.put(engine.save())
            stop.record()
            stop.synchronize()
        torch.cuda.synchronize()
        seconds: float = start.elapsed_time(stop) / 1e3
        return seconds


def overlap(seconds: float) -> None:
    model = Model()
    modules: list[tuple[str, Any]] = [("", product)]
    try:
        modules.append((", the original manager", original_module()))
    except NotRunError as e:
        not_run("figures: overlap of the original manager", str(e), optional=True)
    deadline = time.monotonic() + seconds
    steps = 20
    for batch, tokens in ((256, 1), (16, 256)):
        for whose, module in modules:
            mebibytes = 2 * batch * tokens * 2 * WIDTH / (1 << 20)
            name = f"model step that saves {batch} x {tokens} tokens ({mebibytes:.0f} MiB), device time{whose}"
            alone: list[float] = []
            beside: list[float] = []
            try:
                engine = warm(module, batch, tokens, 512)
                while len(alone) < 3 or (len(alone) < 10 and time.monotonic() < deadline - seconds / 4):
                    alone.append(model.run(steps, None) / steps)
                    beside.append(model.run(steps, engine) / steps)
            except Exception as e:
                if module is product:
                    raise
                not_run(name, f"it failed: {type(e).__name__}: {e}", optional=True)
                continue
            figure(name, statistics.median(beside) * 1e6, "us", statistics.median(alone) * 1e6, "the model alone")
            engine.manager.shutdown()


if __name__ == "__main__":
    with torch.inference_mode():
        {"host": host_time, "overlap": overlap}[sys.argv[1]](30.0)
