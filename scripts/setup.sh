#!/bin/sh
# Installs the Debian packages that building and testing need, if any is missing (as root or with sudo);
# quiet and quick when there is nothing to do.
#   setup.sh        packages
#   setup.sh venv   also an empty Python environment in build/venv
#   setup.sh test   also the Python packages that the tests use, in it, and NVIDIA's compilers for them
#   setup.sh long   and those that only make test-long uses
set -eu
cd "$(dirname "$0")/.."

PACKAGES="build-essential pkg-config libjemalloc-dev liburing-dev libxxhash-dev libssl-dev
libpcre2-dev libjansson-dev zlib1g-dev node-llhttp libcmocka-dev systemtap-sdt-dev python3-venv curl"
PYTHON_PACKAGES="openai gguf numpy"
LONG_PACKAGES="jinja2 tokenizers sentencepiece"
# NVRTC and ptxas (128 MB to fetch, 220 MB on disk), for the tests alone: the server takes what it finds.
CUDA_PACKAGES="nvidia-cuda-nvrtc==13.0.* nvidia-cuda-nvcc==13.0.*"
VENV=build/venv

say() { echo "setup: $*" >&2; }

missing_packages() {
    # One query for all; a package that is not known is not in the answer.
    installed=" $(dpkg-query -W -f='${Status} ${Package}\n' $PACKAGES 2>/dev/null |
        sed -n 's/^install ok installed //p' | tr '\n' ' ')"
    for p in $PACKAGES; do
        case "$installed" in *" $p "*) ;; *) printf '%s ' "$p" ;; esac
    done
}

install_packages() {
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        say "this system has no apt-get; going on in the hope that the like of these is there:" $PACKAGES
        return 0
    fi
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            say "please run as root: apt-get install -y --no-install-recommends $missing"
            exit 1
        fi
        as_root="sudo"
    fi
    say "installing $missing"
    # -q: one line per step; a lock held by another apt is waited for.
    options="-q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3"
    # shellcheck disable=SC2086
    {
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 >&2
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install $options \
            --no-install-recommends $missing >&2
    } || { say "apt-get failed (see above)"; exit 1; }
    missing=$(missing_packages)
    [ -z "$missing" ] || { say "still missing after installation: $missing"; exit 1; }
}

# Two makes at once must not build one environment twice.
with_lock() {
    mkdir -p build
    if command -v flock >/dev/null; then
        exec 9>build/.setup.lock
        flock 9
    fi
}

make_venv() {
    [ -x $VENV/bin/python ] && [ -e $VENV/.ready ] && return 0
    say "making $VENV"
    rm -rf $VENV
    python3 -m venv $VENV >&2
    : >$VENV/.ready
}

# NAME PACKAGES: installs them once; NAME marks that it was done.
install_python_packages() {
    [ "$(cat "$VENV/.$1" 2>/dev/null)" = "$2" ] && return 0
    say "installing Python packages in $VENV: $2"
    # shellcheck disable=SC2086
    $VENV/bin/python -m pip install -q --disable-pip-version-check $2 >&2
    echo "$2" >"$VENV/.$1"
}

# Kernels can be compiled without a GPU, but not without these; tests that need them say "skip:". Their
# dependencies (headers, the runtime) are for nvcc, which is not used.
install_cuda_packages() {
    [ "$(cat "$VENV/.cuda" 2>/dev/null)" = "$CUDA_PACKAGES" ] && return 0
    say "installing NVIDIA's compilers in $VENV: $CUDA_PACKAGES"
    # shellcheck disable=SC2086
    if ! $VENV/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-cache-dir \
        --only-binary=:all: --retries 1 --timeout 20 $CUDA_PACKAGES >&2; then
        echo "skip: NVIDIA's compilers could not be fetched ($CUDA_PACKAGES); tests that compile kernels will skip"
        return 0
    fi
    # The .alt libraries are the same compiler built otherwise; nobody loads them.
    rm -f $VENV/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc*.alt.so.*
    echo "$CUDA_PACKAGES" >"$VENV/.cuda"
}

case "${1:-}" in
'') install_packages ;;
venv) install_packages; with_lock; make_venv ;;
test)
    install_packages
    with_lock
    make_venv
    install_python_packages packages "$PYTHON_PACKAGES"
    install_cuda_packages
    ;;
long)
    install_packages
    with_lock
    make_venv
    install_python_packages packages "$PYTHON_PACKAGES"
    install_python_packages long "$LONG_PACKAGES"
    ;;
*) say "unknown argument $1"; exit 2 ;;
esac
