# SPDX-License-Identifier: Apache-2.0
"""Where a part of what is to be written has its room and another has none: the one is written, and the other is told of."""
import errno
import os

import pytest

from files import Opened
from helpers import PAGE, devices, error_of, read_file, write_at, write_file  # noqa: F401
from test_disks import disk, fill, small  # noqa: F401


def with_room_for(path, pages, count):
    """A file of so many pages, of which those have their place on the disk. The others are holes."""
    write_file(path, b"")
    os.truncate(path, count * PAGE)
    for page in pages:
        write_at(path, bytes(PAGE), page * PAGE)


@pytest.mark.parametrize("holes", [{0}, {17}, {0, 1, 30}])
@pytest.mark.parametrize("released", [True, False])
def test_an_unmount_loses_no_page_that_has_its_room(mount, devices, small, holes, released):  # noqa: F811
    m = mount("passthrough=off", data=small)
    m.expected_exit = 1  # it says that some is lost
    path = os.path.join(m.mnt, "f")
    count = 80
    with_room_for(path, set(range(count)) - holes, count)
    opened = Opened(devices(), path)
    for page in range(count):
        opened.map[page * PAGE] = page + 1
    fill(small)
    if released:
        opened.map.release()
    opened.close()
    assert m.unmount() is None
    assert list(read_file(os.path.join(small, "f"))[::PAGE]) == [0 if page in holes else page + 1 for page in range(count)]


@pytest.mark.parametrize("call", ["fsync", "sync"])
def test_a_sync_that_finds_no_space_brings_what_has_its_room(mount, devices, small, call):  # noqa: F811
    m = mount("passthrough=off", data=small)
    path = os.path.join(m.mnt, "f")
    with_room_for(path, range(1, 20), 20)
    opened = Opened(devices(), path)
    for page in range(20):
        opened.map[page * PAGE] = page + 1
    ballast = fill(small)
    opened.map.release()
    assert error_of(opened.map.sync if call == "sync" else lambda: os.fsync(opened.fd)) == errno.ENOSPC
    below = os.path.join(small, "f")
    assert list(read_file(below)[::PAGE]) == [0, *range(2, 21)]
    os.unlink(ballast)
    assert list(read_file(path)[::PAGE]) == list(range(1, 21))
    opened.close()
