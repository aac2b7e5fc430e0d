#!/usr/bin/env bash
# Coverage-guided fuzzing of the C ABI: from C with libFuzzer, where the Go code inside is
# instrumented, too, and from Go. Half of the time each. What is found lies in build/fuzz.
# usage: fuzz.sh [MINUTES]   (default 10)
set -eu
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
minutes=${1:-10}
case $minutes in '' | *[!0-9]* | 0*) echo "fuzz: MINUTES is '$minutes', expected a whole number from 1 on" >&2; exit 2 ;; esac
command -v clang++ >/dev/null || { echo "fuzz: clang++ is missing (as root: apt-get install clang libclang-rt-14-dev)" >&2; exit 1; }
eval "$(make -s cuda-env)"
out=build/fuzz
mkdir -p $out/corpus
go build -buildmode=c-archive -trimpath -buildvcs=false -tags libfuzzer '-gcflags=libprefixcache/...=-d=libfuzzer' -o $out/prefixcache.a ./capi
sources=(cpp_tests/fuzz/{fuzz_abi,run}.cpp cpp_tests/fuzz/*_targets.cpp)
clang++ -std=c++17 -g -O1 -fsanitize=fuzzer -Iinclude "${sources[@]}" $out/prefixcache.a -Lbuild/cuda -lcuda -ldl -lpthread -lm -o $out/fuzz_abi
# The collector runs often: it is what minds bad addresses.
GOGC=20 $out/fuzz_abi -max_total_time=$((minutes * 30)) -timeout=20 -rss_limit_mb=4000 -max_len=600 -use_value_profile=1 \
    -artifact_prefix=$out/ -print_final_stats=1 $out/corpus cpp_tests/fuzz/corpus 2>$out/log ||
    { tail -n 60 $out/log; echo "fuzz: the input is in $out; $out/fuzz_abi FILE runs it again" >&2; exit 1; }
grep -E '^(stat::number|stat::new|#.*DONE)' $out/log
# What is new is added to the corpus, as little of it as covers the same.
$out/fuzz_abi -set_cover_merge=1 -timeout=20 -max_len=600 cpp_tests/fuzz/corpus $out/corpus 2>>$out/log
go test ./capi -run XXX -fuzz FuzzABI -fuzztime $((minutes * 30))s -fuzzminimizetime 1x
echo "fuzz: nothing found; cpp_tests/fuzz/corpus has $(ls cpp_tests/fuzz/corpus | wc -l) inputs"
