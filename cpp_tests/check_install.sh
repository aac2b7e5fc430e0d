#!/usr/bin/env bash
# Install into a scratch prefix and build a C and a C++ project against it, through
# find_package and through pkg-config; run what was built.
# usage: check_install.sh BUILD_DIR SCRATCH_DIR CMAKE
set -eu
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
build=$1 scratch=$2 cmake=$3
rm -rf "$scratch"
mkdir -p "$scratch/project"
"$cmake" --install "$build" --prefix "$scratch/prefix" >"$scratch/install.log"
# Whoever hands on the library hands on the licenses of what is linked into it.
for name in LICENSE THIRD_PARTY_LICENSES; do
    cmp "$(find "$scratch/prefix/share/doc" -name $name)" "$(dirname "$0")/../$name"
done
cd "$scratch/project"

cat >uses_c.c <<'END'
#include <prefixcache.h>
#include <stdio.h>
int main(void) { return printf("prefixcache %s\n", pc_version()) > 0 && pc_get_api(PC_ABI_VERSION) != NULL ? 0 : 1; }
END
cat >uses_cpp.cpp <<'END'
#include <prefixcache/context_cache_coordinator.hpp>
#include <cstdio>
int main() {
    prefixcache::KVPageTable table(2, 4, 8, true);
    table.setIdentity();
    return std::printf("prefixcache %s\n", prefixcache::Library::get().version()) > 0 && table.isIdentity() ? 0 : 1;
}
END
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.22)
project(Scratch C CXX)
find_package(PrefixCache 0.1 REQUIRED)
add_executable(uses_c uses_c.c)
target_link_libraries(uses_c PRIVATE PrefixCache::c)
add_executable(uses_cpp uses_cpp.cpp)
target_link_libraries(uses_cpp PRIVATE PrefixCache::PrefixCache)
file(GENERATE OUTPUT library.txt CONTENT "${PREFIXCACHE_LIBRARY}")
END
"$cmake" -S . -B out -DCMAKE_PREFIX_PATH="$scratch/prefix" >cmake.log
"$cmake" --build out >>cmake.log
out/uses_c
PREFIXCACHE_LIBRARY=$(cat out/library.txt) out/uses_cpp

pc=$(find "$scratch/prefix" -name prefixcache.pc)
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH=$(dirname "$pc")
    libdir=$(pkg-config --variable=libdir prefixcache)
    cc uses_c.c $(pkg-config --cflags --libs prefixcache) -Wl,-rpath,"$libdir" -o uses_c_pc
    c++ -std=c++17 uses_cpp.cpp $(pkg-config --cflags prefixcache) -ldl -o uses_cpp_pc
    ./uses_c_pc
    LD_LIBRARY_PATH=$libdir env -u PREFIXCACHE_LIBRARY ./uses_cpp_pc # the loader's own search
else
    grep -q '^Libs:.*-lprefixcache' "$pc" # no pkg-config here: look at the file at least
fi
