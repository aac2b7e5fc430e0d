"""Steps whose outputs look like those of the last one take a short way.

It must not be taken by a step that looks different, and must do what the long way does.
"""

from __future__ import annotations

import omni_host
import pytest
import torch
from omni_host import WIDTH, rows, same

from prefixcache import omni
from prefixcache._buffers import ARENA_BYTES
from prefixcache._errors import PrefixCacheArgumentError

KEYS = ("m", "n")


def like(a: object, b: object) -> bool:
    """Equal types, contents and order."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.layout is not b.layout:
            return False
        return same(a, b) if a.layout is torch.strided else same(a.to_dense(), b.to_dense())
    if isinstance(a, dict):
        return list(a) == list(b) and all(like(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(like(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def steady(host: omni_host.Host) -> omni_host.Host:
    """Two requests that have decoded for a while."""
    host.arrive("A", [0, 1, 2])
    host.arrive("B", [3, 4, 5])
    for _ in range(3):
        host.go({"A": 1, "B": 1}, KEYS)
    return host


def test_a_step_like_the_last_one_is_not_sorted(host, monkeypatch):
    steady(host)
    monkeypatch.setattr(omni, "sort_outputs", None)
    for i in range(3, 6):
        out = host.go({"A": 1, "B": 1}, KEYS)
        assert same(out.hidden_states["B"], rows("B", i, i + 1))
        assert same(out.mm_outputs["n"]["A"], rows("A", i, i + 1, "n"))


def test_neither_is_one_whose_results_have_memory_of_the_library(monkeypatch):
    host, wide = omni_host.Host(), ARENA_BYTES // 4
    for i, name in enumerate("AB"):
        host.arrive(name, [i])
    for i in range(4):
        host.begin({"A": 1, "B": 1})
        out = host.read(host.save(hidden=host.outputs(width=wide)), "A", "B")
        assert same(out.hidden_states["B"], rows("B", i, i + 1, width=wide))
        monkeypatch.setattr(omni, "sort_outputs", None)


def spread(v: torch.Tensor) -> torch.Tensor:
    return torch.cat([v, v], 1)[:, :WIDTH]


def longer(v: torch.Tensor) -> torch.Tensor:
    return torch.cat([v, v])


class Rows(torch.Tensor):
    """A tensor of another class."""


SAME_ROWS = {
    "not contiguous": spread,
    "columns in memory": lambda v: v.t().contiguous().t(),
    "lazy negation": lambda v: torch._neg_view(-v),
    "parameter": torch.nn.Parameter,
    "another class": lambda v: v.as_subclass(Rows),
    "padded": longer,
}
OTHER_ROWS = {
    "another dtype": lambda v: v.double(),
    "wider": lambda v: torch.cat([v, v], 1),
    "another rank": lambda v: v[:, :, None],
    "fewer rows": lambda v: v[:1],
    "sparse": lambda v: v.to_sparse(),
    "a list": lambda v: [v],
    "a number": lambda v: 7,
    "nothing": lambda v: None,
}


def odd_step(host: omni_host.Host, change, *, padded: int = 0) -> omni_host.StageCacheOutputs:
    """A step whose outputs `change` has its way with."""
    host.begin({"A": 1, "B": 1})
    outputs = {"hidden": host.outputs(), "m": host.outputs("m"), "n": host.outputs("n")}
    change(outputs)
    hidden = outputs.pop("hidden")
    return host.read(host.save(outputs, hidden=hidden, padded=padded), "A", "B")


def check_against_the_long_way(make_host, change, *, padded: int = 0) -> None:
    """Steps before, with and after the odd one give the same; so does a hit on all their rows."""
    short, long = steady(make_host()), make_host()
    sort = long.manager.save_outputs

    def save(*args, **kwargs):
        long.manager._repeat = None
        return sort(*args, **kwargs)

    long.manager.save_outputs = save
    steady(long)
    for step in (
        lambda h: odd_step(h, change, padded=padded),
        lambda h: odd_step(h, change, padded=padded),
        lambda h: h.go({"A": 1, "B": 1}, KEYS),
        lambda h: h.go({"A": 1, "B": 1}, KEYS),
        lambda h: h.go({"A": 1, "B": 1}, KEYS),
    ):
        assert like(step(short), step(long))
    for key in (omni.HIDDEN_KEY, *KEYS):
        assert like(short.stored(key, list(range(24))), long.stored(key, list(range(24))))
        assert short.states(key, list(range(24))) == long.states(key, list(range(24)))


@pytest.mark.parametrize("name", ["m", "n"])
@pytest.mark.parametrize("look", [*SAME_ROWS, *OTHER_ROWS])
def test_an_output_that_looks_different(make_host, name, look):
    def change(outputs: dict) -> None:
        outputs[name] = (SAME_ROWS | OTHER_ROWS)[look](outputs[name])

    check_against_the_long_way(make_host, change, padded=4 if look == "padded" else 0)


@pytest.mark.parametrize("look", SAME_ROWS)
def test_hidden_rows_that_look_different(make_host, look):
    def change(outputs: dict) -> None:
        outputs["hidden"] = SAME_ROWS[look](outputs["hidden"])

    check_against_the_long_way(make_host, change)


@pytest.mark.parametrize(
    "change",
    [
        lambda o: o.pop("m"),
        lambda o: o.update(x=o["m"]),
        lambda o: o.update(x=3),
        lambda o: o.update(m=o.pop("m")),  # another order
        lambda o: o.update(hidden=None),
        lambda o: o.update(hidden=None, x=3),
        lambda o: o.update({omni.HIDDEN_KEY: o["m"]}),
    ],
    ids=[
        "one less",
        "one more",
        "one more that is no tensor",
        "another order",
        "no hidden rows",
        "no hidden rows, one that is no tensor",
        "reserved name",
    ],
)
def test_other_outputs(make_host, change):
    check_against_the_long_way(make_host, change)


def test_a_conjugate_that_looks_like_the_rows_before(host):
    host.arrive("A", [0, 1])
    value = torch.tensor([[1 + 2j, 3 - 4j]])
    for i in range(6):
        host.begin({"A": 1})
        rows = value.conj() if i % 2 else value
        out = host.read(host.save({"c": rows}), "A")
        assert same(out.mm_outputs["c"]["A"], value.conj().resolve_conj() if i % 2 else value)


def test_padding_that_changes(host):
    """A tensor has the size of the last one, which was the padded one, and is not rows of this step."""
    host.arrive("A", [0, 1, 2])
    for _ in range(2):
        host.begin({"A": 1})
        out = host.read(host.save({"m": longer(host.outputs("m"))}, padded=2), "A")
        assert out.mm_outputs["m"]["A"].shape == (1, WIDTH)
    host.begin({"A": 1})
    out = host.read(host.save({"m": longer(host.outputs("m"))}, padded=3), "A")
    assert out.mm_outputs["m"]["A"].shape == (2, WIDTH)


def test_results_of_steps_alike_are_apart(host):
    """Each step has buffers of its own, and the caller may overwrite what it gave."""
    host.arrive("A", [0, 1, 2])
    kept = []
    for _ in range(6):
        host.begin({"A": 1})
        hidden, m = host.outputs(), host.outputs("m")
        kept.append(host.read(host.save({"m": m}, hidden=hidden), "A"))
        hidden.fill_(-1)
        m.fill_(-1)
    for i, out in enumerate(kept):
        assert same(out.hidden_states["A"], rows("A", i, i + 1))
        assert same(out.mm_outputs["m"]["A"], rows("A", i, i + 1, "m"))


def test_as_many_rows_of_another_batch(host):
    steady(host)
    out = host.go({"B": 2}, KEYS)
    assert same(out.mm_outputs["m"]["B"], rows("B", 3, 5, "m"))
    out = host.go({"B": 1, "A": 1}, KEYS)
    assert same(out.mm_outputs["m"]["A"], rows("A", 3, 4, "m"))


@pytest.mark.parametrize("keys", [KEYS, KEYS[::-1], KEYS[:1]])
def test_a_refused_save_between_steps_alike(host, keys):
    """What it put into the arguments is not taken for the rows of the step before."""
    steady(host)
    host.begin({"A": 1, "B": 1})
    slots = host.view.step_slots_cpu
    host.view.step_slots_cpu = lambda ids, counts: slots(ids, counts) + 10**6
    with pytest.raises(omni.OmniPrefixCacheUnmatchError, match="slots"):
        host.save({k: host.outputs(k) for k in keys})
    host.view.step_slots_cpu = slots
    out = host.read(host.save({k: host.outputs(k) for k in KEYS}), "A", "B")
    for key in KEYS:
        assert same(out.mm_outputs[key]["B"], rows("B", 3, 4, key))
        assert same(host.stored(key, [3, 15]), torch.cat([rows("A", 3, 4, key), rows("B", 3, 4, key)]))


class Gaps:
    """Says that it is an array on a device, of rows with gaps between their elements."""

    @property
    def __cuda_array_interface__(self) -> dict:
        return {"data": (4096, False), "shape": (2, WIDTH), "typestr": "<f4", "strides": (96, 8), "version": 3}


def test_arguments_that_grew_for_a_step_that_was_refused(host):
    """Ten keys need a larger array of arguments than the step before, which the step after it has again."""
    steady(host)
    host.begin({"A": 1, "B": 1})
    many = {f"k{i}": host.outputs(f"k{i}") for i in range(9)}
    with pytest.raises(PrefixCacheArgumentError, match="without gaps"):
        host.save({**many, "gaps": Gaps()})
    for i in range(3, 6):
        out = host.read(host.save({k: host.outputs(k) for k in KEYS}), "A", "B")
        assert same(out.mm_outputs["m"]["B"], rows("B", i, i + 1, "m"))
        host.begin({"A": 1, "B": 1})
