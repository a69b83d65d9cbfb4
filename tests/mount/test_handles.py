# SPDX-License-Identifier: Apache-2.0
"""How the daemon finds files again: names that move, file handles of the mount, where handles are refused. (Files without a
name: test_nameless.py.)"""
import contextlib
import ctypes
import errno
import os
import shutil
import stat
import struct
import subprocess
import threading
import time

import pytest

import helpers
from conftest import counts_small_memory, measures_memory, not_in_the_gate, so_much
from descriptors import churn, small  # noqa: F401
from helpers import (PAGE, descriptors, error_of, kernel_at_least, make_random, memory_kib, read_file, statistics, wait_until,
                     write_file)

LIBC = ctypes.CDLL(None, use_errno=True)
AT_EMPTY_PATH = 0x1000


class Handle:
    """struct file_handle, of a path or a descriptor."""

    def __init__(self, path):
        self.buffer = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128), 136)
        mount_id = ctypes.c_int()
        fd, name, flags = (path, b"", AT_EMPTY_PATH) if isinstance(path, int) else (-100, os.fsencode(path), 0)
        if LIBC.name_to_handle_at(fd, name, self.buffer, ctypes.byref(mount_id), flags):
            raise OSError(ctypes.get_errno(), "name_to_handle_at")

    def words(self):
        """The node id and its generation, as the kernel's FUSE puts them into a handle."""
        high, low, generation = struct.unpack_from("=III", self.buffer, 8)
        return high << 32 | low, generation

    def forge(self, node, generation):
        struct.pack_into("=III", self.buffer, 8, node >> 32, node & 0xFFFFFFFF, generation)

    def open(self, mnt, flags=os.O_RDONLY):
        at = os.open(mnt, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fd = LIBC.open_by_handle_at(at, self.buffer, flags | os.O_CLOEXEC)
        finally:
            os.close(at)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return fd


def test_names_that_move(small):
    """Renames and hard links, through the mount and behind it, when no descriptor is left from before."""
    os.makedirs(f"{small.mnt}/a/b/c")
    write_file(f"{small.mnt}/a/b/c/f", b"bytes")
    os.link(f"{small.mnt}/a/b/c/f", f"{small.mnt}/a/linked")
    fd = os.open(f"{small.mnt}/a/b", os.O_RDONLY | os.O_DIRECTORY)
    churn(small)
    os.rename(f"{small.mnt}/a/b", f"{small.mnt}/moved")
    assert read_file(f"{small.mnt}/moved/c/f") == b"bytes"
    churn(small)
    os.rename(f"{small.data}/moved", f"{small.data}/behind")
    assert read_file(f"{small.mnt}/behind/c/f") == b"bytes"
    assert error_of(os.stat, f"{small.mnt}/moved") == errno.ENOENT
    write_file(os.path.join(f"/proc/self/fd/{fd}", "c", "g"), b"through the folder")
    assert read_file(f"{small.data}/behind/c/g") == b"through the folder"
    os.unlink(f"{small.mnt}/behind/c/f")
    churn(small)
    write_file(f"{small.mnt}/a/linked", b"linked")
    assert os.stat(f"{small.mnt}/a/linked").st_nlink == 1 and read_file(f"{small.data}/a/linked") == b"linked"
    os.close(fd)


# --- other filesystems below ----------------------------------------------------------------------------------------

def test_a_filesystem_below_the_data_directory(small):
    """It has handles of its own, and is let go when nothing of it is known any more."""
    below = f"{small.data}/in/sub"
    os.makedirs(below)
    subprocess.run(["mount", "-t", "tmpfs", "none", below], check=True)
    try:
        os.makedirs(f"{small.mnt}/in/sub/x/y")
        write_file(f"{small.mnt}/in/sub/x/y/f", b"in memory")
        churn(small)
        assert read_file(f"{small.mnt}/in/sub/x/y/f") == b"in memory"
        os.rename(f"{small.mnt}/in/sub/x/y/f", f"{small.mnt}/in/sub/g")
        churn(small)
        assert read_file(f"{below}/g") == b"in memory"
        assert error_of(os.rename, f"{small.mnt}/in/sub/g", f"{small.mnt}/g") == errno.EXDEV
        assert os.stat(f"{small.mnt}/in/sub/g").st_nlink == 1
        # A name that is gone makes the kernel forget what is below it.
        os.rename(f"{small.data}/in", f"{small.data}/aside")
        below = f"{small.data}/aside/sub"
        assert error_of(os.stat, f"{small.mnt}/in") == errno.ENOENT
        helpers.wait_until(lambda: subprocess.run(["umount", below], capture_output=True).returncode == 0,
                           what="it can be unmounted")
    finally:
        if os.path.ismount(below):
            subprocess.run(["umount", "-l", below], check=False)


# --- file handles of the mount --------------------------------------------------------------------------------------

def test_handles_of_the_mount(small):
    os.makedirs(f"{small.mnt}/a/b")
    write_file(f"{small.mnt}/a/b/f", b"found")
    handles = {name: Handle(f"{small.mnt}/{name}") for name in ("", "a", "a/b", "a/b/f")}
    churn(small)
    fd = handles["a/b/f"].open(small.mnt)
    assert os.read(fd, 100) == b"found"
    os.close(fd)
    for name, inner in (("", "a"), ("a", "b"), ("a/b", "f")):
        fd = handles[name].open(small.mnt, os.O_RDONLY | os.O_DIRECTORY)
        assert inner in os.listdir(fd)
        assert os.stat("..", dir_fd=fd).st_ino == os.stat(f"{small.mnt}/{name}/..").st_ino
        os.close(fd)
    os.unlink(f"{small.mnt}/a/b/f")
    # The kernel has it until the RELEASE from above is answered.
    helpers.wait_until(lambda: error_of(lambda: os.close(handles["a/b/f"].open(small.mnt))) == errno.ESTALE,
                       what="its handle leads nowhere")


def test_handles_that_lead_nowhere(small):
    """Node ids are never used again, so a handle of one that is not known leads to no other file."""
    seen = {}
    for i in range(300):
        path = f"{small.mnt}/f{i % 7}"
        write_file(path, b"%d" % i)
        handle = Handle(path)
        node, generation = handle.words()
        assert node not in seen, f"{node} was that of {seen[node]}"
        seen[node] = path
        os.unlink(path)
    rng = make_random()
    handle.forge(node + 16, generation)
    assert error_of(handle.open, small.mnt) == errno.ESTALE
    for _ in range(200):
        handle.forge(rng.choice([*seen, rng.getrandbits(64), rng.randrange(1, 1 << 16), 1]),
                     rng.choice([generation, 0, 1]))
        words = handle.words()
        answer = error_of(lambda: os.close(handle.open(small.mnt, os.O_PATH)))
        assert answer == errno.ESTALE or words == (1, 0), (words, answer)
    write_file(f"{small.mnt}/g", b"alive")
    fd = os.open(f"{small.mnt}/g", os.O_PATH)
    handle = Handle(fd)
    node, generation = handle.words()
    handle.forge(node, generation ^ 1)
    assert error_of(handle.open, small.mnt) == errno.ESTALE
    os.close(fd)
    assert read_file(f"{small.mnt}/g") == b"alive"


# --- where file handles are refused ---------------------------------------------------------------------------------

@pytest.fixture
def refused(mount):
    """A mount whose daemon may not open handles: it finds files by their names again."""
    return mount("timeout=0", before=["capsh", "--drop=cap_dac_read_search", "--shell=/usr/bin/prlimit", "--",
                                      "--nofile=256:256"])


@pytest.mark.limit(120)
def test_no_handles_and_more_inodes_than_descriptors(refused):
    for d in range(20):
        os.mkdir(f"{refused.mnt}/d{d}")
        for i in range(40):
            write_file(f"{refused.mnt}/d{d}/f{i}", b"%d/%d" % (d, i))

    def all_known():
        """The kernel forgets them where anybody, another test say, has it drop its caches."""
        for folder, _, names in os.walk(refused.mnt):
            for name in names:
                os.stat(os.path.join(folder, name))
        return statistics(refused.mnt)["inodes"]["known"] > 800

    wait_until(all_known)
    known = statistics(refused.mnt)["inodes"]
    print(known)
    assert known["descriptors_cached"] <= 64 + 16 and known["descriptors_kept"] == 1
    assert descriptors(refused.pid) < 200
    held = os.open(f"{refused.mnt}/d3/f3", os.O_PATH)
    folder = os.open(f"{refused.mnt}/d4", os.O_RDONLY | os.O_DIRECTORY)
    opened = os.open(f"{refused.mnt}/d5/f5", os.O_RDWR)
    os.rename(f"{refused.mnt}/d3", f"{refused.mnt}/d4/moved")
    os.rename(f"{refused.mnt}/d4", f"{refused.mnt}/moved")
    os.unlink(f"{refused.mnt}/d5/f5")
    churn(refused)
    assert os.fstat(held).st_size == 3
    assert "moved" in os.listdir(folder) and os.stat("moved/f9", dir_fd=folder).st_size == 3
    os.ftruncate(opened, 2)
    assert os.fstat(opened).st_nlink == 0 and os.pread(opened, 10, 0) == b"5/"
    churn(refused)
    for d in range(5, 20):
        for i in range(6, 40):
            assert read_file(f"{refused.mnt}/d{d}/f{i}") == b"%d/%d" % (d, i)
    shutil.rmtree(f"{refused.mnt}/moved")
    assert not os.path.exists(f"{refused.data}/moved")
    for fd in (held, folder, opened):
        os.close(fd)


def test_no_handles_and_a_file_made_without_a_name(refused):
    """It is found through the descriptor of who has it open."""
    fd = os.open(refused.mnt, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        os.write(fd, b"precious")
        churn(refused)
        assert os.fstat(fd).st_size == 8
        os.ftruncate(fd, 4)
        os.link(f"/proc/self/fd/{fd}", f"{refused.mnt}/named", src_dir_fd=0, follow_symlinks=True)
        assert read_file(f"{refused.data}/named") == b"prec"
    finally:
        os.close(fd)


def test_no_handles_and_a_name_that_leads_elsewhere(refused):
    """What is at a place now is not taken for what was there."""
    write_file(f"{refused.mnt}/f", b"secret")
    held = os.open(f"{refused.mnt}/f", os.O_PATH)
    churn(refused)
    os.rename(f"{refused.data}/f", f"{refused.data}/g")
    write_file(f"{refused.data}/f", b"another")
    assert error_of(os.chmod, f"/proc/self/fd/{held}", 0o777) == errno.ESTALE
    os.unlink(f"{refused.data}/f")
    os.symlink("/etc/passwd", f"{refused.data}/f")
    assert error_of(os.fstat, held) == errno.ESTALE
    assert read_file(f"{refused.mnt}/g") == b"secret"  # who looks it up by its name finds it,
    assert os.fstat(held).st_size == 6                 # and so does who has held it
    os.close(held)


# --- bounds ---------------------------------------------------------------------------------------------------------

def test_a_bound_for_known_inodes(mount):
    """The kernel is asked to forget some; where it can't be (before 6.18), one too many is an error."""
    mounted = mount("timeout=60,inodes=1024")
    for i in range(5000):
        write_file(f"{mounted.data}/f{i}", b"")
    answers, most = {}, 0
    for i in range(5000):
        answer = error_of(os.stat, f"{mounted.mnt}/f{i}")
        answers[answer] = answers.get(answer, 0) + 1
        if i % 500 == 0:
            most = max(most, statistics(mounted.mnt)["inodes"]["known"])
    print(answers, most)
    assert most <= 1024
    if kernel_at_least(6, 18):
        assert answers == {0: 5000}
    else:
        assert set(answers) <= {0, errno.ENOMEM} and answers[0] >= 1000


def test_a_bound_when_all_are_in_use(mount):
    mounted = mount("timeout=60,inodes=1024")
    for i in range(1030):
        write_file(f"{mounted.data}/f{i}", b"%d" % i)
    fds = []
    for i in range(1023):
        fds.append(os.open(f"{mounted.mnt}/f{i}", os.O_PATH))
    for i in range(1023, 1027):
        assert error_of(os.stat, f"{mounted.mnt}/f{i}") == errno.ENOMEM
    assert os.fstat(fds[77]).st_size == 2 and read_file(f"/proc/self/fd/{fds[999]}") == b"999"
    for fd in fds:
        os.close(fd)
    helpers.wait_until(lambda: error_of(os.stat, f"{mounted.mnt}/f1029") == 0 or not kernel_at_least(6, 18))


MAKES = {"mkdir": os.mkdir, "symlink": lambda path: os.symlink("target", path), "mkfifo": os.mkfifo,
         "mknod": lambda path: os.mknod(path, 0o600 | stat.S_IFREG)}


@pytest.mark.whole
@pytest.mark.parametrize("make", MAKES)
def test_what_could_not_be_made_is_not_there(mount, make):
    """Folders and symbolic links serve as locks: who was told that it failed does not take it away again."""
    mounted = mount("timeout=60,inodes=1024")
    for i in range(1023):
        write_file(f"{mounted.data}/f{i}", b"")
    fds = [os.open(f"{mounted.mnt}/f{i}", os.O_PATH) for i in range(1023)]
    assert error_of(MAKES[make], f"{mounted.mnt}/lock") == errno.ENOMEM
    for fd in fds:
        os.close(fd)
    assert not os.path.lexists(f"{mounted.data}/lock")
    helpers.wait_until(lambda: error_of(MAKES[make], f"{mounted.mnt}/lock") == 0 or not kernel_at_least(6, 18))


def test_when_all_are_in_use_they_are_found_at_once(mount):
    """Who holds too many keeps new files out, but a lookup of what is known already waits for no room."""
    mounted = mount("timeout=0,inodes=1024")
    for i in range(1030):
        write_file(f"{mounted.data}/f{i}", b"")
    fds = []
    with contextlib.suppress(OSError):
        for i in range(1030):
            fds.append(os.open(f"{mounted.mnt}/f{i}", os.O_PATH))
    began = time.monotonic()
    for i in range(10):
        os.stat(f"{mounted.mnt}/f{i}")
    took = time.monotonic() - began
    for fd in fds:
        os.close(fd)
    print(f"{len(fds)} held, ten lookups of them in {took:.3f} s")
    assert len(fds) > 900 and took < 2


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


# --- a hostile tree -------------------------------------------------------------------------------------------------

@pytest.mark.limit(120)
def test_a_tree_that_is_swapped_meanwhile(small, workdir):
    """Folders that become symbolic links to somewhere else, or are moved out and in: nothing outside of the data
    directory is listed, read or changed."""
    outside = os.path.join(workdir, "outside")
    os.makedirs(f"{outside}/deep")
    for folder in (outside, f"{outside}/deep"):
        write_file(f"{folder}/f", b"SECRET of the outside")
    os.mkdir(f"{small.data}/a")
    for name in ("a/x", "a/x/deep"):
        os.mkdir(f"{small.data}/{name}")
        write_file(f"{small.data}/{name}/f", b"inside")
    os.symlink(outside, f"{small.data}/link")
    before = {path: os.stat(path) for path in (outside, f"{outside}/f", f"{outside}/deep", f"{outside}/deep/f")}
    stop, swaps = threading.Event(), [0]

    def swap():
        exchange = 2  # RENAME_EXCHANGE
        one, two = f"{small.data}/a/x".encode(), f"{small.data}/link".encode()
        while not stop.is_set():
            assert LIBC.renameat2(-100, one, -100, two, exchange) == 0
            swaps[0] += 1
            if swaps[0] % 3 == 0:
                os.rename(f"{small.data}/a", f"{workdir}/moved")
                os.rename(f"{workdir}/moved", f"{small.data}/a")

    held = os.open(f"{small.mnt}/a", os.O_RDONLY | os.O_DIRECTORY)
    thread = threading.Thread(target=swap)
    thread.start()
    rng, seen, answers = make_random(), set(), {}
    steps = [
        lambda path, i: seen.add(read_file(f"{path}/f")), lambda path, i: os.listdir(path),
        lambda path, i: write_file(f"{path}/new{i}", b"inside"), lambda path, i: os.mkdir(f"{path}/made{i}"),
        lambda path, i: os.chmod(f"{path}/f", 0o777), lambda path, i: os.utime(f"{path}/f"),
        lambda path, i: os.rename(f"{path}/f", f"{path}/g"), lambda path, i: os.rename(f"{path}/g", f"{path}/f"),
        lambda path, i: os.link(f"{path}/f", f"{path}/linked{i}"), lambda path, i: os.truncate(f"{path}/f", 6),
        lambda path, i: os.unlink(f"{path}/linked{i - 1}"), lambda path, i: os.symlink("f", f"{path}/s{i}"),
    ]
    # The kernel that resolves the names must not follow the link itself: the work is done in a root of its own.
    inside = os.fork()
    if inside == 0:
        code = 1
        try:
            os.chroot(small.mnt)
            os.chdir("/")
            end = time.monotonic() + so_much(12, 2)
            i = 0
            while time.monotonic() < end:
                i += 1
                path = rng.choice(["/a/x", "/a/x/deep", "/link", "/link/deep"])
                answer = error_of(rng.choice(steps), path, i)
                answers[answer] = answers.get(answer, 0) + 1
            print("steps", i, "answers", answers, "read", seen, flush=True)
            code = 0 if seen <= {b"inside", b""} and answers.get(0, 0) > 100 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(inside, 0)
    stop.set()
    thread.join()
    os.close(held)
    print(swaps[0], "swaps")
    assert status == 0 and swaps[0] > 100
    for path, found in before.items():
        now = os.stat(path)
        for field in ("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_nlink", "st_uid", "st_ino"):
            assert getattr(now, field) == getattr(found, field), (path, field)
    assert sorted(os.listdir(outside)) == ["deep", "f"] and os.listdir(f"{outside}/deep") == ["f"]


# --- NFS ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("remember", [65536, 1, 0])
def test_handles_of_what_the_kernel_has_forgotten(mount, remember):
    """NFS keeps file handles for as long as it likes. They lead to what the daemon remembers, else to ESTALE, and never
    to another file."""
    mounted = mount(f"timeout=0,remember={remember}")
    os.makedirs(f"{mounted.mnt}/a/b/c")
    write_file(f"{mounted.mnt}/a/b/c/f", b"found")
    handles = {name: Handle(f"{mounted.mnt}/{name}") for name in ("a", "a/b", "a/b/c", "a/b/c/f")}
    known = statistics(mounted.mnt)["inodes"]["known"]
    # A name that is gone for a moment makes the kernel forget what is below it.
    os.rename(f"{mounted.data}/a", f"{mounted.data}/aside")
    assert error_of(os.stat, f"{mounted.mnt}/a") == errno.ENOENT
    os.rename(f"{mounted.data}/aside", f"{mounted.data}/a")
    if not remember:
        helpers.wait_until(lambda: statistics(mounted.mnt)["inodes"]["known"] < known - 3, what="they are forgotten")
        for name, handle in handles.items():
            assert error_of(handle.open, mounted.mnt) == errno.ESTALE, name
        return
    if remember == 1:  # in each of the table's parts
        errors = [error_of(lambda h: os.close(h.open(mounted.mnt, os.O_PATH)), handle) for handle in handles.values()]
        assert 0 in errors and set(errors) <= {0, errno.ESTALE}
        return
    for _ in range(2):  # the file first: its folders must be found by ".." of each other
        fd = handles["a/b/c"].open(mounted.mnt, os.O_RDONLY | os.O_DIRECTORY)
        assert os.listdir(fd) == ["f"]
        assert os.readlink(f"/proc/self/fd/{fd}") == f"{mounted.mnt}/a/b/c"
        os.close(fd)
        fd = handles["a/b/c/f"].open(mounted.mnt)
        assert os.read(fd, 100) == b"found"
        os.close(fd)
    os.rename(f"{mounted.data}/a/b", f"{mounted.data}/moved")
    assert error_of(os.stat, f"{mounted.mnt}/a/b") == errno.ENOENT
    fd = handles["a/b/c"].open(mounted.mnt, os.O_RDONLY | os.O_DIRECTORY)
    assert os.stat("..", dir_fd=fd).st_ino == os.stat(f"{mounted.mnt}/moved").st_ino
    os.close(fd)
    os.unlink(f"{mounted.data}/moved/c/f")
    write_file(f"{mounted.data}/moved/c/g", b"another")
    assert error_of(handles["a/b/c/f"].open, mounted.mnt) == errno.ESTALE


@pytest.mark.parametrize("what", ["statistics", "one of them"])
def test_handles_stay_however_often_others_are_used(mount, what):
    """Who looks at the mount (gaiactl stat), or has the kernel come back to a file again and again, costs no other handle
    its place: it takes more files for that."""
    mounted = mount("timeout=0,remember=1600")  # 100 in each of the table's parts
    os.mkdir(f"{mounted.mnt}/a")
    handles = []
    for i in range(100):
        write_file(f"{mounted.mnt}/a/{i}", b"x")
        handles.append(Handle(f"{mounted.mnt}/a/{i}"))

    def forget():
        os.rename(f"{mounted.data}/a", f"{mounted.data}/aside")
        assert error_of(os.stat, f"{mounted.mnt}/a") == errno.ENOENT
        os.rename(f"{mounted.data}/aside", f"{mounted.data}/a")

    forget()
    helpers.wait_until(lambda: statistics(mounted.mnt)["kernel"]["inodes"] < 3, what="they are forgotten")
    for _ in range(200):
        if what == "statistics":
            statistics(mounted.mnt)
        else:
            os.stat(f"{mounted.mnt}/a/7")
            forget()
    assert [error_of(lambda h: os.close(h.open(mounted.mnt)), handle) for handle in handles] == [0] * 100


def test_a_handle_does_not_lead_out_of_the_data_directory(mount, workdir):
    """A folder that somebody has moved out is still itself, but its parent is not to be had."""
    mounted = mount("timeout=0")
    os.makedirs(f"{mounted.mnt}/a/b")
    handle = Handle(f"{mounted.mnt}/a/b")
    os.mkdir(f"{workdir}/outside")
    os.rename(f"{mounted.data}/a/b", f"{workdir}/outside/b")
    assert error_of(os.stat, f"{mounted.mnt}/a/b") == errno.ENOENT
    assert error_of(handle.open, mounted.mnt, os.O_RDONLY | os.O_DIRECTORY) == errno.ESTALE
    assert os.listdir(f"{mounted.mnt}/a") == []
