# SPDX-License-Identifier: Apache-2.0
"""A file whose home has become another node, which could not tell all: who is asked in its place says who it is."""
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from files import pattern
from helpers import (PAGE, ROWS, agents, daemon_with_faults, error_of, statistics, wait_until,  # noqa: F401
                     write_file)
from member import OPS, Member, meet  # noqa: F401
from nodes import Program, cluster, home_of  # noqa: F401

NODE_GAVE_UP = -errno.EREMOTE
A, B, C = range(3)  # in the list


@pytest.fixture
def three(cluster):  # noqa: F811
    """(the daemon of a; b, which has said that it is home of f, and is asked in vain; c, which is its home)"""
    nodes = cluster(3, "timeout=0,peer_timeout=2", only=[0])
    members = []
    try:
        path = next(path for path in (nodes.below(f"f{number}") for number in range(200))
                    if write_file(path, pattern(2 * PAGE, 1)) or home_of(path, nodes.names) == "b")
        os.rename(path, nodes.below())  # the kernel of a does not know it yet
        members = [Member(nodes.peers, name=name) for name in "bc"]
        before, home = members
        wait_until(lambda: before.do("follow", nodes.below()) == 0 and home.do("asked", OPS["NODE_PING"]))
        for op in "TRACK", "OPEN":
            assert before.do("answer", OPS[f"NODE_{op}"], -errno.ESTALE) == 0
        assert home.do("answer", OPS["NODE_WRITE"], 100) == 0
        yield nodes, before, home
    finally:
        for member in members:
            member.kill()


def writes(fd):
    return os.pwrite(fd, b"x" * 100, 0)


@pytest.mark.parametrize("says", [C, B, A])
def test_a_file_is_opened(three, says):
    """At the home that is named. What names itself, or who asks, names nobody: then who asks does by itself."""
    nodes, before, home = three
    before.do("home", says)
    fd = os.open(nodes.path(0), os.O_WRONLY)
    asked = 1 if says == C else 0
    assert writes(fd) == 100
    assert [home.do("asked", OPS[f"NODE_{op}"]) for op in ("OPEN", "WRITE")] == [asked, asked]
    assert before.do("asked", OPS["NODE_OPEN"]) <= 4 and before.do("asked", OPS["NODE_WRITE"]) == 0
    os.close(fd)


def test_a_home_that_is_named_and_is_down(three):
    """It is not followed: nobody would say when to stop. What a program opens of the file is the data directory's."""
    nodes, before, home = three
    home.kill()
    wait_until(lambda: before.do("home", C) == 0)
    wait_until(lambda: any(node["down"] for node in statistics(nodes[0].mnt)["nodes"]["nodes"] if node["name"] == "c"))
    fd = os.open(nodes.path(0), os.O_WRONLY)
    assert writes(fd) == 100
    os.close(fd)


@pytest.mark.parametrize("op", ["WRITE", "MAP"])
def test_a_home_that_has_given_the_file_up(three, agents, op):  # noqa: F811
    """The next one has not told this node: it asks who it is, and then the next one, and no program hears of it."""
    nodes, before, home = three
    before.do("answer", OPS["NODE_OPEN"], 0)
    fd = os.open(nodes.path(0), os.O_WRONLY)
    before.do("answer", OPS["NODE_WRITE"], 100)
    assert writes(fd) == 100 and before.do("asked", OPS["NODE_WRITE"]) == 1
    for asked in "WRITE", "MAP":
        before.do("answer", OPS[f"NODE_{asked}"], NODE_GAVE_UP)
    before.do("answer", OPS["NODE_OPEN"], -errno.ESTALE)
    before.do("home", C)
    if op == "WRITE":
        assert writes(fd) == 100
    else:
        home.do("answer", OPS["NODE_MAP"], -errno.ENOSPC)
        assert error_of(Program, agents(), nodes.path(0)) == errno.ENOSPC
    assert before.do("asked", OPS[f"NODE_{op}"]) == (2 if op == "WRITE" else 1)
    assert home.do("asked", OPS[f"NODE_{op}"]) == 1
    os.close(fd)


def test_a_home_that_goes_before_a_map_has_its_place(three, agents):  # noqa: F811
    """It has made the map. The program's memory is still to be told: the map is made anew at the next home."""
    nodes, before, home = three
    before.do("home", C)
    assert home.do("frames", 0, 0) == 0  # of soft:0: number 1
    for word, number in ("value", 1), ("second", 1):
        assert home.do(word, OPS["NODE_MAP"], number) == 0
    home.do("pause", OPS["NODE_ATTACH"], 20000)
    before.do("answer", OPS["NODE_MAP"], -errno.ENOSPC)
    with ThreadPoolExecutor(1) as pool:
        mapped = pool.submit(error_of, Program, agents(), nodes.path(0))
        wait_until(lambda: home.do("asked", OPS["NODE_ATTACH"]))
        for op in "TRACK", "OPEN":
            assert before.do("answer", OPS[f"NODE_{op}"], 0) == 0
        home.kill()
        assert mapped.result() == errno.ENOSPC
    assert before.do("asked", OPS["NODE_MAP"]) == 1


def test_a_home_that_refuses_a_map_by_a_word_of_the_daemons(three, agents):  # noqa: F811
    """ECONNABORTED is what the daemon says of a program's connection that it is about to end, and ENOENT of a map that it does not
    know: to libgaia they are EIO, and all goes on."""
    nodes, before, home = three
    nodes.make(bytes(PAGE), "own", home=A)
    program = Program(agents(), nodes.path(0, "own"), cpu=False)
    program.acquire()
    before.do("home", C)
    assert home.do("frames", 0, 0) == 0  # of soft:0: number 1
    for word, number in ("value", 1), ("second", 1):
        assert home.do(word, OPS["NODE_MAP"], number) == 0
    program.agent.do("other = os.open(path, os.O_RDWR)", path=nodes.path(0))
    for times, word in enumerate((errno.ECONNABORTED, errno.ENOENT), 1):
        home.do("answer", OPS["NODE_ATTACH"], -word)
        assert error_of(program.agent.do, "dev.mmap(other, 4096)") == errno.EIO
        assert home.do("asked", OPS["NODE_ATTACH"]) == times
    program.device_store(0, b"x")
    program.release()


def test_what_a_home_that_has_given_a_file_up_answers(meet):  # noqa: F811
    """To an agent that is not told: that it has, and to TRACK and OPEN who is its home by now."""
    daemon, path, member = meet(home="a")
    one = member()
    one.has_read_page(path)
    fd = os.open(os.path.join(daemon.mnt, "f"), os.O_RDONLY)
    assert os.pread(fd, 10, 0) == pattern(2 * PAGE, 1)[:10]
    assert one.do("take_over", path) == 0
    assert {word: one.do(*word.split()) for word in ("read", "write", "sync", "cut 5", "map")} == dict.fromkeys(
        ("read", "write", "sync", "cut 5", "map"), NODE_GAVE_UP)
    assert one.do("track", path) == -errno.ESTALE and one.do("is", B) == 1 and one.do("is", A) == 0
    assert one.do("many", path) == 0  # OPENs
    os.close(fd)


def test_appends_to_a_file_that_its_home_has_given_up(three):
    """The one that finds it out fails, as it may have been done. The next one goes to the next home."""
    nodes, before, home = three
    before.do("answer", OPS["NODE_OPEN"], 0)
    fd = os.open(nodes.path(0), os.O_WRONLY | os.O_APPEND)
    before.do("answer", OPS["NODE_WRITE"], 100)
    assert os.write(fd, b"x" * 100) == 100 and before.do("asked", OPS["NODE_WRITE"]) == 1
    before.do("answer", OPS["NODE_WRITE"], NODE_GAVE_UP)
    before.do("answer", OPS["NODE_OPEN"], -errno.ESTALE)
    before.do("home", C)
    assert error_of(os.write, fd, b"x" * 100) == errno.EIO
    assert os.write(fd, b"x" * 100) == 100
    assert [member.do("asked", OPS["NODE_WRITE"]) for member in (before, home)] == [2, 1]
    os.close(fd)


@pytest.mark.parametrize("op", ["WRITE", "MAP"])
def test_a_home_that_others_reach_is_not_replaced(cluster, agents, op):  # noqa: F811
    """This node can't meet the home that is named, and would be the next one by the list: who has named it knows that it
    lives, and would follow this node, as the later of two homes."""
    nodes = cluster(3, "timeout=0,peer_timeout=1", only=[0])
    path = next(path for path in (nodes.below(f"f{number}") for number in range(200))
                if write_file(path, pattern(2 * PAGE, 1)) or home_of(path, nodes.names) == "a")
    os.rename(path, nodes.below())
    members = [before := Member(nodes.peers, name="b")]
    try:
        wait_until(lambda: before.do("follow", nodes.below()) == 0)
        assert before.do("answer", OPS["NODE_WRITE"], 100) == 0
        fd = os.open(nodes.path(0), os.O_WRONLY)
        assert writes(fd) == 100 and before.do("asked", OPS["NODE_WRITE"]) == 1
        for asked in "WRITE", "MAP":
            before.do("answer", OPS[f"NODE_{asked}"], NODE_GAVE_UP)
        for asked in "TRACK", "OPEN":
            before.do("answer", OPS[f"NODE_{asked}"], -errno.ESTALE)
        before.do("home", C)
        told = before.do("asked", OPS["NODE_FOLLOW"])
        error = error_of(writes, fd) if op == "WRITE" else error_of(Program, agents(), nodes.path(0))
        assert before.do("asked", OPS["NODE_FOLLOW"]) == told and error
        members.append(home := Member(nodes.peers, name="c"))
        wait_until(lambda: home.do("asked", OPS["NODE_PING"]))
        assert home.do("answer", OPS["NODE_WRITE"], 100) == 0
        assert writes(fd) == 100 and home.do("asked", OPS["NODE_WRITE"]) == 1
        os.close(fd)
    finally:
        for member in members:
            member.kill()


def test_what_was_heard_of_a_home_that_has_said_so_itself(three):
    """It may be from before, when that node was the home for the first time: the end of that ends nothing."""
    nodes, before, home = three
    before.do("home", C)
    assert before.do("second", OPS["NODE_OPEN"], 1) == 0 and before.do("pause", OPS["NODE_OPEN"], -1000) == 0
    opened = []
    program = threading.Thread(target=lambda: opened.append(os.open(nodes.path(0), os.O_WRONLY)))
    program.start()
    wait_until(lambda: before.do("asked", OPS["NODE_OPEN"]) == 1)
    assert home.do("take_over", nodes.below()) == 0
    program.join()
    assert home.do("unfollow", nodes.below()) == 0
    assert statistics(nodes[0].mnt)["nodes"]["followed"] == 1
    os.close(opened[0])


def test_a_file_that_is_given_up_while_it_is_mapped(meet, agents, workdir, monkeypatch):  # noqa: F811
    """By a program of the home: it is mapped at the next one."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    daemon, path, member = meet(home="a", env=env)
    one = member()
    one.has_read_page(path)
    for op in "TRACK", "OPEN":
        one.do("answer", OPS[f"NODE_{op}"], 0)
    one.do("answer", OPS["NODE_MAP"], -errno.ENOSPC)
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device(gaia.default_device())", path=os.path.join(daemon.mnt, "f"))
    plan.arm_wait(ROWS.index("fcntl64"), 1500, 2, False)  # the claim; the first is of the client
    agent.start("map = dev.mmap(fd, 4096)")
    wait_until(lambda: plan.landed)
    assert one.do("take_over", path) == 0
    assert error_of(agent.finish) == errno.ENOSPC and one.do("asked", OPS["NODE_MAP"]) == 1


def test_two_homes_that_give_the_file_up_during_one_write(cluster):  # noqa: F811
    """The kernel keeps the page locked until the WRITE is answered. Who has found the second one, and waits for that page, holds up
    nobody who looks for the third."""
    nodes = cluster(4, "timeout=0,peer_timeout=2", only=[0])
    members = []
    try:
        path = next(path for path in (nodes.below(f"f{number}") for number in range(200))
                    if write_file(path, pattern(2 * PAGE, 1)) or home_of(path, nodes.names) == "b")
        os.rename(path, nodes.below())
        members = [Member(nodes.peers, name=name) for name in "bcd"]
        first, second, third = members
        wait_until(lambda: first.do("follow", nodes.below()) == 0 and all(one.do("asked", OPS["NODE_PING"]) for one in members))
        fd = os.open(nodes.path(0), os.O_WRONLY)
        for one, next_home in (first, C), (second, C + 1):
            assert one.do("answer", OPS["NODE_WRITE"], NODE_GAVE_UP) == 0 and one.do("home", next_home) == 0
        assert third.do("answer", OPS["NODE_WRITE"], 100) == 0
        for op in "TRACK", "OPEN":
            assert first.do("answer", OPS[f"NODE_{op}"], -errno.ESTALE) == 0
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(writes, fd)
            wait_until(lambda: second.do("asked", OPS["NODE_WRITE"]))
            for op in "TRACK", "OPEN":
                assert second.do("answer", OPS[f"NODE_{op}"], -errno.ESTALE) == 0
            assert written.result() == 100
        assert third.do("asked", OPS["NODE_WRITE"]) == 1
        os.close(fd)
    finally:
        for member in members:
            member.kill()
