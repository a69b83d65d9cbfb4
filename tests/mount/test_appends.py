# SPDX-License-Identifier: Apache-2.0
"""Appends of several mounts of one data directory, and beside who has the end of the file in the kernel's cache."""
import mmap
import os
import threading

import pytest

from helpers import PAGE, kernel_at_least, read_file, write_file
from nodes import pages_held
from test_shared import path_in


@pytest.mark.parametrize("options", ["shared,passthrough=off", "shared,passthrough=all"])
def test_appends_of_two_mounts(mount, workdir, options):
    """None gets into the midst of another, also where a page ends."""
    if not kernel_at_least(6, 18):  # as kernel_drops_behind_writes()
        pytest.skip("Linux 6.18")
    data = os.path.join(workdir, "shared")
    os.mkdir(data)
    mounts = [mount(options, data=data) for _ in range(2)]
    write_file(path_in(mounts[0]), b"")
    lines = [letter * 99 + b"\n" for letter in (b"A", b"B")]

    def append(m, line):
        fd = os.open(path_in(m), os.O_WRONLY | os.O_APPEND)
        for _ in range(3000):
            assert os.write(fd, line) == len(line)
        os.close(fd)

    threads = [threading.Thread(target=append, args=arguments) for arguments in zip(mounts, lines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = read_file(os.path.join(data, "f"))
    assert len(content) == 600000 and set(content.split(b"\n")[:-1]) == {line[:-1] for line in lines}
    assert content == read_file(path_in(mounts[0])) == read_file(path_in(mounts[1]))


@pytest.mark.whole
@pytest.mark.parametrize("before", [(), ("setarch", "--uname-2.6")], ids=["", "older"])
def test_an_append_and_who_has_its_page_on_the_same_mount(mount, before):
    """Whoever has read or mapped the end sees what is appended, and what he stores there leaves it as it is: an older kernel has
    to have it in its cache, as it drops nothing there."""
    m = mount("shared,passthrough=off", before=before)
    write_file(path_in(m), b"a" * 100)
    with open(path_in(m), "r+b", buffering=0) as file, open(path_in(m), "ab", buffering=0) as end:
        with mmap.mmap(file.fileno(), 100) as mapping:
            assert mapping[:] == file.read() == b"a" * 100
            end.write(b"b" * 50)
            assert os.pread(file.fileno(), PAGE, 0) == b"a" * 100 + b"b" * 50
            mapping[7:8] = b"c"
            mapping.flush()
        end.write(bytes(3 * PAGE))
        with mmap.mmap(file.fileno(), 0) as mapping:
            assert bool(before) <= (pages_held(mapping) > 1)
    assert read_file(os.path.join(m.data, "f")) == b"a" * 7 + b"c" + b"a" * 92 + b"b" * 50 + bytes(3 * PAGE)
