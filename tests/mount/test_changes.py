# SPDX-License-Identifier: Apache-2.0
"""Files that change under a mapping: their sizes, names, attributes, and what changes them behind the mount."""
import ctypes
import errno
import os
import signal
import stat
import subprocess
import threading
import time

import pytest

import gaia
from files import Opened, everyone_reads, make, pattern
from gpu_fixture import MAP
from helpers import (ALL_ROWS, PAGE, SIGBUS_CODE, AgentDied, agents, cuda_standin, daemon_with_faults, devices,  # noqa: F401
                     error_of, read_file, wait_until, write_file)

# --- files that change under a mapping --------------------------------------------------------------------------------

def test_truncate_and_extend_gives_zeros(mount, devices, agents):
    m = mount()
    content = pattern(20 * PAGE)
    path = make(m, content)
    opened = Opened(devices(), path)
    other = Opened(devices("soft:1"), path)
    opened.map.acquire()
    other.map.acquire()
    assert opened.map[:] == other.map[:] == content
    opened.map[7 * PAGE:] = b"S" * 13 * PAGE  # released
    opened.map.release()
    other.map[7 * PAGE:] = b"T" * 13 * PAGE  # not released
    os.truncate(path, 6 * PAGE + 100)
    assert read_file(path) == content[:6 * PAGE + 100]
    os.truncate(path, 20 * PAGE)
    expected = content[:6 * PAGE + 100] + bytes(14 * PAGE - 100)
    assert read_file(path) == expected
    other.map.release()
    assert read_file(path) == expected
    everyone_reads(m, "f", expected, opened.map, other.map)


@pytest.mark.traps
def test_shrunk_file_raises_sigbus(mount, agents):
    m = mount()
    path = make(m, pattern(20 * PAGE))
    for touch in ("map[10 * PAGE]", "map[10 * PAGE:10 * PAGE + 1] = b'x'"):
        child = agents()
        os.truncate(path, 20 * PAGE)
        child.do(SIGBUS_CODE + "map[:] = b'x' * 20 * PAGE", path=path, length=20 * PAGE)
        os.truncate(path, 5 * PAGE + 1)
        assert child("map[5 * PAGE]") == ord("x")
        with pytest.raises(AgentDied) as died:
            child.do(touch)
        assert died.value.code == -signal.SIGBUS
        assert os.stat(path).st_size == 5 * PAGE + 1


def test_what_was_stored_behind_a_new_end_is_gone(mount, devices):
    """From the first page that lies wholly past it: a release after the file has grown again takes nothing of it."""
    path = make(mount(), pattern(20 * PAGE))
    opened = Opened(devices(), path)
    for end, stored in ((5 * PAGE + 1, 6), (5 * PAGE, 5)):
        opened.map[stored * PAGE:(stored + 1) * PAGE] = b"x" * PAGE
        os.truncate(path, end)
        os.truncate(path, 20 * PAGE)
        os.pwrite(opened.fd, b"y" * PAGE, stored * PAGE)
        opened.map.release()
        opened.map.acquire()
        assert os.pread(opened.fd, PAGE, stored * PAGE) == b"y" * PAGE
        assert opened.map[stored * PAGE:(stored + 1) * PAGE] == b"y" * PAGE


def test_a_file_that_is_cut_after_it_was_immutable(mount, devices):
    """It could not be opened for writing when the device came."""
    m = mount("passthrough=off")
    path, below = make(m, pattern(2 * PAGE)), os.path.join(m.data, "f")
    if subprocess.run(["chattr", "+i", below], capture_output=True).returncode:
        pytest.skip("no chattr +i here")
    try:
        opened = Opened(devices(), path, prot=gaia.PROT_READ)
        assert opened.map[:] == pattern(2 * PAGE)
        assert error_of(os.truncate, path, 100) == errno.EPERM
    finally:
        subprocess.run(["chattr", "-i", below], check=True)
    os.truncate(path, 100)
    assert os.stat(path).st_size == os.stat(below).st_size == 100
    everyone_reads(m, "f", pattern(2 * PAGE)[:100], opened.map)


@pytest.mark.parametrize("options", ["passthrough=off", "shared"])
def test_a_file_that_is_stored_to_after_it_was_immutable(mount, devices, agents, options):
    """It could not be opened for writing when a device came that only reads, which goes on reading. With `shared` other mounts
    that only read have the file as long as nobody stores to it."""
    m = mount(options)
    path, below = make(m, pattern(2 * PAGE)), os.path.join(m.data, "f")
    other = options == "shared" and mount(options, data=m.data)
    if subprocess.run(["chattr", "+i", below], capture_output=True).returncode:
        pytest.skip("no chattr +i here")
    try:
        reads = Opened(devices(), path, prot=gaia.PROT_READ)
        assert reads.map[:] == pattern(2 * PAGE)
        if other:
            elsewhere = Opened(devices("soft:1"), os.path.join(other.mnt, "f"), prot=gaia.PROT_READ)
            assert elsewhere.map[:] == pattern(2 * PAGE)
    finally:
        subprocess.run(["chattr", "-i", below], check=True)
    fd = os.open(path, os.O_RDWR)
    if other:
        assert error_of(devices("soft:2").mmap, fd, 2 * PAGE) == errno.EBUSY
        assert error_of(devices("soft:2").mmap, fd, 2 * PAGE) == errno.EBUSY  # and is not called writable now
        elsewhere.map.unmap()
    stores = devices("soft:2").mmap(fd, 2 * PAGE)
    if other:  # for as long as it is mapped here
        theirs = os.open(os.path.join(other.mnt, "f"), os.O_RDWR)
        assert error_of(devices("soft:1").mmap, theirs, PAGE, gaia.PROT_READ) == errno.EBUSY
    stores[10:14] = b"here"
    stores.release()
    os.close(fd)
    everyone_reads(m, "f", pattern(2 * PAGE)[:10] + b"here" + pattern(2 * PAGE)[14:], reads.map, stores)
    stores.unmap()
    reads.map.unmap()
    if other:
        devices("soft:1").mmap(theirs, PAGE).unmap()
        os.close(theirs)


def test_two_that_store_to_a_file_after_it_was_immutable(mount, devices, agents, workdir, monkeypatch):
    """Both find that it could not be opened for writing. The claim of the first that opens it anew does not keep the other one out."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("shared", env=env)
    path, below = make(m, pattern(PAGE)), os.path.join(m.data, "f")
    if subprocess.run(["chattr", "+i", below], capture_output=True).returncode:
        pytest.skip("no chattr +i here")
    try:
        reads = Opened(devices(), path, prot=gaia.PROT_READ)
        assert reads.map[:] == pattern(PAGE)
    finally:
        subprocess.run(["chattr", "-i", below], check=True)
    programs = [agents() for _ in range(2)]
    for program in programs:
        program.do("device, fd = gaia.Device('soft:1'), os.open(path, os.O_RDWR); reads = device.mmap(fd, 4096, gaia.PROT_READ)", path=path)
    plan.arm_wait(ALL_ROWS.index("fcntl64"), 700, 1, False)  # that locks the file for the new descriptor
    calls = plan.calls[ALL_ROWS.index("fcntl64")]
    programs[0].start("map = device.mmap(fd, 4096)")
    wait_until(lambda: plan.calls[ALL_ROWS.index("fcntl64")] > calls, what="it is opened anew")
    programs[1].do("map = device.mmap(fd, 4096); map[9] = 1; map.release()")
    programs[0].finish()
    assert read_file(path) == pattern(PAGE)[:9] + b"\1" + pattern(PAGE)[10:]


def test_truncate_with_o_trunc_while_mapped(mount, devices):
    m = mount()
    path = make(m, b"1" * 4 * PAGE)
    opened = Opened(devices(), path)
    opened.map[:PAGE] = b"D" * PAGE
    opened.map.release()
    write_file(path, b"new")  # O_TRUNC
    assert read_file(path) == b"new"
    opened.map.acquire()
    assert opened.map[:4] == b"new\0"
    everyone_reads(m, "f", b"new", opened.map)


def test_rename_and_unlink_while_mapped(mount, devices):
    m = mount()
    path = make(m, b"1" * 4 * PAGE)
    device = devices()
    opened = Opened(device, path)
    opened.map[5] = 5
    moved = os.path.join(m.mnt, "moved")
    os.rename(path, moved)
    opened.map.release()
    assert read_file(moved)[5] == 5
    with open(moved, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"c", 6)
        opened.map.acquire()
        assert opened.map[4:8] == b"1\x05c1"
        # another file in its place is another file
        write_file(path, b"2" * 4 * PAGE)
        second = Opened(device, path)
        assert second.map[:] == b"2" * 4 * PAGE
        os.rename(path, moved)  # replaces the mapped file
        opened.map[7] = 7
        opened.map.release()
        assert os.pread(file.fileno(), 4, 5) == b"\x05c1\x07" or os.pread(file.fileno(), 3, 5) == b"\x05c\x07"
        os.unlink(moved)
        opened.map[8] = second.map[8] = 8
        opened.map.release()
        second.map.release()
        assert os.pread(file.fileno(), 1, 8) == os.pread(second.fd, 1, 8) == b"\x08"
        os.pwrite(file.fileno(), b"C", 9)
        opened.map.acquire()
        assert opened.map[9] == ord("C")
        assert os.listdir(m.data) == [] == os.listdir(m.mnt)
    os.close(opened.fd)
    os.close(second.fd)
    second.map.unmap()
    assert opened.map[9] == ord("C")
    opened.map[10] = 10
    opened.map.release()
    opened.map.acquire()
    assert opened.map[10] == 10


def test_holes_and_copies_are_writes(mount, devices):
    m = mount()
    content = bytearray(pattern(20 * PAGE))
    path = make(m, content)
    opened = Opened(devices(), path)
    assert opened.map[:] == content
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    opened.map[2 * PAGE:4 * PAGE] = b"d" * 2 * PAGE
    opened.map.release()
    assert libc.fallocate(opened.fd, 3, 3 * PAGE, 5 * PAGE + 10) == 0  # punch, keep the size
    content[2 * PAGE:4 * PAGE] = b"d" * 2 * PAGE
    content[3 * PAGE:8 * PAGE + 10] = bytes(5 * PAGE + 10)
    assert read_file(path) == content
    opened.map.acquire()
    assert opened.map[:] == content
    opened.map[15 * PAGE:15 * PAGE + 5] = content[15 * PAGE:15 * PAGE + 5] = b"moved"
    opened.map.release()
    assert os.copy_file_range(opened.fd, opened.fd, 2 * PAGE, 15 * PAGE, 0) == 2 * PAGE
    content[:2 * PAGE] = content[15 * PAGE:17 * PAGE]
    assert read_file(path) == content
    # zeroing is a write, in a page that was released too
    opened.map[11 * PAGE:12 * PAGE] = b"z" * PAGE
    opened.map.release()
    assert libc.fallocate(opened.fd, 0x11, 11 * PAGE, PAGE // 2) == 0  # zero a range, keep the size
    content[11 * PAGE:12 * PAGE] = bytes(PAGE // 2) + b"z" * (PAGE // 2)
    assert read_file(path) == content
    opened.map.acquire()
    assert opened.map[:] == content
    # released bytes in a hole are data
    opened.map[7 * PAGE] = content[7 * PAGE] = 7
    opened.map.release()
    assert os.lseek(opened.fd, 3 * PAGE, os.SEEK_DATA) == 7 * PAGE
    everyone_reads(m, "f", bytes(content), opened.map)


def test_a_copy_has_what_a_device_released(mount, devices):
    m = mount()
    path, target = make(m, b"o" * 4 * PAGE), make(m, b"", "target")
    opened = Opened(devices(), path)
    opened.map[PAGE:2 * PAGE] = b"d" * PAGE
    opened.map.release()
    with open(path, "rb") as source, open(target, "r+b") as file:
        assert os.copy_file_range(source.fileno(), file.fileno(), 4 * PAGE, 0, 0) == 4 * PAGE
    assert read_file(target) == b"o" * PAGE + b"d" * PAGE + b"o" * 2 * PAGE


# --- what a write does to a file's attributes -----------------------------------------------------------------------------

def test_a_release_is_a_write_to_make_and_rsync(mount, devices):
    m = mount("timeout=0")
    path = make(m, bytes(2 * PAGE))
    opened = Opened(devices(), path)
    os.chmod(path, 0o4755)
    os.utime(path, ns=(10 ** 18, 10 ** 18))
    before = os.stat(path)
    opened.map.release()
    assert opened.map[1] == 0
    opened.map.release()
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns and os.stat(path).st_ctime_ns == before.st_ctime_ns
    time.sleep(0.02)
    opened.map[1] = 1
    opened.map.release()
    after = os.stat(path)
    assert after.st_mtime_ns > before.st_mtime_ns and abs(after.st_mtime - time.time()) < 10
    assert after.st_ctime_ns > before.st_ctime_ns
    assert os.stat(os.path.join(m.data, "f")).st_mtime_ns == after.st_mtime_ns


def test_a_release_to_a_file_of_somebody_else(mount, devices):
    """The daemon may write it, and that is all, as in an ordinary user's mount (or one of root's with few capabilities)."""
    m = mount("timeout=0", before=("setpriv", "--bounding-set=-fowner", "--inh-caps=-fowner"))
    path = make(m, bytes(PAGE))
    os.chmod(path, 0o666)
    opened = Opened(devices(), path)
    below = os.path.join(m.data, "f")
    os.chown(below, 1234, 1234)
    os.utime(below, ns=(10 ** 18, 10 ** 18))
    opened.map.acquire()
    opened.map[1] = 1
    opened.map.release()
    assert abs(os.stat(path).st_mtime - time.time()) < 10
    assert read_file(path) == b"\0\1" + bytes(PAGE - 2)


def test_a_release_beside_a_chmod(mount, devices, workdir, monkeypatch):
    """It clears the set-id bits of what the mode is at that moment: nobody may read again what a chmod() has just made private."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("timeout=0", env=env)
    path = make(m, bytes(PAGE))
    os.chmod(path, 0o4755)
    opened = Opened(devices(), path)
    opened.map[1] = 1
    for row in "fchmod", "fchownat":  # whichever it calls waits for a moment
        calls = plan.calls[ALL_ROWS.index(row)]
        plan.arm_wait(ALL_ROWS.index(row), 700, 1, False)
        release = threading.Thread(target=opened.map.release)
        release.start()
        wait_until(lambda: plan.calls[ALL_ROWS.index(row)] > calls or not release.is_alive(), what="it calls, or ends")
        if plan.calls[ALL_ROWS.index(row)] > calls:
            break
        release.join()
        os.chmod(path, 0o4755)
        opened.map[1] = 2
    assert release.is_alive()
    os.chmod(path, 0o600)
    release.join()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def made_a_program(m, devices):
    """(a file of which a device has released a byte that nobody has read, before it was made a set-id program; it, opened)"""
    path = make(m, bytes(2 * PAGE))
    opened = Opened(devices(), path)
    opened.map[1] = 1
    opened.map.release()
    os.chmod(path, 0o4755)
    return path, opened


@pytest.mark.traps  # nothing tells of a GPU's stores
@pytest.mark.parametrize("call", ["release", "acquire", "advise"])
def test_a_second_release_of_what_nobody_has_read_is_a_write_too(mount, devices, call):
    """As a write() is by who has had the file open before its owner made it a set-id program."""
    m = mount("timeout=0,passthrough=off")
    path, opened = made_a_program(m, devices)
    before = os.stat(path)
    time.sleep(0.02)
    opened.map[1] = 2
    getattr(opened.map, call)(*[gaia.ADV_DONTNEED] * (call == "advise"))
    after = os.stat(path)
    assert stat.S_IMODE(after.st_mode) == 0o755
    assert after.st_mtime_ns > before.st_mtime_ns and after.st_ctime_ns > before.st_ctime_ns
    assert read_file(os.path.join(m.mnt, "f"))[1] == 2


def test_a_gpu_releases_again_what_nobody_has_read(mount, monkeypatch, agents):
    """Whether its kernels have stored to it since nobody can tell: times stay, but set-id bits must not."""
    monkeypatch.setenv("LD_LIBRARY_PATH", cuda_standin())
    m = mount("timeout=0,passthrough=off", env={"STANDIN_CUDA": ""})
    path = make(m, bytes(2 * PAGE))
    child = agents({"STANDIN_CUDA": ""})
    child.do(MAP, path=path, length=2 * PAGE, writable=True)
    child.do("map.acquire()\nmap[0] = 1\nmap.release()")
    before = os.stat(path)
    time.sleep(0.02)
    child.do("map.release()")
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns and os.stat(path).st_ctime_ns == before.st_ctime_ns
    os.chmod(path, 0o4755)
    child.do("map[0] = 2\nmap.release()")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755
    assert read_file(path)[0] == 2
    child.end()


@pytest.mark.traps  # nothing tells of a GPU's stores
@pytest.mark.parametrize("how", ["release", "acquire", "advise", "unmount"])
def test_set_id_bits_that_are_set_after_a_release_stay(mount, devices, how):
    """Nothing is stored after that, however long what was released is with the device, and whoever makes it leave."""
    m = mount("timeout=0,passthrough=off")
    path, opened = made_a_program(m, devices)
    if how == "unmount":
        opened.close()
        assert m.unmount() is None
    else:
        getattr(opened.map, how)(*[gaia.ADV_DONTNEED] * (how == "advise"))
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o4755
    below = os.path.join(m.data, "f")
    assert stat.S_IMODE(os.stat(below).st_mode) == 0o4755
    assert how in ("release", "acquire") or read_file(below)[1] == 1


@pytest.mark.parametrize("passthrough", ["off", "all"])
def test_times_that_are_set_after_a_release_stay(mount, devices, passthrough):
    """cp -p, tar -x, rsync and touch: nothing that was released before moves them, when it is read, synced or unmounted."""
    m = mount(f"timeout=0,passthrough={passthrough}")
    path = make(m, bytes(4 * PAGE))
    opened = Opened(devices(), path)
    below = os.path.join(m.data, "f")
    for turn, bring in enumerate((lambda: read_file(path), lambda: os.fsync(opened.fd), opened.map.acquire, opened.close)):
        opened.map[turn * PAGE] = turn + 1
        opened.map.release()
        os.utime(path, ns=(10 ** 18, 10 ** 18 + turn))
        bring()
        assert os.stat(below).st_mtime_ns == 10 ** 18 + turn
    m.unmount()
    assert os.stat(below).st_mtime_ns == 10 ** 18 + 3
    assert read_file(below)[::PAGE] == bytes((1, 2, 3, 4))


def test_a_users_release_clears_set_id_bits(mount, devices):
    m = mount("timeout=0")
    path = make(m, bytes(2 * PAGE))
    device = devices()
    opened = Opened(device, path)
    os.chmod(path, 0o6777)
    opened.map[1] = 1
    opened.map.release()
    read_file(path)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    assert mode in (0o777, 0o6777) and mode == stat.S_IMODE(os.stat(os.path.join(m.data, "f")).st_mode)
    assert mode == 0o777  # "clears set-id bits as a write would"


@pytest.mark.parametrize("before, after", [(0o6710, 0o710), (0o2710, 0o710), (0o6701, 0o2701), (0o2745, 0o2745), (0o4644, 0o644)])
def test_set_id_bits_that_a_release_clears(mount, devices, before, after):
    """Without the group's x bit the set-group-ID bit means something else, and stays."""
    m = mount("timeout=0")
    path = make(m, bytes(2 * PAGE))
    opened = Opened(devices(), path)
    os.chmod(path, before)
    opened.map[1] = 1
    opened.map.release()
    assert stat.S_IMODE(os.stat(path).st_mode) == stat.S_IMODE(os.stat(os.path.join(m.data, "f")).st_mode) == after


def test_set_id_bits_that_chown_does_not_clear(mount, devices, workdir, monkeypatch):
    """In a data directory on NFS a chown() that changes no owner does nothing."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("timeout=0", env=env)
    path = make(m, bytes(PAGE))
    opened = Opened(devices(), path)
    os.chmod(path, 0o6755)
    opened.map[1] = 1
    plan.arm(ALL_ROWS.index("fchownat"), errno.EPERM, 1, True)
    opened.map.release()
    assert plan.landed and stat.S_IMODE(os.stat(path).st_mode) == 0o755


def test_file_capabilities_do_not_survive_a_release(mount, devices):
    m = mount()
    path = make(m, bytes(2 * PAGE))
    opened = Opened(devices(), path)
    os.setxattr(path, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
    opened.map[1] = 1
    opened.map.release()
    for top in (m.mnt, m.data):
        with pytest.raises(OSError) as caught:
            os.getxattr(os.path.join(top, "f"), "security.capability")
        assert caught.value.errno == errno.ENODATA


# --- changes behind the mount ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("timeout", [0, 1])
def test_changes_behind_the_mount_are_seen_at_acquire(mount, devices, timeout):
    """At once, or after the timeout: with nothing else that would make the client ask."""
    m = mount(f"timeout={timeout}")
    path = make(m, b"1" * 8 * PAGE)
    opened = Opened(devices(), path)
    opened.map.acquire()
    assert opened.map[:] == b"1" * 8 * PAGE
    with open(os.path.join(m.data, "f"), "r+b") as behind:
        behind.write(b"2" * PAGE)
    time.sleep(1.1 * timeout)
    opened.map.acquire()
    assert opened.map[:] == b"2" * PAGE + b"1" * 7 * PAGE


@pytest.mark.parametrize("tracked", [True, False])
def test_changes_that_a_device_has_met_are_dropped_at_open(mount, devices, tracked):
    """The acquire, or the first map, that finds the change must not hide it from the next open: the kernel still holds
    the old pages."""
    m = mount("timeout=0")
    path = make(m, b"1" * 8 * PAGE)
    time.sleep(0.1)
    assert read_file(path) == b"1" * 8 * PAGE
    device, fd = devices(), os.open(path, os.O_RDWR)
    if tracked:
        opened = Opened(device, path)
        assert opened.map[:] == b"1" * 8 * PAGE
    with open(os.path.join(m.data, "f"), "r+b") as behind:
        behind.write(b"2" * PAGE)
    mapping = device.mmap(fd, 8 * PAGE)
    mapping.acquire()
    assert mapping[:] == b"2" * PAGE + b"1" * 7 * PAGE
    assert read_file(path) == b"2" * PAGE + b"1" * 7 * PAGE
    os.close(fd)
