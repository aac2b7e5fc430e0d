#!/usr/bin/env bash
# gofmt, go vet, staticcheck, clang-format, ruff, with pinned versions.
# usage: lint.sh
set -u
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
[ $# = 0 ] || { echo "lint: the argument is '$1', expected none" >&2; exit 2; }
cd "$(dirname "$0")/.."
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
ruff=0.17.6
clang_format=clang-format-14
failed=0
name='' child='' ended=()
# A check has a process group of its own, and Ctrl-C is for this script alone: it ends the
# group at once, while `go run` would let its program go on.
interrupted() {
    [ -z "$child" ] || { kill -TERM -- "-$child"; wait "$child"; } 2>/dev/null
    [ ${#ended[@]} = 0 ] && ended=(none)
    echo "lint: interrupted in $name; done so far: ${ended[*]}"
    exit 130
}
trap interrupted INT
check() { # name, command...
    name=$1; shift
    set -m; "$@" & child=$!; set +m
    if wait "$child"; then echo "lint: $name ok"; else echo "lint: $name FAILED"; failed=1; fi
    child='' ended+=("$name")
}

unformatted() { local out; out=$(gofmt -l capi core gpu); [ -z "$out" ] || { echo "gofmt: $out"; return 1; }; }
check gofmt unformatted
make -s cuda-stub && eval "$(make -s cuda-env)"
check vet go vet ./...
check staticcheck go run "$staticcheck" ./...

if ! command -v "$clang_format" >/dev/null; then
    [ "$(id -u)" = 0 ] && apt-get install -y -qq --no-install-recommends "$clang_format" >/dev/null 2>&1
fi
if command -v "$clang_format" >/dev/null; then
    check clang-format bash -c "git ls-files '*.h' '*.hpp' '*.c' '*.cpp' | xargs $clang_format --dry-run --Werror"
else
    echo "lint: $clang_format is missing (as root: apt-get install $clang_format)"; failed=1
fi

if [ ! -x build/lint/bin/ruff ] || ! build/lint/bin/ruff --version | grep -q "$ruff"; then
    python3 -m venv build/lint && build/lint/bin/pip install -q --disable-pip-version-check "ruff==$ruff"
fi
check "ruff check" build/lint/bin/ruff check python scripts gpu gates
check "ruff format" build/lint/bin/ruff format --check python scripts gpu gates
exit $failed
