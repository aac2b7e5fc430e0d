#!/usr/bin/env bash
# Every speed figure of the README, as ratios taken in one run. TRACE in the environment
# names the trace of the context cache; without one it is generated.
# usage: [TRACE=FILE] bench.sh
set -u
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
[ $# = 0 ] || { echo "bench: the argument is '$1', expected none" >&2; exit 2; }
[ -z "${TRACE:-}" ] || { [ -f "$TRACE" ] && [ -r "$TRACE" ]; } ||
    { echo "bench: TRACE is '$TRACE', expected a file of JSON lines" >&2; exit 2; }
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$(cat build/python)}
status=0
echo "== omni cache, through Python =="
PYTHONPATH=python "$PYTHON" python/bench/bench_omni.py --check || status=1
echo "== context cache, through the C interface =="
PREFIXCACHE_LIBRARY=$PWD/build/libprefixcache.so build/bench_context --check ${TRACE:+--trace "$TRACE"} || status=1
echo "== row kernels =="
go test ./core/rows -run '^$' -bench . -benchtime 0.2s || status=1
echo "== rows on a device, on the simulated driver: the library's part of a save; from a step's landing to its rows =="
eval "$(make -s cuda-env)"
go test ./capi -run '^$' -bench 'Device(Save|Completion)' -benchtime 1000x || status=1
exit $status
