# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with a GPU (a stand-in, as in test_cuda_maps.py): there is none, or not the one that was asked for, its
driver fails, it has no memory; and programs that say false things about theirs."""
import contextlib
import errno
import os
import re
import signal
import subprocess
import time

import pytest

import helpers
from gpu_fixture import MAP, gpu, keeps_twins, make, only_here  # noqa: F401
from helpers import PAGE, agents, read_file, wait_until, write_at, write_file  # noqa: F401

MIB = 1 << 20
CHUNK = 2 * MIB  # of a small file
RECVMSG = (b"47", b"212")  # of x86-64, and of the generic table


@only_here
@pytest.mark.parametrize("standin, number", [
    ("gpus=0", 0), ("gpus=1", 1), ("version=11080", 0), ("missing=cuMemCreate", 0), ("cannot=102", 0), ("cannot=103", 0),
    ("capability=6", 0)])
def test_no_such_gpu(gpu, standin, number):
    with pytest.raises(OSError) as caught:
        gpu.agent(standin).do("gaia.Device('cuda:%d' % number)", number=number)
    assert caught.value.errno == errno.ENODEV


@only_here
@pytest.mark.parametrize("client, daemon, why", [
    ("", "gpus=0", "finds no GPU"), ("first=1", "gpus=1", "no GPU with that UUID"),
    ("", "missing=cuLaunchKernel", "has no cuLaunchKernel"), ("", "version=11000", "the driver is of CUDA 11.0"),
    ("", "cannot=102", "the GPU has no virtual memory management"), ("", "cannot=103", "has no exports of memory as descriptors"),
    ("", "capability=6", "the GPU's compute capability is 6, and 7 is needed")])
def test_the_daemon_has_no_such_gpu(gpu, client, daemon, why):
    m = gpu.mount(daemon)
    path = make(m, bytes(PAGE))
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            gpu.program(path, standin=client)
        assert caught.value.errno == errno.ENODEV
    assert why in m.log_text()
    program = gpu.agent()
    program.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, PAGE)\nmap[0] = 1\nmap.release()",
               path=path)
    assert read_file(path)[0] == 1


@only_here
@pytest.mark.parametrize("library, why", [(None, "no driver: "), ("old", "the driver is of CUDA 11.8, and 12.0 is needed")])
def test_no_driver_or_an_old_one(gpu, workdir, monkeypatch, library, why):
    """Of the daemon's and of the program's, which uses soft:0 where it names no device."""
    good, bad = os.environ["LD_LIBRARY_PATH"], helpers.cuda_standin(library) if library else workdir
    if not library:
        write_file(os.path.join(workdir, "libcuda.so.1"), b"no library\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", bad)
    m = gpu.mount()
    path = make(m, bytes(PAGE))
    program = gpu.agent(LD_LIBRARY_PATH=good)
    program.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')", path=path)
    assert program("error_of(dev.mmap, fd, PAGE)") == errno.ENODEV
    assert why in m.log_text()
    without = gpu.agent(GAIA_DEVICE="")
    assert without("error_of(gaia.Device, 'cuda:0')") == errno.ENODEV
    without.do("import ctypes\nhandle = ctypes.c_void_p()\n"
               "gaia.check(gaia.lib.gaia_device_open(None, ctypes.byref(handle)))\nfd = os.open(path, os.O_RDWR)\n"
               "address = gaia.lib.gaia_mmap(handle, PAGE, 3, 0, fd, 0)\nctypes.memset(address, 7, 1)\n"
               "gaia.check(gaia.lib.gaia_mrelease(address, PAGE, handle))", path=path)
    assert read_file(path)[:2] == b"\7\0"


@pytest.mark.parametrize("words", [
    "refuse=cuMemHostRegister", "missing=cuMemHostRegister", "missing=cuMemHostUnregister",
    "refuse=cuOccupancyMaxActiveBlocksPerMultiprocessor", "missing=cuOccupancyMaxActiveBlocksPerMultiprocessor"])
def test_what_a_gpu_can_be_without(gpu, words):
    """Slower, and that is all: memory of the daemon that is not pinned, and a grid of a usual size."""
    m = gpu.mount(words)
    content = helpers.make_random().randbytes(3 * MIB + 5)
    path = make(m, content)
    program = gpu.program(path)
    assert program("map[:]") == content
    program.do("map[PAGE:PAGE + 3] = b'gpu'\nmap.release()", PAGE=PAGE)
    write_at(path, b"cpu", 2 * MIB)
    program.do("map.acquire()")
    expected = content[:PAGE] + b"gpu" + content[PAGE + 3:2 * MIB] + b"cpu" + content[2 * MIB + 3:]
    assert read_file(path) == program("map[:]") == expected
    program.do("map.unmap()\nos.close(fd)\ndev.close()")
    program.end()


@only_here
def test_what_a_gpu_can_not_be_without(gpu):
    m = gpu.mount("refuse=cuModuleLoadData")
    with pytest.raises(OSError) as caught:
        gpu.program(make(m, bytes(PAGE)))
    assert caught.value.errno == errno.EIO
    assert "the GPU can't be set up: CUDA_ERROR_NOT_SUPPORTED" in m.log_text()


@only_here
def test_gpus_are_told_by_their_uuids(gpu):
    """What is number 0 to a program may be number 1 to the daemon."""
    m = gpu.mount("gpus=2")
    path = make(m, bytes(PAGE))
    program = gpu.program(path, standin="gpus=1,first=1")
    program.do("map[0] = 1\nmap.release()")
    assert read_file(path)[0] == 1
    assert [d["device"] for d in helpers.statistics(m.mnt)["files"][0]["devices"]] == ["cuda:1"]
    other = gpu.program(path, standin="gpus=2")
    other.do("map.acquire()\nmap[1] = 2\nmap.release()")
    program.do("map.acquire()")
    assert program("map[:2]") == b"\x01\x02"
    assert program("dev.stat().resident_bytes") == PAGE


@only_here
def test_a_gpu_that_takes_long_to_start_holds_up_no_other(gpu, workdir):
    """It may be one of many, each of which takes seconds; or the driver has the daemon wait for another user."""
    stuck = os.path.join(workdir, "stuck")
    m = gpu.mount(f"gpus=2,stuck={stuck}")
    path = make(m, bytes(PAGE))
    one, two, three = gpu.program(path, standin="gpus=2"), gpu.agent("gpus=2"), gpu.agent("gpus=2")
    write_file(stuck, b"")
    two.start(MAP.replace("cuda:0", "cuda:1"), path=path, length=PAGE, writable=True)
    assert two.busy(0.5)
    three.start(MAP, path=path, length=PAGE, writable=True)
    assert not three.busy(10)
    three.finish()
    one.start("dev.stat().resident_bytes", "eval")
    assert not one.busy(10)
    assert one.finish() == PAGE and two.busy()
    os.unlink(stuck)
    two.finish()
    two.do("map[0] = 1\nmap.release()")
    assert read_file(path)[0] == 1


@only_here
@pytest.mark.parametrize("standin, device", [("", "cuda:0"), ("capability=6", "soft:0")])
def test_the_default_device(gpu, standin, device):
    """A GPU that is too old for our kernels is none that works."""
    m = gpu.mount(standin)
    path = make(m, bytes(PAGE))
    program = gpu.agent(standin, GAIA_DEVICE="")
    program.do("import ctypes\nhandle = ctypes.c_void_p()\n"
               "gaia.check(gaia.lib.gaia_device_open(None, ctypes.byref(handle)))\nfd = os.open(path, os.O_RDWR)\n"
               "address = gaia.lib.gaia_mmap(handle, PAGE, 3, 0, fd, 0)\nassert address != gaia.MAP_FAILED", path=path)
    assert [d["device"] for d in helpers.statistics(m.mnt)["files"][0]["devices"]] == [device]


OPENING = ["cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction", "cuStreamCreate", "cuMemHostAlloc",
           "cuMemAlloc", "cuMemGetAllocationGranularity"]
MAPPING = ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async",
           "cuMemExportToShareableHandle"]
COPIED = "cannot=118"  # to a GPU of which it is not known when it sees what others write: test_cuda_windows.py has the rest
PLACING = ["cuMemcpyHtoDAsync", "cuLaunchKernel", "cuStreamSynchronize", "cuCtxPushCurrent"]
AHEAD = MAPPING[:-1] + PLACING  # what is placed ahead of the acquire may be what fails, and then the map does it: each call fails


@pytest.mark.parametrize("name", OPENING + MAPPING + PLACING)
@pytest.mark.parametrize("error, expected", [(2, errno.ENOMEM), (999, errno.EIO)])
def test_the_daemons_driver_fails_at_a_map(gpu, name, error, expected):
    m = gpu.mount(COPIED)
    content = os.urandom(5 * PAGE)
    path = make(m, content)
    if name not in OPENING:
        gpu.program(make(m, bytes(PAGE), "first"))
    gpu.fail(name, 0 if name in AHEAD else 1, error)
    with pytest.raises(OSError) as caught:
        gpu.program(path)
    assert name in AHEAD or gpu.failed()
    assert caught.value.errno == expected
    gpu.heal()
    program = gpu.program(path)  # nothing is left of it
    assert program("map[:]") == content
    program.do("map[PAGE] ^= 1\nmap.release()")
    assert read_file(path)[PAGE] == content[PAGE] ^ 1


@only_here
@pytest.mark.whole
@pytest.mark.parametrize("name, calls", [("cuStreamCreate", 18), ("cuMemAlloc", 2), ("cuMemHostAlloc", 2)])
def test_a_gpu_is_set_up_call_by_call(gpu, name, calls):
    """What a call that fails leaves as its output is nothing that could be given back."""
    m = gpu.mount()
    program = gpu.agent()
    program.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')", path=make(m, bytes(PAGE)))
    for count in range(1, calls + 1):
        gpu.fail(name, count, 2)
        assert program("error_of(dev.mmap, fd, PAGE)") == errno.ENOMEM and gpu.failed(), count
    gpu.heal()
    assert program("error_of(dev.mmap, fd, PAGE)") == 0


@pytest.mark.parametrize("call", ["map.release()", "map.acquire()", "content = os.pread(fd, PAGE, 3 * PAGE)"])
@pytest.mark.parametrize("name, sticky", [("cuLaunchKernel", False), ("cuMemcpyDtoHAsync", False),
                                          ("cuMemcpyHtoDAsync", False), ("cuStreamSynchronize", False), ("*", True)])
def test_a_gpu_that_fails_keeps_its_bytes(gpu, call, name, sticky):
    """EIO, and nothing is lost that can be had again: what was stored is released when the GPU works."""
    m = gpu.mount()
    path = make(m, b"." * 6 * PAGE)
    if call.startswith("content") and (m.nodes or keeps_twins(m)):
        pytest.skip("a home elsewhere, and the file in passthrough, have what was released: a read asks nobody")
    program = gpu.program(path)
    program.do("map[3 * PAGE:3 * PAGE + 4] = b'kept'")
    if call.startswith("content"):
        program.do("map.release()")
    else:
        write_at(path, b"cpu", 3 * PAGE + 10)
    failed = landed = 0
    for count in [0] if sticky else range(1, 12):
        gpu.fail(name, count, 999)
        try:
            program.do(call)
            assert not sticky
        except OSError as error:
            assert error.errno == errno.EIO
            failed += 1
        if not sticky and not gpu.failed():
            break
        landed += 1
    print(f"{landed} calls failed, {failed} times the program heard of it")
    assert landed or (call.startswith("content") and name == "cuLaunchKernel")
    # A READ that failed is asked for again by the kernel; what only notes something is done anew another time.
    assert failed or call.startswith("content") or name == "cuMemcpyHtoDAsync"
    gpu.heal()
    program.do("map.release()\nmap.acquire()")
    expected = b"kept......" + (b"..." if call.startswith("content") else b"cpu")
    assert read_file(path)[3 * PAGE:3 * PAGE + 13] == expected
    assert program("map[3 * PAGE:3 * PAGE + 13]") == expected


def test_what_the_driver_says_is_logged(gpu):
    """By the daemon that has the GPU: once for each thing that it says; and gaiactl stat shows it."""
    m = gpu.mount()
    path = make(m, b"." * 6 * PAGE)
    program = gpu.program(path)
    logged = lambda: re.findall(r"cuda:0: its driver reports (\w+)", m.log_text())  # noqa: E731
    gpu.fail("cuMemcpyDtoHAsync", 1, 2)  # memory is short: that is no fault of the GPU's
    program.do("map[0:1] = b'x'")
    with contextlib.suppress(OSError):
        program.do("map.release()")
    assert gpu.failed() and logged() == []
    assert not any("failure" in one for one in helpers.statistics(m.mnt)["devices"])
    for error in 999, 999, 1, 999, 1:
        gpu.fail("*", 0, error)
        program.do("map[0:1] = bytes([map[0] ^ 1])")
        for _ in range(3):
            assert program("error_of(map.release)") == errno.EIO
        gpu.heal()
        program.do("map.release()")
    assert logged() == ["CUDA_ERROR_UNKNOWN", "CUDA_ERROR_INVALID_VALUE"]
    if not m.nodes:
        failures = {one["device"]: one.get("failure") for one in helpers.statistics(m.mnt)["devices"]}
        assert failures == {"soft:0": None, "cuda:0": "CUDA_ERROR_INVALID_VALUE"}
        text = subprocess.run([os.path.join(helpers.BIN, "gaiactl"), "stat", m.mnt], capture_output=True, text=True).stdout
        assert "its driver has reported CUDA_ERROR_INVALID_VALUE\n" in text


def test_a_gpu_that_fails_at_its_first_use_is_seen(gpu):
    """Nothing ever got there, and no program has it: gaiactl stat shows it all the same, and what it said."""
    m = gpu.mount(COPIED)
    path = make(m, b"." * 6 * PAGE)
    gpu.fail("cuMemcpyHtoDAsync", 0, 999)
    program = gpu.agent()
    program.do("fd = os.open(path, os.O_RDWR)\ndevice = gaia.Device('cuda:0')", path=path)
    assert program("error_of(device.mmap, fd, 6 * PAGE)") == errno.EIO
    gpu.heal()
    program.do("device.close()\nos.close(fd)")
    os.unlink(path)
    if not m.nodes:
        failures = {one["device"]: one.get("failure") for one in helpers.statistics(m.mnt)["devices"]}
        assert failures == {"soft:0": None, "cuda:0": "CUDA_ERROR_UNKNOWN"}


def test_memory_that_the_driver_does_not_share(gpu):
    """As in a container that forbids it: the map fails, and the log says why."""
    m = gpu.mount()
    path = make(m, b"." * 6 * PAGE)
    gpu.fail("cuMemExportToShareableHandle", 1, 999)
    program = gpu.agent()
    program.do("fd = os.open(path, os.O_RDWR)\ndevice = gaia.Device('cuda:0')", path=path)
    assert program("error_of(device.mmap, fd, 6 * PAGE)") == errno.EIO
    assert re.findall(r"cuda:0: its driver reports (\w+)", m.log_text()) == ["CUDA_ERROR_UNKNOWN"]
    gpu.heal()
    program.do("map = device.mmap(fd, 6 * PAGE)\nassert map[:2] == b'..'")


@pytest.mark.parametrize("name, count", [("cuLaunchKernel", 2), ("cuLaunchKernel", 3), ("cuMemcpyHtoDAsync", 2),
                                         ("cuMemcpyHtoDAsync", 3), ("cuMemcpyHtoDAsync", 4)])
def test_an_acquire_that_fails_when_some_pages_have_changed(gpu, name, count):
    """What a page has become is what it was granted with: it is no kernel's store, and changes back when the file does."""
    m = gpu.mount()
    path = make(m, b"A" * 64 * PAGE)
    program = gpu.program(path)
    fd = os.open(path, os.O_RDWR)
    for letter in "BA":
        for page in range(64):
            os.pwrite(fd, letter.encode(), page * PAGE)
        if letter == "B":
            gpu.fail(name, count, 2)
            with contextlib.suppress(OSError):
                program.do("map.acquire()")
            assert gpu.failed() or (not m.nodes and count == 3)  # there it is one piece
            gpu.heal()
    program.do("map.acquire()")
    assert program("bytes(map[page * PAGE] for page in range(64))") == b"A" * 64
    program.do("map.release()")
    assert read_file(path)[::PAGE] == b"A" * 64
    os.close(fd)


@only_here
def test_a_device_closed_beside_a_call(gpu, agents):
    """What a call of another thread has mapped there is unmapped when that ends, by the device."""
    m = gpu.mount(options="passthrough=off,timeout=0")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    agent = gpu.agent(MALLOC_PERTURB_="165")  # memory that is free is garbage
    agent.do(MAP, path=path, length=MIB, writable=True)
    agent.do("""
import threading
ended = []
def acquire():
    try:
        map.acquire()
    except OSError as error:
        ended.append(error.errno)
    else:
        ended.append(0)
thread = threading.Thread(target=acquire)
""")
    helpers.stand_still(m.pid)
    agent.do("thread.start()")
    doing = f"/proc/{agent.pid}/task/{agent('thread.native_id')}/syscall"
    wait_until(lambda: read_file(doing).split()[0] in RECVMSG, what="the acquire waits for its answer")
    agent.start("dev.close()")
    time.sleep(0.3)
    os.kill(m.pid, signal.SIGCONT)
    assert not agent.busy(10)
    agent.finish()
    agent.do("thread.join()")
    assert agent("ended") == [0]
    agent.do("dev = gaia.Device('cuda:0')\nmap = dev.mmap(fd, length)\nmap[5:6] = b'x'\nmap.release()\ndev.close()")
    assert read_file(path)[5:6] == b"x"


def test_a_context_that_is_broken(gpu, workdir):
    """A program whose kernel has failed hears of it at its next call; the daemon and the others live."""
    m = gpu.mount()
    path = make(m, bytes(4 * PAGE))
    control = os.path.join(workdir, "client-control")
    broken, other = gpu.program(path, standin=f"control={control}"), gpu.program(path)
    broken.do("map[0:4] = b'mine'\nmap.release()\nmap[4:8] = b'more'")
    with open(control, "w") as file:
        file.write("* 0 700\n")  # CUDA_ERROR_ILLEGAL_ADDRESS, from now on
    for call in ("map.release()", "map.acquire()"):
        with pytest.raises(OSError) as caught:
            broken.do(call)
        assert caught.value.errno == errno.EIO
    assert read_file(path)[:4] == b"mine"
    broken.kill()
    other.do("map.acquire()\nmap[100] = 1\nmap.release()")
    content = read_file(path)
    assert content[:8] == b"minemore" and content[100] == 1


def test_a_context_that_dies_in_a_release(gpu):
    """The daemon's, at each of its calls, and it stays so: EIO, other files go on, and what was stored is released when there is
    a context again."""
    m = gpu.mount()
    path, other = make(m, b"." * 6 * PAGE), make(m, b"." * PAGE, "other")
    program, beside = gpu.program(path), gpu.agent()
    beside.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, PAGE)", path=other)
    failures = 0
    for count in range(1, 40):
        program.do("map[PAGE:PAGE + 2] = map[3 * PAGE:3 * PAGE + 2] = value", value=b"%02d" % count)
        gpu.fail("*", -count, 700)
        code = program("error_of(map.release)")
        assert code in (0, errno.EIO) and (not code or program("error_of(map.acquire)") == errno.EIO)
        beside.do("map[count] = count\nmap.release()", count=count)
        gpu.heal()
        program.do("map.release()")
        assert read_file(path)[PAGE:][:3] == read_file(path)[3 * PAGE:][:3] == b"%02d." % count
        assert read_file(other)[:count + 1] == b"." + bytes(range(1, count + 1))
        failures += code != 0
        if not code:
            break
    assert failures > 3 and not code


def test_a_kernel_that_writes_past_its_mapping(gpu):
    """gaia.h: within the memory of the file it changes other pages of it, which who maps them releases, or what is past its end,
    which is nothing; no other file, and nobody's copy that is only read."""
    m = gpu.mount()
    content = os.urandom(9 * PAGE)
    path, other = make(m, content), make(m, content, "other")
    program, wide, reader, beside = gpu.program(path, 2 * PAGE), gpu.program(path), gpu.program(path, writable=False), \
        gpu.program(other)
    program.do("map[PAGE] = 1\nfor page in (2, 8, 9, 30, length // PAGE + 100):\n"
               "    dev.memory.store(map.address + page * PAGE, b'past')\nmap.release()")
    released_alone = content[:PAGE] + b"\1" + content[PAGE + 1:]
    assert read_file(path) == released_alone
    reader.do("map.acquire()")
    assert reader("map[:]") == released_alone
    wide.do("map.release()")
    expected = bytearray(released_alone)
    expected[2 * PAGE:2 * PAGE + 4] = expected[8 * PAGE:8 * PAGE + 4] = b"past"
    assert read_file(path) == expected
    beside.do("map.release()\nmap.acquire()")
    assert beside("map[:]") == read_file(other) == content
    os.truncate(path, 40 * PAGE)
    wide.do("map.acquire()")
    assert read_file(path)[9 * PAGE:] == bytes(31 * PAGE)


def test_garbage_about_chunks(gpu):
    m = gpu.mount()
    path = make(m, bytes(3 * CHUNK))
    program = gpu.program(path)
    agent = gpu.agent()
    agent.do("""
import socket
fd = os.open(path, os.O_RDWR)
address, token = get_token(fd)
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(address)
def ask(**words):
    sock.send(message(**words))
    data, ancillary, _, _ = sock.recvmsg(256, 4096)
    for _, _, fds in ancillary:
        import array
        a = array.array("i"); a.frombytes(fds)
        for one in a: os.close(one)
    return MESSAGE.unpack(data)
""", path=path)
    assert agent("ask(op=1, flags=2)[3]") == 0  # HELLO without a descriptor for faults
    # A device that needs one.
    assert agent("ask(op=2, device=b'soft:0', token=token, bytes=PAGE, prot=3)[3]") == -errno.EPERM
    assert agent("ask(op=2, device=b'cuda:0', token=bytes(16), bytes=PAGE, prot=3)[3]") < 0
    agent.do("_, token = get_token(fd)")
    uuid = "(int.from_bytes(b'stand-in', 'little'), int.from_bytes(b' 0'.ljust(8, bytes(1)), 'little')) + (0,) * 18"
    agent.do(f"reply = ask(op=2, device=b'cuda:0', token=token, bytes=3 << 20, offset=3 << 20, prot=3, value={uuid})")
    assert agent("reply[3]") == 0
    number = agent("reply[4]")
    for chunk, error in ((0, errno.EINVAL), (1, 0), (2, 0), (3, errno.EINVAL), (1 << 63, errno.EINVAL)):
        assert agent("ask(op=11, map=number, value=(chunk,) + (0,) * 19)[3]", number=number, chunk=chunk) == -error
    assert agent("ask(op=11, map=12345)[3]") == -errno.EINVAL
    agent.kill()
    assert program("map[:10]") == bytes(10)
