# SPDX-License-Identifier: Apache-2.0
"""Several nodes: calls on a tracked file that are no plain reads and writes, through its home and through an agent."""
import ctypes
import errno
import os
import re
import signal
import subprocess

import pytest

from conftest import TOP
from files import pattern
from helpers import MIB, PAGE, agents, error_of, make_random, read_file, stand_still, write_file  # noqa: F401
from nodes import SIDES, Program, all_see, check, cluster, pair, tracked_by_all  # noqa: F401
from test_nodes_names import nothing_is_held


def both_see(nodes, one, two, content):
    for program in one, two:
        assert program.size() == len(content)
    all_see({"one": one, "two": two}, content)
    check("the data directory", read_file(nodes.below()), bytes(content))


# --- appends --------------------------------------------------------------------------------------------------------------

APPENDER = {"open": "log = os.open(f'/proc/self/fd/{fd}', os.O_WRONLY | os.O_APPEND)",
            "fcntl": "log = os.open(f'/proc/self/fd/{fd}', os.O_WRONLY)\nfcntl.fcntl(log, fcntl.F_SETFL, os.O_APPEND)"}


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("how", APPENDER)
def test_appends_by_who_does_not_know_the_end(pair, first, how):
    """Its kernel has put the bytes where it took the end to be, over pages that the other node has appended: nobody may
    see that, and what is stored to such a page must not bring it into the file."""
    size = 120 * PAGE
    content = bytearray(pattern(size))
    nodes, one, two, _ = pair(content, "timeout=20")
    rng = make_random()
    for program in one, two:
        program.agent.do(APPENDER[how])
    for turn, (before, after) in enumerate([(8 * PAGE, PAGE), (PAGE, 3 * PAGE), (5 * PAGE, 100), (100, 2 * PAGE), (2, 9)] * 2):
        end = rng.choice([4 * PAGE, 3 * PAGE + 50])
        one.truncate(end)
        content[end:] = b""
        content += bytes(end - len(content))
        for program in one, two:
            program.fsync()
            assert program.size() == end
            program.load(end=end)
        other, mine = rng.randbytes(before), rng.randbytes(after)
        stores = turn % 3 == 2  # for this the other's are synced, and its kernel told of (docs/limits.md: appended bytes)
        # Else its kernel is told how long the file is when the answer to this must have been taken: 20 ms (fs/answers.h).
        one.agent.do("os.fchmod(fd, 0o600)")
        two.agent.do("assert os.write(log, data) == len(data)\nif stores: os.fsync(log)", data=other, stores=stores)
        one.agent.do("assert os.write(log, data) == len(data)", data=mine)
        content += other + mine
        seen = end + min(before, after)  # so far the kernel of one takes the file to reach, at least
        if stores:
            one.store(end + 1, b"s")
            content[end + 1] = ord("s")
            one.msync()
        elif turn % 3 == 0:
            check(f"turn {turn}, load", one.load(end, seen), content[end:seen])
        else:
            check(f"turn {turn}, read", one.read(seen - end, end), content[end:seen])
        one.fsync()
        both_see(nodes, one, two, content)
        one, two = two, one


# --- a file that is emptied -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("opened", [True, False], ids=["open there", "not open there"])
def test_opened_with_truncation_on_the_other_node(pair, first, opened):
    """Nothing of before comes back: not from a device, not from a kernel that has not written back."""
    content = bytearray(pattern(4 * PAGE))
    nodes, one, two, numbers = pair(content)
    both_see(nodes, one, two, content)
    if not opened:
        two.agent.end()
    one.device_store(PAGE + 5, b"released")
    one.release()
    one.device_store(2 * PAGE + 5, b"not released")
    one.store(5, b"not written back")
    write_file(nodes.path(numbers[1]), b"new")
    assert one.size() == 3 == os.stat(nodes.path(numbers[1])).st_size
    one.msync()
    one.release()
    check("read()", one.read(), b"new")
    check("below", read_file(nodes.below()), b"new")
    one.truncate(4 * PAGE)
    one.fsync()
    content = bytearray(b"new" + bytes(4 * PAGE - 3))
    check("device", one.acquired(), content)
    check("load", one.load(), content)
    check("on the other node", read_file(nodes.path(numbers[1])), bytes(content))


# --- fallocate and holes --------------------------------------------------------------------------------------------------

KEEP, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32
FALLOCATE = """
libc = ctypes.CDLL(None, use_errno=True)
def fallocate(mode, offset, length):
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return ctypes.get_errno() if libc.fallocate(fd, mode, offset, length) else 0
"""


def fallocate(program, mode, offset, length):
    return program.agent("fallocate(mode_, offset, length_)", mode_=mode, offset=offset, length_=length)


@pytest.mark.parametrize("first", SIDES)
def test_fallocate(pair, first):
    """It takes away and makes zero what devices and kernels of either node have, and nothing beside it."""
    rng = make_random()
    content = bytearray(pattern(20 * PAGE))
    nodes, one, two, _ = pair(content)
    for program in one, two:
        program.agent.do(FALLOCATE)
    for turn in range(24):
        mode = [PUNCH | KEEP, ZERO, ZERO | KEEP, 0, KEEP][turn % 5]
        size = len(content)
        offset = rng.choice([rng.randrange(size), rng.randrange(20) * PAGE, size - 1])
        length = rng.choice([1, 100, PAGE, 2 * PAGE, 3 * PAGE + 77])
        for program in one, two:  # beside it and in it: released, and dirty in a kernel
            program.acquire()  # to store what a device has is no store
            for what in program.device_store, program.store:
                new = rng.randbytes(3)
                at = max(0, min(rng.choice([offset - 3, offset + length, offset, rng.randrange(size)]), size - 3))
                what(at, new)
                content[at:at + 3] = new
                if what == program.device_store:
                    program.release()
                else:
                    program.msync()
        assert fallocate(one, mode, offset, length) == 0
        end = min(size, offset + length)
        if mode & (PUNCH | ZERO):
            content[offset:end] = bytes(end - offset)
        if not mode & KEEP:
            content += bytes(max(0, offset + length - size))
        one.fsync()
        for program in two, one:
            check(f"turn {turn}", program.read(), bytes(content))
        two.truncate(20 * PAGE)
        del content[20 * PAGE:]
        two.fsync()
        both_see(nodes, one, two, content)
        for mode in COLLAPSE, INSERT:
            assert fallocate(one, mode, PAGE, PAGE) == errno.EOPNOTSUPP
        assert fallocate(one, KEEP | PUNCH, 0, 0) == errno.EINVAL
        one, two = two, one


@pytest.mark.parametrize("first", SIDES)
def test_punched_while_the_other_nodes_kernel_is_dirty(pair, first):
    """The page that another node has stored to is written back later: only what was stored may come, not what was there."""
    content = bytearray(pattern(4 * PAGE))
    nodes, one, two, _ = pair(content)
    tracked_by_all(nodes)
    one.agent.do(FALLOCATE)
    for turn in range(10):
        assert two.load() == bytes(content)  # its kernel has the pages
        two.store(PAGE - 10, b"%d" % turn)
        two.store(3 * PAGE + 10, b"%d" % turn)
        assert fallocate(one, [PUNCH | KEEP, ZERO | KEEP][turn % 2], PAGE - 5, 2 * PAGE + 10) == 0
        content[PAGE - 10:PAGE - 9] = content[3 * PAGE + 10:3 * PAGE + 11] = b"%d" % turn
        content[PAGE - 5:3 * PAGE + 5] = bytes(2 * PAGE + 10)
        two.sync_file_range()
        two.msync()
        both_see(nodes, one, two, content)
        one.write(PAGE - 5, pattern(2 * PAGE + 10, turn))
        content[PAGE - 5:3 * PAGE + 5] = pattern(2 * PAGE + 10, turn)
        one.fsync()


@pytest.mark.parametrize("first", SIDES)
def test_holes_are_where_nobody_has_written(cluster, agents, first):
    """SEEK_DATA and SEEK_HOLE of either node: what a device has released in a hole is data, though nobody has read it."""
    size = 64 * PAGE
    nodes = cluster()
    nodes.make(b"", home=0)
    os.truncate(nodes.path(0), size)
    one, two = (Program(agents(), nodes.path(number)) for number in nodes.sides(nodes.below(), first))
    for program in one, two:
        program.agent.do(FALLOCATE)

    def seek(program, offset, whence):
        return program.agent("os.lseek(fd, offset, whence)", offset=offset, whence=whence)

    for program in one, two:
        assert error_of(seek, program, 0, os.SEEK_DATA) == errno.ENXIO
        assert seek(program, 5, os.SEEK_HOLE) == 5
    two.write(50 * PAGE, b"write")
    one.store(40 * PAGE, b"store")
    one.msync()
    one.device_store(30 * PAGE + 7, b"device")  # last, as a sync would collect it
    one.release()
    for program in two, one:
        assert [seek(program, at, os.SEEK_DATA) for at in (0, 31 * PAGE, 41 * PAGE)] == [30 * PAGE, 40 * PAGE, 50 * PAGE]
        assert [seek(program, at * PAGE, os.SEEK_HOLE) for at in (30, 40, 50)] == [31 * PAGE, 41 * PAGE, 51 * PAGE]
        assert error_of(seek, program, 51 * PAGE, os.SEEK_DATA) == errno.ENXIO
        assert error_of(seek, program, size, os.SEEK_HOLE) == errno.ENXIO
        assert seek(program, -3, os.SEEK_END) == size - 3
    assert fallocate(two, PUNCH | KEEP, 30 * PAGE, PAGE) == 0
    for program in one, two:
        assert seek(program, 0, os.SEEK_DATA) == 40 * PAGE
    two.truncate(size + 10)
    two.fsync()
    assert seek(one, 0, os.SEEK_END) == size + 10
    with open(nodes.below(), "rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 40 * PAGE


# --- a file that could not be written -------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("call", ["write", "store", "truncate", "fallocate", "release"])
def test_what_is_called_after_the_file_was_immutable(cluster, agents, first, call):
    """It could not be opened for writing when its home came to know it, from a device that only reads."""
    content = bytearray(pattern(4 * PAGE))
    nodes = cluster()
    nodes.make(content, home=0)
    if subprocess.run(["chattr", "+i", nodes.below()], capture_output=True).returncode:
        pytest.skip("no chattr +i here")
    programs = [agents() for _ in nodes]
    try:
        for number, program in enumerate(programs):
            program.do("reads = gaia.Device('soft:0').mmap(os.open(path, os.O_RDONLY), length, gaia.PROT_READ)",
                       path=nodes.path(number), length=len(content))
            check("device", program("reads[:]"), content)
    finally:
        subprocess.run(["chattr", "-i", nodes.below()], check=True)
    one, two = (Program(programs[number], nodes.path(number), device="soft:1" if call == "release" else None)
                for number in nodes.sides(nodes.below(), first))
    if call == "write":
        one.write(10, b"here")
        content[10:14] = b"here"
    elif call == "store":
        one.store(10, b"here")
        one.msync()
        content[10:14] = b"here"
    elif call == "truncate":
        one.truncate(PAGE + 1)
        del content[PAGE + 1:]
    elif call == "fallocate":
        one.agent.do(FALLOCATE)
        assert fallocate(one, PUNCH | KEEP, 10, PAGE) == 0
        content[10:PAGE + 10] = bytes(PAGE)
    else:
        one.device_store(10, b"here")
        one.release()
        content[10:14] = b"here"
    one.fsync()
    for program in one, two:
        check("read()", program.read(), bytes(content))
        check("load()", program.load(end=len(content)), bytes(content))
        check("device", program.agent("(reads.acquire(), reads[:end])[1]", end=len(content)), bytes(content))
    check("the data directory", read_file(nodes.below()), bytes(content))
    os.unlink(nodes.path(0))
    nothing_is_held(nodes, [one, two], "f")


# --- copies ---------------------------------------------------------------------------------------------------------------

def copy(agent, source, target, count, offset_in, offset_out):
    """All of it, as cp does: who gets a short answer asks again."""
    agent.do("done = 0\nsource, target = os.open(a, os.O_RDONLY), os.open(b, os.O_WRONLY)\n"
             "while done < count:\n    done += os.copy_file_range(source, target, count - done, at + done, to + done)\n"
             "os.fsync(target)\nos.close(source)\nos.close(target)",
             a=source, b=target, count=count, at=offset_in, to=offset_out)


@pytest.mark.parametrize("first", SIDES)
def test_copies_between_tracked_files(pair, agents, first):
    """And untracked ones, through either node: what devices have released in the source is in the copy, and what they have
    stored beside it in the target stays."""
    rng = make_random()
    nodes, one, two, numbers = pair(pattern(12 * PAGE))
    contents = {name: bytearray(pattern(12 * PAGE, seed + 1)) for seed, name in enumerate(["f", "g", "h", "plain"])}
    nodes.make(contents["g"], "g", home=1)
    nodes.make(contents["h"], "h", home=0)
    nodes.make(contents["plain"], "plain")
    users = {"f": (one, two), "g": [Program(agents(), nodes.path(number, "g"), "soft:1") for number in numbers],
             "h": [Program(agents(), nodes.path(number, "h"), "soft:2") for number in numbers]}
    copier = agents()
    for turn in range(14):
        source, target = [("f", "g"), ("h", "f"), ("f", "f"), ("g", "h"), ("plain", "f"), ("f", "plain"), ("g", "g")][turn % 7]
        count = rng.choice([1, 100, PAGE, 3 * PAGE + 77])
        at = rng.choice([0, PAGE, rng.randrange(6 * PAGE - count)])
        to = 6 * PAGE + rng.choice([0, PAGE, rng.randrange(5 * PAGE - count)])
        for name, number in (source, 0), (target, 1):  # released and not read; the target's beside what is copied
            if name != "plain":
                where = at + count // 2 if name == source and not number else to - 2
                new = rng.randbytes(2 if number else 1)
                users[name][number].device_store(where, new)
                users[name][number].release()
                contents[name][where:where + len(new)] = new
        if target != "plain":  # stored on the other node, and not written back
            users[target][turn % 2].store(to + count, b"dirty")
            contents[target][to + count:to + count + 5] = b"dirty"
        copy(copier, nodes.path(numbers[turn % 2], source), nodes.path(numbers[turn % 2], target), count, at, to)
        contents[target][to:to + count] = contents[source][at:at + count]
        for name, programs in users.items():
            for program in programs:
                program.msync()
            for program in programs[:: 1 if turn % 2 else -1]:
                check(f"turn {turn}, {source} to {target}: {name}", program.read(), contents[name])
                check(f"turn {turn}, {source} to {target}: {name} on a device", program.acquired(), contents[name])
    for name, content in contents.items():
        check(name, read_file(nodes.below(name)), bytes(content))
        check(name, read_file(nodes.path(numbers[1], name)), bytes(content))


# --- units ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("unit", ["64K", "2M"])
def test_files_that_are_no_multiple_of_a_unit(cluster, agents, first, unit):
    """Smaller than one, larger, and with a piece of one at the end; mapped whole, and from the middle on."""
    rng = make_random()
    nodes = cluster(2, f"timeout=0,unit={unit}")
    workers = agents(), agents()
    for number, size in enumerate((1, PAGE + 1, 17 * PAGE + 5, 2 * MIB - 1, 2 * MIB + 70 * 1024 + 3)):
        name = f"f{number}"
        content = bytearray(pattern(size, number))
        nodes.make(content, name, home=0)
        numbers = nodes.sides(nodes.below(name), first)
        one, two = (Program(agent, nodes.path(n, name), f"soft:{number}") for agent, n in zip(workers, numbers))
        for program in one, two:
            last = size - 1
            program.device_store(last, b"L")  # the first touch is the last byte
            content[last] = ord("L")
            for at in {0, size // 2, max(0, size - PAGE)}:
                new = rng.randbytes(1)
                program.device_store(at, new)
                content[at:at + 1] = new
            program.release()
            all_see({"one": one, "two": two}, content)
        middle = size // 2 // PAGE * PAGE
        for program in one, two:
            program.agent.do("part = dev.mmap(fd, length - middle, offset=middle)", middle=middle)
            program.agent.do("part.acquire()\npart[length - middle - 1] = 7\npart.release()")
            content[-1] = 7
            check("a part", program.agent("(part.acquire(), part[:])[1]"), content[middle:])
        one.truncate(size + PAGE)
        content += bytes(PAGE)
        two.truncate(size + 100)
        two.fsync()
        del content[size + 100:]
        for program in one, two:
            assert program.size() == len(content)
            check("grown", program.read(), content)
            check("the device of what it was mapped", program.acquired(size), content[:size])
            program.agent.do("os.close(fd)\ncpu.close()\ndev.close()")


# --- what a kernel has written itself -------------------------------------------------------------------------------------

with open(os.path.join(TOP, "cache", "dropper.h"), encoding="utf-8") as header:
    DROPPERS = int(re.search(r"#define DROPPERS (\d+)u", header.read())[1])


def write_over_each_other(nodes, holder, other, writer, still, content):
    """Of a page that the kernel of holder has; whether it had it to the end, else nothing is shown."""
    for program in holder, other, still:
        program.fsync()
        assert program.load() == bytes(content) or program is still
    still.agent.do("assert all(len(os.pread(one, PAGE, 0)) == PAGE for one in held)")
    try:
        stand_still(nodes[2].pid)
        writer.agent.do("for one in held:\n    os.pwrite(one, os.urandom(1), 0)")
        writer.agent.start("os.fsync(held[0])")
        if not writer.agent.busy(0.1):
            return False
        old = content[0]
        for program, offset, flip in (other, 0, 1), (holder, 1, 1), (other, 1, 2):
            content[offset] ^= flip
            program.write(offset, content[offset:offset + 1])
        held = holder.load()[0] == old
        content[2] ^= 1
        holder.store(2, content[2:3])
        holder.sync_file_range()
        check("the home copy", read_file(nodes.below()), bytes(content))  # whoever closes a file of the mount has to wait
        return held and writer.agent.busy()
    finally:
        os.kill(nodes[2].pid, signal.SIGCONT)
        writer.agent.finish()


@pytest.mark.parametrize("first", SIDES)
def test_what_a_kernel_has_written_is_no_store_of_its_mapping(cluster, agents, first):
    """A kernel holds a page that the other node has changed, writes into it with write(), and what it wrote is overwritten
    by the other node. Then it writes its page back for another byte's sake: what it wrote is no change of its own any more.

    It can hold such a page only until it is told to drop it. So those who tell them are kept waiting, by a third node that
    stands still and is to drop pages of other files."""
    nodes = cluster(3, "timeout=0,peer_timeout=20")
    content = bytearray(pattern(2 * PAGE))
    for name in "f", *(f"held{number}" for number in range(DROPPERS)):
        nodes.make(content, name, home=0)
    holder, other = (Program(agents(), nodes.path(number)) for number in ((0, 1) if first == "home" else (1, 0)))
    writer = Program(agents(), nodes.path(0, "held0"), cpu=False)
    still = Program(agents(), nodes.path(2, "held0"), device=None)  # calls on frames would be waited for
    for program, number in (writer, 0), (still, 2):
        program.agent.do("held = [os.open(path + str(n), os.O_RDWR) for n in range(count)]",
                         path=nodes.path(number, "held"), count=DROPPERS)
    writer.agent.do("dev = gaia.Device('soft:0')\nmaps = [dev.mmap(one, PAGE) for one in held]")
    tracked_by_all(nodes[:2], "f")
    tracked_by_all([nodes[0], nodes[2]], *(f"held{number}" for number in range(DROPPERS)))
    landed = 0
    for _ in range(20):
        landed += write_over_each_other(nodes, holder, other, writer, still, content)
        other.fsync()
        all_see({"holder": holder, "other": other}, content)
        if landed == 3:
            break
    assert landed == 3
