#!/usr/bin/env bash
# gofmt, go vet, staticcheck, clang-format, ruff, with pinned versions.
set -u
cd "$(dirname "$0")/.."
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
ruff=0.17.6
clang_format=clang-format-14
failed=0
check() { # name, command...
    local name=$1; shift
    if "$@"; then echo "lint: $name ok"; else echo "lint: $name FAILED"; failed=1; fi
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
