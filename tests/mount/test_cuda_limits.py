# SPDX-License-Identifier: Apache-2.0
"""What there is too little of for a GPU (a stand-in, as in test_cuda_maps.py): descriptors, in a program and in the daemon;
handles that its driver gives; its memory, at a map, at an acquire and in a fault. An errno says which, and the log; when there
is enough again all is well, and what was released is in the file."""
import contextlib
import errno
import os
import resource
import threading

import pytest

import helpers
from gpu_fixture import gpu, make, only_here  # noqa: F401
from helpers import MIB, PAGE, agents, descriptors, make_random, read_file, write_at  # noqa: F401
from test_cuda_demand import programs  # noqa: F401
from test_descriptors import TRY_WITH_FEW
from test_disks import fill, small  # noqa: F401

CHUNK = 2 * MIB  # of a file of up to 16 MiB

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


OPEN = """
import ctypes
os.environ.pop('GAIA_DEVICE')
handle = ctypes.c_void_p()
def open_device(name):
    return gaia.lib.gaia_device_open(name and name.encode(), ctypes.byref(handle)) and ctypes.get_errno()
"""


@pytest.mark.parametrize("name", ["'cuda:0'", "None"])
def test_a_context_without_a_descriptor(gpu, name):
    """The same where the driver was opened before, and its context is what there is no descriptor for."""
    program = gpu.agent()
    program.do(OPEN + "assert open_device('cuda:0') == 0\ngaia.lib.gaia_device_close(handle)" + FEW)
    program.do("os.environ['STANDIN_CUDA'] = 'refuse=cuDevicePrimaryCtxRetain'")
    assert program(f"open_device({name})") == errno.EMFILE


@pytest.mark.parametrize("name", ["'cuda:0'", "None"])
def test_a_device_opened_without_a_descriptor(gpu, name):
    """EMFILE: not that there is no driver, nor soft:0 in the GPU's place; and that is not for good."""
    program = gpu.agent()
    program.do(OPEN + FEW)
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


def test_a_child_of_who_found_no_descriptor(gpu):
    """Nothing was started, so a child of fork() opens the GPU itself."""
    program = gpu.agent()
    program.do(OPEN + FEW)
    assert program("open_device('cuda:0')") == errno.EMFILE
    program.do("for one in held:\n    os.close(one)\nchild = os.fork()\nif not child:\n    os._exit(open_device('cuda:0'))")
    assert program("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 0
    assert program("open_device('cuda:0')") == 0


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


def test_a_driver_that_gives_so_many_handles(gpu):
    """ENOMEM; those that a map got before it was refused are given back, and so are a file's that is not mapped any more."""
    m = gpu.mount("handles=5")
    small, large = make(m, b"s" * 4 * MIB, "small"), make(m, b"L" * 16 * MIB, "large")
    program, other = gpu.program(small), gpu.agent()
    program.do("map[1] = 1\nmap.release()\nmap[2] = 2")
    other.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')", path=large)
    for _ in range(3):
        assert other("error_of(dev.mmap, fd, 16 << 20)") == errno.ENOMEM
        other.do("map = dev.mmap(fd, 6 << 20)\nassert map[6 * (1 << 20) - 1] == ord('L')\nmap.unmap()")
    assert m.log_text().count("cuda:0: no memory for what a program has mapped (ENOMEM): its driver has none left") == 1
    program.do("map.release()\nmap.acquire()")
    assert read_file(small)[:4] == b"s\1\2s"


def test_pieces_of_a_file_have_numbers(gpu):
    """Up to 65,536 of 2 MiB. Past the end of a file, which then has few, there is an end of them."""
    m = gpu.mount()
    program = gpu.program(make(m, bytes(PAGE)))
    last = 65535 * CHUNK
    for at, length, expected in ((last, PAGE, 0), (last, CHUNK + PAGE, errno.ENOMEM), (last + CHUNK, PAGE, errno.ENOMEM)):
        assert program(f"error_of(dev.mmap, fd, {length}, 3, 0, {at})") == expected
    program.do("map[1] = 1\nmap.release()")


# --- memory -----------------------------------------------------------------------------------------------------------

@only_here
@pytest.mark.parametrize("name, count", [("cuCtxPushCurrent", 1), ("cuMemAddressReserve", 1), ("cuMemSetAccess", 1),
                                         ("cuMemImportFromShareableHandle", 1), ("cuMemImportFromShareableHandle", 5),
                                         ("cuMemMap", 1), ("cuMemMap", 5)])
@pytest.mark.parametrize("error, expected", [(2, errno.ENOMEM), (999, errno.EIO)])
def test_the_programs_driver_fails_at_a_map(gpu, name, count, error, expected):
    """Of the file's eight pieces those that it has got are unmapped again; what it has of the file already goes on. (The daemon
    has a driver of its own, whose calls are others.)"""
    m, control = gpu.mount(), gpu.control_of_programs
    path = make(m, b"." * 16 * MIB)
    program = gpu.program(path, length=PAGE, standin=f"control={control}")
    program.do("first = map\nfirst[0] = 1\nfirst.release()\nfirst[1] = 2")
    before = descriptors(program.pid)
    gpu.fail(name, count, error, control)
    assert program("error_of(dev.mmap, fd, 16 << 20)") == expected
    assert gpu.failed(control) and descriptors(program.pid) == before
    program.do("first.release()\nmap = dev.mmap(fd, 16 << 20)\nmap[2] = 3\nmap.release()\nmap.unmap()")
    assert read_file(path)[:4] == b"\1\2\3."
    assert descriptors(program.pid) == before


@pytest.mark.parametrize("call", ["acquire", "release"])
@pytest.mark.parametrize("name", ["cuLaunchKernel", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuStreamSynchronize"])
def test_the_driver_has_no_memory(gpu, call, name):
    """At an acquire and at a release, call by call: ENOMEM, and a line in the log. What was released before is in the file,
    what is not yet is released when there is memory."""
    m = gpu.mount()
    path = make(m, b"." * 6 * PAGE)
    program = gpu.program(path)
    program.do("map[PAGE:PAGE + 8] = b'released'\nmap.release()")
    codes, landed = [], True
    while landed:
        assert len(codes) < 30, codes
        program.do("map[3 * PAGE:3 * PAGE + 4] = b'%04d' % n", n=len(codes))
        write_at(path, b"cpu%02d" % len(codes), 3 * PAGE + 10)
        gpu.fail(name, len(codes) + 1, 2)
        codes.append(program(f"error_of(map.{call})"))
        landed = gpu.failed()
        gpu.heal()
    # What only notes something is done anew another time: nobody hears of that.
    assert codes[-1] == 0 and set(codes) == {0, errno.ENOMEM}, codes
    assert m.log_text().count("cuda:0: no memory for what a program has mapped (ENOMEM): its driver has none left") == 1
    program.do("map.release()\nmap.acquire()")
    expected = b"%04d......cpu%02d." % (len(codes) - 1, len(codes) - 1)
    assert read_file(path)[3 * PAGE:][:16] == program("map[3 * PAGE:3 * PAGE + 16]") == expected
    assert read_file(path)[PAGE:][:8] == b"released"


@only_here
def test_a_read_for_which_the_driver_has_no_memory(gpu):
    """It has to fetch what was released. It is not the daemon that has too little."""
    m = gpu.mount(options="passthrough=off")
    path = make(m, b"." * PAGE)
    program = gpu.program(path)
    program.do("map[0] = 1\nmap.release()")
    gpu.fail("cuMemcpyDtoHAsync", 0, 2)
    assert helpers.error_of(read_file, path) == errno.ENOMEM
    assert "its driver has none left" in m.log_text() and "memory.max" not in m.log_text()
    gpu.heal()
    assert read_file(path)[:2] == b"\1."


@pytest.mark.limit(120)
def test_no_room_at_an_acquire(gpu):
    """A file that grows within its mapping, while another one has what device_cache= lets files have."""
    m = gpu.mount(options="device_cache=cuda:0=8M")
    path, other = make(m, b"." * PAGE), make(m, b"o" * 6 * MIB, "other")
    program = gpu.program(path, length=6 * MIB)
    program.do("map[0:8] = b'released'\nmap.release()\nmap[8:12] = b'more'")
    holder = gpu.program(other)
    write_at(path, b"grown" * MIB, PAGE)
    for _ in range(2):
        assert program("error_of(map.acquire)") == errno.ENOMEM
    assert read_file(path)[:13] == b"releasedmore."  # an acquire begins with a release
    program.do("map[12] = 1\nmap.release()")
    assert read_file(path)[:14] == b"releasedmore\1."
    if not m.nodes:
        assert m.log_text().count("is all that device_cache= lets files have") == 1
    holder.do("map.unmap()")
    program.do("map.acquire()")
    assert program("map[:]")[:PAGE + 5 * MIB] == read_file(path)


DEMAND = """
fd = os.open(path, os.O_RDWR)
dev = gaia.Device("cuda:0")
"""


@only_here
@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuModuleGetFunction", "cuStreamCreate", "cuMemGetInfo", "cuMemAlloc",
                                  "cuMemHostAlloc", "cuMemsetD8Async", "cuMemcpyHtoDAsync", "cuStreamSynchronize"])
@pytest.mark.parametrize("error, expected", [(2, errno.ENOMEM), (999, errno.EIO)])
def test_a_map_on_demand(gpu, name, error, expected):
    """Of the program's driver."""
    m = gpu.mount()
    path = make(m, b"d" * MIB)
    program = gpu.agent(f"control={gpu.control}")
    program.do(DEMAND, path=path)
    before = descriptors(program.pid)
    gpu.fail(name, 1, error)
    assert program("error_of(dev.mmap, fd, 1 << 20, 3, gaia.DEMAND)") == expected
    assert gpu.failed()
    program.do("map = dev.mmap(fd, 1 << 20, 3, gaia.DEMAND)\nassert map[5] == ord('d')\nmap.unmap()")
    assert descriptors(program.pid) <= before + 4  # of its session


@only_here
def test_kernels_are_compiled_once(gpu):
    """For each device that a program has open, and not for each of its maps: a driver may take long for it."""
    m = gpu.mount()
    path = make(m, b"d" * MIB)
    program = gpu.agent(f"control={gpu.control}")
    program.do(DEMAND + "dev.mmap(fd, 1 << 20, 3, gaia.DEMAND).unmap()", path=path)
    gpu.fail("cuModuleLoadData", 1, 999)
    program.do("maps = [dev.mmap(fd, 1 << 20, 3, gaia.DEMAND) for _ in range(2)]\nassert maps[0][5] == maps[1][5] == ord('d')")
    assert not gpu.failed()
    program.do("for map in maps: map.unmap()\ndev.close()\ndev = gaia.Device('cuda:0')")
    assert program("error_of(dev.mmap, fd, 1 << 20, 3, gaia.DEMAND)") == errno.EIO
    assert gpu.failed()


@only_here
@pytest.mark.parametrize("call", ["acquire", "release"])
@pytest.mark.parametrize("error, expected", [(2, errno.ENOMEM), (999, errno.EIO)])
def test_calls_on_demand(gpu, programs, call, error, expected):
    """Each call of the program's driver: what kernels have stored stays on the GPU until it is released."""
    m = gpu.mount()
    path = make(m, b"." * MIB)
    program = programs(path, STANDIN_CUDA=f"control={gpu.control}")
    program.store(0, b"released")
    program.do("release")
    write_at(path, b"!", 9)
    failures = 0
    for count in range(1, 30):
        program.store(PAGE, b"%02d" % count)
        assert program.load(100, 1) == b"."
        gpu.fail("*", count, error)
        answer = program.ask(call)
        landed = gpu.failed()
        gpu.heal()
        if not landed:
            break
        assert answer in ("ok", f"error {expected}"), count
        failures += answer != "ok"
    assert answer == "ok" and failures > (3 if expected == errno.ENOMEM else 1)  # with EIO a give is tried once more
    program.do("release")
    program.do("acquire")
    assert read_file(path)[:10] == b"released.!" and read_file(path)[PAGE:][:3] == b"%02d." % count
    assert program.load(0, 10) == b"released.!"
    assert program.ask("error") == "0"
    program.end()


def test_no_memory_in_a_fault(mount, programs, small):
    """On demand: the copy below the GPU's is full of stores for which the data directory has no room. The kernel has an error
    and zeros; when there is room it has the bytes, and all that was released is there."""
    m = mount("passthrough=off,device_cache=256K,unit=4K", data=small)
    path, last = os.path.join(m.mnt, "f"), 6400
    with open(path, "wb") as file:
        file.truncate((last + 1) * PAGE)
        os.pwrite(file.fileno(), b"behind", last * PAGE)
    program = programs(path, small=True, frames=64)
    pages = make_random("pages").sample(range(0, last, 100), 64)  # no stream, of which more would be read than is stored to
    for page in pages:
        program.store(page * PAGE, bytes([page % 255 + 1]) * PAGE)
    program.do("release")
    ballast = fill(small)
    assert program.load(last * PAGE, 6) == bytes(6)
    assert program.ask("error") == str(errno.EIO)
    os.unlink(ballast)
    program.do("acquire")  # what could not be had is asked for again
    assert program.load(last * PAGE, 6) == b"behind"
    content = read_file(path)
    assert all(content[page * PAGE:][:PAGE] == bytes([page % 255 + 1]) * PAGE for page in pages)
    program.store(last * PAGE, b"B")
    program.do("release")
    assert read_file(path)[last * PAGE:][:6] == b"Behind"
    program.end()


@only_here  # a home has what was released
def test_reads_at_the_same_time(gpu):
    """Of many that meet it at once none is said to be the daemon's lack of memory."""
    m = gpu.mount(options="passthrough=off")
    path = make(m, b"." * 64 * PAGE)
    program = gpu.program(path)
    program.do("for i in range(64):\n    map[i * PAGE] = 1\nmap.release()")
    gpu.fail("cuMemcpyDtoHAsync", 0, 2)

    def read(page):
        with open(path, "rb", buffering=0) as file:
            for _ in range(20):
                with contextlib.suppress(OSError):
                    os.pread(file.fileno(), 100, page * PAGE)

    readers = [threading.Thread(target=read, args=(8 * i,)) for i in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    gpu.heal()
    said = m.log_text()
    assert "its driver has none left" in said and "memory.max" not in said


@only_here
def test_what_does_not_fit_is_let_go_without_memory(gpu, workdir):
    """The GPU is full, so gaia_mmap() fails; and the program has no memory as it takes that back. What others map has the room."""
    m = gpu.mount(options="device_cache=cuda:0=4M")
    plan = helpers.Plan.make(os.path.join(workdir, "plan"))
    program = gpu.agent(**helpers.client_with_faults(os.path.join(workdir, "plan")))
    program.do("dev = gaia.Device('cuda:0')\nbig, small = (os.open(path, os.O_RDWR) for path in paths)",
               paths=[make(m, bytes(8 * MIB), "big"), make(m, bytes(4 * MIB), "small")])
    for number in range(1, 1000):
        plan.arm(helpers.ROWS.index("malloc"), errno.ENOMEM, number, 0)
        assert program("error_of(lambda: dev.mmap(big, 8 << 20))") == errno.ENOMEM
        landed, plan.row = plan.landed, -1
        assert (number, program("error_of(lambda: dev.mmap(small, 4 << 20).unmap())")) == (number, 0)
        if not landed:
            break
    assert number < 999
