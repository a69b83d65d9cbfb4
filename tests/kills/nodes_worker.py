# SPDX-License-Identifier: Apache-2.0
"""A program of a node: it works on files that programs of other nodes work on, and logs what it is about to do and what came of it.

Every cell of 8 bytes has one writer and one way of storing, and says whose it is: so it is known of each value who stored it where
and when, and cells of all writers lie beside each other in each page. usage: nodes_worker.py ARGUMENTS_AS_JSON"""
import base64
import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import struct
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "mount"))

PAGE, CELL = 4096, 8
SIGBUS = 1000
CELLS = struct.Struct("<IHBB")           # number of the store, cell, owner, way
WRITE, CPU, DEVICE = range(3)
FILES = {"f0": (2, 1), "f1": (4, 7), "f2": (24, 100)}  # pages, and cells of one writer beside each other
APPEND = struct.Struct("<4sIII")
STOPS, ENDS = 1, 2                       # orders: a worker settles and ends; and how many words of the board each has
GONE = 5


def writer_of(name, cell, workers):
    turn = cell // FILES[name][1] % (workers * 3)
    return turn // 3, turn % 3


def encode(number, name, cell, owner, way):
    return CELLS.pack(number, cell, owner, way | list(FILES).index(name) << 4)


def first_content(name, workers):
    return b"".join(encode(0, name, cell, *writer_of(name, cell, workers)) for cell in range(FILES[name][0] * PAGE // CELL))


class Gone(Exception):
    """The daemon is gone."""


class File:
    def __init__(self, worker, name):
        self.worker, self.name = worker, name
        self.length = FILES[name][0] * PAGE
        self.fd, self.direct_fd = (os.open(os.path.join(worker.mnt, name), os.O_RDWR | os.O_CLOEXEC | flag) for flag in (0, os.O_DIRECT))
        self.map, self.failed = None, 0  # on the device; syncs that failed since the last good one
        self.fresh = True                # the device's copy may be older than what this worker has stored
        self.cells = {way: [c for c in range(self.length // CELL)
                            if writer_of(name, c, worker.workers) == (worker.number, way)] for way in range(3)}


class Worker:
    def __init__(self, args):
        self.__dict__.update(args)
        self.alone = False
        import gaia
        self.gaia = gaia
        self.rng = random.Random(args["seed"])
        self.steps = ctypes.CDLL(args["steps"])
        self.log_fd = os.open(args["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(args["board"], "r+b") as file:
            self.board = mmap.mmap(file.fileno(), 0)
        self.steps.catch_touches()
        self.count = self.turn * 100000  # over all that another one has stored for this number before
        self.device = gaia.Device("soft:0")
        self.lock_fd = os.open(args["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.files = [File(self, name) for name in FILES]
        end = time.monotonic() + 20
        for file in self.files:  # first on a device: what is promised is promised of such files
            while not self.ready(file) and time.monotonic() < end:
                time.sleep(0.02)
            if file.fresh:
                sys.exit("can't map a file for 20 s")
            file.cpu = mmap.mmap(file.fd, file.length)
            file.cpu_at = ctypes.addressof(ctypes.c_char.from_buffer(file.cpu))

    # --- the log ---

    def note(self, *words):
        os.write(self.log_fd, (json.dumps(words) + "\n").encode())

    def tell(self, when):
        struct.pack_into("<Q", self.board, 16 * self.number, when)

    def order(self):
        return struct.unpack_from("<Q", self.board, 16 * self.number + 8)[0]

    def do(self, kind, file, function, **more):
        """(error, result) of a call; it is in the log before it begins, and again when it has ended."""
        self.count += 1
        number, now = self.count, time.monotonic_ns()
        self.note("begin", number, now, kind, file, more)
        self.tell(now)
        result = None
        try:
            if not self.alone:
                self.share()
            result, error = function(), 0
        except OSError as problem:
            error = problem.errno
        finally:
            if not self.alone:
                fcntl.flock(self.lock_fd, fcntl.LOCK_UN)
        if isinstance(result, bytes):
            result = base64.b64encode(result).decode()
        self.note("end", number, time.monotonic_ns(), error, result)
        self.tell(0)
        if error == errno.ENOTCONN:
            raise Gone
        return error, result

    def share(self):
        """Nobody is alone. Who is may wait for a daemon that stands still, and the one here may be gone meanwhile."""
        while True:
            try:
                fcntl.flock(self.lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.002)
            try:
                os.stat(self.mnt)
            except OSError as problem:
                if problem.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                    raise OSError(errno.ENOTCONN, "its daemon has gone") from None

    # --- memory ---

    def store(self, address, data):
        if self.steps.store(ctypes.c_void_p(address), data, ctypes.c_size_t(len(data))):
            raise OSError(SIGBUS, "SIGBUS")

    def load(self, address, length):
        data = ctypes.create_string_buffer(length)
        if self.steps.load(ctypes.c_void_p(address), ctypes.c_size_t(length), data):
            raise OSError(SIGBUS, "SIGBUS")
        return data.raw

    # --- what it does ---

    def some_cells(self, file, way):
        """The first of some cells that lie beside each other, and how many."""
        cells = file.cells[way]
        if not cells:
            return 0, 0
        at = self.rng.randrange(len(cells))
        count = 1
        while at + count < len(cells) and cells[at + count] == cells[at] + count and self.rng.random() < 0.9:
            count += 1
        return cells[at], count

    def put(self, file, way):
        first, count = self.some_cells(file, way)
        if not count:
            return
        if way == DEVICE and not self.ready(file):
            return
        number = self.count + 1
        data = b"".join(encode(number, file.name, cell, self.number, way) for cell in range(first, first + count))
        fd = file.direct_fd if way == WRITE and self.rng.random() < 0.3 else file.fd
        syncs = way == WRITE and self.rng.random() < 0.2

        def store():
            if way == WRITE:
                if os.pwritev(fd, [data], first * CELL, os.RWF_DSYNC if syncs else 0) != len(data):
                    raise OSError(errno.EIO, "short")
            elif way == CPU:
                self.store(file.cpu_at + first * CELL, data)
            else:
                self.store(file.map.address + first * CELL, data)
        error, _ = self.do("store", file.name, store, way=way, first=first, count=count, direct=fd == file.direct_fd, syncs=syncs)
        if error and way == DEVICE:
            self.unmap(file)

    def ready(self, file):
        """Whether the file is mapped on the device, which has what was stored before."""
        if not file.map:
            error, _ = self.do("map", file.name, lambda: setattr(file, "map", self.device.mmap(file.fd, file.length)))
            file.fresh = True
            if error:
                return False
        if file.fresh:
            error, _ = self.on_map(file, "acquire")
            file.fresh = bool(error)
        return not file.fresh

    def unmap(self, file):
        gone, file.map = file.map, None
        if gone:
            self.do("unmap", file.name, gone.unmap)

    def on_map(self, file, kind):
        if not file.map:
            return errno.EINVAL, None
        call = {"acquire": file.map.acquire, "release": file.map.release, "gaia_msync": file.map.sync,
                "dontneed": lambda: file.map.advise(self.gaia.ADV_DONTNEED)}[kind]
        error, result = self.do(kind, file.name, call)
        if error:
            self.unmap(file)
        return error, result

    def look(self, file, how=None):
        page = self.rng.randrange(file.length // PAGE)
        how = how or self.rng.choice(["read", "load", "device", "device"])
        if how == "read":
            fd = file.direct_fd if self.rng.random() < 0.3 else file.fd
            self.do(how, file.name, lambda: os.pread(fd, PAGE, page * PAGE), page=page, direct=fd == file.direct_fd)
        elif how == "load":
            self.do(how, file.name, lambda: self.load(file.cpu_at + page * PAGE, PAGE), page=page)
        elif self.ready(file):
            since = time.monotonic_ns()
            if not self.on_map(file, "acquire")[0]:
                error, _ = self.do(how, file.name, lambda: self.load(file.map.address + page * PAGE, PAGE), page=page, since=since)
                if error:
                    self.unmap(file)

    def sync(self, file, kind=None):
        kind = kind or self.rng.choice(["fsync", "fsync", "msync", "gaia_msync"])
        if kind == "gaia_msync":
            return self.on_map(file, kind)[0]
        error, _ = self.do(kind, file.name, file.cpu.flush if kind == "msync" else lambda: os.fsync(file.fd))
        file.failed = file.failed + 1 if error else 0
        if file.failed > 1:
            self.rewrite(file)
        return error

    def rewrite(self, file):
        """Syncs go on failing until all is written again that may be lost. While nobody else does anything, if that can be had. What the
        kernels of others have not written back yet a read() here need not see, and writing that again would undo it; an acquire does."""
        try:
            fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        self.alone = True
        try:
            if self.ready(file) and not self.on_map(file, "acquire")[0]:
                error, _ = self.do("rewrite", file.name, lambda: os.pwrite(file.fd, self.load(file.map.address, file.length), 0))
                if error:
                    self.unmap(file)
        finally:
            self.alone = False
            fcntl.flock(self.lock_fd, fcntl.LOCK_UN)

    def append(self):
        record = APPEND.pack(b"RCRD", self.number, self.count + 1, (self.count + 1) * 2654435761 & 0xFFFFFFFF)

        def call():
            fd = os.open(os.path.join(self.mnt, "appends"), os.O_WRONLY | os.O_APPEND)
            try:
                if os.write(fd, record) != len(record):
                    raise OSError(errno.EIO, "short")
                os.fsync(fd)
            finally:
                os.close(fd)
        self.do("append", "appends", call)

    def replace(self):
        """A whole new file under the name of the old one."""
        data = CELLS.pack(self.count + 1, 0, self.number, 255) * self.rng.randrange(1, 1500)
        path = os.path.join(self.mnt, f"own-{self.number}")

        def call():
            fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(path + ".new", path)
        self.do("replace", f"own-{self.number}", call, length=len(data))

    def look_at_others(self):
        other = self.rng.randrange(self.workers)

        def call():
            with open(os.path.join(self.mnt, f"own-{other}"), "rb", buffering=0) as file:
                return file.read()
        self.do("whole", f"own-{other}", call)

    def exclusive(self):
        """Of all who make a name with O_EXCL one does."""
        path = os.path.join(self.mnt, f"lock-{self.rng.randrange(2)}")
        name = os.path.basename(path)
        error, _ = self.do("create", name, lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)))
        if not error:
            time.sleep(self.rng.random() * 0.01)
            self.do("unlink", name, lambda: os.unlink(path))

    def resize(self):
        """A file that this worker alone cuts and makes longer."""
        size, name = self.rng.randrange(1, 3 * PAGE), f"size-{self.number}"

        def call():
            fd = os.open(os.path.join(self.mnt, name), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if self.rng.random() < 0.3 and os.fstat(fd).st_size:
                    map = self.device.mmap(fd, PAGE)
                    map.unmap()
                os.ftruncate(fd, size)
                os.fsync(fd)
                if os.fstat(fd).st_size != size:
                    raise OSError(errno.ERANGE, "size")
            finally:
                os.close(fd)
        self.do("resize", name, call, size=size)

    def step(self):
        file = self.rng.choice(self.files)
        kind = self.rng.randrange(20)
        if kind < 6:
            self.put(file, kind % 3)
        elif kind < 8:
            self.put(file, DEVICE)
        elif kind < 10 and file.map:
            self.on_map(file, "release")
        elif kind < 12:
            self.sync(file)
        elif kind < 15:
            self.look(file)
        elif kind == 15 and self.rng.random() < 0.3:
            self.unmap(file) if self.rng.random() < 0.5 else self.on_map(file, "dontneed")
        else:
            self.rng.choice([self.append, self.replace, self.look_at_others, self.exclusive, self.resize])()

    def settle(self):
        """What this worker has stored is stored for good; it has some time for that, as nodes may be looking for each other."""
        end = time.monotonic() + 15
        for file in self.files:
            while time.monotonic() < end:
                good = self.ready(file) and not self.on_map(file, "release")[0]
                if good and not self.sync(file, "fsync"):
                    break
                time.sleep(self.rng.random() * 0.1)
            self.unmap(file)

    def look_at_all(self):
        """By all ways, what nobody changes any more."""
        for file in self.files:
            end = time.monotonic() + 15
            while not self.ready(file) and time.monotonic() < end:
                time.sleep(0.05)
            self.do("last-device", file.name, lambda f=file: self.load(f.map.address, f.length))
            self.do("last-read", file.name, lambda f=file: os.pread(f.fd, f.length, 0))
            self.do("last-load", file.name, lambda f=file: self.load(f.cpu_at, f.length))
            self.unmap(file)

    def sync_beside(self):
        """Syncs that nobody judges: so where the node stands still its kernel has pages to write back, and they are written first when it
        goes on."""
        fds = [os.open(os.path.join(self.mnt, name), os.O_RDWR | os.O_CLOEXEC) for name in FILES]
        while not self.order():
            with contextlib.suppress(OSError):
                os.fsync(self.beside.choice(fds))
            time.sleep(self.beside.random() * 0.1)
        for fd in fds:
            os.close(fd)

    def run(self):
        self.beside = random.Random(self.seed + 1)
        thread = threading.Thread(target=self.sync_beside, daemon=True)
        thread.start()
        while not self.order():
            self.step()
            if self.pause:
                time.sleep(self.rng.random() * self.pause)
        thread.join()
        self.settle()


def main():
    args = json.loads(sys.argv[1])
    try:
        worker = Worker(args)
        worker.look_at_all() if args["last"] else worker.run()
    except Gone:
        sys.exit(GONE)
    except OSError as problem:
        if problem.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO):
            sys.exit(GONE)
        raise


if __name__ == "__main__":
    main()
