# SPDX-License-Identifier: Apache-2.0
"""CPUs that store through a mapping and a device that stores, to different bytes of the same pages: nobody's are lost, and
a release has the kernel write such pages back in large pieces."""
import os

import pytest

from files import pattern
from helpers import ALL_ROWS, PAGE, agents, daemon_with_faults, kernel_at_least, read_direct, read_file, write_file  # noqa: F401

PAGES = 256
HALF = PAGE // 2
MAPS = """
fd = os.open(path, os.O_RDWR)
cpu = mmap.mmap(fd, os.fstat(fd).st_size)
"""
DEVICE = MAPS + "dev = gaia.Device('soft:0')\nmap = dev.mmap(fd, os.fstat(fd).st_size)\nmap[:]"


def test_pages_that_both_have_stored_to_are_written_back_in_large_pieces(mount, agents, workdir, monkeypatch):
    """But for the first time; and not where CPUs store no more."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("timeout=0,passthrough=off", env=env)  # else nothing is written back
    path = os.path.join(m.mnt, "f")
    content = bytearray(pattern(PAGES * PAGE, 1))
    write_file(path, content)
    one = agents()
    one.do(DEVICE, path=path)
    writes = []
    for turn in range(1, 7):
        stored = turn <= 4
        one.do("for page in range(pages):\n"
               "    if stored:\n"
               "        cpu[page * PAGE:page * PAGE + 8] = bytes([turn]) * 8\n"
               "    map[page * PAGE + half:page * PAGE + half + 8] = bytes([100 + turn]) * 8",
               pages=PAGES, half=HALF, turn=turn, stored=stored)
        before = plan.calls[ALL_ROWS.index("fuse_reply_write")]
        one.do("map.release()")
        writes.append(plan.calls[ALL_ROWS.index("fuse_reply_write")] - before)
        for page in range(PAGES):
            if stored:
                content[page * PAGE:page * PAGE + 8] = bytes([turn]) * 8
            content[page * PAGE + HALF:page * PAGE + HALF + 8] = bytes([100 + turn]) * 8
        assert one("cpu[:]") == content and read_file(path) == content, turn
        assert read_direct(path, len(content)) == content
    print(writes)
    assert writes[0] > PAGES // 2, "they are not stored to by both"
    if kernel_at_least(6, 16):
        assert all(0 < count < PAGES // 8 for count in writes[1:4]), writes
    assert writes[4:] == [0, 0]


@pytest.mark.parametrize("other", ["no stores elsewhere", "stores elsewhere"])
def test_stores_of_both_at_once(mount, agents, other):
    """Each side's last stores stay, while the device releases and the kernel writes back."""
    m = mount("timeout=0")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(2 * PAGES * PAGE))
    device, cpu = agents(), agents()
    device.do(DEVICE, path=path)
    cpu.do(MAPS + """
def run():
    wrong, turn = 0, 0
    while not os.path.exists(stop):
        turn += 1
        for page in range(0, pages * PAGE, PAGE):
            struct.pack_into("<Q", cpu, page, turn)
            if elsewhere:
                struct.pack_into("<Q", cpu, pages * PAGE + page, turn)
        for page in range(0, pages * PAGE, PAGE):
            wrong += struct.unpack_from("<Q", cpu, page)[0] != turn
    return turn, wrong
""", path=path, pages=PAGES, elsewhere=other == "stores elsewhere", stop=os.path.join(m.data, "stop"))
    cpu.start("run()", mode="eval")
    device.do("""
lost = 0
for turn in range(1, turns + 1):
    for page in range(half, pages * PAGE, PAGE):
        map[page:page + 8] = struct.pack("<Q", turn)
    map.release()
    seen = os.pread(fd, pages * PAGE, 0)
    lost += sum(struct.unpack_from("<Q", seen, page)[0] != turn for page in range(half, pages * PAGE, PAGE))
    if turn % 7 == 0:
        map.acquire()
        lost += sum(struct.unpack("<Q", map[page:page + 8])[0] != turn for page in range(half, pages * PAGE, PAGE))
""", pages=PAGES, half=HALF, turns=40)
    write_file(os.path.join(m.data, "stop"), b"")
    turns, wrong = cpu.finish()
    assert device("lost") == 0 and wrong == 0
    print("turns", turns)
    expected = bytearray(2 * PAGES * PAGE)
    for page in range(PAGES):
        expected[page * PAGE:page * PAGE + 8] = turns.to_bytes(8, "little")
        expected[page * PAGE + HALF:page * PAGE + HALF + 8] = (40).to_bytes(8, "little")
        if other == "stores elsewhere":
            expected[(PAGES + page) * PAGE:(PAGES + page) * PAGE + 8] = turns.to_bytes(8, "little")
    assert read_file(path) == expected
