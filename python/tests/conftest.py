"""Fixtures: every omni test runs eagerly and with the background thread."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import omni_host
import pytest
import torch

torch.set_num_threads(1)
# A shell ignores the interrupt in its background jobs, and every host begun here would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["eager", "threaded"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_host(mode: str) -> Iterator[Callable[..., omni_host.Host]]:
    """Makes hosts whose cache is checked and shut down after the test."""
    hosts: list[omni_host.Host] = []

    def make(**settings: object) -> omni_host.Host:
        settings.setdefault("eager", mode == "eager")
        hosts.append(omni_host.Host(**settings))
        return hosts[-1]

    yield make
    for host in hosts:
        host.check()
        host.manager.shutdown()


@pytest.fixture
def host(make_host: Callable[..., omni_host.Host]) -> omni_host.Host:
    return make_host()
