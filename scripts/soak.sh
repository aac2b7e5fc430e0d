#!/usr/bin/env bash
# The random tests, longer: rounds with new or more seeds until the time is over.
# usage: soak.sh [MINUTES]   (default 30; the round that is running is finished)
set -u
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
minutes=${1:-30}
case $minutes in '' | *[!0-9]* | 0?*) echo "soak: MINUTES is '$minutes', expected a whole number" >&2; exit 2 ;; esac
PYTHON=${PYTHON:-$(cat build/python)}
deadline=$(($(date +%s) + minutes * 60))
round=0
run() { # name, command...
    local name=$1; shift
    printf 'round %d, %d s left: %s\n' "$round" "$((deadline - $(date +%s)))" "$name"
    "$@" >build/soak.log 2>&1 || { cat build/soak.log; echo "soak: $name failed in round $round; CONTRIBUTING.md says how to run one seed again" >&2; exit 1; }
}
mkdir -p build
run "build of the coordinator's test" bash -c \
    'cmake -S . -B build/cpp -G Ninja -DCMAKE_BUILD_TYPE=Release && cmake --build build/cpp --target device_coordinator_test'
while :; do
    round=$((round + 1))
    run "both under the simulator, seeds from $((round * 1000000))" \
        go test ./core/simulation -tags=invariants -count=1 -timeout 0 -sim.first $((round * 1000000)) -sim.operations $((20000000 * round))
    run "prefix cache against its model, seed $round" \
        go test ./core/prefix -count=1 -timeout 0 -run TestRandomRunAgainstModel -prefix.steps $((round == 1 ? 200000 : 1000000)) -prefix.seed "$round"
    run "coordinator against its model" go test ./core/coordinator -count=1 -timeout 0 -run Machine -machine-steps $((100000 * round))
    run "omni cache against its model, $((100 * round)) traces a mode" \
        env OMNI_TRACES=$((100 * round)) go test ./core/omni -count=1 -timeout 0 -run TestTraceAgainstModel
    run "omni cache on the simulated driver, $((2000 * round)) orders" \
        env GPU_SEEDS=$((2000 * round)) go test ./gpu/... ./capi -count=1 -timeout 0
    run "coordinator on the simulated driver, $((2000 * round)) orders" \
        env GPU_SEEDS=$((2000 * round)) PREFIXCACHE_LIBRARY="$PWD/build/libprefixcache.so" build/cpp/cpp_tests/device_coordinator_test
    run "coordinator of every kind on the simulated driver, $((1000 * round)) walks" \
        env PYTHONPATH=python GPU_SEEDS=$((1000 * round)) \
        "$PYTHON" -m pytest -q -p no:cacheprovider python/device_tests/test_device_context_random.py
    run "context cache from Python, seed $round" \
        env PYTHONPATH=python PREFIXCACHE_RANDOM_SEED="$round" PREFIXCACHE_RANDOM_STEPS=$((2000 * round)) \
        "$PYTHON" -m pytest -q -p no:cacheprovider python/tests/test_context_random.py
    [ "$(date +%s)" -lt "$deadline" ] || break
done
echo "soak: $round rounds, nothing found"
