# SPDX-License-Identifier: Apache-2.0
"""A call fails for a moment while two nodes share a file, and goes well when it is made again: nothing that was answered is lost."""
import errno
import os

import pytest

from helpers import PAGE, ROWS, agents, daemon_with_faults, error_of, statistics, wait_until  # noqa: F401
from nodes import Program, check, cluster  # noqa: F401


@pytest.fixture
def planned(cluster, workdir, monkeypatch):
    """(the plan of node 0, which is the home of what is made, two nodes)"""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, only=[])
    nodes.mount(0, env=env)
    nodes.mount(1)
    return plan, nodes


def test_a_drop_that_fails_at_the_home(planned, agents):
    """Its own kernel holds a page that the agent's program has written to, and goes on to: what it writes back is merged until it
    has dropped it."""
    plan, nodes = planned
    nodes.make(bytes(2 * PAGE), home=0)
    home, agent = (Program(agents(), nodes.path(number)) for number in range(2))
    home.load(end=1)
    plan.arm(ROWS.index("fuse_lowlevel_notify_inval_inode"), errno.EIO, 1, 0)
    agent.write(10, b"written")
    wait_until(lambda: plan.landed)
    home.store(100, b"stored")
    home.msync()
    agent.fsync()
    content = bytearray(2 * PAGE)
    content[10:17] = b"written"
    content[100:106] = b"stored"
    for program in home, agent:
        check("read()", program.read(), content)
        check("load()", program.load(), content)


def test_a_device_elsewhere_can_not_be_told_that_a_file_grows(planned, agents):
    """What it has stored behind the end is no part of what the file has grown by."""
    plan, nodes = planned
    home, landed, number = None, True, 0
    while landed:
        number += 1
        nodes.make(bytes(PAGE), f"f{number}", home=0)
        home, agent = (Program(agents(), nodes.path(node, f"f{number}")) for node in range(2))
        home.truncate(100)
        agent.device_store(0, b"d" * 200)
        plan.arm(ROWS.index("malloc"), errno.ENOMEM, number, 0)
        failed = error_of(home.write, 100, b"w" * 100)
        landed, plan.row = plan.landed, -1
        if failed:
            home.write(100, b"w" * 100)
        lost = error_of(agent.release)  # its node has been given up
        check(f"call {number}", home.read(), (bytes(100) if lost else b"d" * 100) + b"w" * 100)
        for program in home, agent:
            program.agent.kill()
    assert number > 2


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("side", ["home", "agent"])
def test_a_handle_that_can_not_be_opened_at_the_moment(planned, agents, side, code):
    """open_by_handle_at() says ESTALE whatever went wrong, when the filesystem has to ask a server. To neither side a file that is
    open there is gone for that, nor for what else went wrong: the agent goes on asking the home."""
    plan, nodes = planned
    nodes.make(bytes(PAGE), home=0 if side == "home" else 1)
    home_number, agent_number = (0, 1) if side == "home" else (1, 0)
    agent = home = None
    if side == "agent":  # it is told when the home begins to track the file
        agent = Program(agents(), nodes.path(agent_number), device=None, cpu=False)
    else:  # it asks when its first program opens the file
        home = Program(agents(), nodes.path(home_number))
    plan.arm(ROWS.index("open_by_handle_at"), code, 1, 0)
    home = home or Program(agents(), nodes.path(home_number))
    agent = agent or Program(agents(), nodes.path(agent_number), device=None, cpu=False)
    assert plan.landed == 1
    for turn in range(1, 4):
        home.device_store(turn, bytes([turn]))
        home.release()
        check("read()", agent.read()[turn:turn + 1], bytes([turn]))
        agent.write(10 + turn, bytes([turn]))
        home.acquire()
        check("load", home.device_load()[10 + turn:11 + turn], bytes([turn]))


@pytest.mark.parametrize("who", ["home", "agent"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOTCONN, errno.ECONNABORTED])
def test_an_acquire_for_which_stores_elsewhere_can_not_be_written(planned, agents, code, who):
    """Whatever the data directory's word for it is: it is not that the mount which had them has gone."""
    plan, nodes = planned
    nodes.make(bytes(PAGE), home=0)
    home, agent = (Program(agents(), nodes.path(number)) for number in range(2))
    acquirer, other = (home, agent) if who == "home" else (agent, home)
    other.store(10, b"stored")
    plan.arm(ROWS.index("pwrite64"), code, 1, 1)
    error = error_of(acquirer.acquire)
    assert plan.landed
    plan.row = -1
    assert error == errno.EIO


def test_a_word_of_the_data_directory_that_is_none_of_the_home(planned, agents):
    """EREMOTE: it does not say that the home has given the file up, and the agent does not look for another one."""
    plan, nodes = planned
    nodes.make(bytes(PAGE), home=0)
    home, agent = (Program(agents(), nodes.path(number)) for number in range(2))
    agent.write(0, b"before")
    plan.arm(ROWS.index("pwrite64"), errno.EREMOTE, 1, 1)
    error = error_of(agent.write, 0, b"after")
    assert plan.landed
    plan.row = -1
    assert error == errno.EIO and statistics(nodes[1].mnt)["nodes"]["far_files"] == 1
    check("read()", home.read(), b"before" + bytes(PAGE - 6))
