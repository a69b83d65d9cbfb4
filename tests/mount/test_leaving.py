# SPDX-License-Identifier: Apache-2.0
"""A home that leaves while other nodes work."""
import errno
import os
import signal

import pytest

from files import pattern
from helpers import PAGE, ROWS, AgentDied, agents, daemon_with_faults, error_of, read_file, wait_until, write_file  # noqa: F401
from nodes import Program, cluster  # noqa: F401
from test_nodes_deaths import OPTIONS, end, unmount  # noqa: F401

# The last release that has returned is in a file, as the touch of a map whose home has gone may end the program.
LOOP = """with open(path, "wb", buffering=0) as done:
    for turn in range(1, 1 << 20):
        map[5 * 4096:5 * 4096 + 4] = turn.to_bytes(4, "little")
        map.release()
        os.pwrite(done.fileno(), turn.to_bytes(4, "little"), 0)"""


@pytest.mark.parametrize("turn", range(8))
def test_what_is_released_while_a_home_leaves(cluster, workdir, agents, turn):
    """A release that has returned is seen by every read(), though it returned while the home was on its way out."""
    nodes = cluster(2, OPTIONS)
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=0)
    goes, stays = Program(agents(), nodes.path(0)), Program(agents(), nodes.path(1))
    reader = Program(agents(), nodes.path(1), device=None)
    stays.device_load()
    end(goes)
    path = os.path.join(workdir, "done")
    stays.agent.start(LOOP, path=path)
    wait_until(lambda: os.path.exists(path) and read_file(path)[:1] > b"\4")
    unmount(nodes[0])
    with pytest.raises((OSError, AgentDied)):
        stays.agent.finish()
    done, got = int.from_bytes(read_file(path), "little"), int.from_bytes(reader.read(4, 5 * PAGE), "little")
    assert got >= done, f"{done} releases have returned, and what is seen is that of {got}"
    end(reader)


def a_home_with_faults(cluster, workdir, monkeypatch):
    """The first of two nodes, of a file of eight pages."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, OPTIONS, only=[])
    nodes.mount(0, env=env)
    nodes.mount(1)
    nodes.make(pattern(8 * PAGE), home=0)
    return plan, nodes


def test_what_is_released_when_a_home_has_collected_for_the_last_time(cluster, workdir, agents, monkeypatch):
    """The same while it syncs what it has collected, and there is no space for more: nobody takes it from the device later."""
    plan, nodes = a_home_with_faults(cluster, workdir, monkeypatch)
    program, reader = (Program(agents(), nodes.path(1), device=device, cpu=False) for device in ("soft:0", None))
    program.device_load()
    plan.arm_wait(ROWS.index("syncfs"), 3000, 1, 0)
    nodes[0].proc.send_signal(signal.SIGTERM)
    wait_until(lambda: plan.landed)
    plan.arm(ROWS.index("pwrite64"), errno.ENOSPC, 1, 1)
    program.device_store(5 * PAGE, b"last")
    failed = error_of(program.agent, "map.release()")
    assert nodes[0].proc.wait(20) == 0
    assert failed == errno.EIO or (not failed and reader.read(4, 5 * PAGE) == b"last")
    for each in program, reader:
        each.agent.kill()


def test_a_home_that_leaves_and_cannot_bring_it_to_storage(cluster, workdir, agents, monkeypatch):
    """What it had acknowledged to another node is lost with its machine: the next sync there says so, once."""
    plan, nodes = a_home_with_faults(cluster, workdir, monkeypatch)
    program, other = Program(agents(), nodes.path(1), cpu=False), Program(agents(), nodes.path(1), device=None, cpu=False)
    program.device_load()
    program.write(100, b"acknowledged")
    plan.arm(ROWS.index("fsync"), errno.EIO, 1, 1)
    nodes[0].expected_exit = None
    unmount(nodes[0])
    assert plan.landed and "what devices held and nodes wrote could not all be written" in nodes[0].log_text()
    for each in program, other:
        with pytest.raises(OSError) as caught:
            each.fsync()
        assert caught.value.errno == errno.EIO
        each.fsync()
    assert program.read(12, 100) == b"acknowledged"  # it was not lost this time
    end(other)
