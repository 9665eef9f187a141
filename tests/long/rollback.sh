#!/bin/bash
# Issue 8's bar for the rollback monitor: calibrated on data/prompts, measured on 1,000 other answers and 200 planted drifts.
[ -n "${LAC_SHARED:-}" ] || { echo "skip: ../shared is not here: the rollback monitor's bar"; echo "0 passed, 0 failed"; exit 0; }
py=build/venv/bin/python; dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
"$BUILD/laconic" calibrate "$LAC_MODEL" --monitor --file "$LAC_SHARED/data/prompts/calibration.jsonl" -o "$dir/m.lacs" &&
    $py perf/rollback.py "$LAC_MODEL" --side-car "$dir/m.lacs" --shared "$LAC_SHARED" ${LAC_ENCODER:+--encoder "$LAC_ENCODER"} --check &&
    { echo "1 passed, 0 failed"; exit 0; }
echo "0 passed, 1 failed"; exit 1
