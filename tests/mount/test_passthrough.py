# SPDX-License-Identifier: Apache-2.0
"""Files that the kernel passes through to the data directory: the same promises, for devices that map a file which
programs have open, or mapped, or have mapped and closed. Needs libfuse 3.17 and Linux 6.9: tests/trixie.sh.
"""
import ctypes
import errno
import mmap
import os
import random
import signal
import stat
import subprocess

import pytest

import conftest
import gaia
import helpers
from helpers import (PAGE, agents, device_statistics, devices, make_random, read_direct, read_file,  # noqa: F401
                     repeats, statistics, tool, wait_until, write_file)
from test_disks import fill, small_ext4  # noqa: F401

MIB = 1 << 20


def modes(m):
    """Of the open files: path -> mode."""
    return {file["path"]: file["mode"] for file in statistics(m.mnt)["open"]}


def mode(m, name="f"):
    return modes(m).get(name)


@pytest.fixture
def passing(mount):
    """A function that mounts; skips where the library or the kernel can't pass files through."""
    def start(options="", **more):
        m = mount(options, **more)
        if not statistics(m.mnt)["passthrough"]:
            version = subprocess.run([os.path.join(conftest.BIN, "mount.gaiafs"), "--version"], capture_output=True,
                                     text=True).stdout.split()
            pytest.skip(f"no passthrough with libfuse {version[-1]} and Linux {os.uname().release}")
        return m
    return start


def pattern(size, seed=1):
    return random.Random(seed).randbytes(size)


def make(m, content, name="f"):
    path = os.path.join(m.mnt, name)
    write_file(path, content)
    return path


def open_map(device, path, length=None, flags=0):
    fd = os.open(path, os.O_RDWR)
    return device.mmap(fd, length or os.fstat(fd).st_size, flags=flags), fd


def forget():
    """The kernel forgets the inodes that nobody uses."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")


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


def test_a_created_file(passing):
    m = passing()
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT, 0o600)
    assert mode(m) == "passthrough"
    assert os.write(fd, b"abc") == 3 and os.pread(fd, 9, 0) == b"abc" and os.fstat(fd).st_size == 3
    assert read_file(os.path.join(m.data, "f")) == b"abc"
    os.close(fd)


def test_the_daemon_sees_no_read_and_no_write(passing):
    """Both work while it stands still."""
    m = passing()
    fd = os.open(make(m, bytes(MIB)), os.O_RDWR)
    mapping = mmap.mmap(fd, MIB)
    os.pwrite(fd, b"x", 0)
    os.kill(m.pid, signal.SIGSTOP)
    try:
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
        forget()
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


def program(agent, path, aside):
    """Another program, with the file open, mapped, and mapped without a descriptor."""
    agent.do("fd = os.open(path, os.O_RDWR)\nmapping = mmap.mmap(fd, 0)\n"
             "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.mmap.restype = ctypes.c_void_p\n"
             "once = os.open(path, os.O_RDWR)\nsize = os.fstat(once).st_size\n"
             "address = libc.mmap(None, ctypes.c_size_t(size), 3, mmap.MAP_SHARED, once, ctypes.c_long(0))\n"
             "os.close(once)\nclosed = memoryview((ctypes.c_ubyte * size).from_address(address)).cast('B')\n"
             "aside = os.open(other, os.O_RDWR | os.O_CREAT, 0o600)", path=path, other=aside)
    return agent


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
    os.kill(m.pid, signal.SIGSTOP)
    try:
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


# --- ends and errors ------------------------------------------------------------------------------------------------

def test_a_mapping_keeps_the_mount_busy(passing, agents):
    """And nothing else does: what was mapped and closed is let go of with its last mapping."""
    m = passing()
    path = make(m, bytes(PAGE))
    cpu = program(agents(), path, os.path.join(m.mnt, "aside"))
    cpu.do("os.close(fd)\nos.close(aside)\nmapping.close()\nclosed[3] = 4")
    assert modes(m) == {}
    assert subprocess.run(["umount", m.mnt], capture_output=True).returncode == 32
    cpu.do("closed[4] = 5\ndel closed\nassert libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0")
    assert subprocess.run(["umount", m.mnt], capture_output=True).returncode == 0
    assert read_file(os.path.join(m.data, "f"))[3:5] == b"\4\5"


def test_unreleased_stores_arrive_at_the_unmount(passing, agents):
    m = passing()
    path = make(m, bytes(4 * PAGE))
    client = agents()
    client.do("dev = gaia.Device()\nfd = os.open(path, os.O_RDWR)\nmap = dev.mmap(fd, 4 * PAGE)\nmap[5000] = 77", path=path)
    client.end()
    assert subprocess.run(["umount", m.mnt], capture_output=True).returncode == 0
    assert m.stop() is None
    assert read_file(os.path.join(m.data, "f"))[5000] == 77


def test_the_daemon_is_killed(passing, devices, agents):
    """What CPUs wrote or stored is in the file, and they go on; what a device released is, too."""
    m = passing()
    content = bytearray(pattern(4 * PAGE))
    path = make(m, content)
    cpu = program(agents(), path, os.path.join(m.mnt, "aside"))
    client = agents()
    client.do("dev = gaia.Device()\nfd = os.open(path, os.O_RDWR)\nmap = dev.mmap(fd, 4 * PAGE)\n"
              "map[100] = 1\nmap.release()", path=path)
    cpu.do("os.pwrite(fd, b'w', 200)\nmapping[300] = 3\nclosed[400] = 4")
    content[100], content[200], content[300], content[400] = 1, ord("w"), 3, 4
    m.expected_exit = None
    os.kill(m.pid, signal.SIGKILL)
    m.proc.wait()
    below = os.path.join(m.data, "f")
    assert read_file(below) == content
    cpu.do("mapping[301] = 5\nclosed[401] = 6")  # the mappings are of the backing file
    content[301], content[401] = 5, 6
    assert read_file(below) == content
    assert cpu("closed[301], mapping[401]") == (5, 6)
    with pytest.raises(OSError) as gone:
        client.do("map.acquire()")
    assert gone.value.errno == errno.ENOTCONN


@pytest.fixture
def failing(passing, workdir, monkeypatch):
    """A mount whose daemon's calls can be made to fail: (mount, plan)."""
    build = os.environ.get("GAIAFS_BUILD", os.path.join(conftest.TOP, "build", "gcc"))
    monkeypatch.setattr(conftest, "BIN", os.path.join(build, "faults"))
    plan_path = os.path.join(workdir, "plan")
    plan = helpers.Plan.make(plan_path)
    return passing(env={"GAIAFS_FAULTS": plan_path}), plan


def error_of(call, *args):
    try:
        call(*args)
    except OSError as error:
        return error.errno
    return 0


def arm(plan, row, error, sticky=0):
    plan.arm(helpers.ROWS.index(row), error, 1, sticky)


def landed(plan):
    plan.row = -1
    assert plan.landed


def test_a_failed_sync_is_told_to_all_and_stays(failing):
    """Which bytes were written nobody knows: all of the file is lost. A file that was closed by all is opened in another
    mode, in which it is seen that they are written again."""
    m, plan = failing
    path = make(m, bytes(4 * PAGE))
    fds = [os.open(path, os.O_RDWR) for _ in range(3)]
    assert mode(m) == "passthrough"
    os.pwrite(fds[0], b"lost", 5000)
    arm(plan, "fsync", errno.EIO)
    assert error_of(os.fsync, fds[0]) == errno.EIO
    landed(plan)
    os.pwrite(fds[0], bytes(4 * PAGE), 0)  # of which nobody hears
    fds.append(os.open(path, os.O_RDONLY))
    for fd in (fds[1], fds[0], fds[2], fds[3]):
        assert error_of(os.fsync, fd) == errno.EIO
    for fd in fds:
        os.close(fd)
    wait_until(lambda: modes(m) == {})
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "cached"
    assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, bytes(3 * PAGE), 0)
    assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, bytes(PAGE), 3 * PAGE)
    assert error_of(os.fsync, fd) == 0
    os.close(fd)
    wait_until(lambda: modes(m) == {})
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "passthrough" and error_of(os.fsync, fd) == 0
    os.close(fd)


def test_a_failed_sync_after_a_cut(failing):
    """The file grows again unseen: that is lost as well."""
    m, plan = failing
    path = make(m, bytes(4 * PAGE))
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "passthrough"
    os.ftruncate(fd, PAGE)
    os.pwrite(fd, b"x" * 7 * PAGE, PAGE)
    arm(plan, "fsync", errno.EIO)
    assert error_of(os.fsync, fd) == errno.EIO
    landed(plan)
    os.close(fd)
    wait_until(lambda: modes(m) == {})
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "cached"
    os.pwrite(fd, bytes(PAGE), 0)
    again = error_of(os.fsync, fd)
    os.close(fd)
    assert again == errno.EIO


def test_lost_bytes_and_a_mapping_without_a_descriptor(failing, agents):
    """The mapping goes on storing unseen, so the file goes on being passed through, and its syncs failing."""
    m, plan = failing
    path = make(m, bytes(4 * PAGE))
    cpu = program(agents(), path, os.path.join(m.mnt, "aside"))
    cpu.do("mapping.close()")
    arm(plan, "fsync", errno.EIO)
    with pytest.raises(OSError):
        cpu.do("os.fsync(fd)")
    landed(plan)
    cpu.do("os.close(fd)\nos.close(aside)")
    wait_until(lambda: modes(m) == {})
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "passthrough"
    os.pwrite(fd, bytes(4 * PAGE), 0)
    assert error_of(os.fsync, fd) == errno.EIO
    os.ftruncate(fd, 0)
    assert error_of(os.fsync, fd) == 0
    os.close(fd)


def test_a_release_that_cannot_be_collected(failing, devices):
    """It says so, loses nothing, and is tried again by the next one."""
    m, plan = failing
    path = make(m, bytes(4 * PAGE))
    mapping, fd = open_map(devices(), path)
    mapping[100:110] = b"0123456789"
    arm(plan, "pwrite64", errno.ENOSPC, sticky=1)
    assert error_of(mapping.release) == errno.ENOSPC
    assert error_of(mapping.release) == errno.ENOSPC
    assert error_of(mapping.acquire) == errno.ENOSPC
    landed(plan)
    assert read_file(path) == bytes(4 * PAGE) and mapping[100:110] == b"0123456789"
    mapping.release()
    assert read_file(path)[100:110] == b"0123456789"
    mapping[PAGE] = 1
    arm(plan, "pwrite64", errno.EIO)
    assert error_of(mapping.release) == errno.EIO
    landed(plan)
    mapping.sync()
    assert read_file(path)[PAGE] == 1
    os.close(fd)


@pytest.mark.parametrize("stored", ["all", "every-second"])
def test_no_space(passing, devices, small_ext4, stored):  # noqa: F811
    """A release says so, loses nothing and ends nobody: also where it stores to a mapping that finds no room."""
    m = passing(data=small_ext4)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, MIB)  # a hole: no room is set aside
    mapping, fd = open_map(devices(), path)
    content = bytearray(pattern(MIB))
    if stored == "every-second":
        content[::2] = bytes(MIB // 2)
    (ctypes.c_ubyte * MIB).from_address(mapping.address)[1::2] = content[1::2]
    if stored == "all":
        mapping[:] = bytes(content)
    ballast = fill(small_ext4)
    for call in mapping.release, mapping.release, mapping.sync, mapping.acquire:
        assert error_of(call) == errno.ENOSPC
        assert mapping[:] == content
    os.unlink(ballast)
    os.sync()
    mapping.release()
    assert read_file(path) == content
    assert error_of(os.fsync, fd) in (0, errno.ENOSPC)  # it is told to each descriptor once
    assert error_of(os.fsync, fd) == 0
    os.close(fd)


def test_a_kernel_that_wants_another_descriptor(failing):
    """Before 6.16 one with O_PATH is none."""
    m, plan = failing
    path = make(m, b"content")
    arm(plan, "ioctl", errno.EBADF)
    fd = os.open(path, os.O_RDWR)
    landed(plan)
    assert mode(m) == "passthrough" and os.pread(fd, 9, 0) == b"content"
    os.close(fd)


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOMEM, errno.ELOOP], ids=errno.errorcode.get)
def test_a_kernel_that_refuses(failing, devices, error):
    """The file is opened in the other mode, and works."""
    m, plan = failing
    path = os.path.join(m.data, "f")
    write_file(path, bytes(PAGE))
    arm(plan, "ioctl", error)
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR)
    landed(plan)
    assert mode(m) == "cached"
    assert statistics(m.mnt)["passthrough"] == (error == errno.ENOMEM)
    os.pwrite(fd, b"x", 0)
    mapping = devices().mmap(fd, PAGE)
    assert mode(m) == "tracked" and mapping[0] == ord("x")
    mapping[1] = 5
    mapping.release()
    assert os.pread(fd, 2, 0) == b"x\5"
    os.close(fd)
