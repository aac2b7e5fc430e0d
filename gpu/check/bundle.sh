#!/usr/bin/env bash
# Packs what gpu_check.py needs into build/gpu-check.tar.gz: a folder prefixcache with
# the layout of the repository and, where ../shared has it, the original manager beside it.
# usage: bundle.sh
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
[ $# = 0 ] || { echo "bundle: the argument is '$1', expected none" >&2; exit 2; }
cd "$(dirname "$0")/../.."
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/prefixcache"
cp -r --parents build/libprefixcache.so include python/prefixcache python/tests/omni_host.py \
    python/tests/omni_trace.py gpu/check gpu/cuda/include gpu/cuda/check-header.py "$stage/prefixcache"
if [ -f ../shared/reference/omni/load_reference.py ]; then
    mkdir -p "$stage/shared"
    (cd ../shared && cp -r --parents reference/omni seeds/omni-manager.py.txt seeds/omni-controller.py.txt "$stage/shared")
fi
find "$stage" -name __pycache__ -prune -exec rm -rf {} +
tar -czf build/gpu-check.tar.gz -C "$stage" .
echo "build/gpu-check.tar.gz: $(du -h build/gpu-check.tar.gz | cut -f1)"
