# SPDX-License-Identifier: Apache-2.0
"""Who may do what, and whose the new files are."""
import errno
import fcntl
import mmap
import os
import shutil
import stat
import struct
import subprocess

import pytest

from helpers import ROWS, daemon_with_faults, error_of, in_child, read_file, write_file
from posix_calls import as_user, NOBODY


def threads_are_themselves_again(m, count=20):
    """Those of the daemon: root makes root's files, whichever serves it."""
    for i in range(count):
        write_file(os.path.join(m.mnt, f"root{i}"), b"")
        st = os.stat(os.path.join(m.data, f"root{i}"))
        assert (st.st_uid, st.st_gid) == (0, 0)


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
    threads_are_themselves_again(m, 50)


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


@pytest.mark.parametrize("mode", [0o755, 0o4755, 0o2755, 0o6777])
def test_a_chown_that_changes_no_owner(mount, workdir, mode):
    """It clears set-id bits, which is the owner's right: as on the plain filesystem, also beside a writer."""
    m = mount("allow_other")
    plain = os.path.join(workdir, "plain")
    os.mkdir(plain)
    attempt = """
try:
    os.chown(sys.argv[1], -1, -1)
    print("cleared")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    said = []
    for folder in plain, m.mnt:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "f")
        write_file(path, b"program")
        for owner in 0, NOBODY:
            os.chown(path, owner, owner)
            os.chmod(path, mode)
            said.append((folder == plain, owner, as_user(attempt, path).stdout, stat.S_IMODE(os.stat(path).st_mode)))
        os.chmod(path, mode)
        os.chown(path, -1, -1)
        said.append((folder == plain, "root", "", stat.S_IMODE(os.stat(path).st_mode)))
    assert [line[1:] for line in said[:3]] == [line[1:] for line in said[3:]]


@pytest.mark.parametrize("options", ["allow_other,passthrough=on", "allow_other,passthrough=off"])
def test_set_id_bits_go_with_a_write_of_who_may_not_open_the_file(mount, options):
    """He has got the descriptor from one who may: the kernel asks for the bits to be cleared in his name."""
    m = mount(options)
    os.chmod(m.mnt, 0o755)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"program")
    os.chmod(path, 0o4755)
    with open(path, "r+b", buffering=0) as file:
        done = in_child(lambda: (os.setgroups([]), os.setgid(NOBODY), os.setuid(NOBODY), os.write(file.fileno(), b"x")))
    assert done[0] == 0
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755


@pytest.mark.parametrize("call", ["setxattr", "removexattr"])
def test_acls_of_other_filesystems_are_not_set_with_our_rights(mount, workdir, monkeypatch, call):
    """The daemon does not come to ask the filesystem below, where it would fail in another way here."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("allow_other", env=env)
    os.chmod(m.mnt, 0o755)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"program")
    code = f"""
for name in "system.nfs4_acl", "system.cifs_acl":
    try:
        os.{call}(sys.argv[1], name{', b"x" * 40' * (call == "setxattr")})
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    plan.arm(ROWS.index(call), errno.EIO, 1, 1)
    assert as_user(code, path).stdout.split() == ["ENOTSUP", "ENOTSUP"]
    assert not plan.landed
    assert as_user(code, path, uid=0, gid=0).stdout.split() == ["EIO", "EIO"]
    assert plan.landed
    plan.row = -1


@pytest.mark.parametrize("options", ["allow_other,passthrough=on", "allow_other,passthrough=off"])
def test_a_file_that_only_grows_is_not_stored_to(mount, options):
    m = mount(options)
    path, below = os.path.join(m.mnt, "log"), os.path.join(m.data, "log")
    write_file(below, b"the truth\n" * 10)
    if subprocess.run(["chattr", "+a", below], capture_output=True).returncode:
        pytest.skip("no chattr +a here")
    try:
        for fd in os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR | os.O_APPEND):
            writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_RDWR
            try:
                if writable:
                    assert error_of(mmap.mmap, fd, 100) in (errno.EACCES, errno.ENODEV)
                    assert os.write(fd, b"more\n") == 5
                    os.fsync(fd)
                assert os.pread(fd, 200, 0) == b"the truth\n" * 10 + b"more\n" * bool(writable)
            finally:
                os.close(fd)
        assert error_of(os.open, path, os.O_RDWR) == errno.EPERM
        assert read_file(path) == read_file(below) == b"the truth\n" * 10 + b"more\n"
    finally:
        subprocess.run(["chattr", "-a", below], check=True)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR], ids=["for writing", "for both"])
def test_an_append_to_a_file_that_only_grows_is_read(mount, workdir, monkeypatch, flags):
    """By who has read the end before. It is not in the kernel's cache, from which an older kernel drops nothing by itself: so
    a daemon that takes this one to be old has a thread drop it."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("passthrough=off", env=env, before=("setarch", "--uname-2.6"))
    path, below = os.path.join(m.mnt, "log"), os.path.join(m.data, "log")
    write_file(below, b"a" * 100)
    if subprocess.run(["chattr", "+a", below], capture_output=True).returncode:
        pytest.skip("no chattr +a here")
    try:
        with open(path, "rb", buffering=0) as file, os.fdopen(os.open(path, flags | os.O_APPEND), "ab", buffering=0) as end:
            assert file.read() == b"a" * 100
            threads = plan.calls[ROWS.index("pthread_create")]
            end.write(b"b" * 50)
            assert os.pread(file.fileno(), 1000, 0) == b"a" * 100 + b"b" * 50
            assert plan.calls[ROWS.index("pthread_create")] > threads
    finally:
        subprocess.run(["chattr", "-a", below], check=True)


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


# --- compared with a plain directory ---------------------------------------------------------------------------------

USER, GROUP, OTHER_USER = 4001, 4002, 4003


def acl(*entries):
    """A POSIX ACL as the kernel has it in an attribute: (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, perm, number & 0xFFFFFFFF)
                                          for tag, perm, number in entries)


def acl_for_user(user, perm=7, group=5, mask=7, other=0):
    return acl((1, 7, -1), (2, perm, user), (4, group, -1), (16, mask, -1), (32, other, -1))


@pytest.fixture
def both(mount, workdir, request):
    """The mount, and (a folder of the mount, a plain folder) that are to behave alike. The parameter, if any, is its options."""
    m = mount(getattr(request, "param", ""))
    plain = os.path.join(workdir, "plain")
    os.mkdir(plain)
    for folder in (m.mnt, plain):
        os.chmod(folder, 0o755)
        os.mkdir(os.path.join(folder, "top"))
    return m, [os.path.join(folder, "top") for folder in (m.mnt, plain)]


def listing(folder):
    """What each thing below folder is to its users."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in [".", *folders, *files]:
            path = os.path.join(place, name)
            st = os.lstat(path)
            acls = {key: os.getxattr(path, key) for key in os.listxattr(path, follow_symlinks=False)
                    if key.startswith("system.posix_acl")}
            found[os.path.relpath(path, folder)] = oct(st.st_mode), st.st_uid, st.st_gid, st.st_nlink, acls
    return found


def alike(folders, code, *args, **who):
    """Runs code in each folder as a user; what it printed and what is there afterwards must be the same."""
    done = [as_user("os.chdir(sys.argv[1])\n" + code, folder, *args, **who) for folder in folders]
    assert done[0].returncode == done[1].returncode == 0, [each.stderr for each in done]
    assert done[0].stdout == done[1].stdout
    assert listing(folders[0]) == listing(folders[1])
    return done[1].stdout


MAKE_ALL = """
import socket
for mask in (0, 0o022, 0o077, 0o777):
    os.umask(mask)
    os.close(os.open(f"file{mask}", os.O_CREAT | os.O_WRONLY, 0o666))
    os.close(os.open(f"program{mask}", os.O_CREAT | os.O_WRONLY, 0o7777))
    os.mkdir(f"folder{mask}", 0o777)
    os.mkdir(f"sticky{mask}", 0o7777)
    os.mkfifo(f"fifo{mask}", 0o666)
    os.symlink("nowhere", f"symlink{mask}")
    socket.socket(socket.AF_UNIX).bind(f"socket{mask}")
"""


@pytest.mark.parametrize("mode", [0o777, 0o2777, 0o1777, 0o3777], ids=oct)
@pytest.mark.parametrize("default", [None, acl((1, 7, -1), (4, 5, -1), (32, 1, -1)), acl_for_user(OTHER_USER),
                                     acl_for_user(OTHER_USER, 6, 7, 4, 5)], ids=["umask", "minimal", "user", "mask"])
def test_new_files_have_owner_group_mode_and_acl_of_a_plain_folder(both, default, mode):
    m, folders = both
    for folder in folders:
        os.chown(folder, 0, GROUP)
        if default:
            os.setxattr(folder, "system.posix_acl_default", default)
        os.chmod(folder, mode)
    for who in ({"uid": USER, "gid": USER}, {"uid": USER, "gid": USER, "groups": [GROUP]},
                {"uid": USER, "gid": GROUP}, {"uid": 0, "gid": 0}, {"uid": 0, "gid": GROUP}):
        alike(folders, MAKE_ALL, **who)
        for folder in folders:
            for entry in os.scandir(folder):
                (shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)


@pytest.mark.parametrize("who", [{"uid": USER, "gid": USER}, {"uid": OTHER_USER, "gid": USER},
                                 {"uid": OTHER_USER, "gid": OTHER_USER, "groups": [GROUP]}], ids=["named", "no", "group"])
def test_acls_decide_who_may(both, who):
    m, folders = both
    for folder in folders:
        for number, rights in enumerate([acl_for_user(USER, 7, 0, 7), acl_for_user(USER, 7, 0, 4),
                                         acl_for_user(USER, 0, 7, 7, 7), acl_for_user(0, 7, 4, 5)]):
            path = os.path.join(folder, f"f{number}")
            write_file(path, b"bytes")
            os.chown(path, 0, GROUP)
            os.setxattr(path, "system.posix_acl_access", rights)
        os.mkdir(os.path.join(folder, "d"))
        os.chmod(os.path.join(folder, "d"), 0o700)
        os.setxattr(os.path.join(folder, "d"), "system.posix_acl_access", acl_for_user(USER, 7, 0, 7))
    text = alike(folders, """
for name in ("f0", "f1", "f2", "f3", "d/new", "d"):
    for flags in (os.O_RDONLY, os.O_WRONLY | (os.O_CREAT if name == "d/new" else 0), os.O_RDWR):
        try:
            os.close(os.open(name, flags))
            print(name, flags, "yes")
        except OSError as error:
            print(name, flags, errno.errorcode[error.errno])
    print([os.access(name, kind) for kind in (os.R_OK, os.W_OK, os.X_OK)])
for name in ("f0", "d"):
    try:
        os.setxattr(name, "system.posix_acl_access", b"")
    except OSError as error:
        print(errno.errorcode[error.errno])
""", **who)
    assert "yes" in text and "EACCES" in text and "EPERM" in text
    # and when an ACL changes, at once
    for folder in folders:
        os.setxattr(os.path.join(folder, "f0"), "system.posix_acl_access", acl_for_user(who["uid"], 4, 0, 7))
        os.removexattr(os.path.join(folder, "f2"), "system.posix_acl_access")
        os.chmod(os.path.join(folder, "f3"), 0o777)
    assert "b'bytes'" in alike(folders, "print(open('f0', 'rb').read(), os.access('f0', os.W_OK), os.access('f3', os.W_OK))",
                               **who)


@pytest.mark.parametrize("who", [{"gid": USER}, {"gid": GROUP}, {"gid": USER, "groups": [GROUP]}, {"gid": 0},
                                 {"uid": 0, "gid": 0}, {"uid": 0, "gid": USER}], ids=str)
@pytest.mark.parametrize("group", [GROUP, 0])
def test_a_new_acl_clears_the_set_group_id_bit_of_a_group_that_is_not_ones_own(both, who, group):
    m, folders = both
    for folder in folders:
        path = os.path.join(folder, "f")
        write_file(path, b"")
        os.chown(path, USER, group)
        os.chmod(path, 0o2755)
    code = """
import struct
os.setxattr("f", "system.posix_acl_access", bytes.fromhex(sys.argv[2]))
print(oct(os.stat("f").st_mode))
os.chmod("f", 0o2755)
"""
    alike(folders, code, acl_for_user(OTHER_USER).hex(), **{"uid": USER, **who})
    threads_are_themselves_again(m)


def test_root_keeps_set_id_bits_whatever_its_group_is(both):
    """A service with Group= alone, a container that runs as 0:1000. A shared folder would lose its bit to setfacl(1)."""
    m, folders = both
    for folder in folders:
        os.mkdir(os.path.join(folder, "d"))
        write_file(os.path.join(folder, "f"), b"")
        for name, mode in (("d", 0o2775), ("f", 0o2644)):
            os.chown(os.path.join(folder, name), USER, GROUP)
            os.chmod(os.path.join(folder, name), mode)
    assert alike(folders, """
os.setxattr("d", "system.posix_acl_access", bytes.fromhex(sys.argv[2]))
os.chown("f", 0, -1)
print(oct(os.stat("d").st_mode), oct(os.stat("f").st_mode))
""", acl_for_user(OTHER_USER).hex(), uid=0, gid=USER) == "0o42770 0o102644\n"
    threads_are_themselves_again(m)


def test_a_data_directory_without_acls(mount, workdir):
    """The kernel asks for the ACL of what it checks; that there can't be one is no error."""
    data = os.path.join(workdir, "ramfs")
    os.mkdir(data)
    subprocess.run(["mount", "-t", "ramfs", "none", data], check=True)
    try:
        m = mount(data=data)
        os.chmod(m.mnt, 0o755)
        write_file(os.path.join(m.mnt, "f"), b"bytes")
        os.chmod(os.path.join(m.mnt, "f"), 0o640)
        os.chown(os.path.join(m.mnt, "f"), 0, GROUP)
        with pytest.raises(OSError):
            os.setxattr(os.path.join(m.mnt, "f"), "system.posix_acl_access", acl_for_user(USER))
        done = as_user("print(open(sys.argv[1]).read())", os.path.join(m.mnt, "f"), groups=[GROUP])
        assert done.stdout == "bytes\n", done.stderr
        done = as_user("print(open(sys.argv[1]).read())", os.path.join(m.mnt, "f"))
        assert "Permission denied" in done.stderr
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", data], check=True)


def test_sticky_folders(both):
    m, folders = both
    for folder in folders:
        os.chmod(folder, 0o1777)
        for name, owner in (("mine", USER), ("yours", OTHER_USER), ("roots", 0)):
            write_file(os.path.join(folder, name), b"")
            os.chown(os.path.join(folder, name), owner, owner)
            os.chmod(os.path.join(folder, name), 0o666)
    text = alike(folders, """
for name in ("mine", "yours", "roots"):
    for attempt in (lambda: os.rename(name, name + "2"), lambda: os.rename(name + "2", name), lambda: os.unlink(name)):
        try:
            print(name, attempt())
        except OSError as error:
            print(name, errno.errorcode[error.errno])
""", uid=USER, gid=USER)
    assert text.count("EPERM") == 4 and text.count("None") == 3


def test_attributes_of_root_are_not_listed_to_users(both):
    m, folders = both
    for folder in folders:
        path = os.path.join(folder, "f")
        write_file(path, b"")
        for name in ("trusted.first", "user.a", "trusted.second", "user.b", "trusted.third"):
            os.setxattr(path, name, b"value")
        assert len(os.listxattr(path)) == 5
    assert alike(folders, "print(sorted(os.listxattr('f')))", uid=USER, gid=USER) == "['user.a', 'user.b']\n"
    # Room for these is enough, and so much is asked for; with less it is ERANGE.
    assert alike(folders, "import ctypes\nlist = ctypes.CDLL(None, use_errno=True).listxattr\n"
                 "for size in (0, 13, 14, 15, 100): print(list(b'f', bytes(size), size), ctypes.get_errno())\n",
                 uid=USER, gid=USER) == "14 0\n-1 34\n14 34\n14 34\n14 34\n"


@pytest.mark.parametrize("change", ["os.truncate('f', 3)", "os.ftruncate(os.open('f', os.O_RDWR), 1)", "os.open('f', os.O_WRONLY | os.O_TRUNC)",
                                    "os.pwrite(os.open('f', os.O_RDWR), b'x', 0)"])
@pytest.mark.parametrize("drop", [[], ["capsh", "--drop=cap_fsetid", "--shell=/usr/bin/python3", "--"]], ids=["all", "without CAP_FSETID"])
def test_set_id_bits_go_where_root_lacks_the_right_to_keep_them(mount, workdir, change, drop):
    """As in most containers whose rights were cut down."""
    plain, modes = os.path.join(workdir, "plain"), []
    os.mkdir(plain)
    for folder in mount().mnt, plain:
        path = os.path.join(folder, "f")
        write_file(path, b"program")
        os.chmod(path, 0o6755)
        done = subprocess.run([*(drop or ["/usr/bin/python3"]), "-c", "import os\n" + change], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        modes.append(oct(os.stat(path).st_mode))
    assert modes[0] == modes[1] == ("0o100755" if drop else "0o106755")


# statx() of the mode alone, which is what stat(1) asks for: the kernel may answer it from what it keeps.
LOOK = """
import ctypes
buffer = ctypes.create_string_buffer(256)
ctypes.CDLL(None).statx(-100, b"f", 0, 2, buffer)
print(oct(int.from_bytes(buffer[28:30], "little")), oct(os.stat("f").st_mode))
"""
CHANGES = {"write": "os.pwrite(fd, b'x', 0)", "truncate": "os.ftruncate(fd, 1)", "fallocate": "os.posix_fallocate(fd, 0, 100000)",
           "copy": "os.copy_file_range(fd, fd, 2, 0, 4)", "open": "os.open('f', os.O_WRONLY | os.O_TRUNC)",
           "name": "os.truncate('f', 3)", "append": "os.write(os.open('f', os.O_WRONLY | os.O_APPEND), b'y')",
           # what is kept then is as old as `timeout` allows
           "store": "import mmap; mmap.mmap(fd, 5)[0:1] = b's'; os.pwrite(fd, b'x', 0); os.stat('f')"}


@pytest.mark.parametrize("both, change", [*(("", change) for change in CHANGES), ("passthrough=all", "append")], indirect=["both"])
def test_set_id_bits_after_a_change_are_those_of_a_plain_file(both, change):
    """A set-group-ID bit without the right to execute is no privilege of the file, and stays for who is in its group."""
    m, folders = both
    found = set()
    for who in ({"gid": USER}, {"gid": GROUP}, {"gid": USER, "groups": [GROUP]}):
        for mode in (0o6777, 0o2666, 0o4666, 0o6666, 0o2767):
            for folder in folders:
                path = os.path.join(folder, "f")
                write_file(path, b"program")
                os.chown(path, OTHER_USER, GROUP)
                os.chmod(path, mode)
            found.add(alike(folders, "fd = os.open('f', os.O_RDWR)\n" + CHANGES[change] + "\n" + LOOK, uid=USER, **who))
    assert {f"{mode} {mode}\n" for mode in ("0o100777", "0o102666", "0o100666")} <= found
    threads_are_themselves_again(m)


@pytest.mark.parametrize("count", [300, 65536])
def test_who_is_in_many_groups_is_in_all_of_them(both, count):
    """The last of them is that of the file. Linux allows 65,536."""
    groups = range(10000, 10000 + count)
    for folder in both[1]:
        write_file(os.path.join(folder, "f"), b"program")
        os.chown(os.path.join(folder, "f"), OTHER_USER, groups[-1])
        os.chmod(os.path.join(folder, "f"), 0o2664)
    assert alike(both[1], "fd = os.open('f', os.O_RDWR)\n" + CHANGES["write"] + "\n" + LOOK, uid=USER, gid=USER,
                 groups=groups) == "0o102664 0o102664\n"
