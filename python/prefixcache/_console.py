"""Standard output of the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress


def heard(name: str, command: Callable[[], int]) -> int:
    """The exit status of a command; 1 when what it prints cannot be written.

    A full disk is told in one line. A reader who went away has seen enough, and is told nothing.
    """
    try:
        status = command()
        sys.stdout.flush()
    except OSError as e:
        if e.filename is not None:
            raise
        if not isinstance(e, BrokenPipeError):
            print(f"{name}: error: standard output: {e.strerror}", file=sys.stderr)
        with suppress(OSError, ValueError):  # what is still in the buffer would be written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
