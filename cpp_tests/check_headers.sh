#!/usr/bin/env bash
# Compile every public header alone, in every language version it promises.
# usage: check_headers.sh COMPILER INCLUDE_DIR
set -eu
compiler=$1 include=$2
flags="-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I$include"
for std in c99 c11 c17; do
    echo "#include <prefixcache.h>" | "$compiler" -std=$std $flags -x c -
done
for std in c++11 c++14 c++17 c++20; do
    echo "#include <prefixcache.h>" | "$compiler" -std=$std $flags -x c++ -
done
all=
for header in "$include"/prefixcache/*.hpp; do
    name=$(basename "$header")
    # Bodies of the coordinator: included by its header, not alone.
    [ "$name" = context_cache_coordinator_impl.hpp ] && continue
    line="#include <prefixcache/$name>"
    all="$all$line"$'\n'
    printf '%s\n%s\n' "$line" "$line" | "$compiler" -std=c++17 $flags -Wconversion -Wshadow -x c++ -
done
printf '%s' "$all" | "$compiler" -std=c++20 $flags -Wconversion -Wshadow -x c++ -
# With CUDA's headers out of the way, whatever is installed.
echo '#include <prefixcache/context_cache_coordinator.hpp>' |
    "$compiler" -std=c++17 $flags -DPREFIXCACHE_NO_CUDA_HEADERS -x c++ -
