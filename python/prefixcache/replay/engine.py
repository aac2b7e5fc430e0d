"""One step after the other through the cache, in the order of vLLM-Omni's runner.

    schedule -> new_step_starts -> batch update -> forward -> save_outputs
             -> materialize or discard_step, here or on the output thread

The forward writes into the same buffers in each step, and they are spoiled right
after the save, as a CUDA graph's outputs are by the next replay. A step is
consumed in one of four ways, drawn from the seed: at once; on the output thread
beside the next step; there, but only after the next step was handed over (late,
and out of order); or not at all (discarded).
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prefixcache.replay.batch import InputBatch
from prefixcache.replay.checker import Checker, StepRecord
from prefixcache.replay.content import RowContent
from prefixcache.replay.costs import StepCosts
from prefixcache.replay.scheduler import Scheduler, StepPlan, hit_slots
from prefixcache.view import FullAttentionGroupView

STEP_KEY = "embed.decode"  # rows join the cache with their step
DEFERRED_KEY = "codes.audio"  # rows join it when the request ends
SPARSE_KEY = "embed.speech_feat"  # carried by some steps only
_PAD = 8  # CUDA graphs come in sizes: rows are padded to a multiple of this


@dataclass(frozen=True)
class EngineOptions:
    """Shape of the replay. Rates are probabilities of one step."""

    width: int = 64  # bytes of a hidden row; the other keys have a half and two quarters
    block_size: int = 16
    num_blocks: int = 131_072
    batch_tokens: int = 8_192
    max_running: int = 64
    eager: bool | None = None  # None: the manager's own choice
    staging_bytes: int = 0  # 0: 8 MiB for 64-byte rows, so that long requests force flushes
    staging_depth: int = 4
    output_thread_rate: float = 0.15
    late_rate: float = 0.05
    late_hit_rate: float = 0.3  # of steps with a hit
    discard_rate: float = 0.03
    sparse_rate: float = 0.5
    leftover_rate: float = 0.05


class Engine:
    """Runs a scheduler's steps through a manager and hands results to a checker.

    ``backend`` has OmniPrefixCacheManager, PrefixCacheConfig, ModelCachePolicy and HIDDEN_KEY.
    """

    def __init__(
        self, backend: Any, scheduler: Scheduler, options: EngineOptions, max_tokens: int, rng: random.Random
    ) -> None:
        self.options, self.scheduler, self._rng = options, scheduler, rng
        quarter = max(1, options.width // 32)
        hidden_key = backend.HIDDEN_KEY
        self.contents = {
            hidden_key: RowContent(hidden_key, max(1, options.width // 8)),
            STEP_KEY: RowContent(STEP_KEY, max(1, options.width // 16)),
            DEFERRED_KEY: RowContent(DEFERRED_KEY, quarter),
            SPARSE_KEY: RowContent(SPARSE_KEY, quarter),
        }
        self.hidden_key = hidden_key
        types = {
            hidden_key: torch.bfloat16,
            STEP_KEY: torch.float32,
            DEFERRED_KEY: torch.int32,
            SPARSE_KEY: torch.int64,
        }
        rows = options.batch_tokens + _PAD
        self._buffers = {k: np.zeros((rows, c.words), np.uint64) for k, c in self.contents.items()}
        self._tensors = {k: torch.from_numpy(b.view(np.int64)).view(types[k]) for k, b in self._buffers.items()}
        self.checker = Checker(self.contents, hidden_key, SPARSE_KEY)
        self.costs = StepCosts()
        # Slots whose present owner's step carried the sparse key.
        self._sparse_slots = np.zeros(options.num_blocks * options.block_size, bool)

        blocks = -(-max_tokens // options.block_size) + 1
        self.batch = InputBatch(options.max_running, blocks, options.block_size)
        self.view = _RememberingView(self.batch, options.block_size)
        config = backend.PrefixCacheConfig(
            num_blocks=options.num_blocks,
            block_size=options.block_size,
            gpu_staging_bytes=options.staging_bytes or (options.width << 17),
            staging_depth=options.staging_depth,
            staging_capacity_tokens=options.batch_tokens + _PAD,
        )
        self.manager = backend.OmniPrefixCacheManager(config, self.view, eager=options.eager)
        self.manager.register_policy(backend.ModelCachePolicy(deferred_keys=frozenset({DEFERRED_KEY})))
        self._output = _OutputThread(self._consume)
        self._held: StepRecord | None = None

    def step(self) -> None:
        """Schedule, compute, save and (mostly) consume one step."""
        plan = self.scheduler.schedule()
        # Costs are taken only where nothing else of ours runs.
        quiet = self._output.idle and self._held is None
        started = time.perf_counter()
        self.manager.new_step_starts(plan.output)
        begin_s = time.perf_counter() - started
        self.batch.update(plan)
        if plan.scheduled:
            record, save_s = self._save(plan)
            self._dispatch(record, quiet, begin_s, save_s)
        self.scheduler.update(plan)

    def _save(self, plan: StepPlan) -> tuple[StepRecord, float]:
        requests = self.batch.requests
        count_of = plan.output.num_scheduled_tokens
        ids = list(self.batch.req_ids)
        counts = [count_of[req] for req in ids]
        new = [r.fingerprints[r.computed : r.computed + n] for r, n in zip(requests, counts, strict=True)]
        flat = np.concatenate(new)
        total = len(flat)
        padded = -(-total // _PAD) * _PAD
        sparse = self._rng.random() < self.options.sparse_rate
        keys = [k for k in self.contents if k != SPARSE_KEY or sparse]
        for key in keys:
            self.contents[key].fill(flat, self._buffers[key])
        leftovers = self._leftovers(total, padded)
        outputs = {k: self._tensors[k][: padded if k != DEFERRED_KEY else total] for k in keys if k != self.hidden_key}
        given = _copied(leftovers)
        outputs.update(given)

        started = time.perf_counter()
        step_id = self.manager.save_outputs(
            self._tensors[self.hidden_key][:padded], outputs, num_tokens_unpadded=total, num_tokens_padded=padded
        )
        save_s = time.perf_counter() - started

        self._sparse_slots[self.view.last_slots] = sparse
        absent = {}
        expected = new
        if plan.hits:
            expected = [
                r.fingerprints[: plan.hits[r.id] + n] if r.id in plan.hits else part
                for r, n, part in zip(requests, counts, new, strict=True)
            ]
            if sparse:
                # After the save: rows of this very step count for hits on them.
                for request in requests:
                    if request.id in plan.hits:
                        where = hit_slots(request.blocks, plan.hits[request.id], self.options.block_size)
                        absent[request.id] = ~self._sparse_slots[where]
        for key in keys:
            self._buffers[key][:padded] = 0xDEAD
        _spoil(given)
        return StepRecord(plan.step, step_id, ids, counts, expected, plan.hits, keys, absent, leftovers), save_s

    def _leftovers(self, total: int, padded: int) -> dict[str, Any]:
        """Values that are not rows, of every kind that models emit, in some steps."""
        if self._rng.random() >= self.options.leftover_rate:
            return {}
        weights = torch.arange(total, dtype=torch.float32)
        other = torch.arange(3 * (padded + 1)).reshape(padded + 1, 3)
        return {
            "meta.weight": weights,
            "codes.ref": other,
            "meta.scale": torch.tensor(float(total)),
            "meta.nested": {"weight": weights * 2, "scale": torch.tensor(7), "name": "speaker"},
            "meta.list": [torch.arange(3), 7, "text"],
            "meta.pair": (torch.ones(2), "fixed"),
            "meta.note": f"step of {total}",
            "meta.none": None,
        }

    def _dispatch(self, record: StepRecord, quiet: bool, begin_s: float, save_s: float) -> None:
        options, draw = self.options, self._rng.random()
        held, self._held = self._held, None
        # Late reads are worth most where a prefix is read: its blocks may be gone by then.
        late = options.late_hit_rate if record.hits else options.late_rate
        if draw < options.discard_rate:
            self.manager.discard_step(record.step_id)
        elif draw < options.discard_rate + late and held is None:
            self._held = record
        elif draw < options.discard_rate + late + options.output_thread_rate:
            self._output.put(record, self._asked(record))
        else:
            seconds = self._consume(record, self._asked(record))
            if quiet:
                hit = sum(record.hits.values())
                nbytes = sum(8 * self.contents[k].words for k in record.keys) * (sum(record.counts) + hit)
                decode = max(record.counts) == 1 and not record.hits
                self.costs.add(decode, begin_s, save_s, seconds, nbytes)
        if held is not None:
            self._output.put(held, self._asked(held))

    def _asked(self, record: StepRecord) -> list[str]:
        """Mostly the whole batch; sometimes a part of it, in another order."""
        if self._rng.random() < 0.06:
            return self._rng.sample(record.ids, self._rng.randint(0, len(record.ids)))
        return record.ids

    def _consume(self, record: StepRecord, ids: list[str]) -> float:
        started = time.perf_counter()
        outputs = self.manager.materialize(record.step_id, ids)
        seconds = time.perf_counter() - started
        self.checker.check(record, ids, outputs)
        if record.hits and outputs.hidden_states:
            # Results belong to the caller: what he does to them stays with him.
            for req in record.hits:
                if req in outputs.hidden_states:
                    outputs.hidden_states[req].zero_()
        return seconds

    def drain(self) -> None:
        """Consume everything that is left, and let the last ends be announced."""
        if self._held is not None:
            held, self._held = self._held, None
            self._output.put(held, held.ids)
        while not self.scheduler.idle:
            self.step()
        if self._held is not None:
            held, self._held = self._held, None
            self._output.put(held, held.ids)
        self._output.finish()

    def close(self) -> None:
        """Stop the output thread and the manager, whatever state they are in."""
        self._output.stop()
        self.manager.shutdown()


class _RememberingView(FullAttentionGroupView):
    """The view that the manager reads, keeping the slots of the last step for the checker."""

    last_slots: NDArray[np.int64]

    def step_slots_cpu(self, req_ids: Sequence[str], num_scheduled_tokens: Mapping[str, int]) -> torch.Tensor:
        slots = super().step_slots_cpu(req_ids, num_scheduled_tokens)
        self.last_slots = slots.numpy()
        return slots


class _OutputThread:
    """The engine's output builder: consumes steps in the order it is given them."""

    def __init__(self, consume: Any) -> None:
        self._consume = consume
        self._queue: queue.SimpleQueue[tuple[StepRecord, list[str]] | None] = queue.SimpleQueue()
        self._given = self._done = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay-output", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Nothing is queued or being consumed."""
        return self._given == self._done

    def put(self, record: StepRecord, ids: list[str]) -> None:
        """Queue a step. Raises what an earlier one raised."""
        self._raise()
        self._given += 1
        self._queue.put((record, ids))

    def finish(self) -> None:
        """Wait until everything queued is consumed; raises what went wrong."""
        self.stop()
        self._raise()

    def stop(self) -> None:
        """End the thread after what is queued."""
        self._queue.put(None)
        self._thread.join(timeout=60)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        with torch.inference_mode():
            while (item := self._queue.get()) is not None:
                try:
                    if self._error is None:
                        self._consume(*item)
                except BaseException as e:
                    self._error = e
                self._done += 1


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(v) for v in value)
    return value


def _spoil(value: Any) -> None:
    """Overwrite every tensor in a value that the cache was given."""
    if isinstance(value, torch.Tensor):
        value.fill_(-77)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _spoil(item)
    elif isinstance(value, dict):
        for item in value.values():
            _spoil(item)
