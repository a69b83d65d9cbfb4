# SPDX-License-Identifier: Apache-2.0
"""Programs whose kernels end badly on a GPU: killed while one runs, and one that stores where nothing is. The daemon,
the other programs and what was released go on. On the stand-in, or with GAIA_REAL_GPU=1 on a GPU (tests/gpu/run.sh)."""
import errno
import os
import select
import signal
import subprocess

import pytest

import helpers
from helpers import PAGE, agents, device_statistics, read_file, write_file  # noqa: F401

MIB = 1 << 20
REAL = os.environ.get("GAIA_REAL_GPU") == "1"


@pytest.fixture
def start(mount, agents, monkeypatch):
    """start(mode) -> (path of a file, the process of tool_kernel that has it, another program that has it)."""
    if not REAL:
        monkeypatch.setenv("LD_LIBRARY_PATH", helpers.cuda_standin())
    monkeypatch.setenv("GAIA_DEVICE", "cuda:0")
    m, started = mount(), []

    def begin(mode):
        path = os.path.join(m.mnt, "f")
        write_file(path, b"." * 64 * MIB)
        other = agents()
        other.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')\nmap = dev.mmap(fd, length)", path=path,
                 length=64 * MIB)
        tool = subprocess.Popen([helpers.tool_path("tool_kernel"), path, mode], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, text=True)
        started.append(tool)
        assert tool.stdout.readline() == "started\n"
        return m, path, tool, other

    yield begin
    for tool in started:
        tool.kill()
        tool.wait()
        tool.stdout.close()


def check_the_others(m, path, other):
    """What was released is there; what was stored comes with the next acquire; others work."""
    with open(path, "rb") as file:
        assert os.pread(file.fileno(), 9, PAGE) == b"released."
    other.do("map.acquire()")
    assert other("map[PAGE:PAGE + 9]") == b"released." and other("map[2 * PAGE:2 * PAGE + 7]") == b"stored."
    other.do("map[5 * PAGE:5 * PAGE + 5] = b'other'\nmap.release()")
    content = read_file(path)
    assert content[2 * PAGE:2 * PAGE + 7] == b"stored." and content[5 * PAGE:5 * PAGE + 6] == b"other."
    assert len(content) - content.count(b".") == len("releasedstoredother")
    assert m.proc.poll() is None
    print(device_statistics(m.mnt, "cuda:0"))


@pytest.mark.limit(120)
def test_a_program_is_killed_in_mid_kernel(start):
    m, path, tool, other = start("spin")
    # Its kernel does not end by itself in this time; who else uses the GPU goes on beside it.
    assert not select.select([tool.stdout], [], [], 0.5)[0]
    other.do("map[7 * PAGE] = 46\nmap.release()\nmap.acquire()")
    assert not select.select([tool.stdout], [], [], 0)[0]
    os.kill(tool.pid, signal.SIGKILL)
    assert tool.wait(30) == -signal.SIGKILL
    check_the_others(m, path, other)


@pytest.mark.limit(120)
def test_a_kernel_that_stores_where_nothing_is(start):
    m, path, tool, other = start("wild")
    said = tool.stdout.read().splitlines()
    status = tool.wait(30)
    print(status, said)
    if REAL:
        assert status == 0 and said[0].startswith("the kernel: ") and said[0] != "the kernel: 0"
        assert said[1:] == [f"release: {errno.EIO}", f"acquire: {errno.EIO}"]
    else:  # a kernel there is code of its program
        assert status == -signal.SIGSEGV
    check_the_others(m, path, other)
