# SPDX-License-Identifier: Apache-2.0
"""Files that are cut while their kernel writes back."""
import ctypes
import mmap
import os
import threading

import pytest

from helpers import PAGE, make_random

PAGES = 256
ROUNDS = 60
WAIT_BEFORE, WRITE, WAIT_AFTER = 1, 2, 4
libc = ctypes.CDLL(None, use_errno=True)


@pytest.mark.parametrize("options", ["passthrough=on", "passthrough=off"])
def test_a_file_opened_with_o_trunc_is_empty(mount, options):
    """Beside a write-back of what was stored through a mapping: the kernel waits for that, and sends no other."""
    m, rng = mount(options), make_random("truncations")
    path = os.path.join(m.mnt, "f")
    for _ in range(ROUNDS):
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.truncate(path, PAGES * PAGE)
        with mmap.mmap(fd, PAGES * PAGE) as cpu:
            for page in range(PAGES):
                cpu[page * PAGE] = 65
            writer = threading.Thread(target=libc.sync_file_range, args=(fd, ctypes.c_long(0), ctypes.c_long(0),
                                                                         WAIT_BEFORE | WRITE | WAIT_AFTER))
            writer.start()
            threading.Event().wait(rng.random() * 0.0006)
            os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
            writer.join()
            os.fsync(fd)
            assert os.fstat(fd).st_size == 0
            assert os.stat(os.path.join(m.data, "f")).st_size == 0
        os.close(fd)
