# SPDX-License-Identifier: Apache-2.0
"""Programs that look for their kernels' stores by themselves (gpu/cuda_search.h), on a stand-in for a GPU as in
test_cuda_maps.py. Of a large file only a part is mapped, which lies in two chunks: they have digests for clients, and
what is searched is small."""
import errno
import os
import time

import pytest

import gpu_fixture
import helpers
from conftest import so_much
from gpu_fixture import gpu, only_here  # noqa: F401
from helpers import MIB, PAGE, agents, make_random, read_at, write_at  # noqa: F401
from member import OPS, meet  # noqa: F401
from nodes import cluster  # noqa: F401

CHUNK = 64 * MIB  # of a file of more than 256 MiB
SIZE = 300 * MIB
OFFSET = CHUNK - MIB
LENGTH = 2 * MIB

MAP = """
fd = os.open(path, os.O_RDWR)
dev = gaia.Device("cuda:0")
map = dev.mmap(fd, length, offset=offset)
"""


def make(m, content=b"", size=SIZE):
    """A sparse file, with these bytes at OFFSET."""
    path = gpu_fixture.make(m, b"")
    os.truncate(path, size)
    write_at(path, content, OFFSET)
    return path


def program(gpu, path, standin="", offset=OFFSET, length=LENGTH):
    agent = gpu.agent(standin)
    agent.do(MAP, path=path, offset=offset, length=length)
    return agent


def asks(gpu, program, call="map.release()"):
    """Whether the daemon is asked, whose GPU fails meanwhile."""
    gpu.fail("*", 0, 999)
    try:
        program.do(call)
    except OSError as error:
        assert error.errno == errno.EIO
        return True
    finally:
        gpu.heal()
    return False


def settle(path, program):
    """What was released is collected: until then its pages are not what they were granted with."""
    program.do("map.release()")
    read_at(path, LENGTH, OFFSET)


@only_here
def test_nothing_stored_asks_nobody(gpu):
    m = gpu.mount(options="timeout=1000,passthrough=off")
    one = program(gpu, make(m, os.urandom(LENGTH)))
    assert not asks(gpu, one)
    one.do("map.acquire()")
    for call in ("map.acquire()", "map.release()", "map.acquire()", f"map.release({MIB}, {PAGE})",
                 f"map.acquire({MIB - PAGE}, {2 * PAGE})"):
        assert not asks(gpu, one, call)


@only_here
def test_an_acquire_asks_for_what_others_did(gpu):
    m = gpu.mount(options="timeout=1000")
    path = make(m)
    one = program(gpu, path)
    fd = os.open(path, os.O_RDWR)
    for turn in range(1, 4):
        one.do("map.acquire()")
        os.pwrite(fd, bytes([turn]), OFFSET + MIB + turn)
        one.do("map.acquire()")
        assert one("map[MIB + turn]", turn=turn) == turn
    os.close(fd)


@only_here
def test_an_acquire_releases_what_is_found(gpu):
    m = gpu.mount(options="timeout=1000")
    path = make(m)
    one = program(gpu, path)
    one.do("map.acquire()\nmap[7] = 7\nmap.acquire()")
    assert read_at(path, 1, OFFSET + 7) == b"\x07"


def test_a_store_is_found_wherever_it_is(gpu):
    m = gpu.mount()
    content = bytearray(make_random("content").randbytes(LENGTH))
    path = make(m, content)
    one = program(gpu, path)
    rng = make_random("places")
    for at in [0, 1, PAGE - 1, PAGE, MIB - PAGE, MIB - 1, MIB, MIB + PAGE - 1, LENGTH - PAGE, LENGTH - 1,
               *rng.sample(range(LENGTH), 6)]:
        content[at] ^= 0x5a
        one.do("map[at] ^= 0x5a\nmap.release()", at=at)
        assert read_at(path, LENGTH, OFFSET) == content
        assert asks(gpu, one) == bool(m.nodes)  # where the home is another node it does not search


@only_here
def test_a_store_outside_of_the_range(gpu):
    m = gpu.mount()
    path = make(m)
    one = program(gpu, path)
    for store in (PAGE - 1, 2 * PAGE):
        one.do("map[at] = 1", at=store)
        assert not asks(gpu, one, f"map.release({PAGE}, {PAGE})")
        assert asks(gpu, one)
        settle(path, one)
        assert read_at(path, 1, OFFSET + store) == b"\x01"


@only_here
def test_what_another_process_stored(gpu):
    """There is one copy."""
    m = gpu.mount()
    path = make(m)
    one, two = program(gpu, path), program(gpu, path)
    for turn in range(1, 4):
        two.do("map[MIB + 3] = turn", turn=turn)
        one.do("map.release()")
        assert read_at(path, 1, OFFSET + MIB + 3) == bytes([turn])
    assert not asks(gpu, one) and not asks(gpu, two)


@only_here
def test_a_store_that_brings_back_what_was_there(gpu):
    m = gpu.mount()
    path = make(m)
    one = program(gpu, path)
    for turn in range(1, 5):
        one.do("map[PAGE] = turn % 2\nmap.release()", turn=turn)
        assert read_at(path, 1, OFFSET + PAGE) == bytes([turn % 2])


@only_here
def test_released_and_not_read_yet(gpu):
    """It is granted anew when it is collected; until then the daemon is asked, in vain."""
    m = gpu.mount()
    path = make(m)
    one = program(gpu, path)
    one.do("map[5] = 5\nmap.release()\nmap.release()")
    settle(path, one)
    assert not asks(gpu, one)


@only_here
def test_of_a_page_nobody_knows_what_it_was_granted_with(gpu):
    """A cut and a growth have cleared the end of a page, of which its digest does not tell: a store of what was there
    before makes the page what its digest says, and is one all the same."""
    m = gpu.mount()
    tail = b"the end of the file"
    end = OFFSET + PAGE + 100
    path = os.path.join(m.mnt, "f")
    make(m, size=end + SIZE)
    write_at(path, tail, end)
    one = program(gpu, path)
    assert not asks(gpu, one)
    os.truncate(path, end)
    os.truncate(path, end + SIZE)
    one.do("map[at:at + len(tail)] = tail", at=PAGE + 100, tail=tail)
    assert asks(gpu, one)
    one.do("map.release()")
    assert read_at(path, len(tail), end) == tail
    one.do("map.acquire()")  # what was cut off is there again
    settle(path, one)
    assert not asks(gpu, one)


@only_here
def test_what_was_cut_off_is_not_found(gpu):
    m = gpu.mount()
    path = make(m, os.urandom(LENGTH))
    one = program(gpu, path)
    os.truncate(path, OFFSET + MIB // 2)
    assert not asks(gpu, one)
    os.truncate(path, SIZE)
    one.do("map.acquire()\nmap[MIB] = 9")
    assert asks(gpu, one)
    one.do("map.release()")
    assert read_at(path, 1, OFFSET + MIB) == b"\x09"


@only_here
def test_several_threads(gpu):
    m = gpu.mount()
    path = make(m)
    one = program(gpu, path)
    one.do("""
import threading
part = length // 4
errors = []

def work(number):
    try:
        for turn in range(1, 9):
            map[number * part + turn * PAGE] = turn
            map.release(number * part, part)
            map.release(number * part, part)
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
""")
    content = read_at(path, LENGTH, OFFSET)
    assert all(content[number * LENGTH // 4 + turn * PAGE] == turn for number in range(4) for turn in range(1, 9))


STORES = """
import random, time
rng = random.Random(seed)
rounds = 0
end = time.monotonic() + seconds
while time.monotonic() < end:
    rounds += 1
    at = rng.randrange(length // PAGE) * PAGE + place
    value = bytes([rng.randrange(256)])
    map[at:at + 1] = value
    map.release()
    if rng.randrange(3) == 0:
        map.acquire()
    assert os.pread(fd, 1, offset + at) == value, (rounds, at)
"""


@only_here
def test_beside_others(gpu):
    """Programs that store to the same pages of one copy, and release each other's stores, while a CPU reads and writes
    there: what each has released itself is in the file, whoever brought it there."""
    m = gpu.mount(options="timeout=1000")
    path = make(m)
    programs = [program(gpu, path, length=16 * PAGE, offset=CHUNK - 8 * PAGE) for _ in range(3)]
    rng = make_random("stores")
    for place, one in enumerate(programs):
        one.start(STORES, seed=rng.random(), seconds=so_much(6, 2), place=100 + place)
    fd = os.open(path, os.O_RDWR)
    while any(one.busy() for one in programs):
        page = CHUNK + rng.randrange(-8, 8) * PAGE
        os.pread(fd, PAGE, page)
        if rng.randrange(8) == 0:
            os.pwrite(fd, b"cpu", page + 200)
    for one in programs:
        one.finish()
        assert one("rounds") > 20
    os.close(fd)


# --- what no digest tells -------------------------------------------------------------------------------------------

def release_under_way(meet, agents, pause_ms, answer):
    """As in test_nodes_words.py: two programs of one copy, the first of which releases, which takes another node's kernel
    that long; and who reads meanwhile has collected it, so that its page is what it was granted with."""
    daemon, path, member = meet(env={"STANDIN_CUDA": "gpus=1"})
    mnt = os.path.join(daemon.mnt, "f")
    os.truncate(mnt, SIZE)
    one, other = agents(), agents()
    for agent in one, other:
        agent.do(MAP, path=mnt, offset=0, length=2 * PAGE)
    kernel = member()
    kernel.has_read_page(path)
    kernel.do("pause", OPS["NODE_INVALIDATE"], pause_ms)
    kernel.do("answer", OPS["NODE_INVALIDATE"], answer)
    before = kernel.do("asked", OPS["NODE_INVALIDATE"])
    one.do("map[100:106] = b'stored'")
    one.start("error_of(map.release)", "eval")
    helpers.wait_until(lambda: kernel.do("asked", OPS["NODE_INVALIDATE"]) > before)
    fd = os.open(mnt, os.O_RDONLY)
    assert os.pread(fd, 6, 100) == b"stored"
    return one, other, kernel, fd


def asked_last(kernel):
    """How often it was, when nobody asks any more: what heals may have begun to."""
    asked = None
    while asked != (asked := kernel.do("asked", OPS["NODE_INVALIDATE"])):
        time.sleep(0.5)
    return asked


def test_others_are_still_being_told(meet, agents, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", helpers.cuda_standin())
    one, other, _, fd = release_under_way(meet, agents, 3000, 0)
    begun = time.monotonic()
    other.do("map.release()")
    assert time.monotonic() - begun > 1.5, "its kernel may still hold the page"
    assert one.finish() == 0
    begun = time.monotonic()
    other.do("map.release()")
    assert time.monotonic() - begun < 1.5
    os.close(fd)


def test_others_have_not_been_told(meet, agents, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", helpers.cuda_standin())
    one, other, kernel, fd = release_under_way(meet, agents, 1000, -errno.EIO)
    assert one.finish() == errno.EIO
    kernel.do("pause", OPS["NODE_INVALIDATE"], 0)
    for agent in one, other:
        assert agent("[error_of(call) for call in (map.release, map.acquire)]") == [errno.EIO] * 2
    kernel.do("answer", OPS["NODE_INVALIDATE"], 0)
    other.do("map.release()")
    before = asked_last(kernel)
    one.do("map.release()\nmap.acquire()")
    assert kernel.do("asked", OPS["NODE_INVALIDATE"]) == before, "it has been told"
    os.close(fd)


# --- without a search ----------------------------------------------------------------------------------------------

GONE = """
map.unmap()
dev.close()
assert "stand-in GPU" not in open("/proc/self/maps").read()
"""


def works_by_asking(gpu, path, one):
    assert asks(gpu, one)
    one.do("map[MIB - 1] = 1\nmap[MIB] = 2\nmap.release()")
    assert read_at(path, 2, OFFSET + MIB - 1) == b"\x01\x02"
    assert asks(gpu, one)
    one.do(GONE)
    one.end()


@only_here
@pytest.mark.parametrize("name, count", [
    ("cuMemImportFromShareableHandle", 2), ("cuMemImportFromShareableHandle", 4), ("cuMemMap", 2), ("cuMemMap", 4),
    ("cuMemAddressReserve", 2), ("cuMemSetAccess", 2)])
def test_digests_that_can_not_be_mapped(gpu, name, count, workdir):
    m = gpu.mount()
    path = make(m)
    control = os.path.join(workdir, "control of a program")
    with open(control, "w") as file:
        file.write(f"{name} {count} 801\n")
    one = program(gpu, path, f"control={control}")
    with open(control) as file:
        assert file.read().startswith("done")
    works_by_asking(gpu, path, one)


@only_here
@pytest.mark.parametrize("standin", [
    "refuse=cuModuleLoadData", "refuse=cuModuleGetFunction", "refuse=cuStreamCreate", "refuse=cuMemAlloc",
    "refuse=cuMemHostAlloc", "refuse=cuMemsetD8Async", "refuse=cuLaunchKernel", "refuse=cuMemcpyDtoHAsync",
    "refuse=cuStreamSynchronize"])
def test_a_search_that_can_not_be_made(gpu, standin):
    m = gpu.mount()
    path = make(m)
    works_by_asking(gpu, path, program(gpu, path, standin))


@only_here
@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuStreamCreate", "cuMemAlloc", "cuMemHostAlloc"])
def test_a_gpu_that_was_full_at_the_first_search(gpu, name):
    """The program's own data may have filled it for a while: the next search is tried again."""
    m = gpu.mount()
    path = make(m)
    one = program(gpu, path, f"control={gpu.control_of_programs}")
    gpu.fail(name, 1, 2, gpu.control_of_programs)  # CUDA_ERROR_OUT_OF_MEMORY
    assert asks(gpu, one)
    assert gpu.failed(gpu.control_of_programs)
    settle(path, one)
    assert not asks(gpu, one)
    one.do(GONE)
    one.end()


@only_here
def test_no_memory_for_digests(gpu):
    m = gpu.mount("handles=3")  # the other one's go where they are seen by the daemon alone
    path = make(m)
    works_by_asking(gpu, path, program(gpu, path))


@only_here
def test_digests_of_small_files_are_not_shared(gpu):
    m = gpu.mount()
    path = make(m, bytes(LENGTH), size=OFFSET + LENGTH)
    works_by_asking(gpu, path, program(gpu, path))


@only_here
def test_room_for_one_descriptor(gpu):
    """A map needs no more of them than it did without digests."""
    m = gpu.mount()
    path = make(m)
    one = gpu.agent()
    one.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')\nmap = dev.mmap(fd, PAGE)", path=path)
    for room in range(1, 12):
        one.do("""
import resource
full = []
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
highest = max(int(name) for name in os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 60, hard))
try:
    while True:
        full.append(os.dup(fd))
except OSError:
    pass
for _ in range(room):
    os.close(full.pop())
try:
    other = dev.mmap(fd, length, offset=offset)
    other[1] = room
    other.release()
    other.unmap()
    went = True
except OSError as error:
    assert error.errno == errno.EMFILE, error
    went = False
finally:
    for number in full:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
""", room=room, offset=OFFSET, length=LENGTH)
        if one("went"):
            assert read_at(path, 1, OFFSET + 1) == bytes([room])
    assert one("went")


@only_here
def test_in_a_stream_the_daemon_is_asked(gpu):
    """What a stream calls may not call the driver."""
    m = gpu.mount()
    path = make(m)
    one = program(gpu, path)
    one.do("map.release_on(None)\nimport time\nmap[3] = 3\nmap.release_on(None)")
    helpers.wait_until(lambda: read_at(path, 1, OFFSET + 3) == b"\x03", what="the stream has released it")


@only_here
def test_the_daemon_is_gone(gpu):
    m = gpu.mount()
    path = make(m)
    one = program(gpu, path)
    m.kill()
    for call in ("map.release()", "map.acquire()"):
        with pytest.raises(OSError) as caught:
            one.do(call)
        assert caught.value.errno == errno.ENOTCONN
