# SPDX-License-Identifier: Apache-2.0
"""First stores to a page while memory is short for a moment: what a release has acknowledged is in the file."""
import errno
import os

from helpers import PAGE, ROWS, AgentDied, agents, daemon_with_faults, read_file, write_file  # noqa: F401


def test_a_store_for_which_there_is_no_twin(mount, agents, workdir, monkeypatch):
    """It is refused, or made again when there is one, and never let through without."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount(env=env)
    landed, number, refused = True, 0, 0
    while landed:
        number += 1
        path = os.path.join(m.mnt, f"f{number}")
        write_file(path, bytes(PAGE))
        agent = agents()
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, 4096)", path=path)
        plan.arm(ROWS.index("calloc"), errno.ENOMEM, number, 0)
        try:
            agent.do("map[5:9] = b'kept'\nmap.release()")
            acknowledged = True
        except (AgentDied, OSError):
            acknowledged = False
            refused += 1
        landed, plan.row = plan.landed, -1
        assert not acknowledged or read_file(path)[5:9] == b"kept", f"call {number}"
    assert refused
