"""The coordinator: a manager, page tables, snapshots and the request state machine,
ordered on one stream.

Every step has two halves: the library decides, does its own device work and hands out
what belongs to the runtime; ``_step`` carries that out and reports, until the library
says that the step is committed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from prefixcache import PrefixCacheArgumentError, PrefixCacheError
from prefixcache._errors import BAD_HANDLE, INVALID_ARGUMENT, WRONG_STATE
from prefixcache._ffi import kept, tell
from prefixcache.context import _abi
from prefixcache.context._arguments import (
    AdmissionArgument,
    AdvanceArgument,
    address,
    flag,
    instance,
    int32,
    integer,
    integers,
    uint64,
)
from prefixcache.context._closing import Closing, Handle
from prefixcache.context._options import ContextOptionsArgument
from prefixcache.context._steps import StepLock
from prefixcache.context.cache import ContextCachePhysicalResources, HybridCacheManager
from prefixcache.context.deployment import DeploymentConfig
from prefixcache.context.request import AdmissionResult, BeginRequestResult, RequestHandle
from prefixcache.context.types import (
    ContextCacheBatchAdmission,
    ContextCacheConfig,
    ContextCacheCoordinatorStatus,
    ContextCacheDeploymentKind,
    ContextCacheSequenceAdvance,
    NoReuseReason,
    ReusePlanKind,
    SequenceStart,
)
from prefixcache.context.view import ManagerView

Status = ContextCacheCoordinatorStatus
# Waits until all work on the stream is done. 0 or None: done. Another number, or an
# exception: the device state is unknown, or the wait could not be tried.
StreamSynchronizer = Callable[[int], "int | None"]

# Coordinators that went away with a quarantined request: their memory may still be
# written to, so nothing of them is freed.
_stranded: list[object] = []


class ContextCacheCoordinator(Handle, Closing):
    """Order of calls for a request::

        begin_request -> prepare_prefill -> (prefill of each suffix) ->
        enqueue_prefill_captures -> (sample, synchronise) -> finalize_prefill_publication ->
        { prepare_decode_step -> (decode, synchronise) -> complete_decode_step ->
          [begin_batch_compaction -> (move own slot state) -> compact_batch] } -> finish

    What a runtime must handle in operation is a status. A broken contract (a call out of
    order, an argument out of range) raises a ``PrefixCacheError`` and changes nothing.
    Exceptions of the cache managers and of the synchroniser pass through; the request can
    then be finished or closed. After POISONED the handle is empty.

    Threads: steps are serialised; a step of another thread waits for the one under way.
    """

    def __init__(
        self,
        config: ContextCacheConfig,
        deployment: DeploymentConfig,
        deployment_kind: ContextCacheDeploymentKind,
        resources: ContextCachePhysicalResources,
        stream: int = 0,
        synchronizer: StreamSynchronizer | None = None,
    ) -> None:
        """Enqueues nothing. ``stream`` (a cudaStream_t, any number without a GPU) orders
        all device work. Without a synchroniser the library waits for the stream itself.
        """
        instance("config", config, ContextCacheConfig)
        instance("deployment", deployment, DeploymentConfig)
        instance("resources", resources, ContextCachePhysicalResources)
        if synchronizer is not None and not callable(synchronizer):
            raise PrefixCacheArgumentError(
                f"synchronizer: {synchronizer!r}, expected a function of the stream, or None"
            )
        self._library = _abi.load()
        self._handle = ctypes.c_uint64()
        self._resources = resources
        self._stream = uint64("stream", stream)
        self._synchronizer = synchronizer
        self._steps = StepLock()
        self._live: set[int] = set()
        options = ContextOptionsArgument(config, deployment, deployment_kind, resources, self._stream)
        self._check(self._library.context_create(ctypes.byref(options.struct), ctypes.byref(self._handle)))
        manager = ctypes.c_uint64()
        self._check(self._library.context_manager(self.handle, ctypes.byref(manager)))
        self._manager = ManagerView(self._library, manager)

    @property
    def handle(self) -> int:
        """pc_handle of the coordinator; 0 once it is closed."""
        return self._handle.value

    def manager(self) -> ManagerView:
        """Records, pools, checker and dump; also ``invalidate`` and ``flush``."""
        return self._manager

    def metrics(self) -> dict[str, Any]:
        """Counters since creation, and occupancy now: those of the coordinator, then
        those of :meth:`ManagerView.metrics`."""
        raw = _abi.sized(_abi.ContextMetrics)
        self._check(self._library.context_get_metrics(self.handle, ctypes.byref(raw)))
        out: dict[str, Any] = {name: getattr(raw, name) for name in _abi.METRICS}
        out["poisoned"] = bool(raw.poisoned)
        return out | self._manager.metrics()

    # -------------------------------------------------------------------- steps

    def begin_request(self, admission: ContextCacheBatchAdmission, stream: int | None = None) -> BeginRequestResult:
        """Looks up, pins and allocates for a whole batch, or for none of it.

        REQUEST_FAILED: as many requests as allowed are live, or there is no capacity now.
        ``stream`` must be the coordinator's; None stands for it.
        """
        argument = AdmissionArgument(admission, self._stream if stream is None else stream)
        starts = (_abi.SequenceStart * max(1, argument.struct.num_sequences))()
        handle, request = RequestHandle(self, 0), ctypes.c_uint64()
        with self._steps.exclusive("begin_request"):
            try:
                code = self._library.context_begin(
                    self.handle, ctypes.byref(argument.struct), starts, ctypes.byref(request)
                )
            finally:  # also when a signal handler raises: what was admitted has a handle that can be dropped
                handle._handle = request.value
            self._live.add(request.value)
            status = self._status(code)
        if status is not Status.OK:
            return BeginRequestResult(status)
        sequences = [
            SequenceStart(
                prefill_start=s.prefill_start,
                matched_token_length=s.matched,
                kind=ReusePlanKind(s.kind),
                reason=NoReuseReason(s.reason),
                forced_cold=bool(s.forced_cold),
                skipped_media_positions=s.skipped_media,
            )
            for s in starts[: argument.struct.num_sequences]
        ]
        return BeginRequestResult(status, AdmissionResult(handle, [s.prefill_start for s in sequences], sequences))

    def prepare_prefill(self, request: RequestHandle) -> Status:
        """Binds every row and resets the lengths to the reuse boundaries. Once, first."""
        return self._step(request, "prepare_prefill", self._library.context_prepare_prefill)

    def enqueue_prefill_captures(self, request: RequestHandle) -> Status:
        """Hybrid: reserves and captures prefill-end snapshots, before the runtime
        synchronises the prefill. Other kinds: nothing."""
        return self._step(request, "enqueue_prefill_captures", self._library.context_capture_prefill)

    def finalize_prefill_publication(
        self,
        request: RequestHandle,
        advances: Sequence[ContextCacheSequenceAdvance],
        common_state_lengths: Sequence[int] | None = None,
    ) -> Status:
        """After the prefill was synchronised: takes one token per sequence and publishes
        the prompts. EAGLE gives the lengths that base and draft have in common; its
        prompts are published with the next step."""
        argument = AdvanceArgument(advances, common_state_lengths)
        return self._step(
            request,
            "finalize_prefill_publication",
            self._library.context_finalize_prefill,
            ctypes.byref(argument.struct),
        )

    def prepare_decode_step(self, request: RequestHandle, base_headroom: int = 0, draft_headroom: int = 0) -> Status:
        """Grows and uploads the rows that the next step needs.

        Headroom: tokens that the step may write beyond the committed ones; 0: the
        default of the deployment. REQUEST_FAILED: no pages, or a row is full; only
        ``finish`` makes sense then.
        """
        return self._step(
            request,
            "prepare_decode_step",
            self._library.context_prepare_decode,
            int32("base_headroom", base_headroom),
            int32("draft_headroom", draft_headroom),
        )

    def complete_decode_step(
        self,
        request: RequestHandle,
        advances: Sequence[ContextCacheSequenceAdvance],
        publishable_completed_slots: Sequence[int] = (),
        common_state_lengths: Sequence[int] | None = None,
    ) -> Status:
        """After the step was synchronised: takes the accepted tokens; publishes the slots
        that are complete."""
        argument = AdvanceArgument(advances, common_state_lengths, publishable_completed_slots)
        return self._step(
            request, "complete_decode_step", self._library.context_complete_decode, ctypes.byref(argument.struct)
        )

    def begin_batch_compaction(
        self,
        request: RequestHandle,
        old_to_new: Sequence[int],
        new_batch_size: int,
        device_batch_mapping: Any = None,
    ) -> Status:
        """Validates the mapping (-1 retires, survivors keep their order) and uploads it.

        ``device_batch_mapping`` receives it: a writable buffer of at least as many int32
        (kept alive and to be left alone until ``compact_batch``), an address, or None.
        """
        mapping = integers("old_to_new", old_to_new)
        at, keep = _int32_room(device_batch_mapping, len(mapping))
        status = self._step(
            request,
            "begin_batch_compaction",
            self._library.context_begin_compaction,
            address(mapping),
            len(mapping),
            int32("new_batch_size", new_batch_size),
            at,
        )
        if status is Status.OK:
            request._mapping = keep
        return status

    def compact_batch(self, request: RequestHandle) -> Status:
        """Moves slot state and rows, synchronises, lets retired sequences go."""
        status = self._step(request, "compact_batch", self._library.context_compact)
        request._mapping = None
        return status

    def move_slot_state(self, old_to_new: Sequence[int], *, draft: bool = False, lengths: int = 0) -> None:
        """For a ``compact_slot_state`` without a kernel: moves the recurrent and convolution
        state (base cache only) and the int32 at the address ``lengths`` with ordered
        copies on the stream. To be called from inside that callback."""
        mapping = integers("old_to_new", old_to_new)
        model, at = (_abi.DRAFT if flag("draft", draft) else _abi.BASE), uint64("lengths", lengths)
        self._check(self._library.context_move_slots(self.handle, model, address(mapping), len(mapping), at))

    def finish(self, request: RequestHandle) -> Status:
        """Ends a request normally, in any phase. An empty handle is fine."""
        if not instance("request", request, RequestHandle).valid():
            return Status.OK
        return self._step(request, "finish", self._library.context_finish)

    def shutdown(self) -> Status:
        """Drains quarantined ownership, before physical caches are freed. Repeatable;
        a poisoned coordinator stays poisoned (D-7)."""
        with self._steps.exclusive("shutdown"):
            code = self._library.context_shutdown(self.handle, 0)
            if code == Status.POISONED and self._drain():
                code = self._library.context_shutdown(self.handle, 1)
            return self._status(code)

    # ----------------------------------------------------------------- the walk

    def _step(self, request: RequestHandle, name: str, call: Callable[..., int], *arguments: Any) -> Status:
        """Runs one step to its end: the library's part, and the work it hands out."""
        with self._steps.exclusive(name):
            if not instance("request", request, RequestHandle).valid():
                raise PrefixCacheArgumentError(f"{name}: the request handle is empty")
            if request._coordinator is not self:
                raise PrefixCacheArgumentError(f"{name}: the request belongs to another coordinator")
            # A callback may close the handle; the step is brought to its end all the same.
            number, work = request.handle, _abi.sized(_abi.Work)
            try:
                code = call(self.handle, number, *arguments, ctypes.byref(work))
                while code == 0 and work.count:
                    outcome = self._carry_out(work)
                    code = self._library.context_report(self.handle, number, outcome, ctypes.byref(work))
                status = self._status(code)
                if status is Status.POISONED or call is self._library.context_finish:
                    # Quarantined by the library, or over.
                    request._handle, request._mapping = 0, None
                    self._live.discard(number)
                if kept:
                    tell()
                return status
            except BaseException:
                self._break_off(request, work)
                raise

    def _break_off(self, request: RequestHandle, work: Any) -> None:
        """Ends a step whose work raised, or that a signal handler ended between two calls."""
        number, info = request.handle, _abi.sized(_abi.RequestInfo)
        if not number:
            return
        if work.count:
            self._library.context_report(self.handle, number, _abi.WORK_FAILED, ctypes.byref(work))
        if self._library.context_get_request(self.handle, number, ctypes.byref(info)) == BAD_HANDLE:
            # Over, or in quarantine.
            request._handle, request._mapping = 0, None
            self._live.discard(number)

    def _carry_out(self, work: Any) -> int:
        for item in work.items[: work.count]:
            if item.op == _abi.WORK_SYNCHRONIZE:
                if not self._synchronize():
                    return _abi.WORK_SYNC_FAILED
                continue
            cache = self._cache(item.model)
            if item.op == _abi.WORK_RESET_LENGTHS:
                cache.reset_for_new_sequences(item.values[: item.count], item.slots[: item.count], self._stream)
            elif item.op == _abi.WORK_COMPACT_SLOTS:
                mapping = item.values[: item.count]
                survivors = sum(slot >= 0 for slot in mapping)
                cache.compact_slot_state(mapping, survivors, item.device_values, self._stream)
            elif item.op == _abi.WORK_SET_BATCH:
                cache.set_active_batch_size(item.count)
            else:
                raise PrefixCacheError(f"work item {item.op} is unknown: the library is newer than this package")
        return _abi.WORK_DONE

    def _cache(self, model: int) -> HybridCacheManager:
        cache = self._resources.draft_cache if model == _abi.DRAFT else self._resources.base_cache
        assert cache is not None
        return cache

    def _synchronize(self) -> bool:
        if self._synchronizer is None:
            status = self._library.context_synchronize(self.handle)
            if status in (WRONG_STATE, INVALID_ARGUMENT):
                self._check(status)  # it was not tried, which says nothing about the device
            return bool(status == 0)
        answer = self._synchronizer(self._stream)
        if answer is None:
            return True
        if isinstance(answer, bool):  # True could mean either
            raise PrefixCacheArgumentError(f"synchronizer: {answer}, expected None or a cudaError_t number")
        return integer("synchronizer", answer, -(2**63), 2**63 - 1) == 0

    def _drain(self) -> bool:
        """A synchronisation whose exceptions are failures (C-104, C-107)."""
        try:
            return self._synchronize()
        except Exception:
            return False

    def _abandon(self, number: int) -> None:
        """The abnormal exit of a request whose handle was dropped."""
        info, drained = _abi.sized(_abi.RequestInfo), False
        self._live.discard(number)
        try:
            if self._library.context_get_request(self.handle, number, ctypes.byref(info)) == 0 and info.pending:
                drained = self._drain()
        finally:
            if self._library.context_abandon(self.handle, number, int(drained)) < 0 and drained:
                # This thread has waited for a stream of its own, not for the one that the request's work
                # is on: nobody knows what is still written. Nobody else knows the request any more.
                self._library.context_abandon(self.handle, number, 0)

    def _status(self, code: int) -> Status:
        """An outcome as a status; everything else is raised."""
        if code in (Status.REQUEST_FAILED, Status.POISONED):
            return Status(code)
        self._check(code)
        return Status.OK

    # ------------------------------------------------------------------------- end

    def close(self) -> None:
        """Frees the coordinator. A live or quarantined request makes it an error
        (PC_ERROR_BUSY, -36) that frees nothing (C-108): device work may still run on
        memory that would go. Repeatable."""
        with self._steps.exclusive("close"):
            status = self._library.context_destroy(ctypes.byref(self._handle))
            if not self._handle.value:  # also where not everything could be given back
                self._manager._handle.value = 0  # went with it
            self._check(status)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is None or not handle.value:
            return
        # Handles refer to their coordinator: one that is live here goes away with it.
        for number in list(self._live):
            self._abandon(number)
        self._library.context_destroy(ctypes.byref(handle))
        if handle.value:
            _stranded.append(self._resources)
        elif (view := getattr(self, "_manager", None)) is not None:
            view._handle.value = 0


def _int32_room(target: Any, count: int) -> tuple[int, object]:
    """Address of room for ``count`` int32, and what keeps it alive."""
    if target is None:
        return 0, None
    if isinstance(target, int):
        return uint64("device_batch_mapping", target), None
    try:
        view = memoryview(target)
        if view.itemsize != 4 or view.format.lstrip("<=@") not in ("i", "l"):
            raise TypeError(f"elements of format {view.format}")
        room = (ctypes.c_int32 * count).from_buffer(target)
    except (TypeError, ValueError, BufferError) as e:
        raise PrefixCacheArgumentError(
            f"device_batch_mapping: {e}, expected a writable buffer of at least {count} int32"
        ) from e
    return ctypes.addressof(room) if count else 0, room
