# SPDX-License-Identifier: Apache-2.0
"""Parts of mappings: what is unmapped in the middle, the holes that it leaves, and who comes into them."""
import ctypes
import errno
import os
import signal
import threading
import time

import pytest

import gaia
from files import make, open_map
from helpers import (PAGE, AgentDied, agents, devices, error_of, functions_of, make_random, read_file, stand_still,  # noqa: F401
                     standing_still)


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
