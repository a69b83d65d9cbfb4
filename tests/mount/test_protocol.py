# SPDX-License-Identifier: Apache-2.0
"""Clients that do not keep to the protocol, and tokens."""
import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
import subprocess
import time

import pytest

import helpers
from helpers import (ACQUIRE, ADVISE, ATTACH, DUMP, HELLO, MAP, MIB, PAGE, RELEASE, STAT, SYNC, UNMAP, VERSION, Raw,  # noqa: F401
                     agents, descriptors, devices, get_token, make_random, memory_kib, message, read_at, statistics,
                     userfaultfd, wait_until, write_file)

# --- what is no message -----------------------------------------------------------------------------------------------------

class Good:
    """A client that keeps to the rules, in a process of its own, and a way to see that it is still served."""

    def __init__(self, m, agents):
        self.m, self.agents = m, agents
        self.path = os.path.join(m.mnt, "good")
        write_file(self.path, bytes(8 * PAGE))
        self.child = agents()
        self.child.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 8 * PAGE)\nn = 0", path=self.path)

    def works(self):
        self.child.do("n += 1\nmap[5 * PAGE] = n % 256\nmap.release()\nassert os.pread(fd, 1, 5 * PAGE)[0] == n % 256\n"
                      "os.pwrite(fd, bytes([n % 256]), 3)\nmap.acquire()\nassert map[3] == n % 256")
        assert self.m.proc.poll() is None


@pytest.fixture
def served(mount, agents):
    """A mount, a good client on it, and a file to ask for."""
    m = mount()
    good = Good(m, agents)
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(64 * PAGE))
    fd = os.open(path, os.O_RDWR)
    yield m, good, fd
    good.works()
    os.close(fd)


def mapped(fd, writable=True, pages=64):
    """A raw client that has said hello and has a map: (client, its number)."""
    address, token = get_token(fd)
    raw, faults = Raw(address), userfaultfd()
    assert raw.call(message(HELLO, flags=helpers.TRAPS), [faults]) == 0
    os.close(faults)
    assert raw.call(message(MAP, bytes=pages * PAGE, prot=3 if writable else 1, token=token)) == 0
    return raw, raw.reply["map"]


@pytest.mark.parametrize("data", [
    b"x", b"\0" * 255, b"\0" * 256, b"\0" * 257, b"\xff" * 256, b"\xff" * 60000,
    message(HELLO)[:-1], message(HELLO) + b"\0", message(HELLO, length=255), message(HELLO, length=0),
    message(HELLO, version=0), message(HELLO, version=VERSION - 1), message(HELLO, version=VERSION + 1), message(HELLO, version=65535),
    message(0), message(12), message(11),
    message(65535), message(STAT, device=b"x" * 32),
    message(MAP, bytes=PAGE), message(ATTACH), message(UNMAP), message(ACQUIRE), message(RELEASE), message(SYNC),
    message(ADVISE)], ids=lambda data: f"{len(data)}-{data[:8].hex()}")
def test_no_message(served, data):
    """What is no message, or asks for maps before hello, ends that client."""
    _, good, fd = served
    raw = Raw(get_token(fd)[0])
    assert raw.call(data) == -1
    good.works()


def test_what_anybody_can_say_does_not_fill_the_log(served):
    """A few lines show it."""
    m, good, fd = served
    address, _ = get_token(fd)
    for _ in range(200):
        raw = Raw(address)
        assert raw.call(b"x") == -1
        raw.close()
    for _ in range(200):
        raw, token = hello(address), get_token(fd)[1]
        assert raw.call(message(MAP, bytes=PAGE, prot=3, device=b"cuda:0", token=token, value=[1 << 63] * 20)) == errno.ENODEV
        raw.close()
    good.works()
    lines = m.log_text().splitlines()
    for text in "no message", "wants device cuda:0":
        assert 1 <= sum(text in line for line in lines) <= 10, lines[:30]


def test_silence_and_hanging_up(served):
    m, good, fd = served
    address, _ = get_token(fd)
    silent = [Raw(address) for _ in range(20)]
    good.works()
    for raw in silent[:10]:
        raw.close()
    for raw in silent[10:]:
        raw.send(message(DUMP))
        raw.close()  # before the answer
    good.works()
    before = descriptors(m.pid)
    for _ in range(100):
        raw = Raw(address)
        raw.send(message(STAT))
        raw.close()
    good.works()
    wait_until(lambda: descriptors(m.pid) <= before + 2, what="descriptors of clients that hung up are closed")


def test_300_connections(served):
    """More than the daemon takes: the surplus is turned away, the good client goes on, later ones are taken again."""
    m, good, fd = served
    address, _ = get_token(fd)
    crowd = [Raw(address) for _ in range(60)]
    answered = 0
    for _ in range(240):
        try:
            crowd.append(Raw(address))
        except OSError:
            pass
    for raw in crowd:
        answered += raw.call(message(STAT)) == 0
    print("answered", answered)
    assert answered >= 100
    good.works()
    for raw in crowd:
        raw.close()

    def taken():
        raw = Raw(address)
        result = raw.call(message(STAT))
        raw.close()
        return result == 0
    wait_until(taken, what="a new client is taken")
    statistics(m.mnt)


def test_descriptors_that_are_not_for_faults(served):
    m, good, fd = served
    address, token = get_token(fd)
    before = descriptors(m.pid)
    pipe = os.pipe()
    memfd, null, folder = os.memfd_create("x"), os.open("/dev/null", os.O_RDWR), os.open(m.mnt, os.O_RDONLY)
    for wrong in (memfd, null, folder, fd, pipe[0], pipe[1]):
        raw = Raw(address)
        assert raw.call(message(HELLO), [wrong]) != 0
        raw.close()
        good.works()
    raw = Raw(address)
    raw.call(message(HELLO), [null] * 8)  # too many
    raw.close()
    raw = Raw(address)
    raw.call(message(STAT), [null, null])  # on a message that takes none
    raw.close()
    for one in (*pipe, memfd, null, folder):
        os.close(one)
    wait_until(lambda: descriptors(m.pid) <= before + 2, what="descriptors that a client sent are closed")


def test_hello_twice_and_maps_of_others(served):
    _, good, fd = served
    raw, number = mapped(fd)
    faults = userfaultfd()
    assert raw.call(message(HELLO), [faults]) != 0
    os.close(faults)
    other, other_number = mapped(fd)
    # numbers of maps are per client or unknown to others
    for op in (ACQUIRE, RELEASE, SYNC, ADVISE, UNMAP, ATTACH):
        for unknown in (number + 1000, 0xFFFFFFFF, 0x80000000):
            assert raw.call(message(op, map=unknown, bytes=PAGE)) in (errno.EINVAL, errno.ENOENT, errno.EBADF), op
            good.works()
    assert other.call(message(RELEASE, map=other_number, bytes=PAGE)) in (0, errno.EINVAL)
    raw.close()
    other.close()


def test_attach_to_addresses_that_are_not_there(served):
    _, good, fd = served
    for address in (0, PAGE, 1, (1 << 64) - PAGE, 1 << 47, 0xDEAD000, 123):
        raw, number = mapped(fd)
        raw.call(message(ATTACH, map=number, address=address))
        good.works()
        for op in (ACQUIRE, RELEASE, SYNC, ADVISE):
            raw.call(message(op, map=number, bytes=64 * PAGE, flags=3 if op == ADVISE else 0))
        good.works()
        raw.close()
    good.works()


def test_attach_twice(served):
    """A map has one place: the first."""
    _, good, fd = served
    raw, number = mapped(fd)
    assert raw.call(message(ATTACH, map=number, address=1 << 40)) == 0
    for address in (1 << 40, 1 << 41):
        assert raw.call(message(ATTACH, map=number, address=address)) == errno.EBUSY
    raw.close()
    good.works()


def test_who_may_not_write_releases_nothing(served):
    """libgaia does not ask; somebody else might."""
    m, _, _ = served
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDONLY)
    raw, number = mapped(fd, writable=False)
    assert raw.call(message(ATTACH, map=number, address=1 << 40)) == 0
    assert raw.call(message(RELEASE, map=number, bytes=PAGE)) == errno.EACCES
    assert raw.call(message(SYNC, map=number, bytes=PAGE)) == 0
    raw.close()
    os.close(fd)


def test_ranges_of_a_map_end_with_it(served):
    """A map in the middle of a file: not a page before it, not a page behind it."""
    _, _, fd = served
    address, token = get_token(fd)
    raw = hello(address)
    assert raw.call(message(MAP, offset=8 * PAGE, bytes=8 * PAGE, prot=3, token=token)) == 0
    number = raw.reply["map"]
    assert raw.call(message(ATTACH, map=number, address=1 << 40)) == 0
    for op in (ACQUIRE, RELEASE, SYNC, ADVISE):
        for first, pages in ((8, 8), (8, 1), (15, 1)):
            assert raw.call(message(op, map=number, offset=first * PAGE, bytes=pages * PAGE)) == 0, (op, first, pages)
        for first, pages in ((7, 1), (7, 2), (8, 9), (15, 2), (16, 1), (9, 8), (0, 1)):
            assert raw.call(message(op, map=number, offset=first * PAGE, bytes=pages * PAGE)) == errno.EINVAL, (op, first, pages)
    for offset, size in ((1 << 62, 1 << 62), ((1 << 63) - 2 * PAGE, 2 * PAGE), (0, (1 << 63) - PAGE), (1, PAGE), (0, 0)):
        _, token = get_token(fd)
        assert raw.call(message(MAP, offset=offset, bytes=size, prot=3, token=token)) == errno.EINVAL, (offset, size)
    raw.close()


def test_descriptors_of_who_may_not_write(served):
    """Neither frames nor counters can be opened for writing by who is given them for reading."""
    _, _, fd = served
    for prot, frames in ((1, os.O_RDONLY), (3, os.O_RDWR)):
        address, token = get_token(fd)
        raw = hello(address)
        raw.send(message(MAP, bytes=PAGE, prot=prot, token=token))
        _, fds = raw.receive()
        assert [fcntl.fcntl(one, fcntl.F_GETFL) & os.O_ACCMODE for one in fds] == [frames, os.O_RDONLY]
        assert [stat.S_IMODE(os.fstat(one).st_mode) for one in fds] == [0, 0]
        for one in fds:
            os.close(one)
        raw.close()


def frames_of(m):
    """(bytes that it takes, its length) of the largest soft device's memory for a file."""
    found = [(0, 0)]
    for fd in os.listdir(f"/proc/{m.pid}/fd"):
        path = f"/proc/{m.pid}/fd/{fd}"
        with contextlib.suppress(FileNotFoundError):
            if "gaiafs:frames" in os.readlink(path):
                found.append((os.stat(path).st_blocks * 512, os.stat(path).st_size))
    return max(found)


@pytest.mark.parametrize("end", ["unmap", "exit"])
def test_frames_that_a_client_has_filled(mount, devices, end):
    """Who may store to frames can fill what is absent, past what the device may hold, and past the file's end: all of it is free
    again when nobody maps the file any more. What was placed stays."""
    m = mount("device_cache=4M")
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, 200 * MIB + 1)
    fd, device = os.open(path, os.O_RDWR), devices()
    honest = device.mmap(fd, 200 * MIB, 3)
    for page in (0, 1, 100, 20000, 51199):
        honest[page * PAGE] = 1 + page % 251
    placed = statistics(m.mnt)["devices"][0]["resident_bytes"]
    raw = hello(get_token(fd)[0])
    raw.send(message(MAP, bytes=PAGE, prot=3, token=get_token(fd)[1]))
    reply, fds = raw.receive()
    os.posix_fallocate(fds[0], 0, 300 * MIB)
    assert frames_of(m) == (300 * MIB, 300 * MIB)
    honest.unmap()
    assert statistics(m.mnt)["devices"][0]["resident_bytes"] == placed and "beside what was placed there" not in m.log_text()
    if end == "unmap":
        assert raw.call(message(UNMAP, map=reply["map"])) == 0
    raw.close()
    wait_until(lambda: frames_of(m) == (placed, 200 * MIB + PAGE), what="what nobody has placed is free again")
    wait_until(lambda: "with 29" in m.log_text() and "beside what was placed there" in m.log_text(), what="it is logged")
    again = device.mmap(fd, 200 * MIB, 3)
    assert [again[page * PAGE] for page in (0, 1, 100, 20000, 51199)] == [1 + page % 251 for page in (0, 1, 100, 20000, 51199)]
    again.release()
    assert read_at(path, 1, 20000 * PAGE) == bytes([1 + 20000 % 251])
    again.unmap()
    assert frames_of(m) == (statistics(m.mnt)["devices"][0]["resident_bytes"], 200 * MIB + PAGE)
    for one in (fd, *fds):
        os.close(one)


@pytest.mark.limit(120)
def test_more_maps_than_there_may_be(served):
    """EMFILE; and what was opened for the answer is closed again."""
    m, _, fd = served
    address, _ = get_token(fd)
    raw, before = hello(address), descriptors(m.pid)
    codes = [raw.call(message(MAP, bytes=PAGE, prot=3, token=get_token(fd)[1])) for _ in range(4096 + 20)]
    assert codes == [0] * 4096 + [errno.EMFILE] * 20
    wait_until(lambda: descriptors(m.pid) <= before + 4, what="descriptors of refused maps are closed")
    raw.close()


def test_a_file_that_became_immutable(mount, agents):
    """Who could write when he opened it may not map it for writing when nobody can write any more."""
    m = mount()
    path, direct = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(path, bytes(PAGE))
    fd = os.open(path, os.O_RDWR)
    if subprocess.run(["chattr", "+i", direct], capture_output=True).returncode:
        pytest.skip("no immutable files here")
    try:
        raw, token = hello(get_token(fd)[0]), get_token(fd)[1]
        assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token)) == errno.EACCES
        assert raw.call(message(MAP, bytes=PAGE, prot=1, token=get_token(fd)[1])) == 0
        raw.close()
    finally:
        subprocess.run(["chattr", "-i", direct], check=True)
        os.close(fd)


def test_a_token_ends_with_its_descriptor(served):
    _, good, fd = served
    raw = hello(get_token(fd)[0])
    other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    tokens = [get_token(other)[1] for _ in range(1000)]  # RELEASE may come later than close() returns
    os.close(other)
    wait_until(lambda: raw.call(message(MAP, bytes=PAGE, prot=3, token=tokens.pop())) == errno.EKEYEXPIRED)
    good.works()


def test_requests_with_ranges_out_of_bounds(served):
    _, good, fd = served
    raw, number = mapped(fd)
    edges = [0, 1, PAGE, PAGE - 1, 63 * PAGE, 64 * PAGE, 65 * PAGE, 1 << 62, 1 << 63, (1 << 64) - PAGE, (1 << 64) - 1]
    for op in (ACQUIRE, RELEASE, SYNC, ADVISE):
        for offset in edges:
            for size in edges:
                code = raw.call(message(op, map=number, offset=offset, bytes=size, flags=4))
                if code == -1:
                    raw, number = mapped(fd)
    for offset in edges:
        for size in edges:
            _, token = get_token(fd)
            if raw.call(message(MAP, offset=offset, bytes=size, prot=3, token=token)) == -1:
                raw, number = mapped(fd)
    raw.close()
    good.works()


@pytest.mark.limit(90)
def test_fuzzed_messages(served):
    """Valid headers with random fields, and random bytes, from clients that have maps and clients that have not."""
    m, good, fd = served
    rng = make_random("fuzz")
    edges = [0, 1, 2, PAGE, 64 * PAGE, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, (1 << 63), (1 << 64) - 1,
             (1 << 64) - PAGE]
    raw, number, ended, answered = None, 0, 0, 0
    null = os.open("/dev/null", os.O_RDWR)
    for turn in range(1500):
        if raw is None:
            address, token = get_token(fd)
            if rng.random() < 0.7:
                raw, number = mapped(fd)
            else:
                raw, number = Raw(address), 1
        if rng.random() < 0.05:
            data = rng.randbytes(rng.choice([1, 100, 255, 256, 256, 256, 257, 5000]))
        else:
            def some64():
                return rng.choice(edges) if rng.random() < 0.7 else rng.getrandbits(64)
            if rng.random() < 0.3:
                _, token = get_token(fd)
            data = message(rng.choice([HELLO, MAP, ATTACH, UNMAP, ACQUIRE, RELEASE, SYNC, ADVISE, STAT, rng.getrandbits(16)]),
                           error=rng.getrandbits(31), map=rng.choice([number, number, number + 1, rng.getrandbits(32)]),
                           address=some64() // PAGE * PAGE if rng.random() < 0.5 else some64(), offset=some64(),
                           bytes=some64(), prot=rng.choice([1, 3, rng.getrandbits(32)]),
                           flags=rng.choice([0, 1, 2, 3, 4, rng.getrandbits(32)]),
                           device=rng.choice([b"soft:0", b"soft:1", b"soft:99", b"cuda:0", b"", rng.randbytes(31)]),
                           token=token if rng.random() < 0.7 else rng.randbytes(16),
                           value=[some64() for _ in range(20)])
        code = raw.call(data, [null] if rng.random() < 0.1 else [])
        answered += code >= 0
        if code == -1 or rng.random() < 0.02:
            ended += code == -1
            raw.close()
            raw = None
        if turn % 100 == 0:
            good.works()
    os.close(null)
    if raw:
        raw.close()
    print("ended", ended, "answered", answered)
    assert ended > 10 and answered > 100
    good.works()
    statistics(m.mnt)


# --- tokens -----------------------------------------------------------------------------------------------------------------

def hello(address):
    raw, faults = Raw(address), userfaultfd()
    assert raw.call(message(HELLO), [faults]) == 0
    os.close(faults)
    return raw


def test_tokens(served, agents):
    m, _, fd = served
    address, token = get_token(fd)
    raw = hello(address)
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=b"")) == errno.EKEYEXPIRED
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=os.urandom(16))) == errno.EKEYEXPIRED
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token)) == 0
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token)) == errno.EKEYEXPIRED  # once
    # from a descriptor that is open for reading only
    path = os.path.join(m.mnt, "f")
    for flags, prot, code in ((os.O_RDONLY, 3, errno.EACCES), (os.O_RDONLY, 1, 0), (os.O_WRONLY, 1, errno.EACCES),
                              (os.O_WRONLY, 3, errno.EACCES), (os.O_RDWR, 1, 0)):
        other = os.open(path, flags)
        token = get_token(other)[1]
        assert raw.call(message(MAP, bytes=PAGE, prot=prot, token=token)) == code, (flags, prot)
        if code:  # a refusal does not leave it for a second try
            assert raw.call(message(MAP, bytes=PAGE, prot=1, token=token)) == errno.EKEYEXPIRED
        os.close(other)
    # of another process
    child = agents()
    child.do("fd = os.open(path, os.O_RDWR)\ntoken = get_token(fd)[1]", path=path)
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=child("token"))) == errno.EACCES
    # a directory has none
    folder = os.open(m.mnt, os.O_RDONLY)
    address_again, nothing = get_token(folder)
    assert address_again == address and nothing == bytes(16)
    os.close(folder)
    raw.close()


def test_a_token_of_a_file_that_was_closed_and_deleted(served):
    """The file may be closed and unlinked between the ioctl and the map: no harm."""
    m, _, _ = served
    path = os.path.join(m.mnt, "gone")
    write_file(path, b"x" * PAGE)
    fd = os.open(path, os.O_RDWR)
    address, token = get_token(fd)
    os.close(fd)
    os.unlink(path)
    raw = hello(address)
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token)) in (0, errno.EKEYEXPIRED, errno.ESTALE, errno.ENOENT)
    raw.close()


def test_many_tokens(served):
    """Tokens that nobody uses do not pile up."""
    m, _, fd = served
    before = memory_kib(m.pid)
    for _ in range(20000):
        get_token(fd)
    # A sanitizer keeps what is freed for a while.
    assert memory_kib(m.pid) < before + (65536 if os.environ.get("GAIAFS_SANITIZE") else 4096)
    raw, _ = mapped(fd)
    raw.close()


FLOOD = """
import fcntl, os, sys
os.setgroups([])
os.setuid(65534)
print("floods", flush=True)
while True:
    fcntl.ioctl(int(sys.argv[1]), int(sys.argv[2]), bytes(88))
"""


def test_who_asks_for_many_tokens_takes_nobody_elses(served):
    """Between a token and its map a table full of another user's may come; how many did is seen by our own."""
    _, _, fd = served
    reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    flood = subprocess.Popen(["/usr/bin/python3", "-c", FLOOD, str(reader), str(helpers.IOCTL_TOKEN)], pass_fds=[reader],
                             stdout=subprocess.PIPE, text=True)
    try:
        assert flood.stdout.readline() == "floods\n"
        raw = hello(get_token(fd)[0])
        for _ in range(20):
            token = get_token(fd)[1]
            time.sleep(0.1)
            assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token)) == 0
        with open(f"/proc/{flood.pid}/stat", encoding="ascii") as file:
            ticks = sum(int(word) for word in file.read().split()[13:15])
        assert ticks > 2 and flood.poll() is None  # hundreds of tokens each
        raw.close()
    finally:
        flood.kill()
        flood.wait()
        os.close(reader)


# Each of the first $LOSES tokens goes before it is used, as its user asks for more than there is room for.
LOSES_TOKENS = """
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int ioctl(int fd, unsigned long request, ...)
{
    static int lost;
    char other[88] = {0};
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    int result = (int)syscall(SYS_ioctl, fd, request, argument);
    if (request == %d && lost < atoi(getenv("LOSES"))) {
        lost++;
        for (int i = 0; i < 1024; i++)
            syscall(SYS_ioctl, fd, request, other);
    }
    return result;
}
"""


@pytest.mark.parametrize("lost, error", [(0, 0), (1, 0), (7, 0), (8, errno.EAGAIN)])
def test_a_map_asks_again_for_a_token_that_has_gone(served, agents, workdir, lost, error):
    m, _, _ = served
    source, shim = os.path.join(workdir, "shim.c"), os.path.join(workdir, "shim.so")
    write_file(source, (LOSES_TOKENS % helpers.IOCTL_TOKEN).encode())
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source], check=True)
    child = agents({"LD_PRELOAD": shim, "LOSES": str(lost)})
    child.do("fd = os.open(path, os.O_RDWR)", path=os.path.join(m.mnt, "f"))
    if error:
        with pytest.raises(OSError) as raised:
            child.do("gaia.Device().mmap(fd, PAGE)")
        assert raised.value.errno == error
    else:
        child.do("map = gaia.Device().mmap(fd, PAGE)\nmap[5] = 7\nmap.release()\nassert os.pread(fd, 1, 5)[0] == 7")


def test_only_who_mounted_sees_the_dump(served):
    """The dump has the paths of all files."""
    m, _, _ = served
    shutil.copy(os.path.join(helpers.BIN, "gaiactl"), os.path.dirname(m.mnt))
    os.chmod(m.mnt, 0o755)
    done = subprocess.run([os.path.join(os.path.dirname(m.mnt), "gaiactl"), "stat", m.mnt], user=65534, group=65534,
                          extra_groups=[], capture_output=True, text=True)
    assert done.returncode == 1 and "good" not in done.stdout, done.stdout


def test_descriptors_of_an_empty_packet(served):
    """It looks like the end of the connection, and brings descriptors all the same."""
    m, _, fd = served
    before = descriptors(m.pid)
    address, _ = get_token(fd)
    with open("/dev/null", "rb") as null:
        for _ in range(20):
            raw = Raw(address)
            socket.send_fds(raw.socket, [b""], [null.fileno()] * 8)
            assert raw.receive() is None
            raw.close()
    wait_until(lambda: descriptors(m.pid) <= before, what="the daemon has as many descriptors as before")
