# SPDX-License-Identifier: Apache-2.0
"""Many clients: processes, threads, devices and mappings at once, and parts of mappings. (Forks: test_forks.py.)"""
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
from helpers import (MIB, PAGE, ROWS, AgentDied, Plan, agents, client_with_faults, devices, error_of,  # noqa: F401
                     functions_of, make_random, memory_kib, read_file, repeats, stand_still, standing_still, statistics, tool, wait_until, write_file)

SANITIZED = bool(os.environ.get("GAIAFS_SANITIZE"))


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


# --- parts of mappings ------------------------------------------------------------------------------------------------

def cut(path, content, resident):
    device = gaia.Device()
    mapping = open_map(device, path)
    if resident:
        assert mapping[:] == content
    mapping[5 * PAGE + 1] = 55  # not released
    mapping.unmap(4 * PAGE, 3 * PAGE)
    mapping.unmap(4 * PAGE, 3 * PAGE)  # nothing is there: skipped
    return device, mapping


def cut_and_touch(path, content, resident, at):
    device, mapping = cut(path, content, resident)
    mapping[at]


def cut_and_use(path, content, resident):
    device, mapping = cut(path, content, resident)
    fd = os.open(path, os.O_RDWR)
    for part, (offset, length) in enumerate(((0, 4 * PAGE), (7 * PAGE, 3 * PAGE))):
        assert mapping[offset:offset + length] == content[offset:offset + length]
        mapping[offset + 9] = 10 + part
        mapping.release(offset, length)
        assert os.pread(fd, 1, offset + 9)[0] == 10 + part
        mapping.acquire(offset, length)
        mapping.sync(gaia.MS_SYNC, offset, length)
        mapping.advise(gaia.ADV_WILLNEED, offset, length)
        os.pwrite(fd, bytes([20 + part]), offset + 9)
        mapping.acquire(offset, length)
        assert mapping[offset + 9] == 20 + part
    for offset, length in ((0, 10 * PAGE), (3 * PAGE, 2 * PAGE), (6 * PAGE, 2 * PAGE), (4 * PAGE, PAGE),
                           (5 * PAGE, 1)):
        for call in (mapping.acquire, mapping.release):
            assert error_of(call, offset, length) == errno.EINVAL, (call, offset, length)
        assert error_of(mapping.sync, gaia.MS_SYNC, offset, length) == errno.EINVAL
        assert error_of(mapping.advise, gaia.ADV_WILLNEED, offset, length) == errno.EINVAL
    # what was stored there is in the device's copy still: another mapping of it sees it, and releases it
    again = open_map(device, path)
    assert again[5 * PAGE + 1] == 55 and os.pread(fd, 1, 5 * PAGE + 1)[0] == content[5 * PAGE + 1]
    again.release()
    assert os.pread(fd, 1, 5 * PAGE + 1)[0] == 55
    again.unmap()
    os.close(fd)
    memory = f"{mapping.address:x}-"
    for offset, length in ((PAGE, PAGE), (0, PAGE), (9 * PAGE, PAGE), (2 * PAGE, 2 * PAGE), (7 * PAGE, PAGE)):
        mapping.unmap(offset, length)
        mapping.acquire(8 * PAGE, PAGE)
        assert mapping[8 * PAGE:9 * PAGE] == content[8 * PAGE:9 * PAGE]
    mapping.unmap()
    assert error_of(device.stat) == errno.ENOTCONN
    def memory_of_gaia():
        with open("/proc/self/maps") as file:
            return [line for line in file if line.startswith(memory) or "/memfd:gaia" in line]

    assert all("gaiafs:alive" in line for line in memory_of_gaia())  # the session's, which is kept
    open_files = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{number}")]
    assert path not in open_files
    device.close()
    assert not memory_of_gaia()


@pytest.mark.traps
@pytest.mark.parametrize("resident", [False, True])
def test_the_middle_of_a_mapping_is_unmapped(mount, agents, resident):
    m = mount()
    rng = make_random("hole")
    content = bytearray(rng.randbytes(10 * PAGE))
    content[5 * PAGE + 1] = 1
    for at in (4 * PAGE, 5 * PAGE + 1, 7 * PAGE - 1):
        path = make(m, content, f"f{at}")  # what it stores before it dies stays in the device
        child = functions_of(__name__, agents())
        with pytest.raises(AgentDied) as died:
            child.do("cut_and_touch(path, content, resident, at)", path=path, content=bytes(content), resident=resident,
                     at=at)
        assert died.value.code == -signal.SIGSEGV, at
    path = make(m, content, "g")
    child = functions_of(__name__, agents())
    child.do("cut_and_use(path, content, resident)", path=path, content=bytes(content), resident=resident)
    content[9], content[7 * PAGE + 9], content[5 * PAGE + 1] = 20, 21, 55
    assert read_file(path) == content
    child.end()


# Of a program that looks at its own addresses. take(): whether they were free. make_first(): the next page that Linux gives is
# there, as it gives from above.
ADDRESSES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PRIVATE = 0x2 | 0x20 | 0x4000  # and anonymous, and not reserved
MAP_FIXED, MAP_FIXED_NOREPLACE = 0x10, 0x100000

def take(address, length):
    return libc.mmap(address, length, 0, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0) == address

def make_first(begin, end):
    while not begin <= (at := libc.mmap(None, PAGE, 0, PRIVATE, -1, 0)) < end:
        pass
    assert libc.munmap(at, PAGE) == 0
"""


@pytest.mark.traps
@pytest.mark.parametrize("whole_at_end", [False, True])
def test_what_is_put_into_a_hole_stays(mount, agents, whole_at_end):
    """munmap() would give the addresses of a part back; here they are kept from others until the whole mapping goes, but
    for who puts something there by MAP_FIXED. Neither a refresh after refused touches nor the end takes that away."""
    m = mount()
    content = make_random("hole").randbytes(64 * PAGE)
    path = make(m, content)
    child = agents()
    child.do(ADDRESSES + """
fd = os.open(path, os.O_RDWR)
map = gaia.Device().mmap(fd, 64 * PAGE, 3, gaia.SHARED)
assert map[:] == content
map.unmap(16 * PAGE, 16 * PAGE)
map.unmap(40 * PAGE, 2 * PAGE)
own = map.address + 20 * PAGE
assert not take(own, PAGE)  # kept free
assert libc.mmap(own, 4 * PAGE, 3, PRIVATE | MAP_FIXED, -1, 0) == own
ctypes.memset(own, 0x5a, 4 * PAGE)
mine = b"\x5a" * 4 * PAGE
""", path=path, content=content)
    # A touch that can't be served, and is when the file is as long again: the acquire refreshes.
    child.do("os.ftruncate(fd, 8 * PAGE)\nmap.acquire(0, 16 * PAGE)")
    assert child("ctypes.string_at(own, len(mine)) == mine")
    assert child("ctypes.string_at(own, len(mine)) == mine")
    child.do("os.ftruncate(fd, 64 * PAGE)\nmap.acquire(0, 16 * PAGE)\nassert map[9 * PAGE] == 0")
    if whole_at_end:
        child.do("map.unmap()")
    else:
        child.do("map.unmap(0, 16 * PAGE)\nmap.unmap(32 * PAGE, 8 * PAGE)\nmap.unmap(42 * PAGE, 22 * PAGE)")
    assert child("ctypes.string_at(own, len(mine)) == mine")
    free = child("[at for at in range(64) if take(map.address + at * PAGE, PAGE)]")
    assert free == [at for at in range(64) if not 20 <= at < 24]
    child.end()


@pytest.mark.traps
@pytest.mark.whole
@pytest.mark.parametrize("hole, pages, noticed", [(1024, 1024, True), (0, 2048, True), (1024, 1024, False)])
def test_no_mapping_comes_into_the_hole_of_another(mount, agents, hole, pages, noticed):
    """What was put there may be taken away again (or a part of the mapping, by munmap()), and Linux gives the addresses to the
    next who asks; but the daemon takes them for the first mapping's, until that has gone whole."""
    m = mount()
    first, second = make(m, b"1" * 3072 * PAGE, "first"), make(m, b"2" * 2048 * PAGE, "second")
    child = agents()
    child.do(ADDRESSES + """
device = gaia.Device()
fds = [os.open(path, os.O_RDWR) for path in paths]
one = device.mmap(fds[0], 3072 * PAGE)
at = one.address + hole * PAGE
if noticed:
    one.unmap(hole * PAGE, 1024 * PAGE)
    assert libc.mmap(at, 1024 * PAGE, 3, PRIVATE | MAP_FIXED, -1, 0) == at
assert libc.munmap(at, 1024 * PAGE) == 0
two = device.mmap(fds[1], pages * PAGE)
beside = 2048 if hole == 0 else 0
one.advise(gaia.ADV_SEQUENTIAL, beside * PAGE, 1024 * PAGE)
for page in range(beside, beside + 1024):
    assert one[page * PAGE] == ord("1")
time.sleep(0.3)  # the daemon places what comes next, too
""", paths=[first, second], hole=hole, pages=pages, noticed=noticed)
    assert child("two[:] == b'2' * pages * PAGE")
    child.do("two[9 * PAGE] = 9\ntwo.release()\none.unmap()")
    assert child("two[:] == b'2' * 9 * PAGE + bytes([9]) + b'2' * (pages * PAGE - 9 * PAGE - 1)")
    assert read_file(second) == b"2" * 9 * PAGE + b"\t" + b"2" * (2039 * PAGE - 1)
    assert child("all(take(one.address + page * PAGE, PAGE) for page in range(3072))")
    child.end()


@pytest.mark.traps
def test_a_large_hole_is_given_back_at_once(mount, agents):
    """A map of a page has room in it millions of times."""
    size = 32 << 30
    m = mount()
    first, second = make(m, b"1" * PAGE, "first"), make(m, b"2" * PAGE, "second")
    os.truncate(first, size)
    child = agents()
    child.do(ADDRESSES + """
device = gaia.Device()
fds = [os.open(path, os.O_RDWR) for path in paths]
one = device.mmap(fds[0], size)
hole, end = one.address + PAGE, one.address + size - PAGE
one.unmap(PAGE, size - 2 * PAGE)
assert libc.mmap(hole, end - hole, 0, PRIVATE | MAP_FIXED, -1, 0) == hole
assert libc.munmap(hole, end - hole) == 0
make_first(hole, end)
""", paths=[first, second], size=size)
    begin = time.monotonic()
    child.do("two = device.mmap(fds[1], PAGE)")
    assert time.monotonic() - begin < 5
    assert child("not hole <= two.address < end and two[:] == b'2' * PAGE and one[0] == ord('1')")
    child.do("one.unmap()")
    assert child("take(hole - PAGE, size)")
    child.end()


@pytest.mark.traps
def test_a_hole_of_a_mapping_that_goes_leaves_nothing(mount, agents):
    """Its daemon takes its time. What comes into the hole meanwhile is moved; and all of the mapping goes in the end."""
    going, other = mount(), mount()
    path, second = make(going, b"1" * 64 * PAGE), make(other, b"2" * PAGE)
    child = agents()
    child.do(ADDRESSES + """
device = gaia.Device()
fds = [os.open(path, os.O_RDWR) for path in paths]
device.mmap(fds[1], PAGE).unmap()
one = device.mmap(fds[0], 64 * PAGE)
hole = one.address + 16 * PAGE
threads = threading.Thread(target=one.unmap)
""", paths=[path, second])
    with standing_still(going.pid):
        child.do("""
threads.start()
time.sleep(0.3)
assert libc.munmap(hole, 16 * PAGE) == 0
make_first(hole, hole + 16 * PAGE)
two = device.mmap(fds[1], PAGE)
assert threads.is_alive()
""")
    child.do("threads.join()")
    assert child("two[:] == b'2' * PAGE")
    assert child("all(take(one.address + page * PAGE, PAGE) for page in range(64))")
    child.end()


def unmap_in_parts(path):
    mapping = open_map(gaia.Device(), path)
    mapping.unmap(4 * PAGE, 3 * PAGE)
    mapping.unmap()
    with open("/proc/thread-self/maps") as file:
        return "gaia:blocked" in file.read()


def test_parts_are_unmapped_after_the_first_thread_has_ended(mount, agents):
    """main() may have called pthread_exit(): the addresses are free all the same."""
    agent, path = functions_of(__name__, agents()), make(mount(), bytes(10 * PAGE))
    with pytest.raises(AgentDied) as died:
        agent.do("end_without_first_thread(unmap_in_parts, path)", path=path)
    assert died.value.code == 0


def test_holes_beside_each_other_are_one(mount, agents):
    """The kernel allows a process 65,530 areas of memory: who unmaps a mapping page by page needs no more of them."""
    m = mount()
    path = make(m, b"1" * PAGE)
    child = agents()
    child.do("""
fd = os.open(path, os.O_RDWR)
os.ftruncate(fd, 4096 * PAGE)
device = gaia.Device("soft:0")
map, other = (device.mmap(fd, 4096 * PAGE, 3, gaia.SHARED) for _ in range(2))
def areas():
    return sum(1 for line in open("/proc/self/maps") if "gaia:blocked" in line)
counts = []
for each in map, other:
    for page in range(1, 4096):
        each.unmap((page * 2563) % 4096 * PAGE, PAGE)  # each but the first, in no order
    counts.append(areas())
other.unmap(0, PAGE)
counts.append(areas())
map.unmap(0, PAGE)
counts.append(areas())
""", path=path)
    assert child("counts") == [1, 2, 1, 0]
    child.end()


@pytest.mark.parametrize("touch", ["map[0]", "map[3 * PAGE:4 * PAGE]", "map[7 * PAGE]", "map[9 * PAGE]",
                                   "map.__setitem__(0, 1)", "map.__setitem__(9 * PAGE, 1)", "map.advise(3, 0, PAGE)",
                                   "map.acquire(7 * PAGE, 3 * PAGE)"])
@pytest.mark.parametrize("flags", [gaia.SHARED, gaia.RESIDENT])
def test_first_touches_beside_a_hole(mount, agents, touch, flags):
    """A unit of 64 KiB of which pages are unmapped before anything of it was touched."""
    m = mount()
    content = make_random("hole").randbytes(10 * PAGE)
    path = make(m, content)
    child = agents()
    child.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 10 * PAGE, 3, flags)\n"
             "map.unmap(4 * PAGE, 3 * PAGE)", path=path, flags=flags)
    child.start(touch, "eval")
    assert not child.busy(5), "it hangs"
    child.finish()
    child.start("map[1:4 * PAGE] + map[7 * PAGE:9 * PAGE]", "eval")
    assert not child.busy(5), "a later touch hangs"
    assert child.finish() == content[1:4 * PAGE] + content[7 * PAGE:9 * PAGE]
    child.end()


def test_stores_beside_a_hole_are_not_lost(mount, devices):
    """What is write protected in all mappings at a release is so behind a hole, too."""
    m = mount()
    path = make(m, bytes(10 * PAGE))
    device = devices()
    holed, whole = open_map(device, path), open_map(device, path)
    holed[:] = b"a" * 10 * PAGE  # its pages may be stored to
    holed.unmap(4 * PAGE, 3 * PAGE)
    for value in range(10, 20):
        whole[:] = bytes([value]) * 10 * PAGE
        whole.release()
        assert read_file(path) == bytes([value]) * 10 * PAGE
        for page in (0, 3, 7, 9):
            holed[page * PAGE] = 100 + value
        holed.release(0, 4 * PAGE)
        holed.release(7 * PAGE, 3 * PAGE)
        content = read_file(path)
        assert [content[page * PAGE] for page in (0, 3, 7, 9)] == [100 + value] * 4


@pytest.mark.traps
def test_a_touch_that_waits_while_its_page_is_unmapped(mount, agents):
    """It ends with a signal, as it would without gaiafs, and not never."""
    m = mount()
    path = make(m, bytes(10 * PAGE))
    for offset, length in ((4 * PAGE, 3 * PAGE), (5 * PAGE, 5 * PAGE), (0, 10 * PAGE)):
        child = agents()
        child.do("import ctypes\nfd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 10 * PAGE)\n"
                 "buffer = ctypes.create_string_buffer(PAGE)\n"
                 "thread = threading.Thread(target=lambda: ctypes.memmove(buffer, map.address + 5 * PAGE, PAGE))",
                 path=path)
        try:
            stand_still(m.pid)
            child.do("thread.start()\ntime.sleep(0.1)")
            child.start("map.unmap(offset, length)", offset=offset, length=length)
            child.busy(0.2)
        finally:
            os.kill(m.pid, signal.SIGCONT)
        try:
            child.finish()
            child.start("thread.join()")
            assert not child.busy(10), "the touch hangs"
            child.finish()  # it was served first
        except AgentDied as died:
            assert died.code in (-signal.SIGSEGV, -signal.SIGBUS)


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
