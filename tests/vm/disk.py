# SPDX-License-Identifier: Apache-2.0
"""A disk with a volatile cache, whose power can be cut.

A machine reaches it over NBD. What it writes is only logged, with its flushes, in the order in which they came: so the
disk can be had as a power cut at any position of the log would have left it. Of what was written since the last flush
each sector may have reached the medium or not; what was flushed, or written with FUA, has.
"""
import os
import random
import socket
import struct
import threading

SECTOR = 4096  # as most disks have it; ext4 can't be mounted when the two sectors of 512 bytes of its superblock differ
MAGIC, OPTION_MAGIC, REPLY_MAGIC = 0x4e42444d41474943, 0x49484156454f5054, 0x3e889045565a9
EXPORT_NAME, ABORT, LIST, INFO, GO = 1, 2, 3, 6, 7
ACK, INFO_REPLY, UNSUPPORTED = 1, 3, (1 << 31) + 1
# HAS_FLAGS, SEND_FLUSH, SEND_FUA
FLAGS = 1 | 4 | 8
READ, WRITE, DISCONNECT, FLUSH = range(4)
FUA = 1


class Disk:
    """base: the bytes that it has at first. log: (offset, bytes, fua) of a write, None of a flush."""

    def __init__(self, path, base):
        self.path, self.base = path, base
        self.now = bytearray(base)
        self.log = []
        self.error = None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(1)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def close(self):
        """Of a machine that has ended: its last requests are in the log."""
        self.thread.join(10)
        self.listener.close()
        os.unlink(self.path)
        if self.error:
            raise self.error

    def serve(self):
        try:
            connection, _ = self.listener.accept()
            with connection, connection.makefile("rb") as stream:
                if self.negotiate(connection, stream):
                    self.transmit(connection, stream)
        except (EOFError, ConnectionError):
            pass  # the machine was killed
        except Exception as error:  # a bug of this server shall not look like a power cut
            self.error = error

    @staticmethod
    def take(stream, form):
        data = stream.read(struct.calcsize(form))
        if len(data) < struct.calcsize(form):
            raise EOFError
        return struct.unpack(form, data)

    def negotiate(self, connection, stream):
        connection.sendall(struct.pack(">QQH", MAGIC, OPTION_MAGIC, 1 | 2))  # fixed newstyle, no zeroes
        self.take(stream, ">I")
        while True:
            _, option, length = self.take(stream, ">QII")
            stream.read(length)

            def reply(kind, data=b"", option=option):
                connection.sendall(struct.pack(">QIII", REPLY_MAGIC, option, kind, len(data)) + data)

            if option == EXPORT_NAME:
                connection.sendall(struct.pack(">QH", len(self.base), FLAGS))
                return True
            if option in (INFO, GO):
                reply(INFO_REPLY, struct.pack(">HQH", 0, len(self.base), FLAGS))
                reply(ACK)
                if option == GO:
                    return True
            elif option == ABORT:
                reply(ACK)
                return False
            else:
                reply(UNSUPPORTED)

    def transmit(self, connection, stream):
        while True:
            _, flags, kind, cookie, offset, length = self.take(stream, ">IHHQQI")
            data, error = b"", 0
            if kind == READ:
                data = bytes(self.now[offset:offset + length])
            elif kind == WRITE:
                written = stream.read(length)
                if len(written) < length:
                    raise EOFError
                self.now[offset:offset + length] = written
                self.log.append((offset, written, bool(flags & FUA)))
            elif kind == FLUSH:
                self.log.append(None)
            elif kind == DISCONNECT:
                return
            else:
                error = 22
            connection.sendall(struct.pack(">IIQ", 0x67446698, error, cookie) + data)

    def flushed(self, position):
        """How much of the log before it is on the medium for certain: up to the last flush."""
        return next((i for i in range(position, 0, -1) if self.log[i - 1] is None), 0)

    def unflushed(self, position):
        """Writes that a cut there may lose."""
        return sum(not write[2] for write in self.log[self.flushed(position):position])

    def cut(self, position, seed):
        """What is on the medium when the power is cut there."""
        rng = random.Random(seed)
        flushed = self.flushed(position)
        image = bytearray(self.base)
        dropped = 0
        for i in range(position):
            if self.log[i] is None:
                continue
            offset, data, fua = self.log[i]
            if i < flushed or fua:
                image[offset:offset + len(data)] = data
                continue
            # Some writes are whole, some are missing, some are torn.
            chance = rng.choice((0, 0, 0.5, 1))
            for at in range(0, len(data), SECTOR):
                if rng.random() < chance:
                    image[offset + at:offset + at + SECTOR] = data[at:at + SECTOR]
                else:
                    dropped += 1
        return image, dropped
