"""The command ``prefixcache``, also ``python -m prefixcache``.

Commands are modules with a ``main(arguments)`` that returns the exit status; a
module is imported only when its command is called, so that each needs no more
than it uses.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from prefixcache import __version__
from prefixcache._console import heard

# Name -> module, what it does.
_COMMANDS = {
    "doctor": ("prefixcache.doctor", "look at this machine and installation, and say what to change"),
    "replay": (
        "prefixcache.replay.cli",
        "replay request traffic through both caches and check it, or size a cache by it",
    ),
}

_USAGE = """usage: prefixcache COMMAND [OPTIONS]

{commands}

prefixcache COMMAND --help lists the options of one; --version prints the version.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status, 2 for a command line that names none."""
    rest = list(sys.argv[1:] if arguments is None else arguments)
    name = rest.pop(0) if rest else "--help"
    if name in ("-h", "--help"):
        status = 0 if arguments or len(sys.argv) > 1 else 2
        return heard("prefixcache", lambda: _say(_usage(), status))
    if name == "--version":
        return heard("prefixcache", lambda: _say(__version__, 0))
    if name not in _COMMANDS:
        print(f"prefixcache: {name}: no such command, expected one of {', '.join(_COMMANDS)}", file=sys.stderr)
        return 2
    status: int = importlib.import_module(_COMMANDS[name][0]).main(rest)
    return status


def _say(text: str, status: int) -> int:
    print(text)
    return status


def _usage() -> str:
    return _USAGE.format(commands="\n".join(f"  {name:<8} {what}" for name, (_, what) in _COMMANDS.items())).rstrip()


if __name__ == "__main__":
    sys.exit(main())
