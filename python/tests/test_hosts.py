"""The library inside Python hosts: signals, faulthandler, torch, and processes that end badly.

Each scenario is a process of its own in an empty folder. What is not particular to Python is in
cpp_tests/hosts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from abi import ROOT

HANG_S = 300  # nothing but a fault takes longer

WORK = """
import os, signal, sys, threading, time
from types import SimpleNamespace
from prefixcache.context import ContextCacheManager

def context(rounds):
    with ContextCacheManager(base_pages=64, tokens_per_page=4) as cache:
        for i in range(rounds):
            prompt = [7] * 8 + [i % 5] * 9
            with cache.acquire(prompt).lease as lease:
                cache.publish(lease, len(prompt))
            assert cache.lookup(prompt).reuse_token_length == 16
        cache.check_invariants()

def omni(rounds):
    import torch
    from omni_host import HIDDEN, Host, rows
    for i in range(rounds):
        host = Host(eager=i % 2 == 0)
        host.arrive("A", [1, 2])
        host.go({"A": 8})
        host.check()
        assert torch.equal(host.stored(HIDDEN, list(range(4, 12))), rows("A", 0, 8))
        host.manager.shutdown()

def both(rounds):
    context(rounds)
    omni(rounds // 10)
"""


def begin(code: str, folder, *options: str) -> subprocess.Popen:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'python' / 'tests'}",
        "TMPDIR": str(folder),
        "HOME": str(folder),
    }
    return subprocess.Popen(
        [sys.executable, *options, "-c", WORK + textwrap.dedent(code)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen, folder, expected: int, says: str = "") -> None:
    """It ends in time and as expected, and leaves neither files nor processes."""
    try:
        output = process.communicate(timeout=HANG_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"it hangs:\n{process.communicate()[0]}")
    assert process.returncode == expected, output
    assert says in output, output
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert not list(folder.iterdir())


ALARMS = """
    seen = 0
    def handler(*_):
        global seen
        seen += 1
    {before}
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    end = time.monotonic() + 1
    # Alarms that come while the process has no processor are one.
    while time.monotonic() < (end if seen > 100 else end + {hang}):
        both(20)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert seen > 100, seen
    print("done")
"""


@pytest.mark.parametrize("before", ["", "omni(1)"])
def test_an_alarm_a_millisecond(tmp_path, before):
    ended(begin(ALARMS.format(before=before, hang=HANG_S // 2), tmp_path), tmp_path, 0, "done")


FAULTHANDLER = """
    import faulthandler
    {first}
    {second}
    context(50)
    faulthandler.register(signal.SIGUSR1, chain=False)
    os.kill(os.getpid(), signal.SIGUSR1)
    read, write = os.pipe()
    faulthandler.dump_traceback_later(0.05, file=write)
    # Its thread reads frames that may not change meanwhile: it begins within read, and cancel waits for its end.
    begun = os.read(read, 1)
    faulthandler.cancel_dump_traceback_later()
    os.write(2, begun + os.read(read, 1 << 16))
    context(50)
    print("alive", flush=True)
    os.kill(os.getpid(), signal.{last})
"""


@pytest.mark.parametrize("last", ["SIGSEGV", "SIGABRT", "SIGFPE"])
@pytest.mark.parametrize("order", [("faulthandler.enable()", "context(1)"), ("context(1)", "faulthandler.enable()")])
def test_faulthandler_tells_where_the_host_was(tmp_path, order, last):
    code = FAULTHANDLER.format(first=order[0], second=order[1], last=last)
    process = begin(code, tmp_path)
    output = process.communicate(timeout=HANG_S)[0]
    assert "alive" in output, output
    assert process.returncode == -getattr(signal, last), output
    assert output.count("(most recent call first)") >= 3, output


@pytest.mark.parametrize("first, second", [("import torch", "context(1)"), ("context(1)", "import torch")])
def test_torch_before_and_after(tmp_path, first, second):
    code = f"""
        {first}
        {second}
        torch.ones(64, 64) @ torch.ones(64, 64)
        both(20)
        print("done")
    """
    ended(begin(code, tmp_path), tmp_path, 0, "done")


def test_an_interrupt_is_an_exception_of_the_host(tmp_path):
    code = """
        try:
            print("up", flush=True)
            while True:
                context(50)
        except KeyboardInterrupt:
            context(20)
            print("interrupted")
    """
    process = begin(code, tmp_path)
    assert process.stdout.readline() == "up\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    ended(process, tmp_path, 0, "interrupted")


def test_a_closed_pipe_is_an_error_of_the_host(tmp_path):
    code = """
        context(1)
        read, write = os.pipe()
        os.close(read)
        try:
            os.write(write, b"x")
        except BrokenPipeError:
            context(20)
            print("done")
    """
    ended(begin(code, tmp_path), tmp_path, 0, "done")


BUSY = """
    cache = ContextCacheManager(base_pages=64, tokens_per_page=4)   # never closed
    lease = cache.acquire([1] * 9).lease                            # never released
    if {omni}:
        from omni_host import Host
        host = Host(eager=False)                                    # never shut down
    def forever():
        while True:
            context(10)
    for _ in range(4):
        threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.2)
    print("up", flush=True)
    {end}
"""


@pytest.mark.parametrize(
    "end, expected",
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os._exit(3)", 3),
        ("os.abort()", -signal.SIGABRT),
        ("raise RuntimeError", 1),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
    ],
)
def test_a_host_that_ends_among_calls(tmp_path, end, expected):
    ended(begin(BUSY.format(end=end, omni=end in ("", "sys.exit(3)")), tmp_path), tmp_path, expected, "up")


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.5])
def test_a_host_that_is_killed(tmp_path, delay):
    process = begin(BUSY.format(end="time.sleep(60)", omni=False), tmp_path)
    time.sleep(delay)
    process.kill()
    ended(process, tmp_path, -signal.SIGKILL)


def test_workers_by_spawn_and_by_fork(tmp_path):
    code = """
        def child():
            try:
                ContextCacheManager(base_pages=4)
            except RuntimeError as error:
                os._exit(3 if "fork" in str(error) else 4)
            os._exit(5)
        def alone():
            context(5)
            os._exit(3)
        for work, load in ((alone, False), (child, True)):
            if load:
                context(5)
            pid = os.fork()
            if pid == 0:
                signal.alarm(100)
                work()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
            context(5)
        import subprocess
        assert subprocess.run(["true"]).returncode == 0
        print("done")
    """
    ended(begin(code, tmp_path), tmp_path, 0, "done")
