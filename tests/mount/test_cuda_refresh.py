# SPDX-License-Identifier: Apache-2.0
"""Acquires that bring much up to date in place (cache/refresh.c), in batches by threads apart, and what goes wrong in one."""
import errno
import os

import pytest

from gpu_fixture import gpu, make, only_here  # noqa: F401
from helpers import MIB, PAGE, ROWS, agents, daemon_with_faults, read_at, read_file, write_at  # noqa: F401

COUNT = 3000  # pages: a dozen batches
FIRST, KERNELS = 0, 100  # of each page: the byte that a CPU program writes, and the one that a kernel stores


def changed(gpu, m):
    """A file whose every page a CPU program has written and a kernel has stored to since it was mapped: (the program that has it
    on the GPU, its path, its content)."""
    content = bytearray(os.urandom(COUNT * PAGE - 77))
    for page in range(COUNT):
        content[page * PAGE + FIRST] = page % 256  # turn 0
    path = make(m, bytes(content))
    program = gpu.program(path)
    program.do("for page in range(count):\n    map[page * PAGE + 100] = page % 251", count=COUNT)
    for page in range(COUNT):
        content[page * PAGE + KERNELS] = page % 251
    write_each(path, content, 1)
    return program, path, content


def write_each(path, content, turn):
    with open(path, "r+b", buffering=0) as file:
        for page in range(COUNT):
            content[page * PAGE + FIRST] = (page + turn) % 256
            os.pwrite(file.fileno(), content[page * PAGE:page * PAGE + 1], page * PAGE + FIRST)


def all_is_there(program, path, content):
    program.do("map.acquire()")
    assert program("map[:length]", length=len(content)) == bytes(content)
    program.do("map.release()")
    assert read_file(path) == bytes(content)


def acquire_fails(program):
    try:
        program.do("map.acquire()")
    except OSError as problem:
        return problem.errno
    return 0


@pytest.mark.parametrize("name", ["cuLaunchKernel", "cuMemcpyHtoDAsync"])
@pytest.mark.parametrize("count", [3, 8, 13])
@pytest.mark.parametrize("turn", [0, 2])
def test_a_batch_that_the_device_does_not_take(gpu, name, count, turn):
    """Those beside it are there or not; the file is as it was, or another. No byte of any is lost or taken for a kernel's, and the next acquire brings all."""
    m = gpu.mount()
    program, path, content = changed(gpu, m)
    gpu.fail(name, count, 2)
    error = acquire_fails(program)
    assert gpu.failed() and error in (0, errno.EIO, errno.ENOMEM)
    gpu.heal()
    write_each(path, content, turn)
    all_is_there(program, path, content)


@pytest.mark.limit(240)
def test_a_moment_in_which_the_driver_has_no_memory(gpu):
    """From each call of an acquire on, until that has failed: then nobody can find out what has become of the pages that were to be
    changed, of two pieces of the file. What is written there afterwards is not undone by a release."""
    m = gpu.mount(options="passthrough=off")
    path = make(m, bytes(5 * MIB))
    program = gpu.program(path)
    places, failed = (7 * PAGE, 3 * MIB), 0
    for count in range(1, 100):
        program.do("for at in places:\n    map[at + KERNELS] = count", places=places, count=count, KERNELS=KERNELS)
        for at in places:
            write_at(path, b"%04d early" % count, at)
        gpu.fail("*", -count, 2)
        error = acquire_fails(program)
        gpu.heal()
        for at in places:
            write_at(path, b"%04d later" % count, at)
        program.do("map.release()")
        found = [read_at(path, KERNELS + 1, at) for at in places]
        assert [(page[:10], page[KERNELS]) for page in found] == 2 * [(b"%04d later" % count, count)], (count, error)
        program.do("map.acquire()")
        assert [program("map[at:at + 101]", at=at) for at in places] == found
        failed += error != 0
        if not error:
            break
    assert failed > 5 and not error


@only_here
@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_a_batch_that_can_not_be_read(gpu, workdir, monkeypatch, number):
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    monkeypatch.setenv("GAIAFS_FAULTS", env["GAIAFS_FAULTS"])
    program, path, content = changed(gpu, gpu.mount())
    program.do("map.release()")
    read_file(path)  # what is collected is read, too
    write_each(path, content, 2)
    plan.arm(ROWS.index("pread64"), errno.EIO, number, 0)
    assert acquire_fails(program) == errno.EIO and plan.landed
    plan.row = -1
    all_is_there(program, path, content)


@only_here
@pytest.mark.parametrize("number", [1, 2, 4])
def test_without_the_threads(gpu, workdir, monkeypatch, number):
    """Of which there are none from this one on."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    monkeypatch.setenv("GAIAFS_FAULTS", env["GAIAFS_FAULTS"])
    program, path, content = changed(gpu, gpu.mount())
    plan.arm(ROWS.index("pthread_create"), errno.EAGAIN, number, 1)
    all_is_there(program, path, content)
    assert plan.landed
    plan.row = -1
