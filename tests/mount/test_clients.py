# SPDX-License-Identifier: Apache-2.0
"""Many clients: processes, threads, devices and mappings at once. (Forks: test_forks.py, parts of mappings: test_parts.py.)"""
import ctypes
import errno
import os
import random
import signal
import subprocess
import threading
import time

import pytest

import gaia
from conftest import measures_memory, so_much
from files import make, open_map
from helpers import (MIB, PAGE, ROWS, Plan, agents, client_with_faults, devices, error_of, functions_of, make_random,  # noqa: F401
                     memory_kib, read_file, repeats, statistics, tool, wait_until, write_at, write_file)


# --- devices ----------------------------------------------------------------------------------------------------------

def test_a_device_closed_with_no_memory(mount, agents, workdir):
    """What unmaps all can't fail, and does not try for ever."""
    path = make(mount(), bytes(MIB))
    plan = Plan.make(os.path.join(workdir, "plan"))
    agent = agents(client_with_faults(os.path.join(workdir, "plan")))
    agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\nmaps = [dev.mmap(fd, MIB) for _ in range(3)]", path=path)
    agent.do("maps[1].unmap(4 * PAGE, PAGE)")
    for row in "malloc", "calloc", "realloc":
        plan.arm(ROWS.index(row), errno.ENOMEM, 1, 1)
        assert agent("error_of(dev.stat)") == (errno.ENOMEM if row == "calloc" else 0)
    plan.arm(ROWS.index("malloc"), errno.ENOMEM, 1, 1)
    agent.start("dev.close()")
    assert not agent.busy(10), "the close never ends"
    agent.finish()
    plan.row = -1
    assert not agent("[line for line in open('/proc/self/maps') if 'gaiafs:frames' in line]")


def test_each_device_has_its_capacity(mount, devices):
    m = mount("device_cache=1M,device_cache=soft:3=2M")
    rng = make_random("capacity")
    content = rng.randbytes(4 * MIB)
    path = make(m, content)
    maps = [open_map(devices(f"soft:{i}"), path) for i in range(8)]
    threads = []
    wrong = []

    def read(mapping):
        buffer = ctypes.create_string_buffer(len(content))
        ctypes.memmove(buffer, mapping.address, len(content))  # lets go of the interpreter's lock
        if buffer.raw != content:
            wrong.append(mapping.device)

    for mapping in maps:
        threads.append(threading.Thread(target=read, args=(mapping,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert not wrong
    seen = {d["device"]: d for d in statistics(m.mnt)["devices"]}
    for i, mapping in enumerate(maps):
        capacity = 2 * MIB if i == 3 else MIB
        stat, json = mapping.device.stat(), seen[f"soft:{i}"]
        assert stat.capacity_bytes == capacity and json["capacity_bytes"] == capacity, i
        assert 0 < stat.resident_bytes <= capacity and json["resident_bytes"] == stat.resident_bytes, i
        assert stat.resident_bytes >= capacity // 2, f"soft:{i} leaves half of its memory unused"
        assert stat.evictions and json["evictions"] == stat.evictions, i


STORER = """
fd = os.open(path, os.O_RDWR)
map = gaia.Device(f"soft:{number}").mmap(fd, size)
def store(half, rounds):
    for turn in range(rounds):
        for at in range(half * size // 2 + number, (half + 1) * size // 2, 512):
            map[at] = turn + number + 1
        map.release(half * size // 2, size // 2)
        if turn % 3 == 2:
            map.acquire(half * size // 2, size // 2)
def store_all(rounds):
    threads = [threading.Thread(target=store, args=(half, rounds)) for half in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


@pytest.mark.parametrize("options", ["", "device_cache=256K"])
def test_processes_threads_and_devices_at_once(mount, agents, options):
    """8 processes on 8 devices with two threads each, and a CPU program: all store to each page, nobody loses a byte."""
    m = mount(options)
    size = 128 * PAGE
    path = make(m, bytes(size))
    children = [agents() for _ in range(8)]
    for number, child in enumerate(children):
        child.do(STORER, path=path, number=number, size=size)
    for child in children:
        child.start("store_all(6)")
    fd = os.open(path, os.O_RDWR)
    for turn in range(6):
        for at in range(8, size, 512):
            os.pwrite(fd, bytes([turn + 100]), at)
    os.close(fd)
    for child in children:
        child.finish()
    expected = bytearray(size)
    for number in range(8):
        expected[number::512] = bytes([5 + number + 1]) * (size // 512)
    expected[8::512] = bytes([105]) * (size // 512)
    assert read_file(path) == expected
    for child in children:
        child.do("map.acquire()")
        assert child("map[:]") == expected
        child.end()
    assert read_file(path) == expected


def test_two_processes_on_one_device(mount, agents):
    m = mount()
    path = make(m, bytes(16 * PAGE))
    one, two = agents(), agents()
    for agent in (one, two):
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:2').mmap(fd, 16 * PAGE)", path=path)
    rng = make_random("one device")
    expected = bytearray(16 * PAGE)
    released = bytearray(16 * PAGE)
    for turn in range(40):
        storer, other = (one, two) if rng.random() < 0.5 else (two, one)
        at, data = rng.randrange(len(expected) - 20), rng.randbytes(rng.choice([1, 20]))
        storer.do("map[at:at + len(data)] = data", at=at, data=data)
        expected[at:at + len(data)] = data
        assert other("map[:]") == expected  # without an acquire: it is the same memory
        if turn % 4 == 3:
            assert read_file(path) == released
            other.do("map.release()")  # what the other one stored
            released[:] = expected
            assert read_file(path) == released
    one.do("map[5] = 77\nmap.unmap()")
    expected[5] = 77
    assert two("map[:]") == expected
    two.do("map.release()")
    assert read_file(path) == expected


# --- many mappings ----------------------------------------------------------------------------------------------------

def test_100_maps_of_a_file(mount, devices):
    """They are one copy: bytes move once, a store through one is seen by all, and each may go on its own."""
    m = mount()
    rng = make_random("100 maps")
    content = bytearray(rng.randbytes(40 * PAGE))
    path = make(m, content)
    device = devices()
    maps = []
    for i in range(100):
        offset = i % 4 * PAGE
        maps.append((offset, open_map(device, path, len(content) - offset, offset=offset)))
    for offset, mapping in maps:
        assert mapping[:] == content[offset:]
    assert device.stat().bytes_in <= 64 * PAGE
    for turn in range(100):
        at = rng.randrange(4 * PAGE, len(content))
        offset, mapping = maps[turn]
        mapping[at - offset] = content[at] = (content[at] + 1) % 256
        offset, mapping = rng.choice(maps)
        assert mapping[at - offset] == content[at]
        mapping.release()
    assert read_file(path) == content
    rng.shuffle(maps)
    while maps:
        maps.pop()[1].unmap()
        for offset, mapping in maps[:2]:
            mapping.acquire()
            assert mapping[:] == content[offset:]
    with pytest.raises(OSError) as caught:
        device.stat()
    assert caught.value.errno == errno.ENOTCONN


@pytest.mark.traps
@measures_memory
def test_maps_of_a_very_large_file_that_has_nothing(mount, agents):
    """What is remembered of touches is bounded for each program, not only for each map: a sparse file costs nobody anything."""
    m, program, maps, gib = mount("device_cache=64M"), agents(), 48, 1 << 30
    path = os.path.join(m.mnt, "f")
    with open(path, "wb") as file:
        file.truncate(128 * gib)
    program.do("fd = os.open(path, os.O_RDONLY)\ndevice = gaia.Device('soft:0')\n"
               "maps = [device.mmap(fd, 128 * gib, 1) for _ in range(count)]\nfor at in range(128):\n    assert maps[0][at * gib] == 0", path=path, gib=gib, count=maps)
    before = memory_kib(m.pid, "RssAnon")
    program.do("for map in maps:\n    for at in range(128):\n        assert map[at * gib] == 0")
    assert memory_kib(m.pid, "RssAnon") < before + 12 * 1024


@pytest.mark.traps
def test_maps_of_100_files(mount, devices):
    m = mount("device_cache=1M")
    rng = make_random("100 files")
    contents = [bytearray(rng.randbytes(rng.randrange(1, 12 * PAGE))) for _ in range(100)]
    paths = [make(m, content, f"f{i}") for i, content in enumerate(contents)]
    device = devices()
    maps = [open_map(device, path) for path in paths]
    for turn in range(300):
        i = rng.randrange(100)
        at = rng.randrange(len(contents[i]))
        maps[i][at] = contents[i][at] = rng.randrange(256)
        if turn % 3 == 0:
            maps[i].release()
            assert read_file(paths[i]) == contents[i]
    for mapping, content in zip(maps, contents):
        assert mapping[:] == content
        mapping.release()
    assert [read_file(path) for path in paths] == contents
    listed = statistics(m.mnt)["files"]
    assert len(listed) >= 100, len(listed)
    device.close()
    assert [read_file(path) for path in paths] == contents


def churn(paths, contents, seconds, seed):
    """Threads that map and unmap; others that fault mappings of their own meanwhile, and dropped pages again and again."""
    rng = random.Random(seed)
    device = gaia.Device("soft:0")
    end = time.monotonic() + seconds
    failed, counts = [], [0, 0]

    def guarded(function, rng):
        try:
            while time.monotonic() < end and not failed:
                function(rng)
        except BaseException as error:  # pylint: disable=broad-except
            failed.append(error)

    def map_and_unmap(rng):
        i = rng.randrange(len(paths))
        first = rng.randrange(len(contents[i]) // PAGE)
        mapping = open_map(device, paths[i], len(contents[i]) - first * PAGE, offset=first * PAGE)
        at = rng.randrange(mapping.length)
        assert mapping[at] == contents[i][first * PAGE + at]
        if mapping.length > PAGE and rng.random() < 0.3:  # in two parts
            mapping.unmap(0, PAGE)
            mapping.unmap(PAGE)
        else:
            mapping.unmap()
        counts[0] += 1

    def fault(rng):
        i = rng.randrange(len(paths))
        mapping = open_map(device, paths[i])
        buffer = ctypes.create_string_buffer(mapping.length)
        for _ in range(5):
            ctypes.memmove(buffer, mapping.address, mapping.length)
            assert buffer.raw == contents[i]
            mapping.advise(gaia.ADV_DONTNEED)
            counts[1] += 1
        mapping.unmap()

    threads = [threading.Thread(target=guarded, args=(function, random.Random(rng.random())))
               for function in (map_and_unmap, fault) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    try:
        device.stat()
        raise AssertionError("something is still mapped")
    except OSError as error:
        assert error.errno == errno.ENOTCONN
    device.close()
    return counts


def test_churn_of_maps_beside_faults(mount, agents):
    m = mount("device_cache=256K")
    rng = make_random("churn")
    contents = [rng.randbytes(rng.randrange(2, 30) * PAGE) for _ in range(6)]
    paths = [make(m, content, f"f{i}") for i, content in enumerate(contents)]
    child = functions_of(__name__, agents())
    counts = child("churn(paths, contents, seconds, seed)", seconds=so_much(2.5, 1), paths=paths, contents=contents, seed=rng.random())
    print("mapped and unmapped, faulted", counts)
    assert min(counts) > 20
    assert [read_file(path) for path in paths] == contents
    fds = child("[os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if os.path.exists("
                "f'/proc/self/fd/{fd}')]")
    assert not [fd for fd in fds if fd.startswith(m.mnt)], fds
    maps = child("open('/proc/self/maps').read()")
    assert "gaia" not in "".join(line for line in maps.splitlines() if "memfd:" in line), maps
    child.end()


# --- core dumps -------------------------------------------------------------------------------------------------------

def is_dumped(mapping):
    """Whether a core dump would have the mapping; None: it is not there, or not yet that of a dead daemon."""
    with open("/proc/self/smaps") as file:
        area = file.read().partition(f"\n{mapping.address:x}-")[2]
    return " dd" not in area.partition("\nVmFlags:")[2].partition("\n")[0] if area else None


@pytest.mark.traps  # what a GPU's driver gives is no area of ours
@pytest.mark.parametrize("prot", [gaia.PROT_READ, gaia.PROT_READ | gaia.PROT_WRITE])
def test_a_core_dump_has_nothing_of_a_mapping(mount, agents, prot):
    """Nor of that of a dead daemon, whose SIGBUS ends the program: page after page of it, in vain, 52 s for 64 GiB."""
    m, agent = mount(), functions_of(__name__, agents())
    agent.do("mapping = open_map(gaia.Device(), path, prot=prot)", path=make(m, bytes(4 * PAGE)), prot=prot)
    assert agent("is_dumped(mapping)") is False
    m.kill()
    wait_until(lambda: agent("'gaia:gone' in open('/proc/self/maps').read() and is_dumped(mapping) is False"))


# --- unmounting -------------------------------------------------------------------------------------------------------

def test_a_mount_with_maps_is_busy(mount, devices):
    m = mount()
    path = make(m, bytes(4 * PAGE))
    device = devices()
    mapping = open_map(device, path)  # its descriptor is closed: the mapping alone keeps the mount
    mapping[0] = 1
    for _ in range(3):
        done = subprocess.run(["umount", m.mnt], capture_output=True, text=True)
        assert done.returncode and "busy" in done.stderr, done.stderr
    mapping[1] = 2
    mapping.release()
    assert read_file(path)[:3] == b"\x01\x02\0"
    mapping[2] = 3  # not released
    device.close()
    assert subprocess.run(["umount", m.mnt], capture_output=True).returncode == 0
    assert m.proc.wait(10) == 0
    assert read_file(os.path.join(m.data, "f"))[:4] == b"\x01\x02\x03\0"


MCL_FUTURE = 2


@pytest.mark.parametrize("writable", [True, False])
def test_a_program_that_locks_its_memory(mount, agents, writable):
    """Linux fills what is mapped at once then: with zeros, which no touch would come for, and stores to them nobody would see."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    content = os.urandom(64 * PAGE)
    write_file(path, content)
    program = agents()
    program.do("""import ctypes
fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
dev = gaia.Device()
assert ctypes.CDLL(None).mlockall(flags) == 0
map = dev.mmap(fd, len, 3 if writable else 1)""", path=path, writable=writable, flags=MCL_FUTURE, len=len(content))
    assert program("map[:]") == content
    if writable:
        program.do("map[7] = 7\nmap.release()")
        assert read_file(path) == content[:7] + b"\x07" + content[8:]


def test_a_program_that_may_lock_no_more_memory(mount, agents):
    """Linux says EAGAIN then, which gaia_mmap() says of what may be had when it is called again."""
    program = functions_of(__name__, agents(before=("setpriv", "--bounding-set=-ipc_lock")))
    program.do("import resource\ndevice, fd = gaia.Device('soft:0'), os.open(path, os.O_RDWR)\nkept = device.mmap(fd, PAGE)\n"
               "resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * MIB, 8 * MIB))\nassert not ctypes.CDLL(None).mlockall(MCL_FUTURE)",
               path=make(mount(), bytes(PAGE)))
    assert program("error_of(device.mmap, fd, 16 * MIB)") == errno.ENOMEM
    assert program("error_of(device.mmap, fd, MIB)") == 0
    program.end()


@pytest.mark.traps
@pytest.mark.parametrize("call", ["libc.mprotect(at, n, 0) or libc.mprotect(at, n, 3)", "libc.madvise(at, n, 4)  # MADV_DONTNEED",
                                  "libc.madvise(at, n, 21)  # MADV_PAGEOUT", "libc.mlock(at, n) or libc.munlock(at, n)",
                                  "libc.msync(at, n, 4)", "write_file('/proc/self/clear_refs', b'4')"])
def test_a_program_does_to_a_mapping_what_it_does_to_memory(mount, agents, call):
    """Nothing that it has stored is lost, stores afterwards are noticed, and what others write is seen."""
    m, program = mount("unit=4K"), functions_of(__name__, agents())
    program.do("libc = ctypes.CDLL(None)\ndevice, fd = gaia.Device('soft:0'), os.open(path, os.O_RDWR)\n"
               "map = device.mmap(fd, 8 * PAGE)\nat, n = ctypes.c_void_p(map.address), ctypes.c_size_t(8 * PAGE)\n"
               "map[0:4 * PAGE:PAGE] = b'1234'\nmap.release()\nmap[2 * PAGE + 1:6 * PAGE + 1:PAGE] = b'5678'",
               path=make(m, bytes(8 * PAGE)))  # pages 0 and 1 are released, 2 to 5 are not, and 6 and 7 are not there
    assert not program(call)
    program.do("map[2:8 * PAGE:PAGE] = b'abcdefgh'\nmap.release()")
    content = read_file(os.path.join(m.mnt, "f"))
    assert [content[at::PAGE] for at in range(3)] == [b"1234\0\0\0\0", b"\0\x005678\0\0", b"abcdefgh"]
    write_at(os.path.join(m.mnt, "f"), bytes(range(256)) * 128, 0)
    program.do("map.acquire()")
    assert program("map[:]") == bytes(range(256)) * 128
    program.end()


@pytest.mark.traps
def test_a_debugger_reaches_what_is_there(mount, agents):
    """Linux waits for no userfaultfd there. What a debugger does store is a store as any other."""
    program = functions_of(__name__, agents())
    program.do("device, fd = gaia.Device('soft:0'), os.open(path, os.O_RDWR)\nmap = device.mmap(fd, 2 * PAGE)\n"
               "map.advise(gaia.ADV_RANDOM)\nmemory = os.open('/proc/self/mem', os.O_RDWR)",
               path=make(mount("unit=4K"), b"x" * 2 * PAGE))
    assert program("error_of(os.pread, memory, 1, map.address), error_of(os.pwrite, memory, b'y', map.address)") == (errno.EIO, errno.EIO)
    assert program("map[0], os.pread(memory, 1, map.address)") == (ord("x"), b"x")
    assert program("error_of(os.pwrite, memory, b'y', map.address)") == errno.EIO
    program.do("map[0] = 1\nassert os.pwrite(memory, b'yz', map.address) == 2\nmap.release()")
    assert program("os.pread(fd, 3, 0)") == b"yzx"
    assert program("error_of(os.pwrite, memory, b'y', map.address)") == errno.EIO
    program.end()


def test_a_program_that_may_write_no_file(mount, agents):
    """RLIMIT_FSIZE: what libgaia makes for itself is no reason for a signal."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    content = os.urandom(4 * PAGE)
    write_file(path, content)
    program = agents(before=("prlimit", "--fsize=100"))
    program.do("signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it\nfd = os.open(path, os.O_RDWR)\n"
               "map = gaia.Device().mmap(fd, len)", path=path, len=len(content))
    assert program("map[:]") == content
    program.do("map[7] = 7\nmap.release()")
    assert read_file(path) == content[:7] + b"\x07" + content[8:]


@pytest.mark.traps
@pytest.mark.parametrize("unit", ["4K", "64K"])
@pytest.mark.parametrize("touched", [0, 5])
def test_frames_that_another_program_has_emptied(mount, agents, unit, touched):
    """Who may write a file may take its frames away; who else touches the page does not wait for them without end."""
    m = mount(f"unit={unit}")
    path = os.path.join(m.mnt, "f")
    content = os.urandom(16 * PAGE)
    write_file(path, content)
    writer, reader = agents(), agents()
    reader.do("fd = os.open(path, os.O_RDONLY)\nmap = gaia.Device().mmap(fd, len, 1)", path=path, len=len(content))
    writer.do("import ctypes\nfd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, len)\nmap[:]", path=path,
              len=len(content))
    remove = "assert ctypes.CDLL(None, use_errno=True).madvise(ctypes.c_void_p(map.address), PAGE * 3, 9) == 0"
    writer.do(remove)  # MADV_REMOVE
    seen = reader(f"map[{touched} * PAGE:{touched + 1} * PAGE]")
    assert seen in (content[touched * PAGE:(touched + 1) * PAGE], bytes(PAGE) * (touched < 3))
    assert reader("map[6 * PAGE:]") == content[6 * PAGE:]


def test_threads_that_are_cancelled(mount):
    """In the middle of any call: the locks of libgaia are not theirs to take along."""
    m = mount()
    seed = make_random().randrange(1 << 30)
    status, output = tool("tool_cancel", os.path.join(m.mnt, "f"), "soft:0", repeats(300), seed)
    assert status == 0, output
