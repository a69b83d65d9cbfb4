# SPDX-License-Identifier: Apache-2.0
"""An inode costs no descriptor: large trees under a small limit, and what happens at the limit."""
import contextlib
import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import threading
import time

import pytest

import helpers
from conftest import not_in_the_gate
from descriptors import churn, limit_of, table_of, with_descriptors
from helpers import (HELLO, MAP, PAGE, STAT, Raw, agents, descriptors, error_of, get_token, make_random, memory_kib,  # noqa: F401
                     message, read_file, statistics, userfaultfd, write_file)

SANITIZED = bool(os.environ.get("GAIAFS_SANITIZE"))

# --- many inodes, few descriptors -----------------------------------------------------------------------------------

@pytest.mark.limit(240)
@pytest.mark.parametrize("limit, folders, files", [(256, 40, 50), pytest.param(1024, 200, 250, marks=not_in_the_gate)])
def test_a_tree_of_more_inodes_than_descriptors(mount, limit, folders, files):
    mounted = mount("timeout=60", **with_descriptors(limit))
    assert limit_of(mounted) == limit
    for d in range(folders):
        os.mkdir(f"{mounted.mnt}/d{d}")
        for i in range(files):
            write_file(f"{mounted.mnt}/d{d}/f{i}", b"%d/%d" % (d, i))
    known = statistics(mounted.mnt)["inodes"]
    print(known, descriptors(mounted.pid))
    if known["known"] < folders * files:
        print("the kernel has forgotten some meanwhile")
    assert known["descriptors_cached"] <= limit // 4 + 16 and known["descriptors_kept"] <= 1
    assert descriptors(mounted.pid) < limit * 3 // 4
    done = subprocess.run(["ls", "-lR", mounted.mnt], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("-") for line in done.stdout.splitlines()) == folders * files
    for d in range(folders):
        for i in range(files):
            assert read_file(f"{mounted.mnt}/d{d}/f{i}") == b"%d/%d" % (d, i)
            os.chmod(f"{mounted.mnt}/d{d}/f{i}", 0o600)
    assert descriptors(mounted.pid) < limit * 3 // 4
    assert stat.S_IMODE(os.stat(f"{mounted.data}/d1/f1").st_mode) == 0o600
    shutil.rmtree(f"{mounted.mnt}/d1")
    assert not os.path.exists(f"{mounted.data}/d1")


@pytest.mark.parametrize("limit", [256, 16384])
def test_the_table_of_descriptors_is_made_before_there_are_threads(mount, limit):
    """As the kernel lets a process with threads wait for milliseconds when it grows."""
    mounted = mount(**with_descriptors(limit))
    assert table_of(mounted.pid) == min(limit, 4096)


@pytest.mark.parametrize("limit", range(100, 104))
def test_what_fails_for_want_of_descriptors_has_made_nothing(mount, limit):
    """Else who tries again to make a file that must not be there (O_EXCL) never succeeds."""
    mounted = mount("timeout=0", **with_descriptors(limit))
    folder, below, opened = f"{mounted.mnt}/d", f"{mounted.data}/d", []
    os.mkdir(folder)

    def make(name):
        opened.append(os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL | os.O_RDWR))

    try:
        for i in range(200):
            if error_of(make, f"f{i}") == errno.EMFILE:
                break
        assert not os.path.exists(f"{below}/f{i}")
        for free in range(1, 5):  # how many are left is the daemon's affair
            for name in "one", "two":
                if error_of(make, f"{name}{free}"):
                    assert not os.path.exists(f"{below}/{name}{free}"), free
                if error_of(os.link, f"{folder}/f0", f"{folder}/{name}link{free}"):
                    assert not os.path.exists(f"{below}/{name}link{free}"), free
            os.close(opened.pop())
        for fd in opened[-5:]:
            os.close(fd)
        del opened[-5:]
        helpers.wait_until(lambda: error_of(make, f"f{i}") == 0)
    finally:
        for fd in opened:
            os.close(fd)


def test_a_file_that_could_not_be_opened_is_not_there(mount, workdir, monkeypatch):
    """The same at each of the descriptors that this takes, whichever is the first that can't be had."""
    plan, env = helpers.daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    mounted, errors = mount("timeout=0", env=env), []
    for number in range(1, 4):
        name = f"f{number}"
        plan.arm(helpers.ROWS.index("openat64"), errno.EMFILE, number, True)
        errors.append(error_of(lambda: os.close(os.open(f"{mounted.mnt}/{name}", os.O_CREAT | os.O_EXCL | os.O_RDWR))))
        plan.row = -1
        assert os.path.exists(f"{mounted.data}/{name}") == (errors[-1] == 0), errors
    assert errors == [errno.EMFILE, errno.EMFILE, 0]  # to make it, and to know it by


def test_a_link_that_was_made_is_told_so(mount, workdir, monkeypatch):
    """Though its name can't be looked up for want of descriptors."""
    plan, env = helpers.daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    mounted, errors = mount("timeout=0", env=env), []
    write_file(f"{mounted.mnt}/f", b"")
    for number in range(1, 4):
        plan.arm(helpers.ROWS.index("syscall"), errno.EMFILE, number, True)
        errors.append(error_of(os.link, f"{mounted.mnt}/f", f"{mounted.mnt}/link{number}"))
        plan.row = -1
        assert plan.landed and os.path.exists(f"{mounted.data}/link{number}") == (errors[-1] == 0), errors
    assert errors == [errno.EMFILE, errno.EMFILE, 0]  # to look for both names; and what was made is looked for once more


def test_what_others_have_written_to_a_file_that_could_not_be_opened_stays(mount, workdir, monkeypatch):
    """Behind the mount, or through that of another node, before the file is taken away again."""
    plan, env = helpers.daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    mounted = mount("timeout=0", env=env, **with_descriptors(100))
    opened, errors, written = [], {}, []

    def make(name):
        errors[name] = error_of(lambda: opened.append(os.open(f"{mounted.mnt}/{name}", os.O_CREAT | os.O_RDWR)))

    try:
        while errno.EMFILE not in errors.values():
            make(f"f{len(opened)}")
        plan.arm_wait(helpers.ALL_ROWS.index("statx"), 200, 1, True)
        for name in "aAbBcCdD":  # how many are left is the daemon's affair
            if name.islower():
                os.close(opened.pop())
            thread = threading.Thread(target=make, args=(name,))
            thread.start()
            while thread.is_alive():
                if os.path.exists(f"{mounted.data}/{name}") and name not in written:
                    write_file(f"{mounted.data}/{name}", b"theirs")
                    written.append(name)
                time.sleep(0.01)
        plan.row = -1
        assert any(errors[name] for name in written)
        for name in written:
            assert read_file(f"{mounted.data}/{name}") == b"theirs"
    finally:
        for fd in opened:
            os.close(fd)


def test_more_open_files_than_descriptors(mount):
    """Who opens one too many is told so, nothing else breaks, and what was closed is there again."""
    mounted = mount(**with_descriptors(256))
    for i in range(400):
        write_file(f"{mounted.data}/f{i}", b"%d" % i)
    fds, refused = [], None
    for i in range(400):
        try:
            fds.append(os.open(f"{mounted.mnt}/f{i}", os.O_RDONLY))
        except OSError as error:
            refused = error.errno
            break
    print(len(fds), "were opened")
    assert refused in (errno.EMFILE, errno.ENFILE) and len(fds) > 100
    for i, fd in enumerate(fds):
        assert os.read(fd, 10) == b"%d" % i
        os.close(fd)
    helpers.wait_until(lambda: error_of(read_file, f"{mounted.mnt}/f399") == 0)
    assert read_file(f"{mounted.mnt}/f399") == b"399"


def settled_descriptors(mounted):
    """Those of the daemon that are no cache, once they have been as many for a while."""
    count, since = None, time.monotonic()
    while time.monotonic() - since < 0.2:
        before, count = count, descriptors(mounted.pid) - statistics(mounted.mnt)["inodes"]["descriptors_cached"]
        if count != before:
            since = time.monotonic()
        time.sleep(0.02)
    return count


@pytest.mark.parametrize("options, when_open", [("passthrough=off", [0, 0, 0]), ("passthrough=on", [0, 1, 1])])
def test_what_an_open_file_costs(mount, options, when_open):
    """One descriptor for each open, and one for a file that is written to, or passed through to who may write it."""
    m = mount(f"{options},timeout=60")
    count = 20
    if when_open[1] and not statistics(m.mnt)["passthrough"]:
        pytest.skip(f"no passthrough with Linux {os.uname().release}")
    for i in range(count):
        write_file(f"{m.data}/f{i}", b"bytes")
        os.stat(f"{m.mnt}/f{i}")
    for flags, more in zip((os.O_RDONLY, os.O_WRONLY, os.O_RDWR), when_open):
        before = settled_descriptors(m)  # closes of the last round end by themselves
        fds = [os.open(f"{m.mnt}/f{i}", flags) for i in range(count)]
        opened = settled_descriptors(m)
        for fd in fds if flags else ():
            os.write(fd, b"more")
        written = settled_descriptors(m)
        for fd in fds:
            os.close(fd)
        assert abs(opened - before - count * (1 + more)) <= 2, (flags, before, opened)
        assert abs(written - before - count * (1 + bool(flags))) <= 2, (flags, before, written)
        helpers.wait_until(lambda was=before: settled_descriptors(m) <= was + 2)


def descriptors_for_files(mounted, below=1 << 20):
    """How many the daemon keeps for inodes."""
    count = 0
    for fd in os.listdir(f"/proc/{mounted.pid}/fdinfo"):
        with contextlib.suppress(OSError), open(f"/proc/{mounted.pid}/fdinfo/{fd}") as file:
            flags = int(next(line.split()[1] for line in file if line.startswith("flags")), 8)
            count += bool(flags & os.O_PATH and int(fd) < below)
    return count


# The first mapping of a file on a device opens this many in the daemon (socket, events, faults, frames, state and three
# of the file) and a few for a moment: with no more than that to give back it is EMFILE by right.
NEEDED_BY_A_DEVICE = 8


@contextlib.contextmanager
def no_free_descriptor(mounted):
    """As long as it lasts the daemon gets no descriptor unless it closes one of those that it keeps for inodes."""
    before = resource.prlimit(mounted.pid, resource.RLIMIT_NOFILE)
    held = []
    for i in range(200):  # a limit is one of numbers: below it there must be no hole
        for name in ("f", "d"):  # so that nothing but the operation itself has to open something
            os.utime(f"{mounted.mnt}/{name}")
        used = {int(name) for name in os.listdir(f"/proc/{mounted.pid}/fd")}
        # The first that is not there is what accept4() has set aside.
        free = [number for number in range(before[0]) if number not in used][1]
        if descriptors_for_files(mounted, free) >= 2 * NEEDED_BY_A_DEVICE:
            break
        held.append(os.open(f"{mounted.mnt}/churn/{i}", os.O_RDONLY))
    print(len(held), "held,", free, "is free,", descriptors_for_files(mounted, free), "below")
    resource.prlimit(mounted.pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(mounted.pid, resource.RLIMIT_NOFILE, before)
        for fd in held:
            os.close(fd)


def make_without_a_name(m):
    os.close(os.open(m.mnt, os.O_TMPFILE | os.O_RDWR, 0o600))


def map_on_a_device(m):
    device = helpers.Agent()
    try:
        device.do(f"d = gaia.Device('soft:0'); fd = os.open('{m.mnt}/f', os.O_RDWR); p = d.mmap(fd, 4096, 3)")
        assert device("p[1]") == ord("y")
    finally:
        device.kill()


NEEDS_A_DESCRIPTOR = {
    "open": lambda m: read_file(f"{m.mnt}/f"),
    "open of a folder": lambda m: os.listdir(f"{m.mnt}/d"),
    "create": lambda m: write_file(f"{m.mnt}/new", b"x"),
    "create in a folder": lambda m: write_file(f"{m.mnt}/d/new", b"x"),
    "a file without a name": make_without_a_name,
    "lookup": lambda m: os.stat(f"{m.mnt}/g"),
    "mkdir": lambda m: os.mkdir(f"{m.mnt}/d/e"),
    "link": lambda m: os.link(f"{m.mnt}/f", f"{m.mnt}/d/l"),
    "rename": lambda m: os.rename(f"{m.mnt}/f", f"{m.mnt}/g"),
    "unlink": lambda m: os.unlink(f"{m.mnt}/f"),
    "a device": map_on_a_device,
    "gaiactl": lambda m: statistics(m.mnt),
}


@pytest.mark.parametrize("what", NEEDS_A_DESCRIPTOR)
def test_descriptors_that_nobody_uses_are_given_back(mount, what):
    """Those that the daemon keeps open for the next who needs them are no reason for EMFILE."""
    m = mount("timeout=60", **with_descriptors(256))
    write_file(f"{m.data}/f", b"xyz")
    write_file(f"{m.data}/g", b"ghi")
    os.mkdir(f"{m.data}/d")
    churn(m)
    with no_free_descriptor(m):
        kept = descriptors_for_files(m)
        NEEDS_A_DESCRIPTOR[what](m)
        assert descriptors_for_files(m) < kept, "there was a free descriptor"


def test_a_client_sends_a_descriptor_for_which_there_is_no_room(mount):
    """It is told so, and the next time there is: of those that nobody uses some are given back."""
    m = mount("timeout=60", **with_descriptors(256))
    write_file(f"{m.data}/f", b"xyz")
    os.mkdir(f"{m.data}/d")
    fd, faults = os.open(f"{m.mnt}/f", os.O_RDWR), userfaultfd()
    raw = Raw(get_token(fd)[0])
    assert raw.call(message(STAT, device=b"soft:0")) == 0  # its thread is there
    churn(m)
    with no_free_descriptor(m):
        assert raw.call(message(HELLO), [faults]) == errno.EMFILE
        assert raw.call(message(HELLO), [faults]) == 0
        assert raw.call(message(MAP, bytes=4096, prot=3, token=get_token(fd)[1])) == 0
    raw.close()
    os.close(fd)
    os.close(faults)


TRY_WITH_FEW = """
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, limit[1]))
held, codes, map = [], [], None
with contextlib.suppress(OSError):
    while True:
        held.append(os.dup(0))
while map is None:
    try:
        map = device.mmap(fd, PAGE)
    except OSError as error:
        codes.append(error.errno)
        os.close(held.pop())
"""


@pytest.mark.parametrize("before", [False, True])
def test_a_program_that_is_short_of_descriptors(mount, agents, before):
    """EMFILE, and not that the daemon is gone: what is mapped already goes on, and so does the next call."""
    m = mount()
    write_file(f"{m.mnt}/f", b"xyz")
    child = agents()
    child.do("import contextlib, resource\ndevice = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR)", path=f"{m.mnt}/f")
    if before:
        child.do("first = device.mmap(fd, PAGE, 3)\nfirst[0] = 1")
    child.do(TRY_WITH_FEW)
    codes = child("codes")
    print(codes)
    assert len(codes) > 2 and set(codes) == {errno.EMFILE}
    if before:
        child.do("first[1] = 2\nfirst.release()")
        assert read_file(f"{m.mnt}/f") == b"\1\2z"
    assert child("map[2]") == ord("z")
    child.do("map.unmap()")
    child.end()


def test_the_end_of_a_daemon_without_a_free_descriptor(mount):
    mounted = mount(**with_descriptors(256))
    fds = []
    for i in range(400):
        write_file(f"{mounted.data}/f{i}", b"")
        with contextlib.suppress(OSError):
            fds.append(os.open(f"{mounted.mnt}/f{i}", os.O_RDONLY))
    assert len(fds) < 400
    os.kill(mounted.pid, signal.SIGTERM)
    try:
        assert mounted.proc.wait(20) == 0, mounted.log_text()
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):  # ENOTCONN
                os.close(fd)


# --- a tree of any size ---------------------------------------------------------------------------------------------

INODES = int(os.environ.get("GAIA_TEST_INODES", 30_000))


@not_in_the_gate
@pytest.mark.limit(120 + INODES // 1000)
def test_a_tree_of_any_size(mount):
    """All of it is walked, each file once, with 1,024 descriptors; and found again at random."""
    mounted = mount("timeout=60", **with_descriptors(1024))
    a_folder, rng = 1000, make_random()
    for d in range(INODES // a_folder):
        os.mkdir(f"{mounted.data}/d{d}")
        for i in range(a_folder):
            os.mknod(f"{mounted.data}/d{d}/f{i}")
    before, began, seen, most, known = memory_kib(mounted.pid, "VmRSS"), time.monotonic(), 0, 0, 0
    for d in range(INODES // a_folder):
        with os.scandir(f"{mounted.mnt}/d{d}") as entries:
            numbers = {entry.stat(follow_symlinks=False).st_ino for entry in entries}
        assert len(numbers) == a_folder
        seen += len(numbers)
        if d % 100 == 0:
            most = max(most, descriptors(mounted.pid))
            known = max(known, statistics(mounted.mnt)["inodes"]["known"])
    took = time.monotonic() - began
    known = max(known, statistics(mounted.mnt)["inodes"]["known"])
    grown = memory_kib(mounted.pid, "VmRSS") - before
    print(f"{seen} inodes in {took:.1f} s, {known} of them known at a time, {grown} KiB, {grown * 1024 / known:.0f} bytes each, "
          f"at most {most} descriptors")
    assert seen == INODES // a_folder * a_folder and most < 1024 * 3 // 4
    if known >= 20_000 and not SANITIZED:
        assert grown * 1024 <= known * 192, "the default of inodes= reckons with so much"
    for _ in range(min(INODES, 20_000)):
        path = f"d{rng.randrange(INODES // a_folder)}/f{rng.randrange(a_folder)}"
        assert os.stat(f"{mounted.mnt}/{path}").st_ino == os.stat(f"{mounted.data}/{path}").st_ino
        assert read_file(f"{mounted.mnt}/{path}") == b""
    assert descriptors(mounted.pid) < 1024 * 3 // 4


@pytest.fixture
def held():
    """A list of descriptors, which are closed in the end."""
    fds = []
    yield fds
    os.chdir("/")
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def test_many_folders_that_are_open_and_deleted(mount, held):
    """Each is a descriptor of the daemon's, and a second one only as long as there are enough. Who has one in another way
    (a working directory) has it still when it is closed."""
    m = mount("timeout=0", **with_descriptors(256))
    for i in range(190):
        os.mkdir(f"{m.mnt}/d{i}")
        held.append(os.open(f"{m.mnt}/d{i}", os.O_RDONLY | os.O_DIRECTORY))
    held += [os.open(f"{m.mnt}/d{i}", os.O_PATH) for i in range(190)]
    for i in range(190):
        os.rmdir(f"{m.mnt}/d{i}")
        os.mkdir(f"{m.mnt}/other")
        os.rmdir(f"{m.mnt}/other")
    for fd in held[:190]:
        assert os.listdir(fd) == [] and os.fstat(fd).st_nlink == 0
    for fd in held[:4]:  # so many are kept for sure, however they are spread
        os.close(fd)
    churn(m)
    for fd in held[190:]:
        os.fchdir(fd)


# --- many files on devices, few descriptors --------------------------------------------------------------------------

@pytest.mark.parametrize("options", ["timeout=60", "timeout=0,passthrough=on"])
def test_more_files_on_devices_than_descriptors(mount, agents, options):
    """One after the other. What was released stays, of those that are let go, too; those that are in use are not."""
    m = mount(options, **with_descriptors(256))
    program, count = agents(), 400
    os.mkdir(f"{m.mnt}/d")
    for i in range(count):
        write_file(f"{m.mnt}/d/f{i}" if i % 2 else f"{m.mnt}/f{i}", b"%08d" % i * 512)
    program.do("""
dev, kept, wrong = gaia.Device(), {}, []
def visit(path, i, keep):
    fd = os.open(path, os.O_RDWR)
    map = dev.mmap(fd, PAGE)
    wrong.extend([i] * (map[:8] != b"%08d" % i))
    map[8] = i % 256
    if keep:
        kept[i] = map  # not released yet
    else:
        map.release()
        map.unmap()
    os.close(fd)
""")
    most = 0
    for i in range(count):
        program.do(f"visit({f'{m.mnt}/d/f{i}' if i % 2 else f'{m.mnt}/f{i}'!r}, {i}, {i % 40 == 7})")
        most = max(most, descriptors(m.pid))
    assert program("wrong") == [] and most < 256
    for i in range(count):
        path = f"{m.mnt}/d/f{i}" if i % 2 else f"{m.mnt}/f{i}"
        byte = b"0" if i % 40 == 7 else bytes([i % 256])
        content = bytearray(b"%08d" % i * 512)
        content[8:9] = byte
        assert read_file(path) == content, i
    program.do("for map in kept.values():\n    map.release()")
    for i in range(7, count, 40):
        assert read_file(f"{m.mnt}/d/f{i}")[8] == i % 256
    assert program("[map[:8] == b'%08d' % i for i, map in kept.items()]") == [True] * 10


def test_files_on_many_devices(mount, agents):
    """Each device costs a file two more descriptors. Those of a dozen files that nobody uses are not all that there are."""
    m, program = mount("timeout=60", **with_descriptors(256)), agents()
    for i in range(60):
        write_file(f"{m.mnt}/f{i}", b"x" * PAGE)
    program.do("""
devices = [gaia.Device(f"soft:{number}") for number in range(8)]
for i in range(12):
    fd = os.open(f"{mnt}/f{i}", os.O_RDWR)
    for device in devices:
        map = device.mmap(fd, PAGE)
        assert map[0] == ord("x")
        map.unmap()
    os.close(fd)
""", mnt=m.mnt)
    with contextlib.ExitStack() as files:
        for i in range(60):
            files.enter_context(open(f"{m.mnt}/f{i}", "rb"))


# A device maps each of count files, and each has its number in it.
MAP_EACH = """
device = gaia.Device()
for i in range(count):
    fd = os.open(f"{mnt}/f{i}", os.O_RDWR)
    map = device.mmap(fd, 8)
    assert map[:8] == b"%08d" % i, i
    map.unmap()
    os.close(fd)
"""


@not_in_the_gate
def test_more_files_on_devices_than_inodes(mount, agents):
    """Of those that nobody uses a device has a page each: they are no reason to find no other file."""
    m, program, count = mount("inodes=1024,timeout=60"), agents(), 1100
    for i in range(count):
        write_file(f"{m.data}/f{i}", b"%08d" % i)
    program.do(MAP_EACH, mnt=m.mnt, count=count)
    assert statistics(m.mnt)["inodes"]["known"] < 1024
    for i in range(count):
        assert read_file(f"{m.mnt}/f{i}") == b"%08d" % i


def test_files_that_stay_known_do_not_keep_the_others(mount, agents):
    """Twenty are let go in vain, as somebody has them (not open, O_PATH): they are not all that is tried, time and again."""
    m, program, count = mount("timeout=60", **with_descriptors(256)), agents(), 120
    for i in range(count):
        write_file(f"{m.data}/f{i}", b"%08d" % i)
    with contextlib.ExitStack() as held:
        for i in range(20):
            held.callback(os.close, os.open(f"{m.mnt}/f{i}", os.O_PATH))
        program.do(MAP_EACH, mnt=m.mnt, count=count)


# It lists a folder into memory that never comes: the kernel has that folder's lock as long.
LISTS_FOR_EVER = """
faults, memory = userfaultfd(), mmap.mmap(-1, PAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
fcntl.ioctl(faults, 3 << 30 | 32 << 16 | 0xAA << 8, struct.pack("=QQQQ", address, PAGE, 1, 0))
folder, libc = os.open(path, os.O_RDONLY), ctypes.CDLL(None)
threading.Thread(target=lambda: libc.syscall(217, folder, ctypes.c_void_p(address), PAGE), daemon=True).start()
assert select.select([faults], [], [], 20)[0]
"""


@pytest.mark.skipif(not helpers.kernel_at_least(6, 18), reason="the kernel waits for the lock of a folder to forget a file")
def test_files_are_let_go_beside_one_who_lists_their_folder_for_ever(mount, agents):
    """Nor does the end of the mount wait for him."""
    m, program, lister, count = mount("timeout=60", **with_descriptors(256)), agents(), agents(), 120
    for i in range(count):
        write_file(f"{m.data}/f{i}", b"%08d" % i)
    lister.do(LISTS_FOR_EVER, path=m.mnt)
    program.start(MAP_EACH, mnt=m.mnt, count=count)
    try:
        assert not program.busy(20), "nobody finds a file any more"
        program.finish()
        m.proc.terminate()
        m.proc.wait(20)
    finally:
        lister.kill()


def test_files_that_are_let_go_while_they_are_used(mount, agents):
    """Several programs map the same many files at the same time, with too few descriptors for all of them."""
    m = mount("timeout=60", **with_descriptors(256))
    programs, rng = [agents() for _ in range(3)], make_random("let go")
    for i in range(120):
        write_file(f"{m.mnt}/f{i}", b"0" * PAGE)
    code = """
import random
rng, dev = random.Random(seed), gaia.Device()
for turn in range(300):
    i = rng.randrange(120)
    fd = os.open(f"{mnt}/f{i}", os.O_RDWR)
    map = dev.mmap(fd, PAGE)
    before = map[me]
    map[me] = before + 1 if before != ord("0") else 1  # a byte of one's own
    counts[i] = map[me]
    map.release()
    map.unmap()
    os.close(fd)
"""
    for me, program in enumerate(programs):
        program.do("counts = {}")
        program.start(code, me=me, mnt=m.mnt, seed=rng.randrange(2**32))
    for program in programs:
        program.finish()
    for me, program in enumerate(programs):
        for i, value in program("counts").items():
            assert read_file(f"{m.mnt}/f{i}")[me] == value, (me, i)
