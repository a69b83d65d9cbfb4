#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cut the power of the disk under the data directory, and look for what was acknowledged as durable.

A virtual machine runs gaiafs over ext4 on disks whose volatile cache is lost with the power (disk.py). Programs in it
write, store through mappings and on devices, and sync in every way there is; each answer comes out through a serial
port, and the next step is asked for after it. At a random moment the machine is killed. Its disks are then had as they
would have been at that moment, and at others before it, mostly right after an answer: a second machine mounts each
(ext4 replays its journal, gaiafs is mounted anew) and gives all files out. What an answered sync has promised must be
there to the byte, and nothing that was never written.

One disk's daemon has syncs that do nothing (nosync.c): the test fails unless it finds that out.

Ends with one line `N passed, N failed, N skipped`. --seed repeats a choice of steps and cuts (the timing is another).
"""
import argparse
import copy
import io
import os
import random
import shutil
import sys
import tarfile
import tempfile
import threading
import time

import image
import machine
from disk import Disk
from model import PAGE, File, pattern

MIB = 1 << 20
DISK_BYTES = 48 * MIB
SLOT_BYTES = 8 * MIB  # of what the second machine gives out of a disk
FILE_BYTES = 24 * PAGE
LINE = 64  # even lines are written by the CPU, odd ones by the device: pages are shared, bytes are not
UNFLUSHED = 3  # writes: a cut there hardly ever loses none
LIMIT_S = 100
O_WRONLY, O_RDWR, O_CREAT, O_SYNC, O_DSYNC, O_DIRECTORY = 1, 2, 0o100, 0o4010000, 0o10000, 0o200000
ALL = ("write", "store", "released")


class Mounted:
    """A disk, the gaiafs over it, and who works there."""

    def __init__(self, number, name, options, cuts, broken=False):
        self.number, self.name, self.options, self.cuts, self.broken = number, name, options, cuts, broken
        self.disk, self.workers = None, []


class Agent:
    """A program in the machine (tool_agent.c)."""

    def __init__(self, guest, port):
        self.stream = guest.port(port).makefile("rw", newline="\n")
        assert self.stream.readline() == "ready\n", port

    def do(self, *words):
        self.stream.write(" ".join(map(str, words)) + "\n")
        self.stream.flush()
        answer = self.stream.readline()
        if not answer:
            raise EOFError
        assert answer == "0\n", f"{words}: {answer.strip()}"


class Worker:
    """Steps in a folder of its own, by two programs: one of the CPU, one with a device.

    history: [position of the disk's log when the answer came, or None; effect; the step's name, if it is a promise;
    what was asked for].
    An effect is a function of a State: what the step did to it, if it was answered, or what it may have done. Steps
    come one after another."""

    def __init__(self, mounted, number, seed):
        self.mounted, self.rng = mounted, random.Random(seed)
        self.folder = f"/m{mounted.number}/w{number}"
        self.ports = [f"{mounted.number}.{number}.{who}" for who in ("cpu", "device")]
        self.device = f"soft:{number}"
        self.history, self.counts = [], {}
        self.syncs_all = mounted.number == number == 0
        self.syncs = 0
        self.cuts = self.created = 0
        self.error = None

    def start(self, guest):
        self.agents = [Agent(guest, port) for port in self.ports]
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def step(self, name, effect, who, *words, promise=False):
        """Asks for it; the effect counts from now on as perhaps done, and from the answer on as done."""
        self.history.append([None, effect, name if promise else None, words])
        self.agents[who].do(*words)
        self.history[-1][0] = len(self.mounted.disk.log)
        self.counts[name] = self.counts.get(name, 0) + 1
        self.syncs += promise

    def work(self):
        try:
            self.set_up()
            # A sync() is for all disks: one of the workers calls it, else it would hide what others miss.
            steps = [step for step in self.STEPS if step is not Worker.sync_all or self.syncs_all]
            while True:
                self.rng.choice(steps)(self)
        except (EOFError, OSError):
            pass  # the power is off
        except Exception as error:
            self.error = error

    def nothing(self, state):
        pass

    def set_up(self):
        path = f"{self.folder}/f"
        for words in (("mkdir", self.folder), ("open", 0, path, O_RDWR | O_CREAT), ("truncate", 0, FILE_BYTES)):
            self.step("set up", self.nothing, 0, *words)
        for words in (("open", 1, path, O_RDWR | O_SYNC), ("open", 2, path, O_RDWR | O_DSYNC),
                      ("open", 3, self.folder, O_DIRECTORY), ("fsync", 0), ("fsync", 3),
                      ("open", 4, f"/m{self.mounted.number}", O_DIRECTORY), ("fsync", 4), ("map", 0, 0, FILE_BYTES)):
            self.step("set up", self.nothing, 0, *words)
        self.step("set up", self.nothing, 1, "open", 0, path, O_RDWR)
        self.step("set up", self.nothing, 1, "device", 0, 0, FILE_BYTES, self.device)

        def there(state):
            state.file.truncate(FILE_BYTES)
            state.file.sync(ALL)
            state.exists = True

        self.step("set up", there, 0, "fsync", 0)

    def some_bytes(self, odd):
        """(offset, length, tag), within one line."""
        line = self.rng.randrange(FILE_BYTES // LINE // 2) * 2 + odd
        start = self.rng.randrange(LINE)
        return line * LINE + start, self.rng.randint(1, LINE - start), self.rng.getrandbits(64)

    def put(self, kind, name, who, target, operation, odd):
        for _ in range(self.rng.randint(1, 4)):
            offset, length, tag = self.some_bytes(odd)
            data = pattern(offset, length, tag)
            self.step(name, lambda state, offset=offset, data=data: state.file.put(kind, offset, data), who, operation,
                      target, offset, length, f"{tag:#x}")

    def write(self):
        self.put("write", "write", 0, 0, "write", 0)

    def store(self):
        self.put("store", "store", 0, 0, "store", 0)

    def device_store(self):
        self.put("device", "device store", 1, 0, "store", 1)

    def release(self):
        # What was stored may be brought to the file from the moment that the call began.
        self.step("release", lambda state: state.file.release(), 1, "release", 0)

    def acquire(self):
        # It releases too.
        self.step("acquire", lambda state: state.file.release(), 1, "acquire", 0)

    def fsync(self):
        self.step("fsync", lambda state: state.file.sync(ALL), 0, "fsync", self.rng.choice((0, 1)), promise=True)

    def fdatasync(self):
        self.step("fdatasync", lambda state: state.file.sync(ALL), 0, "fdatasync", 0, promise=True)

    def fsync_by_the_other(self):
        self.step("fsync by the device's program", lambda state: state.file.sync(ALL), 1, "fsync", 0, promise=True)

    def cpu_msync(self):
        self.step("msync", lambda state: state.file.sync(ALL), 0, "msync", 0, promise=True)

    def device_msync(self):
        # The other program's stores are still in the kernel.
        self.step("gaia_msync", lambda state: state.file.sync(("write", "released")), 1, "msync", 0, promise=True)

    def sync_all(self):
        # It passes FUSE by, and meets ext4: what write() wrote is there by then.
        self.step("sync", lambda state: state.file.sync(("write",)), 0, "sync", promise=True)

    def synchronous_write(self):
        fd, name = self.rng.choice(((1, "O_SYNC write"), (2, "O_DSYNC write")))
        offset, length, tag = self.some_bytes(0)
        data = pattern(offset, length, tag)

        def effect(state):
            state.file.put("write", offset, data)
            number = state.file.count
            state.after.append(lambda: state.file.apply(offset, data, number))

        self.step(name, effect, 0, "write", fd, offset, length, f"{tag:#x}", promise=True)

    def cut_and_grow(self):
        """Of a file of its own, since mappings end where the file does."""
        if self.cuts % 2 == 0:
            self.step("open", lambda state: state.others.setdefault("t", File()), 0, "open", 8, f"{self.folder}/t",
                      O_RDWR | O_CREAT)
        self.cuts += 1
        for _ in range(self.rng.randint(1, 3)):
            offset, length = self.rng.randrange(6 * PAGE), self.rng.randint(1, 3 * PAGE)
            tag = self.rng.getrandbits(64)
            data = pattern(offset, length, tag)
            self.step("write", lambda state, offset=offset, data=data: state.others["t"].put("write", offset, data), 0,
                      "write", 8, offset, length, f"{tag:#x}")
            size = self.rng.randrange(8 * PAGE)
            self.step("truncate", lambda state, size=size: state.others["t"].truncate(size), 0, "truncate", 8, size)

        def effect(state):
            state.others["t"].sync(ALL)
            state.named.add("t")

        self.step("fsync of a directory", self.nothing, 0, "fsync", 3)
        self.step("truncate and fsync", effect, 0, "fsync", 8, promise=True)
        if self.cuts % 2 == 0:
            self.step("close", self.nothing, 0, "close", 8)

    def replace(self):
        """The way of editors and databases: write a new file, fsync it, rename it over the old one, fsync the
        folder."""
        tag, length = self.rng.getrandbits(64), self.rng.randint(1, 3 * PAGE)
        data = pattern(0, length, tag)
        self.step("open", self.nothing, 0, "open", 9, f"{self.folder}/new", O_RDWR | O_CREAT)
        self.step("write", self.nothing, 0, "write", 9, 0, length, f"{tag:#x}")
        self.step("fsync", self.nothing, 0, "fsync", 9)
        self.step("close", self.nothing, 0, "close", 9)
        self.step("rename", lambda state: state.replaced.append(data), 0, "rename", f"{self.folder}/new",
                  f"{self.folder}/r")

        def effect(state):
            state.replaced = [data]

        self.step("rename and fsync of the directory", effect, 0, "fsync", 3, promise=True)

    def create_and_delete(self):
        """unlink() and fsync of the directory: it does not come back."""
        self.created += 1
        name = f"c{self.created % 10}"
        path = f"{self.folder}/{name}"
        self.step("open", lambda state: state.maybe.add(name), 0, "open", 10, path, O_RDWR | O_CREAT)
        self.step("write", self.nothing, 0, "write", 10, 0, 100, "0x1")
        self.step("fsync", self.nothing, 0, "fsync", 10)
        self.step("close", self.nothing, 0, "close", 10)
        if self.rng.random() < 0.5:
            self.step("create and fsync of the directory", lambda state: state.named.add(name), 0, "fsync", 3,
                      promise=True)
        self.step("unlink", lambda state: state.named.discard(name), 0, "unlink", path)
        self.step("unlink and fsync of the directory", lambda state: state.maybe.discard(name), 0, "fsync", 3,
                  promise=True)

    STEPS = (write, write, store, store, device_store, device_store, release, release, acquire, fsync, fdatasync,
             fsync_by_the_other, cpu_msync, device_msync, device_msync, sync_all, synchronous_write, cut_and_grow,
             replace, create_and_delete)


class State:
    """What a worker's folder must and may be after a cut at a position of the disk's log."""

    def __init__(self, worker, position):
        self.exists, self.file = False, File()
        self.others, self.replaced = {}, [None]
        self.named, self.maybe = set(), set()  # names that must, and others that may be there
        self.after = []
        for when, effect, _, _ in worker.history:
            answered = when is not None and when <= position
            before = self.snapshot() if not answered else None
            effect(self)
            if answered:
                for promise in self.after:
                    promise()
            self.after = []
            if not answered:
                self.weaken(before)
                return

    def snapshot(self):
        return copy.deepcopy((self.exists, self.file, self.others, self.replaced, self.named, self.maybe))

    def weaken(self, before):
        """The last step was asked for, and not answered: what it wrote may be there, what it promised is no promise."""
        exists, file, others, replaced, named, maybe = before
        kept = {}
        for name, now in {"f": self.file, **self.others}.items():
            old = file if name == "f" else others.get(name, File())
            new = [item for item in now.later if item not in old.later]
            old.later += new
            old.count = now.count
            old.sizes += [size for size in now.sizes if size not in old.sizes]
            kept[name] = old
        self.file = kept.pop("f")
        self.exists, self.others = exists, kept
        self.replaced = replaced + [data for data in self.replaced if data not in replaced]
        self.maybe = maybe | self.maybe | named
        self.named = named & self.named

    def problems(self, found, stale_allowed):
        """found: {name: bytes} of the folder."""
        if self.exists and "f" not in found:
            yield "f is gone"
        elif "f" in found and self.exists:
            wrong = self.file.wrong(found["f"], stale_allowed)
            if wrong:
                yield f"f: {wrong}"
        for name, file in self.others.items():
            if name in self.named and name not in found:
                yield f"{name} is gone"
            elif name in self.named:
                wrong = file.wrong(found[name], stale_allowed)
                if wrong:
                    yield f"{name}: {wrong}"
        if found.get("r") not in self.replaced:
            yield f"r is none of {len(self.replaced)} versions: {describe(found.get('r'))}"
        for number in range(10):
            name = f"c{number}"
            if name in self.named and name not in found:
                yield f"{name} is gone"
            if name in found and name not in self.named | self.maybe:
                yield f"{name} was deleted, and is back"


def describe(data):
    return "missing" if data is None else f"{len(data)} bytes, {data[:8].hex()}..."


def make_filesystem(folder):
    path = os.path.join(folder, "ext4")
    with open(path, "wb") as file:
        file.truncate(DISK_BYTES)
    image.say("mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0",
              path)
    with open(path, "rb") as file:
        return file.read()


def work(parts, kernel, initramfs, folder, base, rng, seconds):
    """The first machine, up to its end."""
    script = ["set -e"]
    ports = []
    for part in parts:
        part.disk = Disk(os.path.join(folder, f"disk{part.number}"), base)
        n, device = part.number, f"/dev/vd{'abcdefgh'[part.number]}"
        script += [f"mkdir /d{n} /m{n}", f"mount -t ext4 -o {part.options} {device} /d{n}",
                   ("LD_PRELOAD=/lib/nosync.so " if part.broken else "") + f"mount.gaiafs /d{n} /m{n}"]
        for worker in part.workers:
            ports += worker.ports
            script += [f"tool_agent /dev/ports/{port} &" for port in worker.ports]
    script += ["echo started", "wait"]
    with machine.Machine(kernel, initramfs, "\n".join(script), [part.disk.path for part in parts], ports,
                         limit_s=LIMIT_S) as guest:
        guest.wait("^started")
        workers = [worker for part in parts for worker in part.workers]
        for worker in workers:
            worker.start(guest)
        enough = time.monotonic() + 40
        while any(worker.syncs < 10 for worker in workers) and time.monotonic() < enough:
            time.sleep(0.05)
            assert guest.proc.poll() is None, guest.console()
            for worker in workers:
                if worker.error:
                    raise worker.error
        time.sleep(seconds * rng.uniform(0.5, 1.5))
        assert guest.proc.poll() is None, guest.console()
        guest.kill()
    for worker in workers:
        worker.thread.join(10)
        if worker.error:
            raise worker.error
    for part in parts:
        part.disk.close()


def cuts_of(part, rng):
    """Positions of the disk's log: its end; one with writes before it that were not flushed; and right after an answer of each
    kind of promise in turn: what came to the disk a moment later does not help there."""
    answers = {}
    for worker in part.workers:
        for when, _, name, _ in worker.history:
            if when and name:
                answers.setdefault(name, []).append(when)
    end = len(part.disk.log)
    began = min(min(each) for each in answers.values())
    anywhere = [at for at in range(began, end) if part.disk.unflushed(at) >= UNFLUSHED] or list(range(began, end + 1))
    names = sorted(answers)
    rng.shuffle(names)
    return [(end, "its end"), (rng.choice(anywhere), "anywhere")] + [
        (rng.choice(answers[name]), name) for name in (names[i % len(names)] for i in range(part.cuts - 2))]


def read_back(kernel, initramfs, folder, images):
    """The second machine: {path: bytes} of each image."""
    all_images, out = os.path.join(folder, "images"), os.path.join(folder, "out")
    with open(all_images, "wb") as file:
        for i, data in enumerate(images):
            for at in range(0, len(data), MIB):
                if data[at:at + MIB].count(0) != MIB:
                    os.pwrite(file.fileno(), data[at:at + MIB], i * DISK_BYTES + at)
        file.truncate(len(images) * DISK_BYTES)
    with open(out, "wb") as file:
        file.truncate(len(images) * SLOT_BYTES)
    script = f"""
mkdir /d /m
i=0
while [ $i -lt {len(images)} ]; do
    loop=$(losetup -f)
    losetup -o $((i * {DISK_BYTES})) $loop /dev/vda &&
        mount -t ext4 $loop /d && mount.gaiafs /d /m && tar -C /m -cf - . | dd of=/dev/vdb bs=4k conv=notrunc \
            seek=$((i * {SLOT_BYTES // 4096})) 2>/dev/null && umount /m || exit 1
    # The daemon has let go of the data directory when it has ended.
    until umount /d 2>/dev/null; do sleep 0.1; done
    losetup -d $loop
    i=$((i + 1))
done
sync
"""
    with machine.Machine(kernel, initramfs, script, [all_images, out], limit_s=LIMIT_S + 3 * len(images)) as guest:
        code = guest.wait()[1]
        assert code == "0", guest.console()
        guest.proc.wait(20)
    found = []
    with open(out, "rb") as file:
        for i in range(len(images)):
            file.seek(i * SLOT_BYTES)
            with tarfile.open(fileobj=io.BytesIO(file.read(SLOT_BYTES))) as archive:
                found.append({member.name[2:]: archive.extractfile(member).read() for member in archive
                              if member.isfile()})
    return found


def judge(part, position, kind, dropped, found):
    """The problems of one cut."""
    problems = []
    for worker in part.workers:
        prefix = os.path.basename(worker.folder) + "/"
        own = {path[len(prefix):]: data for path, data in found.items() if path.startswith(prefix)}
        problems += [f"{worker.folder}/{problem}"
                     for problem in State(worker, position).problems(own, "writeback" in part.options)]
    answered = sum(when is not None and when <= position for worker in part.workers
                   for when, *_ in worker.history)
    verdict = "ok  " if not problems else "lost" if part.broken else "FAIL"
    print(f"{verdict} {part.name}, cut at {position} of {len(part.disk.log)} ({kind}): {answered} answers before it, "
          f"{dropped} unflushed sectors dropped" + "".join(f"\n     {problem}" for problem in problems[:5]), flush=True)
    return problems


def keep(part, position, data, found):
    """Evidence of a failure: what was asked and answered when, the disk, and what was found on it."""
    folder = tempfile.mkdtemp(prefix="gaiafs-power-failed-", dir=os.environ.get("GAIA_TEST_DIR", "/var/tmp"))
    with open(os.path.join(folder, "steps"), "w") as file:
        for worker in part.workers:
            for when, _, name, words in worker.history:
                mark = "" if when is not None and when <= position else " (not answered by then)"
                file.write(f"{worker.folder} {when}{mark}: {' '.join(map(str, words))}{f' [{name}]' if name else ''}\n")
    with open(os.path.join(folder, "disk"), "wb") as file:
        file.write(data)
    for path, content in found.items():
        with open(os.path.join(folder, path.replace("/", ".")), "wb") as file:
            file.write(content)
    print(f"     kept in {folder}")


def run(args, folder):
    rng = random.Random(args.seed)
    machine.check()
    programs, files = image.tree()
    files["/lib/nosync.so"] = os.path.join(image.TOP, "build", "gcc", "tests", "vm", "nosync.so")
    kernel, initramfs = image.build(programs, files)
    base = make_filesystem(folder)
    parts = [Mounted(0, "ordered", "data=ordered", args.cuts),
             Mounted(1, "writeback", "data=writeback,noauto_da_alloc", max(2, args.cuts // 3)),
             Mounted(2, "syncs that do nothing", "data=ordered", 6, broken=True)]
    for part, workers in zip(parts, (2, 1, 1)):
        part.workers = [Worker(part, number, rng.random()) for number in range(workers)]
    start = time.monotonic()
    work(parts, kernel, initramfs, folder, base, rng, args.seconds)
    worked = time.monotonic()
    cuts = [(part, position, kind) for part in parts for position, kind in cuts_of(part, rng)]
    images = [part.disk.cut(position, rng.random()) for part, position, _ in cuts]
    found = read_back(kernel, initramfs, folder, [bytes(data) for data, _ in images])
    failed, caught, dropped_in_all = 0, 0, 0
    for (part, position, kind), (_, dropped), files_found in zip(cuts, images, found):
        problems = judge(part, position, kind, dropped, files_found)
        dropped_in_all += dropped
        caught += bool(problems) and part.broken
        failed += bool(problems) and not part.broken
        if problems and not part.broken:
            keep(part, position, images[cuts.index((part, position, kind))][0], files_found)
    counts = {}
    for part in parts:
        for worker in part.workers:
            for name, n in worker.counts.items():
                counts[name] = counts.get(name, 0) + n
    print("answered: " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    print(f"{worked - start:.1f} s in the first machine, {time.monotonic() - worked:.1f} s in the second")
    passed = sum(not part.broken for part, _, _ in cuts) - failed
    # It proves nothing when nothing was lost with the power, or when a daemon that does not sync gets through.
    for good, what in ((dropped_in_all > 0, "unflushed writes were lost in the cuts"),
                       (caught > 0, "a daemon that does not sync is found out")):
        print(f"{'ok  ' if good else 'FAIL'} {what}")
        passed, failed = passed + good, failed + (not good)
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=14, help="of the first disk; a third as many of the second")
    parser.add_argument("--seconds", type=float, default=2, help="about how long the programs work")
    parser.add_argument("--rounds", type=int, default=1, help="so many times, with other seeds")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("GAIA_TEST_SEED", random.randrange(1 << 32))))
    args = parser.parse_args()
    passed = failed = 0
    for _ in range(args.rounds):
        print(f"seed {args.seed} (GAIA_TEST_SEED={args.seed} repeats it)", flush=True)
        folder = tempfile.mkdtemp(prefix="gaiafs-power-", dir=os.environ.get("GAIA_TEST_DIR", "/var/tmp"))
        try:
            good, bad = run(args, folder)
        except image.Unavailable as problem:
            print(f"skipped: no virtual machine here: {problem}")
            print(f"{passed} passed, {failed} failed, 1 skipped")
            return 1 if failed else 0
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        passed, failed = passed + good, failed + bad
        args.seed += 1
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
