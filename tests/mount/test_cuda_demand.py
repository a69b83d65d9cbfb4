# SPDX-License-Identifier: Apache-2.0
"""Files mapped on a GPU on demand (GAIA_DEMAND): kernels are threads of tool_demand.cc, which use the same gaia_view that
device code does, and the GPU is the stand-in of tests/cuda. What a view itself does is tested in tests/gpu; here is
what is under it: the soft mapping, the daemon, and others who use the file."""
import errno
import os
import random
import signal
import subprocess
import time

import pytest

import helpers
from conftest import measures_memory
from files import make
from helpers import PAGE, agents, cuda_standin, make_random, memory_kib, write_at  # noqa: F401

MIB = 1 << 20
UNIT = 64 << 10


class Program:
    def __init__(self, path, how="write", small=False, frames=None, length=None, **env):
        environment = {**os.environ, "LD_LIBRARY_PATH": cuda_standin(), "STANDIN_CUDA": "", **env}
        if frames:
            environment["GAIA_DEMAND_BYTES"] = str(frames * (PAGE if small else UNIT))
        arguments = [helpers.tool_path("tool_demand"), path, "cuda:0", how] + (["small"] if small else [])
        arguments += [str(length)] if length else []
        self.proc = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.started = self.proc.stdout.readline().strip()
        if self.started == "ok":
            return
        self.proc.wait(10)

    def ask(self, line):
        self.proc.stdin.write(line + "\n")
        self.proc.stdin.flush()
        answer = self.proc.stdout.readline().strip()
        assert answer or line.startswith(("load", "pin")), f"{line}: the program ended with {self.proc.wait(10)}"
        return answer

    def do(self, line):
        assert self.ask(line) == "ok"

    def error(self, line):
        answer = self.ask(line)
        assert answer.startswith("error "), answer
        return int(answer.split()[1])

    def load(self, offset, length, how="load"):
        return bytes.fromhex(self.ask(f"{how} {offset} {length}"))

    def store(self, offset, data):
        self.do(f"store {offset} {data.hex()}")

    def counters(self):
        names = "faults pulled fetched evicted given kept frames units".split()
        return dict(zip(names, map(int, self.ask("counters").split())))

    def end(self):
        self.proc.stdin.write("bye\n")
        self.proc.stdin.close()
        assert self.proc.wait(20) == 0


@pytest.fixture
def programs():
    started = []

    def start(*args, **kwargs):
        started.append(Program(*args, **kwargs))
        return started[-1]

    yield start
    for program in started:
        if program.proc.poll() is None:
            program.proc.kill()
            program.proc.wait()
        program.proc.stdout.close()


def test_a_program_that_ends_without_unmapping(mount, programs):
    """The driver takes its memory back then, where libgaia's thread looks for requests."""
    m = mount()
    # That thread ends beside exit(), and nobody joins it, which TSan would call a leak.
    options = f"{os.environ.get('TSAN_OPTIONS', '')}:report_thread_leaks=0"
    program = programs(make(m, os.urandom(MIB)), STANDIN_CUDA="exits=100", TSAN_OPTIONS=options)
    assert program.started == "ok"
    program.proc.stdin.write("exit\n")
    program.proc.stdin.flush()
    assert program.proc.wait(10) == 0


@pytest.mark.parametrize("small", [False, True])
def test_what_is_in_the_file(mount, programs, small):
    m = mount()
    content = os.urandom(3 * MIB + 5)
    path = make(m, content)
    program = programs(path, "read", small)
    assert program.started == "ok"
    rng = make_random("demand")
    for how in ("load", "pin"):
        for _ in range(30):
            at = rng.randrange(len(content))
            length = rng.randint(1, min(3000, len(content) - at))
            assert program.load(at, length, how) == content[at:at + length], (how, at)
    assert program.load(len(content) - 10, 10) == content[-10:]
    counters = program.counters()
    assert 0 < counters["faults"] <= 200 and counters["pulled"] > 0 and counters["evicted"] == 0
    program.end()


@pytest.mark.parametrize("length", [1, 1000, PAGE, UNIT + 13, 3 * UNIT - 1])
def test_a_view_is_as_long_as_was_asked_for(mount, programs, length):
    """Neither whole pages nor the file: who goes up to size() sees what it has mapped, and nothing behind it."""
    m = mount()
    path = make(m, b"\1" * 4 * UNIT)
    program = programs(path, length=length)
    assert program.ask("size") == f"{length} {length // 8}"
    assert program.ask("sum") == f"{length} 0"
    program.store(length - 1, b"23")  # the second is outside
    assert program.load(length - 1, 2) == b"2\0"
    assert program.ask("error") == str(errno.EFAULT)
    program.do("release")
    assert helpers.read_file(path) == b"\1" * (length - 1) + b"2" + b"\1" * (4 * UNIT - length)
    program.end()


def test_a_view_past_the_end_of_the_file_and_of_a_part(mount, programs):
    """Its length is the one that was asked for: past the end of the file there are zeros, and what is unmapped leaves the
    rest where it is."""
    m = mount()
    path = make(m, b"\1" * 100)
    program = programs(path, length=UNIT + 5)
    assert program.ask("size").split()[0] == str(UNIT + 5)
    assert program.ask("sum") == "100 0"
    program.do(f"unmap {2 * PAGE} {PAGE}")
    program.store(50, b"mine")
    program.do(f"release 0 {PAGE}")
    assert helpers.read_file(path) == b"\1" * 50 + b"mine" + b"\1" * 46
    assert program.ask("size").split()[0] == str(UNIT + 5)
    assert program.load(3 * PAGE, 2) == bytes(2)
    assert program.ask("error") == "0"
    program.end()


def test_stores_are_released_and_acquired(mount, programs):
    m = mount()
    path = make(m, b"." * 4 * MIB)
    one, two = programs(path), programs(path)
    one.store(MIB + 7, b"from the first")
    assert helpers.read_file(path) == b"." * 4 * MIB
    one.do("release")
    assert helpers.read_file(path)[MIB:MIB + 30] == b"." * 7 + b"from the first" + b"." * 9
    assert two.load(MIB, 30) == b"." * 7 + b"from the first" + b"." * 9
    two.store(MIB, b"2nd")
    two.do("release")
    one.do("acquire")
    assert one.load(MIB, 30) == b"2nd...." + b"from the first" + b"." * 9
    write_at(path, b"cpu", MIB + 3)
    one.store(MIB + 29, b"!")  # in a page that the CPU has changed, and that is not acquired yet
    one.do("acquire")
    assert one.load(MIB, 31) == b"2ndcpu." + b"from the first" + b"." * 8 + b"!."
    one.do("sync")
    one.end()
    two.end()
    content = helpers.read_file(path)
    assert content == b"." * MIB + b"2ndcpu.from the first" + b"." * 8 + b"!" + b"." * (3 * MIB - 30)


def test_what_another_program_of_the_gpu_has_released(mount, programs):
    """They share the soft mapping's frames, where nothing is out of date; what the GPU has of them is."""
    m = mount()
    path = make(m, b"." * MIB)
    one, two = programs(path), programs(path)
    for turn in range(4):
        value = b"%d" % turn
        two.load(5000, 10)
        one.store(5000 + turn, value)
        one.do("release")
        two.do("acquire")
        assert two.load(5000 + turn, 1) == value
    two.do("acquire")
    before = two.counters()["faults"]
    two.do("acquire")  # nothing has changed: all stays
    assert two.load(5000, 4) == b"0123"
    two.do("acquire")
    assert two.load(5000, 4) == b"0123"
    assert two.counters()["faults"] <= before + 1


def test_two_programs_store_to_the_same_word(mount, programs):
    """What one gives back does not undo what the other has given: of a word that changed, too, only what was stored."""
    m = mount()
    path = make(m, b"." * MIB)
    one, two = programs(path), programs(path, small=True)
    for at in (8000, 8192 + 5, MIB - 16):
        assert one.load(at, 8) == two.load(at, 8) == b"." * 8
        one.store(at, b"1")
        one.store(at + 4, b"1")
        two.store(at + 1, b"22")
        two.store(at + 7, b"2")
        one.do("release")
        two.do("release")
        assert helpers.read_file(path)[at:at + 8] == b"122.1..2"


def test_stores_that_were_not_released_are_collected_by_an_acquire(mount, programs):
    m = mount()
    path = make(m, bytes(MIB))
    program = programs(path)
    program.store(500000, b"early")
    program.do("acquire")
    assert helpers.read_file(path)[500000:500005] == b"early"
    assert program.load(500000, 5) == b"early"
    program.store(3, b"at the end")
    program.end()  # the unmount: they stay in the device's copy
    other = programs(path)
    other.do("acquire")
    assert helpers.read_file(path)[3:13] == b"at the end"


def test_resident_and_on_demand_at_once(mount, programs, agents, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", os.path.join(helpers.build_folder(), "cuda"))
    m = mount()
    path = make(m, bytes(2 * MIB))
    program, resident = programs(path), agents()
    resident.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')\nmap = dev.mmap(fd, 2 << 20)", path=path)
    for turn in range(1, 5):
        program.store(MIB + 2 * turn, bytes([turn]))
        resident.do("map[MIB + 2 * turn + 1] = 100 + turn", turn=turn)
        program.do("release")
        resident.do("map.release()\nmap.acquire()")
        program.do("acquire")
        expected = bytes([0, 0] + [v for t in range(1, turn + 1) for v in (t, 100 + t)])
        assert program.load(MIB, 2 * turn + 2) == expected
        assert resident("map[MIB:MIB + 2 * turn + 2]", turn=turn) == expected
    assert helpers.read_file(path)[MIB:MIB + 10] == expected


def test_resident_and_on_demand_in_one_program(mount, agents, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", cuda_standin())
    m = mount()
    path = make(m, bytes(2 * MIB))
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')\nresident = dev.mmap(fd, 2 << 20)\n"
             "demand = dev.mmap(fd, 2 << 20, 3, gaia.DEMAND)", path=path)
    for turn in range(1, 5):
        agent.do("resident[MIB + 2 * turn] = turn\ndemand[MIB + 2 * turn + 1] = 100 + turn\n"
                 "for one in resident, demand:\n    one.release()\nfor one in resident, demand:\n    one.acquire()", turn=turn)
        expected = bytes([0, 0] + [v for t in range(1, turn + 1) for v in (t, 100 + t)])
        assert agent("resident[MIB:MIB + 2 * turn + 2]") == agent("demand[MIB:MIB + 2 * turn + 2]") == expected
        assert helpers.read_file(path)[MIB:MIB + 2 * turn + 2] == expected
    agent.do("resident.unmap()\ndemand[0] = 1\ndemand.release()\ndemand.unmap()")
    assert helpers.read_file(path)[0] == 1


@pytest.mark.limit(150)
@pytest.mark.parametrize("small", [False, True])
def test_more_than_the_gpu_holds(mount, programs, small):
    """Threads store and load at random in a file of ten times the frames; each knows what its own bytes are."""
    m = mount()
    unit = PAGE if small else UNIT
    size = 64 * 10 * unit
    path = make(m, bytes(size))
    program = programs(path, small=small, frames=64)
    seed = make_random("stress").randrange(1 << 16)
    threads, operations = 4, helpers.repeats(6000 if small else 3000)
    program.do(f"stress {threads} {operations} {seed} {size}")
    counters = program.counters()
    assert counters["frames"] == 64 and counters["units"] == 640
    assert counters["evicted"] > 400 and counters["given"] > 100
    program.do("release")
    content = helpers.read_file(path)
    for at in range(0, size // threads, 97):
        for thread in range(threads):
            assert content[at * threads + thread] == (at * threads + thread + seed) % 256
    program.end()


@pytest.mark.limit(100)
@pytest.mark.parametrize("arena", [1, "12k", "1G"])
def test_arenas_of_any_size(mount, programs, arena):
    """One slot, from which a unit is displaced before it is pulled; three; and room for all of the file, which is pulled
    without the CPU the second time."""
    m = mount()
    size = 64 * 10 * PAGE
    path = make(m, bytes(size))
    program = programs(path, small=True, frames=64, GAIA_DEMAND_ARENA_BYTES=str(arena))
    seed = make_random("arena").randrange(1 << 16)
    program.do(f"stress 4 {helpers.repeats(3000)} {seed} {size}")
    counters = program.counters()
    assert counters["faults"] == counters["pulled"] + counters["fetched"]
    assert counters["fetched"] > 0 or arena != 1
    program.do("release")
    content = helpers.read_file(path)
    for at in range(0, size // 4, 97):
        for thread in range(4):
            assert content[at * 4 + thread] == (at * 4 + thread + seed) % 256
    assert program.ask("error") == "0"
    program.end()


@pytest.mark.parametrize("passes", range(2))
def test_beside_a_cpu(mount, programs, passes):
    """A CPU process writes its bytes of the same pages; nobody loses one."""
    m = mount()
    size = 2 * MIB
    path = make(m, bytes(size))
    program = programs(path, small=passes == 1, frames=64)
    rng, expected = make_random("beside"), bytearray(size)
    with open(path, "r+b", buffering=0) as file:
        for turn in range(40):
            for _ in range(10):
                at = rng.randrange(size // 2) * 2
                value = rng.randrange(1, 256)
                os.pwrite(file.fileno(), bytes([value]), at)
                expected[at] = value
                at = rng.randrange(size // 2) * 2 + 1
                program.store(at, bytes([value]))
                expected[at] = value
            if turn % 3 == 0:
                program.do("release")
            if turn % 4 == 0:
                program.do("acquire")
                for _ in range(5):
                    at = rng.randrange(size - 64)
                    assert program.load(at, 64) == expected[at:at + 64], at
    program.do("release")
    assert helpers.read_file(path) == expected
    program.end()


def test_past_the_end_of_a_file_that_is_cut(mount, programs):
    m = mount()
    path = make(m, b"x" * 2 * MIB)
    program = programs(path)
    assert program.load(MIB, 4) == b"xxxx"
    os.truncate(path, 100)
    program.do("acquire")
    assert program.load(0, 104) == b"x" * 100 + bytes(4)
    assert program.load(MIB, 4) == bytes(4)
    program.store(MIB, b"lost")
    program.do("release")
    assert helpers.read_file(path) == b"x" * 100
    assert program.ask("error") == "0"
    program.end()


def test_a_view_that_only_reads(mount, programs):
    m = mount()
    path = make(m, b"a" * MIB)
    program = programs(path, "read")
    program.store(5, b"no")
    assert program.ask("error") == str(errno.EACCES)
    assert program.error("release") == errno.EACCES
    assert program.load(0, 10) == b"a" * 10
    assert helpers.read_file(path) == b"a" * MIB


@pytest.mark.parametrize("later", [0, 1.5])  # within, and after the time for which the kernel keeps attributes
def test_the_daemon_is_killed(mount, programs, later):
    """Touches fail, calls say ENOTCONN, nothing hangs, and the program lives."""
    m = mount()
    path = make(m, b"b" * 8 * MIB)
    program = programs(path)
    assert program.load(0, 5) == b"bbbbb"
    program.store(10, b"never")
    m.kill()
    time.sleep(later)
    assert program.load(5 * MIB, 5) == bytes(5)  # what the GPU has not got can't be had
    assert program.ask("error") == str(errno.EIO)
    assert program.load(0, 5) == b"bbbbb"
    assert program.error("acquire") in (errno.ENOTCONN, errno.EIO)
    assert program.error("release") in (errno.ENOTCONN, errno.EIO)
    program.proc.stdin.write("bye\n")
    program.proc.stdin.close()
    assert program.proc.wait(20) is not None


def test_the_handler_of_sigbus_is_there_when_the_map_is(mount, programs):
    """And not at some later time, when a thread that the program does not know touches something: it may have one of its own
    to put before it by then."""
    program = programs(make(mount(), bytes(MIB)))
    with open(f"/proc/{program.proc.pid}/status") as status:
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    assert caught >> (signal.SIGBUS - 1) & 1
    program.end()


def test_a_program_that_is_killed(mount, programs):
    m = mount()
    path = make(m, bytes(4 * MIB))
    program, other = programs(path), programs(path)
    program.store(MIB, b"released")
    program.do("release")
    program.store(2 * MIB, b"not released")
    program.proc.kill()
    program.proc.wait()
    assert helpers.read_file(path)[MIB:MIB + 8] == b"released"
    other.do("acquire")
    assert other.load(MIB, 8) == b"released"
    other.store(3 * MIB, b"lives")
    other.do("release")
    assert helpers.read_file(path)[3 * MIB:3 * MIB + 5] == b"lives"


@measures_memory
def test_what_is_only_read_leaves_no_twins(mount, programs):
    """Data that is larger than the GPU may be larger than what the host has for copies of it, too."""
    m = mount()
    size = 64 * MIB
    path = os.path.join(m.mnt, "f")
    with open(path, "wb") as file:
        file.truncate(size)
    program = programs(path, "read", frames=64, GAIA_DEMAND_ARENA_BYTES=str(MIB))
    assert program.load(0, 1) == b"\0"
    before = memory_kib(program.proc.pid, "RssAnon")
    for at in range(0, size, UNIT):
        assert program.load(at, 1) == b"\0"
    assert program.counters()["evicted"] >= size // UNIT - 64
    assert memory_kib(program.proc.pid, "RssAnon") - before < 8 << 10
    program.do("acquire")
    program.end()


def test_calls_in_a_stream(mount, programs):
    m = mount()
    assert programs(make(m, bytes(MIB))).error("acquire-on") == errno.EOPNOTSUPP


@pytest.mark.parametrize("standin", ["memory=100000", "missing=cuMemGetInfo"])
def test_what_can_not_be_mapped(mount, programs, standin):
    m = mount()
    path = make(m, bytes(MIB))
    program = programs(path, STANDIN_CUDA=standin)
    assert program.started == f"error {errno.ENOMEM if standin.startswith('memory') else errno.ENODEV}"
    assert programs(path).started == "ok"


def test_sizes_in_the_environment(mount, programs):
    """As those of a mount's options: 64M is 64 MiB, and what is no size is refused instead of taken for a small one."""
    m = mount()
    path = make(m, bytes(16 * MIB))
    for frames, text in [(64, "4M"), (64, "1"), (96, "6m"), (256, "1T"), (80, str(5 * MIB))]:
        program = programs(path, GAIA_DEMAND_BYTES=text)
        assert program.started == "ok" and program.counters()["frames"] == frames
        program.end()
    for name in ("GAIA_DEMAND_BYTES", "GAIA_DEMAND_ARENA_BYTES"):
        for text in ("64MB", "lots", "-1", "0", ""):
            assert programs(path, **{name: text}).started == f"error {errno.EINVAL}", (name, text)
    assert programs(path, GAIA_DEMAND_ARENA_BYTES="2M").started == "ok"


def test_random_histories(mount, programs):
    """Two programs and a CPU, each with bytes of its own, in a random order of everything."""
    m = mount()
    size = MIB
    path = make(m, bytes(size))
    players = [programs(path, frames=64), programs(path, small=True, frames=64)]
    rng = make_random("history")
    expected = bytearray(size)
    seen = [bytearray(size), bytearray(size)]  # what each surely sees of its own bytes
    for _ in range(400):
        who = rng.randrange(3)
        at = rng.randrange(size // 3) * 3 + who
        value = rng.randrange(1, 256)
        if who == 2:
            write_at(path, bytes([value]), at)
            expected[at] = value
            continue
        step = rng.random()
        if step < 0.6:
            players[who].store(at, bytes([value]))
            expected[at] = seen[who][at] = value
        elif step < 0.8:
            mine = rng.randrange(size // 3) * 3 + who
            assert players[who].load(mine, 1)[0] == seen[who][mine], mine
        elif step < 0.9:
            players[who].do("release")
        else:
            players[who].do("acquire")
    for player in players:
        player.do("release")
    assert helpers.read_file(path) == expected
    for player in players:
        player.do("acquire")
        for at in random.sample(range(size - 32), 20):
            assert player.load(at, 32) == expected[at:at + 32]
        player.end()


def test_counters_of_what_is_mapped_on_demand_only(mount, programs, agents, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", os.path.join(helpers.build_folder(), "cuda"))
    m = mount()
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')\nmap = dev.mmap(fd, PAGE, 3, gaia.DEMAND)",
             path=make(m, bytes(PAGE)))
    assert agent("dev.stat().resident_bytes") in (0, PAGE)
