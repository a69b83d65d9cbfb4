# SPDX-License-Identifier: Apache-2.0
"""examples/cuda, built for the CPU: each on a stand-in for a GPU (tests/cuda) and on a soft device, whose result its
own check must find right, and wrong when a byte of it was changed. What nvcc makes of the same sources runs on a GPU
(tests/gpu/run.sh); here it is compiled, where there is an nvcc."""
import os
import re
import shutil
import subprocess

import pytest

import helpers
from conftest import TOP, not_in_the_gate
from helpers import make_random, read_file, write_file

pytestmark = pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="the plain build is what users get")

DEVICES = ["cuda:0", "soft:0"]
SIZES = {"vector_add": 70001, "sgemm": 96, "collage": 500, "stitch": 61}
RESULTS = {"vector_add": "vector_add.c", "sgemm": "sgemm.c", "collage": "collage.out", "stitch": "stitch.out"}


@pytest.fixture(scope="module")
def programs():
    """GAIA_CUDA_EXAMPLES: a folder with those that nvcc has made; else the CPU's, built."""
    if "GAIA_CUDA_EXAMPLES" in os.environ:
        return os.environ["GAIA_CUDA_EXAMPLES"]
    subprocess.run(["make", "-j2", "CC=gcc", "SANITIZE=", "all", "examples", "tools"], cwd=TOP, check=True, timeout=200,
                   env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")})
    return os.path.join(TOP, "build", "gcc", "examples", "cuda")


@pytest.fixture(params=DEVICES)
def on(request, mount, programs, monkeypatch):
    """on.mount and on.run(name, arguments..., status=0) -> what it printed, on a device."""
    device = request.param
    real = os.environ.get("GAIA_REAL_GPU") == "1"
    if "GAIA_CUDA_EXAMPLES" in os.environ and device != "cuda:0":
        pytest.skip("these are built for a GPU")
    if device == "cuda:0" and not real:
        monkeypatch.setenv("LD_LIBRARY_PATH", helpers.cuda_standin())
    monkeypatch.setenv("GAIA_DEVICE", device)

    class On:
        def __init__(self):
            self.mount, self.device = mount(), device

        @staticmethod
        def run(name, *arguments, status=0):
            done = subprocess.run([os.path.join(programs, name), *map(str, arguments)], text=True, timeout=50,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            print(name, *arguments, "->", done.returncode, done.stdout, sep="\n")
            assert done.returncode == status, done.stdout
            return done.stdout

    return On()


def make_graph(path, scale):
    subprocess.run([os.path.join(TOP, "build", "gcc", "examples", "sssp", "generate"), "--scale", str(scale), path],
                   check=True, timeout=20, stdout=subprocess.DEVNULL)


def spoil(path, at):
    """Another value for one byte of a file, by plain writes."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("name", SIZES)
def test_it_is_right_and_notices_what_is_not(on, name):
    rng = make_random(name)
    seed = rng.randrange(1, 1 << 32)
    arguments = ["--count", SIZES[name], "--seed", seed, on.mount.mnt]
    text = on.run(name, *arguments)
    assert text.startswith(f"device: {on.device}\n") and "\nright: " in text and "WRONG" not in text
    assert "\nright: " in "\n" + on.run(name, "--check", *arguments)
    path = os.path.join(on.mount.mnt, RESULTS[name])
    size = os.stat(path).st_size
    for at in (0, size - 1, rng.randrange(size)):
        spoil(path, at)
        assert "WRONG: " in on.run(name, "--check", *arguments, status=1), at
        spoil(path, at)
    on.run(name, "--check", *arguments)
    # The device's half is what the device did: without it the file is as it was made.
    os.truncate(path, 0)
    os.truncate(path, size)
    assert "WRONG: " in on.run(name, "--check", *arguments, status=1)


def test_vector_add_moves_what_changed(on):
    text = on.run("vector_add", "--count", 500000, on.mount.mnt)
    moved = int(re.search(r"(\d+) bytes moved for the second", text)[1])
    assert 0 < moved < 500000 * 4 / 2, text
    assert text.count("right: ") == 2


def test_sgemm_says_what_multiplied(on):
    text = on.run("sgemm", "--count", 33, on.mount.mnt)
    assert ("cublasSgemm" if "GAIA_CUDA_EXAMPLES" in os.environ else "no cuBLAS") in text


def test_collage_reads_what_it_finds(on):
    """The planes of the tables sort tiles out: not every block is compared with every tile in every table."""
    text = on.run("collage", "--count", 500, on.mount.mnt)
    compared = int(re.search(r"(\d+) tiles compared", text)[1])
    assert 64 < compared < 64 * 6 * 500 // 2, text
    if on.device == "soft:0":
        return
    faults, evicted, units, frames = map(int, re.search(
        r"(\d+) faults and (\d+) evictions, of (\d+) units in (\d+) frames", text).groups())
    assert units > 500 and frames == 64 and faults - 64 <= evicted < faults
    # The data set is larger than what is there for it, and what is found on the way is read more than once.
    assert evicted > units


def test_histogram(on):
    rng = make_random("histogram")
    path, result = (os.path.join(on.mount.mnt, name) for name in ("file", "counts"))
    for length in (1, 7, 4096, 100003):
        content = rng.randbytes(length)
        write_file(path, content)
        on.run("histogram", path, result)
        counts = [content.count(bytes([value])) for value in range(256)]
        assert read_file(result) == b"".join(count.to_bytes(8, "little") for count in counts)
        spoil(path, rng.randrange(length))
        assert "WRONG: 1" not in on.run("histogram", "--check", path, result, status=1).splitlines()
    write_file(path, b"")
    assert "empty" in on.run("histogram", path, result, status=2)


@pytest.mark.limit(120)
def test_sssp_on_a_graph_that_changes(on, programs, workdir):
    """The script of examples/sssp, with Dijkstra beside the program's own check."""
    examples = os.path.join(TOP, "build", "gcc", "examples")
    env = {**os.environ, "TMPDIR": workdir, "GAIA_PROGRAMS": TOP, "GAIA_EXAMPLES": examples,
           "GAIA_SSSP": os.path.join(programs, "sssp")}
    done = subprocess.run(["sh", os.path.join(TOP, "examples", "sssp", "run.sh"), "-n", "3", "-s", "9", on.mount.mnt],
                          text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=100, env=env)
    print(done.stdout)
    assert done.returncode == 0 and re.search(r"^sssp: all \d+ checks passed$", done.stdout, re.M)


def test_sssp_notices_a_wrong_distance(on):
    graph, result = (os.path.join(on.mount.mnt, name) for name in ("graph", "result"))
    make_graph(graph, 8)
    on.run("sssp", graph, result)
    assert "right: " in on.run("sssp", "--check", graph, result)
    rng = make_random("sssp")
    reached = [v for v in range(256) if read_file(result)[8 * v:8 * v + 8] != b"\xff" * 8]
    for vertex in (0, rng.choice(reached)):
        for change in (1, -1):
            content = bytearray(read_file(result))
            old = int.from_bytes(content[8 * vertex:8 * vertex + 8], "little")
            if old + change < 0:
                continue
            content[8 * vertex:8 * vertex + 8] = (old + change).to_bytes(8, "little")
            with open(os.path.join(on.mount.mnt, "wrong"), "wb") as file:
                file.write(content)
            assert "WRONG" in on.run("sssp", "--check", graph, os.path.join(on.mount.mnt, "wrong"), status=1)


@pytest.mark.parametrize("name", [*SIZES, "histogram", "sssp"])
def test_bad_arguments(on, name, workdir):
    for wrong in ([], ["--what"], ["--count", "x", on.mount.mnt], ["--device", "cuda:99", on.mount.mnt, on.mount.mnt]):
        on.run(name, *wrong, status=2)
    # No file of a gaiafs mount.
    arguments = [workdir]
    if name == "histogram":
        write_file(os.path.join(workdir, "file"), b"x")
        arguments = [os.path.join(workdir, "file"), os.path.join(workdir, "result")]
    if name == "sssp":
        make_graph(os.path.join(workdir, "graph"), 4)
        arguments = [os.path.join(workdir, "graph"), os.path.join(workdir, "result")]
    assert "not a regular file of a gaiafs mount" in on.run(name, *arguments, status=2)


@not_in_the_gate
@pytest.mark.limit(300)
def test_nvcc_takes_them():
    """`make examples-cuda`, which says that it does nothing where there is no nvcc."""
    make = ["make", "CC=gcc", "SANITIZE=", "examples-cuda"]
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    done = subprocess.run([*make, "NVCC="], cwd=TOP, capture_output=True, text=True, timeout=20, env=env)
    if "missing development packages" in done.stderr and os.environ.get("GAIA_REAL_GPU") == "1":
        pytest.skip("built elsewhere: packages are missing to build it here")
    assert done.returncode == 0 and "skipped: there is no nvcc here" in done.stdout
    if not (shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc")):
        pytest.skip("no nvcc")
    if not os.path.exists("/usr/local/cuda/include/cublas_v2.h"):
        pytest.skip("a toolkit without cuBLAS")
    done = subprocess.run(make, cwd=TOP, capture_output=True, text=True, timeout=280, env=env)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
