"""Every metric moves when its thing happens, by what was really done, and no other does.

A scenario says beforehand which series of the page will have changed and by how much.
Times are left out of that: they have tests of their own.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import exposition
import pytest
from context_host import Kind, Rig, prompt
from metrics_context import PARTIAL_TOKEN, RECURRENT
from metrics_omni import ROW
from metrics_scenarios import NAMES, REPOSITORY, SCENARIOS, TABLE, Expected, Watch
from omni_host import Host, eventually

from prefixcache import PrefixCacheError, _ffi
from prefixcache._errors import PrefixCacheArgumentError
from prefixcache.context import ContextCacheManager
from prefixcache.metrics import PrometheusCollector, prometheus_text


@pytest.mark.parametrize("expected,scenario", [pytest.param(e, f, id=f.__name__) for e, f in SCENARIOS])
def test_what_moves(expected: Expected, scenario: Callable) -> None:
    watch = Watch()
    scenario(watch)
    assert watch.changes == {name: round(n, 9) for name, n in expected.items() if n}


# What the scenarios leave out: tested below by name, or where there is a device.
BELOW = {
    "copy_timed_bytes_total",
    "copy_seconds_total",
    "planning_seconds_total",
    "wait_seconds_total",
    "queue_age_seconds",
    "queue_age_peak_seconds",
    "reserved_bytes",
    "staged_bytes_limit",
    "staging_depth_limit",
    "snapshot_bytes",
    "result_buffer_bytes",
    "result_buffers_total",
    "build_info",
    "usable",  # 0 in TestTheMetricsOfABrokenCache (capi/panic_test.go)
    "pinned_bytes",  # and the copies clone and d2h, the waits for landing and upload: device_tests
}


def test_every_metric_has_a_test() -> None:
    moving = {name.split()[0] for expected, _ in SCENARIOS for name, n in expected.items() if n}
    assert moving | BELOW == set(NAMES) and not moving & BELOW


# ---------------------------------------------------------------- the document

DOCUMENT = (REPOSITORY / "docs" / "metrics.md").read_text()
UNITS = {"bytes": "bytes", "seconds": "seconds", "ratio": "ratio", "tokens": "tokens"}


def test_every_metric_is_explained_with_its_type_and_unit() -> None:
    types = dict(re.findall(r'^\tm\w+:\s+\{"(\w+)", (counter|gauge), ', TABLE, re.MULTILINE))
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge) \| (\w+) \|", DOCUMENT, re.MULTILINE)
    assert {name: kind for name, kind, _ in rows} == types and len(rows) == len(types)
    for name, _, unit in rows:
        for word in name.removesuffix("_total").removesuffix("_peak").removesuffix("_limit").split("_")[-1:]:
            assert unit == UNITS.get(word, unit), name


def test_help_is_a_sentence_of_its_own() -> None:
    """A dashboard shows it without its neighbours; names of the code say nothing there."""
    texts = re.findall(r'^\tm\w+:\s+\{"\w+", \w+, "(.+)"\},$', TABLE, re.MULTILINE)
    assert len(texts) == len(NAMES)
    for text in texts:
        assert not re.search(r"[a-z][A-Z]|^Of these", text) and text.endswith("."), text


def test_every_direction_and_cause_is_explained() -> None:
    text = prometheus_text(Host().manager, Rig().coordinator)
    for label in ("direction", "cause"):
        table = DOCUMENT.partition(f"| `{label}` |")[2].partition("\n\n")[0]
        assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(re.findall(rf'{label}="(\w+)"', text)), label


def test_labels_of_the_document_are_those_of_the_page() -> None:
    with ContextCacheManager(base_pages=8, tenant_quota=1000) as tenants:
        tenants.acquire(prompt(10)).lease.release()
        text = prometheus_text(Host().manager, Rig(Kind.EAGLE).coordinator, (tenants, {"engine": "1"}))
    for name, label in re.findall(r"^\| `(\w+)` \|[^\n]*?by `(\w+)`", DOCUMENT, re.MULTILINE):
        assert re.search(rf'prefixcache_{name}\{{[^\n]*{label}="', text), (name, label)


def test_lines_of_the_log_are_those_of_the_code() -> None:
    code = "".join(p.read_text() for p in (REPOSITORY / "capi").glob("log*.go")) + "".join(
        p.read_text() for p in (REPOSITORY / "core" / "omni").glob("failure.go")
    )
    lines = re.findall(r"^\| (?:error|warning|info) \| `([^`]+)`", DOCUMENT, re.MULTILINE)
    assert len(lines) >= 10
    for line in [*lines, "could not be pinned for rows from a device"]:
        # Whose line it is may be filled in.
        assert line in code or line.partition(": ")[2].removeprefix("prefix ") in code, line


# ---------------------------------------------------------- times and limits


def page(*caches: object, **labels: str) -> exposition.Page:
    return exposition.read(prometheus_text(*caches, labels=labels))


def test_large_copies_are_timed_and_small_ones_are_not() -> None:
    host = Host(num_blocks=64)
    began = time.monotonic()
    host.arrive("A", list(range(32)))
    host.begin({"A": 64})
    host.save({"wide": host.outputs("wide", width=4096)}, hidden=None)  # 1 MiB
    host.begin({"A": 1})
    host.save({"wide": host.outputs("wide", width=4096)}, hidden=None)
    most = time.monotonic() - began
    p = page(host.manager)
    assert p.value("copy_bytes_total", cache="omni", direction="save") == 65 * 16384
    assert p.value("copy_timed_bytes_total", cache="omni", direction="save") == 64 * 16384
    assert 0 < p.value("copy_seconds_total", cache="omni", direction="save") < most
    copies = host.manager.stats()["copies"]["save"]
    assert copies["bytes"] == 65 * 16384 and copies["timed_bytes"] == 64 * 16384 and 0 < copies["seconds"] < most


def test_time_of_planning() -> None:
    rig = Rig()
    began = time.monotonic()
    rig.begin(prompt(300))
    assert 0 < page(rig.coordinator).value("planning_seconds_total", cache="context") < time.monotonic() - began


def test_time_of_waits_and_of_the_queue() -> None:
    host = Host(eager=False, num_blocks=64)
    began = time.monotonic()
    host.arrive("A", list(range(32)))
    for _ in range(2):
        host.begin({"A": 64})
        host.save({"wide": host.outputs("wide", width=4096)}, hidden=None)  # to the background thread
    most = time.monotonic() - began
    eventually(lambda: host.manager.stats()["pending_writes"] == 0)
    until_written = time.monotonic() - began
    p = page(host.manager)
    waits = p.value("waits_total", cache="omni", cause="step")
    assert waits in (0, 1)  # whether the second save has met the first one's write
    assert (0 < p.value("wait_seconds_total", cache="omni", cause="step") < most) == bool(waits)
    assert p.value("queue_age_seconds", cache="omni") == 0
    assert 0 < p.value("queue_age_peak_seconds", cache="omni") < until_written
    host.manager.shutdown()


def test_sizes_that_were_asked_for() -> None:
    host = Host(staging_depth=3, gpu_staging_bytes=12345)
    p = page(host.manager)
    assert p.value("staging_depth_limit", cache="omni") == 3
    assert p.value("staged_bytes_limit", cache="omni") == 12345
    assert p.value("reserved_bytes", cache="omni") == 0
    host.arrive("A", [0])
    host.go({"A": 1})
    assert page(host.manager).value("reserved_bytes", cache="omni") >= 64 * ROW  # 16 blocks of 4
    hybrid = page(Rig(Kind.HYBRID, snapshots=5).coordinator)
    assert hybrid.value("snapshot_bytes", cache="context") == 5 * (RECURRENT + 128 * PARTIAL_TOKEN)
    assert hybrid.value("pinned_bytes", cache="context") == 0  # no device


def test_result_buffers() -> None:
    library = _ffi.load()
    data, buffers = ctypes.c_void_p(), [ctypes.c_uint64(), ctypes.c_uint64()]
    gc.collect()  # results of former tests that are in a cycle
    before = page()

    def change(name: str, **labels: str) -> float:
        return page().value(name, **labels) - before.value(name, **labels)

    size = 600 << 20  # nobody else has one of this size
    library.check(library.buffer_acquire(size, ctypes.addressof(data), ctypes.addressof(buffers[0])))
    assert change("result_buffer_bytes", state="in_use") >= size
    assert change("result_buffers_total", source="fresh") == 1
    library.check(library.buffer_release(buffers[0].value))
    assert change("result_buffer_bytes", state="in_use") == 0
    assert page().value("result_buffer_bytes", state="retained") >= size
    library.check(library.buffer_acquire(size, ctypes.addressof(data), ctypes.addressof(buffers[1])))
    assert change("result_buffers_total", source="recycled") == 1
    library.check(library.buffer_release(buffers[1].value))


def test_build_info() -> None:
    library = _ffi.load()
    labels = {"version": library.version().decode(), "kernel": library.kernel_name().decode()}
    assert page().value("build_info", **labels) == 1


# --------------------------------------------------------------------- page


def test_several_caches_on_one_page() -> None:
    host, other, rig = Host(), Host(), Rig()
    with ContextCacheManager(base_pages=8) as manager:
        p = page(
            (host.manager, {"engine": "0"}), (other.manager, {"engine": "1"}), rig.coordinator,
            (manager, {"engine": "2"}), name="m",
        )  # fmt: skip
        engines = {
            dict(labels).get("engine") for name, labels in p.samples if name == "prefixcache_queries_tokens_total"
        }
        assert engines == {"0", "1", "2", None}
        assert all(
            ("name", "m") in labels for name, labels in p.samples if "result_buffer" not in name and "build" not in name
        )


def test_label_values_are_escaped() -> None:
    values = {"quote": 'a"b', "slash": "a\\b\\n", "line": "a\nb", "brace": "},{", "empty": "", "more": "é\t\u2028"}
    p = page(Rig().coordinator, **values)
    assert p.value("leases", cache="context", **values) == 0


def test_a_value_that_is_not_utf_8_does_not_spoil_the_page() -> None:
    assert page(Rig().coordinator, broken="a\ud800b").value("leases", cache="context", broken="a?b") == 0
    label = (_ffi.Label * 1)(_ffi.Label(b"x", b"a\xff\xfeb"))
    rig = Rig()
    source = (_ffi.MetricsSource * 1)(_ffi.MetricsSource(rig.coordinator.handle, label, 1))
    text, size = ctypes.create_string_buffer(1 << 16), ctypes.c_uint64()
    library = _ffi.load()
    library.check(library.metrics_text(ctypes.addressof(source), 1, ctypes.addressof(text), len(text), size))
    assert exposition.read(text.value.decode()).value("leases", cache="context", x="a\ufffdb") == 0


@pytest.mark.parametrize(
    "labels,said",
    [
        ({"": "x"}, "a name"),
        ({"1a": "x"}, "no digit first"),
        ({"a-b": "x"}, "letters, digits and _"),
        ({"é": "x"}, "letters, digits and _"),
        ({"__name__": "x"}, "begins with __"),
        ({"cache": "x"}, "the library's own labels"),
        ({"direction": "x"}, "the library's own labels"),
        ({"a": 1}, "expected a string"),
        ({"a": "x\0y"}, "zero byte"),
        ({"a": "x" * 5000}, "more than 4096 bytes"),
    ],
)
def test_labels_that_cannot_be(labels: dict, said: str) -> None:
    with pytest.raises(PrefixCacheArgumentError, match=re.escape(said)):
        prometheus_text(Rig().coordinator, labels=labels)


def test_two_caches_that_cannot_be_told_apart() -> None:
    host, rig = Host(), Rig()
    for pair in (
        (host.manager, host.manager),
        (rig.coordinator, rig.coordinator),
        (rig.coordinator, rig.coordinator.manager()),
    ):
        with pytest.raises(
            PrefixCacheArgumentError, match=r"sources\[1\]: the same kind of cache and labels as sources\[0\]"
        ):
            prometheus_text(*pair, labels={"engine": "0"})


def test_what_is_no_cache() -> None:
    closed = ContextCacheManager(base_pages=8)
    closed.close()
    for cache in (closed, object(), 7):
        with pytest.raises(PrefixCacheError):
            prometheus_text(cache)
    assert page().samples  # what belongs to the process


def test_room_of_any_size() -> None:
    library, rig = _ffi.load(), Rig()
    source = (_ffi.MetricsSource * 1)(_ffi.MetricsSource(rig.coordinator.handle, None, 0))
    at, size = ctypes.addressof(source), ctypes.c_uint64()
    library.check(library.metrics_text(at, 1, 0, 0, size))
    whole = ctypes.create_string_buffer(size.value + 1)
    library.check(library.metrics_text(at, 1, ctypes.addressof(whole), len(whole), size))
    exposition.read(whole.value.decode())
    for space in (1, 2, 100, size.value):
        part = ctypes.create_string_buffer(b"#" * (space + 8), space + 8)
        library.check(library.metrics_text(at, 1, ctypes.addressof(part), space, size))
        assert part.raw == whole.raw[: space - 1] + b"\0" + b"#" * 8
        assert size.value == len(whole) - 1


@pytest.mark.parametrize("arguments", ["no sources", "no text", "no size", "no labels", "null name", "null value"])
def test_null_arguments(arguments: str) -> None:
    library, rig = _ffi.load(), Rig()
    label = (_ffi.Label * 1)(
        _ffi.Label(None if arguments == "null name" else b"a", None if arguments == "null value" else b"b")
    )
    labels = None if arguments == "no labels" else label
    source = (_ffi.MetricsSource * 1)(_ffi.MetricsSource(rig.coordinator.handle, labels, 1))
    at = 0 if arguments == "no sources" else ctypes.addressof(source)
    text, size = ctypes.create_string_buffer(100), ctypes.c_uint64()
    out = None if arguments == "no size" else size
    status = library.metrics_text(at, 1, 0 if arguments == "no text" else ctypes.addressof(text), 100, out)
    assert status == -1 and arguments.split()[1] in library.error_text()


def test_the_reader_of_these_tests_is_strict() -> None:
    good = '# HELP a_total A.\n# TYPE a_total counter\na_total{x="1"} 1\n'
    exposition.read(good)
    for bad in (
        good[:-1],
        good + 'a_total{x="1"} 2\n',
        good + "b 1\n",
        good.replace("# HELP a_total A.\n", ""),
        good.replace("# TYPE a_total counter\n", ""),
        good.replace("counter", "gauge"),
        good.replace('"1"', '"\\t"'),
        good.replace('"1"', '"1",'),
        good.replace('x="1"', 'x="1",x="2"'),
        good.replace(" 1\n", " -1\n"),
        good.replace(" 1\n", "  1\n"),
        good.replace("a_total", "a_ms_total"),
        good + good,
    ):
        with pytest.raises(AssertionError):
            exposition.read(bad)


# ------------------------------------------------------------------- client

CLIENT = "prometheus_client==0.26.0"  # pure Python, for these tests only


@pytest.fixture(scope="module")
def client() -> Iterator[str]:
    """Where the client is installed, outside of the interpreter's own packages."""
    folder = REPOSITORY / "build" / CLIENT.replace("==", "-")
    if not (folder / "complete").exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--upgrade",
            "--target",
            str(folder),
            CLIENT,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            if os.environ.get("PREFIXCACHE_OFFLINE") == "1":
                pytest.skip(f"{CLIENT} could not be installed for this test")
            pytest.fail(f"{CLIENT} could not be installed for this test: {done.stderr[-500:]}", pytrace=False)
        (folder / "complete").touch()
    return str(folder)


def test_the_client_reads_the_page_and_writes_the_same(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(client)
    from prometheus_client import CollectorRegistry, generate_latest

    rig = Rig()
    rig.publish(prompt(300))
    labels = {"engine": 'a"b\\c\nd'}
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(rig.coordinator, labels=labels))
    ours = exposition.read(prometheus_text(rig.coordinator, labels=labels))
    theirs = exposition.read(generate_latest(registry).decode())
    assert theirs.types == ours.types and theirs.help == ours.help
    assert theirs.samples == ours.samples
    assert theirs.value("leases_peak", cache="context", **labels) == 1
