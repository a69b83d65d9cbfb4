# SPDX-License-Identifier: Apache-2.0
"""A model of one file, byte by byte, and of what devices have stored to it: what test_cuda_storm.py compares with.

Each byte belongs to one who stores to it, so nothing is left to chance: what others write must not be undone, and what the owner
has released must be there. Until it is released a stored byte may be seen or not: an eviction
releases early, and so does who collects what was stored to the same page before."""
from helpers import PAGE

SIZE = 12 * PAGE
CPU = 0


class Device:
    """One who stores. after: whose stores count as released with its own, as they are below it (GAIA_DEMAND)."""

    def __init__(self, number, after=()):
        self.number, self.after = number, after
        self.stored = {}  # offset: the values, the last one last, that are not released
        self.seen = 0  # where the file ended at the least since the last acquire
        self.wild = set()  # stored past the end

    def cut(self, size):
        self.seen = min(self.seen, size)
        self.stored = {at: values for at, values in self.stored.items() if at < size}


class Model:
    def __init__(self, rng, content, devices):
        self.content, self.devices = bytearray(content), devices
        self.owner = bytearray()
        while len(self.owner) < SIZE:
            self.owner += bytes([rng.randrange(len(devices) + 1)]) * rng.choice([1, 3, 17, 200, 1500])

    def part(self, rng, owner, end, first=0):
        """(where, how much) of what belongs to this owner between the two; None: nothing is found."""
        for _ in range(50):
            at = rng.randrange(first, end) if first < end else end
            if at < end and self.owner[at] == owner:
                length = 1
                while length < 200 and at + length < end and self.owner[at + length] == owner:
                    length += 1
                return at, length
        return None

    def write(self, at, data):
        self.resize(max(len(self.content), at + len(data)))
        self.content[at:at + len(data)] = data

    def resize(self, size):
        if size < len(self.content):
            for device in self.devices:
                device.cut(size)
        del self.content[size:]
        self.content += bytes(size - len(self.content))

    def release(self, device, first=0, end=SIZE):
        for one in (device, *device.after):
            for at in [at for at in one.stored if first <= at < end]:
                self.content[at] = one.stored.pop(at)[-1]

    def acquire(self, device):
        self.release(device)
        device.seen = len(self.content)
        device.wild = {at for at in device.wild if at >= len(self.content)}

    def store(self, rng, device, at, now):
        """Bytes to store where these are now: none is what is there, or what others may see, as that would be no store."""
        data = bytearray()
        for i, there in enumerate(now):
            values = device.stored.setdefault(at + i, [])
            not_these = {there, self.content[at + i], *values}
            data.append(rng.choice([value for value in range(256) if value not in not_these]))
            values.append(data[-1])
        return bytes(data)

    def check(self, when, found):
        """What a CPU reads."""
        assert len(found) == len(self.content), f"{when}: {len(found)} bytes instead of {len(self.content)}"
        if found == self.content:
            return
        early = {}
        for device in self.devices:
            early.update(device.stored)
        wrong = [at for at in range(len(found)) if found[at] != self.content[at] and found[at] not in early.get(at, ())]
        assert not wrong, (f"{when}: {len(wrong)} bytes, from {wrong[0]} (page {wrong[0] // PAGE}, owner {self.owner[wrong[0]]}) to "
                           f"{wrong[-1]}: {found[wrong[0]:][:8]} instead of {bytes(self.content[wrong[0]:][:8])}")
