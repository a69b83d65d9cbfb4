# SPDX-License-Identifier: Apache-2.0
"""In control groups with little memory: the daemon, its programs, and devices. (Of several nodes: test_nodes_room.py.)"""
import contextlib
import os

import pytest

import helpers
from conftest import counts_small_memory, measures_memory, not_in_the_gate, so_much
from helpers import PAGE, kernel_at_least, memory_kib, read_file, statistics, write_file


@contextlib.contextmanager
def control_group(most):
    """A control group for so many bytes of memory, or (None) without a limit: (what starts a program in it, how often it has
    killed, bytes charged to it, how often it was full)."""
    name = f"gaiafs-test-{os.getpid()}"
    for top, limit, none, events, usage, fails in (
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "-1", "memory.oom_control", "memory.usage_in_bytes", "memory.failcnt"),
            ("/sys/fs/cgroup", "memory.max", "max", "memory.events", "memory.current", None)):
        group = os.path.join(top, name)
        try:
            os.mkdir(group)
            with open(os.path.join(group, limit), "w") as file:
                file.write(none if most is None else str(most))
            break
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(group)
    else:
        pytest.skip("no control group for memory can be made here")

    def event(kind):
        with open(os.path.join(group, events)) as file:
            return next(int(line.split()[1]) for line in file if line.startswith(f"{kind} "))

    try:
        yield (["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"], lambda: event("oom_kill"),
               lambda: int(read_file(os.path.join(group, usage))),
               lambda: int(read_file(os.path.join(group, fails))) if fails else event("max"))
    finally:
        with contextlib.suppress(OSError):
            helpers.wait_until(lambda: not read_file(os.path.join(group, "cgroup.procs")), what="the group is empty")
            os.rmdir(group)


@counts_small_memory
def test_pieces_that_are_not_synced_have_a_part_of_the_memory(mount):
    """Anybody can write them to any number of files."""
    with control_group(128 << 20) as (before, kills, *_):
        m = mount("passthrough=off", before=before)
        first = memory_kib(m.pid, "RssAnon")
        for i in range(so_much(1600, 800)):
            with open(f"{m.mnt}/f{i}", "wb", buffering=0) as file:
                for at in range(257):
                    os.pwrite(file.fileno(), b"x", 2 * at)
        used = memory_kib(m.pid, "RssAnon") - first
        m.unmount()
        assert not kills()
    print(used, "KiB")
    assert used < 5120


@pytest.fixture
def memory_group():
    """A control group for 128 MiB of memory: (what starts a program in it, how often it has killed)."""
    with control_group(128 << 20) as (before, kills, *_):
        yield before, kills


@pytest.mark.parametrize("limited", [False, True])
def test_a_program_with_little_memory(limited, mount):
    """A device's frames are charged to the program for which they are placed where that costs it nothing, and never to one whose
    control group has a limit."""
    daemon = mount()
    size = 96 << 20
    write_file(f"{daemon.mnt}/f", os.urandom(1 << 20) * (size >> 20))
    with control_group(48 << 20 if limited else None) as (before, kills, used, _):
        program = helpers.Agent(before=before)
        try:
            program.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, size)", path=f"{daemon.mnt}/f", size=size)
            assert program("sum(map[at] for at in range(0, size, PAGE))") == sum(read_file(f"{daemon.mnt}/f")[::PAGE])
            charged = used()
        finally:
            program.kill()
        assert kills() == 0
    assert statistics(daemon.mnt)["devices"][0]["bytes_in"] >= size
    print(f"{charged >> 20} MiB charged")
    if limited:
        assert charged < 48 << 20
    elif kernel_at_least(6, 4):
        assert charged > size


@measures_memory
@pytest.mark.limit(120)
def test_devices_with_little_memory(memory_group, mount):
    """All soft devices stored to everywhere, with nothing said of how much each may have: the daemon is not killed for it."""
    before, kills = memory_group
    mounted = mount(before=before)
    pages = 32 << 8  # 32 MiB: of 16 that one device may have, and 32 that all may
    write_file(f"{mounted.mnt}/f", b"." * PAGE * pages)
    program = helpers.Agent()
    try:
        program.do("fd = os.open(path, os.O_RDWR)\nmaps = [gaia.Device(f'soft:{n}').mmap(fd, pages * PAGE) for n in range(8)]\n"
                   "for n, map in enumerate(maps):\n    for page in range(pages):\n        map[page * PAGE + n] = 65 + n",
                   path=f"{mounted.mnt}/f", pages=pages)
        resident = [one["resident_bytes"] for one in statistics(mounted.mnt)["devices"]]
        program.do("for map in maps:\n    map.release()")
    finally:
        program.kill()
    assert len(resident) == 8 and min(resident) >= 1 << 20 and sum(resident) <= 33 << 20, resident
    assert read_file(f"{mounted.mnt}/f") == (b"ABCDEFGH" + b"." * (PAGE - 8)) * pages
    assert kills() == 0


@measures_memory
def test_nothing_is_placed_ahead_where_other_devices_have_the_room(memory_group, mount):
    """A block that is half touched is not brought whole where something has to go for it: what all devices hold counts."""
    mounted = mount("fault_threads=1", before=memory_group[0])
    path, unit = f"{mounted.mnt}/f", 16 * PAGE
    write_file(path, b"." * (32 << 20))
    program = helpers.Agent()
    try:
        program.do("fd = os.open(path, os.O_RDWR)\nmaps = [gaia.Device(f'soft:{n}').mmap(fd, 32 << 20) for n in range(3)]\n"
                   "for map in maps:\n    map[16 << 20:32 << 20]", path=path)
        before = statistics(mounted.mnt)["devices"][2]
        assert before["resident_bytes"] < before["capacity_bytes"] / 2
        program.do("for at in *range(30, -1, -2), 40, 31, 50: maps[2][at * unit]", unit=unit)
        after = statistics(mounted.mnt)["devices"][2]
        assert after["readahead_pages"] == before["readahead_pages"]
    finally:
        program.kill()


@measures_memory
def test_many_files_on_devices_with_little_memory(mount):
    """What each costs as long as it is known is memory, too: of 64 MiB an eighth, whatever the descriptors are."""
    with control_group(64 << 20) as (before, kills, *_):
        m, program = mount("timeout=60", before=before), helpers.Agent()
        for i in range(200):
            write_file(f"{m.data}/f{i}", b"%08d" % i)
        most, base = 0, helpers.descriptors(m.pid)
        program.do("devices = [gaia.Device(f'soft:{number}') for number in range(8)]")
        try:
            for i in range(200):
                program.do("fd = os.open(path, os.O_RDWR)\nfor device in devices:\n    map = device.mmap(fd, 8)\n"
                           "    assert map[:8] == b'%08d' % i\n    map.unmap()\nos.close(fd)", path=f"{m.mnt}/f{i}", i=i)
                most = max(most, helpers.descriptors(m.pid) - base)
        finally:
            program.end()
        assert 1000 < most < 2500 and kills() == 0
        assert m.unmount() is None


@not_in_the_gate
@counts_small_memory
@pytest.mark.parametrize("wishes", [False, True])
def test_many_opened_files_with_little_memory(mount, wishes):
    """One that was opened takes several times the memory of one that is only known: the kernel is asked to forget some earlier;
    also where it is asked for single ones all the time (those that leave passthrough). They are counted while they are
    opened: afterwards the kernel may forget them by itself."""
    if not kernel_at_least(6, 18):
        pytest.skip("this kernel can't be asked to forget inodes")
    with control_group(48 << 20) as (before, kills, *_):
        m, count = mount(f"timeout=60,remember=0,passthrough={'on' if wishes else 'off'}", before=before), 20_000
        for i in range(count):
            os.mknod(f"{m.data}/f{i}")
        program = helpers.Agent()
        program.do("device = gaia.Device()")
        known = []
        try:
            for i in range(count):
                path = f"{m.mnt}/f{i}"
                fd = os.open(path, os.O_RDONLY)
                if i % 500 == 499:
                    known.append(statistics(m.mnt)["inodes"]["known"])
                if wishes and i % 500 == 499:
                    program.do("fd = os.open(path, os.O_RDONLY)\ndevice.mmap(fd, 8, gaia.PROT_READ).unmap()\nos.close(fd)", path=path)
                os.close(fd)
        finally:
            program.end()
        assert kills() == 0
        assert max(known) < 15_000, known
        assert m.unmount() is None


@measures_memory
@pytest.mark.limit(240)
def test_a_daemon_with_little_memory(memory_group, mount):
    """128 MiB: files beyond that, more inodes than are known at a time, devices: all of it works or says why not."""
    before, kills = memory_group
    mounted = mount("timeout=60", before=before)
    known = statistics(mounted.mnt)["inodes"]
    print(known, kills())
    assert known["most"] <= (128 << 20) // 4 // 128
    block = os.urandom(1 << 20)
    with open(f"{mounted.mnt}/large", "wb") as file:
        for _ in range(200):
            file.write(block)
    for d in range(40):
        os.mkdir(f"{mounted.mnt}/d{d}")
        for i in range(250):
            write_file(f"{mounted.mnt}/d{d}/f{i}", b"%d" % i)
    device = helpers.Agent()
    try:
        device.do(f"d = gaia.Device('soft:0'); fd = os.open('{mounted.mnt}/large', os.O_RDWR); "
                  "m = d.mmap(fd, 200 << 20, 3)")
        answer = device("sum(m[i << 20] for i in range(200))")
        assert answer == 200 * block[0]
    finally:
        device.kill()
    with open(f"{mounted.mnt}/large", "rb") as file:
        assert all(file.read(1 << 20) == block for _ in range(200))
    for d in range(40):
        assert len(os.listdir(f"{mounted.mnt}/d{d}")) == 250
        assert read_file(f"{mounted.mnt}/d{d}/f7") == b"7"
    assert kills() == 0


def huge_pages():
    with contextlib.suppress(OSError), open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
        return "[never]" not in file.read()
    return False


@not_in_the_gate
@counts_small_memory
@pytest.mark.limit(240)
def test_a_walk_with_little_memory(mount, workdir):
    """Of more files than the group has room for the filesystem's inodes of. The kernel kills for one of those, and would let go
    for anything else: the daemon is not killed, as it hardly ever comes to the group's limit."""
    if not huge_pages():
        pytest.skip("no huge pages here: see docs/limits.md")
    folders, files, walks = 100, 1000, 3
    data = os.path.join(workdir, "many")
    for d in range(folders):
        os.makedirs(f"{data}/d{d}")
        for i in range(files):
            os.mknod(f"{data}/d{d}/f{i}")
    with control_group(64 << 20) as (before, kills, used, full):
        m = mount("timeout=60", data=data, before=before)
        most = 0
        for _ in range(walks):
            helpers.forget_inodes()
            for d in range(folders):
                with os.scandir(f"{m.mnt}/d{d}") as entries:
                    assert sum(entry.stat().st_size == 0 for entry in entries) == files
                most = max(most, used())
        print(f"at most {most >> 20} MiB, full {full()} times")
        assert most > 48 << 20, "the test tests nothing"
        assert kills() == 0 and full() < 1000
        assert m.unmount() is None
