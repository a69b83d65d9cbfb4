# SPDX-License-Identifier: Apache-2.0
"""A data directory on an idmapped mount, on which the daemon's own uid 0 is nobody: as the folder itself is."""
import ctypes
import os
import struct
import subprocess
import time

import pytest

from posix_calls import as_user

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # the same numbers on every architecture
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH, MOUNT_ATTR_IDMAP, AT_EMPTY_PATH = 1, 4, 0x00100000, 0x1000
FIRST = 100_000  # what is uid 0 below

libc = ctypes.CDLL(None, use_errno=True)


def call(number, *args):
    result = libc.syscall(number, *args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def user_namespace():
    """A process in one in which FIRST and 65,535 more are 0 and so on."""
    proc = subprocess.Popen(["unshare", "--user", "sleep", "60"])
    own = os.stat("/proc/self/ns/user").st_ino
    deadline = time.monotonic() + 10
    while os.stat(f"/proc/{proc.pid}/ns/user").st_ino == own:
        if proc.poll() is not None:
            pytest.skip("no user namespace can be had here, as in a chroot")
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for kind in "uid", "gid":
        with open(f"/proc/{proc.pid}/{kind}_map", "w", encoding="ascii") as file:
            file.write(f"0 {FIRST} 65536")
    return proc


def idmap(source, target, namespace):
    tree = call(OPEN_TREE, -100, os.fsencode(source), OPEN_TREE_CLONE)
    try:
        attributes = struct.pack("QQQQ", MOUNT_ATTR_IDMAP, 0, 0, namespace)
        call(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, len(attributes))
        call(MOVE_MOUNT, tree, b"", -100, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)


@pytest.fixture
def idmapped(workdir):
    """Two folders that are alike, and idmapped."""
    os.chmod(workdir, 0o755)
    folders, proc = [], user_namespace()
    namespace = os.open(f"/proc/{proc.pid}/ns/user", os.O_RDONLY)
    try:
        for name in "data", "plain":
            source, target = os.path.join(workdir, name + ".below"), os.path.join(workdir, name)
            os.mkdir(source)
            os.mkdir(target)
            os.mkdir(os.path.join(source, "top"))
            os.chmod(os.path.join(source, "top"), 0o777)
            idmap(source, target, namespace)
            folders.append(target)
    except OSError as error:
        pytest.skip(f"no idmapped mounts here: {error}")
    finally:
        os.close(namespace)
        proc.kill()
        proc.wait()
    yield folders
    for folder in folders:
        subprocess.run(["umount", folder], check=True)


OPERATIONS = """
import ctypes, stat
os.chdir(sys.argv[1])
me = sys.argv[2]
os.umask(0o022)
libc = ctypes.CDLL(None, use_errno=True)
def rename(old, new, flags):
    if libc.renameat2(-100, old.encode(), -100, new.encode(), flags):
        raise OSError(ctypes.get_errno(), "")
def store(name, data, flags=0):
    fd = os.open(name, os.O_RDWR | flags)
    os.write(fd, data)
    os.close(fd)
def nameless(name):
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b"nameless")
    os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=0, follow_symlinks=True)
def tell(function, *args):
    try:
        answer = function(*args)
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(function.__name__, *args, answer if isinstance(answer, (str, bytes, list)) else "")
tell(store, me, b"first", os.O_CREAT | os.O_EXCL)
tell(os.mkdir, me + ".d")
tell(os.symlink, "where", me + ".s")
tell(os.mkfifo, me + ".fifo")
tell(nameless, me + ".n")
tell(os.link, me, me + ".l")
tell(os.rename, me + ".l", me + ".m")
tell(os.rename, me + ".m", me + ".d/m")
tell(rename, me, me + ".n", 2)
tell(rename, me + ".fifo", me + ".f", 1)
tell(os.rename, me + ".d", me + ".e")
tell(store, me, b"again", os.O_TRUNC)
tell(store, me, b" and again", os.O_APPEND)
tell(os.truncate, me, 3)
tell(os.chmod, me, 0o640)
tell(os.utime, me, (5, 7))
tell(os.setxattr, me, "user.a", b"b")
tell(os.listxattr, me)
tell(os.rename, me + ".n", me)
tell(os.chown, me, 100500, 100500)
if me == "0":  # who may not is told EPERM by the kernel's FUSE, which asks for no mapping first
    tell(os.chown, "theirs", 5, 5)
tell(os.unlink, me + ".s")
tell(os.rmdir, me + ".e")
tell(os.link, "theirs", me + ".theirs")
tell(os.rename, "theirs", me + ".theirs")
"""


def listing(folder):
    found = {}
    for place, folders, files in os.walk(folder):
        for name in [".", *folders, *files]:
            st = os.lstat(os.path.join(place, name))
            found[os.path.relpath(os.path.join(place, name), folder)] = \
                oct(st.st_mode), st.st_uid, st.st_gid, st.st_nlink, st.st_size
    return found


@pytest.mark.parametrize("options", ["allow_other", "allow_other,passthrough=off"])
def test_a_data_directory_that_is_idmapped(idmapped, mount, options):
    """Whoever has an id below is its owner there, and whoever has none makes nothing, the daemon's 0 being one of these."""
    data, plain = idmapped
    m = mount(options, data=data)
    tops = [os.path.join(folder, "top") for folder in (m.mnt, plain)]
    for user in FIRST + 1000, FIRST, FIRST + 2000, 1000, 0:
        done = [as_user(OPERATIONS, top, user, uid=user, gid=user) for top in tops]
        assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
        assert done[0].stdout.splitlines() == done[1].stdout.splitlines()
        time.sleep(0 if user else 1.1)  # names and attributes of the mount are as old as that
        assert listing(tops[0]) == listing(tops[1])
        if user == FIRST + 1000:
            assert "link" in done[1].stdout and "EOVERFLOW" not in done[1].stdout.split("chown")[0]
            for top in tops:
                made = as_user("open(sys.argv[1] + '/theirs', 'w').close()", top, uid=user, gid=user)
                assert made.returncode == 0, made.stderr
    below = os.path.join(os.path.dirname(data), "data.below", "top")
    assert os.stat(os.path.join(below, str(FIRST + 1000))).st_uid == 1000
