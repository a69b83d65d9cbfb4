# SPDX-License-Identifier: Apache-2.0
"""Bytes that the transport brings straight into a GPU's memory (io/standing.h), which is a stand-in's (tests/cuda/standin.c)
that the CPU can reach: on one node with -o fault=local, and from a home on another node. A NIC does it in tests/vm. That
none of them went by a copy of the driver's is seen by having all copies fail."""
import errno
import os
import time

import pytest

from conftest import so_much
from files import pattern
from gpu_fixture import gpu, make, released  # noqa: F401
from helpers import MIB, PAGE, agents, daemon_with_faults, faults_folder, make_random, read_file, ROWS, statistics, wait_until  # noqa: F401
from sites import Sites

COPY, FLUSH, LAUNCH = "cuMemcpyHtoDAsync", "cuFlushGPUDirectRDMAWrites", "cuLaunchKernel"
BROKEN = 999
PATH = "fault=local"


def path_of(m):
    return statistics(m.mnt)["fault"]


def copied(m):
    """Pieces of one node's path that were copied; pages, from another node."""
    if m.nodes:
        return statistics(m.mnt)["nodes"]["pages_placed_by_copy"]
    return path_of(m)["failed"] + path_of(m)["refused"]


def reach(m):
    """What is known of the GPU: unknown, proven, unreachable or off."""
    device = next(d for d in statistics(m.mnt)["devices"] if d["device"] == "cuda:0")
    return device["gpudirect_nodes" if m.nodes else "gpudirect_faults"]


def prove(gpu, m):
    """The first bytes are read back, and compared with those that came otherwise."""
    program = gpu.program(make(m, pattern(PAGE), "proof"))
    assert reach(m) == "proven"
    assert program("map[:]") == pattern(PAGE)
    program.do("map.unmap()\nos.close(fd)\ndev.close()")
    program.end()


def test_nothing_is_copied(gpu):
    m = gpu.mount(options=PATH)
    prove(gpu, m)
    content = pattern(5 * MIB + 77)
    path = make(m, content)
    gpu.fail(COPY, 0, BROKEN)
    reader = gpu.program(path, writable=False)  # so that nothing is looked for, which takes a copy of a list
    assert reader("map[:]") == content
    gpu.heal()
    # What was granted is known, and so what is changed afterwards is found.
    program = gpu.program(path)
    assert program("map[:]") == content
    program.do("map[3 * MIB + 5:3 * MIB + 9] = b'four'\nmap.release()")
    expected = content[:3 * MIB + 5] + b"four" + content[3 * MIB + 9:]
    assert read_file(path) == expected
    pages = 1 + 2 * -(-len(content) // PAGE)
    if m.nodes:
        assert statistics(m.mnt)["nodes"]["pages_placed"] == pages
    else:
        assert path_of(m)["bytes"] == released(m)["bytes_in"] == pages * PAGE
    assert copied(m) == 0


def test_the_copies_would_have_failed(gpu):
    """The other half of what is above: with memory that nobody else reaches."""
    m = gpu.mount("opaque=1", PATH)
    path = make(m, pattern(MIB))
    gpu.fail(COPY, 0, BROKEN)
    with pytest.raises(OSError) as caught:
        gpu.program(path)
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("words", ["opaque=1", "opaque=2", "cannot=118", "cannot=118,can=117,missing=" + FLUSH])
def test_memory_that_can_not_be_reached(gpu, words):
    """By nobody; or what is written to it goes nowhere, of which nobody is told; or it is not known when a kernel sees what
    a NIC has written. Bytes are copied, and nobody tries again."""
    m = gpu.mount(words, PATH)
    content = pattern(3 * MIB)
    path = make(m, content)
    program = gpu.program(path)
    assert program("map[:]") == content
    # Before a client ends (and gaiactl is one), which has the log looked after, too.
    told = "cuda:0: what peers= brings" if m.nodes else "cuda:0: what fault= brings"
    assert m.log_text().count(told + " does not arrive in its memory") == ("opaque" in words)
    program.do("map[5] = 1\nmap.release()")
    assert read_file(path) == content[:5] + b"\1" + content[6:]
    assert copied(m)
    assert reach(m) == ("unreachable" if "opaque" in words else "off")
    if m.nodes:
        assert statistics(m.mnt)["nodes"]["pages_placed"] == 0 and copied(m) == 3 * MIB // PAGE
    else:
        seen = path_of(m)
        # What is under way when the first has failed fails, too, and the next ones are not tried.
        assert 1 <= seen["failed"] <= 6 if "opaque" in words else seen["failed"] == 0
        assert 1 <= seen["reads"] <= 6 if words == "opaque=2" else seen["reads"] == 0
        program.do("map.unmap()\nos.close(fd)\ndev.close()")
        program.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')\nmap = dev.mmap(fd, 3 * MIB)", path=path)
        assert program("map[6:]") == content[6:]
        assert path_of(m)["failed"] == seen["failed"]


def test_memory_that_a_nic_can_reach(gpu):
    """A GPU that can allocate it (attribute 110) is asked to; the stand-in refuses to do anything else."""
    m = gpu.mount("can=110", PATH)
    content = pattern(MIB)
    path = make(m, content)
    assert gpu.program(path, standin="can=110")("map[:]") == content
    assert copied(m) == 0


@pytest.mark.parametrize("words, found", [("", "proven"), ("opaque=2", "unreachable")])
def test_bytes_that_were_there_before(gpu, words, found):
    """Prove nothing: new memory has zeros."""
    m = gpu.mount(words, PATH)
    program = gpu.program(make(m, bytes(2 * MIB), "zeros"))
    assert program("map[:]") == bytes(2 * MIB)
    assert reach(m) == "unknown"
    content = bytes(MIB - 1) + b"x" + bytes(MIB)
    assert gpu.program(make(m, content))("map[:]") == content
    assert reach(m) == found


def sites_in(function, row):
    """Of the daemon that heeds a plan, the calls of a row in a function, as a plan knows them."""
    sites = Sites(os.path.join(faults_folder(), "mount.gaiafs"))
    return [behind << 8 | ROWS.index(name) for behind, (address, name) in sites.calls.items()
            if name == row and sites.where[address][1] == function]


def test_memory_that_can_not_be_registered_now(gpu, workdir, monkeypatch):
    """As when there is too little to lock: said in the log and by gaiactl, once, and tried again, but not with each fault."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    monkeypatch.setenv("GAIAFS_FAULTS", env["GAIAFS_FAULTS"])
    m = gpu.mount(options=PATH)
    content = pattern(3 * MIB)
    path = make(m, content)
    [site] = sites_in("gaia_memory_register", "calloc")
    plan.arm(ROWS.index("calloc"), errno.ENOMEM, 1, 1, site)
    program = gpu.program(path)
    assert program("map[:]") == content
    assert plan.landed and reach(m) == "refused" and copied(m)
    what = "peers=" if m.nodes else "fault="
    assert m.log_text().count(f"cuda:0: its memory can't be registered for what {what} brings") == 1
    plan.row = -1
    time.sleep(1.1)
    other = gpu.program(make(m, content[::-1], "other"))
    assert other("map[:]") == content[::-1]
    assert reach(m) == "proven"
    assert "does not arrive" not in m.log_text()


def test_it_can_be_left_alone(gpu):
    m = gpu.mount(options=PATH + ",gpudirect=off")
    content = pattern(MIB)
    assert gpu.program(make(m, content))("map[:]") == content
    assert reach(m) == "off"
    assert copied(m) and not path_of(m)["reads"]
    assert not m.nodes or statistics(m.mnt)["nodes"]["pages_placed"] == 0


@pytest.mark.parametrize("nth", range(1, 1 + so_much(32, 16)))
def test_a_first_transfer_that_ends_the_link(gpu, workdir, monkeypatch, nth):
    """As a NIC does that finds out then that it can't: it is taken for that, and does not happen again and again. On another
    node a session ends, and with it what is mapped by it, once."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    monkeypatch.setenv("GAIAFS_FAULTS", env["GAIAFS_FAULTS"])
    m = gpu.mount(options=f"{PATH},peer_timeout=2")
    content = pattern(MIB)
    path = make(m, bytes(MIB))
    program = gpu.program(path)
    assert reach(m) == "unknown"
    os.truncate(path, 0)
    with open(path, "r+b") as file:
        file.write(content)
    plan.arm(ROWS.index("sendmsg"), errno.EIO, nth, 0)
    try:
        program.do("map.acquire()")
        assert program("map[:]") == content
    except OSError as problem:
        assert problem.errno in (errno.EIO, errno.ENOTCONN)  # a session of nodes, or the program's own
    plan.row = -1
    wait_until(lambda: path_of(m)["connected"], 10, "connected again")
    found = reach(m)
    assert path_of(m)["connects"] == 1 or found != "unknown"
    other = gpu.program(make(m, content[::-1], "other"))
    assert other("map[:]") == content[::-1]
    assert reach(m) == (found if found == "unreachable" else "proven")


def test_writes_that_must_be_flushed(gpu):
    m = gpu.mount("cannot=118,can=117", PATH)
    prove(gpu, m)
    content = pattern(MIB)
    path = make(m, content)
    gpu.fail(COPY, 0, BROKEN)
    assert gpu.program(path)("map[:]") == content
    # It is asked for: when it fails, nobody trusts what is there, nor asks for it again. The GPU has not failed.
    other = make(m, content[::-1], "other")
    gpu.fail(FLUSH, 1, BROKEN)
    reads = path_of(m)["reads"]
    assert gpu.program(other)("map[:]") == content[::-1]
    assert gpu.failed()
    if m.nodes:
        assert copied(m) == MIB // PAGE
    else:
        assert path_of(m)["failed"] == path_of(m)["reads"] - reads >= 1
    assert reach(m) == "unreachable"
    assert "failure" not in next(d for d in statistics(m.mnt)["devices"] if d["device"] == "cuda:0")


def test_digests_that_fail(gpu):
    """After the bytes have come: they are copied then, or the range can't be had; nobody has wrong ones."""
    m = gpu.mount(options=PATH)
    content = pattern(MIB)
    path = make(m, content)
    gpu.fail(LAUNCH, 1, BROKEN)
    try:
        program = gpu.program(path)
    except OSError as problem:
        assert problem.errno == errno.EIO and m.nodes
        program = gpu.program(path)
    assert gpu.failed()
    assert program("map[:]") == content
    program.do("map[77] = 3\nmap.release()")
    assert read_file(path) == content[:77] + b"\3" + content[78:]


def test_memory_comes_and_goes(gpu):
    """Registrations end with it (a sanitizer's daemon would find one that does not), and are made for what comes next."""
    m = gpu.mount(options=PATH)
    prove(gpu, m)
    rng = make_random()
    for _ in range(so_much(12, 4)):
        content = rng.randbytes(rng.randrange(1, 4 * MIB))
        path = make(m, content)
        gpu.fail(COPY, 0, BROKEN)
        # What can be stored to, and was placed ahead, is searched by the map's own acquire, and the search sends a list so.
        program = gpu.program(path, writable=bool(m.nodes))
        assert program("map[:]") == content
        gpu.heal()
        program.kill()
        os.unlink(path)
    assert copied(m) == 0


def test_sizes_that_change(gpu):
    """Against the bytes, with pieces that lie in two chunks (copied), and pages that are placed while the file is cut."""
    m = gpu.mount(options=PATH)
    rng = make_random()
    room = 9 * MIB
    content = bytearray(rng.randbytes(room))
    path = make(m, bytes(content))
    program = gpu.program(path, room)
    for _ in range(so_much(40, 10)):
        size = rng.randrange(1, len(content))
        os.truncate(path, size)
        content = content[:size]
        first = rng.randrange(size)
        if rng.random() < 0.5:
            program.do("map.acquire()")
        content += rng.randbytes(min(rng.randrange(1, 2 * MIB), room - size))
        with open(path, "r+b") as file:
            file.seek(size)
            file.write(content[size:])
        at = rng.randrange(len(content))
        program.do("map.acquire()\nmap[at:at + 1] = b'x'\nmap.release()", at=at)
        content[at] = ord("x")
        assert program("map[first:length]", first=first, length=len(content)) == content[first:]
        assert read_file(path) == content


def test_a_path_that_is_made_anew(gpu, workdir, monkeypatch, request):
    """The memory is there still, and is registered with the next transport."""
    if "here" not in request.node.name:
        pytest.skip("a session that ends is an end of the maps: test_nodes_deaths.py")
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    monkeypatch.setenv("GAIAFS_FAULTS", env["GAIAFS_FAULTS"])
    m = gpu.mount(options=f"{PATH},peer_timeout=2")
    prove(gpu, m)
    content = pattern(MIB)
    path = make(m, content)
    program = gpu.program(path, 2 * MIB)
    for turn in range(1, 4):
        plan.arm(ROWS.index("sendmsg"), errno.EIO, 1, 0)
        content = content[::-1]
        os.truncate(path, 0)
        with open(path, "r+b") as file:
            file.write(content)
        program.do("map.acquire()")
        plan.row = -1
        assert program(f"map[0:{MIB}]") == content
        wait_until(lambda: path_of(m)["connects"] > turn and path_of(m)["connected"], 10, "connected again")
        os.truncate(path, 0)
        with open(path, "r+b") as file:
            file.write(content[::-1])
        gpu.fail(COPY, 0, BROKEN)
        program.do("map.acquire()")
        gpu.heal()
        assert program(f"map[0:{MIB}]") == content[::-1]
        content = content[::-1]
