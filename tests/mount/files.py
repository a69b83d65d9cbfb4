# SPDX-License-Identifier: Apache-2.0
"""Files of a mount and mappings of them, in the process of the test."""
import errno
import mmap
import os
import random
import subprocess

import pytest

import gaia
from helpers import PAGE, read_direct, read_file, write_file


def pattern(size, seed=1):
    return random.Random(seed).randbytes(size)


def make(m, content, name="f"):
    """A file of the mount, with its data directory's cache as a program leaves it; returns its path."""
    path = os.path.join(m.mnt, name)
    write_file(path, content)
    return path


class Opened:
    """A file of the mount and a mapping of it on a device of this process."""

    def __init__(self, device, path, length=None, flags=0, offset=0, prot=gaia.PROT_READ | gaia.PROT_WRITE):
        self.fd = os.open(path, os.O_RDWR if prot & gaia.PROT_WRITE else os.O_RDONLY)
        self.map = device.mmap(self.fd, length or os.fstat(self.fd).st_size, prot, flags, offset)

    def close(self):
        self.map.unmap()
        os.close(self.fd)


def open_map(device, path, length=None, prot=gaia.PROT_READ | gaia.PROT_WRITE, offset=0):
    """A mapping of a file whose descriptor is closed again."""
    fd = os.open(path, os.O_RDWR)
    try:
        return device.mmap(fd, length or os.fstat(fd).st_size, prot, 0, offset)
    finally:
        os.close(fd)


def everyone_reads(m, name, content, *maps):
    """read(), O_DIRECT, a new mapping and the backing file after fsync() agree; so do acquired device mappings."""
    path = os.path.join(m.mnt, name)
    assert read_file(path) == content
    if content:
        fd = os.open(path, os.O_RDONLY)
        with mmap.mmap(fd, len(content), prot=mmap.PROT_READ) as mapping:
            assert mapping[:] == content
        os.fsync(fd)
        os.close(fd)
    assert read_direct(path, len(content)) == content
    assert read_file(os.path.join(m.data, name)) == content
    for mapping in maps:
        mapping.acquire()
        assert mapping[:len(content)] == content


def mount_ext4(workdir, size, *options, how="loop"):
    """A folder with a new ext4 in a file. options: mkfs.ext4's; how: mount's."""
    folder, image = os.path.join(workdir, "ext4"), os.path.join(workdir, "image")
    os.mkdir(folder)
    with open(image, "wb") as file:
        file.truncate(size)
    done = subprocess.run(["mkfs.ext4", "-q", *options, image], capture_output=True, text=True)
    if not done.returncode:
        done = subprocess.run(["mount", "-o", how, image, folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no ext4 in a file here: {done.stderr}")
    return folder


def mount_tmpfs(workdir, size):
    """A folder with a new tmpfs of so many bytes."""
    folder = os.path.join(workdir, "tmpfs")
    os.mkdir(folder)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr}")
    return folder


def fill(folder):
    """Until nothing goes in; returns the ballast's path."""
    path = os.path.join(folder, "ballast")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for size in (65536, PAGE):
        try:
            while True:
                os.write(fd, bytes(size))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    os.close(fd)
    return path
