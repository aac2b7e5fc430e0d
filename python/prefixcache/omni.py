"""Drop-in for vLLM-Omni's ``OmniPrefixCacheManager`` on top of libprefixcache.

A stage computes rows (hidden states, multimodal tensors) for the tokens that the
scheduler had computed; for the tokens of a prefix hit there are none. This cache keeps
every row by the KV slot of its token and puts the cached prefix in front of new rows.

Order of calls in a step, as in the original::

    new_step_starts(scheduler_output)      engine thread
    (forward)
    step = save_outputs(hidden, mm, ...)   engine thread
    materialize(step, ids)                 any thread; exactly one of these two,
    discard_step(step)                     once for each step, in any order

Slots, hits, writes and rows belong to the library (include/prefixcache.h). Here remain
the batch layout, the sorting of outputs into rows and leftovers, and the views that are
handed out. Tensors cross as address, stride and size; no row is copied in Python.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from operator import index
from typing import Any, Protocol

import torch

from prefixcache._batch import BatchLayout, RowPlan
from prefixcache._buffers import allocate
from prefixcache._cache import Arrival, OmniCache
from prefixcache._config import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig, StageCacheOutputs, truth
from prefixcache._device import default_eager, event_number, may_try_again
from prefixcache._errors import (
    WRONG_STATE,
    OmniPrefixCacheStagingTimeoutError,
    OmniPrefixCacheUnmatchError,
    PrefixCacheArgumentError,
    PrefixCacheError,
    error_of,
)
from prefixcache._inputs import (
    MAX_COUNT,
    hit_blocks,
    listed,
    mapping,
    request_id,
    slot_array,
    step_counts,
    token_count,
    token_counts,
    unhashable,
)
from prefixcache._outputs import Repeat, place_rows, sort_outputs
from prefixcache._rows import Key, KeyTable
from prefixcache._staying import Staying
from prefixcache._step import StepContext

__all__ = [
    "HIDDEN_KEY",
    "GroupView",
    "ModelCachePolicy",
    "OmniPrefixCacheManager",
    "OmniPrefixCacheStagingTimeoutError",
    "OmniPrefixCacheUnmatchError",
    "PrefixCacheConfig",
    "StageCacheOutputs",
]


class GroupView(Protocol):
    """What the cache asks of the model runner: vLLM's full-attention KV group."""

    def batch_req_ids(self) -> list[str]:
        """Request ids in the order of the batch's rows."""

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: dict[str, int]) -> torch.Tensor:
        """KV slot of every new token, int64, concatenated in the order of ``req_ids``."""


class OmniPrefixCacheManager(Staying):
    """Rows of one engine's stage outputs, addressed by KV slot.

    config: sizes; ``num_blocks`` and ``block_size`` must be the scheduler's.
    view: see :class:`GroupView`.
    eager: write rows on the calling thread. None: when CUDA is not available.

    ``new_step_starts`` and ``save_outputs`` belong to one engine thread;
    ``materialize`` and ``discard_step`` may run on any thread beside them.
    """

    def __init__(self, config: PrefixCacheConfig, view: GroupView, *, eager: bool | None = None) -> None:
        config = PrefixCacheConfig.of(config)
        self._eager = default_eager() if eager is None else truth("eager", eager, "True, False or None")
        options = config.options(self._eager)
        if not all(callable(getattr(view, name, None)) for name in ("batch_req_ids", "step_slots_cpu")):
            raise PrefixCacheArgumentError(f"view is {view!r}, expected batch_req_ids and step_slots_cpu")
        self._config = config
        self._view = view
        self._policy = ModelCachePolicy()
        # Requests cross as numbers. An id keeps its number until it finishes.
        self._numbers: dict[str, int] = {}
        self._next_number = 1
        numbers = self._numbers  # and not self: that would keep the cache until a garbage collection
        self._cache = OmniCache(options, lambda: {n: r for r, n in list(numbers.items())})
        self._keys = KeyTable(self._cache.library, self._cache.handle)

        # The scheduler output of this step: counts, and the hits that were accepted.
        self._scheduled: dict[str, int] = {}
        self._hits: dict[str, int] = {}
        self._streams: dict[torch.device, Any] = {}  # for leftovers that come from a device
        self._layout: BatchLayout | None = None  # of the last step, while it may be used again
        self._repeat: Repeat | None = None  # the outputs of the last step, likewise

        # Saved and not yet consumed. One dict operation each, so no lock of its own.
        self._steps: dict[int, StepContext] = {}
        # Empty during an engine call. Not a lock: nobody waits for it, since a second engine
        # call is a broken contract; and a signal handler that raises cannot come between its
        # del statement and the try block after it, as it can after lock.acquire().
        self._engine = {"free": True}

    # ------------------------------------------------------------- engine thread

    def register_policy(self, policy: ModelCachePolicy) -> None:
        """Set what the model wants cached. Model load only, before the first step.

        Raises PrefixCacheError for another policy once a step was saved: keys that are open
        keep their schedule.
        """
        policy = ModelCachePolicy.of(policy)
        if policy.deferred_keys != self._policy.deferred_keys and (saved := self._cache.stats()["steps_saved"]):
            raise error_of(
                WRONG_STATE,
                f"policy.deferred_keys is {sorted(policy.deferred_keys, key=str)} after {saved} saved steps,"
                f" expected {sorted(self._policy.deferred_keys, key=str)}, as before the first",
            )
        self._cache.set_policy(policy.needs_full_hidden_states)
        self._policy = policy
        self._keys.forget_unsaved()
        self._repeat = None

    def new_step_starts(self, scheduler_output: Any) -> None:
        """Take in one scheduler output, before the runner forgets finished requests.

        Reads ``num_scheduled_tokens`` (id -> tokens), and, when present,
        ``finished_req_ids`` and ``scheduled_new_reqs`` (each with ``req_id``,
        ``num_computed_tokens``, ``block_ids``). Finishes are applied before arrivals.
        Abort and finish are the same: rows of the request reach the cache.

        All or nothing. Raises OmniPrefixCacheUnmatchError for a hit without block ids,
        one that is not block aligned, a block list that does not cover it, and after a
        failed write.
        """
        finished = getattr(scheduler_output, "finished_req_ids", None)
        if finished is not None and type(finished) is not set:
            finished = listed("finished_req_ids", finished)
        arrivals = getattr(scheduler_output, "scheduled_new_reqs", None)
        if arrivals is not None and type(arrivals) is not list:
            arrivals = listed("scheduled_new_reqs", arrivals)
        try:
            scheduled = scheduler_output.num_scheduled_tokens
        except AttributeError:
            raise PrefixCacheArgumentError(
                f"scheduler_output is {scheduler_output!r}, expected an object with num_scheduled_tokens"
            ) from None
        if type(scheduled) is not dict:
            scheduled = dict(mapping("num_scheduled_tokens", scheduled))
        try:
            del self._engine["free"]
        except KeyError:
            raise _overlap() from None
        try:
            changed = scheduled != self._scheduled
            if changed:  # checked before the library takes anything in
                tokens = token_counts(scheduled)
            if finished or arrivals:
                self._begin_with(finished or (), arrivals or ())
            else:
                self._cache.begin()
                self._hits = {}
            if changed:
                self._scheduled = tokens
                self._layout = None
        finally:
            self._engine["free"] = True

    def _begin_with(self, finished: Collection[str], arrivals: Sequence[Any]) -> None:
        numbers = self._numbers
        try:
            leaving = {r: numbers[r] for r in finished if r in numbers}
        except TypeError:
            raise unhashable("finished_req_ids", finished) from None
        # An id may finish and come back within one output: it is a new request then.
        fresh: dict[str, int] = {}
        packed: list[Arrival] = []
        for i, request in enumerate(arrivals):
            r = request_id(arrivals, i)
            number = fresh.get(r) or (None if r in leaving else numbers.get(r))
            if number is None:
                number = fresh[r] = self._next_number + len(fresh)
            hit = max(
                0, token_count(getattr(request, "num_computed_tokens", 0) or 0, "num_computed_tokens of req {}", r)
            )
            packed.append((number, hit, hit_blocks(request, hit, self._config.block_size) if hit else array("q")))
        # Used up, also when the step is refused: an interrupt may hide that it was not.
        self._next_number += len(fresh)
        accepted = self._cache.begin_with(array("Q", leaving.values()), packed, fresh)
        hits = {a.req_id: p[1] for a, p, yes in zip(arrivals, packed, accepted, strict=False) if yes}
        for r in leaving:
            del numbers[r]
        # All or nothing: without a call, no signal handler runs in between.
        numbers |= fresh
        self._hits = hits
        self._layout = None  # it has numbers that may be others now

    def save_outputs(
        self,
        hidden_states: torch.Tensor | None,
        mm_outputs: dict[str, Any] | None,
        *,
        num_tokens_unpadded: int,
        num_tokens_padded: int,
        event: Any = None,
    ) -> int:
        """Save this step's outputs after the forward; returns the step id.

        hidden_states: (rows >= num_tokens_unpadded, width...), or None.
        mm_outputs: name -> value. Tensors of two dimensions or more whose first is the
        number of scheduled tokens (or the padded number) are cached; everything else is
        kept for this step's ``materialize`` alone. A padded number of no more than the
        other says that nothing was padded.
        event: behind which outputs on a CUDA device are ready, when another stream than the
        current one computes them: a recorded torch.cuda.Event, an object with ``cuda_event``,
        or a cudaEvent_t as a number. The current stream waits for it, this thread does not.
        One that is not torch's orders rows alone, and not what torch would copy. Tensors may
        be dropped afterwards; what the other stream writes into them again has to wait for the
        current one first (``side.wait_stream(torch.cuda.current_stream())``).

        The caller may overwrite its tensors afterwards, on the current stream. The id must be consumed exactly
        once, by ``materialize`` or ``discard_step``. All or nothing: a save that raises
        leaves no trace. Waits, for at most ``staging_claim_timeout_s``, for the former
        step's writes, for memory, and for a free staging slot. When device memory is short,
        torch's cache is emptied and the save tried once more.

        Raises OmniPrefixCacheUnmatchError (slots, rows or capacity do not fit the step;
        a former write failed), OmniPrefixCacheStagingTimeoutError (too many unconsumed
        steps), PrefixCacheArgumentError (a tensor, a count or the event is malformed).
        """
        n, padded, mm = num_tokens_unpadded, num_tokens_padded, mm_outputs
        if type(n) is not int or type(padded) is not int or not 0 <= n <= MAX_COUNT >= padded:
            n, padded = step_counts(n, padded)
        if type(mm) is not dict:
            mm = {} if mm is None else mapping("mm_outputs", mm)
        ready = 0 if event is None else event_number(event)
        try:
            del self._engine["free"]
        except KeyError:
            raise _overlap() from None
        try:
            layout, ids = self._layout, self._view.batch_req_ids()
            if layout is None or type(ids) is not list or layout.ids != ids:
                layout = self._batch_layout(ids)
            plan = layout.plan(self._hits) if self._hits else layout.new
            slots = slot_array(self._view.step_slots_cpu(layout.ids, layout.scheduled), n) if n else None
            hidden = hidden_states if n and self._policy.needs_full_hidden_states else None
            last, buffers, stream = self._repeat, None, 0
            if last is not None and last.fits(plan, n, padded):
                buffers = last.place(self._cache, hidden, mm)
            if buffers is not None:
                context = StepContext(layout, plan, last.keys, buffers)
            else:
                context, self._repeat = StepContext(layout, plan), None
                with torch.inference_mode(False):  # what is copied here is handed out: plain tensors
                    sources = sort_outputs(
                        context, self._keys, self._policy, hidden, mm, n, padded, self._streams, bool(ready)
                    )
                # `owners` keeps copies of rows that were not in order until the library has read them.
                owners, stream = place_rows(
                    context, self._cache, sources, n, keep_large=not self._eager, foreign=bool(ready)
                )
            slots_at = 0 if slots is None else slots.data_ptr()
            saved = self._cache.saved_step
            saved[0] = 0
            try:
                try:
                    step = self._cache.save(layout, slots_at, n, len(context.keys), stream, ready)
                except PrefixCacheError as e:
                    if not may_try_again(e):
                        raise
                    step = self._cache.save(layout, slots_at, n, len(context.keys), stream, ready)
                if buffers is None:
                    for key in context.keys:
                        key.visible = True
                    if plan is layout.new:
                        self._repeat = Repeat.of(context, sources, owners, mm, n, padded)
                    del owners
                self._hits = {}
                self._steps[step] = context
                return step
            except BaseException:
                # A signal handler that raises does so here, when the library has saved: nobody gets the id.
                if saved[0]:
                    self._cache.drop(saved[0])
                raise
        finally:
            self._engine["free"] = True

    def _batch_layout(self, ids: Iterable[str]) -> BatchLayout:
        """A layout for this step; the last step's when it is only a list of another type."""
        ids = listed("batch_req_ids()", ids)
        if self._layout is not None and self._layout.ids == ids:
            return self._layout
        numbers = self._numbers
        try:
            counts = {r: self._scheduled.get(r, 0) for r in ids}
        except TypeError:
            raise unhashable("batch_req_ids()", ids) from None
        passing: dict[str, int] = {}
        for r in ids:
            # A request that no scheduler output announced has rows all the same. Without
            # rows its number is not kept: a batch may still have requests that finished.
            if r not in numbers and r not in passing:
                (numbers if counts[r] else passing)[r] = self._next_number
                self._next_number += 1
        known = {**numbers, **passing} if passing else numbers
        self._layout = layout = BatchLayout(ids, counts, [known[r] for r in ids])
        return layout

    # ---------------------------------------------------------------- any thread

    def materialize(self, step_id: int, req_ids: list[str]) -> StageCacheOutputs:
        """The outputs of a saved step, merged with cached prefixes, by request.

        req_ids: requests of the saved batch, in any order; a subset is fine. The step is
        used up even when this raises. Rows of one key share a buffer; they are plain
        tensors of the caller's, and stay valid after ``shutdown``.

        Raises OmniPrefixCacheUnmatchError: an id that was never saved or is consumed, a
        request that was not in the batch, a hit whose rows do not exist, a failed write.
        """
        step = _step_number(step_id)
        try:
            context = self._steps[step]
            del self._steps[step]
        except KeyError:
            raise self._missing(step_id) from None
        try:
            layout = context.layout
            positions: Sequence[int] | None = None
            try:
                if type(req_ids) is not list:
                    req_ids = listed("req_ids", req_ids)
                if req_ids != layout.ids or context.foreign_hidden is not None:
                    positions = context.positions(step, req_ids)
                if context.kept or context.plan.hits:
                    buffers, part, reads = context.read(positions, self._policy.needs_full_hidden_states, self._buffer)
                else:
                    buffers, part, reads = context.buffers, context.plan, ()
            except Exception:
                # The step is consumed all the same; a failed write is the better error.
                self._cache.materialize(step, (), layout)
                raise
            self._cache.materialize(step, reads, layout)
            return context.outputs(buffers, part, req_ids, positions)
        except BaseException:
            self._cache.drop(step)  # where a signal handler raised before the library had consumed it
            raise

    def discard_step(self, step_id: int) -> None:
        """Consume a step that nobody will read; its rows reach the cache all the same.

        Works after a failed write. Raises OmniPrefixCacheUnmatchError for an id that was
        never saved or is consumed.
        """
        step = _step_number(step_id)
        try:
            context = self._steps[step]
            del self._steps[step]
        except KeyError:
            raise self._missing(step_id) from None
        try:
            self._cache.discard(step, context.layout)
        except BaseException:
            self._cache.drop(step)
            raise

    def shutdown(self) -> None:
        """Wait for running work, drop what is pending, refuse further steps. Repeatable."""
        self._cache.shutdown()

    @property
    def handle(self) -> int:
        """pc_handle of the cache."""
        return self._cache.handle

    def stats(self) -> dict[str, Any]:
        """Counters since creation and gauges of now, by the names of ``pc_omni_stats``.

        ``copies`` maps a direction to its bytes, the bytes of copies that were timed, and
        the seconds that those took; ``waits`` a cause to its count and seconds.
        Not in the original. Any thread, also after shutdown.
        """
        return self._cache.stats()

    # -------------------------------------------------------------------- inside

    def _missing(self, step_id: Any) -> OmniPrefixCacheUnmatchError:
        return OmniPrefixCacheUnmatchError(
            f"step context {step_id!r} missing (have {sorted(self._steps.copy())}); already consumed or never saved"
        )

    def _buffer(self, key: Key, plan: RowPlan) -> torch.Tensor:
        return allocate(self._cache.library, plan.shape(key.row_shape), key.dtype, plan.rows * key.row_bytes)


def _step_number(step_id: Any) -> int:
    """The id as a plain int, for the library; 0, which no step has, when it is no integer."""
    if type(step_id) is int:
        return step_id
    try:
        return index(step_id)
    except TypeError:
        return 0


def _overlap() -> PrefixCacheError:
    return PrefixCacheError(
        "new_step_starts and save_outputs must not overlap: another engine call of this manager is running"
    )
