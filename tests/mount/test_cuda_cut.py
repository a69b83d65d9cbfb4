# SPDX-License-Identifier: Apache-2.0
"""What a cut leaves on a GPU of pages that were on their way there, or had left it: zeros, as of those that were there."""
import os

import pytest

from gpu_fixture import gpu, make, only_here  # noqa: F401
from helpers import PAGE, agents, write_at  # noqa: F401

SECRET = b"secret00"
PAGES = 64


def make_secret(m):
    return make(m, SECRET * (PAGES * PAGE // len(SECRET)))


def is_cut(agent, pages):
    assert agent("map[:]") == SECRET * (pages * PAGE // len(SECRET)) + bytes((PAGES - pages) * PAGE)


@pytest.mark.parametrize("writable", [True, False])
def test_what_is_being_placed_is_cut_off(gpu, writable):
    m = gpu.mount("slow=500000", "gpudirect=off")
    path = make_secret(m)
    one = gpu.agent()
    one.do("fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)\ndev = gaia.Device('cuda:0')", path=path, writable=writable)
    one.start("map = dev.mmap(fd, length, 3 if writable else 1)", length=PAGES * PAGE)
    assert one.busy(0.2)
    os.truncate(path, PAGE)
    one.finish()
    is_cut(one, 1)
    os.truncate(path, PAGES * PAGE)
    os.truncate(path, 2 * PAGE)
    write_at(path, (SECRET * PAGE)[:PAGE], PAGE)
    one.do("map.acquire()")
    is_cut(one, 2)


@only_here
def test_what_could_not_be_placed_again_is_cut_off(gpu):
    """A copy that is read only loses what is out of date, and gets it anew: not if that fails."""
    m = gpu.mount()
    path = make_secret(m)
    one = gpu.program(path, writable=False)
    write_at(path, b"x" * PAGE, 10 * PAGE)
    gpu.fail("cuMemcpyHtoDAsync", 0, 999)
    with pytest.raises(OSError):
        one.do("map.acquire()")
    gpu.heal()
    os.truncate(path, PAGE)
    is_cut(one, 1)
    is_cut(gpu.program(path, length=PAGES * PAGE, writable=False), 1)
