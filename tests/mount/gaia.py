# SPDX-License-Identifier: Apache-2.0
"""gaia.h for tests: the calls of libgaia through ctypes, and device memory as bytes.

A soft device's kernels are whatever threads the program runs, so a test stores to a device by assigning to a slice.
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
    return lib


lib = _load()
MAP_FAILED = ctypes.c_void_p(-1).value


def check(result):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Device:
    def __init__(self, name="soft:0"):
        self.handle = ctypes.c_void_p()
        check(lib.gaia_device_open(name.encode() if name else None, ctypes.byref(self.handle)))

    def close(self):
        lib.gaia_device_close(self.handle)
        self.handle = None

    def mmap(self, fd, length, prot=PROT_READ | PROT_WRITE, flags=0, offset=0):
        address = lib.gaia_mmap(self.handle, length, prot, flags, fd, offset)
        if address == MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return Mapping(self, address, length)

    def stat(self):
        stat = Stat()
        check(lib.gaia_stat(self.handle, ctypes.byref(stat)))
        return stat


class Mapping:
    def __init__(self, device, address, length):
        self.device, self.address, self.length = device, address, length

    def __getitem__(self, key):
        if isinstance(key, slice):
            start, stop, step = key.indices(self.length)
            data = ctypes.string_at(self.address + start, max(stop - start, 0))
            return data[::step] if step != 1 else data
        return ctypes.c_ubyte.from_address(self.address + key).value

    def __setitem__(self, key, value):
        if isinstance(key, slice):
            start, stop, step = key.indices(self.length)
            if step == 1:
                assert len(value) == stop - start
                ctypes.memmove(self.address + start, bytes(value), len(value))
            else:
                for i, byte in zip(range(start, stop, step), value):
                    ctypes.c_ubyte.from_address(self.address + i).value = byte
        else:
            ctypes.c_ubyte.from_address(self.address + key).value = value

    def _range(self, offset, length):
        return self.address + offset, self.length - offset if length is None else length

    def acquire(self, offset=0, length=None):
        check(lib.gaia_macquire(*self._range(offset, length), self.device.handle))

    def release(self, offset=0, length=None):
        check(lib.gaia_mrelease(*self._range(offset, length), self.device.handle))

    def sync(self, flags=MS_SYNC, offset=0, length=None):
        check(lib.gaia_msync(*self._range(offset, length), flags))

    def advise(self, advice, offset=0, length=None):
        check(lib.gaia_madvise(*self._range(offset, length), advice))

    def unmap(self, offset=0, length=None):
        check(lib.gaia_munmap(*self._range(offset, length)))
