#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The calls in a program that go through tests/faults/table.c: where they are in the source, and which of them were reached.

objdump says where they are, addr2line of which line and function (also of inlined ones). A call that is a function's last
step may be a jump: it returns to who called the function, by which it is known.
"""
import collections
import os
import re
import subprocess

from plan import ALL_ROWS, ROWS

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
Where = collections.namedtuple("Where", "file function line row")


def listed(program):
    """Of sites.txt what is said of this program, (file, function, row): the reason."""
    found, reason = {}, ""
    others = tuple(f"{name}:" for name in ("mount.gaiafs", "libgaia.so") if name != program)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sites.txt")) as file:
        for line in file:
            if line.startswith("["):
                reason = line.strip("[]\n")
            elif line.strip() and not line.startswith("#") and not reason.startswith(others):
                path, function, *rows = line.split()
                found |= {(path, function, row): reason for row in rows}
    return found


class Sites:
    """Of a program or a library, its faults/ build."""

    def __init__(self, program):
        self.program = program
        self.calls = {}  # address behind a call to a row: (address of the call, row)
        self.jumps = collections.defaultdict(list)  # function: of its last steps, (address, row)
        self.onward = collections.defaultdict(set)  # function: functions that it jumps to
        self.called = {}  # address behind any other call: the function, or None where a pointer has it
        self._read()
        self.where = self._source([address for address, _ in self._all()])

    def _all(self):
        yield from self.calls.values()
        for jumps in self.jumps.values():
            yield from jumps

    def _read(self):
        text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", self.program], capture_output=True, text=True,
                              check=True).stdout
        inside = before = None
        for address, name, at, what, target in re.findall(
                r"^([0-9a-f]+) <(.*)>:$|^ *([0-9a-f]+):\t(\w+)(?: +(?:[0-9a-f]+ <([^>+]+)>)?.*)?$", text, re.M):
            if name:
                inside, before = name, None
                continue
            at = int(at, 16)
            if before:
                self._note_call(at, *before)
            before = (at, target) if what == "call" and not inside.startswith("__wrap_") else None
            if what.startswith("j") and target and target != inside and not inside.startswith("__wrap_"):
                self._note_jump(at, inside, target)

    def _note_call(self, behind, address, target):
        if target.startswith("__wrap_"):
            self.calls[behind] = address, target.removeprefix("__wrap_")
        else:
            self.called[behind] = target or None

    def _note_jump(self, address, inside, target):
        if target.startswith("__wrap_"):
            self.jumps[inside].append((address, target.removeprefix("__wrap_")))
        else:
            self.onward[inside].add(target)

    def _source(self, addresses):
        """address: (file, function, line), of the innermost function that was inlined there."""
        done = subprocess.run(["addr2line", "-f", "-e", self.program], input="\n".join(f"{a:x}" for a in addresses), text=True,
                              capture_output=True, check=True).stdout.split("\n")
        found = {}
        for address, function, line in zip(addresses, done[::2], done[1::2]):
            path, _, number = line.partition(" (")[0].rpartition(":")
            # Of a part that the compiler split off, the function's own name.
            found[address] = os.path.relpath(os.path.join(TOP, path), TOP), function.partition(".")[0], number
        return found

    def _through(self, function):
        """The jumps to rows that end a call of this function."""
        seen, ahead = set(), [function]
        while ahead:
            name = ahead.pop()
            if name not in seen:
                seen.add(name)
                yield from self.jumps.get(name, ())
                ahead += self.onward.get(name, ())

    def addresses(self, keys):
        """Of the calls that these sites of a plan are."""
        for key in keys:
            behind, row = key >> 8, ALL_ROWS[key & 255]
            if self.calls.get(behind, (0, ""))[1] == row:
                yield self.calls[behind][0]
            elif behind in self.called:
                function = self.called[behind]
                jumps = self._through(function) if function else (jump for jumps in self.jumps.values() for jump in jumps)
                yield from (address for address, name in jumps if name == row)

    def lines(self, keys):
        """Every call of our own code: whether it was reached."""
        reached, found = set(self.addresses(keys)), {}
        for address, row in self._all():
            where = Where(*self.where[address], row)
            if row in ROWS and not where.file.startswith("tests/"):
                found[where] = found.get(where, False) or address in reached
        return found

    def reasons(self, key):
        """Why it is in sites.txt, if it is."""
        found = listed(os.path.basename(self.program))
        for address in self.addresses([key]):
            file, function, _ = self.where[address]
            yield found.get((file, function, ALL_ROWS[key & 255]), "")

    def name(self, key):
        """Of a site, for people."""
        for address in self.addresses([key]):
            file, function, line = self.where[address]
            return f"{file}:{line} {function}()"
        return f"{key >> 8:x}"
