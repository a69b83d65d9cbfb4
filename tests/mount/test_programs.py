# SPDX-License-Identifier: Apache-2.0
"""What programs do with files besides reading and writing them: run them, lock them, watch them."""
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import struct
import subprocess
import sys

import pytest

from helpers import write_file
from posix_calls import as_user, libc

LOCK = struct.Struct("hhqqi4x")  # struct flock
F_OFD_SETLK = 37


# --- running ---------------------------------------------------------------------------------------------------------

def test_programs_run_from_the_mount(mount):
    m = mount()
    program, script = os.path.join(m.mnt, "program"), os.path.join(m.mnt, "script")
    shutil.copy(shutil.which("cat"), program)
    write_file(script, f"#!{program}\nthe script\n".encode())
    for path in (program, script):
        os.chmod(path, 0o755)
    assert subprocess.run([script], capture_output=True, check=True).stdout.endswith(b"the script\n")
    running = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        for attempt in (lambda: open(program, "r+b"), lambda: os.truncate(program, 5)):
            with pytest.raises(OSError) as caught:
                attempt()
            assert caught.value.errno == errno.ETXTBSY
        os.rename(program, program + "2")  # as installers do
        os.unlink(program + "2")
        assert running.communicate(b"still here")[0] == b"still here"
    finally:
        running.kill()
        running.wait()
    shutil.copy(shutil.which("cat"), program)
    os.chmod(program, 0o755)
    with open(program, "r+b"):
        with pytest.raises(OSError) as caught:
            subprocess.run([program], check=False)
        assert caught.value.errno == errno.ETXTBSY
    os.chmod(program, 0o644)
    with pytest.raises(PermissionError):
        subprocess.run([program], check=False)


def test_a_set_user_id_program_runs_as_its_owner(mount):
    m = mount()
    os.chmod(m.mnt, 0o755)
    program = os.path.join(m.mnt, "id")
    shutil.copy(shutil.which("id"), program)
    os.chown(program, 4001, 4002)
    os.chmod(program, 0o6755)
    done = as_user("os.execv(sys.argv[1], ['id'])", program)
    assert "euid=4001" in done.stdout and "egid=4002" in done.stdout, done
    assert m.unmount() is None
    again = mount("nosuid", data=m.data)
    os.chmod(again.mnt, 0o755)
    done = as_user("os.execv(sys.argv[1], ['id'])", os.path.join(again.mnt, "id"))
    assert "uid=65534" in done.stdout and "euid" not in done.stdout, done


def test_shared_libraries_are_mapped_from_the_mount(mount):
    m = mount()
    with open("/proc/self/maps") as file:
        library = next(line.split()[-1] for line in file if "/libm.so" in line or "/libm-" in line or "/libc.so" in line)
    copy = os.path.join(m.mnt, "library.so")
    shutil.copy(library, copy)
    done = subprocess.run([sys.executable, "-c", "import ctypes, sys\nctypes.CDLL(sys.argv[1])\n"
                           "print(sys.argv[1] in open('/proc/self/maps').read())", copy], capture_output=True, text=True)
    assert done.stdout == "True\n", done


# --- locks -----------------------------------------------------------------------------------------------------------

LOCKER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Other:
    """Another process with the file open."""

    def __init__(self, path):
        self.proc = subprocess.Popen([sys.executable, "-c", LOCKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True)

    def __call__(self, code):
        self.proc.stdin.write(code + "\n")
        self.proc.stdin.flush()
        return self.proc.stdout.readline().strip()

    def end(self):
        self.proc.kill()
        self.proc.communicate()


@pytest.fixture
def locked(mount):
    path = os.path.join(mount().mnt, "f")
    write_file(path, bytes(100))
    fd = os.open(path, os.O_RDWR)
    other = Other(path)
    yield fd, other
    other.end()
    os.close(fd)


def test_flock(locked):
    fd, other = locked
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert other("fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)") == "None"
    assert other("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)") == str(errno.EAGAIN)
    copy = os.dup(fd)
    fcntl.flock(copy, fcntl.LOCK_UN)  # of the description, whichever descriptor
    os.close(copy)
    assert other("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)") == "None"
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    other.end()  # a lock ends with its process
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_posix_locks(locked):
    fd, other = locked
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 5)
    assert other("fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 5)") == "None"
    for start, length in ((0, 0), (14, 1), (10, 10)):
        assert other(f"fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, {length}, {start})") == str(errno.EAGAIN)
    answer = other("fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 12, 1, 0)).hex()")
    assert LOCK.unpack(bytes.fromhex(answer)) == (fcntl.F_WRLCK, 0, 5, 10, os.getpid())
    os.close(os.dup(fd))  # a close of any descriptor ends them
    assert other("fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)") == "None"
    with pytest.raises(BlockingIOError):
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other.end()
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # of the open file, not the process
    fcntl.lockf(fd, fcntl.LOCK_UN)
    fcntl.fcntl(fd, F_OFD_SETLK, LOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
    second = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.fcntl(second, F_OFD_SETLK, LOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
    os.close(second)


def test_who_waits_for_a_lock_gets_it_and_can_be_killed(locked):
    fd, other = locked
    fcntl.lockf(fd, fcntl.LOCK_EX)
    other.proc.stdin.write("fcntl.lockf(fd, fcntl.LOCK_EX)\n")
    other.proc.stdin.flush()
    third = Other(f"/proc/{os.getpid()}/fd/{fd}")
    third.proc.stdin.write("fcntl.lockf(fd, fcntl.LOCK_EX)\n")
    third.proc.stdin.flush()
    third.end()
    fcntl.lockf(fd, fcntl.LOCK_UN)
    assert other.proc.stdout.readline() == "None\n"


# --- watching --------------------------------------------------------------------------------------------------------

EVENTS = {"access": 1, "modify": 2, "attrib": 4, "close_write": 8, "close": 16, "open": 32, "moved_from": 64,
          "moved_to": 128, "create": 256, "delete": 512, "delete_self": 1024, "move_self": 2048}


def watch(folder, actions):
    """The (name, event) that inotify tells of each action."""
    fd = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(fd, os.fsencode(folder), ctypes.c_uint32(0xFFF)) >= 0
    told = []
    for action in actions:
        action(folder)
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            data = b""
        events = []
        while data:
            _, mask, _, length = struct.unpack_from("iIII", data)
            name = data[16:16 + length].rstrip(b"\0").decode()
            events.append((name, [key for key, bit in EVENTS.items() if mask & bit], bool(mask >> 30 & 1)))
            data = data[16 + length:]
        told.append(events)
    os.close(fd)
    return told


def store(folder):
    with open(os.path.join(folder, "f"), "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[0:1] = b"s"


def test_inotify_tells_what_it_tells_of_a_plain_folder(mount, workdir):
    plain = os.path.join(workdir, "plain")
    os.mkdir(plain)

    def at(call, *names):
        return lambda folder: call(*(os.path.join(folder, name) for name in names))
    actions = [at(lambda path: write_file(path, b"bytes"), "f"), at(os.stat, "f"), at(lambda path: open(path).read(), "f"),
               at(lambda path: os.chmod(path, 0o600), "f"), at(lambda path: os.truncate(path, 3), "f"), store,
               at(lambda path: os.setxattr(path, "user.a", b"1"), "f"), at(os.mkdir, "d"), at(os.link, "f", "l"),
               at(os.rename, "f", "d/f"), at(os.rename, "d/f", "f"), at(os.rename, "f", "g"), at(os.unlink, "g"),
               at(os.rmdir, "d"), at(os.listdir, "")]
    told = [watch(folder, actions) for folder in (mount().mnt, plain)]
    assert told[0] == told[1] and sum(map(len, told[0])) > 20
