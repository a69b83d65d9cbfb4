# SPDX-License-Identifier: Apache-2.0
"""Nodes whose lists of members differ for longer than it takes to read a new one: no two of them are homes of one file, and nothing that
was released or synced is lost without a word."""
import os
import signal

import pytest

from files import pattern
from helpers import PAGE, agents, wait_until, write_file  # noqa: F401
from nodes import Program, all_see
from test_nodes_apart import make_with_homes

OPTIONS = "timeout=0,peer_timeout=1"


class Listed:
    """Nodes whose lists are files of their own."""

    def __init__(self, mount, workdir):
        self.start, self.folder, self.data = mount, workdir, os.path.join(workdir, "data")
        os.mkdir(self.data)
        self.nodes = {}

    def options(self, name, members):
        peers = os.path.join(self.folder, f"peers-{name}")
        write_file(peers, "".join(f"{one}@local:gaiafs-test-{os.getpid()}-lists-{one}\n" for one in members).encode())
        return f"node={name},peers={peers},{OPTIONS}"

    def mount(self, name, members):
        self.nodes[name] = self.start(self.options(name, members), data=self.data)

    def reread(self, name, members, word=None):
        """It reads another list, and says so."""
        said = len(self.nodes[name].log_text())
        self.options(name, members)
        os.kill(self.nodes[name].pid, signal.SIGHUP)
        wait_until(lambda: (word or f"there are {len(members)} nodes now") in self.nodes[name].log_text()[said:], 20)

    def make(self, through, names, order):
        content = bytearray(pattern(4 * PAGE))
        make_with_homes(self.nodes[through], self.data, names, order, bytes(content))
        return content

    def path(self, name):
        return os.path.join(self.nodes[name].mnt, "f")

    def below(self):
        return os.path.join(self.data, "f")


@pytest.fixture
def listed(mount, workdir):
    return Listed(mount, workdir)


def test_a_node_that_lives_is_not_taken_off_the_list(listed, agents):
    """By one of the nodes, say. The two would be homes of the same files from then on."""
    for name in "ab":
        listed.mount(name, "ab")
    content = listed.make("a", "ab", "b")
    one, home = (Program(agents(), listed.path(name)) for name in "ab")
    listed.reread("a", "a", "node b is still mounted: unmount it first; the members stay as they were")
    home.device_store(5, b"released")
    home.release()
    one.write(100, b"written")
    one.fsync()
    content[5:13], content[100:107] = b"released", b"written"
    all_see({"a": one, "b": home}, content)
    for program in one, home:
        program.agent.kill()
    listed.nodes["b"].kill()
    listed.reread("a", "a")
