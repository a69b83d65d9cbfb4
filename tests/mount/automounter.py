# SPDX-License-Identifier: Apache-2.0
"""What is mounted on demand, as by systemd's .automount: automounter.py POINT COMMAND... runs the command, which mounts, when
somebody comes to that folder, who waits for it meanwhile. Says "ready", and then each time what the command has returned."""
import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import sys

AUTOFS_IOC_READY, AUTOFS_IOC_FAIL = 0x9360, 0x9361


def run(point, command):
    """Nobody waits who is of the process group that mounts, as systemd has it, too."""
    incoming, outgoing = os.pipe()
    options = f"fd={outgoing},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
    if ctypes.CDLL(None, use_errno=True).mount(b"none", os.fsencode(point), b"autofs", 0, options.encode()):
        sys.exit(f"no autofs: {os.strerror(ctypes.get_errno())}")
    os.close(outgoing)
    folder = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    print("ready", flush=True)
    while packet := os.read(incoming, 1024):
        code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        fcntl.ioctl(folder, AUTOFS_IOC_FAIL if code else AUTOFS_IOC_READY, struct.unpack_from("iiI", packet)[2])
        print(code, flush=True)


@contextlib.contextmanager
def automounted(point, *command):
    import pytest
    proc = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), point, *command], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        if proc.stdout.readline() != "ready\n":
            pytest.skip(proc.stderr.read())
        yield proc
    finally:
        proc.kill()
        while subprocess.run(["umount", "-l", point], capture_output=True, check=False).returncode == 0:
            pass
        proc.communicate()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
