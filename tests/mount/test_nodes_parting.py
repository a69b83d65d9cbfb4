# SPDX-License-Identifier: Apache-2.0
"""Nodes part: a home hands over what it has, and nobody waits for ever for one that hangs. The other node is a test's (member.py)."""
import errno
import os
import signal
import subprocess
import threading
import time

import pytest

from conftest import Mount, not_in_the_gate
from files import pattern
from helpers import PAGE, ROWS, agents, daemon_with_faults, read_file, wait_until, write_file  # noqa: F401
from member import OPS, Member, meet  # noqa: F401
from nodes import Program, cluster  # noqa: F401


@pytest.fixture
def reads(meet, workdir, monkeypatch):
    """(the plan of a home whose calls can be made to fail, the home, its file, an agent that has read the first page)"""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    daemon, path, member = meet(env=env)
    one = member()
    one.has_read_page(path)
    return plan, daemon, path, one


def leaves(daemon, one, op):
    """The home is about to leave, and waits for the member's answer to an operation."""
    before = one.do("asked", op)
    one.do("pause", op, 2000)
    daemon.expected_exit = None
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: one.do("asked", op) > before)


def test_what_a_home_does_after_its_last_sync_is_synced(reads):
    plan, daemon, path, one = reads
    leaves(daemon, one, OPS["NODE_LEAVE"])
    assert one.do("asked", OPS["NODE_HANDED"]) == 1 and one.do("flags", OPS["NODE_HANDED"]) == 0
    row = ROWS.index("fsync")
    syncs = plan.calls[row]
    assert one.do("write") == PAGE
    assert plan.calls[row] > syncs, "acknowledged, and in the machine's memory only"
    plan.arm(row, errno.EIO, 1, 1)
    assert one.do("write") == -errno.EIO
    plan.row = -1


def test_what_is_written_back_while_a_home_leaves_is_not_synced_each(reads):
    """An unmount would take as long as a disk needs for a sync of each page."""
    plan, daemon, path, one = reads
    leaves(daemon, one, OPS["NODE_INVALIDATE"])
    syncs = plan.calls[ROWS.index("fsync")]
    for value in range(20):
        one.do("set", 5, value)
        assert one.do("write") == PAGE
    assert plan.calls[ROWS.index("fsync")] == syncs
    daemon.proc.wait(20)
    assert one.do("flags", OPS["NODE_HANDED"]) == 0 and daemon.proc.returncode == 0
    assert plan.calls[ROWS.index("fsync")] > syncs and plan.calls[ROWS.index("syncfs")] == 1
    assert read_file(path)[5] == 19


def test_what_a_home_has_begun_it_ends_before_its_sessions(reads):
    """The agent's next home may change the same bytes as soon as the session has gone."""
    plan, daemon, path, one = reads
    leaves(daemon, one, OPS["NODE_LEAVE"])
    plan.arm_wait(ROWS.index("pwrite64"), 3500, 1, 0)
    one.do("set", 5, 77)
    one.do("write")
    seen = read_file(path)[5]
    assert plan.landed
    daemon.proc.wait(20)
    assert read_file(path)[5] == seen


def test_what_a_home_has_begun_may_need_a_read(reads):
    """A kernel that is to drop a page may keep it locked until it has read or written it: what is being done waits for that."""
    plan, daemon, path, one = reads
    leaves(daemon, one, OPS["NODE_LEAVE"])
    plan.arm_wait(ROWS.index("fsync"), 3700, 1, 0)
    one.do("sync_later")
    time.sleep(2.2)  # it has left the other, and waits for the sync: a slow machine has the rest for its read
    assert daemon.proc.poll() is None and plan.landed
    assert one.do("read") == PAGE
    assert one.do("sync") < 0  # the sync has ended, and so have the sessions
    daemon.proc.wait(20)


@not_in_the_gate
def test_a_home_that_leaves_waits_for_who_writes_back(meet):
    """Its answer to INVALIDATE takes longer than who says nothing is waited for."""
    daemon, path, member = meet()
    one = member()
    one.has_read_page(path)
    one.do("pause", OPS["NODE_INVALIDATE"], 9000)
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: one.do("asked", OPS["NODE_INVALIDATE"]))
    for value in range(16):
        time.sleep(0.5)
        one.do("set", 5, value)
        assert one.do("write") == PAGE
    assert daemon.proc.wait(20) == 0
    assert read_file(path)[5] == 15


@not_in_the_gate
def test_a_home_that_leaves_waits_for_what_it_does_itself(reads):
    """A disk is slow: the agent says nothing for longer than it is waited for, as the home has not answered its WRITE."""
    plan, daemon, path, one = reads
    one.do("pause", OPS["NODE_INVALIDATE"], 13_000)
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: one.do("asked", OPS["NODE_INVALIDATE"]))
    plan.arm_wait(ROWS.index("pwrite64"), 11_500, 1, 0)
    one.do("set", 5, 77)
    assert one.do("write") == PAGE and plan.landed
    assert daemon.proc.wait(20) == 0
    assert one.do("flags", OPS["NODE_HANDED"]) == 0 and read_file(path)[5] == 77


def test_what_is_written_again_is_not_told_by_a_home_that_leaves(reads):
    """A sync has lost it and said so; it came again, and the next one said 0."""
    plan, daemon, path, one = reads
    assert one.do("sync") == 0
    one.do("set", 3, 77)
    assert one.do("write") == PAGE
    plan.arm(ROWS.index("fsync"), errno.EIO, 1, 0)
    assert one.do("sync") == -errno.EIO and plan.landed
    assert one.do("write") == PAGE and one.do("sync") == 0
    leaves(daemon, one, OPS["NODE_INVALIDATE"])
    daemon.proc.wait(20)
    assert one.do("flags", OPS["NODE_HANDED"]) == 0 and daemon.proc.returncode == 0


def test_who_comes_while_a_home_leaves_is_refused(cluster, workdir, monkeypatch):
    """It would have from it what nobody would take back."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(3, "timeout=0,peer_timeout=2", only=[])
    daemon = nodes.mount(0, env=env)
    nodes.make(pattern(2 * PAGE, 1), home=0)
    one = Member(nodes.peers)
    try:
        one.has_page(nodes.below())
        assert one.met == 0 and one.do("read_end") == 0
        plan.arm_wait(ROWS.index("syncfs"), 3000, 1, 0)
        os.kill(daemon.pid, signal.SIGTERM)
        wait_until(lambda: plan.landed)
        assert one.do("asked", OPS["NODE_HANDED"]) == 1
        two = Member(nodes.peers, name="c")
        assert two.met == -errno.ESHUTDOWN
        two.kill()
        assert daemon.proc.wait(20) == 0
    finally:
        one.kill()


def meets(nodes, name):
    """The test's node meets one that is being mounted, as soon as that listens."""
    met = []

    def met_now():
        try:
            met.append(Member(nodes.peers, other=name))
        except (ValueError, BrokenPipeError):  # it has ended
            return False
        return True
    wait_until(met_now)
    return met[0]


def test_who_mounts_while_a_home_leaves_waits_for_its_end(cluster, agents, workdir, monkeypatch):
    """It is the home of its files until then: what is written there nobody would tell the new one."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(3, "timeout=60,peer_timeout=4", only=[])
    daemon = nodes.mount(0, env=env)
    nodes.mount(1)
    content = bytearray(pattern(PAGE, 1))
    nodes.make(content, home=0)
    program = Program(agents(), nodes.path(1))
    plan.arm_wait(ROWS.index("syncfs"), 2000, 1, 0)
    daemon.expected_exit = None
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: plan.landed)
    nodes.mount(2)
    assert "node a could not be met: it answers: it is being unmounted" in nodes[2].log_text()
    with open(nodes.path(2), "rb", buffering=0) as reader:
        assert reader.read(PAGE) == content
        content[10:17] = b"written"
        program.write(10, b"written")
        program.fsync()
        assert os.pread(reader.fileno(), PAGE, 0) == content
    assert daemon.proc.wait(20) == 0
    program.agent.kill()


@not_in_the_gate
def test_who_hears_later_that_a_home_has_left(cluster, workdir, monkeypatch):
    """Who mounts has waited for its end for longer than he waits for others. These have as long as ever to hear of it."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(3, "timeout=0,peer_timeout=2", only=[])
    daemon = nodes.mount(0, env=env)
    plan.arm_wait(ROWS.index("syncfs"), 6000, 1, 0)
    daemon.expected_exit = None
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: plan.landed)
    mounts = threading.Thread(target=nodes.mount, args=(2,))
    mounts.start()
    try:
        one = meets(nodes, "c")
        try:
            assert one.met == 0 and one.do("living", 1) == 0  # a
            assert daemon.proc.wait(20) == 0
            asked = one.do("asked", OPS["NODE_PING"])
            time.sleep(1)
            assert one.do("asked", OPS["NODE_PING"]) > asked + 1 and mounts.is_alive()
            one.do("living", 0)
            mounts.join()
            assert nodes[2] and os.path.ismount(nodes[2].mnt)
        finally:
            one.kill()
    finally:
        mounts.join()


def test_what_an_earlier_sync_has_lost_is_told_by_a_home_that_leaves(reads):
    """It alone remembers that; a later sync finds clean pages, and would say 0."""
    plan, daemon, path, one = reads
    one.do("set", 3, 77)
    assert one.do("write") == PAGE
    plan.arm(ROWS.index("fsync"), errno.EIO, 1, 0)
    assert one.do("sync") == -errno.EIO and plan.landed
    leaves(daemon, one, OPS["NODE_INVALIDATE"])
    daemon.proc.wait(20)
    assert one.do("flags", OPS["NODE_HANDED"]) == 1 and daemon.proc.returncode == 1


def test_a_silent_agent_does_not_keep_a_mount_from_ending(meet, agents):
    daemon, path, member = meet()
    program = Program(agents(), os.path.join(daemon.mnt, "f"), cpu=False)
    one = member()
    one.has_read_page(path)
    one.do("pause", OPS["NODE_INVALIDATE"], 1_000_000)
    program.device_store(100, b"stored")
    daemon.expected_exit = None
    os.kill(daemon.pid, signal.SIGTERM)
    daemon.proc.wait(30)


def hears_of_a_new_list(mount, workdir, timeout_s=2):
    """(a daemon whose list is another one now, the test's node): it has said HELLO to who has come, and waits for the answer. The node
    lives, and never answers."""
    data, peers = os.path.join(workdir, "data"), os.path.join(workdir, "peers")
    os.mkdir(data)
    lists = [[f"{name}@local:gaiafs-test-{os.getpid()}-w-{name}" for name in names] for names in ("a", "ab")]
    write_file(peers, "\n".join(lists[0]).encode())
    daemon = mount(f"node=a,peers={peers},timeout=0,peer_timeout={timeout_s}", data=data)
    one = Member("/".join(lists[1]))
    one.do("pause", OPS["NODE_HELLO"], 1_000_000)
    asked = one.do("asked", OPS["NODE_HELLO"])
    write_file(peers, "\n".join(lists[1]).encode())
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: one.do("asked", OPS["NODE_HELLO"]) > asked)
    return daemon, one


def test_a_node_that_hangs_while_the_list_is_read_again(mount, workdir):
    """SIGTERM is heard all the same."""
    daemon, one = hears_of_a_new_list(mount, workdir)
    try:
        os.kill(daemon.pid, signal.SIGHUP)  # another one waits its turn, or is the same
        os.kill(daemon.pid, signal.SIGTERM)
        wait_until(lambda: not daemon.mounted(), 10)
        assert daemon.proc.wait(20) == 0
    finally:
        one.kill()


@not_in_the_gate
@pytest.mark.limit(150)
def test_a_home_that_hangs_is_not_left_for_ever(mount, meet, workdir):
    """What devices had there may be lost, and the daemon says so. Nor is one met for ever after a new list, where nobody has sent a
    signal."""
    told, one = hears_of_a_new_list(mount, workdir, 5)
    daemon, _, member = meet()
    two = member()
    two.do("pause", OPS["NODE_LEAVE"], 1_000_000)
    daemon.expected_exit = 1
    try:
        subprocess.run(["umount", told.mnt], check=True)
        assert told.proc.wait(20) == 0
        os.kill(daemon.pid, signal.SIGTERM)
        assert daemon.proc.wait(100) == 1
        assert "could not all be written, and is lost: " in daemon.log_text()
    finally:
        one.kill()


@not_in_the_gate
def test_who_mounts_again_before_others_are_done_with_it(cluster, agents, workdir, monkeypatch):
    """A home's disk is slow, and what it does for a node that was killed takes longer than twice peer_timeout."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, "timeout=0,peer_timeout=1", only=[])
    nodes.mount(0, env=env)
    nodes.mount(1)
    content = bytearray(pattern(PAGE, 1))
    nodes.make(content, home=0)
    program = Program(agents(), nodes.path(1))
    plan.arm_wait(ROWS.index("pwrite64"), 10_000, 1, 0)
    program.agent.start("os.pwrite(fd, b'written', 10)")
    wait_until(lambda: plan.landed)
    Mount.kill(nodes[1])
    program.agent.kill()
    nodes.mount(1)
    content[10:17] = b"written"
    assert read_file(nodes.path(1)) == content


def test_what_an_agent_releases_after_it_has_left(meet):
    """What its devices had was collected for the last time: what the home would keep for later, as it has no space, say, is lost
    with the node. So nothing is acknowledged any more."""
    _, path, member = meet()
    one = member()
    one.has_read_page(path)
    assert one.do("map") == 0
    assert [one.do("acquire"), one.do("release")] == [0, 0]
    assert one.do("leave") == 0
    assert [one.do("acquire"), one.do("release")] == [-errno.EIO] * 2
