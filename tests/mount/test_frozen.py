# SPDX-License-Identifier: Apache-2.0
"""Filesystems below that are frozen (fsfreeze(8)), or take their time for a write: who writes waits, and nobody else does, however many
write (fs/loop.c)."""
import contextlib
import errno
import os
import signal
import subprocess
import sys

import pytest

from files import mount_ext4, pattern
from helpers import (ALL_ROWS, MIB, PAGE, agents, daemon_with_faults, read_file, statistics, threads,  # noqa: F401
                     wait_until, write_file)

FREEZE, THAW = 0xC0045877, 0xC0045878
# Thaws when it is told to, when the tests have died, or after a minute: a filesystem that stays frozen hangs whoever comes to it.
THAWS = f"""
import fcntl, os, select, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(fd, {FREEZE}, 0)
print("frozen", flush=True)
select.select([0], [], [], 60)
fcntl.ioctl(fd, {THAW}, 0)
"""


class Frozen:
    """A folder on a filesystem of its own."""

    def __init__(self, folder):
        self.folder, self.proc = folder, None

    def freeze(self):
        self.proc = subprocess.Popen([sys.executable, "-c", THAWS, self.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.proc.stdout.readline() == b"frozen\n"

    def thaw(self):
        if self.proc:
            self.proc.stdin.close()
            assert self.proc.wait() == 0
            self.proc.stdout.close()
        self.proc = None


@pytest.fixture
def frozen(workdir):
    folder = mount_ext4(workdir, 64 * MIB)
    below = Frozen(folder)
    yield below
    below.thaw()
    subprocess.run(["umount", "-l", folder], check=False)


WRITE = """
fds, written = [os.open(os.path.join(folder, f"w{i}"), os.O_RDWR | os.O_CREAT) for i in range(count)], {}

def write(i):
    try:
        written[i] = os.pwrite(fds[i], contents[i], 0)
    except OSError as error:
        written[i] = -error.errno

writers = [threading.Thread(target=write, args=(i,), daemon=True) for i in range(count)]
"""


def writers_of(agent, m, count):
    """A program that is about to write to so many files: what it will write."""
    contents = [pattern(PAGE + i, i) for i in range(count)]
    agent.do(WRITE, folder=m.mnt, count=count, contents=contents)
    return contents


def begin(agent, m, least=16):
    agent.do("for thread in writers: thread.start()")
    wait_until(lambda: blocked(m.pid) >= least, what="writers wait")


def blocked(pid):
    """How many of its threads wait for what can't be interrupted."""
    count = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{task}/stat", encoding="ascii") as file:
            count += file.read().rpartition(")")[2].split()[0] == "D"
    return count


def prompt(agent, code, seconds=10):
    """Its value, which does not take long."""
    agent.start(code, "eval")
    assert not agent.busy(seconds), code
    return agent.finish()


def put_before(m, *names):
    """Files that neither the mount nor its kernel has seen, and that the filesystem below has in memory."""
    for name in names:
        write_file(os.path.join(m.data, name), pattern(3 * MIB, len(name)))


@pytest.mark.parametrize("count", [40, 200])
def test_readers_beside_frozen_writers(mount, agents, frozen, count):
    """They read what is in the kernel and what is not, look, map on devices, and ask the daemon. The writers are done when they can be, and
    threads that were made for them go."""
    m, writing, reading = mount("passthrough=off,timeout=0", data=frozen.folder), agents(), agents()
    put_before(m, "cached", "uncached", "mapped", "none")
    reading.do("device = gaia.Device('soft:0')\npaths = {n: os.path.join(folder, n) for n in 'cached uncached mapped none'.split()}\n"
               "assert len(read_file(paths['cached'])) == 3 * MIB\nfd = os.open(paths['mapped'], os.O_RDWR)", folder=m.mnt)
    contents = writers_of(writing, m, count)
    usual = threads(m.pid)
    frozen.freeze()
    begin(writing, m)
    for _ in range(2):  # more than one of each
        for name in "cached", "uncached":
            assert prompt(reading, f"read_file(paths[{name!r}])") == pattern(3 * MIB, len(name))
    wait_until(lambda: blocked(m.pid) == count, what="all wait")
    assert prompt(reading, "os.stat(paths['none']).st_size") == 3 * MIB
    assert set(prompt(reading, "os.listdir(os.path.dirname(paths['none']))")) >= {"none", "w0"}
    assert prompt(reading, "(map := device.mmap(fd, 3 * MIB)) and map[:]") == pattern(3 * MIB, len("mapped"))
    assert prompt(reading, "statistics(os.path.dirname(paths['none']))")["devices"]
    assert writing("len(written)") == 0
    frozen.thaw()
    writing.do("for thread in writers: thread.join(20)")
    assert writing("written") == {i: len(content) for i, content in enumerate(contents)}
    for i, content in enumerate(contents):
        assert read_file(f"{m.mnt}/w{i}") == read_file(f"{m.data}/w{i}") == content
    if count == 40:
        wait_until(lambda: threads(m.pid) <= usual + 4, 30, "threads go")
    reading.do("map.unmap()\ndevice.close()\nos.close(fd)")


def test_the_end_beside_frozen_writers(mount, agents, frozen):
    """The daemon answers what it has been asked, and ends once it can."""
    m, writing = mount("passthrough=off", data=frozen.folder), agents()
    contents = writers_of(writing, m, 40)
    frozen.freeze()
    begin(writing, m)
    wait_until(lambda: blocked(m.pid) == 40, what="all wait")
    os.kill(m.pid, signal.SIGTERM)
    wait_until(lambda: "is busy" in m.log_text(), what="it has begun to end")
    assert m.proc.poll() is None
    frozen.thaw()
    writing.do("for thread in writers: thread.join(20)")
    assert writing("written") == {i: len(content) for i, content in enumerate(contents)}
    assert m.stop() is None
    for i, content in enumerate(contents):
        assert read_file(f"{m.data}/w{i}") == content


def test_a_dead_daemon_beside_frozen_writers(mount, agents, frozen):
    """Writers are told, before the filesystem below goes on."""
    m, writing = mount("passthrough=off", data=frozen.folder), agents()
    writers_of(writing, m, 40)
    m.expected_exit = None
    frozen.freeze()
    begin(writing, m)
    wait_until(lambda: blocked(m.pid) == 40, what="all wait")
    os.kill(m.pid, signal.SIGKILL)
    writing.start("for thread in writers: thread.join(20)")
    assert not writing.busy(10), "writers of a dead daemon wait"
    writing.finish()
    assert set(writing("written").values()) <= {-errno.ENOTCONN, -errno.ECONNABORTED}
    frozen.thaw()
    assert m.proc.wait(20) == -signal.SIGKILL


MOST = 100


@pytest.fixture(params=["user", "group"])
def few_threads(request):
    """What starts a program where there may be MOST threads. (Root's may be more than RLIMIT_NPROC, but that is what is asked for.)"""
    if request.param == "user":
        yield ("prlimit", f"--nproc={MOST}")
        return
    for top in "/sys/fs/cgroup/pids", "/sys/fs/cgroup":
        group = os.path.join(top, f"gaiafs-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            os.mkdir(group)
            write_file(os.path.join(group, "pids.max"), str(MOST).encode())
            break
        with contextlib.suppress(OSError):
            os.rmdir(group)
    else:
        pytest.skip("no control group for threads can be made here")
    yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    wait_until(lambda: not read_file(os.path.join(group, "cgroup.procs")), what="the group is empty")
    os.rmdir(group)


@pytest.mark.whole
def test_few_threads_beside_frozen_writers(few_threads, mount, agents, frozen):
    """A quarter of those that may be there: the rest is for others. So when very many write all others wait, until these are done."""
    m, writing, reading = mount("passthrough=off", data=frozen.folder, before=few_threads), agents(), agents()
    contents = writers_of(writing, m, 60)
    most = max(16, 4 * os.cpu_count()) + MOST // 4
    if most >= 60:
        pytest.skip("a machine with very many processors")
    frozen.freeze()
    begin(writing, m)
    wait_until(lambda: blocked(m.pid) == most, what="as many as there may be wait")
    reading.start("os.statvfs(path).f_namemax", "eval", path=m.mnt)
    assert reading.busy(1) and blocked(m.pid) == most
    frozen.thaw()
    assert reading.finish() == 255
    writing.do("for thread in writers: thread.join(20)")
    assert writing("written") == {i: len(content) for i, content in enumerate(contents)}


def test_writers_of_a_slow_disk(mount, agents, workdir, monkeypatch):
    """The same where no filesystem can be frozen: each write takes some seconds."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m, writing, reading = mount("passthrough=off", env=env), agents(), agents()
    put_before(m, "uncached")
    contents = writers_of(writing, m, 40)
    plan.arm_wait(ALL_ROWS.index("pwrite64"), 8000, 1, True)
    writing.do("for thread in writers: thread.start()")
    wait_until(lambda: plan.landed >= 16, what="writers wait")
    assert prompt(reading, f"read_file({m.mnt + '/uncached'!r})", 4) == pattern(3 * MIB, len("uncached"))
    assert writing("len(written)") == 0
    plan.row = -1
    writing.do("for thread in writers: thread.join(30)")
    assert writing("written") == {i: len(content) for i, content in enumerate(contents)}


def test_interrupts_do_not_reach_libfuse(mount, agents, workdir, monkeypatch):
    """One that comes last of all would be a leak of it. Who waits goes on waiting as before."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("passthrough=off,debug", env=env)
    write_file(m.mnt + "/f", bytes(PAGE))
    for _ in range(2):
        agent = agents()
        plan.arm_wait(ALL_ROWS.index("pwrite64"), 1500, 1, False)
        agent.start("os.pwrite(os.open(path, os.O_RDWR), b'1', 0)", path=m.mnt + "/f")
        wait_until(lambda: plan.landed == 1, what="the WRITE is on its way")
        with open(f"/proc/{agent.pid}/stat") as stat:
            assert stat.read().rpartition(")")[2].split()[0] == "S", "it counts as one that waits for a disk"
        os.kill(agent.pid, signal.SIGKILL)
        agent.proc.wait(20)
        assert read_file(m.mnt + "/f")[:1] == b"1", "a WRITE that is under way is done"
    assert "opcode: WRITE" in m.log_text() and "INTERRUPT" not in m.log_text()


def test_threads_that_could_not_be_made(mount, agents, frozen, workdir, monkeypatch):
    """It is tried again, though nobody is left who could be asked."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m, writing, reading = mount("passthrough=off", data=frozen.folder, env=env), agents(), agents()
    writers_of(writing, m, 12)
    frozen.freeze()
    plan.arm(ALL_ROWS.index("pthread_create"), errno.EAGAIN, 1, True)
    writing.do("for thread in writers: thread.start()")
    wait_until(lambda: plan.landed, what="no thread can be made")
    wait_until(lambda: blocked(m.pid) >= 1, what="writers wait")
    reading.start("os.stat(path)", "eval", path=m.mnt + "/.")
    reading.busy(1)
    plan.row = -1
    assert not reading.busy(10), "nobody serves who looks"
    reading.finish()
    frozen.thaw()
    writing.do("for thread in writers: thread.join(20)")
