# SPDX-License-Identifier: Apache-2.0
"""What the cases share: running a program with a time limit, other users, seeds."""
import os
import random
import shutil
import subprocess

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Failed(Exception):
    """A program ended otherwise than it should (with this status), or left something wrong behind."""

    def __init__(self, text, status=None):
        super().__init__(text)
        self.status = status


class Missing(Exception):
    """A program that is not installed: the case is skipped."""


class Case:
    """One run of a program. mnt is a folder of the mount, plain one of the same filesystem beside it, both empty."""

    def __init__(self, name, work, limit_s=120):
        self.name, self.work, self.limit_s = name, work, limit_s
        self.mnt = self.plain = self.rng = None

    def prepare(self, mnt, plain, seed):
        self.mnt, self.plain, self.rng = mnt, plain, random.Random(f"{seed} {self.name}")


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Missing(program)


def run(*command, good=(0,), timeout=100, **kwargs):
    """Its standard output; Failed when it ends with another status than those."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, text=True, errors="replace", check=False, **kwargs)
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        raise Failed(f"{' '.join(command)}: not done after {timeout} s\n{output[-3000:]}") from None
    if good is not None and done.returncode not in good:
        raise Failed(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-3000:]}",
                     done.returncode)
    return done.stdout


def check(condition, what):
    if not condition:
        raise Failed(what)


def drop_caches():
    """What is read next comes from the daemon, and from below it."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1")
