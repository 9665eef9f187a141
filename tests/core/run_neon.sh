#!/bin/sh
# Cross-builds the matmul kernels and their checks for aarch64 and runs them in an emulator.
# Ends with "N passed, N failed"; prints "skip: ..." where a tool is missing.
set -e
cd "$(dirname "$0")/../.."
cc=${CROSS_CC:-aarch64-linux-gnu-gcc}
emulator=${EMULATOR:-qemu-aarch64-static}
build=${BUILD:-build}/neon
for tool in "$cc" "$emulator"; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "skip: neon kernels: $tool is not installed"
        echo "0 passed, 0 failed"
        exit 0
    fi
done
mkdir -p "$build"
flags="-std=c17 -D_GNU_SOURCE -O2 -g -ffp-contract=off -fno-math-errno -Wall -Wextra -Wconversion
       -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror -I."
objects=
for source in core/tensor.c core/cpu_features.c core/cpu/pack.c core/cpu/matmul.c \
              core/cpu/matmul_scalar.c core/cpu/matmul_neon.c tests/core/neon_main.c; do
    object=$build/$(basename "$source" .c).o
    case $source in
    *_neon.c) march="-march=armv8.2-a+dotprod+fp16" ;;
    *) march= ;;
    esac
    # shellcheck disable=SC2086
    "$cc" $flags $march -c -o "$object" "$source"
    objects="$objects $object"
done
# shellcheck disable=SC2086
"$cc" -static -o "$build/matmul_cases" $objects -lm
"$emulator" -cpu max "$build/matmul_cases"
