"""install() against real vllm-omni releases, and its refusals.

The releases come from the package index on the first run and stay under build/.
Without network the tests fail and say so; PREFIXCACHE_OFFLINE=1 makes them
skips instead.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from prefixcache import vllm_omni
from prefixcache._errors import STAGING_TIMEOUT, UNMATCH
from prefixcache._vllm_omni_bridge import HostErrors, make_manager
from prefixcache.omni import PrefixCacheConfig

REPOSITORY = Path(__file__).resolve().parents[2]
HOST = Path(__file__).with_name("vllm_omni_host.py")
RELEASES = ["0.30.0", "0.32.0rc1"]  # the newest stable one, and the newest one: one for each interface


def fetch(release: str) -> Path:
    """Folder with this release of vllm-omni, without its dependencies; cached."""
    tag = f"{sys.implementation.cache_tag}"
    folder = REPOSITORY / "build" / "vllm-omni" / f"{release}-{tag}"
    if (folder / "complete").exists():
        return folder
    # msgspec: vllm-omni's payload module, which its runner mixin imports, needs it.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
    done = subprocess.run([*command, f"vllm-omni=={release}", "msgspec==0.23.0"], capture_output=True, text=True)
    if done.returncode != 0:
        reason = f"vllm-omni {release} could not be installed for this test: {done.stderr.strip()[-500:]}"
        if os.environ.get("PREFIXCACHE_OFFLINE") == "1":
            pytest.skip(reason)
        pytest.fail(f"{reason}\n(PREFIXCACHE_OFFLINE=1 skips these tests where there is no network)", pytrace=False)
    (folder / "complete").touch()
    return folder


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env, timeout=600)


def drive(release: str, which: str) -> dict:
    done = python(str(HOST), str(fetch(release)), which)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("release", RELEASES)
def test_runner_of_the_release_drives_our_manager(release):
    ours = drive(release, "installed")
    assert ours["manager"] == "prefixcache._vllm_omni_bridge"
    assert ours["rows"] > 100
    original = drive(release, "original")
    assert original["manager"] == "vllm_omni.core.prefix_cache.manager"
    assert (ours["digest"], ours["rows"]) == (original["digest"], original["rows"])


def test_supported_releases_are_the_tested_ones():
    assert set(RELEASES) <= set(vllm_omni.SUPPORTED_RELEASES)


def fake_release(folder: Path, version: str, manager: str | None = None) -> str:
    """A stand-in distribution: metadata with a version, and a manager module when given."""
    info = folder / f"vllm_omni-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-omni\nVersion: {version}\n")
    package = folder / "vllm_omni" / "core" / "prefix_cache"
    package.mkdir(parents=True)
    for where in (package.parents[1], package.parent, package):
        (where / "__init__.py").write_text("")
    if manager is not None:
        (package / "manager.py").write_text(manager)
        (package / "group_view.py").write_text("class FullAttentionGroupView: pass\n")
        (package / "interface.py").write_text("")
    return str(folder)


def message_of(code: str, path: str) -> str:
    done = python("-c", f"import sys; sys.path.insert(0, {path!r})\nfrom prefixcache import vllm_omni\n{code}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


CATCH = """
try:
    vllm_omni.install(allow_untested={untested})
except vllm_omni.{error} as e:
    print(e)
assert not vllm_omni.installed()
"""


@pytest.mark.parametrize(
    ("version", "untested", "fragment"),
    [
        ("0.28.0", False, "without a replaceable manager"),
        ("0.29.0rc1", True, "without a replaceable manager"),
        ("0.33.0", False, "it was not tested"),
        ("0.33.0", True, "another interface"),
        ("0.32.1", False, "another interface"),
    ],
)
def test_other_releases_are_refused_by_name(tmp_path, version, untested, fragment):
    manager = "class OmniPrefixCacheManager:\n    def __init__(self, everything): pass\n"
    path = fake_release(tmp_path, version, manager)
    text = message_of(CATCH.format(untested=untested, error="UnsupportedVllmOmniError"), path)
    assert f"vllm-omni {version} is not supported" in text
    assert fragment in text
    assert all(release in text for release in vllm_omni.SUPPORTED_RELEASES)


class Interface:
    """The error classes of a vllm-omni."""

    class OmniPrefixCacheUnmatchError(RuntimeError):
        pass

    class OmniPrefixCacheStagingTimeoutError(OmniPrefixCacheUnmatchError):
        pass


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([("B", 0, 3), ("A", 3, 5)], None),
        ([("A", 3, 5), ("B", 0, 3)], "begins req A at row 3, expected 0"),
        ([("B", 0, 3), ("A", 4, 6)], "begins req A at row 4, expected 3"),
        ([("B", 0, 3), ("A", 2, 4)], "begins req A at row 2, expected 3"),
        ([("B", 0, 2), ("A", 2, 4)], "mismatch for req B: step=3, layout=2"),
    ],
)
def test_a_write_layout_that_would_mix_requests_is_refused(spans, text):
    kinds = SimpleNamespace(STARTED="started", FINISHED="finished", ABORTED="aborted")
    adapter = SimpleNamespace(PrefixCacheStep=SimpleNamespace, PrefixCacheEventKind=kinds)
    manager = make_manager(HostErrors(Interface), adapter)(PrefixCacheConfig(num_blocks=4, block_size=4), eager=True)
    events = [SimpleNamespace(kind="started", req_id=r, hit_end=0, block_ids=()) for r in "AB"]
    manager.new_step_starts(SimpleNamespace(events=events, scheduled_tokens=(("A", 2), ("B", 3))))
    writes = [SimpleNamespace(req_id=r, row_start=start, row_end=end) for r, start, end in spans]
    hidden = torch.arange(10.0).view(5, 2)

    def save() -> int:
        layout = SimpleNamespace(writes=writes, slots_cpu=torch.tensor([0, 1, 2, 4, 5]))
        return manager.save_outputs(hidden, {}, num_tokens_unpadded=5, num_tokens_padded=5, write_layout=layout)

    if text is not None:
        with pytest.raises(Interface.OmniPrefixCacheUnmatchError, match=text):
            save()
        writes = [
            SimpleNamespace(req_id="B", row_start=0, row_end=3),
            SimpleNamespace(req_id="A", row_start=3, row_end=5),
        ]
    out = manager.materialize(save(), ["A", "B"]).hidden_states
    assert torch.equal(out["B"], hidden[:3])
    assert torch.equal(out["A"], hidden[3:])
    manager.shutdown()


def test_errors_cross_processes():
    errors = HostErrors(Interface)
    for error in (
        errors.unmatch("step context 9 missing", UNMATCH),
        errors.timeout("none came free", STAGING_TIMEOUT),
        vllm_omni.UnsupportedVllmOmniError("0.28.0", "it is old"),
        vllm_omni.VllmOmniNotFoundError("vllm-omni is not installed"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), vars(again)) == (str(error), vars(error))


def test_missing_vllm_omni_is_named(tmp_path):
    text = message_of(CATCH.format(untested=False, error="VllmOmniNotFoundError"), str(tmp_path))
    assert "vllm-omni is not installed" in text


def test_plugin_entry_never_ends_the_engine(tmp_path):
    """vLLM calls register() without a net: it must not raise, whatever is installed."""
    message_of("vllm_omni.register()", str(tmp_path / "nothing"))
    text = message_of("import logging; logging.basicConfig()\nvllm_omni.register()", fake_release(tmp_path, "0.28.0"))
    assert "vllm-omni 0.28.0 is not supported" in text
    assert "keeps its own" in text


RUNNER_MANAGER = """
class OmniPrefixCacheManager:
    def __init__(self, config, view, *, eager=None): pass
    def save_outputs(self, hidden_states, mm_outputs, *, num_tokens_unpadded, num_tokens_padded): pass
    register_policy = new_step_starts = materialize = discard_step = shutdown = save_outputs
"""
ADAPTER_MANAGER = RUNNER_MANAGER.replace("view,", "").replace("padded):", "padded, write_layout):")


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("../../__init__.py", "raise RuntimeError('no driver')", "cannot be imported: RuntimeError: no driver"),
        ("group_view.py", "import os; os.nothing", "cannot be imported: AttributeError"),
        ("interface.py", "def (", "cannot be imported: SyntaxError"),
        ("manager.py", "", "another interface (module 'vllm_omni.core.prefix_cache.manager' has no attribute"),
        ("group_view.py", "", "another interface (module 'vllm_omni.core.prefix_cache.group_view' has no attribute"),
        ("interface.py", "", "another interface (module 'vllm_omni.core.prefix_cache.interface' has no attribute"),
        ("manager.py", ADAPTER_MANAGER, "another interface (No module named 'vllm_omni.core.prefix_cache.adapter'"),
    ],
)
def test_plugin_entry_survives_a_vllm_omni_that_is_broken(tmp_path, file, content, told):
    """Also in a server that does not want it, which would run without."""
    path = fake_release(tmp_path, "0.30.0", RUNNER_MANAGER)
    package = tmp_path / "vllm_omni" / "core" / "prefix_cache"
    errors = ("OmniPrefixCacheUnmatchError", "OmniPrefixCacheStagingTimeoutError")
    (package / "interface.py").write_text("".join(f"class {name}(RuntimeError): pass\n" for name in errors))
    (package / file).write_text(content)
    text = message_of("import logging; logging.basicConfig()\nvllm_omni.register(); print(vllm_omni.installed())", path)
    assert told in text
    assert ("Traceback" in text) is ("another interface" in told)  # it may be a fault of ours
    assert "False" in text.splitlines()[0]


@pytest.mark.parametrize(("value", "warned"), [("false", True), ("off", True), ("1", False), ("", False), ("0", False)])
def test_a_switch_that_is_neither_on_nor_off_is_told(tmp_path, value, warned):
    """It is on, which whoever wrote "false" does not mean."""
    code = "import logging; logging.basicConfig()\nfrom prefixcache import vllm_omni; vllm_omni.register()"
    path = f"{REPOSITORY / 'python'}:{fake_release(tmp_path, '0.28.0')}"
    done = python("-c", code, PREFIXCACHE_VLLM_OMNI=value, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert (f"PREFIXCACHE_VLLM_OMNI is {value}, expected 0 or 1" in done.stderr) is warned
    assert ("0.28.0 is not supported" in done.stderr) is (value != "0")


def test_import_brings_neither_torch_nor_vllm():
    done = python(
        "-c",
        "import sys, prefixcache.vllm_omni\n"
        "print(sorted({'torch', 'vllm', 'vllm_omni', 'numpy', 'prefixcache._ffi'} & set(sys.modules)))",
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_uninstall_without_install_is_harmless():
    vllm_omni.uninstall()
    assert not vllm_omni.installed()
