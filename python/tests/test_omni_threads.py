"""Consumers on other threads, lifetime of results, and use after fork."""

from __future__ import annotations

import gc
import itertools
import os
import queue
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from omni_host import Host, rows, same

from prefixcache import PrefixCacheError, _ffi
from prefixcache._buffers import ARENA_BYTES
from prefixcache.omni import OmniPrefixCacheManager

WIDE = 4096  # float32: 64 rows are 1 MiB


def buffer_stats() -> _ffi.BufferStats:
    gc.collect()  # results of former tests that are in a cycle
    stats = _ffi.BufferStats()
    stats.struct_size = _ffi.ctypes.sizeof(stats)
    lib = _ffi.load()
    lib.check(lib.buffer_get_stats(stats))
    return stats


def test_output_builder_thread_consumes_while_the_engine_runs(make_host):
    host = make_host(num_blocks=64, staging_depth=3)
    steps: queue.Queue = queue.Queue()
    wrong: list[object] = []

    def build() -> None:
        while (job := steps.get()) is not None:
            step, wanted = job
            try:
                out = host.read(step, *wanted)
                wrong.extend(r for r, want in wanted.items() if not same(out.mm_outputs["k"][r], want))
            except Exception as e:
                wrong.append(e)

    builder = threading.Thread(target=build)
    builder.start()
    host.arrive("P", [0, 1])
    host.go({"P": 8}, ("k",))
    prefix = rows("P", 0, 8, "k")
    for i in range(300):
        name = f"r{i}"
        host.arrive(name, [0, 1, 2 + i % 60], hit=8)
        wanted = {name: torch.cat([prefix, rows(name, 8, 10, "k")])}
        steps.put((host.run({name: 2}, ("k",)), wanted))
        host.finish(name)
    steps.put(None)
    builder.join()
    assert wrong == []


def test_several_consumers_in_any_order(make_host):
    host = make_host(num_blocks=64, staging_depth=16)
    host.arrive("A", list(range(40)))
    jobs = [(host.run({"A": 4}, ("k",)), 4 * i) for i in range(16)]
    wrong: list[object] = []

    def consume(mine: list[tuple[int, int]]) -> None:
        for step, start in mine:
            if not same(host.read(step, "A").mm_outputs["k"]["A"], rows("A", start, start + 4, "k")):
                wrong.append(step)

    threads = [threading.Thread(target=consume, args=(jobs[i::4][::-1],)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_step_is_consumed_by_one_of_many_threads(host):
    host.arrive("A", [0])
    for _ in range(20):
        step = host.run({"A": 0})
        won: list[int] = []
        barrier = threading.Barrier(4)

        def race(step: int = step, won: list[int] = won, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                host.manager.discard_step(step)
                won.append(step)
            except RuntimeError:
                pass

        threads = [threading.Thread(target=race) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert won == [step]


def test_engine_calls_that_overlap_are_refused(make_host):
    host = make_host(staging_depth=1, staging_claim_timeout_s=20.0)
    host.arrive("A", [0])
    step = host.run({"A": 1})
    host.begin({"A": 1})
    waiting = threading.Thread(target=lambda: host.read(host.save(), "A"))
    waiting.start()
    while host.manager._engine:
        pass
    with pytest.raises(PrefixCacheError, match="must not overlap"):
        host.begin({"A": 1})
    host.manager.discard_step(step)
    waiting.join()


def wide_step(host: Host, name: str, n: int) -> torch.Tensor:
    host.begin({name: n})
    return host.read(host.save(hidden=host.outputs(width=WIDE)), name).hidden_states[name]


def test_results_outlive_their_manager(make_host):
    host = make_host(num_blocks=64)
    host.arrive("A", list(range(40)))
    small = host.go({"A": 2}, ("k",)).mm_outputs["k"]["A"]
    host.manager.shutdown()
    other = Host(eager=host.manager._eager, num_blocks=64)
    other.arrive("A", list(range(40)))
    large = wide_step(other, "A", 100)
    assert large.numel() * 4 > ARENA_BYTES
    other.manager.shutdown()
    del other.manager
    gc.collect()
    assert same(small, rows("A", 0, 2, "k"))
    assert same(large, rows("A", 0, 100, width=WIDE))


def test_arena_memory_is_reused_and_never_under_a_live_view(make_host):
    host = make_host(num_blocks=1024)
    before = buffer_stats()
    host.arrive("A", list(range(1000)))
    kept: list[tuple[torch.Tensor, int]] = []
    for i in range(30):
        start = host.view.computed["A"]
        got = wide_step(host, "A", 64 + i)
        assert same(got, rows("A", start, start + 64 + i, width=WIDE))
        if i % 3 == 0:
            kept.append((got[5:9], start + 5))  # a small view keeps the whole buffer
        del got
    for view, start in kept:
        assert same(view, rows("A", start, start + 4, width=WIDE))
    after = buffer_stats()
    assert after.acquired - before.acquired == 30
    assert after.recycled - before.recycled > 10
    starts = sorted(v.data_ptr() - 5 * WIDE * 4 for v, _ in kept)
    spans = [(start, start + ARENA_BYTES) for start in starts]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    kept.clear()
    del view
    gc.collect()
    assert buffer_stats().in_use_bytes == before.in_use_bytes


def test_last_view_may_die_on_another_thread(make_host):
    host = make_host(num_blocks=64)
    before = buffer_stats().in_use_bytes
    host.arrive("A", list(range(40)))
    box = [wide_step(host, "A", 100)]
    assert buffer_stats().in_use_bytes > before
    t = threading.Thread(target=box.clear)
    t.start()
    t.join()
    assert buffer_stats().in_use_bytes == before


def test_dropped_managers_give_their_memory_back():
    for _ in range(20):
        host = Host(num_blocks=1024)
        host.arrive("A", [0])
        host.run({"A": 4}, ("k",))
    manager, handle = host.manager, host.manager._cache.handle
    assert manager.stats()["unconsumed_steps"] == 1
    del host, manager
    gc.collect()
    lib = _ffi.load()
    assert lib.omni_shutdown(handle) == -2  # PC_ERROR_BAD_HANDLE: destroyed


def run_python(code: str, **env: str) -> subprocess.CompletedProcess:
    root = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(root), str(root / "tests")])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, **env},
        check=False,
    )


@pytest.mark.parametrize("eager", [True, False])
def test_a_forked_child_is_refused_and_does_not_hang(eager):
    done = run_python(
        f"""
        import os, gc
        from omni_host import Host
        from prefixcache import PrefixCacheForkError
        host = Host(eager={eager})
        host.arrive("A", [0])
        step = host.run({{"A": 2}})
        pid = os.fork()
        if pid == 0:
            calls = [lambda: host.run({{"A": 1}}), lambda: host.read(step, "A"), host.manager.shutdown, Host]
            texts = []
            for call in calls:
                try:
                    call()
                except PrefixCacheForkError as e:
                    texts.append(str(e))
            del host.manager
            gc.collect()
            os._exit(0 if len(texts) == 4 and all("spawn" in t for t in texts) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert host.read(step, "A").hidden_states["A"].shape == (2, 6)
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_child_forked_before_the_first_use_works():
    done = run_python(
        """
        import os
        import prefixcache.omni
        from omni_host import Host
        pid = os.fork()
        host = Host()
        host.arrive("A", [0])
        assert host.go({"A": 2}).hidden_states["A"].shape == (2, 6)
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_process_ends_cleanly_with_work_pending():
    done = run_python(
        """
        from omni_host import Host
        from prefixcache.omni import ModelCachePolicy
        host = Host(eager=False, num_blocks=64, policy=ModelCachePolicy(deferred_keys=frozenset({"d"})))
        host.arrive("A", list(range(40)))
        host.begin({"A": 100})
        step = host.save({"d": host.outputs("d", 4096)}, hidden=host.outputs(width=4096))
        kept = host.read(step, "A")
        host.begin({"A": 2})
        host.save({"d": host.outputs("d", 4096)}, hidden=host.outputs(width=4096))
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_managers_are_independent():
    a, b = Host(), Host()
    for host, name in ((a, "A"), (b, "B")):
        host.arrive(name, [0])
        host.go({name: 4})
    for host, name in ((a, "A"), (b, "B")):
        host.arrive("H", [0, 1], hit=4)
        assert same(host.go({"H": 1}).hidden_states["H"][:4], rows(name, 0, 4))
    assert isinstance(a.manager, OmniPrefixCacheManager)
