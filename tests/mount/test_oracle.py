# SPDX-License-Identifier: Apache-2.0
"""Random sequences of operations, with a plain directory as the oracle."""
import errno
import mmap
import os
import random
import stat

import pytest

from helpers import read_file
from posix_calls import (FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, fallocate, RENAME_EXCHANGE,
                         RENAME_NOREPLACE, renameat2)


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
