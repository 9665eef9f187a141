#!/bin/bash
# Everything that wants a real GPU, in at most 8 minutes: every kernel family against the CPU's sums, the backend's graphs,
# chunks, forks, exits and page choices; results of every PTX form as vectors; GB/s and share of the peak of every kernel at
# batch 1 to 16; step times; launch costs. One JSON, and the vectors, into $OUT (default perf/results).
#
# usage: tests/gpu_check.sh [--software]      needs: make test-bins all; NVRTC (LAC_NVRTC, or as the loader finds it)
# Without a GPU, or with --software, the same runs on the software device: then times are null, and the JSON goes to
# $BUILD/gpu-check.
# LAC_MODEL: the default model, if it is here. MODELS=0 leaves the shaped models of 1B and 8B out.
cd "$(dirname "$0")/.." || exit 2
export BUILD=${BUILD:-build}
start=$SECONDS
for d in "$PWD"/build/venv/lib/python3*/site-packages/nvidia/cu13; do
    [ -e "$d/lib/libnvrtc.so.13" ] && export LAC_NVRTC=${LAC_NVRTC:-$d/lib}
done
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
# What the chip says to every PTX form; and whether there is one.
hardware=1
[ "${1:-}" = --software ] || "$BUILD/tests/jit/record_vectors" "$tmp/vectors.txt" || hardware=0
[ "${1:-}" = --software ] && hardware=0
OUT=${OUT:-$([ $hardware = 1 ] && echo perf/results || echo "$BUILD/gpu-check")}; mkdir -p "$OUT" || exit 1
if [ $hardware = 1 ]; then
    export LAC_CUDA=device
    batch=1,2,4,8,16 reps=20 depth=1024 limit=200
else
    soft=$BUILD/tests/softgpu; [ "${soft#/}" = "$soft" ] && soft=$PWD/$soft
    export LD_LIBRARY_PATH=$soft SOFTGPU_DEVICE=${SOFTGPU_DEVICE:-H200} SOFTGPU_SMS=2 SOFTGPU_CHECK=bounds SOFTGPU_COUNT=0
    batch=${BATCH:-1,2,4,8,16} reps=1 depth=40 limit=1500
    echo "no GPU: the software device runs everything; it has no clock, so there are no times"
fi
cache=${CACHE:-$tmp/kernels}
cuda=(--cache-dir "$cache"); [ -n "${LAC_NVRTC:-}" ] && cuda+=(--nvrtc "$LAC_NVRTC")
bin=$BUILD/laconic; bad=0
say() { echo "[$((SECONDS - start)) s] $*"; }
fail() { say "FAIL $*"; bad=$((bad + 1)); }
or_null() { [ -s "$1" ] && cat "$1" || echo null; }

[ $hardware = 1 ] || "$BUILD/tests/jit/record_vectors" "$tmp/vectors.txt" || fail "recording vectors"
device=$(sed -n 's/^# device \([^,]*\),.*/\1/p' "$tmp/vectors.txt"); say "device: $device"
name=$(date +%F)-gpu-$(echo "${device:-none}" | tr -cs 'A-Za-z0-9\n' '-' | tr 'A-Z' 'a-z' | sed 's/-$//')
if [ $hardware = 1 ]; then
    mkdir -p tests/softgpu/vectors; cp "$tmp/vectors.txt" "tests/softgpu/vectors/${name#*-gpu-}.txt"; cp "$tmp/vectors.txt" "$OUT/$name-vectors.txt"
    # The software device against them: it says which form it has wrong.
    "$BUILD/tests/softgpu/test_vectors" >"$tmp/vectors.log" 2>&1 || { fail "the software device differs from this chip"; grep -i 'the device says' "$tmp/vectors.log" | head -20; }
fi

# Correctness. On a GPU the programs run side by side; most of their time is the compiler's.
tests=${TESTS:-test_kernel_matmul test_kernel_attention test_kernel_rows test_kernel_sampler test_cuda_backend}
run_test() { timeout "$3" "$BUILD/tests/jit/$1" >"$2/$1.log" 2>&1; echo "$1 $?" >>"$2/rc"; }
export -f run_test
jobs=$([ $hardware = 1 ] && echo 5 || echo 1)
printf '%s\n' $tests | xargs -P "$jobs" -I{} bash -c 'run_test {} "$0" "$1"' "$tmp" "$limit"
results=
while read -r t rc; do
    passed=$(grep -c '^\[       OK' "$tmp/$t.log"); failed=$(grep -c '^\[  FAILED  \] [a-z_]*$' "$tmp/$t.log")
    say "$t: exit $rc, $passed passed"
    grep -E 'logits differ|skip:' "$tmp/$t.log"
    [ "$rc" = 0 ] || { fail "$t"; grep -vE '^\[ +(RUN|OK) ' "$tmp/$t.log" | tail -15; }
    results+="${results:+,}\"$t\":{\"exit\":$rc,\"passed\":$passed,\"failed\":$failed}"
done <"$tmp/rc"

# Every kernel of a model, alone; graphs on, and off at batch 1 (what a launch costs).
shaped() { "$BUILD/tests/jit/shaped_model" "$tmp/$1.gguf" "${@:2}" || fail "a model of shape $*"; }
if [ $hardware = 1 ]; then shaped kernels 32 4096 14336 32 8 128256; else shaped kernels 2 128 256 4 2 512; fi
kernels() { timeout 150 "$bin" bench "$tmp/kernels.gguf" --kernel "$1" --batch "$2" --graphs "$3" --depth $depth --reps $reps --json "${cuda[@]}" >"$tmp/$4.json" || { fail "bench --kernel $1 --graphs $3"; : >"$tmp/$4.json"; }; }
kernels all "$batch" on kernels; say "kernels measured"
kernels norm 1 on launch-graph; kernels norm 1 off launch-stream

# Steps: the default model, and what 1B and 8B cost (weights are a hole in a file: zeros, but read all the same).
steps=
step() { # NAME FILE ARGUMENTS...
    local json; json=$(timeout 120 "$bin" bench "$2" --backend cuda --json "${@:3}" "${cuda[@]}") || { fail "bench $1"; return; }
    # What the interpreter took is no time of a device's.
    [ $hardware = 1 ] || json=$(echo "$json" | sed 's/"tokens_per_s":{[^}]*}/"tokens_per_s":null/g')
    local bytes; bytes=$("$bin" inspect "$2" --json | sed -n 's/.*"weight_bytes": *\([0-9]*\).*/\1/p')
    steps+="${steps:+,}\"$1\":{\"weight_bytes\":${bytes:-null},\"bench\":$json}"
    say "$1: $json"
}
if [ $hardware = 1 ]; then
    [ -f "${LAC_MODEL:-}" ] && step default "$LAC_MODEL" --prompt 512 --gen 64 --batch 1,2,4,8,16 --reps 3
    if [ "${MODELS:-1}" = 1 ]; then
        shaped 1b 16 2048 8192 32 8 128256; step 1b "$tmp/1b.gguf" --prompt 512 --gen 64 --batch 1,2,4,8,16 --reps 3
        step 8b "$tmp/kernels.gguf" --prompt 512 --gen 32 --batch 1,2,4,8,16 --reps 3
    fi
else
    step tiny "$tmp/kernels.gguf" --prompt 20 --gen 2 --batch 1,2 --reps 1 --ctx 64
fi

seconds=$((SECONDS - start))
cat >"$OUT/$name.json" <<JSON
{"device":"$device","software":$([ $hardware = 1 ] && echo false || echo true),"commit":"$(git rev-parse --short HEAD 2>/dev/null)","seconds":$seconds,"failures":$bad,
"tests":{$results},
"kernels":$(or_null "$tmp/kernels.json"),
"launch":{"graph":$(or_null "$tmp/launch-graph.json"),"stream":$(or_null "$tmp/launch-stream.json")},
"steps":{$steps}}
JSON
say "$OUT/$name.json written; $bad failures"
[ $hardware = 1 ] && [ $seconds -gt 480 ] && say "over 8 minutes"
[ $bad = 0 ]
