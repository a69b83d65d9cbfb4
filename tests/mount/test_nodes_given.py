# SPDX-License-Identifier: Apache-2.0
"""The home has looked at what a device of another node releases, and the file becomes shorter or longer before it collects that."""
import os
import threading

import pytest

from helpers import PAGE, ROWS, agents, daemon_with_faults, wait_until  # noqa: F401
from nodes import Program, check, cluster  # noqa: F401


@pytest.fixture
def pair(cluster, agents, workdir, monkeypatch):
    """(a program of the home, one of the agent, a function that begins a release of the agent's and returns its thread: the home has
    its kernel drop the page, which takes a while)"""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, only=[])
    nodes.mount(0, env=env)
    nodes.mount(1)
    nodes.make(bytes(2 * PAGE), home=0)
    home, agent = (Program(agents(), nodes.path(number)) for number in range(2))

    def begin():
        home.load(end=1)
        plan.arm_wait(ROWS.index("fuse_lowlevel_notify_inval_inode"), 1000, 1, 0)
        thread = threading.Thread(target=agent.release)
        thread.start()
        wait_until(lambda: plan.landed)
        return thread
    return home, agent, begin


def test_what_is_cut_off_does_not_come_back(pair):
    home, agent, begin = pair
    agent.device_store(0, b"d" * PAGE)
    thread = begin()
    home.truncate(100)
    home.truncate(2 * PAGE)
    home.write(200, b"written")
    thread.join()
    check("read()", home.read(), b"d" * 100 + bytes(100) + b"written" + bytes(2 * PAGE - 207))


def test_what_was_stored_behind_the_end_is_not_what_is_appended(pair):
    home, agent, begin = pair
    home.truncate(100)
    agent.device_store(0, b"d" * 200)
    thread = begin()
    home.write(100, b"w" * 200)
    thread.join()
    check("read()", home.read(), b"d" * 100 + b"w" * 200)
