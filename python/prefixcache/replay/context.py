"""The context part: requests one after the other through a ``ContextCacheManager``.

    acquire (begin) -> the pages that are reused are checked -> publish
                    -> advance for each token (decode) -> publish -> release

Of every page the replay remembers which prefix was written there last. So a page that
is bound to another prefix, or was given away meanwhile, is seen when it is reused.
Needs the library alone, neither numpy nor torch.
"""

from __future__ import annotations

import time
import traceback
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

from prefixcache.context import AcquireStatus, ContextCacheManager, NoReuseReason
from prefixcache.replay.histogram import Histogram
from prefixcache.replay.progress import Interrupt, ProgressBar
from prefixcache.replay.series import Series
from prefixcache.replay.tokens import Tokenizer
from prefixcache.replay.traces import TOKENS_PER_ID, TraceRequest

#: More than any trace publishes, so that it is pages that evict.
MAX_RECORDS = 1 << 20
#: One request in so many is decoded token by token, to take the time of a step; the
#: others append their whole answer at once, which leaves the same pages behind.
_STEPWISE = 16
_EXAMPLES = 8


class ContextPart:
    """One replay at the manager level; :meth:`run` it, then ask for lines or a document."""

    name = "context"

    def __init__(self, requests: Sequence[TraceRequest], *, pages: int, page: int, time_limit: float) -> None:
        self.pages, self.page = pages, page
        capacity = pages * page
        self.requests = [r for r in requests if r.input_length + r.output_length <= capacity]
        self.too_long = len(requests) - len(self.requests)
        self.cache = ContextCacheManager(base_pages=pages, tokens_per_page=page, max_records=MAX_RECORDS)
        self.series = Series(len(self.requests))
        self.latencies = {name: Histogram() for name in ("begin", "publish", "decode")}
        self.reasons: Counter[NoReuseReason] = Counter()
        self.served = self.prompt_tokens = self.hit_tokens = self.hit_requests = self.answer_tokens = 0
        self.checked = self.wrong = self.refused = 0
        self.examples: list[str] = []
        self.failure: str | None = None
        self.interrupted = False
        self.seconds = 0.0
        self._time_limit = time_limit
        self._tokenizer = Tokenizer()
        self._written: list[tuple[int, int] | None] = [None] * pages  # prefix whose tokens a page holds

    def run(self, bar: ProgressBar, interrupt: Interrupt) -> None:
        """All requests, until the time is over or somebody interrupts."""
        started = time.monotonic()
        try:
            for request in self.requests:
                self._serve(request)
                self.seconds = time.monotonic() - started
                bar.update(
                    self.served,
                    f"hit rate {self.hit_rate:.3f}  {self.checked:,} pages checked  {self.wrong:,} wrong",
                )
                self.interrupted = interrupt.asked
                if self.interrupted or 0 < self._time_limit < self.seconds:
                    break
            self._check_the_end()
        except Exception:
            self.failure = traceback.format_exc().rstrip()
        finally:
            self._metrics = self.cache.metrics()
            self.cache.close()

    @property
    def hit_rate(self) -> float:
        """Of prompt tokens."""
        return self.hit_tokens / max(1, self.prompt_tokens)

    @property
    def right(self) -> bool:
        """Every page that was reused held the tokens that it stood for, and nothing was left."""
        return self.wrong == 0 and self.failure is None

    def _serve(self, request: TraceRequest) -> None:
        prompt, answer = self._tokenizer.prompt(request), self._tokenizer.answer(request)
        self.served += 1
        self.prompt_tokens += len(prompt)
        started = time.perf_counter_ns()
        found = self.cache.acquire(prompt)
        self.latencies["begin"].add(time.perf_counter_ns() - started)
        if found.status != AcquireStatus.ACQUIRED or found.lease is None:
            self.refused += 1
            return
        plan, lease = found.plan, found.lease
        self.reasons[plan.reason] += 1
        self.hit_tokens += plan.reuse_token_length
        self.hit_requests += plan.reuse_token_length > 0
        self._check(request, lease.base_pages(), plan.reuse_token_length)
        self._publish(lease, len(prompt))
        if self.series.due(self.served):
            self._sample(request)
        self._decode(lease, len(prompt), plan.bound_base_pages + plan.demand_base_pages, answer)
        self.answer_tokens += request.output_length
        self._publish(lease, len(prompt) + len(answer))
        # Generated tokens are unique: whatever page has one holds a prefix of this request alone.
        pages = lease.base_pages()
        for block in range(len(prompt) // self.page, len(pages)):
            self._written[pages[block]] = (-self.served, block)
        lease.release()

    def _publish(self, lease: Any, length: int) -> None:
        if length < self.page:
            return  # no full page, nothing to share
        started = time.perf_counter_ns()
        self.cache.publish(lease, length)
        self.latencies["publish"].add(time.perf_counter_ns() - started)

    def _decode(self, lease: Any, length: int, have: int, answer: array[int]) -> None:
        stepwise = self.served % _STEPWISE == 1
        stride = 1 if stepwise else max(1, len(answer))
        for first in range(0, len(answer), stride):
            tokens = answer[first : first + stride]
            length += len(tokens)
            need = max(0, -(-length // self.page) - have)
            started = time.perf_counter_ns()
            _, grown = self.cache.advance(lease, tokens, base=need)
            if stepwise:
                self.latencies["decode"].add(time.perf_counter_ns() - started)
            if not grown:
                raise RuntimeError(f"request {self.served}: no page for token {length}, though it fits the pool")
            have += need

    def _check(self, request: TraceRequest, pages: list[int], reused: int) -> None:
        """Reused pages hold the prompt's own prefix; the others are written with it."""
        prefix, blocks = 0, 0
        full = request.input_length // self.page
        for index, value in enumerate(request.hash_ids):
            prefix = hash((prefix, value))
            # Pages whose last token lies in this id: all ids up to it make up their prefix.
            end = min(full, (index + 1) * TOKENS_PER_ID // self.page)
            for block in range(blocks, end):
                expected = (prefix, block)
                if block * self.page >= reused:
                    self._written[pages[block]] = expected
                elif self._written[pages[block]] != expected:
                    self.wrong += 1
                    if len(self.examples) < _EXAMPLES:
                        self.examples.append(f"request {self.served}: page {pages[block]} reused as block {block}")
            blocks = max(blocks, end)
        self.checked += reused // self.page

    def _sample(self, request: TraceRequest) -> None:
        now = self.cache.metrics()
        pool = now["pools"]["base_pages"]
        self.series.add(
            self.served,
            trace_ms=max(0, request.timestamp - self.requests[0].timestamp),
            prompt_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens,
            in_use=pool["active"],
            cached=pool["capacity"] - pool["free"] - pool["active"],
            evicted=pool["reclaimed"],
        )

    def _check_the_end(self) -> None:
        """Nothing may be in use after the last request, and the structure must be sound."""
        if self.served:
            self._sample(self.requests[self.served - 1])
        self.cache.check_invariants()
        active = self.cache.metrics()["pools"]["base_pages"]["active"]
        if active:
            self.failure = f"{active} pages are in use after the last request ended"

    def verdict(self) -> str:
        """The last line."""
        if not self.right:
            return "FAILED"
        return (
            f"interrupted after {self.served:,} requests; so far every page was right"
            if self.interrupted
            else ("every page was right")
        )

    def lines(self) -> list[str]:
        """The summary."""
        m = self._metrics
        pool = m["pools"]["base_pages"]
        extra = f", {self.too_long} longer than the pool left out" if self.too_long else ""
        lines = [
            f"requests          {self.served:,} of {len(self.requests):,} in {self.seconds:.1f} s{extra}, {self.refused:,} refused",
            f"tokens            {self.prompt_tokens:,} of prompts, {self.answer_tokens:,} generated",
            f"hit rate          {self.hit_rate:.4f} of prompt tokens ({self.hit_tokens:,} tokens, {self.hit_requests:,} requests)",
            f"pages             {pool['capacity']:,} of {self.page} tokens: {pool['free']:,} free at the end, "
            f"{pool['reclaimed']:,} taken back by evictions",
            f"records           {m['records']:,} at the end, {m['evicted_records']:,} evicted",
            f"pages checked     {self.checked:,} reused, {self.wrong:,} wrong",
            f"{'cost of a call, us':<20}{'p50':>10}{'p99':>10}{'calls':>12}   (with ctypes' own)",
        ]
        for name, h in self.latencies.items():
            lines.append(
                f"  {name:<18}{h.percentile(0.5) / 1e3:>10,.1f}{h.percentile(0.99) / 1e3:>10,.1f}{h.count:>12,}"
            )
        lines.append("why not more was reused")
        for reason, count in self.reasons.most_common():
            lines.append(
                f"  {reason.name.lower():<18}{count:>10,}  {100 * count / max(1, self.served):5.1f} % of requests"
            )
        lines += [f"  {example}" for example in self.examples]
        return [*lines, *([f"the replay failed: {self.failure}"] if self.failure else []), self.verdict()]

    def document(self) -> dict[str, Any]:
        """The run as numbers; see :mod:`prefixcache.replay.document`."""
        m = self._metrics
        return {
            "verdict": self.verdict(),
            "right": self.right,
            "options": {"pages": self.pages, "tokens a page": self.page},
            "pool": {"unit": "pages", "capacity": self.pages},
            "figures": {
                "requests": self.served,
                "requests with a hit": self.hit_requests,
                "requests refused": self.refused,
                "prompt tokens": self.prompt_tokens,
                "hit tokens": self.hit_tokens,
                "hit rate": self.hit_rate,
                "generated tokens": self.answer_tokens,
                "records evicted": m["evicted_records"],
                "pages taken back by evictions": m["pools"]["base_pages"]["reclaimed"],
                "pages checked": self.checked,
                "pages wrong": self.wrong,
                "seconds": self.seconds,
            },
            "series": self.series.document(),
            "latencies": {name: h.document() for name, h in self.latencies.items() if h.count},
            "reasons": {reason.name.lower(): count for reason, count in self.reasons.most_common()},
        }
