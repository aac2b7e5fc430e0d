"""Outputs that are not cached, value kind by value kind."""

from __future__ import annotations

from array import array
from collections import UserDict, namedtuple
from types import MappingProxyType

import numpy as np
import pytest
import torch
from omni_host import Host, rows, same

from prefixcache.omni import ModelCachePolicy

Pair = namedtuple("Pair", "left right")


def hand_out(host: Host, value: object, scheduled: dict[str, int] | None = None, **save: object) -> dict:
    """What each request receives of one mm output in a step of A (2 rows) and B (3 rows)."""
    scheduled = scheduled or {"A": 2, "B": 3}
    for i, name in enumerate(scheduled):
        if name not in host.view.tables:
            host.arrive(name, [2 * i, 2 * i + 1])
    host.begin(scheduled)
    return host.read(host.save({"x": value}, **save), *scheduled).mm_outputs["x"]


def test_tensor_of_scheduled_length_is_cut(host):
    out = hand_out(host, torch.arange(5))
    assert out["A"].tolist() == [0, 1]
    assert out["B"].tolist() == [2, 3, 4]
    assert out["B"].is_contiguous()


def test_other_tensor_goes_whole_to_each_as_its_own(host):
    value = torch.arange(8.0).view(4, 2)
    out = hand_out(host, value)
    assert same(out["A"], value)
    assert same(out["B"], value)
    out["A"].fill_(9)
    assert same(out["B"], value)


def test_longer_tensor_is_never_cut(host):
    value = torch.arange(14.0).view(7, 2)
    assert same(hand_out(host, value)["A"], value)


def test_zero_dimensional_tensor_is_copied(host):
    value = torch.tensor(2.5)
    out = hand_out(host, value)
    assert same(out["A"], value)
    out["A"].fill_(0)
    assert out["B"].item() == 2.5


def test_dict_follows_the_rules_entry_by_entry(host):
    out = hand_out(host, {"cut": torch.arange(5), "deep": {"whole": torch.arange(3), "n": 7}})
    assert out["A"]["cut"].tolist() == [0, 1]
    assert out["B"]["cut"].tolist() == [2, 3, 4]
    assert out["A"]["deep"]["whole"].tolist() == [0, 1, 2]
    assert out["B"]["deep"]["n"] == 7


def test_any_mapping_becomes_a_dict(host):
    out = hand_out(host, MappingProxyType({"cut": torch.arange(5)}))
    assert type(out["A"]) is dict
    assert out["A"]["cut"].tolist() == [0, 1]


class ItemsAsAttributes(dict):
    """As many libraries have it: a name that is none is a KeyError."""

    __getattr__ = dict.__getitem__


class MadeUpAttributes(dict):
    """And others: a name that is none is an empty one of its own."""

    def __getattr__(self, name: str) -> MadeUpAttributes:
        return self.setdefault(name, MadeUpAttributes())


class MadeUpAttributesOfNoDict(UserDict):
    def __getattr__(self, name: str) -> MadeUpAttributesOfNoDict:
        return self.data.setdefault(name, MadeUpAttributesOfNoDict())


@pytest.mark.parametrize("make", [ItemsAsAttributes, MadeUpAttributes, MadeUpAttributesOfNoDict])
def test_a_mapping_is_not_asked_whether_it_is_an_array(host, make):
    out = hand_out(host, make(cut=torch.arange(5), deep=make(n=7)))
    assert out["A"]["cut"].tolist() == [0, 1]
    assert out["B"] == {"cut": out["B"]["cut"], "deep": {"n": 7}}


class NoAttributes:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"not in this state: {name}")


class Nowhere:
    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError("on several devices")


@pytest.mark.parametrize("kind", [NoAttributes, Nowhere])
def test_what_cannot_say_whether_it_is_an_array_is_passed_on(host, kind):
    value = kind()
    assert hand_out(host, value)["A"] is value
    assert hand_out(host, [value])["B"][0] is value


@pytest.mark.parametrize("make", [list, tuple, lambda items: Pair(*items)])
def test_sequences_go_whole_with_tensors_of_their_own(host, make):
    shared = object()
    value = make([torch.arange(5), shared])
    out = hand_out(host, value)
    assert type(out["A"]) is type(value)
    assert out["A"][0].tolist() == [0, 1, 2, 3, 4]
    assert out["A"][1] is shared
    out["A"][0].fill_(-1)
    assert out["B"][0].tolist() == [0, 1, 2, 3, 4]


def test_nested_sequences_share_no_tensor(host):
    out = hand_out(host, [(torch.zeros(2),), {"t": torch.zeros(2)}])
    out["A"][0][0].fill_(1)
    out["A"][1]["t"].fill_(1)
    assert out["B"][0][0].tolist() == [0, 0]
    assert out["B"][1]["t"].tolist() == [0, 0]


BUFFERS = {
    "array": lambda: np.arange(5),
    "scalar array": lambda: np.array(2.5),
    "masked array": lambda: np.ma.masked_equal(np.arange(5), 3),
    "read-only array": lambda: np.broadcast_to(np.int64(7), (5,)),
    "bytes": lambda: bytearray(b"abcde"),
    "array.array": lambda: array("f", [1, 2, 3]),
}


def overwrite(value: object) -> None:
    if isinstance(value, np.ndarray):
        value.fill(9)
    else:
        value[:] = value[:1] * len(value)


@pytest.mark.parametrize("inside", [lambda x: x, lambda x: [x], lambda x: {"deep": (x,)}], ids=["bare", "list", "dict"])
@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers_that_are_no_tensors_are_copied_as_well(host, kind, inside):
    """S-15's kind: a pipeline's numpy array is overwritten by the next step like its tensors."""

    def buffer_of(value: object) -> object:
        while isinstance(value, list | tuple | dict):
            value = value["deep"] if isinstance(value, dict) else value[0]
        return value

    value, want = BUFFERS[kind](), BUFFERS[kind]()
    for i, name in enumerate("AB"):
        host.arrive(name, [i])
    host.begin({"A": 2, "B": 3})
    step = host.save({"x": inside(value)})
    if kind != "read-only array":
        overwrite(value)
    out = host.read(step, "A", "B").mm_outputs["x"]
    for name in "AB":  # whole, also where it has the step's length: only tensors are cut
        got = buffer_of(out[name])
        assert type(got) is type(want)
        assert np.array_equal(np.asarray(got), np.asarray(want))
        overwrite(got)


@pytest.mark.parametrize(
    "value", [None, 3, "text", b"bytes", 2.5, frozenset({1}), (1, ("a",)), torch.Size([2]), object()]
)
def test_python_values_are_passed_on_as_they_are(host, value):
    out = hand_out(host, value)
    assert out["A"] is value
    assert out["B"] is value


def test_leftovers_never_get_a_prefix(host):
    host.arrive("S", [0])
    host.go({"S": 4})
    host.arrive("H", [0, 9], hit=4)
    assert hand_out(host, torch.arange(2), {"H": 2})["H"].tolist() == [0, 1]


def test_length_is_that_of_the_batch_not_of_the_ids_asked_for(host):
    host.arrive("A", [0])
    host.arrive("B", [1])
    host.begin({"A": 2, "B": 3})
    step = host.save({"whole": torch.arange(3), "cut": torch.arange(5)})
    out = host.read(step, "B").mm_outputs
    assert out["whole"]["B"].tolist() == [0, 1, 2]
    assert out["cut"]["B"].tolist() == [2, 3, 4]


def test_step_without_tokens_has_leftovers_only(host):
    host.arrive("A", [0])
    host.begin({"A": 0})
    out = host.read(host.save({"x": torch.arange(3), "n": 1}, hidden=torch.zeros(0, 6)), "A")
    assert out.hidden_states is None
    assert out.mm_outputs["x"]["A"].tolist() == [0, 1, 2]
    assert out.mm_outputs["n"]["A"] == 1


def test_value_that_is_no_tensor_for_a_cached_name_is_handed_out(host):
    # S-8: the original left it out of the result.
    host.arrive("A", [0, 1])
    host.go({"A": 4}, ("x",))
    host.begin({"A": 1})
    out = host.read(host.save({"x": ["a", "b"]}), "A")
    assert out.mm_outputs["x"]["A"] == ["a", "b"]


def test_tensor_of_another_shape_for_a_cached_name_is_handed_out(host):
    # S-8: the original cut rows out of it.
    host.arrive("A", [0, 1])
    host.go({"A": 4}, ("x",))
    host.begin({"A": 1})
    value = torch.arange(21.0).view(7, 3)
    assert same(host.read(host.save({"x": value}), "A").mm_outputs["x"]["A"], value)


@pytest.mark.parametrize(("width", "dtype"), [(3, torch.float32), (6, torch.float64), (12, torch.float16)])
def test_key_that_comes_back_changed_is_handed_out_uncached(host, caplog, width, dtype):
    host.arrive("A", [0])
    host.go({"A": 4}, ("x",))
    host.finish("A")
    for _ in range(2):
        host.arrive("B", [0])
        host.begin({"B": 4})
        changed = host.outputs("x", width, dtype)
        out = host.read(host.save({"x": changed}), "B")
        assert same(out.mm_outputs["x"]["B"], changed)
        host.finish("B")
    assert len([r for r in caplog.records if "x came with rows" in r.message]) == 1
    # Its slots are absent for the key; they do not keep A's rows.
    host.arrive("C", [0, 1], hit=4)
    out = host.go({"C": 1}, ("x",))
    assert same(out.mm_outputs["x"]["C"], torch.cat([torch.zeros(4, 6), rows("C", 4, 5, "x")]))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_key_that_comes_back_without_width_is_handed_out_uncached(host, shape):
    # Refused is only what would be a new key: a step that has nothing of an old one goes on.
    host.arrive("A", [0, 1])
    host.arrive("B", [2])
    host.go({"A": 4, "B": 2}, ("x",))
    host.begin({"A": 1, "B": 2})
    out = host.read(host.save({"x": torch.empty(3, *shape)}, hidden=torch.empty(3, *shape)), "A", "B")
    for rows_of in (out.mm_outputs["x"], out.hidden_states):
        assert rows_of["A"].shape == (1, *shape)
        assert rows_of["B"].shape == (2, *shape)
    assert host.go({"A": 1}, ("x",)).mm_outputs["x"]["A"].shape == (1, 6)


def test_changed_key_with_a_padded_tensor_is_cut_by_spans(host):
    host.arrive("A", [0])
    host.go({"A": 4}, ("x",))
    host.arrive("B", [1])
    host.view.tables["A"] = [0, 2]
    host.begin({"A": 1, "B": 2})
    value = torch.arange(24.0).view(8, 3)
    out = host.read(host.save({"x": value}, padded=8), "A", "B").mm_outputs["x"]
    assert same(out["A"], value[:1])
    assert same(out["B"], value[1:3])


def test_hidden_of_another_width_is_handed_out_and_a_hit_on_it_is_an_error(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("B", [1])
    host.begin({"B": 2})
    wide = host.outputs(width=9)
    out = host.read(host.save(hidden=wide), "B")
    assert same(out.hidden_states["B"], wide)
    host.arrive("H", [0, 2], hit=4)
    host.begin({"H": 1})
    step = host.save(hidden=host.outputs(width=9))
    with pytest.raises(RuntimeError, match="is not readable"):
        host.read(step, "H")


def test_mm_named_like_the_hidden_state_is_dropped(host):
    host.arrive("A", [0])
    host.begin({"A": 2})
    out = host.read(host.save({"__hidden_states__": torch.zeros(2, 6)}), "A")
    assert out.mm_outputs == {}
    assert same(out.hidden_states["A"], rows("A", 0, 2))


def test_deferred_name_that_holds_no_step_rows_is_a_leftover(make_host):
    host = make_host(policy=ModelCachePolicy(deferred_keys=frozenset({"x"})))
    value = torch.arange(21.0).view(7, 3)
    assert same(hand_out(host, value)["B"], value)
    assert host.manager.stats()["keys"] == 1
