#!/usr/bin/env bash
# Build the wheel into dist/ and check it: what it is tagged as, what it links to,
# how large the library is. The tools are pinned and live in build/wheel-tools.
# usage: wheel.sh
set -eu
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
[ $# = 0 ] || { echo "wheel: the argument is '$1', expected none" >&2; exit 2; }
cd "$(dirname "$0")/.."
tools=build/wheel-tools
# With what these two need, so that a later release of that changes nothing here.
pins=(hatchling==1.33.0 auditwheel==6.8.2
      packaging==26.4 pathspec==1.1.1 pluggy==1.7.0 pyelftools==0.33 tomlkit==0.15.2 trove-classifiers==2026.9.21.13)
max_bytes=$((8 << 20))

say() { printf 'wheel: %s\n' "$*" >&2; }

# A Python that can make virtual environments; Debian's needs python3-venv for it.
usable() { [ -n "$1" ] && "$1" -c 'import ensurepip, sys; assert sys.version_info >= (3, 11)' >/dev/null 2>&1; }
find_python() {
    for python in "${PYTHON:-}" "$(cat build/python 2>/dev/null)" python3 /usr/bin/python3; do
        if usable "$python"; then return; fi
    done
    return 1
}

if [ "$(cat $tools/pins 2>/dev/null)" != "${pins[*]}" ]; then
    if ! find_python; then
        install="apt-get install -y -qq --no-install-recommends python3-venv"
        [ "$(id -u)" = 0 ] && { $install || { apt-get update -qq && $install; }; } >/dev/null 2>&1
        find_python || { say "no Python 3.11+ with ensurepip (as root: apt-get install python3-venv)"; exit 1; }
    fi
    rm -rf $tools
    "$python" -m venv $tools
    $tools/bin/python -m pip install -q --disable-pip-version-check --no-deps "${pins[@]}" ||
        { say "cannot install ${pins[*]} from the package index"; exit 1; }
    printf '%s\n' "${pins[*]}" >$tools/pins
fi

rm -f dist/prefixcache-*.whl
$tools/bin/python -m hatchling build -t wheel -d dist
wheel=$(ls dist/prefixcache-*.whl)

shown=$($tools/bin/python -m auditwheel show "$wheel")
tag=${wheel##*none-} tag=${tag%.whl}
# auditwheel writes the sentence over several lines.
if ! tr -s ' \n' ' ' <<<"$shown" | grep -q "is consistent with the following platform tag: \"$tag\""; then
    printf '%s\n' "$shown" >&2
    say "$wheel: auditwheel does not confirm $tag"
    exit 1
fi
bytes=$(stat -c %s build/libprefixcache.so)
if [ "$bytes" -gt $max_bytes ]; then
    say "libprefixcache.so has $bytes bytes, expected $max_bytes at most"
    exit 1
fi
say "$wheel ($(stat -c %s "$wheel") bytes, library $bytes bytes, auditwheel: $tag)"
