"""How the library is found, loaded and spoken to."""

from __future__ import annotations

import ctypes
import logging
import threading
from pathlib import Path

import pytest
from test_doctor import SIMULATED_DRIVER
from test_omni_threads import run_python

import prefixcache
from prefixcache import _errors, _ffi


def test_nothing_is_loaded_at_import():
    done = run_python(
        """
        import sys
        import prefixcache
        assert "torch" not in sys.modules
        import prefixcache.omni, prefixcache._ffi
        assert prefixcache._ffi._library is None
        assert not any("libprefixcache" in line for line in open("/proc/self/maps"))
        """
    )
    assert done.returncode == 0, done.stderr


def test_load_is_done_once_whoever_comes_first():
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(_ffi.load())) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({id(lib) for lib in seen}) == 1


LOAD = """
    import prefixcache
    from prefixcache import _ffi
    try:
        _ffi.load()
    except prefixcache.PrefixCacheLibraryError as e:
        print("refused:", e)
    """


def test_a_missing_library_is_named_with_the_places_tried(monkeypatch, tmp_path):
    monkeypatch.delenv("PREFIXCACHE_LIBRARY", raising=False)
    monkeypatch.setattr(_ffi, "__file__", str(tmp_path / "python" / "prefixcache" / "_ffi.py"))
    with pytest.raises(prefixcache.PrefixCacheLibraryError, match=r"not found.*or set PREFIXCACHE_LIBRARY") as e:
        _ffi.find()
    for place in (tmp_path / "python" / "prefixcache", tmp_path / "build"):
        assert str(place / "libprefixcache.so") in str(e.value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("missing", "PREFIXCACHE_LIBRARY is {path}, and there is no such file\n"),
        ("folder", "PREFIXCACHE_LIBRARY is {path}, which is no file; expected libprefixcache.so\n"),
        ("text", "cannot load {path}: "),
        ("foreign", "{path} is not libprefixcache: it lacks pc_abi_version (PREFIXCACHE_LIBRARY names it)\n"),
    ],
)
def test_a_wrong_library_in_the_environment_is_named_with_the_variable(tmp_path, kind, text):
    path = tmp_path / "there.so"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("no library")
    elif kind == "foreign":
        path = SIMULATED_DRIVER
    out = run_python(LOAD, PREFIXCACHE_LIBRARY=str(path)).stdout
    assert out.startswith("refused: " + text.format(path=path))
    assert "PREFIXCACHE_LIBRARY" in out
    assert "or set" not in out


def test_a_relative_path_in_the_environment_is_shown_in_full(tmp_path):
    out = run_python(LOAD, PREFIXCACHE_LIBRARY="no/such.so").stdout
    assert f"PREFIXCACHE_LIBRARY is no/such.so ({Path.cwd() / 'no/such.so'})" in out


def test_an_older_abi_is_refused(monkeypatch):
    monkeypatch.setattr(_ffi, "ABI_VERSION", 1000)
    with pytest.raises(prefixcache.PrefixCacheLibraryError, match="ABI version"):
        _ffi.Library(_ffi.find())


def test_the_environment_variable_names_the_library():
    path = _ffi.find()
    code = "from prefixcache import _ffi; print(_ffi.load().path)"
    assert run_python(code, PREFIXCACHE_LIBRARY=str(path)).stdout.strip() == str(path.resolve())


def test_versions_and_kernel():
    lib = _ffi.load()
    assert lib.version().decode().split(".")[:2] == prefixcache.__version__.split(".")[:2]
    assert lib.kernel_name() in (b"generic", b"sse2", b"avx2", b"avx512")


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (_errors.INVALID_ARGUMENT, b"PC_ERROR_INVALID_ARGUMENT", prefixcache.PrefixCacheArgumentError),
        (_errors.UNMATCH, b"PC_ERROR_UNMATCH", _errors.OmniPrefixCacheUnmatchError),
        (_errors.STAGING_TIMEOUT, b"PC_ERROR_STAGING_TIMEOUT", _errors.OmniPrefixCacheStagingTimeoutError),
        (_errors.OUT_OF_MEMORY, b"PC_ERROR_OUT_OF_MEMORY", MemoryError),
        (_errors.FORKED, b"PC_ERROR_FORKED", prefixcache.PrefixCacheForkError),
        (_errors.CLOSED, b"PC_ERROR_CLOSED", _errors.OmniPrefixCacheUnmatchError),
        (_errors.KEY_MISMATCH, b"PC_KEY_MISMATCH", prefixcache.PrefixCacheError),
        (-2, b"PC_ERROR_BAD_HANDLE", prefixcache.PrefixCacheError),
    ],
)
def test_status_numbers_and_their_exceptions(status, name, kind):
    assert _ffi.load().status_name(status) == name
    error = _errors.error_of(status, "text")
    assert isinstance(error, kind)
    assert (error.status, str(error)) == (status, "text")


def test_error_text_belongs_to_the_thread():
    lib = _ffi.load()
    assert lib.omni_shutdown(12345) == -2
    text = lib.error_text()
    assert text
    other = []
    t = threading.Thread(target=lambda: other.append(lib.error_text()))
    t.start()
    t.join()
    assert other == [""]
    assert lib.error_text() == text


@pytest.mark.parametrize("bytes_", [0, (1 << 46) + 1, (1 << 64) - 1])
def test_buffer_sizes_out_of_range(bytes_):
    lib = _ffi.load()
    data, buffer = ctypes.c_void_p(), ctypes.c_uint64()
    status = lib.buffer_acquire(bytes_, ctypes.addressof(data), ctypes.addressof(buffer))
    with pytest.raises(prefixcache.PrefixCacheArgumentError, match="bytes"):
        lib.check(status)


def test_buffers_are_released_once():
    lib = _ffi.load()
    data, buffer = ctypes.c_void_p(), ctypes.c_uint64()
    lib.check(lib.buffer_acquire(1 << 20, ctypes.addressof(data), ctypes.addressof(buffer)))
    assert data.value % 64 == 0
    lib.check(lib.buffer_release(buffer.value))
    assert lib.buffer_release(buffer.value) == -2


def test_library_logs_reach_python_logging(caplog):
    with caplog.at_level(logging.DEBUG, "prefixcache"):
        for level, text in ((2, b"a warning"), (4, b"a detail \xff")):
            _ffi.load()._log(_ffi.kept, _ffi.LogLevel(level), text)
        _ffi.tell()
        _ffi.tell()
    assert [(r.levelno, r.message) for r in caplog.records] == [
        (logging.WARNING, "a warning"),
        (logging.DEBUG, "a detail \ufffd"),
    ]


def test_a_warning_of_the_library_is_logged():
    code = """
        import logging
        logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
        from prefixcache import _ffi
        _ffi.load()
        """
    done = run_python(code, PREFIXCACHE_KERNEL="abacus")
    assert done.returncode == 0, done.stderr
    assert "WARNING prefixcache" in done.stderr
    assert "abacus" in done.stderr
