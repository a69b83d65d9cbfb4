# SPDX-License-Identifier: Apache-2.0
"""Demand paging by kernels (tests/gpu/paging.c, paging_kernels.cc): on the stand-in of tests/cuda with threads for kernels,
and, with GAIA_REAL_GPU=1, on the cuda:0 of this machine, by kernels that clang has made, and by those of
$GAIA_PAGING_KERNELS, which nvcc has made there (tests/gpu/run.sh). GAIA_PAGING_ONLY=TEXT: only what has that in its name."""
import os
import re
import signal
import subprocess
import time

import pytest

import helpers
from conftest import TOP, not_in_the_gate
from helpers import make_random

pytestmark = pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="the plain build is enough")

REAL = os.environ.get("GAIA_REAL_GPU") == "1"
ONLY = os.environ.get("GAIA_PAGING_ONLY", "")
whole = pytest.mark.skipif(bool(ONLY), reason="only a part is wanted")
KERNELS = ["clang"] + (["nvcc"] if os.environ.get("GAIA_PAGING_KERNELS") else [])


def environment():
    env = {k: v for k, v in os.environ.items() if k not in ("STANDIN_CUDA", "GAIA_DEMAND_BYTES")}
    if not REAL:
        env["LD_LIBRARY_PATH"] = helpers.cuda_standin()
    return env


def command(folder, *arguments):
    return [os.path.join(helpers.build_folder(), "tests", "gpu", "paging"), *map(str, arguments), folder]


def check(text, number=20):
    assert text.endswith(f"\n{number} passed, 0 failed, 0 skipped\n") and "FAIL" not in text
    assert len(re.findall(r"^ok  ", text, re.M)) == number


# What is run, and how many tests that is. On the stand-in a store to each byte of many large units takes long: of those only
# some.
PARTS = [(ONLY, 20)] if REAL or ONLY else [(" 4 KiB", 10), ("64 KiB: pinned", 1), *(
    pytest.param(*part, marks=not_in_the_gate) for part in (("64 KiB: loads", 1), ("64 KiB: past", 1)))]


@pytest.mark.limit(400)
@pytest.mark.parametrize("part, number", PARTS)
@pytest.mark.parametrize("kernels", KERNELS)
def test_kernels(mount, kernels, part, number):
    m = mount()
    seed = make_random("paging").randrange(1 << 16)
    arguments = ["--seed", seed, "--only", part] + (["--kernels", os.environ["GAIA_PAGING_KERNELS"]] if kernels == "nvcc" else [])
    done = subprocess.run(command(m.mnt, *arguments), env=environment(), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=380)
    print(done.stdout)
    assert done.returncode == 0
    if ONLY:
        return
    check(done.stdout, number)
    # Ten times the frames means that most of them were somebody else's: it is seen in what was brought and given back.
    faults = [int(n) for n in re.findall(r"paging_load, order 0: \d+ touches, (\d+) faults", done.stdout)]
    assert number < 10 or len(faults) >= number // 10 * 3 and min(faults) >= 64 * 9


@whole
@pytest.mark.limit(400)
def test_killed_in_mid_kernel(mount):
    """The mount lives, the file has one of the two values of each element, and another program pages it."""
    m = mount()
    proc = subprocess.Popen(command(m.mnt, "--seed", 1, "--only", "stores in order"), env=environment(), text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        for line in proc.stdout:
            print(line, end="")
            if "----  4 KiB: stores in order" in line:
                break
        while not os.path.exists(os.path.join(m.mnt, "paging")) and proc.poll() is None:  # a busy machine takes its time
            time.sleep(0.01)
        time.sleep(make_random("kill").random() * 0.3)
        assert proc.poll() is None, "it has ended before it was killed"
        proc.send_signal(signal.SIGKILL)
        assert proc.wait(60) == -signal.SIGKILL
    finally:
        if proc.poll() is None:
            proc.kill()
            proc.wait(60)
        proc.stdout.close()
    assert os.path.getsize(os.path.join(m.mnt, "paging")) % 4096 == 0
    done = subprocess.run(command(m.mnt, "--seed", 2, "--only", "stores in order"), env=environment(), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    print(done.stdout)
    assert done.returncode == 0
    check(done.stdout, 2)


@whole
@pytest.mark.limit(280)
@pytest.mark.skipif(REAL, reason="a GPU has the kernels of the tree")
@pytest.mark.parametrize("rule, test", [("DEMAND_LOSE_STORES", "stores in order"), ("DEMAND_EVICT_HELD", "more pins")])
def test_a_broken_rule_is_noticed(mount, rule, test):
    """A stand-in whose device code has one rule of demand paging broken on purpose (tests/README.md)."""
    folder = os.path.join(TOP, "build", f"gcc-{rule}", "cuda")
    make = ["make", "-j2", "CC=gcc", "SANITIZE=", f"BREAK={rule}", os.path.join(f"build/gcc-{rule}/cuda/libcuda.so.1")]
    subprocess.run(make, cwd=TOP, check=True, timeout=200,
                   env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")})
    m = mount()
    done = subprocess.run(command(m.mnt, "--seed", 4, "--only", test), env={**environment(), "LD_LIBRARY_PATH": folder},
                          text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    print(done.stdout)
    assert done.returncode == 1 and done.stdout.endswith("\n0 passed, 2 failed, 0 skipped\n")


@whole
def test_wrong_bytes_are_noticed(mount):
    """A byte of the file is changed before it is mapped: that the kernels look at all that they load."""
    m = mount()
    env = {**environment(), "GAIA_PAGING_SPOIL": "1"}
    done = subprocess.run(command(m.mnt, "--seed", 3, "--only", "loads in order"), env=env, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=50)
    print(done.stdout)
    assert done.returncode == 1 and "not so: task->counts[PAGING_WRONG] == 0" in done.stdout
    assert done.stdout.endswith("\n0 passed, 2 failed, 0 skipped\n")
