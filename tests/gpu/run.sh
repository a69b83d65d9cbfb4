#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tests that want a GPU: sh tests/gpu/run.sh [--pages N] [--only PART,PART...] (as root for the parts with mounts)
#
#   code      gpu/kernels.ptx and tests/gpu/paging_kernels.ptx are what their sources make (clang 14), and an assembler takes
#             them for this GPU (ptxas)
#   own       the GPU's own tests, without a mount: N pages' worth of digests (10^8), frames that others had, clients
#             that are killed, and that store where nothing is (tests/gpu/own.c)
#   mounts    the mount tests, with files mapped on cuda:0 (tests/mount/on_gpu.py), and programs whose kernels end badly
#   demand    demand paging by kernels with a gaia_view (tests/gpu/paging.c): a file of ten times the frames, in units of 4
#             and 64 KiB; by the kernels that are kept as PTX, and, where nvcc is, by what it makes of the same source
#   examples  those of examples/cuda that nvcc has made
#
# Builds first, if it can; a tree that was built elsewhere is used as it is. Where there is no pytest, of the parts with mounts
# only paging.c itself is run, on a mount that is made for it. Says what was skipped, and why. Ends with one line of all counts;
# with 0 where there is no GPU. On the stand-in of tests/cuda (LD_LIBRARY_PATH=build/gcc/cuda) it runs, too.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$top"
pages=100000000
parts=code,own,mounts,demand,examples
while [ $# -ge 2 ]; do
    case $1 in
    --pages) pages=$2 ;;
    --only) parts=$2 ;;
    *) break ;;
    esac
    shift 2
done
if [ $# -gt 0 ]; then
    echo 'usage: run.sh [--pages N] [--only code,own,mounts,demand,examples]' >&2
    exit 2
fi
build=$top/build/gcc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/counts"

say() {
    printf '== %s\n' "$*"
}

# skip PART WHY
skip() {
    printf 'skipped: %s: %s\n' "$1" "$2"
    echo '0 0 1' >>"$work/counts"
}

wanted() {
    case ,$parts, in
    *,"$1",*) return 0 ;;
    esac
    return 1
}

# step NAME COMMAND...: what it prints is shown as it comes. Its counts are those of its last line, pytest's or our own; one
# that has none counts as one test.
step() {
    name=$1
    shift
    say "$name"
    {
        result=0
        "$@" 2>&1 || result=$?
        echo "$result" >"$work/result"
    } | tee "$work/out"
    result=$(cat "$work/result")
    awk -v result="$result" '
        /[0-9]+ (passed|failed|skipped|errors?|deselected)[, ]|[0-9]+ (passed|skipped)$/ {
            p = f = s = 0; seen = 1
            n = split($0, words, /[ ,]+/)
            for (i = 2; i <= n; i++) {
                if (words[i] == "passed") p = words[i - 1]
                if (words[i] == "failed" || words[i] ~ /^errors?$/) f += words[i - 1]
                if (words[i] == "skipped") s = words[i - 1]
            }
        }
        END {
            if (!seen) p = result == 0
            if (result != 0 && f == 0) f = 1
            print p + 0, f + 0, s + 0
        }' "$work/out" >>"$work/counts"
    [ "$result" -eq 0 ] || echo "$name" >>"$work/failed"
}

# --- the build ---

missing=
for package in fuse3 liburing libxxhash jansson libibverbs librdmacm; do
    pkg-config --exists "$package" 2>/dev/null || missing="$missing $package"
done
if [ -z "$missing" ]; then
    say 'building'
    make CC=gcc -j"$(nproc)" all tools mount-tools >"$work/build" 2>&1 || {
        tail -n 40 "$work/build"
        echo 'the build failed'
        exit 1
    }
elif [ -x "$build/tests/gpu/own" ]; then
    say "built elsewhere: here is no$missing"
else
    echo "not built, and it can't be built here: missing packages:$missing (examples/packages.sh)" >&2
    exit 1
fi

# --- the machine ---

say 'the machine'
uname -srm
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current,ecc.mode.current \
        --format=csv || true
fi
if ./gaiactl devices >"$work/devices" 2>"$work/devices.err"; then
    cat "$work/devices"
else # a library that it needs is not installed here: own says what it sees
    cat "$work/devices.err"
fi
"$build/tests/gpu/own" --describe >"$work/gpu" || true
cat "$work/gpu"
if ! grep -q '^GPU: ' "$work/gpu"; then
    echo 'no GPU here: nothing to test'
    echo '0 passed, 0 failed, 0 skipped'
    exit 0
fi
real=1
if grep -q '^GPU: stand-in' "$work/gpu"; then
    echo 'this is no GPU, but the stand-in of tests/cuda'
    real=0
fi
architecture=sm_$(sed -n 's/.*compute capability \([0-9]*\)\.\([0-9]*\).*/\1\2/p' "$work/gpu" | head -n 1)

# --- the device code ---

ptx_is_current() {
    make -s ptx paging-ptx CLANG=clang PTX="$work/kernels.ptx" PAGING_PTX="$work/paging_kernels.ptx"
    for kept in gpu/kernels.ptx tests/gpu/paging_kernels.ptx; do
        for file in "$work/$(basename "$kept")" "$kept"; do
            sed -e 's|//.*||' -e 's/[[:space:]]\{1,\}/ /g' -e '/^ *$/d' "$file" >"$work/normal$([ "$file" = "$kept" ] || echo .made)"
        done
        cmp "$work/normal.made" "$work/normal" || return 1
    done
}

assembler_takes() {
    for kept in gpu/kernels.ptx tests/gpu/paging_kernels.ptx; do
        "$ptxas" -arch="$architecture" -o "$work/kernels.cubin" "$kept" || return 1
    done
}

if wanted code; then
    case $(clang --version 2>/dev/null | head -n 1) in
    *'version 14.'*) step 'the PTX in the tree is current' ptx_is_current ;;
    *) skip 'whether the PTX in the tree is current' 'no clang 14 here' ;;
    esac
    ptxas=$(PATH=$PATH:/usr/local/cuda/bin command -v ptxas || true)
    if [ -n "$ptxas" ]; then
        step "ptxas takes it for $architecture" assembler_takes
    else
        skip 'ptxas' 'none here (the driver assembles the kernels below)'
    fi
fi

# --- without a mount ---

if wanted own; then
    step "the GPU's own tests" "$build/tests/gpu/own" --pages "$pages"
fi

# --- with mounts ---

why=
python=
for candidate in /usr/bin/python3 python3; do
    if [ -z "$python" ] && "$candidate" -B -c 'import pytest' 2>/dev/null; then
        python=$candidate
    fi
done
[ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
if [ ! -c /dev/fuse ]; then
    why='no /dev/fuse here'
elif [ "$(id -u)" != 0 ]; then
    why='mounting needs root'
elif ! ./mount.gaiafs --version >/dev/null 2>&1; then
    why='mount.gaiafs does not start here (a library is missing?)'
fi
[ "$real" = 0 ] || export GAIA_REAL_GPU=1
why_no_tests=$why
[ -n "$why" ] || [ -n "$python" ] || why_no_tests='no pytest here'

if wanted mounts && [ -n "$why_no_tests" ]; then
    skip 'mounts' "$why_no_tests"
elif wanted mounts; then
    # shellcheck disable=SC2086
    step 'mounts' "$python" -B tests/mount/on_gpu.py ${GPU_MOUNT_TESTS:-}
    step 'kernels that end badly' "$python" -B tests/mount/on_gpu.py cuda_kernels
    step 'acquires and releases in the order of a stream' "$python" -B tests/mount/on_gpu.py cuda_order
fi

# paging_directly ARGUMENT...: paging.c on a mount of its own.
paging_directly() {
    data=$(mktemp -d "$work/data.XXXXXX")
    mnt=$(mktemp -d "$work/mnt.XXXXXX")
    ./mount.gaiafs -f "$data" "$mnt" >"$work/daemon" 2>&1 &
    daemon=$!
    tries=0
    until grep -q " $mnt " /proc/self/mountinfo; do
        tries=$((tries + 1))
        if [ "$tries" -gt 200 ] || ! kill -0 "$daemon" 2>/dev/null; then
            kill "$daemon" 2>/dev/null || true
            echo "no mount: $(cat "$work/daemon")"
            return 1
        fi
        sleep 0.1
    done
    ended=0
    timeout 400 "$build/tests/gpu/paging" "$@" "$mnt" || ended=$?
    umount "$mnt" || {
        umount -l "$mnt"
        ended=1
    }
    wait "$daemon" || ended=1
    cat "$work/daemon"
    return "$ended"
}

# why_no_nvcc: why what nvcc makes here would not run on this GPU by this driver; nothing: it would.
why_no_nvcc() {
    if [ -z "$nvcc" ]; then
        echo 'no nvcc here'
    elif [ "$real" = 0 ]; then
        echo 'the stand-in has threads for kernels'
    elif ! "$nvcc" --list-gpu-arch >"$work/knows" 2>&1; then
        echo "$nvcc does not work: $(tail -n 1 "$work/knows")"
    elif ! grep -qx "compute_${architecture#sm_}" "$work/knows"; then
        echo "nvcc here is older than the GPU: it does not know $architecture"
    else # of one major version programs run on each other's drivers
        made=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
        has=$(sed -n 's/.*driver of CUDA \([0-9]*\)\..*/\1/p' "$work/gpu" | head -n 1)
        [ "${made:-0}" -le "${has:-0}" ] || echo "nvcc here is newer than the driver: of CUDA $made, which has $has"
    fi
}

nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc || true)
no_nvcc=$(why_no_nvcc)
if wanted demand && [ -n "$why" ]; then
    skip 'demand' "$why"
elif wanted demand; then
    if [ -n "$no_nvcc" ]; then
        skip "demand: nvcc's kernels" "$no_nvcc"
    else
        step 'demand: nvcc' "$nvcc" -x cu -arch="$architecture" -std=c++17 -O3 -I. -cubin -o "$work/paging.cubin" \
            tests/gpu/paging_kernels.cc
        [ ! -e "$work/paging.cubin" ] || export GAIA_PAGING_KERNELS="$work/paging.cubin"
    fi
    if [ -n "$python" ]; then
        step 'demand' "$python" -B tests/mount/on_gpu.py cuda_paging
    else
        only=${GAIA_PAGING_ONLY-}
        [ -n "$only" ] || [ "$real" = 1 ] || only=' 4 KiB' # threads take long for a large unit
        step 'demand: paging.c, the kernels that are kept' paging_directly --only "$only"
        [ -z "${GAIA_PAGING_KERNELS-}" ] ||
            step "demand: paging.c, nvcc's kernels" paging_directly --only "$only" --kernels "$GAIA_PAGING_KERNELS"
        skip 'demand: the rest of tests/mount/test_cuda_paging.py' 'no pytest here'
    fi
fi

if wanted examples && [ -n "$why_no_tests" ]; then
    skip 'examples' "$why_no_tests"
elif wanted examples && [ "$real" = 0 ]; then
    step 'examples/cuda, built for the CPU' "$python" -B tests/mount/on_gpu.py cuda_examples
elif wanted examples && [ ! -x "$build/examples/nvcc/vector_add" ] && [ -n "$no_nvcc$missing" ]; then
    skip 'examples' "${no_nvcc:-packages are missing to build them}, and none were brought (make examples-cuda)"
elif wanted examples; then
    if [ -z "$no_nvcc$missing" ]; then
        step 'examples/cuda: nvcc' make CC=gcc -s -j"$(nproc)" examples examples-cuda NVCC="$nvcc"
    fi
    export GAIA_CUDA_EXAMPLES="$build/examples/nvcc"
    step 'examples/cuda' "$python" -B tests/mount/on_gpu.py cuda_examples
fi

[ ! -e "$work/failed" ] || sed 's/^/failed: /' "$work/failed"
awk '{p += $1; f += $2; s += $3} END {printf "%d passed, %d failed, %d skipped\n", p, f, s}' "$work/counts"
[ ! -e "$work/failed" ]
