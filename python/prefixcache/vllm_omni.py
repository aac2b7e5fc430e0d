"""Make an installed vllm-omni use this library's omni cache.

    import prefixcache.vllm_omni
    prefixcache.vllm_omni.install()

replaces vllm-omni's ``OmniPrefixCacheManager``, and the view over vLLM's block
tables that feeds it, in every module of vllm-omni that knows them. Managers that
exist already keep running on the original. ``uninstall()`` puts the originals
back. With the ``vllm.general_plugins`` entry point of this package vLLM calls
:func:`register` in each of its processes, and nothing has to be called by hand;
``PREFIXCACHE_VLLM_OMNI=0`` in the environment turns that off.

Releases. vllm-omni has had two interfaces to its manager, and both are served:

    runner   0.30.0rc1 .. 0.31.0rc1   the manager reads scheduler output and the
                                      group view, like :mod:`prefixcache.omni`
    adapter  0.32.0rc1                an adapter translates scheduler output into
                                      step events and a write layout

Before 0.30 vllm-omni had another cache, which is refused by name. Which of the
two interfaces is at hand is read from the signatures, not from the version.

Importing this module imports neither torch, nor vllm, nor vllm-omni, and does
not load the native library.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import re
import sys
import threading
from typing import Any, NamedTuple

from prefixcache._errors import PrefixCacheError

__all__ = [
    "SUPPORTED_RELEASES",
    "UnsupportedVllmOmniError",
    "VllmOmniNotFoundError",
    "install",
    "installed",
    "register",
    "uninstall",
]

logger = logging.getLogger(__name__)

#: Releases whose own classes drove this manager in our tests.
SUPPORTED_RELEASES = ("0.30.0rc1", "0.30.0", "0.31.0rc1", "0.32.0rc1")
#: Environment variable: 0 turns :func:`register` off.
SWITCH = "PREFIXCACHE_VLLM_OMNI"
# Versions (major, minor) that these releases span, both ends included.
_OLDEST, _NEWEST = (0, 30), (0, 32)

_PACKAGE = "vllm_omni.core.prefix_cache"


class VllmOmniNotFoundError(PrefixCacheError, ImportError):
    """vllm-omni is not installed, or cannot be imported."""


class UnsupportedVllmOmniError(PrefixCacheError):
    """The installed vllm-omni is a release this package was not made for."""

    def __init__(self, version: str, why: str) -> None:
        super().__init__(
            f"vllm-omni {version} is not supported: {why}. Supported releases: {', '.join(SUPPORTED_RELEASES)}"
        )
        self.version, self._why = version, why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.version, self._why)


class _Patch(NamedTuple):
    """One name of vllm-omni, what it meant and what it means while installed."""

    home: Any  # module that defines the name
    name: str
    original: type
    replacement: type


_lock = threading.Lock()
_patches: list[_Patch] = []


def install(*, allow_untested: bool = False) -> None:
    """Replace vllm-omni's manager and group view; does nothing the second time.

    ``allow_untested`` accepts a release outside SUPPORTED_RELEASES when its
    manager has one of the two known interfaces.

    Raises VllmOmniNotFoundError when vllm-omni cannot be imported, and
    UnsupportedVllmOmniError, with the version and what is supported, for a
    release that this package does not know. Nothing is replaced then.
    """
    with _lock:
        if _is_current():
            return
        version = _find_version()
        _check_version(version, allow_untested)
        try:
            manager = importlib.import_module(f"{_PACKAGE}.manager")
            group_view = importlib.import_module(f"{_PACKAGE}.group_view")
            interface = importlib.import_module(f"{_PACKAGE}.interface")
        except Exception as e:  # whatever its modules do when they are imported
            raise VllmOmniNotFoundError(
                f"vllm-omni {version} is installed but {_PACKAGE} cannot be imported: {type(e).__name__}: {e}"
            ) from e
        from prefixcache import _vllm_omni_bridge as bridge

        try:
            kind = _interface_kind(manager.OmniPrefixCacheManager, version)
            errors = bridge.HostErrors(interface)
            adapter = importlib.import_module(f"{_PACKAGE}.adapter") if kind == "adapter" else None
            new_manager = bridge.make_manager(errors, adapter)
            new_view = bridge.make_group_view(errors)
            patches = [
                _Patch(manager, "OmniPrefixCacheManager", manager.OmniPrefixCacheManager, new_manager),
                _Patch(group_view, "FullAttentionGroupView", group_view.FullAttentionGroupView, new_view),
            ]
        except (AttributeError, ImportError, TypeError) as e:
            raise UnsupportedVllmOmniError(version, f"its prefix cache has another interface ({e})") from e
        _patches[:] = patches
        for patch in _patches:
            _rebind(patch.name, patch.original, patch.replacement)
        logger.info("vllm-omni %s now uses the omni cache of libprefixcache (%s interface)", version, kind)


def uninstall() -> None:
    """Put vllm-omni's own classes back. Does nothing when not installed."""
    with _lock:
        for patch in _patches:
            _rebind(patch.name, patch.replacement, patch.original)
        _patches.clear()


def installed() -> bool:
    """Whether managers that vllm-omni creates from now on are this library's."""
    with _lock:
        return _is_current()


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``.

    vLLM runs it in processes that have no vllm-omni, or do not want it, as well,
    and an exception here would end the engine: so a missing vllm-omni is silent,
    one that is broken is a warning, and one that is not supported is an error in
    the log and keeps its own manager.
    """
    wanted = os.environ.get(SWITCH, "1")
    if wanted == "0":
        return
    if wanted not in ("", "1"):
        logger.warning("%s is %s, expected 0 or 1: the omni cache is not turned off", SWITCH, wanted)
    try:
        install()
    except VllmOmniNotFoundError as e:
        logger.log(logging.WARNING if e.__cause__ else logging.DEBUG, "omni cache not installed: %s", e)
    except UnsupportedVllmOmniError as e:
        logger.error("omni cache not installed, vllm-omni keeps its own: %s", e, exc_info=e.__cause__)
    except Exception:
        logger.exception("omni cache not installed, vllm-omni keeps its own")


def _is_current() -> bool:
    # vllm-omni may have been unloaded and imported again since (tests do that).
    return bool(_patches) and all(
        sys.modules.get(p.home.__name__) is p.home and getattr(p.home, p.name) is p.replacement for p in _patches
    )


def _rebind(name: str, old: type, new: type) -> None:
    """Every module of vllm-omni that holds `old` under `name` gets `new`.

    Modules that are imported later read the name from the defining module.
    """
    for module_name, module in list(sys.modules.items()):
        ours = module is not None and (module_name + ".").startswith("vllm_omni.")
        if ours and vars(module).get(name) is old:
            setattr(module, name, new)


def _find_version() -> str:
    """Version of the vllm-omni that an import would give, without importing it."""
    try:
        spec = importlib.util.find_spec("vllm_omni")
    except ValueError:  # in sys.modules without a spec: somebody loaded parts of it by hand
        spec = None
    if spec is None and "vllm_omni" not in sys.modules:
        raise VllmOmniNotFoundError("vllm-omni is not installed: there is no package vllm_omni on sys.path")
    version = getattr(sys.modules.get("vllm_omni"), "__version__", None)
    if version is None:
        try:
            version = importlib.metadata.version("vllm-omni")
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"
    return str(version)


def _check_version(version: str, allow_untested: bool) -> None:
    number = re.match(r"(\d+)\.(\d+)", version)
    release = (int(number[1]), int(number[2])) if number else None
    if release is not None and release < _OLDEST and release != (0, 0):
        raise UnsupportedVllmOmniError(version, "its prefix cache is an older one, without a replaceable manager")
    if (release is None or not _OLDEST <= release <= _NEWEST) and not allow_untested:
        raise UnsupportedVllmOmniError(version, "it was not tested; install(allow_untested=True) tries all the same")


def _interface_kind(cls: Any, version: str) -> str:
    """ "runner" or "adapter", by the signatures of vllm-omni's own manager."""
    wanted = {
        "runner": (["config", "view", "eager"], ["num_tokens_unpadded", "num_tokens_padded"]),
        "adapter": (["config", "eager"], ["num_tokens_unpadded", "num_tokens_padded", "write_layout"]),
    }
    try:
        # Two signatures tell the interfaces apart; the other entry points only have to be there.
        init = list(inspect.signature(cls.__init__).parameters)[1:]
        save = list(inspect.signature(cls.save_outputs).parameters)[1:]
        for name in ("register_policy", "new_step_starts", "materialize", "discard_step", "shutdown"):
            getattr(cls, name)
    except (AttributeError, ValueError) as e:
        raise UnsupportedVllmOmniError(version, f"its OmniPrefixCacheManager has another interface ({e})") from e
    for kind, (init_names, save_names) in wanted.items():
        if init == init_names and save == ["hidden_states", "mm_outputs", *save_names]:
            return kind
    raise UnsupportedVllmOmniError(
        version, f"its OmniPrefixCacheManager has another interface (__init__ takes {init}, save_outputs takes {save})"
    )
