# SPDX-License-Identifier: Apache-2.0
"""Each rule, broken on purpose, must be caught: by the model of the kernel's page cache, through a real mount, and by histories.

The builds with a broken rule are made here (make BREAK=NAME); tests/README.md lists them.
"""
import glob
import os
import shutil
import subprocess
import sys

import pytest

import conftest
import helpers

# The rule, the tests of test_kernel that may miss it, and the tool runs through a mount that must catch it (None: only the
# model does, for the race is too short to be met for certain).
ALTERNATE = ["tool_alternate", "FILE", "soft:0", "2500", "1"]
MAPPING = ["tool_mapping", "FILE", "4", "1", "3000", "1", "map", "soft:0"]
BREAKS = {
    "TWIN_MERGED": ALTERNATE,
    "NO_INVALIDATE": ALTERNATE,
    "WRITE_NO_COLLECT": ALTERNATE,
    "WRITEBACK_COLLECTS": MAPPING,
    "NO_DROP": MAPPING,
    "NO_HEAL": None,
}


def run(command, m):
    return helpers.tool(*[os.path.join(m.mnt, "f") if word == "FILE" else word for word in command], timeout=200)


# Sanitizer builds of broken rules would say nothing new.
pytestmark = pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="the plain build is enough")


def lend_objects(build):
    """What knows of no broken rule is as in the plain build, and need not be compiled again."""
    for path in glob.glob(os.path.join(conftest.TOP, "build", "gcc", "*", "*.o")):
        folder, name = path.split(os.sep)[-2:]
        source = os.path.join(conftest.TOP, folder, name[:-1] + "c")
        target = os.path.join(conftest.TOP, build, folder, name)
        if not os.path.exists(source) or os.path.exists(target) or b"GAIAFS_BREAK_" in helpers.read_file(source):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(path, target)


# tests/run.sh has time for one rule that a tool shows, and the one that the model alone can show.
@pytest.fixture(scope="module", params=[name if name in ("TWIN_MERGED", "NO_HEAL") else
                                        pytest.param(name, marks=conftest.not_in_the_gate) for name in BREAKS])
def broken(request):
    """(name, folder) of a build with one rule broken."""
    build = f"build/gcc-{request.param}"
    lend_objects(build)
    done = subprocess.run(["make", "-j2", f"BREAK={request.param}", f"{build}/mount.gaiafs", f"{build}/libgaia.so",
                           f"{build}/tests/cache/test_kernel"], cwd=conftest.TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return request.param, os.path.join(conftest.TOP, build)


@pytest.mark.limit(240)
def test_the_model_catches_a_broken_rule(broken):
    name, folder = broken
    program = os.path.join(folder, "tests", "cache", "test_kernel")
    for _ in range(5):  # a race that is not met in one run is met in the next
        done = subprocess.run([program], capture_output=True, text=True, timeout=100, env=helpers.without_gate())
        assert done.returncode >= 0, done.stderr
        if done.returncode:
            assert "FAILED" in done.stdout + done.stderr
            return
    pytest.fail(f"{name} is not noticed")


@pytest.mark.limit(240)
def test_a_mount_with_a_broken_rule_loses_bytes(broken, mount, monkeypatch):
    name, folder = broken
    if BREAKS[name] is None:
        pytest.skip("caught by the model")
    monkeypatch.setattr(conftest, "BIN", folder)
    m = mount("device_cache=32M,passthrough=off")  # the rules of pages that the kernel has
    status, _ = run(BREAKS[name], m)
    assert status == 1, "the broken rule is not noticed"


@pytest.mark.limit(240)
def test_histories_reject_a_broken_rule(broken, tmp_path):
    """A history checker that rejects nothing says nothing. It has never needed more than two rounds for any of these."""
    name, folder = broken
    if BREAKS[name] is None:
        pytest.skip("caught by the model")
    done = subprocess.run([sys.executable, "-B", os.path.join(conftest.TOP, "tests", "history", "run.py"), "--until-failure",
                           "--operations", "80000", "--options", "passthrough=off", "--bin", folder,
                           "--out", os.path.join(folder, "history"), "--keep", str(tmp_path)],
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "\nfirst: rule " in done.stdout, done.stdout + done.stderr


@conftest.not_in_the_gate
@pytest.mark.limit(120)
@pytest.mark.parametrize("command", [ALTERNATE, MAPPING], ids=lambda c: c[0])
def test_the_same_runs_pass_when_no_rule_is_broken(command, mount):
    m = mount("device_cache=32M")
    status, output = run(command, m)
    assert status == 0, output[-500:]
