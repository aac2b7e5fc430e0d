"""The exceptions of the package, and the one table from status codes to them.

Everything that the library reports derives from :class:`PrefixCacheError`, which
is a ``RuntimeError``: hosts written for the original manager catch that.
"""

from __future__ import annotations


class PrefixCacheError(RuntimeError):
    """The library refused or failed a call.

    ``status`` is the ``pc_status`` number of include/prefixcache.h, 0 when the
    error was found before the library was called.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class PrefixCacheArgumentError(PrefixCacheError, ValueError):
    """An argument is out of range, of a wrong shape or malformed. Nothing changed."""


class PrefixCacheMemoryError(PrefixCacheError, MemoryError):
    """Memory or address space could not be had."""


class PrefixCacheForkError(PrefixCacheError):
    """The library was used in a child of ``fork``; start workers with ``spawn``."""


class PrefixCacheLibraryError(PrefixCacheError, OSError):
    """The native library is missing, cannot be loaded or has another ABI version."""


class OmniPrefixCacheUnmatchError(PrefixCacheError):
    """Scheduler and cache disagree, a step id was misused, or a write failed.

    Fatal by contract: treating it as a cache miss would feed wrong rows to the
    next stage.
    """


class OmniPrefixCacheStagingTimeoutError(OmniPrefixCacheUnmatchError):
    """No staging slot came free in time: saved steps were not consumed."""


# pc_status values that the Python side names. The numbers are part of the ABI.
OK = 0
KEY_MISMATCH = 3
INVALID_ARGUMENT = -1
BAD_HANDLE = -2
WRONG_STATE = -3
UNMATCH = -16
STAGING_TIMEOUT = -17
OUT_OF_MEMORY = -33
DEVICE = -34
FORKED = -35
CLOSED = -37

_CLASS_OF_STATUS: dict[int, type[PrefixCacheError]] = {
    INVALID_ARGUMENT: PrefixCacheArgumentError,
    UNMATCH: OmniPrefixCacheUnmatchError,
    STAGING_TIMEOUT: OmniPrefixCacheStagingTimeoutError,
    OUT_OF_MEMORY: PrefixCacheMemoryError,
    FORKED: PrefixCacheForkError,
    # A closed cache is a contract error of its user, like the original's "shut down".
    CLOSED: OmniPrefixCacheUnmatchError,
}


def error_of(status: int, text: str) -> PrefixCacheError:
    """The exception for a status value; plain PrefixCacheError for the rest."""
    return _CLASS_OF_STATUS.get(status, PrefixCacheError)(text, status)
