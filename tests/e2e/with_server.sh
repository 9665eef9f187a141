#!/bin/bash
# with_server.sh IO COMMAND...: runs COMMAND with the URL of a fresh server as its last argument.
io=$1; shift
bin=${BUILD:-build}/laconic; log=$(mktemp)
"$bin" serve "$LAC_MODEL" --port 0 --io "$io" >"$log" 2>&1 & pid=$!
for _ in $(seq 600); do grep -q '^ready ' "$log" && break; kill -0 $pid 2>/dev/null || break; sleep 0.1; done
url=$(grep -oE 'http://[^ ]+' "$log" | head -1)
[ -n "$url" ] || { cat "$log"; echo "0 passed, 1 failed"; exit 1; }
"$@" "$url"; rc=$?
kill -TERM $pid; wait $pid
rm -f "$log"; exit $rc
