# SPDX-License-Identifier: Apache-2.0
"""Attributes: times, extended attributes."""
import ctypes
import errno
import os
import subprocess
import time

import pytest

from posix_calls import libc, write_file


def test_extended_attributes(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    assert os.listxattr(path) == []
    big = os.urandom(3000)
    os.setxattr(path, "user.big", big)
    os.setxattr(path, "user.empty", b"")
    assert os.getxattr(path, "user.big") == big and os.getxattr(path, "user.empty") == b""
    assert sorted(os.listxattr(path)) == ["user.big", "user.empty"]
    assert os.getxattr(os.path.join(m.data, "f"), "user.big") == big
    # the size alone, and a buffer that is too small
    assert libc.getxattr(os.fsencode(path), b"user.big", None, 0) == 3000
    assert libc.getxattr(os.fsencode(path), b"user.big", ctypes.create_string_buffer(10), 10) == -1
    assert ctypes.get_errno() == errno.ERANGE
    for attempt, code in ((lambda: os.setxattr(path, "user.big", b"", os.XATTR_CREATE), errno.EEXIST),
                          (lambda: os.setxattr(path, "user.no", b"", os.XATTR_REPLACE), errno.ENODATA),
                          (lambda: os.getxattr(path, "user.no"), errno.ENODATA),
                          (lambda: os.removexattr(path, "user.no"), errno.ENODATA)):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == code
    os.removexattr(path, "user.big")
    assert os.listxattr(path) == ["user.empty"]


def test_times(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.utime(path, ns=(1_000_000_001, 2_000_000_002))
    st = os.stat(path)
    assert (st.st_atime_ns, st.st_mtime_ns) == (1_000_000_001, 2_000_000_002)
    subprocess.run(["touch", "-m", path], check=True)  # UTIME_NOW and UTIME_OMIT
    st = os.stat(path)
    assert st.st_atime_ns == 1_000_000_001 and abs(st.st_mtime - time.time()) < 10
    before = st.st_mtime_ns
    time.sleep(0.02)
    with open(path, "ab") as file:
        file.write(b"x")
    assert os.stat(path).st_mtime_ns > before
