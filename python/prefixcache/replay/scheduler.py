"""A continuous-batching scheduler, small, with vLLM's rules where a cache sees them.

    WAITING --admit--> RUNNING --last token, or abort--> ENDED
       ^                  |
       +---- preempt -----+   all blocks are given back; the request starts over

Rules that matter to the cache behind it:
- Hashes of full blocks are published when the blocks are allocated, so a request
  admitted later in the same step can hit rows that this very step computes.
- Blocks are free as soon as a request ends; the cache hears of the end only with
  the next step, in which another request may have the blocks already.
- A preempted request that comes back may hit blocks, but opens no hit span: it is
  either left out of the new requests, or is among them while its id is live.
- An id may end and come back, for another prompt, in one scheduler output.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from prefixcache.replay.blocks import BlockPool
from prefixcache.replay.content import request_fingerprints
from prefixcache.replay.traces import TraceRequest


class Request:
    """A request of the replay, from arrival to its end."""

    __slots__ = (
        "abort_at",
        "blocks",
        "computed",
        "fingerprints",
        "hashes",
        "id",
        "known",
        "prompt",
        "published",
        "row",
        "running",
        "scheduled_in",
        "seen",
        "total",
        "written_blocks",
    )

    def __init__(self, req_id: str, trace: TraceRequest, serial: int, block_size: int) -> None:
        self.id = req_id
        self.prompt = trace.input_length
        self.total = trace.input_length + trace.output_length
        self.fingerprints = request_fingerprints(trace.hash_ids, trace.input_length, trace.output_length, serial)
        # The fingerprint of a block's last token stands for the whole prefix.
        self.hashes: list[int] = self.fingerprints[block_size - 1 :: block_size].tolist()
        self.known = trace.input_length  # tokens that exist: the prompt and what was sampled
        self.computed = 0
        self.blocks: list[int] = []
        self.published = 0  # full blocks whose hash is public
        self.abort_at = 0  # give up when this many tokens are computed; 0: never
        self.running = False
        self.seen = False  # was scheduled before, so a return is a resume
        self.scheduled_in = 0  # last step that scheduled it
        self.row = -1  # place in the worker's batch
        self.written_blocks = 0  # entries of its row in the block table


@dataclass
class StepPlan:
    """One scheduler output, with what the replay itself needs of it."""

    step: int
    output: SimpleNamespace  # what the cache sees, with vLLM's field names
    scheduled: list[tuple[Request, int]] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)  # tokens, of requests that arrive with a hit


@dataclass
class SchedulerStats:
    """Counts since the start; tokens unless said otherwise."""

    admitted: int = 0  # requests
    finished: int = 0  # requests
    aborted: int = 0  # requests
    cut_off: int = 0  # requests that ran when the replay was told to stop
    preempted: int = 0  # times
    prompt_tokens: int = 0  # of admitted requests
    hit_tokens: int = 0  # of these, found computed
    same_step_hits: int = 0  # requests that hit rows of their own step
    reused_ids: int = 0  # requests under an id that ended in the same output
    computed_tokens: int = 0


class Scheduler:
    """Decides what each step computes. Nothing here looks at the cache."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        batch_tokens: int,
        max_running: int,
        rng: random.Random,
        abort_rate: float = 0.0,
        preempt_rate: float = 0.0,
        reuse_rate: float = 0.0,
    ) -> None:
        self.block_size = block_size
        self.batch_tokens = batch_tokens
        self.max_running = max_running
        self.pool = BlockPool(num_blocks)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.stats = SchedulerStats()
        self.step = 0
        self._rng = rng
        self._abort_rate, self._preempt_rate, self._reuse_rate = abort_rate, preempt_rate, reuse_rate
        self._ended: set[str] = set()  # to be announced with the next output
        self._serial = 0

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is left to announce."""
        return not (self.running or self.waiting or self._ended)

    def add(self, trace: TraceRequest) -> None:
        """A request arrives."""
        self._serial += 1
        request = Request(f"req-{self._serial}", trace, self._serial, self.block_size)
        if self._rng.random() < self._abort_rate:
            request.abort_at = self._rng.randint(1, request.total)
        self.waiting.append(request)

    def abort_all(self) -> None:
        """Every request ends now, waiting ones included."""
        for request in [*self.running, *self.waiting]:
            self._end(request)
            self.stats.cut_off += request.seen
        self.running.clear()
        self.waiting.clear()

    def schedule(self) -> StepPlan:
        """Decide the next step, allocate its blocks and publish their hashes."""
        self.step += 1
        ended, self._ended = self._ended, set()
        output = SimpleNamespace(
            finished_req_ids=ended,
            scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], resumed_req_ids=set()),
            num_scheduled_tokens={},
        )
        plan = StepPlan(self.step, output)
        if len(self.running) > 1 and self._rng.random() < self._preempt_rate:
            # vLLM preempts everything when its prefix cache is reset; one will do.
            self._preempt(self.running.pop(self._rng.randrange(1, len(self.running))))
        budget, preempted = self._schedule_running(plan)
        if not preempted:
            self._admit(plan, budget, ended)
        counts = output.num_scheduled_tokens
        for request, count in plan.scheduled:
            counts[request.id] = count
            request.scheduled_in = self.step
            self.stats.computed_tokens += count
        output.total_num_scheduled_tokens = sum(counts.values())
        return plan

    def _schedule_running(self, plan: StepPlan) -> tuple[int, bool]:
        budget, preempted, place = self.batch_tokens, False, 0
        running, pool, size = self.running, self.pool, self.block_size
        while place < len(running) and budget > 0:
            request = running[place]
            count = min(request.known - request.computed, budget)
            need = (request.computed + count - 1) // size + 1 - len(request.blocks)
            if need > 0:
                while need > len(pool.free) and running[-1] is not request:
                    self._preempt(running.pop())
                    preempted = True
                if need > len(pool.free):
                    self._preempt(running.pop())
                    preempted = True
                    break
                request.blocks += pool.take(need)
            self._publish(request, count)
            plan.scheduled.append((request, count))
            plan.output.scheduled_cached_reqs.req_ids.append(request.id)
            budget -= count
            place += 1
        return budget, preempted

    def _admit(self, plan: StepPlan, budget: int, ended: set[str]) -> None:
        pool, size, stats = self.pool, self.block_size, self.stats
        free_ids = list(ended)
        while self.waiting and budget > 0 and len(self.running) < self.max_running:
            request = self.waiting[0]
            # At least one token has to be computed, so the last one never hits.
            blocks = pool.match(request.hashes, (request.known - 1) // size)
            hit = len(blocks) * size
            count = min(request.known - hit, budget)
            need = (hit + count - 1) // size + 1 - len(blocks)
            if need + pool.idle(blocks) > len(pool.free):
                break
            self.waiting.popleft()
            pool.share(blocks)
            same_step = bool(blocks) and max(map(pool.published_in.__getitem__, blocks)) == self.step
            request.blocks = blocks + pool.take(need)
            request.computed, request.published, request.running = hit, len(blocks), True
            self.running.append(request)
            self._publish(request, count)
            if not request.seen:
                if free_ids and self._rng.random() < self._reuse_rate:
                    request.id = free_ids.pop()
                    stats.reused_ids += 1
                request.seen = True
                stats.admitted += 1
                stats.prompt_tokens += request.prompt
                stats.hit_tokens += hit
                stats.same_step_hits += same_step
                if hit:
                    plan.hits[request.id] = hit
                self._announce(plan, request, hit)
            else:
                # Both ways in which vLLM's runners see a resumed request.
                plan.output.scheduled_cached_reqs.resumed_req_ids.add(request.id)
                if self._rng.random() < 0.5:
                    self._announce(plan, request, hit)
                else:
                    plan.output.scheduled_cached_reqs.req_ids.append(request.id)
            plan.scheduled.append((request, count))
            budget -= count

    @staticmethod
    def _announce(plan: StepPlan, request: Request, hit: int) -> None:
        plan.output.scheduled_new_reqs.append(
            SimpleNamespace(req_id=request.id, num_computed_tokens=hit, block_ids=(list(request.blocks),))
        )

    def _publish(self, request: Request, count: int) -> None:
        full = (request.computed + count) // self.block_size
        if full > request.published:
            first, request.published = request.published, full
            self.pool.publish(request.blocks[first:full], request.hashes[first:full], self.step)

    def update(self, plan: StepPlan) -> None:
        """The step was computed: sample, end and abort requests."""
        changed = False
        for request, count in plan.scheduled:
            request.computed += count
            if request.abort_at and request.computed >= request.abort_at:
                self.stats.aborted += 1
                self._end(request)
                changed = True
            elif request.computed == request.known:
                request.known += 1
                if request.known >= request.total:
                    self.stats.finished += 1
                    self._end(request)
                    changed = True
        if changed:
            self.running = [r for r in self.running if r.running]

    def _preempt(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.computed = request.published = 0
        request.written_blocks = 0  # may come back in this very step, at its old place
        request.running = False
        self.stats.preempted += 1
        self.waiting.appendleft(request)

    def _end(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.running = False
        if request.seen:
            self._ended.add(request.id)


def hit_slots(blocks: list[int], tokens: int, block_size: int) -> NDArray[np.int64]:
    """Slots of the first ``tokens`` tokens of a request with these blocks."""
    first = np.asarray(blocks[: -(-tokens // block_size)], np.int64) * block_size
    return (first[:, None] + np.arange(block_size)).reshape(-1)[:tokens]
