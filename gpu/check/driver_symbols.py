"""Section: the driver of this machine has every call that our header declares.

The library finds them by name at first use, so a missing one would show only when it is
called. Calls that only the Go package cu refers to may be missing: nothing calls them.
"""

from __future__ import annotations

import importlib.util
import re

from environment import ROOT, open_driver
from report import check

HEADER = ROOT / "gpu" / "cuda" / "include" / "cuda.h"
NOBODY_CALLS = "what only cu refers to: arrays"


def calls(text: str) -> list[tuple[str, str, str]]:
    """(name, symbol, parameters) of every prototype, as check-header.py reads them."""
    spec = importlib.util.spec_from_file_location("check_header", HEADER.parent.parent / "check-header.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.parse(text)[2]


def every_symbol() -> str:
    text = HEADER.read_text()
    at = text.index(NOBODY_CALLS)
    driver = open_driver()
    missing = [symbol for _, symbol, _ in calls(text) if not hasattr(driver, symbol)]
    unused = set(re.findall(r"\b(cu\w+)\(", text[at:]))
    named = {name: symbol for name, symbol, _ in calls(text)}
    harmless = {named[name] for name in unused if name in named}
    needed = sorted(set(missing) - harmless)
    if needed:
        raise AssertionError(f"missing: {', '.join(needed)}")
    rest = f"; missing, and called by nobody: {', '.join(sorted(missing))}" if missing else ""
    return f"{len(calls(text)) - len(missing)} found{rest}"


if __name__ == "__main__":
    check("the driver has every call", every_symbol)
