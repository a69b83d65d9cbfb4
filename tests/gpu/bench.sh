#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What files on a GPU cost: sh tests/gpu/bench.sh [--sizes 1G,8G] [--repetitions N] [--only ROW,ROW...] [--output FILE]
# (as root, for the rows with mounts).
#
# Prints a table, and writes tests/bench/results/DATE-GPU.json. Baselines are measured in the same run, in turns: read() and
# cudaMemcpy from pinned memory, a plain copy of pinned memory, a kernel that pulls (zero-copy), managed memory (small sizes).
# Values are medians of at least five. What can't be measured says so. Needs NVIDIA's driver and no toolkit, and room for three
# files of the largest size in /var/tmp, or $GAIA_BENCH_DIR. Kernels of demand paging are those that nvcc makes for this GPU,
# where it is installed and the driver loads them (one that is older than the toolkit may not), and else those that clang has
# made, kept as PTX; the JSON says which. Rows are written as they are measured: a run that is killed leaves what it had.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$top"
if pkg-config --exists fuse3 liburing libxxhash jansson libibverbs librdmacm 2>/dev/null; then
    make CC=gcc -s -j"$(nproc)" all tools benches >/dev/null
elif [ ! -x build/gcc/tests/gpu/bench ]; then
    echo 'not built, and packages are missing to build it here (examples/packages.sh)' >&2
    exit 1
fi
nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc || true)
cubin=build/gcc/tests/gpu/paging_kernels.cubin
if [ -n "$nvcc" ] && [ -e /dev/nvidiactl ] &&
    "$nvcc" -x cu -arch=native -std=c++17 -O3 -I. -cubin -o "$cubin" tests/gpu/paging_kernels.cc; then
    set -- --kernels "$cubin" "$@"
fi
exec python3 -B tests/gpu/bench.py "$@"
