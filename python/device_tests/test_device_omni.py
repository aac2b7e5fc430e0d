"""The drop-in with rows on a device: arrays that are not torch tensors, leftovers, streams.

This torch has no CUDA, so rows come as arrays of the simulated driver. What torch itself
does on a GPU is shown only as far as the order of its calls.
"""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace

import pytest
import sim_driver
import torch
from omni_host import HIDDEN, eventually, rows, same
from torch_cuda import Event, end_without_a_context

from prefixcache import PrefixCacheArgumentError, PrefixCacheError
from prefixcache._device import device_rows
from prefixcache._landing import Landing
from prefixcache._leftovers import replicate, unpinned
from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheUnmatchError

TYPESTR = {torch.float32: "<f4", torch.float16: "<f2", torch.int64: "<i8", torch.bool: "|b1", torch.complex64: "<c8"}


class CudaArray:
    """Memory of the simulated device behind ``__cuda_array_interface__``."""

    def __init__(self, driver, tensor, stream=1, strides=None):
        self.driver = driver
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        self.address = driver.alloc(raw)
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": TYPESTR[tensor.dtype],
            "data": (self.address, False),
            "strides": strides,
            "stream": stream,
            "version": 3,
        }

    def free(self):
        self.driver.free(self.address)


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class DLPackArray:
    """The same memory behind DLPack. Codes: 2 float, 4 bfloat."""

    def __init__(self, driver, tensor, code=2, device=2):
        self.driver, self.device, self.asked = driver, device, []
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        self.address = driver.alloc(b"\xee" * 8 + raw)
        self.shape = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
        bits = tensor.element_size() * 8
        self.managed = DLTensor(self.address, device, 0, tensor.dim(), code, bits, 1, self.shape, None, 8)

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.managed), b"dltensor", None)

    def free(self):
        self.driver.free(self.address)


@pytest.mark.parametrize(
    "kind,dtype", [("interface", d) for d in TYPESTR] + [("dlpack", torch.float32), ("dlpack", torch.float16)]
)
def test_rows_of_foreign_arrays_are_cached_and_hit(make_host, driver, dtype, kind):
    host = make_host(policy=ModelCachePolicy(deferred_keys=frozenset({"late"})))

    def array(t):
        return DLPackArray(driver, t) if kind == "dlpack" else CudaArray(driver, t)

    def values(name, a, b, key):
        t = rows(name, a, b, key)
        return t.to(dtype) if dtype is not torch.float16 else t.view(torch.float16)

    arrays = []

    def step(scheduled, hidden=True):
        outs = {}
        for key in (HIDDEN, "late"):
            t = torch.cat(
                [values(r, host.view.computed[r], host.view.computed[r] + n, key) for r, n in scheduled.items()]
            )
            outs[key] = array(t)
            arrays.append(outs[key])
        return host.save({"late": outs["late"]}, hidden=outs[HIDDEN])

    host.arrive("A", [0, 1])
    host.begin({"A": 5})
    out = host.read(step({"A": 5}), "A")
    assert same(out.hidden_states["A"], values("A", 0, 5, HIDDEN)) and out.hidden_states["A"].is_cpu
    assert same(out.mm_outputs["late"]["A"], values("A", 0, 5, "late"))
    host.arrive("B", [0, 2], hit=4)
    host.begin({"A": 1, "B": 2})
    out = host.read(step({"A": 1, "B": 2}), "B", "A")
    for key, got in ((HIDDEN, out.hidden_states), ("late", out.mm_outputs["late"])):
        assert same(got["A"], values("A", 5, 6, key))
        assert same(got["B"], torch.cat([values("A", 0, 4, key), values("B", 4, 6, key)]))
    for a in arrays:
        a.free()


def test_dlpack_is_asked_for_the_stream_and_bfloat16_is_known(driver):
    t = torch.arange(12, dtype=torch.float32).view(3, 4).to(torch.bfloat16)
    a = DLPackArray(driver, t, code=4)
    found = device_rows("x", a)
    assert (found.dtype, tuple(found.shape), found.address, found.stream) == (torch.bfloat16, (3, 4), a.address + 8, 0)
    assert a.asked == [1]  # the legacy stream, as DLPack counts
    on_host = DLPackArray(driver, t, device=1)
    assert device_rows("x", on_host) is None and on_host.asked == []
    on_host.free()
    a.free()


def test_arrays_on_the_host_are_left_alone(driver):
    import numpy as np

    assert device_rows("x", np.zeros((2, 3))) is None
    assert device_rows("x", [1]) is None


def test_rows_with_a_stride_and_rows_with_gaps(make_host, driver):
    host = make_host()
    wide = torch.arange(48, dtype=torch.float32).view(4, 12)
    a = CudaArray(driver, wide)
    a.__cuda_array_interface__ |= {"shape": (4, 6), "strides": (48, 4)}
    host.arrive("A", [0, 1])
    host.begin({"A": 4})
    out = host.read(host.save(hidden=a), "A")
    assert same(out.hidden_states["A"], wide[:, :6])
    a.__cuda_array_interface__ |= {"strides": (48, 8)}
    host.begin({"A": 4})
    with pytest.raises(PrefixCacheArgumentError, match="rows without gaps"):
        host.save(hidden=a)
    # Strides are bytes, and rows may be any number of them apart.
    raw = torch.zeros(4, 10, dtype=torch.uint8)
    values = torch.arange(8, dtype=torch.float32).view(4, 2)
    raw[:, :8] = values.view(torch.uint8)
    b = CudaArray(driver, raw.view(torch.float16))
    b.__cuda_array_interface__ |= {"shape": (4, 2), "typestr": "<f4", "strides": (10, 4)}
    host = make_host()
    host.arrive("A", [0, 1])
    host.begin({"A": 4})
    assert same(host.read(host.save(hidden=b), "A").hidden_states["A"], values)
    b.__cuda_array_interface__ |= {"strides": (10, 6)}
    host.begin({"A": 4})
    with pytest.raises(PrefixCacheArgumentError, match="rows without gaps"):
        host.save(hidden=b)
    a.free()
    b.free()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"typestr": None}, "typestr is None"),
        ({"typestr": "<M8[ns]"}, "element type <M8"),
        ({"typestr": "|V2"}, "element type .V2"),
        ({"data": None}, "as its standard has them"),
        ({"data": ("0x10", False)}, "as its standard has them"),
        ({"data": (-1, False)}, "as its standard has them"),
        ({"shape": ("2", 6)}, "as its standard has them"),
        ({"shape": (-2, 6)}, "as its standard has them"),
        ({"shape": None}, "as its standard has them"),
        ({"strides": (24,)}, "as its standard has them"),
        ({"strides": 24}, "as its standard has them"),
        ({"strides": (-24, 4)}, "-24 bytes apart"),
        ({"stream": "7"}, "as its standard has them"),
        ({"stream": -3}, "as its standard has them"),
        ({"mask": object()}, "with a mask"),
        (None, "as its standard has them"),
    ],
)
def test_an_interface_that_is_not_as_its_standard_has_it_is_refused(make_host, driver, change, text):
    host, good = make_host(), CudaArray(driver, rows("A", 0, 2))
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    interface = None if change is None else good.__cuda_array_interface__ | change
    odd = SimpleNamespace(__cuda_array_interface__=interface if change is not None else 7)
    with pytest.raises(PrefixCacheArgumentError, match=text) as e:
        host.save(hidden=odd)
    assert "hidden_states" in str(e.value)
    for missing in ("typestr", "data", "shape"):
        rest = {k: v for k, v in good.__cuda_array_interface__.items() if k != missing}
        with pytest.raises(PrefixCacheArgumentError, match=missing):
            host.save(hidden=SimpleNamespace(__cuda_array_interface__=rest))
    assert same(host.read(host.save(hidden=good), "A").hidden_states["A"], rows("A", 0, 2))
    good.free()


@pytest.mark.parametrize("what", ["raises", "no capsule", "no device"])
def test_an_array_that_does_not_hand_out_its_memory_is_refused(make_host, driver, what):
    class Odd:
        def __dlpack_device__(self):
            return None if what == "no device" else (2, 0)

        def __dlpack__(self, stream=None):
            if what == "raises":
                raise BufferError("exported already")
            return object()

    host = make_host()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    text = "expected a tensor" if what == "no device" else "does not hand its memory out through DLPack"
    with pytest.raises(PrefixCacheArgumentError, match=text):
        host.save(hidden=Odd())
    host.read(host.save(hidden=rows("A", 0, 2)), "A")


def test_what_cannot_be_taken_is_refused_and_leaves_no_trace(make_host, driver):
    host = make_host()
    good = CudaArray(driver, rows("A", 0, 2))
    host.arrive("A", [0])
    host.begin({"A": 2})
    before = host.manager.stats()
    other = CudaArray(driver, rows("A", 0, 2), stream=2)
    with pytest.raises(PrefixCacheArgumentError, match="streams"):
        host.save({"k": other}, hidden=good)
    pointer = SimpleNamespace(
        __cuda_array_interface__=good.__cuda_array_interface__ | {"data": (rows("A", 0, 2).data_ptr(), False)}
    )
    with pytest.raises(PrefixCacheError, match="host memory"):
        host.save(hidden=pointer)
    with pytest.raises(NotImplementedError, match="no CUDA"):
        host.save({"whole": CudaArrayWhole(good)}, hidden=good)
    with pytest.raises(PrefixCacheArgumentError, match="expected a tensor"):
        host.save(hidden=[1.0])
    odd = SimpleNamespace(__cuda_array_interface__=good.__cuda_array_interface__ | {"typestr": ">f4"})
    with pytest.raises(PrefixCacheArgumentError, match="element type"):
        host.save(hidden=odd)
    after = host.manager.stats()
    assert {k: v for k, v in after.items() if k != "reserved_bytes"} == {
        k: v for k, v in before.items() if k != "reserved_bytes"
    }
    out = host.read(host.save(hidden=good), "A")
    assert same(out.hidden_states["A"], rows("A", 0, 2))
    good.free()
    other.free()


class CudaArrayWhole:
    """One dimension: not rows of the step."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__ | {"shape": (12,), "strides": None}


@pytest.mark.parametrize("as_number", [False, True])
def test_rows_of_another_stream_behind_an_event(make_host, driver, as_number):
    host, side = make_host(), driver.stream()
    zeros = torch.zeros_like(rows("A", 0, 2))
    want = torch.arange(700, 700 + zeros.numel(), dtype=torch.int32).view(torch.float32).view(zeros.shape)
    array, event = CudaArray(driver, zeros), Event(driver, side)
    driver.launch(side, array.address, zeros.numel(), 700)  # the forward, on a stream that the save is not told of
    event.record()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    step = host.save(hidden=array, event=event.cuda_event if as_number else event)
    assert same(host.manager.materialize(step, ["A"]).hidden_states["A"], want)
    driver.end_event(event.cuda_event)
    array.free()
    driver.end_stream(side)


def test_an_event_that_cannot_be_waited_for_is_refused(make_host, driver):
    host, array = make_host(), CudaArray(driver, rows("A", 0, 2))
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    for event, what in (
        (Event(driver, 0), "was never recorded"),
        (0, "was never recorded"),
        ("stream", "expected a CUDA event"),
        (True, "expected a CUDA event"),
        (-1, "expected a CUDA event"),
        (1 << 64, "expected a CUDA event"),
    ):
        with pytest.raises(PrefixCacheArgumentError, match=what):
            host.save(hidden=array, event=event)
    made = driver.event(0)
    with pytest.raises(PrefixCacheArgumentError, match="no rows of this step are on a device"):
        host.save(hidden=rows("A", 0, 2), event=made)
    driver.end_event(made)
    host.read(host.save(hidden=array), "A")  # nothing of it stayed
    array.free()


def test_a_failed_copy_is_sticky_and_named(make_host, driver):
    driver.dll.simcuda_policy(sim_driver.LATE)  # so that it fails after save has returned
    host = make_host()
    a = CudaArray(driver, rows("A", 0, 2))
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    driver.fail_operation(2)  # the one after the allocation
    with pytest.raises(PrefixCacheError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        host.read(host.save(hidden=a), "A")
    eventually(lambda: host.manager.stats()["failed_writes"] == 1)
    for call in (lambda: host.begin({"A": 2}), lambda: host.save(hidden=a)):
        with pytest.raises(OmniPrefixCacheUnmatchError, match=r"write failed.*CUDA_ERROR_ILLEGAL_ADDRESS"):
            call()
    end_without_a_context(host, driver)


class FakeCuda:
    """Notes the calls that a landing makes of torch.cuda."""

    def __init__(self):
        self.calls = []

    def Stream(self, device):  # noqa: N802
        return SimpleNamespace(name="side", wait_stream=lambda s: self.calls.append(f"side waits for {s}"))

    def current_stream(self, device):
        return "current"

    @contextlib.contextmanager
    def stream(self, s):
        self.calls.append("on side")
        yield
        self.calls.append("off side")

    def Event(self):  # noqa: N802
        return SimpleNamespace(
            record=lambda s: self.calls.append(f"record {s.name}"), synchronize=lambda: self.calls.append("synchronize")
        )


def test_leftovers_are_cloned_then_landed_beside_the_forward():
    cuda, streams = FakeCuda(), {}
    landing = Landing(streams, cuda=cuda)

    class OnDevice(torch.Tensor):
        def record_stream(self, s):
            cuda.calls.append(f"record_stream {s.name}")

    source = torch.arange(6.0).as_subclass(OnDevice)
    copies = [landing.copy(source) for _ in range(2)]
    source += 1  # the next forward
    assert cuda.calls == ["side waits for current", "on side", "record side", "off side", "record_stream side"] * 2
    assert len(streams) == 1
    landing.wait()
    assert cuda.calls[-2:] == ["synchronize"] * 2
    assert all(torch.equal(c, torch.arange(6.0)) for c in copies)
    landing.wait()
    assert cuda.calls.count("synchronize") == 2


def test_a_replica_without_a_landing_stays_as_it_was():
    value = {"a": (torch.ones(2), "x"), "b": [torch.zeros(1)]}
    copy = unpinned(replicate("v", value))
    assert (
        torch.equal(copy["a"][0], torch.ones(2)) and copy["a"][1] == "x" and torch.equal(copy["b"][0], torch.zeros(1))
    )
