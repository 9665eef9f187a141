#!/bin/bash
# Every test of the suite (LONG=1: the slow ones too); ends with one line "N passed, N failed".
# V=asan|ubsan|tsan says which variant BUILD holds.
cd "$(dirname "$0")/.." || exit 2
export BUILD=${BUILD:-build} LONG=${LONG:-0} V=${V:-release}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:abort_on_error=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
[ "$V" = release ] || export TEST_TIMEOUT=${TEST_TIMEOUT:-1200} PART_TIMEOUT=${PART_TIMEOUT:-3600}
start=$(date +%s); pass=0; fail=0; failed=()
out=$BUILD/test-output; mkdir -p "$out"
part() { # NAME COMMAND...: runs a part, shows its output, adds up its last "N passed, N failed"
    local name=$1; shift; local t0; t0=$(date +%s)
    echo "== $name"
    timeout "${PART_TIMEOUT:-1500}" "$@" 2>&1 | tee "$out/$name.log" | sed -u 's/^/   /'
    local rc=${PIPESTATUS[0]} line
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$out/$name.log" | tail -1)
    local p=0 f=1
    if [ -n "$line" ]; then p=${line%% *}; f=${line#*passed, }; f=${f%% *}; fi
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    pass=$((pass + p)); fail=$((fail + f)); [ "$f" -ne 0 ] && failed+=("$name")
    echo "   ($name: $p passed, $f failed, $(($(date +%s) - t0)) s)"
}
LAC_MODEL=${LAC_MODEL:-$(scripts/model.sh fetch)} || { echo "the default model could not be fetched"; exit 1; }
export LAC_MODEL
[ -n "${LAC_SHARED:-}" ] || { [ -d ../shared/data ] && export LAC_SHARED=$PWD/../shared; }
# NVIDIA's compilers of scripts/setup.sh, for the tests that compile kernels.
for d in "$PWD"/build/venv/lib/python3*/site-packages/nvidia/cu13; do
    [ -e "$d/lib/libnvrtc.so.13" ] && export LAC_NVRTC=${LAC_NVRTC:-$d/lib} LAC_PTXAS=${LAC_PTXAS:-$d/bin/ptxas}
done
py=build/venv/bin/python; bin=$BUILD/laconic; shared=${LAC_SHARED:-}
[ "$V" = release ] && part lint scripts/lint.sh
for room in core alloc jit models sched io cmd softgpu; do
    tests=("$BUILD"/tests/$room/test_*); [ -x "${tests[0]}" ] && part "unit-$room" tests/run.sh $(printf '%s\n' "${tests[@]}" | grep -v '\.')
done
export PYTHONPATH=tests/e2e
if [ "$V" = release ]; then
    part neon tests/core/run_neon.sh
    part dequantise $py tests/models/compare_dequantise.py "$BUILD/tests/core/dequantise_dump" "$LAC_MODEL"
    part architectures $py tests/models/tiny_models.py "$bin"
    part odd-files $py tests/models/odd_files.py "$bin" "$LAC_MODEL"
fi
LAC_ENCODER=${LAC_ENCODER:-$(scripts/model.sh fetch encoder)} && export LAC_ENCODER || { unset LAC_ENCODER; echo "skip: the encoder could not be fetched"; }
for t in golden commands diagnose regulate bake cuda openai_client determinism drafts rollback embeddings gate hostile labels memory policy task_commands tune; do
    [ "$V" != release ] && [ $t = golden ] && [ "$LONG" = 0 ] && continue
    [ -f tests/e2e/test_$t.py ] && part "e2e-$t" $py tests/e2e/test_$t.py
done
if [ -n "$shared" ]; then
    smol=$shared/data/golden/smollm2-135m-instruct.q4_1.json
    part logits tests/as_case.sh $py "$shared/accept/golden.py" "$bin" "$LAC_MODEL" "$smol" --mean 0.01
    part logits-exact tests/as_case.sh $py "$shared/accept/golden.py" "$bin" "$LAC_MODEL" "$smol" --mean 0.002 --max 0.02 -- --exact
    part logits-int8 tests/as_case.sh $py "$shared/accept/golden.py" "$bin" "$LAC_MODEL" "$smol" --mean 0.10 --wrong 0.01 -- --activations int8
    part vocab $py "$shared/accept/vocab.py" "$bin" "$shared/data/vocab"
    part templates $py "$shared/accept/templates.py" "$bin" "$shared/data/templates"
    for io in uring epoll; do part "http-cases-$io" tests/e2e/with_server.sh "$io" $py "$shared/accept/http_cases.py"; done
else
    echo "skip: ../shared is not here: logits, vocabulary, template and HTTP acceptance cases"
fi
gemma=${GEMMA_MODEL:-$(scripts/model.sh path gemma 2>/dev/null)}
if [ "${ACCEPT_GEMMA:-no}" = yes ] && [ "$LONG" = 1 ]; then gemma=$(scripts/model.sh fetch gemma); fi
if [ -n "$gemma" ] && [ -f "$gemma" ] && [ -n "$shared" ]; then
    part logits-gemma tests/as_case.sh $py "$shared/accept/golden.py" "$bin" "$gemma" "$shared/data/golden/gemma3-270m.q4_k_m.json" --mean 0.02
else
    echo "skip: gemma3-270m is not here (make test-long ACCEPT_GEMMA=yes fetches it, under its own licence)"
fi
if [ "$LONG" = 1 ]; then
    scripts/setup.sh long
    # ENCODER_PYTHON: one that has sentence-transformers (gigabytes); else a float64 BERT in NumPy is the reference.
    part compare-encoder "${ENCODER_PYTHON:-$py}" tests/models/compare_encoder.py "$BUILD/tests/models/encode_dump" "$LAC_ENCODER"
    # The peer is there when perf/peer.sh has built it.
    peer=${PEER_BIN:-build/peer/bin}
    if [ -x "$peer/llama-server" ]; then part compare-peer $py tests/models/compare_peer.py "$bin" "$peer"
    else echo "skip: no llama-server in $peer (perf/peer.sh builds it): architectures against the peer"; fi
    if [ -n "$gemma" ] && [ -f "$gemma" ]; then part compare-window $py tests/models/compare_window.py "$bin" "$gemma" "$peer"; fi
    part compare-jinja $py tests/models/compare_jinja.py "$bin" 5000
    part compare-tokenizers $py tests/models/compare_tokenizers.py "$bin" 10000
    OUT=$out TESTS=test_kernel_sampler BATCH=1,16 part gpu-check tests/as_case.sh tests/gpu_check.sh --software
    part compare-cuda $py tests/models/compare_cuda.py "$bin" "$BUILD/tests/softgpu"
    for t in tests/long/*.sh; do [ -x "$t" ] && part "long-$(basename "$t" .sh)" "$t"; done
fi
[ ${#failed[@]} -gt 0 ] && echo "failed: ${failed[*]}"
echo "$(($(date +%s) - start)) seconds"
echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
