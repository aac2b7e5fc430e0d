"""The omni part: a scheduler's steps through the drop-in, every row checked. Needs torch."""

from __future__ import annotations

import contextlib
import random
import time
import traceback
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch

from prefixcache.replay.engine import SPARSE_KEY, Engine, EngineOptions
from prefixcache.replay.progress import Interrupt, ProgressBar, memory_of_process, mib
from prefixcache.replay.scheduler import Scheduler
from prefixcache.replay.series import Series
from prefixcache.replay.traces import TraceRequest

# Counters of the library that say which of its rarer paths the traffic took.
_EVENTS = ("hits", "preserved_bytes", "absent_rows", "displaced_rows", "deferred_writes", "flushes", "staging_waits")
_ABSENT = f"absent rows are rows of {SPARSE_KEY} that their step did not carry: they have to read as zeros"


class OmniPart:
    """One replay: requests in, lines and a document out."""

    name = "omni"

    def __init__(self, args: Namespace, requests: Sequence[TraceRequest], backend: Any) -> None:
        self.args = args
        capacity = (args.blocks - 1) * args.block_size
        self.requests = [r for r in requests if r.input_length + r.output_length <= capacity]
        self.too_long = len(requests) - len(self.requests)
        rng = random.Random(args.seed)
        self.scheduler = Scheduler(
            num_blocks=args.blocks,
            block_size=args.block_size,
            batch_tokens=args.batch_tokens,
            max_running=args.batch,
            rng=rng,
            abort_rate=args.abort_rate,
            preempt_rate=args.preempt_rate,
            reuse_rate=0.1,
        )
        options = EngineOptions(
            width=args.width,
            block_size=args.block_size,
            num_blocks=args.blocks,
            batch_tokens=args.batch_tokens,
            max_running=args.batch,
            staging_bytes=args.staging_bytes or 0,
            eager=True if args.eager else False if args.threaded else None,
            leftover_rate=args.leftover_rate,
            sparse_rate=args.sparse_rate,
        )
        longest = max((r.input_length + r.output_length for r in self.requests), default=1)
        self.memory_before = memory_of_process()
        self.engine = Engine(backend, self.scheduler, options, longest, rng)
        self.series = Series(len(self.requests))
        self.taken = 0
        self.seconds = 0.0
        self.failure: str | None = None
        self.interrupted = False
        self.cache_stats: dict[str, int] = {}
        self.memory: dict[str, int] = {}

    def run(self, bar: ProgressBar, interrupt: Interrupt) -> None:
        """Replay, until the requests or the time are over, or somebody interrupts."""
        started = time.monotonic()
        try:
            with torch.inference_mode():
                self._steps(bar, started, interrupt)
        except KeyboardInterrupt:
            self.interrupted = True
        except Exception:
            self.failure = traceback.format_exc()
        finally:
            self.seconds = time.monotonic() - started
            self.memory = memory_of_process()
            with contextlib.suppress(Exception):  # a broken cache is reported elsewhere
                self.cache_stats = _stats_of(self.engine.manager)
            try:
                self.engine.close()
            except Exception:
                self.failure = self.failure or traceback.format_exc()

    @property
    def right(self) -> bool:
        """Every row was right, and the cache did what it was asked for."""
        return self.failure is None and self.engine.checker.result.right

    def _steps(self, bar: ProgressBar, started: float, interrupt: Interrupt) -> None:
        scheduler, engine, stats = self.scheduler, self.engine, self.scheduler.stats
        check, limit = engine.checker.result, self.args.time_limit
        while self.taken < len(self.requests) or not scheduler.idle:
            while self.taken < len(self.requests) and len(scheduler.waiting) < 8:
                scheduler.add(self.requests[self.taken])
                self.taken += 1
            engine.step()
            if self.series.due(stats.admitted):
                self._sample()
            bar.update(
                stats.finished + stats.aborted,
                f"{stats.computed_tokens / bar.seconds / 1e6:.2f} M tokens/s  {check.rows / 1e6:,.0f} M rows checked  "
                f"{check.wrong:,} wrong",
            )
            self.interrupted = interrupt.asked
            if self.interrupted or 0 < limit < time.monotonic() - started:
                self._sample()  # while the requests that are cut off still hold their blocks
                scheduler.abort_all()
                break
        engine.drain()
        self._sample()
        self._check_baseline()

    def _sample(self) -> None:
        stats, pool = self.scheduler.stats, self.scheduler.pool
        newest = self.requests[max(0, stats.admitted - 1)]
        self.series.add(
            stats.admitted,
            trace_ms=max(0, newest.timestamp - self.requests[0].timestamp),
            prompt_tokens=stats.prompt_tokens,
            hit_tokens=stats.hit_tokens,
            in_use=self.args.blocks - 1 - len(pool.free),
            cached=pool.cached,
            evicted=pool.evicted,
        )

    def _check_baseline(self) -> None:
        """After the last request nothing of any request may be left in the cache."""
        stats = _stats_of(self.engine.manager)
        gauges = ("live_requests", "unconsumed_steps", "pending_writes", "pending_reads", "staged_bytes")
        left = {name: stats[name] for name in gauges if stats.get(name)}
        if left:
            self.failure = f"the cache still holds something after the last request ended: {left}"

    def _cache_lines(self) -> list[str]:
        now, stats = self.memory, self.cache_stats
        parts = []
        if now and self.memory_before:
            parts.append(f"process {mib(now['resident'])} (before the cache {mib(self.memory_before['resident'])})")
        if stats:
            parts.append(f"staged at most {mib(stats['staged_bytes_peak'])}")
            parts.append(f"address space {mib(stats['reserved_bytes'])}")
        row = sum(8 * c.words for c in self.engine.contents.values())
        parts.append(f"rows of all slots would be {mib(row * self.args.blocks * self.args.block_size)}")
        lines = [f"memory held       {', '.join(parts)}"]
        events = self._events()
        if events:
            lines.append(
                "cache events      " + ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in events.items())
            )
        if events.get("absent_rows"):
            lines.append(f"                  ({_ABSENT})")
        return lines

    def _events(self) -> dict[str, int]:
        return {name: self.cache_stats[name] for name in _EVENTS if name in self.cache_stats}

    def verdict(self) -> str:
        """The last line."""
        verdict = "every row was right" if self.right else "FAILED"
        if self.interrupted:
            ended = self.scheduler.stats.finished + self.scheduler.stats.aborted
            return f"interrupted after {ended:,} requests; so far {verdict}"
        return verdict

    def lines(self) -> list[str]:
        """The summary."""
        s, check, args = self.scheduler.stats, self.engine.checker.result, self.args
        row_bytes = " + ".join(str(8 * c.words) for c in self.engine.contents.values())
        extra = f", {self.too_long} longer than the KV cache left out" if self.too_long else ""
        lines = [
            f"requests          {s.admitted:,} of {len(self.requests):,} started in {self.seconds:.1f} s{extra}: "
            f"{s.finished:,} finished, {s.aborted:,} aborted, {s.cut_off:,} cut off "
            f"({s.preempted:,} preemptions, {s.reused_ids:,} under an id that had just ended)",
            f"tokens            {s.computed_tokens:,} computed, {s.prompt_tokens:,} of prompts "
            f"({s.computed_tokens / max(self.seconds, 1e-9):,.0f} tokens/s with all checks)",
            f"hit rate          {s.hit_tokens / max(1, s.prompt_tokens):.4f} of prompt tokens "
            f"({s.hit_tokens:,} tokens, {s.same_step_hits:,} requests hit rows of their own step)",
            f"steps             {self.scheduler.step:,} of at most {args.batch} requests, {args.batch_tokens} tokens; "
            f"{args.blocks:,} blocks of {args.block_size}; rows of {row_bytes} bytes",
            f"rows checked      {check.rows:,}, and {check.values:,} other values",
            f"wrong rows        {check.wrong:,}, and {check.wrong_values:,} other values",
            *self._cache_lines(),
            *self.engine.costs.lines(),
        ]
        if check.kinds:
            lines.append("what was wrong")
            lines += [f"  {count:>12,}  {kind}" for kind, count in check.kinds.most_common()]
            lines += [f"  {example}" for example in check.examples]
        if self.failure is not None:
            lines += ["the replay failed", *("  " + line for line in self.failure.rstrip().splitlines())]
        return [*lines, self.verdict()]

    def document(self) -> dict[str, Any]:
        """The run as numbers; see :mod:`prefixcache.replay.document`."""
        s, check, args = self.scheduler.stats, self.engine.checker.result, self.args
        return {
            "verdict": self.verdict(),
            "right": self.right,
            "options": {
                "blocks": args.blocks,
                "slots a block": args.block_size,
                "requests at once": args.batch,
                "tokens a step": args.batch_tokens,
                "bytes of a hidden row": args.width,
                "seed": args.seed,
            },
            "pool": {"unit": "blocks", "capacity": args.blocks - 1},
            "figures": {
                "requests": s.admitted,
                "requests aborted": s.aborted,
                "preemptions": s.preempted,
                "steps": self.scheduler.step,
                "tokens computed": s.computed_tokens,
                "prompt tokens": s.prompt_tokens,
                "hit tokens": s.hit_tokens,
                "hit rate": s.hit_tokens / max(1, s.prompt_tokens),
                "rows checked": check.rows,
                "rows wrong": check.wrong,
                "seconds": self.seconds,
            },
            "series": self.series.document(),
            "latencies": {name: h.document() for name, h in self.engine.costs.histograms.items() if h.count},
            "events": self._events(),
        }


def _stats_of(manager: Any) -> dict[str, int]:
    """The library's counters; empty for a manager that has none."""
    stats = getattr(manager, "stats", None)
    return dict(stats()) if callable(stats) else {}
