#!/bin/sh
# Runs a command that says by its exit status whether it holds, as one case.
if "$@"; then echo "1 passed, 0 failed"; else echo "0 passed, 1 failed"; exit 1; fi
