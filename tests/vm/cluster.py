#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two nodes on machines of their own, each with its own kernel, clocks, page cache and RDMA device (Soft-RoCE), and a third machine that
serves the data directory by NFS; between them a switch (switch.py).

Programs on both nodes write, store, release and read the same files by turns and at once. Then one machine loses its power and comes
again, stands still with its clocks going on (its qemu is stopped) and with its clocks stopped (a machine that is paused and resumed), and
the two are cut off from each other. What was promised must be there to the byte (docs/nodes.md).

Ends with one line `N passed, N failed, N skipped`; skipped, with the reason, where no virtual machine can be had. --seed repeats the choice
of bytes and turns. --only TEXT: the tests whose names have it.
"""
import argparse
import contextlib
import errno
import functools
import hashlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback

import image
import machine
import nfs
import rdma
from model import PAGE
from switch import Switch

MODULES = ["crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe", "virtio_net", "nfsd", "nfsv4"]
NUMBERS = {"a": 1, "b": 2, "server": 3}
PEER_TIMEOUT_S = 3
LEASE_S = 10  # of NFS: what a machine that is gone has locked is free after that
EMULATED_S = 6  # an emulator on a busy machine takes so long for nothing
LIMIT_S = 900
DISK_BYTES = 128 << 20
PAGES = 16
LINE = 64
PORTS = [f"p{number}" for number in range(12)]  # one for each program
HANG_S = 90
STORED = 10 * PAGE  # of a file, through a mapping
O_RDWR = 2


# What programs have written, when their machine brings it to the server. At once: see cluster.sh.
WRITES_BACK_LATE, WRITES_BACK_AT_ONCE = (
    f"cd /proc/sys/vm; echo {often} >dirty_writeback_centisecs; echo {old} >dirty_expire_centisecs; echo {much}"
    for often, old, much in ((500, 3000, "10 >dirty_background_ratio"), (1, 1, "4096 >dirty_background_bytes")))


class Refused(Exception):
    """An operation's errno."""

    def __init__(self, words, code):
        super().__init__(f"{' '.join(map(str, words))}: {os.strerror(code)}")
        self.errno = code


class Agent:
    """A program on a node (tool_agent.c), with one file open: of its CPU, mapped into it, too, or of its device."""

    def __init__(self, node, port):
        self.node, self.name, self.connection = node, port, node.guest.port(port)
        self.connection.settimeout(HANG_S)
        self.stream = self.connection.makefile("rw", newline="\n")
        assert self.stream.readline() == "ready\n", port

    def do(self, *words):
        """The bytes that it read, if any."""
        self.stream.write(" ".join(map(str, words)) + "\n")
        self.stream.flush()
        try:
            answer = self.stream.readline().split()
        except TimeoutError:
            raise AssertionError(f"{self.name}: {words} hangs") from None
        if not answer:
            raise EOFError(f"{self.name} is gone: {words}")
        if answer[0] != "0":
            raise Refused(words, int(answer[0]))
        return bytes.fromhex(answer[1]) if len(answer) > 1 else b""


def tagged(offset, length, tag):
    """What tool_agent.c makes of a tag."""
    words = ((tag ^ (at // PAGE + 1) * 0x9e3779b97f4a7c15) & (1 << 64) - 1 for at in range(offset, offset + length))
    return bytes(word >> at % 8 * 8 & 255 for at, word in zip(range(offset, offset + length), words))


class Machine:
    """One of the three."""

    def __init__(self, cluster, name):
        self.cluster, self.name, self.guest = cluster, name, None

    def boot(self, ports=()):
        """Returns at once: see ready()."""
        self.ports = list(ports)
        number = NUMBERS[self.name]
        begin = "nfs_serve; exportfs -a" if self.name == "server" else "cluster_data"
        script = "\n".join([nfs.shell("nfs.sh"), nfs.shell("cluster.sh"), f"machine={self.name} number={number} server={NUMBERS['server']}",
                            "cluster_network", begin, "cluster_obey"])
        serves = self.name == "server"
        self.guest = machine.Machine(*self.cluster.image, script, self.cluster.disks if serves else (), ["shell", *ports], memory_mib=512,
                                     limit_s=LIMIT_S, processors=1 if serves else 2, monitor=True, more=self.cluster.switch.arguments(number))
        self.monitor = self.guest.port("monitor").makefile("rw", newline="\n")
        self.monitor.readline()
        self.command("qmp_capabilities")

    def ready(self):
        connection = self.guest.port("shell")
        self.shell = connection.makefile("rw", newline="\n")
        assert self.shell.readline() == "ready\n", self.guest.console()
        connection.settimeout(HANG_S)

    def command(self, name):
        self.monitor.write(json.dumps({"execute": name}) + "\n")
        self.monitor.flush()
        while True:
            answer = json.loads(self.monitor.readline())
            assert "error" not in answer, answer
            if "return" in answer:
                return

    def run(self, line):
        """What the machine's shell printed; AssertionError if the line's status was not 0."""
        self.shell.write(f"{line}\necho end of line $?\n")
        self.shell.flush()
        said = ""
        for text in self.shell:
            if text.startswith("end of line "):
                assert text == "end of line 0\n", f"{self.name}: {line}\n{said}"
                return said
            said += text
        raise EOFError(f"{self.name}: {line}\n{said}\n{self.guest.console()}")

    def wait(self, line, seconds, what):
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):
                return self.run(line)
            assert time.monotonic() < deadline, f"{self.name}: not within {seconds} s: {what}\n{self.run('cat /tmp/log')}"
            time.sleep(0.1)

    def power_off(self):
        if self.guest:
            self.guest.kill()
        self.guest = None

    # --- a node

    def mount(self):
        peers = "/".join(f"{name}@10.0.0.{NUMBERS[name]}:7500" for name in "ab")
        self.run(f"mount.gaiafs /net /mnt/gaia -f -o node={self.name},peers={peers},device_cache=256K,unit=4K,peer_timeout={PEER_TIMEOUT_S} "
                 ">>/tmp/log 2>&1 & daemon=$!")
        self.wait("grep -q ' /mnt/gaia ' /proc/mounts", 60, "the mount")

    def unmount(self):
        self.wait("umount /mnt/gaia", EMULATED_S, "the programs that were killed are gone")
        self.run("wait $daemon")

    def log(self):
        return self.run("cat /tmp/log")

    def start(self):
        port = self.ports.pop(0)
        # As long as who had the port before is not gone it is busy.
        self.run(f"while tool_agent /dev/ports/{port} >/tmp/said-{port} 2>&1; [ $? = 2 ]; do sleep 0.2; done &")
        return Agent(self, port)

    def stop(self, agent):
        agent.stream.close()
        agent.connection.close()
        self.run(f"pkill -9 -f 'tool_agent /dev/ports/{agent.name}$'; true")
        self.ports.append(agent.name)


class Cluster:
    def __init__(self, folder, seed):
        self.folder, self.rng = folder, random.Random(seed)
        programs = nfs.packages()
        tree, files = image.tree()
        tools, more = rdma.programs_and_files()
        programs |= tree | tools | {"/bin/tool_nodes": rdma.built("tests", "vm", "tool_nodes")}
        self.image = image.build(programs, {**files, **more}, MODULES)
        self.disks = [os.path.join(folder, "disk")]
        with open(self.disks[0], "wb") as disk:
            disk.truncate(DISK_BYTES)
        self.switch = Switch(folder, max(NUMBERS.values()) + 1)
        self.machines = {name: Machine(self, name) for name in NUMBERS}
        self.a, self.b, self.server = (self.machines[name] for name in NUMBERS)

    def begin(self):
        self.server.boot()
        self.server.ready()
        for node in self.a, self.b:
            node.boot(PORTS)
        for node in self.a, self.b:
            node.ready()
        with meanwhile(self.a.mount, self.b.mount):
            pass
        self.met()

    def met(self, seconds=30):
        for node, other in (self.a, "b"), (self.b, "a"):
            node.wait(f"gaiactl stat /mnt/gaia | grep -q 'node {other}: up'", seconds, f"{other} is up")

    def make(self, home, what, size=PAGES * PAGE):
        """A file whose home is that node, full of zeros."""
        name = self.a.run(f"tool_nodes name /net {home} {what}").strip()
        self.a.run(f"truncate -s {size} /net/{name}")
        return f"/mnt/gaia/{name}"

    def end(self):
        for each in self.machines.values():
            with contextlib.suppress(Exception):
                each.power_off()


class File:
    """A file that a program of the CPU and one with a device have on each node, and the bytes that it must have."""

    def __init__(self, cluster, home, what, before=lambda path: None):
        self.cluster, self.rng = cluster, cluster.rng
        self.path, self.bytes = cluster.make(home, what), bytearray(PAGES * PAGE)
        self.programs = {}
        before(self.path)
        for node in cluster.a, cluster.b:
            self.open(node)

    def open(self, node):
        self.programs[node.name] = cpu, device = node.start(), node.start()
        for program in cpu, device:
            program.do("open", 0, self.path, O_RDWR)
        cpu.do("map", 0, 0, PAGES * PAGE)
        device.do("device", 0, 0, PAGES * PAGE, "soft:0")

    def close(self, names="ab"):
        for name in names:
            for program in self.programs.pop(name, ()):
                with contextlib.suppress(EOFError, OSError, Refused):
                    program.do("unmap", 0)
                getattr(self.cluster, name).stop(program)

    def change(self, name, how, offset, length):
        """One of the ways to change bytes there is, and what makes it known to all."""
        cpu, device = self.programs[name]
        tag = self.rng.getrandbits(64)
        if how == "write":
            cpu.do("write", 0, offset, length, tag)
            cpu.do("fsync", 0)
        elif how == "store":
            cpu.do("store", 0, offset, length, tag)
            cpu.do("msync", 0)
        else:
            device.do("acquire", 0)  # else it writes the same bytes as others at once, and one of the values is kept
            device.do("store", 0, offset, length, tag)
            device.do("release", 0)
        self.bytes[offset:offset + length] = tagged(offset, length, tag)

    def see(self, name, how, offset=0, length=PAGES * PAGE):
        cpu, device = self.programs[name]
        if how == "read":
            got = cpu.do("read", 0, offset, length)
        elif how == "load":
            got = cpu.do("load", 0, offset, length)
        else:
            device.do("acquire", 0)
            got = device.do("load", 0, offset, length)
        expected = bytes(self.bytes[offset:offset + length])
        if got != expected:
            wrong = [at for at, (one, other) in enumerate(zip(got, expected)) if one != other]
            raise AssertionError(f"{name} {how}: {len(wrong)} wrong bytes of {len(got)}, from {offset + wrong[0] if wrong else len(got)}")

    def see_all(self, names="ab"):
        for name in names:
            for how in "read", "load", "device":
                self.see(name, how)


CHANGES, LOOKS = ("write", "store", "device"), ("read", "load", "device")


@contextlib.contextmanager
def file_of(cluster, home, what):
    file = File(cluster, home, what)
    yield file
    file.close()


@contextlib.contextmanager
def meanwhile(*calls):
    """All of them at once, each in a thread, beside what is done with this. They have ended then, and the first failure is raised."""
    failures = []

    def guarded(call):
        try:
            call()
        except Exception as problem:  # pylint: disable=broad-except
            failures.append(problem)

    threads = [threading.Thread(target=guarded, args=[call], daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive(), "a call hangs"
    if failures:
        raise failures[0]


def changes(own, far, ended):
    """Of both nodes, to files of either home, each of them synced."""
    def change(file, *how):
        file.change(*how)
        for program in file.programs[how[0]]:
            program.do("fsync", 0)
        ended.append(how)

    return [functools.partial(change, file, name, how, number * PAGE, PAGE)
            for number, (name, how, file) in enumerate((("a", "write", own), ("b", "device", own), ("a", "device", far), ("b", "write", far)))]


def by_turns(cluster, home, steps=60):
    """Each change is seen everywhere once it is known to all."""
    with file_of(cluster, home, "turns") as file:
        for _ in range(steps):
            offset = cluster.rng.randrange(PAGES * PAGE)
            length = min(cluster.rng.choice((1, 8, LINE, PAGE, 3 * PAGE)), PAGES * PAGE - offset)
            file.change(cluster.rng.choice("ab"), cluster.rng.choice(CHANGES), offset, length)
            file.see(cluster.rng.choice("ab"), cluster.rng.choice(LOOKS), offset, length)
        file.see_all()


def at_once(cluster, home, rounds=12):
    """Bytes of the same pages, each program its own lines: no byte is lost."""
    with file_of(cluster, home, "once") as file:
        writers = [(name, how) for name in "ab" for how in ("write", "device")]

        def work(number, name, how, rng):
            program = file.programs[name][how == "device"]
            for _ in range(rounds):
                for line in rng.sample(range(number, PAGES * PAGE // LINE, len(writers)), 12):
                    tag = rng.getrandbits(64)
                    program.do("store" if how == "device" else "write", 0, line * LINE, LINE, tag)
                    file.bytes[line * LINE:(line + 1) * LINE] = tagged(line * LINE, LINE, tag)
                if how == "device":
                    program.do("release", 0)
                    program.do("acquire", 0)
            if how == "write":
                program.do("fsync", 0)

        with meanwhile(*(functools.partial(work, i, *who, random.Random(cluster.rng.getrandbits(60))) for i, who in enumerate(writers))):
            pass
        file.see_all()


def mapped_beside_writers(cluster, home, writers=4):
    """Programs of both nodes write to pages of their own, and go on as the file is mapped for the first time: no byte is lost, though
    their machines bring what was written to the server when they like."""
    path, bytes_, stop = cluster.make(home, "beside"), bytearray(PAGES * PAGE), threading.Event()
    mapper, programs = cluster.a.start(), [cluster.machines["ab"[number % 2]].start() for number in range(writers)]

    def write(number, rng):
        programs[number].do("open", 0, path, O_RDWR)
        while not stop.is_set():
            offset, tag = rng.randrange(number, PAGES, writers) * PAGE + rng.randrange(PAGE // LINE) * LINE, rng.getrandbits(64)
            programs[number].do("write", 0, offset, LINE, tag)
            bytes_[offset:offset + LINE] = tagged(offset, LINE, tag)
        programs[number].do("fsync", 0)

    def map_meanwhile():
        try:
            time.sleep(1)
            mapper.do("open", 0, path, O_RDWR)
            mapper.do("device", 0, 0, PAGES * PAGE, "soft:0")
            time.sleep(1)
        finally:
            stop.set()

    for node in cluster.a, cluster.b:
        node.run(WRITES_BACK_LATE)
    with meanwhile(map_meanwhile, *(functools.partial(write, i, random.Random(cluster.rng.getrandbits(60))) for i in range(writers))):
        pass
    mapper.do("acquire", 0)
    assert mapper.do("load", 0, 0, PAGES * PAGE) == bytes_
    for program in mapper, *programs:
        assert program.do("read", 0, 0, PAGES * PAGE) == bytes_, program.name
    mapper.do("unmap", 0)
    for node in cluster.a, cluster.b:
        node.run(WRITES_BACK_AT_ONCE)
    for program in mapper, *programs:
        program.node.stop(program)


def deleted_elsewhere(cluster, home):
    """Who has a file open goes on with it, though the server finds it by no name any more, and tells nobody its times."""
    for name, other in "ab", "ba":
        with file_of(cluster, home, "deleted") as file:
            file.close(name)
            program = getattr(cluster, name).start()
            program.do("unlink", file.path)
            for how in CHANGES:
                file.change(other, how, cluster.rng.randrange(10 * PAGE), PAGE)
                file.see_all(other)
            getattr(cluster, name).stop(program)


def read_before(cluster):
    """The next home's NFS client has what was in the file before it was mapped, and as it is open for writing there, keeps that for what
    is in it."""
    reader = cluster.a.start()

    def read(path):
        reader.do("open", 0, path, O_RDWR)
        reader.do("read", 0, 0, PAGES * PAGE)

    file = File(cluster, "b", "before", read)
    for number, (name, how) in enumerate((name, how) for name in "ab" for how in CHANGES):
        file.change(name, how, 2 * number * PAGE + 100, 2 * PAGE)
    file.close("b")
    cluster.b.unmount()
    patiently(lambda: file.see("a", "read"), 4 * PEER_TIMEOUT_S + EMULATED_S)
    for offset in range(5, PAGES * PAGE, PAGE):  # with a byte its NFS client may bring the page
        file.programs["a"][0].do("write", 0, offset, 1, 0)
        file.bytes[offset:offset + 1] = tagged(offset, 1, 0)
    file.programs["a"][0].do("fsync", 0)
    map_again(file, "a")
    file.see_all("a")
    digest = cluster.server.run(f"sha256sum </srv/data/{os.path.basename(file.path)}").split()[0]
    assert digest == hashlib.sha256(file.bytes).hexdigest()
    cluster.b.mount()
    cluster.met()
    file.open(cluster.b)
    file.see_all()
    file.close()
    cluster.a.stop(reader)


# --- what happens to a machine ---------------------------------------------------------------------------------------

def patiently(function, seconds):
    """Until it has no error any more: (what it returned, the errors before that)."""
    deadline, errors = time.monotonic() + seconds, []
    while True:
        try:
            return function(), errors
        except Refused as problem:
            errors.append(problem.errno)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def map_again(file, name):
    """After the home has gone, or has given the file up: maps of it are made anew, once nobody's lock of the file is in the way."""
    file.close(name)
    deadline = time.monotonic() + 4 * PEER_TIMEOUT_S + 2 * LEASE_S + 4 * EMULATED_S
    while True:
        try:
            file.open(getattr(file.cluster, name))
            return
        except Refused as problem:
            assert problem.errno in (errno.EBUSY, errno.EIO), problem
            file.close(name)
            assert time.monotonic() < deadline, problem
            time.sleep(0.5)


def synced_files(cluster, what):
    """One of either home, changed in each way on both nodes, and synced."""
    files = File(cluster, "a", what), File(cluster, "b", what)
    for file in files:
        for number, (name, how) in enumerate((name, how) for name in "ab" for how in CHANGES):
            file.change(name, how, number * PAGE + 100, 2 * PAGE)
        file.programs["a"][0].do("fsync", 0)
        file.see_all()
    return files


def power_lost(cluster):
    """Of a home's machine, and it comes again."""
    own, far = synced_files(cluster, "power")
    own.change("b", "device", 7 * PAGE + 5, 3 * PAGE)  # released, and of a file whose home lives on
    cluster.b.power_off()
    since = time.monotonic()
    own.see("a", "read")
    patiently(lambda: far.see("a", "read"), 4 * PEER_TIMEOUT_S + EMULATED_S)
    own.see("a", "device")
    own.change("a", "device", 3 * PAGE, PAGE)
    own.see_all("a")
    map_again(far, "a")
    print(f"  mapped at the next home after {time.monotonic() - since:.1f} s", flush=True)
    far.change("a", "device", 3 * PAGE + 7, PAGE)
    far.change("a", "write", 9 * PAGE + 7, PAGE)
    far.see_all("a")
    cluster.b.boot(PORTS)
    cluster.b.ready()
    cluster.b.mount()
    cluster.met()
    for file in own, far:
        file.programs.pop("b", None)
        file.open(cluster.b)
        file.see_all()
        file.change("b", "device", 5 * PAGE + 9, PAGE)
        file.see_all()
        file.close()


def map_until_settled(file):
    """On both nodes. A home hears that another one has taken its place some time after the two have met, and maps that were made there
    before that fail."""
    deadline = time.monotonic() + 2 * PEER_TIMEOUT_S + EMULATED_S
    while True:
        for name in "ab":
            map_again(file, name)
            sync_told_once(file, name)
        try:
            file.see_all()
            return
        except Refused as problem:
            assert problem.errno == errno.EIO and time.monotonic() < deadline, problem


def told_once(file, offset):
    """A write() on a may have been asked of the home that is gone, and be done again at the next one."""
    cpu, tag = file.programs["a"][0], file.rng.getrandbits(64)
    cpu.do("write", 0, offset, PAGE, tag)
    file.bytes[offset:offset + PAGE] = tagged(offset, PAGE, tag)
    sync_told_once(file, "a", ("fsync",))  # the map is none any more


def sync_told_once(file, name, calls=("fsync", "msync")):
    """Where the node had changed the file since its last sync, and the home has died for it, it is EIO once for each descriptor and map."""
    for program, what in itertools.product(file.programs[name], calls):
        assert patiently(lambda: program.do(what, 0), EMULATED_S)[1] in ([], [errno.EIO])  # pylint: disable=cell-var-from-loop


def refused(program, *words):
    """The errno, or 0."""
    try:
        program.do(*words)
    except Refused as problem:
        return problem.errno
    return 0


def nothing(_):
    pass


def write_at_once(file):
    """On b, as it goes on: where it was refused, or may not have been synced."""
    cpu, unknown = file.programs["b"][0], []
    for offset in range(12 * PAGE, 12 * PAGE + 30 * 3 * LINE, 3 * LINE):
        tag = file.rng.getrandbits(64)
        if refused(cpu, "write", 0, offset, LINE, tag) or refused(cpu, "fsync", 0):
            unknown.append(offset)
        else:
            file.bytes[offset:offset + LINE] = tagged(offset, LINE, tag)
    print(f"  of 30 writes {30 - len(unknown)} were answered and synced", flush=True)
    return unknown


def store_and_wait(file):
    """On b; its kernel has that in memory until it is asked to write it back."""
    file.cluster.b.run("echo 0 >/proc/sys/vm/dirty_writeback_centisecs; echo 100000000 >/proc/sys/vm/dirty_background_bytes; "
                       "echo 100 >/sys/class/bdi/$(grep ' /mnt/gaia ' /proc/self/mountinfo | cut -d' ' -f3)/max_ratio")
    file.stored = file.rng.getrandbits(64)
    file.programs["b"][0].do("store", 0, STORED, LINE, file.stored)


def write_back_at_once(file):
    """On b, as it goes on, of a page from before. What can't be brought to the file is lost until it is stored again."""
    cpu = file.programs["b"][0]
    answer = refused(cpu, "msync", 0)
    print(f"  msync of a page from before: {os.strerror(answer)}", flush=True)
    file.cluster.b.run("cd /proc/sys/vm; echo 1 >dirty_writeback_centisecs; echo 4096 >dirty_background_bytes; cd /")
    if not answer:
        file.bytes[STORED:STORED + LINE] = tagged(STORED, LINE, file.stored)
        return []
    file.cluster.met()
    file.see("a", "read", STORED + LINE, PAGE)
    cpu.do("write", 0, STORED, PAGE, file.stored)
    file.bytes[STORED:STORED + PAGE] = tagged(STORED, PAGE, file.stored)
    return []


def await_fresh(file, offset):
    """Until b reads what a has written meanwhile."""
    since, stale_s = time.monotonic(), 0
    while refused(file.programs["b"][0], "read", 0, offset, PAGE) or \
            file.programs["b"][0].do("read", 0, offset, PAGE) != file.bytes[offset:offset + PAGE]:
        stale_s = time.monotonic() - since
        assert stale_s < PEER_TIMEOUT_S + EMULATED_S, "it goes on reading what was before"
    print(f"  after these it read what was before for {stale_s:.1f} s", flush=True)


def stands_still(cluster, stop, go_on, before, then):
    """A home's machine, for so long that the other takes its place; then it goes on, as if nothing had been. Nothing that was synced is
    lost, before, meanwhile, or just then. (Where its clocks stood still, too, it does not know that it did, and what its kernel has of a
    page from before undoes what others have stored to that page since: docs/limits.md.)"""
    own, far = synced_files(cluster, "still")
    node, since = cluster.b, time.monotonic()
    own.change("b", "device", 7 * PAGE + 5, 3 * PAGE)
    before(far)
    stop(node)
    cluster.a.wait("gaiactl stat /mnt/gaia | grep -q 'node b: down'", 4 * PEER_TIMEOUT_S + EMULATED_S, "b is down")
    patiently(lambda: far.see("a", "read"), 4 * PEER_TIMEOUT_S + EMULATED_S)
    for offset in 2 * PAGE + 11, STORED + LINE:
        told_once(far, offset)
    own.change("a", "device", 8 * PAGE, PAGE)
    map_again(far, "a")
    far.change("a", "device", 4 * PAGE + 7, 2 * PAGE)
    for file in own, far:
        file.see_all("a")
    print(f"  it stood still for {time.monotonic() - since:.1f} s", flush=True)
    go_on(node)
    unknown = then(far)
    await_fresh(far, 2 * PAGE + 11)
    cluster.met()
    assert refused(far.programs["b"][1], "acquire", 0) == errno.EIO, "its maps go on, and another node is the home"
    for name in NUMBERS:
        set_clock(cluster.machines[name])
    for file in own, far:
        map_again(file, "b")
        sync_told_once(file, "b")
    for offset in unknown:
        far.change("a", "write", offset, LINE)
    for file in own, far:
        file.see_all()
        file.change("b", "device", 5 * PAGE + 9, PAGE)
        file.change("b", "write", PAGE + 9, PAGE)
        file.see_all()
        file.close()


def stop_emulator(node):
    """The machine's clocks go on meanwhile, as those of one that is starved, or in a debugger."""
    node.guest.proc.send_signal(signal.SIGSTOP)


def continue_emulator(node):
    node.guest.proc.send_signal(signal.SIGCONT)


def pause(node):
    """Its clocks stop, too, as those of one that is migrated."""
    node.command("stop")


def resume(node):
    node.command("cont")


def set_clock(node, ahead_s=0):
    """As the machines' clocks were set before; NTP does it else."""
    node.run(f"date -s @{time.time() + ahead_s:.0f} >/dev/null")


def cut_off(cluster):
    """The two do not hear each other, and each reaches the data directory: what each syncs of the files whose home it is stays. Who has
    taken the other's place is the later home, and all maps are made anew."""
    own, far = synced_files(cluster, "cut")
    cluster.switch.cut(NUMBERS["a"], NUMBERS["b"])
    for node, other in (cluster.a, "b"), (cluster.b, "a"):
        node.wait(f"gaiactl stat /mnt/gaia | grep -q 'node {other}: down'", 4 * PEER_TIMEOUT_S + EMULATED_S, f"{other} is down")
    for turn in range(6):
        for name, file in ("a", own), ("b", far):
            file.change(name, CHANGES[turn % 3], turn * PAGE, 3 * PAGE)
            file.programs[name][1].do("msync", 0)
            file.see_all(name)
        time.sleep(PEER_TIMEOUT_S / 2)
    cluster.switch.heal()
    cluster.met()
    for file, name in (own, "b"), (far, "a"):
        assert refused(file.programs[name][1], "acquire", 0) == errno.EIO, "its maps go on, and nobody was its home"
    for file in own, far:
        map_until_settled(file)
        for name in "ab":
            for how in CHANGES:
                file.change(name, how, cluster.rng.randrange(10 * PAGE), PAGE)
                file.see_all()
        file.close()


def server_is_silent(cluster):
    """Who needs the data directory waits for it, and nothing is lost."""
    own, far = synced_files(cluster, "silent")
    for name in "ab":
        cluster.switch.cut(NUMBERS[name], NUMBERS["server"])
    ended = []
    with meanwhile(*changes(own, far, ended)):
        time.sleep(3 * PEER_TIMEOUT_S)
        assert not ended, "who needs the server does not wait for it"
        cluster.switch.heal()
    for file in own, far:
        file.see_all()
        file.close()


def server_again(cluster):
    """The data directory's server loses its power, and is started anew: who needs it waits, and nothing that was synced is lost."""
    own, far = synced_files(cluster, "again")
    for name, file in ("b", own), ("a", far):
        file.change(name, "device", 9 * PAGE + 1, PAGE)
    cluster.server.power_off()
    ended = []
    with meanwhile(*changes(own, far, ended)):
        cluster.server.boot()
        assert not ended, "who needs the server does not wait for it"
        cluster.server.ready()
    for file in own, far:
        file.see_all()
        for name in "ab":
            file.change(name, "store", 6 * PAGE + 1, PAGE)
            file.see_all()
        file.close()


def frames_are_lost(cluster):
    cluster.switch.carried.clear()
    cluster.switch.loses = 200
    by_turns(cluster, "a", 20)
    by_turns(cluster, "b", 20)
    cluster.switch.loses = 0
    lost, carried = (of.get(frozenset((NUMBERS["a"], NUMBERS["b"])), 0) for of in (cluster.switch.lost, cluster.switch.carried))
    print(f"  {lost} of those between the nodes, and {carried} were not", flush=True)
    assert lost


def clocks_differ(cluster):
    """The one that is behind says so when they meet."""
    cluster.b.unmount()
    set_clock(cluster.b, 600)
    cluster.b.mount()
    cluster.met()
    cluster.a.wait("grep -q 'clock' /tmp/log", EMULATED_S, "the log speaks of the clock")
    set_clock(cluster.b)


def name_of_a_far_file(cluster):
    """The home's kernel has never heard its name."""
    path = cluster.make("b", "named")
    number = int(cluster.a.run(f"ls -i /net/{os.path.basename(path)}").split()[0])
    program = cluster.a.start()
    program.do("open", 0, path, O_RDWR)
    program.do("device", 0, 0, PAGES * PAGE, "soft:0")
    shown = [file["path"] for file in json.loads(cluster.b.run("gaiactl stat --json /mnt/gaia"))["files"]]
    program.do("unmap", 0)
    cluster.a.stop(program)
    assert f"(inode {number})" in shown and "/" not in shown, shown


def unmounted(cluster):
    """By both, one after the other; what was written is at the server."""
    own, far = synced_files(cluster, "unmounted")
    for file in own, far:
        file.change("b", "device", 3 * PAGE, 5 * PAGE)
        file.change("a", "store", 5 * PAGE, 5 * PAGE)
        file.close()
    cluster.b.unmount()
    cluster.a.unmount()
    for file in own, far:
        name = os.path.basename(file.path)
        digest = cluster.server.run(f"sha256sum </srv/data/{name}").split()[0]
        assert digest == hashlib.sha256(file.bytes).hexdigest(), name


TESTS = [(f"{name}, home {home}", function, (home,)) for home in "ab"
         for name, function in (("by turns", by_turns), ("bytes of the same pages at once", at_once),
                                ("mapped beside programs that write", mapped_beside_writers),
                                ("deleted by a node that does not have it open", deleted_elsewhere))]
TESTS += [("the next home has read the file before it was mapped", read_before, ()),
          ("a machine loses its power, and comes again", power_lost, ()),
          ("a machine stands still, and writes", stands_still, (stop_emulator, continue_emulator, nothing, write_at_once)),
          ("a machine stands still that has stored", stands_still, (stop_emulator, continue_emulator, store_and_wait, write_back_at_once)),
          ("a machine is paused, and writes", stands_still, (pause, resume, nothing, write_at_once)),
          ("the nodes are cut off from each other", cut_off, ()),
          ("the data directory's server is silent", server_is_silent, ()),
          ("the data directory's server is started anew", server_again, ()),
          ("frames are lost", frames_are_lost, ()),
          ("clocks differ", clocks_differ, ()),
          ("the name of a file that only another node uses", name_of_a_far_file, ()),
          ("both unmount", unmounted, ())]


def end_at_once(number, _):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit("time limit" if number == signal.SIGALRM else 1)


def run(args):
    passed = failed = 0
    tests = [test for test in TESTS if args.only in test[0]]
    assert tests, f"no test has {args.only!r} in its name"
    for number in signal.SIGTERM, signal.SIGALRM:
        signal.signal(number, end_at_once)
    signal.alarm(LIMIT_S)
    seed = args.seed if args.seed is not None else int(time.time())
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gaiafs-vm-", dir="/var/tmp") as folder:
        cluster = Cluster(folder, seed)
        try:
            cluster.begin()
            print("the nodes have met", flush=True)
            for name, function, arguments in tests:
                since = time.monotonic()
                try:
                    function(cluster, *arguments)
                    passed += 1
                    print(f"cluster test {name}: ok, {time.monotonic() - since:.1f} s", flush=True)
                except Exception:
                    failed += 1
                    print(f"cluster test {name}: failed\n{traceback.format_exc()}", flush=True)
                    for node in cluster.a, cluster.b:
                        with contextlib.suppress(Exception):
                            print(f"--- log of {node.name}:\n{node.log()}", flush=True)
                    break  # what comes after it shows nothing
        finally:
            cluster.end()
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    passed, failed, skipped = 0, 0, 0
    try:
        machine.check()
        passed, failed = run(args)
    except image.Unavailable as problem:
        print(f"skipped: no virtual machine here: {problem}")
        skipped = 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
