#!/bin/bash
# Every row that the CPU backend is held to, beside the peer, and the quality beside the speed. For an idle machine; about an
# hour (QUICK=1: three pairs a row, no long contexts). PEER_BIN, LAC_MODEL, LAC_SHARED as elsewhere; LAC_GEMMA: a gemma-3 file.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${BUILD:-build}
peer=${PEER_BIN:-$(perf/peer.sh)}
model=${LAC_MODEL:-$(scripts/model.sh fetch)}
python=build/venv/bin/python
quick=()
[ "${QUICK:-0}" = 1 ] && quick=(--quick)
compare() {
    echo "== $*"
    "$python" perf/compare.py "$peer" "$@" "${quick[@]}"
}
compare "$model" --rows decode,prefill,batch
compare "$model" --rows decode,prefill,batch --threads 1
compare "$model" --rows prefill,batch --extra "--activations int8"
if [ "${QUICK:-0}" != 1 ]; then
    compare "$model" --rows depth,long
    compare "$model" --rows depth --kv q8
fi
if [ -f "${LAC_GEMMA:-}" ]; then compare "$LAC_GEMMA" --rows decode,prefill; else echo "gemma: skipped, LAC_GEMMA names no file"; fi

# The English documents, joined: 20,181 tokens of the default model.
text=$(mktemp)
trap 'rm -f "$text"' EXIT
"$python" -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
print("".join(r["document"] + "\n\n" for r in rows if r["lang"] == "en")[:92000], end="")' \
    "${LAC_SHARED:-shared}/data/qa/longdocs.jsonl" > "$text"
for class in --exact "--activations int16" "--activations int8" "--kv q8"; do
    echo "== perplexity $class"
    # shellcheck disable=SC2086
    "$bin/laconic" perplexity "$model" --file "$text" $class
done
