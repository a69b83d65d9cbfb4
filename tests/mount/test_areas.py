# SPDX-License-Identifier: Apache-2.0
"""Programs that have as many areas of memory as Linux lets them have (vm.max_map_count)."""
import errno
import signal

import pytest

from files import make, pattern
from helpers import PAGE, AgentDied, agents, functions_of, read_file  # noqa: F401

FULL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
FAILED, SHARED, PRIVATE, NORESERVE, NOREPLACE = ctypes.c_void_p(-1).value, 0x21, 0x22, 0x4000, 0x100000
with open("/proc/sys/vm/max_map_count") as file:
    most = int(file.read())

def with_room_for(spare, function, *arguments):
    large = libc.mmap(None, 2 * most * PAGE, 0, PRIVATE | NORESERVE, -1, 0)
    # one area becomes three, until there are no more; what is left is added one by one
    at, single = large + PAGE, [libc.mmap(None, PAGE, 0, SHARED, -1, 0) for _ in range(spare)]
    while not libc.mprotect(at, PAGE, 1):
        at += 2 * PAGE
    while (one := libc.mmap(None, PAGE, 0, SHARED, -1, 0)) != FAILED:
        single.append(one)
    for one in single[:spare]:
        libc.munmap(one, PAGE)
    result = function(*arguments)
    for one in single[spare:]:
        libc.munmap(one, PAGE)
    libc.munmap(large, 2 * most * PAGE)
    return result

def unmap_with_room_for(spare, offset, length):
    return with_room_for(spare, error_of, map.unmap, offset, length)

def is_mapped():
    with open("/proc/self/maps") as file:
        return any(line.startswith(f"{map.address:x}-") and " rw-s " in line for line in file)

def kill(daemon):
    os.kill(daemon, 9)
    while is_mapped():
        pass

def can_be_read(offset):
    ours, others = os.pipe()
    done = libc.write(others, ctypes.c_void_p(map.address + offset), ctypes.c_size_t(1))
    os.close(ours)
    os.close(others)
    return done == 1

def is_free(offset, length):
    got = libc.mmap(map.address + offset, length, 0, PRIVATE | NOREPLACE, -1, 0)
    if got != FAILED:
        libc.munmap(got, length)
    return got == map.address + offset

dev = gaia.Device('soft:0')
fd = os.open(path, os.O_RDWR)
kept, map = dev.mmap(fd, PAGE), dev.mmap(fd, 16 * PAGE)
assert map[:] == content
"""


def with_a_full_map(mount, agents):
    """(A mount, an agent with FULL and the content of its file.)"""
    if int(read_file("/proc/sys/vm/max_map_count")) > 200000:
        pytest.skip("so many areas take long to make")
    m, content, agent = mount(), pattern(16 * PAGE), functions_of(__name__, agents())
    agent.do(FULL, path=make(m, content), content=content)
    return m, agent, content


@pytest.mark.traps
@pytest.mark.parametrize("spare, error", [(0, errno.ENOMEM), (1, errno.ENOMEM), (3, 0)])
def test_the_middle_of_a_mapping_is_unmapped_without_room(mount, agents, spare, error):
    """It is refused, and nothing has changed; else its addresses are nobody's until all of the mapping has gone."""
    _, agent, content = with_a_full_map(mount, agents)
    assert agent("unmap_with_room_for(spare, 4 * PAGE, 4 * PAGE)", spare=spare) == error
    if error:
        assert agent("error_of(map.acquire)") == 0 and agent("map[:]") == content
        agent.do("map[5 * PAGE] = 7\nmap.release()\nmap.unmap(4 * PAGE, 4 * PAGE)")
        assert agent("os.pread(fd, 1, 5 * PAGE)[0]") == 7
    assert agent("error_of(map.acquire)") == errno.EINVAL
    assert not agent("is_free(4 * PAGE, 4 * PAGE)")
    agent.do("map.unmap()")
    assert agent("is_free(0, 16 * PAGE)")
    agent.end()


@pytest.mark.traps
def test_what_is_left_of_a_mapping_is_unmapped_without_room(mount, agents):
    """A program that has used its areas up, by parts that it has unmapped, gets them back by unmapping the rest, also bit by bit."""
    _, agent, _ = with_a_full_map(mount, agents)
    agent.do("map.unmap(4 * PAGE, 4 * PAGE)")
    assert agent("unmap_with_room_for(0, 0, 4 * PAGE)") == 0
    assert agent("can_be_read(0), can_be_read(8 * PAGE)") == (False, True)
    assert agent("error_of(map.acquire, 0, PAGE)") == errno.EINVAL and not agent("is_free(0, PAGE)")
    agent.do("map[9 * PAGE] = 7\nmap.release(8 * PAGE)")
    assert agent("os.pread(fd, 1, 9 * PAGE)[0]") == 7
    assert agent("unmap_with_room_for(0, 0, 16 * PAGE)") == 0
    assert agent("is_free(0, 16 * PAGE)")
    agent.end()


WITHOUT_MEMORY = """
import resource
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
pages = 3 * PARTS
os.truncate(path, pages * PAGE)
many = dev.mmap(fd, pages * PAGE)
for part in range(PARTS):
    many.unmap(3 * part * PAGE, PAGE)

def unmap_without_memory():
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        resource.setrlimit(resource.RLIMIT_AS, (int(file.read().split()[0]) * PAGE, limits[1]))
    for size in range(8000, 400, -16):  # of what was freed there are lists by size
        while libc.malloc(size):
            pass
    result = error_of(many.unmap)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    return result
"""


def test_a_mapping_of_many_parts_is_unmapped_without_memory(mount, agents):
    """To unmap what was mapped needs none, whatever there is of it."""
    m, agent = mount(), functions_of(__name__, agents())
    agent.do(FULL, path=make(m, pattern(16 * PAGE)), content=pattern(16 * PAGE))
    agent.do(WITHOUT_MEMORY, PARTS=3000)
    assert agent("unmap_without_memory()") == 0
    assert not agent("any('gaia:blocked' in line for line in open('/proc/self/maps'))")
    assert agent("map[:]") == pattern(16 * PAGE)
    agent.end()


def test_a_daemon_that_dies_while_there_is_no_room(mount, agents):
    """Touches end the program, and the addresses stay taken until they are unmapped: what another part of the program has got
    there meanwhile would be unmapped with them."""
    m, agent, _ = with_a_full_map(mount, agents)
    agent.do("with_room_for(0, kill, daemon)", daemon=m.pid)
    m.kill()
    assert not agent("is_free(0, PAGE)") and not agent("is_free(15 * PAGE, PAGE)")
    agent.do("map.unmap()")
    assert agent("is_free(0, 16 * PAGE)")
    with pytest.raises(AgentDied) as died:
        agent("kept[0]")
    assert died.value.code == -signal.SIGSEGV
