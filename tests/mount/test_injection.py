# SPDX-License-Identifier: Apache-2.0
"""Every call that can fail does: each system call, allocation, completion and socket operation of the daemon and of
libgaia, the 1st time, the 2nd ..., once or from then on, while a program does a bit of everything (tests/faults). Of many
calls of one row the first four and two others, drawn anew each time; all of them with GAIA_TEST_ALL_CALLS=1.

No crash, no leak (with a sanitizer), no hang; the program sees the errno that was put in, or one that says the same in
terms of the call; and nothing that was answered is lost, neither through the mount nor in the data directory.
"""
import errno
import os
import platform
import random
import signal
import subprocess
import sys
import time

import pytest

import conftest
import helpers
from helpers import ROWS, Plan

PAGE = 4096
PAGES = 64
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
# write() is called for our own eventfds only, which can't fail; nothing could be told to a thread without them.
LEFT_OUT = {"write"}
# Those that are tried again for as long as they last; and without UFFDIO_WAKE nobody who waits can be told.
NOT_FOR_GOOD = {errno.EINTR, errno.EAGAIN, errno.EBUSY}
NOT_FOR_GOOD_ROWS = {"ioctl"}
# Pages that a touch of the step may have changed when it ended the process.
TOUCHED = {"store_and_release": {1, 2, 33}, "write_and_acquire": {2}, "second_device": {4}}


class Run:
    """The exercise on a mount, with plans for the daemon and for the program."""

    def __init__(self, mount, workdir, monkeypatch):
        self.folder = workdir
        daemon, env = helpers.daemon_with_faults(monkeypatch, os.path.join(workdir, "daemon"))
        self.plans = {"daemon": daemon, "client": Plan.make(os.path.join(workdir, "client"))}
        self.environment = {**os.environ, **helpers.client_with_faults(os.path.join(workdir, "client"))}
        self.mount = mount(env=env)
        self.number = 0

    def exercise(self, who, row, error, number, sticky):
        """Runs it once; returns how often the fault landed, and how often the row was called."""
        self.number += 1
        folder = os.path.join(self.mount.mnt, str(self.number))
        os.mkdir(folder)
        log = os.path.join(self.folder, f"log{self.number}")
        plan = self.plans[who]
        before = plan.calls[row]
        plan.arm(row, error, number, sticky)
        child = subprocess.Popen([sys.executable, "-B", os.path.join(FAULTS, "exercise.py"), folder, log],
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
        assert self.mount.proc.poll() is None, "the daemon ended: " + self.mount.log_text()
        assert child.returncode in (0, -signal.SIGBUS), said
        with open(log) as file:
            steps = file.read().split("\n")
        self.check_answers(steps, error, row, landed, child.returncode)
        self.check_bytes(folder, log, steps, child.returncode)
        return landed, calls

    def check_answers(self, steps, error, row, landed, code):
        good = {"ok", errno.errorcode.get(error)} | INSTEAD.get(ROWS[row], set())
        bad = [step for step in steps if step.startswith("end ") and step.split()[2] not in good]
        assert not bad, bad
        if not landed:
            assert code == 0 and all(step.split()[2] == "ok" for step in steps if step.startswith("end "))

    def check_bytes(self, folder, log, steps, code):
        with open(log + ".state", "rb") as file:
            state = file.read()
        unsure = {page for page in range(PAGES) if state[PAGES * PAGE + page]}
        if code:
            last = [step.split()[1] for step in steps if step.startswith("begin ")][-1]
            unsure |= TOUCHED.get(last, set())
        if "end create ok" not in steps:
            return
        below = os.path.join(self.mount.data, os.path.basename(folder), "f")
        for path in (os.path.join(folder, "f"), below):
            if path == below and code:
                continue  # released, and not collected yet
            with open(path, "rb") as file:
                found = file.read().ljust(PAGES * PAGE, b"\0")
            lost = [page for page in range(PAGES) if page not in unsure
                    and found[page * PAGE:(page + 1) * PAGE] != state[page * PAGE:(page + 1) * PAGE]]
            assert not lost, f"{path}: pages {lost}"


@pytest.mark.skipif(SANITIZE, reason="a sanitizer calls what it likes")
def test_every_call_has_a_row():
    """Or a reason for having none: who adds a call is reminded."""
    if platform.libc_ver()[1] != "2.36":
        pytest.skip("another C library than Debian 12's has other names for them")
    called = set()
    for name, dynamic in (("mount.gaiafs", []), ("libgaia.so", ["-D"])):
        done = subprocess.run(["nm", "-u", "--without-symbol-versions", *dynamic, os.path.join(helpers.BIN, name)],
                              capture_output=True, text=True, check=True)
        called |= {line.split()[1] for line in done.stdout.splitlines()}
    with open(os.path.join(FAULTS, "without_rows.txt")) as file:
        without = {word for line in file if line[0] not in "#[\n" for word in line.split()}
    rows = set(helpers.ALL_ROWS)
    assert called - rows - without == set()
    assert without & rows == set()


def numbers(calls, rng):
    """Which calls of so many fail: the first ones, and some of the others."""
    if os.environ.get("GAIA_TEST_ALL_CALLS"):
        return range(1, calls + 1)
    first, more = (2, 1) if SANITIZE else (4, 2)
    few = list(range(1, min(calls, first) + 1))
    rest = range(first + 1, calls + 1)
    return few + sorted(rng.sample(rest, min(more, len(rest))))


def walk(mount, workdir, monkeypatch, who, row):
    rng = random.Random(helpers.make_random().random())
    number = ROWS.index(row)
    run = Run(mount, workdir, monkeypatch)
    # An injected failure at the very end shall not be left to the next run: what a run does it has done.
    _, calls = run.exercise(who, number, 0, 1 << 60, 0)
    if not calls:
        pytest.skip("the exercise does not call it")
    landed = 0
    for error in ERRORS.get(row, [errno.EIO]):
        plan = [(n, 0) for n in numbers(calls, rng)]
        if error not in NOT_FOR_GOOD and row not in NOT_FOR_GOOD_ROWS:
            plan.append((1, 1))
        for n, sticky in plan:
            try:
                landed += run.exercise(who, number, error, n, sticky)[0] > 0
            except (AssertionError, pytest.fail.Exception) as problem:
                raise AssertionError(f"{row}() number {n}: {errno.errorcode.get(error, 'short')}"
                                     f"{', from then on' * sticky}: {problem}") from None
    if not landed:  # it is called once by each thread, and all threads had called it already
        os.mkdir(os.path.join(workdir, "anew"))
        error = ERRORS.get(row, [errno.EIO])[0]
        landed, _ = Run(mount, os.path.join(workdir, "anew"), monkeypatch).exercise(who, number, error, 1, 0)
    assert landed, "no failure has landed"


walks = pytest.mark.limit(3600 if os.environ.get("GAIA_TEST_ALL_CALLS") else 300)
every_row = pytest.mark.parametrize("row", [name for name in ROWS if name not in LEFT_OUT])


@walks
@every_row
def test_a_call_that_fails(mount, workdir, monkeypatch, row):
    walk(mount, workdir, monkeypatch, "daemon", row)


@walks
@pytest.mark.whole  # a half of it would be left to the lane with a sanitizer, which has none of it
@pytest.mark.skipif(SANITIZE, reason="the program is the same")
@every_row
def test_a_call_of_libgaia_that_fails(mount, workdir, monkeypatch, row):
    walk(mount, workdir, monkeypatch, "client", row)


def start_and_stop(run_folder, plan, plan_path, program):
    """mount.gaiafs from its start to its end: (exit code, what it said, whether it was mounted)."""
    data, mnt = os.path.join(run_folder, "data"), os.path.join(run_folder, "mnt")
    log = os.path.join(run_folder, "log")
    with open(log, "wb") as out:
        proc = subprocess.Popen([program, "-f", data, mnt], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
                                env={**os.environ, "GAIAFS_FAULTS": plan_path})
    watch = conftest.watchdog()
    deadline = time.monotonic() + 15
    was_mounted = False
    try:
        while proc.poll() is None and time.monotonic() < deadline:
            mounted = conftest.mountinfo(mnt)
            if not was_mounted and mounted:
                watch.tell(f"mount {proc.pid} {mounted[0]}")
                try:
                    names = os.listdir(mnt)
                except OSError as problem:
                    # Mounted, but the daemon ends before it serves; or this very request has failed.
                    assert problem.errno in (errno.ENOTCONN, errno.ECONNABORTED) or plan.landed, problem
                else:
                    if not names and plan.landed and not conftest.mountinfo(mnt):
                        continue  # unmounted again between the two looks: this is what lies below
                    plan.row = -1
                    was_mounted = True
                    assert names == ["file"]
                    subprocess.run(["umount", mnt], check=True, capture_output=True)
            time.sleep(0.005)
        if proc.poll() is None:
            pytest.fail(f"hangs\n{conftest.stacks(proc.pid)}")
        assert not conftest.mountinfo(mnt), "left mounted"
    finally:
        plan.row = -1
        if proc.poll() is None:
            proc.kill()
            proc.wait()
        if conftest.mountinfo(mnt):
            subprocess.run(["umount", "-l", mnt], check=False)
    with open(log, errors="replace") as file:
        return proc.returncode, file.read(), was_mounted


@pytest.mark.limit(200)
@every_row
def test_a_call_that_fails_at_the_start(workdir, row):
    """It serves all the same (with less, and a word about it), or it ends with a message and leaves nothing mounted."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no mounts here")
    os.mkdir(os.path.join(workdir, "data"))
    os.mkdir(os.path.join(workdir, "mnt"))
    with open(os.path.join(workdir, "data", "file"), "wb"):
        pass
    program = os.path.join(helpers.faults_folder(), "mount.gaiafs")
    path = os.path.join(workdir, "plan")
    plan = Plan.make(path)
    number = ROWS.index(row)
    code, said, mounted = start_and_stop(workdir, plan, path, program)
    assert code == 0 and mounted, said
    calls = plan.calls[number]
    if not calls:
        pytest.skip("not called")
    for error in ERRORS.get(row, [errno.EIO])[:2]:
        for n in numbers(calls, random.Random(helpers.make_random().random())):
            plan.arm(number, error, n, 0)
            code, said, mounted = start_and_stop(workdir, plan, path, program)
            where = f"{row}() number {n}: {errno.errorcode.get(error, 'short')}: exit code {code}: {said}"
            if mounted:
                assert code == 0, where
            else:
                assert code == 1 and said.strip(), where


def test_a_guard_that_cannot_end_the_connection(workdir):
    """The mount works without it, and says so."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no mounts here")
    for name in ("data", "mnt", "data/file"):
        os.mkdir(os.path.join(workdir, name))
    path = os.path.join(workdir, "plan")
    plan = Plan.make(path)
    plan.arm(ROWS.index("syscall"), errno.ENOSYS, 3, 0)  # capget() and close_range() come before fsopen()
    code, said, mounted = start_and_stop(workdir, plan, path, os.path.join(helpers.faults_folder(), "mount.gaiafs"))
    if not plan.landed:
        pytest.skip("fusectl is mounted here: nothing that can fail")
    assert code == 0 and mounted and "no guard" in said, said
