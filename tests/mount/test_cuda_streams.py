# SPDX-License-Identifier: Apache-2.0
"""Acquires and releases in the order of a GPU's streams, and what waits for a GPU and what does not. The GPU is a stand-in, as in
test_cuda_maps.py."""
import errno
import os
import signal
import subprocess

import pytest

from helpers import PAGE, agents, read_file, stand_still, wait_until, write_at  # noqa: F401
from files import pattern
from gpu_fixture import MAP, gpu, make, only_here  # noqa: F401
from test_cuda_broken import RECVMSG

STREAM = """
import ctypes, threading, time
cuda = dev.memory.cuda
stream = ctypes.c_void_p()
assert cuda.cuCtxSetCurrent(dev.memory.context) == 0
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
kernel_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
kept = []
def kernel(function):
    kept.append(kernel_type(lambda context: function()))
    assert cuda.cuLaunchHostFunc(stream, kept[-1], None) == 0
def store(at, data):
    return lambda: ctypes.memmove(map.address + at, data, len(data))
gate = threading.Event()
"""


def test_the_order_of_a_stream(gpu):
    m = gpu.mount()
    path = make(m, bytes(40 * PAGE))
    program = gpu.program(path)
    program.do(STREAM + """
saw = []
kernel(gate.wait)
map.acquire_on(stream)
kernel(lambda: saw.append(ctypes.string_at(map.address, 3)))
kernel(store(9 * PAGE, b"one"))
map.release_on(stream)
kernel(lambda: saw.append(os.pread(fd, 3, 9 * PAGE)))
kernel(store(9 * PAGE, b"two"))
""")  # nothing of this has waited
    assert program("saw") == []
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"cpu", 0)
    program.do("gate.set()\ncuda.cuStreamSynchronize(stream)")
    assert program("saw") == [b"cpu", b"one"]
    assert os.pread(fd, 3, 9 * PAGE) == b"one"
    program.do("map.release()")  # without a stream: for all that was launched
    assert os.pread(fd, 3, 9 * PAGE) == b"two"
    program.do("dev.stream_error()")
    os.close(fd)


@only_here
def test_calls_in_a_stream_call_no_driver(gpu):
    """They run in host functions, which must not: a real driver may refuse it, or hang. Here all is refused in such a thread,
    as is seen; and they do not notice, with bytes to bring, and to take, and the digests of what was granted."""
    m = gpu.mount()
    path = make(m, pattern(40 * PAGE))
    program = gpu.program(path)
    program.do(STREAM + """
refused = []
def calls():
    refused.extend([cuda.cuStreamSynchronize(stream), cuda.cuInit(0), cuda.cuCtxSetCurrent(dev.memory.context),
                    cuda.cuStreamCreate(ctypes.byref(ctypes.c_void_p()), 1),
                    cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(0)))])
map.acquire_on(stream)
kernel(calls)
kernel(store(9 * PAGE, b"one"))
map.release_on(stream)
assert cuda.cuStreamSynchronize(stream) == 0
dev.stream_error()
""")
    assert program("refused") == 5 * [800]
    assert read_file(path)[9 * PAGE:9 * PAGE + 3] == b"one"
    with open(path, "r+b") as file:
        file.write(b"cpu")
    program.do("map.acquire_on(stream)\nassert cuda.cuStreamSynchronize(stream) == 0\ndev.stream_error()")
    assert program("map[:3]") == b"cpu"


@only_here
def test_a_stream_that_is_captured(gpu):
    """A graph would make the call again at each launch: refused, and the stream is none the worse."""
    m = gpu.mount()
    program = gpu.program(make(m, bytes(PAGE)))
    program.do(STREAM + CAPTURE + "begin(0)")
    for call in "map.acquire_on(stream)", "map.release_on(stream)":
        with pytest.raises(OSError) as caught:
            program.do(call)
        assert caught.value.errno == errno.EOPNOTSUPP
    program.do("dev.stream_error()\nmap.release_on(None)\nassert end() == 0\nmap.release()")


CAPTURE = """
def begin(mode):
    assert cuda.cuStreamBeginCapture_v2(stream, mode) == 0
def end():
    return cuda.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p()))
def in_another_thread(function):
    errors = []
    thread = threading.Thread(target=lambda: errors.append(error_of(function)))
    thread.start()
    thread.join()
    return errors[0]
"""


@only_here
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("where", ["error_of", "in_another_thread"])
def test_maps_beside_a_capture(gpu, mode, where):
    """A thread that gets files ready while another records a graph, which is none the worse."""
    m = gpu.mount()
    path = make(m, pattern(3 * PAGE))
    program = gpu.program(path)
    program.do(STREAM + CAPTURE + """
def maps():
    more = dev.mmap(fd, PAGE)
    assert ctypes.string_at(more.address, PAGE) == first
    more.unmap()
    dev.stream_error()
begin(how)
error = run(maps)
begins_anew = ctypes.c_int(0)
assert cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(begins_anew)) == 0 and begins_anew.value == 0
""".replace("run", where), how=mode, first=pattern(3 * PAGE)[:PAGE])
    assert (program("error"), program("end()")) == (0, 0)


@only_here
@pytest.mark.parametrize("captured", [False, True])
def test_a_device_that_is_closed_before_a_call_in_its_stream(gpu, captured):
    """It waits for the call, and disturbs nobody's capture."""
    m = gpu.mount()
    path = make(m, bytes(PAGE))
    program = gpu.program(path)
    program.do(STREAM + CAPTURE + """
kernel(lambda: gate.wait(1))
kernel(store(0, b"last"))
map.release_on(stream)
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
if captured:
    begin(0)
dev.close()
""", captured=captured)
    assert read_file(path)[:4] == b"last"
    assert not captured or program("end()") == 0


@only_here
@pytest.mark.parametrize("call", ["dev.stream_error()", "dev.close()"])
def test_a_capture_of_a_threads_own_stream(gpu, call):
    """While it lasts that stream can't be asked whether the GPU still works: that would end it."""
    m = gpu.mount()
    path = make(m, bytes(PAGE))
    program = gpu.program(path)
    program.do(STREAM + CAPTURE + """
kernel(lambda: gate.wait(1))
kernel(store(0, b"last"))
map.release_on(stream)
other, stream = stream, ctypes.c_void_p(2)
begin(1)
""" + call)
    assert program("end()") == 0
    program.do("gate.set()\nassert cuda.cuStreamSynchronize(other) == 0")
    assert read_file(path)[:4] == b"last"


@only_here
def test_a_capture_that_the_default_stream_would_wait_for(gpu):
    """Of a stream that is not apart from it: then even to ask the default stream something is an error, and it can't be used."""
    m = gpu.mount()
    path = make(m, pattern(3 * PAGE))
    program = gpu.program(path)
    program.do(STREAM.replace("(stream), 1)", "(stream), 0)") + CAPTURE + """
begin(0)
dev.mmap(fd, PAGE).unmap()
errors = [error_of(map.release_on, None), error_of(map.acquire_on, None)]
""")
    assert program("errors") == 2 * [errno.EBUSY]
    assert program("end()") == 0
    program.do("map.release_on(None)\nassert cuda.cuStreamSynchronize(None) == 0\ndev.stream_error()")


@only_here
def test_the_order_of_the_default_stream(gpu):
    """It comes after what other streams were given before, and before what they are given later."""
    m = gpu.mount()
    path = make(m, bytes(PAGE))
    program = gpu.program(path)
    program.do(STREAM.replace("(stream), 1)", "(stream), 0)") + """
saw = []
kernel(gate.wait)
kernel(store(0, b"one"))
map.release_on(None)
kernel(lambda: saw.append(os.pread(fd, 3, 0)))
""")
    assert program("saw") == [] and read_file(path)[:3] == bytes(3)
    program.do("gate.set()\nassert cuda.cuStreamSynchronize(None) == 0\ndev.stream_error()")
    assert program("saw") == [b"one"]


@only_here
def test_the_default_stream_of_a_thread(gpu):
    """CU_STREAM_PER_THREAD, which is cudaStreamPerThread: a stream like others."""
    m = gpu.mount()
    path = make(m, bytes(PAGE))
    program = gpu.program(path)
    program.do(STREAM + """
stream, saw = ctypes.c_void_p(2), []
kernel(gate.wait)
map.acquire_on(stream)
kernel(lambda: saw.append(ctypes.string_at(map.address, 3)))
kernel(store(0, b"one"))
map.release_on(stream)
""")
    write_at(path, b"cpu", 0)
    program.do("gate.set()\nassert cuda.cuStreamSynchronize(stream) == 0\ndev.stream_error()")
    assert program("saw") == [b"cpu"] and read_file(path)[:3] == b"one"


@only_here
@pytest.mark.parametrize("call", ["map.acquire()", "map.release()"])
def test_what_waits_for_a_gpu_beside_a_capture(gpu, call):
    """Says what is the matter: the device is not broken."""
    m = gpu.mount()
    program = gpu.program(make(m, bytes(PAGE)))
    program.do(STREAM + CAPTURE + "begin(0)")
    with pytest.raises(OSError) as caught:
        program.do(call)
    assert caught.value.errno == errno.EBUSY
    assert program("end()") == 901
    program.do("dev.stream_error()\n" + call)


@only_here
def test_a_gpu_that_breaks_before_a_call_in_its_stream(gpu):
    """The driver calls nothing any more: who asks is told, and not that all is well."""
    m = gpu.mount()
    program = gpu.program(make(m, bytes(PAGE)), standin=f"control={gpu.control}")
    program.do(STREAM + "kernel(gate.wait)\nmap.release_on(stream)\ndev.stream_error()")
    gpu.fail("cuStreamQuery", 0, 700)
    with pytest.raises(OSError) as caught:
        program.do("dev.stream_error()")
    assert caught.value.errno == errno.EIO
    gpu.heal()
    program.do("gate.set()\ncuda.cuStreamSynchronize(stream)\ndev.stream_error()")


@only_here
def test_a_broken_device_is_closed_under_a_call_in_its_stream(gpu):
    """Nobody waits for what the driver may never call. A call that is under way goes on, and has nothing of the device, whose memory
    is free by then."""
    m = gpu.mount(options="passthrough=off,timeout=0")
    agent = gpu.agent(f"control={gpu.control_of_programs}", MALLOC_PERTURB_="165",  # memory that is free is all one byte
                      GLIBC_TUNABLES="glibc.malloc.tcache_count=0")
    agent.do(MAP, path=make(m, bytes(PAGE)), length=PAGE, writable=True)
    agent.do(STREAM + """
handle = dev.handle.value
size = ctypes.CDLL(None).malloc_usable_size(dev.handle)
""")
    stand_still(m.pid)
    agent.do("map.acquire_on(stream)")
    wait_until(lambda: any(read_file(f"/proc/{agent.pid}/task/{thread}/syscall").split()[0] in RECVMSG
                           for thread in os.listdir(f"/proc/{agent.pid}/task")), what="the call waits for its answer")
    gpu.fail("cuStreamQuery", 0, 700, gpu.control_of_programs)
    agent.do("dev.close()")
    os.kill(m.pid, signal.SIGCONT)
    agent.do("assert cuda.cuStreamSynchronize(stream) == 0")
    assert len(set(agent("ctypes.string_at(handle + 16, size - 24)"))) == 1


OPEN_DEVICE = """
def open_device(name):
    handle = ctypes.c_void_p()
    if gaia.lib.gaia_device_open(name and name.encode(), ctypes.byref(handle)):
        return ctypes.get_errno()
    return 0
"""


@only_here
@pytest.mark.parametrize("name", ["None", "'cuda:0'"])
def test_a_fork_of_a_program_that_has_a_gpu(gpu, name):
    """CUDA does not work there: it is said, and no other device is opened instead."""
    m = gpu.mount()
    program = gpu.program(make(m, bytes(PAGE)))
    program.do("os.environ.pop('GAIA_DEVICE', None)")
    program.do(OPEN_DEVICE)
    assert program(f"in_child(lambda: open_device({name}))") == (0, errno.EIO)
    program.do("map[0] = 1\nmap.release()")


@only_here
def test_a_fork_with_the_number_of_who_has_a_gpu(gpu, agents):
    """Each is the first process of a PID namespace, one in the other: test_forks.py."""
    container = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespaces here")
    m = gpu.mount()
    program = agents({"STANDIN_CUDA": ""}, container)
    program.do(MAP, path=make(m, bytes(PAGE)), length=PAGE, writable=True)
    program.do(OPEN_DEVICE)
    assert program("os.getpid()") == 1
    assert program("ctypes.CDLL(None).unshare(0x20000000)") == 0  # CLONE_NEWPID: of children
    assert program("in_child(lambda: (os.getpid(), open_device('cuda:0')))") == (0, (1, errno.EIO))
    program.do("map[0] = 1\nmap.release()")
    program.end()


@only_here
def test_a_map_does_not_wait_for_kernels(gpu):
    """None can have its pointer yet; one that waits for the program never ends if that waits for it."""
    m = gpu.mount()
    program = gpu.program(make(m, bytes(PAGE)))
    program.do(STREAM + "kernel(gate.wait)\nother = dev.mmap(fd, PAGE)\nassert other[0] == 0\ngate.set()")


def test_errors_of_a_stream(gpu):
    m = gpu.mount()
    path = make(m, bytes(4 * PAGE))
    program = gpu.program(path)
    program.do(STREAM + "map.release_on(stream)\nmap.acquire_on(None)\ncuda.cuStreamSynchronize(stream)")
    program.do("dev.stream_error()")
    for call in ("gaia.Mapping(dev, map.address + 4 * PAGE, PAGE).acquire_on(stream)",
                 "gaia.Mapping(dev, map.address + 1, PAGE).release_on(stream)"):
        with pytest.raises(OSError) as caught:
            program.do(call)
        assert caught.value.errno == errno.EINVAL
    m.kill()
    program.do("map.acquire_on(stream)\nmap.release_on(stream)\ncuda.cuStreamSynchronize(stream)")
    with pytest.raises(OSError) as caught:
        program.do("dev.stream_error()")
    assert caught.value.errno == errno.ENOTCONN
    program.do("dev.stream_error()")  # told once


def test_streams_of_a_soft_device(mount, agents):
    path = make(mount(), bytes(PAGE))
    program = agents()
    program.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('soft:0')\nmap = dev.mmap(fd, PAGE)\n"
               "map.acquire_on(None)\nmap[0] = 7\nmap.release_on(None)", path=path)
    assert read_file(path)[0] == 7
    with pytest.raises(OSError) as caught:
        program.do("map.acquire_on(1)")
    assert caught.value.errno == errno.EINVAL
