"""What a caller may do with the tensors it was handed: all that it may with its own.

They are plain tensors, whatever mode the engine saved in: the output builder is another
thread and rarely in the engine's inference mode, and an inference tensor can be neither
changed in place nor used in autograd there.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from omni_host import Host, rows, same

from prefixcache import _ffi
from prefixcache._buffers import ARENA_BYTES, allocate
from prefixcache.omni import StageCacheOutputs

WIDE = 1 << 18  # a MiB a row: result buffers of another kind
MODES = {"plain": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def use(out: StageCacheOutputs) -> None:
    """Autograd, then in-place changes, of every tensor of a result, each for itself."""
    for t in tensors(out):
        assert not t.requires_grad, "what was done to another request's tensor is no business of this one"
        version = t._version
        weight = torch.ones(t.shape[-1:], requires_grad=True)
        (t * weight).sum().backward()
        assert weight.grad is not None
        t.add_(1)
        assert t._version > version
        weight.grad = None
        t.mul_(weight)  # in place too when what changes it has a gradient
        t.sum().backward()
        assert weight.grad is not None
        assert t.requires_grad


@pytest.mark.parametrize("save", MODES)
@pytest.mark.parametrize("read", MODES)
@pytest.mark.parametrize("batch", [{"A": 4}, {"A": 4, "B": 4}, {"A": 4, "B": 3}], ids=str)
def test_results_may_be_changed_and_trained_on(host: Host, save: str, read: str, batch: dict[str, int]) -> None:
    host.arrive("A", [0, 2])
    host.arrive("B", [1, 3])
    for step in range(3):  # the second looks like the first, the third brings hits
        if step == 2:
            for name in batch:
                host.finish(name)
                host.arrive(name, [0, 4 + len(name)], hit=4)
        scheduled = batch if step == 0 else dict.fromkeys(batch, 1)
        host.begin(scheduled)
        outputs = {"k": host.outputs("k"), "left": [torch.ones(3), {"cut": torch.ones(sum(scheduled.values()))}]}
        want = rows("A", host.view.computed["A"], host.view.computed["A"] + scheduled["A"])
        with MODES[save]():
            number = host.save(outputs)
        with MODES[read]():
            out = host.read(number, *batch)
        assert same(out.hidden_states["A"][-len(want) :], want)
        use(out)


@pytest.mark.parametrize("ids", [["A"], ["A", "B"]])
@pytest.mark.parametrize("save", MODES)
def test_large_results_and_rows_of_another_width_likewise(host: Host, save: str, ids: list[str]) -> None:
    for i, name in enumerate(ids):
        host.arrive(name, [i])
    for width in (WIDE, 6):  # the second is handed out without being cached
        host.begin(dict.fromkeys(ids, 2))
        with MODES[save]():
            step = host.save({"k": host.outputs("k", width)}, hidden=host.outputs(width=width))
        use(host.read(step, *ids))


@pytest.mark.parametrize("nbytes", [64, ARENA_BYTES])
def test_every_buffer_is_plain_and_has_memory_of_its_own(nbytes: int) -> None:
    """Also when several threads take the last of the tensors that were made ahead."""

    def take(_: int) -> list[torch.Tensor]:
        with torch.inference_mode():
            return [allocate(_ffi.load(), (nbytes // 8, 2), torch.float32, nbytes) for _ in range(70)]

    with ThreadPoolExecutor(4) as pool:
        buffers = [b for taken in pool.map(take, range(4)) for b in taken]
    assert {(b.shape, b.is_contiguous(), b.is_inference(), b._is_view()) for b in buffers} == {
        ((nbytes // 8, 2), True, False, False)
    }
    assert len({b.data_ptr() for b in buffers}) == 4 * 70


def test_changed_results_leave_the_cache_alone(host: Host) -> None:
    host.arrive("A", [0])
    host.arrive("B", [1])
    for t in tensors(host.go({"A": 4, "B": 4}, ("k",))):
        t.fill_(-1)
    for name, blocks in (("C", [0, 2]), ("D", [1, 3]), ("E", [0, 4])):
        host.arrive(name, blocks, hit=4)
        out = host.go({name: 1}, ("k",))
        former = "B" if name == "D" else "A"
        assert same(out.hidden_states[name], torch.cat([rows(former, 0, 4), rows(name, 4, 5)]))
        assert same(out.mm_outputs["k"][name], torch.cat([rows(former, 0, 4, "k"), rows(name, 4, 5, "k")]))
        for t in tensors(out):
            t.zero_()


@pytest.fixture
def default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after torch.set_default_device("cuda"), which torch has from 2.0 on: tensors go elsewhere."""
    for name in ("empty", "tensor"):
        make = getattr(torch, name)

        def elsewhere(*args: Any, device: Any = "meta", make: Any = make, **more: Any) -> torch.Tensor:
            return make(*args, device=device, **more)

        monkeypatch.setattr(torch, name, elsewhere)


@pytest.mark.parametrize("width", [6, WIDE])
def test_results_are_in_host_memory_whatever_the_default_device(host: Host, default_device: None, width: int) -> None:
    """A result buffer on a device would be written through its address, as host memory."""
    for i, name in enumerate("AB"):
        host.arrive(name, [i])
    host.view.step_slots_cpu = lambda ids, counts: [0, 1, 4, 5]
    for _ in range(2):  # the second is like the first, which goes another way
        host.begin({"A": 2, "B": 2})
        step = host.save({"left": torch.ones(3, device="cpu")}, hidden=torch.ones(4, width, device="cpu"))
        out = host.read(step, "B", "A")
        assert {t.device.type for t in tensors(out)} == {"cpu"}
        assert torch.equal(out.hidden_states["A"], torch.ones(2, width))


@pytest.mark.parametrize("again", [lambda out: pickle.loads(pickle.dumps(out)), copy.deepcopy], ids=["pickle", "copy"])
@pytest.mark.parametrize("width", [6, WIDE])
def test_results_can_be_sent_and_copied(host: Host, again: Any, width: int) -> None:
    host.arrive("A", [0])
    host.arrive("B", [1])
    host.begin({"A": 2, "B": 2})
    out = host.read(host.save({"x": {"n": 1}}, hidden=host.outputs(width=width)), "A", "B")
    other = again(out)
    out.hidden_states["A"].zero_()
    assert type(other) is StageCacheOutputs
    assert same(other.hidden_states["A"], rows("A", 0, 2, width=width))
    assert other.mm_outputs == out.mm_outputs
