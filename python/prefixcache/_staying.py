"""What every object that is a handle of the library has in common: it stays in its process,
and once it is closed it says so."""

from __future__ import annotations

from typing import Any, NoReturn

from prefixcache._errors import BAD_HANDLE, PrefixCacheError, error_of


class Staying:
    """Refuses ``pickle`` and ``copy``: a second owner would give the handle back twice, and
    in another process it means nothing."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied: it is a handle of the library in this process;"
            " make one in each process"
        )


def closed(thing: object, argument: str = "") -> PrefixCacheError:
    """The error for an object that was closed; ``argument``: as which it was given."""
    what = f"this {type(thing).__name__} is closed, expected an open one"
    return error_of(BAD_HANDLE, f"{argument}: {what}" if argument else what)
