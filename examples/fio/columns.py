# SPDX-License-Identifier: Apache-2.0
"""What is compared: a folder of the disk, and the same folder through mounts."""
import contextlib
import ctypes
import json
import mmap
import os
import resource
import shutil
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
EXAMPLES = os.environ.get("GAIA_EXAMPLES", os.path.join(TOP, "build", "gcc", "examples"))
PROGRAMS = os.environ.get("GAIA_PROGRAMS", TOP)
SOURCE = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"
MIB = 1 << 20


class Broken(Exception):
    """It can't go on."""


def run(command, limit=120):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=limit, check=False)
    if done.returncode != 0:
        raise Broken(f"{os.path.basename(str(command[0]))} ended with {done.returncode}: "
                     f"{(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def run_json(command, limit=120):
    out = run(command, limit)
    return json.loads(out[out.index("{"):])


def is_mounted(path):
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return any(line.split()[4] == path for line in file)


class Mount:
    """A mount whose daemon is our child."""

    def __init__(self, command, path):
        os.makedirs(path)
        self.path, self.log = path, path + ".log"
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not is_mounted(path):
            if self.proc.poll() is not None or time.monotonic() > deadline:
                self.proc.kill()
                with open(self.log, encoding="utf-8", errors="replace") as log:
                    raise Broken(f"{os.path.basename(command[0])} does not mount: {log.read()[-600:]}")
            time.sleep(0.01)
        os.stat(path)

    def cpu_seconds(self):
        """Of the whole daemon, ended threads too: the clock that clock_getcpuclockid(3) gives."""
        return time.clock_gettime(~self.proc.pid << 3 | 2)

    def switches(self):
        """How often its threads gave up the processor to wait."""
        total = 0
        for task in os.listdir(f"/proc/{self.proc.pid}/task"):
            path = f"/proc/{self.proc.pid}/task/{task}/status"
            with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("voluntary"))
        return total

    def end(self):
        deadline = time.monotonic() + 10
        while is_mounted(self.path) and subprocess.run(["umount", self.path], capture_output=True,
                                                       check=False).returncode != 0:
            if time.monotonic() > deadline:
                subprocess.run(["umount", "-l", self.path], check=False)
                break
            time.sleep(0.1)
        try:
            self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()


def resident(path):
    """How many pages of a file the kernel has in memory, under this path: a mount has pages of its own."""
    size = os.path.getsize(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ | mmap.PROT_WRITE,
                                             flags=mmap.MAP_PRIVATE) as mapping:
        vector = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapping)
        address = ctypes.c_void_p(ctypes.addressof(first))
        ctypes.CDLL(None, use_errno=True).mincore(address, ctypes.c_size_t(size), vector)
        del first
    return sum(byte & 1 for byte in vector)


def drop(path):
    """Write a file's pages back and let go of them. Tried again: a page that was on its way stays."""
    for _ in range(100):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        if resident(path) == 0:
            return
        time.sleep(0.01)
    raise Broken(f"{path} can't be dropped from the page cache")


def warm(path):
    buffer = bytearray(MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def passes(mount, data):
    """Does the kernel read and write files of a gaiafs mount by itself?"""
    with open(os.path.join(data, "probe"), "wb"):
        pass
    with open(os.path.join(mount.path, "probe"), "rb"):
        stat = run_json([os.path.join(PROGRAMS, "gaiactl"), "stat", "--json", mount.path])
    os.unlink(os.path.join(mount.path, "probe"))
    return any(file["path"] == "probe" and file["mode"] == "passthrough" for file in stat["open"])


class Bench:
    """The data directory, its mounts, and a file of each column."""

    def __init__(self, folder, quick):
        self.folder, self.quick = folder, quick
        self.size = (8 if quick else 512) * MIB
        self.small = (4 if quick else 128) * MIB
        self.names = 200 if quick else 10000
        self.data = os.path.join(folder, "data")
        self.mounts, self.missing, self.holder, self.serial = {}, [], None, 0
        self.columns, self.data_of = ("native", "untracked", "tracked", "passthrough_ll"), {}

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        os.mkdir(self.data)
        # A daemon that keeps a descriptor for each file which the kernel knows may not ask for more than it is given.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        ours = self.gaiafs("gaiafs", self.data)
        self.mounts["untracked"] = self.mounts["tracked"] = ours
        if passes(ours, self.data):
            self.columns = ("native", "passthrough", "tracked", "passthrough_ll")
            self.mounts["passthrough"] = self.mounts.pop("untracked")
            # Who maps a file must have opened it, and it stays in passthrough then as long as the kernel knows it.
            self.data_of["tracked"] = os.path.join(self.folder, "data-tracked")
            os.mkdir(self.data_of["tracked"])
            self.mounts["tracked"] = self.gaiafs("gaiafs-tracked", self.data_of["tracked"], "-o", "passthrough=off")
        for column in self.columns:
            with open(self.paths(column)[1], "wb") as file:
                for _ in range(self.size // MIB):
                    file.write(os.urandom(MIB))
                os.fsync(file.fileno())
        theirs = self.passthrough()
        if theirs:
            path = os.path.join(self.folder, "passthrough_ll")
            # The fastest of its settings that does not acknowledge bytes which only the kernel has, and names and
            # attributes kept as long as gaiafs lets them be kept.
            self.mounts["passthrough_ll"] = Mount(
                [theirs, "-f", "-o", f"source={self.data},cache=always,timeout=1", path], path)
        else:
            self.missing.append("passthrough_ll")
        self.holder = subprocess.Popen([os.path.join(EXAMPLES, "fio", "hold"), self.paths("tracked")[0]],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"mapped\n":
            raise Broken("no device could map a file")

    def gaiafs(self, name, data, *options):
        path = os.path.join(self.folder, name)
        return Mount([os.path.join(PROGRAMS, "mount.gaiafs"), "-f", data, path, *options], path)

    def passthrough(self):
        """Where libfuse's example is, built from its source if need be; None: nowhere."""
        path = os.environ.get("PASSTHROUGH_LL") or shutil.which("passthrough_ll")
        if path or not os.path.exists(SOURCE):
            return path
        path = os.path.join(self.folder, "passthrough_ll.bin")
        run(["cc", "-O2", "-o", path, SOURCE, *run(["pkg-config", "--cflags", "--libs", "fuse3"]).split()])
        return path

    def __exit__(self, *_):
        if self.holder:
            self.holder.stdin.close()
            self.holder.wait()
            self.holder.stdout.close()
        for mount in set(self.mounts.values()):
            mount.end()

    def has(self, column):
        return column == "native" or column in self.mounts

    def folder_of(self, column):
        return self.data if column == "native" else self.mounts[column].path

    def paths(self, column):
        """A column's file as it is measured, and as it is in the data directory."""
        data = self.data_of.get(column, self.data)
        folder = data if column == "native" else self.mounts[column].path if self.has(column) else None
        return folder and os.path.join(folder, column), os.path.join(data, column)

    def prepare(self, column, state):
        """Bring the caches into a state. cold: nobody has anything. backing: the folder's own pages are in memory, the
        mount has none. cached: the mount has all."""
        path, backing = self.paths(column)
        has_pages = column not in ("native", "passthrough")  # of its own
        if has_pages:
            drop(path)
        drop(backing)
        if state == "backing":
            warm(backing)
        elif state == "cached":
            warm(backing)
            if has_pages:
                warm(path)
        return {"resident_mount": resident(path), "resident_backing": resident(backing)}

    def directory(self, column):
        """A new directory that no mount has looked into: its name in the data directory, and through the column."""
        self.serial += 1
        name = f"names{self.serial}"
        os.mkdir(os.path.join(self.data, name))
        return os.path.join(self.data, name), os.path.join(self.folder_of(column), name)
