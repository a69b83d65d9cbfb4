# SPDX-License-Identifier: Apache-2.0
"""Several nodes, one of which is a test's (tool_member.c): it dies between two words, is late, or says what no node says."""
import contextlib
import ctypes
import errno
import functools
import mmap
import os
import re
import resource
import subprocess
import threading
import time

import pytest

from conftest import not_in_the_gate
from files import pattern
from helpers import (PAGE, ROWS, agents, cuda_standin, daemon_with_faults, error_of, read_file, statistics,  # noqa: F401
                     wait_until)
from member import OPS, Member, meet  # noqa: F401
from nodes import Program, cluster, home_of  # noqa: F401


def test_an_agent_that_dies_between_a_read_and_its_end_can_come_back(meet):
    """Its WRITE waits for its READ, which nobody ends any more."""
    _, path, member = meet()
    one = member()
    assert one.met == 0
    one.has_page(path)
    assert one.do("write_later") == 0
    time.sleep(0.5)
    one.kill()
    deadline = time.monotonic() + 20
    while (two := member()).met:
        two.kill()
        assert two.met == -errno.EBUSY and time.monotonic() < deadline
        time.sleep(0.2)


def test_a_late_write_back_of_a_dropped_page_is_merged(meet):
    """The bytes that changed meanwhile were nobody's kernel's: written directly."""
    daemon, path, member = meet()
    one = member(late=True)
    one.has_read_page(path)
    content = bytearray(read_file(path))
    content[100] ^= 255
    before = one.do("asked", OPS["NODE_INVALIDATE"])
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_WRONLY | os.O_DIRECT)
    aligned = mmap.mmap(-1, PAGE)
    aligned[:] = bytes(content[:PAGE])
    assert os.pwrite(fd, aligned, 0) == PAGE
    os.fsync(fd)
    os.close(fd)
    wait_until(lambda: one.do("asked", OPS["NODE_INVALIDATE"]) > before)
    time.sleep(0.5)  # the answer is there
    content[5] ^= 255
    one.do("set", 5, content[5])
    assert one.do("write") == PAGE
    assert read_file(path) == content


def test_what_could_not_be_written_back_comes_again_with_the_next(meet):
    daemon, path, member = meet()
    one = member()
    one.has_read_page(path)
    one.do("pause", OPS["NODE_INVALIDATE"], 3000)  # its kernel is slow to drop the page
    content = bytearray(read_file(path))
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_WRONLY)
    assert os.pwrite(fd, b"changed", 200) == 7
    content[200:207] = b"changed"
    assert read_file(path) == content
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    content[5] ^= 255
    one.do("set", 5, content[5])
    assert one.do("write") == -errno.EFBIG
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, limits)
    assert read_file(path)[200:207] == b"changed"
    content[6] ^= 255
    one.do("set", 6, content[6])
    assert one.do("write") == PAGE
    assert read_file(path) == content
    os.close(fd)  # waits for that kernel


def test_an_answer_that_is_no_number_is_an_error(meet):
    daemon, path, member = meet(home="b")
    one = member()
    one.do("answer", OPS["NODE_OPEN"], 1)
    wait_until(lambda: one.do("follow", path) != -errno.ENOTCONN)
    with contextlib.suppress(OSError):
        read_file(os.path.join(daemon.mnt, "f"))
    assert statistics(daemon.mnt)


def test_a_read_whose_page_the_dead_home_wanted_dropped(meet):
    """The READ has the page locked and waits for the next home; the INVALIDATE waits for the page."""
    daemon, path, member = meet(home="b")
    one = member()
    one.do("pause", OPS["NODE_READ"], 1_000_000)
    wait_until(lambda: one.do("follow", path) == 0)
    reader = subprocess.Popen(["cat", os.path.join(daemon.mnt, "f")], stdout=subprocess.PIPE)
    wait_until(lambda: one.do("asked", OPS["NODE_READ"]))
    assert one.do("invalidate") == 0
    time.sleep(0.5)  # it waits
    one.kill()
    assert reader.communicate(timeout=20)[0] == read_file(path)
    assert reader.returncode == 0


def test_what_ends_a_read_does_not_wait_behind_what_waits_for_it(meet):
    """As many WRITEs as may be under way wait for the agent's READ, for 5 s."""
    _, path, member = meet()
    one = member()
    one.has_page(path)
    for _ in range(16):
        assert one.do("write_later") == 0
    time.sleep(0.3)  # they wait
    begun = time.monotonic()
    assert one.do("read_end") == 0
    assert time.monotonic() - begun < 4


def syncs(fd, count):
    """What so many fsync() say."""
    return [error_of(os.fsync, fd) for _ in range(count)]


def writes_to(daemon, one, path):
    """A descriptor on the mount that has written to the member's file, which that has only in its memory."""
    wait_until(lambda: one.do("follow", path) == 0)
    one.do("answer", OPS["NODE_WRITE"], 100)
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_WRONLY)
    assert os.pwrite(fd, b"x" * 100, 0) == 100 and one.do("asked", OPS["NODE_WRITE"]) == 1
    return fd


def test_a_home_that_died_and_was_replaced_before_it_was_known(cluster):
    """Who has taken the file over is the first to tell. What the dead one had is told to the next sync, once."""
    nodes = cluster(3, "timeout=0,peer_timeout=2", only=[0])
    nodes.make(pattern(2 * PAGE, 1), home=1)
    one = Member(nodes.peers)
    try:
        fd = writes_to(nodes[0], one, nodes.below())
        two = Member(nodes.peers, name="c")
        try:
            wait_until(lambda: two.do("take_over", nodes.below()) == 0)
            assert syncs(fd, 2) == [errno.EIO, 0]
            one.kill()
            time.sleep(1)  # the end of its session is found
            assert syncs(fd, 1) == [0]
            os.close(fd)
        finally:
            two.kill()
    finally:
        one.kill()


def test_clocks_that_do_not_agree(meet):
    """Its log says so, of one that is ahead by peer_timeout and more; one that is behind finds that itself."""
    daemon, _, member = meet()
    for ahead_ms, said in ((1500, 0), (-7000, 0), (2500, 1), (3_600_000, 2)):
        one = member(ahead_ms=ahead_ms)
        deadline = time.monotonic() + 20
        while one.met:  # the last session is not cleared away yet
            assert one.met == -errno.EBUSY and time.monotonic() < deadline
            one.kill()
            one = member(ahead_ms=ahead_ms)
        told = re.findall(r"the clock of node b is ([0-9.]+) s ahead of this node's: they must agree", daemon.log_text())
        assert len(told) == said and (not said or abs(float(told[-1]) - ahead_ms / 1000) < 1), (ahead_ms, told)
        one.kill()


def test_who_is_let_in_late_says_what_time_it_is_then(meet):
    """Of a clock that is told a second late nobody sees that it is ahead."""
    _, _, member = meet()
    one = member()
    asked = one.do("asked", OPS["NODE_HELLO"])
    one.do("answer", OPS["NODE_HELLO"], -errno.EBUSY)
    one.do("give_up")
    wait_until(lambda: one.do("asked", OPS["NODE_HELLO"]) > asked + 15)
    assert one.do("aged", OPS["NODE_HELLO"]) < 700


def test_a_home_that_gives_a_node_up_is_none_that_has_left(meet):
    """It may have only in its memory what it had acknowledged, and lose it then."""
    daemon, path, member = meet(home="b")
    one = member()
    fd = writes_to(daemon, one, path)
    one.do("answer", OPS["NODE_HELLO"], -errno.EACCES)
    one.do("give_up")
    assert errno.EIO in syncs(fd, 2)
    os.close(fd)


def test_who_takes_a_file_over_dies_before_it_is_asked(meet):
    """The node that has given it up finds its next home: itself."""
    daemon, path, member = meet(home="a")
    one = member()
    one.has_page(path)
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_RDWR)
    assert os.pread(fd, 10, 0) == read_file(path)[:10]
    one.do("pause", OPS["NODE_OPEN"], 1_000_000)
    one.start("take_over", path)
    time.sleep(1)  # for the OPEN that is not answered
    one.kill()
    wait_until(lambda: error_of(os.pwrite, fd, b"hello", 7) == 0, 20)
    os.fsync(fd)
    assert read_file(path)[7:12] == b"hello"
    os.close(fd)


def about_to_take_over(meet, **kwargs):
    """(a home's file, an agent that has read it and will not open it as its home, a descriptor on its mount)"""
    daemon, path, member = meet(home="a", **kwargs)
    one = member()
    one.has_read_page(path)
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_RDWR)
    assert os.pread(fd, 10, 0) == read_file(path)[:10]
    one.do("answer", OPS["NODE_OPEN"], -errno.EMFILE)
    return path, one, fd


@pytest.mark.parametrize("waits", ["HELLO", "TRACK"])
def test_who_takes_a_file_over_cannot_open_it(meet, waits):
    """It lives, and its own calls wait for the answer to FOLLOW: that does not wait for them."""
    path, one, fd = about_to_take_over(meet)
    one.do("pause", OPS[f"NODE_{waits}"], 20_000)
    if waits == "HELLO":
        before = one.do("asked", OPS["NODE_HELLO"])
        one.do("give_up")
        wait_until(lambda: one.do("asked", OPS["NODE_HELLO"]) > before)
    begun = time.monotonic()
    assert one.do("take_over", path) == -errno.EMFILE
    assert time.monotonic() - begun < 10
    os.close(fd)


@contextlib.contextmanager
def touches(path, count):
    """A function that has a thread touch each of so many pages of a file, and returns the threads. A touch is no readahead,
    nor direct I/O, of which the kernel has 64 requests under way at most; in the kernel it is no SIGBUS."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    populate_read = 22  # MADV_POPULATE_READ
    length, threads = ctypes.c_size_t(count * PAGE), []
    with open(path, "rb") as file:
        address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
    libc.madvise(ctypes.c_void_p(address), length, mmap.MADV_RANDOM)

    def touch():
        for page in range(address, address + count * PAGE, PAGE):
            arguments = ctypes.c_void_p(page), ctypes.c_size_t(PAGE), populate_read
            threads.append(threading.Thread(target=libc.madvise, args=arguments))
            threads[-1].start()
        return threads

    yield touch
    for thread in threads:
        thread.join()
    libc.munmap(ctypes.c_void_p(address), length)


@pytest.mark.parametrize("many", [False, True])
def test_who_waits_for_the_next_home_keeps_nobody_else_waiting(cluster, many):
    """More programs than the daemon has threads read files whose home is dead, and of which the next one does not know yet.
    All others are served meanwhile; of very many some hear at once that it can't be read."""
    count = 4 * os.cpu_count() + (120 if many else 24)
    nodes = cluster(3, "timeout=0,peer_timeout=2", only=[0])
    for number in range(100):
        nodes.make(pattern(count * PAGE, 1), name=f"f{number}", home=1)
        path = nodes.below(f"f{number}")
        if home_of(path, "ac") == "c":
            break
    one, two = Member(nodes.peers), Member(nodes.peers, name="c")
    try:
        two.do("answer", OPS["NODE_TRACK"], -errno.ESTALE)
        wait_until(lambda: one.do("follow", path) == 0)
        with touches(nodes.path(0, os.path.basename(path)), count) as touch:
            one.kill()
            wait_until(lambda: two.do("asked", OPS["NODE_TRACK"]))
            threads = touch()
            time.sleep(1)
            begun = time.monotonic()
            os.mkdir(os.path.join(nodes[0].mnt, "folder"))
            took = time.monotonic() - begun
            wait = sum(thread.is_alive() for thread in threads)
            two.kill()
        assert took < 2
        assert 16 < wait <= 64 if many else wait == count  # fewer where there is little memory
    finally:
        one.kill()
        two.kill()


def test_who_takes_a_file_over_where_there_is_no_thread(meet, workdir, monkeypatch):
    """To look for the file's next home: the answer to FOLLOW does not wait for that all the same, and who uses the file looks."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    path, one, fd = about_to_take_over(meet, env=env)
    one.do("pause", OPS["NODE_TRACK"], 20_000)
    plan.arm(ROWS.index("pthread_create"), errno.EAGAIN, 1, 1)
    begun = time.monotonic()
    assert one.do("take_over", path) == -errno.EMFILE
    assert time.monotonic() - begun < 10 and plan.landed
    plan.row = -1
    one.kill()
    wait_until(lambda: error_of(os.pwrite, fd, b"hello", 7) == 0, 20)
    assert read_file(path)[7:12] == b"hello"
    os.close(fd)


@pytest.mark.parametrize("answer", [-512, -errno.EIO, 1])
def test_a_kernel_that_keeps_its_page_and_a_release(meet, agents, answer):
    """Its programs would read what is old: the release says so, and the next one drops the page."""
    daemon, path, member = meet()
    program = Program(agents(), os.path.join(daemon.mnt, "f"), cpu=False)
    one = member()
    one.has_read_page(path)
    program.device_store(100, b"stored")
    one.do("answer", OPS["NODE_INVALIDATE"], answer)
    assert program.agent("[error_of(map.release) for _ in range(2)]") == [errno.EIO] * 2
    one.do("answer", OPS["NODE_INVALIDATE"], 0)
    before = one.do("asked", OPS["NODE_INVALIDATE"])
    program.release()
    assert one.do("asked", OPS["NODE_INVALIDATE"]) > before
    assert one.do("read") == PAGE and read_file(path)[100:106] == b"stored"


def release_under_way(meet, agents, pause_ms, answer=0):
    """(the daemon, its file below, two programs of one device, a kernel): the first program's release, whose result it has
    yet to say, has told the kernel to drop the page, which takes that long and is answered so."""
    daemon, path, member = meet()
    mnt = os.path.join(daemon.mnt, "f")
    one, other = Program(agents(), mnt, cpu=False), Program(agents(), mnt, cpu=False)
    kernel = member()
    kernel.has_read_page(path)
    kernel.do("pause", OPS["NODE_INVALIDATE"], pause_ms)
    kernel.do("answer", OPS["NODE_INVALIDATE"], answer)
    before = kernel.do("asked", OPS["NODE_INVALIDATE"])
    one.device_store(100, b"stored")
    one.agent.start("error_of(map.release)", "eval")
    wait_until(lambda: kernel.do("asked", OPS["NODE_INVALIDATE"]) > before)
    return daemon, path, one, other, kernel


def test_a_release_of_what_a_read_has_collected(meet, agents):
    """One kernel has asked for the page, and has it; another node's has not dropped it yet. Who releases the same device's
    stores then has the promise, too: nobody reads what was before."""
    daemon, path, one, other, _ = release_under_way(meet, agents, 3000)
    assert read_file(os.path.join(daemon.mnt, "f"))[100:106] == b"stored", "the home's own kernel"
    begun = time.monotonic()
    other.release()
    waited = time.monotonic() - begun
    assert one.agent.finish() == 0
    assert waited > 1.5, "its kernel may still hold the page"
    other.release()
    assert read_file(path)[100:106] == b"stored"


def test_a_failed_release_of_what_was_stored_again(meet, agents):
    """... to a page that a READ has collected meanwhile."""
    daemon, _, one, other, kernel = release_under_way(meet, agents, 1000, -errno.EIO)
    other.device_store(200, b"again")
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_RDONLY)
    assert os.pread(fd, 6, 100) == b"stored" and one.agent.finish() == errno.EIO
    kernel.do("pause", OPS["NODE_INVALIDATE"], 0)
    assert one.agent("error_of(map.release)") == errno.EIO
    kernel.do("answer", OPS["NODE_INVALIDATE"], 0)
    one.release()
    os.close(fd)


@not_in_the_gate
def test_a_kernel_that_failed_once(meet):
    """It has read the page anew since: what is written is on storage, and nobody holds what is older."""
    daemon, path, member = meet()
    kernel = member()
    kernel.has_read_page(path)
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_RDWR)
    kernel.do("answer", OPS["NODE_INVALIDATE"], -errno.ENOMEM)
    before = kernel.do("asked", OPS["NODE_INVALIDATE"])
    os.pwrite(fd, b"cpu", 100)
    wait_until(lambda: kernel.do("asked", OPS["NODE_INVALIDATE"]) > before)
    assert error_of(os.fsync, fd) == errno.EIO
    assert kernel.do("read") == PAGE and kernel.do("read_end") == 0
    kernel.do("answer", OPS["NODE_INVALIDATE"], 0)
    wait_until(lambda: error_of(os.fsync, fd) == 0, 3, "fsync() says 0 again")
    os.close(fd)


def test_an_acquire_of_what_a_cpu_writes(cluster, agents):
    """What it has taken in no kernel holds older: who is told so by the device reads nothing else."""
    nodes = cluster(3, "timeout=0,peer_timeout=2", only=[0, 2])
    nodes.make(bytes(2 * PAGE), home=0)
    program, far = Program(agents(), nodes.path(0), cpu=False), Program(agents(), nodes.path(2), device=None)
    kernel = Member(nodes.peers)
    try:
        far.load(0, 2 * PAGE)
        kernel.has_read_page(nodes.below())
        kernel.do("pause", OPS["NODE_INVALIDATE"], 4000)  # which is told first
        before = kernel.do("asked", OPS["NODE_INVALIDATE"])
        fd = os.open(nodes.path(0), os.O_RDWR)
        os.pwrite(fd, b"data", 100)
        wait_until(lambda: kernel.do("asked", OPS["NODE_INVALIDATE"]) > before)
        kernel.do("pause", OPS["NODE_INVALIDATE"], 0)
        program.acquire()
        assert program.device_load(100, 104) == b"data"
        program.device_store(PAGE + 100, b"flag")
        program.release()
        assert (far.load(PAGE + 100, PAGE + 104), far.load(100, 104)) == (b"flag", b"data")
        os.close(fd)
    finally:
        kernel.kill()


@pytest.mark.parametrize("waits", [True, False])
def test_a_failed_release_of_what_a_read_has_collected(meet, agents, waits):
    """The next one tells the kernel again that has not dropped the page, though nothing is stored any more; so does one that
    has waited for it."""
    daemon, _, one, other, kernel = release_under_way(meet, agents, 1000, -errno.EIO)
    asked = functools.partial(kernel.do, "asked", OPS["NODE_INVALIDATE"])
    if waits:
        other.agent.start("error_of(map.release)", "eval")
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_RDONLY)
    assert os.pread(fd, 6, 100) == b"stored", "the home's own kernel"
    assert one.agent.finish() == errno.EIO
    assert not waits or other.agent.finish() == errno.EIO
    kernel.do("pause", OPS["NODE_INVALIDATE"], 0)
    assert one.agent("[error_of(call) for call in (map.release, map.acquire)]") == [errno.EIO] * 2
    kernel.do("answer", OPS["NODE_INVALIDATE"], 0)
    before = asked()
    one.release()
    assert asked() > before
    before = asked()
    one.release()
    assert asked() == before, "it has been told"
    os.close(fd)


@pytest.mark.parametrize("pause", [5, pytest.param(50, marks=not_in_the_gate)])
def test_a_release_beside_writes_without_end(meet, agents, pause):
    """Where an agent takes longer to drop a page than a program to write to it again."""
    daemon, path, member = meet()
    mnt = os.path.join(daemon.mnt, "f")
    program, writer = Program(agents(), mnt, cpu=False), Program(agents(), mnt, device=None, cpu=False)
    kernel = member()
    kernel.has_read_page(path)
    kernel.do("pause", OPS["NODE_INVALIDATE"], pause)
    writer.agent.start("import time\nend = time.monotonic() + 8\nwhile time.monotonic() < end:\n    os.pwrite(fd, b'w', 0)")
    for turn in range(3):
        stored = bytes([turn]) * 6
        program.agent.do("map[100:106] = stored\nmap.release()", stored=stored)
        assert read_file(mnt)[100:106] == stored
    assert writer.agent.busy(), "it has written all the time"
    writer.agent.kill()


def test_a_kernel_that_drops_nothing_holds_up_its_own_file_only(cluster, agents):
    """Whoever closes another file, or touches pages of a device, does not wait for it."""
    nodes = cluster(3, "timeout=0,peer_timeout=2", only=[0, 2])
    for name in "f", "g":
        nodes.make(pattern(2 * PAGE, 2), name, home=0)
    programs = [Program(agents(), nodes.path(0, name), cpu=False) for name in "fg"]
    far = Program(agents(), nodes.path(2, "g"))
    kernel = Member(nodes.peers)
    try:
        kernel.has_read_page(nodes.below("f"))
        kernel.do("pause", OPS["NODE_INVALIDATE"], 100_000)
        before = kernel.do("asked", OPS["NODE_INVALIDATE"])
        programs[0].write(100, b"cpu")
        wait_until(lambda: kernel.do("asked", OPS["NODE_INVALIDATE"]) > before)
        begun = time.monotonic()
        programs[1].write(2 * PAGE, b"longer")
        programs[1].fsync()
        far.close_once()
        assert far.device_load(0, 1) == pattern(2 * PAGE, 2)[:1]
        assert time.monotonic() - begun < 5
    finally:
        kernel.kill()


def test_a_member_that_opens_a_file_without_end(cluster, agents):
    """Others' kernels are told all the same."""
    nodes = cluster(3, "timeout=0,peer_timeout=2", only=[0, 1])
    nodes.make(pattern(2 * PAGE, 1), home=0)
    program, far = Program(agents(), nodes.path(0), cpu=False), Program(agents(), nodes.path(1), device=None)
    far.load(0, PAGE)
    one = Member(nodes.peers, name="c")
    try:
        assert one.do("track", nodes.below()) == 0
        assert one.do("many", nodes.below()) == 8
        program.device_store(100, b"stored")
        program.release()
        assert far.load(100, 106) == b"stored"
    finally:
        one.kill()


@pytest.mark.parametrize("op, change", [("TRUNCATE", lambda fd: os.ftruncate(fd, PAGE)),
                                        ("FALLOCATE", lambda fd: os.posix_fallocate(fd, 0, 3 * PAGE))])
def test_a_change_that_is_no_write_and_the_death_of_the_home(meet, op, change):
    daemon, path, member = meet(home="b")
    one = member()
    fd = writes_to(daemon, one, path)
    assert syncs(fd, 1) == [0]
    before = one.do("asked", OPS[f"NODE_{op}"])
    change(fd)
    assert one.do("asked", OPS[f"NODE_{op}"]) == before + 1
    one.kill()
    assert errno.EIO in syncs(fd, 2)
    os.close(fd)


def test_a_session_enters_once(meet):
    _, _, member = meet()
    one = member()
    assert one.met == 0 and one.do("hello", 0) in (-errno.EPROTO, -errno.EBUSY)


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPROTO, 600, 5000])
def test_an_error_that_means_something_else_here(meet, error):
    """After ENOSYS the kernel would sync no file any more; with 600 FUSE would not answer at all."""
    daemon, path, member = meet(home="b")
    one = member()
    fd = writes_to(daemon, one, path)
    for answer, seen in ((error, errno.EIO), (errno.EDQUOT, errno.EDQUOT), (0, 0)):
        one.do("answer", OPS["NODE_SYNC"], -answer)
        before = one.do("asked", OPS["NODE_SYNC"])
        assert seen in (error_of(os.fsync, fd) for _ in range(2))
        assert one.do("asked", OPS["NODE_SYNC"]) > before, "nobody was asked"
    os.close(fd)


def test_an_offset_that_is_an_error(meet):
    daemon, path, member = meet(home="b")
    one = member()
    fd = writes_to(daemon, one, path)
    one.do("value", OPS["NODE_SEEK"], -600)
    assert error_of(os.lseek, fd, 0, os.SEEK_DATA) == errno.EIO
    one.do("value", OPS["NODE_SEEK"], 7)
    assert os.lseek(fd, 0, os.SEEK_DATA) == 7
    os.close(fd)


@pytest.mark.parametrize("how", ["truncate", "map"])
def test_a_file_that_had_no_home_for_a_while(meet, agents, workdir, monkeypatch, how):
    """As long as there is no descriptor for the next home programs get EIO; afterwards what they store is kept."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    daemon, path, member = meet(home="b", env=env)
    one = member()
    fd = writes_to(daemon, one, path)
    os.close(fd)
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_RDWR)
    plan.arm(ROWS.index("open64"), errno.EMFILE, 1, 1)  # of the data directory's file, by who will be its home
    one.kill()
    wait_until(lambda: "has no other" in daemon.log_text(), 40)
    assert plan.landed
    plan.row = -1
    if how == "map":
        child = agents()
        child.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, PAGE)", path=os.path.join(daemon.mnt, "f"))
    else:
        os.truncate(os.path.join(daemon.mnt, "f"), PAGE)
    with mmap.mmap(fd, PAGE) as mapped:
        def stored():
            mapped[3:9] = b"stored"
            return error_of(mapped.flush) == 0
        wait_until(stored)
    assert read_file(path)[3:9] == b"stored"
    os.close(fd)


def test_a_home_that_would_give_readers_what_writers_have(meet, agents, monkeypatch):
    """Memory of a GPU can't be given away read only: which it is this node sees to, whatever the home answers."""
    monkeypatch.setenv("LD_LIBRARY_PATH", cuda_standin())
    daemon, path, member = meet(home="b")
    one = member()
    wait_until(lambda: one.do("follow", path) == 0)
    program = agents()
    program.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')", path=os.path.join(daemon.mnt, "f"))

    def maps(prot, frames):
        assert one.do("second", OPS["NODE_MAP"], frames) == 0
        return error_of(program.do, f"dev.mmap(fd, PAGE, {prot})")

    assert maps(1, 1) == errno.EIO  # there are none; the daemon knows its GPU now
    cuda, writable, read_only = 64, 1, 2
    assert one.do("frames", cuda, 0) == 0 and one.do("frames", cuda, 1) == 0
    assert maps(1, writable) == errno.EIO and maps(3, read_only) == errno.EIO
    assert maps(1, read_only) == 0 and maps(3, writable) == 0
    assert one.do("frames", 0, 2) == 0  # of soft:0
    assert maps(3, 3) == errno.EIO
