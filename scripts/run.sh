#!/usr/bin/env bash
# The main job: replay request traffic through both caches and check every row
# and page. Arguments: [--trace FILE] and options of `python -m prefixcache.replay`.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$(cat build/python)}
trace=
args=("$@")
for ((i = 0; i < $#; i++)); do
    [ "${args[i]}" = --trace ] && trace=${args[i + 1]:-}
done
if [ -n "$trace" ] && [ ! -r "$trace" ]; then
    echo "run: --trace $trace: no such file, expected a JSON-lines trace" >&2
    exit 2
fi
status=0
echo "== omni cache: the scheduler, the drop-in, and every row checked =="
PYTHONPATH=python "$PYTHON" -m prefixcache.replay "$@" || status=$?
# Bad arguments (2) and an interrupt (130) end the run here; so does --help.
case $status in 2 | 130) exit $status ;; esac
case " $* " in *" --help "* | *" -h "*) exit ;; esac
echo "== context cache: the C++ coordinator, and every reused page checked =="
# shellcheck disable=SC2086 # options, not one argument
PREFIXCACHE_LIBRARY=$PWD/build/libprefixcache.so build/replay_context ${trace:+--trace "$trace"} ${CONTEXT_ARGS:-} || status=1
exit $status
