# SPDX-License-Identifier: Apache-2.0
"""Programs in network namespaces of their own, as containers mostly are: whoever has the daemon's name there is not taken
for it. The daemon listens where the program is, until it has come (fs/listener.h, fs/server.c)."""
import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from conftest import not_in_the_gate
from files import pattern
from helpers import (BIN, PAGE, ROWS, VERSION, Plan, affinities, agents, client_with_faults, daemon_with_faults,  # noqa: F401
                     get_token, message, read_file, statistics, stand_still, wait_until, write_file)
from test_containers import MAP, PID

NET = ("unshare", "--net")
OWN_NET = ("unshare", "--user", "--map-root-user", "--net")
WAYS = {"net": NET, "net-pid": (*NET, *PID), "net-user": (*NET, "unshare", "--user", "--map-root-user"), "user-net": OWN_NET}

# What a program needs to meet the daemon (io/protocol.h).
MEET = """
import fcntl, socket
def meet(fd):
    try:
        answer = fcntl.ioctl(fd, 0x80584702, bytes(88))
    except OSError as error:
        return error.errno, None, None
    told, reserved, name, secret = struct.unpack("=II64s16s", answer)
    assert (told, reserved) == (version, 0)
    return 0, b"\\0" + name.split(b"\\0")[0], secret
def connected(name):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(20)
    one.connect(name)
    return one
fd = os.open(path, os.O_RDWR)
name, _ = get_token(fd)
"""
ATTEMPT = "error_of(lambda: dev.mmap(fd, PAGE).unmap())"
# By a connection of its own, which is kept while a device is open.
ANEW = """
def anew():
    dev = gaia.Device('soft:0')
    try:
        dev.mmap(fd, PAGE).unmap()
    finally:
        dev.close()
"""
# Who connects to whatever the daemon listens under, from another process.
STRANGER = """if True:
    import socket, sys
    name = sys.stdin.readline().strip()
    while True:
        with open("/proc/net/unix") as table:
            names = {line.split()[-1] for line in table if "@gaiafs-" in line}
        for one in names - {name}:
            for turn in range(int(sys.argv[1])):
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                peer.connect(chr(0) + one[1:])
                peer.settimeout(float(sys.argv[2]))
                try:
                    print(len(peer.recv(4096)), flush=True)
                except TimeoutError:
                    print("nothing", flush=True)
                globals().setdefault("kept", []).append(peer)
            sys.exit()
    """


POSER = """if True:
    import socket, sys, time
    said, seen = sys.stdin.buffer.read(), set()
    print("ready", flush=True)
    while True:
        with open("/proc/net/unix") as table:
            names = {line.split()[-1] for line in table if "@gaiafs-" in line}
        for name in seen - names:
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.bind(chr(0) + name[1:])
            one.listen()
            peer = one.accept()[0]
            peer.send(said)
            try:
                print(len(peer.recv(4096)), flush=True)
            except ConnectionResetError:  # what it has said was not taken
                print(0, flush=True)
            sys.exit()
        seen |= names
    """


def sockets(pid):
    def is_socket(fd):
        try:
            return os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
        except FileNotFoundError:
            return False
    return sum(map(is_socket, os.listdir(f"/proc/{pid}/fd")))


@pytest.fixture
def apart(agents):
    """A function that starts a process in a network namespace of its own, and knows how to meet the daemon."""
    def start(path, before=NET, env=None):
        if subprocess.run([*before, "true"], capture_output=True, timeout=20, check=False).returncode:
            pytest.skip(f"no such namespaces here: {before}")
        agent = agents(env, before)
        agent.do(MEET, path=path, version=VERSION)
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
    inside.do("poser = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\nposer.bind(name)\nposer.listen()\n"
              "poser.setblocking(False)")
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
    assert inside("error_of(poser.accept)") == errno.EAGAIN, "somebody has connected"
    inside.end()
    outside.do("map[:3] = b'end'\nmap.release()")
    assert read_file(path)[:3] == b"end"


def test_root_of_another_network_namespace_is_not_root(file, apart):
    """It may be one of a container that sees a part of the mount: it is not shown the names of all files."""
    m, path = file
    one = apart(path)
    stat = f"subprocess.run([{os.path.join(BIN, 'gaiactl')!r}, 'stat', {m.mnt!r}], capture_output=True, text=True)"
    assert "not permitted" in one(f"{stat}.stderr")
    answers = one("[meet(fd) for _ in range(70)]")
    assert [error for error, _, _ in answers] == [0] * 64 + [errno.EUSERS] * 6
    one.do("dev = gaia.Device('soft:0')")
    assert one(ATTEMPT) == errno.EUSERS
    assert statistics(m.mnt), "they are all that there are"
    two = apart(path)
    two.do("dev = gaia.Device('soft:0')")
    assert two(ATTEMPT) == 0, "another container's root is another user"
    wait_until(lambda: one(ATTEMPT) == 0, 25, "who does not come is not waited for")


def test_the_daemon_speaks_first(file, apart):
    _, path = file
    one = apart(path)
    one.do("error, name, secret = meet(fd)\npeer = Raw.__new__(Raw)\npeer.socket = connected(name)\nhello, _ = peer.receive()")
    assert one("error") == 0 and one("hello['op']") == 1 and one("hello['token'] == secret")
    assert one("peer.call(message(9))") == 0
    assert one("error_of(connected, name)") == errno.ECONNREFUSED, "it listens for one"
    assert one("meet(fd)[1] != name")
    assert one("peer.call(message(3))") == -1, "without a HELLO there are no maps"


@pytest.fixture
def stranger(apart):
    """A function: starts a process in the namespace of another that connects so often, and waits so long for a word."""
    started = []

    def start(one, times, seconds=1.0):
        proc = subprocess.Popen(["nsenter", f"--net=/proc/{one.pid}/ns/net", sys.executable, "-c", STRANGER, str(times), str(seconds)],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(proc)
        proc.stdin.write("@" + one("name[1:].decode()") + "\n")
        proc.stdin.flush()
        return proc

    yield start
    for proc in started:
        proc.kill()
        proc.communicate()


def test_strangers_who_connect_first(file, apart, stranger):
    """They have seen the name in the list of sockets, and are told nothing."""
    m, path = file
    one = apart(path)
    before = sockets(m.proc.pid)
    one.do("error, meeting, secret = meet(fd)")
    proc = stranger(one, 3, 0.3)
    assert [proc.stdout.readline() for _ in range(3)] == ["0\n"] * 3
    one.do("peer = Raw.__new__(Raw)\npeer.socket = connected(meeting)\nhello, _ = peer.receive()")
    assert one("hello['token'] == secret") and one("peer.call(message(9))") == 0
    one.do("peer.close()")
    wait_until(lambda: sockets(m.proc.pid) <= before, what="all are gone")


def test_many_strangers(file, apart, stranger):
    """Then the program is not met, but nobody has the name until the time is over; it can try again."""
    m, path = file
    one = apart(path)
    one.do("error, meeting, secret = meet(fd)")
    proc = stranger(one, 20, 0.1)
    assert [proc.stdout.readline() for _ in range(20)] == ["0\n"] * 8 + ["nothing\n"] * 12
    one.do("poser = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)")
    assert one("error_of(poser.bind, meeting)") == errno.EADDRINUSE
    one.do("dev = gaia.Device('soft:0')")
    assert one(ATTEMPT) == 0


LINGERS = """
def lingers():
    # A socket whose last close() waits for a peer that does not read.
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    peer = listener.accept()[0]
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    one.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            one.send(bytes(1 << 20))
    return one, peer
import contextlib, threading
kept = []
def give(one, said=message(9)):
    # In the queue, and nowhere else.
    lingering, peer = lingers()
    kept.append(peer)
    for turn in range(100):
        with contextlib.suppress(OSError):
            socket.send_fds(one, [said], [lingering.fileno()])
            break
        for one_of_many in range(40):  # the kernel wakes who waits for room when three quarters are free
            with contextlib.suppress(OSError):
                one.recv(4096)
        time.sleep(0.02)
    # Ours may be the last, where the daemon was fast.
    threading.Thread(target=lingering.close, daemon=True).start()
"""


@not_in_the_gate
@pytest.mark.limit(120)
@pytest.mark.parametrize("how", ["a message", "in the queue", "one too many", "for faults"])
def test_a_descriptor_that_cannot_be_closed(file, agents, how):
    """A client keeps its own thread, and nobody else: the mount answers, others are served, and it ends."""
    m, path = file
    os.chmod(path, 0o666)
    os.chmod(m.mnt, 0o755)
    bad = agents()
    bad.do(MEET + LINGERS + "os.setresuid(12345, 12345, 12345)", path=path, version=VERSION)
    if how == "a message":
        bad.do("one = Raw(name)\ngive(one.socket)")
    elif how == "for faults":
        bad.do("one = Raw(name)\ngive(one.socket, message(1, flags=2))")
    elif how == "in the queue":
        bad.do("one = Raw(name)\none.socket.setblocking(False)\n"
               "with contextlib.suppress(BlockingIOError):\n    while True:\n        one.socket.send(message(9))\n"
               "time.sleep(0.5)\ngive(one.socket)\none.close()")
    else:
        bad.do("many = [Raw(name) for _ in range(64)]\nassert all(one.call(message(9)) == 0 for one in many)\n"
               "lingering, peer = lingers()\nfor _ in range(20):\n    one = Raw(name)\n"
               "    with contextlib.suppress(OSError):\n        socket.send_fds(one.socket, [message(9)], [lingering.fileno()])\n"
               "    one.close()\nthreading.Thread(target=lingering.close, daemon=True).start()")
    good = agents()
    good.do(MAP, path=path, length=PAGE)
    assert good("map[:100]") == pattern(64 * PAGE, 9)[:100]
    assert [bad("meet(fd)[0]") for _ in range(20)] == [errno.EUSERS if how == "one too many" else 0] * 20
    good.do("map[:3] = b'end'\nmap.release()")
    assert statistics(m.mnt) and read_file(path)[:3] == b"end"
    good.end()
    bad.do("os.close(fd)")
    assert m.unmount() in (None, "")
    assert read_file(os.path.join(m.data, "f"))[:3] == b"end"


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


def test_who_takes_the_name_after_the_daemon(faulty, apart, workdir):
    """The program was stopped for so long that the daemon has given it up: it tries again."""
    plan, m, path = faulty
    mine = os.path.join(workdir, "client")
    theirs = Plan.make(mine)
    one = apart(path, env=client_with_faults(mine))
    one.do("dev = gaia.Device('soft:0')")
    poser = subprocess.Popen(["nsenter", f"--net=/proc/{one.pid}/ns/net", sys.executable, "-c", POSER], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    try:
        poser.stdin.write(message(1, token=b"y" * 16))
        poser.stdin.close()
        assert poser.stdout.readline() == b"ready\n"
        theirs.arm_wait(ROWS.index("connect"), 5000, 1, 0)
        assert one(ATTEMPT) == 0 and theirs.landed
        assert poser.stdout.readline() == b"0\n", "it was told something"
    finally:
        poser.kill()
        poser.wait()
        poser.stdout.close()


def test_a_program_that_is_killed_while_it_is_met(faulty, apart):
    plan, m, path = faulty
    one = apart(path)
    before = sockets(m.proc.pid)
    plan.arm_wait(ROWS.index("setns"), 1000, 1, 0)
    one.start("meet(fd)", mode="eval")
    wait_until(lambda: plan.landed)
    one.kill()
    two = apart(path)
    two.do("dev = gaia.Device('soft:0')")
    assert two(ATTEMPT) == 0
    two.end()
    wait_until(lambda: sockets(m.proc.pid) <= before, 25, what="nobody is left")
    assert statistics(m.mnt)


@pytest.mark.parametrize("step", ["setns", "accept4"])
def test_a_mount_that_ends_while_a_program_is_met(faulty, apart, step):
    plan, m, path = faulty
    one = apart(path)
    if step == "setns":
        plan.arm_wait(ROWS.index("setns"), 1000, 1, 0)
        one.start("meet(fd)", mode="eval")
        wait_until(lambda: plan.landed)
    else:
        assert one("meet(fd)[0]") == 0
    os.kill(m.proc.pid, signal.SIGTERM)
    assert m.proc.wait(20) == 0


# Those of all the other calls of a gaia_mmap() among them: test_injection.py has the reasons.
SAYS_AS_MUCH = {0, errno.ENETUNREACH, errno.ENOTCONN, errno.ENODEV, errno.EINVAL, errno.ENOSYS, errno.ENOMEM, errno.EIO}
DAEMON_CALLS = ("calloc", "open64", "pthread_create", "setns", "socket", "bind", "listen", "accept4", "getsockopt", "sendmsg")
CLIENT_CALLS = ("socket", "connect", "getsockopt", "ioctl", "poll", "recv", "recvmsg", "sendmsg")


@pytest.mark.parametrize("who, rows", [("daemon", DAEMON_CALLS), ("client", CLIENT_CALLS)])
def test_calls_that_fail_on_the_way(faulty, apart, workdir, who, rows):
    """The program is told an error that says as much, or never knows; the next one is met."""
    plan, m, path = faulty
    mine = os.path.join(workdir, "client")
    theirs = Plan.make(mine)
    one = apart(path, env=client_with_faults(mine))
    one.do(ANEW)
    assert one("error_of(anew)") == 0
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
                said = one("error_of(anew)")
                landed += plan.landed > 0
                plan.row = -1
                assert said in SAYS_AS_MUCH | {error}, (row, error, number)
                assert one("error_of(anew)") == 0, (row, error, number)
        assert landed, row
    wait_until(lambda: sockets(m.proc.pid) <= before, 25, what="the daemon's sockets")
    assert one("len(os.listdir('/proc/self/fd'))") == own


# --- what a client can keep to itself --------------------------------------------------------------------------------------

def reaches(m):
    return subprocess.run([os.path.join(BIN, "gaiactl"), "stat", m.mnt], capture_output=True, timeout=20, check=False).returncode == 0


def is_slow(began):
    """Who has met the daemon and does not connect is forgotten after 3 s: on a busy machine before the last one has met it."""
    return time.monotonic() - began > 2.5


def test_other_networks_keep_nobody_out(file, apart, agents):
    """Who can make network namespaces can make many, and their root can be any user."""
    m, path = file
    os.chmod(path, 0o666)
    many = [apart(path) for _ in range(4)]
    began = time.monotonic()
    met = [one("[meet(fd)[0] for _ in range(70)].count(0)") for one in many]
    assert met == [64, 64, 0, 0] or (is_slow(began) and met[0] >= 64 and 128 <= sum(met) < 200), met
    assert reaches(m)
    near = agents()
    near.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('soft:0')\nos.setresuid(12345, 12345, 12345)", path=path)
    assert near(ATTEMPT) == 0


def test_the_users_of_a_network_are_counted_together(file, apart, agents):
    m, path = file
    os.chmod(path, 0o666)
    one, near = apart(path), agents()
    near.do(MEET, path=path, version=VERSION)
    began = time.monotonic()
    one.do("""
import ctypes, threading
libc = ctypes.CDLL(None, use_errno=True)
counts = []
both = threading.Barrier(2)
def go(uid):
    libc.syscall(117, uid, uid, uid)  # setresuid() of this thread
    counts.append([meet(fd)[0] for _ in range(64)].count(0))
    both.wait()  # what a thread has asked for is forgotten when it ends
many = [threading.Thread(target=go, args=(uid,)) for uid in (12345, 20002)]
for each in many:
    each.start()
for each in many:
    each.join()
""")
    met = sum(one("counts"))
    assert met == 64 or (is_slow(began) and 64 < met < 100), met
    assert reaches(m)
    near.do("dev = gaia.Device('soft:0')\nos.setresuid(12345, 12345, 12345)")
    assert near(ATTEMPT) == 0


def test_one_too_many_of_a_user_is_told_so(file, agents):
    """EUSERS, and not that the daemon is gone; whoever of them ends makes room."""
    m, path = file
    os.chmod(path, 0o666)
    with open(path, "r+b") as opened:
        name, _ = get_token(opened.fileno())
    user = agents()
    user.do("dev = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR)\nos.setresuid(20001, 20001, 20001)\nkept = [Raw(name) for _ in range(64)]\n"
            "answers = [raw.call(message(STAT)) for raw in kept]", name=name, path=path)
    assert user("answers.count(0)") == 64
    assert [user(ATTEMPT) for _ in range(20)] == [errno.EUSERS] * 20
    assert reaches(m)  # another user
    user.do("kept.pop().close()")
    wait_until(lambda: user(ATTEMPT) == 0, what="there is room again")


def test_nobody_keeps_root_out(file, apart, agents):
    m, path = file
    os.chmod(path, 0o666)
    with open(path, "r+b") as opened:
        name, _ = get_token(opened.fileno())
    users = [agents() for _ in range(4)]
    for number, user in enumerate(users):
        user.do("os.setresuid(uid, uid, uid)\nkept = []\nfor _ in range(64):\n    kept.append(Raw(name))\n", uid=20001 + number, name=name)
    wait_until(lambda: m.log_text().count("turned away"), what="somebody is turned away")
    assert reaches(m)


def test_a_client_whose_memory_is_locked(mount, agents):
    """The last close of its userfaultfd waits for its mmap lock, which a munmap() has that another FUSE mount does not
    answer. The end of the mount does not wait, and what others have released is in the data directory."""
    m, other = mount("timeout=0"), mount("timeout=0,passthrough=off")
    for each in m, other:
        write_file(os.path.join(each.mnt, "f"), bytes(4 * PAGE))
    good, bad = agents(), agents()
    good.do(MAP + "\nmap[:5] = b'bytes'\nmap.release()", path=os.path.join(m.mnt, "f"), length=PAGE)
    good.end()
    bad.do("""
import mmap
fd = os.open(path, os.O_RDWR)
name, _ = get_token(fd)
raw, faults = Raw(name), userfaultfd()
assert raw.call(message(1, flags=2), [faults]) == 0
os.close(faults)
os.close(fd)
mapping = mmap.mmap(os.open(other, os.O_RDWR), 4096)
mapping[:4] = b"more"
""", path=os.path.join(m.mnt, "f"), other=os.path.join(other.mnt, "f"))
    m.expected_exit = None
    try:
        stand_still(other.pid)
        bad.start("mapping[:4] = b'last'\nmapping.close()")  # dirty now, whatever was written back
        assert bad.busy(0.5)
        assert subprocess.run(["umount", m.mnt], check=False).returncode == 0
        wait_until(lambda: "descriptors that can't be closed: not waited for" in m.log_text(), 20, "the client is abandoned")
        wait_until(lambda: read_file(os.path.join(m.data, "f"))[:5] == b"bytes", 5, "released bytes are written")
    finally:
        os.kill(other.pid, signal.SIGCONT)
    assert m.proc.wait(20) == 0


def bound_threads(pid):
    """How many threads may not run everywhere."""
    return sum(allowed != os.sched_getaffinity(0) for allowed in affinities(pid))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_a_client_is_not_bound_as_who_met_it(file, apart):
    """A thread that serves small requests moves to their program's processor (fs/follow.h): those that it starts do not."""
    m, path = file
    many = [apart(path) for _ in range(4)]
    for one in many:
        one.do("dev = gaia.Device('soft:0')\nfor n in range(2000):\n    os.utime(path)\nmap = dev.mmap(fd, PAGE)", path=path)
    wait_until(lambda: bound_threads(m.pid) <= 3, 20, "only those that wait in the kernel are bound")


def test_a_poser_that_says_nothing(faulty, apart, workdir):
    """It has the name for one try, not for all of them."""
    _, _, path = faulty
    mine = os.path.join(workdir, "client")
    theirs = Plan.make(mine)
    one = apart(path, env=client_with_faults(mine))
    one.do("dev = gaia.Device('soft:0')")
    poser = subprocess.Popen(["nsenter", f"--net=/proc/{one.pid}/ns/net", sys.executable, "-c",
                              POSER.replace("peer.send(said)", "time.sleep(60)")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        poser.stdin.close()
        assert poser.stdout.readline() == b"ready\n"
        theirs.arm_wait(ROWS.index("connect"), 5000, 1, 0)
        assert one(ATTEMPT) == 0 and theirs.landed
    finally:
        poser.kill()
        poser.wait()
        poser.stdout.close()
