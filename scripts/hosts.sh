#!/usr/bin/env bash
# The hosts for longer, 100 000 lives of each cache among them, and the crowd of threads with
# the library itself built for AddressSanitizer.
# usage: hosts.sh
set -eu
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
[ $# = 0 ] || { echo "hosts: the argument is '$1', expected none" >&2; exit 2; }
cd "$(dirname "$0")/.."
cmake -S . -B build/cpp -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build/cpp --target hosts_test >/dev/null
export PREFIXCACHE_LIBRARY=$PWD/build/libprefixcache.so
PREFIXCACHE_HOSTS_SCALE=10 build/cpp/cpp_tests/hosts/hosts_test
eval "$(make -s cuda-env)"
# Go's race detector cannot live in a shared library: it has go test -race.
go build -buildmode=c-shared -buildvcs=false -asan -o build/hosts/libprefixcache.so ./capi
for scenario in "walk 50" "crowd 64 5000"; do
    echo "hosts: $scenario, library built with -asan"
    # shellcheck disable=SC2086
    PREFIXCACHE_LIBRARY=$PWD/build/hosts/libprefixcache.so ASAN_OPTIONS=detect_leaks=0 build/cpp/cpp_tests/hosts/host_address $scenario
done
