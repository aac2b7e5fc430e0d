"""Section: the context cache on torch tensors, through the Python classes.

A runtime whose KV pages and recurrent state are torch tensors and whose kernels find
pages through the device copy of the page table. What it computes for a token is a small
number that depends on the tokens before it; what is reused is compared on the device.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from report import check

from prefixcache.context import (
    AttentionLayerBuffers,
    ContextCacheBatchAdmission,
    ContextCacheConfig,
    ContextCacheCoordinator,
    ContextCacheCoordinatorStatus,
    ContextCacheDeploymentKind,
    ContextCachePhysicalResources,
    ContextCacheSequenceAdmission,
    ContextCacheSequenceAdvance,
    DataType,
    DeploymentConfig,
    KVPageTable,
    ModelConfig,
    RecurrentLayerBuffers,
)

Kind, Status = ContextCacheDeploymentKind, ContextCacheCoordinatorStatus
PAGES, BATCH, TABLE_WIDTH, PAGE = 32, 4, 8, 4
HEADS, DIM, LAYERS = 2, 8, 2
STATE, CONV = (2, 4, 8), (8, 4)


class Memory:
    """Device memory of the library, for torch.as_tensor."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": "<i4",
            "strides": None,
            "version": 3,
            "stream": None,
        }


def device_table(table: KVPageTable) -> torch.Tensor:
    """The device copy, [slot][K, V][page], without a copy."""
    shape = (table.max_batch_size, 2, table.max_pages_per_seq)
    return torch.as_tensor(Memory(table.device_pointer, shape), device="cuda")


class TorchCache:
    """HybridCacheManager over torch tensors."""

    def __init__(self, recurrent: bool) -> None:
        self.num_pages, self.max_batch_size, self.padded_capacity = PAGES, BATCH, TABLE_WIDTH * PAGE
        layers = range(LAYERS)
        self.kv = [torch.full((2 * PAGES, PAGE, HEADS, DIM), -7, dtype=torch.float16, device="cuda") for _ in layers]
        self.state = [torch.full((BATCH, *STATE), -7.0, device="cuda") for _ in layers if recurrent]
        self.conv = [torch.full((BATCH, *CONV), -7, dtype=torch.float16, device="cuda") for _ in layers if recurrent]
        self.lengths = torch.full((BATCH,), -7, dtype=torch.int32, device="cuda")
        self.active_batch = 0

    def attention_layers(self) -> list[AttentionLayerBuffers]:
        return [AttentionLayerBuffers(t.data_ptr(), HEADS, DIM, DataType.HALF) for t in self.kv]

    def recurrent_layers(self) -> list[RecurrentLayerBuffers]:
        return [
            RecurrentLayerBuffers(s.data_ptr(), c.data_ptr(), *STATE, *CONV, DataType.FLOAT, DataType.HALF)
            for s, c in zip(self.state, self.conv, strict=True)
        ]

    def recurrent_slot_bytes(self) -> int:
        return sum(t[0].numel() * t.element_size() for t in (*self.state, *self.conv))

    def partial_slot_bytes(self) -> int:
        return sum(2 * t[0].numel() * t.element_size() for t in self.kv)

    def reset_for_new_sequences(self, lengths: Sequence[int], slots: Sequence[int], stream: int) -> None:
        self.lengths[torch.tensor(list(slots), device="cuda")] = torch.tensor(
            list(lengths), dtype=torch.int32, device="cuda"
        )
        self.active_batch = len(lengths)

    def compact_slot_state(
        self, old_to_new: Sequence[int], new_batch_size: int, device_mapping: int, stream: int
    ) -> None:
        kept = torch.tensor([old for old, new in enumerate(old_to_new) if new >= 0], device="cuda")
        for t in (self.lengths, *self.state, *self.conv):
            t[:new_batch_size] = t[kept]  # gathered first, so in place

    def set_active_batch_size(self, batch_size: int) -> None:
        self.active_batch = batch_size


class Row:
    """One sequence, and numbers that depend on exactly its first tokens."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.committed = 0

    def code(self, length: int) -> int:
        return 1 + zlib.crc32(repr(self.tokens[:length]).encode()) % 1000  # exact in half

    def codes(self, first: int, last: int) -> torch.Tensor:
        return torch.tensor([self.code(i + 1) for i in range(first, last)], dtype=torch.float16, device="cuda")


class Runtime:
    """A coordinator on a side stream, and the model around it."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.pick = random.Random(seed)
        self.stream = torch.cuda.Stream()
        self.cache = TorchCache(kind is Kind.HYBRID)
        self.table = KVPageTable(BATCH, TABLE_WIDTH, PAGES, host_memory=False)
        self.ids = device_table(self.table)
        torch.cuda.synchronize()
        config = ContextCacheConfig(
            enabled=True,
            max_records=12,
            tokens_per_page=PAGE,
            host_memory=False,
            recurrent_snapshot_budget_bytes=6 * self.cache.recurrent_slot_bytes(),
            partial_kv_snapshot_budget_bytes=6 * self.cache.partial_slot_bytes() if kind is Kind.HYBRID else 0,
        )
        self.coordinator = ContextCacheCoordinator(
            config,
            DeploymentConfig(ModelConfig(max_batch_size=BATCH)),
            kind,
            ContextCachePhysicalResources(self.cache, self.table),
            self.stream.cuda_stream,
        )
        self.rows: list[Row] = []
        self.wrong: list[tuple[str, torch.Tensor]] = []

    def serve(self) -> None:
        pick = self.pick
        self.rows = []
        for _ in range(1 + pick.randrange(3)):
            family, shared = pick.randrange(2), 1 + pick.randrange(20)
            own = pick.randrange(6) if pick.random() < 0.5 else 0
            self.rows.append(
                Row([100 * family + i for i in range(shared)] + [pick.randrange(1000, 10**6) for _ in range(own)])
            )
        admission = ContextCacheBatchAdmission([ContextCacheSequenceAdmission(list(r.tokens)) for r in self.rows])
        begun = self.coordinator.begin_request(admission)
        if begun.status is Status.REQUEST_FAILED:
            return
        request = begun.admission.request
        self.prefill(request, begun.admission.prefill_starts)
        for left in range(pick.randrange(6), 0, -1):
            if self.coordinator.prepare_decode_step(request) is not Status.OK:
                break
            accepted = [[pick.randrange(5)] for _ in self.rows]
            for slot, row in enumerate(self.rows):
                self.compute(slot, row.committed + 1)
            self.stream.synchronize()
            done = list(range(len(self.rows))) if left == 1 else []
            self.advance(self.coordinator.complete_decode_step, request, accepted, done)
            if len(self.rows) > 1 and pick.random() < 0.3:
                self.compact(request)
        ok(self.coordinator.finish(request))

    def prefill(self, request: Any, starts: Sequence[int]) -> None:
        ok(self.coordinator.prepare_prefill(request))
        for slot, (row, start) in enumerate(zip(self.rows, starts, strict=True)):
            row.committed = start
            self.expect(slot, start)
        torch.cuda._sleep(200_000)
        for slot, row in enumerate(self.rows):
            self.compute(slot, len(row.tokens))
        ok(self.coordinator.enqueue_prefill_captures(request))
        for t in (*self.cache.state, *self.cache.conv):
            t.fill_(-7)  # the next forward comes at once
        self.stream.synchronize()
        self.advance(
            self.coordinator.finalize_prefill_publication, request, [[self.pick.randrange(5)] for _ in self.rows]
        )

    def advance(self, step: Any, request: Any, accepted: list[list[int]], *rest: Any) -> None:
        advances = [ContextCacheSequenceAdvance(t, r.committed) for t, r in zip(accepted, self.rows, strict=True)]
        ok(step(request, advances, *rest))
        for row, tokens in zip(self.rows, accepted, strict=True):
            row.tokens += tokens

    def compact(self, request: Any) -> None:
        kept = [self.pick.random() < 0.5 for _ in self.rows]
        if not any(kept):
            return
        old_to_new = [sum(kept[:i]) if k else -1 for i, k in enumerate(kept)]
        ok(self.coordinator.begin_batch_compaction(request, old_to_new, sum(kept)))
        ok(self.coordinator.compact_batch(request))
        self.rows = [row for row, k in zip(self.rows, kept, strict=True) if k]
        for slot, row in enumerate(self.rows):
            self.expect(slot, row.committed)

    # ------------------------------------------------------------------ on the device

    def compute(self, slot: int, length: int) -> None:
        """Kernels that find their pages through the device table."""
        row = self.rows[slot]
        at = torch.arange(row.committed, length, device="cuda")
        codes = row.codes(row.committed, length)
        for layer, kv in enumerate(self.cache.kv):
            for half in range(2):
                pages = self.ids[slot, half][at // PAGE].long()
                kv[pages, at % PAGE] = (codes + layer + 10 * half)[:, None, None].expand(-1, HEADS, DIM)
        for layer, (s, c) in enumerate(zip(self.cache.state, self.cache.conv, strict=True)):
            s[slot] = row.code(length) + layer
            c[slot] = row.code(length) + layer + 10
        self.cache.lengths[slot] = length
        row.committed = length

    def expect(self, slot: int, length: int) -> None:
        """Note what has to be on the device now; settle() looks at it."""
        row = self.rows[slot]
        at = torch.arange(0, length, device="cuda")
        codes = row.codes(0, length)
        for layer, kv in enumerate(self.cache.kv):
            for half in range(2):
                pages = self.ids[slot, half][at // PAGE].long()
                want = (codes + layer + 10 * half)[:, None, None]
                self.wrong.append((f"KV of slot {slot} up to {length}", (kv[pages, at % PAGE] != want).any()))
        for layer, (s, c) in enumerate(zip(self.cache.state, self.cache.conv, strict=True)):
            code = row.code(length) if length else None
            wanted = (code + layer, code + layer + 10) if code is not None else (0, 0)
            self.wrong.append((f"state of slot {slot} at {length}", (s[slot] != wanted[0]).any()))
            self.wrong.append((f"convolution state of slot {slot} at {length}", (c[slot] != wanted[1]).any()))
        self.wrong.append((f"length of slot {slot}", self.cache.lengths[slot] != length))

    def settle(self) -> None:
        """Raise AssertionError for what was not as expected."""
        self.stream.synchronize()
        flags = torch.stack([flag for _, flag in self.wrong]).tolist() if self.wrong else []
        bad = [what for (what, _), flag in zip(self.wrong, flags, strict=True) if flag]
        self.wrong.clear()
        assert not bad, "; ".join(bad[:3])

    def close(self) -> dict[str, Any]:
        metrics = self.coordinator.metrics()
        self.coordinator.manager().check_invariants()
        self.table.check_invariants()
        ok(self.coordinator.shutdown())
        self.coordinator.close()
        self.table.close()
        return metrics


def ok(status: Status) -> None:
    assert status is Status.OK, status


def requests(kind: Kind, seeds: int) -> str:
    reused = restored = 0
    for seed in range(seeds):
        runtime = Runtime(kind, seed)
        with torch.cuda.stream(runtime.stream):
            for i in range(20):
                try:
                    runtime.serve()
                    runtime.settle()
                except AssertionError as e:
                    raise AssertionError(f"seed {seed}, request {i}: {e}") from e
        metrics = runtime.close()
        reused, restored = reused + metrics["reused_tokens"], restored + metrics["hybrid_restores"]
    assert reused > 0
    assert restored > 0 or kind is not Kind.HYBRID
    return f"{seeds} runs of 20 requests, {reused} tokens reused, {restored} snapshots restored"


def graph_sees_uploads() -> str:
    """A graph that gathers pages through the table: captured once, right after every upload."""
    pick = random.Random(3)
    stream = torch.cuda.Stream()
    table = KVPageTable(BATCH, TABLE_WIDTH, PAGES, host_memory=False)
    ids = device_table(table)
    contents = torch.arange(2 * PAGES, dtype=torch.int32, device="cuda") * 7
    gathered = torch.zeros(BATCH, 2, TABLE_WIDTH, dtype=torch.int32, device="cuda")
    table.upload(stream.cuda_stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        gathered.copy_(torch.where(ids >= 0, contents[ids.clamp(min=0).long()], -1))
    seen, said = [], []
    with torch.cuda.stream(stream):
        for _ in range(60):
            for _ in range(pick.randrange(3)):
                table.set_row(
                    pick.randrange(BATCH), [pick.randrange(PAGES) for _ in range(pick.randrange(TABLE_WIDTH + 1))]
                )
            torch.cuda._sleep(100_000)
            table.upload(stream.cuda_stream)
            graph.replay()
            seen.append(gathered.clone())
            said.append([table.row(slot) for slot in range(BATCH)])
    torch.cuda.synchronize()
    for i, (got, rows) in enumerate(zip(seen, said, strict=True)):
        want = torch.tensor(rows, dtype=torch.int32)
        want = torch.where(want >= 0, want * 7, want)
        assert torch.equal(got.cpu(), want), f"replay {i} saw another table"
    table.close()
    return f"{len(seen)} uploads"


def main() -> None:
    check("context, torch: random requests, everything reused compared (vanilla)", lambda: requests(Kind.VANILLA, 6))
    check("context, torch: random requests, everything reused compared (hybrid)", lambda: requests(Kind.HYBRID, 6))
    check("context, torch: a CUDA graph sees every page-table upload", graph_sees_uploads)


if __name__ == "__main__":
    main()
