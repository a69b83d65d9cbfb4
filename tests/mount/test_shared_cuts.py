# SPDX-License-Identifier: Apache-2.0
"""Several mounts of one data directory (-o shared): what one of them cuts off stays so, whatever another one is just bringing to
the data directory (claim_hold_end() of cache/claim.h)."""
import fcntl
import os
import struct
import subprocess
import threading
import time

import pytest

import gaia
from files import Opened, pattern
from helpers import (ALL_ROWS, MIB, PAGE, agents, devices, read_file, wait_until, write_file)  # noqa: F401
from test_shared import path_in, two, two_and_a_plan  # noqa: F401

END_BYTE = (1 << 63) - 4
F_OFD_SETLK = 37


@pytest.mark.parametrize("call", ["release", "acquire", "sync"])
def test_what_another_mount_has_cut_off_stays_so(two, devices, call):
    """Whatever brings what a device has stored to the data directory, and before the last map has gone."""
    a, b = two
    write_file(path_in(a), pattern(8 * PAGE))
    opened = Opened(devices(), path_in(a))
    opened.map[PAGE + 100] = opened.map[6 * PAGE] = pattern(PAGE)[100] ^ 255
    os.truncate(path_in(b), PAGE + 200)
    opened.map.release(0, PAGE * 2)
    getattr(opened.map, call)()
    wanted = bytearray(pattern(PAGE + 200))
    wanted[PAGE + 100] = pattern(PAGE)[100] ^ 255
    assert read_file(os.path.join(a.data, "f")) == bytes(wanted)
    opened.close()
    assert read_file(path_in(b)) == bytes(wanted)


@pytest.mark.parametrize("beside", [False, True], ids=["before", "beside"])
@pytest.mark.parametrize("tracked", [None, "mapped", "immutable"])
def test_a_store_through_a_mapping_does_not_bring_back_what_another_mount_has_cut_off(mount, workdir, monkeypatch, agents, devices,
                                                                                      tracked, beside):
    """The kernel here does not know of the cut, and writes back what was stored before. Immutable: it was when the device came."""
    data, plan, a, b = two_and_a_plan(mount, workdir, monkeypatch)
    wanted = bytearray(pattern(8 * PAGE))
    write_file(path_in(a), wanted)
    below = os.path.join(data, "f")
    if tracked == "immutable" and subprocess.run(["chattr", "+i", below], capture_output=True).returncode:
        pytest.skip("no chattr +i here")
    opened = Opened(devices(), path_in(a), prot=gaia.PROT_READ if tracked == "immutable" else 3) if tracked else None
    subprocess.run(["chattr", "-i", below], capture_output=True)
    cpu = agents()
    cpu.do("import mmap\nfd = os.open(path, os.O_RDWR)\nmap = mmap.mmap(fd, 8 * 4096)", path=path_in(a))
    wanted[PAGE + 100] ^= 255
    cpu.do("for at in PAGE + 100, PAGE + 300, 2 * PAGE, 6 * PAGE: map[at] ^= 255")
    if beside:
        plan.arm_wait(ALL_ROWS.index("pwrite64"), 600, 1, False)
        cpu.start("map.flush()")
        wait_until(lambda: plan.landed == 1, 20, "it is being written back")
    os.truncate(path_in(b), PAGE + 200)
    cpu.finish() if beside else cpu.do("map.flush()")
    assert read_file(below) == bytes(wanted[:PAGE + 200])
    if opened:
        opened.close()


def cut_beside_a_release(plan, opened, path, how, size, call="pwrite64", number=1):
    """While the first of what is released is being brought to the data directory, another mount cuts the file."""
    with open(path, "r+b", buffering=0) as file:
        plan.arm_wait(ALL_ROWS.index(call), 600, number, False)
        release = threading.Thread(target=opened.map.release)
        release.start()
        wait_until(lambda: plan.landed == 1, 20, "the release is in this call")
        os.truncate(file.fileno() if how == "by a descriptor" else path, size)
        release.join()


@pytest.mark.parametrize("how", ["by its name", "by a descriptor", "tracked"])
@pytest.mark.parametrize("first, last", [(PAGE + 300, PAGE + 300), (PAGE + 150, PAGE + 300), (2 * PAGE, 2 * PAGE),
                                         (70 * PAGE, 70 * PAGE)], ids=["same page", "over the end", "next page", "next leaf"])
def test_what_another_mount_cuts_off_beside_a_release_stays_so(mount, workdir, monkeypatch, devices, first, last, how):
    """The release has looked at the size before; what it brings to the data directory after the cut is not to undo it, though
    it is of the page, the run of pages or the range that was begun before."""
    data, plan, a, b = two_and_a_plan(mount, workdir, monkeypatch)
    wanted = bytearray(pattern(80 * PAGE))
    write_file(path_in(a), wanted)
    if how == "tracked":
        Opened(devices(), path_in(b)).close()
    opened = Opened(devices(), path_in(a))
    for at in (PAGE + 100, *range(first, last + 1)):
        wanted[at] ^= 255
        opened.map[at] = wanted[at]
    cut_beside_a_release(plan, opened, path_in(b), how, PAGE + 200)
    assert read_file(os.path.join(data, "f")) == bytes(wanted[:PAGE + 200])
    opened.close()
    assert read_file(path_in(b)) == bytes(wanted[:PAGE + 200])


@pytest.mark.parametrize("number", [1, 2])
def test_what_another_mount_cuts_off_before_it_is_brought_stays_so(mount, workdir, monkeypatch, devices, number):
    """The release looks for what was stored (the first call) and takes it (the second), and looks at the size before both."""
    data, plan, a, b = two_and_a_plan(mount, workdir, monkeypatch)
    wanted = bytearray(pattern(8 * PAGE))
    write_file(path_in(a), wanted)
    opened = Opened(devices(), path_in(a))
    for at in PAGE + 100, PAGE + 300:
        wanted[at] ^= 255
        opened.map[at] = wanted[at]
    cut_beside_a_release(plan, opened, path_in(b), "by its name", PAGE + 200, "preadv64v2", number)
    assert read_file(os.path.join(data, "f")) == bytes(wanted[:PAGE + 200])
    opened.close()
    assert read_file(path_in(b)) == bytes(wanted[:PAGE + 200])


@pytest.mark.parametrize("how", ["by its name", "by a descriptor", "tracked"])
def test_what_another_mount_writes_beside_a_cut_is_read(mount, workdir, monkeypatch, devices, how):
    """The cut waits for it, and is no reason to take it for this mount's own: the kernel's pages here are older."""
    data, plan, a, b = two_and_a_plan(mount, workdir, monkeypatch)
    wanted = bytearray(pattern(8 * PAGE))
    write_file(path_in(a), wanted)
    if how == "tracked":
        Opened(devices(), path_in(b)).close()
    opened = Opened(devices(), path_in(a))
    opened.map[100] = wanted[100] = wanted[100] ^ 255
    time.sleep(0.1)  # what has just changed may be changing
    for _ in range(2):
        assert read_file(path_in(b))[200:] == wanted[200:]
    cut_beside_a_release(plan, opened, path_in(b), how, 8 * PAGE)  # as long as it is: the kernel keeps its pages
    assert read_file(path_in(b)) == bytes(wanted)
    opened.close()


def test_a_cut_waits_for_no_lock_of_a_program(two):
    """In the data directory itself, of the whole file: such a lock has the byte that mounts lock while they cut."""
    a, _ = two
    write_file(path_in(a), bytes(4 * PAGE))
    with open(os.path.join(a.data, "f"), "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        began = time.monotonic()
        os.truncate(path_in(a), PAGE)
        assert time.monotonic() - began < 1
        assert os.fstat(file.fileno()).st_size == PAGE


def test_a_cut_beside_a_daemon_that_stands_still(two):
    """In the moment in which it had the file's end: the cut is made all the same, though late."""
    a, _ = two
    write_file(path_in(a), bytes(4 * PAGE))
    with open(os.path.join(a.data, "f"), "r+b") as file:
        fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, END_BYTE, 1, 0))
        os.truncate(path_in(a), PAGE)
        assert os.fstat(file.fileno()).st_size == PAGE


def test_a_release_beside_a_daemon_that_stands_still(two, devices):
    """The same of what devices have stored to many parts of a file: it is not waited for anew for each of them."""
    a, _ = two
    leaf, leaves = 64 * PAGE, 8
    write_file(path_in(a), bytes(leaves * leaf))
    opened = Opened(devices(), path_in(a))
    for at in range(0, leaves * leaf, leaf):
        opened.map[at] = 7
    with open(os.path.join(a.data, "f"), "r+b") as file:
        fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, END_BYTE, 1, 0))
        began = time.monotonic()
        opened.map.release()
        assert time.monotonic() - began < 6
        assert all(os.pread(file.fileno(), 1, at) == b"\x07" for at in range(0, leaves * leaf, leaf))
    opened.close()


@pytest.mark.parametrize("tracked", [False, True], ids=["", "mapped"])
def test_write_backs_beside_a_daemon_that_stands_still(two, agents, devices, tracked):
    a, _ = two
    write_file(path_in(a), bytes(64 * MIB))
    opened = Opened(devices(), path_in(a)) if tracked else None
    cpu = agents()
    cpu.do("import mmap\nmap = mmap.mmap(os.open(path, os.O_RDWR), 64 << 20)\nmap[:] = b'w' * (64 << 20)", path=path_in(a))
    with open(os.path.join(a.data, "f"), "r+b") as file:
        fcntl.fcntl(file, F_OFD_SETLK + 1, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, END_BYTE, 1, 0))  # which waits
        began = time.monotonic()
        cpu.do("map.flush()")
        assert time.monotonic() - began < 15
        assert file.read() == b"w" * (64 * MIB)
    if opened:
        opened.close()


def test_many_stores_beside_a_cut(mount, workdir, monkeypatch, agents):
    """Storage is slow, and the kernel writes back many pages at a time: they do not wait for each other as for another mount, in the
    end in vain."""
    data, plan, a, b = two_and_a_plan(mount, workdir, monkeypatch)
    wanted = bytearray(pattern(64 * PAGE))
    write_file(path_in(a), wanted)
    cpu = agents()
    cpu.do("import mmap, time\nfd = os.open(path, os.O_RDWR)\nmap = mmap.mmap(fd, 64 * 4096)", path=path_in(a))
    cpu.do("for page in range(0, 64, 4): map[page * PAGE] ^= 255")
    wanted[0] ^= 255
    plan.arm_wait(ALL_ROWS.index("pwrite64"), 400, 1, True)
    cpu.start("begun = time.monotonic()\nmap.flush()\ntook = time.monotonic() - begun")
    time.sleep(2.15)  # claim.c waits for 2 s
    os.truncate(path_in(b), PAGE)
    cpu.finish()
    assert read_file(os.path.join(data, "f")) == bytes(wanted[:PAGE])
    assert cpu("took") < 2
