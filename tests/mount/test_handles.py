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
from conftest import so_much
from descriptors import churn, small  # noqa: F401
from helpers import descriptors, error_of, kernel_at_least, make_random, read_file, statistics, wait_until, write_file

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
