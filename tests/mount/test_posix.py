# SPDX-License-Identifier: Apache-2.0
"""POSIX through the mount: every operation, and random sequences of them against a plain directory as the oracle."""
import ctypes
import errno
import mmap
import os
import random
import re
import select
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

NOBODY = 65534
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16
AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def renameat2(old, new, flags):
    check(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def fallocate(fd, mode, offset, length):
    check(libc.fallocate(fd, mode, offset, length))


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def write_file(path, data):
    with open(path, "wb") as file:
        file.write(data)


def as_user(code, *args, uid=NOBODY, gid=NOBODY, groups=()):
    """Runs Python code as another user in a process of its own; sys.argv[1:] is args."""
    return subprocess.run([sys.executable, "-B", "-c", "import os, sys, errno\n" + code, *map(str, args)], user=uid,
                          group=gid, extra_groups=list(groups), capture_output=True, text=True)


# --- the oracle -----------------------------------------------------------------------------------------------------

class World:
    """One of the two trees that get the same operations. A result is a value, or the name of an error."""

    def __init__(self, root):
        self.root = root
        self.fds = {}

    def path(self, name):
        return os.path.join(self.root, name)

    def do(self, op, *args):
        try:
            return getattr(self, op)(*args)
        except OSError as error:
            return errno.errorcode.get(error.errno, str(error.errno))
        except ValueError:
            return "EBADF"  # Python's own check of a descriptor

    def open(self, key, name, flags, mode):
        if key in self.fds:
            os.close(self.fds.pop(key))
        self.fds[key] = os.open(self.path(name), flags, mode)

    def close(self, key):
        os.close(self.fds.pop(key, -1))

    def close_all(self):
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()

    def pwrite(self, key, data, offset):
        return os.pwrite(self.fds.get(key, -1), data, offset)

    def write(self, key, data):
        return os.write(self.fds.get(key, -1), data)

    def pread(self, key, length, offset):
        return os.pread(self.fds.get(key, -1), length, offset)

    def seek(self, key, offset, whence):
        if stat.S_ISDIR(os.fstat(self.fds.get(key, -1)).st_mode):
            return "directory"  # positions in one are the filesystem's own
        return os.lseek(self.fds.get(key, -1), offset, whence)

    def seek_hole(self, key, offset, whence):
        """Where data and holes are is the filesystem's choice (it depends on what is in memory), so what is checked is
        what must hold: what is skipped is zero, and the answer lies within the file."""
        fd = self.fds.get(key, -1)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return "directory"
        size = os.fstat(fd).st_size
        position = os.lseek(fd, 0, os.SEEK_CUR)
        try:
            found = os.lseek(fd, offset, whence)
            os.lseek(fd, position, os.SEEK_SET)  # what is found may differ: later operations must not
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            found = size  # no data from there on
            if offset >= size:
                return "beyond"
            assert whence == os.SEEK_DATA
        assert offset <= found <= size
        if whence == os.SEEK_DATA:
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                assert not any(os.pread(file.fileno(), found - offset, offset))
        return "within"

    def ftruncate(self, key, size):
        os.ftruncate(self.fds.get(key, -1), size)

    def fallocate(self, key, mode, offset, length):
        fallocate(self.fds.get(key, -1), mode, offset, length)

    def copy_range(self, key_in, key_out, length, offset_in, offset_out):
        fd_in, fd_out = self.fds.get(key_in, -1), self.fds.get(key_out, -1)
        return os.copy_file_range(fd_in, fd_out, length, offset_in, offset_out)

    def fsync(self, key, data_only):
        (os.fdatasync if data_only else os.fsync)(self.fds.get(key, -1))

    def fstat(self, key):
        return self.summary(os.fstat(self.fds.get(key, -1)))

    def store(self, key, offset, data):
        """Through a mapping; msync, because holes are compared."""
        fd = self.fds.get(key, -1)
        size = os.fstat(fd).st_size
        if offset + len(data) > size:
            return "beyond"
        with mmap.mmap(fd, size) as mapping:
            mapping[offset:offset + len(data)] = data
            mapping.flush()
        return "stored"

    def load(self, key):
        fd = self.fds.get(key, -1)
        size = os.fstat(fd).st_size
        if size == 0:
            return b""
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapping:
            return mapping[:]

    def truncate(self, name, size):
        os.truncate(self.path(name), size)

    def unlink(self, name):
        os.unlink(self.path(name))

    def mkdir(self, name, mode):
        os.mkdir(self.path(name), mode)

    def rmdir(self, name):
        os.rmdir(self.path(name))

    def rename(self, old, new, flags):
        renameat2(self.path(old), self.path(new), flags)

    def link(self, old, new):
        os.link(self.path(old), self.path(new), follow_symlinks=False)

    def symlink(self, target, name):
        os.symlink(target, self.path(name))

    def readlink(self, name):
        return os.readlink(self.path(name))

    def mknod(self, name, mode, device):
        os.mknod(self.path(name), mode, device)

    def chmod(self, name, mode):
        os.chmod(self.path(name), mode)

    def chown(self, name, uid, gid):
        os.chown(self.path(name), uid, gid, follow_symlinks=False)

    def utime(self, name, atime_ns, mtime_ns):
        os.utime(self.path(name), ns=(atime_ns, mtime_ns), follow_symlinks=False)
        return os.lstat(self.path(name)).st_mtime_ns

    def setxattr(self, name, key, value, flags):
        os.setxattr(self.path(name), key, value, flags, follow_symlinks=False)

    def getxattr(self, name, key):
        return os.getxattr(self.path(name), key, follow_symlinks=False)

    def removexattr(self, name, key):
        os.removexattr(self.path(name), key, follow_symlinks=False)

    def listxattr(self, name):
        return sorted(os.listxattr(self.path(name), follow_symlinks=False))

    def list(self, name):
        return sorted((entry.name, entry.is_symlink(), entry.is_dir(follow_symlinks=False))
                      for entry in os.scandir(self.path(name)))

    def stat(self, name):
        return self.summary(os.lstat(self.path(name)))

    @staticmethod
    def summary(st):
        size = 0 if stat.S_ISDIR(st.st_mode) else st.st_size
        return oct(st.st_mode), st.st_nlink, st.st_uid, st.st_gid, size, st.st_rdev

    def tree(self):
        found = {}
        for folder, folders, files in os.walk(self.root):
            for name in folders + files:
                path = os.path.relpath(os.path.join(folder, name), self.root)
                entry = [self.stat(path), self.do("listxattr", path)]
                mode = os.lstat(self.path(path)).st_mode
                if stat.S_ISREG(mode):
                    entry.append(read_file(self.path(path)))
                elif stat.S_ISLNK(mode):
                    entry.append(self.readlink(path))
                found[path] = entry
        return found


def random_operation(rng):
    folders = ["", "a/", "b/", "a/c/"]

    def name():
        return rng.choice(folders) + rng.choice(["f0", "f1", "f2", "f3", "l0", "l1"])

    def folder():
        return rng.choice(["a", "b", "a/c", "f0"])

    def any_name():
        return rng.choice([name, name, folder])()

    def key():
        return rng.randrange(5)

    def offset():
        return rng.choice([0, 1, 511, 4095, 4096, 4097, 65536, rng.randrange(200000)])

    def data():
        return rng.randbytes(rng.choice([0, 1, 10, 4095, 4096, 5000, rng.randrange(70000), 140000]))

    operations = [
        (14, lambda: ("open", key(), name(), rng.choice([os.O_RDONLY, os.O_RDWR, os.O_RDWR, os.O_WRONLY])
                      | rng.choice([0, os.O_CREAT, os.O_CREAT, os.O_CREAT | os.O_EXCL])
                      | rng.choice([0, 0, 0, os.O_TRUNC, os.O_APPEND]) | os.O_NONBLOCK, rng.choice([0o644, 0o600, 0o777]))),
        (3, lambda: ("close", key())),
        (14, lambda: ("pwrite", key(), data(), offset())),
        (6, lambda: ("write", key(), data())),
        (12, lambda: ("pread", key(), rng.choice([1, 4096, 10000, 200000]), offset())),
        (3, lambda: ("seek", key(), offset(), rng.choice([os.SEEK_SET, os.SEEK_END]))),
        (4, lambda: ("seek_hole", key(), offset(), rng.choice([os.SEEK_DATA, os.SEEK_HOLE]))),
        (5, lambda: ("ftruncate", key(), offset())),
        (3, lambda: ("truncate", any_name(), offset())),
        (6, lambda: ("fallocate", key(), rng.choice([0, FALLOC_KEEP_SIZE, FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE,
                                                    FALLOC_ZERO_RANGE, FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE]),
                     offset(), rng.choice([1, 4096, 10000, 65536]))),
        (4, lambda: ("copy_range", key(), key(), rng.choice([1, 4096, 50000]), offset(), offset())),
        (2, lambda: ("fsync", key(), rng.random() < 0.5)),
        (4, lambda: ("fstat", key())),
        (5, lambda: ("store", key(), offset(), rng.randbytes(rng.choice([1, 100, 5000])))),
        (4, lambda: ("load", key())),
        (6, lambda: ("unlink", any_name())),
        (5, lambda: ("mkdir", any_name(), rng.choice([0o755, 0o700, 0o2775]))),
        (3, lambda: ("rmdir", any_name())),
        (8, lambda: ("rename", any_name(), any_name(), rng.choice([0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]))),
        (5, lambda: ("link", name(), name())),
        (4, lambda: ("symlink", rng.choice(["f0", "a/f1", "nowhere", "../f2", "l0"]), name())),
        (3, lambda: ("readlink", any_name())),
        (2, lambda: ("mknod", name(), rng.choice([stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG]) | 0o640, 0)),
        (4, lambda: ("chmod", any_name(), rng.choice([0o644, 0o755, 0o600, 0o4755, 0o2755, 0o1777]))),
        (3, lambda: ("chown", any_name(), rng.choice([-1, 0, 1000]), rng.choice([-1, 0, 1000]))),
        (3, lambda: ("utime", any_name(), rng.randrange(2 ** 60), rng.randrange(2 ** 60))),
        (4, lambda: ("setxattr", any_name(), rng.choice(["user.a", "user.b", "trusted.c"]),
                     rng.randbytes(rng.choice([0, 5, 200])), rng.choice([0, 0, os.XATTR_CREATE, os.XATTR_REPLACE]))),
        (3, lambda: ("getxattr", any_name(), rng.choice(["user.a", "user.b", "trusted.c"]))),
        (2, lambda: ("removexattr", any_name(), rng.choice(["user.a", "user.b"]))),
        (3, lambda: ("listxattr", any_name())),
        (4, lambda: ("list", rng.choice(["", "a", "b", "a/c", "f0"]))),
        (8, lambda: ("stat", any_name())),
    ]
    weights = [weight for weight, _ in operations]
    return rng.choices([make for _, make in operations], weights)[0]()


def brief(value):
    text = repr(value)
    return text if len(text) < 120 else text[:120] + "..."


@pytest.mark.limit(180)
@pytest.mark.parametrize("round_number", range(4))
def test_random_operations_match_a_plain_directory(mount, workdir, round_number):
    seed = int(os.environ.get("GAIA_TEST_SEED", random.randrange(2 ** 32)))
    print(f"GAIA_TEST_SEED={seed} round {round_number}")
    rng = random.Random(seed * 100 + round_number)
    m = mount()
    plain = os.path.join(workdir, "plain")
    os.mkdir(plain)
    worlds = []
    for top in (m.mnt, plain):  # one level down: a link to ../f2 must not leave either
        os.mkdir(os.path.join(top, "root"))
        worlds.append(World(os.path.join(top, "root")))
    history = []
    previous = os.umask(rng.choice([0o022, 0o077, 0]))
    try:
        for step in range(2500):
            operation = random_operation(rng)
            results = [world.do(*operation) for world in worlds]
            history.append(f"{step}: {', '.join(brief(part) for part in operation)} -> {brief(results[1])}")
            assert results[0] == results[1], f"seed {seed}, step {step}: {brief(results[0])} instead of " \
                f"{brief(results[1])}\n" + "\n".join(history[-40:])
        assert worlds[0].tree() == worlds[1].tree()
    finally:
        os.umask(previous)
        for world in worlds:
            world.close_all()
    assert m.unmount() is None
    assert World(os.path.join(m.data, "root")).tree() == worlds[1].tree()


# --- one by one -----------------------------------------------------------------------------------------------------

def test_unlinked_file_stays_usable(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    with open(path, "w+b") as file:
        file.write(b"before")
        file.flush()
        os.unlink(path)
        assert not os.path.exists(path)
        file.write(b" after")
        file.flush()
        os.fchmod(file.fileno(), 0o600)
        os.setxattr(file.fileno(), "user.gone", b"1")
        os.ftruncate(file.fileno(), 9)
        st = os.fstat(file.fileno())
        assert (st.st_nlink, st.st_size, stat.S_IMODE(st.st_mode)) == (0, 9, 0o600)
        assert os.pread(file.fileno(), 100, 0) == b"before af"
        # a new file of the same name is another file
        write_file(path, b"new")
        assert os.pread(file.fileno(), 100, 0) == b"before af"
    assert read_file(path) == b"new"


def test_append_lands_at_the_end_however_it_grew(mount):
    m = mount()
    mnt, data = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(mnt, b"one")
    with open(mnt, "ab", buffering=0) as file:
        file.write(b"two")
        with open(data, "ab") as behind:
            behind.write(b"BEHIND")
        file.write(b"three")
    assert read_file(data) == b"onetwoBEHINDthree"


def test_append_flag_can_be_set_and_cleared_later(mount):
    import fcntl
    m = mount()
    path = os.path.join(m.mnt, "f")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"0123456789")
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"AB", 2)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.pwrite(fd, b"end", 0)
    os.close(fd)
    assert read_file(os.path.join(m.data, "f")) == b"01AB456789end"


def test_mapped_store_through_an_append_handle_keeps_its_place(mount):
    m = mount()
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"x" * 10000)
    with mmap.mmap(fd, 10000) as mapping:
        mapping[5000:5005] = b"STORE"
        mapping.flush()
    os.close(fd)
    expected = b"x" * 5000 + b"STORE" + b"x" * 4995
    assert read_file(os.path.join(m.data, "f")) == expected


def test_open_with_truncation(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"x" * 100000)
    other = os.open(path, os.O_RDONLY)
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    assert os.fstat(other).st_size == 0 and os.read(other, 10) == b""
    write_file(path, b"abc")
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    assert os.path.getsize(os.path.join(m.data, "f")) == 0
    os.close(other)


def test_direct_io(mount):
    m = mount()
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    block = mmap.mmap(-1, 8192)
    block[:] = bytes(range(256)) * 32
    assert os.writev(fd, [block]) == 8192
    back = mmap.mmap(-1, 8192)
    assert os.preadv(fd, [back], 0) == 8192
    assert back[:] == block[:]
    os.close(fd)


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC], ids=["O_SYNC", "O_DSYNC"])
def test_synchronous_writes_are_so_in_the_data_directory(mount, flag):
    m = mount()
    fd = os.open(os.path.join(m.mnt, "f"), os.O_WRONLY | os.O_CREAT | flag)
    found = []
    for entry in os.listdir(f"/proc/{m.pid}/fd"):
        if os.readlink(f"/proc/{m.pid}/fd/{entry}") == os.path.join(m.data, "f"):
            info = read_file(f"/proc/{m.pid}/fdinfo/{entry}").decode()
            found.append(int(re.search(r"flags:\s*(\d+)", info)[1], 8) & flag == flag)
    os.close(fd)
    assert any(found), found


def test_rename_flags(mount):
    m = mount()
    one, two, three = (os.path.join(m.mnt, name) for name in ("one", "two", "three"))
    write_file(one, b"1")
    write_file(two, b"2")
    with pytest.raises(FileExistsError):
        renameat2(one, two, RENAME_NOREPLACE)
    renameat2(one, three, RENAME_NOREPLACE)
    renameat2(two, three, RENAME_EXCHANGE)
    assert (read_file(two), read_file(three)) == (b"1", b"2")
    os.mkdir(one)
    write_file(os.path.join(one, "in"), b"in")
    renameat2(one, two, RENAME_EXCHANGE)
    assert os.path.isdir(two) and read_file(os.path.join(two, "in")) == b"in" and read_file(one) == b"1"
    with pytest.raises(FileNotFoundError):
        renameat2(three, os.path.join(m.mnt, "none"), RENAME_EXCHANGE)


def test_open_file_survives_rename_and_replacement(mount):
    m = mount()
    old, new = os.path.join(m.mnt, "old"), os.path.join(m.mnt, "new")
    write_file(old, b"old")
    write_file(new, b"new")
    with open(new, "rb") as replaced, open(old, "r+b", buffering=0) as moved:
        os.rename(old, new)
        assert replaced.read() == b"new"
        moved.write(b"OLD")
    assert read_file(new) == b"OLD"


def test_fifo_socket_and_device_nodes(mount):
    m = mount()
    fifo, sock, null = (os.path.join(m.mnt, name) for name in ("fifo", "sock", "null"))
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY)
    os.write(writer, b"through")
    assert select.select([reader], [], [], 5)[0] and os.read(reader, 100) == b"through"
    os.close(reader)
    os.close(writer)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(sock)
        server.listen()
        client.connect(sock)
    assert stat.S_ISSOCK(os.lstat(os.path.join(m.data, "sock")).st_mode)
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    st = os.lstat(os.path.join(m.data, "null"))
    assert stat.S_ISCHR(st.st_mode) and st.st_rdev == os.makedev(1, 3)


def test_hard_and_symbolic_links(mount):
    m = mount()
    one, two, name = (os.path.join(m.mnt, name) for name in ("one", "two", "link"))
    write_file(one, b"bytes")
    os.link(one, two)
    assert os.stat(one).st_ino == os.stat(two).st_ino and os.stat(two).st_nlink == 2
    os.unlink(one)
    assert read_file(two) == b"bytes" and os.stat(two).st_nlink == 1
    long_target = "x/" * 2000 + "y"
    os.symlink(long_target, name)
    assert os.readlink(name) == long_target and os.lstat(name).st_size == len(long_target)
    os.link(name, one, follow_symlinks=False)
    assert os.readlink(one) == long_target


def test_extended_attributes(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    assert os.listxattr(path) == []
    big = os.urandom(3000)
    os.setxattr(path, "user.big", big)
    os.setxattr(path, "user.empty", b"")
    assert os.getxattr(path, "user.big") == big and os.getxattr(path, "user.empty") == b""
    assert sorted(os.listxattr(path)) == ["user.big", "user.empty"]
    assert os.getxattr(os.path.join(m.data, "f"), "user.big") == big
    # the size alone, and a buffer that is too small
    assert libc.getxattr(os.fsencode(path), b"user.big", None, 0) == 3000
    assert libc.getxattr(os.fsencode(path), b"user.big", ctypes.create_string_buffer(10), 10) == -1
    assert ctypes.get_errno() == errno.ERANGE
    for attempt, code in ((lambda: os.setxattr(path, "user.big", b"", os.XATTR_CREATE), errno.EEXIST),
                          (lambda: os.setxattr(path, "user.no", b"", os.XATTR_REPLACE), errno.ENODATA),
                          (lambda: os.getxattr(path, "user.no"), errno.ENODATA),
                          (lambda: os.removexattr(path, "user.no"), errno.ENODATA)):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == code
    os.removexattr(path, "user.big")
    assert os.listxattr(path) == ["user.empty"]


def test_fallocate_and_holes(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    with open(path, "w+b", buffering=0) as file:
        fd = file.fileno()
        fallocate(fd, 0, 0, 1 << 20)
        assert os.fstat(fd).st_size == 1 << 20
        fallocate(fd, FALLOC_KEEP_SIZE, 1 << 20, 1 << 20)
        assert os.fstat(fd).st_size == 1 << 20
        os.pwrite(fd, b"x" * (1 << 20), 0)
        assert os.pread(fd, 5, 300000) == b"xxxxx"
        fallocate(fd, FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE, 65536, 65536)
        fallocate(fd, FALLOC_ZERO_RANGE, 200000, 1000)
        content = os.pread(fd, 1 << 20, 0)
        expected = bytearray(b"x" * (1 << 20))
        expected[65536:131072] = bytes(65536)
        expected[200000:201000] = bytes(1000)
        assert content == expected
        assert os.lseek(fd, 0, os.SEEK_HOLE) == 65536
        assert os.lseek(fd, 65536, os.SEEK_DATA) == 131072
        with pytest.raises(OSError) as caught:
            os.lseek(fd, 1 << 21, os.SEEK_DATA)
        assert caught.value.errno == errno.ENXIO
    assert read_file(os.path.join(m.data, "f")) == bytes(expected)


def test_copy_file_range(mount):
    m = mount()
    source, target = os.path.join(m.mnt, "source"), os.path.join(m.mnt, "target")
    content = os.urandom(300000)
    write_file(source, content)
    with open(source, "rb") as reader, open(target, "w+b", buffering=0) as writer:
        writer.write(b"y" * 10)
        done = 0
        while done < 200000:
            done += os.copy_file_range(reader.fileno(), writer.fileno(), 200000 - done, 1000 + done, 5 + done)
        assert os.pread(writer.fileno(), 300000, 0) == b"y" * 5 + content[1000:201000]
        # within one file
        assert os.copy_file_range(writer.fileno(), writer.fileno(), 5, 0, 100) == 5
    assert read_file(os.path.join(m.data, "target"))[100:105] == b"y" * 5


def test_statfs(mount):
    m = mount()
    through, plain = os.statvfs(m.mnt), os.statvfs(m.data)
    assert (through.f_bsize, through.f_blocks, through.f_files, through.f_namemax) == \
        (plain.f_bsize, plain.f_blocks, plain.f_files, plain.f_namemax)


def test_stores_reach_the_backing_file_at_msync(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(100000))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[0:5] = b"first"
        mapping[50000:50006] = b"second"
        mapping.flush()
        behind = read_file(os.path.join(m.data, "f"))
        assert behind[0:5] == b"first" and behind[50000:50006] == b"second" and len(behind) == 100000
        # and what is written is seen by the mapping
        with open(path, "r+b", buffering=0) as other:
            os.pwrite(other.fileno(), b"third", 70000)
        assert mapping[70000:70005] == b"third"


def test_times(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.utime(path, ns=(1_000_000_001, 2_000_000_002))
    st = os.stat(path)
    assert (st.st_atime_ns, st.st_mtime_ns) == (1_000_000_001, 2_000_000_002)
    subprocess.run(["touch", "-m", path], check=True)  # UTIME_NOW and UTIME_OMIT
    st = os.stat(path)
    assert st.st_atime_ns == 1_000_000_001 and abs(st.st_mtime - time.time()) < 10
    before = st.st_mtime_ns
    time.sleep(0.02)
    with open(path, "ab") as file:
        file.write(b"x")
    assert os.stat(path).st_mtime_ns > before


def test_changes_behind_the_mount_are_seen_at_open(mount):
    m = mount("timeout=0")
    mnt, data = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(data, b"1" * 8192)
    assert read_file(mnt) == b"1" * 8192
    for digit in b"23":
        time.sleep(0.1)
        write_file(data, bytes([digit]) * 8192)  # the same size
        time.sleep(0.1 * (digit == ord("3")))  # a moment ago, or just now
        assert read_file(mnt) == bytes([digit]) * 8192
        assert read_file(mnt) == bytes([digit]) * 8192


@pytest.mark.limit(120)
def test_big_directory(mount):
    m = mount()
    names = {f"{i:05d}" + "n" * (i % 100) for i in range(5000)}
    folder = os.path.join(m.mnt, "d")
    os.mkdir(folder)
    for name in names:
        os.close(os.open(os.path.join(m.data, "d", name), os.O_CREAT | os.O_WRONLY))
    assert set(os.listdir(folder)) == names
    listed = list(os.scandir(folder))
    assert {entry.name for entry in listed} == names and len(listed) == len(names)
    assert all(entry.stat().st_size == 0 for entry in listed)
    # removing while listing must leave nothing over
    shutil.rmtree(folder)
    assert os.listdir(m.data) == []


def test_a_folder_from_the_start_again(mount):
    """rewinddir() and seekdir(), in the middle of a folder that takes many requests to list."""
    m = mount()
    names = {f"{i:04d}" + "n" * 50 for i in range(2000)}
    for name in names:
        os.close(os.open(os.path.join(m.data, name), os.O_CREAT | os.O_WRONLY))
    libc = ctypes.CDLL(None)
    libc.opendir.restype = libc.readdir64.restype = ctypes.c_void_p
    libc.readdir64.argtypes = libc.rewinddir.argtypes = libc.closedir.argtypes = libc.telldir.argtypes = [ctypes.c_void_p]
    libc.telldir.restype = ctypes.c_long
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    folder = libc.opendir(m.mnt.encode())

    def read(most):
        found = []
        while len(found) < most and (entry := libc.readdir64(folder)):
            found.append(ctypes.string_at(entry + 19).decode())
        return found
    everything = read(5000)
    assert len(everything) == 2002 and set(everything) == names | {".", ".."}
    libc.rewinddir(folder)
    for count in (1, 300, 1500):
        assert read(count) == everything[:count]
        place = libc.telldir(folder)
        assert read(200) == everything[count:count + 200]
        libc.seekdir(folder, place)
        assert read(5000) == everything[count:]
        libc.rewinddir(folder)
    read(700)
    libc.rewinddir(folder)
    assert read(5000) == everything
    libc.closedir(folder)


def test_permissions_are_those_of_the_caller(mount):
    m = mount()
    os.chmod(m.mnt, 0o755)
    secret, shared = os.path.join(m.mnt, "secret"), os.path.join(m.mnt, "shared")
    write_file(secret, b"secret")
    os.chmod(secret, 0o600)
    code = """
for attempt in (lambda: open(sys.argv[1]), lambda: os.chmod(sys.argv[1], 0o777), lambda: os.unlink(sys.argv[1]),
                lambda: open(sys.argv[1] + "x", "w"), lambda: os.truncate(sys.argv[1], 0),
                lambda: os.chown(sys.argv[1], os.getuid(), -1), lambda: os.rename(sys.argv[1], sys.argv[1] + "y")):
    try:
        attempt()
        print("allowed")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    done = as_user(code, secret)
    assert done.stdout.split() == ["EACCES", "EPERM", "EACCES", "EACCES", "EACCES", "EPERM", "EACCES"], done.stderr
    os.mkdir(shared)
    os.chmod(shared, 0o1777)
    made = as_user("""
os.umask(0o027)
os.chdir(sys.argv[1])
open("file", "w").write("x")
os.mkdir("folder")
os.mkfifo("fifo")
os.symlink("file", "symlink")
os.link("file", "hard")
""", shared)
    assert made.returncode == 0, made.stderr
    for name, mode in (("file", 0o640), ("folder", 0o750), ("fifo", 0o640), ("symlink", 0o777), ("hard", 0o640)):
        st = os.lstat(os.path.join(m.data, "shared", name))
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (NOBODY, NOBODY, mode), name
    # root is itself again afterwards, in every thread
    for i in range(50):
        write_file(os.path.join(m.mnt, f"root{i}"), b"")
        st = os.stat(os.path.join(m.data, f"root{i}"))
        assert (st.st_uid, st.st_gid) == (0, 0)


def test_group_from_a_supplementary_group_and_a_setgid_folder(mount):
    m = mount()
    folder = os.path.join(m.mnt, "team")
    os.mkdir(folder)
    os.chown(folder, 0, 4242)
    os.chmod(folder, 0o2770)
    done = as_user("open(sys.argv[1] + '/f', 'w'); os.mkdir(sys.argv[1] + '/d')", folder, groups=[4242])
    assert done.returncode == 0, done.stderr
    assert os.stat(os.path.join(m.data, "team/f")).st_gid == 4242
    st = os.stat(os.path.join(m.data, "team/d"))
    assert st.st_gid == 4242 and st.st_mode & stat.S_ISGID
    assert as_user("open(sys.argv[1] + '/g', 'w')", folder).returncode != 0


@pytest.mark.parametrize("action", ["os.write(os.open(sys.argv[1], os.O_WRONLY), b'x')", "os.truncate(sys.argv[1], 1)",
                                    "os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC)",
                                    "os.posix_fallocate(os.open(sys.argv[1], os.O_WRONLY), 0, 100000)",
                                    "fd = os.open(sys.argv[1], os.O_RDWR); os.copy_file_range(fd, fd, 2, 0, 4)"])
def test_set_id_bits_are_cleared_by_a_users_write(mount, workdir, action):
    m = mount()
    plain = os.path.join(workdir, "plain")
    modes = []
    for folder in (m.mnt, plain):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "f")
        write_file(path, b"program")
        os.chmod(folder, 0o755)
        os.chmod(path, 0o6777)
        done = as_user(action, path)
        assert done.returncode == 0, done.stderr
        modes.append(oct(os.stat(path).st_mode))
    assert modes[0] == modes[1] == oct(stat.S_IFREG | 0o777)
    assert oct(os.stat(os.path.join(m.data, "f")).st_mode) == modes[0]
    # root's own write leaves them, as on the plain filesystem
    for path in (os.path.join(m.mnt, "f"), os.path.join(plain, "f")):
        os.chmod(path, 0o4755)
        with open(path, "r+b") as file:
            file.write(b"x")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o4755


def test_chown_by_root_clears_set_id_bits(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.chmod(path, 0o6755)
    os.chown(path, 1000, 1000)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755
    assert stat.S_IMODE(os.stat(os.path.join(m.data, "f")).st_mode) == 0o755


def test_file_capabilities_do_not_survive_a_write(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"program")
    value = bytes.fromhex("0100000200200000000000000000000000000000")
    os.setxattr(path, "security.capability", value)
    assert os.getxattr(path, "security.capability")
    with open(path, "r+b") as file:
        file.write(b"x")
    with pytest.raises(OSError) as caught:
        os.getxattr(path, "security.capability")
    assert caught.value.errno == errno.ENODATA


def test_errors_of_the_data_directory_reach_the_caller(mount, workdir):
    """A full filesystem below: ENOSPC at the write."""
    data = os.path.join(workdir, "small")
    os.mkdir(data)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", data], check=True)
    try:
        m = mount(data=data)
        with open(os.path.join(m.mnt, "f"), "wb", buffering=0) as file:
            with pytest.raises(OSError) as caught:
                for _ in range(100):
                    assert file.write(b"x" * 65536) > 0
            assert caught.value.errno == errno.ENOSPC
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", data], check=True)


def test_a_mount_below_the_data_directory_is_crossed(mount, workdir):
    data = os.path.join(workdir, "outer")
    os.makedirs(os.path.join(data, "inner"))
    subprocess.run(["mount", "-t", "tmpfs", "none", os.path.join(data, "inner")], check=True)
    try:
        write_file(os.path.join(data, "inner", "f"), b"below")
        m = mount(data=data)
        assert read_file(os.path.join(m.mnt, "inner", "f")) == b"below"
        assert os.listdir(os.path.join(m.mnt, "inner")) == ["f"]
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", os.path.join(data, "inner")], check=True)


def test_mount_point_inside_the_data_directory(mount, workdir):
    """The daemon must not enter its own mount."""
    data = os.path.join(workdir, "data")
    mnt = os.path.join(data, "mnt")
    os.makedirs(mnt)
    write_file(os.path.join(data, "f"), b"x")
    m = mount(data=data, mnt=mnt)
    assert sorted(os.listdir(mnt)) == ["f", "mnt"]
    with pytest.raises(OSError) as caught:
        os.listdir(os.path.join(mnt, "mnt"))
    assert caught.value.errno == errno.ELOOP
    subprocess.run(["ls", "-laR", mnt], capture_output=True)
    assert read_file(os.path.join(mnt, "f")) == b"x"


def test_parallel_threads_on_one_file(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(64 * 4096))
    failures = []

    def work(number):
        with open(path, "r+b", buffering=0) as file:
            for step in range(100):
                block = bytes([number, step % 256]) * 2048
                os.pwrite(file.fileno(), block, number * 8 * 4096 + (step % 8) * 4096)
                if os.pread(file.fileno(), 4096, number * 8 * 4096 + (step % 8) * 4096) != block:
                    failures.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert read_file(path) == read_file(os.path.join(m.data, "f"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_forgotten_files_are_let_go(mount):
    """The daemon's descriptors follow what the kernel knows: nothing is left after it forgot."""
    m = mount()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")
    time.sleep(0.3)
    before = descriptors(m.pid)
    for i in range(300):
        write_file(os.path.join(m.data, f"f{i}"), b"")
    for _ in range(3):
        assert len(os.listdir(m.mnt)) == 300
        for i in range(300):
            os.stat(os.path.join(m.mnt, f"f{i}"))
            with open(os.path.join(m.mnt, f"f{i}"), "rb"):
                pass
            os.link(os.path.join(m.mnt, f"f{i}"), os.path.join(m.mnt, "l"))
            os.unlink(os.path.join(m.mnt, "l"))
    assert descriptors(m.pid) >= before + 300
    for i in range(300):
        os.unlink(os.path.join(m.mnt, f"f{i}"))
    deadline = time.monotonic() + 20
    while descriptors(m.pid) > before + 2:
        assert time.monotonic() < deadline, f"{descriptors(m.pid)} descriptors, {before} before"
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("2")
        time.sleep(0.1)


def test_the_daemon_holds_nothing_inside_its_mount(mount, workdir):
    data = os.path.join(workdir, "both")
    os.mkdir(data)
    m = mount(data=data, mnt=data)
    held = []
    for i in range(20):
        held.append(open(os.path.join(m.mnt, f"f{i}"), "w+b"))
        held[-1].write(b"x" * 10000)
        held[-1].flush()
    own = os.stat(m.mnt).st_dev
    inside = []
    for fd in os.listdir(f"/proc/{m.pid}/fd"):
        # fdinfo names the mount without touching it
        with open(f"/proc/{m.pid}/fdinfo/{fd}") as file:
            number = next(line.split()[1] for line in file if line.startswith("mnt_id"))
        with open("/proc/self/mountinfo") as file:
            inside += [fd for line in file if line.split()[0] == number
                       and line.split()[2] == f"{os.major(own)}:{os.minor(own)}"]
    for file in held:
        file.close()
    assert inside == []
