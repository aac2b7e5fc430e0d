"""Tests of rows on a device, on the simulated driver; they say nothing about a GPU.

Kept apart from python/tests because a process has one driver for its life.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests"))
os.environ.setdefault("PREFIXCACHE_CUDA_DRIVER", str(ROOT / "build" / "cuda" / "libsimcuda.so"))

import pytest  # noqa: E402
from omni_host import Host  # noqa: E402
from sim_driver import Driver  # noqa: E402


@pytest.fixture
def driver() -> Iterator[Driver]:
    """The driver as after a start; at the end nothing is wrong and nothing is left."""
    sim = Driver()
    sim.reset(1)
    yield sim
    sim.fail(0)
    faults = [fault for fault in sim.faults() if not any(known in fault for known in sim.provoked)]
    leaks = sim.leaks()
    sim.reset(0)
    assert not faults, faults
    assert not leaks, leaks


@pytest.fixture(params=["eager", "threaded"])
def make_host(request, driver):
    hosts = []

    def make(**settings):
        hosts.append(Host(eager=request.param == "eager", **settings))
        return hosts[-1]

    yield make
    for host in hosts:
        if getattr(host, "destroyed", False):
            continue
        host.check()
        host.manager.shutdown()
        handle = ctypes.c_uint64(host.manager._cache.handle)
        assert host.manager._cache.library.omni_destroy(handle) == 0
