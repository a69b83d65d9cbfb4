# SPDX-License-Identifier: Apache-2.0
"""Names and what they stand for: renames, links, nodes, folders."""
import ctypes
import errno
import os
import select
import shutil
import socket
import stat
import subprocess
import threading

import pytest

from conftest import so_much
from helpers import error_of, read_file, write_file
from posix_calls import as_user, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, renameat2


def test_rename_flags(mount):
    m = mount()
    one, two, three = (os.path.join(m.mnt, name) for name in ("one", "two", "three"))
    write_file(one, b"1")
    write_file(two, b"2")
    with pytest.raises(FileExistsError):
        renameat2(one, two, RENAME_NOREPLACE)
    renameat2(one, three, RENAME_NOREPLACE)
    renameat2(two, three, RENAME_EXCHANGE)
    assert (read_file(two), read_file(three)) == (b"1", b"2")
    os.mkdir(one)
    write_file(os.path.join(one, "in"), b"in")
    renameat2(one, two, RENAME_EXCHANGE)
    assert os.path.isdir(two) and read_file(os.path.join(two, "in")) == b"in" and read_file(one) == b"1"
    with pytest.raises(FileNotFoundError):
        renameat2(three, os.path.join(m.mnt, "none"), RENAME_EXCHANGE)


def test_open_file_survives_rename_and_replacement(mount):
    m = mount()
    old, new = os.path.join(m.mnt, "old"), os.path.join(m.mnt, "new")
    write_file(old, b"old")
    write_file(new, b"new")
    with open(new, "rb") as replaced, open(old, "r+b", buffering=0) as moved:
        os.rename(old, new)
        assert replaced.read() == b"new"
        moved.write(b"OLD")
    assert read_file(new) == b"OLD"


def test_fifo_socket_and_device_nodes(mount):
    m = mount()
    fifo, sock, null = (os.path.join(m.mnt, name) for name in ("fifo", "sock", "null"))
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY)
    os.write(writer, b"through")
    assert select.select([reader], [], [], 5)[0] and os.read(reader, 100) == b"through"
    os.close(reader)
    os.close(writer)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(sock)
        server.listen()
        client.connect(sock)
    assert stat.S_ISSOCK(os.lstat(os.path.join(m.data, "sock")).st_mode)
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    st = os.lstat(os.path.join(m.data, "null"))
    assert stat.S_ISCHR(st.st_mode) and st.st_rdev == os.makedev(1, 3)
    with open(null, "r+b", buffering=0) as file:
        assert file.write(b"away") == 4 and file.read() == b""
    assert m.unmount() is None
    again = mount("nodev", data=m.data)
    with pytest.raises(PermissionError):
        open(os.path.join(again.mnt, "null"), "rb")


def test_hard_and_symbolic_links(mount):
    m = mount()
    one, two, name = (os.path.join(m.mnt, name) for name in ("one", "two", "link"))
    write_file(one, b"bytes")
    os.link(one, two)
    assert os.stat(one).st_ino == os.stat(two).st_ino and os.stat(two).st_nlink == 2
    os.unlink(one)
    assert read_file(two) == b"bytes" and os.stat(two).st_nlink == 1
    long_target = "x/" * 2000 + "y"
    os.symlink(long_target, name)
    assert os.readlink(name) == long_target and os.lstat(name).st_size == len(long_target)
    os.link(name, one, follow_symlinks=False)
    assert os.readlink(one) == long_target


@pytest.mark.limit(120)
def test_big_directory(mount):
    m = mount()
    names = {f"{i:05d}" + "n" * (i % 100) for i in range(so_much(5000, 1500))}
    folder = os.path.join(m.mnt, "d")
    os.mkdir(folder)
    for name in names:
        os.close(os.open(os.path.join(m.data, "d", name), os.O_CREAT | os.O_WRONLY))
    assert set(os.listdir(folder)) == names
    listed = list(os.scandir(folder))
    assert {entry.name for entry in listed} == names and len(listed) == len(names)
    assert all(entry.stat().st_size == 0 for entry in listed)
    # removing while listing must leave nothing over
    shutil.rmtree(folder)
    assert os.listdir(m.data) == []


def test_a_folder_from_the_start_again(mount):
    """rewinddir() and seekdir(), in the middle of a folder that takes many requests to list."""
    m = mount()
    names = {f"{i:04d}" + "n" * 50 for i in range(2000)}
    for name in names:
        os.close(os.open(os.path.join(m.data, name), os.O_CREAT | os.O_WRONLY))
    libc = ctypes.CDLL(None)
    libc.opendir.restype = libc.readdir64.restype = ctypes.c_void_p
    libc.readdir64.argtypes = libc.rewinddir.argtypes = libc.closedir.argtypes = libc.telldir.argtypes = [ctypes.c_void_p]
    libc.telldir.restype = ctypes.c_long
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    folder = libc.opendir(m.mnt.encode())

    def read(most):
        found = []
        while len(found) < most and (entry := libc.readdir64(folder)):
            found.append(ctypes.string_at(entry + 19).decode())
        return found
    everything = read(5000)
    assert len(everything) == 2002 and set(everything) == names | {".", ".."}
    libc.rewinddir(folder)
    for count in (1, 300, 1500):
        assert read(count) == everything[:count]
        place = libc.telldir(folder)
        assert read(200) == everything[count:count + 200]
        libc.seekdir(folder, place)
        assert read(5000) == everything[count:]
        libc.rewinddir(folder)
    read(700)
    libc.rewinddir(folder)
    assert read(5000) == everything
    libc.closedir(folder)


def test_a_folder_that_has_grown_since_it_was_opened_from_the_start(mount, workdir):
    """btrfs shows until a rewinddir() what was there at the opendir(); which is not seen by those that show all."""
    data = os.path.join(workdir, "filesystem")
    os.mkdir(data)
    if shutil.which("mkfs.btrfs"):
        with open(data + ".image", "wb") as file:
            file.truncate(128 << 20)
        subprocess.run(["mkfs.btrfs", "-q", file.name], check=True)
        subprocess.run(["mount", "-o", "loop", file.name, data], check=True)
    try:
        m = mount(data=data)
        folder = os.open(m.mnt, os.O_RDONLY)
        touch(os.path.join(m.mnt, "new"))
        os.lseek(folder, 0, os.SEEK_SET)
        names = os.listdir(folder)
        os.close(folder)
        assert names == ["new"]
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", data], capture_output=True, check=False)


# --- names -----------------------------------------------------------------------------------------------------------

def touch(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def test_names_of_any_bytes(mount):
    m = mount()
    folder = os.fsencode(m.mnt)
    names = {bytes([byte]) * 3 for byte in range(1, 256) if byte != ord("/")} | {
        bytes(byte for byte in range(1, 256) if byte != ord("/")), b" ", b"\n", b"...", b"\xff\xfe", b"-rf", b"*", b"\\134"}
    for name in names:
        touch(os.path.join(folder, name))
    assert set(os.listdir(folder)) == set(os.listdir(os.fsencode(m.data))) == names
    for name in names:
        os.rename(os.path.join(folder, name), os.path.join(folder, b"moved"))
        os.rename(os.path.join(folder, b"moved"), os.path.join(folder, name))
        os.unlink(os.path.join(folder, name))
    assert os.listdir(m.data) == []


@pytest.mark.parametrize("length", [254, 255, 256, 1023, 1024, 1025, 4000])
def test_long_names(mount, workdir, length):
    """255 bytes are the data directory's limit; beyond it every call says so."""
    m = mount()
    plain = os.path.join(workdir, "plain")
    os.mkdir(plain)
    results = []
    for folder in (m.mnt, plain):
        touch(os.path.join(folder, "f"))
        name = os.path.join(folder, "n" * length)
        short = os.path.join(folder, "f")
        results.append([error_of(*call) for call in (
            (os.stat, name), (touch, name), (os.stat, name), (os.unlink, name), (os.mkdir, name), (os.rmdir, name),
            (os.symlink, "x", name), (os.readlink, name), (os.unlink, name), (os.link, short, name), (os.unlink, name),
            (os.mkfifo, name), (os.rename, name, name + "x"), (os.unlink, name), (os.rename, short, name),
            (renameat2, name, short, RENAME_NOREPLACE))])
    assert results[0] == results[1]
    assert (errno.ENAMETOOLONG in results[0]) == (length >= 255)


def test_paths_of_the_greatest_length(mount):
    m = mount()
    path, parts = m.mnt, 0
    while len(path) + 101 < 4095:
        path += "/" + "d" * 99
        os.mkdir(path)
        parts += 1
    last = path + "/" + "f" * (4095 - len(path) - 1)
    write_file(last, b"deep")
    assert read_file(last) == b"deep" and len(last) == 4095
    assert error_of(os.stat, last + "f") == errno.ENAMETOOLONG
    # deeper than any path, step by step
    here = os.open(path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 99, dir_fd=here)
        below = os.open("d" * 99, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    assert os.listdir(here) == ["bottom"]
    os.close(here)
    shutil.rmtree(os.path.join(m.mnt, "d" * 99))
    assert os.listdir(m.data) == []


def test_loops_of_symbolic_links(mount):
    m = mount()
    at = os.path.join
    os.symlink("itself", at(m.mnt, "itself"))
    os.symlink("b", at(m.mnt, "a"))
    os.symlink("a", at(m.mnt, "b"))
    for name in ("itself", "a", "a/x", "itself/"):
        for call in (os.stat, os.open, os.listdir, os.chdir, os.mkdir):
            code = error_of(call, at(m.mnt, name), *([os.O_RDONLY] if call is os.open else []))
            assert code == (errno.EEXIST if call is os.mkdir and "x" not in name else errno.ELOOP), \
                (name, call)
    assert os.readlink(at(m.mnt, "itself")) == "itself"
    assert error_of(os.open, at(m.mnt, "a"), os.O_RDONLY | os.O_NOFOLLOW) == errno.ELOOP
    # forty are followed, one more is not
    write_file(at(m.mnt, "l0"), b"end")
    for i in range(41):
        os.symlink(f"l{i}", at(m.mnt, f"l{i + 1}"))
    assert read_file(at(m.mnt, "l40")) == b"end" and error_of(os.stat, at(m.mnt, "l41")) == errno.ELOOP


def test_a_rename_leaves_a_whiteout(mount):
    m = mount()
    one, two = os.path.join(m.mnt, "one"), os.path.join(m.mnt, "two")
    write_file(one, b"1")
    renameat2(one, two, RENAME_WHITEOUT)
    assert read_file(two) == b"1"
    for folder in (m.mnt, m.data):
        st = os.lstat(os.path.join(folder, "one"))
        assert stat.S_ISCHR(st.st_mode) and st.st_rdev == 0
    renameat2(two, one, RENAME_EXCHANGE)
    assert read_file(one) == b"1" and error_of(renameat2, one, two, RENAME_WHITEOUT | RENAME_EXCHANGE) == errno.EINVAL
    # a device node is root's to make, one without a number is anybody's
    os.mkdir(folder := os.path.join(m.mnt, "d"))
    os.chmod(m.mnt, 0o755)
    os.chmod(folder, 0o777)
    done = as_user("""
from posix_calls import renameat2, RENAME_WHITEOUT
open(sys.argv[1] + "/f", "w")
renameat2(sys.argv[1] + "/f", sys.argv[1] + "/g", RENAME_WHITEOUT)
""", folder)
    assert done.returncode == 0, done.stderr
    assert os.lstat(os.path.join(m.data, "d", "f")).st_uid == 65534


# --- folders that change while they are listed -----------------------------------------------------------------------

ENTRIES = int(os.environ.get("GAIA_TEST_ENTRIES", so_much(100_000, 15_000)))
NAMES_OF_A_FILE = 100  # another name costs a tenth of another file


def list_with(folder, attributes):
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            found.append(entry.name)
            if attributes and len(found) % 100 == 1:
                error_of(entry.stat)  # has the kernel ask for attributes with the names
    return found


@pytest.mark.limit(240 + ENTRIES // 1000)
def test_a_folder_of_many_entries_while_others_come_and_go(mount):
    """What stays is listed, each once; what comes or goes meanwhile at most once. By both kinds of listing."""
    m = mount("timeout=0")
    behind, folder = os.path.join(m.data, "d"), os.path.join(m.mnt, "d")
    os.mkdir(behind)
    for i in range(ENTRIES):
        if i % NAMES_OF_A_FILE == 0:
            os.mknod(first := os.path.join(behind, f"stays{i}"))
        else:
            os.link(first, os.path.join(behind, f"stays{i}"))
    stop, rounds, errors, lists = threading.Event(), [0], [], 0

    def change():
        while not stop.is_set() and not errors:
            number = rounds[0]
            try:
                touch(os.path.join(folder, f"comes{number}"))
                os.rename(os.path.join(folder, f"comes{number}"), os.path.join(folder, f"moved{number}"))
                if number >= 50:
                    os.unlink(os.path.join(folder, f"moved{number - 50}"))
            except OSError as error:
                errors.append(error)
            rounds[0] += 1
    changer = threading.Thread(target=change)
    changer.start()
    try:
        for with_attributes in (False, True):
            begun = rounds[0]
            while rounds[0] - begun <= 20 and not errors:  # so many changes have met a listing
                found = list_with(folder, with_attributes)
                stays = [name for name in found if name.startswith("stays")]
                assert len(stays) == len(set(stays)) == ENTRIES
                assert len(found) == len(set(found))
                lists += 1
    finally:
        stop.set()
        changer.join()
    print(ENTRIES, "names stayed in", lists, "listings, beside", rounds[0], "that came or went")
    assert not errors
    # and removing what is listed leaves nothing over
    shutil.rmtree(folder)
    assert os.listdir(m.data) == []
