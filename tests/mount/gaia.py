# SPDX-License-Identifier: Apache-2.0
"""gaia.h for tests: the calls of libgaia through ctypes, and device memory as bytes.

A soft device's kernels are whatever threads the program runs, so a test stores to a device by assigning to a slice. On
a GPU ($GAIA_DEVICE=cuda:N) that is a copy by the driver, which is as good as a kernel.
"""
import ctypes
import os

PROT_READ, PROT_WRITE = 1, 2
SHARED, RESIDENT, DEMAND = 0, 1, 2
ADV_NORMAL, ADV_RANDOM, ADV_SEQUENTIAL, ADV_WILLNEED, ADV_DONTNEED = range(5)
MS_ASYNC, MS_SYNC = 1, 4

FIELDS = ("capacity_bytes resident_bytes faults write_faults bytes_in bytes_out collects merges pages_merged "
          "peer_reads evictions drops twins").split()


class Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in FIELDS]


def _load():
    top = os.path.join(os.path.dirname(__file__), "..", "..")
    # A sanitizer's runtime must be the first library of a program, which Python is not: the daemon and the tools of a
    # sanitizer build are tested with the plain library beside them.
    folder = top if os.environ.get("GAIAFS_SANITIZE") else os.environ.get("GAIAFS_BIN") or top
    lib = ctypes.CDLL(os.path.join(folder, "libgaia.so"), use_errno=True)
    lib.gaia_mmap.restype = ctypes.c_void_p
    lib.gaia_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                              ctypes.c_int64]
    for name in "gaia_munmap", "gaia_msync", "gaia_madvise":
        getattr(lib, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int][:2 + (name != "gaia_munmap")]
    for name in "gaia_macquire", "gaia_mrelease":
        getattr(lib, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    lib.gaia_device_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
    lib.gaia_device_close.argtypes = [ctypes.c_void_p]
    lib.gaia_device_close.restype = None
    lib.gaia_stat.argtypes = [ctypes.c_void_p, ctypes.POINTER(Stat)]
    for name in "gaia_macquire_on", "gaia_mrelease_on":
        getattr(lib, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
    lib.gaia_stream_error.argtypes = [ctypes.c_void_p]
    return lib


lib = _load()
MAP_FAILED = ctypes.c_void_p(-1).value


def check(result):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def default_device():
    """What the tests map on, unless they say another."""
    return os.environ.get("GAIA_DEVICE") or "soft:0"


class Host:
    """Memory of this machine, by its address."""

    @staticmethod
    def load(address, length):
        return ctypes.string_at(address, length)

    @staticmethod
    def store(address, data):
        ctypes.memmove(address, data, len(data))


class Gpu:
    """Memory of a GPU, by copies of the driver's."""

    def __init__(self, ordinal):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
        self.cuda.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
        self.context, device = ctypes.c_void_p(), ctypes.c_int()
        self._check(self.cuda.cuInit(0))
        self._check(self.cuda.cuDeviceGet(ctypes.byref(device), ordinal))
        self._check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))

    @staticmethod
    def _check(error):
        assert error == 0, f"CUDA error {error}"

    def _copy(self, function, to, source, length):
        # Whatever thread this is: the context is made its own each time.
        self._check(self.cuda.cuCtxSetCurrent(self.context))
        if length:
            self._check(function(to, source, length))

    def load(self, address, length):
        data = ctypes.create_string_buffer(length)
        self._copy(self.cuda.cuMemcpyDtoH_v2, ctypes.addressof(data), address, length)
        return data.raw

    def store(self, address, data):
        source = ctypes.create_string_buffer(data, len(data))
        self._copy(self.cuda.cuMemcpyHtoD_v2, address, ctypes.addressof(source), len(data))


class Device:
    def __init__(self, name=None):
        self.handle = ctypes.c_void_p()
        name = name or default_device()
        check(lib.gaia_device_open(name.encode(), ctypes.byref(self.handle)))
        self.memory = Gpu(int(name[5:])) if name.startswith("cuda:") else Host

    def close(self):
        lib.gaia_device_close(self.handle)
        self.handle = None

    def mmap(self, fd, length, prot=PROT_READ | PROT_WRITE, flags=0, offset=0):
        address = lib.gaia_mmap(self.handle, length, prot, flags, fd, offset)
        if address == MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return Mapping(self, address, length)

    def stream_error(self):
        check(lib.gaia_stream_error(self.handle))

    def stat(self):
        stat = Stat()
        check(lib.gaia_stat(self.handle, ctypes.byref(stat)))
        return stat


class Mapping:
    def __init__(self, device, address, length):
        self.device, self.address, self.length = device, address, length

    def __getitem__(self, key):
        load = self.device.memory.load
        if isinstance(key, slice):
            start, stop, step = key.indices(self.length)
            data = load(self.address + start, max(stop - start, 0))
            return data[::step] if step != 1 else data
        return load(self.address + key, 1)[0]

    def __setitem__(self, key, value):
        store = self.device.memory.store
        if isinstance(key, slice):
            start, stop, step = key.indices(self.length)
            if step == 1:
                assert len(value) == stop - start
                store(self.address + start, bytes(value))
            else:
                for i, byte in zip(range(start, stop, step), value):
                    store(self.address + i, bytes([byte]))
        else:
            store(self.address + key, bytes([value]))

    def _range(self, offset, length):
        return self.address + offset, self.length - offset if length is None else length

    def acquire(self, offset=0, length=None):
        check(lib.gaia_macquire(*self._range(offset, length), self.device.handle))

    def release(self, offset=0, length=None):
        check(lib.gaia_mrelease(*self._range(offset, length), self.device.handle))

    def acquire_on(self, stream, offset=0, length=None):
        check(lib.gaia_macquire_on(*self._range(offset, length), self.device.handle, stream))

    def release_on(self, stream, offset=0, length=None):
        check(lib.gaia_mrelease_on(*self._range(offset, length), self.device.handle, stream))

    def sync(self, flags=MS_SYNC, offset=0, length=None):
        check(lib.gaia_msync(*self._range(offset, length), flags))

    def advise(self, advice, offset=0, length=None):
        check(lib.gaia_madvise(*self._range(offset, length), advice))

    def unmap(self, offset=0, length=None):
        check(lib.gaia_munmap(*self._range(offset, length)))
