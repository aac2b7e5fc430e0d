"""What every object with a handle does at the end of a ``with`` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Gives back what it holds. Repeatable."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
