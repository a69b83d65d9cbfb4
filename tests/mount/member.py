# SPDX-License-Identifier: Apache-2.0
"""A node that is a test's (tool_member.c), and says what it is told to."""
import errno
import os
import re
import subprocess

import pytest

from conftest import TOP
from files import pattern
from helpers import PAGE, tool_path
from nodes import cluster  # noqa: F401

with open(os.path.join(TOP, "io", "node.h"), encoding="utf-8") as header:
    OPS = {name: number for number, name in enumerate(re.findall(r"^ {4}(NODE_\w+)(?: = 1)?,", re.search(
        r"enum node_op \{(.*?)\n\};", header.read(), re.S)[1], re.M), 1)}


def look_up(path):
    """Have the kernel know a file of the data directory in each mount of it: whoever drops caches has had it forgotten."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split() for line in file]
    for mounted in mounts:
        if mounted[-3:-1] == ["fuse.gaiafs", os.path.dirname(path)]:
            os.stat(os.path.join(mounted[4], os.path.basename(path)))


class Member:
    """The test's node, b, which has met the daemon of a."""

    def __init__(self, peers, late=False, name="b", other="a", ahead_ms=0):
        self.proc = subprocess.Popen([tool_path("tool_member"), peers, name, other], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.met = self.do("hello", int(late), ahead_ms)

    def start(self, *words):
        self.proc.stdin.write(" ".join(map(str, words)) + "\n")
        self.proc.stdin.flush()

    def do(self, *words):
        self.start(*words)
        return int(self.proc.stdout.readline())

    def has_page(self, path):
        """An agent that has read the file's first page; the answer of its READ_END is still to come."""
        for _ in range(5):  # its kernel may forget the file before or between the two: then agents ask again
            track, opens = self.do("track", path), self.do("open", path)
            if opens != -errno.ESTALE:
                break
            look_up(path)  # an agent would open it while it is told of it, and so keep it known
        answers = {"hello": self.met, "track": track, "open": opens, "opened": self.do("opened")}
        assert not any(answers.values()), answers
        assert self.do("read") == PAGE

    def has_read_page(self, path):
        self.has_page(path)
        assert self.do("read_end") == 0

    def kill(self):
        self.proc.kill()
        self.proc.wait()


@pytest.fixture
def meet(cluster):  # noqa: F811
    """A function: meet(home="a", options of the mount) -> (the daemon of a, a file of that home, a function that makes the test's node)."""
    members = []

    def start(home="a", **kwargs):
        nodes = cluster(2, "timeout=0,peer_timeout=2", only=[])
        nodes.mount(0, **kwargs)
        nodes.make(pattern(2 * PAGE, 1), home="ab".index(home))

        def member(**kwargs):
            members.append(Member(nodes.peers, **kwargs))
            return members[-1]
        return nodes[0], nodes.below(), member

    yield start
    for member in members:
        member.kill()
