# SPDX-License-Identifier: Apache-2.0
"""A program that does a bit of everything to a mount, and goes on when a step fails.

usage: exercise.py MNT LOG [WORD ...]


Each step is told to LOG when it begins, and how it ended: "ok", or its errno's name. What a step that was answered has
written must be read by the next ones: a difference is "LOST" or "WRONG". A step after one that failed is left out where
it makes no sense without. The process may also end by SIGBUS in a touch of device memory: that is an answer, too ("BUS" when it
is a child of its). Last comes "end", and what libgaia has not given back by then: descriptors, and mappings of its memory.
"""
import errno
import mmap
import os
import signal
import stat
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "mount"))
import gaia  # noqa: E402
from known import PAGE, Bus, Different, Known, fallocate, held, same  # noqa: E402
from more import More  # noqa: E402

class Exercise(More):
    def __init__(self, mnt, log, words):
        self.mnt, self.log, self.words = mnt, log, words
        self.done = set()
        self.devices, self.fds = [], []
        self.names = ["cuda:0" if "cuda" in words else "soft:0"] + [f"soft:{i}" for i in range(1, 8)]
        self.f = self.known("f", 64)
        # Of "f", the file that most steps are about.
        self.content, self.unsure, self.write, self.check = self.f.content, self.f.unsure, self.f.write, self.f.check

    def tell(self, text):
        os.write(self.log, text.encode() + b"\n")

    def step(self, function, *needs):
        name = function.__name__
        if any(need not in self.done for need in needs):
            return
        self.tell(f"begin {name}")
        self.f.save()
        try:
            function()
        except Different as difference:
            self.tell(f"end {name} WRONG {difference}")
            return
        except Bus:
            self.tell(f"end {name} BUS")
            return
        except OSError as error:
            self.tell(f"end {name} {errno.errorcode.get(error.errno, error.errno)}")
            return
        self.done.add(name)
        self.tell(f"end {name} ok")

    def known(self, name, pages):
        return Known(pages, f"{sys.argv[2]}.state.{name}")

    def path(self, name):
        return os.path.join(self.mnt, name)

    def open(self, name, flags=os.O_RDWR, mode=0o640):
        """A descriptor that is there to the end."""
        fd = os.open(self.path(name), flags, mode)
        self.fds.append(fd)
        return fd

    def new_device(self, number):
        """The same: a step that fails leaves its mappings to its end."""
        device = gaia.Device(self.names[number])
        self.devices.append(device)
        return device

    def in_child(self, function):
        """Does it in a fork of this process: what it raises is raised here."""
        child = os.fork()
        if not child:
            code = 253
            try:
                function()
                code = 0
            except OSError as error:
                code = error.errno
            except Different as difference:
                self.tell(f"child: {difference}")
                code = 254
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGBUS:
            raise Bus
        if status > 0 and status < 253:
            raise OSError(status, "in a child")
        same(status, 0, "how a child ended")

    def close(self):
        for device in self.devices:
            if device.handle:
                device.close()
        for fd in self.fds:
            os.close(fd)

    # --- f ---

    def create(self):
        self.fd = self.open("f", os.O_RDWR | os.O_CREAT)
        data = bytes(range(256)) * (64 * PAGE // 256)
        self.write(self.fd, data, 0)
        os.fsync(self.fd)

    def overwrite(self):
        self.write(self.fd, b"overwritten" * 1000, 5 * PAGE + 77)
        self.check(self.fd)

    def open_device(self):
        self.device = self.new_device(0)

    def map_file(self):
        self.map = self.device.mmap(self.fd, 64 * PAGE, 3)

    def touch(self):
        for page in (0, 20, 40, 63):
            if page not in self.unsure:
                same(self.map[page * PAGE + 9], self.content[page * PAGE + 9], f"touched page {page}")

    def store_and_release(self):
        pages = (1, 2, 33)
        self.unsure |= set(pages)
        for page in pages:
            self.map[page * PAGE + 100:page * PAGE + 106] = b"device"
        self.map.release()
        for page in pages:
            self.content[page * PAGE + 100:page * PAGE + 106] = b"device"
        self.unsure -= set(pages)
        self.check(self.fd)

    def write_and_acquire(self):
        self.write(self.fd, b"by a CPU", 2 * PAGE + 200)
        self.map.acquire()
        same(self.map[2 * PAGE + 200:2 * PAGE + 208], b"by a CPU", "acquired")
        same(self.map[2 * PAGE + 100:2 * PAGE + 106], b"device", "one's own")

    def second_device(self):
        other = self.new_device(1)
        map = other.mmap(self.fd, 64 * PAGE, 3)
        if 2 not in self.unsure:
            same(map[2 * PAGE + 100:2 * PAGE + 106], self.content[2 * PAGE + 100:2 * PAGE + 106], "other device")
        self.unsure.add(4)
        map[4 * PAGE:4 * PAGE + 5] = b"other"
        map.release()
        self.content[4 * PAGE:4 * PAGE + 5] = b"other"
        self.unsure.discard(4)
        map.acquire()
        map.unmap()
        other.close()
        self.check(self.fd)

    def mapped_by_a_cpu(self):
        with mmap.mmap(self.fd, 64 * PAGE) as memory:
            self.unsure.add(50)
            memory[50 * PAGE + 3] = 99
            memory.flush(50 * PAGE, PAGE)
        self.content[50 * PAGE + 3] = 99
        self.unsure.discard(50)
        self.check(self.fd)

    def resident(self):
        device = self.new_device(2)
        map = device.mmap(self.fd, 16 * PAGE, 1, gaia.RESIDENT)
        map.acquire()
        for page in range(16):
            if page not in self.unsure:
                same(map[page * PAGE:(page + 1) * PAGE], self.content[page * PAGE:(page + 1) * PAGE], f"resident {page}")
        map.unmap()
        device.close()

    def advise_and_sync(self):
        self.map.advise(gaia.ADV_SEQUENTIAL)
        self.map.advise(gaia.ADV_WILLNEED)
        self.map.advise(gaia.ADV_DONTNEED)
        self.unsure.add(6)
        self.map[6 * PAGE + 30:6 * PAGE + 36] = b"synced"
        self.map.release()
        self.content[6 * PAGE + 30:6 * PAGE + 36] = b"synced"
        self.unsure.discard(6)
        self.map.sync()  # collects it
        self.device.stat()
        self.check(self.fd)

    def cut_and_grow(self):
        self.unsure |= set(range(40, 64))
        os.ftruncate(self.fd, 40 * PAGE + 10)
        self.content[40 * PAGE + 10:] = bytes(24 * PAGE - 10)
        os.ftruncate(self.fd, 64 * PAGE)
        self.unsure -= set(range(40, 64))
        self.check(self.fd)

    def punch(self):
        self.unsure |= {10, 11}
        with open(self.path("f"), "r+b") as file:
            fallocate(file.fileno(), 3, 10 * PAGE, 2 * PAGE)
        self.content[10 * PAGE:12 * PAGE] = bytes(2 * PAGE)
        self.unsure -= {10, 11}
        os.lseek(self.fd, 0, os.SEEK_HOLE)
        self.check(self.fd)

    def unmap(self):
        self.map.unmap()
        self.device.close()
        self.check(self.fd)

    # --- names and attributes ---

    def names_of_files(self):
        os.mkdir(self.path("d"))
        with open(self.path("d/a"), "wb", buffering=0) as file:
            file.write(b"some bytes")
        os.link(self.path("d/a"), self.path("d/b"))
        os.symlink("a", self.path("d/s"))
        same(os.readlink(self.path("d/s")), "a", "link")
        os.mkfifo(self.path("d/p"))
        os.rename(self.path("d/b"), self.path("d/c"))
        same(sorted(os.listdir(self.path("d"))), ["a", "c", "p", "s"], "names")
        with open(self.path("d/c"), "rb") as file:
            same(file.read(), b"some bytes", "renamed")
        os.unlink(self.path("d/c"))

    def attributes(self):
        path = self.path("f")
        os.chmod(path, 0o600)
        same(stat.S_IMODE(os.stat(path).st_mode), 0o600, "mode")
        os.utime(path, ns=(10**18 + 1, 10**18 + 2))
        same(os.stat(path).st_mtime_ns, 10**18 + 2, "times")
        os.chown(path, 1, 1)
        os.setxattr(path, "user.x", b"value")
        same(os.getxattr(path, "user.x"), b"value", "attribute")
        same(os.listxattr(path), ["user.x"], "attributes")
        os.removexattr(path, "user.x")
        os.statvfs(path)

    def copy(self):
        with open(self.path("copy"), "wb+") as file:
            done = 0
            while done < 8 * PAGE:
                done += os.copy_file_range(self.fd, file.fileno(), 8 * PAGE - done, done, done)
            for page in range(8):
                if page not in self.unsure:
                    same(os.pread(file.fileno(), PAGE, page * PAGE), self.content[page * PAGE:(page + 1) * PAGE],
                         f"copied {page}")
        with open(self.path("copy"), "wb"):  # O_TRUNC
            pass
        same(os.stat(self.path("copy")).st_size, 0, "cut at open")

    def all(self):
        if "more" in self.words:
            self.more()
        else:
            self.usual()
        self.step(self.unmap, "map_file")
        self.step(self.final, "create")

    def usual(self):
        step = self.step
        step(self.create)
        step(self.overwrite, "create")
        step(self.names_of_files)
        step(self.attributes, "create")
        step(self.copy, "create")
        step(self.open_device)
        step(self.map_file, "create", "open_device")
        step(self.touch, "map_file")
        step(self.store_and_release, "map_file")
        step(self.write_and_acquire, "store_and_release")
        step(self.second_device, "create")
        step(self.mapped_by_a_cpu, "create")
        step(self.resident, "create")
        step(self.advise_and_sync, "map_file")
        step(self.cut_and_grow, "create")
        step(self.punch, "create")

    def final(self):
        self.check(self.fd)
        os.fsync(self.fd)


def main():
    log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    x = Exercise(sys.argv[1], log, sys.argv[3:])
    before = held()
    x.all()
    x.f.save()
    x.close()
    until = time.monotonic() + 2  # what a thread of libgaia's closes
    while held() != before and time.monotonic() < until:
        time.sleep(0.01)
    left = held()
    for name in before:
        if name in left:
            left.remove(name)
    x.tell("end" + "".join(f" {name}" for name in left))


if __name__ == "__main__":
    main()
