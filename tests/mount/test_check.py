# SPDX-License-Identifier: Apache-2.0
"""tests/check.py: what it counts, and what it runs a second time."""
import os
import subprocess
import sys

import pytest

from conftest import TOP
from helpers import agents, write_file  # noqa: F401

UNIT = """#!/bin/sh
echo "[  PASSED  ] 1 test(s)."
{0}
"""
SECOND = '[ -e "{0}/{1}" ] || {{ touch "{0}/{1}"; echo "[  FAILED  ] 1 test(s)."; exit 1; }}'  # passes when it is run again
MOUNT = """
import os, pytest
def once(name):
    path = os.path.join(os.path.dirname(__file__), name)
    if not os.path.exists(path):
        open(path, "w").close()
        return True
@pytest.fixture
def torn(): yield; assert not once("torn"), "teardown"
def test_passes(): pass
def test_skips(): pytest.skip("so")
"""
FLAKY = "def test_flaky(): assert not once('call'), 'what {0} has'\ndef test_torn(torn): pass\n"
CRASHES = "from subprocess import *\ndef test_crashes(): assert not once('crash'), {0}\n"
STOPS = "def test_stops(): pytest.exit('so', 3)\n"
ONCE = "def test_once(): assert not once('first')\n"
FAILS = "def test_fails(): assert False\n"


@pytest.fixture
def check(workdir):
    """A function that runs it there: (exit status, closing line, lines about what is flaky)."""
    os.makedirs(os.path.join(workdir, "build", "tests", "io"))
    os.mkdir(os.path.join(workdir, "mounts"))
    env = {name: value for name, value in os.environ.items() if name != "GAIA_AGAIN"}

    def run(*more):
        done = subprocess.run([sys.executable, "-B", os.path.join(TOP, "tests", "check.py"), "--build", os.path.join(workdir, "build"),
                               "--bin", TOP, "--folder", os.path.join(workdir, "mounts"), *more],
                              capture_output=True, text=True, timeout=50, env=env)
        lines = done.stdout.splitlines() or [""]
        print(done.stdout, done.stderr)
        return done.returncode, lines[-1], [line for line in lines if line.startswith("flaky: ")]
    return run


def unit(workdir, name, text=""):
    path = os.path.join(workdir, "build", "tests", "io", f"test_{name}")
    write_file(path, UNIT.format(text).encode())
    os.chmod(path, 0o755)


def test_unit_programs(check, workdir):
    unit(workdir, "good")
    unit(workdir, "flaky", SECOND.format(workdir, "a"))
    assert check("--unit") == (1, "2 passed, 1 failed, 0 skipped", [])
    os.unlink(os.path.join(workdir, "a"))
    code, line, flaky = check("--unit", "--again", "1")
    assert (code, line, len(flaky)) == (0, "2 passed, 0 failed, 0 skipped", 1) and "test_flaky" in flaky[0]
    os.unlink(os.path.join(workdir, "a"))
    unit(workdir, "bad", "exit 3")
    assert check("--unit", "--again", "1") == (1, "3 passed, 2 failed, 0 skipped", [])  # two are too many
    os.unlink(os.path.join(workdir, "a"))
    code, line, flaky = check("--unit", "--again", "2")
    assert (code, line, len(flaky)) == (1, "3 passed, 1 failed, 0 skipped", 1)


def test_some_unit_programs(check, workdir):
    unit(workdir, "good")
    unit(workdir, "bad", "exit 3")
    assert check("--unit", "--units", "io/test_good") == (0, "1 passed, 0 failed, 0 skipped", [])
    assert check("--unit", "--units", "io/test_good,io/test_bad")[:2] == (1, "2 passed, 1 failed, 0 skipped")
    os.unlink(os.path.join(workdir, "build", "tests", "io", "test_bad"))
    assert check("--unit", "--units", "io/test_good,io/test_bad")[0] == 1  # not built


@pytest.mark.parametrize("said", ["WARNING: ThreadSanitizer: data race", "Test failed with exception: Segmentation fault(11)"])
def test_a_sanitizer_is_believed_at_once(check, workdir, said):
    unit(workdir, "raced", f'echo "{said}"; ' + SECOND.format(workdir, "a"))
    assert check("--unit", "--again", "5")[0] == 1


@pytest.mark.parametrize("ends, tried", [("exit 99", True), ("kill -SEGV $$", False)])
@pytest.mark.parametrize("then", ["[ RUN      ] next", "[==========] 2 test(s) run."])
def test_what_comes_of_a_failure_is_not_held_against_it(check, workdir, then, ends, tried):
    """A test that failed leaves its threads to the next one, or to the program's end: a sanitizer's word on that is not on the program."""
    after = f'echo "[  ERROR   ] late"; echo "{then}"; echo "WARNING: ThreadSanitizer: data race"; {ends}'
    unit(workdir, "late", f'[ -e "{workdir}/a" ] || {{{{ touch "{workdir}/a"; {after}; }}}}'.replace("{{", "{").replace("}}", "}"))
    code, line, flaky = check("--unit", "--again", "1")
    assert (code == 0, len(flaky)) == (tried, tried)


def test_a_program_that_crashes_has_no_second_try(check, workdir):
    unit(workdir, "crashes", SECOND.format(workdir, "a").replace("exit 1", "kill -ABRT $$"))
    assert check("--unit", "--again", "5")[:2] == (1, "1 passed, 1 failed, 0 skipped")


@pytest.mark.parametrize("crash", ["'the daemon ended with -11'", "'the process ended with -11'", "str(CalledProcessError(-11, 'x'))",
                                   "CompletedProcess('x', 99)"])
def test_nor_has_a_daemon(check, workdir, crash):
    write_file(os.path.join(workdir, "mounts", "test_some.py"), (MOUNT + CRASHES.format(crash)).encode())
    assert check("--mounts", "--again", "2") == (1, "1 passed, 1 failed, 1 skipped", [])


def test_nor_what_has_not_run_to_its_end(check, workdir):
    path = os.path.join(workdir, "mounts", "test_some.py")
    write_file(path, (MOUNT + FLAKY.format("time") + STOPS).encode())
    assert check("--mounts", "--again", "2")[::2] == (1, [])
    write_file(path, (MOUNT + ONCE + FAILS).encode())
    assert check("--mounts", "--again", "2", "--first")[::2] == (1, [])


def test_mount_tests(check, workdir):
    path = os.path.join(workdir, "mounts", "test_some.py")
    write_file(path, (MOUNT + FLAKY.format("time")).encode())
    code, line, flaky = check("--mounts", "--again", "2")
    assert (code, line) == (0, "3 passed, 0 failed, 1 skipped")
    assert sorted(one.split("::")[1].split(":")[0] for one in flaky) == ["test_flaky", "test_torn"]
    for name in "call", "torn":
        os.unlink(os.path.join(workdir, "mounts", name))
    assert check("--mounts", "--again", "1") == (1, "1 passed, 2 failed, 1 skipped", [])
    write_file(path, (MOUNT + FLAKY.format("time") + FAILS).encode())
    assert check("--mounts", "--again", "2") == (1, "3 passed, 1 failed, 1 skipped", [])
    write_file(path, (MOUNT + FLAKY.format("AddressSanitizer")).encode())
    os.unlink(os.path.join(workdir, "mounts", "call"))
    assert check("--mounts", "--again", "2") == (1, "2 passed, 1 failed, 1 skipped", [])


def test_agents_do_without_pytest(agents):
    """Its import is three quarters of the start of an agent, of which there are hundreds: also where one has a function of a
    test file."""
    names = sorted(name[:-3] for name in os.listdir(os.path.join(TOP, "tests", "mount")) if name.endswith(".py"))
    agent = agents()
    agent.do("import importlib", names=[name for name in names if name not in ("agent", "helpers", "on_gpu")])
    assert agent("[name for name in names if (importlib.import_module(name), '_pytest' in sys.modules)[1]]") == []
