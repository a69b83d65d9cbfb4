# SPDX-License-Identifier: Apache-2.0
"""Rows of one device beside CPU programs, and of CPU programs alone."""
import contextlib
import os
import select
import shutil
import statistics
import subprocess

from harness import GIB, KIB, MIB, Broken, Mount, finish, place, row, run, run_json, warm

EXAMPLES = "/usr/share/doc/libfuse3-dev/examples"


def bench_fault(bench):
    backing = bench.make("one", GIB)
    with bench.mount() as mount:
        r = run_json([bench.program("fault"), os.path.join(mount.path, "one"), backing, str(mount.proc.pid),
                      "--blocks", "7" if bench.quick else "11"], 90)
    bench.raw["fault"] = r
    rows = []
    for kind, text in (("page", "soft fault, one page (GAIA_ADV_RANDOM)"), ("unit", "soft fault, 64 KiB (the default)"),
                       ("store", "first store to a resident page")):
        for place, where in (("one_cpu", "one CPU"), ("two_cpus", "two CPUs"), ("free", "anywhere")):
            if place not in r:
                continue
            p = r[place]
            judged = kind == "page" and place != "free"
            rows.append(row(f"{text}, {where}", f"{p[kind + '_us']:.1f} us", f"bare round trip {p['bare_us']:.1f} us",
                            p[kind + "_ratio"], "<= 2" if judged else "", p[kind + "_ratio"] <= 2 if judged else None))
    return rows


def bench_stream(bench):
    backing = bench.make("one", GIB)
    with bench.mount() as mount:
        r = run_json([bench.program("stream"), os.path.join(mount.path, "one"), backing, "--repetitions",
                      str(bench.repetitions)], 100)
    bench.raw["stream"] = r
    value = f"{r['stream_gbs']:.2f} GB/s"
    return [row("stream of faults over 1 GiB", value, f"memcpy, warm buffers {r['memcpy_gbs']:.2f} GB/s",
                r["stream_to_memcpy"], ">= 0.35", r["stream_to_memcpy"] >= 0.35),
            row("", value, f"memcpy to a fresh mapping {r['memcpy_new_gbs']:.2f} GB/s", r["stream_to_memcpy_new"]),
            row("", value, f"pread + pwrite to a fresh memfd {r['two_copies_gbs']:.2f} GB/s",
                r["stream_to_two_copies"])]


def bench_merge(bench):
    r = run_json([bench.program("merge")], 60)
    bench.raw["merge"] = r
    return [row("3-way merge of 4 KiB, in cache", f"{r['merge_page_ns'] / 1000:.3f} us",
                f"memcpy {r['memcpy_page_ns'] / 1000:.3f} us", r["merge_page_ns"] / r["memcpy_page_ns"], "< 1.4 us",
                r["merge_page_ns"] < 1400),
            row("3-way merge of 4 KiB, from memory", f"{r['merge_page_cold_ns'] / 1000:.3f} us",
                f"memcpy {r['memcpy_page_cold_ns'] / 1000:.3f} us", r["merge_page_cold_ns"] / r["memcpy_page_cold_ns"],
                "< 1.4 us", r["merge_page_cold_ns"] < 1400)]


def bench_sync(bench):
    bench.make("one", GIB)
    bench.make("small", 16 * MIB)
    bench.make_sparse("huge", 64 * GIB)
    for name, size in (("empty16M", 16 * MIB), ("empty1G", GIB), ("empty64G", 64 * GIB)):
        bench.make_sparse(name, size)
    resident = {"small": 16 * MIB, "one": GIB, "huge": 128 * MIB, "empty16M": 0, "empty1G": 0, "empty64G": 0}
    with bench.mount() as mount:
        arguments = [f"{os.path.join(mount.path, name)}:{size}" for name, size in resident.items()]
        r = run_json([bench.program("sync"), "--pairs", "250" if bench.quick else "1000", *arguments], 90)
    # Where the daemon is asked each time: attributes of the data directory count as current for no time at all.
    with bench.mount("device_cache=1200M,timeout=0") as mount:
        arguments = [f"{os.path.join(mount.path, name)}:{size}" for name, size in resident.items()]
        asked = run_json([bench.program("sync"), "--pairs", "250", *arguments], 90)
    bench.raw["sync"], bench.raw["sync_timeout_0"] = r, asked
    passed = {options: time_passed(bench, options) for options in ("passthrough=on", "passthrough=all")}
    bench.raw["sync_passthrough"] = passed
    us = {m["file"]: m["pair_us"] for m in r["mappings"]}
    asked_us = {m["file"]: m["pair_us"] for m in asked["mappings"]}
    growth = max(us["one"], us["empty1G"], us["huge"], us["empty64G"]) / us["small"]
    return [row("acquire + release, 1 GiB resident, nothing changed", f"{us['one']:.1f} us", "", None, "< 50 us",
                us["one"] < 50),
            row("  1 GiB, nothing resident", f"{us['empty1G']:.1f} us", f"16 MiB resident {us['small']:.1f} us",
                us["empty1G"] / us["small"]),
            row("  64 GiB, 128 MiB resident", f"{us['huge']:.1f} us", f"16 MiB resident {us['small']:.1f} us",
                us["huge"] / us["small"]),
            row("  the slowest of all sizes", f"{growth * us['small']:.1f} us", f"16 MiB resident {us['small']:.1f} us",
                growth, "no growth (< 1.5)", growth < 1.5),
            row("  1 GiB resident, -o timeout=0", f"{asked_us['one']:.1f} us",
                f"16 MiB resident {asked_us['small']:.1f} us", asked_us["one"] / asked_us["small"]),
            *(row(f"  256 MiB resident, -o {options}", f"{us_passed:.1f} us") for options, us_passed in passed.items()
              if us_passed is not None)]


def time_passed(bench, options):
    """Of a program that opens its device before the file, as it should. None: the kernel can't pass files through."""
    bench.make("passed", 256 * MIB)
    with bench.mount(f"device_cache=1200M,{options}") as mount:
        if not bench.stat(mount)["passthrough"]:
            return None
        argument = f"{os.path.join(mount.path, 'passed')}:{256 * MIB}"
        return run_json([bench.program("sync"), "--pairs", "10", argument], 90)["mappings"][0]["pair_us"]


def bench_changed(bench):
    bench.make("pages", 64 * MIB)
    with bench.mount() as mount:
        r = run_json([bench.program("changed"), os.path.join(mount.path, "pages"), "--repetitions",
                      str(bench.repetitions)], 90)
    bench.raw["changed"] = r

    def each(kind):
        total = r[kind + "_us"]
        return f"{(total['4096'] - total['1']) / 4095:.2f} us a page"

    def line(text, kind):
        return row(text, each(kind), f"of 1 page: {r[kind + '_us']['1']:.0f} us")

    return [line("acquire, for each page that a CPU changed", "acquire"),
            row("  the touch of it afterwards", f"{r['refetch_us']['4096']:.1f} us"),
            line("release, for each modified page that CPUs had read", "release"),
            line("  that nobody read since the last release", "release_again"),
            row("  a CPU's read of it afterwards", f"{r['read_us']['4096']:.1f} us")]


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) * KIB


def look_at_state(bench, name, state, *options):
    """Bring a device into a state, and look."""
    with bench.mount() as mount:
        before = anonymous_bytes(mount.proc.pid)
        proc = subprocess.Popen([bench.program("resident"), os.path.join(mount.path, name), state, *options],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            ready = select.select([proc.stdout], [], [], 60)[0]
            if not ready or proc.stdout.readline() != "ready\n":
                proc.kill()
                raise Broken(f"bench_resident {state}: {'time limit' if not ready else proc.stderr.read().strip()}")
            stat = bench.stat(mount)
            grown = anonymous_bytes(mount.proc.pid) - before
            proc.stdin.close()
            code = finish(proc, 30)
        finally:
            if proc.poll() is None:
                proc.kill()
        if code != 0:
            raise Broken(f"bench_resident {state} ended with {code}")
    file = next(f for f in stat["files"] if f["path"].endswith(name))
    resident = sum(d["resident_bytes"] for d in file["devices"])
    twins = sum(d["twins"] for d in file["devices"]) * 4 * KIB
    return {"state": state, "resident_bytes": resident, "metadata_bytes": file["metadata_bytes"], "twin_bytes": twins,
            "process_bytes": grown - twins}


def check_untracked(bench):
    """Files that no device maps: read and written, they must be in no statistics."""
    bench.make("small", 16 * MIB)
    with bench.mount() as mount:
        for i in range(64):
            run(["cp", os.path.join(mount.path, "small"), os.path.join(mount.path, "copy")], 20)
            if i % 16 == 0:
                run(["cmp", os.path.join(mount.path, "copy"), os.path.join(bench.data, "small")], 20)
        return sum(f["metadata_bytes"] for f in bench.stat(mount)["files"])


def bench_metadata(bench):
    bench.make("read", 256 * MIB)
    bench.make_sparse("sparse", 4 * GIB)
    states = [("every page resident, none stored to", look_at_state(bench, "read", "read")),
              ("4096 single pages at random of 4 GiB", look_at_state(bench, "sparse", "sparse"))]
    for text, state in (("every page stored to", "stored"), ("and released", "released"),
                        ("and read by a CPU", "collected")):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(bench.data, "write"))
        bench.make("write", 64 * MIB)
        states.append((text, look_at_state(bench, "write", state)))
    untracked = check_untracked(bench)
    bench.raw["metadata"] = {"states": [s for _, s in states], "untracked_bytes": untracked}
    rows = []
    for text, s in states:
        part = s["metadata_bytes"] / max(s["resident_bytes"], 1)
        rows.append(row(f"metadata: {text}", f"{part * 100:.2f} %",
                        f"of {s['resident_bytes'] / MIB:.0f} MiB; twins {s['twin_bytes'] / MIB:.0f} MiB; "
                        f"process +{s['process_bytes'] / MIB:.1f} MiB", None, "<= 1 %", part <= 0.01))
    rows.append(row("metadata: files that no device maps", f"{untracked} bytes", "", None, "0", untracked == 0))
    return rows


def bench_peer(bench):
    backing = bench.make("peer", 256 * MIB)
    with bench.mount() as mount:
        r = run_json([bench.program("peer"), os.path.join(mount.path, "peer"), backing, "--repetitions",
                      str(bench.repetitions)], 90)
    bench.raw["peer"] = r
    return [row("CPU read in order, bytes on a device", f"{r['peer_gbs']:.2f} GB/s",
                f"from storage {r['storage_gbs']:.2f} GB/s", r["peer_gbs"] / r["storage_gbs"]),
            row("", f"{r['peer_gbs']:.2f} GB/s", f"from the host's memory {r['memory_gbs']:.2f} GB/s",
                r["peer_gbs"] / r["memory_gbs"]),
            row("CPU read of 4 KiB at random, on a device", f"{r['peer_random_us']:.1f} us",
                f"from storage {r['storage_random_us']:.1f} us", r["peer_random_us"] / r["storage_random_us"])]


def find_passthrough(bench):
    """The path of passthrough_ll, or None and why not."""
    path = os.environ.get("PASSTHROUGH_LL") or shutil.which("passthrough_ll")
    if path:
        return path if os.access(path, os.X_OK) else None
    source = os.path.join(EXAMPLES, "passthrough_ll.c")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not os.path.exists(source) or not compiler:
        return None
    path = os.path.join(bench.folder, "passthrough_ll")
    flags = run(["pkg-config", "--cflags", "--libs", "fuse3"], 10).split()
    run([compiler, "-O2", "-o", path, source, *flags], 60)
    return path


# What fio's --rw is called in the table, the size of a request, bytes moved, how many times as often as other things,
# and whether all runs on one CPU. A small request's time is mostly that of waking the other side, which is up to chance
# where it may be on another CPU that sleeps: it is judged on one, and shown on all.
JOBS = (("read", "read in order, 1 MiB", "1m", GIB, 1, False),
        ("write", "write in order, 1 MiB", "1m", 512 * MIB, 1, False),
        ("randread", "read at random, 4 KiB, one CPU", "4k", 32 * MIB, 1, True),
        ("randwrite", "write at random, 4 KiB, one CPU", "4k", 32 * MIB, 1, True),
        ("randread", "read at random, 4 KiB", "4k", 32 * MIB, 3, False),
        ("randwrite", "write at random, 4 KiB", "4k", 32 * MIB, 3, False))


def fio(side, rw, size, amount, seed, cpus):
    """Bytes a second of one job. The host's memory holds the file. The mount's own cached pages are dropped before, and
    not in the measured time: passthrough_ll has them dropped at every open, gaiafs keeps those of unchanged files."""
    mount, backing = side
    path = os.path.join(mount.path, os.path.basename(backing))
    warm(backing)
    run(["dd", f"if={path}", "iflag=nocache", "count=0", "status=none"], 20)
    place(mount.proc.pid, cpus)
    r = run_json(["fio", "--name=bench", f"--filename={path}", f"--rw={rw}", f"--bs={size}",
                  f"--size={os.path.getsize(backing)}", f"--io_size={amount}", "--ioengine=psync", "--thread",
                  "--fallocate=none", "--invalidate=0", f"--cpus_allowed={','.join(str(cpu) for cpu in sorted(cpus))}",
                  f"--randseed={seed}", "--output-format=json"], 60)
    if "write" in rw:  # not in the measured time either: what one has made dirty is not the other's burden
        descriptor = os.open(backing, os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
    return r["jobs"][0]["write" if "write" in rw else "read"]["bw_bytes"]


def cpu_row(bench, job, sides):
    """Of each side, in turns, the rates of a job: bytes a second."""
    rw, _, size, amount, times, on_one = job
    everywhere = os.sched_getaffinity(0)
    cpus = {min(everywhere)} if on_one else everywhere
    rates = {name: [] for name in sides}
    for repetition in range(bench.repetitions * times):
        for name in list(sides) if repetition % 2 == 0 else reversed(list(sides)):
            rates[name].append(fio(sides[name], rw, size, amount, repetition + 1, cpus))
    return rates


def bench_cpu(bench):
    missing = row("CPU reads and writes of files no device maps", "not measured", "", None, ">= 1.0")
    other = find_passthrough(bench)
    if not shutil.which("fio") or not other:
        return [{**missing, "baseline": f"{'passthrough_ll' if not other else 'fio'} is missing"}]
    path = os.path.join(bench.folder, "passthrough")
    rows, raw = [], []
    with bench.mount() as ours, bench.mount("passthrough=on", "passed") as passed, \
            Mount([other, "-f", "-o", f"source={bench.data}", path], path,
                  os.path.join(bench.folder, "log-passthrough")) as theirs:
        sides = {"gaiafs": (ours, bench.make("fio-ours", GIB)), "passthrough_ll": (theirs, bench.make("fio-theirs", GIB))}
        if bench.stat(passed)["passthrough"]:
            sides["passthrough=on"] = (passed, bench.make("fio-passed", GIB, "passed"))
        for job in JOBS:
            rates = cpu_row(bench, job, sides)
            raw.append({"job": job[1], **rates})
            theirs_rate = statistics.median(rates.pop("passthrough_ll"))
            judged = job[5] or not job[0].startswith("rand")
            for name, values in rates.items():
                ratio = statistics.median(values) / theirs_rate
                rows.append(row(f"CPU {job[1]}" if name == "gaiafs" else f"  {name}",
                                f"{statistics.median(values) / 1e9:.3f} GB/s", f"passthrough_ll {theirs_rate / 1e9:.3f} GB/s",
                                ratio, ">= 1.0" if judged else "", ratio >= 1.0 if judged else None))
        for mount, backing in sides.values():
            run(["cmp", os.path.join(mount.path, os.path.basename(backing)), backing], 60)
    for _, backing in sides.values():
        os.unlink(backing)
    bench.raw["cpu"] = raw
    return rows


ROWS = {"fault": bench_fault, "stream": bench_stream, "merge": bench_merge, "sync": bench_sync,
        "changed": bench_changed, "metadata": bench_metadata, "peer": bench_peer, "cpu": bench_cpu}
