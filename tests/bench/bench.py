#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make bench: what gaiafs costs, against a baseline measured in the same run, in turns.

Prints a table and writes build/bench.json (--save: tests/bench/results/DATE-MACHINE.json). Ends with 1 when bytes are
wrong, a program fails or a time limit expires, and never because something is slow.

GAIA_BENCH_DIR   where the data directory and the mount points are made (default: /var/tmp; a disk, 4 GiB free)
PASSTHROUGH_LL   libfuse's example passthrough_ll, the baseline of the CPU's reads and writes. Without it, one on the
                 PATH, or one that is built from the source that libfuse3-dev installs as documentation.
"""
import argparse
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time

import rows_gpu
import rows_one
import rows_many
from harness import GIB, TOP, Bench, Broken, print_table, say

ROWS = {**rows_one.ROWS, **rows_many.ROWS, **rows_gpu.ROWS}


# --- what was measured, and where -----------------------------------------------------------------------------------

def quiet_run(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=TOP)
    except FileNotFoundError:  # git, say
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_model():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.machine()


def describe(bench_folder):
    kernel = re.match(r"[\d.]+", platform.release())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    make = ["make", "-s", "--no-print-directory", "--eval=bench-flags:;@echo $(CC) $(CPPFLAGS) $(CFLAGS)",
            "bench-flags"]
    return {"date": datetime.date.today().isoformat(), "kernel": kernel[0] if kernel else platform.release(),
            "cpu": cpu_model(), "cores": os.cpu_count(), "memory_bytes": memory,
            "file_system": quiet_run(["stat", "-f", "-c", "%T", bench_folder]),
            "compiler": quiet_run(["cc", "--version"]).partition("\n")[0], "flags": quiet_run(make),
            "commit": quiet_run(["git", "describe", "--always", "--dirty", "--exclude=*"]),
            "load_at_start": os.getloadavg()[0]}


def result_path(args, machine):
    if not args.save:
        return os.path.join(TOP, "build", "bench.json")
    words = re.sub(r"\(R\)|\(TM\)|CPU|Processor|@.*", " ", machine["cpu"])
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "machine"
    gib = round(machine["memory_bytes"] / GIB)
    return os.path.join(TOP, "tests", "bench", "results", f"{machine['date']}-{name}-{machine['cores']}cpu-{gib}g.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", default="build/gcc", help="where the benchmarks were built")
    parser.add_argument("--bin", default=".", help="where mount.gaiafs, gaiactl and libgaia.so are")
    parser.add_argument("--only", action="append", choices=ROWS, metavar="NAME", help=f"one of: {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="three repetitions instead of five")
    parser.add_argument("--save", action="store_true", help="keep the results in tests/bench/results")
    args = parser.parse_args()
    if os.geteuid() != 0:
        say("mounting needs root")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows, broken = [], []
    with tempfile.TemporaryDirectory(prefix="gaiafs-bench-", dir=os.environ.get("GAIA_BENCH_DIR", "/var/tmp"),
                                     ignore_cleanup_errors=True) as folder:
        bench = Bench(args, os.path.realpath(folder))
        machine = describe(folder)
        for name in args.only or ROWS:
            start = time.monotonic()
            try:
                rows += ROWS[name](bench)
            except (Broken, OSError) as error:
                broken.append(f"{name}: {error}")
                say(f"BROKEN {broken[-1]}")
            say(f"{name}: {time.monotonic() - start:.1f} s")
        machine["load_at_end"] = os.getloadavg()[0]
    print_table(rows)
    path = result_path(args, machine)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump({"machine": machine, "repetitions": bench.repetitions, "rows": rows, "raw": bench.raw,
                   "broken": broken}, file, indent=1)
        file.write("\n")
    say(f"written to {os.path.relpath(path, TOP)}")
    for text in broken:
        say(f"BROKEN {text}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
