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
from cluster_machines import (CHANGES, EMULATED_S, LEASE_S, LIMIT_S, LINE, LOOKS, NUMBERS, O_RDWR, PAGES, PEER_TIMEOUT_S, PORTS, STORED,
                              WRITES_BACK_AT_ONCE, WRITES_BACK_LATE, Cluster, File, Refused, file_of, meanwhile, tagged)
from model import PAGE


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
    file.cluster.b.run(WRITES_BACK_AT_ONCE)
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
