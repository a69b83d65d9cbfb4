# SPDX-License-Identifier: Apache-2.0
"""What is shown, and what is placed, besides what is touched: along streams, and by blocks (cache/readahead.h, cache/density.h)."""
import pytest

import gaia
from files import make, open_map, pattern
from helpers import MIB, PAGE, agents, device_statistics, devices, read_file, wait_until  # noqa: F401


def stored_to_two(child, path, content):
    """The child's mapping, of pages 5 and 3000: what was shown besides is not taken for stored to, and its stores are seen."""
    child.do("map[5 * 4096 + 1] = 7\nmap[3000 * 4096] = 8\nmap.release()")
    expected = bytearray(content)
    expected[5 * PAGE + 1], expected[3000 * PAGE] = 7, 8
    return read_file(path) == expected


@pytest.mark.traps
@pytest.mark.parametrize("writable", [False, True])
def test_a_second_client_is_shown_what_is_there(mount, devices, agents, writable):
    """Who goes through it page by page is stopped seldom, and at each unit who does not."""
    m = mount()
    content = pattern(16 * MIB)
    path = make(m, content)
    first = devices()
    assert open_map(first, path)[:] == content
    units = len(content) // (64 * 1024)
    child = agents()
    child.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\n"
             "map = dev.mmap(fd, length, 3 if writable else 1)", path=path, length=len(content), writable=writable)
    before = first.stat().faults
    assert child("bytes(map[at] for at in range(0, length, 4096))") == content[::PAGE]
    assert 0 < first.stat().faults - before < units / 8
    assert child("map[:] == open(path, 'rb').read()")
    if writable:
        assert stored_to_two(child, path, content) and first.stat().pages_merged <= 2
    child.do("other = dev.mmap(fd, length)\norder = list(range(0, length, 65536))\nimport random\nrandom.Random(5).shuffle(order)\n"
             "other.advise(gaia.ADV_RANDOM)")
    before = first.stat().faults
    child.do("for at in order:\n    for page in range(16): other[at + page * 4096]")
    assert units <= first.stat().faults - before <= units + 4


@pytest.mark.traps
@pytest.mark.parametrize("writable", [False, True])
def test_a_second_client_is_shown_blocks_that_it_touches_in_no_order(mount, devices, agents, writable):
    """Who goes through all of it is stopped seven times for 2 MiB, at most, and who touches little is shown no more than the
    units of that."""
    m = mount()
    content = pattern(16 * MIB)
    path = make(m, content)
    first = devices()
    assert open_map(first, path)[:] == content
    child = agents()
    child.do("import random\nfd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\n"
             "new = lambda: dev.mmap(fd, length, 3 if writable else 1)\n"
             "def resident(map):\n"
             "    lines = open('/proc/self/smaps').read().splitlines()\n"
             "    i = next(i for i, line in enumerate(lines) if line.startswith('%x-' % map.address))\n"
             "    return next(int(line.split()[1]) for line in lines[i:] if line.startswith('Rss:'))\n"
             "few = [block * 32 + cell for block in range(8) for cell in (3, 9, 20, 30)]\n"
             "order = random.Random(5).sample(range(256), 256)", path=path, length=len(content), writable=writable)
    before = first.stat().faults
    assert child("(lambda map: ([map[unit << 16] for unit in few], resident(map))[1])(new())") == 32 * 64
    assert first.stat().faults - before == 32
    child.do("map = new()")
    before = first.stat().faults
    assert child("[map[(unit << 16) + 4096] for unit in order]") == \
        [content[(unit << 16) + PAGE] for unit in child("order")]
    assert 8 * 5 <= first.stat().faults - before <= 8 * 7 + 16  # one beside another is taken for a stream that begins
    assert child("map[:] == open(path, 'rb').read()")
    if writable:
        assert stored_to_two(child, path, content) and first.stat().pages_merged <= 2


@pytest.mark.traps
@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("unit, faults", [("4K", 500), ("2M", 2)])
def test_a_touch_shows_its_unit(mount, devices, agents, unit, faults, random):
    """All of it, and nothing of what lies around it."""
    m = mount(f"unit={unit}")
    content = pattern(4 * MIB)
    path = make(m, content)
    first = devices()
    assert open_map(first, path)[:] == content
    child = agents()
    child.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\nmap = dev.mmap(fd, length)", path=path, length=len(content))
    if random:
        child.do("map.advise(gaia.ADV_RANDOM)")
    before = first.stat().faults
    assert child("[map[page * 4096] for page in range(1000, 0, -2)]") == [content[page * PAGE] for page in range(1000, 0, -2)]
    assert first.stat().faults - before == faults


@pytest.mark.traps
@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("cache, has_room", [("4M", True), ("3M", False)])
def test_a_block_that_is_half_touched_is_placed(mount, devices, cache, has_room, writable):
    """Of a file that the device lacks: the whole of 2 MiB, when half was touched in no order and there is room for more."""
    m = mount(f"timeout=0,fault_threads=1,device_cache={cache}")
    content = pattern(4 * MIB)
    path = make(m, content)
    device = devices()
    map = open_map(device, path, prot=gaia.PROT_READ | (gaia.PROT_WRITE if writable else 0))
    unit = 64 * 1024
    for at in *range(30, -1, -2), 40:  # none lies where a stream would go on; and that of the first is forgotten
        assert map[at * unit + 9] == content[at * unit + 9]
    assert device.stat().resident_bytes == 17 * unit
    assert map[31 * unit] == content[31 * unit]
    if has_room:
        wait_until(lambda: device.stat().resident_bytes == 33 * unit, what="the block is there")
        before = device.stat().faults
        assert map[:32 * unit] == content[:32 * unit] and device.stat().faults == before
    assert map[50 * unit] == content[50 * unit]
    assert device.stat().resident_bytes == (34 if has_room else 19) * unit
    if writable:
        map[17 * unit] = 7
        map.release()
        content = content[:17 * unit] + b"\7" + content[17 * unit + 1:]
    assert read_file(path) == content


@pytest.mark.traps
def test_what_was_let_go_is_not_half_touched(mount, devices):
    """Who has touched half of a block and said that it is over is brought no more than he touches."""
    m = mount("timeout=0,fault_threads=1,device_cache=32M")
    content = pattern(4 * MIB)
    path = make(m, content)
    device = devices()
    map = open_map(device, path)
    unit = 64 * 1024
    for at in *range(30, -1, -2), 40:  # as above
        assert map[at * unit] == content[at * unit]
    map.advise(gaia.ADV_DONTNEED)
    assert device.stat().resident_bytes == 0
    before = device_statistics(m.mnt)["readahead_pages"]
    for at in 31, 50:  # when the second is served all has been asked for because of the first
        assert map[at * unit] == content[at * unit]
    assert device_statistics(m.mnt)["readahead_pages"] == before
