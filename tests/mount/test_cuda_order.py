# SPDX-License-Identifier: Apache-2.0
"""Acquires and releases in the order of a GPU's stream, between what the driver itself puts there: a gate, copies and fills, so
that this needs no compiler, and runs on the cuda:0 of this machine as on the stand-in (tests/mount/on_gpu.py cuda_order). What
only the stand-in can show: test_cuda_streams.py."""
import os

import pytest

import helpers
from helpers import PAGE, agents, write_file  # noqa: F401

REAL = os.environ.get("GAIA_REAL_GPU") == "1"
pytestmark = pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="a sanitizer's runtime and a driver's do not mix")

# seen(at): three bytes of the file as a kernel would find them, then; gate: nothing of the stream goes on before it is set.
PROGRAM = """
import ctypes, threading
fd = os.open(path, os.O_RDWR)
dev = gaia.Device("cuda:0")
map = dev.mmap(fd, os.fstat(fd).st_size)
cuda, stream, pinned = dev.memory.cuda, ctypes.c_void_p(), ctypes.c_void_p()
def entry(name, *types):
    found, status = ctypes.c_void_p(), ctypes.c_int()
    assert cuda.cuGetProcAddress_v2(name, ctypes.byref(found), 12000, ctypes.c_uint64(0), ctypes.byref(status)) == 0 and found
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(found.value)
P, Z, U = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
stream_create, host_alloc = entry(b"cuStreamCreate", P, U), entry(b"cuMemHostAlloc", P, Z, U)
copy_out, fill = entry(b"cuMemcpyDtoHAsync", P, ctypes.c_uint64, Z, P), entry(b"cuMemsetD8Async", ctypes.c_uint64, ctypes.c_ubyte, Z, P)
launch, wait = entry(b"cuLaunchHostFunc", P, P, P), entry(b"cuStreamSynchronize", P)
assert cuda.cuCtxSetCurrent(dev.memory.context) == 0
assert stream_create(ctypes.byref(stream), 1) == 0 and host_alloc(ctypes.byref(pinned), 4096, 1) == 0
gate, kept, places = threading.Event(), [], []
def hold():
    kept.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda context: gate.wait(60) and None))
    assert launch(stream, ctypes.cast(kept[-1], P), None) == 0
def see(at):
    places.append(pinned.value + 3 * len(places))
    assert copy_out(places[-1], map.address + at, 3, stream) == 0
def store(at, value):
    assert fill(map.address + at, value, 3, stream) == 0
def seen():
    return [ctypes.string_at(place, 3) for place in places]
"""


@pytest.fixture
def program(mount, agents):
    env = {} if REAL else {"LD_LIBRARY_PATH": helpers.cuda_standin(), "STANDIN_CUDA": "opaque=1"}
    m = mount(env=env)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"old" + bytes(40 * PAGE))
    agent = agents(env)
    agent.do(PROGRAM, path=path)
    agent.path = path
    return agent


def test_between_kernels(program):
    """What a CPU writes before the stream comes to the acquire is seen by what is behind it, and what is stored before the
    release by CPUs, though all of it was put there before; nothing waits but the stream."""
    program.do("hold(); map.acquire_on(stream); see(0); store(9 * PAGE, 49); map.release_on(stream); store(20 * PAGE, 50)",
               PAGE=PAGE)
    fd = os.open(program.path, os.O_RDWR)
    os.pwrite(fd, b"new", 0)
    assert os.pread(fd, 3, 9 * PAGE) == bytes(3)
    program.do("gate.set(); assert wait(stream) == 0; dev.stream_error()")
    assert program("seen()") == [b"new"]
    assert os.pread(fd, 3, 9 * PAGE) == b"111"
    program.do("map.release()")  # without a stream: for all that was launched
    assert os.pread(fd, 3, 20 * PAGE) == b"222" and os.pread(fd, 3, 9 * PAGE) == b"111"
    os.close(fd)


def test_again_and_again(program):
    """Rounds of a stream that nobody waits for between: each sees what the round before has stored, and CPUs the last one."""
    program.do("hold()\nfor i in range(20):\n    map.acquire_on(stream); see(0); store(0, 65 + i); map.release_on(stream)\n"
               "gate.set(); assert wait(stream) == 0; dev.stream_error()")
    assert program("seen()") == [b"old", *(bytes([65 + i]) * 3 for i in range(19))]
    with open(program.path, "rb") as file:
        assert file.read(3) == bytes([65 + 19]) * 3


def test_a_thread_without_a_context(program):
    """The calls are about the mapping's GPU all the same, and the thread has no context afterwards, either."""
    program.do("""
said = []
def current():
    context = ctypes.c_void_p()
    assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value
def calls():
    said.append(current())
    map.release()
    more = dev.mmap(fd, PAGE)
    map.acquire()
    more.unmap()
    map.acquire_on(stream)
    map.release_on(stream)
    dev.stream_error()
    said.append(current())
hold(); store(9 * PAGE, 49)
threading.Timer(0.2, gate.set).start()
thread = threading.Thread(target=calls)
thread.start()
thread.join()
assert wait(stream) == 0; dev.stream_error()
""", PAGE=PAGE)
    assert program("said") == [None, None]
    with open(program.path, "rb") as file:
        assert file.read(9 * PAGE + 3)[-3:] == b"111"
