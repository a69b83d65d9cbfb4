# SPDX-License-Identifier: Apache-2.0
"""The data directory below the mount: its filesystem, what is mounted in it, what changes behind."""
import concurrent.futures
import ctypes
import errno
import mmap
import os
import select
import shutil
import signal
import stat
import struct
import subprocess
import time

import pytest

from automounter import automounted
from helpers import (ALL_ROWS, PAGE, agents, daemon_with_faults, descriptors, error_of, forget_inodes,  # noqa: F401
                     read_file, stand_still, wait_until, write_file)
from posix_calls import NOBODY, RENAME_EXCHANGE, as_user, renameat2


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


def primed(mnt, name, how):
    """A descriptor of the file, whose attributes the kernel has from such a request."""
    fd = os.open(os.path.join(mnt, name), os.O_RDWR)  # LOOKUP
    if how == "setattr":
        os.fchmod(fd, 0o600)
    elif how in ("getattr", "statx"):
        os.pwrite(fd, b"2", 0)  # the kernel drops what it has
        if how == "getattr":
            os.fstat(fd)
        else:
            ctypes.CDLL(None).statx(fd, b"", 0x1000, 0xfff, ctypes.create_string_buffer(256))  # with the time of birth
    return fd


@pytest.mark.limit(60)
@pytest.mark.parametrize("timeout", [2, 0.5])
def test_changes_behind_the_mount_are_seen_within_the_timeout(mount, timeout):
    """Whatever the kernel has them from: modes, sizes, ACLs, and names that go, come, or are another file's."""
    m = mount(f"timeout={timeout},allow_other")
    os.chmod(m.mnt, 0o755)
    hows = ("lookup", "setattr", "getattr", "statx")
    names = [*hows, "grows", "goes", "moves", "replaced", "another", "acl"]
    for name in names:
        write_file(os.path.join(m.data, name), b"1")
        os.chmod(os.path.join(m.data, name), 0o600)
    fds = {name: primed(m.mnt, name, name) for name in (*hows, "grows")}
    inos = {name: os.stat(os.path.join(m.mnt, name)).st_ino for name in names}
    assert not os.path.exists(os.path.join(m.mnt, "comes"))
    reads = "open(sys.argv[1]).close()"
    assert as_user(reads, os.path.join(m.mnt, "acl")).returncode != 0

    began = time.monotonic()
    for name in hows:
        os.chmod(os.path.join(m.data, name), 0o640)
    with open(os.path.join(m.data, "grows"), "ab") as file:
        file.write(b"more")
    os.unlink(os.path.join(m.data, "goes"))
    os.rename(os.path.join(m.data, "moves"), os.path.join(m.data, "comes"))
    os.rename(os.path.join(m.data, "another"), os.path.join(m.data, "replaced"))
    everybody = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in (
        (1, 6, 2 ** 32 - 1), (2, 4, NOBODY), (4, 0, 2 ** 32 - 1), (16, 4, 2 ** 32 - 1), (32, 0, 2 ** 32 - 1)))
    os.setxattr(os.path.join(m.data, "acl"), "system.posix_acl_access", everybody)

    unseen = {name: lambda fd=fds[name]: stat.S_IMODE(os.fstat(fd).st_mode) == 0o640 for name in hows}
    unseen["grows"] = lambda: os.fstat(fds["grows"]).st_size == 5
    unseen["goes"] = lambda: not os.path.exists(os.path.join(m.mnt, "goes"))
    unseen["moves"] = lambda: not os.path.exists(os.path.join(m.mnt, "moves"))
    unseen["comes"] = lambda: os.stat(os.path.join(m.mnt, "comes")).st_ino == inos["moves"]
    unseen["replaced"] = lambda: os.stat(os.path.join(m.mnt, "replaced")).st_ino == inos["another"]
    unseen["acl"] = lambda: as_user(reads, os.path.join(m.mnt, "acl")).returncode == 0
    try:
        while unseen:
            late = time.monotonic() - began > timeout + 6  # the machine may be busy
            unseen = {name: seen for name, seen in unseen.items() if not seen()}
            assert not late or not unseen, sorted(unseen)
    finally:
        for fd in fds.values():
            os.close(fd)


def resident(mapping):
    """How many of its pages the kernel has."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    flags = (ctypes.c_ubyte * (len(mapping) // PAGE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping)), flags) == 0
    return sum(flag & 1 for flag in flags)


tracked_or_not = pytest.mark.parametrize("shared", [False, True], ids=["untracked", "tracked"])


def open_shared(path, shared, agents):
    """A file that may be on a device, too."""
    if shared:
        agents().do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, PAGE)", path=path)
    return os.open(path, os.O_RDWR)


def test_pages_are_kept_when_the_mount_changes_times(mount):
    """Names and attributes that are changed through the mount are no change behind it, which an open finds."""
    m = mount("passthrough=off,timeout=0,allow_other")
    path, below = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    moved, second = os.path.join(m.mnt, "moved"), os.path.join(m.mnt, "second")
    changes = [
        lambda: os.chmod(path, 0o640), lambda: os.chown(path, 1, 1), lambda: os.utime(path, (1, 1)),
        lambda: os.setxattr(path, "user.name", b"1"), lambda: os.removexattr(path, "user.name"),
        lambda: os.link(path, second), lambda: os.unlink(second), lambda: os.link(path, second),
        lambda: write_file(moved, b"new"), lambda: os.rename(moved, second),  # over it
        lambda: os.rename(path, moved), lambda: os.rename(moved, path),
        lambda: renameat2(path, second, RENAME_EXCHANGE), lambda: renameat2(second, path, RENAME_EXCHANGE),
    ]
    write_file(below, b"1" * 4 * PAGE)
    time.sleep(0.1)  # times that are newer than 50 ms say nothing
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4 * PAGE) as mapping:
        assert mapping[:] == b"1" * 4 * PAGE
        for number, change in enumerate(changes):
            change()
            with open(f"/proc/self/fd/{file.fileno()}", "rb"):
                assert resident(mapping) == 4, number
        time.sleep(0.1)
        os.chmod(below, 0o600)  # behind it
        time.sleep(0.1)
        with open(f"/proc/self/fd/{file.fileno()}", "rb"):
            assert resident(mapping) == 0


@tracked_or_not
@pytest.mark.parametrize("change", ["chmod", "truncate", "ftruncate", "utime", "link", "rename", "setxattr"])
def test_a_change_behind_the_mount_before_one_of_ours(mount, agents, shared, change):
    """Ours does not hide it from the next open."""
    m = mount("passthrough=off,timeout=0")
    path, below = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(path, b"1" * 2 * PAGE)
    os.close(open_shared(path, shared, agents))
    for _ in range(2):
        time.sleep(0.1)  # times that are newer than 50 ms say nothing
        assert read_file(path) == b"1" * 2 * PAGE
    with open(below, "r+b") as file:
        file.write(b"2" * 2 * PAGE)
    time.sleep(0.1)
    if change == "chmod":
        os.chmod(path, 0o600)
    elif change == "truncate":
        os.truncate(path, 2 * PAGE)
    elif change == "ftruncate":
        fd = os.open(path, os.O_WRONLY)
        os.ftruncate(fd, 2 * PAGE)
        os.close(fd)
    elif change == "utime":
        os.utime(path)
    elif change == "link":
        os.link(path, path + "2")
    elif change == "rename":
        os.rename(path, path + "2")
        os.rename(path + "2", path)
    else:
        os.setxattr(path, "user.name", b"1")
    assert read_file(path) == b"2" * 2 * PAGE


@pytest.mark.parametrize("opens", [False, True])
def test_a_change_behind_the_mount_beside_one_of_ours(mount, workdir, monkeypatch, opens):
    """The chmod() takes long, and somebody else writes meanwhile: it is found by an open then, or after it."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("passthrough=off,timeout=0", env=env)
    path, below = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(path, b"1" * 2 * PAGE)
    for _ in range(2):
        time.sleep(0.1)
        assert read_file(path) == b"1" * 2 * PAGE
    plan.arm_wait(ALL_ROWS.index("chmod"), 500, 1, False)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        chmod = pool.submit(os.chmod, path, 0o600)
        time.sleep(0.1)
        with open(below, "r+b") as file:
            file.write(b"2" * 2 * PAGE)
        if opens:
            assert read_file(path) == b"2" * 2 * PAGE
        assert not chmod.done()
        chmod.result()
    assert read_file(path) == b"2" * 2 * PAGE


@tracked_or_not
def test_old_pages_are_dropped_once(mount, agents, shared):
    """By the open that finds a change, before it is answered; who opens the file after that keeps what there is."""
    m = mount("passthrough=off,timeout=0")
    mnt, data = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(data, b"1" * 4 * PAGE)
    time.sleep(0.1)  # times that are newer than 50 ms say nothing
    fd = open_shared(mnt, shared, agents)
    kept = []
    with mmap.mmap(fd, 4 * PAGE) as mapping:
        os.close(fd)
        for digit in b"123":
            if digit > ord("1"):
                with open(data, "r+b") as file:
                    file.write(bytes([digit]) * 4 * PAGE)
            for pause in 0.2, 0.02, 0.2:
                time.sleep(pause)
                fd = os.open(mnt, os.O_RDONLY)
                kept.append(resident(mapping))
                assert os.pread(fd, 4 * PAGE, 0) == bytes([digit]) * 4 * PAGE
                os.close(fd)
    assert kept == [0, 4, 4] * 3


@tracked_or_not
def test_nobody_keeps_pages_that_another_open_is_about_to_drop(mount, agents, workdir, monkeypatch, shared):
    """However long that takes: the first of them is dirty, and its WRITE slow."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("passthrough=off,timeout=0", env=env)
    mnt, data = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(data, b"1" * 4 * PAGE)
    time.sleep(0.1)
    fd = open_shared(mnt, shared, agents)
    other = agents()
    with mmap.mmap(fd, 4 * PAGE) as mapping:
        assert mapping[:] == b"1" * 4 * PAGE
        mapping[0] = ord("m")
        with open(data, "r+b") as file:
            file.seek(PAGE)
            file.write(b"2" * 3 * PAGE)
        time.sleep(0.1)
        plan.arm_wait(ALL_ROWS.index("pwrite64"), 1000, 1, False)
        other.start("os.close(os.open(path, os.O_RDONLY))", path=mnt)
        wait_until(lambda: plan.landed == 1, what="its WRITE is on its way")
        mine = os.open(mnt, os.O_RDWR)
        assert os.pread(mine, PAGE, 3 * PAGE) == b"2" * PAGE
        mapping[2 * PAGE] = ord("m")
        other.finish()
    os.fsync(mine)
    os.close(mine)
    os.close(fd)
    page = b"m" + b"1" * (PAGE - 1)
    assert read_file(data) == page + (b"2" * PAGE) + (b"m" + b"2" * (PAGE - 1)) + b"2" * PAGE


@tracked_or_not
def test_nobody_keeps_pages_while_another_open_drops_them(mount, agents, workdir, monkeypatch, shared):
    """The same where nothing else holds up who opens the file meanwhile: a WRITE has the lock of a tracked one."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("passthrough=off,timeout=0", env=env)
    mnt, data = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(data, b"1" * PAGE)
    time.sleep(0.1)
    fd = open_shared(mnt, shared, agents)
    assert os.pread(fd, PAGE, 0) == b"1" * PAGE
    write_file(data, b"2" * PAGE)
    time.sleep(0.1)
    plan.arm_wait(ALL_ROWS.index("fuse_lowlevel_notify_inval_inode"), 2000, 1, False)
    other = agents()
    other.start("os.close(os.open(path, os.O_RDONLY))", path=mnt)
    wait_until(lambda: plan.landed == 1, what="it is about to drop them")
    mine = os.open(mnt, os.O_RDONLY)
    assert os.pread(mine, PAGE, 0) == b"2" * PAGE
    os.close(mine)
    other.finish()
    os.close(fd)


@pytest.mark.limit(30)
def test_many_opens_that_drop_dirty_pages(mount):
    """More of them than the daemon has threads that serve FUSE, all at once: who answers their WRITEs? The limit, which
    does not bind root, leaves no more threads for when all are stuck (fs/loop.c)."""
    m = mount("passthrough=off,timeout=0", before=("prlimit", "--nproc=1"))
    names = [f"f{i}" for i in range(40)]
    mappings = []
    for name in names:
        write_file(os.path.join(m.data, name), b"1" * 4 * PAGE)
        with open(os.path.join(m.mnt, name), "r+b") as file:
            mappings.append(mmap.mmap(file.fileno(), 4 * PAGE))
    for name, mapping in zip(names, mappings):
        mapping[0] = mapping[PAGE] = ord("m")
        with open(os.path.join(m.data, name), "r+b") as file:
            file.seek(3 * PAGE)
            file.write(b"2" * PAGE)
    time.sleep(0.1)
    stand_still(m.pid)  # so that they all come before any WRITE
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        fds = [pool.submit(os.open, os.path.join(m.mnt, name), os.O_RDONLY) for name in names]
        time.sleep(0.5)
        os.kill(m.pid, signal.SIGCONT)
        for fd in fds:
            assert os.pread(fd.result(), PAGE, 3 * PAGE) == b"2" * PAGE
            os.close(fd.result())
    for mapping in mappings:
        mapping.close()
    page = b"m" + b"1" * (PAGE - 1)
    assert all(read_file(os.path.join(m.data, name)) == page * 2 + b"1" * PAGE + b"2" * PAGE for name in names)


@tracked_or_not
def test_dirty_pages_of_a_file_that_an_open_cuts(mount, agents, shared):
    """They are not written back to a file that has changed and is empty now."""
    m = mount("timeout=0")
    mnt, data = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(data, b"1" * 4 * PAGE)
    time.sleep(0.1)
    fd = open_shared(mnt, shared, agents)
    with mmap.mmap(fd, 4 * PAGE) as mapping:
        os.close(fd)
        mapping[0] = mapping[3 * PAGE] = ord("m")
        with open(data, "r+b") as file:
            file.write(b"2" * PAGE)
        time.sleep(0.1)
        os.close(os.open(mnt, os.O_RDWR | os.O_TRUNC))
        assert os.stat(mnt).st_size == 0
    assert read_file(mnt) == read_file(data) == b""


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


@pytest.mark.parametrize("first", ["list", "read"])
def test_a_mount_below_the_data_directory_that_is_made_on_demand(mount, workdir, first):
    """Not by who lists the folder that it is in, but before anybody is shown an empty folder."""
    data = os.path.join(workdir, "outer")
    point = os.path.join(data, "point")
    os.makedirs(point)
    with automounted(point, "sh", "-c", 'mount -t tmpfs none "$0" && echo below > "$0/f"', point) as automounter:
        m = mount(data=data)
        assert os.listdir(m.mnt) == ["point"]
        assert select.select([automounter.stdout], [], [], 0)[0] == []
        if first == "list":
            assert os.listdir(os.path.join(m.mnt, "point")) == ["f"]
        assert read_file(os.path.join(m.mnt, "point", "f")) == b"below\n"
        assert automounter.stdout.readline() == "0\n"
        assert m.unmount() is None


def test_a_listing_does_not_wait_for_what_is_being_mounted(mount, workdir):
    """Nor does it look at the name: who does waits, too."""
    data, gate = os.path.join(workdir, "outer"), os.path.join(workdir, "gate")
    point = os.path.join(data, "point")
    os.makedirs(point)
    os.mkfifo(gate)
    with automounted(point, "sh", "-c", 'cat "$1" && mount -t tmpfs none "$0"', point, gate):
        m = mount(data=data)
        with subprocess.Popen(["stat", os.path.join(m.mnt, "point")], stdout=subprocess.DEVNULL) as looking:
            with open(gate, "wb"):  # there is who mounts
                listing = subprocess.Popen(["ls", m.mnt], stdout=subprocess.PIPE)
                listed = select.select([listing.stdout], [], [], 5)[0] and listing.stdout.read()
                looked = looking.poll()
        listing.communicate()
        assert (listed, looked, looking.returncode) == (b"point\n", None, 0)
        assert m.unmount() is None


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


def test_forgotten_files_are_let_go(mount):
    """The daemon's descriptors follow what the kernel knows: nothing is left after it forgot."""
    m = mount()
    forget_inodes()
    time.sleep(0.3)
    before = descriptors(m.pid)
    for i in range(300):
        write_file(os.path.join(m.data, f"f{i}"), b"")
    most = 0
    for _ in range(3):
        assert len(os.listdir(m.mnt)) == 300
        for i in range(300):
            os.stat(os.path.join(m.mnt, f"f{i}"))
            with open(os.path.join(m.mnt, f"f{i}"), "rb"):
                pass
            os.link(os.path.join(m.mnt, f"f{i}"), os.path.join(m.mnt, "l"))
            os.unlink(os.path.join(m.mnt, "l"))
            most = max(most, descriptors(m.pid) if i % 50 == 49 else 0)
    assert most >= before + 100, most  # others may have caches dropped meanwhile
    for i in range(300):
        os.unlink(os.path.join(m.mnt, f"f{i}"))
    deadline = time.monotonic() + 20
    while descriptors(m.pid) > before + 2:
        assert time.monotonic() < deadline, f"{descriptors(m.pid)} descriptors, {before} before"
        forget_inodes()
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
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            inside += [fd for line in file if line.split()[0] == number
                       and line.split()[2] == f"{os.major(own)}:{os.minor(own)}"]
    for file in held:
        file.close()
    assert inside == []


# --- what happens to it ----------------------------------------------------------------------------------------------

@pytest.fixture
def filesystem(workdir):
    """A filesystem of its own: the path where it is mounted."""
    path = os.path.join(workdir, "filesystem")
    os.mkdir(path)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", path], check=True)
    yield path
    while subprocess.run(["umount", "-l", path], capture_output=True, check=False).returncode == 0:
        pass


def test_a_data_directory_that_is_removed(mount, workdir):
    data = os.path.join(workdir, "gone")
    os.makedirs(os.path.join(data, "d"))
    write_file(os.path.join(data, "f"), b"bytes")
    m = mount("timeout=0", data=data)
    with open(os.path.join(m.mnt, "f"), "r+b", buffering=0) as held:
        shutil.rmtree(data)
        for call, *args in ((os.stat, "f"), (os.listdir, "d"), (write_file, "new", b""), (os.mkdir, "new"),
                            (os.symlink, "x", "new"), (os.mkfifo, "new"), (os.rmdir, "d")):
            args = [os.path.join(m.mnt, arg) if arg in ("f", "d", "new") else arg for arg in args]
            assert error_of(call, *args) == errno.ENOENT, (call, args)
        assert os.listdir(m.mnt) == [] and os.stat(m.mnt).st_nlink == 0
        # what is open stays usable
        assert held.read() == b"bytes" and held.write(b"more") == 4
        os.fsync(held.fileno())
        assert os.fstat(held.fileno()).st_size == 9
    os.mkdir(data)  # another of that name is not ours
    write_file(os.path.join(data, "f"), b"other")
    assert error_of(os.stat, os.path.join(m.mnt, "f")) == errno.ENOENT
    assert m.unmount() is None
    again = mount(data=data)
    assert read_file(os.path.join(again.mnt, "f")) == b"other"


def test_a_data_directory_whose_filesystem_is_detached(mount, filesystem):
    """umount -l: the daemon goes on with what it holds, and lets it go at the end."""
    write_file(os.path.join(filesystem, "f"), b"bytes")
    m = mount(data=filesystem)
    subprocess.run(["umount", "-l", filesystem], check=True)
    assert read_file(os.path.join(m.mnt, "f")) == b"bytes"
    write_file(os.path.join(m.mnt, "g"), b"new")
    assert sorted(os.listdir(m.mnt)) == ["f", "g"] and os.listdir(filesystem) == []
    assert m.unmount() is None


def changes(folder):
    """Calls that change a folder with a file "f" and a folder "d"."""
    path = os.path.join(folder, "f")
    return ((write_file, path, b"x"), (os.mkdir, path + "2"), (os.unlink, path), (os.chmod, path, 0o600),
            (os.rename, path, path + "2"), (os.setxattr, path, "user.a", b""), (os.truncate, path, 1), (os.utime, path),
            (os.link, path, path + "2"), (os.rmdir, os.path.join(folder, "d")), (os.chown, path, 1, 1),
            (os.symlink, "x", path + "2"), (os.open, folder, os.O_TMPFILE | os.O_RDWR))


def test_a_data_directory_that_becomes_read_only(mount, filesystem):
    m = mount("timeout=0", data=filesystem)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"bytes")
    os.mkdir(os.path.join(m.mnt, "d"))
    subprocess.run(["mount", "-o", "remount,ro", filesystem], check=True)
    for call, *args in changes(m.mnt):
        assert error_of(call, *args) == errno.EROFS, (call, args)
    assert read_file(path) == b"bytes" and sorted(os.listdir(m.mnt)) == ["d", "f"]
    subprocess.run(["mount", "-o", "remount,rw", filesystem], check=True)
    write_file(path, b"again")
    assert read_file(os.path.join(filesystem, "f")) == b"again"
    assert m.unmount() is None


def test_a_filesystem_below_the_data_directory_that_becomes_read_only(mount, filesystem):
    """Nothing of it is changed any more, also by who has it open already, or had; the rest is not concerned."""
    inner = os.path.join(filesystem, "inner")
    os.mkdir(inner)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", inner], check=True)
    try:
        m = mount("timeout=0", data=filesystem)
        path, outside = os.path.join(m.mnt, "inner", "f"), os.path.join(m.mnt, "f")
        for name in path, outside:
            write_file(name, b"bytes")
        os.mkdir(os.path.join(m.mnt, "inner", "d"))
        held = os.open(path, os.O_RDONLY)
        subprocess.run(["mount", "-o", "remount,ro", inner], check=True)
        for call, *args in (*changes(os.path.join(m.mnt, "inner")), (os.fchmod, held, 0o600), (os.utime, held),
                            (os.setxattr, held, "user.a", b""), (os.mkfifo, path + "2"), (os.open, path, os.O_RDWR)):
            assert error_of(call, *args) == errno.EROFS, (call, args)
        assert os.pread(held, 10, 0) == b"bytes" and sorted(os.listdir(os.path.join(m.mnt, "inner"))) == ["d", "f"]
        write_file(outside, b"changed")
        os.chmod(outside, 0o600)
        assert read_file(os.path.join(filesystem, "f")) == b"changed"
        subprocess.run(["mount", "-o", "remount,rw", inner], check=True)
        write_file(path, b"again")
        assert read_file(os.path.join(inner, "f")) == b"again"
        os.close(held)
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", "-l", inner], check=True)


def test_files_of_two_filesystems_have_different_numbers(mount, filesystem):
    """A folder with the number of its parent's parent is a loop for find, rm and du; two files with one number are hard
    links of each other for tar, cp and rsync."""
    for name in ("inner", "inner2"):
        os.mkdir(os.path.join(filesystem, name))
        subprocess.run(["mount", "-t", "tmpfs", "none", os.path.join(filesystem, name)], check=True)
    numbers = [os.stat(os.path.join(filesystem, name)).st_ino for name in ("", "inner", "inner2")]
    assert numbers[0] == numbers[1] == numbers[2], "this kernel numbers them otherwise"
    try:
        for folder in ("", "inner", "inner2"):
            os.makedirs(os.path.join(filesystem, folder, "a"))
            write_file(os.path.join(filesystem, folder, "a", "f"), b"x" * 5000)
            os.link(os.path.join(filesystem, folder, "a", "f"), os.path.join(filesystem, folder, "a", "g"))
        m = mount(data=filesystem)
        found = subprocess.run(["find", m.mnt, "-inum", "+0"], capture_output=True, text=True)
        assert found.stderr == "" and len(found.stdout.split()) == 12, found
        places = ["", "inner", "inner2", "a", "inner/a", "inner2/a", "a/f", "inner/a/f", "inner2/a/f"]
        numbers = [os.stat(os.path.join(m.mnt, place)).st_ino for place in places]
        assert len(set(numbers)) == len(places)
        for place, number in zip(places, numbers):
            if place.endswith("f"):
                assert os.stat(os.path.join(m.mnt, place[:-1] + "g")).st_ino == number
                entries = {entry.name: entry.inode() for entry in os.scandir(os.path.join(m.mnt, place[:-2]))}
                assert entries["f"] == entries["g"] == number
                with open(os.path.join(m.mnt, place)) as file:
                    assert os.fstat(file.fileno()).st_ino == number
        assert error_of(os.link, os.path.join(m.mnt, "a/f"), os.path.join(m.mnt, "inner/f")) == errno.EXDEV
        assert error_of(os.rename, os.path.join(m.mnt, "a/f"), os.path.join(m.mnt, "inner/f")) == errno.EXDEV
        subprocess.run(["rm", "-r", os.path.join(m.mnt, "inner", "a")], check=True)
        assert m.unmount() is None
    finally:
        for name in ("inner", "inner2"):
            subprocess.run(["umount", "-l", os.path.join(filesystem, name)], check=True)


def test_a_filesystem_that_is_taken_away_below_the_mount(mount, workdir):
    data = os.path.join(workdir, "outer")
    inner = os.path.join(data, "inner")
    os.makedirs(inner)
    write_file(os.path.join(inner, "below"), b"below")
    subprocess.run(["mount", "-t", "tmpfs", "none", inner], check=True)
    write_file(os.path.join(inner, "f"), b"above")
    m = mount("timeout=0", data=data)
    held = open(os.path.join(m.mnt, "inner", "f"), "rb")
    subprocess.run(["umount", "-l", inner], check=True)
    assert os.listdir(os.path.join(m.mnt, "inner")) == ["below"]
    assert held.read() == b"above"
    held.close()
    assert m.unmount() is None


@pytest.mark.parametrize("options", ["passthrough=off", "passthrough=on"])
def test_an_open_finds_what_a_name_stands_for_now(mount, options):
    """For a minute the kernel believes what it knows of the name; but not that of a file that is deleted by now."""
    m = mount("timeout=60," + options)
    behind, path = os.path.join(m.data, "f"), os.path.join(m.mnt, "f")
    write_file(path, b"first")
    held = os.open(path, os.O_PATH)
    write_file(behind + ".new", b"second")
    os.rename(behind + ".new", behind)
    found = read_file(path), read_file(f"/proc/self/fd/{held}")
    os.close(held)
    assert found == (b"second", b"first")  # as in the data directory
    os.unlink(behind)
    write_file(path, b"third")
    assert read_file(behind) == b"third"
    os.unlink(behind)
    assert error_of(open, path) == errno.ENOENT


def test_a_file_that_is_replaced_behind_the_mount(mount):
    """Who has the old one open keeps it; who opens the name gets the new one, whatever it is."""
    m = mount("timeout=0")
    behind, path = os.path.join(m.data, "f"), os.path.join(m.mnt, "f")
    write_file(path, b"first")
    with open(path, "r+b", buffering=0) as old:
        write_file(behind + ".new", b"second")
        os.rename(behind + ".new", behind)
        assert read_file(path) == b"second" and old.read() == b"first"
        assert os.fstat(old.fileno()).st_nlink == 0 and os.stat(path).st_ino == os.stat(behind).st_ino
        old.write(b"more")
        assert read_file(behind) == b"second"
    os.unlink(behind)
    assert error_of(os.stat, path) == errno.ENOENT
    os.mkdir(behind)
    assert os.listdir(path) == []
    os.rmdir(behind)
    os.symlink("other", behind)
    assert os.readlink(path) == "other" and error_of(open, path) == errno.ENOENT
    os.unlink(behind)
    write_file(behind, b"made behind")
    # the kernel believed that there was none
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    assert os.read(fd, 100) == b"made behind"
    os.close(fd)
    assert error_of(os.open, path, os.O_CREAT | os.O_EXCL | os.O_RDWR) == errno.EEXIST
    # within the time that the kernel may believe what it knows, the new name is found all the same when it is made
    assert m.unmount() is None
    again = mount("timeout=30", data=m.data)
    path = os.path.join(again.mnt, "late")
    assert error_of(os.stat, path) == errno.ENOENT
    write_file(os.path.join(m.data, "late"), b"behind")
    assert error_of(os.open, path, os.O_CREAT | os.O_EXCL | os.O_RDWR) == errno.EEXIST
    assert error_of(os.mkdir, path) == errno.EEXIST
    assert read_file(path) == b"behind"
