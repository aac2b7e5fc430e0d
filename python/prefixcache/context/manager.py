"""The manager level: which pages hold which prefix, and who uses them.

For a runtime with a coordinator of its own. Host memory only, no device work: whoever
publishes has made sure that the state is in the cache (C-61).

A lease's walk: ``acquire``, (compute), ``publish``, then for each step ``append`` and
``grow``, ``publish`` once more, ``release``. Hybrid models publish snapshots instead:
``reserve``, (capture), ``publish_hybrid``, ``retire``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from prefixcache._errors import BAD_HANDLE
from prefixcache.context import _abi
from prefixcache.context._arguments import (
    SequenceArgument,
    address,
    flag,
    hashes,
    instance,
    int32,
    integer,
    integers,
    to_hash,
)
from prefixcache.context._closing import Closing
from prefixcache.context.lease import AcquireResult, CacheRequestLease
from prefixcache.context.types import (
    AcquireStatus,
    BlockKeySequence,
    ContextCacheLookupPolicy,
    ContextCacheSequenceAdmission,
    Hash128,
    HybridCheckpointKey,
    HybridSnapshotReservation,
    Publication,
    PublishStatus,
    ReusePlanMode,
    Tokens,
)
from prefixcache.context.view import ManagerView, to_plan

REQUEST_FAILED = 1  # PC_REQUEST_FAILED: no capacity


class ContextCacheManager(ManagerView, Closing):
    """A manager of one's own. Errors are ``PrefixCacheError``; nothing has changed then.

    Any thread may call; the library serialises. Capacity that does not suffice is a
    status or None, not an error.
    """

    def __init__(
        self,
        *,
        base_pages: int,
        draft_pages: int = 0,
        recurrent_slots: int = 0,
        partial_slots: int = 0,
        tokens_per_page: int = 128,
        max_records: int = 1024,
        original_recency: bool = False,
        block_keys: bool = False,
        shorten_victims: bool = False,
        weak_hash: bool = False,
        tenant_quota: int = 0,
        zero_on_release: bool = False,
    ) -> None:
        """Capacities of the four pools.

        ``max_records`` 0 keeps none. ``original_recency``: a vanilla hit does not make
        its record most recent. ``block_keys``: sequences are named by keys of the caller,
        which are trusted; without it by tokens, which are compared. ``shorten_victims``: an
        eviction takes no more of a record than it needs, and leaves its prefix cached.
        ``tenant_quota``: per mille of pages and records that one isolation key may hold
        (:meth:`set_quota`); 1000 counts tenants without limiting them, 0 does neither.
        ``zero_on_release``: tokens are cleared once nothing can find them.
        ``weak_hash`` is for tests: every table lookup collides.
        """
        options = _abi.sized(_abi.ManagerOptions)
        for bit, name, value in (
            (_abi.ORIGINAL_RECENCY, "original_recency", original_recency),
            (_abi.BLOCK_KEYS, "block_keys", block_keys),
            (_abi.SHORTEN_VICTIMS, "shorten_victims", shorten_victims),
            (_abi.WEAK_HASH, "weak_hash", weak_hash),
            (_abi.ZERO_ON_RELEASE, "zero_on_release", zero_on_release),
        ):
            options.flags |= bit * flag(name, value)
        options.tenant_quota = integer("tenant_quota", tenant_quota, 0, 1000)
        options.tokens_per_page = integer("tokens_per_page", tokens_per_page, 1, 2**31 - 1)
        options.max_records = integer("max_records", max_records, 0, 2**31 - 1) or -1
        options.base_pages = int32("base_pages", base_pages)
        options.draft_pages = int32("draft_pages", draft_pages)
        options.recurrent_slots = int32("recurrent_slots", recurrent_slots)
        options.partial_slots = int32("partial_slots", partial_slots)
        super().__init__(_abi.load(), ctypes.c_uint64())
        self.tokens_per_page = tokens_per_page
        self._check(self._library.manager_create(ctypes.byref(options), ctypes.byref(self._handle)))

    def acquire(
        self,
        sequence: ContextCacheSequenceAdmission | BlockKeySequence | Tokens,
        mode: ReusePlanMode = ReusePlanMode.VANILLA,
        lookup: ContextCacheLookupPolicy = ContextCacheLookupPolicy.USE_CACHE,
    ) -> AcquireResult:
        """Looks up, pins what is shared, allocates the rest; evicts if needed (C-50)."""
        argument, plan, handle = SequenceArgument(sequence), _abi.sized(_abi.Plan), ctypes.c_uint64()
        lease = CacheRequestLease(self, handle)  # before there is one: a signal handler may raise as soon as there is
        status = self._library.manager_acquire(
            self.handle,
            integer("mode", mode, 0, 2**32 - 1),
            integer("lookup", lookup, 0, 2**32 - 1),
            ctypes.byref(argument.struct),
            ctypes.byref(plan),
            None,
            0,
            None,
            0,
            ctypes.byref(handle),
        )
        if status == REQUEST_FAILED:
            return AcquireResult(AcquireStatus.INSUFFICIENT_CAPACITY, None, to_plan(plan))
        self._check(status)
        return AcquireResult(AcquireStatus.ACQUIRED, lease, to_plan(plan))

    def append(self, lease: CacheRequestLease, token_ids: Tokens) -> None:
        """Adds tokens to the history of a lease. They need no page yet."""
        tokens = integers("token_ids", token_ids)
        self._check(self._library.manager_append(self.handle, _handle(lease), address(tokens), len(tokens)))

    def grow(self, lease: CacheRequestLease, base: int, draft: int = 0) -> bool:
        """Appends private pages, both pools or neither (C-54); False: no capacity."""
        status = self._library.manager_grow(
            self.handle, _handle(lease), int32("base", base), int32("draft", draft), None, None
        )
        if status == REQUEST_FAILED:
            return False
        self._check(status)
        return True

    def publish(self, lease: CacheRequestLease, resident_length: int) -> Publication:
        """Publishes the full blocks of the first ``resident_length`` tokens (vanilla, spec)."""
        out, resident = _abi.sized(_abi.Publication), integer("resident_length", resident_length, -(2**63), 2**63 - 1)
        self._check(self._library.manager_publish(self.handle, _handle(lease), resident, ctypes.byref(out)))
        return _to_publication(out)

    def advance(
        self, lease: CacheRequestLease, token_ids: Tokens, *, resident_length: int = 0, base: int = 0, draft: int = 0
    ) -> tuple[Publication | None, bool]:
        """The end of one step in one call: ``append``, then ``publish`` unless
        ``resident_length`` is 0, then ``grow``.

        What it published, and False when there was no capacity to grow: the tokens and the
        publication are done then. After an error, so are the parts before the one that failed.
        """
        tokens, out = integers("token_ids", token_ids), _abi.sized(_abi.Publication)
        status = self._library.manager_advance(
            self.handle,
            _handle(lease),
            address(tokens),
            len(tokens),
            integer("resident_length", resident_length, -(2**63), 2**63 - 1),
            int32("base", base),
            int32("draft", draft),
            None,
            None,
            ctypes.byref(out),
        )
        if status != REQUEST_FAILED:
            self._check(status)
        return _to_publication(out) if resident_length else None, status != REQUEST_FAILED

    def publish_keys(
        self, lease: CacheRequestLease, first: int, keys: Sequence[Hash128], resident_length: int
    ) -> Publication:
        """``publish`` with block keys: ``keys[0]`` is that of block ``first``."""
        out, values = _abi.sized(_abi.Publication), hashes("keys", keys)
        self._check(
            self._library.manager_publish_keys(
                self.handle,
                _handle(lease),
                integer("first", first, 0, 2**64 - 1),
                address(values),
                len(values) // 2,
                integer("resident_length", resident_length, -(2**63), 2**63 - 1),
                ctypes.byref(out),
            )
        )
        return _to_publication(out)

    def reserve(self, lease: CacheRequestLease, need_partial: bool) -> HybridSnapshotReservation | None:
        """Snapshot slots for one capture; None when all are in use. For a lease that was flushed
        or invalidated nothing is evicted: None when none is free."""
        recurrent, partial = ctypes.c_int32(), ctypes.c_int32()
        status = self._library.manager_reserve(
            self.handle,
            _handle(lease),
            flag("need_partial", need_partial),
            ctypes.byref(recurrent),
            ctypes.byref(partial),
        )
        if status == REQUEST_FAILED:
            return None
        self._check(status)
        return HybridSnapshotReservation(recurrent.value, partial.value if partial.value >= 0 else None)

    def publish_hybrid(
        self, lease: CacheRequestLease, length: int, reservation: HybridSnapshotReservation
    ) -> Publication:
        """Publishes a snapshot of the first ``length`` tokens. It must have been written."""
        out, size = _abi.sized(_abi.Publication), integer("length", length, -(2**63), 2**63 - 1)
        recurrent, partial = _slots(reservation)
        self._check(
            self._library.manager_publish_hybrid(
                self.handle, _handle(lease), size, recurrent, partial, ctypes.byref(out)
            )
        )
        return _to_publication(out)

    def publish_hybrid_keys(
        self,
        lease: CacheRequestLease,
        first: int,
        keys: Sequence[Hash128],
        checkpoint: HybridCheckpointKey,
        reservation: HybridSnapshotReservation,
    ) -> Publication:
        """``publish_hybrid`` with block keys and the caller's digest of the snapshot."""
        out, values = _abi.sized(_abi.Publication), hashes("keys", keys)
        instance("checkpoint", checkpoint, HybridCheckpointKey)
        point = _abi.Checkpoint(
            to_hash("checkpoint.digest", checkpoint.digest),
            integer("checkpoint.token_length", checkpoint.token_length, -(2**63), 2**63 - 1),
        )
        recurrent, partial = _slots(reservation)
        self._check(
            self._library.manager_publish_hybrid_keys(
                self.handle,
                _handle(lease),
                integer("first", first, 0, 2**64 - 1),
                address(values),
                len(values) // 2,
                ctypes.byref(point),
                recurrent,
                partial,
                ctypes.byref(out),
            )
        )
        return _to_publication(out)

    def retire(self, lease: CacheRequestLease, reservation: HybridSnapshotReservation) -> None:
        """Gives up the lease's hold on reserved slots; published ones stay (C-62)."""
        self._check(self._library.manager_retire(self.handle, _handle(lease), *_slots(reservation)))

    def release_restored(self, lease: CacheRequestLease) -> None:
        """Gives up the hold on the snapshots that the hit bound, once restored."""
        self._check(self._library.manager_release_restored(self.handle, _handle(lease)))

    def release(self, lease: CacheRequestLease) -> None:
        """Ends a lease; an empty one is fine, and so is one that went with this manager."""
        handle = instance("lease", lease, CacheRequestLease)._handle
        status = self._library.manager_release(self.handle, ctypes.byref(handle))
        if status == BAD_HANDLE and not self.handle and lease.manager is self:
            handle.value = 0
            return
        self._check(status)

    def _lease_pages(self, lease: CacheRequestLease, model: int) -> list[int]:
        call, count = self._library.manager_lease_pages, ctypes.c_uint64()
        self._check(call(self.handle, _handle(lease), model, 0, None, 0, ctypes.byref(count)))
        out = (ctypes.c_int32 * count.value)()
        self._check(call(self.handle, _handle(lease), model, 0, out, len(out), ctypes.byref(count)))
        return list(out[: count.value])

    def close(self) -> None:
        """Frees the manager and every lease of it. Repeatable."""
        self._check(self._library.manager_destroy(ctypes.byref(self._handle)))

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and handle.value:
            self._library.manager_destroy(ctypes.byref(handle))


def _handle(lease: CacheRequestLease) -> int:
    return instance("lease", lease, CacheRequestLease).handle


def _slots(reservation: HybridSnapshotReservation) -> tuple[int, int]:
    partial = instance("reservation", reservation, HybridSnapshotReservation).partial_kv_slot
    return (
        int32("reservation.recurrent_slot", reservation.recurrent_slot),
        -1 if partial is None else int32("reservation.partial_kv_slot", partial),
    )


def _to_publication(out: _abi.Publication) -> Publication:
    return Publication(PublishStatus(out.status), out.record or None, out.blocks, bool(out.stale))
