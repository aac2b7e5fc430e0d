"""What may be passed in: dtypes, strides, ranks, block ids, counts."""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omni_host import Host, rows, same

from prefixcache import PrefixCacheArgumentError, PrefixCacheError, _ffi
from prefixcache._config import _LIMITS
from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheUnmatchError, PrefixCacheConfig

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
DTYPES += [getattr(torch, n) for n in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32") if hasattr(torch, n)]


def bits(t: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor: equality that NaN and exotic dtypes cannot disturb."""
    return t.contiguous().view(torch.uint8)


def random_rows(n: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256 if dtype is not torch.bool else 2, (n, *shape[:-1], shape[-1] * size), dtype=torch.uint8)
    return raw.view(dtype)


def round_trip(host: Host, first: torch.Tensor, second: torch.Tensor, key: str = "k") -> None:
    """`first` (4 rows or more) as A's rows, then `second` (1 row) behind a hit on them."""
    host.arrive("A", [0])
    host.begin({"A": 4})
    out = host.read(host.save({key: first}, padded=first.shape[0]), "A").mm_outputs[key]["A"]
    assert out.shape == first[:4].shape
    assert out.dtype is first.dtype
    assert torch.equal(bits(out), bits(first[:4]))
    host.finish("A")
    host.arrive("B", [0, 1], hit=4)
    host.begin({"B": 1})
    out = host.read(host.save({key: second}, padded=second.shape[0]), "B").mm_outputs[key]["B"]
    want = torch.cat([bits(first[:4]), bits(second[:1])])
    assert out.shape == (5, *first.shape[1:])
    assert out.is_contiguous()
    assert torch.equal(bits(out), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("policy", [ModelCachePolicy(), ModelCachePolicy(deferred_keys=frozenset({"k"}))])
def test_every_dtype(make_host, dtype, policy):
    round_trip(make_host(policy=policy), random_rows(4, (5,), dtype), random_rows(1, (5,), dtype))


@pytest.mark.parametrize("shape", [(1,), (3, 4), (2, 3, 2), (1, 1, 1, 7)])
def test_every_rank_from_two_on(host, shape):
    round_trip(host, random_rows(4, shape, torch.float32), random_rows(1, shape, torch.float32))


def test_rows_of_the_same_size_and_another_shape_are_another_kind(host):
    host.arrive("A", [0, 1])
    host.begin({"A": 4})
    host.read(host.save({"k": torch.zeros(4, 2, 3)}), "A")
    host.begin({"A": 1})
    flat = torch.arange(6.0).view(1, 6)
    assert same(host.read(host.save({"k": flat}), "A").mm_outputs["k"]["A"], flat)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: torch.stack([t, t], 1)[:, 0],  # rows with gaps
        lambda t: t.t().contiguous().t(),  # columns first
        lambda t: torch.stack([t, t], 2)[:, :, 0],  # every second element
        lambda t: torch.cat([t, t], 1)[:, t.shape[1] :],  # an offset
    ],
)
def test_non_contiguous_tensors(host, make):
    a, b = torch.randn(4, 6), torch.randn(1, 6)
    round_trip(host, make(a), make(b))


def test_expanded_tensor(host):
    round_trip(host, torch.randn(1, 6).expand(4, 6), torch.randn(1, 1).expand(1, 6))


def test_lazy_conjugate_and_negative_are_read_by_value(host):
    z = torch.randn(4, 3, dtype=torch.complex64)
    host.arrive("A", [0])
    host.begin({"A": 4})
    out = host.read(host.save({"conj": z.conj(), "neg": z.conj().imag}), "A").mm_outputs
    assert torch.equal(out["conj"]["A"], torch.complex(z.real, -z.imag))
    assert torch.equal(out["neg"]["A"], -z.imag)


def test_tensor_that_requires_grad(host):
    value = torch.randn(4, 6, requires_grad=True)
    host.arrive("A", [0])
    host.begin({"A": 4})
    out = host.read(host.save({"k": value * 2, "left": [value]}), "A").mm_outputs
    assert torch.equal(out["k"]["A"], value.detach() * 2)
    assert not out["left"]["A"][0].requires_grad


@pytest.mark.parametrize("extra", [1, 3, 100])
def test_hidden_with_more_rows_than_tokens(host, extra):
    host.arrive("A", [0])
    host.begin({"A": 3})
    out = host.read(host.save(hidden=torch.cat([host.outputs(), torch.full((extra, 6), -1.0)])), "A")
    assert same(out.hidden_states["A"], rows("A", 0, 3))


def test_padded_mm_is_cached(host):
    round_trip(host, torch.randn(8, 6), torch.randn(4, 6))


@pytest.mark.parametrize("key", ["hidden", "k", "d"])
def test_width_zero_is_refused_and_leaves_no_trace(make_host, key):
    host = make_host(policy=ModelCachePolicy(deferred_keys=frozenset({"d"})))
    host.arrive("A", [0])
    host.begin({"A": 2})
    with pytest.raises(PrefixCacheArgumentError, match="width 0"):
        if key == "hidden":
            host.save(hidden=torch.zeros(2, 0))
        else:
            host.save({key: torch.zeros(2, 0)})
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 2))


def test_zero_token_requests_get_zero_rows(host):
    host.arrive("A", [0])
    host.arrive("Z", [1])
    out = host.go({"A": 2, "Z": 0}, ("k",))
    assert out.hidden_states["Z"].shape == (0, 6)
    assert out.mm_outputs["k"]["Z"].shape == (0, 6)


def test_requests_without_a_count_have_none(host):
    host.arrive("A", [0])
    host.arrive("Z", [1])
    host.begin({"A": 2})
    host.view.batch = ["Z", "A"]
    step = host.manager.save_outputs(rows("A", 0, 2), None, num_tokens_unpadded=2, num_tokens_padded=2)
    out = host.read(step, "A", "Z")
    assert same(out.hidden_states["A"], rows("A", 0, 2))
    assert out.hidden_states["Z"].shape == (0, 6)


def test_a_step_without_tokens_still_gives_the_prefix_of_cached_keys(host):
    host.arrive("A", [0])
    host.go({"A": 4}, ("k",))
    host.arrive("H", [0, 1], hit=4)
    host.begin({"H": 0})
    out = host.read(host.save({"k": torch.empty(0, 6), "new": torch.empty(0, 6)}, hidden=torch.empty(0, 6)), "H")
    assert out.hidden_states is None
    assert same(out.mm_outputs["k"]["H"], rows("A", 0, 4, "k"))
    assert out.mm_outputs["new"]["H"].shape == (0, 6)
    host.begin({})
    out = host.read(host.save({"k": torch.empty(0, 6)}, hidden=None))
    assert out.mm_outputs["k"] == {}


def test_arrivals_and_finishes_may_be_any_iterables(host):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("B", [0, 1], hit=4)
    arrivals, host._arrivals = iter(host._arrivals), []
    output = SimpleNamespace(num_scheduled_tokens={"B": 1}, scheduled_new_reqs=arrivals, finished_req_ids=iter(["A"]))
    host.manager.new_step_starts(output)
    host.scheduled = {"B": 1}
    assert same(host.read(host.save(), "B").hidden_states["B"][:4], rows("A", 0, 4))
    assert host.manager.stats()["live_requests"] == 1


def test_a_batch_with_one_request_twice_is_refused(host):
    host.arrive("A", [0])
    host.begin({"A": 1})
    host.view.batch = ["A", "A"]
    with pytest.raises(PrefixCacheError, match="req A"):
        host.manager.save_outputs(torch.zeros(2, 6), None, num_tokens_unpadded=2, num_tokens_padded=2)


def test_a_negative_count_is_refused_before_anything_is_taken_in(host):
    host.arrive("A", [0])
    host.arrive("B", [1])
    with pytest.raises(PrefixCacheArgumentError, match=r"num_scheduled_tokens\['B'\] is -1, expected 0 or more"):
        host.begin({"A": 3, "B": -1})
    assert host.manager.stats()["live_requests"] == 0
    assert same(host.go({"A": 3, "B": 1}).hidden_states["B"], rows("B", 0, 1))


def test_a_negative_number_of_computed_tokens_is_no_hit(host):
    """As in the original, which asks whether it is above zero."""
    host.arrive("A", [0])
    host._arrivals[0].num_computed_tokens = -4
    assert same(host.go({"A": 2}).hidden_states["A"], rows("A", 0, 2))


def test_ids_asked_for_may_be_any_sequence(host):
    host.arrive("A", [0])
    step = host.run({"A": 1})
    assert same(host.manager.materialize(step, ("A",)).hidden_states["A"], rows("A", 0, 1))


def test_requests_that_no_output_announced_are_served(host):
    host.view.tables["A"], host.view.computed["A"] = [0], 0
    assert same(host.go({"A": 3}).hidden_states["A"], rows("A", 0, 3))


@pytest.mark.parametrize(
    "block_ids",
    [
        [[0, 1]],
        ([0, 1],),
        ([0, 1], [7, 8]),
        [0, 1],
        (0, 1),
        np.array([0, 1]),
        [np.int64(0), np.int32(1)],
        [np.array([0, 1])],
        (torch.tensor([0, 1]),),
    ],
    ids=repr,
)
def test_forms_of_block_ids(host, block_ids):
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("B", [0, 1], hit=4)
    host._arrivals[0].block_ids = block_ids
    assert same(host.go({"B": 1}).hidden_states["B"][:4], rows("A", 0, 4))


@pytest.mark.parametrize("block_ids", [None, (), [], ([],), ((),), (None,)])
def test_hit_without_block_ids(host, block_ids):
    host.arrive("B", [0, 1], hit=4)
    host._arrivals[0].block_ids = block_ids
    with pytest.raises(OmniPrefixCacheUnmatchError, match=r"req B carries no block_ids"):
        host.begin({"B": 1})


@pytest.mark.parametrize("block", [-1, 16, 1 << 40, -(1 << 62)])
def test_block_ids_out_of_range(host, block):
    host.arrive("B", [block, 1], hit=4)
    with pytest.raises(OmniPrefixCacheUnmatchError, match=rf"B.*{block}"):
        host.begin({"B": 1})


@pytest.mark.parametrize("block", [1.0, "0", 1 << 63])
def test_block_ids_that_are_no_block_ids(host, block):
    host.arrive("B", [0, 1], hit=4)
    host._arrivals[0].block_ids = [[block, 1]]
    with pytest.raises(PrefixCacheArgumentError, match=rf"block_ids of req B\[0\]: {block!r}, expected integers"):
        host.begin({"B": 1})


@pytest.mark.parametrize("slot", [-1, 64, 1 << 60])
def test_slots_out_of_range_are_refused_before_any_change(host, slot):
    host.arrive("A", [0])
    host.begin({"A": 2})
    good = host.view.step_slots_cpu
    host.view.step_slots_cpu = lambda *_: torch.tensor([0, slot])
    before = host.manager.stats()
    with pytest.raises(PrefixCacheError, match=str(slot)):
        host.save({"k": host.outputs("k")})
    # Keys were opened, which reserves address space; they are not visible.
    assert host.manager.stats() == before | {"reserved_bytes": host.manager.stats()["reserved_bytes"]}
    host.view.step_slots_cpu = good
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 2))


@pytest.mark.parametrize(
    "convert",
    [
        lambda t: t.to(torch.int32),
        lambda t: torch.stack([t, t], 1)[:, 0],
        lambda t: t.numpy(),
        lambda t: t.tolist(),
    ],
)
def test_forms_of_slots(host, convert):
    good = host.view.step_slots_cpu
    host.view.step_slots_cpu = lambda *a: convert(good(*a))
    host.arrive("A", [3])
    host.go({"A": 4})
    host.arrive("B", [3, 1], hit=4)
    assert same(host.go({"B": 1}).hidden_states["B"][:4], rows("A", 0, 4))


def test_slots_that_are_no_integers(host):
    host.view.step_slots_cpu = lambda *_: torch.tensor([0.5, 1.0])
    host.arrive("A", [3])
    host.begin({"A": 2})
    with pytest.raises(PrefixCacheArgumentError, match="float32"):
        host.save()


def test_numpy_is_not_needed():
    """A torch of PyPI does not bring it."""
    script = """
import sys, warnings
sys.modules["numpy"] = None
warnings.simplefilter("ignore")
import torch
from omni_host import Host, rows, same
host = Host()
host.arrive("A", [0, 1])
host.view.step_slots_cpu = lambda *_: range(3)
host.begin({"A": 3})
out = host.read(host.save({"left": [bytearray(b"x")]}), "A")
assert same(out.hidden_states["A"], rows("A", 0, 3)) and out.mm_outputs["left"]["A"] == [b"x"]
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # what is relative in it, too
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_outputs_may_be_missing(host):
    host.arrive("A", [0])
    host.begin({"A": 2})
    out = host.read(host.save(None, hidden=None), "A")
    assert out.hidden_states is None
    assert out.mm_outputs == {}


def test_scheduler_output_may_lack_lists(host):
    host.manager.new_step_starts(SimpleNamespace(num_scheduled_tokens={}))
    host.manager.new_step_starts(
        SimpleNamespace(num_scheduled_tokens={}, finished_req_ids=None, scheduled_new_reqs=None)
    )
    with pytest.raises(PrefixCacheArgumentError, match="num_scheduled_tokens"):
        host.manager.new_step_starts(SimpleNamespace())


def test_device_tensors_are_refused_not_misread(host):
    host.arrive("A", [0])
    host.begin({"A": 2})
    for outputs in ({"hidden": torch.empty(2, 6, device="meta")}, {"mm": {"k": torch.empty(2, 6, device="meta")}}):
        with pytest.raises(NotImplementedError, match="meta"):
            host.save(**outputs)
    with pytest.raises(NotImplementedError, match="meta"):
        host.save({"left": [torch.empty(3, device="meta")]})
    assert same(host.read(host.save(), "A").hidden_states["A"], rows("A", 0, 2))


@pytest.mark.parametrize("name", ["a" * 4096, "codes.audio", "ключ", "\n"])
def test_key_names(host, name):
    round_trip(host, torch.randn(4, 6), torch.randn(1, 6), name)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 0},
        {"block_size": 0},
        {"num_blocks": 1 << 40, "block_size": 1 << 40},
        {"staging_depth": 0},
        {"staging_depth": 5000},
        {"staging_capacity_tokens": 0},
        {"num_blocks": -1},
        {"staging_claim_timeout_s": float("nan")},
    ],
    ids=str,
)
def test_sizes_that_cannot_be_meant(settings):
    with pytest.raises(PrefixCacheArgumentError):
        Host(**settings)


def test_limits_in_error_texts_are_those_of_the_library():
    for name, limit in _LIMITS.items():
        config = PrefixCacheConfig(**{"num_blocks": 1, "block_size": 1, name: limit + 1})
        with pytest.raises(PrefixCacheArgumentError) as ours:
            config.options(eager=True)
        assert str(ours.value) == f"PrefixCacheConfig.{name} is {limit + 1}, expected 1 to {limit}"
        options = PrefixCacheConfig(num_blocks=1, block_size=1).options(eager=True)
        setattr(options, name, limit + 1)
        library = _ffi.load()
        with pytest.raises(PrefixCacheArgumentError) as theirs:
            library.check(library.omni_create(options, ctypes.c_uint64()))
        # Zero is the default of some to the library, and to none of the fields here.
        assert str(ours.value) == f"PrefixCacheConfig.{theirs.value}".removesuffix(", or 0 for the default")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("warm_bytes", -1, "0 to "),
        ("warm_bytes", 1 << 70, "0 to "),
        ("zero_on_release", "no", "True or False"),
        ("zero_on_release", 2, "True or False"),
        ("zero_on_release", None, "True or False"),
        ("staging_claim_timeout_s", "30", "seconds"),
        ("staging_claim_timeout_s", b"30", "seconds"),
        ("copy_threads", 65, "0 to 64"),
    ],
)
def test_settings_that_cannot_be_meant(name, value, expected):
    with pytest.raises(PrefixCacheArgumentError) as e:
        Host(**{name: value})
    assert str(e.value).startswith(f"PrefixCacheConfig.{name} is {value!r}, expected {expected}")


@pytest.mark.parametrize("eager", ["yes", "no", 2, [True]])
def test_eager_is_a_truth_value(eager):
    with pytest.raises(PrefixCacheArgumentError, match=r"^eager is .*, expected True, False or None$"):
        Host(eager=eager)


@pytest.mark.parametrize("yes", [True, 1, np.bool_(True)])
def test_truth_values_of_other_types(yes):
    host = Host(eager=yes, zero_on_release=yes)
    assert host.manager._eager is True
    host.manager.shutdown()


@pytest.mark.parametrize("cap", [0, -5])
@pytest.mark.parametrize("name", ["gpu_staging_bytes", "copy_chunk_bytes"])
def test_no_bytes_or_less_are_taken_as_in_the_original(make_host, name, cap):
    """Which never checks: a step is admitted when nothing else waits, whatever the cap."""
    host = make_host(policy=ModelCachePolicy(deferred_keys=frozenset({"d"})), **{name: cap})
    host.arrive("A", [0, 1])
    for _ in range(3):
        host.go({"A": 2}, ("d",))
    if name == "gpu_staging_bytes":
        assert host.manager.stats()["flushes"] > 0


@pytest.mark.parametrize("padded", [-7, 0, 1])
def test_a_padded_number_below_that_of_the_tokens_is_no_padding(host, padded):
    """As in the original, where no tensor has so few rows."""
    host.arrive("A", [0])
    host.begin({"A": 2})
    host.view.batch = ["A"]
    outputs = {"k": host.outputs("k"), "one": torch.zeros(1, 6)}
    step = host.manager.save_outputs(host.outputs(), outputs, num_tokens_unpadded=2, num_tokens_padded=padded)
    out = host.read(step, "A").mm_outputs
    assert same(out["k"]["A"], rows("A", 0, 2, "k"))
    assert same(out["one"]["A"], torch.zeros(1, 6))


@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_a_manager_stays_in_its_process(host, make):
    with pytest.raises(TypeError, match=r"^OmniPrefixCacheManager cannot be pickled or copied: .* make one in each"):
        make(host.manager)


def test_config_from_vllm():
    def tokens(scheduler=None, model=None):
        config = PrefixCacheConfig.from_vllm_config(8, 16, scheduler, model)
        assert (config.num_blocks, config.block_size, config.staging_depth) == (8, 16, 4)
        return config.staging_capacity_tokens

    ns = SimpleNamespace
    assert tokens() == 1024
    assert tokens(ns(max_num_batched_tokens=8192, max_model_len=99)) == 8192
    assert tokens(ns(max_num_batched_tokens=None, max_model_len=99)) == 99
    assert tokens(ns(max_num_batched_tokens=0), ns(max_model_len=77)) == 77
    assert tokens(ns(max_num_batched_tokens="many")) == 1024
    assert tokens(ns(max_num_batched_tokens=-5)) == 1


def test_policy_from_model():
    assert ModelCachePolicy.from_model(SimpleNamespace()) == ModelCachePolicy(True, frozenset())
    model = SimpleNamespace(requires_full_prefix_cached_hidden_states=0, deferred_prefix_cache_mm_keys=["a", "b"])
    policy = ModelCachePolicy.from_model(model)
    assert policy == ModelCachePolicy(False, frozenset({"a", "b"}))
    assert policy.hidden_key is None
    assert policy.get_hit_keys(["z", "__hidden_states__", "a"]) == ["a", "z"]
    assert ModelCachePolicy().get_hit_keys(["z", "a"]) == ["__hidden_states__", "a", "z"]
    assert policy.skip_immediate_mm("a")
    assert policy.skip_immediate_mm("__hidden_states__")
    assert not policy.skip_immediate_mm("c")
    assert ModelCachePolicy.from_model(SimpleNamespace(deferred_prefix_cache_mm_keys=None)).deferred_keys == frozenset()
