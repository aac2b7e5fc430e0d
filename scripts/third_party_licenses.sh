#!/usr/bin/env bash
# Licenses of what is linked into build/libprefixcache.so, as one text.
# usage: scripts/third_party_licenses.sh >THIRD_PARTY_LICENSES
set -eu
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
[ $# = 0 ] || { echo "third_party_licenses: the argument is '$1', expected none" >&2; exit 2; }
cd "$(dirname "$0")/.."
echo "libprefixcache.so contains the Go standard library and runtime, and the modules below."
printf '\n==== Go ====\n\n'
cat "$(go env GOROOT)/LICENSE"
go version -m build/libprefixcache.so | awk '$1 == "dep" {print $2, $3}' | while read -r module version; do
    printf '\n==== %s %s ====\n\n' "$module" "$version"
    cat "$(go list -m -f '{{.Dir}}' "$module")"/LICENSE
done
