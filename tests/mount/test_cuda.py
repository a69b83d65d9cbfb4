# SPDX-License-Identifier: Apache-2.0
"""`gaiactl devices`: with a stand-in for NVIDIA's driver (tests/cuda/standin.c), with what is wrong with one, and with
none."""
import ctypes
import json
import os
import subprocess

import pytest

import helpers
import test_cuda_header as header


def devices(folder, standin="", arguments=(), **environment):
    """What `gaiactl devices` answers where libcuda.so.1 is the one of this folder of the build."""
    library = helpers.cuda_standin(folder)
    return subprocess.run([os.path.join(helpers.BIN, "gaiactl"), "devices", *arguments], capture_output=True, text=True,
                          timeout=20, env={**os.environ, "LD_LIBRARY_PATH": library, "STANDIN_CUDA": standin, **environment})


def listed(folder, standin=""):
    done = devices(folder, standin, ["--json"])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_gpus():
    found = listed("", "gpus=2")
    assert [gpu["device"] for gpu in found["cuda"]] == ["cuda:0", "cuda:1"]
    one, two = found["cuda"]
    assert (one["name"], two["name"]) == ("stand-in 0", "stand-in 1")
    assert (one["total_bytes"], two["total_bytes"]) == (80 << 30, 160 << 30)
    assert (one["compute_capability"], one["multiprocessors"], one["pci"]) == ("9.0", 132, "0000:07:00.0")
    assert {name for name, can in one["can"].items() if can} == {"virtual_memory", "export_descriptors", "dma_buf"}
    assert one["can"]["host_numa_memory"] is False  # which the driver does not know
    assert "cuda_not_used" not in found and "not_used" not in one


def test_for_people():
    done = devices("", "gpus=1")
    assert done.returncode == 0
    text = done.stdout
    assert "cuda:0    stand-in 0, 80G, compute capability 9.0, 132 multiprocessors, PCI 0000:07:00.0\n" in text
    assert "can: virtual_memory, export_descriptors, dma_buf\n" in text
    assert "cannot: pageable_access, " in text
    assert "not used" not in text
    assert text.startswith("soft:N ")


@pytest.mark.parametrize("attribute, name", [(102, "virtual_memory"), (103, "export_descriptors")])
def test_a_gpu_that_can_not_be_used(attribute, name):
    assert listed("", f"cannot={attribute}")["cuda"][0]["not_used"] == f"it has no {name}"
    assert f"not used: it has no {name}\n" in devices("", f"cannot={attribute}").stdout


def test_a_gpu_that_is_too_old():
    """The driver would take none of our kernels."""
    why = "its compute capability is 6, and 7 is needed"
    assert listed("", "capability=6")["cuda"][0]["not_used"] == why
    assert f"not used: {why}\n" in devices("", "capability=6").stdout
    assert "not_used" not in listed("", "capability=7")["cuda"][0]


def test_the_bus_may_be_missing():
    assert listed("", "missing=cuDeviceGetPCIBusId")["cuda"][0]["pci"] == ""


@pytest.mark.parametrize("standin, why", [
    ("gpus=0", "finds no GPU"),
    ("init=100", "finds no GPU"),
    ("init=802", "does not start: CUDA_ERROR_SYSTEM_NOT_READY"),
    ("count=999", "does not start: CUDA_ERROR_UNKNOWN"),
    ("init=12345", "does not start: an error without a name"),
    ("version=11080", "the driver is of CUDA 11.8, and 12.0 is needed"),
    ("missing=cuDeviceTotalMem", "the driver has no cuDeviceTotalMem of version 3.2"),
    ("missing=cuInit", "the driver has no cuInit of version 2.0"),
])
def test_what_is_wrong_with_a_driver(standin, why):
    found = listed("", standin)
    assert "cuda" not in found
    assert why in found["cuda_not_used"]
    assert why in devices("", standin).stdout


def test_entry_points_have_versions():
    """The stand-in gives none to who asks for a version that it is newer than, and says no error then, as a real one."""
    find = ctypes.CDLL(os.path.join(helpers.cuda_standin(), "libcuda.so.1")).cuGetProcAddress_v2
    find.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]

    def ask(name, version):
        function, status = ctypes.c_void_p(), ctypes.c_int(-1)
        assert find(name.encode(), ctypes.byref(function), version, 0, ctypes.byref(status)) == 0
        return bool(function), status.value

    rows = header.rows(header.ours())
    assert len(rows) > 40
    for name, version, _ in rows:
        assert ask(name, version) == ask(name, 12000) == (True, 0), name
        if version > 2000:
            assert ask(name, version - 10) == (False, 2), name
    assert ask("cuNothing", 12000) == (False, 1)


def test_a_driver_that_is_too_old():
    assert listed("old")["cuda_not_used"] == "the driver is of CUDA 11.8, and 12.0 is needed"


def test_a_gpu_that_does_not_answer():
    gpu = listed("", "name=999")["cuda"][0]
    assert gpu == {"device": "cuda:0", "error": "CUDA_ERROR_UNKNOWN"}
    assert "cuda:0    does not answer: CUDA_ERROR_UNKNOWN\n" in devices("", "name=999").stdout


def test_no_driver(workdir):
    with open(os.path.join(workdir, "libcuda.so.1"), "w") as file:
        file.write("no library\n")
    done = devices("", LD_LIBRARY_PATH=workdir)
    assert done.returncode == 0
    assert "cuda      not used: no driver: " in done.stdout


@pytest.mark.parametrize("arguments", [["x"], ["--json", "x"], ["--what"]])
def test_wrong_arguments(arguments):
    assert devices("", arguments=arguments).returncode == 2


# --- reads that a GPU posts by itself ---

# As much of libibverbs and libmlx5 as is asked for a device.
STANDIN_VERBS = r"""
#include <stdlib.h>
static char device[1];
void **ibv_get_device_list(int *count)
{
    static void *list[] = {device};
    *count = getenv("STANDIN_NIC") != NULL;
    return list;
}
void ibv_free_device_list(void **list) { (void)list; }
const char *ibv_get_device_name(void *one) { return one == device ? getenv("STANDIN_NIC") : ""; }
char mlx5dv_is_supported(void *one) { return one && getenv("STANDIN_NIC")[0] == 'm'; }
int ibv_dealloc_pd, ibv_destroy_cq, ibv_destroy_qp, ibv_modify_qp, mlx5dv_create_cq, mlx5dv_create_qp;
#ifndef OLD
int mlx5dv_init_obj;
#endif
"""


def verbs_folder(workdir, *flags):
    """Where those libraries are, and the stand-in for NVIDIA's driver."""
    source = os.path.join(workdir, "verbs.c")
    with open(source, "w") as file:
        file.write(STANDIN_VERBS)
    for name in "libibverbs.so.1", "libmlx5.so.1":
        subprocess.run(["cc", "-shared", "-fPIC", *flags, source, "-o", os.path.join(workdir, name)], check=True,
                       timeout=60)
    return f"{workdir}:{os.path.join(helpers.build_folder(), 'cuda')}"


def reads(standin, arguments=("--json",), **environment):
    done = devices("", standin, arguments, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["gpu_initiated_reads"] if arguments else done.stdout


@pytest.mark.skipif(os.path.isdir("/sys/class/infiniband"), reason="this machine has RDMA devices")
def test_reads_of_gpus_are_not_present_here():
    assert reads("gpus=1,can=116")["not_present"].startswith(("no RDMA device", "no libmlx5.so.1 here"))
    assert "GPU-initiated reads: not present (no " in reads("gpus=1", ())


def test_what_reads_of_gpus_need(workdir):
    folder = verbs_folder(workdir)
    none = {"not_present": "no RDMA device"}
    assert reads("gpus=1,can=116", LD_LIBRARY_PATH=folder) == none
    assert reads("gpus=1,can=116", LD_LIBRARY_PATH=folder, STANDIN_NIC="rxe0") == {
        "not_present": "no mlx5 device: rxe0 is none"}
    for standin in ("gpus=0", "gpus=1"):
        assert reads(standin, LD_LIBRARY_PATH=folder, STANDIN_NIC="mlx5_3") == {
            "not_present": "mlx5_3, but no GPU with gpudirect_rdma"}
    assert reads("gpus=1,can=116", LD_LIBRARY_PATH=folder, STANDIN_NIC="mlx5_3") == {"nic": "mlx5_3"}
    # Nobody may think that it was tried.
    text = reads("gpus=1,can=116", (), LD_LIBRARY_PATH=folder, STANDIN_NIC="mlx5_3")
    assert "GPU-initiated reads: mlx5_3 could serve them (never tried on such hardware; nothing uses it yet)\n" in text


def test_libraries_that_lack_something(workdir):
    folder = verbs_folder(workdir, "-DOLD")
    assert reads("gpus=1", LD_LIBRARY_PATH=folder, STANDIN_NIC="mlx5_3") == {
        "not_present": "libmlx5.so.1 has no mlx5dv_init_obj"}
    with open(os.path.join(workdir, "libmlx5.so.1"), "w") as file:
        file.write("no library\n")
    assert reads("gpus=1", LD_LIBRARY_PATH=folder) == {"not_present": "no libmlx5.so.1 here"}
