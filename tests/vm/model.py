# SPDX-License-Identifier: Apache-2.0
"""What a file may be after a power cut, from what was done to it and what of that was acknowledged as durable."""
import struct

PAGE = 4096
GOLDEN = 0x9e3779b97f4a7c15
WORD = (1 << 64) - 1


def pattern(offset, length, tag):
    """As fill() of tool_agent.c."""
    first = offset // PAGE
    pages = []
    for page in range(first, (offset + length - 1) // PAGE + 1):
        pages.append(struct.pack("<Q", tag ^ ((page + 1) * GOLDEN & WORD)) * (PAGE // 8))
    start = offset - first * PAGE
    return b"".join(pages)[start:start + length]


class File:
    """durable: what must be there. later: what may have been put over it since, any of it: (kind, offset, bytes, number),
    where the kinds are "write", "store" through a CPU's mapping, "device" (stored there) and "released". What CPUs do
    is numbered in its order: a store that is made durable after a newer write() does not go over that."""

    def __init__(self):
        self.durable = bytearray()
        self.sizes = [0]  # that it has had since
        self.later = []
        self.count = 0
        self.stamps = []  # of each byte: the number of what is durable there

    @property
    def size(self):
        return self.sizes[-1]

    def put(self, kind, offset, data):
        self.add(kind, offset, data)
        self.sizes.append(max(self.size, offset + len(data)))

    def add(self, kind, offset, data):
        self.count += 1
        self.later.append((kind, offset, data, self.count))

    def truncate(self, size):
        if size < self.size:
            self.add("write", size, bytes(self.size - size))
        self.sizes.append(size)

    def release(self):
        self.later = [("released" if kind == "device" else kind, *rest) for kind, *rest in self.later]

    def apply(self, offset, data, number):
        end = offset + len(data)
        self.durable += bytes(max(0, end - len(self.durable)))
        self.stamps += [0] * max(0, end - len(self.stamps))
        for at in range(offset, end):
            if self.stamps[at] < number:
                self.durable[at], self.stamps[at] = data[at - offset], number

    def sync(self, kinds):
        """All of these kinds is durable now, and the size."""
        for kind, offset, data, number in self.later:
            if kind in kinds:
                self.apply(offset, data, number)
        self.later = [item for item in self.later if item[0] not in kinds]
        self.sizes = [self.size]
        self.durable = self.durable[:self.size].ljust(self.size, b"\0")

    def wrong(self, found, stale_allowed=False):
        """None, or what is wrong with the bytes that were found. stale_allowed: what was not made durable may be
        anything (a filesystem that does not order data before metadata)."""
        if not min(self.sizes) <= len(found) <= max(self.sizes):
            return f"{len(found)} bytes long, not {min(self.sizes)} to {max(self.sizes)}"
        must = bytes(self.durable[:len(found)]).ljust(len(found), b"\0")
        if found == must:
            return None
        for start in range(0, len(found), 512):
            if found[start:start + 512] == must[start:start + 512]:
                continue
            for at in range(start, min(start + 512, len(found))):
                if found[at] == must[at] or (stale_allowed and at >= len(self.durable)):
                    continue
                may = [data[at - offset] for kind, offset, data, number in self.later if offset <= at < offset + len(data)
                       and (kind in ("device", "released") or at >= len(self.stamps) or number > self.stamps[at])]
                if found[at] not in may and not (stale_allowed and may):
                    return (f"byte {at} (of {len(found)}) is {found[at]:#x}; {must[at]:#x} is durable, and "
                            f"{len(may)} others were written after it")
        return None
