# SPDX-License-Identifier: Apache-2.0
"""The program mount.gaiafs: options, bad input, background, the ways to start it. (How it ends: test_mount_ends.py. Ordinary users'
mounts: test_user_mounts.py.)"""
import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
import time

import pytest

from automounter import automounted
from conftest import BIN, kept_by, mountinfo
from descriptors import table_of
from helpers import APART, error_of, kernel_at_least, read_file, threads, wait_until, write_file

MOUNT = os.path.join(BIN, "mount.gaiafs")
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK),
                                reason="mounting needs root and /dev/fuse")


def run(*args, timeout=30, **kwargs):
    return subprocess.run([MOUNT, *map(str, args)], capture_output=True, text=True, timeout=timeout, **kwargs)


@pytest.fixture
def folders(workdir):
    """(data directory, mount point), both empty; whatever is mounted on either is unmounted at the end."""
    data, mnt = os.path.join(workdir, "data"), os.path.join(workdir, "mnt")
    os.mkdir(data)
    os.mkdir(mnt)
    yield data, mnt
    for path in (mnt, data):
        while mountinfo(path) is not None:
            assert subprocess.run(["umount", "-l", path], check=False).returncode == 0


def daemon_of(data):
    """The pid of the mount.gaiafs that was started with that data directory."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if os.path.basename(words[0]) == b"mount.gaiafs" and os.fsencode(data) in words:
                with open(f"/proc/{pid}/stat") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] != "Z":
                        return int(pid)
        except (OSError, IndexError):
            continue
    return None


def wait_gone(data):
    wait_until(lambda: not daemon_of(data), 20, "the daemon has ended")


# --- without a mount ------------------------------------------------------------------------------------------------

def test_help_and_version():
    done = run("--help")
    assert done.returncode == 0 and done.stderr == ""
    for word in ("DATADIR", "MOUNTPOINT", "    -d, debug ", "device_cache=", "evict=", "unit=", "io=", "timeout=", "log="):
        assert word in done.stdout
    done = run("--version")
    assert done.returncode == 0
    assert re.match(r"mount\.gaiafs 0\.1\.0\nlibfuse 3\.\d+", done.stdout)


@pytest.mark.parametrize("options, message", [
    ("nonsense", "unknown option nonsense"),
    ("timeout=1,colour=red", "unknown option colour=red"),
    ("device_cache=0", "option device_cache=0: not a size above 0"),
    ("device_cache=0M", "option device_cache=0M: not a size above 0"),
    ("device_cache=", "option device_cache=: not a size"),
    ("device_cache=many", "option device_cache=many: not a size"),
    ("device_cache=64MB", "option device_cache=64MB: not a size"),
    ("device_cache=-1", "option device_cache=-1: not a size"),
    ("device_cache=99999999999999999999", "not a size"),
    ("device_cache=20000000T", "not a size"),
    ("device_cache=1000T", "option device_cache=1000T: more than the"),
    ("device_cache=4K", "option device_cache=4K: less than the minimum of 256K"),
    ("device_cache=soft:0=0", "option device_cache=soft:0=0: not a size above 0"),
    ("device_cache=soft:1=x", "option device_cache=soft:1=x: not a size"),
    ("device_cache=soft:1=", "option device_cache=soft:1=: not a size"),
    ("device_cache=soft:999=1M", "there are no more than"),
    ("device_cache=cuda:1000=1M", "there are no more than 16 devices"),
    ("device_cache=hard:0=1M", "option device_cache=hard:0=1M: no device is called so (soft:N=SIZE or cuda:N=SIZE)"),
    ("device_cache=soft:8=1M", "device_cache=soft:8=: there are no more than 8 devices"),
    ("soft_devices=2,device_cache=soft:2=1M", "there are no more than 2 devices"),
    ("soft_devices=0", "option soft_devices=0: not a number from 1 to 64"),
    ("soft_devices=65", "not a number from 1 to 64"),
    ("soft_devices=2x", "not a number from 1 to 64"),
    ("evict=lru", "option evict=lru: none of lra, fifo, clock"),
    ("evict=", "option evict=: none of"),
    ("unit=8K", "option unit=8K: none of 4K, 64K, 2M"),
    ("unit=0", "option unit=0: none of"),
    ("unit=4K,unit=2M", "option unit=2M: another unit was given before"),
    ("unit=2M,device_cache=1M", "a device of 1024 KiB can't hold one unit of 2048 KiB"),
    ("unit=2m,device_cache=soft:3=512K", "a device of 512 KiB can't hold one unit"),
    ("io=magic", "option io=magic: neither uring nor threads"),
    ("log=paper", "option log=paper: neither stderr nor syslog"),
    ("timeout=soon", "option timeout=soon: not a number"),
    ("timeout=-1", "option timeout=-1: not a number"),
    ("timeout=nan", "option timeout=nan: not a number"),
    ("timeout=0x10", "option timeout=0x10: not a number"),
    ("inodes=1023", "option inodes=1023: not a number from 1024 to 4294967295"),
    ("inodes=4294967296", "option inodes=4294967296: not a number from 1024 to 4294967295"),
])
def test_bad_options(folders, options, message):
    done = run(*folders, "-o", options)
    assert done.returncode == 1 and message in done.stderr, done
    assert mountinfo(folders[1]) is None


def test_bad_arguments(folders, workdir):
    data, mnt = folders
    plain = os.path.join(workdir, "file")
    with open(plain, "w"):
        pass
    os.makedirs(os.path.join(mnt, "in/side"))
    missing = os.path.join(workdir, "missing")
    for args, message in (
            ((), "data directory missing"),
            ((data,), "mount point missing"),
            ((data, mnt, "third"), "one argument too many: third"),
            ((data, mnt, "-q"), "unknown option -q"),
            ((data, mnt, "--quiet"), "unknown option --quiet"),
            ((missing, mnt), f"data directory {missing}: No such file or directory"),
            ((plain, mnt), f"data directory {plain}: not a directory"),
            ((data, missing), f"mount point {missing}: No such file or directory"),
            ((data, plain), f"mount point {plain}: not a directory"),
            ((os.path.join(mnt, "in/side"), mnt), f"lies inside the mount point {mnt}")):
        for foreground in ((), ("-f",)):
            done = run(*args, *foreground)
            assert done.returncode == 1 and message in done.stderr, (args, done)
    assert mountinfo(mnt) is None


# --- mounted --------------------------------------------------------------------------------------------------------

@needs_root
def test_background(folders):
    data, mnt = folders
    done = run(data, mnt, "-o", "device_cache=1M,device_cache=soft:0=512k,timeout=0.5,io=threads")
    assert done.returncode == 0 and done.stderr == ""
    # it answers by the time the starter is back
    with open(os.path.join(mnt, "f"), "w") as file:
        file.write("bytes")
    pid = daemon_of(data)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) == pid
    assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3
    with open(f"/proc/{pid}/limits") as file:
        soft, hard = next(line.split()[3:5] for line in file if line.startswith("Max open files"))
    assert soft == hard
    assert table_of(pid) == min(int(hard), 4096)
    assert subprocess.run(["umount", mnt]).returncode == 0
    wait_gone(data)
    with open(os.path.join(data, "f")) as file:
        assert file.read() == "bytes"


@needs_root
@pytest.mark.parametrize("closed", [(0,), (0, 1, 2)], ids=str)
def test_started_with_descriptors_closed(folders, workdir, closed):
    """The lock of the data directory and the rest must not take their place."""
    data, mnt = folders
    pid = os.posix_spawn(MOUNT, [MOUNT, data, mnt], os.environ,
                         file_actions=[(os.POSIX_SPAWN_CLOSE, fd) for fd in closed])
    try:
        deadline = time.monotonic() + 10
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert ended == (pid, 0), "it does not come back"
        os.mkdir(other := os.path.join(workdir, "other"))
        done = run(data, other)
        assert done.returncode == 1 and "already mounted" in done.stderr
    finally:
        for each in (mnt, os.path.join(workdir, "other")):
            subprocess.run(["umount", "-l", each], check=False, stderr=subprocess.DEVNULL)
        if ended[0] == 0:
            for each in (pid, daemon_of(data)):
                os.kill(each, signal.SIGKILL)
            os.waitpid(pid, 0)
        wait_gone(data)


@needs_root
def test_mount_table(mount):
    m = mount("noexec,nosuid,fsname=a name,timeout=2")
    line = next(line for line in open("/proc/self/mountinfo", errors="surrogateescape") if f" {m.mnt} " in line)
    head, tail = line.split(" - ")
    assert "noexec" in head and "nosuid" in head
    assert tail.split()[0] == "fuse.gaiafs" and tail.split()[1] == "a\\040name"
    assert "default_permissions" in tail and "allow_other" in tail


@needs_root
@pytest.mark.parametrize("subtype, kind", [("", "fuse"), ("other", "fuse.other")])
def test_type_in_the_mount_table(folders, workdir, subtype, kind):
    data, mnt = folders
    assert run(data, mnt, "-o", f"subtype={subtype},fsname=name").returncode == 0
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        assert next(line for line in file if f" {mnt} " in line).split(" - ")[1].split()[:2] == [kind, "name"]
    df = subprocess.run(["df", "-T", mnt], capture_output=True, text=True, check=True).stdout
    assert df.splitlines()[1].split()[:2] == ["name", kind]
    # and it is known for what it is all the same
    os.mkdir(other := os.path.join(workdir, "other"))
    done = run(mnt, other)
    assert done.returncode == 1 and "lies in a gaiafs mount" in done.stderr
    subprocess.run(["umount", mnt], check=True)
    wait_gone(data)


@needs_root
def test_read_only(mount, workdir):
    data = os.path.join(workdir, "d")
    os.mkdir(data)
    with open(os.path.join(data, "f"), "w") as file:
        file.write("x")
    m = mount("ro", data=data)
    with open(os.path.join(m.mnt, "f")) as file:
        assert file.read() == "x"
    with pytest.raises(OSError, match="Read-only"):
        open(os.path.join(m.mnt, "f"), "r+")
    with pytest.raises(OSError, match="Read-only"):
        os.mkdir(os.path.join(m.mnt, "d"))


@needs_root
def test_options_of_fstab_are_accepted(mount):
    m = mount("defaults,auto,noauto,user,users,_netdev,nofail,x-systemd.automount,comment=some,rw,exec,dev,suid,relatime")
    assert os.listdir(m.mnt) == []


@needs_root
def test_flags_of_mount_8_are_accepted(folders):
    data, mnt = folders
    done = run(data, mnt, "-s", "-n", "-v", "-w", "-t", "gaiafs", "-o", "rw")
    assert done.returncode == 0, done.stderr
    assert os.statvfs(mnt).f_flag & os.ST_RDONLY == 0
    subprocess.run(["umount", mnt], check=True)
    wait_gone(data)
    done = run("-sn", "-r", data, mnt)
    assert done.returncode == 0, done.stderr
    assert os.statvfs(mnt).f_flag & os.ST_RDONLY
    subprocess.run(["umount", mnt], check=True)
    wait_gone(data)


@needs_root
def test_flags_that_are_written_together(mount):
    """-dfr, as the man page has them."""
    m = mount(args=["-dr"])
    assert os.statvfs(m.mnt).f_flag & os.ST_RDONLY
    assert "opcode: INIT" in m.log_text()


@needs_root
@pytest.mark.parametrize("options", ["", "fsname=elsewhere"])
def test_what_the_data_directory_refuses_is_not_allowed_unasked(mount, workdir, options):
    """Nor by a remount, which has no word of it: mount(8) takes what fstab has."""
    data = os.path.join(workdir, "refusing")
    os.mkdir(data)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nosuid,nodev,noexec", "none", data], check=True)

    def refused():
        words = next(line.split()[3] for line in open("/proc/self/mounts") if line.split()[1] == m.mnt).split(",")
        return {"nosuid", "nodev", "noexec"} & set(words)

    try:
        m = mount(options, data=data)
        assert len(refused()) == 3
        for words in "remount,ro", "remount,rw":
            assert run("elsewhere" if options else data, m.mnt, "-o", words).returncode == 0
            assert len(refused()) == 3, words
        assert run(data, m.mnt, "-o", "remount,dev,exec").returncode == 0
        assert refused() == {"nosuid"}
        assert m.unmount() is None
        m = mount("suid,dev,exec", data=data)
        assert not refused()
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", data], check=True)


RUNS_AS = '#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf("%d", (int)geteuid()); return 0; }\n'


@needs_root
@pytest.mark.parametrize("options", ["", "suid,dev"])
def test_what_a_mount_below_refuses_is_not_allowed_unasked(mount, workdir, options):
    """A stick, or a user's own filesystem, on which everybody can be root's set-id program."""
    data, source = os.path.join(workdir, "above"), os.path.join(workdir, "runs_as.c")
    with open(source, "w") as file:
        file.write(RUNS_AS)
    os.makedirs(os.path.join(data, "below"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nosuid,nodev,mode=755", "none", os.path.join(data, "below")], check=True)
    try:
        for folder in "", "below":
            program = os.path.join(data, folder, "program")
            subprocess.run(["gcc", "-o", program, source], check=True)
            os.chmod(program, 0o6755)
            os.mknod(os.path.join(data, folder, "null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
            os.chmod(os.path.join(data, folder, "null"), 0o666)
        m = mount(options, data=data)
        for folder, refuses in ("", False), ("below", not options):
            program, null = (os.path.join(m.mnt, folder, name) for name in ("program", "null"))
            ran = subprocess.run([program], user=4001, group=4001, extra_groups=[], capture_output=True, text=True, check=True)
            assert (folder, ran.stdout) == (folder, "4001" if refuses else "0")
            for look in range(2):
                assert stat.S_IMODE(os.stat(program).st_mode) == (0o755 if refuses else 0o6755)
                assert os.stat(null).st_rdev == (0 if refuses else os.makedev(1, 3))
                os.utime(program)  # whose answer has them, too
            if refuses:
                with pytest.raises(OSError):
                    open(null, "rb")
            else:
                with open(null, "rb") as file:
                    assert file.read() == b""
            os.setxattr(program, "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
            assert ("security.capability" in os.listxattr(program)) and refuses == bool(error_of(os.getxattr, program, "security.capability"))
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", os.path.join(data, "below")], check=True)


@needs_root
@pytest.mark.parametrize("words, flags", [("noatime,atime", set()), ("atime,noatime", {"noatime"}), ("ro,rw", set()), ("rw,ro", {"ro"}),
                                          ("nodiratime,diratime", set()), ("diratime,nodiratime", {"nodiratime"}), ("ro,,nodev", {"ro"})])
def test_of_a_word_and_its_opposite_the_last_counts(mount, words, flags):
    """A libfuse may know but one of the two: 3.17 no atime. An empty word is none."""
    def now():
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            return set(next(line for line in file if f" {m.mnt} " in line).split()[5].split(",")) & {"ro", "noatime", "nodiratime"}

    m = mount(words)
    shown = flags - {"nodiratime"}  # the daemon sees to that
    assert now() == shown
    assert run(m.data, m.mnt, "-o", f"remount,{words}").returncode == 0
    assert now() == flags


def test_remount(mount):
    m = mount("nosuid")
    path = os.path.join(m.mnt, "f")

    def flags():
        return next(line for line in open("/proc/self/mountinfo", errors="surrogateescape") if f" {m.mnt} " in line).split()[5].split(",")
    done = run(m.data, m.mnt, "-o", "remount,ro,nodev,noatime,nodiratime")
    assert done.returncode == 0, done.stderr
    assert {"ro", "nodev", "noatime", "nodiratime"} <= set(flags()) and "nosuid" not in flags()
    with pytest.raises(OSError, match="Read-only"):
        open(path, "w")
    assert run(m.data, m.mnt, "-o", "remount,rw,noexec").returncode == 0
    assert {"rw", "noexec"} <= set(flags()) and "nodev" not in flags()  # what says how times are kept stays
    with open(path, "w") as file:
        file.write("x")
    # what is open for writing is in the way
    with open(path, "r+"):
        done = run(m.data, m.mnt, "-o", "remount,ro")
        assert done.returncode == 1 and f"remounting {m.mnt}: " in done.stderr and "busy" in done.stderr
    done = run(m.data, m.data, "-o", "remount,ro")
    assert done.returncode == 1 and f"remounting {m.data}: " in done.stderr


@needs_root
@pytest.mark.limit(120)
def test_mounting_again_right_after_umount(folders):
    """The daemon of the mount that has gone may not have ended yet."""
    data, mnt = folders
    for number in range(20):
        done = run(data, mnt)
        assert done.returncode == 0, (number, done.stderr)
        with open(os.path.join(mnt, f"f{number}"), "wb") as file:
            file.write(os.urandom(1 << 20))
        assert subprocess.run(["umount", mnt]).returncode == 0
    assert len(os.listdir(data)) == 20
    wait_gone(data)


@needs_root
def test_mounted_over_the_data_directory_itself(mount, workdir):
    data = os.path.join(workdir, "both")
    os.makedirs(os.path.join(data, "d"))
    with open(os.path.join(data, "f"), "w") as file:
        file.write("before")
    m = mount(data=data, mnt=data)
    assert sorted(os.listdir(data)) == ["d", "f"]
    with open(os.path.join(data, "f"), "a") as file:
        file.write(" after")
    with open(os.path.join(data, "d", "new"), "w") as file:
        file.write("new")
    assert m.unmount() is None
    assert open(os.path.join(data, "f")).read() == "before after"
    assert open(os.path.join(data, "d", "new")).read() == "new"


@needs_root
def test_second_mount_of_a_data_directory_is_refused(mount, workdir):
    m = mount()
    other = os.path.join(workdir, "other")
    os.mkdir(other)
    done = run(m.data, other)
    assert done.returncode == 1 and f"{m.data} is already mounted by another gaiafs" in done.stderr
    assert done.stderr.endswith(f": at {m.mnt}\n") and mountinfo(other) is None
    done = run(m.mnt, other)
    assert done.returncode == 1 and "lies in a gaiafs mount" in done.stderr
    # free again afterwards
    assert m.unmount() is None
    again = mount(data=m.data)
    assert again.mounted()


@pytest.fixture
def helper():
    """/sbin/mount.gaiafs, where mount(8) looks for it."""
    path = "/sbin/mount.gaiafs"
    if os.path.lexists(path):
        if os.path.realpath(path) != os.path.realpath(MOUNT):
            pytest.skip(f"{path} exists and is not the program under test")
        yield path
        return
    os.symlink(MOUNT, path)
    yield path
    os.unlink(path)


@needs_root
def test_mount_8(helper, folders):
    data, mnt = folders
    done = subprocess.run(["mount", "-t", "gaiafs", data, mnt, "-o", "noexec,device_cache=1M"], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert mountinfo(mnt)[1] == "fuse.gaiafs"
    subprocess.run(["umount", mnt], check=True)
    wait_gone(data)
    done = subprocess.run(["mount", "-t", "gaiafs", data + "x", mnt], capture_output=True, text=True)
    assert done.returncode != 0 and "No such file or directory" in done.stderr


@needs_root
def test_mount_8_that_only_tries(helper, folders, workdir):
    """`mount -fa` hands -f on: it mounted, and waited for the end of that."""
    data, mnt = folders
    fstab = os.path.join(workdir, "fstab")
    for options, code, said in ("device_cache=1M", 0, ""), ("device_cache=0", 1, "not a size above 0"):
        write_file(fstab, f"{data} {mnt} gaiafs {options} 0 0\n".encode())
        for words in (["-fa", "-T", fstab], ["-f", "-T", fstab, mnt], ["--fake", "-t", "gaiafs", data, mnt, "-o", options]):
            done = subprocess.run(["mount", *words], capture_output=True, text=True, timeout=10)
            assert bool(done.returncode) == code and said in done.stderr, (words, done)
            assert mountinfo(mnt) is None and not daemon_of(data)


@needs_root
def test_fstab_line(helper, folders, workdir):
    data, mnt = folders
    fstab = os.path.join(workdir, "fstab")
    with open(fstab, "w") as file:
        file.write(f"{data} {mnt} gaiafs noauto,nofail,x-test,comment=yes,noatime,device_cache=soft:0=1M 0 0\n")
    done = subprocess.run(["mount", "-T", fstab, mnt], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert mountinfo(mnt)[1] == "fuse.gaiafs"
    subprocess.run(["umount", mnt], check=True)
    wait_gone(data)


@needs_root
def test_a_mount_that_is_made_on_demand(folders):
    """x-systemd.automount: who comes to the mount point before it is mounted waits for that, the daemon must not."""
    data, mnt = folders
    write_file(os.path.join(data, "f"), b"bytes")
    with automounted(mnt, MOUNT, data, mnt):
        done = subprocess.run(["cat", os.path.join(mnt, "f")], capture_output=True, timeout=20)
        assert done.stdout == b"bytes", done.stderr
        pid = daemon_of(data)
        assert os.getsid(pid) == pid
        subprocess.run(["umount", mnt], check=True)
        wait_gone(data)


def test_close_asks_nothing_where_there_is_nothing_to_report(mount):
    """Close is the only request that a program waits for when it is done with a file: none on a local disk. (On older kernels
    it is what the daemon waits for its write-backs by.)"""
    if not kernel_at_least(6, 16):
        pytest.skip("there the daemon asks for it: docs/limits.md")
    m = mount("debug,passthrough=off")
    path = os.path.join(m.mnt, "f")
    write_file(path, b"text")
    assert read_file(path) == b"text"
    os.truncate(path, 2)
    wait_until(lambda: m.log_text().count("opcode: RELEASE ") >= 2, what="two RELEASEs")
    text = m.log_text()
    assert all(f"opcode: {name} " in text for name in ("OPEN", "CREATE", "WRITE"))
    local = subprocess.run(["stat", "-f", "-c", "%T", m.data], capture_output=True, text=True, check=True).stdout
    assert local.strip() not in ("ext2/ext3", "xfs", "btrfs", "tmpfs") or "opcode: FLUSH " not in text


@needs_root
def test_files_are_read_a_mebibyte_at_a_time(mount):
    """A request costs as much as the copy of 128 KiB, which the kernel would ask for by itself."""
    m = mount("debug,passthrough=off")
    device = os.stat(m.mnt).st_dev
    with open(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb", encoding="ascii") as file:
        assert file.read() == "1024\n"
    path = os.path.join(m.data, "f")
    write_file(path, os.urandom(8 << 20))
    with open(os.path.join(m.mnt, "f"), "rb", buffering=0) as file:
        assert b"".join(iter(lambda: file.read(65536), b"")) == read_file(path)
    answers = [int(size) for size in re.findall(r"outsize: (\d+)", m.log_text())]
    assert max(answers) == (1 << 20) + 16, "the header comes before the bytes"
    assert answers.count(max(answers)) >= 5, sorted(answers)[-20:]  # it begins with less


@needs_root
def test_requests_in_the_background_are_as_many_as_threads(mount):
    """Read-ahead, write-back, asynchronous direct I/O: the kernel keeps back what is more."""
    m = mount("debug")
    told = {name: int(value) for name, value in re.findall(r"(max_background|congestion_threshold)=(\d+)", m.log_text())}
    most = max(64, 4 * os.sysconf("SC_NPROCESSORS_ONLN"))
    assert told == {"max_background": most, "congestion_threshold": most // 4 * 3}


@pytest.mark.limit(120)
def test_requests_that_wait_hold_up_nobody(mount):
    """An open() of the daemon waits while somebody has a lease of the file in the data directory. Ten such, and another
    program is served all the same; when they are over, the threads that they took end after a while."""
    m = mount()
    names = [f"leased{i}" for i in range(10)]
    for name in [*names, "free"]:
        write_file(os.path.join(m.data, name), b"text")
    before = threads(m.pid)
    ignored = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the kernel asks for a lease back
    holders, openers = [], []
    try:
        for name in names:
            holders.append(os.open(os.path.join(m.data, name), os.O_RDONLY))
            fcntl.fcntl(holders[-1], fcntl.F_SETLEASE, fcntl.F_RDLCK)
            openers.append(subprocess.Popen([sys.executable, "-c", "import os, sys; os.open(sys.argv[1], os.O_RDWR)",
                                             os.path.join(m.mnt, name)]))
        wait_until(lambda: threads(m.pid) >= before + len(names) - 3, 30, "a thread for each that waits")
        assert all(opener.poll() is None for opener in openers), "nothing waits: the test tests nothing"
        done = subprocess.run(["cat", os.path.join(m.mnt, "free")], capture_output=True, timeout=20, check=True)
        assert done.stdout == b"text"
        assert all(opener.poll() is None for opener in openers)
        for holder in holders:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        assert [opener.wait(20) for opener in openers] == [0] * len(openers)
        wait_until(lambda: threads(m.pid) <= before + 3, 40, "the threads end")
        assert read_file(os.path.join(m.mnt, "free")) == b"text"
    finally:
        for holder in holders:
            os.close(holder)
        for opener in openers:
            opener.wait(20)
        signal.signal(signal.SIGIO, ignored)


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
def test_who_keeps_a_mount_is_named(mount):
    """What a test is told whose daemon does not end; and a process apart (helpers.APART) keeps nobody's mount but its own test's."""
    m = mount()
    waits = ["sh", "-c", "echo here; read -r _"]
    for before, kept in (["unshare", "-m"], True), (APART, True), (["env", "GAIA_TEST_OWN=", *APART], False):
        with subprocess.Popen([*before, *waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proc:
            assert proc.stdout.readline() == b"here\n"
            assert (f"{proc.pid} (sh)" in kept_by(m.minor)) == kept, before
    assert f"{os.getpid()} (" in kept_by(m.minor)
