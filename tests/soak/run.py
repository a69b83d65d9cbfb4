#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A long life: names, bytes and devices for hours on one mount, whose daemon must not grow.

Every few seconds the players stop, what is left on devices is pushed out by a file that is then deleted, the kernel is made to
forget what nobody uses (a remount does that), and the daemon is looked at: memory, descriptors, threads, what it still knows for the kernel, and the kernel's own slabs of this filesystem.
Flat means: the median memory of the last third of the samples is at most 5 % above that of the second third (the first is for
warming up), and whatever can be counted is the same at the end of both. The last line is "N passed, N failed".
"""
import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, "tests", "mount")]

import helpers  # noqa: E402
from stacks import stacks  # noqa: E402
from test_leaks import remount  # noqa: E402

CAPACITY = 256 << 10  # of each device
# Pages of others stay on a device until there is no room for them, and their files known: how many is chance.
SWEEP = """
import os, sys
import gaia
path, size = sys.argv[1], int(sys.argv[2])
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.truncate(fd, size)
for number in range(4):
    device = gaia.Device(f"soft:{number}")
    mapping = device.mmap(fd, size)
    for at in range(0, size, 4096):
        mapping[at]
    mapping.unmap()
    device.close()
os.unlink(path)
"""
PLAYERS = ("names", "names", "bytes", "bytes", "devices", "devices")


class Failure(Exception):
    """What ends the run."""


def slab(name):
    """Objects of a kind in the kernel, of all mounts of the machine; 0 where it is not told."""
    try:
        with open("/proc/slabinfo", encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(name + " "))
    except OSError:
        return 0


def sample(pid, mnt):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        status = dict(line.split(":", 1) for line in file)
    told = helpers.statistics(mnt)
    return {"memory_kb": int(status["RssAnon"].split()[0]), "threads": int(status["Threads"]),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")), **told["kernel"],
            "files": len(told["files"]), "fuse_inode": slab("fuse_inode")}


class Soak:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.data, self.mnt, self.log = (os.path.join(folder, name) for name in ("data", "mnt", "log"))
        os.mkdir(self.data)
        os.mkdir(self.mnt)
        self.players, self.turns, self.samples = [], 0, []
        options = ",".join(filter(None, (f"device_cache={CAPACITY >> 10}K", args.options)))
        with open(self.log, "wb") as log:
            self.daemon = subprocess.Popen([os.path.join(args.bin, "mount.gaiafs"), "-f", self.data, self.mnt, "-o", options],
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self):
        helpers.wait_until(lambda: os.path.ismount(self.mnt) or self.daemon.poll() is not None, 20, "the mount")
        if self.daemon.poll() is not None:
            raise Failure("there is no mount")
        rng = random.Random(self.args.seed)
        for kind in PLAYERS:
            self.players.append(subprocess.Popen(
                [sys.executable, "-B", os.path.join(HERE, "load.py"), kind, self.mnt, str(rng.randrange(1 << 30))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "GAIAFS_BIN": self.args.bin}))

    def play(self, seconds):
        for player in self.players:
            player.stdin.write(f"{seconds}\n")
            player.stdin.flush()
        signal.alarm(int(seconds) + self.args.limit)
        for player in self.players:
            line = player.stdout.readline()
            if not line:
                raise Failure(f"a player ended with {player.wait()}")
            self.turns += int(line)
        signal.alarm(0)

    def sweep(self):
        env = {**os.environ, "GAIAFS_BIN": self.args.bin, "PYTHONPATH": os.path.join(TOP, "tests", "mount")}
        subprocess.run([sys.executable, "-B", "-c", SWEEP, os.path.join(self.mnt, "sweep"), str(CAPACITY)], env=env, check=True,
                       timeout=60)

    def look(self):
        self.sweep()
        for _ in range(100):
            remount(self.mnt)
            before = helpers.statistics(self.mnt)["kernel"]
            time.sleep(0.05)
            if helpers.statistics(self.mnt)["kernel"] == before:
                break
        self.samples.append(sample(self.daemon.pid, self.mnt))
        if self.args.verbose:
            print(f"{self.turns} turns: {self.samples[-1]}", flush=True)

    def end(self):
        """Ends the players in the middle of things, unmounts, and says what was wrong."""
        for player in self.players:
            player.kill()
            player.communicate()
        deadline = time.monotonic() + 20
        while os.path.ismount(self.mnt) and subprocess.run(["umount", self.mnt], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                subprocess.run(["umount", "-l", self.mnt], check=False)
                raise Failure("it can't be unmounted")
            time.sleep(0.1)
        try:
            code = self.daemon.wait(60)
        except subprocess.TimeoutExpired:
            text = stacks(self.daemon.pid)
            self.daemon.kill()
            raise Failure(f"the daemon does not end after the unmount\n{text}") from None
        with open(self.log, encoding="utf-8", errors="replace") as file:
            text = file.read().strip()
        if code or text:
            raise Failure(f"the daemon ended with {code}, and logged: {text[-2000:]}")


def judge(samples, tolerance):
    """What is not flat, and a line that says what it was."""
    third = len(samples) // 3
    middle, last = samples[third:2 * third], samples[-third:]
    problems, parts = [], []
    before, after = (statistics.median(s["memory_kb"] for s in part) for part in (middle, last))
    parts.append(f"memory {before / 1024:.1f} -> {after / 1024:.1f} MiB ({(after / before - 1) * 100:+.1f} %)")
    if after > before * (1 + tolerance / 100):
        problems.append("memory grows")
    for name in ("descriptors", "threads", "inodes", "lookups", "open", "files"):
        least = [min(s[name] for s in part) for part in (middle, last)]  # what nothing under way adds to
        parts.append(f"{name} {least[0]} -> {least[1]}")
        # In few samples something is always under way: only what leaks at every turn is seen then.
        if least[1] > least[0] + (0 if len(samples) > 100 else 16) and name != "threads":
            problems.append(f"{name} grow")
    return problems, ", ".join(parts)


def expired(_signal, _frame):
    raise Failure("a player does not answer")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--bin", default=TOP, help="where mount.gaiafs and gaiactl are")
    parser.add_argument("--options", default="", help="of the mount, as after -o")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("GAIA_TEST_SEED", "0")) or
                        int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--limit", type=int, default=120, help="seconds that a player may be late")
    parser.add_argument("--tolerance", type=float, default=5, help="percent that memory may grow by (5)")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    seconds = (args.hours * 60 + args.minutes) * 60 or 60
    print(f"soak: {seconds:.0f} s, GAIA_TEST_SEED={args.seed}", flush=True)
    signal.signal(signal.SIGALRM, expired)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = os.path.realpath(tempfile.mkdtemp(prefix="gaiafs-soak-", dir=os.environ.get("GAIA_TEST_DIR", "/var/tmp")))
    problems, text = [], ""
    try:
        soak = Soak(args, folder)
        try:
            soak.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                soak.play(max(1, min(20, seconds / 30)))
                soak.look()
        except (Failure, OSError, AssertionError, subprocess.SubprocessError) as error:
            problems.append(f"{error}\n{stacks(soak.daemon.pid)}")
        finally:
            signal.alarm(0)
            try:
                soak.end()
            except Failure as error:
                problems.append(str(error))
        if not problems:
            problems, text = judge(soak.samples, args.tolerance)
        print(f"soak: {soak.turns} turns, {len(soak.samples)} samples: {text}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for problem in problems:
        print(f"FAILED: {problem}")
    print(f"{0 if problems else 1} passed, {1 if problems else 0} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
