#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh NAME SECONDS: one fuzzer, or all of them one after the other (NAME: ''), each for so long. With clang's libFuzzer,
# where there is one: build/fuzz/NAME keeps the inputs that reach something new, for the next run. Else at random, under ASan.
set -eu

cd "$(dirname -- "$0")/../.."
name=$1
seconds=$2
names=$(for file in tests/fuzz/test_*.c; do basename "$file" .c; done | sed s/^test_//)
clang=${CLANG:-clang}
work=$(mktemp -d)
echo 'int LLVMFuzzerTestOneInput(const char *bytes, unsigned long size); int LLVMFuzzerTestOneInput(const char *bytes, unsigned long size) { return bytes && size > 9000; }' >"$work/probe.c"
guided=$("$clang" -fsanitize=fuzzer,address,undefined -o "$work/probe" "$work/probe.c" 2>/dev/null && echo yes || echo no)
rm -r "$work" # before anything that a Ctrl-C ends

# Many small files are mapped, and threads made: what a sanitizer keeps of those that have gone is bounded.
export ASAN_OPTIONS="quarantine_size_mb=16:${ASAN_OPTIONS:-detect_leaks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}"
for one in ${name:-$names}; do
    if [ "$guided" = yes ]; then
        make CC="$clang" SANITIZE=fuzz "build/$(basename "$clang")-fuzz/tests/fuzz/test_$one"
        mkdir -p "build/fuzz/$one"
        "build/$(basename "$clang")-fuzz/tests/fuzz/test_$one" -max_total_time="$seconds" -len_control=0 -max_len=1024 -timeout=60 -print_final_stats=1 -verbosity=1 \
            -artifact_prefix="build/fuzz/$one-" "build/fuzz/$one"
    else
        make CC=gcc SANITIZE=address "build/gcc-address/tests/fuzz/test_$one"
        "build/gcc-address/tests/fuzz/test_$one" --seconds "$seconds" --seed "$(date +%s)"
    fi
done
