# SPDX-License-Identifier: Apache-2.0
"""Daemons with few descriptors, and what is left of what they knew; a daemon's descriptors."""
import ctypes
import os

import pytest

from helpers import write_file


def with_descriptors(number):
    """What to start the daemon with."""
    return {"before": ["prlimit", f"--nofile={number}:{number}"]}


@pytest.fixture
def small(mount):
    """A mount that keeps few descriptors."""
    return mount("timeout=0", **with_descriptors(256))


def limit_of(mounted):
    with open(f"/proc/{mounted.pid}/limits") as file:
        line = next(line for line in file if line.startswith("Max open files"))
    return int(line.split()[3])


def descriptors_of(pid, path):
    """What a process has open by this path, as descriptors of this process's own, too: they keep its locks when it dies."""
    libc, copies = ctypes.CDLL(None, use_errno=True), []
    process = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}") != path:
                continue
            copies.append(libc.syscall(ctypes.c_long(438), process, int(name), 0))  # pidfd_getfd
            assert copies[-1] >= 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(process)
    assert copies
    return copies


def table_of(pid):
    """For how many descriptors the kernel has room in a process's table."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("FDSize:"))


def churn(mounted, number=600):
    """Looks at so many other files that no descriptor from before is left, but for those that must be."""
    folder = os.path.join(mounted.data, "churn")
    if not os.path.isdir(folder):
        os.mkdir(folder)
        for i in range(number):
            write_file(os.path.join(folder, str(i)), b"")
    for i in range(number):
        path = os.path.join(mounted.mnt, "churn", str(i))
        os.stat(path)
        os.utime(path)  # reaches the daemon in any case
