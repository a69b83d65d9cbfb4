# SPDX-License-Identifier: Apache-2.0
"""What docs/promises.md lets programs of several nodes see, from the logs of nodes_worker.py.

A store is firm from the sync on that came after it, was told of no loss, and so promises that it stays: from then on nobody may see an
older value of its cell who acquires, reads or loads later; nor may anybody ever see a value that its writer had not begun to store."""
import base64
import bisect
import collections
import json

from nodes_worker import APPEND, CELL, CELLS, CPU, DEVICE, FILES, PAGE, WRITE, encode, writer_of

Call = collections.namedtuple("Call", "worker number begin end kind file more error result")
LOOKS = {"read", "load", "device"}
SYNCS = {"fsync", "msync", "gaia_msync"}


def read_log(path, worker):
    """The calls of all programs with that number, in their order; one without an end has error None."""
    calls, open_call = [], None
    with open(path) as file:
        for line in file:
            if not line.endswith("\n"):
                break
            what, number, when, *rest = json.loads(line)
            if what == "begin":
                if open_call:
                    calls.append(Call(worker, *open_call[:2], float("inf"), *open_call[2:], None, None))
                open_call = (number, when, *rest)
            else:
                begun, open_call = open_call, None
                calls.append(Call(worker, *begun[:2], when, *begun[2:], *rest))
    if open_call:
        calls.append(Call(worker, *open_call[:2], float("inf"), *open_call[2:], None, None))
    return calls


class Cells:
    """Of each cell the numbers of its stores, when each had begun, and from when on which was firm. rewrites: of each file (worker, from,
    to), in which that worker wrote all of it again: what another had stored and not synced may have been undone by it."""

    def __init__(self, rough):
        self.rough, self.rewrites = rough, collections.defaultdict(list)
        self.begun = collections.defaultdict(list)  # (file, cell) -> [(number, begin)], both rise
        self.firm = collections.defaultdict(list)   # (file, cell) -> [(end of the sync, number)], both rise

    def in_rough_times(self, begin, end):
        return any(begin < until and since < end for since, until in self.rough)

    def may_be_undone(self, worker, file, begin, end):
        return self.in_rough_times(begin, end) or any(other != worker and begin < until and since < end
                                                      for other, since, until in self.rewrites[file])

    def note_rewrites(self, calls):
        for call in calls:
            if call.kind == "rewrite":
                self.rewrites[call.file].append((call.worker, call.begin, call.end))

    def note_writer(self, calls):
        """All of one writer's."""
        waiting = {}     # (file, cell) -> (way, number, begin, end, released at)
        turn = None
        for call in calls:
            if turn not in (None, call.number // 100000):  # another program: what the last one had not synced may be lost
                waiting = {}
            turn = call.number // 100000
            self.note(call, waiting)

    def note(self, call, waiting):
        good = call.error == 0
        if call.kind == "store":
            for cell in range(call.more["first"], call.more["first"] + call.more["count"]):
                key = call.file, cell
                self.begun[key].append((call.number, call.begin))
                waiting.pop(key, None)
                if good and call.more.get("syncs"):
                    self.make_firm(call, key, call.number, call.begin)
                elif good:
                    waiting[key] = [call.more["way"], call.number, call.begin, call.end, None]
        mine = [key for key in waiting if key[0] == call.file]
        # As a sync that has failed. An acquire has the kernel write back, and what it says of that the kernel tells nobody once more who has
        # the same open file, of which the mapping is.
        if not good and (call.more.get("syncs") or call.kind == "acquire"):
            mine = [key for key in mine if call.kind == "acquire" and waiting[key][0] == DEVICE]
            for key in [key for key in waiting if key[0] == call.file and key not in mine]:
                del waiting[key]
        if call.kind in ("release", "acquire", "gaia_msync", "device", "map", "unmap") or (call.kind == "store" and not good):
            for key in mine:
                of = waiting[key]
                if of[0] != DEVICE or of[4] is not None:
                    continue
                if good and call.kind in ("release", "acquire"):
                    of[4] = call.end
                elif not good or call.kind == "unmap":  # the device's copy has gone, and nothing of it was released
                    del waiting[key]
        if call.kind in SYNCS:
            for key in mine:
                way, number, begin, _, released = waiting.get(key, (None,) * 5)
                if not good:
                    waiting.pop(key, None)
                elif way in (WRITE, CPU) and call.kind != "gaia_msync" or way == DEVICE and released is not None:
                    del waiting[key]
                    self.make_firm(call, key, number, begin)

    def make_firm(self, sync, key, number, begin):
        if not self.may_be_undone(sync.worker, sync.file, begin, sync.end):
            self.firm[key].append((sync.end, number))

    def least(self, key, when):
        """The last number that was firm by then."""
        firm = self.firm.get(key, [])
        at = bisect.bisect_left(firm, (when,))
        return firm[at - 1][1] if at else 0

    def wrong(self, name, cell, bytes_, since, until, old_is_fine=False):
        """What is wrong with these bytes of a cell for who began to look at one moment and was done at another; None: nothing."""
        number, index, owner, kind = CELLS.unpack(bytes_)
        key = name, cell
        if bytes_ != encode(number, name, cell, *writer_of(name, cell, self.workers)):
            return f"{bytes_.hex()} is of no writer of this cell: {index}, {owner}, {kind}"
        begun = self.begun.get(key, [])
        at = bisect.bisect_left(begun, (number,))
        if number and (at == len(begun) or begun[at][0] != number):
            return f"number {number} was never stored; {begun[-5:]}"
        if number and begun[at][1] > until:
            return f"number {number} had not been stored yet"
        least = 0 if old_is_fine else self.least(key, since)
        if number < least:
            later = [n for n, _ in begun if n > number]
            return f"number {number}, though {least} was firm ({writer_of(name, cell, self.workers)}); stored since: {later[:8]}"
        return None


class Judge:
    """problems: what was not as promised. still: of each node (from, to) in which its reads may be old; rough: (from, to) in which
    what is synced may be lost, as the nodes could not reach each other."""

    def __init__(self, workers, still, rough):
        self.workers, self.still = workers, still
        self.problems, self.looked, self.errors = [], 0, collections.Counter()
        self.cells = Cells(rough)
        self.cells.workers = workers
        self.logs, self.calls = [], []

    def add(self, path, worker):
        calls = read_log(path, worker)
        self.cells.note_rewrites(calls)
        self.logs.append(calls)
        self.calls += calls

    def problem(self, text):
        self.problems.append(text)

    def look(self, what, name, data, first, since, until, old_is_fine=False):
        for at in range(0, len(data), CELL):
            self.looked += 1
            wrong = self.cells.wrong(name, (first + at) // CELL, data[at:at + CELL], since, until, old_is_fine)
            if wrong:
                self.problem(f"{what}: {name}, cell {(first + at) // CELL} (page {(first + at) // PAGE}): {wrong}")

    def judge_calls(self):
        for calls in self.logs:
            self.cells.note_writer(calls)
        for call in self.calls:
            if call.error:
                self.errors[call.kind, call.error] += 1
            if call.error == 0 and call.kind in LOOKS:
                data, since = base64.b64decode(call.result), call.more.get("since", call.begin)
                still = any(a < call.end and call.begin < b for a, b in self.still.get(call.worker, []))
                old = self.cells.in_rough_times(since, call.end) or (still and call.kind != "device")
                what = f"{call.kind} of {call.worker} at {call.begin / 1e9:.3f}"
                if len(data) != PAGE:
                    self.problem(f"{what}: {len(data)} bytes")
                self.look(what, call.file, data, call.more["page"] * PAGE, since, call.end, old)
            elif call.error == 0 and call.kind == "whole":
                self.judge_whole(call)

    def judge_whole(self, call):
        """A file that is replaced as a whole has never a part of the new one, nor of another."""
        data = base64.b64decode(call.result)
        if data and data != data[:CELL] * (len(data) // CELL):
            self.problem(f"whole {call.file} of {call.worker} at {call.begin / 1e9:.3f}: {len(data)} bytes, {data[:16].hex()}...")

    def judge_files(self, folder):
        """What is in the data directory at the end."""
        now = float("inf")
        for name in FILES:
            with open(f"{folder}/{name}", "rb") as file:
                data = file.read()
            if len(data) != FILES[name][0] * PAGE:
                self.problem(f"{name} has {len(data)} bytes")
            self.look("the data directory", name, data, 0, now, now)
        self.judge_appends(f"{folder}/appends")
        self.judge_last(folder)

    def judge_appends(self, path):
        with open(path, "rb") as file:
            data = file.read()
        calls = {(c.worker, c.number): c for c in self.calls if c.kind == "append"}
        seen = collections.Counter()
        for at in range(0, len(data), APPEND.size):
            magic, worker, number, proof = APPEND.unpack(data[at:at + APPEND.size].ljust(APPEND.size, b"\0"))
            if magic != b"RCRD" or proof != number * 2654435761 & 0xFFFFFFFF or (worker, number) not in calls:
                self.problem(f"appends at {at} of {len(data)}: {data[at:at + APPEND.size].hex()}")
            else:
                seen[worker, number] += 1
        for key, call in calls.items():
            if seen[key] > 1 or (call.error == 0 and not seen[key] and not self.cells.in_rough_times(call.begin, call.end)):
                self.problem(f"append {key} at {call.begin / 1e9:.3f} is there {seen[key]} times")

    def judge_last(self, folder):
        """Files that one worker alone replaces, or cuts: the last good one, or one after that."""
        import os
        for worker in range(self.workers):
            for kind, name, field in (("replace", f"own-{worker}", "length"), ("resize", f"size-{worker}", "size")):
                calls = [c for c in self.calls if c.kind == kind and c.worker == worker]
                good = [n for n, c in enumerate(calls) if c.error == 0 and not self.cells.in_rough_times(c.begin, c.end)]
                if not good:
                    continue
                size = os.stat(f"{folder}/{name}").st_size
                may = {c.more[field] for c in calls[good[-1]:]}
                if size not in may:
                    self.problem(f"{name} has {size} bytes instead of {sorted(may)[:10]}")

    def judge_last_looks(self, logs):
        """All nodes see the same when nothing changes any more."""
        seen = collections.defaultdict(dict)
        for path, worker in logs:
            for call in read_log(path, worker):
                if not call.kind.startswith("last"):
                    if call.error:
                        self.problem(f"{call.kind} of {worker}, when all was well again: error {call.error}")
                elif call.error != 0:
                    self.problem(f"{call.kind} of {worker}: error {call.error}")
                else:
                    data = base64.b64decode(call.result)
                    seen[call.file][call.kind, worker] = data
                    self.look(f"{call.kind} of {worker}", call.file, data, 0, call.begin, call.end)
        for name, looks in seen.items():
            if len(set(looks.values())) > 1:
                groups = collections.defaultdict(list)
                for who, data in looks.items():
                    groups[data].append(who)
                self.problem(f"{name}: they do not agree: {list(groups.values())}")
