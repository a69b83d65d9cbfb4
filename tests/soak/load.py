# SPDX-License-Identifier: Apache-2.0
"""Players for a mount: each goes on until told to stop, and checks what it can. Each is one turn() at a time."""
import contextlib
import mmap
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), "mount"))

PAGE = 4096


class Wrong(Exception):
    """The mount answered what it must not."""


class Names:
    """Names come, are looked at in every way, and go. Errors of the race with other players are part of it."""

    def __init__(self, top, seed):
        self.top, self.rng = top, random.Random(seed)
        self.names = [f"n{i}" for i in range(12)] + [f"d{i}/n{j}" for i in range(3) for j in range(4)]
        self.actions = [self.write, lambda: os.unlink(self.path()), lambda: os.rename(self.path(), self.path()),
                        lambda: os.stat(self.path()), lambda: os.symlink("n1", self.path()),
                        lambda: os.mknod(self.path()), lambda: os.link(self.path(), self.path()), self.hold, self.walk,
                        self.directory, lambda: os.listdir(self.top), lambda: os.readlink(self.path()),
                        lambda: os.setxattr(self.path(), "user.a", b"b")]

    def path(self):
        return os.path.join(self.top, self.rng.choice(self.names))

    def write(self):
        with open(self.path(), "wb") as file:
            file.write(b"text")

    def hold(self):
        with open(self.path(), "r+b") as file:
            os.unlink(file.name)
            os.fstat(file.fileno())
            file.write(b"x")

    def walk(self):
        for folder, _, found in os.walk(self.top):
            for name in found:
                with contextlib.suppress(OSError):
                    os.stat(os.path.join(folder, name))

    def directory(self):
        name = os.path.join(self.top, f"d{self.rng.randrange(3)}")
        if self.rng.random() < 0.5:
            os.mkdir(name)
        else:
            for entry in os.listdir(name):
                os.unlink(os.path.join(name, entry))
            os.rmdir(name)

    def turn(self):
        with contextlib.suppress(OSError):
            self.rng.choice(self.actions)()


class Bytes:
    """A file that is read, written, cut and mapped, beside a copy in memory."""

    PAGES = 64

    def __init__(self, top, seed):
        self.path, self.rng = os.path.join(top, f"bytes-{seed}"), random.Random(seed)
        self.copy = bytearray(self.PAGES * PAGE)
        with open(self.path, "wb") as file:
            file.write(self.copy)

    def range(self):
        offset = self.rng.randrange(len(self.copy))
        return offset, min(self.rng.choice((1, 100, PAGE, 20 * PAGE)), len(self.copy) - offset)

    def look(self, got, offset):
        if got != self.copy[offset:offset + len(got)]:
            raise Wrong(f"{self.path}: other bytes than were written, from {offset} on")

    def turn(self):
        offset, length = self.range()
        kind, data = self.rng.randrange(6), self.rng.randbytes(length)
        with open(self.path, "r+b", buffering=0) as file:
            if kind <= 1:
                self.look(os.pread(file.fileno(), length, offset), offset)
            elif kind == 2:
                if os.pwrite(file.fileno(), data, offset) != length:
                    raise Wrong("a short write")
                self.copy[offset:offset + length] = data
            elif kind == 3:
                with mmap.mmap(file.fileno(), len(self.copy)) as mapping:
                    mapping[offset:offset + length] = data
                    self.copy[offset:offset + length] = data
            elif kind == 4:
                os.ftruncate(file.fileno(), offset)
                os.ftruncate(file.fileno(), len(self.copy))
                self.copy[offset:] = bytes(len(self.copy) - offset)
            else:
                os.fsync(file.fileno())


class Devices:
    """Programs with devices that come and go: map, acquire, store, release, unmap; and a plain read of what was stored."""

    PAGES = 96

    def __init__(self, top, seed):
        import gaia
        self.gaia, self.path, self.rng = gaia, os.path.join(top, f"device-{seed}"), random.Random(seed)
        with open(self.path, "wb") as file:
            file.write(bytes(self.PAGES * PAGE))

    def turn(self):
        device = self.gaia.Device(f"soft:{self.rng.randrange(4)}")
        fd = os.open(self.path, os.O_RDWR)
        mapping = device.mmap(fd, self.PAGES * PAGE)
        for _ in range(self.rng.randrange(1, 6)):
            at, byte = self.rng.randrange(self.PAGES * PAGE), self.rng.randrange(256)
            mapping.acquire()
            mapping[at] = byte
            mapping.release()
            if os.pread(fd, 1, at)[0] != byte:
                raise Wrong(f"{self.path}: byte {at} is not what a device stored and released")
        if self.rng.random() < 0.8:
            mapping.unmap()
        if self.rng.random() < 0.3:
            os.fsync(fd)
        os.close(fd)
        device.close()


KINDS = {"names": Names, "bytes": Bytes, "devices": Devices}


def main():
    """A player of its own process: load.py KIND FOLDER SEED. A line "play N": N turns at most for so many milliseconds;
    it answers with how many it did."""
    import time
    player = KINDS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    for line in sys.stdin:
        until, turns = time.monotonic() + float(line), 0
        while time.monotonic() < until:
            player.turn()
            turns += 1
        print(turns, flush=True)


if __name__ == "__main__":
    main()
