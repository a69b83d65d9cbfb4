# SPDX-License-Identifier: Apache-2.0
"""The page that a test shares with a program whose calls fail, or bring death: struct plan of table.c."""
import ctypes
import mmap
import os
import re

ROWS_MAX, SITES_MAX = 128, 2048

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "rows.h")) as rows_file:
    _FOUND = re.findall(r"^(ROW|REPLY|PEER)\((\w+)\)$", rows_file.read(), re.M)
ALL_ROWS = [name for _, name in _FOUND]
# Those that the exercise walks; the others, places to die and what the transport alone calls, come after them.
ROWS = [name for kind, name in _FOUND if kind == "ROW"]
assert ALL_ROWS[:len(ROWS)] == ROWS and len(ALL_ROWS) <= ROWS_MAX


class Site(ctypes.Structure):
    """A call in the program: its row, and the address behind it from the program's beginning."""
    _fields_ = [("key", ctypes.c_uint64), ("calls", ctypes.c_int64)]


class Plan(ctypes.Structure):
    """In a file that the program maps. `row` is set last: from then on it counts."""
    _fields_ = [("row", ctypes.c_int32), ("error", ctypes.c_int32), ("countdown", ctypes.c_int64),
                ("sticky", ctypes.c_int32), ("landed", ctypes.c_int32), ("calls", ctypes.c_int64 * ROWS_MAX),
                ("names", ctypes.c_char * 32 * ROWS_MAX), ("kill", ctypes.c_int32), ("victim", ctypes.c_int32),
                ("only", ctypes.c_int64), ("signal", ctypes.c_int32), ("wait_ms", ctypes.c_int32),
                ("site", ctypes.c_uint64), ("live", ctypes.c_int64), ("sites", Site * SITES_MAX)]

    @classmethod
    def make(cls, path):
        with open(path, "wb") as file:
            file.truncate(ctypes.sizeof(cls))
        with open(path, "r+b") as file:
            plan = cls.from_buffer(mmap.mmap(file.fileno(), 0))
        plan.row = -1
        return plan

    def seen(self):
        """How often each site has called so far."""
        return {site.key: site.calls for site in self.sites if site.key}

    def arm(self, row, error, number, sticky, site=0):
        """Let call `number` of a row (or of one site of it), counted from now, fail; with sticky those after it, too."""
        self.row = -1
        self.site = site
        self.error, self.countdown, self.sticky, self.landed, self.wait_ms, self.kill = error, number, sticky, 0, 0, 0
        self.row = row

    def arm_wait(self, row, wait_ms, number, sticky):
        """Let it take so long, and do what it does."""
        self.row = -1
        self.site = 0
        self.wait_ms, self.countdown, self.sticky, self.landed, self.kill = wait_ms, number, sticky, 0, 0
        self.row = row

    def arm_kill(self, row, when, number, only=0, victim=0, signal=0):
        """Let it bring SIGKILL (or another signal) to the victim (0: who calls), before it (1) or after it (2)."""
        self.row = -1
        self.site = 0
        self.only, self.kill, self.victim, self.signal, self.wait_ms = only, when, victim, signal, 0
        self.countdown, self.landed, self.sticky = number, 0, 0
        self.row = row
