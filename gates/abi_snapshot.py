#!/usr/bin/env python3
"""The ABI snapshot: what include/prefixcache.h promised when abi/prefixcache.abi was written.

The library itself cannot be compared: it is stripped, and its exports are Go. So the
snapshot is of a stand-in: every function of the header with an empty body, compiled
with debug information, and read by abidw (Debian's abigail-tools). Enums are named
after their first constant there, because abidiff cannot follow anonymous ones, and
numeric macros become an enum.

`check` fails on any change except what docs/abi-policy.md allows in any release:

  - a new function, a new number in an enum, a new macro
  - new fields at the end of a struct that begins with struct_size
  - new entries at the end of pc_api, when PC_ABI_VERSION is higher as well

usage: abi_snapshot.py check | snapshot
"""

import argparse
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "include" / "prefixcache.h"
SNAPSHOT = ROOT / "abi" / "prefixcache.abi"
MACROS = "pc_macros"


def run(*command):
    """Run a tool; return (exit code, output)."""
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    except FileNotFoundError as e:
        raise SystemExit(f"abi: {command[0]} is missing (as root: apt-get install abigail-tools gcc)") from e
    return done.returncode, done.stdout + done.stderr


def functions(header: str) -> list[str]:
    """The prototypes of the header, each without its semicolon."""
    return re.findall(r"^PC_API\s+([^;]+);", strip_comments(header), re.MULTILINE)


def function_names(header: str) -> set[str]:
    return {re.search(r"\b(pc_\w+)\(", f)[1] for f in functions(header)}


def strip_comments(header: str) -> str:
    return re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)


def stand_in(header: str) -> str:
    """A C file that defines every function and uses every enum of the header."""
    code = re.sub(r"\benum \{(\s*)(PC_\w+)", r"enum pc_enum_\2 {\1\2", strip_comments(header))
    enums = re.findall(r"\benum (pc_enum_\w+) \{", code)
    if len(enums) != len(re.findall(r"\benum\b", code)):
        raise SystemExit("abi: an enum of the header is not written as 'enum { PC_...': abi_snapshot.py cannot name it")
    macros = re.findall(r"^#define (PC_\w+) (?:0x[0-9A-F]+|\d+)u?$", code, re.MULTILINE)
    parts = [code, f"enum {MACROS} {{ {', '.join(f'pc_macro_{m} = {m}' for m in macros)} }};\n"]
    parts += [f"enum {name} {name};\n" for name in (*enums, MACROS)]
    parts += [f"{f} {{ return 0; }}\n" for f in functions(header)]
    return "".join(parts)


def read_abi(header: str, folder: Path) -> ElementTree.Element:
    """The ABI of a header, as the XML that abidw writes."""
    source, library, out = folder / "stand_in.c", folder / "stand_in.so", folder / "stand_in.abi"
    source.write_text(stand_in(header))
    code, text = run("gcc", "-std=c11", "-g", "-O0", "-shared", "-fPIC", "-fno-eliminate-unused-debug-types", source,
                     "-o", library)  # fmt: skip
    if code != 0:
        raise SystemExit(f"abi: the header does not compile\n{text}")
    code, text = run("abidw", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", "--no-elf-needed",
                     "--no-parameter-names", "--type-id-style", "hash", "--out-file", out, library)  # fmt: skip
    if code != 0:
        raise SystemExit(f"abi: abidw failed\n{text}")
    tree = ElementTree.parse(out).getroot()
    for unit in tree.iter("abi-instr"):
        unit.set("path", HEADER.name)  # not a temporary folder, nor the compiler of the day
        unit.set("language", "LANG_C11")
    return tree


def cut_appended(old: ElementTree.Element, new: ElementTree.Element) -> list[str]:
    """Take what was legally appended out of `new`; return its names."""
    appended = []
    sizes = {c.get("name"): int(c.get("size-in-bits")) for c in old.iter("class-decl") if c.get("size-in-bits")}
    for struct in new.iter("class-decl"):
        name, size = struct.get("name"), sizes.get(struct.get("name"))
        members = struct.findall("data-member")
        if size is None or not members or members[0].find("var-decl").get("name") != "struct_size":
            continue  # elements of arrays may not even grow
        for member in members:
            if int(member.get("layout-offset-in-bits")) >= size:
                appended.append(f"{name}.{member.find('var-decl').get('name')}")
                struct.remove(member)
                struct.set("size-in-bits", str(size))
    values = {e.get("name"): {v.get("name") for v in e.iter("enumerator")} for e in old.iter("enum-decl")}
    for enum in new.iter("enum-decl"):
        for value in enum.findall("enumerator"):
            if enum.get("name") in values and value.get("name") not in values[enum.get("name")]:
                appended.append(value.get("name"))
                enum.remove(value)
    return appended


def abi_version(abi: ElementTree.Element) -> int:
    return next(int(v.get("value")) for v in abi.iter("enumerator") if v.get("name") == "pc_macro_PC_ABI_VERSION")


def compare(snapshot: Path, header: str) -> tuple[list[str], list[str]]:
    """Compare a header with a snapshot; return (what broke, what was appended)."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = ElementTree.parse(snapshot).getroot(), read_abi(header, Path(folder))
        versions = abi_version(old), abi_version(new)
        appended = cut_appended(old, new)
        # Releases change these; they are no promise.
        for abi in (old, new):
            for enum in abi.iter("enum-decl"):
                for value in enum.findall("enumerator"):
                    if re.search(r"PC_(ABI_)?VERSION", value.get("name")):
                        enum.remove(value)
        before, after = Path(folder) / "snapshot.abi", Path(folder) / "header.abi"
        ElementTree.ElementTree(old).write(before)
        ElementTree.ElementTree(new).write(after)
        code, text = run("abidiff", "--harmless", "--no-added-syms", before, after)
    broken = [text] if code != 0 else []
    if versions[1] < versions[0]:
        broken.append(f"PC_ABI_VERSION is {versions[1]}, the snapshot has {versions[0]}")
    entries = [a for a in appended if a.startswith("pc_api.")]
    if entries and versions[1] == versions[0]:
        broken.append(f"{', '.join(entries)}: new entries of the table need a higher PC_ABI_VERSION")
    return broken, appended


def snapshot(out: Path = SNAPSHOT) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = ElementTree.ElementTree(read_abi(HEADER.read_text(), Path(folder)))
    ElementTree.indent(tree)
    out.parent.mkdir(exist_ok=True)
    tree.write(out, encoding="unicode")
    out.write_text(out.read_text() + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("check", "snapshot"))
    command = parser.parse_args().command
    if not SNAPSHOT.exists():
        broken, appended = [], []
    else:
        broken, appended = compare(SNAPSHOT, HEADER.read_text())
    for what in appended:
        print(f"abi: appended {what}")
    print(*broken, sep="\n", end="\n" if broken else "")
    if command == "snapshot":
        snapshot()
        print(f"abi: {SNAPSHOT.relative_to(ROOT)} written" + ("; IT BREAKS THE FORMER ONE" if broken else ""))
        return 0
    if broken:
        print("abi: the header breaks its snapshot. docs/abi-policy.md says what may change; a change that")
        print("abi: was meant, and that no release has frozen, is taken over by `make abi-snapshot`.")
        return 1
    print("abi: compatible with the snapshot")
    return 0


if __name__ == "__main__":
    sys.exit(main())
