# SPDX-License-Identifier: Apache-2.0
"""The data directory below the mount: its filesystem, what is mounted in it, what changes behind."""
import errno
import os
import subprocess
import time

import pytest

from posix_calls import read_file, write_file


def test_statfs(mount):
    m = mount()
    through, plain = os.statvfs(m.mnt), os.statvfs(m.data)
    assert (through.f_bsize, through.f_blocks, through.f_files, through.f_namemax) == \
        (plain.f_bsize, plain.f_blocks, plain.f_files, plain.f_namemax)


def test_changes_behind_the_mount_are_seen_at_open(mount):
    m = mount("timeout=0")
    mnt, data = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(data, b"1" * 8192)
    assert read_file(mnt) == b"1" * 8192
    for digit in b"23":
        time.sleep(0.1)
        write_file(data, bytes([digit]) * 8192)  # the same size
        time.sleep(0.1 * (digit == ord("3")))  # a moment ago, or just now
        assert read_file(mnt) == bytes([digit]) * 8192
        assert read_file(mnt) == bytes([digit]) * 8192


def test_errors_of_the_data_directory_reach_the_caller(mount, workdir):
    """A full filesystem below: ENOSPC at the write."""
    data = os.path.join(workdir, "small")
    os.mkdir(data)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", data], check=True)
    try:
        m = mount(data=data)
        with open(os.path.join(m.mnt, "f"), "wb", buffering=0) as file:
            with pytest.raises(OSError) as caught:
                for _ in range(100):
                    assert file.write(b"x" * 65536) > 0
            assert caught.value.errno == errno.ENOSPC
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", data], check=True)


def test_a_mount_below_the_data_directory_is_crossed(mount, workdir):
    data = os.path.join(workdir, "outer")
    os.makedirs(os.path.join(data, "inner"))
    subprocess.run(["mount", "-t", "tmpfs", "none", os.path.join(data, "inner")], check=True)
    try:
        write_file(os.path.join(data, "inner", "f"), b"below")
        m = mount(data=data)
        assert read_file(os.path.join(m.mnt, "inner", "f")) == b"below"
        assert os.listdir(os.path.join(m.mnt, "inner")) == ["f"]
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", os.path.join(data, "inner")], check=True)


def test_mount_point_inside_the_data_directory(mount, workdir):
    """The daemon must not enter its own mount."""
    data = os.path.join(workdir, "data")
    mnt = os.path.join(data, "mnt")
    os.makedirs(mnt)
    write_file(os.path.join(data, "f"), b"x")
    m = mount(data=data, mnt=mnt)
    assert sorted(os.listdir(mnt)) == ["f", "mnt"]
    with pytest.raises(OSError) as caught:
        os.listdir(os.path.join(mnt, "mnt"))
    assert caught.value.errno == errno.ELOOP
    subprocess.run(["ls", "-laR", mnt], capture_output=True)
    assert read_file(os.path.join(mnt, "f")) == b"x"


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_forgotten_files_are_let_go(mount):
    """The daemon's descriptors follow what the kernel knows: nothing is left after it forgot."""
    m = mount()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")
    time.sleep(0.3)
    before = descriptors(m.pid)
    for i in range(300):
        write_file(os.path.join(m.data, f"f{i}"), b"")
    for _ in range(3):
        assert len(os.listdir(m.mnt)) == 300
        for i in range(300):
            os.stat(os.path.join(m.mnt, f"f{i}"))
            with open(os.path.join(m.mnt, f"f{i}"), "rb"):
                pass
            os.link(os.path.join(m.mnt, f"f{i}"), os.path.join(m.mnt, "l"))
            os.unlink(os.path.join(m.mnt, "l"))
    assert descriptors(m.pid) >= before + 300
    for i in range(300):
        os.unlink(os.path.join(m.mnt, f"f{i}"))
    deadline = time.monotonic() + 20
    while descriptors(m.pid) > before + 2:
        assert time.monotonic() < deadline, f"{descriptors(m.pid)} descriptors, {before} before"
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("2")
        time.sleep(0.1)


def test_the_daemon_holds_nothing_inside_its_mount(mount, workdir):
    data = os.path.join(workdir, "both")
    os.mkdir(data)
    m = mount(data=data, mnt=data)
    held = []
    for i in range(20):
        held.append(open(os.path.join(m.mnt, f"f{i}"), "w+b"))
        held[-1].write(b"x" * 10000)
        held[-1].flush()
    own = os.stat(m.mnt).st_dev
    inside = []
    for fd in os.listdir(f"/proc/{m.pid}/fd"):
        # fdinfo names the mount without touching it
        with open(f"/proc/{m.pid}/fdinfo/{fd}") as file:
            number = next(line.split()[1] for line in file if line.startswith("mnt_id"))
        with open("/proc/self/mountinfo") as file:
            inside += [fd for line in file if line.split()[0] == number
                       and line.split()[2] == f"{os.major(own)}:{os.minor(own)}"]
    for file in held:
        file.close()
    assert inside == []
