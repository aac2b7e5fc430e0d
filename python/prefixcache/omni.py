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

import ctypes
import re
import struct
import threading
import weakref
from array import array
from collections.abc import Iterable, Sequence
from numbers import Integral
from operator import index
from typing import Any, Protocol

import torch

from prefixcache import _ffi
from prefixcache._buffers import ARENA_BYTES, allocate
from prefixcache._config import HIDDEN_KEY, ModelCachePolicy, PrefixCacheConfig, StageCacheOutputs
from prefixcache._device import default_eager
from prefixcache._errors import (
    OK,
    OmniPrefixCacheStagingTimeoutError,
    OmniPrefixCacheUnmatchError,
    PrefixCacheArgumentError,
    PrefixCacheError,
    error_of,
)
from prefixcache._leftovers import element_of, replicate
from prefixcache._rows import Key, KeyTable, is_step_rows, locate
from prefixcache._step import BatchLayout, RowPlan, StepContext

__all__ = [
    "HIDDEN_KEY",
    "ModelCachePolicy",
    "OmniPrefixCacheManager",
    "OmniPrefixCacheStagingTimeoutError",
    "OmniPrefixCacheUnmatchError",
    "PrefixCacheConfig",
    "StageCacheOutputs",
]

# pc_omni_save_args, pc_omni_rows, pc_omni_read, pc_omni_new_request. Packing into a
# kept buffer takes a third of a microsecond; filling a ctypes struct takes three.
_SAVE_ARGS = struct.Struct("=IIQQQQQqQQQ4Q")
_SAVE_STEP_OFFSET = 72
_STEP_ID = struct.Struct("=Q")
_ROWS = struct.Struct("=IIQqQQ")
_READ = struct.Struct("=IIqqQQ")
_NEW_REQUEST = struct.Struct("=QqQq")
_NO_KEY = 0xFFFFFFFF  # a read of no rows: only the errors of its requests


class GroupView(Protocol):
    """What the cache asks of the model runner: vLLM's full-attention KV group."""

    def batch_req_ids(self) -> list[str]:
        """Request ids in the order of the batch's rows."""

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: dict[str, int]) -> torch.Tensor:
        """KV slot of every new token, int64, concatenated in the order of ``req_ids``."""


class OmniPrefixCacheManager:
    """Rows of one engine's stage outputs, addressed by KV slot.

    Parameters
    ----------
    config: sizes; ``num_blocks`` and ``block_size`` must be the scheduler's.
    view: see :class:`GroupView`.
    eager: write rows on the calling thread. None: when CUDA is not available.

    ``new_step_starts`` and ``save_outputs`` belong to one engine thread;
    ``materialize`` and ``discard_step`` may run on any thread beside them.
    """

    def __init__(self, config: PrefixCacheConfig, view: GroupView, *, eager: bool | None = None) -> None:
        self._eager = default_eager() if eager is None else bool(eager)
        options = config.options(self._eager)
        self._lib = _ffi.load()
        cache = ctypes.c_uint64()
        self._check(self._lib.omni_create(options, cache))
        self._cache = cache.value
        # Frees the cache with its manager. Results do not depend on it.
        weakref.finalize(self, _destroy, self._lib, self._cache).atexit = False
        self._config = config
        self._view = view
        self._policy = ModelCachePolicy()
        self._keys = KeyTable(self._lib, self._cache)

        # Requests cross as numbers. An id keeps its number until it finishes.
        self._numbers: dict[str, int] = {}
        self._next_number = 1
        # The scheduler output of this step: counts, and the hits that were accepted.
        self._scheduled: dict[str, int] = {}
        self._scheduled_counts: list[int] = []
        self._hits: dict[str, int] = {}
        self._layout: BatchLayout | None = None
        self._layout_of: dict[str, int] | None = None  # the counts that _layout was made for

        # Saved and not yet consumed. One dict operation each, so no lock of its own.
        self._steps: dict[int, StepContext] = {}
        # Held by new_step_starts and save_outputs, whose buffers are kept and shared.
        self._engine = threading.Lock()
        self._save_args = bytearray(_SAVE_ARGS.size)
        self._save_args_at = _address(self._save_args)
        self._rows_args = bytearray()
        self._rows_args_at = 0

    # ------------------------------------------------------------- engine thread

    def register_policy(self, policy: ModelCachePolicy) -> None:
        """Set what the model wants cached. Model load only, before the first step.

        Raises PrefixCacheError once a step was saved.
        """
        self._check(self._lib.omni_set_policy(self._cache, 1 if policy.needs_full_hidden_states else 0))
        self._policy = policy

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
        scheduled = scheduler_output.num_scheduled_tokens
        finished = getattr(scheduler_output, "finished_req_ids", None) or ()
        arrivals = getattr(scheduler_output, "scheduled_new_reqs", None) or ()
        with _Exclusive(self._engine):
            if finished or arrivals:
                self._begin_with_changes(finished, arrivals)
            else:
                self._check(self._lib.omni_step_begin(self._cache, 0, 0, 0, 0, 0))
                self._hits = {}
            counts = list(scheduled.values())
            if counts != self._scheduled_counts or list(scheduled) != list(self._scheduled):
                self._scheduled = dict(scheduled)
                self._scheduled_counts = counts

    def _begin_with_changes(self, finished: Iterable[str], arrivals: Sequence[Any]) -> None:
        numbers = self._numbers
        gone = [r for r in dict.fromkeys(finished) if r in numbers]
        gone_numbers = array("Q", [numbers[r] for r in gone])
        # Within one output an id may finish and come back: it is a new request then.
        fresh: dict[str, int] = {}
        ids: list[str] = []
        tokens: list[int] = []
        packed: list[bytes] = []
        kept: list[array[int]] = []
        leaving = set(gone)
        for request in arrivals:
            r = request.req_id
            number = fresh.get(r) or (numbers.get(r) if r not in leaving else None)
            if number is None:
                number = fresh[r] = self._next_number + len(fresh)
            hit = max(0, int(getattr(request, "num_computed_tokens", 0) or 0))
            blocks = _hit_blocks(request, hit, self._config.block_size) if hit else array("q")
            kept.append(blocks)
            packed.append(_NEW_REQUEST.pack(number, hit, blocks.buffer_info()[0] if blocks else 0, len(blocks)))
            ids.append(r)
            tokens.append(hit)
        accepted = bytearray(max(1, len(ids)))
        status = self._lib.omni_step_begin(
            self._cache,
            gone_numbers.buffer_info()[0] if gone else 0,
            len(gone),
            b"".join(packed) if packed else 0,
            len(ids),
            _address(accepted),
        )
        if status != OK:
            raise self._error(status, {number: r for r, number in fresh.items()})
        for r in gone:
            del numbers[r]
        numbers.update(fresh)
        self._next_number += len(fresh)
        self._hits = {r: n for r, n, yes in zip(ids, tokens, accepted, strict=False) if yes}
        self._layout_of = None  # numbers may have changed

    def save_outputs(
        self,
        hidden_states: torch.Tensor | None,
        mm_outputs: dict[str, Any] | None,
        *,
        num_tokens_unpadded: int,
        num_tokens_padded: int,
    ) -> int:
        """Save this step's outputs after the forward; returns the step id.

        hidden_states: (rows >= num_tokens_unpadded, width...), or None.
        mm_outputs: name -> value. Tensors of two dimensions or more whose first is the
        number of scheduled tokens (or the padded number) are cached; everything else is
        kept for this step's ``materialize`` alone.

        The caller may overwrite its tensors afterwards. The id must be consumed exactly
        once, by ``materialize`` or ``discard_step``. All or nothing: a save that raises
        leaves no trace. Waits, for at most ``staging_claim_timeout_s``, for the former
        step's writes, for memory, and for a free staging slot.

        Raises OmniPrefixCacheUnmatchError (slots, rows or capacity do not fit the step;
        a former write failed), OmniPrefixCacheStagingTimeoutError (too many unconsumed
        steps), PrefixCacheArgumentError (a tensor or a count is malformed).
        """
        n = index(num_tokens_unpadded)
        padded = n if num_tokens_padded is None else index(num_tokens_padded)
        if n < 0:
            raise PrefixCacheArgumentError(f"num_tokens_unpadded is {n}, expected 0 or more")
        with _Exclusive(self._engine):
            layout = self._batch_layout()
            context = StepContext(layout, layout.plan(self._hits) if self._hits else layout.plain)
            slots = _slot_array(self._view.step_slots_cpu(layout.ids, layout.scheduled), n) if n else None
            sources = self._sort_outputs(context, hidden_states, mm_outputs or {}, n, padded)
            step = self._save(context, sources, slots, n)
            self._keys.publish(context.keys)
            self._hits = {}
            self._steps[step] = context
            return step

    def _batch_layout(self) -> BatchLayout:
        """This step's layout; the last step's object when nothing changed."""
        ids = self._view.batch_req_ids()
        layout = self._layout
        if layout is not None and self._layout_of is self._scheduled and layout.ids == ids:
            return layout
        ids = list(ids)
        scheduled = self._scheduled
        numbers = self._numbers
        for r in ids:
            # A request that no scheduler output announced: it has rows all the same.
            if r not in numbers:
                numbers[r] = self._next_number
                self._next_number += 1
        counts = {r: int(scheduled.get(r, 0)) for r in ids}
        self._layout = layout = BatchLayout(ids, counts, [numbers[r] for r in ids])
        self._layout_of = scheduled
        return layout

    def _sort_outputs(
        self, context: StepContext, hidden: torch.Tensor | None, mm: dict[str, Any], n: int, padded: int
    ) -> list[tuple[torch.Tensor, int, int]]:
        """Sort outputs into rows (context.keys, with where they are) and leftovers."""
        sources: list[tuple[torch.Tensor, int, int]] = []
        keys, policy = self._keys, self._policy
        if n and hidden is not None and policy.needs_full_hidden_states:
            rows = hidden.shape[0] if hidden.dim() >= 2 else 0
            if rows < n:
                raise OmniPrefixCacheUnmatchError(f"hidden_states has {rows} rows, need {n}")
            key = keys.match(HIDDEN_KEY, hidden, _ffi.JOIN_NEXT_STEP)
            if key is None:
                context.foreign_hidden = replicate("hidden_states", hidden[:n])
            else:
                sources.append(locate("hidden_states", hidden, n, key.row_bytes))
                context.keys.append(key)
        for name, value in mm.items():
            if name == HIDDEN_KEY:
                continue  # the name is reserved; such an output is dropped
            if n and is_step_rows(value, n, padded):
                schedule = _ffi.JOIN_ON_FINISH if name in policy.deferred_keys else _ffi.JOIN_NEXT_STEP
                key = keys.match(name, value, schedule)
                if key is not None:
                    sources.append(locate(name, value, n, key.row_bytes))
                    context.keys.append(key)
                    continue
                # Not one with the cached rows: handed out like any leftover, by its spans.
                value = value[:n]
            context.leftovers[name] = replicate(name, value)
        return sources

    def _save(
        self,
        context: StepContext,
        sources: list[tuple[torch.Tensor, int, int]],
        slots: torch.Tensor | None,
        n: int,
    ) -> int:
        layout, plan = context.layout, context.plan
        if len(self._rows_args) < len(sources) * _ROWS.size:
            self._rows_args = bytearray(2 * len(sources) * _ROWS.size)
            self._rows_args_at = _address(self._rows_args)
        with torch.inference_mode():
            for i, (key, (_, address, stride)) in enumerate(zip(context.keys, sources, strict=True)):
                nbytes = plan.rows * key.row_bytes
                # Small rows go to the result at once. Without the eager mode large ones
                # stay in the library, so that the engine does not pay for the copy.
                if self._eager or nbytes < ARENA_BYTES:
                    buffer = allocate(self._lib, plan.shape(key.row_shape), key.dtype, nbytes)
                    _ROWS.pack_into(
                        self._rows_args, i * _ROWS.size, key.number, 0, address, stride, buffer.data_ptr(), nbytes
                    )
                    context.buffers.append(buffer)
                else:
                    _ROWS.pack_into(self._rows_args, i * _ROWS.size, key.number, 0, address, stride, 0, 0)
                    context.buffers.append(None)
        _SAVE_ARGS.pack_into(
            self._save_args,
            0,
            _SAVE_ARGS.size,
            0,
            0,
            layout.requests.buffer_info()[0],
            layout.counts.buffer_info()[0],
            layout.num_requests,
            slots.data_ptr() if slots is not None else 0,
            n,
            self._rows_args_at,
            len(sources),
            0,
            0,
            0,
            0,
            0,
        )
        status = self._lib.omni_save(self._cache, self._save_args_at)
        if status != OK:
            raise self._error(status, {})
        return int(_STEP_ID.unpack_from(self._save_args, _SAVE_STEP_OFFSET)[0])

    # ---------------------------------------------------------------- any thread

    def materialize(self, step_id: int, req_ids: list[str]) -> StageCacheOutputs:
        """The outputs of a saved step, merged with cached prefixes, by request.

        req_ids: requests of the saved batch, in any order; a subset is fine. The step is
        used up even when this raises. Rows of one key share a buffer; they are the
        caller's, and stay valid after ``shutdown``.

        Raises OmniPrefixCacheUnmatchError: an id that was never saved or is consumed, a
        request that was not in the batch, a hit whose rows do not exist, a failed write.
        """
        context = self._take(step_id)
        layout = context.layout
        if req_ids == layout.ids:
            positions: Sequence[int] | None = None
        else:
            outside = set(req_ids).difference(layout.index)
            if outside:
                self._consume(step_id, context, [])
                raise OmniPrefixCacheUnmatchError(
                    f"materialize(step {step_id}) got req ids outside the save snapshot: {sorted(outside)[:8]}"
                )
            positions = [layout.index[r] for r in req_ids]

        buffers, reads = self._plan_reads(context, positions)
        self._consume(step_id, context, reads)
        return self._merge(context, buffers, req_ids, positions)

    def discard_step(self, step_id: int) -> None:
        """Consume a step that nobody will read; its rows reach the cache all the same.

        Works after a failed write. Raises OmniPrefixCacheUnmatchError for an id that was
        never saved or is consumed.
        """
        context = self._take(step_id)
        status = self._lib.omni_discard(self._cache, step_id)
        if status != OK:
            raise self._error(status, context.layout.names)

    def shutdown(self) -> None:
        """Wait for running work, drop what is pending, refuse further steps. Repeatable."""
        self._check(self._lib.omni_shutdown(self._cache))

    def stats(self) -> dict[str, int]:
        """Counters since creation and gauges of now, by the names of ``pc_omni_stats``.

        Not in the original. Any thread, also after shutdown.
        """
        stats = _ffi.OmniStats()
        stats.struct_size = ctypes.sizeof(stats)
        self._check(self._lib.omni_get_stats(self._cache, stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_[2:]}

    def _take(self, step_id: int) -> StepContext:
        context = self._steps.pop(step_id, None)
        if context is None:
            raise OmniPrefixCacheUnmatchError(
                f"step context {step_id} missing (have {sorted(list(self._steps))}); already consumed or never saved"
            )
        return context

    def _plan_reads(
        self, context: StepContext, positions: Sequence[int] | None
    ) -> tuple[list[tuple[RowPlan, torch.Tensor]], list[bytes]]:
        """The buffer of each key, and what the library has to put into them.

        Where save filled a buffer only hit rows are missing. Elsewhere a buffer is made
        now, for the requests asked for and no others.
        """
        plan = context.plan
        hits = [i for i in plan.hits if positions is None or i in positions]
        if not hits and None not in context.buffers:
            return [(plan, buffer) for buffer in context.buffers if buffer is not None], []
        buffers: list[tuple[RowPlan, torch.Tensor]] = []
        reads: list[bytes] = []
        wanted = range(len(plan.sizes)) if positions is None else sorted(set(positions))
        part = plan if positions is None else plan.part(wanted)
        hidden = False
        for key, buffer in zip(context.keys, context.buffers, strict=True):
            hidden |= key.name == HIDDEN_KEY
            size = key.row_bytes
            if buffer is not None:
                base = buffer.data_ptr()
                for i in hits:
                    at = base + (plan.ends[i] - plan.sizes[i]) * size
                    reads.append(_READ.pack(key.number, 0, i, 1, at, plan.sizes[i] * size))
                buffers.append((plan, buffer))
                continue
            with torch.inference_mode():
                buffer = allocate(self._lib, part.shape(key.row_shape), key.dtype, part.rows * size)
            at = buffer.data_ptr()
            for first, count in _runs(wanted):
                nbytes = sum(plan.sizes[first : first + count]) * size
                reads.append(_READ.pack(key.number, 0, first, count, at, nbytes))
                at += nbytes
            buffers.append((part, buffer))
        if not hidden and self._policy.needs_full_hidden_states:
            # A hit promises hidden rows also where this step computed none.
            reads.extend(_READ.pack(_NO_KEY, 0, i, 1, 0, 0) for i in hits)
        return buffers, reads

    def _consume(self, step_id: int, context: StepContext, reads: list[bytes]) -> None:
        packed = b"".join(reads) if reads else 0
        status = self._lib.omni_materialize(self._cache, step_id, packed, len(reads))
        if status != OK:
            raise self._error(status, context.layout.names)

    def _merge(
        self,
        context: StepContext,
        buffers: list[tuple[RowPlan, torch.Tensor]],
        req_ids: list[str],
        positions: Sequence[int] | None,
    ) -> StageCacheOutputs:
        hidden: dict[str, torch.Tensor] | None = None
        mm: dict[str, dict[str, Any]] = {}
        for key, (plan, buffer) in zip(context.keys, buffers, strict=True):
            views = plan.views(buffer)
            if positions is not None:
                views = [views[plan.place(i)] for i in positions]
            result = dict(zip(req_ids, views, strict=True))
            if key.name == HIDDEN_KEY:
                hidden = result
            else:
                mm[key.name] = result
        if context.leftovers or context.foreign_hidden is not None:
            layout = context.layout
            spans = [layout.span(i) for i in (range(layout.num_requests) if positions is None else positions)]
            if context.foreign_hidden is not None:
                hidden = self._foreign_hidden(context, req_ids, spans)
            for name, value in context.leftovers.items():
                mm[name] = {
                    r: element_of(value, start, end, layout.total)
                    for r, (start, end) in zip(req_ids, spans, strict=True)
                }
        return StageCacheOutputs(hidden, mm)

    def _foreign_hidden(
        self, context: StepContext, req_ids: list[str], spans: list[tuple[int, int]]
    ) -> dict[str, torch.Tensor]:
        """Hidden rows of another width or dtype than the cached ones: no prefix fits them."""
        for r in req_ids:
            if context.layout.index[r] in context.plan.hits:
                raise OmniPrefixCacheUnmatchError(
                    f"hit span for req {r} key={HIDDEN_KEY} is not readable (cached with another width or dtype)"
                )
        rows = context.foreign_hidden
        assert rows is not None
        return {r: rows[start:end] for r, (start, end) in zip(req_ids, spans, strict=True)}

    # -------------------------------------------------------------------- errors

    def _check(self, status: int) -> None:
        if status != OK:
            raise self._error(status, {})

    def _error(self, status: int, names: dict[int, str]) -> PrefixCacheError:
        """The library's error, with request ids where it has their numbers (``#7``)."""
        text = self._lib.error_text() or self._lib.status_name(status).decode()
        if "#" in text:
            names = {number: r for r, number in list(self._numbers.items())} | names
            text = re.sub(r"#(\d+)", lambda m: names.get(int(m[1]), m[0]), text)
        return error_of(status, text)


class _Exclusive:
    """Refuses to overlap engine calls: waiting would hide a broken contract, and a lock
    held at a fork would hang the child before the library can refuse it."""

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise PrefixCacheError(
                "new_step_starts and save_outputs must not overlap: another engine call of this manager is running"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _destroy(library: _ffi.Library, cache: int) -> None:
    library.omni_destroy(ctypes.c_uint64(cache))


def _address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _hit_blocks(request: Any, hit: int, block_size: int) -> array[int]:
    """The block ids of a hit, copied. ``block_ids`` is a list for each KV group, of which
    the first counts, or one flat list of integers."""
    blocks = getattr(request, "block_ids", None)
    if blocks is None or len(blocks) == 0:
        return array("q")
    first = blocks[0]
    if not isinstance(first, Integral) and getattr(first, "ndim", 1) != 0:
        blocks = first if first is not None else ()
    try:
        return array("q", [index(b) for b in blocks[: -(-hit // block_size)]])
    except (TypeError, OverflowError) as e:
        raise PrefixCacheArgumentError(f"block_ids of req {request.req_id}: {e}") from e


def _slot_array(slots: Any, n: int) -> torch.Tensor:
    """The step's slots as contiguous int64 in host memory; exactly ``n`` of them."""
    if not isinstance(slots, torch.Tensor):
        slots = torch.as_tensor(slots)
    if slots.numel() != n:
        raise OmniPrefixCacheUnmatchError(
            f"slot mapping covers {slots.numel()} of {n} scheduled tokens; the view and the scheduler disagree"
        )
    if slots.dtype is torch.int64 and slots.is_cpu and slots.is_contiguous():
        return slots
    if slots.is_floating_point() or slots.is_complex() or slots.dtype is torch.bool:
        raise PrefixCacheArgumentError(f"slot mapping has dtype {slots.dtype}, expected int64")
    return slots.to("cpu", torch.int64).contiguous()


def _runs(positions: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending positions as runs (first, count)."""
    runs: list[tuple[int, int]] = []
    for p in positions:
        if runs and sum(runs[-1]) == p:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((p, 1))
    return runs
