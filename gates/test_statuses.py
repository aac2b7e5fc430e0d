"""Every status of the header is reached through the C ABI, by the cause that the header gives.

A new number in the header fails here until somebody shows how a caller gets it.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from ctypes import byref

import abi_snapshot
import pytest

sys.path.insert(0, str(abi_snapshot.ROOT / "python" / "tests"))

import abi
from abi_context import World

ENUM = abi_snapshot.HEADER.read_text().split("typedef int32_t pc_status;")[1].split("};")[0]
STATUSES = {name: int(number) for name, number in re.findall(r"\b(PC_\w+) = (-?\d+)", ENUM)}
ROW = 8


class Omni:
    """An eager omni cache whose calls never wait, and one save of one row."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib, self.handle = lib, ctypes.c_uint64()
        options = abi.OmniOptions(
            struct_size=ctypes.sizeof(abi.OmniOptions),
            flags=abi.EAGER,
            num_blocks=2,
            block_size=4,
            staging_depth=2,
            claim_timeout_ns=-1,
        )
        assert lib.pc_omni_create(byref(options), byref(self.handle)) == 0, abi.error(lib)
        self.key = ctypes.c_uint32()
        assert self.open(ROW) == 0, abi.error(lib)

    def open(self, row_bytes: int) -> int:
        return self.lib.pc_omni_open_key(
            self.handle, b"k", ctypes.c_size_t(1), ctypes.c_uint64(row_bytes), 0, 0, byref(self.key)
        )

    def save(self) -> int:
        self.arrays = [
            (ctypes.c_uint64 * 1)(7),
            (ctypes.c_int64 * 1)(1),
            (ctypes.c_int64 * 1)(3),
            (ctypes.c_uint8 * ROW)(),
        ]
        requests, counts, slots, row = map(ctypes.addressof, self.arrays)
        rows = abi.Rows(key=self.key.value, rows=row, row_stride=ROW)
        args = abi.SaveArgs(
            struct_size=ctypes.sizeof(abi.SaveArgs),
            requests=requests,
            counts=counts,
            num_requests=1,
            slots=slots,
            num_slots=1,
            rows=ctypes.addressof(rows),
            num_rows=1,
        )
        return self.lib.pc_omni_save(self.handle, byref(args))

    def arrive(self, hit_tokens: int) -> int:
        arrival = abi.NewRequest(request=9, hit_tokens=hit_tokens)
        return self.lib.pc_omni_step_begin(
            self.handle, None, ctypes.c_size_t(0), byref(arrival), ctypes.c_size_t(1), None
        )


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    return abi.load()


@pytest.fixture
def omni(lib: ctypes.CDLL) -> Iterator[Omni]:
    cache = Omni(lib)
    yield cache
    assert lib.pc_omni_destroy(byref(cache.handle)) == 0


def in_a_process_of_its_own(code: str, **environment: str) -> int:
    """The status that a small program prints: these causes are not for the process of the tests."""
    prelude = """
        import ctypes, os, resource, sys
        from ctypes import byref, c_uint64, c_void_p
        import abi
        lib = abi.load()
        """
    path = [abi_snapshot.ROOT / "python" / p for p in ("", "tests", "device_tests")]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **environment},
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def request_failed(world: World) -> int:
    manager = world.manager()
    tokens = list(range(1000, 1000 + 17 * 4))  # 17 pages, and the manager has 16
    return world.call(
        "manager_acquire", world.good("manager_acquire"), manager=manager.handle, sequence=world.sequence(tokens),
        base_pages=None, num_base=0, draft_pages=None, num_draft=0,
    )  # fmt: skip


def poisoned(world: World) -> int:
    rig = world.rig("prefill")
    values = {"context": rig.coordinator.handle, "request": rig.live.request.handle, "drained": 0}
    return world.call("context_abandon", values)  # device work may be in flight, and nobody waited for it


def not_found(world: World) -> int:
    return world.call("manager_evict", world.good("manager_evict"), record=12345)


def buffer_too_small(world: World) -> int:
    return world.call("manager_acquire", world.good("manager_acquire"), num_base=1)


def key_mismatch(omni: Omni) -> int:
    assert omni.save() == 0
    return omni.open(2 * ROW)


def wrong_state(omni: Omni) -> int:
    assert omni.save() == 0
    return omni.lib.pc_omni_set_policy(omni.handle, 0)


def staging_timeout(omni: Omni) -> int:
    assert omni.save() == 0
    assert omni.save() == 0
    return omni.save()  # nobody consumed the first two


def closed(omni: Omni) -> int:
    assert omni.lib.pc_omni_shutdown(omni.handle) == 0
    return omni.arrive(hit_tokens=0)


def unsupported(lib: ctypes.CDLL) -> int:
    stats = abi.OmniStats(struct_size=2)
    return lib.pc_buffer_get_stats(byref(stats))


def busy(world: World) -> int:
    rig = world.rig("admitted")
    return world.call("context_destroy", {"context": ctypes.c_uint64(rig.coordinator.handle)})


def internal() -> int:
    """Memory that is not there, at an address that Go's runtime takes for a nil pointer."""
    return in_a_process_of_its_own("""
        digest = (c_uint64 * 2)()
        print(lib.pc_digest_bytes(c_void_p(8), c_uint64(64), digest))
        """)


def out_of_memory() -> int:
    return in_a_process_of_its_own("""
        data, buffer = c_void_p(), c_uint64()
        assert lib.pc_buffer_acquire(c_uint64(1), byref(data), byref(buffer)) == 0  # Go has started: it needs memory
        used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), most))
        status = lib.pc_buffer_acquire(c_uint64(1 << 40), byref(data), byref(buffer))
        resource.setrlimit(resource.RLIMIT_AS, (most, most))  # the interpreter's end needs memory, too
        print(status)
        """)


def device() -> int:
    return in_a_process_of_its_own(
        """
        from sim_driver import Driver
        driver = Driver()
        driver.reset(1)
        from abi_context import World
        world = World()
        values = world.good("table_create")
        values["options"].flags = 0  # on the device
        assert world.call("table_create", values) == 0  # and there is one
        driver.fail(1)  # the next driver call
        print(world.call("table_create", values))
        """,
        PREFIXCACHE_CUDA_DRIVER=str(abi_snapshot.ROOT / "build" / "cuda" / "libsimcuda.so"),
    )


def forked() -> int:
    return in_a_process_of_its_own("""
        lib.pc_reserve_threads(1)
        child = os.fork()
        if child == 0:
            print(lib.pc_reserve_threads(1), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """)


REACHED: dict[str, Callable[..., int]] = {
    "PC_OK": lambda lib: lib.pc_reserve_threads(1),
    "PC_REQUEST_FAILED": request_failed,
    "PC_POISONED": poisoned,
    "PC_KEY_MISMATCH": key_mismatch,
    "PC_NOT_FOUND": not_found,
    "PC_ERROR_INVALID_ARGUMENT": lambda lib: lib.pc_reserve_threads(0),
    "PC_ERROR_BAD_HANDLE": lambda lib: lib.pc_omni_check(ctypes.c_uint64(12345)),
    "PC_ERROR_WRONG_STATE": wrong_state,
    "PC_ERROR_BUFFER_TOO_SMALL": buffer_too_small,
    "PC_ERROR_UNSUPPORTED": unsupported,
    "PC_ERROR_UNMATCH": lambda omni: omni.arrive(hit_tokens=4),  # and no block ids
    "PC_ERROR_STAGING_TIMEOUT": staging_timeout,
    "PC_ERROR_INTERNAL": internal,
    "PC_ERROR_OUT_OF_MEMORY": out_of_memory,
    "PC_ERROR_DEVICE": device,
    "PC_ERROR_FORKED": forked,
    "PC_ERROR_BUSY": busy,
    "PC_ERROR_CLOSED": closed,
}


def test_the_table_is_of_the_statuses_of_the_header():
    assert len(STATUSES) >= 18
    assert set(REACHED) == set(STATUSES), "a status that nothing here reaches, or one that the header does not have"


@pytest.mark.parametrize("name", STATUSES)
def test_a_caller_gets(name, request, lib):
    function = REACHED[name]
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    made = {"world": World, "lib": lambda: lib, "omni": lambda: request.getfixturevalue("omni")}
    status = function(*(made[a]() for a in arguments))
    assert (status, name) == (STATUSES[name], name)
    assert lib.pc_status_name(status).decode() == name


def test_an_object_that_a_panic_left_is_out_of_use_and_no_other():
    status = in_a_process_of_its_own("""
        from abi_context import World
        world = World()
        good = world.good("manager_append")
        broken, other = world.manager(), world.manager()
        lease = broken.acquire(list(range(5000, 5010))).lease
        values = good | {"manager": broken.handle, "lease": lease.handle}
        assert world.call("manager_append", values, tokens=8, num_tokens=4) == -32, world.error()
        assert "internal error" in world.error()
        assert world.call("manager_append", values) == -32
        assert "left unusable by an internal error" in world.error(), world.error()
        assert world.call("manager_check", {"manager": other.handle}) == 0, world.error()
        handle = c_uint64(broken.handle)
        print(world.call("manager_destroy", {"manager": handle}))
        sys.stdout.flush()
        os._exit(0)
        """)
    assert status == STATUSES["PC_OK"], "it can be destroyed"
