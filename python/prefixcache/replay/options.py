"""The options of the replay."""

from __future__ import annotations

import argparse

from prefixcache.replay.sweep import parse_sizes

GENERATED_REQUESTS = 3_000
TRACE_BLOCKS = 131_072
# Few enough for the generated traffic to recycle every block many times.
GENERATED_BLOCKS = 16_384

_DESCRIPTION = """\
Replay request traffic through both caches and check what comes out.

The omni part drives the drop-in with a continuous-batching scheduler and compares every row;
it needs torch. The context part drives the pages of a paged KV cache and compares every page
that is reused. --sweep runs the context cache at several sizes instead, beside two bounds,
to tell how large a cache this traffic deserves."""

_EPILOG = """\
sizes of a sweep: pages=LIST or tokens=LIST. LIST has parts between commas, each a number (k, M
and G are thousand, million, billion), FROM:TO:xFACTOR or FROM:TO:+STEP:
  --sweep pages=1000,2000,8000
  --sweep pages=1000:64000:x2
  --sweep tokens=1M:16M:x2

exit status: 0 all was right, 1 something was wrong or the cache failed, 2 bad arguments or trace,
130 interrupted (the summary and the files then cover what was done)."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help texts end with the default where there is one to tell."""

    def _get_help_string(self, action: argparse.Action) -> str:
        told = action.help or ""
        return told if action.default in (None, False, argparse.SUPPRESS) else f"{told} (%(default)s)"


def parser() -> argparse.ArgumentParser:
    """All options, with their defaults."""
    p = argparse.ArgumentParser(
        prog="prefixcache replay", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=_Formatter
    )
    p.add_argument("trace", metavar="TRACE", nargs="?", help="trace (JSON lines); without it one is generated")
    p.add_argument("--part", choices=("omni", "context"), help="replay this part only; both if not given")
    p.add_argument(
        "--requests", type=_positive, metavar="N", help=f"first N requests; {GENERATED_REQUESTS} if generated"
    )
    p.add_argument("--seed", type=int, default=0, help="seed of aborts, delays, and of a generated trace")
    p.add_argument(
        "--time-limit", type=_seconds, default=180, metavar="SECONDS", help="end a part after this time, 0: no limit"
    )
    p.add_argument("--write-trace", metavar="FILE", help="write the requests to a trace file and stop")
    bar = p.add_mutually_exclusive_group()
    bar.add_argument("--progress", action="store_true", help="progress bar even if stderr is no terminal")
    bar.add_argument("--quiet", action="store_true", help="no progress bar")

    out = p.add_argument_group("results")
    out.add_argument("--report", metavar="FILE.html", help="write a page with charts and tables; it needs no network")
    out.add_argument("--json", metavar="FILE.json", help="save the run as numbers")
    out.add_argument("--compare", metavar="FILE.json", help="show a saved run beside this one, here and in the report")

    context = p.add_argument_group("context part and sweep")
    context.add_argument("--page", type=_positive, default=128, metavar="TOKENS", help="tokens of a page")
    context.add_argument(
        "--pages", type=_positive, default=24_000, metavar="N", help="pages of the pool, not of a sweep"
    )
    context.add_argument("--sweep", type=_sizes, metavar="SIZES", help="hit rate at each of these sizes, and bounds")

    omni = p.add_argument_group("omni part")
    omni.add_argument("--width", type=_width, default=64, metavar="BYTES", help="bytes of a hidden row")
    omni.add_argument("--block-size", type=_positive, default=16, metavar="TOKENS", help="slots of a KV block")
    omni.add_argument(
        "--blocks",
        type=_positive,
        metavar="N",
        help=f"KV blocks; {TRACE_BLOCKS} for a trace file and {GENERATED_BLOCKS} for a generated one if not given",
    )
    omni.add_argument(
        "--staging-bytes",
        type=_positive,
        metavar="N",
        help="cap on bytes that are not in the cache yet; 8 MiB for rows of 64 bytes if not given",
    )
    omni.add_argument("--batch-tokens", type=_positive, default=8_192, metavar="N", help="tokens of a step at most")
    omni.add_argument("--batch", type=_positive, default=64, metavar="N", help="running requests at most")
    for name, default, what in (
        ("abort", 0.03, "requests that are aborted"),
        ("preempt", 0.003, "steps that preempt a request at will"),
        ("leftover", 0.05, "steps with values besides rows"),
        ("sparse", 0.5, "steps that carry the sparse key"),
    ):
        omni.add_argument(f"--{name}-rate", type=_rate, default=default, metavar="P", help=what)
    omni.add_argument("--manager", default="prefixcache.omni", metavar="MODULE", help="module of the manager to drive")
    mode = omni.add_mutually_exclusive_group()
    mode.add_argument("--eager", action="store_true", help="write rows on the engine thread")
    mode.add_argument("--threaded", action="store_true", help="write rows on a thread of the cache")
    return p


def _number(text: str, kind: type) -> float:
    try:
        return kind(text)  # type: ignore[no-any-return]
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None


def _positive(text: str) -> int:
    value = int(_number(text, int))
    if not 1 <= value < 1 << 31:
        raise argparse.ArgumentTypeError(f"{value} is not in 1 .. 2^31 - 1")
    return value


def _seconds(text: str) -> float:
    value = _number(text, float)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{value} is not a time in seconds, or 0 for no limit")
    return value


def _rate(text: str) -> float:
    value = _number(text, float)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{value} is not in 0 .. 1")
    return value


def _width(text: str) -> int:
    value = _positive(text)
    if value % 8:
        raise argparse.ArgumentTypeError(f"{value} is not a multiple of 8 bytes")
    return value


def _sizes(text: str) -> tuple[str, list[int]]:
    try:
        return parse_sizes(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None
