#!/usr/bin/env bash
# The main job: replay request traffic through both caches and check every row
# and page. Arguments: options of `prefixcache replay`; the trace is in TRACE, options of
# build/replay_context in CONTEXT_ARGS.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$(cat build/python)}
status=0
# shellcheck disable=SC2086 # options, not one argument
context() { PREFIXCACHE_LIBRARY=$PWD/build/libprefixcache.so build/replay_context "$@" ${CONTEXT_ARGS:-}; }
# --help and a sweep have no second half. Its arguments are looked at before the first half
# begins, which may take minutes.
case " $* " in *" --help "* | *" -h "* | *" --sweep"* | *" --write-trace"*) halves=1 ;; *) halves=2 ;; esac
[ $halves = 1 ] || context --dry-run || exit
PYTHONPATH=python "$PYTHON" -m prefixcache.replay ${TRACE:+"$TRACE"} "$@" || status=$?
# Bad arguments (2) and an interrupt (130) end the run here.
case $status in 2 | 130) exit $status ;; esac
[ $halves = 2 ] || exit $status
echo "== context cache: the C++ coordinator, and every reused position checked =="
context ${TRACE:+--trace "$TRACE"} || status=$?
exit $status
