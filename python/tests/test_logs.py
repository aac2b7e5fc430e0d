"""One line of the log for each degradation, through Python's logging: at once, at most one
in ten seconds, with the count of those that were left out, and with no lock held."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from context_host import Kind, Rig, Status, prompt
from omni_host import WIDTH, Host, eventually
from test_omni_threads import run_python

from prefixcache import PrefixCacheError, _ffi
from prefixcache.omni import ModelCachePolicy, OmniPrefixCacheStagingTimeoutError, OmniPrefixCacheUnmatchError

ROW = 4 * WIDTH
Lines = Callable[[], list[tuple[int, str]]]


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    """What former tests left to be told is told."""
    gc.collect()
    _ffi.tell()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The lines of the library so far."""
    caplog.set_level(logging.DEBUG, "prefixcache")
    return lambda: [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "prefixcache"]


def flushing(times: int) -> Host:
    policy = ModelCachePolicy(needs_full_hidden_states=False, deferred_keys=frozenset({"d"}))
    host = Host(policy=policy, gpu_staging_bytes=4 * ROW)
    for i in range(times + 1):
        host.arrive(f"r{i}", [i])
        host.go({f"r{i}": 3}, ("d",))
    assert host.manager.stats()["flushes"] == times
    return host


def test_a_flush_is_told_once_however_often_it_happens(lines: Lines) -> None:
    flushing(5)
    (level, text), *more = lines()
    assert not more and level == logging.WARNING
    assert text.startswith("omni cache: deferred rows are written before their request finishes")
    assert f"staging memory ({4 * ROW} bytes) is full; flushes so far: 1" in text


def test_one_cache_does_not_hide_another(lines: Lines) -> None:
    flushing(2)
    flushing(2)
    assert len(lines()) == 2


def test_a_wait_for_a_staging_slot(lines: Lines) -> None:
    host = Host(staging_depth=1, staging_claim_timeout_s=0.02)
    host.arrive("A", [0])
    host.run({"A": 1})
    for _ in range(3):
        host.begin({"A": 1})
        with pytest.raises(OmniPrefixCacheStagingTimeoutError):
            host.save()
    (level, text), *more = lines()
    assert not more and level == logging.WARNING
    assert re.fullmatch(
        r"omni cache: a save waited for a staging slot, because steps that nobody has consumed hold all of them "
        r"\(staging depth: 1\); waits so far: 1, of \d+\.\d ms in all",
        text,
    )


def test_a_failed_write_is_an_error(lines: Lines) -> None:
    host = Host()
    host.arrive("A", [0])
    host.begin({"A": 1})
    host.fail_write()
    for _ in range(2):
        with pytest.raises(OmniPrefixCacheUnmatchError):
            host.save()
    (level, text), *more = lines()
    assert not more and level == logging.ERROR
    assert "prefix cache write failed for step 1" in text and "create a new cache" in text


def test_a_write_that_fails_in_the_background_is_told_by_the_next_call(lines: Lines) -> None:
    policy = ModelCachePolicy(needs_full_hidden_states=False, deferred_keys=frozenset({"d"}))
    host = Host(eager=False, policy=policy)
    host.arrive("A", [0])
    host.go({"A": 1}, ("d",))
    host.fail_write()
    host.finish("A")
    host.begin({})
    eventually(lambda: host.manager.stats()["failed_writes"] == 1)
    host.manager.shutdown()
    assert [level for level, _ in lines()] == [logging.ERROR]


def test_a_read_that_is_not_used_is_information(lines: Lines) -> None:
    host = Host()
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("B", [0, 1], hit=4)
    host.manager.discard_step(host.run({"B": 1}))
    (level, text), *more = lines()
    assert not more and level == logging.INFO
    assert text.endswith("; reads so far: 1 of 1")


def test_information_does_not_reach_a_logger_of_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "prefixcache")
    host = Host()
    host.arrive("A", [0])
    host.go({"A": 4})
    host.arrive("B", [0, 1], hit=4)
    host.manager.discard_step(host.run({"B": 1}))
    assert not caplog.records


def test_snapshots_that_were_not_captured_are_told_at_powers_of_two(lines: Lines) -> None:
    rig = Rig(Kind.HYBRID, snapshots=1)
    for i in range(5):
        live = rig.begin(prompt(130, 2 * i), prompt(140, 2 * i + 1)).prefill()
        live.finish()
    assert rig.coordinator.metrics()["hybrid_snapshot_pressure_skips"] == 5
    told = [(level, text) for level, text in lines() if "snapshot" in text and "device" not in text]
    assert told == [
        (logging.WARNING, f"context cache: a snapshot was not captured, because every slot is in use; so far: {n}")
        for n in (1, 2, 4)
    ]


def test_quarantine_and_poison(lines: Lines) -> None:
    rig = Rig()
    live = rig.begin(prompt(300))
    live.prepare()
    rig.sync.answer = 700
    assert live.finish() is Status.POISONED
    rig.coordinator.shutdown()
    told = [(level, text[: text.index(",")]) for level, text in lines() if "device:" not in text]
    assert told == [
        (logging.WARNING, "context cache: a request is in quarantine"),
        (logging.ERROR, "context cache: a synchronisation failed"),
    ]


def test_nothing_is_told_when_nothing_is_wrong(lines: Lines) -> None:
    host = Host()
    host.arrive("A", [0, 1])
    host.go({"A": 4})
    host.arrive("B", [0, 1], hit=4)
    host.go({"B": 1})
    host.manager.shutdown()
    rig = Rig()
    for _ in range(2):
        rig.publish(prompt(300))
    rig.emptied()
    assert [text for _, text in lines() if "there is no CUDA device" not in text] == []


def test_no_lock_is_held_while_the_host_logs() -> None:
    """A slow handler must not stop other threads."""
    stuck: list[bool] = []
    hosts: list[Host] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            thread = threading.Thread(target=lambda: [h.manager.stats() for h in hosts])
            thread.start()
            thread.join(60)
            stuck.append(thread.is_alive())

    logger, handler = logging.getLogger("prefixcache"), Handler()
    logger.addHandler(handler)
    try:
        host = Host(staging_depth=1, staging_claim_timeout_s=0.02)
        hosts.append(host)
        host.arrive("A", [0])
        host.run({"A": 1})
        host.begin({"A": 1})
        with pytest.raises(OmniPrefixCacheStagingTimeoutError):
            host.save()
    finally:
        logger.removeHandler(handler)
    assert stuck == [False]


def logged(code: str, **environment: str) -> list[str]:
    """What another process logs."""
    prelude = "import logging; logging.basicConfig(level=logging.DEBUG, format='%(levelname)s %(message)s')\n"
    package = str(Path(__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": package, **environment}
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code)], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_host_memory_that_nobody_asked_for_is_told_once() -> None:
    found = logged(
        """
        from prefixcache.context import KVPageTable
        tables = [KVPageTable(2, 4, 8, host_memory=False) for _ in range(3)]
        """,
        PREFIXCACHE_CUDA_DRIVER="/nowhere/libcuda.so.1",
    )
    (line,) = found
    assert line.startswith("INFO context cache: page tables and snapshots are in host memory, because there is no CUDA")


def test_huge_pages_are_told_once_where_they_are_off() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    off = setting.exists() and "[never]" in setting.read_text()
    found = logged(
        """
        import ctypes
        from prefixcache import _ffi
        library, handle = _ffi.load(), ctypes.c_uint64()
        options = _ffi.OmniOptions(struct_size=ctypes.sizeof(_ffi.OmniOptions), num_blocks=1, block_size=4)
        for _ in range(3):
            library.check(library.omni_create(options, handle))
        """
    )
    assert len(found) == int(off) and all("transparent huge pages are off" in line for line in found)


LARGE_OMNI = """
    key = ctypes.c_uint32()
    options = _ffi.OmniOptions(struct_size=ctypes.sizeof(_ffi.OmniOptions), num_blocks=1 << 16, block_size=16, flags=1)
    for caches in range(2):
        library.check(library.omni_create(options, handle))
        for name in (b"a", b"b", b"c"):
            row = memory * 2 // (1 << 20)
            library.check(library.omni_open_key(handle, name, 1, row, 0, 0, key))
"""
LARGE_CONTEXT = """
    from prefixcache.context import ContextCacheManager
    managers = [ContextCacheManager(base_pages=memory * 2 // (4 << 20), tokens_per_page=1 << 20) for _ in range(2)]
    with open("/proc/self/statm") as f:
        assert int(f.read().split()[1]) < 128 << 8  # pages: 128 MiB, it waits for the tokens
"""


@pytest.mark.parametrize(
    "cache, code, advice",
    [("omni cache", LARGE_OMNI, "lower num_blocks"), ("page manager", LARGE_CONTEXT, "lower the number of pages")],
    ids=["omni", "context"],
)
def test_a_cache_that_may_come_to_more_than_there_is_is_told_once(cache: str, code: str, advice: str) -> None:
    """The limit is that of the machine, or of the control group if it has a lower one."""
    memory = int(Path("/proc/meminfo").read_text().partition("MemTotal:")[2].split()[0]) << 10
    start = f"""
        import ctypes
        from prefixcache import _ffi
        library, handle, memory = _ffi.load(), ctypes.c_uint64(), {memory}
    """
    lines = logged(textwrap.dedent(start) + textwrap.dedent(code))
    lines = [line for line in lines if "transparent huge pages are off" not in line]
    assert len(lines) == 2, "one for each cache"
    for i, line in enumerate(lines):
        told = re.fullmatch(
            rf"WARNING {cache}: its memory may come to (\d+) bytes, that of all caches of this process to (\d+), "
            rf"but (\S+|MemTotal in /proc/meminfo) allows (\d+): .*; {advice}.*, or raise the limit",
            line,
        )
        assert told, line
        most = int(told[1])
        assert memory * 2 * 0.99 < most < memory * 2.1
        # The first key of the first cache is told alone, those that follow it count for the second.
        assert int(told[2]) - most in ((0,) if i == 0 else (most, 3 * most))
        if told[3] == "MemTotal in /proc/meminfo":
            assert int(told[4]) == memory
        else:
            assert int(told[4]) == int(Path(told[3]).read_text()) < memory


def test_a_cache_that_fits_is_not_told_of_limits() -> None:
    code = "from prefixcache.context import ContextCacheManager; ContextCacheManager(base_pages=1 << 16)"
    assert logged(code) == []


def test_a_page_table_is_told_of_limits_before_its_rows_are_there() -> None:
    lines = logged(
        """
        import ctypes, sys
        from pathlib import Path
        from prefixcache import _ffi
        from prefixcache.context import ContextCacheManager, KVPageTable
        memory = int(Path("/proc/meminfo").read_text().partition("MemTotal:")[2].split()[0]) << 10
        present = lambda: int(open("/proc/self/statm").read().split()[1]) >> 8  # MiB

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
        def log(_user, _level, text):
            print(text.decode().split(":")[0], present() - before, file=sys.stderr)

        cache = ContextCacheManager(base_pages=memory * 2 // (4 << 20), tokens_per_page=1 << 20)
        ctypes.CDLL(str(_ffi.find())).pc_set_log(log, None, 3)
        before = present()
        table = KVPageTable(4096, 4096, 4096)
        print("made", present() - before, file=sys.stderr)
        """
    )
    told, made = (line.rpartition(" ") for line in lines if line.startswith(("page table", "made")))
    assert (told[0], made[0]) == ("page table", "made") and int(told[2]) < 16 < 100 < int(made[2]), lines


class Alarm(BaseException):
    """What a handler of the host raises; like KeyboardInterrupt, which pytest would take for itself."""


@pytest.fixture
def alarm() -> Iterator[Callable[[float], object]]:
    """Has a signal handler raise Alarm after so many seconds."""

    def ring(*_: object) -> None:
        raise Alarm

    former = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def waiting(timeout: float) -> Host:
    """The next save waits for a staging slot for so many seconds, and then tells that it did."""
    host = Host(staging_depth=1, staging_claim_timeout_s=timeout)
    host.arrive("A", [0])
    host.run({"A": 1})
    host.begin({"A": 1})
    return host


def test_an_interrupt_during_a_wait_that_is_told_reaches_the_caller(lines: Lines, alarm) -> None:
    host = waiting(0.3)
    with pytest.raises(Alarm):
        alarm(0.1)
        host.save()
    with pytest.raises(OmniPrefixCacheStagingTimeoutError):
        host.save()
    assert [text for _, text in lines() if "waited for a staging slot" in text]


def test_ctrl_c_during_a_wait_that_is_told_ends_the_program() -> None:
    code = """
        import os, signal, threading, time
        from test_logs import waiting
        host = waiting(3)

        def ring():
            while not host.manager.stats()["staging_waits"]:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=ring, daemon=True).start()
        host.save()
        """
    done = run_python(code)
    assert "KeyboardInterrupt" in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert "StagingTimeout" not in done.stderr, done.stderr


@pytest.mark.parametrize("where", ["save", "finish"])
def test_what_a_filter_of_the_host_raises_reaches_the_caller_once(where: str, lines: Lines) -> None:
    def refuse(_: logging.LogRecord) -> bool:
        raise Alarm

    host = waiting(0)
    rig = Rig(Kind.VANILLA)
    live = rig.begin(prompt(4))
    live.prepare()
    rig.sync.answer = 700
    logger = logging.getLogger("prefixcache")
    gc.collect()  # a finalizer of a former test's cache would tell lines, too, and swallow what that raises
    gc.disable()
    logger.addFilter(refuse)
    try:
        with pytest.raises(Alarm):
            host.save() if where == "save" else live.finish()
    finally:
        logger.removeFilter(refuse)
        gc.enable()
    rig.sync.answer = 0
    assert rig.coordinator.metrics()["poisoned"] == (where == "finish")
    rig.coordinator.shutdown()
    # The line that it was raised for is not told again; what was logged after it is told by the next call.
    assert [text.split(":")[1].split(",")[0] for _, text in lines()] == (
        [" a synchronisation failed"] if where == "finish" else []
    )
    assert live.finish() is Status.OK, "nothing is left to be finished" if where == "finish" else "it was not concerned"
    rig.close()


@pytest.mark.parametrize(
    ("call", "text"),
    [("save", "unconsumed step contexts"), ("set_policy", "after 1 saved steps"), ("check", "cache: 0 is not")],
)
def test_a_handler_of_the_host_may_call_the_library_beside_an_error(call: str, text: str) -> None:
    """Whose text is that of the last call, and would be gone with the handler's."""
    host, asked = waiting(0), []

    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            asked.append((record.getMessage(), host.manager.stats()["steps_saved"]))

    def refused() -> None:
        if call == "save":  # which logs a line
            host.save()
            return
        library = _ffi.load()
        library._log(_ffi.kept, _ffi.LogLevel(2), b"a line of before")
        if call == "set_policy":
            host.manager._cache.set_policy(False)
        library.check(library.omni_fail_write(0, 1))

    logger, handler = logging.getLogger("prefixcache"), Asking()
    logger.addHandler(handler)
    try:
        with pytest.raises(PrefixCacheError, match=text):
            refused()
    finally:
        logger.removeHandler(handler)
    assert [saved for _, saved in asked] == [1]


def test_lines_of_many_threads_stay_whole() -> None:
    got: list[tuple[int, str]] = []
    kept: dict[_ffi.LogLevel, bytes] = {}
    levels = [_ffi.LogLevel(2 + i % 2) for i in range(4)]
    keep = _ffi.load()._log
    threads = [
        threading.Thread(target=lambda i=i: [keep(kept, levels[i], f"line {i} \n é {n}".encode()) for n in range(200)])
        for i in range(4)
    ]
    readers = [threading.Thread(target=lambda: [got.extend(_ffi.taken(kept)) for _ in range(500)]) for _ in range(2)]
    for t in threads + readers:
        t.start()
    for t in threads + readers:
        t.join()
    got.extend(_ffi.taken(kept))
    wanted = [(2 + i % 2, f"line {i} \n é {n}") for i in range(4) for n in range(200)]
    assert sorted(got) == sorted(wanted)
