# SPDX-License-Identifier: Apache-2.0
"""Steps of exercise.py for calls that the others do not come to: a file that is larger than a device when that is small, files
that no device has mapped, other users, other namespaces, another node, a GPU."""
import ctypes
import fcntl
import mmap
import os
import subprocess

import gaia
from known import LIBC, PAGE, Bus, fallocate, same

PAGES = 384  # of g; a device of 512 KiB has a third of it
GETFLAGS = 0x80086601
CLONE_NEWNET, CLONE_NEWPID = 0x40000000, 0x20000000


def checked(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def as_user(function):
    """As somebody who is not root."""
    os.setegid(1000)
    try:
        os.seteuid(1000)
        function()
    finally:
        os.seteuid(0)
        os.setegid(0)


class More:
    def more(self):
        self.g = self.known("g", PAGES)
        step = self.step
        step(self.early)
        step(self.create)
        step(self.open_device)
        step(self.map_file, "create", "open_device")
        step(self.touch, "map_file")
        step(self.late, "early", "open_device")
        if "cuda" in self.words:
            step(self.changed_below_a_kernel, "map_file")
            step(self.to_be_evicted)
        step(self.large)
        step(self.map_large, "large")
        step(self.stream, "map_large")
        step(self.scatter, "map_large")
        step(self.stream_again, "map_large")
        step(self.crossed, "map_large")
        step(self.read_only, "large")
        step(self.copy_mapped, "map_large")
        step(self.torn_page, "map_large")
        step(self.direct, "large")
        step(self.append)
        step(self.ranges)
        step(self.users)
        step(self.set_ids, "create")
        step(self.past_the_end, "create")
        if "apart" in self.words:
            step(self.in_another_network, "create")
        if "cuda" in self.words:
            step(self.in_a_stream, "map_large")
            step(self.on_demand, "large")
        if self.word("other"):
            step(self.on_another_node, "map_file")
            step(self.large_on_another_node, "large")
        step(self.without_privileges, "users")
        step(self.statistics)
        step(self.large_final, "large")

    def word(self, name):
        return next((word.partition("=")[2] for word in self.words if word.startswith(name + "=")), None)

    # --- g ---

    def large(self):
        self.large_fd = self.open("g", os.O_RDWR | os.O_CREAT)
        for at in range(0, PAGES, 64):
            self.g.write(self.large_fd, bytes([at // 64 + 1]) * (64 * PAGE), at * PAGE)

    def map_large(self):
        self.large_device = self.new_device(0)
        self.large_map = self.large_device.mmap(self.large_fd, PAGES * PAGE)

    def stream(self):
        self.large_map.advise(gaia.ADV_SEQUENTIAL)
        self.large_map.advise(gaia.ADV_WILLNEED)
        self.g.compare(self.large_map)

    def scatter(self):
        """Where there is no room for all, pages with stores have to go before they are released."""
        pages = range(3, PAGES, 7)
        self.large_map.advise(gaia.ADV_NORMAL)
        with self.g.changed(pages) as content:
            for page in pages:
                self.large_map[page * PAGE + 50:page * PAGE + 55] = b"large"
            self.large_map.release()
            for page in pages:
                content[page * PAGE + 50:page * PAGE + 55] = b"large"
        self.g.check(self.large_fd)

    def stream_again(self):
        self.g.write(self.large_fd, b"by a CPU" * 1000, 200 * PAGE + 5)
        self.large_map.acquire()
        self.g.compare(self.large_map)

    def crossed(self):
        """Pages that a CPU and a device store to; twice, as the second time libgaia knows of the first."""
        pages = range(100, 116)
        with mmap.mmap(self.large_fd, PAGES * PAGE) as memory, self.g.changed(pages) as content:
            for turn in range(2):
                for page in pages:
                    memory[page * PAGE + 300] = turn + 7
                    self.large_map[page * PAGE + 400] = turn + 8
                self.large_map.release()
                for page in pages:
                    content[page * PAGE + 300], content[page * PAGE + 400] = turn + 7, turn + 8
        self.g.check(self.large_fd, 90, 130)

    def read_only(self):
        device = self.new_device(3)
        map = device.mmap(self.large_fd, 32 * PAGE, 1)
        self.g.compare(map, 0, 32)
        self.g.write(self.large_fd, b"by a CPU", 9 * PAGE)
        map.acquire()
        self.g.compare(map, 0, 32)
        map.unmap(8 * PAGE, 8 * PAGE)
        self.g.compare(map, 16, 32)
        map.unmap()
        device.close()

    def changed_below_a_kernel(self):
        """What a GPU reads, and cannot store to, is placed anew when it has changed."""
        device = self.new_device(0)
        map = device.mmap(self.fd, 64 * PAGE, 1)
        for turn in range(2):
            map.acquire()
            self.f.compare(map, 0, 64)
            self.f.write(self.fd, b"%d by a CPU" % turn, 40 * PAGE)
        map.acquire()
        self.f.compare(map, 0, 64)
        map.unmap()
        device.close()

    def copy_mapped(self):
        """Between mapped files, and not in whole pages."""
        fd = self.open("copied", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 32 * PAGE)
        device = self.new_device(4)
        map = device.mmap(fd, 32 * PAGE)
        same(map[0], 0, "a hole")
        length, done = 5 * PAGE + 77, 0
        while done < length:
            done += os.copy_file_range(self.large_fd, fd, length - done, done, 9 * PAGE + done)
        if not self.g.unsure & set(range(6)):
            map.acquire()
            same(map[9 * PAGE:9 * PAGE + length], self.g.content[:length], "copied")
        map.unmap()
        device.close()

    def direct(self):
        fd = self.open("g", os.O_RDWR | os.O_DIRECT)
        with mmap.mmap(-1, PAGE) as buffer:
            same(os.preadv(fd, [buffer], 60 * PAGE), PAGE, "read")
            if 60 not in self.g.unsure:
                same(buffer[:], self.g.page(60), "directly")

    def torn_page(self):
        """Many runs of bytes that are the device's, in one page."""
        at = 70 * PAGE
        with self.g.changed([70]) as content:
            for offset in range(at, at + PAGE, 8):
                self.large_map[offset] = 200
            self.large_map.release()
            content[at:at + PAGE:8] = bytes([200]) * (PAGE // 8)
        self.g.check(self.large_fd, 69, 72)

    def large_final(self):
        self.g.check(self.large_fd)

    # --- other files ---

    def early(self):
        """By a program that uses no device yet."""
        with open(self.path("e"), "wb", buffering=0) as file:
            same(file.write(bytes(PAGE)), PAGE, "written")

    def late(self):
        fd = self.open("e")
        map = self.device.mmap(fd, PAGE)
        same(map[0:2], bytes(2), "written early")
        map.unmap()

    def append(self):
        fd = self.open("h", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        same(os.write(fd, b"appended"), 8, "appended")
        device = self.new_device(5)
        map = device.mmap(fd, 4 * PAGE)
        same(map[0:8], b"appended", "appended before")
        same(os.write(fd, b" and more"), 9, "appended")
        map.acquire()
        same(map[0:17], b"appended and more", "appended to a mapped file")
        map.unmap()
        device.close()

    def ranges(self):
        """Of a file that no device has mapped."""
        fd = self.open("r", os.O_RDWR | os.O_CREAT)
        fallocate(fd, 0, 0, 3 << 20)
        same(os.pwrite(fd, b"x" * PAGE, 2 << 20), PAGE, "written")
        os.lseek(fd, 0, os.SEEK_DATA)
        fallocate(fd, 3, PAGE, (3 << 20) - 2 * PAGE)
        same(os.pread(fd, 1, 2 << 20), b"\0", "punched")
        os.truncate(self.path("r"), 10)
        os.ftruncate(fd, 5)
        same(os.fstat(fd).st_size, 5, "cut")
        fcntl.ioctl(fd, GETFLAGS, bytes(8))
        with open(self.path("r"), "rb") as file:
            same(len(file.read()), 5, "read")

    def users(self):
        """Who is not root makes files, and set-id bits are lost where they must be."""
        os.mkdir(self.path("u"))
        os.chmod(self.path("u"), 0o777)
        as_user(self.as_a_user)
        same(os.stat(self.path("u/mine")).st_uid, 1000, "owner")

    def as_a_user(self):
        path = self.path("u/mine")
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.chmod(path, 0o6755)
            os.write(fd, b"some")
            os.chmod(path, 0o2644)
            os.ftruncate(fd, 3)
            os.truncate(path, 2)
            os.chmod(path, 0o4755)
            os.chown(path, -1, -1)
            same(os.stat(path).st_mode & 0o6000, 0, "set-id bits")
        finally:
            os.close(fd)
        os.mkdir(self.path("u/folder"))
        os.symlink("mine", self.path("u/link"))
        os.rename(path, self.path("u/theirs"))
        os.rename(self.path("u/theirs"), path)

    def set_ids(self):
        """What a device stores takes them away as a write() does."""
        fd = self.open("s", os.O_RDWR | os.O_CREAT)
        same(os.pwrite(fd, bytes(PAGE), 0), PAGE, "written")
        os.fchmod(fd, 0o4755)
        device = self.new_device(6)
        map = device.mmap(fd, PAGE)
        map[1] = 1
        map.release()
        same(os.pread(fd, 2, 0), b"\0\1", "stored")
        same(os.fstat(fd).st_mode & 0o6000, 0, "set-id bits")
        map.unmap()
        device.close()

    # --- other processes ---

    def past_the_end(self):
        """The touch is SIGBUS."""
        try:
            self.in_child(self.touch_past_the_end)
        except Bus:
            return
        same(True, False, "no SIGBUS")

    def touch_past_the_end(self):
        map = gaia.Device("soft:6").mmap(self.fd, 80 * PAGE)
        map[70 * PAGE]

    def map_in_a_child(self):
        """It has a device of its own."""
        device = gaia.Device("soft:7")
        map = device.mmap(self.fd, 64 * PAGE)
        self.f.compare(map, 12, 16)
        map.acquire()
        map.unmap()
        device.close()

    def in_another_network(self):
        """And with other numbers for processes, from which daemons can't be connected to as usual."""
        def go():
            checked(LIBC.unshare(CLONE_NEWNET | CLONE_NEWPID), "unshare")
            self.in_child(self.map_in_a_child)
        self.in_child(go)

    def without_privileges(self):
        def go():
            os.setgid(1000)
            os.setuid(1000)
            map = gaia.Device("soft:7").mmap(self.fd, 64 * PAGE)
            self.f.compare(map, 12, 14)
        self.in_child(go)

    def statistics(self):
        env = {name: value for name, value in os.environ.items() if name != "GAIAFS_FAULTS"}
        done = subprocess.run([os.path.join(os.path.dirname(__file__), "..", "..", "gaiactl"), "stat", "--json", self.mnt], env=env,
                              capture_output=True, text=True)
        if done.returncode:
            raise OSError(next((number for number in range(1, 134) if os.strerror(number) in done.stderr), 0), done.stderr)

    # --- a GPU ---

    def to_be_evicted(self):
        """From a GPU that has no room for all of it: nobody maps it any more, and its stores are not released."""
        fd = self.open("m", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 64 * PAGE)
        device = self.new_device(0)
        map = device.mmap(fd, 64 * PAGE)
        map[3 * PAGE] = 3
        map.unmap()
        device.close()

    def in_a_stream(self):
        self.large_map[5 * PAGE + 60] = 61
        with self.g.changed([5]) as content:
            self.large_map.release_on(None)
            self.large_map.acquire_on(None)
            self.large_device.stream_error()
            self.large_map.release()
            content[5 * PAGE + 60] = 61

    def on_demand(self):
        device = self.new_device(0)
        map = device.mmap(self.large_fd, 64 * PAGE, 3, gaia.DEMAND)
        map.device.memory = gaia.Host
        self.g.compare(map, 10, 12)
        map.acquire()
        map.release()
        map.unmap()
        device.close()

    # --- another node ---

    def on_another_node(self):
        fd = os.open(os.path.join(self.word("other"), os.path.basename(self.mnt), "f"), os.O_RDWR)
        self.fds.append(fd)
        device = self.new_device(1)
        map = device.mmap(fd, 64 * PAGE)
        self.f.compare(map, 0, 8)
        with self.f.changed([6]) as content:
            map[6 * PAGE + 9:6 * PAGE + 13] = b"node"
            map.release()
            content[6 * PAGE + 9:6 * PAGE + 13] = b"node"
        self.f.write(fd, b"by its CPU", 7 * PAGE)
        self.map.acquire()
        self.f.compare(self.map, 4, 9)
        self.f.check(self.fd)
        self.f.check(fd)
        os.fsync(fd)
        map.unmap()
        device.close()

    def large_on_another_node(self):
        fd = os.open(os.path.join(self.word("other"), os.path.basename(self.mnt), "g"), os.O_RDWR)
        self.fds.append(fd)
        self.g.check(fd, 0, 32)
        device = self.new_device(2)
        map = device.mmap(fd, 32 * PAGE, gaia.PROT_READ)
        self.g.compare(map, 0, 32)
        self.g.write(self.large_fd, b"by its home's CPU", 20 * PAGE)
        map.acquire()
        self.g.compare(map, 0, 32)
        map.unmap()
        device.close()
        with mmap.mmap(fd, PAGES * PAGE) as memory, self.g.changed([40]) as content:
            memory[40 * PAGE] = 99
            memory.flush(40 * PAGE, PAGE)
            content[40 * PAGE] = 99
        os.ftruncate(fd, PAGES * PAGE)
        with self.g.changed([383]) as content:
            same(os.copy_file_range(fd, fd, PAGE, 0, 383 * PAGE), PAGE, "copied")
            content[383 * PAGE:] = content[:PAGE]
        os.lseek(fd, 0, os.SEEK_HOLE)
        fallocate(fd, 0, 0, PAGE)
        self.g.check(self.large_fd, 32, 64)
