# SPDX-License-Identifier: Apache-2.0
"""Devices that are closed beside calls that use them, or that were closed before: what is freed is not looked into. Memory that is
free is garbage in these programs (MALLOC_PERTURB_), so that it would be noticed."""
import errno
import os

import pytest

from files import make
from helpers import PAGE, agents, functions_of, read_file  # noqa: F401
from test_forks import descriptors_of, error_of, hold, in_a_thread, wait_for_an_answer  # noqa: F401

GARBAGE = {"MALLOC_PERTURB_": "165"}


@pytest.mark.limit(60)
def test_a_device_that_is_closed_while_a_file_is_mapped(mount, agents, hold):
    """Nothing is mapped then, and nothing of it stays."""
    m = mount()
    agent = functions_of(__name__, agents(GARBAGE))
    agent.do("device = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR)\nseen = (path, '/memfd:', 'socket:')\n"
             "before = descriptors_of(*seen)\ngot = []", path=make(m, bytes(PAGE)))
    threads = set(os.listdir(f"/proc/{m.pid}/task"))
    agent.do("device.mmap(fd, PAGE).unmap()")  # by a session that is kept
    let_go = [hold(int(thread)) for thread in set(os.listdir(f"/proc/{m.pid}/task")) - threads]
    assert let_go
    agent.do("handle = device.handle\nthread = in_a_thread(lambda: got.append(error_of(device.mmap, fd, PAGE)))")
    wait_for_an_answer(agent.pid, agent("thread.native_id"))
    agent.start("gaia.lib.gaia_device_close(handle)")
    assert not agent.busy(20), "the close waits for the daemon"
    agent.finish()
    assert agent("thread.is_alive()")
    for go in let_go:
        go()
    agent.do("thread.join()")
    assert agent("got") == [errno.EINVAL]
    assert agent("descriptors_of(*seen) == before")
    # as one that is closed
    agent.do("gaia.lib.gaia_device_close(handle)")
    agent.end()


def test_calls_with_a_device_that_is_closed(mount, agents):
    """None of them looks into it, nor does another close."""
    path, agent = make(mount(), bytes(PAGE)), functions_of(__name__, agents(GARBAGE))
    agent.do("device, other = gaia.Device('soft:0'), gaia.Device('soft:1')\nfd = os.open(path, os.O_RDWR)\n"
             "map, mine = device.mmap(fd, PAGE), other.mmap(fd, PAGE)\n"
             "for _ in range(3): gaia.lib.gaia_device_close(device.handle)", path=path)
    for call in ("device.mmap(fd, PAGE)", "device.stat()", "device.stream_error()", "map.acquire()", "map.release()",
                 "map.acquire_on(None)", "map.release_on(None)"):
        assert agent(f"error_of(lambda: {call})") == errno.EINVAL, call
    agent.do("mine[0] = 5\nmine.release()\nother.close()")
    assert read_file(path)[0] == 5
    agent.end()
