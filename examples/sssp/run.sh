#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shortest paths on a graph whose weights a legacy program changes between the runs: run.sh [-n ROUNDS] [-s SCALE]
# [-p PERCENT] [DIR]. DIR is a folder of a gaiafs mount; without it, one is mounted for the run (as root).
#
# A device program (sssp) maps the graph once and stays. In each round another process (update) writes new weights for
# PERCENT of the edges with pwrite(), the device computes again, and a third process (dijkstra) checks the result with
# plain reads. The graph has 2^SCALE vertices and 16 times as many edges. GAIA_SSSP=PROGRAM: another one than
# examples/sssp/sssp, as that of examples/cuda is.
set -eu
exec </dev/null

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
# shellcheck source=examples/lib.sh
. "$root/examples/lib.sh"
rounds=5
scale=17
percent=1

usage() {
    die 'usage: run.sh [-n ROUNDS] [-s SCALE] [-p PERCENT] [DIR]'
}

while getopts n:s:p: option; do
    case $option in
    n) rounds=$OPTARG ;;
    s) scale=$OPTARG ;;
    p) percent=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -le 1 ] || usage

# field FILE NAME: of "name=value name=value ...".
field() {
    tr ' ' '\n' <"$1" | sed -n "s/^$2=//p"
}

# round NUMBER PERCENT (0: as generated)
run_round() {
    echo 'edges=0 unit_bytes=0' >"$work/update.out"
    if [ "$1" -gt 0 ]; then
        limited "$examples/sssp/update" --part "$percent" --seed "$1" "$graph" >"$work/update.out"
    fi
    server_ask "$work/sssp.out"
    dijkstra_result=0
    limited "$examples/sssp/dijkstra" "$graph" "$result" >"$work/dijkstra.out" || dijkstra_result=$?
    edges=$(field "$work/update.out" edges)
    unit_bytes=$(field "$work/update.out" unit_bytes)
    moved=$(field "$work/sssp.out" moved)
    printf '   %5d  %9d  %12d  %11d  %7s  %s\n' "$1" "$edges" "$unit_bytes" "$moved" \
        "$(awk -v part="$moved" -v whole="$graph_bytes" 'BEGIN { printf "%.2f %%", part * 100 / whole }')" \
        "$(field "$work/sssp.out" checksum)"
    check "round $1: Dijkstra on the CPU finds the same $(field "$work/dijkstra.out" vertices) distances" \
        test "$dijkstra_result" -eq 0
    if [ "$1" -gt 0 ]; then
        check "round $1: no more was moved than the units that changed" test "$moved" -le "$unit_bytes"
        check "round $1: but something was" test "$moved" -gt 0
    fi
}

set_up sssp
if [ $# -eq 1 ]; then
    folder=$1
    [ -x "$examples/sssp/sssp" ] || die "build first: make -C $root CC=gcc all examples"
else
    require_root
    build
    folder=$work/mnt
    mkdir "$work/data" "$folder"
    mount_gaiafs "$work/data" "$folder"
fi
graph=$folder/gaiafs-sssp.graph
result=$folder/gaiafs-sssp.result
tidy() {
    rm -f "$graph" "$result"
}
headline 'a graph'
limited "$examples/sssp/generate" --scale "$scale" "$graph" >"$work/generate.out"
graph_bytes=$(field "$work/generate.out" bytes)
note "$(cat "$work/generate.out")"
headline 'shortest paths from vertex 0, on the device; round 0: the graph as it was generated'
note 'round  new edges  their 64 KiB  bytes moved  of file  checksum'
server_start "${GAIA_SSSP:-$examples/sssp/sssp}" --serve "$graph" "$result"
round=0
while [ "$round" -le "$rounds" ]; do
    run_round "$round"
    round=$((round + 1))
done
check 'the device program ended well' server_stop
tidy
if [ $# -eq 0 ]; then
    check 'umount' unmount_gaiafs
    check 'no daemon is left' no_daemon "$folder"
fi
finish sssp
