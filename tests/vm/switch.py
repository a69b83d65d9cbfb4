# SPDX-License-Identifier: Apache-2.0
"""An Ethernet switch for virtual machines, each of which qemu connects by a UNIX socket (-netdev stream): a frame is its length in four
bytes, and its bytes. It knows which port has which address from the start, carries nothing between ports that are cut off, and may lose
frames."""
import contextlib
import os
import queue
import random
import socket
import struct
import threading

HEAD = struct.Struct(">I")
WAITING_MOST = 4096  # frames for one machine, which may stand still; what is more is lost
EVERYBODY = 1  # this bit of an address's first byte: broadcasts, and what is for several


def address(number):
    """Of a machine's network card."""
    return f"52:54:00:00:00:{number:02x}"


class Switch:
    """Port N is the socket path(N), for the machine whose card is address(N)."""

    def __init__(self, folder, ports):
        self.folder, self.lock = folder, threading.Lock()
        self.connected, self.cuts, self.carried = {}, set(), {}
        self.loses, self.lost = 0, {}  # of how many frames one is lost, by chance; how many were, and were carried, between two
        for number in range(ports):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(self.path(number))
            listener.listen(1)
            threading.Thread(target=self.serve, args=[number, listener], daemon=True).start()

    def path(self, number):
        return os.path.join(self.folder, f"port{number}")

    def arguments(self, number):
        """Of qemu."""
        return ["-netdev", f"stream,id=net,server=off,addr.type=unix,addr.path={self.path(number)}",
                "-device", f"virtio-net-pci,netdev=net,mac={address(number)},host_mtu=4500"]

    def cut(self, one, other):
        self.cuts.add(frozenset((one, other)))

    def heal(self):
        self.cuts.clear()

    def serve(self, number, listener):
        """A machine may end, and one come again."""
        while True:
            connection = listener.accept()[0]
            frames = queue.Queue(WAITING_MOST)
            threading.Thread(target=send, args=[connection, frames], daemon=True).start()
            with self.lock:
                self.connected[number] = frames
            with connection.makefile("rb") as stream:
                while head := read_whole(stream, HEAD.size):
                    frame = read_whole(stream, HEAD.unpack(head)[0])
                    if not frame:
                        break
                    self.hand_on(number, head, frame)
            with self.lock:
                self.connected.pop(number, None)
            connection.close()

    def hand_on(self, number, head, frame):
        with self.lock:
            for other in list(self.connected) if frame[0] & EVERYBODY else [frame[5]]:
                pair = frozenset((number, other))
                if other == number or other not in self.connected or pair in self.cuts:
                    continue
                if self.loses and not random.randrange(self.loses):
                    self.lost[pair] = self.lost.get(pair, 0) + 1
                    continue
                with contextlib.suppress(queue.Full):
                    self.connected[other].put_nowait(head + frame)
                    self.carried[pair] = self.carried.get(pair, 0) + 1


def send(connection, frames):
    """To one machine, of which the others need not wait."""
    with contextlib.suppress(OSError):  # it has ended
        while True:
            connection.sendall(frames.get())


def read_whole(stream, length):
    """None at the end."""
    try:
        data = stream.read(length)
    except OSError:
        return None
    return data if len(data) == length else None
