# SPDX-License-Identifier: Apache-2.0
"""Who may do what, and whose the new files are."""
import errno
import os
import stat
import sys

import pytest

from posix_calls import as_user, NOBODY, write_file


def test_permissions_are_those_of_the_caller(mount):
    m = mount()
    os.chmod(m.mnt, 0o755)
    secret, shared = os.path.join(m.mnt, "secret"), os.path.join(m.mnt, "shared")
    write_file(secret, b"secret")
    os.chmod(secret, 0o600)
    code = """
for attempt in (lambda: open(sys.argv[1]), lambda: os.chmod(sys.argv[1], 0o777), lambda: os.unlink(sys.argv[1]),
                lambda: open(sys.argv[1] + "x", "w"), lambda: os.truncate(sys.argv[1], 0),
                lambda: os.chown(sys.argv[1], os.getuid(), -1), lambda: os.rename(sys.argv[1], sys.argv[1] + "y")):
    try:
        attempt()
        print("allowed")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    done = as_user(code, secret)
    assert done.stdout.split() == ["EACCES", "EPERM", "EACCES", "EACCES", "EACCES", "EPERM", "EACCES"], done.stderr
    os.mkdir(shared)
    os.chmod(shared, 0o1777)
    made = as_user("""
os.umask(0o027)
os.chdir(sys.argv[1])
open("file", "w").write("x")
os.mkdir("folder")
os.mkfifo("fifo")
os.symlink("file", "symlink")
os.link("file", "hard")
""", shared)
    assert made.returncode == 0, made.stderr
    for name, mode in (("file", 0o640), ("folder", 0o750), ("fifo", 0o640), ("symlink", 0o777), ("hard", 0o640)):
        st = os.lstat(os.path.join(m.data, "shared", name))
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (NOBODY, NOBODY, mode), name
    # root is itself again afterwards, in every thread
    for i in range(50):
        write_file(os.path.join(m.mnt, f"root{i}"), b"")
        st = os.stat(os.path.join(m.data, f"root{i}"))
        assert (st.st_uid, st.st_gid) == (0, 0)


def test_group_from_a_supplementary_group_and_a_setgid_folder(mount):
    m = mount()
    folder = os.path.join(m.mnt, "team")
    os.mkdir(folder)
    os.chown(folder, 0, 4242)
    os.chmod(folder, 0o2770)
    done = as_user("open(sys.argv[1] + '/f', 'w'); os.mkdir(sys.argv[1] + '/d')", folder, groups=[4242])
    assert done.returncode == 0, done.stderr
    assert os.stat(os.path.join(m.data, "team/f")).st_gid == 4242
    st = os.stat(os.path.join(m.data, "team/d"))
    assert st.st_gid == 4242 and st.st_mode & stat.S_ISGID
    assert as_user("open(sys.argv[1] + '/g', 'w')", folder).returncode != 0


@pytest.mark.parametrize("action", ["os.write(os.open(sys.argv[1], os.O_WRONLY), b'x')", "os.truncate(sys.argv[1], 1)",
                                    "os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC)",
                                    "os.posix_fallocate(os.open(sys.argv[1], os.O_WRONLY), 0, 100000)",
                                    "fd = os.open(sys.argv[1], os.O_RDWR); os.copy_file_range(fd, fd, 2, 0, 4)"])
def test_set_id_bits_are_cleared_by_a_users_write(mount, workdir, action):
    m = mount()
    plain = os.path.join(workdir, "plain")
    modes = []
    for folder in (m.mnt, plain):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "f")
        write_file(path, b"program")
        os.chmod(folder, 0o755)
        os.chmod(path, 0o6777)
        done = as_user(action, path)
        assert done.returncode == 0, done.stderr
        modes.append(oct(os.stat(path).st_mode))
    assert modes[0] == modes[1] == oct(stat.S_IFREG | 0o777)
    assert oct(os.stat(os.path.join(m.data, "f")).st_mode) == modes[0]
    # root's own write leaves them, as on the plain filesystem
    for path in (os.path.join(m.mnt, "f"), os.path.join(plain, "f")):
        os.chmod(path, 0o4755)
        with open(path, "r+b") as file:
            file.write(b"x")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o4755


def test_chown_by_root_clears_set_id_bits(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.chmod(path, 0o6755)
    os.chown(path, 1000, 1000)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755
    assert stat.S_IMODE(os.stat(os.path.join(m.data, "f")).st_mode) == 0o755


def test_file_capabilities_do_not_survive_a_write(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"program")
    value = bytes.fromhex("0100000200200000000000000000000000000000")
    os.setxattr(path, "security.capability", value)
    assert os.getxattr(path, "security.capability")
    with open(path, "r+b") as file:
        file.write(b"x")
    with pytest.raises(OSError) as caught:
        os.getxattr(path, "security.capability")
    assert caught.value.errno == errno.ENODATA
