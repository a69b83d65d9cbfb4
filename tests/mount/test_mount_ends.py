# SPDX-License-Identifier: Apache-2.0
"""How a mount ends: umount(8), signals, a daemon that is killed; and what must not end it."""
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from conftest import mountinfo
from helpers import APART, agents, read_file, statistics, write_file  # noqa: F401
from test_mount import needs_root, run


@needs_root
def test_umount_of_an_idle_mount_ends_the_daemon(mount):
    m = mount()
    subprocess.run(["umount", m.mnt], check=True)
    assert m.proc.wait(10) == 0


@needs_root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts(mount, number):
    m = mount()
    with open(os.path.join(m.mnt, "f"), "w") as file:
        file.write("kept")
    os.kill(m.pid, number)
    assert m.proc.wait(20) == 0
    assert not m.mounted()
    assert open(os.path.join(m.data, "f")).read() == "kept"


@needs_root
def test_hangup_is_ignored(mount):
    m = mount()
    os.kill(m.pid, signal.SIGHUP)
    os.kill(m.pid, signal.SIGPIPE)
    time.sleep(0.2)
    assert os.listdir(m.mnt) == []


@needs_root
def test_a_stray_signal_is_harmless(mount):
    """Those that the daemon sends its own threads: also before any program has used a device."""
    m = mount()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(m.pid, number)
    time.sleep(0.2)
    assert m.proc.poll() is None and os.listdir(m.mnt) == []
    statistics(m.mnt)


STORER = """
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(fd, 0)
for page in range(len(mapping) // 4096):
    mapping[page * 4096:page * 4096 + 6] = b"stored"
print("ready", flush=True)
sys.stdin.readline()
"""


@needs_root
@pytest.mark.parametrize("unlinked", [False, True])
def test_signal_with_dirty_mapping_of_another_process(mount, unlinked):
    """Stores that no msync followed reach the data directory although their process keeps the mount busy."""
    m = mount()
    pages = 300
    path, backing = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    with open(path, "wb") as file:
        file.write(b"." * 4096 * pages)
    process = subprocess.Popen([sys.executable, "-c", STORER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with open(backing, "rb") as file:
        try:
            assert process.stdout.readline() == b"ready\n"
            if unlinked:
                os.unlink(path)
            os.kill(m.pid, signal.SIGTERM)
            assert m.proc.wait(20) == 0
            assert not m.mounted()
        finally:
            process.kill()
            process.wait()
        content = file.read()
    assert content == (b"stored" + b"." * 4090) * pages
    assert "busy" in m.log_text()


def hide(m, how, workdir):
    """The mount is at its place no more; the commands that undo it."""
    if how == "detached":
        subprocess.run(["umount", "-l", m.mnt], check=True)
        return []
    if how == "covered":
        subprocess.run(["mount", "-t", "tmpfs", "over", m.mnt], check=True)
        return [["umount", m.mnt], ["umount", "-l", m.mnt]]
    aside = os.path.join(workdir, "aside")
    os.mkdir(aside)
    subprocess.run(["mount", "--bind", aside, aside], check=True)
    subprocess.run(["mount", "--bind", m.mnt, aside], check=True)
    return [["umount", "-l", aside]] * 2


@needs_root
@pytest.mark.whole
@pytest.mark.parametrize("how", ["detached", "covered", "bound"])
def test_signal_with_dirty_mapping_of_a_mount_that_is_hidden(mount, workdir, how):
    """umount -l before, as long as a program has files of it; or something lies over it; or it has another place, too."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"." * 4096 * 50)
    process = subprocess.Popen([sys.executable, "-c", STORER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    undo = []
    try:
        assert process.stdout.readline() == b"ready\n"
        undo = hide(m, how, workdir)
        os.kill(m.pid, signal.SIGTERM)
        assert m.proc.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        for command in undo:
            subprocess.run(command, check=True)
    assert read_file(os.path.join(m.data, "f")) == (b"stored" + b"." * 4090) * 50


@needs_root
def test_a_signal_ends_a_mount_that_has_a_copy(mount, agents):
    """As in a container, which keeps it there: the daemon ends all the same, as where programs keep it."""
    m = mount("passthrough=off")
    write_file(os.path.join(m.mnt, "f"), bytes(5))
    with subprocess.Popen([*APART, "sh", "-c", f"echo here; read -r _; cat {m.mnt}/f"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"here\n"
        agents().do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, 5)\nmap[:] = b'STORE'\nmap.release()\n"
                    "map.unmap()\nos.close(fd)", path=os.path.join(m.mnt, "f"))
        os.kill(m.pid, signal.SIGTERM)
        assert m.proc.wait(20) == 0 and not m.mounted() and "mounted elsewhere" in m.log_text()
        assert read_file(os.path.join(m.data, "f")) == b"STORE"
        assert b"not connected" in holder.communicate(b"\n")[1]


@needs_root
def test_the_directorys_lock_tells_when_all_is_there(mount, agents):
    """umount(8) is back before what devices hold is in the data directory: `flock DATADIR true` waits for that."""
    m = mount("device_cache=64M,passthrough=off")
    size = 16 << 20
    write_file(os.path.join(m.mnt, "f"), bytes(size))
    agents().do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, size)\nmap[:] = b'D' * size\nmap.release()\n"
                "map.unmap()\nos.close(fd)", path=os.path.join(m.mnt, "f"), size=size)
    subprocess.run(["umount", m.mnt], check=True)
    subprocess.run(["flock", m.data, "true"], check=True, timeout=30)
    assert read_file(os.path.join(m.data, "f")) == b"D" * size


@needs_root
def test_a_copy_of_the_mount_elsewhere_keeps_the_daemon(mount, agents):
    """A container's, say: umount(8) here brings nothing to the data directory then, and SIGTERM does."""
    m = mount("passthrough=off")
    write_file(os.path.join(m.mnt, "f"), bytes(5))
    with subprocess.Popen([*APART, "sh", "-c", "echo here; read -r _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"here\n"
        agents().do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, 5)\nmap[:] = b'STORE'\nmap.release()\n"
                    "map.unmap()\nos.close(fd)", path=os.path.join(m.mnt, "f"))
        subprocess.run(["umount", m.mnt], check=True)
        done = run(m.data, m.mnt)
        assert done.returncode == 1 and "a container has a copy" in done.stderr and m.proc.poll() is None, done
        os.kill(m.pid, signal.SIGTERM)
        assert m.proc.wait(20) == 0 and read_file(os.path.join(m.data, "f")) == b"STORE"


@needs_root
def test_umount_with_dirty_mapping_that_is_gone(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    with open(path, "wb") as file:
        file.write(b"." * 4096 * 50)
    process = subprocess.Popen([sys.executable, "-c", STORER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait()
    assert m.unmount() is None
    with open(os.path.join(m.data, "f"), "rb") as file:
        assert file.read() == (b"stored" + b"." * 4090) * 50


READERS = """
import os, sys, threading
files = [os.open(name, os.O_RDONLY) for name in sys.argv[1:]]
def work():
    while True:
        for file in files[:50]:
            os.fstat(file), os.pread(file, 1, 0), os.listxattr(file)
for _ in range(4):
    threading.Thread(target=work).start()
print("ready", flush=True)
"""

# What Linux says in place of ENODEV to who takes a request just as the last that used the mount ends.
LATE_READER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/types.h>

ssize_t readv(int fd, const void *parts, int count)
{
    ssize_t n = ((ssize_t (*)(int, const void *, int))dlsym(RTLD_NEXT, "readv"))(fd, parts, count);

    if (n < 0 && errno == ENODEV)
        errno = ECONNABORTED;
    return n;
}
"""


@needs_root
@pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="a library before the sanitizer's")
@pytest.mark.parametrize("way", [[], ["-l"]], ids=["unmounted", "detached"])
def test_a_request_that_comes_with_the_end_is_no_failure(mount, workdir, way):
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    source, shim = os.path.join(workdir, "shim.c"), os.path.join(workdir, "shim.so")
    write_file(source, LATE_READER.encode())
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", shim], check=True)
    m = mount(env={"LD_PRELOAD": shim})
    subprocess.run(["umount", *way, m.mnt], check=True)
    assert m.proc.wait(20) == 0, m.log_text()
    assert m.log_text() == ""
    m = mount("passthrough=off")  # and where Linux says it: about once in three times
    files = [os.path.join(m.mnt, str(number)) for number in range(500)]
    for file in files:
        write_file(file, b"x")
    child = subprocess.Popen([sys.executable, "-c", READERS, *files], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    subprocess.run(["umount", "-l", m.mnt], check=True)
    child.kill()
    child.wait()
    assert m.proc.wait(20) == 0, m.log_text()


def close_dead(fd):
    with contextlib.suppress(OSError):  # the FLUSH finds nobody
        os.close(fd)


@needs_root
def test_signal_while_files_and_folders_are_open(mount):
    m = mount("passthrough=off")  # a file that is passed through needs no daemon: test_passthrough_ends.py
    os.mkdir(os.path.join(m.mnt, "d"))
    folder = os.open(os.path.join(m.mnt, "d"), os.O_RDONLY)
    file = os.open(os.path.join(m.mnt, "f"), os.O_WRONLY | os.O_CREAT)
    os.write(file, b"kept")
    os.kill(m.pid, signal.SIGTERM)
    assert m.proc.wait(20) == 0
    with pytest.raises(OSError):
        os.write(file, b"lost, and said so")
    close_dead(file)
    close_dead(folder)
    assert open(os.path.join(m.data, "f")).read() == "kept"


@needs_root
def test_signal_does_not_unmount_what_lies_over(mount):
    """Another filesystem at the same place stays."""
    m = mount()
    subprocess.run(["mount", "-t", "tmpfs", "over", m.mnt], check=True)
    try:
        os.kill(m.pid, signal.SIGTERM)
        assert m.proc.wait(20) == 0
        assert mountinfo(m.mnt)[1] == "tmpfs"
    finally:
        subprocess.run(["umount", m.mnt], check=True)
        subprocess.run(["umount", "-l", m.mnt], check=True)


@needs_root
@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_unmounts_where_the_mount_is_by_now(mount, workdir, busy):
    """A folder above it was renamed, and another one is in its place: there another filesystem is mounted, which stays."""
    above, moved = os.path.join(workdir, "above"), os.path.join(workdir, "moved")
    os.makedirs(os.path.join(above, "mnt"))
    m = mount(mnt=os.path.join(above, "mnt"))
    os.rename(above, moved)
    os.makedirs(m.mnt)
    subprocess.run(["mount", "-t", "tmpfs", "another", m.mnt], check=True)
    now = os.path.join(moved, "mnt")
    folder = os.open(now, os.O_RDONLY) if busy else -1
    try:
        write_file(os.path.join(now, "f"), b"kept")
        os.kill(m.pid, signal.SIGTERM)
        assert m.proc.wait(20) == 0
        assert os.listdir(now) == [] and not mountinfo(now)
        assert mountinfo(m.mnt)[1] == "tmpfs" and read_file(os.path.join(m.data, "f")) == b"kept"
    finally:
        if busy:
            os.close(folder)
        subprocess.run(["umount", m.mnt], check=True)
        if mountinfo(now):
            subprocess.run(["umount", "-l", now], check=True)


@needs_root
@pytest.mark.parametrize("over", [False, True])
def test_a_signal_unmounts_ours_and_no_other_at_its_place(mount, workdir, over):
    """Which of them lies over the other the list of mounts does not say: it goes by when they were mounted, not moved."""
    above = os.path.join(workdir, "above")
    here, there = os.path.join(above, "here"), os.path.join(above, "there")
    os.mkdir(above)
    subprocess.run(["mount", "-t", "tmpfs", "above", above], check=True)
    subprocess.run(["mount", "--make-private", above], check=True)  # what is mounted there can be moved
    os.mkdir(here), os.mkdir(there)
    try:
        if not over:
            m = mount(mnt=there)
        another = there if over else here
        subprocess.run(["mount", "-t", "tmpfs", "another", another], check=True)
        write_file(os.path.join(another, "theirs"), b"")
        if over:
            m = mount(mnt=here)
        else:
            write_file(os.path.join(there, "f"), b"kept")
        subprocess.run(["mount", "--make-private", there], check=True)
        subprocess.run(["mount", "--move", there, here], check=True)
        os.kill(m.pid, signal.SIGTERM)
        assert m.proc.wait(20) == 0
        assert os.listdir(here) == ["theirs"]
        assert over or read_file(os.path.join(m.data, "f")) == b"kept"
    finally:
        subprocess.run(["umount", "-R", "-l", above], check=True)


# At the call of that number, what who owns the folders may do at any moment.
EXCHANGES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

int umount2(const char *path, int flags)
{
    static int calls;

    if (++calls == atoi(getenv("CALL")) && renameat2(AT_FDCWD, getenv("ONE"), AT_FDCWD, getenv("OTHER"), RENAME_EXCHANGE))
        abort();
    return ((int (*)(const char *, int))dlsym(RTLD_NEXT, "umount2"))(path, flags);
}
"""


@needs_root
@pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="a library before the sanitizer's")
@pytest.mark.parametrize("busy", [False, True], ids=["unmounted", "detached"])
def test_a_folder_above_that_is_put_elsewhere_just_then(mount, workdir, busy):
    """A link is in its place, to a folder with another mount of that name: that one stays, and ours goes."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    source, shim = os.path.join(workdir, "shim.c"), os.path.join(workdir, "shim.so")
    write_file(source, EXCHANGES.encode())
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", shim], check=True)
    folder, link, others = (os.path.join(workdir, name) for name in ("folder", "link", "others"))
    for parent in folder, others:
        os.makedirs(os.path.join(parent, "m"))
    os.symlink(others, link)
    m = mount("passthrough=off", mnt=os.path.join(folder, "m"),
              env={"LD_PRELOAD": shim, "CALL": str(1 + busy), "ONE": folder, "OTHER": link})
    subprocess.run(["mount", "-t", "tmpfs", "others", os.path.join(others, "m")], check=True)
    try:
        file = os.open(os.path.join(m.mnt, "f"), os.O_WRONLY | os.O_CREAT) if busy else -1
        os.kill(m.pid, signal.SIGTERM)
        assert m.proc.wait(20) == 0
        assert os.path.islink(folder) and mountinfo(os.path.join(others, "m"))[1] == "tmpfs"
        assert mountinfo(os.path.join(link, "m")) is None
        if busy:
            close_dead(file)
    finally:
        for mounted in os.path.join(others, "m"), os.path.join(link, "m"):
            if mountinfo(mounted):
                subprocess.run(["umount", "-l", mounted], check=True)


@needs_root
def test_killed_daemon_leaves_an_error_not_a_hang(mount):
    m = mount("passthrough=off")
    file = os.open(os.path.join(m.mnt, "f"), os.O_WRONLY | os.O_CREAT)
    os.write(file, b"acknowledged")
    m.kill()
    with pytest.raises(OSError, match="not connected"):
        os.listdir(m.mnt)
    with pytest.raises(OSError):
        os.write(file, b"x")
    close_dead(file)
    for place in (m.data, m.mnt), (m.mnt, m.data):
        done = run(*place)
        assert done.returncode == 1 and "umount it first" in done.stderr, done
    subprocess.run(["umount", "-l", m.mnt], check=True)
    assert open(os.path.join(m.data, "f")).read() == "acknowledged"
    assert mount(data=m.data).mounted()  # the lock went with the process
