# SPDX-License-Identifier: Apache-2.0
"""Programs that fork: what a child has of its parent's devices, mappings and sessions, and who waits for whom."""
import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import threading
import time

import pytest

import gaia
from conftest import so_much
from files import make, open_map
from helpers import PAGE, agents, error_of, functions_of, in_child, make_random, read_file, wait_until, write_file  # noqa: F401

SANITIZED = bool(os.environ.get("GAIAFS_SANITIZE"))


def child_of_a_fork(device, mapping, path, content):
    """In the child: (error of each call on what is the parent's, what a device of its own shows)."""
    errors = {
        "acquire": error_of(mapping.acquire), "release": error_of(mapping.release), "sync": error_of(mapping.sync),
        "async": error_of(mapping.sync, gaia.MS_ASYNC), "advise": error_of(mapping.advise, gaia.ADV_WILLNEED),
        "stat": error_of(device.stat), "mmap": error_of(open_map, device, path)}
    munmap = error_of(mapping.unmap)  # nothing is mapped there: skipped
    own = gaia.Device("soft:1")
    fresh = open_map(own, path)
    good = fresh[:] == content
    fresh[3] = 200
    fresh.release()
    stat = own.stat().faults
    device.close()  # takes nothing from the parent
    own.close()
    return errors, munmap, good, stat


def forks(path, content):
    device = gaia.Device("soft:0")
    mapping = open_map(device, path)
    assert mapping[:] == content
    for touch in (lambda: mapping[0], lambda: mapping.__setitem__(0, 1)):
        status, _ = in_child(touch)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV, status
    status, result = in_child(lambda: child_of_a_fork(device, mapping, path, content))
    assert status == 0, status
    errors, munmap, good, faults = result
    assert set(errors.values()) == {errno.EINVAL}, errors
    assert munmap == 0 and good and faults > 0
    # the parent goes on as if nothing had been
    mapping.acquire()
    assert mapping[3] == 200 and mapping[4:] == content[4:]
    mapping[4] = 201
    mapping.release()
    assert device.stat().resident_bytes
    # a child that does nothing about it, and ends
    assert in_child(lambda: None)[0] == 0
    mapping[5] = 202
    mapping.release()
    mapping.unmap()
    device.close()


def child_with_the_same_number(device, mapping, path, content):
    assert os.getpid() == 1
    return child_of_a_fork(device, mapping, path, content), of_sessions()


def test_a_child_with_its_parents_number(mount, agents):
    """As a child of a child may have it when the parent has gone; here it is the first process of a PID namespace, as its parent is
    of another."""
    container = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespaces here")
    m = mount()
    content = make_random("number").randbytes(3) + bytes([0]) + bytes(PAGE)
    agent = functions_of(__name__, agents(before=container))
    agent.do("device = gaia.Device('soft:0')\nmapping = open_map(device, path)", path=make(m, content))
    assert agent("os.getpid()") == 1
    assert agent("ctypes.CDLL(None).unshare(0x20000000)") == 0  # CLONE_NEWPID: of children
    status, result = agent("in_child(lambda: child_with_the_same_number(device, mapping, path, content))", content=content)
    assert status == 0
    (errors, munmap, good, _), kept = result
    assert set(errors.values()) == {errno.EINVAL}, errors
    assert munmap == 0 and good and kept == []
    agent.do("mapping.acquire()")
    assert agent("mapping[3]") == 200
    agent.end()


def test_a_child_of_fork_has_neither_mappings_nor_devices(mount, agents):
    m = mount()
    rng = make_random("fork")
    content = bytearray(rng.randbytes(20 * PAGE))
    content[3:6] = bytes(3)
    path = make(m, content)
    child = functions_of(__name__, agents())
    child.do("forks(path, content)", path=path, content=bytes(content))
    content[3:6] = bytes([200, 201, 202])
    assert read_file(path) == content
    assert child("in_child(lambda: 1)") == (0, 1)
    child.end()


def forks_beside_threads(path, seconds):
    device = gaia.Device("soft:0")
    mapping = open_map(device, path)
    end = time.monotonic() + seconds
    failed = []

    def calls():
        while time.monotonic() < end and not failed:
            try:
                more = open_map(device, path)
                more[0]
                mapping.release()
                mapping.acquire()
                more.unmap()
            except OSError as error:
                failed.append(error)

    thread = threading.Thread(target=calls)
    thread.start()
    count = 0
    while time.monotonic() < end and not failed:
        status, result = in_child(lambda: (error_of(mapping.release), open_map(gaia.Device("soft:1"), path)[1]))
        assert status == 0 and result == (errno.EINVAL, 9), (status, result)
        count += 1
    thread.join()
    assert not failed, failed
    device.close()
    return count


def forks_beside_sessions(paths, count):
    """Of so many children, forked while other threads' sessions come and go (one that maps nothing is kept, till another takes its
    place), those that have what is open of one."""
    device, ended, kept = gaia.Device(), threading.Event(), 0

    def come_and_go(path):
        fd = os.open(path, os.O_RDWR)
        while not ended.is_set():
            device.mmap(fd, PAGE).unmap()

    def sessions():
        links = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/self/fd/{name}"))
        return sum(link.startswith("socket:") or "userfaultfd" in link for link in links)

    before, mappers = sessions(), [threading.Thread(target=come_and_go, args=(path,)) for path in paths]
    for thread in mappers:
        thread.start()
    for _ in range(count):
        pid = os.fork()
        if not pid:
            os._exit(min(sessions() - before, 100))
        kept += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) > 0
    ended.set()
    for thread in mappers:
        thread.join()
    return kept


def test_a_child_of_fork_has_nothing_of_sessions_that_come_and_go(mount, agents):
    paths = [make(mount(), bytes(PAGE)) for _ in range(3)]
    child = functions_of(__name__, agents())
    assert child("forks_beside_sessions(paths, count)", paths=paths, count=so_much(400, 80)) == 0


def test_forks_while_other_threads_are_in_calls(mount, agents):
    m = mount()
    path = make(m, bytes([9]) * 20 * PAGE)
    child = functions_of(__name__, agents())
    count = child("forks_beside_threads(path, 2)", path=path)
    print("forks", count)
    assert count > 10
    child.end()


PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WAIT_THREAD = 0x4206, 0x4207, 17, 0x40000000
ACCEPT4 = (288, 242)  # of x86-64, and of the generic table


def in_accept(pid):
    """The threads of a process that wait for somebody to connect."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = read_file(f"/proc/{pid}/task/{thread}/syscall").split()
            if words[0].isdigit() and int(words[0]) in ACCEPT4:
                found.append(int(thread))
    return found


@pytest.fixture
def hold():
    """A function that stops one thread, which goes on at the end, or when what it returns is called."""
    libc, held = ctypes.CDLL(None, use_errno=True), []
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def let_go(thread):
        if thread in held:
            held.remove(thread)
            if libc.ptrace(PTRACE_DETACH, thread, None, None):
                os.waitpid(thread, WAIT_THREAD)  # it was killed

    def stop(thread):
        assert libc.ptrace(PTRACE_SEIZE, thread, None, None) == 0, os.strerror(ctypes.get_errno())
        assert libc.ptrace(PTRACE_INTERRUPT, thread, None, None) == 0
        assert os.waitpid(thread, WAIT_THREAD)[0] == thread
        held.append(thread)
        return lambda: let_go(thread)

    yield stop
    for thread in list(held):
        let_go(thread)


def of_sessions():
    """Descriptors of this process such as a session has."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue  # that of the folder itself
    return [link for link in links if link.startswith("socket:") or "eventfd" in link or "userfaultfd" in link]


def maps_that_wait(slow, count=2):
    """Several threads begin to map from one mount; a function that says what they have got so far, and one that waits."""
    device, got = gaia.Device("soft:0"), []
    threads = [threading.Thread(target=lambda: got.append(error_of(lambda: open_map(device, slow)[0])), daemon=True)
               for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    return lambda: got, lambda: [thread.join(20) for thread in threads]


def child_beside_maps(path, before):
    """In a child of fork(): descriptors of sessions that the parent had not before, and what is in the other file."""
    return [link for link in of_sessions() if link not in before], open_map(gaia.Device("soft:1"), path)[0]


@pytest.mark.limit(60)
def test_a_fork_and_other_mounts_do_not_wait_for_a_first_map(mount, agents, hold):
    """Two threads map from a mount that has not answered their process yet. A fork does not wait for it, nor does its child,
    which has nothing of the session that is half made; nor a map from another mount; and at last both have their maps."""
    slow, other = mount(), mount()
    path, fine = make(slow, b"slow"), make(other, b"fine")
    agent = functions_of(__name__, agents())
    agent.do("gaia.Device('soft:0')\nbefore = of_sessions()")
    [thread] = in_accept(slow.pid)
    let_go = hold(thread)
    agent.do("got, wait = maps_that_wait(path)", path=path)
    assert agent("got()") == []
    for code, expected in (("in_child(lambda: child_beside_maps(path, before))", (0, ([], ord("f")))),
                           ("open_map(gaia.Device('soft:2'), path)[0]", ord("f"))):
        agent.start(code, "eval", path=fine)
        assert not agent.busy(10), code
        assert agent.finish() == expected, code
    assert agent("got()") == []
    let_go()
    agent.do("wait()")
    assert agent("got()") == [0, 0]
    agent.end()


@pytest.mark.limit(60)
def test_a_daemon_that_ends_before_it_has_answered(mount, agents, hold):
    """All who wait for the session hear of it; the next map begins anew."""
    m = mount()
    path = make(m, b"never")
    agent = functions_of(__name__, agents())
    [thread] = in_accept(m.pid)
    let_go = hold(thread)
    agent.do("got, wait = maps_that_wait(path, 3)", path=path)
    assert agent("got()") == []
    m.expected_exit = None
    os.kill(m.pid, signal.SIGKILL)
    let_go()
    agent.do("wait()")
    assert agent("got()") == [errno.ENOTCONN] * 3
    agent.end()


RELEASES_BEFORE_A_FORK = """
released, libc = [], ctypes.CDLL(None)
before = ctypes.CFUNCTYPE(None)(lambda: released.append(error_of(mapping.release)))
assert libc.__register_atfork(before, None, None, None) == 0
device = gaia.Device('soft:0')
mapping = open_map(device, path)
mapping[0] = 7
"""


def test_a_program_that_releases_before_it_forks(mount, agents):
    """By pthread_atfork(), before its first call of ours."""
    agent = functions_of(__name__, agents())
    path = make(mount(), bytes(PAGE))
    agent.do(RELEASES_BEFORE_A_FORK, path=path)
    agent.start("in_child(lambda: 5)", "eval")
    assert not agent.busy(20), "the fork waits for ever"
    assert agent.finish() == (0, 5)
    assert agent("released") == [0]
    assert read_file(path)[0] == 7
    agent.end()


WAITS = (47, 7, 212, 73)  # recvmsg() and poll() of x86-64; recvmsg() and ppoll() of the generic table


def descriptors_of(*prefixes):
    """What this process has open whose names begin so."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(link for link in links if link.startswith(prefixes))


def wait_for_an_answer(pid, thread):
    """Till a thread of another process waits for a daemon's."""
    def waits():
        words = read_file(f"/proc/{pid}/task/{thread}/syscall").split()
        return words[0].isdigit() and int(words[0]) in WAITS
    wait_until(waits, what="the call waits for its answer")


def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


@pytest.mark.limit(60)
@pytest.mark.parametrize("call", ["hello", "map", "unmap"])
def test_a_child_of_fork_has_no_descriptor_of_a_call_under_way(mount, agents, hold, call):
    """What a mapping that is being made, or unmade, has open of the file, and of the daemon's memory."""
    m = mount()
    path, agent = make(m, bytes(PAGE)), functions_of(__name__, agents())
    agent.do("device = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR)\nseen = (path, '/memfd:')\nbefore = descriptors_of(*seen)",
             path=path)
    if call == "hello":
        waiters = in_accept(m.pid)
    else:
        threads = set(os.listdir(f"/proc/{m.pid}/task"))
        agent.do("kept = device.mmap(fd, PAGE)")  # by a session, which those threads serve that come with it
        waiters = [int(thread) for thread in set(os.listdir(f"/proc/{m.pid}/task")) - threads]
    assert waiters
    let_go = [hold(thread) for thread in waiters]
    agent.do("thread = in_a_thread(kept.unmap if call == 'unmap' else lambda: device.mmap(fd, PAGE))", call=call)
    wait_for_an_answer(agent.pid, agent("thread.native_id"))
    agent.start("in_child(lambda: descriptors_of(*seen))", "eval")
    assert not agent.busy(20), "the fork waits"
    assert agent.finish() == (0, agent("before"))
    assert agent("thread.is_alive()")
    for go in let_go:
        go()
    agent.do("thread.join()\ndevice.close()")
    assert agent("descriptors_of(*seen) == before")
    agent.end()


# A fork of the program's own, when the daemon has answered and what it has sent is being mapped, or when an acquire has a
# descriptor to close.
FORKS_WITHIN = r"""
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int armed, status = -1; /* status: the child's; how many descriptors and areas it has of that */
const char *seen;

static int count(void)
{
    DIR *folder = opendir("/proc/self/fd");
    char path[600], target[600];
    int found = 0;

    for (struct dirent *entry; (entry = readdir(folder));) {
        ssize_t n;
        strcat(strcpy(path, "/proc/self/fd/"), entry->d_name);
        n = readlink(path, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
        found += !strcmp(target, seen) || !strncmp(target, "/memfd:", 7);
    }
    for (FILE *maps = fopen("/proc/self/maps", "r"); fgets(path, sizeof path, maps);)
        found += strstr(path, "/memfd:") != NULL;
    return found;
}

static void fork_once(void)
{
    if (!armed)
        return;
    armed = 0;
    pid_t child = fork();
    if (!child)
        _exit(count());
    waitpid(child, &status, 0);
}

int mprotect(void *address, size_t length, int protection)
{
    int (*real)(void *, size_t, int) = dlsym(RTLD_NEXT, "mprotect");

    if (protection == (PROT_READ | PROT_WRITE))
        fork_once();
    return real(address, length, protection);
}

int open64(const char *name, int flags, ...)
{
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    int fd = real(name, flags, 0);

    if (!strncmp(name, "/proc/self/fd/", 14))
        fork_once();
    return fd;
}

int dup3(int from, int to, int flags)
{
    int (*real)(int, int, int) = dlsym(RTLD_NEXT, "dup3");

    fork_once();
    return real(from, to, flags);
}
"""


@pytest.fixture
def forker(mount, agents, workdir):
    """A function that starts a program with FORKS_WITHIN and a device."""
    def start(before=()):
        source, shim = os.path.join(workdir, "shim.c"), os.path.join(workdir, "shim.so")
        write_file(source, FORKS_WITHIN.encode())
        subprocess.run(["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
        agent = functions_of(__name__, agents({"LD_PRELOAD": shim}, before))
        agent.do("shim, name = ctypes.CDLL(shim), path.encode()\nctypes.c_char_p.in_dll(shim, 'seen').value = name\n"
                 "device = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR)\narmed = ctypes.c_int.in_dll(shim, 'armed')",
                 shim=shim, path=make(mount(), bytes(PAGE)))
        return agent
    return start


def test_a_child_of_fork_has_nothing_that_a_daemon_has_just_sent(forker):
    agent = forker()
    agent.do("armed.value = 1\nmapping = device.mmap(fd, PAGE)")
    status = agent("ctypes.c_int.in_dll(shim, 'status').value")
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1, status  # its own
    agent.do("mapping[0] = 1\nmapping.release()")
    agent.end()


def test_a_child_of_fork_has_nothing_that_an_acquire_closes(forker):
    """By which an acquire waits for write-backs, on Linux before 6.16, as this program takes it to be."""
    agent = forker(("setarch", "--uname-2.6"))
    agent.do("mapping = device.mmap(fd, PAGE)\narmed.value = 1\nmapping.acquire()")
    status = agent("ctypes.c_int.in_dll(shim, 'status').value")
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1, status  # its own
    agent.end()


def areas_of_gaia():
    with open("/proc/self/maps") as file:
        return sum("memfd:gaia" in line for line in file)


def test_a_child_of_fork_has_nothing_in_place_of_a_mapping(mount, agents):
    """Neither where a part was unmapped, nor where the daemon is dead."""
    m = mount()
    agent = functions_of(__name__, agents())
    agent.do("device = gaia.Device('soft:0')\nmapping = device.mmap(os.open(path, os.O_RDWR), 4 * PAGE)\n"
             "mapping.unmap(PAGE, PAGE)", path=make(m, bytes(4 * PAGE)))
    assert agent("areas_of_gaia(), in_child(areas_of_gaia)") == (5, (0, 0))
    m.kill()
    wait_until(lambda: agent("error_of(mapping.acquire, 0, PAGE)") == errno.ENOTCONN)
    wait_until(lambda: agent("in_child(areas_of_gaia)") == (0, 0))
    agent.end()


def test_a_child_of_fork_does_not_keep_the_mount_busy(mount, agents):
    m = mount()
    path = make(m, bytes(4 * PAGE))
    child = functions_of(__name__, agents())
    child.do("device = gaia.Device()\nmapping = open_map(device, path)\nmapping[0] = 1\nr, w = os.pipe()\n"
             "runs, tells = os.pipe()\n"
             "pid = os.fork()\nif pid == 0:\n    os.close(w)\n    os.write(tells, b'1')\n    os.read(r, 1)\n    os._exit(0)\n"
             "device.close()\nos.read(runs, 1)", path=path)  # it lets go of what it has before fork() returns there
    done = subprocess.run(["umount", m.mnt], capture_output=True, text=True)
    child.do("os.close(w)\nos.waitpid(pid, 0)")
    assert done.returncode == 0, done.stderr


def in_child_of_clone(function):
    """in_child(), but that no handler of forks is called, as with clone()."""
    fork, os.fork = os.fork, ctypes.PyDLL(None)._Fork
    try:
        status, result = in_child(function)
    finally:
        os.fork = fork
    assert status == 0, status
    return result


def a_byte(path):
    mapping = open_map(gaia.Device("soft:0"), path)
    return mapping[8]


def behind_the_librarys_back(path):
    """In such a child: what it does with what is the parent's, and alone."""
    assert in_child_of_clone(lambda: a_byte(path)) == 7  # its parent has nothing yet
    device = gaia.Device("soft:0")
    mapping = open_map(device, path)
    mapping[0] = 1
    errors = in_child_of_clone(lambda: (error_of(mapping.acquire), error_of(mapping.unmap), error_of(gaia.Device, "soft:0")))
    assert in_child(lambda: a_byte(path))[1] == 7  # one of fork() does as it likes
    mapping[1] = 2
    mapping.release()
    content = read_file(path)[:2]
    mapping.unmap()
    device.close()
    return errors, content


def test_a_child_of_a_system_call_takes_nothing_from_its_parent(mount, agents):
    m = mount()
    path = make(m, bytes([7]) * PAGE)
    agent = functions_of(__name__, agents())
    errors, content = agent("behind_the_librarys_back(path)", path=path)
    assert errors == (errno.EINVAL, errno.EINVAL, errno.ENOTSUP) and content == b"\1\2"
    agent.end()
