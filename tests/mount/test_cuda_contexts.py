# SPDX-License-Identifier: Apache-2.0
"""A thread that calls libgaia may have any context of CUDA's, or none: the calls are about the mapping's GPU all the same, and the
thread has afterwards what it had before. The GPUs are a stand-in, as in test_cuda_maps.py, which waits for a context's own
streams only, as a driver does."""
import pytest

from files import pattern
from gpu_fixture import gpu, make, only_here  # noqa: F401
from helpers import PAGE, agents, read_file, write_at  # noqa: F401
from test_cuda_streams import STREAM

# in_a_thread(function): with that context, or none, before and after. late(function): a kernel, while the thread waits already.
THREADS = STREAM + """
own, maps = gaia.Gpu(1).context, []
def current():
    context = ctypes.c_void_p()
    assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value
def in_a_thread(function):
    said = []
    def run():
        assert not another or cuda.cuCtxSetCurrent(own) == 0
        before = current()
        function()
        said.append((before == current(), before == (own.value if another else None)))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return said
def late(function):
    gate.clear()
    kernel(gate.wait)
    kernel(function)
    threading.Timer(0.2, gate.set).start()
"""


@only_here
@pytest.mark.parametrize("another", [False, True], ids=["none", "another GPU's"])
def test_the_context_of_a_thread(gpu, another):
    m = gpu.mount("gpus=2")
    path = make(m, pattern(600 * PAGE))
    program = gpu.program(path, standin="gpus=2")
    program.do(THREADS, another=another)

    def calls(*all_of_them):
        for call in all_of_them:
            assert program(f"in_a_thread(lambda: {call})") == [(True, True)], call

    program.do("late(store(9 * PAGE, b'one'))")
    calls("map.release()")  # which waits for what GPU 0 is doing
    assert read_file(path)[9 * PAGE:9 * PAGE + 3] == b"one"
    write_at(path, b"cpu", 0)
    program.do("done = []\nlate(lambda: done.append(1))")
    calls("map.acquire()")
    assert program("(done, map[:3])") == ([1], b"cpu")
    calls("maps.append(dev.mmap(fd, 3 * PAGE))", "maps.pop().unmap()", "map.release_on(stream)", "map.acquire_on(stream)",
          "dev.stream_error()", "dev.stat()", "maps.append(dev.mmap(fd, 3 * PAGE, flags=gaia.DEMAND))", "maps[0].acquire()",
          "maps[0].release()", "maps.pop().unmap()", "map.unmap()", "dev.close()")
