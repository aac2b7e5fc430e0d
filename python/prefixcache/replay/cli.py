"""Command line of the replay; see ``python -m prefixcache.replay --help``.

Exit status: 0 every row was right, 1 a row was wrong or the cache failed, 2 the
arguments or the trace are no good, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import random
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from prefixcache.replay.engine import Engine, EngineOptions
from prefixcache.replay.generator import generate_trace
from prefixcache.replay.report import ProgressBar, memory_of_process, mib
from prefixcache.replay.scheduler import Scheduler
from prefixcache.replay.traces import TraceError, TraceRequest, read_trace, write_trace

_GENERATED_REQUESTS = 3_000
# Few enough for the generated traffic to recycle every block many times.
_GENERATED_BLOCKS = 16_384
# Counters of the library that say which of its rarer paths the traffic took.
_EVENTS = ("hits", "preserved_bytes", "absent_rows", "displaced_rows", "deferred_writes", "flushes", "staging_waits")


class _Formatter(argparse.HelpFormatter):
    """Help texts end with the default where there is one to tell."""

    def _get_help_string(self, action: argparse.Action) -> str:
        told = action.help or ""
        return told if action.default in (None, False, argparse.SUPPRESS) else f"{told} (%(default)s)"


def parser() -> argparse.ArgumentParser:
    """All options, with their defaults."""
    p = argparse.ArgumentParser(
        prog="python -m prefixcache.replay",
        description="Replay request traffic through a continuous-batching scheduler and the omni cache, "
        "and check every row that comes out.",
        epilog="Exit status: 0 all rows right, 1 wrong rows or a failure of the cache, 2 bad arguments.",
        formatter_class=_Formatter,
    )
    o = EngineOptions()
    p.add_argument("--trace", metavar="FILE", help="trace to replay (JSON lines); without it one is generated")
    p.add_argument("--write-trace", metavar="FILE", help="write the requests to a trace file and stop")
    p.add_argument(
        "--requests", type=_positive, metavar="N", help=f"first N requests; {_GENERATED_REQUESTS} if generated"
    )
    p.add_argument(
        "--time-limit", type=float, default=180, metavar="SECONDS", help="end the replay after this time, 0: no limit"
    )
    p.add_argument("--width", type=_width, default=o.width, metavar="BYTES", help="bytes of a hidden row")
    p.add_argument("--block-size", type=_positive, default=o.block_size, metavar="TOKENS", help="slots of a KV block")
    p.add_argument(
        "--blocks",
        type=_positive,
        metavar="N",
        help=f"KV blocks; {o.num_blocks} for a trace file and {_GENERATED_BLOCKS} for a generated one if not given",
    )
    p.add_argument(
        "--staging-bytes",
        type=_positive,
        metavar="N",
        help="cap on bytes that are not in the cache yet; 8 MiB for rows of 64 bytes if not given",
    )
    p.add_argument(
        "--batch-tokens", type=_positive, default=o.batch_tokens, metavar="N", help="tokens of a step at most"
    )
    p.add_argument("--batch", type=_positive, default=o.max_running, metavar="N", help="running requests at most")
    p.add_argument("--seed", type=int, default=0, help="seed of aborts, delays, and of a generated trace")
    p.add_argument("--abort-rate", type=_rate, default=0.03, metavar="P", help="requests that are aborted")
    p.add_argument(
        "--preempt-rate", type=_rate, default=0.003, metavar="P", help="steps that preempt a request at will"
    )
    p.add_argument(
        "--leftover-rate", type=_rate, default=o.leftover_rate, metavar="P", help="steps with values besides rows"
    )
    p.add_argument(
        "--sparse-rate", type=_rate, default=o.sparse_rate, metavar="P", help="steps that carry the sparse key"
    )
    p.add_argument("--manager", default="prefixcache.omni", metavar="MODULE", help="module of the manager to drive")
    mode = p.add_mutually_exclusive_group()
    mode.add_argument("--eager", action="store_true", help="write rows on the engine thread")
    mode.add_argument("--threaded", action="store_true", help="write rows on a thread of the cache")
    bar = p.add_mutually_exclusive_group()
    bar.add_argument("--progress", action="store_true", help="progress bar even if stderr is no terminal")
    bar.add_argument("--quiet", action="store_true", help="no progress bar")
    return p


def main(arguments: Sequence[str] | None = None, backend: Any = None) -> int:
    """Run the command line; returns the exit status.

    ``backend`` replaces the module that ``--manager`` names.
    """
    p = parser()
    args = p.parse_args(arguments)
    try:
        if args.trace is not None:
            requests = read_trace(args.trace, args.requests)
        else:
            requests = generate_trace(args.requests or _GENERATED_REQUESTS, args.seed)
        if args.write_trace is not None:
            write_trace(args.write_trace, requests)
            print(f"{len(requests):,} requests written to {args.write_trace}")
            return 0
        if args.blocks is None:
            args.blocks = EngineOptions().num_blocks if args.trace is not None else _GENERATED_BLOCKS
        if backend is None:
            backend = importlib.import_module(args.manager)
    except (OSError, TraceError) as e:
        p.exit(2, f"{p.prog}: error: {args.trace or args.write_trace}: {e}\n")
    except ImportError as e:
        p.exit(2, f"{p.prog}: error: --manager {args.manager}: {e}\n")
    return Replay(args, requests, backend).run()


class Replay:
    """One replay: requests in, summary and exit status out."""

    def __init__(self, args: argparse.Namespace, requests: list[TraceRequest], backend: Any) -> None:
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
        self.taken = 0
        self.seconds = 0.0
        self.failure: str | None = None
        self.interrupted = False

    def run(self) -> int:
        """Replay, print the summary, and return the exit status."""
        shown = False if self.args.quiet else True if self.args.progress else None
        bar = ProgressBar(len(self.requests), shown)
        started = time.monotonic()
        try:
            with torch.inference_mode():
                self._steps(bar, started)
        except KeyboardInterrupt:
            self.interrupted = True
        except Exception:
            self.failure = traceback.format_exc()
        finally:
            self.seconds = time.monotonic() - started
            lines = self._cache_lines()
            bar.close()
            try:
                self.engine.close()
            except Exception:
                self.failure = self.failure or traceback.format_exc()
        print("\n".join(self.summary(lines)))
        if self.interrupted:
            return 130
        return 0 if self.failure is None and self.engine.checker.result.right else 1

    def _steps(self, bar: ProgressBar, started: float) -> None:
        scheduler, engine, stats = self.scheduler, self.engine, self.scheduler.stats
        limit = self.args.time_limit
        while self.taken < len(self.requests) or not scheduler.idle:
            while self.taken < len(self.requests) and len(scheduler.waiting) < 8:
                scheduler.add(self.requests[self.taken])
                self.taken += 1
            engine.step()
            bar.update(stats.finished + stats.aborted, stats, engine.checker.result)
            if limit > 0 and time.monotonic() - started > limit:
                scheduler.abort_all()
                break
        engine.drain()
        self._check_baseline()

    def _check_baseline(self) -> None:
        """After the last request nothing of any request may be left in the cache."""
        stats = _stats_of(self.engine.manager)
        gauges = ("live_requests", "unconsumed_steps", "pending_writes", "pending_reads", "staged_bytes")
        left = {name: stats[name] for name in gauges if stats.get(name)}
        if left:
            self.failure = f"the cache still holds something after the last request ended: {left}"

    def _cache_lines(self) -> list[str]:
        now, stats = memory_of_process(), {}
        with contextlib.suppress(Exception):  # a broken cache is reported elsewhere
            stats = _stats_of(self.engine.manager)
        parts = []
        if now and self.memory_before:
            parts.append(f"process {mib(now['resident'])} (before the cache {mib(self.memory_before['resident'])})")
        if stats:
            parts.append(f"staged at most {mib(stats['staged_bytes_peak'])}")
            parts.append(f"address space {mib(stats['reserved_bytes'])}")
        row = sum(8 * c.words for c in self.engine.contents.values())
        parts.append(f"rows of all slots would be {mib(row * self.args.blocks * self.args.block_size)}")
        lines = [f"memory held       {', '.join(parts)}"]
        events = {name: stats[name] for name in _EVENTS if name in stats}
        if events:
            lines.append(
                "cache events      " + ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in events.items())
            )
        return lines

    def summary(self, cache: list[str]) -> list[str]:
        """The lines that the replay prints at its end."""
        s, check, args = self.scheduler.stats, self.engine.checker.result, self.args
        source = args.trace or f"generated (seed {args.seed})"
        ended = s.finished + s.aborted
        row_bytes = " + ".join(str(8 * c.words) for c in self.engine.contents.values())
        extra = f", {self.too_long} longer than the KV cache left out" if self.too_long else ""
        whole = "all of" if s.admitted == len(self.requests) else f"{s.admitted:,} of"
        lines = [
            f"trace             {source}: {whole} {len(self.requests):,} requests in {self.seconds:.1f} s{extra}",
            f"requests          {s.admitted:,} started, {s.finished:,} finished, {s.aborted:,} aborted, {s.cut_off:,} cut off "
            f"({s.preempted:,} preemptions, {s.reused_ids:,} under an id that had just ended)",
            f"tokens            {s.computed_tokens:,} computed, {s.prompt_tokens:,} of prompts "
            f"({s.computed_tokens / max(self.seconds, 1e-9):,.0f} tokens/s with all checks)",
            f"hit rate          {s.hit_tokens / max(1, s.prompt_tokens):.4f} of prompt tokens "
            f"({s.hit_tokens:,} tokens, {s.same_step_hits:,} requests hit rows of their own step)",
            f"steps             {self.scheduler.step:,} of at most {args.batch} requests, {args.batch_tokens} tokens; "
            f"{args.blocks:,} blocks of {args.block_size}; rows of {row_bytes} bytes",
            f"rows checked      {check.rows:,}, and {check.values:,} other values",
            f"wrong rows        {check.wrong:,}, and {check.wrong_values:,} other values",
            *cache,
            *self.engine.costs.lines(),
        ]
        if check.kinds:
            lines.append("what was wrong")
            lines += [f"  {count:>12,}  {kind}" for kind, count in check.kinds.most_common()]
            lines += [f"  {example}" for example in check.examples]
        if self.failure is not None:
            lines += ["the replay failed", *("  " + line for line in self.failure.rstrip().splitlines())]
        verdict = "every row was right" if check.right and self.failure is None else "FAILED"
        if self.interrupted:
            verdict = f"interrupted after {ended:,} requests; so far {verdict}"
        return [*lines, verdict]


def _stats_of(manager: Any) -> dict[str, int]:
    """The library's counters; empty for a manager that has none."""
    stats = getattr(manager, "stats", None)
    return dict(stats()) if callable(stats) else {}


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{value} is not in 0 .. 1")
    return value


def _width(text: str) -> int:
    value = _positive(text)
    if value % 8:
        raise argparse.ArgumentTypeError(f"{value} is not a multiple of 8 bytes")
    return value


if __name__ == "__main__":
    sys.exit(main())
