# SPDX-License-Identifier: Apache-2.0
"""What the tests of POSIX share: calls that Python lacks, other users."""
import ctypes
import os
import subprocess
import sys

NOBODY = 65534
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16
FALLOC_COLLAPSE_RANGE, FALLOC_INSERT_RANGE, FALLOC_UNSHARE_RANGE = 8, 32, 64
AT_SYMLINK_FOLLOW = 0x400
AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def renameat2(old, new, flags):
    check(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def fallocate(fd, mode, offset, length):
    check(libc.fallocate(fd, mode, offset, length))


def as_user(code, *args, uid=NOBODY, gid=NOBODY, groups=()):
    """Runs Python code as another user in a process of its own; sys.argv[1:] is args. It may import this module, though
    the user may not be allowed to read where it is."""
    with open(__file__, encoding="utf-8") as file:
        module = f"exec({file.read()!r}, vars(sys.modules.setdefault('posix_calls', type(sys)('posix_calls'))))\n"
    return subprocess.run([sys.executable, "-B", "-c", "import os, sys, errno\n" + module + code, *map(str, args)], user=uid,
                          group=gid, extra_groups=list(groups), capture_output=True, text=True)


def link_descriptor(fd, path):
    """Gives a file without a name one."""
    check(libc.linkat(AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, os.fsencode(path), AT_SYMLINK_FOLLOW))
