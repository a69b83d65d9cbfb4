#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the steps of the protocol as it is built cost a node's processors: the numbers of costs.json that sim.py's "as built" uses.

Two nodes on this machine, over the local carrier, a file whose home is a, in a's memory; this program uses it on b. Prints, for each
step, the processor time of either daemon (user and system, from /proc/PID/stat) for one unit of it: the median of the rounds; of acquires
the time that the caller waits, too. The carrier copies the bytes through the processors, once at either end, which a NIC would do by
itself: take them off, at memory_bytes_per_s.

measure.py [--rounds N]   as root, after `make all tools`
"""
import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(TOP, "tests", "mount"))
import gaia  # noqa: E402

PAGE, PAGES, LEAP, TIMES = 4096, 32768, 256 << 20, 5000
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


class Node:
    def __init__(self, folder, data, name, peers, unit):
        self.mnt = os.path.join(folder, name)
        os.mkdir(self.mnt)
        self.daemon = subprocess.Popen([os.path.join(TOP, "mount.gaiafs"), "-f", data, self.mnt, "-o",
                                        f"node={name},peers={peers},unit={unit},timeout=0"])

    def wait(self):
        until = time.monotonic() + 20
        while not os.path.ismount(self.mnt):
            if self.daemon.poll() is not None or time.monotonic() > until:
                sys.exit("measure.py: a node does not mount")
            time.sleep(0.05)

    def processor_us(self):
        with open(f"/proc/{self.daemon.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_US

    def served(self, what):
        done = subprocess.run([os.path.join(TOP, "gaiactl"), "stat", "--json", self.mnt], capture_output=True, check=True)
        return json.loads(done.stdout)["nodes"]["served"].get(what, 0)

    def end(self):
        subprocess.run(["fusermount3", "-u", self.mnt], check=False)
        self.daemon.wait(30)


class Pair:
    """Nodes a and b, and a file of a's that b has mapped on soft:0."""

    def __init__(self, unit, length):
        self.folder = tempfile.TemporaryDirectory(prefix="gaiafs-measure-", dir="/var/tmp")
        data = os.path.join(self.folder.name, "data")
        os.mkdir(data)
        peers = "/".join(f"{name}@local:gaiafs-measure-{os.getpid()}-{unit}-{name}" for name in "ab")
        self.nodes = [Node(self.folder.name, data, name, peers, unit) for name in "ab"]
        for node in self.nodes:
            node.wait()
        tool = os.path.join(TOP, "build", "gcc", "tests", "vm", "tool_nodes")
        name = subprocess.run([tool, "name", data, "a", "measured"], capture_output=True, text=True, check=True).stdout.strip()
        self.length = length
        self.here = os.open(os.path.join(self.nodes[0].mnt, name), os.O_RDWR)
        os.pwrite(self.here, b"\1" * length, 0)
        self.there = os.open(os.path.join(self.nodes[1].mnt, name), os.O_RDWR)
        self.device = ctypes.c_void_p()
        gaia.check(gaia.lib.gaia_device_open(b"soft:0", ctypes.byref(self.device)))

    def __enter__(self):
        return self

    def __exit__(self, *what):
        gaia.lib.gaia_device_close(self.device)
        for fd in (self.there, self.here):
            os.close(fd)
        for node in reversed(self.nodes):
            node.end()
        self.folder.cleanup()

    def map(self):
        at = gaia.lib.gaia_mmap(self.device, self.length, gaia.PROT_READ | gaia.PROT_WRITE, gaia.SHARED, self.there, 0)
        if at == gaia.MAP_FAILED:
            raise OSError(ctypes.get_errno(), "gaia_mmap")
        return at

    def call(self, what, *arguments):
        gaia.check(getattr(gaia.lib, what)(*arguments))

    def only_read(self):
        here = os.open(f"/proc/self/fd/{self.here}", os.O_RDONLY)
        os.close(self.here)
        self.here = here
        time.sleep(0.1)  # RELEASE, which nobody waits for

    def read(self):
        for offset in range(0, self.length, 1 << 20):
            os.pread(self.here, 1 << 20, offset)

    def cost(self, work, count):
        """(home's, agent's) microseconds of processor time for each of so many; work may say how many there were."""
        before = [node.processor_us() for node in self.nodes]
        counted = work() or count
        time.sleep(0.1)  # what is told later
        return [round((node.processor_us() - then) / counted, 2) for node, then in zip(self.nodes, before)]


def load(addresses):
    for address in addresses:
        ctypes.string_at(address, 1)


def store(addresses, value):
    for address in addresses:
        ctypes.memset(address, value, 1)


def single_units(unit, size, count):
    """Faults of one unit, in no order."""
    with Pair(unit, size * count) as pair:
        at = pair.map()
        pair.call("gaia_madvise", at, pair.length, gaia.ADV_RANDOM)
        addresses = random.sample(range(at, at + pair.length, size), count)
        costs = pair.cost(lambda: load(addresses), count)
        pair.call("gaia_munmap", at, pair.length)
    return costs


def stream():
    """Pieces of a file that is read from its beginning to its end."""
    with Pair("64K", LEAP) as pair:
        at = pair.map()

        def read():
            before = pair.nodes[1].served("place")
            load(range(at, at + LEAP, PAGE))
            return pair.nodes[1].served("place") - before

        costs = pair.cost(read, 0)
        pair.call("gaia_munmap", at, pair.length)
    return costs


def synchronize():
    """Stores, releases, collects, acquires, of single pages beside each other."""
    costs = {}
    with Pair("4K", PAGES * PAGE) as pair:
        at = pair.map()
        addresses, whole = range(at, at + pair.length, PAGE), (at, pair.length, pair.device)
        load(addresses)
        for value in (2, 3):
            costs["first_store_page"] = pair.cost(lambda: store(addresses, value), PAGES)
            costs["release_page"] = pair.cost(lambda: pair.call("gaia_mrelease", *whole), PAGES)
            costs["collect_page"] = pair.cost(lambda: pair.read(), PAGES)
        os.pwrite(pair.here, b"\7" * pair.length, 0)
        costs["acquire_stale_page"] = pair.cost(lambda: pair.call("gaia_macquire", *whole), PAGES)
        for name in "acquire_unchanged_writers", "acquire_unchanged":  # while a program of the home's has it open for writing, and not
            began = time.monotonic()
            costs[name] = pair.cost(lambda: [pair.call("gaia_macquire", *whole) for _ in range(TIMES)] and None, TIMES)
            costs[name] += [round((time.monotonic() - 0.1 - began) / TIMES * 1e6, 2)]
            pair.only_read()
        pair.call("gaia_munmap", at, pair.length)
    return costs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rounds = []
    for _ in range(args.rounds):
        rounds.append({"fault_4k": single_units("4K", PAGE, PAGES), "fault_64k": single_units("64K", 16 * PAGE, PAGES // 4),
                       "stream_256k": stream(), **synchronize()})
        print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    who = ("home_us", "agent_us", "caller_us")
    print(json.dumps({step: {who[i]: statistics.median(one[step][i] for one in rounds) for i in range(len(rounds[0][step]))}
                      for step in rounds[0]}, indent=1))


if __name__ == "__main__":
    main()
