# SPDX-License-Identifier: Apache-2.0
"""Programs in namespaces of their own, as containers are: one that can't connect to the daemon's name hands over a socket,
and a signal for one of its threads comes to that thread, not to whoever has its number outside."""
import errno
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys

import pytest

import conftest
import helpers
from files import pattern
from helpers import (PAGE, ROWS, AgentDied, agents, daemon_with_faults, read_file, statistics, wait_until, write_at,  # noqa: F401
                     write_file)

IOCTL_CONNECT = 1 << 30 | 8 << 16 | ord("G") << 8 | 2
NET = ("unshare", "--net")
# The shell is the namespace's first process: the kernel keeps signals from outside from that one.
ALL = ("unshare", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh")
USER = ("unshare", "--user", "--map-root-user", "--net")
CONTAINERS = {"network": NET, "all": ALL, "user": USER}


@pytest.fixture(params=CONTAINERS)
def contained(request, agents):
    """A function that starts a process in such a container."""
    before = CONTAINERS[request.param]
    if subprocess.run([*before, "true"], capture_output=True, timeout=20, check=False).returncode:
        pytest.skip(f"no such namespaces here: {before}")
    return lambda env=None: agents(env, before)


MAP = "fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('soft:0')\nmap = dev.mmap(fd, length)"


def test_a_file_shared_with_a_container(mount, contained, agents):
    """Loads, stores and what others write, inside and outside; and the daemon knows of nobody when it has ended."""
    m = mount("timeout=0")
    path = os.path.join(m.mnt, "f")
    content = bytearray(pattern(64 * PAGE, 5))
    write_file(path, content)
    inside, outside = contained(), agents()
    for agent in inside, outside:
        agent.do(MAP, path=path, length=len(content))
        assert agent("map[:]") == content
    for turn in range(4):
        inside.do("map[at:at + 100] = b'i' * 100\nmap.release()", at=turn * 8 * PAGE)
        content[turn * 8 * PAGE:turn * 8 * PAGE + 100] = b"i" * 100
        write_at(path, b"o" * 100, turn * 8 * PAGE + 200)
        content[turn * 8 * PAGE + 200:turn * 8 * PAGE + 300] = b"o" * 100
        for agent in inside, outside:
            agent.do("map.acquire()")
            assert agent("map[:]") == content, turn
        assert read_file(path) == content
    assert sum(device["twins"] for device in statistics(m.mnt)["devices"]) == 0
    inside.end()
    outside.do("map[:3] = b'end'\nmap.release()")
    assert read_file(path)[:3] == b"end"


SECCOMP = """
# Four instructions of the classic filter: load the number of the system call; that of userfaultfd (x86-64): EPERM; else: allow.
program = b"".join(struct.pack("=HBBI", *one) for one in ((0x20, 0, 0, 0), (0x15, 0, 1, 323), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)))
held = ctypes.create_string_buffer(program)
filter = struct.pack("=H6xQ", 4, ctypes.addressof(held))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0
assert libc.syscall(323, 0) == -1 and ctypes.get_errno() == errno.EPERM
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="a system call's number")
def test_a_container_that_refuses_userfaultfd(mount, contained):
    """Its device does as well, where the container has that."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, pattern(4 * PAGE, 11))
    inside = contained()
    has_device = inside("os.access('/dev/userfaultfd', os.R_OK | os.W_OK)")
    inside.do(SECCOMP)
    if not has_device:
        inside.do("fd = os.open(path, os.O_RDWR)", path=path)
        assert inside("error_of(lambda: gaia.Device('soft:0').mmap(fd, PAGE))") == errno.EPERM
        return
    inside.do(MAP, path=path, length=4 * PAGE)
    assert inside("map[:]") == pattern(4 * PAGE, 11)


def test_gaiactl_in_a_container(mount):
    m = mount()
    done = subprocess.run([*NET, os.path.join(conftest.BIN, "gaiactl"), "stat", "--json", m.mnt], capture_output=True,
                          text=True, timeout=20, check=False)
    assert done.returncode == 0 and '"devices"' in done.stdout, done.stderr


def test_an_ordinary_user_in_a_container(mount):
    m = mount("allow_other,default_permissions")
    path = os.path.join(m.mnt, "f")
    write_file(path, pattern(4 * PAGE, 6))
    os.chmod(path, 0o666)
    setpriv = shutil.which("setpriv") or pytest.skip("no setpriv here")
    code = ("import gaia, os\nfd = os.open({!r}, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, 16384)\n"
            "map[0:4] = b'user'\nmap.release()").format(path)
    done = subprocess.run([*NET, setpriv, "--reuid", "1234", "--regid", "1234", "--clear-groups", sys.executable, "-c", code],
                          cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, text=True, timeout=20, check=False)
    if "EPERM" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("userfaultfd is not for ordinary users here")
    assert done.returncode == 0, done.stderr
    assert read_file(path)[:4] == b"user"


@pytest.mark.traps
def test_a_refused_store_in_a_container(mount, contained, workdir, monkeypatch):
    """The program that stores is who gets SIGBUS, and nobody who has the same number outside."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount(env=env)
    path = os.path.join(m.mnt, "f")
    write_file(path, pattern(4 * PAGE, 7))
    inside = contained()
    inside.do(MAP, path=path, length=4 * PAGE)
    inside("map[:]")
    plan.arm(ROWS.index("preadv64v2"), errno.EIO, 1, 1)  # of the twin
    inside.start("map[0:1] = b'x'")
    assert not inside.busy(20), "the store hangs"
    with pytest.raises(AgentDied) as died:
        inside.finish()
    plan.row = -1
    assert plan.landed
    assert died.value.code in (-signal.SIGBUS, 128 + signal.SIGBUS)
    assert read_file(path) == pattern(4 * PAGE, 7)


@pytest.mark.traps
def test_a_daemon_that_ends_under_a_container(mount, contained):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, pattern(4 * PAGE, 8))
    inside = contained()
    inside.do(MAP, path=path, length=4 * PAGE)
    inside("map[:]")
    m.kill()
    wait_until(lambda: inside("error_of(map.acquire)") == errno.ENOTCONN, what="the session's end")
    assert inside("error_of(lambda: gaia.Device('soft:0').mmap(fd, PAGE))") in (errno.ENOTCONN, errno.ENODEV)


def connect(fd, number):
    try:
        fcntl.ioctl(fd, IOCTL_CONNECT, struct.pack("=iI", number, 0))
        return 0
    except OSError as error:
        return error.errno


def test_descriptors_that_are_no_socket_of_the_programs(mount, agents, workdir):
    """None of them is kept, and those of the mount itself hold nothing up."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"f")
    fd = os.open(path, os.O_RDWR)
    folder = os.open(m.mnt, os.O_RDONLY)
    before = helpers.descriptors(m.proc.pid)
    other = agents()
    other.do("import socket\npair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)")
    stream, listening = socket.socketpair(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(os.path.join(workdir, "socket"))
    listening.listen(1)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(os.path.join(workdir, "socket"))
    internet = socket.socket()
    pipe = os.pipe()
    bad = [(-1, errno.EBADF), (12345, errno.EBADF), (fd, errno.EINVAL), (folder, errno.EINVAL), (pipe[0], errno.EINVAL),
           (stream[0].fileno(), errno.EINVAL), (internet.fileno(), errno.EINVAL), (listening.fileno(), None)]
    for number, expected in bad:
        got = connect(fd, number)
        assert got == expected or (expected is None and got in (0, errno.EINVAL)), (number, expected, errno.errorcode.get(got))
    for _ in range(200):
        assert connect(folder, fd) == errno.EINVAL
    # Another process's pair, which this one was given: who made it is who is served, and that is not who asks.
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        os._exit(connect(fd, right.fileno()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EINVAL
    assert connect(fd, right.fileno()) == 0
    right.close()
    raw = helpers.Raw.__new__(helpers.Raw)
    raw.socket = left
    left.settimeout(20)
    assert raw.call(b"what is no message") == -1  # it is served as any other
    wait_until(lambda: helpers.descriptors(m.proc.pid) <= before + 1, what="the daemon lets go")
    for closed in (fd, folder, *pipe):
        os.close(closed)
    assert m.proc.poll() is None and statistics(m.mnt)


def test_who_can_be_reached_by_nobody(mount, agents):
    """A daemon that may not take descriptors says so, and so does the call."""
    m = mount(before=("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"))
    path = os.path.join(m.mnt, "f")
    write_file(path, pattern(PAGE, 9))
    inside = agents(before=NET)  # it has the capability, so it is not for who hasn't
    inside.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('soft:0')", path=path)
    error = inside("error_of(dev.mmap, fd, PAGE)")
    if error == 0:
        pytest.skip("the kernel lets it")
    assert error == errno.EPERM
    assert "CAP_SYS_PTRACE" in m.log_text()
