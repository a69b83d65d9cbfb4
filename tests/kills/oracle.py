# SPDX-License-Identifier: Apache-2.0
"""What the promises table (README.md) lets a file hold after a kill, from the logs of what was answered.

Every byte has one writer, so its values come one after the other in one log. A store is firm when the table says that
it is kept (or seen, when it was a client that died); of a byte's values the last firm one and all after it are allowed.
"""
import array
import collections
import ctypes
import mmap
import os
import re
import stat
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "kinds.h")) as header:
    KINDS = re.findall(r"^KIND\((\w+)\)$", header.read(), re.M)
PAGE = 4096
RECORD = struct.Struct("=IIiIqqqQQII")
HEADER = 64
RECORDS = 16384
LOG_SIZE = HEADER + RECORDS * RECORD.size + (16 << 20)
READY, GO, WANT, HAVE, COUNT, USED, FULL, LIMIT = range(8)  # the words of struct log
RUN, SETTLE, COMPARE, END = range(4)
FINE, COARSE, OWN, PRIVATE, FOLDER = 0, 1, 2, 3, 10
OWN_BYTES = 24 * PAGE

Operation = collections.namedtuple("Operation", "kind file result answered offset length done begin end data worker")


class Log:
    """The file that a worker writes; log.h."""

    def __init__(self, path):
        with open(path, "wb") as file:
            file.truncate(LOG_SIZE)
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        # Not by struct.pack_into(): that makes them zeros first, and 0 is WANT_RUN, upon which a worker that happens to
        # look begins a new log.
        self.words = (ctypes.c_uint32 * 16).from_buffer(self.map)
        self.path = path

    def get(self, word):
        return self.words[word]

    def set(self, word, value):
        self.words[word] = value

    def operations(self, worker):
        count = self.get(COUNT)
        data = HEADER + RECORDS * RECORD.size
        for fields in RECORD.iter_unpack(self.map[HEADER:HEADER + count * RECORD.size]):
            kind, file, result, answered, offset, length, done, begin, end, at, size = fields
            yield Operation(KINDS[kind], file, result, bool(answered), offset, length, done, begin, end,
                            self.map[data + at:data + at + size], worker)

    def close(self):
        del self.words
        self.map.close()
        os.unlink(self.path)


def good(op):
    return op.answered and not op.result


def covers(later, op, since):
    """Whether the call began after that moment and was for all the bytes of the store."""
    length = later.done if later.kind == "read" else later.length
    return later.begin >= since and later.offset <= op.offset and op.offset + op.length <= later.offset + length


# --- when a store is firm -------------------------------------------------------------------------------------------

class Promises:
    """What is kept when the daemon is killed. devices: the device of each worker."""

    def __init__(self, operations, devices):
        self.devices = devices
        self.flushes = collections.defaultdict(list)   # of a file: stores of CPUs before them are kept
        self.collects = collections.defaultdict(list)  # of a file: bytes released before them are kept
        self.releases = collections.defaultdict(list)  # of a (file, device)
        self.seen = collections.defaultdict(list)      # of a (file, kind): acquires, and loads of devices
        for op in operations:
            if good(op) and op.file != FOLDER:
                self.note(op)

    def note(self, op):
        device, file = self.devices[op.worker], self.key(op)
        if op.kind in ("msync", "fsync", "fdatasync", "acquire"):
            self.flushes[file].append(op)
        if op.kind in ("fsync", "fdatasync", "gaia_msync", "read"):
            self.collects[file].append(op)
        if op.kind in ("load_device", "acquire"):
            self.seen[file, op.kind].append(op)
        if op.kind in ("release", "acquire", "dontneed"):
            self.releases[file, device].append(op)

    @staticmethod
    def key(op):
        return op.file if op.file < OWN else (op.file, op.worker)

    def firm(self, op):
        """Why the store is kept; empty: it may be lost."""
        if not good(op):
            return ""
        file, device = self.key(op), self.devices[op.worker]
        if op.kind == "store_cpu":
            return next((f"{c.kind} of {c.worker}" for c in self.flushes[file] if covers(c, op, op.end)), "")
        if op.kind == "store_device":
            released = min((r.end for r in self.releases[file, device] if covers(r, op, op.end)), default=None)
            if released is None:
                return ""
            later = [*self.collects[file], *self.fetches(file, op, device, released)]
            return next((f"{c.kind} of {c.worker}" for c in later if covers(c, op, released)), "")
        return "answered"

    def fetches(self, file, op, device, released):
        """Loads of other devices that had acquired these bytes after their release."""
        for load in self.seen[file, "load_device"]:
            other = self.devices[load.worker]
            acquires = [a for a in self.seen[file, "acquire"] if self.devices[a.worker] == other]
            if other != device and any(a.end <= load.begin and covers(a, op, released) for a in acquires):
                yield load


# --- bytes ----------------------------------------------------------------------------------------------------------

class Content:
    """What a file may hold."""

    def __init__(self, base, room):
        self.must = bytearray(base.ljust(room, b"\0"))
        self.stamp = array.array("L", bytes(8 * room))  # which store the byte of must is
        self.may = []                                   # (number, offset, bytes) of stores that are not firm
        self.sizes = {len(base)}
        self.size = len(base)
        self.stores = ["what was there"]                # by number
        self.history = [(0, bytes(self.must))]          # the same

    def store(self, op, offset, data, firm):
        number = len(self.stores)
        self.stores.append(f"{op.kind} of {op.worker} at {op.offset}+{op.length}, {firm or 'not firm'}")
        self.history.append((offset, bytes(data)))
        if firm:
            self.must[offset:offset + len(data)] = data
            self.stamp[offset:offset + len(data)] = array.array("L", [number]) * len(data)
        elif data:
            self.may.append((number, offset, data))

    def resize(self, size, firm, between=False):
        if firm:
            self.size, self.sizes = size, {size}
        else:
            self.sizes |= set(range(min(self.size, size), max(self.size, size) + 1)) if between else {size}

    def apply(self, op, firm):
        if op.kind in ("write", "append", "copy", "punch"):
            done = max(op.done, 0) if good(op) else 0
            self.store(op, op.offset, op.data[:done], firm)
            self.store(op, op.offset + done, op.data[done:], False)
            if op.kind == "append":
                if done:
                    self.resize(op.offset + done, firm)
                if done < len(op.data):  # what is left of a short one was not answered
                    self.resize(op.offset + len(op.data), False, between=True)
        elif op.kind in ("store_cpu", "store_device"):
            self.store(op, op.offset, op.data, firm)
        elif op.kind == "truncate":
            low = min(op.offset, op.length)
            self.store(op, low, bytes(len(self.must) - low), firm)
            self.resize(op.offset, firm)

    def check(self, found):
        """What is wrong with these bytes; none of it is."""
        if len(found) not in self.sizes:
            return [f"{len(found)} bytes instead of {sorted(self.sizes)[:20]}"]
        wrong = self.wrong(found)
        return [f"byte {at} of page {at // PAGE}: {found[at]} instead of {self.must[at]} "
                f"({self.stores[self.stamp[at]]}) or later {self.later(at)}; {len(wrong)} such bytes" for at in wrong]

    def stores_of(self, wrong):
        """The stores that are missing there, and of how many bytes each."""
        counts = collections.Counter(self.stamp[at] for at in wrong)
        return [f"{count} bytes of number {number} of {len(self.stores) - 1}: {self.stores[number]}"
                for number, count in sorted(counts.items())]

    def seen_before(self, at, byte):
        """By number, which stores of the byte had that value."""
        return [n for n, (offset, data) in enumerate(self.history)
                if offset <= at < offset + len(data) and data[at - offset] == byte]

    def later(self, at):
        return [(data[at - offset], self.stores[number]) for number, offset, data in self.may
                if offset <= at < offset + len(data) and number > self.stamp[at]][-6:]

    def wrong(self, found):
        wrong = []
        for page in range(0, len(found), PAGE):
            have, want = found[page:page + PAGE], self.must[page:page + PAGE]
            if have == want[:len(have)]:
                continue
            near = [(n, o, d) for n, o, d in self.may if o < page + PAGE and o + len(d) > page]
            for i, byte in enumerate(have):
                at = page + i
                if byte != want[i] and not any(n > self.stamp[at] and o <= at < o + len(d) and d[at - o] == byte
                                               for n, o, d in near):
                    wrong.append(at)
        return wrong

    def forget(self):
        """Drop what a firm store has replaced."""
        self.may = [(n, o, d) for n, o, d in self.may if any(s < n for s in self.stamp[o:o + len(d)])]


# --- names ----------------------------------------------------------------------------------------------------------

class Inode:
    def __init__(self, kind, mode, content=b""):
        self.kind, self.mode, self.content, self.xattr = kind, mode, content, None


def look(path):
    """The names in a folder, and what they are: a dict of name -> (kind, mode, content, attribute). And which
    names are one file."""
    found, numbers = {}, collections.defaultdict(list)
    for name in sorted(os.listdir(path)):
        full = os.path.join(path, name)
        st = os.lstat(full)
        kind, content, xattr = "dir", b"", None
        if not stat.S_ISDIR(st.st_mode):
            numbers[st.st_ino].append(name)
        if stat.S_ISLNK(st.st_mode):
            found[name] = ("symlink", 0, os.readlink(full).encode(), None)
            continue
        if stat.S_ISREG(st.st_mode):
            kind = "file"
            with open(full, "rb") as file:
                content = file.read()
        if "user.kills" in os.listxattr(full):
            xattr = os.getxattr(full, "user.kills")
        found[name] = (kind, st.st_mode & 0o777, content, xattr)
    return found, {frozenset(names) for names in numbers.values()}


class Names:
    def __init__(self, seen):
        found, groups = seen
        self.names = {name: Inode(*what[:3]) for name, what in found.items()}
        for name, what in found.items():
            self.names[name].xattr = what[3]
        for group in groups:
            first = min(group)
            for name in group:
                self.names[name] = self.names[first]
        self.in_flight = None

    def apply(self, op):
        if op.answered and op.result == 0:
            if op.done == 0:
                self.change(op)
        else:
            self.in_flight = op

    def change(self, op):
        """Does it; what can't be done is left."""
        name, other, text = op.data.decode().split(" ")
        names, inode, target = self.names, self.names.get(name), self.names.get(other)
        kind = inode.kind if inode else None
        if op.kind == "create" and not inode:
            names[name] = Inode("file", 0o644)
        elif op.kind == "mkdir" and not inode:
            names[name] = Inode("dir", 0o755)
        elif op.kind == "symlink" and not inode:
            names[name] = Inode("symlink", 0, text.encode())
        elif op.kind == "fill" and kind == "file":
            inode.content = text.encode() + inode.content[len(text):]
        elif op.kind == "extend" and kind == "file":
            inode.content += text.encode()
        elif op.kind == "setxattr" and kind in ("file", "dir"):
            inode.xattr = text.encode()
        elif op.kind == "chmod" and kind in ("file", "dir"):
            inode.mode = 0o600 + (ord(text[0]) & 7)
        elif op.kind == "unlink" and kind in ("file", "symlink") or op.kind == "rmdir" and kind == "dir":
            del names[name]
        elif op.kind == "link" and kind in ("file", "symlink") and not target:
            names[other] = inode
        elif op.kind == "rename" and inode and inode is not target:
            if not target or (target.kind == "dir") == (kind == "dir"):
                names[other] = names.pop(name)

    def seen(self):
        groups = collections.defaultdict(set)
        for name, inode in self.names.items():
            if inode.kind != "dir":
                groups[id(inode)].add(name)
        return ({name: (i.kind, i.mode, i.content, i.xattr) for name, i in self.names.items()},
                {frozenset(group) for group in groups.values()})

    def check(self, found):
        allowed = [self.seen()]
        if self.in_flight:
            self.change(self.in_flight)
            allowed.append(self.seen())
        return [] if found in allowed else [f"names: {found} instead of one of {allowed}"]
