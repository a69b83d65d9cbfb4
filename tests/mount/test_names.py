# SPDX-License-Identifier: Apache-2.0
"""Names and what they stand for: renames, links, nodes, folders."""
import ctypes
import os
import select
import shutil
import socket
import stat

import pytest

from posix_calls import libc, read_file, RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2, write_file


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
    names = {f"{i:05d}" + "n" * (i % 100) for i in range(5000)}
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
