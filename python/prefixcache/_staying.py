"""What every object that is a handle of the library has in common: it stays in its process."""

from __future__ import annotations

from typing import Any, NoReturn


class Staying:
    """Refuses ``pickle`` and ``copy``: a second owner would give the handle back twice, and
    in another process it means nothing."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied: it is a handle of the library in this process;"
            " make one in each process"
        )
