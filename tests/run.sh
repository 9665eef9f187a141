#!/bin/sh
# Runs cmocka programs given as arguments; prints each failing line, then one "N passed, N failed" line.
pass=0; fail=0
for t in "$@"; do
    out=$(CMOCKA_MESSAGE_OUTPUT=TAP timeout "${TEST_TIMEOUT:-300}" "$t" 2>&1); rc=$?
    p=$(printf '%s\n' "$out" | grep -c '^ok'); f=$(printf '%s\n' "$out" | grep '^not ok' | grep -vc '# SKIP')
    s=$(printf '%s\n' "$out" | grep -i '# SKIP\|^skip:' | head -5)
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ "$((p + f))" -eq 0 ]; then f=1; echo "no test ran in $t"; fi
    pass=$((pass + p)); fail=$((fail + f))
    if [ "$f" -ne 0 ]; then echo "FAIL $t (exit $rc)"; printf '%s\n' "$out" | tail -40; else echo "ok   $t ($p)"; fi
    [ -n "$s" ] && printf '%s\n' "$s"
done
echo "$pass passed, $fail failed"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
