#!/usr/bin/env bash
# Make sure that everything `make run` and `make test` need is there: install it
# when that is possible, otherwise name exactly what is missing and how to get it.
# Writes the Python interpreter that has torch, numpy and pytest to build/python.
set -u
cd "$(dirname "$0")/.."
mkdir -p build

say() { printf 'setup: %s\n' "$*" >&2; }

need_go=1.26
missing=()   # Debian package names
fatal=()     # sentences

have() { command -v "$1" >/dev/null 2>&1; }

if ! have go; then
    fatal+=("Go $need_go or newer is not on PATH: install it from your distribution or go.dev/dl")
else
    v=$(go env GOVERSION | sed -E 's/^go([0-9]+\.[0-9]+).*/\1/')
    if [ "$(printf '%s\n%s\n' "$need_go" "$v" | sort -V | head -n 1)" != "$need_go" ]; then
        fatal+=("Go $v found, expected $need_go or newer")
    fi
fi
have gcc || missing+=(gcc libc6-dev)
have g++ || missing+=(g++)
have cmake || missing+=(cmake)
have ninja || missing+=(ninja-build)
have pkg-config || missing+=(pkg-config)
have clang || missing+=(clang)
have abidw || missing+=(abigail-tools)
[ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] || missing+=(libgtest-dev)

# Python: any interpreter from 3.11 on that has torch, numpy and pytest.
usable() {
    [ -n "$1" ] && "$1" - >/dev/null 2>&1 <<'PY'
import sys
assert sys.version_info >= (3, 11)
import numpy, pytest, torch
PY
}
python=
for candidate in "${PYTHON:-}" .venv/bin/python "$(command -v python3)" /usr/bin/python3; do
    if usable "$candidate"; then python=$candidate; break; fi
done

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
can_root() { [ "$(id -u)" = 0 ] || { have sudo && sudo -n true 2>/dev/null; }; }

updated=
apt_install() {
    have apt-get && can_root || return 1
    if [ -z "$updated" ]; then say "updating the package lists"; as_root apt-get update -qq; updated=1; fi
    say "installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >build/setup.log 2>&1 ||
        { tail -n 5 build/setup.log >&2; return 1; }
}

if [ ${#missing[@]} -gt 0 ] && ! apt_install "${missing[@]}"; then
    fatal+=("missing packages: ${missing[*]} (as root: apt-get install ${missing[*]})")
fi

give_up() {
    for f in "${fatal[@]}"; do say "$f"; done
    exit 1
}
[ ${#fatal[@]} = 0 ] || give_up # before anything large is downloaded

if [ -z "$python" ]; then
    # Debian's python3-torch is a small CPU build; torch from PyPI is several GB on x86-64.
    if have apt-get && can_root && apt_install python3-torch python3-numpy python3-pytest && usable /usr/bin/python3; then
        python=/usr/bin/python3
    else
        base=${PYTHON:-$(command -v python3)}
        say "python3-torch cannot be installed here (no root, or no such package): torch, numpy and pytest go into .venv (several GB)"
        if "$base" -m venv .venv && .venv/bin/python -m pip install --disable-pip-version-check torch numpy pytest >&2 &&
            usable .venv/bin/python; then
            python=.venv/bin/python
        else
            rm -rf .venv
            fatal+=("no Python 3.11+ with torch, numpy and pytest: pip install torch numpy pytest, then make PYTHON=that-python")
        fi
    fi
fi

[ ${#fatal[@]} = 0 ] || give_up
case $python in /*) ;; *) python=$PWD/$python ;; esac
printf '%s\n' "$python" >build/python
say "ready ($(go env GOVERSION), $("$python" -c 'import sys, torch; print("Python %d.%d.%d, torch %s" % (*sys.version_info[:3], torch.__version__))'))"
