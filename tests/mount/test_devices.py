# SPDX-License-Identifier: Apache-2.0
"""Many devices at once, each with less memory than the files that it maps, and every policy of eviction."""
import collections
import errno
import mmap
import os
import threading
import time

import pytest

import gaia
from helpers import (PAGE, agents, device_statistics, devices, make_random, read_file,  # noqa: F401
                     repeats, tool, wait_until, write_file)
from conftest import measures_memory, so_much
MIB = 1 << 20
DEVICES = 8

# In another process: byte b of a page belongs to device b % 8. Pages are visited in a random order, in rounds; each
# round stores a new value, looks now and then at what the last one left, and releases now and then.
STORE = """
import random
rng = random.Random(seed)
fd = os.open(path, os.O_RDWR)
dev = gaia.Device("soft:%d" % number)
map = dev.mmap(fd, pages * PAGE, 3)
for round in range(1, rounds + 1):
    order = list(range(pages))
    rng.shuffle(order)
    for page in order:
        at = page * PAGE + number + 8 * (page % 500)
        assert map[at] == (round - 1) % 256, ("lost", number, page, round, map[at])
        map[at:at + 1] = bytes([round % 256])
        if rng.random() < 0.02:
            first = rng.randrange(pages)
            map.release(first * PAGE, min(pages - first, 50) * PAGE)
    map.release()
"""

pytestmark = pytest.mark.traps


@pytest.mark.parametrize("options", ["evict=lra", "evict=fifo,unit=4K", "evict=clock", "evict=clock,unit=4K,io=threads"])
def test_eight_devices_ten_times_oversubscribed(mount, agents, options):
    """Each of eight devices works on ten times its memory, all on the same pages: slower, but nothing is lost and nothing
    hangs."""
    m = mount("device_cache=256K," + options)
    pages, rounds = 640, 2
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(pages * PAGE))
    seed = make_random().randrange(1 << 30)
    workers = [agents() for _ in range(DEVICES)]
    for number, worker in enumerate(workers):
        worker.start(STORE, path=path, number=number, pages=pages, rounds=rounds, seed=seed + number)
    for worker in workers:
        assert not worker.busy(60), "a device hangs"
        worker.finish()
    expected = bytearray(pages * PAGE)
    for page in range(pages):
        for number in range(DEVICES):
            expected[page * PAGE + number + 8 * (page % 500)] = rounds
    assert read_file(path) == expected
    for worker in workers:
        worker.do("map.acquire()")
    for worker in workers[::3]:
        assert worker("map[:]") == expected
    for number in range(DEVICES):
        stat = device_statistics(m.mnt, f"soft:{number}")
        assert stat["evictions"] >= pages - 64
        assert stat["resident_bytes"] <= stat["capacity_bytes"] == 256 << 10


def test_as_many_devices_as_there_can_be(mount, devices):
    """64 devices and a CPU store to the same pages, each to bytes of its own, and all to one byte: of those values that
    of the highest replica is kept, the same for everybody."""
    m = mount("soft_devices=64,device_cache=1M,passthrough=off")  # with it on that of the last to release
    pages, conflict = 24, 4095
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(pages * PAGE))
    fd = os.open(path, os.O_RDWR)
    names = [f"soft:{number}" for number in range(64)]
    maps = [devices(name).mmap(fd, pages * PAGE, 3) for name in names]
    expected = bytearray(pages * PAGE)
    for round in range(1, 4):
        for number in make_random().sample(range(64), 64):
            for page in range(pages):
                at = page * PAGE + number * 40 + round
                expected[at] = round * 50 + number % 50
                maps[number][at:at + 1] = expected[at:at + 1]
                maps[number][page * PAGE + conflict:(page + 1) * PAGE] = bytes([number + round])
        for page in range(pages):
            expected[page * PAGE + conflict] = 63 + round
            os.pwrite(fd, b"%d" % round, page * PAGE + 3000)
            expected[page * PAGE + 3000:page * PAGE + 3001] = b"%d" % round
        for number in make_random().sample(range(64), 64):
            maps[number].release()
        assert read_file(path) == expected
        for number in make_random().sample(range(64), 64):
            maps[number].acquire()
            assert maps[number][:] == expected, number
    for map in maps:
        map.unmap()
    os.close(fd)


@pytest.mark.parametrize("policy", ["lra", "fifo", "clock"])
def test_the_policy_of_eviction(mount, devices, policy):
    """-o evict= is heard: what goes first differs. Pages of four leaves on a device of 64 pages; the first leaf is also
    the last one that a page was placed of, and then another mapping touches a page of the second."""
    m = mount(f"device_cache=256K,unit=4K,evict={policy},fault_threads=1")  # what another one is at can't go
    leaf = 64 * PAGE  # what policies order
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(4 * leaf))
    fd = os.open(path, os.O_RDWR)
    device = devices()
    map, other = device.mmap(fd, 4 * leaf, 3), device.mmap(fd, 4 * leaf, 3)
    for mapping in (map, other):
        mapping.advise(gaia.ADV_RANDOM)

    def place(*pages):
        for page in pages:
            assert map[page] == 0
        wait_until(lambda: device.stat().resident_bytes <= 64 * PAGE, what="a page is resident")

    def is_there(page):
        faults = device.stat().faults
        assert map[page] == 0
        return device.stat().faults == faults

    place(*range(0, 31 * PAGE, PAGE), *range(leaf, leaf + 32 * PAGE, PAGE), 31 * PAGE)
    assert device_statistics(m.mnt)["evictions"] == 0
    place(2 * leaf)
    assert device_statistics(m.mnt)["evictions"] == 1
    # lra: of the second leaf, as it is longer ago that a page of that was placed. The others: of the first.
    assert is_there(0 if policy == "lra" else leaf), policy
    assert other[leaf + 9 * PAGE] == 0  # is there, but not for this mapping: a fault, and a second chance
    place(3 * leaf)
    assert device_statistics(m.mnt)["evictions"] == 2
    # A leaf that a page was taken of is the last one then. clock: the second one has another chance.
    gone = {0, PAGE} if policy == "clock" else {0, leaf}
    stayed = {0, PAGE, leaf, leaf + PAGE} - gone
    assert all(is_there(page) for page in stayed), policy
    assert not is_there(max(gone)), policy
    for mapping in (map, other):
        mapping.unmap()
    os.close(fd)


@pytest.mark.parametrize("options, stores", [
    ("device_cache=1M,evict=lra", 12000), ("device_cache=256K,evict=fifo,unit=4K", 12000),
    ("device_cache=256K,evict=clock", 12000), ("device_cache=4M,evict=clock,unit=2M", 2500)])
def test_pressure_loses_nothing(mount, options, stores):
    m = mount(options)
    seed = make_random().randrange(1 << 30)
    status, output = tool("tool_pressure", os.path.join(m.mnt, "f"), 16, 4, repeats(so_much(stores, stores // 2)), seed)
    assert status == 0, output
    stat = device_statistics(m.mnt)
    assert stat["evictions"] > 0
    assert stat["resident_bytes"] <= stat["capacity_bytes"]


@pytest.mark.parametrize("unit, brought", [("4K", PAGE), ("64K", 64 << 10), ("2M", 2 * MIB)])
def test_the_unit_of_a_fault(mount, devices, unit, brought):
    m = mount("unit=" + unit)
    content = os.urandom(5 * MIB)
    path = os.path.join(m.mnt, "f")
    write_file(path, content)
    fd = os.open(path, os.O_RDWR)
    device = devices()
    map = device.mmap(fd, len(content), 3)
    at = 3 * MIB + 5 * PAGE + 17
    assert map[at] == content[at]
    wait_until(lambda: device.stat().resident_bytes == brought, what="a unit is resident")
    assert device.stat().faults == 1
    assert map[:] == content
    map.unmap()
    os.close(fd)


def test_capacities_of_devices_are_their_own(mount, devices):
    """Devices that share a file evict independently of each other."""
    m = mount("device_cache=256K,device_cache=soft:1=4M")
    content = os.urandom(2 * MIB)
    path = os.path.join(m.mnt, "f")
    write_file(path, content)
    fd = os.open(path, os.O_RDWR)
    maps = [devices(f"soft:{number}").mmap(fd, len(content), 1) for number in range(3)]
    for map in maps:
        assert map[:] == content
    resident = [device_statistics(m.mnt, f"soft:{number}")["resident_bytes"] for number in range(3)]
    assert resident[1] == 2 * MIB and resident[0] <= 256 << 10 and resident[2] <= 256 << 10
    assert device_statistics(m.mnt, "soft:1")["evictions"] == 0
    for map in maps:
        map.unmap()
    os.close(fd)


def test_one_file_mapped_twice_at_other_offsets(mount, devices):
    """By one process, on one device, read only and writable together: one copy of the data."""
    m = mount()
    content = bytearray(os.urandom(MIB))
    path = os.path.join(m.mnt, "f")
    write_file(path, content)
    fd = os.open(path, os.O_RDWR)
    device, other = devices(), devices("soft:5")
    whole = device.mmap(fd, MIB, 3)
    part = device.mmap(fd, 256 << 10, 1, 0, 512 << 10)
    third = other.mmap(fd, 256 << 10, 3, 0, 640 << 10)
    assert part[:] == content[512 << 10:768 << 10]
    before = device.stat().resident_bytes
    for at, value in ((512 << 10, b"A"), ((700 << 10) + 5, b"B")):
        whole[at:at + 1] = value
        content[at:at + 1] = value
        assert part[at - (512 << 10)] == value[0], "the other mapping shows another copy"
    assert device.stat().resident_bytes <= before + (64 << 10)
    third[100:105] = b"third"
    content[(640 << 10) + 100:(640 << 10) + 105] = b"third"
    third.release()
    whole.release()
    assert read_file(path) == content
    part.acquire()
    assert part[(128 << 10) + 100:(128 << 10) + 105] == b"third"
    assert whole[(640 << 10) + 100:(640 << 10) + 105] == b"third"  # one copy: what one mapping acquired is there in both
    for map in (whole, part, third):
        map.unmap()
    os.close(fd)


@pytest.mark.parametrize("options, first", [("", 8), ("soft_devices=1", 1), ("soft_devices=64", 64)])
def test_more_devices_than_there_are(mount, devices, options, first):
    m = mount(options)
    write_file(os.path.join(m.mnt, "f"), bytes(PAGE))
    for name in (f"soft:{first}", "soft:999", "soft:-1", "soft:", "soft:1x", "cuda:0", "soft"):
        with pytest.raises(OSError) as caught:
            fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR)
            try:
                devices(name).mmap(fd, PAGE, 3)
            finally:
                os.close(fd)
        assert caught.value.errno in (errno.ENODEV, errno.EINVAL), name


def test_what_was_never_acquired_is_released(mount, devices):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(4 * PAGE))
    fd = os.open(path, os.O_RDWR)
    map = devices().mmap(fd, 4 * PAGE, 3)
    map.release()  # nothing was ever touched
    map[PAGE:PAGE + 3] = b"new"
    map.release(2 * PAGE, PAGE)  # not the page of the store, which nobody may see yet
    map.release()
    assert read_file(path)[PAGE:PAGE + 4] == b"new\0"
    map.unmap()
    os.close(fd)


def test_who_did_not_map_releases_nothing(mount, agents, devices):
    """Addresses mean something to the process and the device that mapped them only."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(4 * PAGE))
    fd = os.open(path, os.O_RDWR)
    device, stranger = devices(), devices("soft:1")
    map = device.mmap(fd, 4 * PAGE, 3)
    mine = stranger.mmap(fd, PAGE, 3)
    map[0:1] = b"x"
    other = agents()
    other.do("dev = gaia.Device()\nown = dev.mmap(os.open(path, os.O_RDWR), PAGE, 3)", path=path)
    for call in ("release", "acquire"):
        for wrong in (gaia.Mapping(stranger, map.address, PAGE), gaia.Mapping(device, mine.address, PAGE)):
            with pytest.raises(OSError) as caught:
                getattr(wrong, call)()
            assert caught.value.errno == errno.EINVAL
        with pytest.raises(OSError) as caught:
            other.do(f"gaia.Mapping(dev, address, PAGE).{call}()", address=map.address + PAGE)
        assert caught.value.errno == errno.EINVAL
    assert read_file(path)[0] == 0, "somebody else has released it"
    map.release()
    assert read_file(path)[0] == ord("x")
    for mapping in (map, mine):
        mapping.unmap()
    os.close(fd)


def test_two_processes_release_the_same_pages_at_once(mount, agents):
    """When a release returns, the CPU reads what its process stored before."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(8 * PAGE))
    workers = [agents() for _ in range(3)]
    for number, worker in enumerate(workers):
        worker.start("""
fd = os.open(path, os.O_RDWR)
map = gaia.Device().mmap(fd, 8 * PAGE, 3)
for round in range(1, 250):
    value = bytes([round]) * 8
    for page in range(8):
        map[page * PAGE + 8 * number:page * PAGE + 8 * number + 8] = value
    map.release()
    for page in range(8):
        seen = os.pread(fd, 8, page * PAGE + 8 * number)
        assert seen == value, (number, round, page, seen)
""", path=path, number=number)
    for worker in workers:
        assert not worker.busy(60), "a release hangs"
        worker.finish()


def test_conflicts_that_were_collected_apart(mount, devices):
    """The higher number wins of what is pending together. What was collected before is the file's by then: of a byte that
    two devices have stored the last one to release wins, whatever its number; and all read the same."""
    m = mount("passthrough=off")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(PAGE))
    fd = os.open(path, os.O_RDWR)
    low, high = (devices(name).mmap(fd, PAGE, 3) for name in ("soft:1", "soft:5"))
    cases = ((high, low, True, high), (low, high, True, high), (high, low, False, low), (low, high, False, high))
    for number, (first, last, together, winner) in enumerate(cases, 1):
        for map in (low, high):
            map.acquire()
            assert map[0] == os.pread(fd, 1, 0)[0]
        low[0:1], high[0:1] = bytes([number]), bytes([100 + number])
        value = winner[0]
        first.release()
        if not together:
            os.fsync(fd)
        last.release()
        for map in (low, high):
            map.acquire()
        assert {os.pread(fd, 1, 0)[0], low[0], high[0]} == {value}, number
    for map in (low, high):
        map.unmap()
    os.close(fd)


def test_acquire_while_another_thread_unmaps(mount, devices):
    """Each acquire has stale pages to drop, and stores to take along, as a part of its range is unmapped."""
    m = mount("passthrough=off")
    path = os.path.join(m.mnt, "f")
    content = bytearray(os.urandom(64 * PAGE))
    write_file(path, content)
    fd = os.open(path, os.O_RDWR)
    device = devices()
    random, outcomes, overlaps = make_random(), collections.Counter(), 0

    def acquire(old, went, begins):
        begins.wait()
        went.append(time.monotonic())
        try:
            old.acquire()
            outcomes["good"] += 1
        except OSError as error:
            outcomes[error.errno] += 1
        went.append(time.monotonic())

    for round in range(repeats(200)):
        old, new = (device.mmap(fd, 64 * PAGE, 3, gaia.RESIDENT if round % 3 == 2 else 0) for _ in range(2))
        assert old[:] == content
        for page in range(64):
            old[page * PAGE + 9:page * PAGE + 10] = content[page * PAGE + 9:page * PAGE + 10] = bytes([round % 256])
            content[page * PAGE + 99] = (round + page) % 256
            os.pwrite(fd, content[page * PAGE + 99:page * PAGE + 100], page * PAGE + 99)
        went, begins = [], threading.Barrier(2)
        thread = threading.Thread(target=acquire, args=(old, went, begins))
        thread.start()
        begins.wait()
        time.sleep(random.random() * 4e-4)
        unmaps = time.monotonic()
        old.unmap(16 * PAGE, 16 * PAGE)
        foreign = mmap.mmap(-1, 16 * PAGE)  # may lie where the mapping was
        foreign[:] = b"f" * 16 * PAGE
        thread.join()
        overlaps += went[0] < unmaps < went[1]
        assert foreign[:] == b"f" * 16 * PAGE
        new.acquire()
        assert new[:] == content, round
        old.unmap()
        new.unmap()
    assert set(outcomes) <= {"good", errno.EINVAL} and outcomes["good"], outcomes
    assert overlaps >= repeats(200) // 20, (overlaps, outcomes)  # else this tested nothing
    assert read_file(path) == content
    os.close(fd)
