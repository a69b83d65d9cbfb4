# SPDX-License-Identifier: Apache-2.0
"""Data directories on a disk that can't be read or written. (Disks that are full: test_disks.py.)"""
import contextlib
import errno
import fcntl
import mmap
import os
import signal
import struct
import subprocess

import pytest

import gaia
import helpers
from files import Opened, fill, pattern
from helpers import (ALL_ROWS, MIB, PAGE, AgentDied, Plan, agents, client_with_faults, devices, error_of, read_file,  # noqa: F401
                     statistics, wait_until, write_file)


class Disk:
    """An ext4 on a loop device whose image can be broken: reads of file data fail when its end is cut off, writes fail
    when the filesystem below it has no room for the image's holes."""

    def __init__(self, workdir):
        self.below, self.folder = os.path.join(workdir, "below"), os.path.join(workdir, "disk")
        self.image = os.path.join(self.below, "image")
        os.mkdir(self.below)
        os.mkdir(self.folder)
        self.undo = []
        self.run("mount", "-t", "tmpfs", "-o", "size=40m", "none", self.below)
        self.undo.append(["umount", "-l", self.below])
        with open(self.image, "wb") as file:
            file.truncate(64 * MIB)
        # Its metadata is at the beginning, and stays good.
        self.run("mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard", self.image)
        self.loop = self.run("losetup", "-f", "--show", self.image).strip()
        self.undo.append(["losetup", "-d", self.loop])
        self.run("mount", "-o", "errors=continue", self.loop, self.folder)
        self.undo.append(["umount", "-l", self.folder])

    def run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.end()
            pytest.skip(f"no disk in a file here: {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def end(self):
        while self.undo:
            subprocess.run(self.undo.pop(), check=False, capture_output=True)

    def sync(self):
        subprocess.run(["sync", "-f", self.folder], check=True)

    def place(self, name, offset):
        """Where on the disk a byte of a file is."""
        with open(os.path.join(self.folder, name), "rb") as file:
            block, = struct.unpack("i", fcntl.ioctl(file, 1, struct.pack("i", offset // PAGE)))  # FIBMAP
        return block * PAGE + offset % PAGE

    def cut(self, at=6 * MIB):
        """From now on what is not in memory can't be read."""
        self.sync()
        self.at = at
        with open(self.image, "r+b") as file:
            file.seek(at)
            self.rest = file.read()
            file.truncate(at)

    def mend(self):
        with open(self.image, "r+b") as file:
            file.truncate(64 * MIB)
            for at in range(0, len(self.rest), PAGE):
                if self.rest[at:at + PAGE].strip(b"\0"):  # holes stay holes: there is no room for all
                    os.pwrite(file.fileno(), self.rest[at:at + PAGE], self.at + at)

    def fill(self):
        """From now on what was never written can't be written."""
        self.sync()
        self.ballast = fill(self.below)

    def empty(self):
        os.unlink(self.ballast)


@pytest.fixture
def disk(workdir):
    made = Disk(workdir)
    yield made
    made.end()


@pytest.fixture(params=["1", "0"], ids=["", "before-6.6"])
def broken_disk_mount(disk, mount, request):
    """The mount is gone before the disk below it. Also without what kernels before 6.6 lack."""
    written = "written" in request.node.name  # else releases of what can't be written fail: test_passthrough_ends.py
    yield mount("passthrough=off" if written else "", data=disk.folder, env={"GAIA_SOFT_POISON": request.param})
    helpers.close_files()


@pytest.mark.traps
def test_a_disk_that_cannot_be_read(broken_disk_mount, disk, agents):
    """EIO for read() and for calls, SIGBUS for a touch; others go on, and all is well when the disk is."""
    m = broken_disk_mount
    content = pattern(4 * MIB)
    for name in ("low", "pad"):  # so that the file lies behind what stays
        write_file(os.path.join(m.mnt, name), content)
    disk.sync()
    path, direct = os.path.join(m.mnt, "f"), os.path.join(disk.folder, "f")
    write_file(path, content)
    write_file(os.path.join(m.mnt, "other"), b"o" * PAGE)
    child, dying, storing = agents(), agents(), agents()
    for agent, flags in ((child, gaia.RESIDENT), (dying, 0), (storing, 0)):
        agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\nmap = dev.mmap(fd, 4 << 20, 3, flags)", path=path,
                 flags=flags)
    for forgotten in (path, direct):
        helpers.drop_host_cache(forgotten)
    disk.cut()
    fd = os.open(direct, os.O_RDONLY | os.O_DIRECT)
    try:
        try:
            os.preadv(fd, [mmap.mmap(-1, PAGE)], MIB)
            pytest.skip("reads of the cut image do not fail here")
        except OSError as error:
            assert error.errno == errno.EIO
    finally:
        os.close(fd)
    fd = os.open(path, os.O_RDWR)
    with pytest.raises(OSError) as caught:
        os.pread(fd, PAGE, MIB)
    assert caught.value.errno == errno.EIO
    child.start("map.acquire()")
    assert not child.busy(10), "an acquire hangs"
    with pytest.raises(OSError) as caught:
        child.finish()
    assert caught.value.errno == errno.EIO
    for agent, touch in ((dying, "map[2 << 20]"), (storing, "map[3 << 20:(3 << 20) + 1] = b'x'")):
        agent.start(touch)
        assert not agent.busy(10), "a touch hangs"
        with pytest.raises(AgentDied) as died:
            agent.finish()
        assert died.value.code == -signal.SIGBUS
    assert m.proc.poll() is None
    statistics(m.mnt)
    disk.mend()
    child.do("map.acquire()")
    assert child("map[:]") == content
    os.close(fd)
    assert read_file(path) == content
    child.end()


@pytest.mark.parametrize("stored", [False, True])
def test_what_replaces_pages_that_cannot_be_read(mount, disk, devices, stored):
    """Their old bytes are of no use to anybody. A write to a part of a page needs them, and is EIO, as on ext4."""
    m = mount("passthrough=off,timeout=60", data=disk.folder)
    content = bytearray(pattern(MIB, 5))
    path = os.path.join(m.mnt, "f")
    for name in ("low", "pad"):  # so that the file lies behind what stays
        write_file(os.path.join(m.mnt, name), pattern(4 * MIB))
    write_file(path, content)
    disk.sync()
    if disk.place("f", 0) < 6 * MIB:
        pytest.skip("the file is low on the disk")
    opened, other = Opened(devices(), path), Opened(devices("soft:1"), path)
    assert opened.map[:10 * PAGE] == bytes(content[:10 * PAGE])
    for forgotten in (path, os.path.join(disk.folder, "f")):
        helpers.drop_host_cache(forgotten)
    disk.cut()
    if stored:
        opened.map[2 * PAGE + 50:5 * PAGE + 50] = b"s" * 3 * PAGE
        opened.map.release()
    for page in 2, 7:
        assert error_of(os.pwrite, opened.fd, b"w" * PAGE, page * PAGE + 1) == errno.EIO
    for start, end in ((3 * PAGE, 4 * PAGE), (4 * PAGE, 6 * PAGE)):
        assert os.pwrite(opened.fd, b"w" * (end - start), start) == end - start
        content[start:end] = b"w" * (end - start)
        for one in opened, other:
            one.map.acquire()
            assert one.map[start:end] == os.pread(opened.fd, end - start, start) == bytes(content[start:end])
    disk.mend()


@pytest.mark.parametrize("call", ["write", "copy"])
def test_what_was_to_be_replaced_and_was_not(mount, disk, devices, call):
    """It is not what a device was granted long ago: what others have written since is there when the disk is whole again."""
    m = mount("passthrough=off,timeout=60", data=disk.folder)
    content = bytearray(pattern(MIB, 6))
    path, source = os.path.join(m.mnt, "f"), os.path.join(m.mnt, "source")
    for name in ("low", "pad"):  # so that the files lie behind what stays
        write_file(os.path.join(m.mnt, name), pattern(4 * MIB))
    for name in (source, path):
        write_file(name, content)
    disk.sync()
    if disk.place("source", 0) < 6 * MIB or disk.place("f", 0) < 6 * MIB:
        pytest.skip("the files are low on the disk")
    opened, fd = Opened(devices(), path), os.open(source, os.O_RDONLY)
    assert opened.map[:10 * PAGE] == bytes(content[:10 * PAGE])
    os.pwrite(opened.fd, b"newer", 2 * PAGE + 200)
    content[2 * PAGE + 200:2 * PAGE + 205] = b"newer"
    os.fsync(opened.fd)
    for forgotten in (path, source, os.path.join(disk.folder, "f"), os.path.join(disk.folder, "source")):
        helpers.drop_host_cache(forgotten)
    disk.cut()
    opened.map[3 * PAGE - 50:3 * PAGE + 50] = content[3 * PAGE - 50:3 * PAGE + 50] = b"s" * 100
    opened.map.release()
    if call == "write":
        assert error_of(os.pwrite, opened.fd, b"w" * (PAGE + 100), 2 * PAGE) == errno.EIO
    else:
        assert error_of(os.copy_file_range, fd, opened.fd, PAGE, 2 * PAGE, 2 * PAGE) == errno.EIO
    disk.mend()
    for forgotten in (path, os.path.join(disk.folder, "f")):
        helpers.drop_host_cache(forgotten)
    assert os.pread(opened.fd, 200, 2 * PAGE + 100) == bytes(content[2 * PAGE + 100:2 * PAGE + 300])
    assert os.pread(opened.fd, MIB, 0) == bytes(content)
    os.close(fd)


@pytest.mark.parametrize("tracked", [False, True])
def test_a_file_of_which_a_part_cannot_be_read(mount, disk, devices, tracked):
    """What lies before that part is read, the part is EIO, neither the end of the file nor zeros; all of it is there when
    the disk is well."""
    m = mount("passthrough=off,timeout=60", data=disk.folder)
    content = pattern(4 * MIB, 5)
    path = os.path.join(m.mnt, "f")
    for name in ("low", "pad", "f"):  # so that the file lies behind what stays
        write_file(os.path.join(m.mnt, name), content)
    disk.sync()
    first, bad, last = disk.place("f", 0), disk.place("f", MIB), disk.place("f", 4 * MIB - PAGE)
    if bad != first + MIB or last != first + 4 * MIB - PAGE or first < 6 * MIB:
        pytest.skip("the file is in pieces, or low on the disk")
    fd = os.open(path, os.O_RDWR)
    if tracked:
        devices().mmap(fd, 4 * MIB)
    for forgotten in (path, os.path.join(disk.folder, "f")):
        helpers.drop_host_cache(forgotten)
    disk.cut(bad)
    assert os.fstat(fd).st_size == 4 * MIB  # the kernel keeps it, and corrects it by what a READ brings
    before = 25 * PAGE  # one READ of the kernel's goes from there into the part that can't be read
    assert os.pread(fd, 64 * PAGE, MIB - before) == content[MIB - before:MIB]
    for offset in (MIB, MIB + PAGE, 3 * MIB):
        with pytest.raises(OSError) as caught:
            os.pread(fd, PAGE, offset)
        assert caught.value.errno == errno.EIO
        assert os.fstat(fd).st_size == 4 * MIB
    with mmap.mmap(fd, 4 * MIB) as mapping:
        assert mapping[MIB - before:MIB] == content[MIB - before:MIB]
    disk.mend()
    assert os.pread(fd, 4 * MIB, 0) == content
    assert read_file(path) == content
    os.close(fd)


TOUCH = '''
libc = ctypes.CDLL(None, use_errno=True)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
hole = os.memfd_create("hole")
def touch(offset):
    "A touch by the kernel: it gets EFAULT where a program gets SIGBUS."
    return libc.write(hole, map.address + offset, 1), ctypes.get_errno()
'''


@pytest.fixture
def refused(mount, disk, agents):
    """A function: the content of a file that a program has mapped, and a touch of which was refused; and that program."""
    def start(env=None, before="pass", options="", during="pass"):
        m = mount(options, data=disk.folder)
        content = pattern(4 * MIB, 3)
        for name in ("low", "pad", "f"):
            write_file(os.path.join(m.mnt, name), content)
        disk.sync()
        child = agents(env)
        child.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\nmap = dev.mmap(fd, 4 << 20)\nmap.advise(gaia.ADV_RANDOM)" + TOUCH,
                 path=os.path.join(m.mnt, "f"))
        child.do(before)
        for forgotten in (os.path.join(m.mnt, "f"), os.path.join(disk.folder, "f")):
            helpers.drop_host_cache(forgotten)
        disk.cut()
        done, code = child("touch(2 << 20)")
        if done != 1:
            child.do(during)
        disk.mend()
        if done == 1:
            pytest.skip("reads of the cut image do not fail here")
        assert code == errno.EFAULT
        return content, child
    return start


@pytest.mark.traps
@pytest.mark.parametrize("locked", [False, True])
def test_a_page_that_can_be_read_again(refused, locked):
    """What could not be served is tried again after an acquire, by the same process, which may lock its memory."""
    as_it_comes = "assert libc.mlock2(ctypes.c_void_p(map.address), ctypes.c_size_t(4 << 20), 1) == 0"  # MLOCK_ONFAULT
    content, child = refused(before=as_it_comes if locked else "pass")
    child.do("map.acquire()")
    assert child("touch(2 << 20)")[0] == 1
    assert child("map[:]") == content
    child.end()


@pytest.mark.traps
def test_the_programs_own_memory_in_a_hole_is_not_read_again(refused):
    """What has been put in place of an unmapped part is no page of the file, whose touch is to be tried again."""
    content, child = refused(before="""
map.unmap(1 << 20, 1 << 20)
libc.mmap.restype = ctypes.c_void_p
own = map.address + (1 << 20) + 8 * PAGE
assert libc.mmap(ctypes.c_void_p(own), ctypes.c_size_t(4 * PAGE), 3, 0x32, -1, ctypes.c_long(0)) == own
ctypes.memset(own, 0x5a, 4 * PAGE)
""")
    child.do("map.acquire(2 << 20, 2 << 20)")
    assert child("touch(2 << 20)")[0] == 1
    assert child("ctypes.string_at(own, 4 * PAGE) == b'Z' * 4 * PAGE")
    assert child("map[2 << 20:4 << 20]") == content[2 << 20:]
    child.end()


# An acquire as soon as a touch was refused: how many of the next touches nobody was asked about.
AT_ONCE = """
missed = 0
for turn in range(300):
    assert touch(2 << 20) == (-1, errno.EFAULT)
    map.acquire()
    asked = dev.stat().faults
    touch(2 << 20)
    missed += dev.stat().faults == asked
    time.sleep(0.0003)
    map.acquire()
"""


@pytest.mark.traps
def test_an_acquire_right_after_a_touch_was_refused(refused):
    """Whoever is woken by the refusal finds that there is something to acquire, however fast he is."""
    content, child = refused(options="timeout=600", before="map.acquire()", during=AT_ONCE)
    assert child("missed") == 0
    child.do("map.acquire()")
    assert child("map[:]") == content
    child.end()


@pytest.mark.traps
def test_two_acquires_beside_a_page_that_can_be_read_again(refused, workdir):
    """Neither is over before it is, whichever of them has heard first that a touch was refused."""
    plan = Plan.make(os.path.join(workdir, "plan"))
    content, child = refused(client_with_faults(os.path.join(workdir, "plan")))
    plan.arm_wait(ALL_ROWS.index("madvise"), 2000, 1, 0)
    child.do("import threading\nfirst = threading.Thread(target=map.acquire)\nfirst.start()")
    wait_until(lambda: plan.landed, what="the first is about to refresh")
    child.do("map.acquire()")
    assert child("touch(2 << 20)")[0] == 1
    child.do("first.join()")
    assert child("map[:]") == content
    child.end()


def test_fsync_of_a_file_that_no_device_has(mount, disk):
    m = mount(data=disk.folder)
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8 * MIB)
    disk.fill()
    with contextlib.suppress(OSError):
        os.pwrite(fd, b"w" * MIB, 6 * MIB)
    with pytest.raises(OSError) as caught:
        os.fsync(fd)
    assert caught.value.errno in (errno.EIO, errno.ENOSPC)
    disk.empty()
    os.close(fd)


def test_a_disk_that_cannot_be_written(broken_disk_mount, disk, agents):
    """fsync() and msync say so to each descriptor; nobody sees old bytes; what the device holds is not lost."""
    m = broken_disk_mount
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, 8 * MIB)
    fds = [os.open(path, os.O_RDWR) for _ in range(2)]
    one, two = agents(), agents()
    for agent, name in ((one, "soft:0"), (two, "soft:1")):
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device(name).mmap(fd, 8 << 20)\nmap[5]", path=path, name=name)
    content = pattern(4 * MIB, 2)
    one.do("map[:4 << 20] = content", content=content)
    disk.fill()
    one.do("map.release()")
    try:
        os.pwrite(fds[0], b"w" * MIB, 6 * MIB)
        written = True
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ENOSPC)
        written = False
    for fd in fds:
        with pytest.raises(OSError) as caught:
            os.fsync(fd)
        assert caught.value.errno in (errno.EIO, errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        one.do("map.sync()")
    assert caught.value.errno in (errno.EIO, errno.ENOSPC)
    # what is still there is what was stored, for everyone
    try:
        two.do("map.acquire()")
        assert two("map[:4 << 20]") == content
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ENOSPC)
    assert one("map[:4 << 20]") == content
    disk.empty()
    fresh = os.open(path, os.O_RDWR)
    if written:  # and called clean by the filesystem: the next fsync would have nothing to do
        for fd in (*fds, fresh, *fds):
            with pytest.raises(OSError) as caught:
                os.fsync(fd)
            assert caught.value.errno in (errno.EIO, errno.ENOSPC)
        with pytest.raises(OSError):
            one.do("map.sync()")
    for agent in (one, two):
        agent.do("map.acquire()")
    def store(byte):  # storing what is there already would write nothing
        one.do("map[:4 << 20] = byte * (4 << 20)\nmap.release()", byte=byte)
        os.pwrite(fresh, b"w" * MIB, 6 * MIB)

    store(b"y")
    try:
        os.fsync(fresh)
    except OSError as error:  # the kernel had tried by itself while there was no room: what was stored since counts as lost, too
        assert error.errno in (errno.EIO, errno.ENOSPC)
        with pytest.raises(OSError):
            one.do("map.sync()")
        store(b"z")
        os.fsync(fresh)
    for fd in fds:
        with contextlib.suppress(OSError):
            os.fsync(fd)  # the last of the old trouble
        os.fsync(fd)  # all was written again
    one.do("map[:4 << 20] = content\nmap.release()\nmap.sync()")
    print("written", written)
    assert read_file(path)[:4 * MIB] == content
    for fd in (*fds, fresh):
        os.close(fd)
    one.end()
    two.end()
