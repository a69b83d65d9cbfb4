# SPDX-License-Identifier: Apache-2.0
"""What is inside a file: bytes, holes, mappings, ends, and the descriptors that lead to them."""
import errno
import fcntl
import mmap
import os
import re
import stat
import subprocess
import threading

import pytest

import gaia
from helpers import ALL_ROWS, PAGE, daemon_with_faults, devices, error_of, read_file, wait_until, write_file  # noqa: F401
from posix_calls import (as_user, FALLOC_COLLAPSE_RANGE, FALLOC_INSERT_RANGE, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE,
                         FALLOC_UNSHARE_RANGE, FALLOC_ZERO_RANGE, fallocate, link_descriptor)


def test_unlinked_file_stays_usable(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    with open(path, "w+b") as file:
        file.write(b"before")
        file.flush()
        os.unlink(path)
        assert not os.path.exists(path)
        file.write(b" after")
        file.flush()
        os.fchmod(file.fileno(), 0o600)
        os.setxattr(file.fileno(), "user.gone", b"1")
        os.ftruncate(file.fileno(), 9)
        st = os.fstat(file.fileno())
        assert (st.st_nlink, st.st_size, stat.S_IMODE(st.st_mode)) == (0, 9, 0o600)
        assert os.pread(file.fileno(), 100, 0) == b"before af"
        # a new file of the same name is another file
        write_file(path, b"new")
        assert os.pread(file.fileno(), 100, 0) == b"before af"
    assert read_file(path) == b"new"


def test_append_lands_at_the_end_however_it_grew(mount):
    m = mount()
    mnt, data = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(mnt, b"one")
    with open(mnt, "ab", buffering=0) as file:
        file.write(b"two")
        with open(data, "ab") as behind:
            behind.write(b"BEHIND")
        file.write(b"three")
    assert read_file(data) == b"onetwoBEHINDthree"


def test_append_flag_can_be_set_and_cleared_later(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"0123456789")
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"AB", 2)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.pwrite(fd, b"end", 0)
    os.close(fd)
    assert read_file(os.path.join(m.data, "f")) == b"01AB456789end"


def test_mapped_store_through_an_append_handle_keeps_its_place(mount):
    m = mount()
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"x" * 10000)
    with mmap.mmap(fd, 10000) as mapping:
        mapping[5000:5005] = b"STORE"
        mapping.flush()
    os.close(fd)
    expected = b"x" * 5000 + b"STORE" + b"x" * 4995
    assert read_file(os.path.join(m.data, "f")) == expected


def test_what_is_not_appended_through_an_append_handle_of_a_file_that_may_not_be_opened(mount):
    """Its mode keeps the daemon's user from another descriptor of it, but not who has made the file, and has it open."""
    m = mount("timeout=0", before=("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"))
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o444)
    os.write(fd, b"x" * 10000)
    with mmap.mmap(fd, 10000) as mapping:
        mapping[5000:5005] = b"STORE"
        mapping.flush()
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"AB", 2)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.write(fd, b"end")
    os.fsync(fd)
    os.close(fd)
    assert read_file(os.path.join(m.data, "f")) == b"xxABx" + b"x" * 4995 + b"STORE" + b"x" * 4995 + b"end"


def test_an_append_to_a_tracked_file_beside_one_behind_the_mount(mount, devices, workdir, monkeypatch):
    """Neither is written over, also where the daemon's descriptor has stopped appending by itself."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("timeout=0", env=env, before=("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"))
    path, below = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o444)
    os.write(fd, b"x" * 100)
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"AB", 2)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    mapped = devices().mmap(fd, PAGE, gaia.PROT_READ)
    assert mapped[:6] == b"xxABxx"
    rows = [ALL_ROWS.index(row) for row in ("pwrite64", "pwritev64v2")]
    before = [plan.calls[row] for row in rows]
    os.write(fd, b"1")
    row = next(row for row, calls in zip(rows, before) if plan.calls[row] > calls)  # how it appends
    calls = plan.calls[row]
    plan.arm_wait(row, 700, 1, False)
    append = threading.Thread(target=os.write, args=(fd, b"end"))
    append.start()
    wait_until(lambda: plan.calls[row] > calls, what="it is about to append")
    with open(below, "ab") as file:
        file.write(b"behind the mount")
    append.join()
    os.close(fd)
    assert read_file(below) == b"xxAB" + b"x" * 96 + b"1behind the mountend"


def test_open_with_truncation(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"x" * 100000)
    other = os.open(path, os.O_RDONLY)
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    assert os.fstat(other).st_size == 0 and os.read(other, 10) == b""
    write_file(path, b"abc")
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    assert os.path.getsize(os.path.join(m.data, "f")) == 0
    os.close(other)


def test_direct_io(mount):
    m = mount()
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    block = mmap.mmap(-1, 8192)
    block[:] = bytes(range(256)) * 32
    assert os.writev(fd, [block]) == 8192
    back = mmap.mmap(-1, 8192)
    assert os.preadv(fd, [back], 0) == 8192
    assert back[:] == block[:]
    os.close(fd)


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC], ids=["O_SYNC", "O_DSYNC"])
def test_synchronous_writes_are_so_in_the_data_directory(mount, flag):
    m = mount()
    fd = os.open(os.path.join(m.mnt, "f"), os.O_WRONLY | os.O_CREAT | flag)
    found = []
    for entry in os.listdir(f"/proc/{m.pid}/fd"):
        if os.readlink(f"/proc/{m.pid}/fd/{entry}") == os.path.join(m.data, "f"):
            info = read_file(f"/proc/{m.pid}/fdinfo/{entry}").decode()
            found.append(int(re.search(r"flags:\s*(\d+)", info)[1], 8) & flag == flag)
    os.close(fd)
    assert any(found), found


def test_fallocate_and_holes(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    with open(path, "w+b", buffering=0) as file:
        fd = file.fileno()
        fallocate(fd, 0, 0, 1 << 20)
        assert os.fstat(fd).st_size == 1 << 20
        fallocate(fd, FALLOC_KEEP_SIZE, 1 << 20, 1 << 20)
        assert os.fstat(fd).st_size == 1 << 20
        os.pwrite(fd, b"x" * (1 << 20), 0)
        assert os.pread(fd, 5, 300000) == b"xxxxx"
        fallocate(fd, FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE, 65536, 65536)
        fallocate(fd, FALLOC_ZERO_RANGE, 200000, 1000)
        content = os.pread(fd, 1 << 20, 0)
        expected = bytearray(b"x" * (1 << 20))
        expected[65536:131072] = bytes(65536)
        expected[200000:201000] = bytes(1000)
        assert content == expected
        assert os.lseek(fd, 0, os.SEEK_HOLE) == 65536
        assert os.lseek(fd, 65536, os.SEEK_DATA) == 131072
        with pytest.raises(OSError) as caught:
            os.lseek(fd, 1 << 21, os.SEEK_DATA)
        assert caught.value.errno == errno.ENXIO
    assert read_file(os.path.join(m.data, "f")) == bytes(expected)


def test_copy_file_range(mount):
    m = mount()
    source, target = os.path.join(m.mnt, "source"), os.path.join(m.mnt, "target")
    content = os.urandom(300000)
    write_file(source, content)
    with open(source, "rb") as reader, open(target, "w+b", buffering=0) as writer:
        writer.write(b"y" * 10)
        done = 0
        while done < 200000:
            done += os.copy_file_range(reader.fileno(), writer.fileno(), 200000 - done, 1000 + done, 5 + done)
        assert os.pread(writer.fileno(), 300000, 0) == b"y" * 5 + content[1000:201000]
        # within one file
        assert os.copy_file_range(writer.fileno(), writer.fileno(), 5, 0, 100) == 5
    assert read_file(os.path.join(m.data, "target"))[100:105] == b"y" * 5


@pytest.mark.parametrize("passthrough", ["off", "all"])
def test_copy_file_range_after_append(mount, passthrough):
    """To a descriptor whose O_APPEND was taken back: to where it says, as on the data directory."""
    m = mount(f"passthrough={passthrough}")
    path = os.path.join(m.mnt, "f")
    content = os.urandom(3 * PAGE)
    write_file(path, content)
    fd = os.open(path, os.O_RDWR | os.O_APPEND)
    assert error_of(os.copy_file_range, fd, fd, PAGE, 0, PAGE) == errno.EBADF  # copy_file_range(2)
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    assert os.copy_file_range(fd, fd, PAGE, 0, PAGE) == PAGE
    os.close(fd)
    assert read_file(path) == content[:PAGE] * 2 + content[2 * PAGE:]


def test_stores_reach_the_backing_file_at_msync(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(100000))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[0:5] = b"first"
        mapping[50000:50006] = b"second"
        mapping.flush()
        behind = read_file(os.path.join(m.data, "f"))
        assert behind[0:5] == b"first" and behind[50000:50006] == b"second" and len(behind) == 100000
        # and what is written is seen by the mapping
        with open(path, "r+b", buffering=0) as other:
            os.pwrite(other.fileno(), b"third", 70000)
        assert mapping[70000:70005] == b"third"


def test_parallel_threads_on_one_file(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(64 * 4096))
    failures = []

    def work(number):
        with open(path, "r+b", buffering=0) as file:
            for step in range(100):
                block = bytes([number, step % 256]) * 2048
                os.pwrite(file.fileno(), block, number * 8 * 4096 + (step % 8) * 4096)
                if os.pread(file.fileno(), 4096, number * 8 * 4096 + (step % 8) * 4096) != block:
                    failures.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert read_file(path) == read_file(os.path.join(m.data, "f"))


def test_direct_io_where_the_filesystem_below_refuses_it(mount, workdir):
    data = os.path.join(workdir, "ramfs")
    os.mkdir(data)
    subprocess.run(["mount", "-t", "ramfs", "none", data], check=True)
    try:
        m = mount(data=data)
        write_file(os.path.join(data, "f"), b"y" * 100)
        with pytest.raises(OSError) as caught:
            os.open(os.path.join(data, "f"), os.O_RDWR | os.O_DIRECT)
        assert caught.value.errno == errno.EINVAL
        fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        block, back = mmap.mmap(-1, 8192), mmap.mmap(-1, 16384)
        block[:] = bytes(range(256)) * 32
        assert os.pwritev(fd, [block], 4096) == 8192
        assert os.preadv(fd, [back], 0) == 12288
        assert back[:12288] == b"y" * 100 + bytes(3996) + block[:]
        os.close(fd)
        assert m.unmount() is None
    finally:
        subprocess.run(["umount", data], check=True)


# --- files without a name --------------------------------------------------------------------------------------------

def test_a_file_without_a_name(mount):
    m = mount()
    fd = os.open(m.mnt, os.O_TMPFILE | os.O_RDWR, 0o640)
    assert os.listdir(m.mnt) == os.listdir(m.data) == []
    assert os.write(fd, b"bytes") == 5 and os.pread(fd, 10, 0) == b"bytes"
    st = os.fstat(fd)
    assert (st.st_nlink, st.st_size, stat.S_IMODE(st.st_mode)) == (0, 5, 0o640)
    with mmap.mmap(fd, 5) as mapping:
        mapping[0:1] = b"B"
    link_descriptor(fd, os.path.join(m.mnt, "named"))
    assert os.fstat(fd).st_nlink == 1
    os.close(fd)
    assert read_file(os.path.join(m.mnt, "named")) == read_file(os.path.join(m.data, "named")) == b"Bytes"
    # one that must never have a name, and one that is just closed
    fd = os.open(m.mnt, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    with pytest.raises(FileNotFoundError):
        link_descriptor(fd, os.path.join(m.mnt, "never"))
    os.close(fd)
    os.close(os.open(m.mnt, os.O_TMPFILE | os.O_WRONLY, 0o600))
    assert os.listdir(m.data) == ["named"]
    with pytest.raises(OSError) as caught:
        os.open(os.path.join(m.mnt, "named"), os.O_TMPFILE | os.O_RDWR)
    assert caught.value.errno == errno.ENOTDIR


def test_a_file_without_a_name_is_the_callers(mount):
    m = mount()
    os.chown(m.mnt, 0, 4242)
    os.chmod(m.mnt, 0o2777)
    done = as_user("""
from posix_calls import link_descriptor
os.umask(0o027)
fd = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, 0o666)
link_descriptor(fd, sys.argv[1] + "/named")
""", m.mnt, uid=4001, gid=4001)
    assert done.returncode == 0, done.stderr
    st = os.stat(os.path.join(m.data, "named"))
    assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (4001, 4242, 0o640)


# --- sizes and holes -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode", [FALLOC_COLLAPSE_RANGE, FALLOC_INSERT_RANGE, FALLOC_UNSHARE_RANGE, FALLOC_PUNCH_HOLE,
                                  FALLOC_UNSHARE_RANGE | FALLOC_KEEP_SIZE, 1 << 10], ids=hex)
def test_other_kinds_of_fallocate_are_refused_by_the_kernel(mount, mode):
    """FUSE hands on three of them; nothing may happen to the bytes."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"x" * 65536)
    with open(path, "r+b") as file:
        with pytest.raises(OSError) as caught:
            fallocate(file.fileno(), mode, 4096, 8192)
        assert caught.value.errno == errno.EOPNOTSUPP
    assert read_file(path) == read_file(os.path.join(m.data, "f")) == b"x" * 65536


def test_a_file_of_many_terabytes(mount, workdir):
    """Sparse: 8 TiB, with bytes at both ends and above 2^40."""
    m = mount()
    plain = os.path.join(workdir, "plain")
    places, size = (0, (1 << 32) - 3, (1 << 40) - 2, (1 << 40) + (1 << 33) + 5, (1 << 43) - 5), 1 << 43
    found = []
    for path in (os.path.join(m.mnt, "f"), plain):
        with open(path, "w+b", buffering=0) as file:
            fd = file.fileno()
            for place in places:
                assert os.pwrite(fd, b"bytes", place) == 5
            assert os.fstat(fd).st_size == size and os.fstat(fd).st_blocks < 1000
            assert [os.pread(fd, 7, place - 1 if place else 0).strip(b"\0") for place in places] == [b"bytes"] * 5
            assert os.pread(fd, 10, size - 5) == b"bytes" and os.pread(fd, 10, size) == b""
            at, ends = 0, []
            while True:
                try:
                    at = os.lseek(fd, at, os.SEEK_DATA)
                except OSError as error:
                    assert error.errno == errno.ENXIO
                    break
                ends.append((at, at := os.lseek(fd, at, os.SEEK_HOLE)))
            found.append(ends)
            with mmap.mmap(fd, 8192, offset=(1 << 43) - 8192) as mapping:
                assert mapping[8187:] == b"bytes"
                mapping[0:5] = b"store"
                mapping.flush()
            assert os.pread(fd, 5, size - 8192) == b"store"
            os.ftruncate(fd, (1 << 40) + 1)
            assert os.pread(fd, 10, (1 << 40) - 2) == b"byt"
            with pytest.raises(OSError) as caught:
                os.pwrite(fd, b"x", (1 << 63) - 1)
            assert caught.value.errno in (errno.EFBIG, errno.EINVAL)
    assert found[0] == found[1] and len(found[0]) == 5


# --- mappings --------------------------------------------------------------------------------------------------------

def test_private_and_shared_mappings(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"x" * 10000)
    with open(path, "r+b", buffering=0) as file:
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as private, \
                mmap.mmap(file.fileno(), 0) as shared, mmap.mmap(file.fileno(), 0) as second:
            private[0:4] = b"mine"
            shared[5000:5004] = b"ours"
            assert second[5000:5004] == private[5000:5004] == b"ours"
            assert shared[0:4] == second[0:4] == os.pread(file.fileno(), 4, 0) == b"xxxx"
            os.pwrite(file.fileno(), b"WRITE", 9000)
            assert shared[9000:9005] == second[9000:9005] == private[9000:9005] == b"WRITE"
            assert private[0:4] == b"mine" and second[9999:] == b"x"
    assert read_file(os.path.join(m.data, "f"))[0:4] == b"xxxx"


def test_what_is_refused(mount):
    """docs/posix.md has it."""
    m = mount()
    write_file(os.path.join(m.mnt, "f"), b"text")
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDONLY)
    try:
        assert error_of(fcntl.ioctl, fd, 0x80087601, bytes(8)) == errno.ENOTTY  # FS_IOC_GETVERSION
        assert error_of(os.preadv, fd, [bytearray(4)], 0, os.RWF_NOWAIT) == errno.EOPNOTSUPP
    finally:
        os.close(fd)
