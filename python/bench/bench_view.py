"""Cost of a step's slots: the whole batch at once, against one request at a time.

The other side is vLLM-Omni's own view when FOLDER has that package, and else a
loop of our own with the same kind of tensor operations per request.

usage: bench_view.py [FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import types
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:  # --help does without
    import numpy as np
    import torch

    from prefixcache.view import FullAttentionGroupView
except ImportError as e:
    missing: str | None = e.name
else:
    missing = None

BLOCK_SIZE = 16


class OneByOne:
    """A handful of tensor operations for each request."""

    def __init__(self, batch, block_size):
        self.batch, self.block_size = batch, block_size

    def step_slots_cpu(self, req_ids, scheduled):
        table, parts = self.batch.block_table[0].block_table.cpu, []
        for req in req_ids:
            row = self.batch.req_id_to_index[req]
            start = int(self.batch.num_computed_tokens_cpu[row])
            position = torch.arange(start, start + scheduled[req])
            block = table[row, position // self.block_size].long()
            parts.append(block * self.block_size + position % self.block_size)
        return torch.cat(parts)


def other_view(folder):
    if folder is None:
        return OneByOne, "a loop over requests"
    package = types.ModuleType("vllm_omni")
    package.__path__ = [f"{folder}/vllm_omni"]
    sys.modules["vllm_omni"] = package
    from vllm_omni.core.prefix_cache.group_view import FullAttentionGroupView as Theirs

    return Theirs, "vllm-omni's view"


def make_batch(rows, longest):
    rng = np.random.default_rng(rows)
    table = rng.integers(1, 1 << 20, (rows, longest // BLOCK_SIZE + 640), np.int32)
    buffer = SimpleNamespace(np=table, cpu=torch.from_numpy(table))
    ids = [f"request-{i}" for i in range(rows)]
    return SimpleNamespace(
        req_ids=ids,
        req_id_to_index={r: i for i, r in enumerate(ids)},
        num_computed_tokens_cpu=rng.integers(0, longest, rows, np.int32),
        block_table=[SimpleNamespace(block_table=buffer, kv_cache_block_size=BLOCK_SIZE)],
    )


def microseconds(call, repeat):
    costs = []
    for _ in range(repeat):
        started = time.perf_counter()
        call()
        costs.append((time.perf_counter() - started) * 1e6)
    return statistics.median(costs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("usage:")[0])
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="a folder that has the package vllm_omni")
    args = parser.parse_args()
    if missing is not None:
        parser.error(f"needs torch and numpy, and there is no {missing}")
    theirs, name = other_view(args.folder)
    print(f"slots of a step, us (median): batch x tokens, ours, {name}, ratio")
    for rows, tokens in ((1, 1), (16, 1), (64, 1), (256, 1), (16, 256), (64, 128), (1, 8192)):
        batch = make_batch(rows, 10_000)
        ids, scheduled = list(batch.req_ids), dict.fromkeys(batch.req_ids, tokens)
        ours, other = FullAttentionGroupView(batch, BLOCK_SIZE), theirs(batch, BLOCK_SIZE)
        assert torch.equal(ours.step_slots_cpu(ids, scheduled), other.step_slots_cpu(ids, scheduled))
        mine = microseconds(lambda: ours.step_slots_cpu(ids, scheduled), 300)  # noqa: B023
        loop = microseconds(lambda: other.step_slots_cpu(ids, scheduled), 60)  # noqa: B023
        print(f"  {rows:>4} x {tokens:<5} {mine:>9.1f} {loop:>9.1f} {loop / mine:>7.1f}x")


if __name__ == "__main__":
    main()
