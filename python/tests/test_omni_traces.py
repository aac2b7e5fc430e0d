"""Long random traffic: against a dictionary of rows, and against the original manager.

The original has defects that this cache has not (its S-n list); the comparison with it
leaves out what they need: same-step hits, keys that come and go, preemption.
"""

from __future__ import annotations

import queue
import random
import sys
import threading
from pathlib import Path

import pytest
import torch
from omni_host import HIDDEN, Host, same
from omni_trace import BLOCK, RowModel, Step, Traffic

from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheManager, OmniPrefixCacheUnmatchError, PrefixCacheConfig

REFERENCE = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "omni"
POLICY = ModelCachePolicy(deferred_keys=frozenset({"d"}))
DEPTH = 5


class Engine:
    """A manager that is fed with steps and whose answers are kept."""

    def __init__(self, manager: type, config: type, policy: object, *, eager: bool, num_blocks: int) -> None:
        self.manager = manager(
            config(num_blocks=num_blocks, block_size=BLOCK, staging_depth=DEPTH, gpu_staging_bytes=16_000),
            self,
            eager=eager,
        )
        self.manager.register_policy(policy)

    def batch_req_ids(self) -> list[str]:
        return self.current.batch

    def step_slots_cpu(self, req_ids: list[str], _: dict[str, int]) -> torch.Tensor:
        assert req_ids == self.current.batch
        return torch.tensor(self.current.slots, dtype=torch.int64)

    def save(self, step: Step) -> int:
        self.current = step
        self.manager.new_step_starts(step.output)
        outputs = {k: v.clone() for k, v in step.outputs.items()}
        left = step.leftover.clone()
        n = len(step.slots)
        number = self.manager.save_outputs(
            outputs.pop(HIDDEN, None), outputs | {"left": left}, num_tokens_unpadded=n, num_tokens_padded=n
        )
        for t in (*outputs.values(), left):
            t.fill_(-7)  # the next forward overwrites the buffers
        return number


def expect(model: RowModel, step: Step) -> dict[str, dict[str, torch.Tensor | None]]:
    """Key -> request -> rows; None for a request that must be refused."""
    model.save(step.slots, step.outputs)
    want: dict[str, dict[str, torch.Tensor | None]] = {}
    refused = {
        r
        for r, slots in step.hits.items()
        if r in step.batch and any(model.rows.get((HIDDEN, s)) is None for s in slots)
    }
    for key, rows in step.outputs.items():
        want[key], at = {}, 0
        for r in step.batch:
            n = step.output.num_scheduled_tokens[r]
            new, at = rows[at : at + n], at + n
            prefix = [model.prefix(key, step.hits[r], rows)] if r in step.hits and r not in refused else []
            want[key][r] = None if r in refused else torch.cat([*prefix, new])
    want["refused"] = dict.fromkeys(refused)
    return want


def check(engine: Engine, number: int, step: Step, want: dict, ids: list[str]) -> None:
    if any(r in want["refused"] for r in ids):
        with pytest.raises(OmniPrefixCacheUnmatchError, match="absent slots"):
            engine.manager.materialize(number, ids)
        return
    out = engine.manager.materialize(number, ids)
    got = dict(out.mm_outputs)
    left = got.pop("left")
    if HIDDEN in step.outputs:
        got[HIDDEN] = out.hidden_states
    else:
        assert out.hidden_states is None
    assert got.keys() == step.outputs.keys()
    for key, by_request in got.items():
        assert list(by_request) == list(dict.fromkeys(ids))
        for r in ids:
            assert same(by_request[r], want[key][r]), (number, key, r)
    for r in ids:
        assert left[r].numel() == step.output.num_scheduled_tokens[r]


@pytest.mark.parametrize("seed", range(8))
def test_random_traffic_against_a_dictionary_of_rows(mode, seed):
    traffic, model, pick = Traffic(seed), RowModel(), random.Random(seed)
    engine = Engine(OmniPrefixCacheManager, PrefixCacheConfig, POLICY, eager=mode == "eager", num_blocks=24)
    open_steps: list[tuple[int, Step, dict]] = []
    seen = {"hits": 0, "refused": 0, "same": 0}
    for _ in range(220):
        if len(open_steps) == DEPTH or (open_steps and pick.random() < 0.6):
            number, step, want = open_steps.pop(pick.randrange(len(open_steps)))
            if pick.random() < 0.1:
                engine.manager.discard_step(number)
                continue
            ids = pick.sample(step.batch, pick.randrange(len(step.batch) + 1)) if pick.random() < 0.4 else step.batch
            check(engine, number, step, want, list(ids))
            continue
        step = traffic.step()
        want = expect(model, step)
        open_steps.append((engine.save(step), step, want))
        seen["hits"] += len(step.hits)
        seen["refused"] += len(want["refused"])
        seen["same"] += any(set(s) & set(step.slots) for s in step.hits.values())
    assert seen["hits"] > 10
    assert seen["same"] > 0
    for number, *_ in open_steps:
        engine.manager.discard_step(number)
    stats = engine.manager.stats()
    assert (stats["unconsumed_steps"], stats["pending_reads"]) == (0, 0)
    engine.manager.shutdown()


@pytest.mark.parametrize("seed", [100, 101])
def test_random_traffic_consumed_on_another_thread(mode, seed):
    traffic, model = Traffic(seed), RowModel()
    engine = Engine(OmniPrefixCacheManager, PrefixCacheConfig, POLICY, eager=mode == "eager", num_blocks=24)
    jobs: queue.Queue = queue.Queue()
    wrong: list[BaseException] = []

    def build() -> None:
        while (job := jobs.get()) is not None:
            try:
                check(engine, *job)
            except BaseException as e:
                wrong.append(e)

    builder = threading.Thread(target=build)
    builder.start()
    for _ in range(250):
        step = traffic.step()
        want = expect(model, step)
        jobs.put((engine.save(step), step, want, list(step.batch)))
    jobs.put(None)
    builder.join()
    if wrong:
        raise wrong[0]


@pytest.fixture(scope="module")
def original() -> object:
    """The original manager, where the repository has ../shared beside it."""
    if not (REFERENCE / "load_reference.py").is_file():
        pytest.skip("the original manager is not here (../shared)")
    theirs = ("load_reference", "vllm_omni")  # the first one makes the other one's modules
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in theirs}
    for name in before:
        del sys.modules[name]
    sys.path.insert(0, str(REFERENCE))
    try:
        import load_reference  # noqa: F401
        from vllm_omni.core.prefix_cache import interface, manager

        yield lambda **kw: Engine(
            manager.OmniPrefixCacheManager,
            interface.PrefixCacheConfig,
            interface.ModelCachePolicy(deferred_keys=POLICY.deferred_keys),
            **kw,
        )
    finally:
        sys.path.remove(str(REFERENCE))
        for name in [n for n in sys.modules if n.split(".")[0] in theirs]:
            del sys.modules[name]
        sys.modules.update(before)


@pytest.mark.parametrize("seed", range(6))
def test_random_traffic_against_the_original(original, mode, seed):
    traffic = Traffic(seed, same_step=False, sparse=False, preempt=False)
    pick = random.Random(seed)
    ours = Engine(OmniPrefixCacheManager, PrefixCacheConfig, POLICY, eager=mode == "eager", num_blocks=24)
    theirs = original(eager=True, num_blocks=24)
    open_steps: list[tuple[int, int, Step]] = []
    hits = 0
    for _ in range(200):
        if len(open_steps) == DEPTH or (open_steps and pick.random() < 0.6):
            mine, other, step = open_steps.pop(pick.randrange(len(open_steps)))
            ids = pick.sample(step.batch, len(step.batch))
            got = ours.manager.materialize(mine, ids)
            want = theirs.manager.materialize(other, ids)
            assert (got.hidden_states is None) == (want.hidden_states is None)
            assert got.mm_outputs.keys() == want.mm_outputs.keys()
            pairs = [(got.mm_outputs[k], want.mm_outputs[k]) for k in want.mm_outputs]
            pairs += [(got.hidden_states, want.hidden_states)] if want.hidden_states is not None else []
            for a, b in pairs:
                assert list(a) == list(b)
                assert all(same(a[r], b[r]) for r in a)
            continue
        step = traffic.step()
        hits += len(step.hits)
        open_steps.append((ours.save(step), theirs.save(step), step))
    assert hits > 10
    theirs.manager.shutdown()


def test_o34_both_modes_leave_the_same_rows():
    # O-34: equal rows and equal slot states after a drain.
    states = []
    for eager in (True, False):
        host = Host(eager=eager, policy=POLICY)
        for i, name in enumerate("ABCDEF"):
            host.arrive(name, [i % 3, 3 + i % 2], hit=0)
            host.go({name: 5 + i % 3}, ("k", "d") if i % 2 else ("d",))
            host.finish(name)
        host.begin({})
        host.manager.discard_step(host.save(hidden=None))
        slots = list(range(20))
        while any(1 in host.states(k, slots) for k in (HIDDEN, "k", "d")):
            pass
        states.append(
            [
                (host.states(k, slots), host.versions(k, slots), host.stored(k, slots).tolist())
                for k in (HIDDEN, "k", "d")
            ]
        )
    assert states[0] == states[1]
