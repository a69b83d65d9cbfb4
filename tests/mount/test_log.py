# SPDX-License-Identifier: Apache-2.0
"""What an administrator reads in the log: what failed, on what, and what can be done."""
import errno
import json
import mmap
import os
import re
import resource
import shutil
import subprocess
import threading

import pytest

from helpers import BIN, descriptors, read_file, statistics, wait_until, write_file
from test_broken_disks import disk  # noqa: F401  pylint: disable=unused-import
from test_disks import fill, small  # noqa: F401  pylint: disable=unused-import


def lines(m, text):
    return [line for line in m.log_text().splitlines() if text in line]


def test_out_of_descriptors(mount):
    """EMFILE for who asks, a line in the log with the remedy, and all is well when there are descriptors again."""
    m = mount()
    for i in range(100):
        write_file(os.path.join(m.data, f"f{i}"), b"x")
    used = descriptors(m.pid)
    before = resource.prlimit(m.pid, resource.RLIMIT_NOFILE, (used + 10, resource.prlimit(m.pid, resource.RLIMIT_NOFILE)[1]))
    held, failures = [], []
    try:
        for i in range(100):
            try:
                held.append(open(os.path.join(m.mnt, f"f{i}"), "rb"))
            except OSError as error:
                failures.append(error.errno)
    finally:
        resource.prlimit(m.pid, resource.RLIMIT_NOFILE, before)
    assert failures and set(failures) <= {errno.EMFILE, errno.ENFILE}, failures
    said = lines(m, "ulimit -n")
    assert len(said) == 1 and m.data in said[0] and "Too many open files" in said[0], m.log_text()
    for file in held:
        file.close()
    assert read_file(os.path.join(m.mnt, "f99")) == b"x"
    m.unmount()
    more = [line for line in lines(m, "ulimit -n") if "more of these were not logged" in line]
    assert len(more) == 1 and int(re.search(r"(\d+) more", more[0])[1]) >= len(failures) - 1, m.log_text()


def test_a_disk_in_error(mount, disk):  # noqa: F811  pylint: disable=redefined-outer-name
    m = mount("passthrough=off", data=disk.folder)  # with it on the daemon reads nothing
    path = os.path.join(m.mnt, "f")
    for name in ("low", "pad", "f"):
        write_file(os.path.join(m.mnt, name), os.urandom(4 << 20))
    disk.sync()
    for top in m.mnt, disk.folder:
        fd = os.open(os.path.join(top, "f"), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    disk.cut()
    for _ in range(3):
        with pytest.raises(OSError) as caught, open(path, "rb") as file:
            file.read()
        assert caught.value.errno == errno.EIO
    said = lines(m, "Input/output error")
    assert len(said) == 1 and "reading f" in said[0] and "dmesg" in said[0] and disk.folder in said[0], m.log_text()
    disk.mend()


def test_stores_that_find_no_room(mount, small):  # noqa: F811  pylint: disable=redefined-outer-name
    """Through a mapping, by a program that has gone when the kernel writes them back: nobody else is told."""
    m = mount("passthrough=off", data=small)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, 16384)
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 16384) as mapping:
        assert mapping[0] == 0
        fill(small)
        mapping[0] = 1
    os.close(fd)
    assert m.unmount() is None
    said = lines(m, "No space left on device")
    assert len(said) == 1 and f"{small}: writing back what a program stored through a mapping of f" in said[0], m.log_text()


def test_ordinary_errors_are_not_logged(mount):
    m = mount()
    for name, code in (("missing", errno.ENOENT), ("x" * 300, errno.ENAMETOOLONG)):
        with pytest.raises(OSError) as caught:
            read_file(os.path.join(m.mnt, name))
        assert caught.value.errno == code
    assert m.log_text() == ""


@pytest.mark.limit(60)
def test_umount_under_load(mount):
    """Says EBUSY while files are open, takes nothing down, and works as soon as nothing is; SIGTERM under load ends the
    daemon, whose callers get ENOTCONN and the like, and nothing hangs."""
    m = mount()
    path, stop, wrong, turns = os.path.join(m.mnt, "f"), threading.Event(), [], [0, 0]

    def work(number):
        with open(f"{path}{number}", "wb", buffering=0) as file:
            while not stop.is_set():
                try:
                    os.pwrite(file.fileno(), b"x" * 5000, turns[number] % 100 * 4096)
                    os.stat(m.mnt)
                    turns[number] += 1
                except OSError as error:
                    if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT):
                        wrong.append(error)
                    return

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: min(turns) > 20)
        done = subprocess.run(["umount", m.mnt], capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "busy" in done.stderr, done.stderr
        before = list(turns)
        wait_until(lambda: all(now > was for now, was in zip(turns, before)), what="the load goes on")
        m.proc.terminate()
        assert m.proc.wait(30) == 0
    finally:
        stop.set()
        for worker in workers:
            worker.join(20)
    assert not wrong and not any(worker.is_alive() for worker in workers), wrong
    assert "is busy: detached" in m.log_text()
    assert os.path.getsize(os.path.join(m.data, "f0")) > 5000


ODD = {  # names that anybody may give a file, and what is shown of them
    b"x\nmount.gaiafs: all is lost \x1b[31m": r"x\012mount.gaiafs: all is lost \033[31m",
    b"nl\n  passthrough      9 fake": r"nl\012  passthrough      9 fake",
    b"\xff\xfe": r"\377\376",
    b"csi\xc2\x9b31m": r"csi\302\23331m",
    b'q"\\012': r'q"\134012',
    "ü€".encode(): "ü€",
}


def test_names_do_not_forge_lines_of_the_log(mount):
    m = mount("passthrough=off", before=("prlimit", "--nofile=96:96"))
    name = next(iter(ODD))
    path = os.path.join(os.fsencode(m.mnt), name)
    write_file(os.path.join(os.fsencode(m.data), name), b"x")
    held = []
    with pytest.raises(OSError) as caught:
        for _ in range(100):
            held.append(os.open(path, os.O_RDONLY))
    assert caught.value.errno == errno.EMFILE
    for fd in held:
        os.close(fd)
    said = m.log_text()
    assert said.count("\n") == 1 and "\x1b" not in said and f"opening {ODD[name]}: " in said, said


# A daemon of one's own, which answers anything: $ANSWER for its statistics.
ANSWERS = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int json_dumpfd(const void *json, int fd, size_t flags)
{
    const char *answer = getenv("ANSWER");

    (void)json;
    (void)flags;
    return write(fd, answer, strlen(answer)) < 0 ? -1 : 0;
}
"""


@pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="a library before the sanitizer's")
@pytest.mark.parametrize("answer", ['{"data": "\\u001b[31m\u009b31m\x7f", "k\u009b31m": "ü"}', '{"data": "\x1b[31m"}', "\x1b[31m", "[\x1b[31m"],
                         ids=["strings", "raw", "none", "cut"])
def test_a_daemon_does_not_command_the_terminal(mount, workdir, answer):
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    source, shim = os.path.join(workdir, "shim.c"), os.path.join(workdir, "shim.so")
    write_file(source, ANSWERS.encode())
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", shim], check=True)
    m = mount(env={"LD_PRELOAD": shim, "ANSWER": answer})
    for options in [], ["--json"]:
        done = subprocess.run([os.path.join(BIN, "gaiactl"), "stat", *options, m.mnt], capture_output=True, text=True, timeout=20)
        assert done.stdout or done.stderr
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.stdout + done.stderr), done
        assert done.returncode == (0 if "u001b" in answer else 1)
    if done.returncode == 0:
        assert json.loads(done.stdout) == {"data": r"\033[31m\302\23331m\177", "k\u009b31m": "ü"}


def test_names_do_not_forge_lines_of_gaiactl(mount):
    m = mount()
    held = [os.open(os.path.join(os.fsencode(m.mnt), name), os.O_CREAT | os.O_RDWR) for name in ODD]
    try:
        assert {file["path"] for file in statistics(m.mnt)["open"]} == set(ODD.values())
        text = subprocess.run([os.path.join(BIN, "gaiactl"), "stat", m.mnt], capture_output=True, timeout=20, check=True).stdout
    finally:
        for fd in held:
            os.close(fd)
    shown = text.decode().split("open files:\n")[1].splitlines()
    assert sorted(line.split(maxsplit=2)[2] for line in shown) == sorted(ODD.values())


def test_a_data_directory_of_any_name(mount, workdir):
    data = os.path.join(workdir, os.fsdecode(b"d\xff\n"))
    os.mkdir(data)
    m = mount("fsname=any", data=data)  # others read /proc/self/mountinfo as UTF-8
    assert statistics(m.mnt)["data"].endswith(r"/d\377\012")
    done = subprocess.run([os.path.join(BIN, "gaiactl"), "stat", m.mnt], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split(" on ")[0].endswith(r"/d\377\012")
