#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All set-up and all tests on a fresh Debian 12: sudo sh tests/run.sh
# The suite as users get it, much of it under ASan and UBSan, what has several threads under TSan, and what tests/README.md
# says besides. Ends with one line of all counts.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$top"
export LC_ALL=C.UTF-8 # what plain tools say is looked at
sh examples/packages.sh run tests
jobs=$(nproc)
[ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true

ends=arguments,broken_disks,cuda_broken,cuda_limits,deaths,disks,fault_path,injection,leaks,nodes_comings,nodes_deaths
threads=clients,deaths,fault_threads,forks,nodes_babble,parts,sharing

# The unit tests run under ASan and UBSan, and under TSan what starts threads. As users get them: these, which are what the optimizer
# does most to, and what is not for sanitizers.
plain="consistency/test_merge gpu/test_kernels gpu/test_lockstep gpu/test_request_lockstep"

# Parts of the suite that other lanes run, so that all end at about the same time.
second=device_code,examples,gpu_scripts,cuda_paging,rules
third=broken_disks,cuda_large,cuda_limits,deaths,descriptors,devices,disks,leaving,mount,networks,nodes,nodes_comings,nodes_deaths,nodes_words,nodes_parting,nodes_slow,nodes_still,nodes_writers,nodes_zombies
fourth=frozen,nodes_apart,nodes_calls,nodes_lists,nodes_members,nodes_names,nodes_nemesis,nodes_random,nodes_room,nodes_sizes,passthrough_devices
# Leaves to make check what takes long and is seldom broken.
export GAIA_GATE=sanitized # there are steps with sanitizers, too
# Of each step's tests three may be late once, on a machine that four lanes are more than busy with: they are run again by
# themselves, and named at the end. Not where a sanitizer has said something, or anything has crashed. GAIA_AGAIN=0: none.
export GAIA_AGAIN="${GAIA_AGAIN:-3}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Of what a step has started, from what the shell says of its children before and after.
processors() {
    awk '{gsub(/[ms]/, " "); split($0, t, " ")} FNR == 2 {sum = sum * -1 + t[1] * 60 + t[2] + t[3] * 60 + t[4]} END {printf "%.0f", sum}' "$1.before" "$1.after"
}

# Of what a step that failed has printed, the lines that say of what: they are shown once more at the very end.
telling() {
    grep -E 'FAILED|ERROR|(^|: )failed|nothing was said|came to their end|time limit|the script ended|rejected' "$1" | grep -Ev ' 0 failed|^failed: [0-9]' |
        cut -c 1-300 | tail -n 12
}

# What fails is known by the status that each step leaves behind: a pipe would hide it. What a step printed is shown when it
# has ended, as four lanes of steps run side by side: most of them wait most of the time.
step() {
    name=$1
    shift
    began=$(date +%s)
    out=$(mktemp "$work/out.XXXXXX")
    times >"$out.before"
    "$@" >"$out" 2>&1 || { echo "$name" && telling "$out"; } >>"$work/failed"
    times >"$out.after"
    {
        flock 9
        echo "== $name ($(($(date +%s) - began)) s, $(processors "$out") s of a processor)"
        cat "$out"
        sed -n 's/^flaky: /&'"$name: /p" "$out" >>"$work/flaky"
        sed -n 's/^\([0-9]* operations: \)\{0,1\}\([0-9]* passed, [0-9]* failed.*\)$/\2/p' "$out" | tail -n 1 >>"$work/counts"
    } 9>"$work/lock"
}

# Four lanes, which also build what only they need: a step waits more than it works.
programs="tools mount-tools"
for name in $plain; do
    programs="$programs build/gcc/tests/$name"
done
# shellcheck disable=SC2086 # words
make -j"$jobs" $programs
{
    step "the suite" make check NEEDS="$programs" CHECK="--jobs 2 --units $(echo "$plain" | tr " " ,) --but $second,$third,$fourth"
} &
lanes=$!
{
    step "build with ASan and UBSan" make -j"$jobs" units SANITIZE=address
    # All of it: make check-long.
    step "unit tests, and mounts that end in every way there is, under ASan and UBSan" \
        make check NEEDS=units SANITIZE=address CHECK="--jobs 2 --files $ends"
    step "mounts on a GPU that is not there" /usr/bin/python3 -B tests/mount/on_gpu.py
    step "the suite, its second part" make check NEEDS="$programs" CHECK="--mounts --files $second"
} &
lanes="$lanes $!"
{
    step "histories" python3 -B tests/history/run.py --operations 50000
    step "histories of two nodes" python3 -B tests/history/run.py --nodes 2 --operations 25000
    step "histories on such GPUs" python3 -B tests/history/run.py --operations 16000 --gpu build/gcc/cuda
    step "histories on such GPUs of two nodes" python3 -B tests/history/run.py --nodes 2 --operations 12000 --gpu build/gcc/cuda
    step "other programs" python3 -B tests/posix/run.py --quick
    step "power cuts" python3 -B tests/vm/power.py --cuts 9
    step "kills" python3 -B tests/kills/run.py --kills 200
    step "the suite, its third part" make check NEEDS="$programs" CHECK="--mounts --files $third"
    # All of it is warming up: an hour (make life) is held to 5 %.
    # Five threads more, which a busy moment calls, are an eighth of its memory.
    step "ten seconds of everything" /usr/bin/python3 -B tests/soak/run.py --minutes 0.17 --tolerance 25
    step "the simulation of many nodes" python3 -B tests/sim/sim.py --check
} &
lanes="$lanes $!"
{
    step "build with TSan" make -j"$jobs" units SANITIZE=thread
    step "unit tests, and mounts with several clients, devices and threads, under TSan" \
        make check NEEDS=units SANITIZE=thread CHECK="--jobs 2 --files $threads"
    # It has two processors to emulate, and in it nodes wait for each other for some seconds and no longer.
    step "RDMA in a virtual machine" nice -n -10 python3 -B tests/vm/rdma.py
    step "the suite, its fourth part" make check NEEDS="$programs" CHECK="--mounts --files $fourth"
} &
lanes="$lanes $!"
for lane in $lanes; do
    wait "$lane" || echo "a lane of steps" >>"$work/failed"
done
cat "$work/flaky"
[ ! -e "$work/failed" ] || sed 's/^/failed: /' "$work/failed"
awk '{p += $1; f += $3; s += $5} END {printf "%d passed, %d failed, %d skipped\n", p, f, s}' "$work/counts"
[ ! -e "$work/failed" ]
