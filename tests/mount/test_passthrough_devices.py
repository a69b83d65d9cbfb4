# SPDX-License-Identifier: Apache-2.0
"""What programs open that use devices is not passed through: who maps it then need not compare at each acquire. Needs
Linux 6.9."""
import contextlib
import ctypes
import functools
import itertools
import mmap
import os
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from files import make, pattern
from helpers import PAGE, agents, devices, kernel_at_least, stand_still, wait_until, write_file  # noqa: F401
from passing import mode, modes, passing  # noqa: F401
from test_containers import PID


@pytest.fixture
def m(passing):
    """A mount as it is by default with a libfuse that has passthrough."""
    return passing(of="on")


def acquires_by_itself(m, mapping):
    """Whether the daemon is not needed to find that nothing has changed."""
    done = threading.Event()

    def acquire():
        mapping.acquire()
        done.set()

    mapping.acquire()
    stand_still(m.pid)
    try:
        thread = threading.Thread(target=acquire)
        thread.start()
        alone = done.wait(0.5)  # a second after which it asks anyway: timeout=
    finally:
        os.kill(m.pid, signal.SIGCONT)
        thread.join()
    return alone


def test_who_has_opened_a_device(passing, devices, agents):
    """Its files are not passed through, also those that another program has written and closed; others' are."""
    m = passing("timeout=60", of="on")
    legacy = agents()
    content = bytearray(pattern(16 * PAGE))
    legacy.do("f = open(path, 'wb')\nf.write(content)\nf.flush()", path=os.path.join(m.mnt, "f"), content=bytes(content))
    legacy.do("other = open(path, 'wb')", path=os.path.join(m.mnt, "other"))
    assert modes(m) == {"f": "passthrough", "other": "passthrough"}
    legacy.do("f.close()")
    wait_until(lambda: modes(m) == {"other": "passthrough"}, what="the kernel has told of the close")
    device = devices()
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR)
    assert mode(m) == "cached"
    mapping = device.mmap(fd, len(content))
    assert mode(m) == "tracked" and mapping[:] == content
    if kernel_at_least(6, 16):  # before, each acquire has the kernel ask the daemon something
        assert acquires_by_itself(m, mapping)
    legacy.do("f = open(path, 'r+b', buffering=0)\nf.write(b'legacy')", path=os.path.join(m.mnt, "f"))
    content[:6] = b"legacy"
    mapping.acquire()
    assert mapping[:] == content
    legacy.do("more = open(path, 'wb')", path=os.path.join(m.mnt, "more"))
    assert modes(m) == {"f": "tracked", "other": "passthrough", "more": "passthrough"}


def test_all(passing, devices):
    """passthrough=all: its files, too."""
    m = passing(of="all")
    device = devices()
    fd = os.open(make(m, bytes(PAGE)), os.O_RDWR)
    assert mode(m) == "passthrough"
    mapping = device.mmap(fd, PAGE)
    assert mode(m) == "passthrough"
    assert not acquires_by_itself(m, mapping)


@contextlib.contextmanager
def mapped(fd, length):
    """A mapping that does not keep a descriptor, as Python's does: its address."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(length), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd,
                        ctypes.c_long(0))
    yield address
    assert libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length)) == 0


def test_what_it_had_open_before(m, devices):
    """Is passed through until it is closed, and nothing has it mapped."""
    content = pattern(4 * PAGE)
    path = make(m, content)
    fds = [os.open(path, os.O_RDWR)]
    devices()
    fds.append(os.open(path, os.O_RDONLY))
    with mapped(fds[0], len(content)) as address:
        for fd in fds:
            assert mode(m) == "passthrough"
            os.close(fd)
        wait_until(lambda: modes(m) == {}, what="the kernel has told of the closes")
        fd = os.open(path, os.O_RDWR)
        assert mode(m) == "passthrough"
        ctypes.memmove(address + PAGE, b"stored", 6)
        content = content[:PAGE] + b"stored" + content[PAGE + 6:]
        assert os.pread(fd, len(content), 0) == content == ctypes.string_at(address, len(content))
        os.close(fd)
    wait_until(lambda: modes(m) == {}, what="the kernel has told of the closes")
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "cached" and os.pread(fd, len(content), 0) == content
    os.close(fd)


def test_what_others_have_open(m, devices, agents):
    legacy = agents()
    path = make(m, pattern(4 * PAGE))
    legacy.do("f = open(path, 'r+b', buffering=0)", path=path)
    device = devices()
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "passthrough"
    mapping = device.mmap(fd, 4 * PAGE)
    legacy.do("f.write(b'legacy')")
    mapping.acquire()
    assert mapping[:9] == b"legacy" + pattern(4 * PAGE)[6:9]


can_prune = pytest.mark.skipif(not kernel_at_least(6, 18), reason="the kernel can't be asked to forget a file")


@can_prune
@pytest.mark.parametrize("mapping_outlives", [False, True])
def test_what_all_have_closed(m, devices, agents, mapping_outlives):
    """A file that a device had while it was passed through is tracked at its next open, whoever that is; but not while
    somebody has it mapped."""
    legacy = agents()
    content = bytearray(pattern(4 * PAGE))
    path = make(m, content)
    open_it = "f = open(path, 'r+b', buffering=0)"
    legacy.do(open_it, path=path)
    device = devices()
    fd = os.open(path, os.O_RDWR)
    gpu = device.mmap(fd, len(content))
    assert mode(m) == "passthrough" and gpu[:] == content
    with mapped(fd, len(content)) if mapping_outlives else contextlib.nullcontext() as address:
        legacy.do("f.close()")
        gpu.unmap()
        os.close(fd)
        wait_until(lambda: modes(m) == {}, what="the kernel has told of the closes")
        if mapping_outlives:
            time.sleep(0.1)
            legacy.do(open_it)
            assert mode(m) == "passthrough"
            ctypes.memmove(address + PAGE, b"stored", 6)
            content[PAGE:PAGE + 6] = b"stored"
            legacy.do("f.close()")

    def is_tracked():
        legacy.do(open_it)
        tracked = mode(m) == "tracked"
        if not tracked:
            legacy.do("f.close()")
            time.sleep(0.05)  # it is asked to forget when it has been closed
        return tracked

    wait_until(is_tracked, what="the kernel has forgotten it")
    legacy.do("f.write(b'legacy')")
    content[:6] = b"legacy"
    fd = os.open(path, os.O_RDWR)
    gpu = device.mmap(fd, len(content))
    gpu.acquire()
    assert gpu[:] == content and os.pread(fd, len(content), 0) == content


@pytest.mark.parametrize("how", ["create", "thread", "write only", "read only"])
def test_however_it_opens_them(m, devices, how):
    devices()
    path = os.path.join(m.mnt, "f")
    if how != "create":
        write_file(os.path.join(m.data, "f"), bytes(PAGE))
    flags = {"create": os.O_RDWR | os.O_CREAT, "write only": os.O_WRONLY, "read only": os.O_RDONLY}.get(how, os.O_RDWR)
    opened = []
    if how == "thread":
        thread = threading.Thread(target=lambda: opened.append(os.open(path, flags)))
        thread.start()
        thread.join()
    else:
        opened.append(os.open(path, flags))
    assert mode(m) == "cached"


def test_a_device_that_was_opened_before_the_mount(passing, devices):
    """Its program is known from its first map on."""
    device = devices()
    m = passing(of="on")
    first = os.open(make(m, bytes(PAGE), "first"), os.O_RDWR)
    device.mmap(first, PAGE)
    os.open(make(m, bytes(PAGE), "second"), os.O_RDWR)
    assert modes(m) == {"first": "passthrough", "second": "cached"}


def test_a_program_in_a_container(m, agents):
    """It calls itself by another number than the daemon does."""
    if subprocess.run([*PID, "true"], capture_output=True, timeout=20, check=False).returncode:
        pytest.skip("no PID namespaces here")
    inside = agents(None, PID)
    inside.do("dev = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR)", path=make(m, bytes(PAGE)))
    assert mode(m) == "cached"


def test_a_program_that_has_ended(m, agents):
    """The next to have its number is another one; and what it had mapped is tracked while devices have it."""
    one, two = agents(), agents()
    path = make(m, bytes(PAGE))
    one.do("dev = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR)", path=path)
    assert mode(m) == "cached"
    one.end()
    wait_until(lambda: modes(m) == {}, what="its files are closed")
    two.do("fd = os.open(path, os.O_RDWR)", path=path)
    assert mode(m) == "passthrough"


def test_a_mount_that_does_not_answer(passing, agents):
    """Holds up nobody who opens a device; the others are told."""
    stuck = [passing(of="on") for i in range(2)]
    m = passing(of="on")
    agent = agents()
    for one in stuck:
        stand_still(one.pid)
    try:
        began = time.monotonic()
        agent.do("devices = [gaia.Device('soft:0') for i in range(500)]")  # more than wait in a queue
        assert time.monotonic() - began < 20
        agent.do("fd = os.open(path, os.O_RDWR)", path=make(m, bytes(PAGE)))
        assert mode(m) == "cached"
    finally:
        for one in stuck:
            os.kill(one.pid, signal.SIGCONT)
    names = map(str, itertools.count())

    def is_told(one):
        """An OPEN waits for the news only for a moment."""
        name = next(names)
        agent.do("fd = os.open(path, os.O_RDWR)", path=make(one, bytes(PAGE), name))
        return mode(one, name) == "cached"

    for one in stuck:
        wait_until(functools.partial(is_told, one), what="it is told")


def test_who_listens_in_place_of_a_mount(agents):
    """Can send nothing to who opens a device: to close a descriptor of his could take for ever."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        for slot in range(63, 0, -1):
            with contextlib.suppress(OSError):
                listener.bind(f"\0gaiafs-programs-{slot}")
                break
        listener.listen(64)
        listener.settimeout(20)
        agent = agents()
        agent.start("while not stop[0]: gaia.Device('soft:0').close()", stop=[0])
        came = sent = 0
        while came < 2000:  # some of them before it has closed its end
            connection, _ = listener.accept()
            peer, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            came += peer == agent.pid
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(connection, [b"x"], [0])
                sent += peer == agent.pid
            connection.close()
        assert sent == 0
        agent.kill()


def test_who_connects_and_stays(m, agents):
    """Is closed by a thread that nobody waits for; the others are heard."""
    m.connections = []
    for i in range(64):
        for slot in range(8):
            with contextlib.suppress(OSError):
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.setblocking(False)
                m.connections.append(connection)
                connection.connect(f"\0gaiafs-programs-{slot}")
                connection.send(b"x" * 256)
    agent = agents()
    agent.do("dev = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR)", path=make(m, bytes(PAGE)))
    assert mode(m) == "cached"
    for connection in m.connections:
        connection.close()


# --- pages of the kernel's own --------------------------------------------------------------------------------------

# What fills them, of a file in passthrough: what reads ahead; and a descriptor with O_APPEND, which asks the daemon.
FILLS = {"read ahead": "os.posix_fadvise(fd, 0, PAGE, os.POSIX_FADV_WILLNEED)",
         "sendfile": "out = os.memfd_create('out')\nassert os.sendfile(out, log, 0, PAGE) == PAGE\nos.close(out)"}
OPEN = "fd, log = (os.open(path, os.O_RDWR | flag) for flag in (0, os.O_APPEND))\nmapping = mmap.mmap(fd, PAGE)"
CLOSE = "mapping.close()\nos.close(fd)\nos.close(log)"
CHANGE = """
end = time.monotonic() + 0.03
while time.monotonic() < end:
    libc.fallocate(fd, 3, ctypes.c_long(63 * PAGE), ctypes.c_long(PAGE))  # KEEP_SIZE | PUNCH_HOLE
os.close(fd)
"""


@pytest.mark.parametrize("fill", FILLS)
def test_what_the_kernel_has_from_before(m, devices, agents, fill):
    """Of a file that leaves passthrough it shows none of what it had read while others stored: also where the stores met
    changes of the daemon's, so that the file's times look like those of a change of its own."""
    path, legacy, changer = make(m, bytes(64 * PAGE)), agents(), agents()
    changer.do("libc = ctypes.CDLL(None)")
    devices()
    for turn in range(1, 26):
        legacy.do(OPEN, path=path)
        assert mode(m) == "passthrough"
        changer.do("fd = os.open(path, os.O_RDWR)", path=path)  # which drops the pages that the kernel has
        legacy.do(FILLS[fill])
        assert legacy("os.pread(fd, 1, 0)") == bytes([turn - 1])
        changer.start(CHANGE)
        time.sleep(0.01)
        legacy.do("mapping[0] = value", value=turn)
        changer.finish()
        legacy.do(CLOSE)
        wait_until(lambda: modes(m) == {}, what="the kernel has told of the closes")
        for pause in 0, 0.08:  # times that are newer than 50 ms say nothing
            time.sleep(pause)
            fd = os.open(path, os.O_RDONLY)
            assert mode(m) == "cached"
            assert os.pread(fd, 1, 0) == bytes([turn])
            os.close(fd)
            wait_until(lambda: modes(m) == {}, what="the kernel has told of the close")


def test_who_opens_a_file_just_as_it_leaves(m, agents, workdir):
    """Somebody else's open is answered while the one that has the file leave is on its way: he sees none of those either, and
    what he stores brings none of them into the file."""
    rounds, legacy, program = 150, agents(), agents()
    flag = os.path.join(workdir, "flag")
    write_file(flag, bytes(PAGE))
    fd = os.open(flag, os.O_RDWR)
    go = mmap.mmap(fd, PAGE)
    program.do("dev = gaia.Device('soft:0')\ngo = mmap.mmap(os.open(flag, os.O_RDWR), PAGE)", flag=flag)
    legacy.do("fds = []")
    for turn in range(rounds):
        path = make(m, b"A" * 2 * PAGE, f"f{turn}")
        legacy.do(OPEN, path=path)
        legacy.do(FILLS["sendfile"] + "\nos.pwrite(fd, b'B' * PAGE, 0)\n" + CLOSE)
        time.sleep(0.06)  # times that are newer than 50 ms say nothing
        wait_until(lambda: modes(m) == {}, what="the kernel has told of the closes")
        go[0] = 0
        program.start("while not go[0]:\n    pass\nfd = os.open(path, os.O_RDONLY)\ntime.sleep(0.002)\nos.close(fd)", path=path)
        time.sleep(0.004)
        end = time.perf_counter() + turn % 10 * 20e-6
        go[0] = 1
        while time.perf_counter() < end:
            pass
        mine = os.open(path, os.O_RDWR)
        found = os.pread(mine, PAGE, 0)
        with mmap.mmap(mine, PAGE) as mapping:
            mapping[5] = ord("C")
            mapping.flush()
        os.close(mine)
        program.finish()
        assert found == b"B" * PAGE, turn
        with open(os.path.join(m.data, f"f{turn}"), "rb") as below:
            assert below.read(PAGE) == b"BBBBBC" + b"B" * (PAGE - 6), turn
    go.close()
    os.close(fd)
