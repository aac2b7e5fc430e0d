#!/usr/bin/env bash
# Make sure that everything is there which a purpose needs: install it when that is
# possible, otherwise name exactly what is missing and how to get it.
#
# usage: setup.sh [run | test]
#
#   setup.sh run    what `make run` needs: Go, a C and a C++ compiler, Python with torch
#   setup.sh test   (and without an argument) what `make test` needs besides
#
# Writes the Python interpreter to build/python; build/test-tools says that the rest is there.
set -u
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
purpose=${1:-test}
case $purpose in run | test) ;; *)
    echo "setup: $purpose: expected run or test" >&2
    exit 2
    ;;
esac

say() { printf 'setup: %s\n' "$*" >&2; }
# Before anything is installed: what is found out has to be written down.
not_written() { say "$PWD/$1 cannot be written, and this has to be"; exit 1; }
{ mkdir -p build && [ -w build ]; } 2>/dev/null || not_written build

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
modules="numpy torch"
if [ "$purpose" = test ]; then
    modules="$modules pytest"
    have cmake || missing+=(cmake)
    have ninja || missing+=(ninja-build)
    have pkg-config || missing+=(pkg-config)
    have clang || missing+=(clang)
    have abidw || missing+=(abigail-tools)
    have valgrind || missing+=(valgrind libc6-dbg)
    [ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] || missing+=(libgtest-dev)
fi
# The report of the replay is looked at in a browser by the tests; without one those few fail
# and say so, which is no reason to run none at all.
browser() {
    [ -n "${PREFIXCACHE_BROWSER:-}" ] && return
    for name in chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable; do
        have $name && return
    done
    return 1
}

# Python: any interpreter from 3.11 on that has these modules.
usable() {
    [ -n "$1" ] && "$1" -c "import sys; assert sys.version_info >= (3, 11); import ${modules// /, }" >/dev/null 2>&1
}
python=
for candidate in "${PYTHON:-}" "$(cat build/python 2>/dev/null)" .venv/bin/python "$(command -v python3)" /usr/bin/python3; do
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
            fatal+=("no Python 3.11+ with ${modules// /, }: pip install $modules, then make PYTHON=that-python")
        fi
    fi
fi

[ ${#fatal[@]} = 0 ] || give_up
case $python in /*) ;; *) python=$PWD/$python ;; esac
printf '%s\n' "$python" 2>/dev/null >build/python || not_written build/python
if [ "$purpose" = test ]; then
    browser || apt_install chromium-headless-shell ||
        say "no Chromium, so the tests of the replay's report will fail (as root: apt-get install chromium-headless-shell; or set PREFIXCACHE_BROWSER)"
    touch build/test-tools 2>/dev/null || not_written build/test-tools
fi
say "ready to $purpose ($(go env GOVERSION), $("$python" -c 'import sys, torch; print("Python %d.%d.%d, torch %s" % (*sys.version_info[:3], torch.__version__))'))"
