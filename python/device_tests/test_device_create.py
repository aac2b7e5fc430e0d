"""Tables and coordinators on a device whose driver fails at any call of their making."""

from __future__ import annotations

import ctypes
import re

import pytest
from abi import DEVICE, INVALID, OK
from abi_context import World
from context_host import Rig

from prefixcache.context import KVPageTable, _abi


@pytest.mark.parametrize("name", ["table_create", "context_create"])
def test_every_driver_call_of_a_creation_fails_once(driver, name):
    """An error with the CUDA name, nothing leaked, and the next attempt succeeds."""
    made = name.removesuffix("_create")
    KVPageTable(1, 1, 1, host_memory=False).close()  # finds the driver, once in a process
    for n in range(1, 200):
        driver.reset(n)
        world = World()
        values = world.good(name)
        values["options"].flags &= ~_abi.HOST_MEMORY
        if made == "context":
            table = KVPageTable(4, 4, 16, host_memory=False)
            world.objects.append(table)
            values["options"].base.table = table.handle
        driver.fail(n)
        status = world.call(name, values)
        text = world.error()
        driver.fail(0)
        if status == OK:
            assert world.call(f"{made}_destroy", {made: ctypes.byref(values[made])}) == OK, world.error()
        else:
            assert status == DEVICE, (n, text)
            assert re.search(r"\bcu[A-Z]\w+: CUDA_ERROR_OUT_OF_MEMORY", text), (n, text)
            assert world.call(name, values) == OK, world.error()
            assert world.call(f"{made}_destroy", {made: ctypes.byref(values[made])}) == OK, world.error()
        for thing in world.objects:
            if isinstance(thing, Rig):
                thing.live.finish()
            thing.close()
        assert not driver.faults(), (n, driver.faults())
        assert not driver.leaks(), (n, driver.leaks())
        if status == OK and n > 40:
            return
    pytest.fail("the creation never came through")


def test_a_coordinator_that_is_refused_leaves_the_thread_without_a_context(driver):
    """The stream had named one, of another device than the table's: the host tries again with its own."""
    driver.dll.simcuda_devices(2)
    contexts = []
    for device in (0, 1):
        contexts.append(ctypes.c_void_p())
        driver._call("cuDevicePrimaryCtxRetain", ctypes.byref(contexts[-1]), device)
    driver._call("cuCtxSetCurrent", contexts[1])
    wrong = driver.stream()
    driver._call("cuCtxSetCurrent", contexts[0])
    stream = driver.stream()
    world = World()
    values = world.good("context_create")
    values["options"].flags &= ~_abi.HOST_MEMORY
    table = KVPageTable(4, 4, 16, host_memory=False)
    world.objects.append(table)
    values["options"].base.table = table.handle
    values["options"].stream = wrong
    driver._call("cuCtxSetCurrent", None)
    assert world.call("context_create", values) == INVALID
    assert "a page table was made in CUDA context" in world.error()
    values["options"].stream = stream
    assert world.call("context_create", values) == OK, world.error()
    assert world.call("context_destroy", {"context": ctypes.byref(values["context"])}) == OK, world.error()
    driver._call("cuCtxSetCurrent", contexts[1])
    driver.end_stream(wrong)
    driver._call("cuCtxSetCurrent", contexts[0])
    driver.end_stream(stream)
    for thing in world.objects:
        if isinstance(thing, Rig):
            thing.live.finish()
        thing.close()
