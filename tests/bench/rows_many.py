# SPDX-License-Identifier: Apache-2.0
"""Rows of several devices, of sharing, and of more data than a device holds."""
import os

from harness import GIB, MIB, place, row, run_json


def bench_sharing(bench):
    bench.make("sharing", 16 * MIB)
    with bench.mount() as mount:
        r = run_json([bench.program("sharing"), os.path.join(mount.path, "sharing"), "--repetitions",
                      str(bench.repetitions)], 500)
    bench.raw["sharing"] = r
    longest = max(p["passes"] for p in r["passes"])
    return [row(f"false sharing, 16 MiB, halves of pages, {p['passes']} passes", f"{p['shared_s']:.3f} s",
                f"private buffers, merged {p['private_s']:.3f} s", p["ratio"],
                "<= 1.05" if p["passes"] == longest else "", p["ratio"] <= 1.05 if p["passes"] == longest else None)
            for p in r["passes"]]


def bench_collect(bench):
    size = 256 * MIB if bench.quick else GIB
    for name, bytes_ in (("whole", size), ("half1", size // 2), ("half2", size // 2), ("bare", size)):
        bench.make(name, bytes_)
    with bench.mount("device_cache=2200M") as mount:
        paths = [os.path.join(mount.path, name) for name in ("whole", "half1", "half2")]
        r = run_json([bench.program("collect"), *paths, os.path.join(bench.data, "bare"), "--repetitions",
                      str(bench.repetitions)], 400)
    for name in ("whole", "half1", "half2", "bare"):
        os.unlink(os.path.join(bench.data, name))
    bench.raw["collect"] = r
    return [row(f"collect and merge of {size // MIB} MiB, one file", f"{r['collect_gbs']:.2f} GB/s",
                f"memcpy {r['memcpy_gbs']:.2f} GB/s", r["collect_to_memcpy"], ">= 0.5", r["collect_to_memcpy"] >= 0.5),
            row("  of it: reads, merge and writes of 64 KiB alone", f"{r['bare_gbs']:.2f} GB/s",
                f"memcpy {r['memcpy_gbs']:.2f} GB/s", r["bare_to_memcpy"]),
            row("  the merge alone, all of it mapped", f"{r['mapped_gbs']:.2f} GB/s",
                f"memcpy {r['memcpy_gbs']:.2f} GB/s", r["mapped_to_memcpy"]),
            row("  two files at once", f"{r['two_gbs']:.2f} GB/s", f"one file {r['collect_gbs']:.2f} GB/s",
                r["two_gbs"] / r["collect_gbs"])]


def bench_acquire(bench):
    bench.make("acquire", 256 * MIB)
    with bench.mount() as mount:
        r = run_json([bench.program("acquire"), os.path.join(mount.path, "acquire"), "--repetitions",
                      str(bench.repetitions)], 200)
    bench.raw["acquire"] = r
    # At most in proportion: a page costs no more where more changed (less, as runs of them form). What did not change
    # costs nothing.
    rows, each = [], []
    for a in r["acquires"]:
        if a["changed"]:
            each.append(a["us"] / a["changed"])
        rows.append(row(f"acquire, {100 * a['changed'] / r['pages']:.2f} % of {r['pages']} pages changed",
                        f"{a['us']:.0f} us", f"{each[-1]:.2f} us a page" if a["changed"] else ""))
    rows[-1]["goal"] = "at most in proportion"
    rows[-1]["met"] = all(later <= 1.1 * earlier for earlier, later in zip(each, each[1:]))
    return rows


def bench_versions(bench):
    rows = []
    bench.raw["versions"] = []
    for devices, most in ((8, 1.01), (64, 1.03)):
        names = (f"versions{devices}", f"none{devices}", "untracked")
        for name in names:
            bench.make(name, 16 * MIB)
        cpus = {min(os.sched_getaffinity(0))}
        with bench.mount(f"device_cache=32M,soft_devices={devices}") as mount:
            place(mount.proc.pid, cpus)
            r = run_json(["taskset", "-c", str(min(cpus)), bench.program("versions"),
                          *(os.path.join(mount.path, name) for name in names), str(devices), "--blocks",
                          "21" if bench.quick else "102"], 300)
        bench.raw["versions"].append(r)
        rows.append(row(f"CPU read of 4 KiB at random, versions of {devices} devices", f"{r['versions_us']:.2f} us",
                        f"mapped, no versions {r['none_us']:.2f} us", r["to_none"], f"<= {most}", r["to_none"] <= most))
        rows.append(row("", f"{r['versions_us']:.2f} us", f"mapped by no device {r['untracked_us']:.2f} us",
                        r["to_untracked"]))
    return rows


def bench_evict(bench):
    size = 640 * MIB
    rows = []
    small, large = bench.make("stream-small", size), bench.make("stream-large", size)
    with bench.mount("device_cache=64M,device_cache=soft:1=700M") as mount:
        r = run_json([bench.program("evict"), "soft:0", os.path.join(mount.path, "stream-small"), small, "soft:1",
                      os.path.join(mount.path, "stream-large"), large, "--repetitions", str(bench.repetitions)], 200)
    bench.raw["evict"] = r
    for kind, text in (("read", "stream of loads"), ("write", "stream of stores")):
        rows.append(row(f"{text}, 10 times the device's memory", f"{r[kind + '_gbs']:.2f} GB/s",
                        f"all fits {r[kind + '_all_gbs']:.2f} GB/s", r[kind + "_ratio"], ">= 0.45",
                        r[kind + "_ratio"] >= 0.45))
    for path in (small, large):
        os.unlink(path)
    return rows


ROWS = {"sharing": bench_sharing, "collect": bench_collect, "acquire": bench_acquire, "versions": bench_versions,
        "evict": bench_evict}
