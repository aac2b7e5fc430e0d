#!/usr/bin/env bash
# The hosts for longer, 100 000 lives of each cache among them, and the crowd of threads with
# the library itself under Go's race detector and under AddressSanitizer.
set -eu
cd "$(dirname "$0")/.."
cmake -S . -B build/cpp -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build/cpp --target hosts_test >/dev/null
export PREFIXCACHE_LIBRARY=$PWD/build/libprefixcache.so
PREFIXCACHE_HOSTS_SCALE=10 build/cpp/cpp_tests/hosts/hosts_test
eval "$(make -s cuda-env)"
programs=build/cpp/cpp_tests/hosts
for checker in race asan; do
    go build -buildmode=c-shared "-$checker" -o build/hosts/$checker/libprefixcache.so ./capi
    # The checker of the library has to be there before the library.
    host=$programs/host_dlopen
    [ $checker = race ] || host=$programs/host_address
    for scenario in "walk 50" "crowd 64 5000"; do
        echo "hosts: $scenario, library built with -$checker"
        # shellcheck disable=SC2086
        PREFIXCACHE_LIBRARY=$PWD/build/hosts/$checker/libprefixcache.so GORACE="halt_on_error=1" ASAN_OPTIONS=detect_leaks=0 $host $scenario
    done
done
