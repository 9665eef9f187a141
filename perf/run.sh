#!/bin/bash
# make perf: side by side with the peer; results into perf/results/DATE-CPU.json. QUICK=1: fewer rows and repetitions.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh test
peer=${PEER_BIN:-$(perf/peer.sh)}
model=${LAC_MODEL:-$(scripts/model.sh fetch)}
if [ "${QUICK:-0}" = 1 ]; then build/venv/bin/python perf/compare.py "$peer" "$model" --quick --rows decode,prefill
else build/venv/bin/python perf/compare.py "$peer" "$model" --rows decode,prefill,batch,depth --out "perf/results/$(date +%F)-$(uname -m)-serving.json"; fi
