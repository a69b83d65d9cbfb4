# SPDX-License-Identifier: Apache-2.0
"""Several nodes, some of which end: programs and daemons that are killed, or stand still."""
import contextlib
import ctypes
import errno
import os
import signal
import socket
import time

import pytest

from conftest import Mount, not_in_the_gate, so_much
from descriptors import descriptors_of
from files import pattern
from helpers import (PAGE, ROWS, AgentDied, agents, daemon_with_faults, error_of, read_file,  # noqa: F401
                     standing_still, statistics, wait_until)
from nodes import SIDES, TAKEN_OVER, Program, all_see, check, cluster, home_of, taken_for_dead  # noqa: F401

TIMEOUT_S = 1
OPTIONS = f"timeout=0,peer_timeout={TIMEOUT_S}"
GIVEN_UP_S = 2.5 * TIMEOUT_S
PATIENCE_S = 3 * TIMEOUT_S + 4  # what is promised, on a machine that is busy with other things


def unmount(m):
    """As a user does it; the daemon must end well."""
    assert m.unmount() is None


def end(program):
    program.agent.end()


def within(seconds, what, function, *args):
    """What it returns; or fails if that took longer. (A hang is ended by the time limit of the test.)"""
    begin = time.monotonic()
    try:
        return function(*args)
    finally:
        took = time.monotonic() - begin
        assert took < seconds, f"{what} took {took:.1f} s"


# --- programs that are killed ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("when", ["released", "stored"])
def test_a_killed_program(cluster, agents, first, when):
    """What it released stays. What it only stored stays in the device's copy, and goes with the next release there."""
    nodes = cluster()
    content = bytearray(pattern(4 * PAGE))
    nodes.make(content, home=0)
    numbers = nodes.sides(nodes.below(), first)
    victim, other = (Program(agents(), nodes.path(number)) for number in numbers)
    for offset in (5, PAGE - 2, 3 * PAGE):
        victim.device_store(offset, b"abc")
        content[offset:offset + 3] = b"abc"
    if when == "released":
        victim.release()
    victim.agent.kill()
    if when == "stored":
        heir = Program(agents(), nodes.path(numbers[0]))
        heir.release()
    check("read()", other.read(), content)
    check("device", other.acquired(), content)
    later = Program(agents(), nodes.path(numbers[0]))
    all_see({"other": other, "later": later}, content)


@pytest.mark.parametrize("first", SIDES)
def test_programs_killed_at_any_moment(cluster, agents, first):
    """While they store, release and acquire; the others go on, and what a killed one had released before is there."""
    nodes = cluster()
    content = bytearray(pattern(4 * PAGE))
    nodes.make(content, home=0)
    numbers = nodes.sides(nodes.below(), first)
    other = Program(agents(), nodes.path(numbers[1]))
    for turn in range(8):
        victim = Program(agents(), nodes.path(numbers[0]))
        victim.device_store(turn, bytes([turn + 100]))
        content[turn] = turn + 100
        victim.release()
        victim.agent.start("while True:\n    for at in range(100, length, 50): map[at] = map[at] ^ 1\n    map.release()\n"
                           "    os.pwrite(fd, b'x', 70)\n    map.acquire()")
        other.write(50 + turn, b"o")
        content[50 + turn] = ord("o")
        time.sleep(0.02 * turn)
        victim.agent.kill()
        got = other.acquired()
        assert got[:70] == bytes(content[:70])
        assert other.read() == other.load()


# --- daemons that are killed ----------------------------------------------------------------------------------------------

@pytest.fixture
def killed(cluster, agents):
    """A function: two nodes, a program on each, what both have done and flushed; then a file's home or agent is killed.
    Returns (cluster, survivor's program, content, number of the survivor, victim's program)."""
    def start(which, options=OPTIONS, how=Mount.kill):
        nodes = cluster(2, options)
        content = bytearray(pattern(8 * PAGE))
        nodes.make(content, home=0)
        dead, alive = nodes.sides(nodes.below(), which)
        victim, survivor = Program(agents(), nodes.path(dead)), Program(agents(), nodes.path(alive))
        for at, program in ((0, victim), (PAGE, survivor)):
            program.device_store(at + 10, b"device")
            content[at + 10:at + 16] = b"device"
            program.write(at + 20, b"write")
            content[at + 20:at + 25] = b"write"
            program.store(at + 30, b"store")
            content[at + 30:at + 35] = b"store"
            program.release()
            program.msync()
        all_see({"victim": victim, "survivor": survivor}, content)
        assert set(victim.agent("os.listdir(top)", top=nodes[dead].mnt)) == {"f"}
        return nodes, survivor, content, alive, victim, dead

    return start


def test_an_agent_is_killed_and_the_home_goes_on(killed, agents):
    """And has all that was released there, though nobody has read it; of what was not it has nothing."""
    nodes, home, content, alive, victim, dead = killed("agent")
    victim.device_store(5 * PAGE, b"released")
    victim.release()
    content[5 * PAGE:5 * PAGE + 8] = b"released"
    victim.device_store(5 * PAGE + 8, b"and not released")
    nodes[dead].kill()
    check("read()", within(PATIENCE_S, "read()", home.read), content)
    within(PATIENCE_S, "acquire", home.acquire)
    home.device_store(6 * PAGE, b"on")
    within(PATIENCE_S, "release", home.release)
    content[6 * PAGE:6 * PAGE + 2] = b"on"
    within(PATIENCE_S, "write()", home.write, 7 * PAGE, b"goes")
    content[7 * PAGE:7 * PAGE + 4] = b"goes"
    within(PATIENCE_S, "fsync()", home.fsync)
    more = within(PATIENCE_S, "a new program", Program, agents(), nodes.path(alive), "soft:1")
    all_see({"home": home, "more": more}, content)
    victim.agent.kill()
    for program in home, more:
        end(program)
    unmount(nodes[alive])
    assert read_file(nodes.below()) == bytes(content)


def test_an_agent_is_killed_in_the_middle_of_everything(cluster, agents):
    """The home's programs never hang nor fail, and lose no byte of their own."""
    nodes = cluster(2, OPTIONS)
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=0)
    home, beside = Program(agents(), nodes.path(0)), Program(agents(), nodes.path(0), "soft:1")
    agent = Program(agents(), nodes.path(1))
    agent.agent.start("while True:\n    for at in range(1, length, 40): map[at] = map[at] ^ 1; cpu[at + 1] = cpu[at + 1] ^ 1\n"
                      "    map.release()\n    map.acquire()\n    os.pwrite(fd, b'x', 3)")
    rounds = so_much(60, 20)
    for program, step in ((home, 4), (beside, 8)):
        program.agent.start("for round_ in range(rounds):\n"
                            "    for at in range(step, length, 40): map[at] = round_ + step\n"
                            "    map.release()\n    map.acquire()\n"
                            "    for at in range(step + 1, length, 40): os.pwrite(fd, bytes([round_ + step]), at)\n",
                            step=step, rounds=rounds)
    time.sleep(0.3)
    nodes[1].kill()
    for program, step in ((home, 4), (beside, 8)):
        within(60, "what was begun", program.agent.finish)
        for at in range(step, len(content), 40):
            content[at] = content[at + 1] = rounds - 1 + step
    for what, got in (("read", home.read()), ("device", beside.acquired()), ("load", beside.load())):
        for start in (4, 5, 8, 9):
            check(f"{what}, {start}", got[start::40], content[start::40])
    agent.agent.kill()


def test_a_home_is_killed_and_its_agents_do_not_hang(killed):
    """EIO or SIGBUS within the timeout; the daemon lives, serves its other files, and unmounts."""
    nodes, survivor, _content, alive, victim, dead = killed("home")
    nodes.make(b"another", "g", home=alive, through=alive)
    nodes[dead].kill()
    for what in ("os.pread(fd, 10, 7 * 4096)", "os.pwrite(fd, b'x', 0)", "map.acquire()", "map.release()", "os.fsync(fd)"):
        code = within(PATIENCE_S, what, error_of, survivor.agent, what)
        assert code in (0, errno.EIO), f"{what}: {errno.errorcode[code]}"
    survivor.agent.start("map[6 * 4096]", "eval")
    assert not within(PATIENCE_S, "a touch", survivor.agent.busy, PATIENCE_S)
    try:
        survivor.agent.finish()
    except AgentDied as died:
        assert died.code == -signal.SIGBUS
    assert nodes[alive].proc.poll() is None
    assert within(PATIENCE_S, "another file", read_file, nodes.path(alive, "g")) == b"another"
    if survivor.agent.proc.poll() is None:
        survivor.agent.kill()
    victim.agent.kill()
    within(20, "umount", unmount, nodes[alive])


def test_what_was_in_the_data_directory_when_a_home_was_killed_is_there(killed):
    nodes, survivor, content, alive, victim, dead = killed("home")
    survivor.fsync()
    nodes[dead].kill()
    assert read_file(nodes.below()) == bytes(content)
    for program in survivor, victim:
        program.agent.kill()
    nodes.mount(dead)
    assert read_file(nodes.path(dead)) == bytes(content)
    assert within(PATIENCE_S, "read()", read_file, nodes.path(alive)) == bytes(content)


@pytest.mark.parametrize("which", SIDES)
def test_a_killed_node_comes_again(killed, agents, which):
    """It takes part as before, with files that are opened anew."""
    nodes, survivor, content, alive, victim, dead = killed(which)
    nodes[dead].kill()
    time.sleep(TIMEOUT_S + 0.5)  # until the others know
    for program in survivor, victim:
        program.agent.kill()
    nodes.mount(dead)
    back, other = Program(agents(), nodes.path(dead)), Program(agents(), nodes.path(alive))
    all_see({"back": back, "other": other}, content)
    back.device_store(3 * PAGE, b"again")
    back.release()
    content[3 * PAGE:3 * PAGE + 5] = b"again"
    other.write(3 * PAGE + 10, b"and")
    content[3 * PAGE + 10:3 * PAGE + 13] = b"and"
    other.fsync()
    all_see({"back": back, "other": other}, content)


def test_a_claim_of_what_only_a_dead_node_had_mapped(cluster, agents):
    """A mount that is no member can have the file."""
    nodes = cluster(2, f"timeout=0,peer_timeout={TIMEOUT_S}")
    nodes.make(pattern(2 * PAGE, 1), home=0)
    kept = os.open(nodes.path(0), os.O_RDONLY)
    program = Program(agents(), nodes.path(1), cpu=False)
    program.device_load(0, 1)
    nodes[1].kill()
    program.agent.kill()
    alone = nodes.start("shared,timeout=0", data=nodes.data)

    def maps():
        return error_of(Program, agents(), os.path.join(alone.mnt, "f")) == 0
    wait_until(maps, TIMEOUT_S + 10, "the claim is let go of")
    os.close(kept)


@pytest.mark.parametrize("which", SIDES)
def test_a_node_that_stands_still(killed, which):
    """SIGSTOP: what the other asks of it ends within the timeout."""
    nodes, survivor, content, alive, victim, dead = killed(which)
    victim.device_store(2 * PAGE, b"pending")
    victim.release()
    nodes[dead].expected_exit = None
    with standing_still(nodes[dead].pid):
        def one(function, *args):
            try:
                return function(*args)
            except OSError as error:
                return error.errno
        allowed = {errno.EIO} if which == "home" else set()
        got = within(PATIENCE_S, "read()", one, survivor.read)
        assert got in allowed or len(got) == len(content) or which == "home"  # as much as its kernel has
        for what in ("write()", survivor.write, 4 * PAGE, b"x"), ("acquire", survivor.acquire), ("release", survivor.release), \
                    ("fsync()", survivor.fsync):
            got = within(PATIENCE_S, what[0], one, *what[1:])
            assert got is None or got in allowed | {0}, f"{what[0]}: {errno.errorcode[got]}"
    for program in survivor, victim:
        program.agent.kill()
    for m in nodes[alive], nodes[dead]:
        within(20, "umount", unmount, m)


def test_a_home_that_stood_still_gives_its_files_up(killed, agents):
    """The other node has become the file's home meanwhile: there are never two. Maps of before fail, new ones work, on both
    nodes; what was written since, on either, everybody sees."""
    nodes, survivor, content, alive, victim, dead = killed("home")
    content = bytearray(content)
    with taken_for_dead(nodes[dead], GIVEN_UP_S):
        within(PATIENCE_S, "write()", survivor.write, 4 * PAGE, b"taken over")
    content[4 * PAGE:4 * PAGE + 10] = b"taken over"
    wait_until(lambda: TAKEN_OVER in nodes[dead].log_text(), 10)  # before, it takes itself for the home, and reads what is there
    wait_until(lambda: victim.read() == survivor.read() == bytes(content), 10)
    victim.write(5 * PAGE, b"again")
    victim.close_once()
    content[5 * PAGE:5 * PAGE + 5] = b"again"
    assert survivor.read() == bytes(content)
    assert error_of(victim.agent, "map.acquire()") == errno.EIO
    fresh = [Program(agents(), nodes.path(number)) for number in (dead, alive)]
    for at, program in enumerate(fresh):
        program.device_store(6 * PAGE + at, b"!")
        program.release()
        content[6 * PAGE + at] = ord("!")
    all_see({"where it was at home": fresh[0], "where it is": fresh[1]}, content)
    for program in (survivor, victim, *fresh):
        program.agent.kill()


@pytest.mark.parametrize("stored", ["released", "stored", "nothing"])
def test_what_is_lost_as_a_file_is_given_up_is_told(killed, stored):
    """A home that stood still has released bytes that nobody has collected: its fsync says so once, and only if there were. What is
    released after it is told at once."""
    nodes, survivor, content, alive, victim, dead = killed("home")
    if stored != "nothing":
        victim.device_store(2 * PAGE, b"lost")
    if stored == "released":
        victim.release()
    with taken_for_dead(nodes[dead], GIVEN_UP_S):
        within(PATIENCE_S, "write()", survivor.write, 4 * PAGE, b"taken over")
    content[4 * PAGE:4 * PAGE + 10] = b"taken over"
    wait_until(lambda: TAKEN_OVER in nodes[dead].log_text(), 10)
    assert ("is lost" in nodes[dead].log_text()) == (stored == "released")
    assert error_of(victim.agent, "map.release()") == errno.EIO
    assert [within(PATIENCE_S, "fsync()", error_of, victim.agent, "os.fsync(fd)") for turn in range(2)] == \
        [errno.EIO if stored == "released" else 0, 0]
    if os.environ.get("GAIA_DEVICE", "soft").startswith("cuda"):  # whose kernels nothing stops
        victim.device_store(3 * PAGE, b"after it")
        assert [error_of(victim.agent, "map.release()") for turn in range(2)] == [errno.EIO] * 2
    wait_until(lambda: victim.read() == survivor.read() == bytes(content), 10)
    assert error_of(survivor.agent, "os.fsync(fd)") == 0
    for program in survivor, victim:
        program.agent.kill()
    within(20, "umount", unmount, nodes[dead])


@not_in_the_gate
def test_what_is_lost_is_told_before_all_is_given_up(cluster, agents, workdir, monkeypatch):
    """A home that stood still, and does so again as it gives a file up, one device after the other: the next home is known before it
    has come to the device that has released something. A sync tells of that all the same."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, OPTIONS, only=[])
    nodes.mount(0, env=env)
    nodes.mount(1)
    nodes.make(bytes(8 * PAGE), home=0)
    other, victim = (Program(agents(), nodes.path(0), device=f"soft:{number}", cpu=False) for number in range(2))
    survivor = Program(agents(), nodes.path(1), device=None, cpu=False)
    victim.device_store(2 * PAGE, b"lost")
    victim.release()
    for turn in range(2):
        with taken_for_dead(nodes[0], GIVEN_UP_S):
            within(PATIENCE_S, "write()", survivor.write, 4 * PAGE, b"taken over")
            if turn == 0:
                plan.arm_wait(ROWS.index("fallocate64"), 15000, 1, 0)
        wait_until(lambda: plan.landed, 10)
        landed = landed if turn else time.monotonic()
    assert error_of(victim.agent, "os.fsync(fd)") == errno.EIO
    assert time.monotonic() < landed + 15
    wait_until(lambda: "is lost" in nodes[0].log_text(), 30)
    for program in victim, other, survivor:
        program.agent.kill()


def test_each_file_that_has_lost_something_is_named(cluster, agents):
    """By the log, as nobody may ask: not only the first of them."""
    nodes = cluster(2, OPTIONS)
    names = [f"name{i}" for i in range(5)]
    for name in names:
        nodes.make(pattern(2 * PAGE), name=name, home=0)
    victims = [Program(agents(), nodes.path(0, name), cpu=False) for name in names[:3]]
    other = agents()
    other.do("fds = [os.open(path, os.O_RDWR) for path in paths]", paths=[nodes.path(1, name) for name in names])
    for victim in victims:
        victim.device_store(10, b"lost")
        victim.release()
    with taken_for_dead(nodes[0], GIVEN_UP_S):
        within(PATIENCE_S, "write()", other.do, "[os.pwrite(fd, b'taken over', PAGE) for fd in fds]")
    wait_until(lambda: all(f"the home of {name}: {TAKEN_OVER}" in nodes[0].log_text() for name in names[:3]), 10)
    assert nodes[0].log_text().count("is lost") == 3
    for victim in victims:
        victim.agent.kill()
    other.kill()
    within(20, "umount", unmount, nodes[0])


def test_a_map_before_the_next_home_knows(cluster, agents):
    """A home stands still. Who knows that asks the next one, which does not know it yet: the map waits until it does."""
    nodes = cluster(3, only=[])
    for number, timeout in enumerate((3, 7, 3)):
        nodes.mount(number, f"timeout=0,peer_timeout={timeout}")
    content = pattern(4 * PAGE)
    for number in range(100):
        nodes.make(content, f"f{number}", home=0)
        if home_of(nodes.below(f"f{number}"), nodes.names[1:]) == nodes.names[1]:
            break
    program = Program(agents(), nodes.path(2, f"f{number}"), device=None)

    def is_down(m):
        return statistics(m.mnt)["nodes"]["nodes"][0]["down"]

    with standing_still(nodes[0].pid):
        wait_until(lambda: is_down(nodes[2]))
        assert not is_down(nodes[1]), "it knows"
        program.agent.do("dev = gaia.Device('soft:0')\nmap = dev.mmap(fd, length)")
        program.device_store(PAGE, b"stored")
        program.release()
        assert read_file(nodes.path(1, f"f{number}")) == content[:PAGE] + b"stored" + content[PAGE + 6:]
    program.agent.kill()


def asked_to_connect(m, address):
    """How many have asked to be connected to a daemon that stands still, and were not answered. They are not from now on, either."""
    process, libc = os.pidfd_open(m.pid), ctypes.CDLL(None, use_errno=True)
    asked = []
    try:
        for name in os.listdir(f"/proc/{m.pid}/fd"):
            if not os.readlink(f"/proc/{m.pid}/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=libc.syscall(ctypes.c_long(438), process, int(name), 0))  # pidfd_getfd
            with copy, contextlib.suppress(BlockingIOError):
                if copy.family != socket.AF_UNIX or copy.getsockname() != b"\0" + address.removeprefix("local:").encode():
                    continue
                copy.setblocking(False)
                while copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    asked.append(copy.accept()[0])
    finally:
        os.close(process)
        for one in asked:
            one.close()
    return len(asked)


def test_many_files_whose_next_home_stands_still(cluster, agents):
    """Whoever looks for their homes waits until it is known to be down, which is tried once, and not once for each of them."""
    nodes = cluster(3, "timeout=0,peer_timeout=2")
    names = []
    for number in range(200):
        nodes.make(pattern(4 * PAGE), f"f{number}", home=1)
        if home_of(nodes.below(f"f{number}"), [nodes.names[0], nodes.names[2]]) == nodes.names[2]:
            names.append(f"f{number}")
        if len(names) == 9:
            break
    program = agents()
    program.do("import threading\nfds = [os.open(path, os.O_RDWR) for path in paths]\ndev = gaia.Device('soft:0')\n"
               "for fd in fds: dev.mmap(fd, PAGE)", paths=[nodes.path(0, name) for name in names])
    nodes[2].expected_exit = None
    with standing_still(nodes[2].pid):
        nodes[1].kill()
        program.do("read = []\n"
                   "threads = [threading.Thread(target=lambda fd=fd: read.append(os.pread(fd, PAGE, 2 * PAGE))) for fd in fds]\n"
                   "for thread in threads: thread.start()\n"
                   "for thread in threads: thread.join()")
        tried = asked_to_connect(nodes[2], nodes.addresses[2])
    assert program("read") == [pattern(4 * PAGE)[2 * PAGE:3 * PAGE]] * len(names)
    assert tried in (1, 2), "once more by who tries every peer_timeout"
    program.kill()


def test_the_places_of_a_dead_nodes_devices(cluster, agents):
    """A home has 64 places for others' devices. When all are taken, and a node dies that had them, another node's devices get
    them: with what was released, without what was not, and nobody sees bytes of the device that was there before."""
    nodes = cluster(3, "timeout=0,peer_timeout=2,soft_devices=64")
    content = bytearray(pattern(64 * PAGE))
    nodes.make(content, home=0)
    map_all = "devices = [gaia.Device(f'soft:{i}') for i in range(64)]\nmaps = [d.mmap(fd, length) for d in devices]"
    store = ("for i, map in enumerate(maps):\n    map.acquire()\n    map[i * PAGE + at:i * PAGE + at + 4] = bytes([which, i]) * 2\n"
             "    if i % 2 or not halves: map.release()")

    def stores(program, which, at, halves):
        program.agent.do(store, which=which, at=at, halves=halves)
        for i in range(64):
            if i % 2 or not halves:
                content[i * PAGE + at:i * PAGE + at + 4] = bytes([which, i]) * 2

    own = Program(agents(), nodes.path(0))
    one, two = (Program(agents(), nodes.path(number), device=None, cpu=False) for number in (1, 2))
    one.agent.do(map_all)
    stores(one, 101, 100, halves=True)
    assert error_of(two.agent.do, "gaia.Device('soft:0').mmap(fd, length)") == errno.ENODEV
    nodes[1].kill()
    one.agent.kill()
    wait_until(lambda: not error_of(two.agent.do, map_all), what="their places are free")
    for i in range(64):
        check(f"device {i}", two.agent(f"maps[{i}][:]"), content)
    stores(two, 102, 200, halves=False)
    check("the home", own.read(), content)
    check("its device", own.acquired(), content)
    nodes.mount(1)
    again = Program(agents(), nodes.path(1), device=None, cpu=False)
    assert error_of(again.agent.do, "gaia.Device('soft:0').mmap(fd, length)") == errno.ENODEV
    two.agent.end()
    assert nodes[2].unmount() is None
    again.agent.do(map_all)
    stores(again, 103, 300, halves=False)
    for program in own, again:
        check("read()", program.read(), content)
    for program in own, again:
        program.agent.end()


@pytest.mark.parametrize("which", SIDES)
def test_a_map_just_after_a_home_has_died(cluster, agents, which):
    """The next home claims the file before Linux has let go of the dead one's claim."""
    nodes = cluster(3, "timeout=0,peer_timeout=4")
    content = pattern(4 * PAGE)
    nodes.make(content, home=0)
    following = nodes.names.index(home_of(nodes.below(), nodes.names[1:]))
    path = nodes.path(following if which == "home" else 3 - following)
    before, after = Program(agents(), path, cpu=False), Program(agents(), path, device=None, cpu=False)
    before.device_load(0, 1)
    after.agent.do("dev = gaia.Device('soft:1')")
    nodes[0].kill()
    before.direct()  # which waits for the next home
    after.agent.do("map = dev.mmap(fd, length)")
    check("mapped", after.acquired(), content)


@pytest.fixture
def locks_of_a_dead_home(cluster, agents):
    """A function: the home of a file that it had claimed is dead, and its locks are there yet, as they are while Linux takes its
    io_uring down (cache/claim.h). A program beside the next home, or at it, begins to map the file -> (content, program, function
    that lets go of the locks)."""
    kept = []

    def let_go():
        while kept:
            os.close(kept.pop())

    def start(which, options):
        nodes = cluster(3, options)
        content = pattern(4 * PAGE)
        nodes.make(content, home=0)
        following = nodes.names.index(home_of(nodes.below(), nodes.names[1:]))
        path = nodes.path(following if which == "home" else 3 - following)
        before = Program(agents(), path, cpu=False)
        before.device_load(0, 1)
        kept.extend(descriptors_of(nodes[0].pid, nodes.below()))
        nodes[0].kill()
        before.direct()  # which waits for the next home
        program = Program(agents(), path, device=None, cpu=False)
        program.agent.start("dev = gaia.Device('soft:1')\nmap = dev.mmap(fd, length)")
        return content, program, let_go

    yield start
    let_go()


@pytest.mark.parametrize("which", SIDES)
def test_a_map_before_the_dead_home_has_let_go(locks_of_a_dead_home, which):
    """It waits for that as for the next home."""
    content, program, let_go = locks_of_a_dead_home(which, "timeout=0,peer_timeout=4")
    assert program.agent.busy(1)
    let_go()
    within(PATIENCE_S, "the map", program.agent.finish)
    check("mapped", program.acquired(), content)


@pytest.mark.parametrize("which", SIDES)
def test_a_dead_home_that_does_not_let_go(locks_of_a_dead_home, which):
    """As where the data directory's filesystem takes a machine that has gone for one that is there."""
    _content, program, _let_go = locks_of_a_dead_home(which, OPTIONS)
    assert within(4 * TIMEOUT_S + PATIENCE_S, "the map", error_of, program.agent.finish) == errno.EBUSY


def test_a_claim_of_a_mount_that_is_no_member(cluster, agents):
    """No home has gone: there is nothing to wait for."""
    nodes = cluster(2, "timeout=0,peer_timeout=10")
    nodes.make(pattern(4 * PAGE))
    alone = nodes.start("shared,timeout=0", data=nodes.data)
    Program(agents(), os.path.join(alone.mnt, "f"), cpu=False)
    for m in nodes:
        assert within(10, "the map", error_of, Program, agents(), os.path.join(m.mnt, "f")) == errno.EBUSY
