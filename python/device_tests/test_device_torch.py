"""What save_outputs asks of torch when outputs are on a CUDA device: streams, captures, memory."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import sim_driver
import torch
from omni_host import eventually, rows, same
from test_device_omni import CudaArray, DLPackArray
from torch_cuda import FakeTensor, TorchCuda, end_without_a_context

from prefixcache import PrefixCacheError

DEVICE, WRONG_STATE, INVALID_VALUE = -34, -3, 1


@pytest.fixture
def cuda(driver, monkeypatch):
    made = TorchCuda(driver, monkeypatch)
    yield made
    made.end()


def outputs(cuda, leftover=True):
    mm = {"k": cuda.tensor("k", rows("A", 0, 2, "k"))}
    if leftover:
        mm["left"] = {"deep": [cuda.tensor("left", torch.arange(3.0))]}
    return cuda.tensor("hidden", rows("A", 0, 2)), mm


def as_before(host):
    stats = host.manager.stats()  # of which the background thread changes others
    return [stats[name] for name in ("steps_saved", "rows_saved", "saved_bytes", "live_requests", "unconsumed_steps")]


def test_tensors_of_another_stream_are_kept_from_its_allocator_until_they_are_read(make_host, driver, cuda):
    """torch gives their memory to the next kernel of their own stream once they are dropped."""
    host, side = make_host(), driver.stream()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    hidden, mm = outputs(cuda)
    event = torch.cuda.Event(driver, side)
    event.record()
    step = host.save(mm, hidden=hidden, event=event)
    noted = [n for n in cuda.noted if n[0] == "record_stream" and n[2] == cuda.stream]
    assert sorted(noted) == [("record_stream", name, cuda.stream) for name in ("hidden", "k", "left")]
    assert cuda.noted.index(("wait", side)) < cuda.noted.index(("clone", "left"))
    out = host.read(step, "A")
    assert same(out.hidden_states["A"], rows("A", 0, 2))
    assert same(out.mm_outputs["k"]["A"], rows("A", 0, 2, "k"))
    driver.end_event(event.cuda_event)
    driver.end_stream(side)


def test_tensors_of_the_current_stream_need_no_such_thing(make_host, cuda):
    host = make_host()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    hidden, mm = outputs(cuda)
    host.read(host.save(mm, hidden=hidden), "A")
    # The clone is read on a stream of its own.
    assert [n for n in cuda.noted if n[0] == "record_stream"] == [("record_stream", "clone of left", "side")]


def refusal_of_the_library(driver, host, cuda):
    driver.capture(cuda.stream)
    with pytest.raises(PrefixCacheError) as e:
        host.save(hidden=cuda.tensor("hidden", rows("A", 0, 2)))
    driver.end_capture(cuda.stream)
    return e.value


@pytest.mark.parametrize("what", ["event", "leftover", "gaps", "conjugate", "slots", "dlpack"])
def test_a_capture_is_refused_before_torch_enqueues_anything(make_host, driver, cuda, what):
    """Else a copy on the side would be in the graph, or the wait for the event end the capture."""
    host = make_host()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    host.read(host.save(hidden=outputs(cuda)[0]), "A")  # the device is open
    host.view.computed["A"] = 0
    theirs = refusal_of_the_library(driver, host, cuda)
    before = as_before(host)
    hidden, mm = outputs(cuda, leftover=what == "leftover")
    settings, foreign = {}, None
    if what == "event":
        settings["event"] = event = torch.cuda.Event(driver, 0)
        event.record()
    elif what == "gaps":
        mm["k"] = torch.stack([mm["k"]] * 2, 2)[:, :, 0].as_subclass(FakeTensor)
    elif what == "conjugate":
        mm["k"] = torch.zeros(2, 6, dtype=torch.complex64).conj().as_subclass(FakeTensor)
    elif what == "slots":
        good = host.view.step_slots_cpu
        host.view.step_slots_cpu = lambda *a: good(*a).as_subclass(FakeTensor)
    elif what == "dlpack":
        mm["k"] = foreign = DLPackArray(driver, rows("A", 0, 2, "k"))
    cuda.capturing = True
    cuda.noted.clear()
    with pytest.raises(PrefixCacheError, match="is being captured into a CUDA graph") as e:
        host.save(mm, hidden=hidden, **settings)
    assert (type(e.value), e.value.status, str(e.value)) == (type(theirs), theirs.status, str(theirs))
    assert cuda.noted == []
    assert foreign is None or foreign.asked == []
    assert as_before(host) == before
    cuda.capturing = False
    if what == "event":
        driver.end_event(event.cuda_event)
    if what == "slots":
        host.view.step_slots_cpu = good
    if foreign is not None:
        foreign.free()
    assert same(host.read(host.save(hidden=hidden), "A").hidden_states["A"], rows("A", 0, 2))


def test_an_event_of_a_capture_is_refused_before_the_current_stream_waits_for_it(make_host, driver, cuda):
    """Waiting for it would draw the current stream into the capture, without an error."""
    host, side = make_host(), driver.stream()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    hidden, mm = outputs(cuda)
    event = torch.cuda.Event(driver, side)
    driver.provoked.append("cuEventRecord on stream")
    for ended in (False, True):
        driver.capture(side)
        event.record()
        if ended:
            driver.end_capture(side)
        cuda.noted.clear()
        with pytest.raises(PrefixCacheError, match="recorded into a CUDA graph") as e:
            host.save(mm, hidden=hidden, event=event)
        assert e.value.status == WRONG_STATE
        assert cuda.noted == []
        driver.end_capture(side)
        driver.end_event(event.cuda_event)
    host.read(host.save(mm, hidden=hidden), "A")
    driver.end_stream(side)


def test_device_memory_that_torch_keeps_is_asked_for_once(make_host, driver, cuda):
    """Frozen rows come from a pool of the library, which does not see what torch has cached."""
    emptied = 0
    for nth in range(1, 15):
        host = make_host()
        host.arrive("A", [0, 1])
        host.begin({"A": 2})
        hidden, mm = outputs(cuda, leftover=False)
        cuda.noted.clear()
        driver.fail(nth)
        step = host.save(mm, hidden=hidden)
        driver.fail(0)
        assert cuda.noted in ([], [("empty_cache",)])
        emptied += len(cuda.noted)
        out = host.read(step, "A")
        assert same(out.hidden_states["A"], rows("A", 0, 2))
        assert same(out.mm_outputs["k"]["A"], rows("A", 0, 2, "k"))
        assert host.manager.stats()["steps_saved"] == 1
    assert emptied > 5


@pytest.mark.parametrize("why", ["still none", "capture", "capture elsewhere", "no torch memory", "another error"])
def test_device_memory_that_cannot_be_had_is_an_error(make_host, driver, cuda, monkeypatch, why):
    host = make_host()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    hidden, mm = outputs(cuda, leftover=False)
    before, code = as_before(host), sim_driver.OUT_OF_MEMORY

    def assertion():
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    if why == "still none":
        cuda.given_back = lambda: driver.fail(1)
    elif why == "capture":
        cuda.capturing = True
    elif why == "capture elsewhere":
        cuda.given_back = assertion
    elif why == "no torch memory":
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    else:
        code = INVALID_VALUE
    cuda.noted.clear()
    driver.fail(3, code=code)
    with pytest.raises(PrefixCacheError, match="CUDA_ERROR_") as e:
        host.save(mm, hidden=hidden)
    driver.fail(0)
    assert e.value.status == DEVICE
    asked = why in ("still none", "capture elsewhere")
    assert cuda.noted == [("empty_cache",)] * asked
    assert as_before(host) == before
    cuda.capturing = False
    assert same(host.read(host.save(mm, hidden=hidden), "A").hidden_states["A"], rows("A", 0, 2))


def test_a_failed_write_is_no_want_of_memory_now(make_host, driver, cuda):
    """Its text may say so, of an earlier step; another save of this one would change nothing."""
    driver.dll.simcuda_policy(sim_driver.LATE)  # so that it fails after save has returned
    host = make_host()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    hidden, mm = outputs(cuda, leftover=False)
    driver.fail_operation(2, sim_driver.OUT_OF_MEMORY)
    with pytest.raises(PrefixCacheError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        host.read(host.save(mm, hidden=hidden), "A")
    eventually(lambda: host.manager.stats()["failed_writes"] == 1)
    with pytest.raises(PrefixCacheError, match=r"write failed.*CUDA_ERROR_OUT_OF_MEMORY"):
        host.save(mm, hidden=hidden)
    assert cuda.noted == []
    end_without_a_context(host, driver)
    cuda.addresses.clear()
    cuda.stream = driver.stream()


def test_an_event_leaves_captures_of_other_threads_alone(make_host, driver, cuda):
    host, model = make_host(), driver.stream()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    host.read(host.save(hidden=outputs(cuda)[0]), "A")
    host.view.computed["A"] = 0
    event = torch.cuda.Event(driver, cuda.stream)
    event.record()
    hidden = outputs(cuda)[0]
    driver.dll.simcuda_capture(ctypes.c_void_p(model), 0)  # in global mode, torch's default
    step = host.save(hidden=hidden, event=event)
    assert driver.end_capture(model) == 1, "the capture was spoilt"
    assert same(host.read(step, "A").hidden_states["A"], rows("A", 0, 2))
    driver.end_event(event.cuda_event)
    driver.end_stream(model)


class Deleted:
    """An array whose memory is gone, as another library's raises it."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("deleted")


class Sharded:
    def __dlpack_device__(self):
        raise BufferError("on many devices")


@pytest.mark.parametrize(
    "leaf",
    [
        SimpleNamespace(__cuda_array_interface__={"typestr": "<u4", "shape": (2,), "data": (64, False), "version": 3}),
        SimpleNamespace(__cuda_array_interface__={"typestr": "<f4", "shape": (2,), "data": (64, False), "mask": 1}),
        SimpleNamespace(__cuda_array_interface__=7),
        Deleted(),
        Sharded(),
        Deleted,
    ],
    ids=["element type", "mask", "odd", "deleted", "sharded", "class"],
)
def test_what_torch_cannot_take_inside_of_leftovers_is_passed_on(make_host, cuda, leaf):
    host = make_host()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    out = host.read(host.save({"meta": [leaf]}, hidden=outputs(cuda)[0]), "A").mm_outputs["meta"]["A"]
    assert out[0] is leaf


@pytest.mark.parametrize("nest", [lambda a: {"x": a}, lambda a: [a], lambda a: (1, a)], ids=["dict", "list", "tuple"])
def test_arrays_of_other_libraries_inside_of_leftovers_are_copied(make_host, driver, cuda, monkeypatch, nest):
    """The model overwrites them in its next forward, like a tensor that lies there."""
    host = make_host()
    host.arrive("A", [0, 1])
    host.begin({"A": 2})
    array = CudaArray(driver, torch.arange(6.0).view(3, 2))
    made = cuda.tensor("theirs", torch.arange(6.0).view(3, 2))
    monkeypatch.setattr(torch, "as_tensor", lambda source, device: made)
    out = host.read(host.save({"meta": nest(array)}, hidden=outputs(cuda)[0]), "A").mm_outputs["meta"]["A"]
    got = out["x"] if isinstance(out, dict) else out[-1]
    assert same(got, torch.arange(6.0).view(3, 2))
    assert ("clone", "theirs") in cuda.noted
    array.free()
