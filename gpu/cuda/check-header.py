#!/usr/bin/env python3
"""Asserts that include/cuda.h says what NVIDIA's cuda.h says.

    check-header.py DIR      DIR holds a real cuda.h, of a 12.x or a newer toolkit
    check-header.py --pypi   take it from the package nvidia-cuda-runtime-cu12

Checked: every enum constant and flag, every type size, every struct field's
offset and size, every prototype, and which versioned symbol each name means.
What a struct reserves counts towards its size alone: we set it to 0, and each
toolkit gives more of it a name.
13.0 gave some names to later versions of their calls. The driver keeps the former
ones, and they are what the library asks it for; so with such a header the
prototypes of those are checked, and what the names mean today is not.
The real header is only read, never copied. Exit status 0 means no difference.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile

OURS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "include", "cuda.h")
# 12.0 dropped the JIT targets below 3.0; cu v0.9.6 still compiles against them.
DROPPED = {f"CU_TARGET_COMPUTE_{n}" for n in (10, 11, 12, 13, 20, 21)}
GROWS = {"CU_CTX_FLAGS_MASK"}  # every flag that a toolkit has; nobody passes it
SCALARS = ["CUdeviceptr", "CUdevice", "cuuint32_t", "CUuuid", "CUresult", "CUmemorytype"]


def parse(text):
    """Names of our header: constants, struct fields, prototypes."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    constants = re.findall(r"\b(CU\w+) = \w", text)
    constants += re.findall(r"^#define (CU_\w+) \d", text, flags=re.M)
    fields = []
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, flags=re.S):
        for decl in body.split(";"):
            for part in decl.split(","):
                match = re.search(r"(\w+)(?:\[\d+\])?\s*$", part)
                if match and not match.group(1).startswith("reserved"):
                    fields.append((name, match.group(1)))
    symbols = dict(re.findall(r"^#define (cu\w+) (cu\w+)$", text, flags=re.M))
    calls = re.findall(r"^CUresult CUDAAPI (cu\w+)\((.*)\);$", text, flags=re.M)
    return constants, fields, [(name, symbols.get(name, name), params) for name, params in calls]


def program(constants, fields, calls, former):
    """A program that prints one line per fact and checks prototypes as it compiles.

    former: of the symbols themselves, which the real header declares on demand.
    """
    out = ["#define __CUDA_API_VERSION_INTERNAL"] if former else []
    out += ["#include <cuda.h>", "#include <stdio.h>", "#include <stddef.h>"]
    out.append("#define STR(x) STR_(x)\n#define STR_(x) #x\nint main(void) {")
    for name in constants:
        out.append(f'printf("value {name} %lld\\n", (long long)({name}));')
    for name in sorted({s for s, _ in fields}) + SCALARS:
        out.append(f'printf("size {name} %zu\\n", sizeof({name}));')
    for name, field in fields:
        out.append(
            f'printf("field {name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
        )
    for name, symbol, params in calls:
        if former:
            name = symbol
        else:
            out.append(f'printf("symbol {name} %s\\n", STR({name}));')
        out.append(
            f"_Static_assert(__builtin_types_compatible_p(__typeof__(&{name}), CUresult (*)({params})),"
            f' "{name}: parameters differ");'
        )
    out.append("return 0; }")
    return "\n".join(out)


def run(source, include, work):
    src, exe = os.path.join(work, "check.c"), os.path.join(work, "check")
    with open(src, "w", encoding="ascii") as f:
        f.write(source)
    # Only main is linked; a call's address is taken inside typeof, never at run time.
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-w", "-I", include, src, "-o", exe]
    compiled = subprocess.run(compiler, capture_output=True, text=True)
    if compiled.returncode != 0:
        errors = [line.split("error: ", 1)[1] for line in compiled.stderr.splitlines() if "error: " in line]
        print(f"check-header: with {include}/cuda.h: " + ("; ".join(errors) or compiled.stderr.strip()))
        sys.exit(1)
    return subprocess.run([exe], check=True, capture_output=True, text=True).stdout.splitlines()


def real_include(argument, work):
    if argument != "--pypi":
        return argument
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work, "nvidia-cuda-runtime-cu12"]
    subprocess.run(pip, check=True)
    wheel = next(f for f in os.listdir(work) if f.endswith(".whl"))
    zipfile.ZipFile(os.path.join(work, wheel)).extractall(work)
    return os.path.join(work, "nvidia", "cuda_runtime", "include")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(OURS, encoding="ascii") as f:
        constants, fields, calls = parse(f.read())
    constants = [c for c in constants if c not in DROPPED | GROWS]
    with tempfile.TemporaryDirectory() as work:
        real = real_include(sys.argv[1], work)
        if not os.path.exists(os.path.join(real, "cuda.h")):
            sys.exit(f"check-header: no cuda.h in {real}")
        with open(os.path.join(real, "cuda.h"), encoding="utf-8") as f:
            version = int(re.search(r"^#define CUDA_VERSION (\d+)", f.read(), flags=re.M).group(1))
        source = program(constants, fields, calls, version >= 13000)
        ours, theirs = run(source, os.path.dirname(OURS), work), run(source, real, work)
    wrong = [(a, b) for a, b in zip(ours, theirs, strict=False) if a != b]
    for a, b in wrong:
        print(f"ours: {a}\nreal: {b}")
    print(
        f"check-header: CUDA {version // 1000}.{version % 1000 // 10}, {len(constants)} constants, "
        f"{len(fields)} fields, {len(calls)} calls; {len(wrong)} differ"
    )
    sys.exit(1 if wrong or len(ours) != len(theirs) else 0)


if __name__ == "__main__":
    main()
