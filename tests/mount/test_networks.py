# SPDX-License-Identifier: Apache-2.0
"""Programs in network namespaces of their own, as containers mostly are: whoever has the daemon's name there is not taken
for it. The daemon comes to the program (fs/visit.h), and to nobody else."""
import errno
import os
import subprocess
import time

import pytest

from files import pattern
from helpers import (BIN, PAGE, ROWS, VERSION, Plan, agents, client_with_faults, daemon_with_faults, read_file,  # noqa: F401
                     statistics, wait_until, write_file)
from test_containers import MAP, PID

NET = ("unshare", "--net")
OWN_NET = ("unshare", "--user", "--map-root-user", "--net")
WAYS = {"net": NET, "net-pid": (*NET, *PID), "net-user": (*NET, "unshare", "--user", "--map-root-user"), "user-net": OWN_NET}

# What a program needs to be visited: it listens, and invites (io/protocol.h).
INVITE = """
import array, contextlib, fcntl, socket
def listener(name, depth=4):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.bind(b"\\0" + name)
    one.listen(depth)
    one.setblocking(False)
    return one
def invite(fd, name, secret=b"s" * 16, reserved=0):
    try:
        fcntl.ioctl(fd, 0x40584702, struct.pack("=II64s16s", version, reserved, name, secret))
    except OSError as error:
        return error.errno
    return 0
def visitor(one):
    with contextlib.suppress(BlockingIOError):
        return one.accept()[0]
def invitation(name):
    one = listener(name)
    return invite(fd, name), one
fd = os.open(path, os.O_RDWR)
name, _ = get_token(fd)
"""
NAME = b"gaia-client-1"
ATTEMPT = "error_of(lambda: dev.mmap(fd, PAGE).unmap())"


def sockets(pid):
    def is_socket(fd):
        try:
            return os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
        except FileNotFoundError:
            return False
    return sum(map(is_socket, os.listdir(f"/proc/{pid}/fd")))


@pytest.fixture
def apart(agents):
    """A function that starts a process in a network namespace of its own, and knows how to invite the daemon."""
    def start(path, before=NET, env=None):
        if subprocess.run([*before, "true"], capture_output=True, timeout=20, check=False).returncode:
            pytest.skip(f"no such namespaces here: {before}")
        agent = agents(env, before)
        agent.do(INVITE, path=path, version=VERSION)
        return agent
    return start


@pytest.fixture
def file(mount):
    """(a mount, the path of a file on it)"""
    m = mount("timeout=0")
    path = os.path.join(m.mnt, "f")
    write_file(path, pattern(64 * PAGE, 9))
    return m, path


@pytest.mark.parametrize("way", WAYS)
def test_another_network_namespace(file, apart, agents, way):
    """There the daemon's name is somebody's, who is told nothing."""
    m, path = file
    content = bytearray(read_file(path))
    inside, outside = apart(path, WAYS[way]), agents()
    inside.do("poser = listener(name[1:])")
    for agent in inside, outside:
        agent.do(MAP, path=path, length=len(content))
        assert agent("map[:]") == content
    for turn in range(4):
        for agent, text in (inside, b"i" * 100), (outside, b"o" * 100):
            at = turn * 8 * PAGE + text[0]
            agent.do("map[at:at + 100] = text\nmap.release()", at=at, text=text)
            content[at:at + 100] = text
        for agent in inside, outside:
            agent.do("map.acquire()")
            assert agent("map[:]") == content, turn
    assert read_file(path) == content
    assert inside("subprocess.run([gaiactl, 'stat', mnt], capture_output=True).returncode", mnt=m.mnt,
                  gaiactl=os.path.join(BIN, "gaiactl")) == 0
    assert inside("visitor(poser)") is None, "somebody has connected"
    inside.end()
    outside.do("map[:3] = b'end'\nmap.release()")
    assert read_file(path)[:3] == b"end"


def test_the_daemon_visits_who_invites_it(file, apart):
    """Its first message has the secret; from then on the program is a client."""
    _, path = file
    one = apart(path)
    one.do("error, mine = invitation(name)", name=NAME)
    assert one("error") == 0
    one.do("peer = Raw.__new__(Raw)\npeer.socket = visitor(mine)\npeer.socket.settimeout(20)\nhello, _ = peer.receive()")
    assert one("hello['op']") == 1 and one("hello['token']") == b"s" * 16
    assert one("peer.call(message(9))") == 0
    assert one("peer.call(message(3))") == -1, "without a HELLO there are no maps"


def test_whom_the_daemon_does_not_visit(file, apart):
    """Another's socket, where a root's connection might mean something, no name of an invitation, nobody who listens."""
    m, path = file
    one = apart(path)
    before = sockets(m.proc.pid)
    one.do("other = subprocess.Popen([sys.executable, '-c', theirs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
           "assert other.stdout.readline() == 'ready\\n'", theirs="""if True:
        import socket, sys
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.bind(b"\\0gaia-client-other")
        one.listen(4)
        print("ready", flush=True)
        while sys.stdin.readline():
            peer = one.accept()[0]
            print(len(peer.recv(4096)), flush=True)
        """)
    assert one("invite(fd, b'gaia-client-other')") == errno.ECONNREFUSED
    assert one("(other.stdin.write('1\\n'), other.stdin.flush(), other.stdout.readline())[2]") == "0\n", "it was told something"
    assert one("invite(fd, b'gaia-client-nobody')") == errno.ECONNREFUSED
    for name in b"", b"other", b"gaia-client", b"gaia-client-" + b"x" * 52:
        assert one("invite(fd, name_)", name_=name) == errno.EINVAL, name
    one.do("full = listener(b'gaia-client-full', 0)\nfirst = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
           "first.connect(b'\\0gaia-client-full')")
    assert one("invite(fd, b'gaia-client-full')") == errno.EAGAIN
    one.do("mine = listener(b'gaia-client-mine')")
    assert one("invite(fd, b'gaia-client-mine', reserved=1)") == errno.EINVAL
    one.do("version += 1")
    assert one("invite(fd, b'gaia-client-mine')") == errno.EINVAL
    assert one("visitor(mine)") is None
    one.do("other.kill()\nother.wait()\nother.stdin.close()\nother.stdout.close()")
    wait_until(lambda: sockets(m.proc.pid) <= before, what="all is closed")


def test_a_user_has_so_many_clients(file, apart):
    """However they came."""
    m, path = file
    before = sockets(m.proc.pid)
    os.chmod(path, 0o666)
    os.chmod(m.mnt, 0o755)
    one = apart(path)
    one.do("os.setresuid(12345, 12345, 12345)\nmine = listener(name_, 200)", name_=NAME)
    answers = one("[invite(fd, name_) for i in range(70)]", name_=NAME)
    assert answers == [0] * 64 + [errno.EMFILE] * 6
    one.do("mine.close()")
    wait_until(lambda: sockets(m.proc.pid) <= before, what="the clients are gone")


@pytest.fixture
def faulty(mount, workdir, monkeypatch):
    """(the plan of a daemon, its mount, a file)"""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("timeout=0", env=env)
    path = os.path.join(m.mnt, "f")
    write_file(path, pattern(4 * PAGE, 3))
    return plan, m, path


def test_a_daemon_that_may_not_enter(faulty, apart):
    """It is no root, or in a container itself."""
    plan, m, path = faulty
    one = apart(path)
    one.do("dev = gaia.Device('soft:0')")
    plan.arm(ROWS.index("setns"), errno.EPERM, 1, 1)
    assert one(ATTEMPT) == errno.ENETUNREACH
    assert one("subprocess.run([gaiactl, 'stat', mnt], capture_output=True, text=True).stderr", mnt=m.mnt,
               gaiactl=os.path.join(BIN, "gaiactl")).endswith(": Network is unreachable\n")
    assert one("os.pread(fd, 100, 0)") == pattern(4 * PAGE, 3)[:100]
    plan.row = -1
    assert one(ATTEMPT) == 0


def test_strangers_who_connect_first(faulty, apart):
    """To the socket of a program that waits for the daemon: they know no secret, whatever they say."""
    plan, m, path = faulty
    one = apart(path)
    one.do("dev = gaia.Device('soft:0')")
    plan.arm_wait(ROWS.index("setns"), 1000, 1, 0)
    one.do("""
import threading
strangers = []
def run():
    while len(strangers) < 3:
        with open("/proc/net/unix") as table:
            names = [line.split()[-1] for line in table if "@gaia-client-" in line]
        for name in names[:1]:
            for said in (None, b"x" * 10, message(1, token=b"y" * 16)):
                stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stranger.connect(chr(0) + name[1:])
                if said:
                    stranger.send(said)
                strangers.append(stranger)
thread = threading.Thread(target=run)
thread.start()
""")
    assert one(ATTEMPT) == 0 and plan.landed
    one.do("thread.join()")
    assert one("len(strangers)") == 3


def test_a_program_that_is_killed_while_it_is_visited(faulty, apart):
    plan, m, path = faulty
    one = apart(path)
    before = sockets(m.proc.pid)
    plan.arm_wait(ROWS.index("setns"), 1000, 1, 0)
    one.start("invitation(name)", mode="eval", name=NAME)
    wait_until(lambda: plan.landed)
    one.kill()
    time.sleep(1.2)
    two = apart(path)
    two.do("dev = gaia.Device('soft:0')")
    assert two(ATTEMPT) == 0
    two.end()
    wait_until(lambda: sockets(m.proc.pid) <= before, what="nobody is left")
    assert statistics(m.mnt)


# Those of all the other calls of a gaia_mmap() among them: test_injection.py has the reasons.
SAYS_AS_MUCH = {0, errno.ENETUNREACH, errno.ENOTCONN, errno.ENODEV, errno.EINVAL, errno.ENOSYS}
DAEMON_CALLS = ("open64", "pthread_create", "setns", "socket", "connect", "getsockopt", "fcntl64", "sendmsg")
CLIENT_CALLS = ("socket", "bind", "listen", "getsockopt", "ioctl", "accept4", "poll", "recvmsg", "sendmsg")


@pytest.mark.parametrize("who, rows", [("daemon", DAEMON_CALLS), ("client", CLIENT_CALLS)])
def test_calls_that_fail_on_the_way(faulty, apart, workdir, who, rows):
    """The program is told an error that says as much, or never knows; the next one is visited."""
    plan, m, path = faulty
    mine = os.path.join(workdir, "client")
    theirs = Plan.make(mine)
    one = apart(path, env=client_with_faults(mine))
    one.do("dev = gaia.Device('soft:0')")
    assert one(ATTEMPT) == 0
    before = sockets(m.proc.pid)
    own = one("len(os.listdir('/proc/self/fd'))")
    plan = plan if who == "daemon" else theirs
    for row in rows:
        landed = 0
        for error in (errno.EMFILE, errno.EIO, errno.EINTR):
            if (row, error) == ("sendmsg", errno.EINTR):
                continue  # is tried again
            for number in range(1, 6):
                plan.arm(ROWS.index(row), error, number, 0)
                said = one(ATTEMPT)
                landed += plan.landed > 0
                plan.row = -1
                assert said in SAYS_AS_MUCH | {error}, (row, error, number)
                assert one(ATTEMPT) == 0, (row, error, number)
        assert landed, row
    wait_until(lambda: sockets(m.proc.pid) <= before, what="the daemon's descriptors")
    assert one("len(os.listdir('/proc/self/fd'))") == own
