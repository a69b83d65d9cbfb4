# SPDX-License-Identifier: Apache-2.0
"""The end of programs with mappings on demand, and of their daemon while libgaia's own threads wait for it. The GPU is a stand-in."""
import os
import signal
import subprocess
import time

import pytest

import helpers
from helpers import MIB, read_file, write_file
from test_cuda_demand import programs  # noqa: F401

pytestmark = pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="the program is the plain one")


@pytest.fixture
def begin(mount):
    """begin(*arguments, standin=...) -> (mount, path of a file, the program)."""
    started = []

    def start(what, *more, standin="", **keywords):
        m = mount("timeout=3600")
        path = os.path.join(m.mnt, "f")
        write_file(path, b"." * 4 * MIB)
        tool = os.path.join(helpers.build_folder(), "tests", "mount", "tool_demand_end")
        program = subprocess.Popen([tool, what, path, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   env={**os.environ, "LD_LIBRARY_PATH": helpers.cuda_standin(), "STANDIN_CUDA": standin}, **keywords)
        started.append(program)
        return m, path, program

    yield start
    for program in started:
        if program.poll() is None:
            program.kill()
        program.communicate()


def test_released_in_a_destructor(begin):
    """Of a static object that opened the device: it runs when the program has returned from main()."""
    _, path, program = begin("destructor")
    said, _ = program.communicate(timeout=40)
    assert said == "released: ok\n" and program.returncode == 0
    assert read_file(path)[:7] == b".....K."


def test_an_answer_that_comes_too_late(begin):
    """The soft mapping brings a page when the driver has taken its memory back, as the program ends: nobody touches that."""
    m, _, program = begin("exit", standin="exits=3000")
    assert program.stdout.readline() == "mapped\n"
    os.kill(m.pid, signal.SIGSTOP)
    try:
        program.stdin.write("\n")
        program.stdin.flush()
        time.sleep(1.6)
    finally:
        os.kill(m.pid, signal.SIGCONT)
    assert program.wait(30) == 0


@pytest.mark.parametrize("descriptors", ["many", "few"])
def test_the_daemon_dies(begin, descriptors):
    """A kernel is told EIO, also in a program that has no descriptor left."""
    m, _, program = begin("last", *([descriptors] if descriptors == "few" else []))
    assert program.stdout.readline() == "46 loaded\n"
    m.kill()
    time.sleep(0.3)
    said, _ = program.communicate("\n", timeout=40)
    assert said == "0, error 5\n" and program.returncode == 0


@pytest.mark.parametrize("ignored", [False, True])
def test_a_sigbus_that_somebody_sends(begin, ignored):
    """As if there were no libgaia; and where it is ignored libgaia goes on to hear of its own touches."""
    m, _, program = begin("last", restore_signals=False,
                          preexec_fn=lambda: signal.signal(signal.SIGBUS, signal.SIG_IGN if ignored else signal.SIG_DFL))
    assert program.stdout.readline() == "46 loaded\n"
    os.kill(program.pid, signal.SIGBUS)
    if not ignored:
        assert program.wait(20) == -signal.SIGBUS
        return
    time.sleep(0.2)
    assert program.poll() is None
    m.kill()
    time.sleep(0.3)
    said, _ = program.communicate("\n", timeout=40)
    assert said == "0, error 5\n" and program.returncode == 0


def test_the_daemon_dies_in_an_unmap(mount, programs):
    """What a kernel has stored is given back at the end of the mapping, and waits for a daemon that does not live to bring the page."""
    m = mount("timeout=3600")
    path = os.path.join(m.mnt, "f")
    write_file(path, b"." * MIB)
    program = programs(path)
    program.store(5, b"dirty")
    os.kill(m.pid, signal.SIGSTOP)
    program.proc.stdin.write("bye\n")
    program.proc.stdin.close()
    time.sleep(1)
    m.kill()
    assert program.proc.wait(30) is not None
