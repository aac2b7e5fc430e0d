"""Puts the native library into the wheel; called by hatchling.

The wheel is `py3-none-manylinux_2_N_<machine>`: any Python, since the library is
reached through ctypes, and any glibc from 2.N on. N is read from the library, so
that a build on a newer system cannot carry the tag of an older one.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The oldest tag that is promised. cgo and Go's runtime need nothing newer.
OLDEST = (2, 34)


class LibraryHook(BuildHookInterface):
    """`make`, then the library beside the package's modules."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = Path(self.root) / "build" / "libprefixcache.so"
        # Also when the file is there: an old library in a new wheel is the worse surprise.
        try:
            subprocess.run(["make", "-C", self.root, "all"], check=True, stdout=sys.stderr)
        except (OSError, subprocess.CalledProcessError) as e:
            raise SystemExit(f"building libprefixcache.so failed ({e}): it needs make, Go 1.26 and a C compiler") from e
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(library)}"
        if version != "editable":  # an editable package finds build/libprefixcache.so by itself
            build_data["force_include"][str(library)] = "prefixcache/libprefixcache.so"


def platform_tag(library: Path) -> str:
    """manylinux tag of the glibc that the library's version references ask for."""
    found = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\0])", library.read_bytes())
    major, minor = max([(int(a), int(b)) for a, b in found], default=OLDEST)
    major, minor = max((major, minor), OLDEST)
    return f"manylinux_{major}_{minor}_{platform.machine()}"
