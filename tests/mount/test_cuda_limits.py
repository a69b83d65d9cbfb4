# SPDX-License-Identifier: Apache-2.0
"""What there is too little of for a GPU (a stand-in, as in test_cuda_maps.py): descriptors, in a program and in the daemon. An
errno says so, and the log; when there is enough again all is well, and what was released is in the file."""
import contextlib
import errno
import os
import resource

import pytest

import helpers
from gpu_fixture import gpu, make  # noqa: F401
from helpers import MIB, PAGE, agents, read_file  # noqa: F401
from test_descriptors import TRY_WITH_FEW

# --- descriptors and handles ------------------------------------------------------------------------------------------

FEW = """
import contextlib, resource
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, limit[1]))
held = []
with contextlib.suppress(OSError):
    while True:
        held.append(os.dup(0))
"""


@pytest.mark.parametrize("name", ["'cuda:0'", "None"])
def test_a_device_opened_without_a_descriptor(gpu, name):
    """EMFILE: not that there is no driver, nor soft:0 in the GPU's place; and that is not for good."""
    program = gpu.agent()
    program.do("import ctypes\nos.environ.pop('GAIA_DEVICE')\nhandle = ctypes.c_void_p()\n"
               "def open_device(name):\n    return gaia.lib.gaia_device_open(name and name.encode(), ctypes.byref(handle)) and "
               "ctypes.get_errno()\n" + FEW)
    assert program(f"[open_device({name}) for _ in range(2)]") == [errno.EMFILE] * 2
    program.do("for one in held:\n    os.close(one)")
    assert program(f"open_device({name})") == 0
    path = make(gpu.mount(), bytes(PAGE))
    program.do("fd = os.open(path, os.O_RDWR)\nassert gaia.lib.gaia_mmap(handle, PAGE, 3, 0, fd, 0) != gaia.MAP_FAILED",
               path=path)


def test_a_program_short_of_descriptors(gpu):
    """Wherever they run out: before the first of eight chunks, or between them. What it has mapped before goes on."""
    m = gpu.mount()
    path = make(m, b"." * 16 * MIB)
    program = gpu.program(path, length=PAGE)
    program.do("import contextlib, resource\nfirst, device, PAGE = map, dev, 16 << 20\nfirst[0] = 1\nfirst.release()\nfirst[1] = 2")
    program.do(TRY_WITH_FEW)
    codes = program("codes")
    assert len(codes) > 8 and set(codes) == {errno.EMFILE}
    program.do("first.release()")
    assert read_file(path)[:3] == b"\1\2."
    assert program("(map[0], map[PAGE - 1])") == (1, ord("."))
    program.do("map[PAGE - 1] = 3\nmap.release()\nmap.unmap()")
    assert read_file(path)[-1] == 3


@contextlib.contextmanager
def few_descriptors(m):
    """set_free(n): the daemon gets no more than that many, unless it closes some."""
    before = resource.prlimit(m.pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{m.pid}/fd")}

    def set_free(count):
        number = next(n for n in range(before[0]) if n not in used and not count - sum(i not in used for i in range(n)))
        resource.prlimit(m.pid, resource.RLIMIT_NOFILE, (number, before[1]))

    try:
        yield set_free
    finally:
        resource.prlimit(m.pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("opened", [False, True])
def test_a_daemon_short_of_descriptors(gpu, opened):
    """At the first use of the GPU, and later: EMFILE at every place of a map, and a line that says what to raise; it is no
    failure of the GPU's, which none is looked for in."""
    m = gpu.mount()
    path = make(m, b"." * 16 * MIB)
    first = gpu.program(path, length=PAGE) if opened else gpu.agent()
    if not opened:  # so that there is a session
        first.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, PAGE)\ndev = gaia.Device('cuda:0')",
                 path=path)
    first.do("map[0] = ord('r')\nmap.release()")
    codes = []
    with few_descriptors(m) as set_free:
        while not codes or codes[-1]:
            assert len(codes) < 60, codes
            set_free(len(codes))
            codes.append(first("error_of(dev.mmap, fd, 16 << 20)"))
    assert len(codes) > 8 and set(codes[:-1]) == {errno.EMFILE}, codes
    assert "Too many open files" in m.log_text() and "raise the daemon's limit of open files" in m.log_text()
    assert "driver reports" not in m.log_text() and not any("failure" in one for one in helpers.statistics(m.mnt)["devices"])
    first.do("map.acquire()\nmap[1] = ord('s')\nmap.release()")
    assert read_file(path)[:3] == b"rs."
    other = gpu.program(path)
    assert other("(map[:3], map[length - 1:])") == (b"rs.", b".")
