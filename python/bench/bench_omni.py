#!/usr/bin/env python3
"""Speed of the omni cache, as ratios taken in one run.

Every figure is taken in many short turns: some steps of ours, then some of what they are
compared to. A turn gives one ratio, of its two medians, and the figure is the median of
these ratios. So a machine whose clock changes from second to second changes both sides of
a ratio alike. (Step by step would be worse: each would find its code and data pushed out of
the caches by the other; so the first steps of a turn do not count.) The times beside a
ratio are medians over all turns, and their quotient may differ from it. Where ../shared has
the original manager it is the comparison; a bare memory copy and torch's index_copy_ always are.

usage: bench_omni.py [--check] [--quick] [--threads N]

--check makes the exit code tell whether every target was met.
"""

from __future__ import annotations

import argparse
import ctypes
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT.parent / "shared" / "reference" / "omni"
sys.path.insert(0, str(ROOT / "python"))

try:  # --help and a mistyped option do without
    import numpy as np
    import torch

    from prefixcache import omni as product
except ImportError as e:
    missing: str | None = e.name
else:
    missing = None

BLOCK = 16
WIDTH = 2048  # bf16: 4 KiB a row
MiB = 1 << 20


def load_reference() -> Any:
    """The original manager's module, or None in a clone without ../shared."""
    if not (REFERENCE / "load_reference.py").is_file():
        return None
    sys.path.insert(0, str(REFERENCE))
    try:
        import load_reference  # noqa: F401
        from vllm_omni.core.prefix_cache import interface, manager
    finally:
        sys.path.remove(str(REFERENCE))
    return SimpleNamespace(
        OmniPrefixCacheManager=manager.OmniPrefixCacheManager,
        PrefixCacheConfig=interface.PrefixCacheConfig,
        ModelCachePolicy=interface.ModelCachePolicy,
    )


class MatrixView:
    """The batch's block tables as one matrix, so that the view costs next to nothing."""

    block_size = BLOCK

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.computed = np.zeros(0, np.int64)
        self.table = np.zeros((0, 0), np.int64)

    def batch_req_ids(self) -> list[str]:
        return self.ids

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: dict[str, int]) -> torch.Tensor:
        n = np.fromiter((num_scheduled[r] for r in req_ids), np.int64, len(req_ids))
        row = np.repeat(np.arange(len(n)), n)
        pos = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n) + np.repeat(self.computed, n)
        return torch.from_numpy(self.table[row, pos // BLOCK] * BLOCK + pos % BLOCK)


class Engine:
    """One manager under test, with hidden rows and one mm key of the same shape."""

    def __init__(self, module: Any, num_blocks: int, *, capacity: int = 1024, depth: int = 4) -> None:
        self.view = MatrixView()
        config = module.PrefixCacheConfig(
            num_blocks=num_blocks, block_size=BLOCK, staging_capacity_tokens=capacity, staging_depth=depth
        )
        self.manager = module.OmniPrefixCacheManager(config, self.view, eager=True)
        self.manager.register_policy(module.ModelCachePolicy())
        self.waiting: list[Any] = []
        self.finished: list[str] = []

    def batch(self, ids: list[str], table: np.ndarray, computed: int, *, hit: int = 0) -> None:
        """The coming steps are of these requests; `hit` tokens of each are in the cache."""
        self.finished = self.view.ids
        self.view.ids, self.view.table = ids, table
        self.view.computed = np.full(len(ids), computed, np.int64)
        self.waiting = [
            SimpleNamespace(req_id=r, num_computed_tokens=hit, block_ids=(table[i].tolist(),))
            for i, r in enumerate(ids)
        ]

    def save(self, tokens: int, hidden: torch.Tensor, mm: torch.Tensor) -> tuple[float, int]:
        """Seconds of the step start and the save, and the step."""
        ids = self.view.ids
        scheduled = dict.fromkeys(ids, tokens)
        output = SimpleNamespace(
            scheduled_new_reqs=self.waiting, finished_req_ids=set(self.finished), num_scheduled_tokens=scheduled
        )
        self.waiting, self.finished = [], []
        n = tokens * len(ids)
        hidden, outputs = hidden[:n], {"mm": mm[:n]}
        start = time.perf_counter()
        self.manager.new_step_starts(output)
        step = self.manager.save_outputs(hidden, outputs, num_tokens_unpadded=n, num_tokens_padded=n)
        seconds = time.perf_counter() - start
        self.view.computed = self.view.computed + tokens
        return seconds, step

    def step(self, tokens: int, hidden: torch.Tensor, mm: torch.Tensor) -> float:
        """Seconds of a whole step, without the model."""
        seconds, step = self.save(tokens, hidden, mm)
        ids = list(self.view.ids)
        start = time.perf_counter()
        out = self.manager.materialize(step, ids)
        seconds += time.perf_counter() - start
        assert len(out.hidden_states) == len(ids)
        return seconds


def table_of(requests: int, blocks: int, first: int = 0) -> np.ndarray:
    return first + np.arange(requests * blocks).reshape(requests, blocks)


def tensors(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(n, WIDTH).to(torch.bfloat16) for _ in range(2))


class Compared(NamedTuple):
    """What the turns gave: medians in seconds, and the median over the turns of theirs / ours.

    Two times None when there was nothing to compare with.
    """

    ours: float
    theirs: float | None
    ratio: float | None


Job = Callable[[], float]


def in_turns(turns: int, ours: Job, theirs: Job | None, *, steps: int = 15, warm: int = 10, few: int = 5) -> Compared:
    """Compare the seconds that two jobs report; see the top of this file.

    In each turn ``ours`` runs ``warm`` times and then ``steps`` times that count, ``theirs``
    ``few`` times and then ``few`` times. (It is the slower one, and warm sooner in its own terms.)
    """
    jobs = [(ours, warm, steps)]
    if theirs is not None:
        jobs.append((theirs, few, few))
    medians: list[list[float]] = []
    for _ in range(turns):
        turn = []
        for job, before, counted in jobs:
            for _ in range(before):
                job()
            turn.append(statistics.median([job() for _ in range(counted)]))
        medians.append(turn)
    mine, *other = (statistics.median(times) for times in zip(*medians, strict=True))
    if not other:
        return Compared(mine, None, None)
    return Compared(mine, other[0], statistics.median(b / a for a, b in medians))


def timed(job: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        job()
        return time.perf_counter() - start

    return run


@dataclass
class Report:
    """Prints figures as they come and remembers which targets were missed."""

    missed: list[str] = field(default_factory=list)

    def row(self, what: str, figures: str, value: float, target: str, met: bool | None) -> None:
        verdict = {True: "ok", False: "MISSED", None: "-"}[met]
        print(f"{what:<34} {figures:<44} {value:8.2f}  {target:<10} {verdict}", flush=True)
        if met is False:
            self.missed.append(what)

    def faster(self, what: str, figure: Compared, target: float, than: str = "original") -> None:
        ours = f"{figure.ours * 1e6:10.0f} us"
        if figure.theirs is None or figure.ratio is None:
            print(f"{what:<34} {ours}", flush=True)
            return
        theirs = f"{figure.theirs * 1e6:{19 - len(than)}.0f} us"
        self.row(what, f"{ours}, {than} {theirs}", figure.ratio, f">= {target:g}", figure.ratio >= target)

    def at_most(self, what: str, figures: str, value: float, target: float) -> None:
        self.row(what, figures, value, f"<= {target:g}", value <= target)


class Stopwatch:
    """Stands in for a manager's library and adds up the time spent in its calls."""

    def __init__(self, manager: Any) -> None:
        self.library = manager._cache.library
        self.seconds = 0.0
        manager._cache.library = self

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)
        if not callable(function):
            return function

        def call(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            self.seconds += time.perf_counter() - start
            return result

        setattr(self, name, call)
        return call


def jobs_of(engines: list[Engine], job: Callable[[Engine], float]) -> tuple[Job, Job | None]:
    """The same job for our engine, and for the original's where it is here."""
    ours, *theirs = (partial(job, e) for e in engines)
    return ours, theirs[0] if theirs else None


def decode(report: Report, reference: Any, turns: int) -> None:
    for batch, target in ((1, 5), (16, 30), (64, 60), (256, 90)):
        # A batch decodes for thousands of steps. The original leaves the caches full of its own,
        # and a step of a small batch is not back at its speed for some tens of steps.
        steps, warm = (60, 30) if batch <= 64 else (15, 10)
        blocks = ((steps + warm) * turns + 40) // BLOCK + 2
        table = table_of(batch, blocks)
        hidden, mm = tensors(batch * 16)
        engines = [Engine(m, batch * blocks, capacity=batch * 16) for m in (product, reference) if m]
        for engine in engines:
            engine.batch([f"r{i}" for i in range(batch)], table, 0)
            engine.step(16, hidden, mm)
        figure = in_turns(turns, *jobs_of(engines, lambda e, h=hidden, m=mm: e.step(1, h, m)), steps=steps, warm=warm)
        report.faster(f"decode step, batch {batch}", figure, target)


def inside_the_library(report: Report, steps: int) -> None:
    batch = 256
    blocks = (2 * steps + 60) // BLOCK + 2
    engine = Engine(product, batch * blocks, capacity=batch * 16)
    hidden, mm = tensors(batch * 16)
    engine.batch([f"r{i}" for i in range(batch)], table_of(batch, blocks), 0)
    engine.step(16, hidden, mm)
    watch = Stopwatch(engine.manager)

    def inside() -> float:
        watch.seconds = 0.0
        engine.step(1, hidden, mm)
        return watch.seconds

    source, target = (torch.ones(2 * batch * WIDTH * 2, dtype=torch.uint8) for _ in range(2))
    copy = timed(lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel()))
    # Step by step here: the copy shall find the caches as the step does.
    taken = [(inside(), copy()) for _ in range(steps + 5)][5:]
    ours, bare = (statistics.median(times) for times in zip(*taken, strict=True))
    ratio = statistics.median(a / b for a, b in taken)
    report.at_most("library time, batch 256", f"{ours * 1e6:10.0f} us, bare copy {bare * 1e6:9.0f} us", ratio, 2)


def prefill(report: Report, reference: Any, turns: int) -> None:
    for batch in (16, 64):
        tokens = 256
        blocks = tokens // BLOCK
        hidden, mm = tensors(batch * tokens)
        faults: list[int] = []

        table = table_of(batch, blocks)

        def step(engine: Engine, batch: int = batch, table: np.ndarray = table) -> float:
            # New requests on the blocks of the last ones.
            engine.batch([f"{time.monotonic_ns()}.{i}" for i in range(batch)], table, 0)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            seconds = engine.step(tokens, hidden, mm)  # noqa: B023
            if engine is engines[0]:  # noqa: B023
                faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)  # noqa: B023
            return seconds

        engines = [Engine(m, batch * blocks, capacity=batch * tokens) for m in (product, reference) if m]
        for engine in engines:
            step(engine)
        for _ in range(2):
            step(engines[0])
        faults.clear()
        figure = in_turns(turns, *jobs_of(engines, step), steps=8, warm=2, few=1)
        report.faster(f"prefill {batch} x {tokens}, warm", figure, 10)
        size = 2 * batch * tokens * WIDTH * 2
        limit = 1.2 * size / (2 * MiB) + 150
        count = statistics.median(faults)
        report.at_most("  page faults", f"{count:10.0f} in {size / MiB:.0f} MiB", count, limit)


def hits(report: Report, reference: Any, turns: int) -> None:
    for tokens, target in ((256, 5), (4096, 2.3)):
        blocks = tokens // BLOCK
        hidden, mm = tensors(tokens)
        engines = [Engine(m, blocks + 1, capacity=tokens) for m in (product, reference) if m]
        table = table_of(1, blocks + 1)

        def step(engine: Engine, tokens: int = tokens, table: np.ndarray = table) -> float:
            engine.batch([f"{time.monotonic_ns()}"], table, tokens, hit=tokens)
            return engine.step(1, hidden, mm)  # noqa: B023

        for engine in engines:
            engine.batch(["prompt"], table, 0)
            engine.step(tokens, hidden, mm)
        figure = in_turns(turns, *jobs_of(engines, step))
        report.faster(f"hit of {tokens} tokens", figure, target)


def pending_reads(report: Report, turns: int) -> None:
    batch, tokens = 64, 4096
    blocks = (30 * turns + 40) // BLOCK + 2
    prefix_blocks = tokens // BLOCK
    hidden, mm = tensors(tokens)
    engines = []
    for pending in (0, 16):
        first = prefix_blocks + 16
        engine = Engine(product, first + batch * blocks, capacity=tokens, depth=pending + 4)
        engine.batch(["prompt"], table_of(1, prefix_blocks), 0)
        engine.step(tokens, hidden, mm)
        for i in range(pending):
            table = np.append(table_of(1, prefix_blocks)[0], prefix_blocks + i)[None]
            engine.batch([f"reader{i}"], table, tokens, hit=tokens)
            engine.save(1, hidden, mm)
        engine.batch([f"r{i}" for i in range(batch)], table_of(batch, blocks, first), 0)
        for _ in range(10):
            engine.step(1, hidden, mm)
        engines.append(engine)

    def save(engine: Engine) -> float:
        seconds, step = engine.save(1, hidden, mm)
        engine.manager.materialize(step, engine.view.ids)
        return seconds

    free, busy, ratio = in_turns(turns, *jobs_of(engines, save), few=15)
    report.at_most(
        "64-request save, 16 pending reads", f"{busy * 1e6:10.0f} us, without {free * 1e6:9.0f} us", ratio, 1.1
    )


def scatter(report: Report, turns: int) -> None:
    tokens = 4096
    blocks = tokens // BLOCK
    engine = Engine(product, blocks, capacity=tokens)
    hidden, mm = tensors(tokens)
    rng = np.random.default_rng(1)

    def save() -> float:
        engine.batch([f"{time.monotonic_ns()}"], rng.permutation(blocks)[None], 0)
        seconds, step = engine.save(tokens, hidden, mm)
        engine.manager.discard_step(step)
        return seconds

    pool = torch.zeros(2, tokens, WIDTH, dtype=torch.bfloat16)

    def copy() -> None:
        slots = torch.from_numpy(np.repeat(rng.permutation(blocks), BLOCK) * BLOCK + np.tile(np.arange(BLOCK), blocks))
        pool[0].index_copy_(0, slots, hidden)
        pool[1].index_copy_(0, slots, mm)

    # The save also fills the result, which index_copy_ does not.
    figure = in_turns(turns, save, timed(copy), steps=3, warm=2, few=2)
    report.faster("save of 2 x 16 MiB of 4 KiB rows", figure, 2, "index_copy_")


def measure(few: int) -> Report:
    """Every figure, in a ``few``-th of the turns."""
    reference = load_reference()
    report = Report()
    if reference is None:
        print("the original manager is not here (../shared); its ratios are left out")
    with torch.inference_mode():
        decode(report, reference, 20 // few)
        inside_the_library(report, 300 // few)
        prefill(report, reference, 20 // few)
        hits(report, reference, 20 // few)
        pending_reads(report, 20 // few)
        scatter(report, 10 // few)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of the omni cache, as ratios taken in one run.")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--quick", action="store_true", help="a tenth of the turns; figures vary more")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    args = parser.parse_args()
    if missing is not None:
        parser.error(f"needs torch and numpy, and there is no {missing}")
    torch.set_num_threads(args.threads)
    report = measure(10 if args.quick else 1)
    if report.missed:
        print(f"{len(report.missed)} missed: {', '.join(report.missed)}")
    return 1 if args.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
