"""What every object with a handle does at the end of a ``with`` block, and after it."""

from __future__ import annotations

import ctypes
from typing import Self

from prefixcache import _ffi
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

    def __exit__(self, *error: object) -> None:
        self.close()
