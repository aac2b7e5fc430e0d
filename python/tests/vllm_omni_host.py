"""Runs vllm-omni's own runner mixin on the CPU, with its manager or with ours.

usage: vllm_omni_host.py FOLDER original|installed

FOLDER is where vllm-omni lies. vllm itself is not there: the three names of it
that the mixin and its helpers use are made up here, and the package
``vllm_omni`` is entered without its ``__init__``, which would import vllm. A
small batch goes through several steps; every row that comes out is compared with
the row that went in, and a digest of all of it is printed as JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch

BLOCK_SIZE = 4
NUM_BLOCKS = 64
WIDTH = 8


def stand_in_modules(folder):
    """What vllm-omni imports at call time from vllm, and its package without __init__."""

    def module(name, **names):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(names)

    class FullAttentionSpec:
        pass

    module("vllm")
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.distributed")
    module("vllm.distributed.parallel_state", get_pp_group=lambda: SimpleNamespace(is_last_rank=True))
    module("vllm.v1")
    module("vllm.v1.kv_cache_interface", FullAttentionSpec=FullAttentionSpec)
    module("vllm_omni", __path__=[f"{folder}/vllm_omni"])
    sys.path.insert(0, folder)
    return FullAttentionSpec


class Host:
    """A model runner as far as the mixin looks at it: batch, block table, config."""

    def __init__(self, mixin, spec):
        table = np.zeros((8, 16), np.int32)
        self.table = table
        self.runner = type("Runner", (mixin,), {})()
        runner = self.runner
        runner.is_pooling_model = False
        runner.kv_cache_config = SimpleNamespace(
            num_blocks=NUM_BLOCKS, kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec())]
        )
        buffer = SimpleNamespace(cpu=torch.from_numpy(table), np=table)
        group = SimpleNamespace(block_table=buffer, kv_cache_block_size=BLOCK_SIZE)
        tables = type("MultiGroupBlockTable", (), {"block_tables": [group], "__getitem__": lambda s, i: group})()
        runner.input_batch = SimpleNamespace(
            req_ids=[], req_id_to_index={}, num_computed_tokens_cpu=np.zeros(8, np.int32), block_table=tables
        )
        from vllm_omni.core.prefix_cache import stage_prefix_cache_config

        runner._omni_prefix_cache_cfg = stage_prefix_cache_config(
            kv_cache_config=runner.kv_cache_config,
            cache_config=SimpleNamespace(enable_prefix_caching=True, block_size=BLOCK_SIZE),
            kv_transfer_config=None,
            scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
            model_config=None,
            is_pooling_model=False,
        )
        runner._snapshot_prefix_cache_model_policy(SimpleNamespace(deferred_prefix_cache_mm_keys={"codes.audio"}))
        self.contents = {}  # (key, slot) -> row, the model of what the cache must hold
        self.digest = hashlib.sha256()
        self.rows = 0
        self.seed = 0

    def step(self, batch, *, finished=(), consume=True):
        """One step. batch: {id: (blocks, computed, new tokens, arrives)}."""
        runner, input_batch = self.runner, self.runner.input_batch
        arrivals = [
            SimpleNamespace(req_id=r, num_computed_tokens=computed, block_ids=(list(blocks),))
            for r, (blocks, computed, _, arrives) in batch.items()
            if arrives
        ]
        counts = {r: new for r, (_, _, new, _) in batch.items()}
        runner._prefix_cache_step_begin(
            SimpleNamespace(
                finished_req_ids=set(finished),
                scheduled_new_reqs=arrivals,
                scheduled_cached_reqs=SimpleNamespace(req_ids=[], resumed_req_ids=set()),
                num_scheduled_tokens=counts,
            )
        )
        input_batch.req_ids = list(batch)
        input_batch.req_id_to_index = {r: i for i, r in enumerate(batch)}
        slots = []
        for i, (blocks, computed, new, _) in enumerate(batch.values()):
            self.table[i, : len(blocks)] = blocks
            input_batch.num_computed_tokens_cpu[i] = computed
            slots += [blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(computed, computed + new)]
        total, padded = len(slots), len(slots) + 3
        self.seed += 1
        generator = torch.Generator().manual_seed(self.seed)
        hidden = torch.randn(padded, WIDTH, generator=generator).to(torch.bfloat16)
        outputs = {
            "embed": {"decode": torch.randn(padded, WIDTH, generator=generator)},
            "codes": {"audio": torch.randint(0, 1000, (total, 4), generator=generator)},
            "meta": {"note": "step", "weight": torch.arange(total)},
        }
        sent = {"hidden": hidden.clone(), "embed.decode": outputs["embed"]["decode"].clone()}
        sent["codes.audio"] = outputs["codes"]["audio"].clone()
        for key, rows in sent.items():
            for i, slot in enumerate(slots):
                self.contents[key, slot] = rows[i]
        step = runner._prefix_cache_save_step(hidden, outputs, num_tokens_unpadded=total, num_tokens_padded=padded)
        hidden.zero_()  # the next forward overwrites the model's buffers
        outputs["embed"]["decode"].zero_()
        outputs["codes"]["audio"].zero_()
        if not consume:
            runner.omni_prefix_cache.discard_step(step)
            return
        hidden_out, mm_out = runner._prefix_cache_materialize(step, list(batch))
        self.check({"hidden": hidden_out, **{k: mm_out[k] for k in ("embed.decode", "codes.audio")}}, batch)
        for r in batch:
            assert mm_out["meta.note"][r] == "step"
            self.digest.update(mm_out["meta.weight"][r].numpy().tobytes())

    def check(self, outputs, batch):
        for key, by_request in outputs.items():
            for r, (blocks, computed, new, arrives) in batch.items():
                first = 0 if arrives else computed
                want = [
                    self.contents[key, blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE]
                    for p in range(first, computed + new)
                ]
                got = by_request[r]
                assert torch.equal(got, torch.stack(want)), (key, r)
                self.rows += len(want)
                self.digest.update(got.contiguous().view(torch.uint8).numpy().tobytes())


def main(folder, which):
    spec = stand_in_modules(folder)
    if which == "installed":
        from prefixcache import vllm_omni

        vllm_omni.install()
        vllm_omni.install()  # the second call changes nothing
        assert vllm_omni.installed()
    from vllm_omni.core.prefix_cache import OmniPrefixCacheManager, OmniPrefixCacheUnmatchError
    from vllm_omni.core.prefix_cache.runner_mixin import PrefixCacheRunnerMixin

    host = Host(PrefixCacheRunnerMixin, spec)
    a = [5, 9, 2, 11]
    host.step({"a": (a, 0, 10, True), "b": ([1, 3], 0, 5, True)})
    host.step({"a": (a, 10, 1, False), "b": ([1, 3], 5, 1, False)}, consume=False)
    # A hit on live rows, deferred key included, beside a decode of its producer.
    host.step({"c": ([5, 9, 20], 8, 3, True), "a": (a, 11, 1, False)})
    # a ends; its blocks serve a hit in the step that announces it.
    host.step({"d": ([5, 9, 2, 21], 12, 1, True), "c": ([5, 9, 20], 11, 1, False)}, finished=["a", "b"])
    # Same-step hit: e computes block 22, f reads it, nothing was there before.
    host.step({"e": ([22, 23], 0, 6, True), "f": ([22, 24], 4, 2, True)})
    # Block 1 of b has a new tenant, and a reader in the same step.
    host.step({"g": ([1, 25], 0, 4, True), "h": ([1, 26], 4, 1, True)}, finished=["c", "d"])
    cache = host.runner.omni_prefix_cache
    assert type(cache) is OmniPrefixCacheManager
    with pytest.raises(OmniPrefixCacheUnmatchError, match="step context 99 missing") as refused:
        cache.discard_step(99)
    # A worker process sends its errors to the engine's.
    again = pickle.loads(pickle.dumps(refused.value))
    assert type(again) is type(refused.value)
    assert str(again) == str(refused.value)
    cache.shutdown()
    if which == "installed":
        from vllm_omni.core.prefix_cache import group_view

        from prefixcache.omni import OmniPrefixCacheManager as Ours
        from prefixcache.view import FullAttentionGroupView as OurView

        assert isinstance(cache, Ours)
        assert issubclass(group_view.FullAttentionGroupView, OurView)
        vllm_omni.uninstall()
        assert not vllm_omni.installed()
        assert group_view.FullAttentionGroupView.__module__ == group_view.__name__
    module = sys.modules[OmniPrefixCacheManager.__module__].__name__
    print(json.dumps({"digest": host.digest.hexdigest(), "rows": host.rows, "manager": module}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
