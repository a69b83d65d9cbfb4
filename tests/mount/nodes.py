# SPDX-License-Identifier: Apache-2.0
"""Several nodes over one data directory: their mounts, which of them is the home of a file, and programs on them."""
import contextlib
import ctypes
import ctypes.util
import itertools
import mmap
import os
import signal
import struct
import time

import pytest

from gaia import default_device
from helpers import functions_of, standing_still, statistics, wait_until, write_file

counter = itertools.count()
# Of the log of a node that has given up a file that it was the home of.
TAKEN_OVER = "is another node now, as this one was not heard: "

SIDES = ["home", "agent"]


# --- mounts -------------------------------------------------------------------------------------------------------------

class Cluster(list):
    """The mounts of a data directory, by number; names are "a", "b", ..."""

    def __init__(self, mount, data, count, options):
        super().__init__([None] * count)
        self.start, self.data, self.options = mount, data, options
        self.names = [chr(ord("a") + i) for i in range(count)]
        prefix = f"gaiafs-test-{os.getpid()}-{next(counter)}"
        self.addresses = [f"local:{prefix}-{name}" for name in self.names]
        self.peers = "/".join(f"{name}@{address}" for name, address in zip(self.names, self.addresses))

    def mount(self, number, options=None, **kwargs):
        self[number] = self.start(f"node={self.names[number]},peers={self.peers},{options or self.options}", data=self.data,
                                  **kwargs)
        return self[number]

    def sides(self, path, first):
        """(who acts first, the other one) of a file's home and the first node that is an agent of it."""
        home = self.names.index(home_of(path, self.names))
        agent = next(i for i in range(len(self)) if i != home)
        return (home, agent) if first == "home" else (agent, home)

    def make(self, content, name="f", home=None, through=0):
        """A file of that content, written through a mount. home: the number of the node that is its home."""
        folder = self[through].mnt
        for number in range(200):
            path = os.path.join(folder, f".{name}-{number}")
            write_file(path, content)
            if home is None or home_of(os.path.join(self.data, os.path.basename(path)), self.names) == self.names[home]:
                break
        else:
            pytest.fail(f"none of 200 files has node {home} as its home")
        os.rename(path, os.path.join(folder, name))
        for other in range(number):
            os.unlink(os.path.join(folder, f".{name}-{other}"))

    def path(self, number, name="f"):
        return os.path.join(self[number].mnt, name)

    def below(self, name="f"):
        return os.path.join(self.data, name)


@pytest.fixture
def cluster(mount, workdir):
    """A function that mounts: cluster(count=2, options="timeout=0", only=[numbers that are mounted at once],
    data=a directory that is there) -> Cluster."""
    made = itertools.count()

    def start(count=2, options="timeout=0", only=None, data=None):
        if not data:
            data = os.path.join(workdir, f"shared{next(made)}")
            os.mkdir(data)
        nodes = Cluster(mount, data, count, options)
        for number in range(count) if only is None else only:
            nodes.mount(number)
        return nodes

    return start


@pytest.fixture
def pair(cluster, agents, request):
    """A function that mounts: pair(content, options="timeout=0", count=2, ...) -> (Cluster, who acts first, the other, numbers of
    their nodes). Two nodes have a program each; `first` (SIDES) says whose acts first; the rest is for both programs."""
    first = request.getfixturevalue("first")

    def start(content, options="timeout=0", count=2, **kwargs):
        nodes = cluster(count, options)
        nodes.make(content, home=0)
        numbers = nodes.sides(nodes.below(), first)
        return (nodes, *(Program(agents(), nodes.path(number), **kwargs) for number in numbers), numbers)

    return start


@contextlib.contextmanager
def taken_for_dead(m, seconds):
    """The daemon stands still for so long, which is longer than peer_timeout, while the block runs, and goes on."""
    with standing_still(m.pid):
        time.sleep(seconds)
        yield


def tracked(m):
    """Names of the files whose home the mount is and that it tracks."""
    return [file["path"] for file in statistics(m.mnt)["files"]]


def served(m, op):
    """How often others have asked the mount for an operation."""
    return statistics(m.mnt)["nodes"]["served"].get(op, 0)


def tracked_by_all(nodes, *names):
    """Open files ("f") are known as tracked everywhere: what is promised of tracked files holds from here on."""
    def done():
        opened = [statistics(m.mnt)["open"] for m in nodes]
        for name in names or ("f",):
            modes = [{o["mode"] for o in some if o["path"] == name} for some in opened]
            if not any(modes) or not all(mode <= {"tracked"} for mode in modes):
                return False
        return True
    wait_until(done, what="tracked everywhere")


# --- whose file it is -----------------------------------------------------------------------------------------------------

def file_handle(path):
    """(type, bytes) as name_to_handle_at() has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    mount_id = ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), buffer, ctypes.byref(mount_id), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at", path)
    length, kind = struct.unpack_from("=Ii", buffer.raw)
    return kind, buffer.raw[8:8 + length]


def hash_of(name):
    """XXH3-64."""
    xxhash = ctypes.CDLL("libxxhash.so.0")
    xxhash.XXH3_64bits.restype = ctypes.c_uint64
    return xxhash.XXH3_64bits(name.encode(), ctypes.c_size_t(len(name)))


def home_of(path, names):
    """The name of a file's home: rendezvous hashing of its handle, computed here once more. path: in the data
    directory."""
    xxhash = ctypes.CDLL("libxxhash.so.0")
    xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
    kind, handle = file_handle(path)
    identity = struct.pack("=iI", kind, len(handle)) + handle

    def score(name):
        seed = hash_of(name)
        return xxhash.XXH3_64bits_withSeed(identity, ctypes.c_size_t(len(identity)), ctypes.c_uint64(seed))
    return max(sorted(names), key=score)


# --- programs -------------------------------------------------------------------------------------------------------------

class Program:
    """A process on a node that has a file open, mapped, and mapped on a device; each of the last two if wanted."""

    def __init__(self, agent, path, device="soft:0", cpu=True, length=None, flags=0):
        self.agent = functions_of("nodes", agent)
        self.pid = agent.pid
        length = length or os.stat(path).st_size
        agent.do("import faulthandler\nfaulthandler.enable()\nfd = os.open(path, os.O_RDWR)", path=path, length=length)
        if cpu:
            agent.do("cpu = mmap.mmap(fd, length)")
        if device:
            device = default_device() if device == "soft:0" else device
            agent.do("dev = gaia.Device(device)\nmap = dev.mmap(fd, length, flags=flags)", device=device, flags=flags)

    def write(self, offset, data):
        assert self.agent("os.pwrite(fd, data, offset)", offset=offset, data=data) == len(data)

    def read(self, length=1 << 30, offset=0):
        return self.agent("os.pread(fd, length_, offset)", length_=length, offset=offset)

    def direct(self):
        return self.agent("read_direct(f'/proc/self/fd/{fd}', os.fstat(fd).st_size)")

    def size(self):
        return self.agent("os.fstat(fd).st_size")

    def store(self, offset, data):
        self.agent.do("cpu[offset:offset + len(data)] = data", offset=offset, data=data)

    def load(self, start=0, end=None):
        return self.agent("cpu[start:end]", start=start, end=end)

    def fsync(self):
        self.agent.do("os.fsync(fd)")

    def msync(self):
        self.agent.do("cpu.flush()")

    def sync_file_range(self):
        assert self.agent("sync_file_range(fd)") == 0

    def close_once(self):
        """A descriptor of the file is closed, which flushes."""
        self.agent.do("os.close(os.dup(fd))")

    def truncate(self, size):
        self.agent.do("os.ftruncate(fd, size)", size=size)

    def device_store(self, offset, data):
        self.agent.do("map[offset:offset + len(data)] = data", offset=offset, data=data)

    def device_load(self, start=0, end=None):
        return self.agent("map[start:end]", start=start, end=end)

    def acquire(self):
        self.agent.do("map.acquire()")

    def release(self):
        self.agent.do("map.release()")

    def grown(self):
        """What the file has grown by is past its end for a GPU until it acquires: stores there are lost."""
        if default_device() != "soft:0":
            self.acquire()

    def acquired(self, end=None):
        return self.agent("(map.acquire(), map[:end])[1]", end=end)


def sync_file_range(fd):
    """Writes out what is dirty and waits for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), 7)


def pages_held(mapping):
    """How many pages of the file the kernel holds: mincore()."""
    libc = ctypes.CDLL(None, use_errno=True)
    there = ctypes.create_string_buffer((len(mapping) + 4095) // 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping)), there) == 0
    return sum(byte & 1 for byte in there.raw)


def store_as(number, path, at, new):
    """A child of that number, which stores through a mapping and stays; or a negative errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted, told = ctypes.c_int(number), os.pipe()
    arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1, 0)  # struct clone_args
    child = libc.syscall(ctypes.c_long(435), arguments, ctypes.c_size_t(88))  # clone3
    if child < 0:
        return -ctypes.get_errno()
    if not child:
        fd = os.open(path, os.O_RDWR)
        memory = mmap.mmap(fd, 0)
        memory[at:at + len(new)] = new
        os.write(told[1], b"!")
        signal.pause()
        os._exit(0)
    os.close(told[1])
    assert os.read(told[0], 1) == b"!"
    os.close(told[0])
    return child


def first_difference(got, wanted):
    """None, or where two byte strings differ, in words."""
    if got == wanted:
        return None
    if len(got) != len(wanted):
        return f"{len(got)} bytes instead of {len(wanted)}"
    at = next(i for i, (a, b) in enumerate(zip(got, wanted)) if a != b)
    count = sum(a != b for a, b in zip(got, wanted))
    return (f"{count} bytes differ, the first at {at} (page {at // 4096}): {got[at:at + 8].hex()} instead of "
            f"{bytes(wanted[at:at + 8]).hex()}")


def check(what, got, wanted):
    different = first_difference(got, wanted)
    assert different is None, f"{what}: {different}"


def all_see(programs, content, end=None):
    """read(), load() and the acquired device of each program have this content."""
    content = bytes(content)
    for name, program in programs.items():
        check(f"read() on {name}", program.read(), content)
        check(f"load() on {name}", program.load(end=end or len(content)), content)
        check(f"device of {name}", program.acquired(end=end or len(content)), content)
