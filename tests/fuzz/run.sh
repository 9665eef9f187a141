#!/bin/bash
# Builds every tests/fuzz/fuzz_*.c with clang's libFuzzer, ASan and UBSan, and runs each for
# FUZZ_SECONDS (60). Seeds: tests/fuzz/seeds/<name>/ and what make_seeds.py writes; words:
# tests/fuzz/<name>.dict. The corpus grows in build/fuzz/corpus/<name>, inputs that fail are left in
# build/fuzz/failed/. Arguments name fuzzers (gguf, json, ...); none means all.
# Ends with one line "N passed, N failed".
cd "$(dirname "$0")/../.." || exit 2
seconds=${FUZZ_SECONDS:-60}
clang=${FUZZ_CC:-clang}
out=build/fuzz
mkdir -p "$out/bin" "$out/corpus" "$out/failed" "$out/log"

probe='#include <stddef.h>
int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n); int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n) { (void)p; (void)n; return 0; }'
if ! printf '%s\n' "$probe" | "$clang" -x c - -fsanitize=fuzzer,address -o "$out/bin/probe" 2>"$out/log/probe"; then
    echo "skip: $clang with libFuzzer is not here (Debian: apt install clang; libFuzzer is in libclang-rt-dev)"
    echo "0 passed, 0 failed"
    exit 0
fi

san="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
# clang says it has ASan in its own way; the sources ask as gcc does.
cflags="-std=c17 -D_GNU_SOURCE -O1 -g -fno-omit-frame-pointer -ffp-contract=off -pthread -I. -MMD -MP \
-I/usr/include/llhttp -I/usr/share/include/llhttp -D__SANITIZE_ADDRESS__=1 $san"
libs=()
for room in io sched models jit core alloc; do libs+=("$out/lib$room.a"); done
rm -f "${libs[@]}" # so that a room that no longer builds is not linked as it was
# The Makefile knows which file needs which instruction set. -k: one broken room fails only the
# fuzzers that need it, at their link.
make --no-print-directory -k -j"$(nproc)" BUILD="$out" CC="$clang" KERNELS= \
    CFLAGS="$cflags -fsanitize=fuzzer-no-link" "${libs[@]}" >"$out/log/build" 2>&1 || {
    echo "not every room could be built; see $out/log/build"
    grep -m5 'error:' "$out/log/build"
}
have=()
for lib in "${libs[@]}"; do [ -f "$lib" ] && have+=("$lib"); done

python3 tests/fuzz/make_seeds.py "$out/seeds" || exit 1

pass=0
fail=0
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    name=${name#fuzz_}
    if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
    log=$out/log/$name
    # shellcheck disable=SC2086
    if ! "$clang" $cflags -MF "$out/bin/$name.d" -fsanitize=fuzzer -o "$out/bin/$name" "$source" \
        -Wl,--start-group "${have[@]}" -Wl,--end-group -ljemalloc -luring -lxxhash -lssl -lcrypto \
        -lpcre2-8 -ljansson -ldl -lm >"$log" 2>&1; then
        echo "FAIL $name: does not build"
        grep -m5 'error:\|undefined reference' "$log"
        fail=$((fail + 1))
        continue
    fi
    corpus=$out/corpus/$name
    seeds=()
    mkdir -p "$corpus"
    for folder in "tests/fuzz/seeds/$name" "$out/seeds/$name"; do
        [ -d "$folder" ] && seeds+=("$folder")
    done
    words=()
    [ -f "tests/fuzz/$name.dict" ] && words=("-dict=tests/fuzz/$name.dict")
    UBSAN_OPTIONS=print_stacktrace=1 timeout $((seconds + 120)) "$out/bin/$name" "${words[@]}" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$out/failed/$name-" "$corpus" "${seeds[@]}" >"$log" 2>&1
    rc=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    # A fuzzer that ran nothing has proven nothing.
    if [ "$rc" -eq 0 ] && [ "${runs:-0}" -gt 0 ]; then
        echo "ok   $name: $runs inputs in $seconds s, $(ls "$corpus" | wc -l) kept"
        pass=$((pass + 1))
    else
        echo "FAIL $name (exit $rc), inputs in $out/failed/"
        grep -A25 -m1 'ERROR\|runtime error\|check failed\|deadly' "$log" || tail -20 "$log"
        fail=$((fail + 1))
    fi
done
echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
