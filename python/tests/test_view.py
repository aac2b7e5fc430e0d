"""The block-table view against a loop over requests, and its refusals."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from prefixcache._errors import OmniPrefixCacheUnmatchError
from prefixcache.view import FullAttentionGroupView, check_block_layout


class RefusedError(RuntimeError):
    pass


def make_batch(rng, *, rows, width, block_size, with_np=True, longest=None):
    """An input batch as vLLM's runner has it: tables with spare rows and a shuffled index."""
    table = np.array([[rng.randrange(1 << 20) for _ in range(width)] for _ in range(rows + 3)], np.int32)
    buffer = SimpleNamespace(cpu=torch.from_numpy(table))
    if with_np:
        buffer.np = table
    order = list(range(rows))
    rng.shuffle(order)
    ids = [f"req-{i}" for i in range(rows)]
    longest = longest if longest is not None else width * block_size
    return SimpleNamespace(
        req_ids=ids,
        req_id_to_index={r: order[i] for i, r in enumerate(ids)},
        num_computed_tokens_cpu=np.array([rng.randrange(longest) for _ in range(rows + 3)], np.int32),
        block_table=[SimpleNamespace(block_table=buffer, kv_cache_block_size=block_size)],
    )


def slots_one_by_one(batch, block_size, req_ids, scheduled):
    """The rule as it is written: one position after the other."""
    table = batch.block_table[0].block_table.cpu
    slots = []
    for req in req_ids:
        row = batch.req_id_to_index[req]
        start = int(batch.num_computed_tokens_cpu[row])
        slots += [
            int(table[row, position // block_size]) * block_size + position % block_size
            for position in range(start, start + scheduled.get(req, 0))
            if position // block_size < table.shape[1]
        ]
    return slots


@pytest.mark.parametrize("block_size", [1, 4, 12, 16])
@pytest.mark.parametrize("with_np", [True, False])
def test_slots_equal_the_loop(block_size, with_np):
    rng = random.Random(block_size)
    for _ in range(60):
        rows, width = rng.randint(1, 12), rng.randint(1, 9)
        batch = make_batch(rng, rows=rows, width=width, block_size=block_size, with_np=with_np)
        view = FullAttentionGroupView(batch, block_size)
        ids = view.batch_req_ids()
        assert ids == batch.req_ids
        assert ids is not batch.req_ids
        rng.shuffle(ids)
        ids = ids[: rng.randint(0, rows)]
        top = rng.choice([1, 3, 5 * block_size])  # 1: a decode step; else chunks that may leave the table
        scheduled = {r: rng.randint(1 if top == 1 else -1, top) for r in ids if rng.random() < 0.9}
        got = view.step_slots_cpu(ids, scheduled)
        assert got.dtype == torch.int64
        assert got.is_contiguous()
        assert got.tolist() == slots_one_by_one(batch, block_size, ids, scheduled)


@pytest.mark.parametrize("count", [1, 3])
def test_slots_beyond_32_bits(count):
    batch = make_batch(random.Random(1), rows=1, width=1, block_size=16)
    batch.block_table[0].block_table.cpu.fill_(1 << 28)
    batch.num_computed_tokens_cpu[:] = 5
    got = FullAttentionGroupView(batch, 16).step_slots_cpu(batch.req_ids, {batch.req_ids[0]: count})
    assert got.tolist() == [(1 << 32) + 5 + i for i in range(count)]


def test_empty_step_has_no_slots():
    batch = make_batch(random.Random(0), rows=3, width=2, block_size=4)
    view = FullAttentionGroupView(batch, 4)
    assert view.step_slots_cpu([], {}).shape == (0,)
    assert view.step_slots_cpu(view.batch_req_ids(), {}).shape == (0,)


def test_positions_past_the_table_have_no_slot():
    batch = make_batch(random.Random(1), rows=1, width=2, block_size=4)
    batch.num_computed_tokens_cpu[:] = 6
    view = FullAttentionGroupView(batch, 4)
    assert view.step_slots_cpu(["req-0"], {"req-0": 5}).numel() == 2
    batch.num_computed_tokens_cpu[:] = 8
    assert view.step_slots_cpu(["req-0"], {"req-0": 1}).numel() == 0


def test_table_is_read_anew_in_each_step():
    batch = make_batch(random.Random(2), rows=1, width=2, block_size=4)
    batch.num_computed_tokens_cpu[:] = 0
    view = FullAttentionGroupView(batch, 4)
    before = view.step_slots_cpu(["req-0"], {"req-0": 1})
    batch.block_table[0].block_table.np[:] += 1
    after = view.step_slots_cpu(["req-0"], {"req-0": 1})
    assert after.tolist() == [int(before[0]) + 4]


def test_unknown_request_is_a_key_error():
    batch = make_batch(random.Random(3), rows=1, width=2, block_size=4)
    with pytest.raises(KeyError):
        FullAttentionGroupView(batch, 4).step_slots_cpu(["nobody"], {"nobody": 1})


@pytest.mark.parametrize(
    ("layout", "fragment"),
    [
        ({"use_hybrid_blocks": True, "blocks_per_kv_block": 8}, "kernel_block_size"),
        ({"blocks_per_kv_block": 2}, "kernel_block_size"),
        ({"dcp_world_size": 2}, "decode context parallel"),
        ({"kv_cache_block_size": 32}, "does not match"),
    ],
)
def test_startup_refusals(layout, fragment):
    with pytest.raises(OmniPrefixCacheUnmatchError, match=fragment):
        check_block_layout(SimpleNamespace(**layout), 16)

    class View(FullAttentionGroupView):
        error_type = RefusedError

    with pytest.raises(RefusedError, match=fragment):
        View(SimpleNamespace(block_table=[SimpleNamespace(**layout)]), 16)


@pytest.mark.parametrize("tokens", [1, 40])
def test_a_whole_batch_takes_the_operations_of_one_request(tokens):
    """Vector operations: their number, and with it the time of a step, is not that of the requests."""

    def operations(rows: int) -> int:
        batch = make_batch(random.Random(4), rows=rows, width=64, block_size=16, longest=900)
        view, ids, calls = FullAttentionGroupView(batch, 16), batch.req_ids, []
        scheduled = dict.fromkeys(ids, tokens)
        sys.setprofile(lambda _frame, event, _what: calls.append(event) if event.endswith("call") else None)
        try:
            slots = view.step_slots_cpu(ids, scheduled)
        finally:
            sys.setprofile(None)
        assert len(slots) == rows * tokens
        return len(calls)

    assert 5 < operations(256) == operations(2) < 100
