"""Copies that several threads share: the option, and the same results with and without."""

from __future__ import annotations

import omni_host
import pytest
import torch
from omni_host import SPARE_THREADS, eventually, rows, same, threads_of_this_process

from prefixcache._errors import PrefixCacheArgumentError
from prefixcache.omni import PrefixCacheConfig

WIDE = 16 << 10  # float32: a row is 64 KiB, and 64 tokens are 4 MiB


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_large_steps_and_hits(make_host, threads):
    host = make_host(num_blocks=64, staging_capacity_tokens=256, copy_threads=threads)
    host.arrive("A", list(range(20)))
    host.begin({"A": 64})
    wide = host.outputs(width=WIDE)
    out = host.read(host.save(hidden=wide), "A")
    assert same(out.hidden_states["A"], rows("A", 0, 64, width=WIDE))
    for i in range(3):
        name = f"hit {i}"
        host.arrive(name, [*range(16), 30 + i], hit=64)
        host.begin({name: 1})
        out = host.read(host.save(hidden=host.outputs(width=WIDE)), name)
        assert same(out.hidden_states[name], torch.cat([wide, rows(name, 64, 65, width=WIDE)]))
        host.finish(name)


def test_caches_that_are_gone_leave_no_threads():
    def run() -> None:
        host = omni_host.Host(num_blocks=64, staging_capacity_tokens=256, copy_threads=6)
        host.arrive("A", list(range(20)))
        host.begin({"A": 64})
        host.read(host.save(hidden=host.outputs(width=WIDE)), "A")

    for _ in range(3):
        run()
    before = threads_of_this_process()
    for _ in range(SPARE_THREADS):  # each had five of its own
        run()
    eventually(lambda: threads_of_this_process() < before + SPARE_THREADS)


def test_the_environment_sets_what_nobody_chose(monkeypatch):
    monkeypatch.setenv("PREFIXCACHE_COPY_THREADS", "3")
    assert PrefixCacheConfig(4, 4).options(True).copy_threads == 3
    assert PrefixCacheConfig(4, 4, copy_threads=2).options(True).copy_threads == 2
    monkeypatch.delenv("PREFIXCACHE_COPY_THREADS")
    assert PrefixCacheConfig(4, 4).options(True).copy_threads == 0


@pytest.mark.parametrize("text", ["", "-1", "65", "two", "1.5"])
def test_another_text_in_the_environment_is_refused(monkeypatch, text):
    monkeypatch.setenv("PREFIXCACHE_COPY_THREADS", text)
    with pytest.raises(PrefixCacheArgumentError, match=f"PREFIXCACHE_COPY_THREADS is {text}, expected 0 to 64"):
        PrefixCacheConfig(4, 4).options(True)


@pytest.mark.parametrize("threads", [-1, 65, "two"])
def test_another_number_is_refused(threads):
    with pytest.raises(PrefixCacheArgumentError, match=r"PrefixCacheConfig\.copy_threads is '?\S+, expected"):
        PrefixCacheConfig(4, 4, copy_threads=threads).options(True)
