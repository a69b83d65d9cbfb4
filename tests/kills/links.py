# SPDX-License-Identifier: Apache-2.0
"""The network of nodes that are on one machine: each node is in a network namespace of its own, where the names of the others are
sockets of ours. What comes there goes on to the node that is meant, late or not at all, as the links are told. Each direction of
each pair is a link of its own: what waits on one that is cut arrives when it is whole again, in order, or the connection breaks."""
import collections
import contextlib
import ctypes
import os
import select
import socket
import threading
import time

CLONE_NEWNET = 0x40000000
DATAGRAM_MAX = 1 << 17
WAITING_MAX = 256  # datagrams of a direction: then nothing more is read, and its sender's socket fills
TICK_S = 0.002
LATE_NS = 400_000_000  # without a turn nothing is carried: nodes take each other for dead after a second

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    if getattr(libc, name)(*args):
        raise OSError(ctypes.get_errno(), name)


def address(prefix, name):
    return f"\0{prefix}-{name}"


class Pipe:
    """One connection: sockets of both ends, and what is on its way from each."""

    def __init__(self, ends, sock):
        self.ends = ends                 # (who has connected, to whom)
        self.socks = [sock, None]
        self.waiting = [collections.deque(), collections.deque()]
        self.ended = [False, False]      # whether that end sends no more

    def close(self):
        for sock in self.socks:
            if sock:
                sock.close()
        for queue in self.waiting:
            for _, _, fds in queue:
                for fd in fds:
                    os.close(fd)


class Links:
    def __init__(self, names, prefix):
        self.prefix, self.names = prefix, names
        self.own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.cut, self.late = set(), {}  # directions; seconds of a direction
        self.missed = []                 # (from, to) in which the machine let this process do nothing, in ns
        self.pipes, self.listening, self.of_fd = [], {}, {}
        self.epoll, self.lock = select.epoll(), threading.Lock()
        self.spaces = {}
        for name in names:
            self.make_space(name)
        self.over = False
        self.thread = threading.Thread(target=self.carry, daemon=True)
        self.thread.start()

    def make_space(self, name):
        call("unshare", CLONE_NEWNET)
        try:
            self.spaces[name] = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            for other in self.names:
                if other != name:
                    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    sock.bind(address(self.prefix, other))
                    sock.listen(64)
                    sock.setblocking(False)
                    self.listening[sock.fileno()] = (name, other, sock)
                    self.epoll.register(sock.fileno(), select.EPOLLIN)
        finally:
            call("setns", self.own, CLONE_NEWNET)

    @contextlib.contextmanager
    def inside(self, name):
        """What this thread starts is on the node's network."""
        call("setns", self.spaces[name], CLONE_NEWNET)
        try:
            yield
        finally:
            call("setns", self.own, CLONE_NEWNET)

    # --- what the nemesis says ---

    def break_off(self, one, other):
        """Connections of the two end at once, as when a NIC gives up."""
        with self.lock:
            for pipe in [p for p in self.pipes if set(p.ends) == {one, other}]:
                self.end(pipe)

    def heal(self):
        self.cut, self.late = set(), {}

    # --- carrying ---

    def carry(self):
        turn = time.monotonic_ns()
        while not self.over:
            turn, last = time.monotonic_ns(), turn
            if turn - last > LATE_NS:
                self.missed.append((last, turn))
            busy = any(p.waiting[0] or p.waiting[1] or not p.socks[1] for p in self.pipes)
            events = self.epoll.poll(TICK_S if busy else 0.1)
            with self.lock:
                for fd, _ in events:
                    if fd in self.listening:
                        self.let_in(fd)
                    elif fd in self.of_fd:
                        self.take(*self.of_fd[fd])
                for pipe in list(self.pipes):
                    self.push(pipe)

    def let_in(self, fd):
        name, other, listening = self.listening[fd]
        with contextlib.suppress(BlockingIOError):
            sock, _ = listening.accept()
            sock.setblocking(False)
            self.pipes.append(Pipe((name, other), sock))
            self.watch(self.pipes[-1], 0)

    def watch(self, pipe, end):
        fd = pipe.socks[end].fileno()
        self.of_fd[fd] = (pipe, end)
        self.epoll.register(fd, select.EPOLLIN)

    def unwatch(self, pipe, end):
        sock = pipe.socks[end]
        if sock and self.of_fd.pop(sock.fileno(), None):
            self.epoll.unregister(sock.fileno())

    def reach(self, pipe):
        """The second half of a connection. One that can't be had now, as the node's queue is full, is tried again."""
        with self.inside(pipe.ends[1]):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            sock.connect(address(self.prefix, pipe.ends[1]))
        except BlockingIOError:
            sock.close()
        except OSError:
            sock.close()
            self.end(pipe)
        else:
            pipe.socks[1] = sock
            self.watch(pipe, 1)

    def take(self, pipe, end):
        try:
            data, fds, _, _ = socket.recv_fds(pipe.socks[end], DATAGRAM_MAX, 4)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            pipe.ended[end] = True
        else:
            late = self.late.get((pipe.ends[end], pipe.ends[1 - end]), 0)
            pipe.waiting[end].append((time.monotonic() + late, data, fds))
        if not data or len(pipe.waiting[end]) >= WAITING_MAX:
            self.unwatch(pipe, end)

    def push(self, pipe):
        whole = not {pipe.ends, pipe.ends[::-1]} & self.cut
        if not pipe.socks[1] and whole:
            self.reach(pipe)
        for end in range(2):
            if pipe in self.pipes and pipe.socks[1] and (pipe.ends[end], pipe.ends[1 - end]) not in self.cut:
                self.push_from(pipe, end)
        if not pipe.socks[1] and pipe.ended[0] and pipe in self.pipes:
            self.end(pipe)

    def push_from(self, pipe, end):
        queue, now = pipe.waiting[end], time.monotonic()
        try:
            while queue and queue[0][0] <= now:
                socket.send_fds(pipe.socks[1 - end], [queue[0][1]], queue[0][2], socket.MSG_NOSIGNAL)
                for fd in queue.popleft()[2]:
                    os.close(fd)
        except BlockingIOError:
            return
        except OSError:
            self.end(pipe)
            return
        if pipe.ended[end] and not queue:
            self.end(pipe)
        elif not pipe.ended[end] and len(queue) < WAITING_MAX and pipe.socks[end].fileno() not in self.of_fd:
            self.watch(pipe, end)

    def end(self, pipe):
        for end in range(2):
            self.unwatch(pipe, end)
        pipe.close()
        self.pipes.remove(pipe)

    def close(self):
        self.over = True
        self.thread.join()
        for pipe in list(self.pipes):
            self.end(pipe)
        for _, _, sock in self.listening.values():
            sock.close()
        for fd in [self.own, *self.spaces.values()]:
            os.close(fd)
        self.epoll.close()
