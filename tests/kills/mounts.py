# SPDX-License-Identifier: Apache-2.0
"""Daemons, workers and plans of the kill runs: started, armed, waited for, never left behind."""
import contextlib
import os
import signal
import subprocess
import sys
import time

import oracle

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(TOP, "tests", folder) for folder in ("mount", "faults")]

from plan import ALL_ROWS, Plan  # noqa: E402
from stacks import stacks  # noqa: E402

BEFORE, AFTER = 1, 2
LIMIT_S = 15
ENOUGH = 400  # operations of a worker: more cost more time to judge than they are likely to show
PATIENCE_S = 0.6  # with a call that brings death
TRIES = 4  # of a kill that does not land at its site


class Failure(Exception):
    """A kill after which something was not as promised, or that could not be done."""


class Site:
    """A call in whose company death comes. only: the kind of its descriptor, or the request of an ioctl()."""

    def __init__(self, row, when, only=0, label=None):
        self.row, self.when, self.only = row, when, only
        self.name = f"{'before' if when == BEFORE else 'after'} {label or row}"

    def arm(self, plan, number, victim=0):
        plan.arm_kill(ALL_ROWS.index(self.row), self.when, number, self.only, victim)

    def strike(self, plan, number, workers, over, victim=0):  # pylint: disable=R0913,R0917
        """Waits for the death that call `number` brings, until it is over. Half of the time, or of what workers do, is for that
        call, and half for any. Returns how many calls there were for the first half; None: it came before its end."""
        self.arm(plan, number, victim)
        started, reached = time.monotonic(), None
        while not over() and time.monotonic() - started < PATIENCE_S:
            half = max(worker.log.get(oracle.COUNT) for worker in workers) > ENOUGH // 2
            if reached is None and (half or time.monotonic() - started > PATIENCE_S / 2):
                reached = number - plan.countdown
                plan.countdown = 1  # if it was striking just now, it may strike twice
            time.sleep(0.001)
        return reached


def wait_for(condition, what, seconds=LIMIT_S, step=0.0005):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failure(f"{what}: not after {seconds} s")
        time.sleep(step)


def is_mounted(path):
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        return any(line.split()[4] == path for line in file)


def tasks(pid):
    """Of a process that is dying, which gdb can't look at: the kernel's stacks."""
    text = ""
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/stack") as file:
            text += f"thread {task}:\n{file.read()}"
    return text


class Mount:
    """A gaiafs daemon of ours on folders of ours."""

    def __init__(self, program, data, mnt, options, plan_path, log):
        self.data, self.mnt, self.log = data, mnt, log
        os.makedirs(mnt, exist_ok=True)
        self.plan = Plan.make(plan_path)
        with open(log, "ab") as out:
            self.proc = subprocess.Popen([program, "-f", data, mnt, "-o", options], stdin=subprocess.DEVNULL,
                                         stdout=out, stderr=out, cwd="/",
                                         env={**os.environ, "GAIAFS_FAULTS": plan_path})
        try:
            wait_for(lambda: self.proc.poll() is not None or is_mounted(mnt), "the mount", step=0.001)
            if self.proc.poll() is not None:
                raise Failure(f"mount.gaiafs ended with {self.proc.returncode}: {self.log_text()}")
            os.stat(mnt)  # answers once the daemon serves
        except BaseException:
            self.drop()
            raise

    def log_text(self):
        with open(self.log, errors="replace") as file:
            return file.read()[-4000:]

    def killed(self, at_site):
        """The daemon has ended, by SIGKILL and by nothing else."""
        try:
            code = self.proc.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"the daemon does not end\n{tasks(self.proc.pid)}") from None
        if code != -signal.SIGKILL:
            raise Failure(f"the daemon ended with {code} instead of SIGKILL: {self.log_text()}")
        if at_site and not self.plan.landed:
            raise Failure("it was killed, but not at the site")

    def unmount(self):
        """umount(8), as users do it: of a dead mount, too."""
        for _ in range(40):
            done = subprocess.run(["umount", self.mnt], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            time.sleep(0.05)
        raise Failure(f"it can't be unmounted: {done.stderr.strip()}")

    def end(self):
        """Unmounts a living one."""
        self.unmount()
        try:
            code = self.proc.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"the daemon does not end after the unmount\n{stacks(self.proc.pid)}") from None
        if code:
            raise Failure(f"the daemon ended with {code}: {self.log_text()}")

    def drop(self):
        """The last resort."""
        if self.proc.poll() is None:
            self.proc.kill()
        # Forced: it aborts the connection, on which a killed daemon may hang itself.
        subprocess.run(["umount", "-f", self.mnt], stderr=subprocess.DEVNULL, check=False)
        while is_mounted(self.mnt):
            if subprocess.run(["umount", "-l", self.mnt], stderr=subprocess.DEVNULL, check=False).returncode:
                break
        self.proc.wait()


class Worker:
    """A process of worker.c."""

    def __init__(self, program, folder, mnt, number, tag, device, seed, role, env=None):
        self.number, self.tag, self.device = number, tag, device
        self.log = oracle.Log(os.path.join(folder, f"log-{tag}"))
        self.log.set(oracle.LIMIT, ENOUGH)
        self.said = os.path.join(folder, f"said-{tag}")
        with open(self.said, "wb") as said:
            self.proc = subprocess.Popen([program, mnt, self.log.path, str(number), tag, device, str(seed), role],
                                         stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd="/",
                                         env={**os.environ, "LD_LIBRARY_PATH": TOP, **(env or {})})

    def text(self):
        with open(self.said, errors="replace") as file:
            return file.read().strip()

    def ended(self):
        return self.proc.poll() is not None

    def wait_ready(self):
        wait_for(lambda: self.log.get(oracle.READY) or self.ended(), f"worker {self.tag} is ready")
        if self.ended():
            raise Failure(f"worker {self.tag} ended with {self.proc.returncode}: {self.text()}")

    def order(self, want):
        self.log.set(oracle.WANT, want)

    def wait_order(self, want, daemon=None):
        try:
            wait_for(lambda: self.log.get(oracle.HAVE) == want or self.ended(), f"worker {self.tag} does {want}")
        except Failure as late:
            raise Failure(f"{late}\n{stacks(self.proc.pid)}\n{stacks(daemon) if daemon else ''}") from None
        if self.ended() and want != oracle.END:
            raise Failure(f"worker {self.tag} ended with {self.proc.returncode}: {self.text()}")

    def wait_end(self, expected=0):
        try:
            code = self.proc.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"worker {self.tag} hangs\n{stacks(self.proc.pid)}") from None
        if code != expected:
            raise Failure(f"worker {self.tag} ended with {code} instead of {expected}: {self.text()}")

    def operations(self):
        return list(self.log.operations(self.number))

    def close(self):
        if self.proc.poll() is None:
            self.proc.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.proc.wait(5)
        with contextlib.suppress(OSError):
            self.log.close()
            os.unlink(self.said)
