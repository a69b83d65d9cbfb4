# SPDX-License-Identifier: Apache-2.0
"""Mounts that pass files through to the data directory, for the tests of that."""
import os

import pytest

from helpers import statistics


def modes(m):
    """Of the open files: path -> mode."""
    return {file["path"]: file["mode"] for file in statistics(m.mnt)["open"]}


def mode(m, name="f"):
    return modes(m).get(name)


@pytest.fixture
def passing(mount):
    """A function that mounts; skips where the kernel can't pass files through. of: "all", or "on": not what programs open
    that use devices, as this one mostly does."""
    def start(options="", of="all", **more):
        m = mount(",".join(filter(None, (f"passthrough={of}", options))), **more)
        if not statistics(m.mnt)["passthrough"]:
            pytest.skip(f"no passthrough with Linux {os.uname().release}")
        return m
    return start


def open_map(device, path, length=None, flags=0):
    fd = os.open(path, os.O_RDWR)
    return device.mmap(fd, length or os.fstat(fd).st_size, flags=flags), fd


def program(agent, path, aside):
    """Another program, with the file open, mapped, and mapped without a descriptor."""
    agent.do("fd = os.open(path, os.O_RDWR)\nmapping = mmap.mmap(fd, 0)\n"
             "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.mmap.restype = ctypes.c_void_p\n"
             "once = os.open(path, os.O_RDWR)\nsize = os.fstat(once).st_size\n"
             "address = libc.mmap(None, ctypes.c_size_t(size), 3, mmap.MAP_SHARED, once, ctypes.c_long(0))\n"
             "os.close(once)\nclosed = memoryview((ctypes.c_ubyte * size).from_address(address)).cast('B')\n"
             "aside = os.open(other, os.O_RDWR | os.O_CREAT, 0o600)", path=path, other=aside)
    return agent
