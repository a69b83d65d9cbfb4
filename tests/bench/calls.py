#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an operation costs in system calls of the daemon: the rows of examples/fio under strace -c. As root.

    calls.py [ROW...]      open-close, create, rand-read-backing, ...; see examples/fio/run.sh --list

strace slows all down, so no rates are printed. docs/performance.md has the numbers.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(TOP, "examples", "fio"))

from columns import Bench, Broken  # noqa: E402
from rows import ROWS  # noqa: E402



class Counted:
    """strace attached to all threads of a process."""

    def __init__(self, pid, path):
        self.path = path
        self.proc = subprocess.Popen(["strace", "-f", "-c", "-qq", "-o", path, "-p", str(pid)],
                                     stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 10
        tasks = f"/proc/{pid}/task"
        while not all(self.traced(f"{tasks}/{task}/status") for task in os.listdir(tasks)):
            if time.monotonic() > deadline:
                raise OSError("strace does not attach")
            time.sleep(0.05)

    @staticmethod
    def traced(path):
        with open(path, encoding="ascii") as file:
            return re.search(r"^TracerPid:\t(\d+)", file.read(), re.M)[1] != "0"

    def end(self):
        """{call: how often}"""
        self.proc.terminate()
        self.proc.wait(10)
        with open(self.path, encoding="ascii") as file:
            lines = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ )? *(\w+)$", file.read(), re.M)
        return {name: int(count) for count, name in lines if name != "total"}


def count(bench, row, column):
    before = row.prepare(bench, column)
    if "resident_mount" not in before:  # names: what comes before the measured part is small beside it
        before = {}
    counted = Counted(bench.mounts[column].proc.pid, os.path.join(bench.folder, "strace"))
    try:
        operations = row.work(bench, column, 1)["operations"]
    finally:
        calls = counted.end()
    row.clean(bench, column)
    return operations, calls


def main():
    chosen = sys.argv[1:]
    rows = [row for row in ROWS if row.name in chosen or not chosen]
    folder = os.path.realpath(tempfile.mkdtemp(prefix="gaiafs-calls-", dir="/var/tmp"))
    try:
        with Bench(folder, quick=True) as bench:
            for row in rows:
                for column in (c for c in bench.mounts if row.applies(c)):
                    try:
                        operations, calls = count(bench, row, column)
                    except Broken as error:  # passthrough_ll and direct writes; see docs/performance.md
                        print(f"{row.name:<22}{column:<16}{str(error).splitlines()[0]}", flush=True)
                        continue
                    parts = sorted(((n / operations, name) for name, n in calls.items()), reverse=True)
                    print(f"{row.name:<22}{column:<16}{sum(calls.values()) / operations:6.2f}  " +
                          "  ".join(f"{name} {share:.2f}" for share, name in parts if share >= 0.05), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
