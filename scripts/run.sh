#!/usr/bin/env bash
# The main job: replay request traffic through both caches and check every row
# and page. Arguments: options of `prefixcache replay`; the trace is in TRACE.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$(cat build/python)}
status=0
PYTHONPATH=python "$PYTHON" -m prefixcache.replay ${TRACE:+"$TRACE"} "$@" || status=$?
# Bad arguments (2) and an interrupt (130) end the run here; so do --help and a sweep.
case $status in 2 | 130) exit $status ;; esac
case " $*" in *" --help"* | *" -h"* | *" --sweep"* | *" --write-trace"*) exit $status ;; esac
echo "== context cache: the C++ coordinator, and every reused position checked =="
# shellcheck disable=SC2086 # options, not one argument
PREFIXCACHE_LIBRARY=$PWD/build/libprefixcache.so build/replay_context ${TRACE:+--trace "$TRACE"} ${CONTEXT_ARGS:-}
context=$?
[ $context = 0 ] || status=$context
exit $status
