# SPDX-License-Identifier: Apache-2.0
"""Kills of daemons: at the calls that change something, and at random."""
import collections
import os
import random
import subprocess
import time

import oracle
from mounts import AFTER, BEFORE, TRIES, Failure, Mount, Site, Worker

PAGE = oracle.PAGE
FRAMES, FILE = 1, 2
DEVICES = ["soft:0", "soft:1", "soft:0"]
SIZES = {"fine": 6 * PAGE + 700, "coarse": 60 * PAGE + 123}
OPTIONS = "device_cache=256K"


def both(row, only=0, label=None):
    return [Site(row, when, only, label) for when in (BEFORE, AFTER)]


UFFD = {"CONTINUE": 0xC020AA07, "WRITEPROTECT": 0xC018AA06, "WAKE": 0x8010AA02}
# Where the daemon's state changes, the data directory's, a device's or the kernel's, and where somebody gets an answer.
DAEMON_SITES = [
    *both("pwrite64", FILE, "pwrite of the data directory"), *both("pwritev64v2"), *both("copy_file_range"),
    *both("fsync"), *both("fdatasync"), *both("ftruncate64", FILE, "ftruncate of the data directory"),
    *both("fallocate64", FILE, "fallocate of the data directory"), *both("futimens"),
    *both("pwrite64", FRAMES, "pwrite of frames"), *both("fallocate64", FRAMES, "punch of frames"),
    *both("ftruncate64", FRAMES, "resize of frames"), Site("pread64", BEFORE),
    *both("ioctl", UFFD["CONTINUE"], "UFFDIO_CONTINUE"), *both("ioctl", UFFD["WRITEPROTECT"], "UFFDIO_WRITEPROTECT"),
    Site("ioctl", BEFORE, UFFD["WAKE"], "UFFDIO_WAKE"), Site("read", AFTER),
    Site("io_uring_submit", BEFORE), Site("io_uring_submit", AFTER), Site("completion", AFTER),
    *both("fuse_lowlevel_notify_inval_inode"),
    *both("sendmsg", label="the answer to a client"), Site("recvmsg", AFTER),
    *both("openat64"), *both("renameat2"), *both("linkat"), *both("unlinkat"), *both("symlinkat"), *both("mkdirat"),
    *both("setxattr"), *both("chmod"),
    *(site for what in ("err", "buf", "write", "attr", "entry", "open", "create", "ioctl")
      for site in both(f"fuse_reply_{what}")),
]


# The io= or passthrough= without which a daemon makes no such call.
NEEDED = {"io_uring_submit": ",io=uring", "completion": ",io=uring", "pwritev64v2": ",passthrough=off"}


def name_of(site):
    return f"daemon, {site.name if site else 'at random'}"


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


class Tally:
    """What landed, and what failed."""

    def __init__(self):
        self.landed, self.failures = collections.Counter(), []
        self.elsewhere = collections.Counter()  # kills whose site was not reached, which so were at another moment
        self.inside = collections.Counter()  # what clients were doing
        self.operations = 0

    def add(self, other):
        self.landed.update(other.landed)
        self.elsewhere.update(other.elsewhere)
        self.inside.update(other.inside)
        self.operations += other.operations
        self.failures += other.failures


# --- the daemon is killed -------------------------------------------------------------------------------------------

class DaemonBatch:
    """Kills of daemons that follow each other on one data directory: what one has left is what the next one finds."""

    def __init__(self, args, seed, kills, folder):
        self.args, self.kills, self.folder = args, kills, folder
        self.rng = random.Random(seed)
        self.data = os.path.join(folder, "data")
        self.tally, self.reach = Tally(), {}
        self.mount = self.dead = None

    def populate(self):
        os.mkdir(self.data)
        for name, size in SIZES.items():
            with open(os.path.join(self.data, name), "wb") as file:
                file.write(self.rng.randbytes(size))
        for number in range(3):
            os.mkdir(os.path.join(self.data, f"names-{number}"))
            with open(os.path.join(self.data, f"own-{number}"), "wb") as file:
                file.write(self.rng.randbytes(5000))

    def snapshot(self, top):
        files = {name: read_file(os.path.join(top, name)) for name in
                 [*SIZES, *(f"own-{number}" for number in range(3))]}
        return files, [oracle.look(os.path.join(top, f"names-{number}")) for number in range(3)]

    def start(self, number, before, site=None):
        """Mounts what the last kill has left, the dead mount being there still or not, and looks at it."""
        if self.dead and number % 2:
            self.dead.unmount()
            self.dead = None
        self.mount = Mount(self.args.daemon, self.data, os.path.join(self.folder, f"mnt{number % 2}"), self.options(site),
                           os.path.join(self.folder, "plan"), os.path.join(self.folder, "daemon.log"))
        if self.dead:
            self.dead.unmount()
            self.dead = None
        if self.snapshot(self.mount.mnt) != before:
            raise Failure("the next mount shows other bytes than the data directory has")

    def options(self, site):
        options = "" if self.rng.random() < 0.6 else ",io=threads"
        return OPTIONS + (NEEDED.get(site.row, options) if site else options)

    def strike(self, site, workers):
        """Lets the kill land; returns whether it did where it should."""
        proc, plan = self.mount.proc, self.mount.plan
        if site is None:
            time.sleep(self.rng.random() * 0.06)
            proc.kill()
            self.mount.killed(False)
            return True
        reached = site.strike(plan, self.rng.randint(1, self.reach.get(site.name, 6)), workers,
                              lambda: proc.poll() is not None or all(worker.log.get(oracle.FULL) for worker in workers))
        if reached is not None:
            self.reach[site.name] = max(1, reached)
        if proc.poll() is None:
            plan.row = -1
            proc.kill()
            self.mount.killed(False)
            return plan.landed > 0
        self.mount.killed(True)
        return True

    def round(self, number, site, before):
        """A kill. Returns what is in the data directory after it, and whether it landed where it should."""
        self.start(number, before, site)
        workers = []
        try:
            for i, device in enumerate(DEVICES):
                workers.append(Worker(self.args.worker, self.folder, self.mount.mnt, i, str(i), device,
                                      self.rng.getrandbits(60), "daemon"))
            for worker in workers:
                worker.wait_ready()
            for worker in workers:
                worker.log.set(oracle.GO, 1)
            landed = self.strike(site, workers)
            self.dead, self.mount = self.mount, None
            for worker in workers:
                worker.wait_end()
            after = self.snapshot(self.data)
            self.judge(before, after, workers)
            (self.tally.landed if landed else self.tally.elsewhere)[name_of(site)] += 1
            return after, landed
        finally:
            for worker in workers:
                worker.close()

    def judge(self, before, after, workers):
        operations = [op for worker in workers for op in worker.operations()]
        self.tally.operations += len(operations)
        promises = oracle.Promises(operations, DEVICES)
        contents = {name: oracle.Content(data, oracle.OWN_BYTES if name.startswith("own") else len(data))
                    for name, data in before[0].items()}
        names = [oracle.Names(seen) for seen in before[1]]
        for op in operations:
            if op.file == oracle.FOLDER:
                names[op.worker].apply(op)
            else:
                name = {oracle.FINE: "fine", oracle.COARSE: "coarse"}.get(op.file, f"own-{op.worker}")
                contents[name].apply(op, promises.firm(op))
        problems = []
        for name, content in contents.items():
            problems += [f"{name}: {text}" for text in content.check(after[0][name])]
        for number in range(3):
            problems += [f"names-{number}: {text}" for text in names[number].check(after[1][number])]
        if problems:
            raise Failure(f"{len(problems)} wrong:\n" + "\n".join(problems[:12]))

    def run(self):
        self.populate()
        before, site = self.snapshot(self.data), None
        left, number = [(site, TRIES) for site in self.kills], 0
        try:
            while left:
                site, tries = left.pop(0)
                before, landed = self.round(number, site, before)
                number += 1
                if not landed and tries > 1:
                    left.append((site, tries - 1))
            site = "the last mount"
            self.start(number, before)  # what the last kill has left can be mounted, too
            self.mount.end()
            self.mount = None
            if self.snapshot(self.data) != before:
                raise Failure("an idle mount has changed the data directory")
        except (Failure, OSError, subprocess.SubprocessError) as problem:
            what = f"daemon, {site}" if isinstance(site, str) else name_of(site)
            self.tally.failures.append(f"{what}: {type(problem).__name__} {problem}")
        finally:
            for mount in (self.mount, self.dead):
                if mount:
                    mount.drop()
        return self.tally
