# SPDX-License-Identifier: Apache-2.0
"""Room that the filesystem below keeps for root, and quotas: a daemon that is root writes for users, too, and takes no more than
they might."""
import ctypes
import errno
import mmap
import os
import subprocess

import pytest

from files import Opened, mount_ext4
from helpers import devices, error_of, write_file  # noqa: F401
from posix_calls import as_user, NOBODY

MIB = 1 << 20

# Each as on a disk that is full but for what is kept for root; what it says, in one line.
CALLS = """
os.chdir(sys.argv[1])

def said(call):
    try:
        call()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        for name in os.listdir("."):
            os.remove(name) if not os.path.isdir(name) else os.rmdir(name)

def new():
    return os.open("new", os.O_RDWR | os.O_CREAT)

def copy():
    fd, more = os.open("../more", os.O_RDONLY), new()
    while os.copy_file_range(fd, more, 1 << 18):
        pass

def make():
    for number in range(40):
        os.mkdir(str(number))

print(*map(said, (lambda: os.write(new(), bytes(1 << 18)), lambda: os.pwrite(os.open("new", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
                  bytes(1 << 18), 0), lambda: os.posix_fallocate(new(), 0, 1 << 18), copy, make,
                  lambda: os.setxattr(new(), "user.long", bytes(3000)))))
"""
FILL = """
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(fd, bytes(4096))
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.fixture
def ext4(workdir):
    """As mount_ext4(), and unmounts them. To be named before `mount`, whose mounts go first then."""
    folders = []

    def start(*arguments, **how):
        folders.append(mount_ext4(workdir, *arguments, **how))
        return folders[-1]

    yield start
    for folder in folders:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("options", ["passthrough=off", "passthrough=all"])
def test_what_is_kept_for_root_is_not_for_users(ext4, mount, devices, options):
    """The same calls say the same there and in the folder itself; and what several have stored counts as the file's owner's."""
    folder = ext4(16 * MIB, "-m", "40", "-b", "4096")
    data = os.path.join(folder, "data")
    os.mkdir(data)
    os.chmod(folder, 0o755)
    for name in "users", "roots":
        os.mkdir(os.path.join(data, name))
    os.chown(os.path.join(data, "users"), NOBODY, NOBODY)
    write_file(os.path.join(data, "more"), bytes(MIB))
    m = mount(options, data=data)
    os.chmod(data, 0o755)
    done = as_user(FILL, os.path.join(m.mnt, "users", "full"))
    assert done.stdout == "ENOSPC\n", done.stderr
    room = os.statvfs(folder)
    assert room.f_bavail * room.f_bsize < MIB < 5 * MIB < room.f_bfree * room.f_bsize
    os.rename(os.path.join(data, "users", "full"), os.path.join(data, "full"))
    done = as_user(CALLS, os.path.join(m.mnt, "users"))
    assert done.stdout.split() == 6 * ["ENOSPC"], done.stdout + done.stderr
    assert as_user(CALLS, os.path.join(data, "users")).stdout == done.stdout
    assert as_user(CALLS, os.path.join(m.mnt, "roots"), uid=0).stdout.split() == 6 * ["done"]
    device = devices()
    for owner, errors in (NOBODY, (errno.ENOSPC, errno.EIO)), (0, (0,)):
        paths = [os.path.join(m.mnt, name) for name in ("mapped", "device")]
        for path in paths:
            write_file(path, b"")
            os.truncate(path, MIB)
            os.chown(path, owner, -1)
        mapped = Opened(device, paths[1])
        mapped.map[0:MIB] = MIB // 4 * b"text"
        assert (error_of(mapped.map.release) or error_of(os.fsync, mapped.fd)) in errors
        mapped.close()
        if options == "passthrough=off":  # else the kernel stores to the file itself, for root
            with open(paths[0], "r+b") as file, mmap.mmap(file.fileno(), MIB) as mapped:
                mapped[:] = MIB // 4 * b"text"
                assert error_of(mapped.flush) in errors
        for path in paths:  # what there is no room for would be told at the unmount, too
            os.remove(path)


# linux/quota.h
Q_SETQUOTA, USRQUOTA, QIF_BLIMITS = 0x800008, 0, 1


def set_quota(folder, uid, mib):
    """The most blocks of a user on the filesystem that is mounted there."""
    with open("/proc/self/mounts") as file:
        device = next(line.split()[0] for line in file if line.split()[1] == folder)
    limits = (ctypes.c_uint64 * 9)(mib * 1024, mib * 1024, 0, 0, 0, 0, 0, 0, QIF_BLIMITS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.quotactl(Q_SETQUOTA << 8 | USRQUOTA, device.encode(), uid, limits):
        pytest.skip(f"no quotas here: {os.strerror(ctypes.get_errno())}")


@pytest.mark.parametrize("options", ["passthrough=off", "passthrough=all"])
def test_quotas_hold_for_users(ext4, mount, devices, options):
    folder = ext4(64 * MIB, "-O", "quota", how="loop,usrquota")
    set_quota(folder, NOBODY, 4)
    os.chmod(folder, 0o755)
    data = os.path.join(folder, "data")
    os.mkdir(data)
    os.chown(data, NOBODY, NOBODY)
    m = mount(options, data=data)
    full = os.path.join(m.mnt, "full")
    done = as_user(FILL, full)
    assert done.stdout == "EDQUOT\n", done.stderr
    assert 3 * MIB < os.stat(full).st_size <= 4 * MIB
    path = os.path.join(m.mnt, "device")
    as_user("open(sys.argv[1], 'w').truncate(1 << 20)", path)
    mapped = Opened(devices(), path)
    mapped.map[0:MIB] = MIB // 4 * b"text"
    assert (error_of(mapped.map.release) or error_of(os.fsync, mapped.fd)) in (errno.EDQUOT, errno.EIO)
    mapped.close()
    os.remove(path)
    # root writes past them, as in the folder itself
    more = [error_of(os.pwrite, os.open(name, os.O_WRONLY), bytes(1 << 18), 8 * MIB) for name in (os.path.join(data, "full"), full)]
    assert more[0] == more[1]
