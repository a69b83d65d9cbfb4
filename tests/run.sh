#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All set-up and all tests on a fresh Debian 12: sudo sh tests/run.sh
# The suite as users get it, the suite under ASan and UBSan, what has several threads under TSan, and what tests/README.md
# says besides. Ends with one line of all counts.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$top"
sh examples/packages.sh run tests
jobs=$(nproc)
[ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
# What fails is known by the status that each step leaves behind: a pipe would hide it.
step() {
    echo "== $1"
    shift
    began=$(date +%s)
    if ! "$@" >"$log.out" 2>&1; then
        status=1
    fi
    cat "$log.out"
    echo "($(($(date +%s) - began)) s)"
    sed -n 's/^\([0-9]* operations: \)\{0,1\}\([0-9]* passed, [0-9]* failed.*\)$/\2/p' "$log.out" | tail -n 1 >>"$log"
    rm -f "$log.out"
}

make -j"$jobs" tests
step "the suite" make check
make -j"$jobs" tests SANITIZE=address
step "the suite under ASan and UBSan" make check SANITIZE=address
make -j"$jobs" tests SANITIZE=thread
step "unit tests, and mounts with several clients, devices and threads, under TSan" \
    make check SANITIZE=thread CHECK='--files clients,devices,faults,promises'

step "the model" python3 -B tests/model/run.py --gate
step "histories" python3 -B tests/history/run.py --operations 300000
step "kills" python3 -B tests/kills/run.py
step "power cuts" python3 -B tests/vm/power.py

awk '{p += $1; f += $3; s += $5} END {printf "%d passed, %d failed, %d skipped\n", p, f, s}' "$log"
exit $status
