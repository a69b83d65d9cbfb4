# SPDX-License-Identifier: Apache-2.0
"""The daemon dies, or a client does: at any moment, and inside of calls."""
import contextlib
import errno
import glob
import mmap
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

import gaia
import helpers
from conftest import so_much
from files import make, open_map
from helpers import (ALL_ROWS, MIB, PAGE, AgentDied, Plan, agents, client_with_faults, daemon_with_faults,  # noqa: F401
                     descriptors, devices, error_of, functions_of, make_random, memory_kib, read_file, stand_still, standing_still,
                     states_of, threads, wait_until, write_file)

SANITIZED = bool(os.environ.get("GAIAFS_SANITIZE"))


# --- the daemon dies ------------------------------------------------------------------------------------------------------

KERNEL = """
fd = os.open(path, os.O_RDWR)
dev = gaia.Device()
size = os.fstat(fd).st_size
map = dev.mmap(fd, size)
rng = random.Random(1)
def kernel(seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(50):
            at = rng.randrange(size)
            map[at] = (map[at] + 1) % 256
        map.release()
        if rng.random() < 0.3:
            map.acquire()
"""


@pytest.mark.traps
@pytest.mark.parametrize("what", ["map[size - 1]", "map[size - 1:size] = b'x'", "map[0]", "map[0:1] = b'x'"])
def test_touching_memory_of_a_dead_daemon(mount, agents, what):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(4 * MIB))
    child = agents()
    child.do(KERNEL + "map[0:1]\n", path=path)
    m.kill()
    started = time.monotonic()
    child.start(what)
    assert not child.busy(5), "a touch of a dead daemon's memory hangs"
    try:
        child.finish()
        assert "0" in what.split("=")[0]  # a page that was there may be seen still
    except AgentDied as died:
        assert died.code == -signal.SIGBUS
    print(time.monotonic() - started)


def test_calls_after_the_daemon_is_dead(mount, agents):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    child = agents()
    child.do(KERNEL + "map[0:1] = b'x'", path=path)
    m.kill()
    for call in ("map.release()", "map.acquire()", "map.sync()", "map.sync(gaia.MS_ASYNC)", "map.advise(3)", "dev.stat()",
                 "dev.mmap(fd, 4096)"):
        child.start(call)
        assert not child.busy(5), call
        assert error_of(child.finish) == errno.ENOTCONN, call
    child.start("(map.unmap(), dev.close())")
    assert not child.busy(5)
    child.finish()


@pytest.mark.parametrize("call", ["dev.mmap(fd, 4096)", "map.acquire()", "map.release()", "map.sync()", "map.advise(3)",
                                  "dev.stat()"])
def test_a_call_under_way_when_the_daemon_is_killed(mount, agents, call):
    """Whatever it waits for: the kernel has other words for requests that were under way."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    child = agents()
    child.do(KERNEL + "map[0:1] = b'x'\ncpu = mmap.mmap(fd, 4096)\ncpu[9] = 1", path=path)
    stand_still(m.pid)
    child.start(call)
    assert child.busy(0.3), child.finish()
    m.kill()
    assert not child.busy(5), call
    with pytest.raises(OSError) as caught:
        child.finish()
    assert caught.value.errno == errno.ENOTCONN


def signal_guard(m):
    """Signals to the guard that say nothing of the daemon: all that can be blocked."""
    guards = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            pid, _, rest = file.read().partition(" (gaiafs-guard) ")
            if rest.split()[1:2] == [str(m.pid)]:
                guards.append(int(pid))
    assert len(guards) == 1
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        os.kill(guards[0], number)


# As when a program of its user has used up the room for signals that wait: nothing says then who has sent one.
no_room_for_signals = pytest.mark.parametrize("before", [(), ("prlimit", "--sigpending=0")], ids=["", "no-room-for-signals"])


@no_room_for_signals
def test_a_signal_to_the_guard_is_no_death(mount, before):
    m = mount(before=before)
    write_file(os.path.join(m.mnt, "f"), b"x")
    for _ in range(20):
        signal_guard(m)
        time.sleep(0.01)
        assert read_file(os.path.join(m.mnt, "f")) == b"x"


def releases_beside_a_stop(m, child, path, plan):
    """Who answers the first WRITE stops all of the daemon, and who waits for that in the kernel does not even stop. None: the
    WRITE was the kernel's own, before the release's. (Only a program's first release has the kernel write page by page.)"""
    child.do(KERNEL + "cpu = mmap.mmap(fd, size)", path=path)
    child.do("for page in range(size // PAGE):\n    cpu[page * PAGE] = map[page * PAGE + 9] = cpu[page * PAGE] ^ 1")
    plan.arm_kill(ALL_ROWS.index("pwrite64"), 1, 1, signal=signal.SIGSTOP)
    child.start("map.release()")
    wait_until(lambda: states_of(m.pid) - {"D"} == {"T"}, what="the daemon stops")
    for _ in range(50):
        if states_of(m.pid) == {"T", "D"}:
            return child
        time.sleep(0.02)
    os.kill(m.pid, signal.SIGCONT)
    child.finish()
    child.do("map.unmap()")
    return None


@pytest.mark.limit(180)
@no_room_for_signals
def test_daemon_killed_while_it_invalidates(mount, agents, workdir, monkeypatch, before):
    """A thread of it that has the kernel drop dirty pages waits for WRITEs that nobody answers any more."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("passthrough=off", env=env, before=before)
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    child = next(filter(None, (releases_beside_a_stop(m, agents(), path, plan) for _ in range(100))), None)
    assert child, "no thread of the daemon waited for it"
    assert plan.landed == 1
    signal_guard(m)
    m.kill()  # waits for its end
    assert not child.busy(5), "the call hangs"
    with pytest.raises(OSError) as caught:
        child.finish()
    assert caught.value.errno == errno.ENOTCONN


def test_stores_that_found_no_daemon(mount, agents, workdir):
    """The kernel throws away dirty pages that it can't send any more, and tells who flushes them nothing: an acquire
    that has nothing else to do must see for itself that the daemon was there."""
    m = mount("passthrough=off")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    plan = Plan.make(os.path.join(workdir, "plan"))
    child = agents(client_with_faults(os.path.join(workdir, "plan")))
    child.do(KERNEL + "cpu = mmap.mmap(fd, 4096)\nmap.acquire()\ncpu[9] = 1\nmap.acquire()", path=path)
    assert read_file(os.path.join(m.data, "f"))[9] == 1
    plan.arm_kill(ALL_ROWS.index("sync_file_range"), 1, 1, signal=signal.SIGSTOP)
    child.start("cpu[9] = 2\nmap.acquire()")
    wait_until(lambda: states_of(child.pid) == {"T"}, what="the program is about to flush")
    assert plan.landed == 1
    m.kill()
    os.kill(child.pid, signal.SIGCONT)
    with pytest.raises(OSError) as caught:
        child.finish()
    assert caught.value.errno == errno.ENOTCONN
    assert read_file(os.path.join(m.data, "f"))[9] == 1  # else there was nothing to see


@pytest.mark.traps
def test_daemon_killed_under_running_kernels(mount, agents):
    m = mount("device_cache=1M")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(8 * MIB))
    children = [agents() for _ in range(3)]
    for child in children:
        child.do(KERNEL, path=path)
        child.start("kernel()")
    time.sleep(0.7)
    assert all(child.busy() for child in children)
    m.kill()
    deadline = time.monotonic() + 5
    for child in children:
        assert not child.busy(max(0, deadline - time.monotonic())), "a kernel hangs"
        try:
            child.finish()
            raise AssertionError("a kernel went on")
        except AgentDied as died:
            assert died.code == -signal.SIGBUS
        except OSError as error:
            assert error.errno == errno.ENOTCONN


# --- clients die ------------------------------------------------------------------------------------------------------------

@pytest.mark.plain
@pytest.mark.limit(90)
def test_clients_killed_at_random_times(mount, devices, agents):
    m = mount("device_cache=1M")
    rng = make_random("kill")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(4 * MIB))
    own_path = os.path.join(m.mnt, "own")
    content = bytearray(rng.randbytes(40 * PAGE))
    write_file(own_path, content)
    fd = os.open(own_path, os.O_RDWR)
    good = devices().mmap(fd, len(content))
    helper = helpers.tool_path("tool_busy")
    memory = []
    for turn in range(50):
        proc = subprocess.Popen([helper, path, "soft:0" if turn % 2 else "soft:1", str(turn + 1)],
                                stdout=subprocess.PIPE)
        assert proc.stdout.readline() == b"ready\n"
        time.sleep(rng.random() * 0.03)
        proc.kill()
        proc.wait()
        proc.stdout.close()
        at = rng.randrange(len(content))
        good[at] = content[at] = (content[at] + 1) % 256
        good.release()
        assert os.pread(fd, 1, at)[0] == content[at]
        good.acquire()
        assert good[:] == content
        assert m.proc.poll() is None
        memory.append(memory_kib(m.pid))
    assert len(read_file(path)) == 4 * MIB
    print(memory)
    if not os.environ.get("GAIAFS_SANITIZE"):  # which keeps what is freed for a while
        assert max(memory[40:]) < max(memory[10:20]) * 1.2 + 4096, memory
    wait_until(lambda: threads(m.pid) < 100)


def test_ended_clients_leave_no_descriptors(mount, agents):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    counts = []
    for turn in range(12):
        child = agents()
        child.do(KERNEL + "kernel(0.01)", path=path)
        if turn % 2:
            child.kill()
        else:
            child.end()
        time.sleep(0.1)
        counts.append((descriptors(m.pid), threads(m.pid)))
    print(counts)
    # libfuse starts threads of its own as it needs them; eight clients that left one each would be more.
    assert counts[-1][0] <= counts[3][0] and counts[-1][1] <= counts[3][1] + 4


# --- clients that end -------------------------------------------------------------------------------------------------

def victim(path, what, device, inside, seed):
    """Loops for ever; inside[0] is 1 while it is in the call."""
    rng = random.Random(seed)
    fd = os.open(path, os.O_RDWR)
    size = os.fstat(fd).st_size
    mapping = gaia.Device(device).mmap(fd, size)
    mapping[:]
    call = mapping.acquire if what == "acquire" else mapping.release
    while True:
        for _ in range(8):
            at = rng.randrange(size // PAGE) * PAGE
            mapping[at + rng.randrange(PAGE)] = rng.randrange(256)
            if what == "acquire":
                os.pwrite(fd, bytes([rng.randrange(256)]), at + rng.randrange(PAGE))
        inside[0] = 1
        call()
        inside[0] = 0


def kill_in(path, what, device, seed):
    """Starts one and kills it; whether it was in the call then."""
    rng = random.Random(seed)
    inside = mmap.mmap(-1, PAGE)  # shared with the child
    pid = os.fork()
    if pid == 0:
        try:
            victim(path, what, device, inside, seed)
        finally:
            os._exit(98)
    deadline = time.monotonic() + 30
    while not inside[0]:
        assert time.monotonic() < deadline, "the client does not start"
        time.sleep(0.001)
    time.sleep(rng.random() * 0.01)
    while not inside[0]:  # then it is in the call about now
        assert time.monotonic() < deadline, "the client does not go on"
    end = time.perf_counter() + rng.random() * 0.0001
    while time.perf_counter() < end:
        pass
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    return bool(inside[0])


class Survivor:
    """A client in this process with bytes of its own, on the same device as those that die and in pages of theirs."""

    def __init__(self, path, own_path, seed):
        self.rng = random.Random(seed)
        self.fd, shared = os.open(own_path, os.O_RDWR), os.open(path, os.O_RDWR)
        self.content = bytearray(os.pread(self.fd, 1 << 20, 0))
        self.map = gaia.Device("soft:0").mmap(self.fd, len(self.content))
        self.shared_map = gaia.Device("soft:2").mmap(shared, PAGE)
        self.shared = shared

    def check(self):
        at = self.rng.randrange(len(self.content))
        self.map[at] = self.content[at] = (self.content[at] + 1) % 256
        self.map.release()
        assert os.pread(self.fd, 1, at)[0] == self.content[at]
        at = self.rng.randrange(len(self.content))
        self.content[at] = (self.content[at] + 1) % 256
        os.pwrite(self.fd, self.content[at:at + 1], at)
        self.map.acquire()
        assert self.map[:] == self.content
        self.shared_map.acquire()
        self.shared_map[:]
        self.shared_map.release()


def frames_of(pid):
    """Descriptors of device memory that a daemon holds."""
    count = 0
    for entry in glob.glob(f"/proc/{pid}/fd/*"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += "memfd:" in os.readlink(entry)
    return count


def test_a_client_killed_before_it_uses_its_token(mount, agents):
    """The token must not keep a deleted file, nor a device's frames for it."""
    m = mount()
    path, child, before = make(m, bytes(40 * PAGE)), agents(), frames_of(m.pid)
    child.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 40 * PAGE)\nmap[:]\nget_token(fd)", path=path)
    os.unlink(path)
    assert frames_of(m.pid) > before
    child.kill()
    wait_until(lambda: frames_of(m.pid) == before, 5, "the frames are given back")


@pytest.mark.parametrize("what", ["acquire", "release"])
def test_clients_killed_inside_a_call(mount, agents, what):
    m = mount("device_cache=512K")
    rng = make_random("kill")
    path, own_path = make(m, bytes(MIB)), make(m, rng.randbytes(20 * PAGE), "own")
    survivor, killer = functions_of(__name__, agents()), functions_of(__name__, agents())
    survivor.do("survivor = Survivor(path, own, seed)", path=path, own=own_path, seed=rng.randrange(1 << 30))
    hits = 0
    for turn in range(20):
        hits += killer("kill_in(path, what, device, seed)", path=path, what=what, device=f"soft:{turn % 2}",
                       seed=rng.randrange(1 << 30))
        survivor.do("survivor.check()")
        assert m.proc.poll() is None
    print(f"20 killed, {hits} of them inside {what}")
    assert hits >= 2
    assert survivor("survivor.map[:] == survivor.content")
    assert read_file(own_path) == survivor("survivor.content")
    assert len(read_file(path)) == MIB
    survivor.end()
    killer.end()


def test_sigterm_to_the_daemon_while_clients_are_mapped(mount, agents):
    """It ends in order: what devices hold is in the data directory, released or not; clients are told."""
    m = mount("passthrough=off")  # with it on read() needs no daemon
    rng = make_random("sigterm")
    content = bytearray(rng.randbytes(40 * PAGE))
    path = make(m, content)
    children = [agents() for _ in range(4)]
    for number, child in enumerate(children):
        child.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device(f'soft:{number // 2}')\n"
                 "map = dev.mmap(fd, os.fstat(fd).st_size)\nmap[:]", path=path, number=number)
        for released in (True, False):
            for _ in range(20):
                at = rng.randrange(len(content) // 8) * 8 + number * 2 + released
                content[at] = (content[at] + 1) % 256
                child.do("map[at] = value", at=at, value=content[at])
            if released:
                child.do("map.release()")
    started = time.monotonic()
    os.kill(m.pid, signal.SIGTERM)
    assert m.proc.wait(10) == 0
    print("ended after", time.monotonic() - started)
    stored = read_file(os.path.join(m.data, "f"))
    wrong = [at for at in range(len(content)) if stored[at] != content[at]]
    assert not wrong, f"{len(wrong)} bytes are missing: {wrong[:20]}"
    for child in children:
        wait_until(lambda child=child: child("gaia.lib.gaia_macquire(map.address, PAGE, dev.handle)") == -1,
                   what="the client knows")
    for call in ("map.release()", "map.acquire()", "map.sync()", "map.advise(3)", "dev.stat()", "os.pread(fd, 1, 0)",
                 "dev.mmap(fd, PAGE)"):
        children[0].start(call)
        assert not children[0].busy(5), call
        with pytest.raises(OSError) as caught:
            children[0].finish()
        assert caught.value.errno == errno.ENOTCONN, call
    for child, touch in zip(children, ("map[0]", "map[39 * PAGE]", "map[0:1] = b'x'", "os.write(1, map[0:1])")):
        child.start(touch)
        assert not child.busy(5), touch
        with pytest.raises(AgentDied) as died:
            child.finish()
        assert died.value.code == -signal.SIGBUS, touch


@pytest.mark.skipif(SANITIZED and bool(os.environ.get("GAIA_GATE")), reason="gaiactl waits; the plain suite is enough for tests/run.sh")
def test_gaiactl_gives_up_on_a_daemon_that_stands_still(mount):
    m = mount()
    with standing_still(m.pid):
        done = subprocess.run([os.path.join(helpers.BIN, "gaiactl"), "stat", m.mnt], capture_output=True, text=True,
                              timeout=30)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"gaiactl: {m.mnt}: the daemon has not answered for 10 s\n"
    helpers.statistics(m.mnt)


@pytest.mark.skipif(SANITIZED and bool(os.environ.get("GAIA_GATE")), reason="gaiactl waits; the plain suite is enough for tests/run.sh")
def test_gaiactl_gives_up_on_a_disk_that_hangs(mount, workdir, monkeypatch):
    """The daemon has read its request, and waits for the data directory. Nothing ends who waits for such a request, not even
    SIGKILL; but who has called gaiactl has its answer and the end of its output, and nothing is left when the disk is back."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount(env=env)
    command = [os.path.join(helpers.BIN, "gaiactl"), "stat", m.mnt]
    plan.arm_wait(ALL_ROWS.index("openat64"), 15000, 1, False)
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = child.communicate(timeout=11.5)
        assert (child.returncode, *said) == (1, "", f"gaiactl: {m.mnt}: the daemon has not answered for 10 s\n")
    finally:
        child.communicate()
    left = time.monotonic()
    assert plan.landed == 1 and processes_of(command), f"after {left - started:.1f} s; looked for {time.monotonic() - left:.1f} s"
    wait_until(lambda: not processes_of(command), what="nobody asks any more")
    helpers.statistics(m.mnt)


def processes_of(command):
    """A command line is read from a process's memory, for which its lock may have to be waited for: of others only the name is."""
    found, name = [], os.path.basename(command[0]).encode() + b"\n"
    for folder in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):
            if read_file(f"{folder}/comm") == name and \
                    read_file(f"{folder}/cmdline") == b"".join(os.fsencode(word) + b"\0" for word in command):
                found.append(folder)
    return found


KILL_AFTER_ATTACH = r"""
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* The daemon dies as soon as it has answered ATTACH, and whoever asked hears of it late. */
ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t (*next)(int, struct msghdr *, int) = (ssize_t(*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg");
    ssize_t n = next(fd, message, flags);

    if (n == 256 && getenv("KILL_PID") && ((uint16_t *)message->msg_iov->iov_base)[3] == 3) {
        kill(atoi(getenv("KILL_PID")), SIGKILL);
        usleep(500000);
    }
    return n;
}
"""


def test_a_daemon_that_dies_inside_gaia_mmap(mount, agents, workdir):
    """The call fails, or a touch gets SIGBUS; no hang."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    source, shim = os.path.join(workdir, "shim.c"), os.path.join(workdir, "shim.so")
    write_file(source, KILL_AFTER_ATTACH.encode())
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", source, "-o", shim, "-ldl"], check=True)
    m = mount()
    path = make(m, bytes(4 * PAGE))
    m.expected_exit = None
    child = agents({"LD_PRELOAD": shim, "KILL_PID": str(m.pid)})
    child.start("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 4 * PAGE)\nmap[0]", path=path)
    assert m.proc.wait(10) == -signal.SIGKILL
    assert not child.busy(5), "the touch hangs"
    with pytest.raises((AgentDied, OSError)) as caught:
        child.finish()
    if caught.type is AgentDied:
        assert caught.value.code == -signal.SIGBUS
    else:
        assert caught.value.errno == errno.ENOTCONN


def connect_and_exit(path, count, orderly):
    """So many clients, one after the other: connect, map, fault, store, end."""
    for turn in range(count):
        pid = os.fork()
        if pid == 0:
            code = 97
            try:
                device = gaia.Device(f"soft:{turn % 3}")
                mapping = open_map(device, path)
                size = mapping.length
                mapping[turn * PAGE % size:][0]
                mapping[turn * PAGE * 7 % size] = turn % 256
                mapping.release()
                mapping.acquire()
                if orderly and turn % 2:
                    mapping.unmap()
                    device.close()
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        assert status == 0, status


@pytest.mark.plain
def test_clients_that_come_and_go_leave_nothing_behind(mount, agents):
    m = mount("device_cache=1M")
    path = make(m, make_random("come and go").randbytes(MIB))
    child = functions_of(__name__, agents())

    child.do("connect_and_exit(path, 20, True)", path=path)
    time.sleep(0.3)
    before, before_threads, memory = descriptors(m.pid), threads(m.pid), [memory_kib(m.pid, "VmRSS")]
    for _ in range(so_much(10, 3) if SANITIZED else 10):
        child.do("connect_and_exit(path, 20, True)", path=path)
        memory.append(memory_kib(m.pid, "VmRSS"))
    wait_until(lambda: descriptors(m.pid) <= before, what=f"back to {before} descriptors")
    wait_until(lambda: threads(m.pid) <= before_threads + 2, what="threads of clients end")
    print("VmRSS in KiB", memory, "descriptors", before, descriptors(m.pid))
    if not SANITIZED:  # what is freed stays for long there
        assert max(memory[6:]) < max(memory[1:4]) * 1.05 + 1024, memory
    child.end()
