# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run.sh and bench.sh, which are meant for machines with a GPU: what they do without one, and that they work,
on the stand-in. (What they run is tested by itself, on the stand-in, in the other files.)"""
import json
import os
import re
import subprocess

import pytest

import helpers
from conftest import TOP, not_in_the_gate

pytestmark = pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="the scripts use the plain build")
PLAIN = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "GAIA_DEVICE", "GAIA_REAL_GPU", "LD_LIBRARY_PATH", "STANDIN_CUDA")


def environment(standin=True, **more):
    env = {key: value for key, value in os.environ.items() if key not in PLAIN}
    if standin:
        env["LD_LIBRARY_PATH"] = os.path.join(TOP, "build", "gcc", "cuda")
    return {**env, **more}


def script(name, *arguments, standin=True, before=(), status=0, **more):
    done = subprocess.run([*before, "sh", os.path.join(TOP, "tests", "gpu", name), *map(str, arguments)], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=170,
                          env=environment(standin, **more))
    print(done.stdout)
    assert done.returncode == status, done.stdout
    return done.stdout


@pytest.fixture(autouse=True)
def no_gpu_here():
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU: the scripts would use it")
    if not os.path.exists(os.path.join(helpers.build_folder(), "cuda", "libcuda.so.1")):
        pytest.skip("no stand-in: make tools")


@pytest.mark.limit(200)
def test_run_without_a_gpu():
    text = script("run.sh", standin=False)
    assert "no GPU here: no driver: " in text and text.endswith("\n0 passed, 0 failed, 0 skipped\n")


@pytest.mark.limit(200)
def test_run_on_the_stand_in():
    text = script("run.sh", "--pages", 3000, "--only", "own")
    assert "GPU: stand-in 0, " in text and "no GPU, but the stand-in" in text
    assert "3000 strings of a page's length" in text and text.endswith("\n6 passed, 0 failed, 0 skipped\n")


@pytest.mark.limit(200)
def test_run_where_fuse_is_missing(workdir):
    """In a mount namespace in which /dev/fuse is no device."""
    if os.geteuid() != 0:
        pytest.skip("a mount namespace needs root")
    before = ["unshare", "-m", "--propagation", "private", "sh", "-c",
              helpers.LET_GO + 'mount --bind /etc/hostname /dev/fuse && exec "$@"', "-"]
    text = script("run.sh", "--pages", 1000, "--only", "own,mounts,demand,examples", before=before)
    for part in ("mounts", "demand", "examples"):
        assert f"skipped: {part}: no /dev/fuse here\n" in text
    assert text.endswith("\n6 passed, 0 failed, 3 skipped\n")


@pytest.mark.limit(200)
def test_run_of_demand_paging_on_the_stand_in():
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and /dev/fuse")
    text = script("run.sh", "--only", "demand", GAIA_PAGING_ONLY="all threads touch")
    assert re.search(r"^skipped: demand: nvcc's kernels: (the stand-in has threads for kernels|no nvcc here)$", text, re.M)
    assert text.endswith("\n1 passed, 0 failed, 5 skipped\n")


@pytest.mark.limit(200)
@pytest.mark.parametrize("spoil, counts", [({}, "2 passed, 0 failed, 4 skipped"),
                                           ({"GAIA_PAGING_SPOIL": "1"}, "0 passed, 2 failed, 4 skipped")])
def test_run_where_pytest_is_missing(workdir, spoil, counts):
    """Demand paging is tested all the same, by its program; and a failure of it is one."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and /dev/fuse")
    with open(os.path.join(workdir, "pytest.py"), "w") as file:
        file.write("raise ImportError\n")
    text = script("run.sh", "--only", "mounts,demand,examples", PYTHONPATH=workdir, TMPDIR=workdir,
                  GAIA_PAGING_ONLY="pinned loads" if spoil else "all threads touch", status=1 if spoil else 0, **spoil)
    for part in ("mounts", "demand: the rest of tests/mount/test_cuda_paging.py", "examples"):
        assert f"skipped: {part}: no pytest here\n" in text
    assert text.endswith(f"\n{counts}\n")
    assert os.listdir(workdir) == ["pytest.py"], "something was left behind"


@pytest.mark.limit(200)
def test_run_notices_a_failure():
    """The driver says that it has no memory: the tests fail, and so does the script."""
    text = script("run.sh", "--pages", 1000, "--only", "own", STANDIN_CUDA=f"memory={8 << 20}", status=1)
    assert "failed: the GPU's own tests\n" in text and re.search(r"\n\d+ passed, [1-9]\d* failed, 0 skipped\n", text)


@pytest.mark.limit(200)
def test_bench_without_a_gpu(workdir):
    text = script("bench.sh", standin=False, GAIA_BENCH_DIR=workdir)
    assert "no GPU here: no driver: " in text
    rows = [line for line in text.splitlines() if "  not measured: no GPU here" in line]
    assert len(rows) == 16 and "written" not in text


@pytest.mark.limit(200)
def test_bench_that_is_killed(workdir):
    """What it had measured is in the file, and in the table. (The same row again and again: one that needs no mount.)"""
    output = os.path.join(workdir, "bench.json")
    command = ["sh", os.path.join(TOP, "tests", "gpu", "bench.sh"), "--sizes", "256K", "--output", output, "--only",
               ",".join(1000 * ["find"])]
    proc = subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            env=environment(GAIA_BENCH_DIR=workdir))
    try:
        helpers.wait_until(lambda: os.path.exists(output), 150, "a row")
        assert proc.poll() is None, "it has ended before it was killed"
    finally:
        proc.kill()
        table = proc.communicate(timeout=20)[0]
    with open(output, encoding="utf-8") as file:
        found = json.load(file)
    assert found["complete"] is False and found["machine"]["gpu"].startswith("stand-in 0, ")
    assert len(found["rows"]) >= 3 and len(found["rows"]) % 3 == 0
    assert all(row["measured"] in table and row["value"] in table for row in found["rows"])
    assert len(found["raw"]["memory"]["find_s"]) == 5


@pytest.mark.limit(200)
def test_bench_with_kernels_that_do_not_load(workdir):
    """As those of a toolkit that is newer than the driver: the kept ones are measured, and it is said."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and /dev/fuse")
    output, kernels = os.path.join(workdir, "bench.json"), os.path.join(workdir, "cubin")
    with open(kernels, "wb") as file:
        file.write(b"\x7fELF of nobody's architecture")
    text = script("bench.sh", "--sizes", "256K", "--output", output, "--only", "hits", "--kernels", kernels,
                  GAIA_BENCH_DIR=workdir)
    with open(output, encoding="utf-8") as file:
        found = json.load(file)
    assert found["kernels"] == "clang 14, as PTX (nvcc's are not loaded: CUDA_ERROR_INVALID_VALUE)" and not found["broken"]
    assert f"kernels: {found['kernels']}\n" in text and len(found["rows"]) == 7


@not_in_the_gate
@pytest.mark.limit(200)
def test_bench_on_the_stand_in(workdir):
    """Its figures are nobody's: that the script works, checks bytes, and writes what it found is what is tested."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and /dev/fuse")
    output = os.path.join(workdir, "bench.json")
    assert "figures are nobody's" in script("bench.sh", GAIA_BENCH_DIR=workdir, status=2)
    text = script("bench.sh", "--sizes", "256K,2M", "--output", output, GAIA_BENCH_DIR=workdir)
    assert "BROKEN" not in text
    with open(output, encoding="utf-8") as file:
        found = json.load(file)
    assert found["machine"]["gpu"].startswith("stand-in 0, ") and found["machine"]["kernel"] and found["broken"] == []
    assert found["repetitions"] == 5 and found["complete"] is True and found["kernels"] == "clang 14, as PTX"
    assert set(found["raw"]) == {"memory", "place 262144", "place 2097152", "sync", "changed", "changed-writable", "sharing 4",
                                 "sharing 100", "sharing 1000", "demand faults", "demand hits", "demand add", "demand multiply"}
    for name, raw in found["raw"].items():
        often = 20 if name in ("sharing 100", "sharing 1000") else 5
        for key, samples in raw.items():
            if key.endswith("_s"):  # seconds of every repetition; the stand-in has no managed memory
                assert len(samples) == (0 if "managed" in key else often) and all(s > 0 for s in samples), (name, key)
    assert found["raw"]["sync"]["bytes_out"] <= found["raw"]["sync"]["changed_pages"] * 4096
    assert len(found["rows"]) == 3 + 4 + 3 + 2 * 6 + 7 + 5 + 7 + 4 * 3
    assert [row["measured"] for row in found["rows"] if row["value"].startswith("not measured")] == ["... managed memory"]
    managed = [row for row in found["rows"] if row["baseline"].endswith("not measured: this driver has none")]
    assert len(managed) == 5 and all(row["met"] is None and row["ratio"] is None for row in managed)
    assert os.listdir(workdir) == ["bench.json"], "something was left behind"
