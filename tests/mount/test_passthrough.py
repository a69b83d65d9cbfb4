# SPDX-License-Identifier: Apache-2.0
"""Files that the kernel passes through to the data directory: the same promises, for devices that map a file which
programs have open, or mapped, or have mapped and closed. Needs Linux 6.9.
"""
import ctypes
import errno
import mmap
import os
import signal
import subprocess

import pytest

import conftest
import gaia
import helpers
import test_files
from files import make, pattern
from helpers import (MIB, PAGE, agents, device_statistics, devices, forget_inodes, kernel_at_least, make_random,  # noqa: F401
                     read_direct, read_file, repeats, statistics, stand_still, wait_until, write_file)
from passing import mode, modes, open_map, passing, program  # noqa: F401


# --- modes ----------------------------------------------------------------------------------------------------------

def test_modes_are_shown(passing, mount, devices):
    m = passing()
    path = make(m, bytes(PAGE))
    assert modes(m) == {}
    fds = [os.open(path, flags) for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND)]
    assert statistics(m.mnt)["open"] == [{"path": "f", "mode": "passthrough", "opens": 3}]
    text = subprocess.run([os.path.join(conftest.BIN, "gaiactl"), "stat", m.mnt], capture_output=True, text=True).stdout
    assert "  passthrough      3 f\n" in text
    device = devices()
    mapping = device.mmap(fds[1], PAGE)
    assert mode(m) == "passthrough" and statistics(m.mnt)["files"][0]["mode"] == "passthrough"
    for fd in fds:
        os.close(fd)
    mapping.unmap()
    off = mount("passthrough=off")
    path = make(off, bytes(PAGE))
    fd = os.open(path, os.O_RDWR)
    assert mode(off) == "cached"
    device.mmap(fd, PAGE)
    assert mode(off) == "tracked" and statistics(off.mnt)["files"][0]["mode"] == "tracked"


def test_filesystems_that_are_mounted_in_the_data_directory(passing, mount, workdir):
    """Files are passed through to those that this was tried on: to one of FUSE, NFS or CIFS no more than if it were below all."""
    data = os.path.join(workdir, "outer")
    places = {kind: os.path.join(data, kind) for kind in ("fuse", "tmpfs")}
    for place in places.values():
        os.makedirs(place)
    inner = mount("passthrough=off", mnt=places["fuse"])
    subprocess.run(["mount", "-t", "tmpfs", "none", places["tmpfs"]], check=True)
    try:
        m = passing(data=data)
        fds = [os.open(os.path.join(m.mnt, name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600) for name in ("f", "fuse/f", "tmpfs/f")]
        found = modes(m)
        for fd in fds:
            os.close(fd)
        assert m.unmount() is None and inner.unmount() is None
        assert found == {"f": "passthrough", "fuse/f": "cached", "tmpfs/f": "passthrough"}
    finally:
        subprocess.run(["umount", "-l", places["tmpfs"]], check=True)


def test_the_attributes_of_a_created_file(passing):
    """The answer to CREATE has them, and for a minute the kernel asks nobody else."""
    m = passing("timeout=60")
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT, 0o640)
    told, there = os.fstat(fd), os.stat(os.path.join(m.data, "f"))
    for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_blksize", "st_ino",
                 "st_atime_ns", "st_mtime_ns", "st_ctime_ns"):
        assert getattr(told, name) == getattr(there, name), name
    os.close(fd)


def test_a_created_file(passing):
    m = passing()
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT, 0o600)
    assert mode(m) == "passthrough"
    assert os.write(fd, b"abc") == 3 and os.pread(fd, 9, 0) == b"abc" and os.fstat(fd).st_size == 3
    assert read_file(os.path.join(m.data, "f")) == b"abc"
    os.close(fd)


def test_the_flag_to_append(passing):
    """It comes and goes, and a mapping heeds it not."""
    test_files.test_append_flag_can_be_set_and_cleared_later(passing)
    test_files.test_mapped_store_through_an_append_handle_keeps_its_place(passing)


def test_the_daemon_sees_no_read_and_no_write(passing):
    """Both work while it stands still."""
    m = passing()
    fd = os.open(make(m, bytes(MIB)), os.O_RDWR)
    mapping = mmap.mmap(fd, MIB)
    os.pwrite(fd, b"x", 0)
    try:
        stand_still(m.pid)
        for i in range(100):
            assert os.pwrite(fd, b"y" * 5000, i * 10000) == 5000
            assert os.pread(fd, 6000, i * 10000) == b"y" * 5000 + bytes(1000)
            mapping[i * 10000 + 5500] = i
            assert os.pread(fd, 1, i * 10000 + 5500)[0] == i
    finally:
        os.kill(m.pid, signal.SIGCONT)
    mapping.close()
    os.close(fd)


def test_what_a_device_had_first_is_tracked(passing, devices):
    """Once the kernel has forgotten a file that devices still hold, its next open is an ordinary one."""
    m = passing()
    content = bytearray(pattern(8 * PAGE))
    path = make(m, content)
    mapping, fd = open_map(devices(), path)
    assert mapping[:] == content
    mapping[5] = content[5] = 7
    mapping.release()
    os.close(fd)
    devices_fd = [fd for fd in helpers.files_on_mounts()]  # libgaia's own keeps it known
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "passthrough" and devices_fd
    os.close(fd)
    mapping.unmap()
    wait_until(lambda: modes(m) == {}, what="libgaia lets go")
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"unseen", 3 * PAGE)  # of which no device hears
    content[3 * PAGE:3 * PAGE + 6] = b"unseen"
    os.close(fd)

    def is_forgotten():  # not while the kernel waits for the answer to a RELEASE
        nonlocal fd
        forget_inodes()
        fd = os.open(path, os.O_RDWR)
        if mode(m) != "tracked":
            os.close(fd)
        return mode(m) == "tracked"

    wait_until(is_forgotten, what="the kernel has forgotten it")
    mapping = devices("soft:0").mmap(fd, len(content))
    mapping.acquire()
    assert mapping[:] == content
    mapping[6] = content[6] = 8
    mapping.release()
    assert os.pread(fd, len(content), 0) == content
    with mmap.mmap(fd, len(content)) as cpu:
        cpu[PAGE] = content[PAGE] = 9
        mapping.acquire()
        assert mapping[:] == content


# --- the promises ---------------------------------------------------------------------------------------------------

WRITERS = {
    "write": "os.pwrite(fd, new, offset)",
    "append-descriptor": "os.lseek(fd, offset, 0), os.write(fd, new)",
    "mapping": "mapping.__setitem__(slice(offset, offset + len(new)), new)",
    "closed-mapping": "closed.__setitem__(slice(offset, offset + len(new)), new)",
    "copy": "(os.pwrite(aside, new, 0), os.copy_file_range(aside, fd, len(new), 0, offset))",
}


@pytest.mark.parametrize("flags", [gaia.DEMAND, gaia.RESIDENT], ids=["demand", "resident"])
@pytest.mark.parametrize("how", WRITERS)
def test_what_cpus_write_is_seen_after_an_acquire(passing, devices, agents, how, flags):
    m = passing()
    content = bytearray(pattern(70 * PAGE))
    path = make(m, content)
    writer = program(agents(), path, os.path.join(m.mnt, "aside"))
    mapping, _ = open_map(devices(), path, flags=flags)
    assert mapping[:] == content
    assert mode(m) == "passthrough"
    rng = make_random()
    for _ in range(40):
        offset, new = rng.randrange(len(content) - 5000), rng.randbytes(rng.choice([1, 10, 5000]))
        writer(WRITERS[how], offset=offset, new=new)
        content[offset:offset + len(new)] = new
        mapping.acquire()
        assert mapping[:] == content
    count = device_statistics(m.mnt)
    assert count["drops"] < 40 * 4, count  # no more than what was written to
    before = count["bytes_in"]
    mapping.acquire()
    assert mapping[:] == content
    assert device_statistics(m.mnt)["bytes_in"] == before


READERS = {
    "read": "os.pread(fd, len(content), 0) == content",
    "direct": "read_direct(path, len(content)) == content",
    "mapping": "mapping[:] == content",
    "closed-mapping": "bytes(closed) == content",
    "other-device": "(map.acquire(), map[:] == content)[1]",
}


def test_what_a_device_stored_is_seen_after_its_release(passing, devices, agents):
    m = passing()
    content = bytearray(pattern(20 * PAGE))
    path = make(m, content)
    reader = program(agents(), path, os.path.join(m.mnt, "aside"))
    reader.do("dev = gaia.Device('soft:1')\nmap = dev.mmap(fd, size)")
    assert reader("map[:] == mapping[:]")
    mapping, _ = open_map(devices(), path)
    rng = make_random()
    for turn in range(50):
        offset, new = rng.randrange(len(content) - 10), rng.randbytes(rng.choice([1, 10]))
        mapping[offset:offset + len(new)] = new
        content[offset:offset + len(new)] = new
        mapping.release()
        assert read_file(os.path.join(m.data, "f")) == content  # at once, and before anybody asks
        for name in sorted(READERS, key=lambda _: rng.random()):
            assert reader(READERS[name], content=bytes(content)), (turn, name)
    assert device_statistics(m.mnt)["collects"] >= 40  # a byte may be stored that was there


@pytest.mark.parametrize("way", ["mapping", "closed"])
def test_a_page_shared_by_a_storing_mapping_and_a_device(passing, devices, agents, way):
    """The mapping stores without pause to every second byte, the device to the others: nobody loses one. The storing program
    sees to it itself that what it stored stays."""
    m = passing()
    size, rounds = 2 * PAGE, repeats(400)
    path = make(m, bytes(size))
    storer = program(agents(), path, os.path.join(m.mnt, "aside"))
    storer.do("def run():\n"
              "    global lost, turns\n"
              "    view = mapping if way == 'mapping' else closed\n"
              "    lost, turns, value = [], 0, 0\n"
              "    while not stop:\n"
              "        value = value % 255 + 1\n"
              "        new = bytes([value]) * (size // 2)\n"
              "        view[::2] = new\n"
              "        if bytes(view[::2]) != new:\n"
              "            lost.append(value)\n"
              "        turns += 1\n"
              "stop = False\nthread = threading.Thread(target=run)\nthread.start()", way=way)
    mapping, _ = open_map(devices(), path)
    odd = (ctypes.c_ubyte * size).from_address(mapping.address)
    for turn in range(rounds):
        value = turn % 255 + 1
        odd[1::2] = [value] * (size // 2)
        if turn % 3:
            mapping.release()
        else:
            mapping.acquire()
        assert read_file(os.path.join(m.data, "f"))[1::2] == bytes([value]) * (size // 2), turn
        assert bytes(odd[1::2]) == bytes([value]) * (size // 2), turn
    storer.do("stop = True\nthread.join()")
    lost, turns, last = storer("(lost, turns, mapping[0])")
    print(f"{turns} turns of the storing mapping beside {rounds} of the device")
    assert not lost and turns > rounds // 10
    mapping.acquire()
    assert bytes(odd[::2]) == bytes([last]) * (size // 2)
    assert device_statistics(m.mnt)["merges"] > 0


def test_two_devices_and_a_program_share_pages(passing, devices, agents):
    """Each has a third of the bytes of each page, at random, and nobody loses one."""
    m = passing()
    size = 6 * PAGE
    expected = bytearray(size)
    path = make(m, expected)
    cpu = program(agents(), path, os.path.join(m.mnt, "aside"))
    mappings = [open_map(devices(f"soft:{i}"), path)[0] for i in range(2)]
    rng = make_random()
    for _ in range(150):
        for owner in rng.sample(range(3), 3):
            changes = {rng.randrange(size // 3) * 3 + owner: rng.randrange(256) for _ in range(20)}
            for offset, value in changes.items():
                expected[offset] = value
                if owner < 2:
                    mappings[owner][offset] = value
            if owner < 2:
                mappings[owner].release()
            else:
                way = rng.choice(["os.pwrite(fd, bytes([value]), offset)", "mapping.__setitem__(offset, value)",
                                  "closed.__setitem__(offset, value)"])
                cpu(f"[{way} for offset, value in changes.items()] and None", changes=changes)
        assert read_file(path) == expected
        for mapping in rng.sample(mappings, rng.randrange(3)):
            mapping.acquire()
            assert mapping[:] == expected


def test_eviction_from_a_small_device(passing, devices, agents):
    """Four times what the device can hold, stored to and released or not: all of it arrives, and CPU stores survive it."""
    m = passing("device_cache=256K,unit=4K")
    content = bytearray(pattern(MIB))
    path = make(m, content)
    cpu = program(agents(), path, os.path.join(m.mnt, "aside"))
    mapping, _ = open_map(devices(), path)
    rng = make_random()
    for turn in range(4):
        for page in rng.sample(range(256), 256):
            mapping[page * PAGE + turn] = content[page * PAGE + turn] = turn + 1
            if page % 7 == 0:
                at = page * PAGE + 100 + turn
                cpu.do("closed[at] = 9", at=at)
                content[at] = 9
    mapping.release()
    assert read_file(path) == content
    mapping.acquire()
    assert mapping[:] == content
    assert device_statistics(m.mnt)["evictions"] > 500


def test_truncate_and_append(passing, devices, agents):
    m = passing()
    content = pattern(5 * PAGE)
    path = make(m, content)
    cpu = agents()
    cpu.do("fd = os.open(path, os.O_RDWR | os.O_APPEND)", path=path)
    mapping, fd = open_map(devices(), path, length=16 * PAGE)
    assert mapping[:5 * PAGE] == content
    mapping[2 * PAGE + 200] = 1  # will be cut off
    cpu.do("os.ftruncate(fd, 2 * 4096 + 100)")
    mapping.release()
    content = content[:2 * PAGE + 100]
    assert read_file(path) == content
    assert os.fstat(fd).st_size == len(content)
    cpu.do("os.write(fd, b'a' * 3 * 4096)")  # of which the daemon does not hear
    content += b"a" * 3 * PAGE
    assert os.fstat(fd).st_size == len(content)
    mapping.acquire()
    assert mapping[:len(content)] == content
    mapping[len(content) - 1] = 5
    mapping.release()
    content = content[:-1] + b"\5"
    cpu.do("os.write(fd, b'b')")
    content += b"b"
    assert read_file(path) == content
    os.truncate(path, 10 * PAGE)
    content += bytes(10 * PAGE - len(content))
    mapping.acquire()
    assert mapping[:10 * PAGE] == content
    os.close(os.open(path, os.O_RDWR | os.O_TRUNC))
    assert read_file(path) == b""
    cpu.do("os.write(fd, b'new')")
    mapping.acquire()
    assert mapping[:PAGE] == b"new" + bytes(PAGE - 3)


@pytest.mark.parametrize("how", ["release", "acquire", "evict"])
def test_a_store_where_a_program_has_made_the_file_longer(passing, devices, agents, how):
    """Nobody heard of the growth: what a device stores there is a store all the same, whatever looks at it first."""
    m = passing("device_cache=256K")
    path = make(m, b"a" * 100)
    other = make(m, pattern(200 * PAGE), "other")
    cpu = agents()
    cpu.do("fd = os.open(path, os.O_RDWR)", path=path)
    device = devices()
    mapping, _ = open_map(device, path, length=4 * PAGE)
    assert mapping[:100] == b"a" * 100
    cpu.do("os.pwrite(fd, b'b' * 3996, 100)")
    mapping[200] = 7
    if how == "release":
        mapping.release()
    elif how == "evict":
        assert open_map(device, other)[0][:] == pattern(200 * PAGE)
    mapping.acquire()
    content = b"a" * 100 + b"b" * 100 + b"\7" + b"b" * 3895
    assert read_file(path) == content
    assert mapping[:PAGE] == content


@pytest.mark.parametrize("options", ["noatime", "ro"])
def test_a_mount_that_must_leave_no_trace(mount, workdir, options):
    """The kernel would read as the data directory's own mount has it."""
    data = os.path.join(workdir, "read")
    os.mkdir(data)
    path = os.path.join(data, "f")
    write_file(path, b"text")
    os.utime(path, (1, 1))
    m = mount(options, data=data)
    assert not statistics(m.mnt)["passthrough"]
    assert read_file(os.path.join(m.mnt, "f")) == b"text"
    assert os.stat(path).st_atime == 1


def test_a_read_that_comes_to_the_daemon(passing, devices):
    """Through a descriptor with O_APPEND: it never has what a device holds, which may be older than the file."""
    m = passing()
    content = bytearray(pattern(MIB))
    path = make(m, content)
    mapping, fd = open_map(devices(), path)
    assert mapping[:] == content
    append = os.open(path, os.O_RDWR | os.O_APPEND)
    os.pwrite(fd, b"newer", 5000)
    content[5000:5005] = b"newer"
    helpers.drop_host_cache(os.path.join(m.data, "f"))
    assert os.pread(append, len(content), 0) == content
    assert device_statistics(m.mnt)["peer_reads"] == 0
    os.write(append, b"end")
    content += b"end"
    assert read_file(path) == content
    mapping.acquire()
    assert mapping[:] == content[:MIB]
    os.close(append)
    os.close(fd)


def test_holes_and_zeroes(passing, devices):
    """fallocate() still comes to the daemon."""
    m = passing()
    content = bytearray(pattern(8 * PAGE))
    path = make(m, content)
    mapping, fd = open_map(devices(), path)
    mapping[:] = bytes(content)
    mapping.release()
    libc = ctypes.CDLL(None, use_errno=True)
    punch_hole_keep_size = 3
    assert libc.fallocate(fd, punch_hole_keep_size, ctypes.c_long(PAGE), ctypes.c_long(2 * PAGE + 100)) == 0
    content[PAGE:3 * PAGE + 100] = bytes(2 * PAGE + 100)
    assert read_file(path) == content
    mapping.acquire()
    assert mapping[:] == content


def test_opens_before_and_after(passing, devices):
    """All of them the same way, whatever came first."""
    m = passing()
    content = bytearray(pattern(3 * PAGE))
    path = make(m, content)
    before = os.open(path, os.O_RDONLY)
    mapping, fd = open_map(devices(), path)
    os.close(fd)
    opened = []
    for i in range(6):
        flags = (os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_SYNC,
                 os.O_RDWR | os.O_DIRECT)[i]
        opened.append(os.open(path, flags))
        assert mode(m) == "passthrough"
        mapping[i] = content[i] = i + 100
        mapping.release()
        assert os.pread(before, len(content), 0) == content
        if flags & os.O_DIRECT:
            with mmap.mmap(-1, PAGE) as page:
                page[:] = b"D" * PAGE
                assert os.pwritev(opened[-1], [page], PAGE) == PAGE
                content[PAGE:2 * PAGE] = b"D" * PAGE
                assert read_direct(path, len(content)) == content
        elif flags & os.O_ACCMODE and not flags & os.O_APPEND:
            os.pwrite(opened[-1], bytes([i]), 50 + i)
            content[50 + i] = i
        mapping.acquire()
        assert mapping[:] == content
    for fd in [before] + opened:
        os.close(fd)


def test_readers_alone_cost_no_comparing(passing, devices):
    """While nobody has had the file open for writing, an acquire of what nobody changed asks for nothing."""
    m = passing("timeout=100")
    content = pattern(4 * PAGE)
    write_file(os.path.join(m.data, "f"), content)
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDONLY)
    mapping = devices().mmap(fd, len(content), gaia.PROT_READ)
    assert mapping[:] == content
    mapping.acquire()
    if kernel_at_least(6, 16):  # before, each acquire has the kernel ask the daemon something
        try:
            stand_still(m.pid)
            mapping.acquire()
        finally:
            os.kill(m.pid, signal.SIGCONT)
    writer = os.open(os.path.join(m.mnt, "f"), os.O_RDWR)
    with mmap.mmap(writer, 0) as cpu:
        os.close(writer)
        cpu[7] = 7
        mapping.acquire()
        assert mapping[7] == 7
        cpu[8] = 8
        mapping.acquire()
        assert mapping[8] == 8


# --- set-id bits, programs ------------------------------------------------------------------------------------------

def as_user(code, *args):
    """Runs Python as an ordinary user."""
    script = f"import os, sys, mmap\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n{code}"
    subprocess.run(["/usr/bin/python3", "-c", script, *args], check=True, cwd="/")


@pytest.mark.parametrize("how", ["os.write(fd, b'x')", "os.ftruncate(fd, 3)", "os.posix_fallocate(fd, 0, 9000)",
                                 "os.copy_file_range(fd, fd, 1, 0, 5)"])
def test_set_id_bits_are_cleared(passing, how):
    m = passing()
    os.chmod(m.data, 0o777)
    for keeps in False, True:
        path = make(m, b"0123456789", f"f{keeps}")
        os.chown(path, 65534, 65534)
        os.chmod(path, 0o6777)
        assert os.stat(path).st_mode & 0o6000 == 0o6000
        code = f"fd = os.open({path!r}, os.O_RDWR)\n{how}\nos.close(fd)"
        if keeps:
            exec(code)  # root keeps them  # pylint: disable=exec-used
        else:
            as_user(code)
        for place in path, os.path.join(m.data, os.path.basename(path)):
            assert os.stat(place).st_mode & 0o6000 == (0o6000 if keeps else 0), (keeps, place)


def test_a_release_clears_set_id_bits(passing, devices):
    m = passing()
    path = make(m, bytes(PAGE))
    mapping, fd = open_map(devices(), path)
    os.chmod(path, 0o4755)
    before = os.stat(path).st_mtime_ns
    mapping[0] = 1
    mapping.release()
    assert os.stat(path).st_mode & 0o7777 == 0o755
    assert os.stat(path).st_mtime_ns > before
    os.close(fd)


def test_programs_are_executed_while_others_read_them(passing):
    m = passing()
    path = make(m, read_file("/bin/true"), "true")
    os.chmod(path, 0o755)
    writer = os.open(path, os.O_RDWR)
    reader = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError) as refused:
        subprocess.run([path], check=True)
    assert refused.value.errno == errno.ETXTBSY
    os.close(writer)
    assert modes(m) == {"true": "passthrough"}
    subprocess.run([path], check=True)
    os.close(reader)
