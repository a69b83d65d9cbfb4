# SPDX-License-Identifier: Apache-2.0
"""What the steps of exercise.py have to look at: files' content, as far as it is known, and what the process holds."""
import contextlib
import ctypes
import os
import re

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = 4096


class Different(Exception):
    pass


class Bus(Exception):
    """A child has touched device memory, and ended by that."""


def same(got, want, what):
    if got != want:
        raise Different(what)


class Known:
    """A file's content, as far as it was acknowledged."""

    def __init__(self, pages, path):
        self.path = path  # of what the test looks at when the faults are over, or this process is
        self.content = bytearray(pages * PAGE)
        self.unsure = set()  # pages that a failed step may have changed or not

    def write(self, fd, data, offset):
        """A write() that fails may have written some of its bytes."""
        # Those that were not sure before are not now: they are not written whole.
        pages = set(range(offset // PAGE, (offset + len(data) + PAGE - 1) // PAGE)) - self.unsure
        self.unsure |= pages
        self.save()
        done = os.pwrite(fd, data, offset)
        self.content[offset:offset + done] = data[:done]
        if done == len(data):
            self.unsure -= pages
        self.save()

    def page(self, page):
        return self.content[page * PAGE:(page + 1) * PAGE]

    def check(self, fd, first=0, last=None):
        for page in range(first, last or len(self.content) // PAGE):
            if page not in self.unsure:
                same(os.pread(fd, PAGE, page * PAGE), self.page(page), f"page {page}")

    def compare(self, map, first=0, last=None):
        """As a device sees it."""
        for page in range(first, last or len(self.content) // PAGE):
            if page not in self.unsure:
                same(map[page * PAGE:(page + 1) * PAGE], self.page(page), f"page {page} on a device")

    @contextlib.contextmanager
    def changed(self, pages):
        """Pages that are changed: sure again if all goes well, and if they were."""
        sure = set(pages) - self.unsure
        self.unsure |= sure
        self.save()
        yield self.content
        self.unsure -= sure
        self.save()

    def save(self):
        with open(self.path, "wb") as file:
            file.write(bytes(self.content) + bytes(page in self.unsure for page in range(len(self.content) // PAGE)))


def held():
    """Descriptors, and mappings of libgaia's memory, by their names."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(re.sub(r"\d+", "N", os.readlink(f"/proc/self/fd/{fd}")))
    with open("/proc/self/maps") as file:
        found += [line.split(None, 5)[5].strip() for line in file if re.search("memfd|userfaultfd|gaiafs:", line)]
    return sorted(found)


def fallocate(fd, mode, offset, length):
    if LIBC.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")
