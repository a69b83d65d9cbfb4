#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mount tests on the kernel of Debian's package (Debian 12: 6.1; Debian 13: 6.12), in a virtual machine.

suite.py [--limit SECONDS] [--command COMMAND] [ARGUMENT...]   as root, after `make tests mount-tools examples`
suite.py --userland build/trixie [ARGUMENT...]                 after tests/trixie.sh has made that, and built the tree in it

The machine has this one's files, read only, with an overlay of its own, and an ext4 disk at /var/tmp. Runs pytest on tests/mount with
the arguments, or on what they name; or a command of the shell, at the top of the tree. Under emulation all takes ten times as long and
more: tests' time limits are longer by as much. Prints what it prints; the exit code is that, 77 where no machine can be had, 1 when it
did not end in time.
"""
import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time

import image
import machine

MODULES = ("9p", "9pnet_virtio", "overlay", "dummy", "tun", "xfs", "btrfs", "loop", "quota_v2")
DISK_BYTES = 8 << 30  # of which only what is used takes room
SLOWER = 10
# Folders of the machine's own are where tests look for them.
PREPARE = """
set -e
mkdir -p /share /disk /top
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro share /share
mount -t ext4 /dev/vda /disk
mkdir -p /disk/upper /disk/work /disk/tmp
mount -t overlay overlay -o lowerdir=/share,upperdir=/disk/upper,workdir=/disk/work /top
mkdir -p /top/proc /top/sys /top/dev /top/var/tmp /top/tmp /top/run /dev/pts
mount -t devpts none /dev/pts
for folder in proc sys dev dev/shm dev/pts; do mount --bind /$folder /top/$folder; done
mount --bind /disk/tmp /top/var/tmp
mount -t tmpfs none /top/tmp
mount -t tmpfs none /top/run
ip link set lo up
uname -srv
set +e
"""


def script(command, top):
    line = f"cd {shlex.quote(top)} && {command}"
    given = " ".join(f"{name}={shlex.quote(os.environ[name])}" for name in ("GAIA_GATE", "GAIA_TEST_OPTIONS") if os.environ.get(name))
    return PREPARE + (f"chroot /top /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "
                      f"GAIA_TEST_SLOWER={SLOWER} {given} /bin/sh -c {shlex.quote(line)}\n")


def show(guest):
    """Each line as it comes, to the end."""
    seen = 0
    with guest.changed:
        while not guest.ended or seen < len(guest.lines):
            for line in guest.lines[seen:]:
                print(line, flush=True)
            seen = len(guest.lines)
            if not guest.ended and not guest.changed.wait(max(0, guest.deadline - time.monotonic())):
                return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=7200)
    parser.add_argument("--command")
    parser.add_argument("--userland")
    args, arguments = parser.parse_known_args()
    if not any(os.path.exists(argument.partition("::")[0]) for argument in arguments):
        arguments.append("tests/mount")
    command = args.command or shlex.join(["/usr/bin/python3", "-B", "-m", "pytest", "-p", "no:cacheprovider", *arguments])
    top = image.TOP
    if args.userland:
        image.of_userland(args.userland)
        top = "/gaiafs"
    try:
        machine.check()
        kernel, initramfs = image.build({}, {}, MODULES)
        with tempfile.TemporaryDirectory(prefix="gaiafs-vm-", dir="/var/tmp") as folder:
            disk = os.path.join(folder, "disk")
            with open(disk, "wb") as file:
                file.truncate(DISK_BYTES)
            subprocess.run(["/sbin/mke2fs", "-q", "-t", "ext4", disk], check=True)
            with machine.Machine(kernel, initramfs, script(command, top), [disk], memory_mib=3072, limit_s=args.limit,
                                 share=args.userland or "/") as guest:
                show(guest)
                return int(guest.wait()[1])
    except image.Unavailable as problem:
        print(f"no virtual machine: {problem}")
        return 77
    except AssertionError as problem:
        print(str(problem).splitlines()[0])
        return 1


if __name__ == "__main__":
    sys.exit(main())
