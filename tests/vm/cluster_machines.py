# SPDX-License-Identifier: Apache-2.0
"""The three machines of cluster.py, programs on them, and a file that they share with the bytes that it must have."""
import contextlib
import json
import os
import random
import threading
import time

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
