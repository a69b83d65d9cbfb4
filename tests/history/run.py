#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The history checker: random programs on a real mount, then the question whether what they saw is allowed.

Every round mounts a folder of its own, runs `driver` with a seed, unmounts, lets `driver` read what the data directory
holds, and lets `checker` judge it all. A round prints one line; a last line says "N passed, N failed". README.md has more.
"""
import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
PAGE = 4096
DEVICES_MAX = 8  # of all nodes, history.h
sys.path.insert(0, os.path.join(TOP, "tests", "mount"))

from stacks import stacks  # noqa: E402


NAMES = "abc"
TURN = 16  # rounds: each turn of seeds begins with the kinds
UNITS = ["64K", "4K", "2M"]
CROWDED = (320, 320, 16)  # pages: ten times what a device of 256K holds
LARGE = (512, 512, 16)  # twice what one of 2M holds: ten times takes the checker too long


class Failure(Exception):
    """A round that found something, or could not be done."""


# --- what a round is -------------------------------------------------------------------------------------------------

class Kind:
    """What every run must have. wants: what is counted, and how much of it there is in 10,000 operations at the least; needs:
    what every worker does; mutes: what nobody does. evict: a policy, or any; then devices are crowded."""

    def __init__(self, name, wants, **more):
        self.name, self.wants, self.kills = name, wants, "kills" in wants
        self.needs, self.mutes, self.evict = (more.get(what, "") for what in ("needs", "mutes", "evict"))


EVICT = ["lra", "fifo", "clock"]
STORES = Kind("stores", {"stores": 100}, needs="sl", mutes="g")
# No advice: what DONTNEED drops is counted as evicted, too.
CROWDS = [Kind(f"stores-{evict}", {"stores": 100, "evictions": 500}, needs="slSLR", mutes="ga", evict=evict) for evict in EVICT]
KILLS = Kind("kills", {"kills": 5, "inside": 1}, mutes="s")
OTHERS = [Kind("kills-crowd", {"kills": 5, "inside": 1}, needs="SLR", mutes="s", evict="any"),
          Kind("cuts", {"truncations": 5}, needs="tp", mutes="s"),
          Kind("cuts-crowd", {"truncations": 5}, needs="tpSLR", mutes="s", evict="any")]


def keeps_size(args):
    """Whether files keep their size, as docs/limits.md has it: what is longer is SIGBUS elsewhere until its writer has closed the
    file, and for devices, if the file is passed through, until they acquire."""
    return args.nodes > 1 or re.search(r"\bpassthrough=(on|all)\b", args.options or "") is not None


def kinds(args):
    """The first rounds of a turn; the others are whatever their seed says. What is mapped on a GPU stays there."""
    if args.gpu:
        return [STORES, KILLS]
    return [STORES, *CROWDS, KILLS] + ([] if keeps_size(args) else OTHERS)


def kind_of(args, seed):
    here = kinds(args)
    return here[seed % TURN] if seed % TURN < len(here) else None


def kill_and_mute(args, rng, kind):
    """How often a process is killed, and what is not done: README.md, what CPU mappings are not mixed with."""
    kill = rng.choice([0, 150, 600, 3000])
    if kind:
        kill = rng.choice([150, 600]) if kind.kills else 0
    kill = kill if args.kill is None else args.kill
    mute = "s" if kill or rng.random() < 0.5 else "g"
    if kind and args.kill is None:
        mute = kind.mutes
    if args.gpu:  # a touch past the end of a file is no error there, and what it stores is lost
        mute += "tg"
    if keeps_size(args):
        mute = "sg" if kill else kind.mutes if kind else "g"
    return kill, mute if args.mute is None else args.mute


def options_of(args, seed):
    """What the seed says about a round: its kind, processes, devices, files, the mount's and the client's options."""
    rng, kind = random.Random(seed), kind_of(args, seed)
    kill, mute = kill_and_mute(args, rng, kind)
    sizes = rng.choice([(1, 1), (2, 1), (4, 2, 2), (16, 8), (63.75, 16, 8), (64, 96, 8), CROWDED])
    cache, evict, unit = rng.choice(["256K", "256K", "512K", "8M"]), rng.choice(EVICT), rng.choice(UNITS)
    if kind and kind.evict:
        cache, sizes = "256K", CROWDED
    if kind in CROWDS:  # each policy with another unit, and in the next turn with the next
        evict, unit = kind.evict, UNITS[(seed // TURN + seed % TURN) % len(UNITS)]
    if unit == "2M" and cache != "8M":  # a device holds one unit at the least
        cache = "2M"
    if cache == "2M" and sizes == CROWDED:
        sizes = LARGE
    return {
        "kind": kind.name if kind else "any",
        "mute": mute,
        "need": kind.needs if kind else "",
        "workers": args.workers or rng.randint(2, 6),
        "devices": args.devices or rng.randint(1, min(4, DEVICES_MAX // args.nodes)),
        "files": args.files or ",".join(str(int(pages * PAGE)) for pages in sizes),
        "kill": kill,
        "life": args.life or rng.choice([300, 3000, 1000000]),
        "cache": cache,
        "evict": evict,
        "unit": unit,
        "io": rng.choice(["uring", "threads"]),
        "trap": "0" if rng.random() < 0.15 else "1",
        "fault": rng.choice(["copy", "copy", "local"]),
        "nodes": args.nodes,
    }


# --- what hangs ------------------------------------------------------------------------------------------------------

def children_of(pid):
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(word) for word in file.read().split()]
    return found


def kill_one(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# --- a mount ---------------------------------------------------------------------------------------------------------

class Mount:
    """A gaiafs daemon of ours on a folder of ours."""

    def __init__(self, binaries, folder, options, env, number=0):
        self.data, self.mnt = os.path.join(folder, "data"), os.path.join(folder, f"mnt{number}")
        os.makedirs(self.data, exist_ok=True)
        os.mkdir(self.mnt)
        self.log = os.path.join(folder, f"daemon{number}.log")
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen([os.path.join(binaries, "mount.gaiafs"), "-f", self.data, self.mnt, "-o", options],
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=env)
        deadline = time.monotonic() + 20
        while not os.path.ismount(self.mnt):
            if self.proc.poll() is not None or time.monotonic() > deadline:
                kill_one(self.proc.pid)
                self.proc.wait()
                raise Failure(f"not mounted: {self.log_text()}")
            time.sleep(0.01)

    def log_text(self):
        with open(self.log, errors="replace") as file:
            return file.read()[-4000:]

    def evictions(self):
        """Pages that its devices dropped to make room, or were told to."""
        done = subprocess.run([os.path.join(TOP, "gaiactl"), "stat", "--json", self.mnt], capture_output=True, text=True,
                              timeout=20, check=False)
        if done.returncode:
            raise Failure(f"gaiactl: {done.stderr}")
        return sum(device["evictions"] for device in json.loads(done.stdout)["devices"])

    def unmount(self):
        """Raises Failure when it does not end as it must."""
        deadline = time.monotonic() + 20
        while subprocess.run(["umount", self.mnt], stderr=subprocess.DEVNULL, check=False).returncode:
            if time.monotonic() > deadline:
                self.drop()
                raise Failure("it can't be unmounted")
            time.sleep(0.05)
        try:
            code = self.proc.wait(30)
        except subprocess.TimeoutExpired:
            text = stacks(self.proc.pid)
            self.drop()
            raise Failure(f"the daemon does not end after the unmount\n{text}") from None
        if code:
            raise Failure(f"the daemon ended with {code}\n{self.log_text()}")

    def drop(self):
        """The last resort."""
        subprocess.run(["umount", "-l", self.mnt], stderr=subprocess.DEVNULL, check=False)
        kill_one(self.proc.pid)
        self.proc.wait()


# --- a round ---------------------------------------------------------------------------------------------------------

class Round:
    def __init__(self, args, seed, folder):
        self.args, self.seed, self.folder = args, seed, folder
        self.options = options_of(args, seed)
        self.logs = os.path.join(folder, "log")
        os.mkdir(self.logs)
        self.env = {**os.environ, "LD_LIBRARY_PATH": args.bin, "GAIA_SOFT_TRAP": self.options["trap"]}
        if args.gpu:
            self.env |= {"LD_LIBRARY_PATH": f"{args.bin}:{args.gpu}", "STANDIN_CUDA": "gpus=8", "GAIA_HISTORY_GPU": "1"}

    def drive(self, mounts):
        o = self.options
        command = [os.path.join(self.args.out, "driver"), *(word for m in mounts for word in ("--mount", m.mnt)),
                   "--log", self.logs, "--seed", str(self.seed), "--operations", str(self.args.round), "--workers", str(o["workers"]),
                   "--devices", str(o["devices"]), "--files", o["files"], "--kill", str(o["kill"]),
                   "--life", str(o["life"]), "--mute", o["mute"], "--need", o["need"]]
        driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, env=self.env, cwd="/")
        try:
            output, _ = driver.communicate(timeout=self.args.limit)
        except subprocess.TimeoutExpired:
            raise Failure(self.hang(driver, mounts)) from None
        if driver.returncode:
            ended = "".join(f"\nthe daemon of {m.mnt} has ended with {m.proc.returncode}: {m.log_text()}"
                            for m in mounts if m.proc.poll() is not None)
            raise Failure(f"driver ended with {driver.returncode}\n{output}{ended}")

    def hang(self, driver, mounts):
        workers = children_of(driver.pid)
        text = f"no end after {self.args.limit} s"
        for mount in mounts:
            text += f"\n--- daemon of {mount.mnt}:\n{stacks(mount.proc.pid)}"
        for pid in workers:
            text += f"\n--- worker {pid}:\n{stacks(pid)}"
        for pid in [driver.pid, *workers]:
            kill_one(pid)
        for mount in mounts:
            mount.drop()
        driver.wait()
        return text

    def judge(self):
        data = os.path.join(self.folder, "data")
        done = subprocess.run([os.path.join(self.args.out, "driver"), "--backing", data, "--log", self.logs],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.env,
                              timeout=self.args.limit, check=False)
        if done.returncode:
            raise Failure(f"the data directory can't be read: {done.stdout}")
        done = subprocess.run([os.path.join(self.args.out, "checker"), self.logs], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=10 * self.args.limit, check=False)
        if done.returncode:
            raise Failure(done.stdout)
        return done.stdout.strip()

    def demand(self, result):
        """A round of a kind has had what the kind is for: else a green run would say nothing of it."""
        kind, args = kind_of(self.args, self.seed), self.args
        instead = (args.kill, args.mute, args.files, args.workers, args.devices, args.life)
        if not kind or any(value is not None for value in instead):
            return
        for what, least in kind.wants.items():
            least = max(1, least * args.round // 10000)
            found = int(re.search(rf"\b{what} (\d+)", result)[1])
            if found < least:
                raise Failure(f"a round of {kind.name} had {found} {what}, not {least}: {result}")

    def run(self):
        o = self.options
        cache = "1G" if self.args.gpu else o["cache"]  # what is mapped on a GPU stays there
        options = f"device_cache={cache},evict={o['evict']},unit={o['unit']},io={o['io']},fault={o['fault']}"
        options += ",passthrough=off"  # whatever the default is with this libfuse
        options += f",{self.args.options}" if self.args.options else ""
        peers = "/".join(f"{NAMES[i]}@local:gaiafs-history-{os.getpid()}-{self.seed}-{i}" for i in range(o["nodes"]))
        mounts = []
        try:
            for number in range(o["nodes"]):
                of_node = f",node={NAMES[number]},peers={peers}" if o["nodes"] > 1 else ""
                mounts.append(Mount(self.args.bin, self.folder, options + of_node, self.env, number))
            self.drive(mounts)
            evictions = sum(mount.evictions() for mount in mounts)
            for mount in mounts:
                mount.unmount()
        finally:
            for mount in mounts:
                if mount.proc.poll() is None or os.path.ismount(mount.mnt):
                    mount.drop()
        result = f"evictions {evictions}, {self.judge()}"
        self.demand(result)
        return result


def keep(folder, args, seed):
    """The logs of a failure are kept (they are sparse); the folder's other contents are not."""
    target = os.path.join(args.keep, f"history-{seed}")
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(args.keep, exist_ok=True)
    subprocess.run(["cp", "-r", "--sparse=always", os.path.join(folder, "log"), target], check=True)
    return target


def one_round(args, seed):
    folder = tempfile.mkdtemp(prefix="history-", dir=args.dir)
    started = time.monotonic()
    said = None
    try:
        work = Round(args, seed, folder)
        said = " ".join(f"{name}={value}" for name, value in work.options.items())
        result = work.run()
        print(f"ok     seed {seed} ({time.monotonic() - started:.1f} s) {said}: {result}", flush=True)
        return True
    except (Failure, OSError, subprocess.SubprocessError) as error:
        lines = [""] + str(error).splitlines()
        print(f"FAILED seed {seed} ({time.monotonic() - started:.1f} s) {said}: "
              f"{lines[-1] if lines[-1].startswith('first:') else lines[1:2]}")
        print(error)
        print(f"logs: {keep(folder, args, seed)}; again: run.py --seed {seed} --operations {args.round} --round {args.round} "
              f"--nodes {args.nodes}{' --gpu build/gcc/cuda' if args.gpu else ''}", flush=True)
        return False
    finally:
        if not any(os.path.ismount(os.path.join(folder, f"mnt{number}")) for number in range(args.nodes)):
            shutil.rmtree(folder, ignore_errors=True)


def build(args):
    command = ["make", "-s", "-C", HERE, f"BIN={args.bin}", f"OUT={args.out}"]
    if args.cc:
        command.append(f"CC={args.cc}")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"run.py: {done.stdout}")
    done = subprocess.run([os.path.join(args.out, "checker"), "--cases", os.path.join(HERE, "cases.txt")],
                          stdout=subprocess.PIPE, text=True, check=False)
    print(f"the checker on histories by hand: {done.stdout.strip().splitlines()[-1]}", flush=True)
    if done.returncode:
        sys.exit(done.stdout)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--seed", type=int, help="the first round's seed (random, a multiple of 16); later rounds count on from it")
    add("--operations", type=int, default=100000, help="of all rounds together (100000)")
    add("--round", type=int, default=10000, help="operations of a round (10000)")
    add("--hours", type=float, help="go on for so long, and stop at the first failure")
    add("--until-failure", action="store_true", help="stop at the first failure")
    add("--bin", default=TOP, help="the folder of mount.gaiafs and libgaia.so (the top of the tree)")
    add("--out", default=os.path.join(TOP, "build", "history"), help="where driver and checker are built")
    add("--cc", help="the compiler")
    add("--dir", default=os.environ.get("GAIA_TEST_DIR", "/var/tmp"), help="where folders are mounted")
    add("--keep", default=os.path.join(tempfile.gettempdir(), "gaiafs-history"), help="where logs of failures go")
    add("--limit", type=float, default=60, help="seconds after which a round hangs (60)")
    for name in ("workers", "devices", "kill", "life"):
        add(f"--{name}", type=int, help="instead of what the seed says, see driver.c")
    add("--gpu", metavar="FOLDER", help="on GPUs: those of the stand-in libcuda.so.1 in this folder (build/gcc/cuda)")
    add("--nodes", type=int, choices=(1, 2, 3), default=1, help="mounts of one data directory, with one page cache (1)")
    add("--options", help="of the mounts, besides")
    add("--files", help="instead of what the seed says, see driver.c")
    add("--mute", help="operations that are not done, see worker.c; '': everything")
    args = parser.parse_args()
    args.bin, args.out = os.path.abspath(args.bin), os.path.abspath(args.out)
    args.gpu = args.gpu and os.path.abspath(args.gpu)
    if args.seed is None:
        args.seed = int.from_bytes(os.urandom(4), "little") // 2 // TURN * TURN
    return args


def main():
    args = parse()
    if os.geteuid():
        sys.exit("run.py: mounting needs root")
    build(args)
    print(f"seed {args.seed}", flush=True)
    deadline = time.monotonic() + 3600 * args.hours if args.hours else None
    passed = failed = 0
    while time.monotonic() < deadline if deadline else (passed + failed) * args.round < args.operations:
        if one_round(args, args.seed + passed + failed):
            passed += 1
        else:
            failed += 1
            if args.until_failure or deadline:
                break
    print(f"{(passed + failed) * args.round} operations: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
