"""Command line of the replay; see ``prefixcache replay --help``.

Exit status: 0 all was right, 1 a row or page was wrong or the cache failed, 2 the
arguments or the trace are no good, 130 interrupted.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from prefixcache import PrefixCacheError
from prefixcache._console import heard
from prefixcache.replay import document
from prefixcache.replay.context import ContextPart
from prefixcache.replay.generator import generate_trace
from prefixcache.replay.options import GENERATED_BLOCKS, GENERATED_REQUESTS, TRACE_BLOCKS, parser
from prefixcache.replay.page import render
from prefixcache.replay.progress import Interrupt, ProgressBar
from prefixcache.replay.sweep import Sweep
from prefixcache.replay.traces import TraceError, TraceRequest, read_trace, write_trace

_TITLES = {
    "omni": "omni cache: the scheduler, the drop-in, and every row checked",
    "context": "context cache: the manager level, and every reused page checked",
    "sweep": "context cache: hit rate against capacity",
}
# What the omni part uses of the module of a manager.
_MANAGER_NAMES = ("OmniPrefixCacheManager", "PrefixCacheConfig", "ModelCachePolicy", "HIDDEN_KEY")
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, backend: Any = None) -> int:
    """Run the command line; returns the exit status.

    ``backend`` replaces the module that ``--manager`` names.
    """
    p = parser()
    args = p.parse_args(arguments)

    def run() -> int:
        with Interrupt() as interrupt:
            return _Run(p, args, interrupt, backend).run()

    try:
        return heard(p.prog, run)
    except KeyboardInterrupt:
        print("interrupted twice: stopped at once, without a summary", file=sys.stderr)
        return INTERRUPTED


class _Run:
    """One command: parts or a sweep, then the summary and the files that were asked for."""

    def __init__(self, p: argparse.ArgumentParser, args: argparse.Namespace, interrupt: Interrupt, backend: Any):
        self.p, self.args, self.interrupt, self.backend = p, args, interrupt, backend

    def run(self) -> int:
        """The exit status."""
        args = self.args
        if args.sweep is not None and args.part is not None:
            self._fail("--sweep runs the context cache alone: leave --part out")
        other = self._load(args.compare) if args.compare is not None else None
        for name, path in (("--report", args.report), ("--json", args.json)):
            if path is not None:
                self._check_writable(name, path)  # not after an hour of replay
        requests = self._requests()
        if args.write_trace is not None:
            self._write(args.write_trace, lambda: write_trace(args.write_trace, requests))
            print(f"{len(requests):,} requests written to {_shown(args.write_trace)}")
            return 0
        source = _shown(args.trace) if args.trace else f"generated (seed {args.seed})"
        doc = document.new(source, len(requests))
        print(f"trace             {source}: {len(requests):,} requests", flush=True)
        status = self._sweep(requests, doc) if args.sweep is not None else self._parts(requests, doc)
        if other is not None:
            print(f"\n== compared with {_shown(args.compare)} ==")
            print("\n".join(document.comparison_lines(doc, other, Path(_shown(args.compare)).name)))
        if args.json is not None:
            self._write(args.json, lambda: document.save(doc, args.json))
        if args.report is not None:
            page = render(doc, other, Path(_shown(args.compare or "")).name)
            self._write(args.report, lambda: Path(args.report).write_text(page, encoding="utf-8"))
        return status

    def _write(self, path: str, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as e:  # a full disk has no file name
            self._fail(f"{path}: {e.strerror}")

    def _parts(self, requests: list[TraceRequest], doc: dict[str, Any]) -> int:
        status = 0
        for name in self.names:
            try:
                part = self._omni(requests) if name == "omni" else self._context(requests)
            except PrefixCacheError as e:
                self._fail(f"the {name} cache cannot be made: {e}")
            if not part.requests:
                self._fail(f"every request is longer than the cache of the {name} part: more --pages or --blocks")
            print(f"== {_TITLES[name]} ==", flush=True)
            bar = self._bar(len(part.requests))
            part.run(bar, self.interrupt)
            bar.close()
            print("\n".join(part.lines()), flush=True)
            doc["parts"][name] = part.document()
            status = max(status, 0 if part.right else 1)
            if part.interrupted:
                return INTERRUPTED
        return status

    @functools.cached_property
    def names(self) -> list[str]:
        """What runs: the parts, or the sweep."""
        if self.args.sweep is not None:
            return ["sweep"]
        if self.args.part is not None:
            return [self.args.part]
        missing = missing_modules()
        if missing and self.backend is None:
            print(
                f"{self.p.prog}: the omni part is left out: it needs {' and '.join(missing)} "
                f"(pip install {' '.join(missing)})",
                file=sys.stderr,
            )
            return ["context"]
        return ["omni", "context"]

    def _omni(self, requests: list[TraceRequest]) -> Any:
        args, backend = self.args, self.backend
        missing = missing_modules()
        if missing:
            self._fail(f"--part omni needs {' and '.join(missing)}: pip install {' '.join(missing)}")
        if backend is None:
            try:
                backend = importlib.import_module(args.manager)
            except ImportError as e:
                self._fail(f"--manager {args.manager}: {e}")
            for name in _MANAGER_NAMES:
                if not hasattr(backend, name):
                    self._fail(f"--manager {args.manager}: has no {name}")
        if args.blocks is None:
            args.blocks = TRACE_BLOCKS if args.trace is not None else GENERATED_BLOCKS
        from prefixcache.replay.omni import OmniPart  # needs torch

        return OmniPart(args, requests, backend)

    def _context(self, requests: list[TraceRequest]) -> ContextPart:
        args = self.args
        return ContextPart(requests, pages=args.pages, page=args.page, time_limit=args.time_limit)

    def _sweep(self, requests: list[TraceRequest], doc: dict[str, Any]) -> int:
        try:
            kind, sizes = self.args.sweep
            sweep = Sweep(requests, kind, sizes, self.args.page)
        except (ValueError, PrefixCacheError) as e:
            self._fail(f"--sweep: {e}")
        print(f"== {_TITLES['sweep']} ==", flush=True)
        bar = self._bar(len(requests))
        sweep.run(bar, self.interrupt)
        bar.close()
        print("\n".join(sweep.lines()))
        doc["sweep"] = sweep.document()
        return INTERRUPTED if sweep.interrupted else 0

    def _bar(self, total: int) -> ProgressBar:
        return ProgressBar(total, False if self.args.quiet else True if self.args.progress else None)

    def _requests(self) -> list[TraceRequest]:
        args = self.args
        try:
            if args.trace is not None:
                return read_trace(args.trace, args.requests)
            return generate_trace(args.requests or GENERATED_REQUESTS, args.seed)
        except OSError as e:
            self._fail(f"{args.trace}: {e.strerror}, expected a trace of JSON lines")
        except (TraceError, UnicodeDecodeError) as e:
            self._fail(f"{args.trace}: {e}")

    def _load(self, path: str) -> dict[str, Any]:
        try:
            other = document.load(path)
        except OSError as e:
            self._fail(f"--compare {path}: {e.strerror}")
        except document.DocumentError as e:
            self._fail(f"--compare {path}: {e}")
        has = [*other["parts"], *(["sweep"] if other["sweep"] else [])]
        if not set(has) & set(self.names):  # there would be nothing to compare, after all the replay
            wanted = " or ".join(self.names)
            self._fail(f"--compare {path}: has {' and '.join(has) or 'no results'}, expected a run with {wanted}")
        return other

    def _check_writable(self, name: str, path: str) -> None:
        folder = os.path.dirname(path) or "."
        if os.path.isdir(path):
            self._fail(f"{name} {path}: is a folder, expected the name of a file")
        if not os.path.isdir(folder):
            self._fail(f"{name} {path}: there is no folder {folder}")
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            self._fail(f"{name} {path}: cannot be written")

    def _fail(self, text: str) -> NoReturn:
        self.p.exit(2, f"{self.p.prog}: error: {text}\n")


def _shown(path: str) -> str:
    """A file name as text: names may have bytes that are none, which no page and no document takes."""
    return os.fsencode(path).decode("utf-8", "replace")


def missing_modules() -> list[str]:
    """What the omni part needs and this Python does not have."""
    return [name for name in ("torch", "numpy") if importlib.util.find_spec(name) is None]


if __name__ == "__main__":
    sys.exit(main())
