# SPDX-License-Identifier: Apache-2.0
"""A data directory on overlayfs: what is written to is copied to the upper layer, and born anew there."""
import mmap
import os
import subprocess

import pytest

from descriptors import churn, with_descriptors
from files import Opened
from helpers import PAGE, devices, forget_inodes, kernel_at_least, read_file, write_file  # noqa: F401


@pytest.fixture
def layered(workdir):
    """A data directory of two layers, without file handles: files are copied up when they are first written to."""
    for name in ("lower", "upper", "work", "layers"):
        os.mkdir(os.path.join(workdir, name))
    data = os.path.join(workdir, "layers")
    write_file(os.path.join(workdir, "lower", "f"), bytes(PAGE))
    write_file(os.path.join(workdir, "lower", "held"), b"old")
    options = ",".join(f"{name}dir={os.path.join(workdir, name)}" for name in ("lower", "upper", "work"))
    made = subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", data], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no overlay here: {made.stderr.strip()}")
    yield data
    subprocess.run(["umount", data], check=True)


def layers_have_marks():
    """Else every known inode keeps its descriptor there."""
    if not kernel_at_least(6, 6):
        pytest.skip("overlayfs has no marks of files before Linux 6.6")


def test_bytes_of_a_file_that_is_copied_to_another_layer(layered, mount):
    """It has another time of birth then, and is the same file all the same, for the kernel, too."""
    layers_have_marks()
    mounted = mount("timeout=0", data=layered, **with_descriptors(256))
    path = f"{mounted.mnt}/f"
    assert read_file(path) == bytes(PAGE)
    first = os.open(path, os.O_RDWR)  # copies it
    churn(mounted)
    second = os.open(path, os.O_RDWR)
    try:
        with mmap.mmap(first, PAGE) as one, mmap.mmap(second, PAGE) as two:
            os.pwrite(second, b"written", 0)
            assert os.pread(first, 7, 0) == b"written"
            one[100:105], two[200:206] = b"first", b"second"
            one.flush()
            two.flush()
        content = read_file(f"{layered}/f")
        assert (content[:7], content[100:105], content[200:206]) == (b"written", b"first", b"second")
    finally:
        os.close(first)
        os.close(second)


def test_who_holds_a_file_that_is_copied_to_another_layer(layered, mount):
    layers_have_marks()
    mounted = mount("timeout=0", data=layered, **with_descriptors(256))
    held = os.open(f"{mounted.mnt}/held", os.O_PATH)
    try:
        with open(f"{mounted.mnt}/held", "ab") as file:
            file.write(b" and new")
        churn(mounted)
        assert read_file(f"/proc/self/fd/{held}") == b"old and new"
    finally:
        os.close(held)


def test_what_was_released_of_a_file_that_is_moved_behind_the_mount(layered, mount, devices):  # noqa: F811
    """The daemon can't find the file any more, which does not mean that it was deleted."""
    layers_have_marks()
    mounted = mount("timeout=0,passthrough=off", data=layered, **with_descriptors(256))
    path = f"{mounted.mnt}/new"
    write_file(path, bytes(PAGE))
    opened = Opened(devices(), path)
    opened.map[1] = 7
    opened.map.release()
    opened.close()
    churn(mounted)
    os.rename(f"{layered}/new", f"{layered}/moved")
    assert not os.path.exists(path)
    forget_inodes()
    assert mounted.unmount() is None
    assert read_file(f"{layered}/moved")[1] == 7
