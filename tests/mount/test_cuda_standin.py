# SPDX-License-Identifier: Apache-2.0
"""What the stand-in for NVIDIA's driver refuses, or ends a program for, because a driver does so, or does worse and says nothing:
else a bug of ours could hide behind it. No mount."""
import os
import re
import signal
import subprocess
import sys

import pytest

from conftest import TOP
from helpers import cuda_standin

PROGRAM = """
import ctypes, os
from ctypes import byref, c_int, c_longlong as c_long, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20
def find(name, version):
    function, status = c_void_p(), c_int()
    assert cuda.cuGetProcAddress_v2(name.encode(), byref(function), version, ctypes.c_uint64(0), byref(status)) == 0
    return ctypes.CFUNCTYPE(c_int, *[c_long] * 11)(function.value)
def call(name, version, *arguments):
    return find(name, version)(*[a if isinstance(a, int) else ctypes.cast(a, c_void_p).value or 0 for a in arguments], *[0] * (11 - len(arguments)))
def got(name, version, *arguments):
    out = c_void_p()
    assert call(name, version, byref(out), *arguments) == 0, name
    return out.value
class Properties(ctypes.Structure):
    _fields_ = [(n, c_int) for n in ("type", "handles", "where", "id")] + [("win32", c_void_p), ("flags", c_long)]
class Access(ctypes.Structure):
    _fields_ = [(n, c_int) for n in ("where", "id", "flags")]
assert cuda.cuInit(0) == 0
GPU, OTHER = 7, 8
contexts = {}
def enter(gpu):
    contexts[gpu] = got("cuDevicePrimaryCtxRetain", 7000, gpu)
    assert cuda.cuCtxSetCurrent(c_void_p(contexts[gpu])) == 0
def create(gpu=GPU):
    return got("cuMemCreate", 10020, 2 * MIB, byref(Properties(1, 1, 1, gpu)), 0)
def map(memory):
    address = got("cuMemAddressReserve", 10020, 2 * MIB, 0, 0, 0)
    assert call("cuMemMap", 10020, address, 2 * MIB, 0, memory, 0) == 0
    return address
def allow(address, gpu=GPU):
    return call("cuMemSetAccess", 10020, address, 2 * MIB, byref(Access(1, gpu, 3)), 1)
def new_stream():
    return got("cuStreamCreate", 2000, 1)
kept = []
def load():
    kept.append(open(PTX, "rb").read() + bytes(1))
    return got("cuModuleLoadData", 2000, ctypes.c_char_p(kept[-1]))
def hash_of(module):
    return got("cuModuleGetFunction", 2000, module, ctypes.c_char_p(b"gaia_hash_pages"))
def launch(function, memory):
    arguments = (c_long * 3)(memory, 1, memory)
    pointers = (c_void_p * 3)(*[ctypes.addressof(arguments) + 8 * i for i in range(3)])
    return call("cuLaunchKernel", 4000, function, 1, 1, 1, 32, 1, 1, 0, new_stream(), byref(pointers), 0)
host = ctypes.create_string_buffer(2 * MIB)
def copy(to, bytes, stream):
    return call("cuMemcpyHtoDAsync", 3020, to, byref(host), bytes, stream)
enter(GPU)
""".replace("PTX", repr(os.path.join(TOP, "gpu", "kernels.ptx")))


def run(code, words=""):
    env = os.environ | {"LD_LIBRARY_PATH": cuda_standin(), "STANDIN_CUDA": words}
    return subprocess.run([sys.executable, "-B", "-c", PROGRAM + code], env=env, text=True, capture_output=True, timeout=50)


ENDS = {
    "unmapped under a stream": ("memory = map(create()); allow(memory); copy(memory, MIB, new_stream())\n"
                                "call('cuMemUnmap', 10020, memory, 2 * MIB)", "memory is unmapped that a stream uses yet"),
    "unmapped under a stream that is gone": ("memory = map(create()); allow(memory); stream = new_stream()\n"
                                             "copy(memory, MIB, stream); call('cuStreamDestroy', 4000, stream)\n"
                                             "call('cuMemUnmap', 10020, memory, 2 * MIB)", "memory is unmapped that a stream uses yet"),
    "a handle twice": ("memory = create(); call('cuMemRelease', 10020, memory)\n"
                       "call('cuMemRelease', 10020, memory)", "a handle of memory that there is not, or not any more"),
    "mapped, but released": ("memory = create(); map(memory); call('cuMemRelease', 10020, memory)\n"
                             "map(memory)", "a handle of memory that there is not, or not any more"),
    "freed twice": ("memory = got('cuMemAlloc', 3020, 4096); call('cuMemFree', 3020, memory)\n"
                    "call('cuMemFree', 3020, memory)", "memory is freed that there is not, or not any more"),
    "a stream that is gone": ("stream = new_stream(); call('cuStreamDestroy', 4000, stream)\n"
                              "call('cuStreamSynchronize', 2000, stream)", "a stream that there is not, or not any more"),
    "another GPU's memory": ("memory = got('cuMemAlloc', 3020, 4096); enter(OTHER); launch(hash_of(load()), memory)",
                             "a kernel gets memory of another GPU"),
    "a module twice": ("module = load(); call('cuModuleUnload', 2000, module)\n"
                       "call('cuModuleUnload', 2000, module)", "a module that there is not, or not any more"),
    "a kernel of a module that is gone": ("memory = got('cuMemAlloc', 3020, 4096); module = load(); hash = hash_of(module)\n"
                                          "call('cuModuleUnload', 2000, module); launch(hash, memory)",
                                          "a kernel of a module that there is not, or not any more"),
    "pinned memory twice": ("memory = got('cuMemHostAlloc', 2020, 4096, 1); call('cuMemFreeHost', 2000, memory)\n"
                            "call('cuMemFreeHost', 2000, memory)", "pinned memory is freed that there is not, or not any more"),
    "unmapped, but registered": ("libc = ctypes.CDLL(None); libc.mmap.restype = c_void_p\n"
                                 "memory = libc.mmap(None, c_long(2 * MIB), 3, 0x22, -1, c_long(0))\n"
                                 "assert call('cuMemHostRegister', 6050, memory, 2 * MIB, 1) == 0\n"
                                 "libc.munmap(c_void_p(memory + MIB), c_long(MIB)); call('cuMemHostUnregister', 4000, memory)",
                                 "memory was unmapped that is registered yet"),
}


@pytest.mark.whole
@pytest.mark.parametrize("code, why", ENDS.values(), ids=ENDS)
def test_what_no_driver_survives(code, why):
    done = run(code, "gpus=2,slow=2000000")
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, f"stand-in for CUDA: {why}\n")


REFUSED = {
    "past the end of mapped memory": ("memory = map(create()); allow(memory)", "copy(memory + MIB, MIB + 1, new_stream())", 1),
    "past the end of plain memory": ("memory = got('cuMemAlloc', 3020, 4096)", "copy(memory + 1, 4096, new_stream())", 1),
    "mapped, but without access": ("memory = map(create())", "copy(memory, MIB, new_stream())", 1),
    "not the GPU's": ("", "copy(ctypes.addressof(host), 1, new_stream())", 1),
    "a copy by another GPU": ("memory = map(create()); allow(memory); enter(OTHER)", "copy(memory, MIB, new_stream())", 1),
    "access for another GPU": ("memory = map(create())", "allow(memory, OTHER)", 1),
    "another context's stream": ("stream = new_stream(); enter(OTHER); memory = got('cuMemAlloc', 3020, 4096)",
                                 "copy(memory, 4096, stream)", 400),
    "a descriptor that is no memory": ("fd = os.memfd_create('x'); os.ftruncate(fd, 2 * MIB); out = c_void_p()",
                                       "call('cuMemImportFromShareableHandle', 10020, byref(out), fd, 1)", 1),
    "memory that is registered in part": ("memory = got('cuMemAlloc', 3020, 2 * MIB)\n"
                                          "call('cuMemHostRegister', 6050, ctypes.addressof(host), MIB, 1)",
                                          "copy(memory, MIB + 1, new_stream())", 1),
    "a captured stream, asked": ("stream = new_stream(); cuda.cuStreamBeginCapture_v2(c_void_p(stream), 1)",
                                 "call('cuStreamQuery', 2000, stream)", 900),
    "a captured stream, waited for": ("stream = new_stream(); cuda.cuStreamBeginCapture_v2(c_void_p(stream), 1)",
                                      "call('cuStreamSynchronize', 2000, stream)", 900),
    "an ordinal": ("out = c_int()", "call('cuDeviceGetAttribute', 2000, byref(out), 16, 0)", 101),
}


@pytest.mark.whole
@pytest.mark.parametrize("begin, last, error", REFUSED.values(), ids=REFUSED)
def test_what_a_driver_refuses(begin, last, error):
    done = run(f"{begin}\nprint({last})", "gpus=2")
    assert done.returncode == 0, done.stderr
    assert int(re.fullmatch(r"(\d+)\n", done.stdout)[1]) == error


@pytest.mark.whole
def test_a_wait_for_a_context():
    """It is for that one's streams, and for no other's: whose context is the thread's matters."""
    done = run("memory = got('cuMemAlloc', 3020, 2 * MIB); stream = new_stream(); copy(memory, MIB, stream); enter(OTHER)\n"
               "def state():\n    return call('cuStreamQuery', 2000, stream)\n"
               "call('cuCtxSynchronize', 2000); states = [state()]; enter(GPU); call('cuCtxSynchronize', 2000)\n"
               "print(*states, state())", "gpus=2,slow=1000000")
    assert (done.returncode, done.stdout) == (0, "600 0\n"), done.stderr


@pytest.mark.whole
def test_host_functions():
    """A driver may have one thread for those of all streams: one must not wait for another's."""
    done = run("import threading, time\nseen, gate = [], threading.Event()\nkind = ctypes.CFUNCTYPE(None, c_void_p)\n"
               "first = kind(lambda context: (seen.append(1), gate.wait(), seen.append(2)) and None)\n"
               "second = kind(lambda context: seen.append(3))\none, other = new_stream(), new_stream()\n"
               "call('cuLaunchHostFunc', 10000, one, first, 0)\nwhile not seen:\n    time.sleep(0.001)\n"
               "call('cuLaunchHostFunc', 10000, other, second, 0)\ntime.sleep(0.3)\ngate.set()\n"
               "call('cuCtxSynchronize', 2000)\nprint(*seen)")
    assert (done.returncode, done.stdout) == (0, "1 2 3\n"), done.stderr
