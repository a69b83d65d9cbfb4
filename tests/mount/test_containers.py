# SPDX-License-Identifier: Apache-2.0
"""Programs in namespaces of their own, as containers are: a signal for one of its threads comes to that thread, not to
whoever has its number outside (tests/base/test_thread.c has that one's side). Network namespaces: test_networks.py."""
import errno
import os
import signal
import subprocess
import sys

import pytest

import helpers
from files import pattern
from helpers import (LET_GO, PAGE, ROWS, AgentDied, agents, daemon_with_faults, read_file, refused_mount, statistics, wait_until,  # noqa: F401
                     write_at, write_file)

# The shell is the namespace's first process: the kernel keeps signals from outside from that one.
PID = ("unshare", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc", "sh", "-c", LET_GO + '"$@"; exit $?', "sh")
USER = ("unshare", "--user", "--map-root-user")
CONTAINERS = {"pid": PID, "user": USER}


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


NOEXEC = """
echo "$1" >/proc/sys/vm/memfd_noexec || exit 9
"$2/mount.gaiafs" "$3" "$4" -o fault=local || exit 8
"$5" "$4" "$3" 5 200 && "$2/gaiactl" stat "$4" && umount "$4"
"""


@pytest.mark.parametrize("level", [1, 2])
def test_where_memory_must_not_be_executable(workdir, level):
    """vm.memfd_noexec, which each PID namespace has for itself. (Before Linux 6.6 level 2 refuses who does not ask for memory that
    can't be executed; since then he gets such memory: test_no_memory_is_executable.)"""
    if not os.path.exists("/proc/sys/vm/memfd_noexec") or os.geteuid() != 0:
        pytest.skip("Linux 6.3, and root")
    data, mnt = os.path.join(workdir, "data"), os.path.join(workdir, "mnt")
    os.mkdir(data)
    os.mkdir(mnt)
    tool = os.path.join(helpers.build_folder(), "tests", "vm", "tool_touch")
    done = subprocess.run([*PID[:-4], "sh", "-c", LET_GO + NOEXEC, "sh", str(level), helpers.BIN, data, mnt, tool], capture_output=True,
                          text=True, timeout=50)
    if done.returncode == 9:
        pytest.skip(f"can't be set here: {done.stderr}")
    assert done.returncode == 0 and ", 0 wrong\n" in done.stdout, done


def test_no_memory_is_executable(mount, agents):
    """Frames, their counters, what the local carrier shares, and what libgaia puts in the place of what was unmapped."""
    m = mount("fault=local")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(8 * PAGE))
    agent = agents()
    agent.do(MAP + "\nassert map[:] == bytes(length)\nmap.unmap(PAGE, PAGE)", path=path, length=8 * PAGE)
    for pid, least in ((m.pid, 3), (agent.proc.pid, 1)):
        found = {}
        for fd in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            if target.startswith("/memfd:"):
                found[target] = os.stat(f"/proc/{pid}/fd/{fd}").st_mode & 0o111
        assert len(found) >= least and not any(found.values()), (pid, found)


SECCOMP = """
# Four instructions of the classic filter: load the number of the system call; that of userfaultfd (x86-64): EPERM; else: allow.
program = b"".join(struct.pack("=HBBI", *one) for one in ((0x20, 0, 0, 0), (0x15, 0, 1, 323), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)))
held = ctypes.create_string_buffer(program)
filter = struct.pack("=H6xQ", 4, ctypes.addressof(held))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0
assert libc.syscall(323, 0) == -1 and ctypes.get_errno() == errno.EPERM
"""


REFUSING = """
import ctypes, os, struct, sys
program = b"".join(struct.pack("=HBBI", *one) for one in ((0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x50000 | int(sys.argv[1])),
                                                          (0x06, 0, 0, 0x7fff0000)))
held = ctypes.create_string_buffer(program)
filter = struct.pack("=H6xQ", 4, ctypes.addressof(held))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="a system call's number")
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.EACCES], ids=errno.errorcode.get)
def test_a_container_that_refuses_io_uring(workdir, error):
    """As seccomp, kernel.io_uring_disabled, an old kernel and SELinux do: who mounts is told what to try."""
    text = refused_mount(workdir, before=(sys.executable, "-c", REFUSING, str(error)))
    assert f"{os.strerror(error)} (io_uring is refused here? try -o io=threads)" in text


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
