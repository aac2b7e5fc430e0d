"""What every object with a handle does at the end of a ``with`` block, and after it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Self

from prefixcache import PrefixCacheError, _ffi
from prefixcache._errors import BAD_HANDLE
from prefixcache._staying import Staying, closed


class Handle(Staying):
    """An object whose handle becomes zero when it is closed."""

    _library: _ffi.Library
    _handle: ctypes.c_uint64

    def _check(self, status: int) -> None:
        """Raise what belongs to ``status``. Looked at afterwards, so that calls pay nothing for it."""
        if status == BAD_HANDLE and not self._handle.value:
            raise closed(self)
        self._library.check(status)


class Closing(Staying):
    """A context manager that closes itself."""

    def close(self) -> None:
        """Gives back what it holds. Repeatable."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        left(self.close, error)


def left(end: Callable[[], None], error: BaseException | None) -> None:
    """The end of a ``with`` block. What ended the block goes on, also where its cause keeps ``end`` from working."""
    try:
        end()
    except PrefixCacheError as e:
        if error is None:
            raise
        error.add_note(f"at the end of the with block: {e}")
