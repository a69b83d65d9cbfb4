# SPDX-License-Identifier: Apache-2.0
"""A node mounts while another one is short of something, or can't connect to it: it is not taken for one that is down, as what its
devices have released nobody has stored. The mount fails and says why, and goes well when there is enough again."""
import errno
import os
import resource
import signal
import subprocess
import threading
import time

import pytest

from conftest import BIN, not_in_the_gate
from files import pattern
from helpers import PAGE, ROWS, agents, daemon_with_faults, read_file, refused_mount, statistics, wait_until  # noqa: F401
from member import OPS, Member
from nodes import Program, cluster  # noqa: F401


@pytest.fixture
def planned(cluster, workdir, monkeypatch):
    """A function: planned(peer_timeout) -> (the plan of a, nodes of which a is mounted, where b is to be)."""
    def start(peer_timeout):
        plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
        nodes = cluster(2, f"timeout=0,peer_timeout={peer_timeout}", only=[])
        nodes.mount(0, env=env)
        mnt = os.path.join(workdir, "b")
        os.mkdir(mnt)
        return plan, nodes, mnt
    return start


def refused(nodes, mnt, word):
    with pytest.raises(pytest.fail.Exception) as failed:
        nodes.mount(1, mnt=mnt)
    assert f"meeting the other nodes: node a lives, and {word}" in str(failed.value)


def no_descriptors(pid):
    """Nor any of those that it has not used."""
    used = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(set(range(len(used) + 1)) - used), hard))
    return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("row, error", [("pthread_create", errno.EAGAIN), ("memfd_create", errno.EMFILE), ("mmap64", errno.ENOMEM),
                                        ("descriptors", errno.EMFILE)])
def test_who_is_short_is_not_down(planned, agents, row, error):
    plan, nodes, mnt = planned(1)
    nodes.make(pattern(PAGE), home=1)  # a is it in its place
    program = Program(agents(), nodes.path(0))
    program.device_store(10, b"released")
    program.release()
    if row == "descriptors":
        enough = no_descriptors(nodes[0].pid)
    else:
        plan.arm(ROWS.index(row), error, 1, 1)
    refused(nodes, mnt, "can't be met: ")
    if row == "descriptors":
        enough()
    else:
        assert plan.landed
        plan.row = -1
    nodes.mount(1, mnt=mnt)
    content = pattern(PAGE)[:10] + b"released" + pattern(PAGE)[18:]
    assert read_file(nodes.path(1)) == content
    program.agent.kill()


def test_who_can_not_meet_it_back(planned):
    """It would not hear what the new node tracks. It tries again and again, not only when it would look for one that is down."""
    plan, nodes, mnt = planned(3)
    plan.arm(ROWS.index("socket"), errno.EMFILE, 1, 1)
    before = plan.calls[ROWS.index("socket")]
    refused(nodes, mnt, "has not met this one in 6000 ms")
    assert plan.calls[ROWS.index("socket")] - before >= 6
    assert "node b could not be met: socket: Too many open files" in nodes[0].log_text()


def test_who_has_another_list_and_says_so_later(planned, workdir):
    """Not when the new node meets all for the first time, but when it has the memory for that: the mount fails as well."""
    plan, nodes, _ = planned(3)
    plan.arm(ROWS.index("memfd_create"), errno.EMFILE, 1, 1)

    def enough():
        wait_until(lambda: plan.landed)
        plan.row = -1

    ends = threading.Thread(target=enough)
    ends.start()
    peers = f"{nodes.peers}/z@{nodes.addresses[0]}-z"
    said = refused_mount(workdir, f"node=b,peers={peers},timeout=0,peer_timeout=3", nodes.data)
    ends.join()
    assert "meeting the other nodes: node a has another list of members" in said, said


def test_who_lives_as_others_say(cluster, agents, workdir, monkeypatch):
    """It has no memory to hear who comes, nor to say so; who comes can ask those who have met it."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(3, "timeout=0,peer_timeout=1", only=[])
    nodes.mount(0)
    nodes.mount(1, env=env)
    nodes.make(pattern(PAGE), home=1)
    program = Program(agents(), nodes.path(1))
    program.device_store(10, b"released")
    program.release()
    plan.arm(ROWS.index("accept4"), errno.ENOMEM, 1, 1)
    said = refused_mount(workdir, f"node=c,peers={nodes.peers},timeout=0,peer_timeout=1", nodes.data)
    assert plan.landed and "meeting the other nodes: node b lives, and can't be met: " in said
    plan.row = -1
    nodes.mount(2)
    assert read_file(nodes.path(2)) == pattern(PAGE)[:10] + b"released" + pattern(PAGE)[18:]
    program.agent.kill()


def test_whose_own_device_has_gone(cluster, workdir, monkeypatch):
    """Between the beginning of its mount and the moment in which it meets others: it knows nothing of them, and does not serve."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, "timeout=0,peer_timeout=1", only=[0])
    plan.arm(ROWS.index("connect"), errno.ENODEV, 1, 1)
    with pytest.raises(pytest.fail.Exception) as failed:
        nodes.mount(1, env=env)
    assert plan.landed and "meeting the other nodes: node a may live, and can't be met: " in str(failed.value)


@not_in_the_gate
def test_who_lives_and_does_not_answer(cluster, workdir):
    """A member whose disk hangs, say: the mount does not wait for ever."""
    nodes = cluster(3, "timeout=0,peer_timeout=1", only=[0])
    one = Member(nodes.peers)
    try:
        one.do("pause", OPS["NODE_HELLO"], 1_000_000)
        said = refused_mount(workdir, f"node=c,peers={nodes.peers},peer_timeout=1", nodes.data)
        assert "node b lives, and can't be met: it answers: nothing but that it lives" in said
    finally:
        one.kill()


def test_who_says_nothing_is_taken_to_be_down(cluster):
    """It may live behind a network that is not up yet: the log of who mounts without it says so, once."""
    nodes = cluster(2, "timeout=0,peer_timeout=1", only=[0])
    os.kill(nodes[0].pid, signal.SIGSTOP)
    try:
        nodes.mount(1)
        assert not statistics(nodes[1].mnt)["nodes"]["nodes"][0]["home"]
        time.sleep(3)  # it tries again and again
    finally:
        os.kill(nodes[0].pid, signal.SIGCONT)
    said = [line for line in nodes[1].log_text().splitlines() if "node a is taken to be down: " in line]
    assert len(said) == 1 and "for 1000 ms" in said[0], nodes[1].log_text()


def test_who_is_told_to_end_while_it_waits(planned):
    plan, nodes, mnt = planned(8)
    plan.arm(ROWS.index("socket"), errno.EMFILE, 1, 1)
    command = [os.path.join(BIN, "mount.gaiafs"), "-f", nodes.data, mnt, "-o", f"node=b,peers={nodes.peers},peer_timeout=8"]
    waits = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: plan.landed)
        waits.terminate()
        assert waits.wait(8) == 1
    finally:
        waits.kill()
        waits.wait()
    plan.row = -1


def test_who_meets_it_back_later(planned):
    plan, nodes, mnt = planned(8)
    plan.arm(ROWS.index("socket"), errno.EMFILE, 1, 1)
    mounts = threading.Thread(target=nodes.mount, args=(1,), kwargs={"mnt": mnt})
    mounts.start()
    try:
        wait_until(lambda: plan.landed)
        assert not os.path.ismount(mnt)
    finally:
        plan.row = -1
        mounts.join()
    for m in nodes:
        assert all(node["home"] or node["name"] == statistics(m.mnt)["nodes"]["self"] for node in statistics(m.mnt)["nodes"]["nodes"])
