# SPDX-License-Identifier: Apache-2.0
"""What mapping files on a GPU costs beside the GPU: on the stand-in of tests/cuda, whose GPU takes no time (free=). Rates of a
real one are at most these, and measured by tests/gpu/bench.sh."""
import os

from harness import GIB, MIB, TOP, row, run_json

SIZE = 256 * MIB


def measure(bench, what, access, stored, files):
    # free=N: of each 8 pages that are searched N were stored to.
    environment = {"LD_LIBRARY_PATH": os.path.join(TOP, "build", "gcc", "cuda"), "GAIA_DEVICE": "cuda:0",
                   "STANDIN_CUDA": f"free={stored}"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with bench.mount("device_cache=20G") as mount:
            return run_json([bench.program("gpu"), what, access, *(os.path.join(mount.path, os.path.basename(f)) for f in files)], 120)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def bench_gpu(bench):
    memcpy = run_json([bench.program("merge")], 60)
    baseline = f"memcpy of 4 KiB, from memory {4096 / memcpy['memcpy_page_cold_ns']:.2f} GB/s"
    raw, rows = {}, []
    files = [bench.make(f"gpu{i}", SIZE) for i in range(bench.repetitions)]
    for access, text in ("read", "read only"), ("write", "for writing"):
        r = raw[access] = measure(bench, "changed", access, 0, files)
        rows.append(row(f"GPU that takes no time, mapped {text}: placing 256 MiB", f"{r['place_gbs']:.2f} GB/s", baseline))
        for part in 10, 50, 90:
            rows.append(row(f"  acquire, {part} % changed", f"{r[f'changed_{part}_gbs']:.2f} GB/s of that"))
    r = raw["stores"] = measure(bench, "stores", "write", 8, files)
    rows.append(row("  release, each page stored to", f"{r['release_gbs']:.2f} GB/s"))
    rows.append(row("  read() of that, which collects", f"{r['read_gbs']:.2f} GB/s"))
    huge = bench.make_sparse("gpu-huge", 8 * GIB)
    for access, text in ("read", "read only"), ("write", "for writing"):
        r = raw[f"nothing_{access}"] = measure(bench, "nothing", access, 0, [huge])
        rows.append(row(f"  acquire, nothing changed, 8 GiB mapped {text}", f"{r['acquire_us']:.1f} us"))
        rows.append(row("  acquire, one page changed, the same", f"{r['page_us']:.1f} us"))
    rows.append(row("  release, the same", f"{r['release_us']:.1f} us"))
    bench.raw["gpu"] = raw
    for path in [*files, huge]:
        os.unlink(path)
    return rows


ROWS = {"gpu": bench_gpu}
