# SPDX-License-Identifier: Apache-2.0
"""The device code as compilers see it; no GPU and no mount is needed. The PTX that is kept in the tree is what this
source makes; where NVIDIA's toolkit is installed, its assembler takes it, and its compiler the source."""
import os
import re
import shutil
import subprocess

import pytest

import conftest

TOOLKIT = "/usr/local/cuda/bin"
KEPT = os.path.join(conftest.TOP, "gpu", "kernels.ptx")


def run(*command):
    done = subprocess.run(command, cwd=conftest.TOP, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clang():
    """The clang that kernels.ptx is made with: another one's PTX differs."""
    if not shutil.which("clang"):
        pytest.skip("no clang")
    version = re.search(r"clang version (\d+)", run("clang", "--version")).group(1)
    if version != "14":
        pytest.skip(f"clang {version}, and kernels.ptx is made with clang 14")
    return "clang"


def toolkit(name):
    found = shutil.which(name) or shutil.which(name, path=TOOLKIT)
    if not found:
        pytest.skip(f"no {name}")
    return found


def normalised(path):
    with open(path) as file:
        lines = (re.sub(r"\s+", " ", line.split("//")[0]).strip() for line in file)
        return [line for line in lines if line]


def made_ptx(folder, make=("make",)):
    path = os.path.join(folder, "made.ptx")
    run(*make, "-s", "ptx", f"CLANG={clang()}", f"PTX={path}")
    return normalised(path)


@pytest.mark.limit(100)
def test_the_kept_ptx_is_current(tmp_path):
    assert made_ptx(tmp_path) == normalised(KEPT), "gpu/kernels.c or a header of it changed: run `make ptx`"


@pytest.mark.limit(100)
def test_a_change_of_the_source_would_be_noticed(tmp_path):
    """One number of the hash is another one in a copy."""
    for name in ("Makefile", "gpu", "consistency"):
        source = os.path.join(conftest.TOP, name)
        (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, tmp_path / name)
    path = tmp_path / "gpu" / "kernels.c"
    text = path.read_text()
    assert text.count("64 - 7 + pair") == 1
    path.write_text(text.replace("64 - 7 + pair", "64 - 8 + pair"))
    assert made_ptx(tmp_path, ("make", "-C", str(tmp_path))) != normalised(KEPT)


# Older ones than 75 an assembler of today does not know.
@pytest.mark.limit(200)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_100"])
def test_the_assembler_takes_it_and_spills_nothing(architecture, tmp_path):
    done = subprocess.run([toolkit("ptxas"), f"-arch={architecture}", "-v", KEPT, "-o", tmp_path / "kernels.cubin"],
                          capture_output=True, text=True, timeout=100)
    if "is not defined for option" in done.stderr:
        pytest.skip(f"this toolkit does not know {architecture}")
    assert done.returncode == 0, done.stderr
    assert "gaia_find_modified" in done.stderr
    assert set(re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill", done.stderr)) == {("0", "0")}


@pytest.mark.limit(200)
def test_nvcc_takes_the_source(tmp_path):
    source = tmp_path / "kernels.cu"
    shutil.copy(os.path.join(conftest.TOP, "gpu", "kernels.c"), source)
    run(toolkit("nvcc"), "-arch=sm_75", "-I", conftest.TOP, "-cubin", "-o", str(tmp_path / "kernels.cubin"), str(source))
