# SPDX-License-Identifier: Apache-2.0
"""The exercise of tests/faults on a mount while calls fail: what is put in, what may be seen of it, and the kinds of mounts."""
import collections
import errno
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import conftest
import helpers
from helpers import ROWS, Plan, statistics, wait_until

PAGE = 4096
SHORT = -1
FAULTS = os.path.join(conftest.TOP, "tests", "faults")
SANITIZE = bool(os.environ.get("GAIAFS_SANITIZE"))

# What is put in; EIO where nothing is said.
ERRORS = {
    **dict.fromkeys(["malloc", "calloc", "realloc", "strdup", "posix_memalign", "mmap64"], [errno.ENOMEM]),
    **dict.fromkeys(["memfd_create", "open64", "openat64", "dup", "eventfd", "socket"], [errno.EMFILE]),
    "pwrite64": [errno.ENOSPC, errno.EIO, errno.EINTR, SHORT],
    "pread64": [errno.EIO, errno.EINTR, SHORT],
    "preadv64v2": [errno.EIO, errno.EINTR, SHORT],
    "pwritev64v2": [errno.ENOSPC],
    "copy_file_range": [errno.ENOSPC, SHORT],
    "completion": [errno.EIO, errno.ECANCELED, SHORT],
    "io_uring_submit": [errno.EAGAIN, errno.EBUSY],
    "pthread_create": [errno.EAGAIN],
    "recvmsg": [errno.EINTR, errno.ECONNRESET],
    "sendmsg": [errno.EINTR, errno.EPIPE],
    "poll": [errno.EINTR],
    "read": [errno.EINTR],
    "accept4": [errno.EMFILE, errno.ECONNABORTED],
    "ioctl": [errno.ENOMEM, errno.EBUSY],
    "syscall": [errno.ENOSYS],
}
# What the program may see instead: the connection ended, the file is none of gaiafs, the descriptor is none.
INSTEAD = {
    **dict.fromkeys(["recvmsg", "sendmsg", "pthread_create", "accept4"], {"ENOTCONN"}),
    "getsockopt": {"ENOTCONN", "ENETUNREACH"},  # the network namespace is not known
    "calloc": {"ENOTCONN"},  # a program for which there is no memory is turned away
    "ioctl": {"ENODEV", "ENOSYS", "EIO"},
    "fcntl64": {"EBADF", "EINVAL"},
    "readlink": {"EINVAL"},
}
# Nodes that can't talk to each other: what is at the other one can't be had, whatever the reason is.
BETWEEN_NODES = {"EIO", "ENOTCONN"}
# For a program in another network the daemon has to listen there.
BETWEEN_NETWORKS = {"ENETUNREACH", "ENOMEM", "EMFILE", "ENOTCONN"}
# Steps and rows where nobody is told, and what the step sees then: a file is root's if setfsuid() fails, which it can't.
UNHEARD = {("users", "syscall"): {"WRONG", "EPERM"}}
# write() is called for our own eventfds only, which can't fail; nothing could be told to a thread without them.
LEFT_OUT = {"write"}
# Those that are tried again for as long as they last; and without UFFDIO_WAKE nobody who waits can be told.
NOT_FOR_GOOD = {errno.EINTR, errno.EAGAIN, errno.EBUSY}
NOT_FOR_GOOD_ROWS = {"ioctl"}
# Pages that a touch of the step may have changed when it ended the process.
TOUCHED = {"store_and_release": {1, 2, 33}, "write_and_acquire": {2}, "second_device": {4}}

# The mounts that the exercise runs on. Words: which of its steps; env: the daemon's; gpu: the stand-in for one is there; nodes:
# two mounts are; passes: files in passthrough are seen; by_signal: ends by SIGTERM, as some have to.
Kind = collections.namedtuple("Kind", "options words env gpu nodes passes by_signal", defaults=({},) + (False,) * 4)
KINDS = {
    "usual": Kind("", []),
    "more": Kind("", ["more", "apart"]),
    "small": Kind("device_cache=512K,io=threads,evict=clock", ["more"], by_signal=True),
    "passed": Kind("passthrough=all", ["more"], {"GAIA_SOFT_COPY": "windows"}, passes=True),
    "asked": Kind("passthrough=on", ["more"], passes=True),
    "path": Kind("fault=local,device_cache=1M,passthrough=all,noatime", ["more"]),
    "gpu": Kind("device_cache=cuda:0=1856K,fault=local", ["more", "cuda"], gpu=True),
    "nodes": Kind("timeout=0", ["more"], nodes=True),
}
counter = itertools.count()


def environment(kind):
    """For the daemon and for the program."""
    if not kind.gpu:
        return {}
    # Its memory is none of the program's.
    return {"LD_LIBRARY_PATH": helpers.cuda_standin(), "GAIA_DEVICE": "cuda:0", "STANDIN_CUDA": "opaque=1"}


def options(kind, folder):
    """Of each mount."""
    if not kind.nodes:
        return [kind.options]
    prefix = f"gaiafs-test-{os.getpid()}-{next(counter)}"
    peers = os.path.join(folder, "peers")
    with open(peers, "w") as file:
        file.write("".join(f"{name}@local:{prefix}-{name}\n" for name in "ab"))
    return [f"node={name},peers={peers},{kind.options}" for name in "ab"]


def targets(pid):
    """What its descriptors are of, and how many of each; which files does not matter."""
    found = collections.Counter()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith("/") and not target.startswith("/memfd"):
            target = "file"
        found[re.sub(r":\[\d+\]$", "", target)] += 1
    return found


class Missing(Exception):
    """There are no such mounts here."""


class Run:
    """The exercise on mounts of a kind, with plans for the daemons and for the program."""

    def __init__(self, mount, workdir, monkeypatch, kind="usual"):
        self.folder, self.kind = os.path.join(workdir, f"run{next(counter)}"), KINDS[kind]
        os.mkdir(self.folder)
        daemon, env = helpers.daemon_with_faults(monkeypatch, os.path.join(self.folder, "daemon"))
        client = os.path.join(self.folder, "client")
        self.plans = {"daemon": daemon, "client": Plan.make(client)}
        self.environment = {**os.environ, **environment(self.kind), **helpers.client_with_faults(client)}
        self.mounts, self.words = [], list(self.kind.words)
        for text in options(self.kind, self.folder):
            self.mounts.append(mount(text, data=self.mounts[0].data if self.mounts else None,
                                     env={**environment(self.kind), **self.kind.env, **env}))
        if len(self.mounts) > 1:
            self.words.append(f"other={self.mounts[1].mnt}")
        self.mount = self.mounts[0]
        self.number, self.held, self.live = 0, None, None
        if self.kind.passes and not statistics(self.mount.mnt)["passthrough"]:
            raise Missing(f"no passthrough with Linux {os.uname().release}")

    def unmount(self):
        for m in self.mounts:
            if self.kind.by_signal:
                m.proc.terminate()
                m.proc.wait(20)
            problem = m.unmount()
            assert not problem, problem

    def exercise(self, who="daemon", row=0, error=0, number=1 << 60, sticky=0, site=0):
        """Runs it once; returns how often the fault landed, and how often the row was called."""
        self.number += 1
        folder = os.path.join(self.mount.mnt, str(self.number))
        os.mkdir(folder)
        log = os.path.join(self.folder, f"log{self.number}")
        plan = self.plans[who]
        before, live = plan.calls[row], self.plans["client"].live
        plan.arm(row, error, number, sticky, site)
        child = subprocess.Popen([sys.executable, "-B", os.path.join(FAULTS, "exercise.py"), folder, log, *self.words],
                                 env=self.environment, stderr=subprocess.PIPE, text=True)
        try:
            _, said = child.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            stacks = conftest.stacks(self.mount.proc.pid) + conftest.stacks(child.pid)
            plan.row = -1
            child.kill()
            child.communicate()
            pytest.fail(f"hangs\n{stacks}")
        landed, calls = plan.landed, plan.calls[row] - before
        plan.row = -1
        for m in self.mounts:
            assert m.proc.poll() is None, "the daemon ended: " + m.log_text()
        try:
            self.check(child.returncode, said, folder, log, landed and error, row)
            if not child.returncode:
                self.check_memory(self.plans["client"].live - live)
        finally:
            shutil.rmtree(folder)
        self.check_descriptors()
        return landed, calls

    def check(self, code, said, folder, log, error, row):
        assert code in (0, -signal.SIGBUS), said
        with open(log) as file:
            steps = file.read().split("\n")
        self.check_answers(steps, error, row, code)
        assert code or steps[-2] == "end", f"libgaia has left {steps[-2]}"
        for name in "fg":
            if os.path.exists(f"{log}.state.{name}"):
                self.check_bytes(folder, f"{log}.state.{name}", name, steps, code)
                os.unlink(f"{log}.state.{name}")

    def check_answers(self, steps, error, row, code):
        """error: that has landed; 0: none has."""
        bad = [step for step in steps if step.startswith("end ") and not self.is_good(*step.split()[1:3], error, ROWS[row])]
        assert not bad, bad
        assert error or not code

    def is_good(self, step, answer, error, row):
        if answer == "ok" or not error:
            return answer == "ok"
        if answer in INSTEAD.get(row, set()) | UNHEARD.get((step, row), set()) | {errno.errorcode.get(error), "BUS"}:
            return True
        return answer in (BETWEEN_NODES if self.kind.nodes else BETWEEN_NETWORKS if step == "in_another_network" else ())

    def check_bytes(self, folder, path, name, steps, code):
        with open(path, "rb") as file:
            state = file.read()
        pages = len(state) // (PAGE + 1)
        unsure = {page for page in range(pages) if state[pages * PAGE + page]}
        if code:
            last = [step.split()[1] for step in steps if step.startswith("begin ")][-1]
            unsure |= TOUCHED.get(last, set()) if name == "f" else set()
        if f"end {'create' if name == 'f' else 'large'} ok" not in steps:
            return
        below = os.path.join(self.mount.data, os.path.basename(folder), name)
        for path in (os.path.join(folder, name), below):
            if path == below and code:
                continue  # released, and not collected yet
            with open(path, "rb") as file:
                found = file.read().ljust(pages * PAGE, b"\0")
            lost = [page for page in range(pages) if page not in unsure
                    and found[page * PAGE:(page + 1) * PAGE] != state[page * PAGE:(page + 1) * PAGE]]
            assert not lost, f"{path}: pages {lost}"

    def check_memory(self, live):
        """What libgaia has not freed when the last device was closed; the first run says what it keeps."""
        self.live = live if self.live is None else self.live
        assert live <= self.live, f"libgaia has not freed {live - self.live} allocations"

    def check_descriptors(self):
        """The files are gone, and with them what the kernel knew: the daemon has what it had after the first run, or less. (Not
        with two nodes: nobody tells the other node's kernel that they are gone.)"""
        if self.kind.nodes:
            return
        if self.held is None:
            time.sleep(0.2)  # it hears of the end of a program
            # Its own userfaultfd is made when it is first needed (gpu/home_copy.c): in a run in which storage was late.
            self.held = targets(self.mount.pid) | collections.Counter({"anon_inode:[userfaultfd]": 1})
        try:
            wait_until(lambda: not targets(self.mount.pid) - self.held, 5)
        except AssertionError:
            pytest.fail(f"the daemon has kept descriptors: {dict(targets(self.mount.pid) - self.held)}")
