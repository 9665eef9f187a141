#!/bin/bash
# Page choices: losses at 2k to 8k tokens, planted facts on all long documents and on 60 others, step times; the report is the table to keep.
[ -n "${LAC_SHARED:-}" ] || { echo "skip: ../shared is not here: the losses of page choices"; echo "0 passed, 0 failed"; exit 0; }
build/venv/bin/python perf/gate_quality.py "$LAC_MODEL" --data "$LAC_SHARED/data/qa" --documents 32 --contexts 2048,4096,8128 --check &&
    { echo "1 passed, 0 failed"; exit 0; }
echo "0 passed, 1 failed"; exit 1
