"""Tables and coordinators on a device whose driver fails at any call of their making."""

from __future__ import annotations

import ctypes
import re

import pytest
from abi import DEVICE, OK
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
