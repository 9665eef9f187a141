#!/bin/bash
# make perf-cpu: this machine's limits (doctor), what each matrix kernel reaches of them, and where the microseconds of a
# step go. One thread; under load the columns called "least" and the kernels' figures (least of many calls) still hold.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${BUILD:-build}
model=${LAC_MODEL:-$(scripts/model.sh fetch)}
"$bin/laconic" doctor "$model"
"$bin/perf/cpu/kernels" "$@"
"$bin/laconic" bench "$model" --prompt 512 --gen 32 --batch 1,4,16,32 --reps 3 --threads 1 --stats 2>&1
