"""The context ABI under arguments and orders that nobody chose, under threads, and after fork.

Whatever is called in whatever order with whatever numbers: never an internal error, never
a broken invariant, and what is live can still be finished.
"""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from abi_context import PROTOTYPES, World, address, i32, i64
from context_host import Kind, Rig, Status, prompt
from test_omni_threads import run_python

from prefixcache import PrefixCacheError
from prefixcache.context import ContextCacheManager, ReusePlanMode
from prefixcache.context.state import read_request

INTERNAL, POISONED = -32, 2
EDGES = [0, 1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 2**31 - 1, 2**31, 2**32 - 1, 2**41, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
# Lengths of arrays: what the array has, less, or so much that no machine has it.
# So that requests come a long way.
WEIGHTS = {
    "begin": 2,
    "report": 6,
    "prepare_prefill": 4,
    "capture_prefill": 2,
    "finalize_prefill": 4,
    "prepare_decode": 4,
    "complete_decode": 4,
    "begin_compaction": 1,
    "compact": 2,
    "shutdown": 0.1,
}
LENGTHS = ("num_", "space", "count", "size")


def numbers(generator, name, values):
    """Some of the scalars of a call replaced."""
    replaced = {}
    for c_type, argument in PROTOTYPES[name]:
        if "*" in c_type or c_type == "pc_handle" or generator.random() < 0.5:
            continue
        value = generator.choice(EDGES)
        if argument.startswith(LENGTHS):
            value = generator.choice([generator.randint(0, values[argument]), 2**41, 2**62, 2**63, 2**64 - 1])
        if argument in ("lengths", "device_mapping"):
            value = 0
        replaced[argument] = value
    return replaced


@pytest.mark.parametrize("group", ["manager", "table", "digest"])
def test_any_numbers(group):
    generator, names = random.Random(3), [n for n in PROTOTYPES if n.startswith(group)]
    for _ in range(40):
        world = World()
        for name in generator.sample(names, len(names)):
            values = world.good(name)
            for _ in range(4):
                if name in ("manager_grow", "manager_advance"):  # the room for page ids is theirs to know
                    values["base_pages"] = values["draft_pages"] = None
                status = world.call(name, values, **numbers(generator, name, values))
                assert status != INTERNAL, (name, world.error())
        for thing in world.objects:
            if isinstance(thing, ContextCacheManager) and thing.handle:
                thing.check_invariants()


@pytest.mark.parametrize("kind", list(Kind))
def test_any_steps_in_any_order(kind):
    """Two requests of one coordinator, whose steps are called blindly."""
    generator = random.Random(kind)
    steps = [n for n in PROTOTYPES if n.startswith("context_") and ("pc_handle", "request") in PROTOTYPES[n]]
    steps += ["context_begin", "context_shutdown", "context_get_metrics", "context_synchronize"]
    weights = [WEIGHTS.get(name.removeprefix("context_"), 0.3) for name in steps]
    done = Counter()
    for _ in range(12):
        world = World()
        rig = Rig(kind, tokens_per_page=4, pages=24, width=8, requests=2)
        # No callback runs here: the host's part is reported as done, or not.
        good = {name: world.good(name) for name in steps}
        requests: list[int] = [0]
        for _ in range(300):
            name = generator.choices(steps, weights)[0]
            values = dict(good[name], context=rig.coordinator.handle)
            if name == "context_begin":
                values["admission"] = world.admission(
                    *[prompt(generator.randint(1, 12), generator.randrange(2)) for _ in range(generator.randint(1, 2))],
                    **({"slots": i32(*generator.sample(range(4), 2))} if generator.random() < 0.4 else {}),
                    execution=generator.randrange(2),
                    lookup=generator.randrange(2),
                    commit=generator.randrange(2),
                )
            elif ("pc_handle", "request") in PROTOTYPES[name]:
                values["request"] = generator.choice(requests[-4:])
            if "advance" in values and generator.random() < 0.9:
                values["advance"] = plausible(world, rig, generator, values["request"])
            elif name == "context_begin_compaction" and generator.random() < 0.7:
                values |= {"old_to_new": i32(*generator.choice([(0,), (-1,)])), "count": 1}
                values["new_batch"] = sum(v >= 0 for v in values["old_to_new"])
            replaced = numbers(generator, name, values) if generator.random() < 0.3 else {}
            if name == "context_report":
                replaced["outcome"] = generator.choice([0] * 40 + [1, 2, 3])
            elif name == "context_abandon":
                replaced["drained"] = 1
            status = world.call(name, values, **replaced)
            assert status != INTERNAL, (name, world.error())
            done[name] += status == 0
            if name == "context_begin" and status == 0:
                requests.append(values["request"].value)
            rig.verify()
            if status == POISONED:
                break
        for request in requests * 2:  # the one with work outstanding goes first
            world.lib.context_abandon(rig.coordinator.handle, request, 1)
        world.lib.context_shutdown(rig.coordinator.handle, 1)
        rig.emptied()
        rig.close()
    assert done["context_begin"] > 20
    assert done["context_complete_decode"] > 0


def plausible(world, rig, generator, request):
    """An advance that fits the request, mostly."""
    try:
        state = read_request(rig.coordinator._library, rig.coordinator.handle, request)
    except PrefixCacheError:
        return world.advance((9,), (1,))
    committed, cuts = [], [0]
    for s in state.sequences:
        # Before the first token all of the history is to be committed, later all but the lookahead.
        prefill = len(s.token_ids) != s.committed_state_length + 1
        n = generator.randint(1, 2) if state.execution_mode == 1 and not prefill else 1
        committed.append(len(s.token_ids) if prefill else s.committed_state_length + n)
        cuts.append(cuts[-1] + n)
    out = world.advance(committed or (9,), [generator.randrange(2) for _ in range(max(1, cuts[-1]))])
    arrays = [i64(*cuts), i32(*committed), i32(*range(len(committed)))]
    world.keep += arrays
    if committed:
        out.token_offsets = address(arrays[0])
    if committed and state.execution_mode == 1:
        out.common = address(arrays[1])
    if committed and generator.random() < 0.3:
        out.publish, out.num_publish = address(arrays[2]), len(committed)
    return out


def test_threads_share_a_manager():
    m = ContextCacheManager(base_pages=64, draft_pages=64, tokens_per_page=4, max_records=16)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        generator = random.Random(seed)
        try:
            for _ in range(300):
                tokens = [generator.randrange(3) for _ in range(generator.randint(1, 24))]
                result = m.acquire(tokens, generator.choice([ReusePlanMode.VANILLA, ReusePlanMode.SPEC]))
                if result.lease is None:
                    continue
                with result.lease as lease:
                    pages = lease.base_pages()
                    assert len(pages) == -(-len(tokens) // 4)
                    if len(tokens) >= 4 and result.plan.dependency_blocks <= len(tokens) // 4:
                        m.publish(lease, len(tokens))
                    assert lease.base_pages() == pages
                generator.random() < 0.02 and m.flush()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    m.check_invariants()
    m.flush()
    assert m.free(0) == m.free(1) == 64


def test_threads_share_a_coordinator():
    rig = Rig(requests=4, pages=64, width=4, max_batch=4)
    errors: list[BaseException] = []

    def work(slot: int) -> None:
        try:
            for i in range(30):
                live = rig.begin(prompt(200, i % 3), slots=[slot]).prefill()
                live.decode([[i]], [0]).check()
                assert live.finish() is Status.OK if i % 3 else live.request.close() is None
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    rig.emptied()


def test_a_child_of_fork_gets_an_error():
    done = run_python(
        """
        import os
        import prefixcache
        from prefixcache.context import ContextCacheManager, KVPageTable, digest_bytes
        m, t = ContextCacheManager(base_pages=4), KVPageTable(2, 2, 4)
        lease = m.acquire([1, 2, 3]).lease
        pid = os.fork()
        if pid == 0:
            calls = [m.records, m.dump, t.upload, lease.base_pages, lambda: m.acquire([1]), lambda: digest_bytes(b"")]
            refused = 0
            for call in calls:
                try:
                    call()
                except prefixcache.PrefixCacheForkError as e:
                    refused += "spawn" in str(e)
            os._exit(refused)
        _, code = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(code) == 6, code
        assert lease.base_pages() == [0]
        """
    )
    assert done.returncode == 0, done.stderr
