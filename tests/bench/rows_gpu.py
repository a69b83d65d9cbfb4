# SPDX-License-Identifier: Apache-2.0
"""What mapping files on a GPU costs beside the GPU: on the stand-in of tests/cuda, whose GPU takes no time (free=). Rates of a
real one are at most these, and measured by tests/gpu/bench.sh."""
import os

from harness import MIB, TOP, row, run_json

SIZE = 256 * MIB


def measure(bench, what, access, stored):
    files = [bench.make(f"gpu{i}", SIZE) for i in range(bench.repetitions)]
    # free=N: of each 8 pages that are searched N were stored to.
    environment = {"LD_LIBRARY_PATH": os.path.join(TOP, "build", "gcc", "cuda"), "GAIA_DEVICE": "cuda:0",
                   "STANDIN_CUDA": f"free={stored}"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with bench.mount("device_cache=2G") as mount:
            return run_json([bench.program("gpu"), what, access, *(os.path.join(mount.path, os.path.basename(f)) for f in files)], 120)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def bench_gpu(bench):
    memcpy = run_json([bench.program("merge")], 60)
    baseline = f"memcpy of 4 KiB, from memory {4096 / memcpy['memcpy_page_cold_ns']:.2f} GB/s"
    raw, rows = {}, []
    for access, text in ("read", "read only"), ("write", "for writing"):
        r = raw[access] = measure(bench, "changed", access, 0)
        rows.append(row(f"GPU that takes no time, mapped {text}: placing 256 MiB", f"{r['place_gbs']:.2f} GB/s", baseline))
        for part in 10, 50, 90:
            rows.append(row(f"  acquire, {part} % changed", f"{r[f'changed_{part}_gbs']:.2f} GB/s of that"))
    r = raw["stores"] = measure(bench, "stores", "write", 8)
    rows.append(row("  release, each page stored to", f"{r['release_gbs']:.2f} GB/s"))
    rows.append(row("  read() of that, which collects", f"{r['read_gbs']:.2f} GB/s"))
    bench.raw["gpu"] = raw
    for i in range(bench.repetitions):
        os.unlink(os.path.join(bench.data, f"gpu{i}"))
    return rows


ROWS = {"gpu": bench_gpu}
