# SPDX-License-Identifier: Apache-2.0
"""What a cut leaves on a GPU of pages that were on their way there, or had left it: zeros, as of those that were there."""
import os
from itertools import product

import pytest

from gpu_fixture import MAP, gpu, make, only_here  # noqa: F401
from helpers import PAGE, agents, read_file, write_at  # noqa: F401

SECRET = b"secret00"
PAGES = 64


def make_secret(m, name="f"):
    return make(m, SECRET * (PAGES * PAGE // len(SECRET)), name)


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


def test_a_write_where_the_end_was_moved(gpu):
    """The file's times have changed besides, so that only the GPU's digests tell what it was granted; of the page with the end
    they don't, as zeros are made there. What the GPU has of it before the end is not for that taken for stores."""
    m, one = gpu.mount(), gpu.agent()
    for number, (stored, size, behind) in enumerate(product((False, True), (PAGE + 100, 5 * PAGE), (False, True))):
        content = bytearray(b"a" * (3 * PAGE + 100))
        path = make(m, bytes(content), f"f{number}")
        one.do(MAP, path=path, length=5 * PAGE, writable=True)
        end = min(size, len(content))
        if stored:
            one.do("map[at] = 7", at=end - 50)
            content[end - 50] = 7
        os.chmod(path.replace(m.mnt, m.data) if behind else path, 0o640)
        write_at(path, b"b", 0)
        os.truncate(path, size)
        content = bytearray(content[:size] + bytes(max(0, size - len(content))))
        write_at(path, b"c" * 20, end - 10)
        content[0:1], content[end - 10:end + 10] = b"b", b"c" * 20
        one.do("map.acquire()")
        assert read_file(path) == bytes(content)
        assert one("map[:n]", n=len(content)) == bytes(content)


@pytest.mark.parametrize("writable", [True, False])
def test_what_could_not_be_wiped_at_the_cut(gpu, writable):
    """The GPU's driver fails just then, or has no memory. It is done before anybody is shown the pages, and before the file has
    bytes there again; and no session between nodes ends for that."""
    m, one, other = gpu.mount(), gpu.agent(), gpu.agent()
    for number, (size, error, seen) in enumerate(product((PAGE, PAGE + 104), (999, 2), ("acquire", "map", "growth"))):
        path = make_secret(m, f"f{number}")
        one.do(MAP, path=path, length=PAGES * PAGE, writable=writable)
        gpu.fail("cuMemsetD8Async", 0, error)
        os.truncate(path, size)
        gpu.heal()
        left = SECRET * (size // len(SECRET)) + bytes(PAGES * PAGE - size)
        if seen == "growth":
            os.truncate(path, PAGES * PAGE)
            assert read_file(path) == left
        if seen == "map":
            other.do(MAP, path=path, length=PAGES * PAGE, writable=writable)
            assert other("map[:]") == left
        one.do("map.acquire()")
        assert one("map[:]") == left
        if writable:
            one.do("map.release()")
            assert read_file(path) == left[:os.stat(path).st_size]


@only_here
def test_what_can_not_be_wiped_yet(gpu):
    """The file grows over it meanwhile, and is written to there: a GPU's program is told, and nobody else notices."""
    m = gpu.mount()
    path = make_secret(m)
    one = gpu.program(path)
    gpu.fail("cuMemsetD8Async", 0, 999)
    os.truncate(path, PAGE + 104)
    os.truncate(path, 2 * PAGE)
    write_at(path, b"x" * 50, PAGE + 200)
    content = SECRET * (PAGE // len(SECRET) + 13) + bytes(96) + b"x" * 50 + bytes(PAGE - 250)
    assert read_file(path) == content
    for call in ("map.acquire()", "map.release()"):
        with pytest.raises(OSError):
            one.do(call)
    gpu.heal()
    one.do("map.acquire()")
    assert one("map[:2 * PAGE]") == content
    one.do("map.release()")
    assert read_file(path) == content


@pytest.mark.parametrize("gpu", ["on another node"], indirect=True)
def test_a_moment_without_memory_elsewhere(gpu):
    """It is tried again at once."""
    m = gpu.mount()
    path = make_secret(m)
    one = gpu.program(path)
    gpu.fail("cuMemsetD8Async", 1, 2)
    os.truncate(path, PAGE + 104)
    assert gpu.failed()
    assert one("map[:]") == SECRET * ((PAGE + 104) // len(SECRET)) + bytes((PAGES - 1) * PAGE - 104)


@only_here
def test_what_can_not_be_wiped_is_not_collected(gpu):
    """A page that was released and cut, and the file grows again: who reads it is told (in passthrough it is in the file)."""
    m = gpu.mount(options="passthrough=off")
    path = make_secret(m)
    one = gpu.program(path)
    one.do("map[PAGE] = 7\nmap.release()")
    gpu.fail("cuMemsetD8Async", 0, 999)
    os.truncate(path, PAGE + 104)
    os.truncate(path, 2 * PAGE)
    with pytest.raises(OSError):
        read_file(path)
    gpu.heal()
    assert read_file(path) == SECRET * (PAGE // len(SECRET)) + b"\7" + (SECRET * 13)[1:] + bytes(PAGE - 104)
