# SPDX-License-Identifier: Apache-2.0
"""What several test files share: other processes to give orders to, seeds, tools, raw messages."""
import contextlib
import ctypes
import fcntl
import gc
import json
import mmap
import os
import pickle
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
BIN = os.path.abspath(os.environ.get("GAIAFS_BIN", TOP))
PAGE = 4096
MIB = 1 << 20


sys.path.append(os.path.join(TOP, "tests", "faults"))

from conftest import SLOWER  # noqa: E402
from plan import ALL_ROWS, ROWS, Plan  # noqa: E402,F401


# In a shell that has a mount namespace of its own: its copies of the mounts of tests that run beside this one are let go. They
# would keep their daemons alive after their umount.
LET_GO = """awk -v tests="${GAIA_TEST_DIR:-/var/tmp}/" -v own="${GAIA_TEST_OWN:-none}/" \
    '$3 ~ /^fuse/ && index($2, tests) == 1 && index($2, own) != 1 {print $2}' /proc/self/mounts | sort -r |
    while read -r other; do umount -l "$(printf %b "$other")" 2>/dev/null; done; """
APART = ("unshare", "-m", "sh", "-c", LET_GO + 'exec "$@"', "sh")  # before a command: without the mounts of other tests


def build_folder():
    """Where the tools are: beside the programs of a special build, else in the plain build's folder."""
    if "GAIAFS_BUILD" in os.environ:
        return os.path.abspath(os.environ["GAIAFS_BUILD"])
    return BIN if BIN != TOP else os.path.join(TOP, "build", "gcc")


def tool_path(name):
    path = os.path.join(build_folder(), "tests", "mount", name)
    if not os.access(path, os.X_OK):
        pytest.skip(f"no {path}: make tools")
    return path


def tool(name, *args, timeout=50):
    """Runs a tool; returns (exit status, output). Its children share its process group, which ends with it."""
    proc = subprocess.Popen([tool_path(name), *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        output, _ = proc.communicate(timeout=timeout * SLOWER)
    except BaseException:
        os.killpg(proc.pid, signal.SIGKILL)
        proc.communicate()
        raise
    print(" ".join([name, *map(str, args)]), "->", proc.returncode, output, sep="\n")
    return proc.returncode, output


def cuda_standin(name=""):
    """The folder of a stand-in for NVIDIA's driver (tests/cuda), as LD_LIBRARY_PATH wants it."""
    folder = os.path.join(build_folder(), "cuda", name)
    if not os.path.exists(os.path.join(folder, "libcuda.so.1")):
        pytest.skip("no stand-in: make tools")
    return folder


def faults_folder():
    """Where the programs are whose calls can be made to fail (tests/faults)."""
    return os.path.join(build_folder(), "faults")


def daemon_with_faults(monkeypatch, path):
    """From now on mounts are of a daemon that heeds a plan: (the plan, which is in that file; the daemon's environment)."""
    monkeypatch.setattr("conftest.BIN", faults_folder())
    return Plan.make(path), {"GAIAFS_FAULTS": path}


def client_with_faults(plan):
    """The environment of a program whose libgaia heeds a plan. The program is Python, into which no sanitizer's library
    can be loaded: it is the plain build's."""
    plain = os.path.join(TOP, "build", "gcc", "faults")
    if not os.path.exists(os.path.join(plain, "libgaia.so")):
        subprocess.run(["make", "build/gcc/faults/libgaia.so"], cwd=TOP, check=True, capture_output=True)
    return {"GAIAFS_FAULTS": plan, "GAIAFS_BIN": plain, "GAIAFS_SANITIZE": ""}


def make_random(name=""):
    """A generator of random numbers; its seed is printed, GAIA_TEST_SEED repeats it."""
    seed = int(os.environ.get("GAIA_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little") or 1
    print(f"{name} GAIA_TEST_SEED={seed}")
    return random.Random(seed)


def without_gate():
    """The environment of a unit test that must meet what is planted: it does all that it does outside of tests/run.sh."""
    return {name: value for name, value in os.environ.items() if name != "GAIA_GATE"}


def repeats(number):
    """How often a tool repeats what it does: a quarter under ThreadSanitizer, which is many times as slow and finds a
    race in the order of two accesses, not in their outcome. Half of it in tests/run.sh."""
    number = number // 2 if os.environ.get("GAIA_GATE") else number
    return number // 4 if os.environ.get("GAIAFS_SANITIZE") == "thread" else number


def write_file(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def read_at(path, length, offset):
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)


def write_at(path, data, offset):
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        file.write(data)


def read_direct(path, size):
    """The file by O_DIRECT."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, (size + PAGE - 1) // PAGE * PAGE or PAGE) as buffer:
            done = os.preadv(fd, [buffer], 0)
            return buffer[:done]
    finally:
        os.close(fd)


def drop_host_cache(path):
    """Writes the backing file's pages to its disk and lets the kernel forget them."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def kernel_at_least(*version):
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) >= version


def forget_inodes():
    """The kernel forgets the inodes that nobody uses."""
    write_file("/proc/sys/vm/drop_caches", b"2")


def statistics(mnt):
    done = subprocess.run([os.path.join(BIN, "gaiactl"), "stat", "--json", mnt], capture_output=True, text=True,
                          timeout=20)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def device_statistics(mnt, device=None):
    device = device or os.environ.get("GAIA_DEVICE") or "soft:0"
    return next(d for d in statistics(mnt)["devices"] if d["device"] == device)


def memory_kib(pid, *kinds):
    """These lines of a process's status together; without any, its own memory and what it shares."""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return sum(int(status[kind].split()[0]) for kind in kinds or ("RssAnon", "RssShmem"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def affinities(pid):
    """On which processors each of its threads may run. (Some may end meanwhile.)"""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            found.append(os.sched_getaffinity(int(task)))
    return found


def refused_mount(workdir, options="", data=None, before=(), env=None):
    """Asks for a mount that must be refused; returns what mount.gaiafs says. Arguments as of the fixture mount."""
    import conftest
    data, mnt = data or os.path.join(workdir, "refused-data"), os.path.join(workdir, "refused")
    for path in data, mnt:
        os.makedirs(path, exist_ok=True)
    command = [*before, os.path.join(conftest.BIN, "mount.gaiafs"), data, mnt] + (["-o", options] if options else [])
    done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True,
                          timeout=50 * SLOWER)
    mounted = os.path.ismount(mnt)
    if mounted:
        subprocess.run(["umount", mnt], check=False)
    assert done.returncode == 1 and not mounted, done
    return done.stderr


def wait_until(condition, seconds=10, what="condition"):
    deadline = time.monotonic() + seconds * SLOWER
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not after {seconds} s"
        time.sleep(0.01)


def states_of(pid):
    """Of a process's threads, as ps says them."""
    states = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{task}/stat", encoding="ascii") as file:
            states.add(file.read().rpartition(")")[2].split()[0])
    return states


def stand_still(pid):
    """SIGSTOP, and none of its threads runs any more when this returns. (kill() returns before they have met the signal: a daemon
    on a busy machine answers on.)"""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: states_of(pid) == {"T"}, what="the process stands still")


@contextlib.contextmanager
def standing_still(pid):
    """While the block runs. Whatever comes of it, the process goes on."""
    stand_still(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# --- other processes ------------------------------------------------------------------------------------------------

class AgentDied(Exception):
    def __init__(self, code):
        super().__init__(f"the process ended with {code}")
        self.code = code


class Agent:
    """Another process: agent("expression") is its value there, agent.do("statements"). The names of this module, gaia and
    the usual modules are known to it; keyword arguments become its global variables."""

    def __init__(self, env=None, before=()):
        self.proc = subprocess.Popen([*before, sys.executable, "-B", os.path.join(HERE, "agent.py")], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, env={**os.environ, **(env or {})})
        self.pid = self.proc.pid

    def start(self, code, mode="exec", **variables):
        try:
            pickle.dump((mode, code, variables), self.proc.stdin)
            self.proc.stdin.flush()
        except BrokenPipeError:
            raise AgentDied(self.proc.wait()) from None

    def finish(self):
        try:
            good, value = pickle.load(self.proc.stdout)
        except EOFError:
            raise AgentDied(self.proc.wait()) from None
        if not good:
            raise value
        return value

    def busy(self, seconds=0.0):
        """Whether what start() began goes on after so many seconds."""
        return not select.select([self.proc.stdout], [], [], seconds)[0]

    def __call__(self, code, **variables):
        self.start(code, "eval", **variables)
        return self.finish()

    def do(self, code, **variables):
        self.start(code, "exec", **variables)
        return self.finish()

    def kill(self, signal_number=signal.SIGKILL):
        """Ends it; returns its exit code as subprocess has it."""
        self.proc.send_signal(signal_number)
        return self.end()

    def end(self):
        try:
            self.proc.stdin.close()
        except BrokenPipeError:
            pass
        self.proc.stdout.close()
        return self.proc.wait()


@pytest.fixture
def agents():
    """A function that starts another process; before: a command that starts it (unshare)."""
    started = []

    def start(env=None, before=()):
        started.append(Agent(env, before))
        return started[-1]

    yield start
    for agent in started:
        if agent.proc.poll() is None:
            agent.proc.kill()
        agent.end()


@pytest.fixture
def devices():
    """A function that opens devices in this process; they are closed at the end."""
    import gaia
    opened = []

    def open_device(name=None):
        opened.append(gaia.Device(name))
        return opened[-1]

    yield open_device
    for device in opened:
        if device.handle:
            device.close()
    close_files()


def files_on_mounts():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if re.search("/gaiafs-test-[^/]*/mnt", os.readlink(f"/proc/self/fd/{fd}")):
                found.append(int(fd))
    return found


def close_files():
    """What a test of this process left open on its mounts would keep them busy. Objects in cycles first: one that finds
    its descriptor closed takes another's along."""
    if files_on_mounts():
        gc.collect()
    for fd in files_on_mounts():
        os.close(fd)


def agent_main():
    import errno
    import gaia
    import threading
    names = {**globals(), "gaia": gaia, "errno": errno, "threading": threading}
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            mode, code, variables = pickle.load(requests)
        except EOFError:
            return
        names.update(variables)
        try:
            result = True, (eval if mode == "eval" else exec)(compile(code, "agent", mode), names)
        except BaseException as error:  # pylint: disable=broad-except
            result = False, error
        try:
            pickle.dump(result, replies)
        except Exception as error:  # pylint: disable=broad-except
            pickle.dump((False, RuntimeError(f"{result!r}: {error}")), replies)
        replies.flush()


SIGBUS_CODE = """
fd = os.open(path, os.O_RDWR)
dev = gaia.Device()
map = dev.mmap(fd, length)
"""


def in_child(function):
    """Calls it in a fork of this process: (status as waitpid has it, what it returned or None)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.close(read)
            with os.fdopen(write, "wb") as file:
                pickle.dump(function(), file)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    status = os.waitpid(pid, 0)[1]
    return status, pickle.loads(data) if data else None


def end_without_first_thread(function, *args):
    """Ends this process with the function's value, which another thread finds when the first one has ended."""
    def body():
        while read_file("/proc/self/stat").rsplit(b")")[1].split()[0] != b"Z":
            time.sleep(0.001)
        os._exit(function(*args))

    threading.Thread(target=body).start()
    ctypes.CDLL(None).pthread_exit(None)


def error_of(function, *args):
    """The number of the error that it raises; 0: none."""
    try:
        function(*args)
    except OSError as error:
        return error.errno
    return 0


def functions_of(module, agent):
    """The functions of a test file are known to the agent."""
    agent.do(f"from {module} import *")
    return agent


# --- the protocol by hand -------------------------------------------------------------------------------------------

HELLO, MAP, ATTACH, UNMAP, ACQUIRE, RELEASE, SYNC, ADVISE, STAT, DUMP = range(1, 11)
MESSAGE = struct.Struct("=IHHiIQQQII32s16s20Q")
VERSION = 4
IOCTL_TOKEN = 2 << 30 | 88 << 16 | ord("G") << 8 | 1
TRAPS = 1


def get_token(fd):
    """(socket's address, token) of an open file."""
    answer = fcntl.ioctl(fd, IOCTL_TOKEN, bytes(88))
    version, _, name, token = struct.unpack("=II64s16s", answer)
    assert version == VERSION
    return b"\0" + name.split(b"\0")[0], token


def message(op, length=256, version=VERSION, error=0, map=0, address=0, offset=0, bytes=0, prot=0, flags=0,
            device=b"soft:0", token=b"", value=(0,) * 20):
    return MESSAGE.pack(length, version, op, error, map, address, offset, bytes, prot, flags, device, token, *value)


class Raw:
    """A client that says what it likes."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(address)  # waits for room in the queue, which a socket with a timeout does not
        self.socket.settimeout(20)

    def send(self, data, fds=()):
        if fds:
            socket.send_fds(self.socket, [data], fds)
        else:
            self.socket.send(data)

    def receive(self):
        """(fields of the reply as a dict, descriptors), or None when the daemon hung up."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 4096, 8)
        except ConnectionResetError:
            return None
        if not data:
            return None
        assert len(data) == MESSAGE.size
        fields = MESSAGE.unpack(data)
        return dict(zip("length version op error map address offset bytes prot flags device token".split(), fields),
                    value=fields[12:]), fds

    def call(self, data, fds=()):
        """The reply's error number; -1 when the daemon hung up. Its descriptors are closed."""
        try:
            self.send(data, fds)
        except (BrokenPipeError, ConnectionResetError):
            return -1
        answer = self.receive()
        if answer is None:
            return -1
        for fd in answer[1]:
            os.close(fd)
        self.reply = answer[0]
        return -answer[0]["error"]

    def close(self):
        self.socket.close()


def userfaultfd():
    """A descriptor for faults, as libgaia opens it (api handshake included)."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        pytest.skip("no userfaultfd here")
    api = bytearray(struct.pack("=QQQ", 0xAA, 0, 0))
    # UFFDIO_API with every feature that there is: ask, then say yes
    features = 1 << 5 | 1 << 10  # missing and minor faults on shared memory
    struct.pack_into("=QQQ", api, 0, 0xAA, features, 0)
    fcntl.ioctl(fd, 3 << 30 | 24 << 16 | 0xAA << 8 | 0x3F, api)
    return fd
