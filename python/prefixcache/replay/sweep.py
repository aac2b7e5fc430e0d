"""Hit rate against capacity: the library itself at several sizes, beside two bounds.

All sizes take the trace together, request by request, so an interrupted sweep has
figures for the same part of it at every size.

Sizes are written KIND=LIST. KIND is ``pages`` or ``tokens``; LIST has parts between
commas, each a number or a range:

    1000            one size
    1000:64000:x2   from 1000 to 64000, each twice the one before
    1000:5000:+500  from 1000 to 5000, each 500 more
    12.8M           k, M and G are thousand, million and billion
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prefixcache.context import ContextCacheManager
from prefixcache.replay.bounds import LeastRecent, Optimal, Unlimited, next_uses
from prefixcache.replay.context import MAX_RECORDS
from prefixcache.replay.progress import Interrupt, ProgressBar
from prefixcache.replay.tokens import Tokenizer
from prefixcache.replay.traces import TraceRequest

_MOST_SIZES = 64
_MOST_PAGES = 2**30 - 1
_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}


def parse_sizes(text: str) -> tuple[str, list[int]]:
    """Kind and ascending sizes of a KIND=LIST; ValueError says what is wrong with it."""
    kind, equals, rest = text.partition("=")
    if kind not in ("pages", "tokens") or not equals:
        raise ValueError(f"{text!r}: expected pages=LIST or tokens=LIST, such as pages=1000:64000:x2")
    sizes: set[int] = set()
    for part in rest.split(","):
        for size in _sizes_of(part):
            sizes.add(size)
            if len(sizes) > _MOST_SIZES:
                raise ValueError(f"{text!r}: more than {_MOST_SIZES} sizes, expected fewer: each one is a cache")
    return kind, sorted(sizes)


def _sizes_of(part: str) -> Iterator[int]:
    first, *more = part.split(":")
    start = _number(first)
    if not more:
        yield start
        return
    step = re.fullmatch(r"([x+])(.+)", more[1]) if len(more) == 2 else None
    if step is None:
        raise ValueError(f"{part!r}: expected a number, FROM:TO:xFACTOR or FROM:TO:+STEP")
    stop = _number(more[0])
    if stop < start:
        raise ValueError(f"{part!r}: the range ends before it begins")
    if step[1] == "+":
        yield from range(start, stop + 1, _number(step[2]))
        return
    try:
        factor = float(step[2])
    except ValueError:
        factor = 0.0
    if not 1 < factor < float("inf"):
        raise ValueError(f"{part!r}: factor {step[2]!r}, expected a number above 1")
    size = float(start)
    while round(size) <= stop:
        yield round(size)
        size = max(size * factor, size + 1)


def _number(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMG]?)", text)
    value = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 1 <= value <= 1 << 50:
        raise ValueError(f"{text!r}: expected a number from 1 on, with k, M or G behind it if you like")
    return value


@dataclass
class _Size:
    """One capacity: the cache and its bounds."""

    pages: int
    cache: ContextCacheManager
    least_recent: LeastRecent
    optimal: Optimal
    hit_tokens: int = 0
    refused: int = 0


class Sweep:
    """Runs a trace at several capacities; :meth:`run` it, then ask for lines or a document."""

    def __init__(self, requests: Sequence[TraceRequest], kind: str, sizes: Sequence[int], page: int) -> None:
        self.requests, self.page = requests, page
        counts = sorted({size if kind == "pages" else size // page for size in sizes})
        if counts[0] < 1 or counts[-1] > _MOST_PAGES:
            raise ValueError(f"{kind}={sizes[0]}..{sizes[-1]}: expected 1 to {_MOST_PAGES} pages of {page} tokens")
        self.sizes = [
            _Size(
                pages,
                ContextCacheManager(base_pages=pages, tokens_per_page=page, max_records=MAX_RECORDS),
                LeastRecent(pages * page),
                Optimal(pages * page),
            )
            for pages in counts
        ]
        self.unlimited = Unlimited()
        self.served = self.prompt_tokens = 0
        self.longest = max(r.input_length + r.output_length for r in requests)
        self.interrupted = False
        self.seconds = 0.0

    def run(self, bar: ProgressBar, interrupt: Interrupt) -> None:
        """All requests at all sizes, until somebody interrupts."""
        started, tokenizer = time.monotonic(), Tokenizer()
        try:
            for request, uses in zip(self.requests, next_uses(self.requests), strict=True):
                if interrupt.asked:
                    self.interrupted = True
                    break
                prompt, answer = tokenizer.prompt(request), tokenizer.answer(request)
                for size in self.sizes:
                    self._serve(size, prompt, answer)
                    size.least_recent.request(request)
                    size.optimal.request(request, uses)
                self.unlimited.request(request)
                self.served += 1
                self.prompt_tokens += request.input_length
                bar.update(self.served, f"at {len(self.sizes)} sizes")
        finally:
            self.seconds = time.monotonic() - started
            for size in self.sizes:
                size.cache.close()

    def _serve(self, size: _Size, prompt: array[int], answer: array[int]) -> None:
        cache = size.cache
        found = cache.acquire(prompt)
        if found.lease is None:
            size.refused += 1
            return
        plan = found.plan
        size.hit_tokens += plan.reuse_token_length
        length = len(prompt) + len(answer)
        if len(prompt) >= self.page:  # a full page to share
            cache.publish(found.lease, len(prompt))
        more = -(-length // self.page) - plan.bound_base_pages - plan.demand_base_pages
        _, grown = cache.advance(found.lease, answer, base=max(0, more))
        if not grown:
            size.refused += 1
        elif length >= self.page:
            cache.publish(found.lease, length)
        found.lease.release()

    def document(self) -> dict[str, Any]:
        """The sweep as numbers. The optimum needs the whole trace: None when interrupted."""
        whole = max(1, self.prompt_tokens)
        return {
            "page": self.page,
            "requests": self.served,
            "of_requests": len(self.requests),
            "prompt_tokens": self.prompt_tokens,
            "longest_tokens": self.longest,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "unlimited": self.unlimited.hit_tokens / whole,
            "sizes": [
                {
                    "pages": s.pages,
                    "tokens": s.pages * self.page,
                    "hit_rate": s.hit_tokens / whole,
                    "least_recent": s.least_recent.hit_tokens / whole,
                    "optimal": None if self.interrupted else s.optimal.hit_tokens / whole,
                    "refused": s.refused,
                }
                for s in self.sizes
            ],
        }

    def lines(self) -> list[str]:
        """The table that the sweep prints."""
        d = self.document()
        lines = [
            f"{self.served:,} of {len(self.requests):,} requests, {self.prompt_tokens:,} prompt tokens; pages of "
            f"{self.page} tokens; the longest request needs {-(-self.longest // self.page):,}",
            f"{'pages':>12}{'tokens':>16}{'hit rate':>11}{'least-recent':>15}{'optimal':>10}{'refused':>10}",
        ]
        for s in d["sizes"]:
            optimal = "-" if s["optimal"] is None else f"{s['optimal']:.4f}"
            lines.append(
                f"{s['pages']:>12,}{s['tokens']:>16,}{s['hit_rate']:>11.4f}{s['least_recent']:>15.4f}{optimal:>10}"
                f"{s['refused']:>10,}"
            )
        lines.append(f"{'unlimited':>12}{'':>16}{'':>11}{d['unlimited']:>15.4f}{d['unlimited']:>10.4f}")
        if self.interrupted:
            lines.append(
                f"interrupted after {self.served:,} requests; the figures are those of these requests, "
                "and the optimal bound needs all of them"
            )
        return lines
