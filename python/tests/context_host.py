"""A small runtime in host memory for the context tests.

What it "computes" is a function of the prefix: four bytes for each position, chained over
tokens, media and extras. Whatever the cache says is reused is checked against that, in
the pages that the device copy of the table names; the rest is written there. So every
test that runs a request also checks every byte that it reuses.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

from prefixcache.context import (
    AttentionShape,
    BlockKeyExtras,
    ContextCacheBatchAdmission,
    ContextCacheCommitPolicy,
    ContextCacheConfig,
    ContextCacheCoordinator,
    ContextCacheCoordinatorStatus,
    ContextCacheDeploymentKind,
    ContextCacheExecutionMode,
    ContextCacheLookupPolicy,
    ContextCachePhysicalResources,
    ContextCacheSequenceAdmission,
    ContextCacheSequenceAdvance,
    DeploymentConfig,
    Hash128,
    HostCacheManager,
    KVPageTable,
    ModelConfig,
    RecurrentShape,
    RequestHandle,
    SpecConfig,
)

Kind = ContextCacheDeploymentKind
Status = ContextCacheCoordinatorStatus

STREAM = 0x51
VERIFY, STEP, TOP_K = 3, 2, 1  # of EAGLE
KV = AttentionShape(kv_heads=1, head_dim=2)  # four bytes a token
STATE = RecurrentShape(heads=1, head_dim=1, state_size=2, conv_dim=1, conv_kernel=2)


class Synchronizer:
    """Whose next answers a test chooses; it counts."""

    def __init__(self, stream: int = STREAM) -> None:
        self.stream = stream
        self.calls = 0
        self.answer: int | None = 0
        self.error: Exception | None = None
        self.hook: Callable[[], None] | None = None

    def __call__(self, stream: int) -> int | None:
        assert stream == self.stream
        self.calls += 1
        if self.hook is not None:
            self.hook()
        if self.error is not None:
            raise self.error
        return self.answer


class Cache(HostCacheManager):
    """A host cache that keeps a log and fails on demand."""

    def __init__(self, **shape: object) -> None:
        super().__init__(**shape)  # type: ignore[arg-type]
        self.log: list[tuple] = []
        self.fail_on = ""

    def _note(self, name: str, *rest: object) -> None:
        self.log.append((name, *rest))
        if name == self.fail_on:
            raise OSError(f"injected: {name}")

    def reset_for_new_sequences(self, lengths, slots, stream):
        self._note("reset", lengths, slots)
        super().reset_for_new_sequences(lengths, slots, stream)

    def compact_slot_state(self, old_to_new, new_batch_size, device_mapping, stream):
        self._note("compact", old_to_new, new_batch_size)
        super().compact_slot_state(old_to_new, new_batch_size, device_mapping, stream)

    def set_active_batch_size(self, batch_size):
        self._note("batch", batch_size)
        super().set_active_batch_size(batch_size)


def sequence(tokens, extras: BlockKeyExtras | None = None, media: Sequence[Hash128 | None] = ()):
    return ContextCacheSequenceAdmission(tokens, extras, media)


def prompt(n: int, seed: int = 0) -> list[int]:
    """n tokens that begin like any other prompt of the same seed, and like no other."""
    return [seed * 100_000 + i for i in range(n)]


class Row:
    """One sequence: its whole identity, and what a model would have computed."""

    def __init__(self, s: ContextCacheSequenceAdmission) -> None:
        self.tokens = list(s.token_ids)
        self.media = list(s.per_position_media_hash)
        self.salt = repr(s.key_extras or BlockKeyExtras()).encode()
        self.codes = [zlib.crc32(self.salt)]
        self.committed = self.common = 0

    def code(self, length: int) -> bytes:
        """What depends on exactly the first ``length`` tokens."""
        while len(self.codes) <= length:
            at = len(self.codes) - 1
            m = self.media[at] if at < len(self.media) else None
            item = b"m" + struct.pack("<QQ", *m) if m and tuple(m) != (0, 0) else struct.pack("<i", self.tokens[at])
            self.codes.append(zlib.crc32(item, self.codes[-1]))
        return struct.pack("<I", self.codes[length])


class Live:
    """A request under way. ``request`` may be closed or dropped by a test at any time."""

    def __init__(self, rig: Rig, admission: ContextCacheBatchAdmission) -> None:
        self.rig = rig
        self.begun = rig.coordinator.begin_request(admission, rig.stream)
        assert self.begun.status is Status.OK, self.begun.status
        self.request: RequestHandle = self.begun.admission.request
        self.starts = self.begun.admission.prefill_starts
        self.sequences = self.begun.admission.sequences
        self.eagle = admission.execution_mode == ContextCacheExecutionMode.EAGLE
        self.rows = [Row(s) for s in admission.sequences]
        slots = admission.slots if admission.slots is not None else range(len(self.rows))
        self.slots = list(slots)

    def prepare(self) -> Status:
        status = self.rig.coordinator.prepare_prefill(self.request)
        for row, slot, start in zip(self.rows, self.slots, self.starts, strict=True):
            assert self.rig.base.lengths[slot] == start
            self.rig.check(row, slot, start, self.eagle)
            row.committed = row.common = start
        return status

    def compute(self) -> None:
        for row, slot in zip(self.rows, self.slots, strict=True):
            self.rig.write_base(row, slot, row.committed, len(row.tokens))

    def capture(self) -> Status:
        return self.rig.coordinator.enqueue_prefill_captures(self.request)

    def finalize(self, token: int = 7) -> Status:
        advances, common = [], []
        self.rig.synchronize()
        for row, slot in zip(self.rows, self.slots, strict=True):
            n = len(row.tokens)
            advances.append(ContextCacheSequenceAdvance([token], n))
            row.tokens.append(token)
            if self.eagle:
                self.rig.write_draft(row, slot, row.committed, n)
            row.committed = row.common = n
            common.append(n)
        return self.rig.coordinator.finalize_prefill_publication(self.request, advances, common if self.eagle else None)

    def prefill(self) -> Live:
        assert self.prepare() is Status.OK
        self.compute()
        assert self.capture() is Status.OK
        assert self.finalize() is Status.OK
        return self

    def prepare_decode(self) -> Status:
        return self.rig.coordinator.prepare_decode_step(self.request)

    def complete(self, accepted: Sequence[Sequence[int]], publish: Sequence[int] = ()) -> Status:
        advances, common = [], []
        for row, slot, tokens in zip(self.rows, self.slots, accepted, strict=True):
            before = row.committed
            row.committed += len(tokens)
            row.tokens += tokens
            self.rig.write_base(row, slot, before, row.committed)
            if self.eagle:  # the draft takes in accepted tokens at the start of the next round
                self.rig.write_draft(row, slot, row.common, before)
                row.common = before
                common.append(before)
            advances.append(ContextCacheSequenceAdvance(list(tokens), row.committed))
        self.rig.synchronize()
        return self.rig.coordinator.complete_decode_step(
            self.request, advances, publish, common if self.eagle else None
        )

    def decode(self, accepted: Sequence[Sequence[int]], publish: Sequence[int] = ()) -> Live:
        assert self.prepare_decode() is Status.OK
        assert self.complete(accepted, publish) is Status.OK
        return self

    def begin_compaction(self, old_to_new: Sequence[int], device_mapping: int | None = None) -> Status:
        kept = sum(new >= 0 for new in old_to_new)
        return self.rig.coordinator.begin_batch_compaction(self.request, old_to_new, kept, device_mapping)

    def end_compaction(self, old_to_new: Sequence[int]) -> Status:
        status = self.rig.coordinator.compact_batch(self.request)
        if status is Status.OK:
            self.rows = [row for row, new in zip(self.rows, old_to_new, strict=True) if new >= 0]
            self.slots = list(range(len(self.rows)))
        return status

    def compact(self, old_to_new: Sequence[int]) -> Live:
        assert self.begin_compaction(old_to_new) is Status.OK
        assert self.end_compaction(old_to_new) is Status.OK
        return self

    def check(self) -> None:
        """All that is committed is still in the pages."""
        for row, slot in zip(self.rows, self.slots, strict=True):
            self.rig.check(row, slot, row.committed, self.eagle, row.common)

    def finish(self) -> Status:
        return self.rig.coordinator.finish(self.request)


class Rig:
    """A coordinator with everything around it."""

    coordinator_class = ContextCacheCoordinator
    stream = STREAM
    host_memory = True

    def __init__(
        self,
        kind: Kind = Kind.VANILLA,
        *,
        pages: int = 64,
        max_batch: int = 4,
        width: int = 16,
        tokens_per_page: int = 128,
        max_records: int = 1024,
        snapshots: int = 8,
        requests: int = 1,
        draft_batch: int | None = None,
        original_recency: bool = False,
        shorten_victims: bool = False,
        weak_hash: bool = False,
    ) -> None:
        self.kind, self.p = kind, tokens_per_page
        attention = [KV] if kind != Kind.PURE_RECURRENT else []
        recurrent = [STATE, STATE] if kind in (Kind.HYBRID, Kind.PURE_RECURRENT) else []
        shape = {"num_pages": pages, "max_pages_per_seq": width, "tokens_per_page": tokens_per_page}
        self.base = self.new_cache(
            max_batch_size=max_batch, attention=attention, recurrent=recurrent, **(shape if attention else {})
        )
        self.table = KVPageTable(max_batch, width, pages, host_memory=self.host_memory) if attention else None
        self.draft = self.draft_table = None
        deployment = DeploymentConfig(ModelConfig(max_batch_size=max_batch))
        if kind == Kind.EAGLE:
            draft_batch = max_batch if draft_batch is None else draft_batch
            self.draft = self.new_cache(max_batch_size=draft_batch, attention=attention, **shape)
            self.draft_table = KVPageTable(draft_batch, width, pages, host_memory=self.host_memory)
            deployment.draft = ModelConfig(max_batch_size=draft_batch)
            deployment.spec = SpecConfig(VERIFY, STEP, TOP_K, [0])
        config = ContextCacheConfig(
            enabled=True,
            max_records=max_records,
            tokens_per_page=tokens_per_page,
            max_requests=requests,
            original_recency=original_recency,
            shorten_victims=shorten_victims,
            weak_hash=weak_hash,
            host_memory=self.host_memory,
            recurrent_snapshot_budget_bytes=snapshots * self.base.recurrent_slot_bytes(),
            partial_kv_snapshot_budget_bytes=snapshots * self.base.partial_slot_bytes() if recurrent else 0,
        )
        resources = ContextCachePhysicalResources(self.base, self.table, self.draft, self.draft_table)
        self.sync = self.new_synchronizer()
        self.coordinator = self.coordinator_class(config, deployment, kind, resources, self.stream, self.sync)
        self.manager = self.coordinator.manager()

    # ------------------------------------------------------------ device memory

    def new_cache(self, **shape: object) -> Cache:
        return Cache(**shape)

    def new_synchronizer(self) -> Synchronizer:
        return Synchronizer()

    def synchronize(self) -> None:
        """The runtime waits for what it has computed."""

    def page(self, slot: int, at: int, draft: bool = False) -> int:
        table = self.draft_table if draft else self.table
        page = table.device_row(slot)[0][at]
        assert page >= 0, f"slot {slot} has no page {at}"
        return page

    def write_base(self, row: Row, slot: int, first: int, last: int) -> None:
        if self.table is not None:
            page = -1
            for at in range(first, last):
                page = self.page(slot, at // self.p) if at == first or at % self.p == 0 else page
                for half in (page, page + self.base.num_pages):
                    self.base.k_token(half, at % self.p)[:] = row.code(at + 1)
        for layer in range(len(self.base.recurrent)):
            self.base.state_of(slot, layer)[:] = row.code(last) * 2
            self.base.conv_of(slot, layer)[:] = row.code(last)

    def write_draft(self, row: Row, slot: int, first: int, last: int) -> None:
        """Draft state of a position depends on the token after it as well."""
        for at in range(first, last):
            page = self.page(slot, at // self.p, draft=True)
            self.draft.k_token(page, at % self.p)[:] = row.code(at + 2)

    def check(self, row: Row, slot: int, length: int, eagle: bool, common: int | None = None) -> None:
        if self.table is not None:
            page = -1
            for at in range(length):
                page = self.page(slot, at // self.p) if at % self.p == 0 else page
                for half in (page, page + self.base.num_pages):
                    assert self.base.k_token(half, at % self.p) == row.code(at + 1), f"slot {slot}, position {at}"
        if eagle:
            for at in range(length if common is None else common):
                page = self.page(slot, at // self.p, draft=True)
                assert self.draft.k_token(page, at % self.p) == row.code(at + 2), f"draft {slot}, position {at}"
        for layer in range(len(self.base.recurrent)):
            expected = row.code(length) if length else bytes(4)
            assert self.base.state_of(slot, layer) == expected * 2, f"state of slot {slot} at {length}"
            assert self.base.conv_of(slot, layer) == expected

    # ----------------------------------------------------------------- requests

    def admission(self, *sequences, eagle=None, bypass=False, prefill_only=False, slots=None):
        """``sequences`` are token lists or sequence admissions."""
        eagle = self.kind == Kind.EAGLE if eagle is None else eagle
        return ContextCacheBatchAdmission(
            [s if isinstance(s, ContextCacheSequenceAdmission) else sequence(s) for s in sequences],
            ContextCacheExecutionMode(int(eagle)),
            ContextCacheLookupPolicy(int(bypass)),
            ContextCacheCommitPolicy(int(prefill_only)),
            slots,
        )

    def begin(self, *sequences, **policies) -> Live:
        return Live(self, self.admission(*sequences, **policies))

    def refused(self, *sequences, **policies) -> Status:
        begun = self.coordinator.begin_request(self.admission(*sequences, **policies), self.stream)
        assert begun.admission is None
        return begun.status

    def publish(self, *sequences, **policies) -> list[int]:
        """Run cold or warm, finalise, finish."""
        live = self.begin(*sequences, **policies).prefill()
        assert live.finish() is Status.OK
        self.verify()
        return live.starts

    def hit(self, s, **policies) -> int:
        """The prefill start of one sequence; leaves nothing behind."""
        live = self.begin(s, **policies)
        live.request.close()
        self.verify()
        return live.starts[0]

    def reason(self, s, **policies) -> str:
        live = self.begin(s, **policies)
        live.request.close()
        return live.sequences[0].reason.name.lower()

    def verify(self) -> None:
        self.manager.check_invariants()
        for table in (self.table, self.draft_table):
            if table is not None:
                table.check_invariants()

    def pools(self) -> dict[str, dict[str, int]]:
        return self.manager.metrics()["pools"]

    def emptied(self) -> None:
        """Nothing is active, and without records every pool is whole (C-70, C-71)."""
        self.verify()
        assert all(pool["active"] == 0 for pool in self.pools().values()), self.manager.dump()
        self.manager.flush()
        assert all(pool["free"] == pool["capacity"] for pool in self.pools().values()), self.manager.dump()

    def close(self) -> None:
        self.coordinator.close()
        for table in (self.table, self.draft_table):
            if table is not None:
                table.close()
