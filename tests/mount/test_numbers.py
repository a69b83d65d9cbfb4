# SPDX-License-Identifier: Apache-2.0
"""A client's process is known by its number, which may be another's later: nobody else gets the signals that are for its threads."""
import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest

from helpers import (ATTACH, HELLO, MAP, PAGE, STAT, Raw, agents, device_statistics, get_token, message, read_file,  # noqa: F401
                     VERSION, wait_until, write_file)
from test_networks import MEET

USER = 4001
LAST_PID = "/proc/sys/kernel/ns_last_pid"

# The first process of a PID namespace. A child of its with a certain number there touches memory whose faults another process has.
# What the daemon can't show there, it can't poison either: memory of huge pages takes nothing that is smaller.
TOUCHER = """
import ctypes, fcntl, os, socket, struct, sys
number, end, flags = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3])
with open("/proc/sys/kernel/ns_last_pid", "w") as file:
    file.write(str(number - 1))
if os.fork():
    os.wait()
    os._exit(0)
assert os.getpid() == number
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
faults = libc.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK)
fcntl.ioctl(faults, 3 << 30 | 24 << 16 | 0xAA << 8 | 0x3F, struct.pack("=QQQ", 0xAA, 1 << 8, 0))  # with the number of a thread
address = libc.mmap(None, 2 << 20, 3, 0x22 | flags, -1, 0)
fcntl.ioctl(faults, 3 << 30 | 32 << 16 | 0xAA << 8, struct.pack("=QQQQ", address, 2 << 20, 1, 0))
socket.send_fds(end, [struct.pack("=Q", address)], [faults])
end.recv(1)
ctypes.c_char.from_address(address).value
"""


def be_victim(say):
    """The signals that come are seen as pending."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    say()
    while True:
        signal.pause()


class Toucher:
    def __init__(self, number, flags):
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.proc = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", TOUCHER, str(number),
                                          str(theirs.fileno()), str(flags)], pass_fds=[theirs.fileno()])
        data, fds, _, _ = socket.recv_fds(self.end, 8, 1)
        assert data, "it has ended"
        self.address, self.faults = int.from_bytes(data, "little"), fds[0]

    def touch(self):
        self.end.send(b"x")

    def close(self):
        self.proc.kill()
        self.proc.wait()
        os.close(self.faults)
        self.end.close()


class Client:
    """A process of a user, which has saved that it was root. Its map is of memory of the toucher, and this process
    has its connection, too."""

    def __init__(self, path, user):
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fds = []
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.end.close()
                self.live(theirs, path, user)
            finally:
                os._exit(1)
        theirs.close()

    @staticmethod
    def live(end, path, user):
        data, fds, _, _ = socket.recv_fds(end, 8, 1)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, 0)
        fd = os.open(path, os.O_RDWR)
        address, token = get_token(fd)
        raw = Raw(address)
        assert raw.call(message(HELLO), fds) == 0
        assert raw.call(message(MAP, bytes=PAGE, prot=1, token=token)) == 0
        assert raw.call(message(ATTACH, map=raw.reply["map"], address=int.from_bytes(data, "little"))) == 0
        socket.send_fds(end, [b"x"], [raw.socket.fileno()])
        if end.recv(1):
            os.setresuid(0, 0, 0)
            be_victim(lambda: end.send(b"x"))
        os._exit(0)

    def map(self, toucher):
        socket.send_fds(self.end, [toucher.address.to_bytes(8, "little")], [toucher.faults])
        data, self.fds, _, _ = socket.recv_fds(self.end, 1, 1)
        assert data, "it has ended"

    def become_roots(self):
        self.end.send(b"x")
        assert self.end.recv(1)

    def end_it(self):
        self.end.close()
        os.waitpid(self.pid, 0)

    def pending(self):
        """The signals that whoever has its number now has got."""
        status = dict(line.split(":", 1) for line in read_file(f"/proc/{self.pid}/status").decode().splitlines())
        return int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)

    def kill(self):
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(self.pid, os.WNOHANG)[0]:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        for fd in self.fds:
            os.close(fd)


def take_number(number):
    """A process of root's with that number, which is free."""
    read, write = os.pipe()
    for _ in range(1000):
        with open(LAST_PID, "w", encoding="ascii") as file:
            file.write(str(number - 1))
        pid = os.fork()
        if pid == 0:
            be_victim(lambda: os.write(write, b"x"))
        if pid == number:
            assert os.read(read, 1)
            os.close(read)
            os.close(write)
            return
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)
        read, write = os.pipe()
    pytest.skip("somebody else has the number")


HUGE = 0x40000 | 0x4000  # MAP_HUGETLB, MAP_NORESERVE: there need be none


@pytest.mark.whole
@pytest.mark.parametrize("becomes, user, flags, env", [("another", USER, 0, {"GAIA_SOFT_POISON": "0"}), ("another", USER, HUGE, {}),
                                                       ("root's", USER, HUGE, {}), ("another", 0, HUGE, {})])
def test_who_has_a_clients_number_now_gets_no_signal(mount, becomes, user, flags, env):
    """The process that connected has ended, and root's has its number; or it has become root's itself (a set-id program). What the
    client's other process touches can't be served, and that has a thread with the victim's number in its own namespace. (Root may
    be that of a container, who signals nobody outside.)"""
    if not os.access(LAST_PID, os.W_OK):
        pytest.skip("no numbers can be chosen here")
    m = mount(env=env)
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(PAGE))
    os.chmod(path, 0o666)
    client = Client(path, user)
    toucher = Toucher(client.pid, flags)
    try:
        client.map(toucher)
        if becomes == "another":
            client.end_it()
            take_number(client.pid)
        else:
            client.become_roots()
        toucher.touch()
        wait_until(lambda: device_statistics(m.mnt, "soft:0")["faults"] > 5, what="the touch comes again")
        assert client.pending() == 0, "root's process got a signal"
    finally:
        toucher.close()
        client.kill()


# Processes of one user more, by its number in this user namespace: how many of so many connections the daemon takes.
CROWD = """

def crowd(address, user, count):
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        with os.fdopen(read) as file:
            return int(file.readline())
    os.setuid(user)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if meets:
        kept = []
        for _ in range(count):
            error, name, _ = meet(fd)
            kept += [] if error else [connected(name)]  # at once: it is waited for 3 s
        taken = len(kept)
    else:
        kept = [Raw(address) for _ in range(count)]
        taken = sum(raw.call(message(STAT)) == 0 for raw in kept)
    os.write(write, b"%d\\n" % taken)
    while True:
        signal.pause()
"""


@pytest.mark.parametrize("meets", [False, True], ids=["connects", "meets"])
def test_a_user_with_many_numbers_is_one_user(mount, agents, meets):
    """In a user namespace of his own (subuid(5)). Those of a namespace that root has made are many. Also where he has the daemon
    come to him, as one in another network namespace would."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"x")
    os.chmod(path, 0o666)
    os.chmod(m.mnt, 0o755)
    folder = os.open(m.mnt, os.O_RDONLY)
    address, _ = get_token(folder)
    os.close(folder)
    for maker, most in (USER, 64), (0, 100):
        program = agents()
        program.do(MEET + CROWD + f"\nos.setgroups([])\nos.setresuid({maker}, {maker}, {maker})",
                   path=path, version=VERSION, meets=meets)
        if program("ctypes.CDLL(None).unshare(0x10000000)"):  # CLONE_NEWUSER
            pytest.skip("no user namespaces here, as in a chroot")
        with open(f"/proc/{program.pid}/uid_map", "w", encoding="ascii") as file:
            file.write("0 100000 100")
        taken = sum(program(f"crowd(address, {user}, 20)", address=address) for user in range(1, 6))
        other = Raw(address)
        assert other.call(message(STAT)) == 0  # root, whom nobody keeps out
        other.close()
        program.end()
        assert taken == most, maker
