# SPDX-License-Identifier: Apache-2.0
"""The device code as compilers see it; no GPU and no mount is needed. The PTX that is kept in the tree is what this
source makes; where NVIDIA's toolkit is installed, its assembler takes it, and its compiler the source."""
import os
import re
import shutil
import subprocess

import pytest

import conftest
import helpers
from conftest import not_in_the_gate

TOOLKIT = "/usr/local/cuda/bin"
KEPT = os.path.join(conftest.TOP, "gpu", "kernels.ptx")
KEPT_PAGING = os.path.join(conftest.TOP, "tests", "gpu", "paging_kernels.ptx")


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
def test_the_kept_ptx_of_the_tests_is_current(tmp_path):
    path = os.path.join(tmp_path, "made.ptx")
    run("make", "-s", "paging-ptx", f"CLANG={clang()}", f"PAGING_PTX={path}")
    assert normalised(path) == normalised(KEPT_PAGING), \
        "tests/gpu/paging_kernels.cc or a header of it changed: run `make paging-ptx`"


@not_in_the_gate
@pytest.mark.limit(200)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_100"])
def test_the_assembler_and_nvcc_take_the_kernels_of_the_tests(architecture, tmp_path):
    """Kernels with a gaia_view: of clang's PTX and of nvcc's own."""
    source = os.path.join(conftest.TOP, "tests", "gpu", "paging_kernels.cc")
    made = str(tmp_path / "paging.cubin")
    done = subprocess.run([toolkit("ptxas"), f"-arch={architecture}", "-v", KEPT_PAGING, "-o", made],
                          capture_output=True, text=True, timeout=100)
    if "is not defined for option" in done.stderr:
        pytest.skip(f"this toolkit does not know {architecture}")
    assert done.returncode == 0 and "paging_divergent" in done.stderr, done.stderr
    # A stack is what paging_hold has its pins in, load_many() what it hands to touches, and bench_sum_wide a number of its
    # faults, as it has few registers.
    frames = re.findall(r"properties for (\S+)\n +(\d+) bytes stack frame, (\d+) bytes spill", done.stderr)
    stacks = {name for name, stack, spilt in frames if (stack != "0" or spilt != "0") and "_many" not in name}
    assert {name for name in stacks if "load_missing" not in name} <= \
        {"paging_hold", "bench_sum_wide", "paging_divergent", "paging_outside"}, frames
    assert all(int(spilt) <= 16 or name == "bench_sum_wide_many8" for name, _, spilt in frames), frames
    run(toolkit("nvcc"), "-x", "cu", f"-arch={architecture}", "-std=c++17", "-I", conftest.TOP, "-cubin", "-o", made, source)


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
@pytest.mark.parametrize("architecture", ["sm_75", *(pytest.param(later, marks=not_in_the_gate) for later in ("sm_90", "sm_100"))])
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
    run(toolkit("nvcc"), "-arch=sm_75", "-I", conftest.TOP, "-cubin", "-o", str(tmp_path / "kernels.cubin"),
        str(source))


# --- gaia_device.cuh ---

# A program's kernels: made from a text, as examples with nvcc's headers would not compile without them.
PROGRAM = """
#include "gpu/gaia_device.cuh"
struct wide { float x[16]; };
KERNEL sum(gaia_view<float> view, gaia_view<wide> other, float *out)
{
    float mine = 0;
    for (uint64_t i = gaia_hw_thread(); i < view.size(); i += gaia_hw_block_threads())
        mine += i % 3 ? view.load(i) : other.load(i / 16).x[0];
    out[gaia_hw_thread()] = mine;
}
KERNEL count_up(gaia_view<uint32_t> view)
{
    auto pin = view.pin_for_stores(gaia_hw_thread() * 1024ull);
    if (pin)
        for (uint64_t i = pin.first(); i < pin.end(); i++)
            pin[i]++;
    view.store(gaia_hw_thread(), view.load(gaia_hw_thread()) + view.error());
}
"""
CLANG_CUDA = ["-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_70", "--cuda-path=/nonexistent", "-nocudainc",
              "-nocudalib", "-Xclang", "-target-feature", "-Xclang", "+ptx63", "-ffreestanding", "-std=c++17", "-O3",
              "-Wall", "-Wextra", "-Werror", f"-I{conftest.TOP}"]


def write_program(folder, text, kernel):
    path = os.path.join(folder, "program.cu")
    with open(path, "w") as file:
        file.write(text.replace("KERNEL", kernel))
    return path


@pytest.mark.limit(200)
def test_clang_takes_the_view_without_a_toolkit(tmp_path):
    source = write_program(tmp_path, PROGRAM, 'extern "C" __attribute__((global)) void')
    made = str(tmp_path / "program.ptx")
    run(clang(), *CLANG_CUDA, "-S", "-o", made, source)
    with open(made) as file:
        text = file.read()
    # What the header promises: leaders by match, no CPU's atomics, 16 bytes a lane over the bus.
    for instruction in ("match.any.sync.b64", "ld.relaxed.sys.v2.u64", "st.relaxed.sys.v2.u64",
                        "atom.acquire.gpu.add.u64"):
        assert instruction in text, instruction
    assert not re.search(r"\b(atom|red)\S*\.sys\b", text), "an atomic update of host memory"
    # Loads without a hold, whose order no CPU would miss: the word, the element, the word; and who fills a frame.
    between = r"(?:(?!ld\.acquire|ld\.relaxed|st\.|atom\.).)*"
    quads = 4 * rf"ld\.relaxed\.gpu\.v4\.u32 {between}"
    assert re.search(rf"ld\.acquire\.gpu\.u64 {between}{quads}fence\.acq_rel\.gpu;{between}ld\.relaxed\.gpu\.u64 ",
                     text, re.DOTALL)
    fill = r"fence\.acq_rel\.gpu;(?:(?!fence\.).)*st\.relaxed\.gpu\.v4\.u32 (?:(?!fence\.).)*fence\.acq_rel\.sys"
    assert re.search(fill, text, re.DOTALL)
    assembler = shutil.which("ptxas") or shutil.which("ptxas", path=TOOLKIT)
    if assembler:
        run(assembler, "-arch=sm_90", made, "-o", str(tmp_path / "program.cubin"))


# By the size of the element: how it is loaded between two looks at its unit's word. (Larger ones: above.)
ORDERED = {1: "u8", 2: "u16", 4: "u32", 8: "v2.u32", 16: "v4.u32"}


@pytest.mark.limit(200)
def test_loads_without_a_hold_are_ordered(tmp_path):
    program = '#include "gpu/gaia_device.cuh"\n' + "".join(
        f"struct element{size} {{ uint8_t bytes[{size}]; }};\n"
        f"KERNEL load{size}(gaia_view<element{size}> view, element{size} *out) {{ *out = view.load(gaia_hw_thread()); }}\n"
        for size in ORDERED)
    made = str(tmp_path / "program.ptx")
    run(clang(), *CLANG_CUDA, "-S", "-o", made, write_program(tmp_path, program, 'extern "C" __attribute__((global)) void'))
    with open(made) as file:
        kernels = dict(re.findall(r"\.entry load(\d+)\((.*?)\n}\n", file.read(), re.DOTALL))
    for size, kind in ORDERED.items():
        order = re.findall(r"\b(?:ld\.acquire|ld\.relaxed|fence|atom|st)\.[\w.]+", kernels[str(size)])
        wanted = ["ld.acquire.gpu.u64", f"ld.acquire.gpu.{kind}", "ld.relaxed.gpu.u64"]
        assert wanted in [order[i:i + 3] for i in range(len(order))], (size, order)


MANY = """#include "gpu/gaia_device.cuh"
KERNEL load(gaia_view<uint32_t> view, const uint64_t (*index)[4], uint32_t (*value)[4])
{
    view.load_many(*index, *value);
}
"""


def many_loads(made):
    """Loads, stores and fences of the kernel, in order, from the first look on to the last one."""
    with open(made) as file:
        kernel = re.search(r"\.entry load\(.*?\n}\n", file.read(), re.DOTALL)[0]
    order = re.findall(r"\b(?:ld\.acquire|ld\.relaxed|ld\.global|st\.global|fence)\.[\w.]+", kernel)
    looks = [i for i, one in enumerate(order) if one == "ld.relaxed.gpu.u64"]
    assert {one[:9] for one in order[:looks[0]]} == {"ld.global"} and {one[:9] for one in order[looks[-1] + 1:]} == {"st.global"}
    return order[looks[0]:looks[-1] + 1]


def looked_at_together(fence):
    return 4 * ["ld.relaxed.gpu.u64"] + [fence] + 4 * ["ld.relaxed.gpu.u32"] + [fence] + 4 * ["ld.relaxed.gpu.u64"]


@pytest.mark.limit(200)
def test_several_loads_without_a_hold_are_ordered(tmp_path):
    """And nothing that is in memory comes between them: indexes and values may be there, and the loads would wait."""
    made = str(tmp_path / "program.ptx")
    run(clang(), *CLANG_CUDA, "-S", "-o", made, write_program(tmp_path, MANY, 'extern "C" __attribute__((global)) void'))
    assert many_loads(made) == looked_at_together("fence.acq_rel.gpu")


@pytest.mark.limit(200)
@pytest.mark.parametrize("architecture", [75, 90])
def test_several_loads_of_nvcc_are_ordered(architecture, tmp_path):
    """By fences that make no stores wait, of a toolkit and for GPUs that have them."""
    made = str(tmp_path / "program.ptx")
    source = write_program(tmp_path, MANY, 'extern "C" __global__ void')
    run(toolkit("nvcc"), "-std=c++17", f"-arch=sm_{architecture}", "-I", conftest.TOP, "-ptx", "-o", made, source)
    with open(made) as file:
        version = tuple(int(part) for part in re.search(r"\.version (\d+)\.(\d+)", file.read()).groups())
    is_known = architecture >= 90 and version >= (8, 7)
    assert many_loads(made) == looked_at_together("fence.acquire.gpu" if is_known else "fence.acq_rel.gpu")


@pytest.mark.limit(200)
def test_nvcc_takes_the_view(tmp_path):
    source = write_program(tmp_path, PROGRAM, 'extern "C" __global__ void')
    done = subprocess.run([toolkit("nvcc"), "-std=c++17", "-arch=sm_75", "-I", conftest.TOP, "-Xcompiler", "-Wall,-Wextra,-Wundef", "-c",
                           "-o", str(tmp_path / "program.o"), source], cwd=conftest.TOP, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    # Users have warnings of their own, also in the pass for the host; the toolkit has some in its headers.
    assert not re.search(r"gpu/\S+: warning", done.stderr), done.stderr


def header_examples(here):
    """What the header's first comment has as code: a kernel, and insides of one."""
    with open(os.path.join(conftest.TOP, "gpu", "gaia_device.cuh")) as file:
        comment = file.read().split("#ifndef", 1)[0]
    blocks = re.findall(r"(?:^ \* {3,}\S.*\n)+", comment, re.M)
    kernel, *insides = ("".join(line[3:] + "\n" for line in block.splitlines()) for block in blocks)
    inside = "".join(insides)
    return (f'#include "gpu/gaia_device.cuh"\n{here}\n{kernel}\n'
            f"__global__ void inside(gaia_view<float> view, double *out, uint64_t i)\n{{\n    double mine = 0;\n{inside}    *out = mine;\n}}\n")


@pytest.mark.parametrize("compiler, here", [
    ("g++", "#define __global__\nextern uint64_t thread, threads;\nvoid atomicAdd(double *sum, double more);"),
    ("nvcc", "#define thread threadIdx.x\n#define threads blockDim.x")], ids=["cpu", "nvcc"])
@pytest.mark.limit(200)
def test_the_headers_own_examples(tmp_path, compiler, here):
    """Who begins copies them."""
    source = write_program(tmp_path, header_examples(here), "")
    flags = ["-x", "c++"] if compiler == "g++" else ["-arch=sm_75"]
    run(toolkit(compiler), "-std=c++17", *flags, "-I", conftest.TOP, "-c", source, "-o", str(tmp_path / "program.o"))


@not_in_the_gate
@pytest.mark.limit(200)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_the_headers_kernel_in_blocks_of_1024(tmp_path, architecture):
    """Declared so, as the header says, it has the 64 registers that such a block has for each thread, and spills none."""
    here = "#define thread threadIdx.x\n#define threads blockDim.x"
    text = header_examples(here).replace("__global__ void sum", "__global__ void __launch_bounds__(1024) sum", 1)
    assert "(1024) sum" in text
    done = subprocess.run([toolkit("nvcc"), "-std=c++17", f"-arch={architecture}", "-Xptxas", "-v", "-I", conftest.TOP, "-cubin", "-o",
                           str(tmp_path / "program.cubin"), write_program(tmp_path, text, "")], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = re.search(r"entry function '\S*3sum\S*'.*?(\d+) bytes spill stores.*?Used (\d+) registers", done.stderr, re.DOTALL)
    assert found and int(found[1]) == 0 and int(found[2]) <= 64, done.stderr


# --- RDMA reads that a GPU posts ---

READS = """
#include "gpu/request_device.h"
KERNEL fetch(const struct gaia_request_queue *q, struct gaia_request *all)
{
    struct gaia_request mine = all[gaia_hw_thread()];
    gaia_warp_read(q, gaia_active(), &mine);
    all[gaia_hw_thread()].error = mine.error;
}
"""


@pytest.mark.limit(200)
def test_clang_takes_the_requests_without_a_toolkit(tmp_path):
    made = str(tmp_path / "reads.ptx")
    run(clang(), *CLANG_CUDA, "-S", "-o", made, write_program(tmp_path, READS, 'extern "C" __attribute__((global)) void'))
    with open(made) as file:
        text = file.read()
    # The record and the doorbell are stores that are ordered behind the requests; completions are loaded in order.
    assert text.index("st.release.sys.u32") < text.index("st.release.sys.u64") < text.index("st.release.gpu.u32")
    assert "ld.acquire.sys.u64" in text
    assert not re.search(r"\b(atom|red)\S*\.sys\b", text), "an atomic update over the bus"
    assembler = shutil.which("ptxas") or shutil.which("ptxas", path=TOOLKIT)
    if assembler:
        run(assembler, "-arch=sm_90", made, "-o", str(tmp_path / "reads.cubin"))


@pytest.mark.limit(200)
def test_nvcc_takes_the_requests(tmp_path):
    run(toolkit("nvcc"), "-std=c++17", "-arch=sm_75", "-I", conftest.TOP, "-c", "-o", str(tmp_path / "reads.o"),
        write_program(tmp_path, READS, 'extern "C" __global__ void'))


def test_the_c_compiler_takes_the_requests(tmp_path):
    """The host's programs see the layout from C."""
    path = tmp_path / "layout.c"
    path.write_text('#include "gpu/request_device.h"\n'
                    "_Static_assert(sizeof(struct gaia_request_control) == 256, \"lines of 64 bytes\");\n")
    run("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", conftest.TOP, "-fsyntax-only", str(path))


# --- rules of demand paging, broken on purpose ---

@pytest.mark.limit(280)
@pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="the plain build is enough")
@pytest.mark.parametrize("rule, program, test", [
    ("DEMAND_LOSE_STORES", "test_demand", "small_units"),
    ("DEMAND_EVICT_HELD", "test_demand_faults", "frames_that_are_all_held"),
    ("DEMAND_NO_SEQUENCE", "test_demand", "host_that_changes_what_is_pulled")])
def test_a_broken_rule_is_noticed(rule, program, test):
    built = f"build/gcc-{rule}/tests/gpu/{program}"
    run("make", "-j2", f"BREAK={rule}", built)
    done = subprocess.run([os.path.join(conftest.TOP, built), test], capture_output=True, text=True, timeout=160,
                          env=helpers.without_gate())
    # Warps that the failed test has left may crash it before it has said its last words.
    said = f"[  FAILED  ] {test}" in done.stdout + done.stderr or done.returncode < 0 and "[  ERROR   ] ---" in done.stderr
    assert done.returncode and said, "the broken rule is not noticed"
