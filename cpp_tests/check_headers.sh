#!/usr/bin/env bash
# Compile every public header alone, in every language version it promises.
# usage: check_headers.sh COMPILER INCLUDE_DIR
set -eu
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
compiler=$1 include=$2
command -v "$compiler" >/dev/null || { echo "$compiler is missing (as root: apt-get install $compiler)" >&2; exit 1; }
flags="-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I$include"
compile() { # standard, language, more flags...; the program on stdin
    local std=$1 language=$2; shift 2
    "$compiler" -std="$std" $flags "$@" -x "$language" - || { echo "$compiler -std=$std failed" >&2; exit 1; }
}
for std in c99 c11 c17; do
    echo "#include <prefixcache.h>" | compile $std c
done
for std in c++11 c++14 c++17 c++20; do
    echo "#include <prefixcache.h>" | compile $std c++
done
all=
for header in "$include"/prefixcache/*.hpp; do
    name=$(basename "$header")
    # Bodies of the coordinator: included by its header, not alone.
    [ "$name" = context_cache_coordinator_impl.hpp ] && continue
    line="#include <prefixcache/$name>"
    all="$all$line"$'\n'
    for std in c++17 c++20; do
        printf '%s\n%s\n' "$line" "$line" | compile $std c++ -Wconversion -Wshadow
    done
done
for std in c++17 c++20; do
    printf '%s' "$all" | compile $std c++ -Wconversion -Wshadow
    # With CUDA's headers out of the way, whatever is installed.
    echo '#include <prefixcache/context_cache_coordinator.hpp>' | compile $std c++ -DPREFIXCACHE_NO_CUDA_HEADERS
done
