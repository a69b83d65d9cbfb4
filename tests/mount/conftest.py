# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests through a real mount.

GAIAFS_BIN   folder of mount.gaiafs, gaiactl and libgaia.so (default: the top of the tree)
GAIA_TEST_DIR  where data directories and mount points are made (default: /var/tmp)
GAIA_TEST_SLOWER  what limits of time are multiplied with

Every test has a time limit (60 s, @pytest.mark.limit(seconds) changes it). It is kept by a process of its own, because a
thread of a test that touches a mapping of a dead mount hangs with the interpreter's lock held. When it expires, that
process prints the stacks of the daemons that the test started and aborts their connections, and theirs alone.
"""
import ctypes
import math
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from stacks import stacks

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.abspath(os.environ.get("GAIAFS_BIN", TOP))
LIMIT_S = 60
os.environ["LC_ALL"] = "C.UTF-8"  # what plain tools say is looked at, and they say it in the user's language
SANITIZER = re.compile(r"ERROR: \w+Sanitizer|WARNING: \w+Sanitizer|runtime error:|gaiafs: lock order:")


# --- what is run ----------------------------------------------------------------------------------------------------

# By how much everything takes longer here (tests/vm/suite.py): so much longer are the limits.
SLOWER = float(os.environ.get("GAIA_TEST_SLOWER", 1))

# What takes long and is seldom broken: tests/run.sh leaves it to `make check`.
not_in_the_gate = pytest.mark.skipif(bool(os.environ.get("GAIA_GATE")), reason="takes too long for tests/run.sh: make check")


def so_much(usual, gate):
    """How often, or how long: less in tests/run.sh."""
    return gate if os.environ.get("GAIA_GATE") else usual


# tests/run.sh (GAIA_GATE) runs every test, but of two parametrizations or more every second one, of four or more every fourth,
# of eight or more every eighth, or one of so many: here by file. Of that a third where the plain suite runs some, too (others,
# where there are enough); all that is marked `whole`, and one of n of what is marked `one_of(n)`. `make check` runs all.
THINNED = {"cuda_broken": 5, "cuda_cut": 2, "cuda_lanes": 4, "cuda_large": 8, "cuda_maps": 4, "cuda_refresh": 5, "cuda_windows": 4,
           "device_code": 5, "injection": 5, "networks": 3, "nodes": 5, "nodes_calls": 3, "nodes_comings": 3, "nodes_deaths": 3,
           "nodes_names": 3, "nodes_random": 3, "nodes_room": 3, "nodes_sizes": 3, "permissions": 4, "sharing": 4}
SANITIZED = {"injection"}  # more of it there than here
# What has no parameters here, and is not marked `plain`, is run by its steps with sanitizers only (GAIA_GATE=sanitized).
ENOUGH_SANITIZED = {"arguments", "broken_disks", "clients", "cuda_limits", "deaths", "disks", "fault_path",
                    "fault_threads", "forks", "parts"}
sanitizer_is_enough = pytest.mark.skip(reason="tests/run.sh runs it with a sanitizer: make check")


def is_run_sanitized(item):
    return (item.path.stem.removeprefix("test_") in ENOUGH_SANITIZED and not hasattr(item, "callspec")
            and not any(item.get_closest_marker(name) for name in ("plain", "skipif")))


def pytest_collection_modifyitems(items):
    device, groups = os.environ.get("GAIA_DEVICE", ""), {}
    for item in items:
        if device.startswith("cuda:") and item.get_closest_marker("traps"):
            item.add_marker(pytest.mark.skip(reason="a GPU's touches and stores are no faults"))
        elif hasattr(item, "callspec") and not_in_the_gate.mark not in item.iter_markers() and not item.get_closest_marker("whole"):
            groups.setdefault((item.path.stem.removeprefix("test_"), item.originalname), []).append(item)
    if not os.environ.get("GAIA_GATE"):
        return
    again = bool(device or os.environ.get("GAIAFS_SANITIZE"))
    if os.environ["GAIA_GATE"] == "sanitized" and not again:
        for item in filter(is_run_sanitized, items):
            item.add_marker(sanitizer_is_enough)
    for (file, name), group in groups.items():
        usual = 8 if len(group) >= 8 else 4 if len(group) >= 4 else 2
        one_of = THINNED.get(file, usual) * (3 if again != (file in SANITIZED) else 1)
        marked = group[0].get_closest_marker("one_of")
        one_of = marked.args[0] if marked else one_of
        kept = math.ceil(len(group) / one_of)
        shuffled = random.Random(name).sample(group, len(group))  # the same in each run
        for item in shuffled[:-kept] if again else shuffled[kept:]:
            item.add_marker(not_in_the_gate)


# --- mounts ---------------------------------------------------------------------------------------------------------

def mountinfo(path):
    """(minor device number, type) of the topmost mount at path, or None."""
    found = None
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        for line in file:
            head, _, tail = line.partition(" - ")
            fields = head.split()
            if re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), fields[4]) == path:
                found = (int(fields[2].split(":")[1]), tail.split()[0])
    return found


def kept_by(minor):
    """Who still has a mount of this minor device number: a copy in a mount namespace of its own keeps the daemon alive."""
    found, device = {}, f" 0:{minor} "
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as file:
                if not any(device in line for line in file):
                    continue
            with open(f"/proc/{pid}/comm") as file:
                found.setdefault(os.readlink(f"/proc/{pid}/ns/mnt"), []).append(f"{pid} ({file.read().strip()})")
        except OSError:
            continue  # it has ended, or nothing is mounted where it is
    return "; ".join(f"{namespace}: {', '.join(who)}" for namespace, who in found.items()) or "nobody"


LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2


def unmount(path, flags=0):
    """An errno, or 0. The program umount would be a process more for each mount of each test."""
    return ctypes.get_errno() if LIBC.umount2(os.fsencode(path), flags) else 0


class Mount:
    """A mounted gaiafs: data and mnt are paths, proc the daemon (a child of ours), log the file with its stderr."""

    def __init__(self, data, mnt, proc, log):
        self.data, self.mnt, self.proc, self.log = data, mnt, proc, log
        self.pid = proc.pid
        self.expected_exit = 0  # None: whatever (a test that kills the daemon sets it)
        self.minor = None

    def mounted(self):
        found = mountinfo(self.mnt)
        return found is not None and found[1] == "fuse.gaiafs"

    def log_text(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def unmount(self):
        """Returns what is wrong, or None."""
        if self.mounted():
            deadline = time.monotonic() + 10
            while True:
                error = unmount(self.mnt)
                if not error or not self.mounted():
                    break
                if time.monotonic() > deadline:
                    unmount(self.mnt, MNT_DETACH)
                    self.stop()
                    return f"umount: {os.strerror(error)}"
                time.sleep(0.1)
        return self.stop()

    def kill(self):
        self.expected_exit = None
        os.kill(self.pid, signal.SIGKILL)
        self.proc.wait(20)

    def stop(self):
        try:
            code = self.proc.wait(20)
        except subprocess.TimeoutExpired:
            keepers, where = kept_by(self.minor), stacks(self.pid)
            os.kill(self.pid, signal.SIGKILL)
            self.proc.wait()
            return f"the daemon did not end after the unmount; who has the mount: {keepers}\n{where}"
        if SANITIZER.search(self.log_text()):
            return f"the daemon's log has a sanitizer's report, and it ended with {code}"
        if self.expected_exit is not None and code != self.expected_exit:
            return f"the daemon ended with {code}"
        return None


# The memory of a program, which under TSan is several times as much.
measures_memory = pytest.mark.skipif(os.environ.get("GAIAFS_SANITIZE") == "thread", reason="most of its memory is TSan's")
# Of very many small things, around each of which ASan keeps more than it is large.
counts_small_memory = pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="most of its memory is the sanitizer's")


@pytest.fixture
def workdir():
    """An empty directory on a disk."""
    path = os.path.realpath(tempfile.mkdtemp(prefix="gaiafs-test-", dir=os.environ.get("GAIA_TEST_DIR", "/var/tmp")))
    os.chmod(path, 0o755)  # other users work in it too
    os.environ["GAIA_TEST_OWN"] = path  # helpers.LET_GO
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def mount(workdir, request):
    """A function that mounts: mount(options="timeout=0", data=path, mnt=path, args=[...], env={...}) -> Mount.
    before: a command that starts the rest of its arguments in its own place (prlimit)."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no /dev/fuse here")
    mounts = []

    def start(options="", data=None, mnt=None, args=(), env=None, before=()):
        number = len(mounts)
        if data is None:
            data = os.path.join(workdir, f"data{number}")
            os.mkdir(data)
        if mnt is None:
            mnt = os.path.join(workdir, f"mnt{number}")
            os.mkdir(mnt)
        log = os.path.join(workdir, f"log{number}")
        command = [*before, os.path.join(BIN, "mount.gaiafs"), "-f", data, mnt, *args]
        for given in os.environ.get("GAIA_TEST_OPTIONS"), options:
            if given:
                command += ["-o", given]
        with open(log, "wb") as stderr:
            proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, cwd="/",
                                    env={**os.environ, **(env or {})})
        mounted = Mount(data, mnt, proc, log)
        mounts.append(mounted)
        deadline = time.monotonic() + 20
        while not mounted.mounted():
            if proc.poll() is not None:
                mounts.remove(mounted)
                pytest.fail(f"mount.gaiafs ended with {proc.returncode}: {mounted.log_text()}")
            assert time.monotonic() < deadline, "not mounted after 20 s"
            time.sleep(0.01)
        mounted.minor = mountinfo(mnt)[0]
        watchdog().tell(f"mount {proc.pid} {mounted.minor}")
        os.stat(mnt)  # answers once the daemon serves
        return mounted

    yield start
    problems = [problem for problem in (m.unmount() for m in reversed(mounts)) if problem]
    failed = getattr(request.node, "failed_call", False)
    if problems or failed:
        for m in mounts:
            print(f"--- daemon of {m.mnt}:\n{m.log_text()[-8000:]}", file=sys.stderr)
    assert not problems, "; ".join(problems)


# --- the time limit -------------------------------------------------------------------------------------------------

class Watchdog:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="gaiafs-watchdog-")
        self.report = os.path.join(self.folder, "report")
        self.proc = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), self.report, str(os.getpid())],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def tell(self, line):
        self.proc.stdin.write(line + "\n")
        self.proc.stdin.flush()

    def await_word(self, word):
        while self.proc.stdout.readline().strip() not in (word, ""):
            pass

    def disarm(self):
        """It has done by then what it was at. The report of a test that has ended by itself meanwhile is of no use."""
        self.tell("disarm")
        self.await_word("disarmed")
        if os.path.exists(self.report):
            os.unlink(self.report)

    def expired(self):
        if not os.path.exists(self.report):
            return None
        with open(self.report, errors="replace") as file:
            text = file.read()
        os.unlink(self.report)
        self.await_word("aborted")  # before the teardown: others' connections have the numbers of those that end there
        return text

    def close(self):
        self.proc.stdin.close()
        self.proc.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)


_watchdog = None


def watchdog():
    global _watchdog
    if _watchdog is None:
        _watchdog = Watchdog()
    return _watchdog


def pytest_configure(config):
    config.addinivalue_line("markers", "one_of(n): of its parametrizations tests/run.sh runs one of n")
    config.addinivalue_line("markers", "traps: what only a device can do whose touches and first stores are faults")
    config.addinivalue_line("markers", "plain: of what it looks at a sanitizer's build has other amounts")
    config.addinivalue_line("markers", "whole: no part of it is left out in tests/run.sh")
    config.addinivalue_line("markers", f"limit(seconds): time limit of the test ({LIMIT_S} s without it)")


def pytest_sessionfinish():
    if _watchdog is not None:
        _watchdog.close()


class Expired(Exception):
    pass


_armed = False


def _on_expiry(_signal, _frame):
    if _armed:  # else it comes too late, and would end pytest
        raise Expired("time limit")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    global _armed
    marker = item.get_closest_marker("limit")
    seconds = (marker.args[0] if marker else LIMIT_S) * SLOWER
    previous = signal.signal(signal.SIGALRM, _on_expiry)
    _armed = True
    watchdog().tell(f"arm {seconds} {item.nodeid}")
    yield
    _armed = False
    watchdog().disarm()
    signal.signal(signal.SIGALRM, previous)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    global _armed
    _armed = False  # nobody catches it here
    outcome = yield
    report = outcome.get_result()
    if call.when == "call":
        item.failed_call = report.failed
    text = watchdog().expired()
    _armed = call.when != "teardown"
    if text is not None:
        report.outcome = "failed"
        report.longrepr = f"{text}\n{report.longreprtext}"


def abort_connection(minor):
    """Through fusectl, which not every machine has mounted. Nobody asks whether it could be done: it may be gone by itself."""
    folder, own = "/sys/fs/fuse/connections", None
    if not os.path.isdir(f"{folder}/{minor}"):
        folder = own = tempfile.mkdtemp(prefix="gaiafs-fusectl-")
        subprocess.run(["mount", "-t", "fusectl", "none", own], check=False)
    try:
        with open(f"{folder}/{minor}/abort", "w") as file:
            file.write("1")
    except OSError:
        pass
    finally:
        if own:
            subprocess.run(["umount", own], check=False)
            os.rmdir(own)


def watchdog_main(report, tester):
    """Reads lines: "arm SECONDS NAME", "mount PID MINOR", "disarm", which is answered. Ends at the end of input."""
    deadline, name, mounts, pending = None, "", [], b""
    while True:
        wait = None if deadline is None else max(0, deadline - time.monotonic())
        ready, _, _ = select.select([0], [], [], wait)
        if not ready:
            texts = [f"time limit of {name} expired"]
            living = [(pid, minor) for pid, minor in mounts if os.path.exists(f"/proc/{pid}")]
            for pid, minor in living:
                texts.append(f"--- daemon {pid}, connection {minor}:\n{stacks(pid)}")
            with open(report + ".new", "w") as file:
                file.write("\n".join(texts))
            os.rename(report + ".new", report)
            deadline = None
            # First: what the abort sets free would be in the test's teardown by then, or behind it.
            os.kill(tester, signal.SIGALRM)
            for pid, minor in living:
                if os.path.exists(f"/proc/{pid}"):
                    abort_connection(minor)
            print("aborted", flush=True)
            continue
        data = os.read(0, 65536)
        if not data:
            return
        pending += data
        *lines, pending = pending.split(b"\n")
        for line in lines:
            word, *rest = line.decode().split(" ", 2)
            if word == "arm":
                deadline, name, mounts = time.monotonic() + float(rest[0]), rest[1], []
            elif word == "mount":
                mounts.append((int(rest[0]), int(rest[1])))
            elif word == "disarm":
                deadline, mounts = None, []
                print("disarmed", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watchdog_main(sys.argv[1], int(sys.argv[2]))
