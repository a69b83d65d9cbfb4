# SPDX-License-Identifier: Apache-2.0
"""Mounts that an ordinary user makes."""
import os
import shutil
import subprocess
import sys

import pytest

from helpers import APART
from test_mount import MOUNT, needs_root

USER = 65534  # fusermount3 wants a name
AS_USER = """
import ctypes, errno, os, stat, subprocess, sys, time
program, tests, data, mnt = sys.argv[1:]
sys.path.insert(0, tests)
daemon = subprocess.Popen([program, "-f", data, mnt], cwd="/")
try:
    deadline = time.monotonic() + 20
    while os.stat(mnt).st_dev == os.stat(data).st_dev:
        assert daemon.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    from posix_calls import link_descriptor
    os.chdir(mnt)
    os.umask(0o027)
    os.mkdir("d")
    open("f", "w").write("bytes")
    os.symlink("f", "l")
    assert [oct(os.lstat(name).st_mode) for name in "dfl"] == ["0o40750", "0o100640", "0o120777"]
    # a default ACL goes before the umask: u::rwx g::rwx o::r-x
    os.setxattr("d", "system.posix_acl_default",
                bytes.fromhex("02000000 01000700ffffffff 04000700ffffffff 20000500ffffffff"))
    open("d/f", "w")
    assert oct(os.stat("d/f").st_mode) == "0o100664"
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o666)
    link_descriptor(fd, "named")
    assert oct(os.stat("named").st_mode) == "0o100640"
    for attempt, code in ((lambda: os.chown("f", 0, 0), errno.EPERM), (lambda: os.mknod("n", stat.S_IFCHR, 1), errno.EPERM),
                          (lambda: os.listdir("roots"), errno.EACCES), (lambda: os.rmdir("roots/x"), errno.EACCES)):
        try:
            attempt()
            raise AssertionError("allowed")
        except OSError as error:
            assert error.errno == code, error
    # a device stores into a file, and another process of the same user sees it
    import gaia
    with open("f", "r+b") as file:
        device = gaia.Device("soft:0")
        mapping = device.mmap(file.fileno(), 5)
        mapping.acquire()
        mapping[0:5] = b"STORE"
        mapping.release()
        assert subprocess.run(["cat", "f"], capture_output=True).stdout == b"STORE"
        mapping.unmap()
    with open("f", "rb") as file:
        mapping = device.mmap(file.fileno(), 5, gaia.PROT_READ)
        mapping.acquire()
        assert mapping[0:5] == b"STORE"
        mapping.unmap()
        device.close()
    os.close(fd)
    os.chdir("/")
    subprocess.run(["fusermount3", "-u", mnt], check=True)
    assert daemon.wait(20) == 0
finally:
    os.chdir("/")
    if daemon.poll() is None:
        subprocess.run(["fusermount3", "-uz", mnt])
        daemon.kill()
"""


@needs_root
def test_a_mount_of_an_ordinary_user(workdir):
    for name in ("data", "mnt", "data/roots"):
        os.mkdir(os.path.join(workdir, name))
        os.chown(os.path.join(workdir, name), *((USER, USER) if "roots" not in name else (0, 0)))
    os.chmod(os.path.join(workdir, "data/roots"), 0o700)
    who = {"user": USER, "group": USER, "extra_groups": []}
    if subprocess.run(["test", "-x", MOUNT], **who).returncode or not shutil.which("fusermount3"):
        pytest.skip("an ordinary user can't run mount.gaiafs from here")
    if subprocess.run(["test", "-w", "/dev/fuse"], **who).returncode:
        pytest.skip("/dev/fuse is root's alone here")
    done = subprocess.run([sys.executable, "-B", "-c", AS_USER, MOUNT, os.path.dirname(os.path.abspath(__file__)),
                           os.path.join(workdir, "data"), os.path.join(workdir, "mnt")], capture_output=True, text=True,
                          timeout=50, **who)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(workdir, "data/f")) as file:
        assert file.read() == "STORE"


# In a mount namespace of its own, where /dev/fuse is everybody's: what $5 says on an ordinary user's mount.
ON_A_USERS_MOUNT = """
set -eu
mount -t tmpfs -o "$2" none "$1"
mknod -m 666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse || exit 77
mkdir "$1/data" "$1/mnt"
chown 65534 "$1/data" "$1/mnt"
chmod 755 "$1"
as_user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
as_user "$3/mount.gaiafs" "$1/data" "$1/mnt" $4 2>"$1/log" || { cat "$1/log" >&2; exit 1; }
eval "$5"
as_user umount "$1/mnt"
as_user flock "$1/data" true
"""


def on_a_users_mount(workdir, below, options, steps):
    programs, folder = os.path.join(workdir, "programs"), os.path.join(workdir, "folder")
    for path in workdir, programs, folder:
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o755)
    shutil.copy(MOUNT, programs)
    if not shutil.which("fusermount3"):
        pytest.skip("no fusermount3 here")
    done = subprocess.run([*APART, "sh", "-c", ON_A_USERS_MOUNT, "sh", folder, below, programs, options, steps], capture_output=True,
                          text=True, timeout=30)
    if done.returncode == 77:
        pytest.skip("no /dev/fuse of its own here")
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_root
@pytest.mark.parametrize("below, options, refused", [
    ("noexec", "", {"noexec", "nosuid", "nodev"}), ("noexec", "-o exec,suid,dev", {"nosuid", "nodev"}), ("rw", "", {"nosuid", "nodev"})])
def test_what_a_users_data_directory_refuses_is_not_allowed_unasked(workdir, below, options, refused):
    """As of root's mounts, noexec, too; the other two any mount of a user has."""
    text = on_a_users_mount(workdir, below, options, 'grep " $1/mnt " /proc/self/mounts')
    assert refused == set(text.split()[3].split(",")) & {"noexec", "nosuid", "nodev"}, text


# Root mounts $1/closed/data, which no user reaches, while a user says to have mounted all that is above it, and has locked that.
MOUNTS_BESIDE_A_LIAR = """
setpriv --reuid 65534 --regid 65534 --clear-groups flock -F -s "$1" sleep 20 &
until ! flock -n "$1" true; do sleep 0.01; done
mkdir -p "$1/closed/data" "$1/roots"
chmod 700 "$1/closed"
"$3/mount.gaiafs" OPTIONS "$1/closed/data" "$1/roots" 2>&1 && umount "$1/roots" && flock "$1/closed/data" true && echo mounted
kill $!
"""


@needs_root
@pytest.mark.parametrize("options, unless", [("", ""), ("-o shared", ", unless that one shares them, too")], ids=["alone", "shared"])
def test_a_user_who_says_to_have_mounted_all_keeps_nobody_from_mounting(workdir, options, unless):
    """It is said in the log. Mounts that all share their files may lie one inside another."""
    folder = os.path.join(workdir, "folder")
    said = on_a_users_mount(workdir, "rw", f"-o fsname={folder}", MOUNTS_BESIDE_A_LIAR.replace("OPTIONS", options))
    assert f"{folder}/closed/data lies inside {folder}, which user 65534 says to have mounted at {folder}/mnt" in said
    assert f"one of the two only{unless}\n" in said
    assert said.endswith("\nmounted\n"), said


# The user has mounted $1/data, and mounts a folder of that as root of a user namespace of his own.
MOUNTS_INSIDE_HIS_OWN = """
as_user mkdir "$1/data/sub"
mkdir "$1/inner"
as_user unshare -rm timeout 10 "$3/mount.gaiafs" -f "$1/data/sub" "$1/inner" 2>&1 || echo refused
"""


@needs_root
def test_a_user_namespace_is_no_other_user(workdir):
    folder = os.path.join(workdir, "folder")
    said = on_a_users_mount(workdir, "rw", "", MOUNTS_INSIDE_HIS_OWN)
    if "unshare" in said:
        pytest.skip("no user namespaces for users here")
    assert f"{folder}/data/sub lies inside {folder}/data, the data directory of another gaiafs" in said
    assert said.endswith("refused\n")


LISTS_UNSEARCHED = """
as_user sh -c 'mkdir "$0/d" && : >"$0/d/f" && chmod 400 "$0/d"' "$1/mnt"
for top in "$1/data" "$1/mnt"; do as_user find "$top/d" -mindepth 1 -printf '%f ' 2>/dev/null || :; done
as_user chmod 100 "$1/mnt/d"
for top in "$1/data" "$1/mnt"; do as_user ls "$top/d" 2>/dev/null || echo no; done
"""


@needs_root
def test_a_users_folder_that_may_be_read_and_not_searched(workdir):
    """Its names can be listed, though nothing in it can be looked at."""
    assert on_a_users_mount(workdir, "rw", "", LISTS_UNSEARCHED) == "f f no\nno\n"
