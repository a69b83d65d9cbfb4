# SPDX-License-Identifier: Apache-2.0
"""O_NOATIME, and the options noatime, nodiratime and ro, on mounts of root's and of an ordinary user's: as in a plain folder, as far as
the daemon is allowed to."""
import os

import pytest

import gaia
from helpers import PAGE, devices, drop_host_cache, write_file  # noqa: F401
from posix_calls import as_user
from test_trust import DAEMON, USER

OLD = 1_000_000_000 * 10 ** 9
READ = """
try:
    fd = os.open(sys.argv[1], int(sys.argv[2]))
    os.listdir(fd) if os.path.isdir(sys.argv[1]) else os.read(fd, 10)
except OSError as error:
    print(errno.errorcode[error.errno])
"""
FILES = {"mine": (USER, 0o666), "others": (0, 0o666), "sealed": (USER, 0o444)}
CALLS = [(name, flag) for name in [*FILES, "folder"] for flag in (0, os.O_NOATIME)]
PLAIN = {("others", os.O_NOATIME): "EPERM"}


def fill(folder):
    for name, (owner, mode) in FILES.items():
        path = os.path.join(folder, name)
        write_file(path, b"bytes")
        os.chmod(path, mode)
        os.chown(path, owner, 0)
    os.makedirs(os.path.join(folder, "folder", "in"))
    for path in folder, os.path.join(folder, "folder"):
        os.chown(path, USER, USER)


def is_old(path):
    return os.stat(path).st_atime_ns == OLD


def reads(below, seen, uid=USER):
    """What a user's reads come to: an error, or whether the time of access stayed."""
    found = {}
    for name, flag in CALLS:
        os.utime(os.path.join(below, name), ns=(OLD, OLD + 1))
        done = as_user(READ, os.path.join(seen, name), os.O_RDONLY | flag, uid=uid, gid=uid)
        assert done.returncode == 0, done.stderr
        found[name, flag] = done.stdout.strip() or is_old(os.path.join(below, name))
    return found


@pytest.fixture(params=["root", "user"])
def mounted(request, mount, workdir):
    """A function that mounts a filled folder, of root's or of a user's."""
    def start(options):
        data = os.path.join(workdir, "times")
        os.mkdir(data)
        fill(data)
        return mount(f"allow_other,timeout=0,{options}", data=data, before=DAEMON if request.param == "user" else ())
    start.is_users = request.param == "user"
    return start


def test_reads_are_dated_as_in_a_plain_folder(mounted, workdir):
    plain = os.path.join(workdir, "plain")
    os.mkdir(plain)
    fill(plain)
    expected = reads(plain, plain)
    assert {call: found for call, found in expected.items() if found not in (False, True)} == PLAIN
    assert [found for (name, flag), found in expected.items() if name != "others"] == [False, True] * 3
    m = mounted("atime")
    assert reads(m.data, m.mnt) == expected


@pytest.mark.parametrize("options", ["noatime", "nodiratime", "ro"])
def test_reads_that_the_mount_does_not_date(mounted, options):
    """A user's daemon may do so for the user's files alone: the others are read, and their times are those of reads."""
    m = mounted(options)
    kept = {(name, flag): flag != 0 or (name == "folder" if options == "nodiratime" else not (mounted.is_users and name == "others"))
            for name, flag in CALLS}
    assert reads(m.data, m.mnt) == {**kept, **PLAIN}


def test_root_on_a_users_mount(mounted):
    """Who may everything asks for what the daemon may not: then he is told so, and may ask without it."""
    m = mounted("atime")
    found = reads(m.data, m.mnt, uid=0)
    expected = {(name, flag): flag != 0 for name, flag in CALLS}
    if mounted.is_users:
        expected["others", os.O_NOATIME] = "EPERM"
    assert found == expected


@pytest.mark.traps
def test_a_device_reads_what_nobody_may_write(mount, devices):
    """What it reads for itself is no read of the file, whatever the daemon may open it for."""
    m = mount("timeout=0", before=("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"))
    path, below = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(below, bytes(PAGE))
    os.chmod(below, 0o444)
    device = devices("soft:0")
    fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
    os.utime(below, ns=(OLD, OLD + 1))
    map = device.mmap(fd, PAGE, gaia.PROT_READ)
    assert map[0] == 0 and is_old(below)
    map.unmap()
    os.close(fd)


@pytest.mark.traps
def test_a_device_reads_what_is_not_in_memory(mount, devices):
    """Past the page cache: that is no read of the file, either."""
    m = mount("timeout=0,passthrough=off")
    path, below = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(below, bytes(PAGE))
    drop_host_cache(below)
    fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
    os.utime(below, ns=(OLD, OLD + 1))
    map = devices("soft:0").mmap(fd, PAGE, gaia.PROT_READ)
    assert map[0] == 0 and is_old(below)
    map.unmap()
    os.close(fd)
