# SPDX-License-Identifier: Apache-2.0
"""Orders of events on a GPU (the stand-in) that lost bytes, or memory, once: each test was red before its mend."""
import errno
import os
import threading

import pytest

import helpers
from helpers import PAGE, agents, device_statistics  # noqa: F401
from test_cuda_demand import Program, programs  # noqa: F401
from test_cuda_maps import MIB, gpu, make, read, read_at, released, write_at  # noqa: F401


def test_a_second_release_of_a_page_is_seen_on_demand(gpu, programs):
    """Two programs with a demand mapping of one file, on one device: nobody else reads between, so the page stays
    pending from its first release on."""
    m = gpu.mount()
    path = make(m, b"a" * 4 * PAGE)
    one, two = programs(path), programs(path)
    for value in b"x", b"y", b"z":
        one.store(10, value)
        one.do("release")
        two.do("acquire")
        assert two.load(10, 1) == value


@pytest.mark.parametrize("size", [PAGE, 3 * PAGE + 5, 16 * PAGE])
def test_what_a_file_grows_by_is_seen_on_demand(gpu, programs, size):
    m = gpu.mount()
    path = make(m, b"a" * 20 * PAGE)
    program = programs(path)
    os.truncate(path, size)
    program.do("acquire")
    assert program.load(size - 1, 2) == b"a\0" and program.load(19 * PAGE, 1) == b"\0"
    write_at(path, b"b" * (20 * PAGE - size), size)
    program.do("acquire")
    assert program.load(size - 1, 2) == b"ab"
    assert program.load(19 * PAGE, 1) == b"b"
