#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make bench: what gaiafs costs, against a baseline measured in the same run, in turns.

Prints a table and writes build/bench.json (--save: tests/bench/results/DATE-MACHINE.json). Ends with 1 when bytes are
wrong, a program fails or a time limit expires, and never because something is slow.

GAIA_BENCH_DIR   where the data directory and the mount points are made (default: /var/tmp; a disk, 4 GiB free)
PASSTHROUGH_LL   libfuse's example passthrough_ll, the baseline of the CPU's reads and writes. Without it, one on the
                 PATH, or one that is built from the source that libfuse3-dev installs as documentation.
"""
import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLES = "/usr/share/doc/libfuse3-dev/examples"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Broken(Exception):
    """Something does not work: the run goes on with the next row and fails at its end."""


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- processes and mounts -------------------------------------------------------------------------------------------

def finish(proc, limit):
    """Wait for a child of ours; kill it when the limit is over. Its exit status, or None."""
    try:
        return proc.wait(limit)
    except subprocess.TimeoutExpired:
        proc.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            proc.wait(5)
        return None


def run(command, limit, check=True):
    """A command's standard output."""
    proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)
    name = os.path.basename(command[0])
    try:
        out, err = proc.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        proc.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            proc.communicate(timeout=5)
        raise Broken(f"{name}: not done after {limit} s")
    except BaseException:
        proc.kill()
        raise
    if check and proc.returncode != 0:
        raise Broken(f"{name} ended with {proc.returncode}: {(err or out).strip()[-600:]}")
    return out


def run_json(command, limit):
    out = run(command, limit)
    try:
        return json.loads(out[out.index("{"):])
    except ValueError as error:
        raise Broken(f"{os.path.basename(command[0])} printed no JSON: {error}")


def mounted(path):
    with open("/proc/self/mountinfo") as file:
        return any(line.split()[4] == path for line in file)


class Mount:
    """A file system of a daemon that stays in the foreground."""

    def __init__(self, command, path, log):
        self.path, self.log = path, log
        os.makedirs(path, exist_ok=True)
        with open(log, "wb") as stderr:
            self.proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, cwd="/")
        self.name = os.path.basename(command[0])
        deadline = time.monotonic() + 20
        while not mounted(path):
            if self.proc.poll() is not None or time.monotonic() > deadline:
                text = self.log_text()
                finish(self.proc, 0)
                raise Broken(f"{self.name} does not mount: {text}")
            time.sleep(0.01)

    def log_text(self):
        with open(self.log, errors="replace") as file:
            return file.read()[-2000:].strip()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, _):
        problem = self.unmount()
        if problem and kind is None:
            raise Broken(problem)

    def unmount(self):
        deadline = time.monotonic() + 10
        while mounted(self.path):
            done = subprocess.run(["umount", self.path], capture_output=True, text=True)
            if done.returncode == 0:
                break
            if time.monotonic() > deadline:
                self.proc.kill()  # nobody waits for it any more then
                subprocess.run(["umount", "-l", self.path], capture_output=True)
                finish(self.proc, 5)
                return f"{self.name}: {done.stderr.strip()}"
            time.sleep(0.1)
        code = finish(self.proc, 60)
        if code is None:
            return f"{self.name} did not end after the unmount"
        return f"{self.name} ended with {code}: {self.log_text()}" if code else None


class Bench:
    """What the rows share: programs, the data directory, and how often things are repeated."""

    def __init__(self, args, folder):
        self.folder = folder
        self.data = os.path.join(folder, "data")
        self.programs = os.path.join(TOP, args.build, "tests", "bench")
        self.bin = os.path.join(TOP, args.bin)
        self.repetitions = 3 if args.quick else 5
        self.quick = args.quick
        self.mounts = 0
        self.raw = {}
        os.mkdir(self.data)

    def program(self, name):
        return os.path.join(self.programs, "bench_" + name)

    def mount(self, options="device_cache=1200M"):
        self.mounts += 1
        path = os.path.join(self.folder, f"mnt{self.mounts}")
        return Mount([os.path.join(self.bin, "mount.gaiafs"), "-f", self.data, path, "-o", options], path,
                     os.path.join(self.folder, f"log{self.mounts}"))

    def make(self, name, size):
        """A file of the pattern that the programs check, in the host's memory; its path in the data directory."""
        path = os.path.join(self.data, name)
        if not os.path.exists(path) or os.path.getsize(path) != size:
            run([self.program("file"), path, str(size)], 120)
        return path

    def make_sparse(self, name, size):
        path = os.path.join(self.data, name)
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    def stat(self, mount):
        return json.loads(run([os.path.join(self.bin, "gaiactl"), "stat", "--json", mount.path], 20))


def warm(path):
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(MIB)
        while file.readinto(buffer):
            pass


# --- the table ------------------------------------------------------------------------------------------------------

def row(measured, value, baseline="", ratio=None, goal="", met=None):
    return {"measured": measured, "value": value, "baseline": baseline, "ratio": ratio, "goal": goal, "met": met}


def print_table(rows):
    head = ("measured", "value", "baseline", "ratio", "goal", "met")
    lines = [head]
    for r in rows:
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.2f}"
        met = {True: "yes", False: "no", None: ""}[r["met"]]
        lines.append((r["measured"], r["value"], r["baseline"], ratio, r["goal"], met))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for number, line in enumerate(lines):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


# --- the rows -------------------------------------------------------------------------------------------------------

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
                f"16 MiB resident {asked_us['small']:.1f} us", asked_us["one"] / asked_us["small"])]


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


def place(pid, cpus):
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), cpus)


def fio(bench, mount, name, rw, size, amount, seed, cpus):
    """Bytes a second of one job. The host's memory holds the file. The mount's own cached pages are dropped before, and
    not in the measured time: passthrough_ll has them dropped at every open, gaiafs keeps those of unchanged files."""
    path, backing = os.path.join(mount.path, name), os.path.join(bench.data, name)
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


def bench_cpu(bench):
    missing = row("CPU reads and writes of files no device maps", "not measured", "", None, ">= 1.0")
    other = find_passthrough(bench)
    if not shutil.which("fio") or not other:
        return [{**missing, "baseline": f"{'passthrough_ll' if not other else 'fio'} is missing"}]
    names = ("fio-ours", "fio-theirs")
    for name in names:
        bench.make(name, GIB)
    everywhere = os.sched_getaffinity(0)
    path = os.path.join(bench.folder, "passthrough")
    rows, raw = [], []
    with bench.mount() as ours, Mount([other, "-f", "-o", f"source={bench.data}", path], path,
                                      os.path.join(bench.folder, "log-passthrough")) as theirs:
        for rw, text, size, amount, times, on_one in JOBS:
            rates = ([], [])
            cpus = {min(everywhere)} if on_one else everywhere
            for repetition in range(bench.repetitions * times):
                for which in (0, 1) if repetition % 2 == 0 else (1, 0):
                    rates[which].append(fio(bench, (ours, theirs)[which], names[which], rw, size, amount,
                                            repetition + 1, cpus))
            a, b = (statistics.median(values) for values in rates)
            raw.append({"job": text, "gaiafs": rates[0], "passthrough_ll": rates[1]})
            judged = on_one or not rw.startswith("rand")
            rows.append(row(f"CPU {text}", f"{a / 1e9:.3f} GB/s", f"passthrough_ll {b / 1e9:.3f} GB/s", a / b,
                            ">= 1.0" if judged else "", a / b >= 1.0 if judged else None))
        run(["cmp", os.path.join(ours.path, names[0]), os.path.join(bench.data, names[0])], 60)
    for name in names:
        os.unlink(os.path.join(bench.data, name))
    bench.raw["cpu"] = raw
    return rows


ROWS = {"fault": bench_fault, "stream": bench_stream, "merge": bench_merge, "sync": bench_sync,
        "changed": bench_changed, "metadata": bench_metadata, "peer": bench_peer, "cpu": bench_cpu}


# --- what was measured, and where -----------------------------------------------------------------------------------

def quiet_run(command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOP)
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_model():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.machine()


def describe(bench_folder):
    kernel = re.match(r"[\d.]+", platform.release())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    make = ["make", "-s", "--no-print-directory", "--eval=bench-flags:;@echo $(CC) $(CPPFLAGS) $(CFLAGS)",
            "bench-flags"]
    return {"date": datetime.date.today().isoformat(), "kernel": kernel[0] if kernel else platform.release(),
            "cpu": cpu_model(), "cores": os.cpu_count(), "memory_bytes": memory,
            "file_system": quiet_run(["stat", "-f", "-c", "%T", bench_folder]),
            "compiler": quiet_run(["cc", "--version"]).partition("\n")[0], "flags": quiet_run(make),
            "commit": quiet_run(["git", "describe", "--always", "--dirty", "--exclude=*"]),
            "load_at_start": os.getloadavg()[0]}


def result_path(args, machine):
    if not args.save:
        return os.path.join(TOP, "build", "bench.json")
    words = re.sub(r"\(R\)|\(TM\)|CPU|Processor|@.*", " ", machine["cpu"])
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "machine"
    gib = round(machine["memory_bytes"] / GIB)
    return os.path.join(TOP, "tests", "bench", "results", f"{machine['date']}-{name}-{machine['cores']}cpu-{gib}g.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", default="build/gcc", help="where the benchmarks were built")
    parser.add_argument("--bin", default=".", help="where mount.gaiafs, gaiactl and libgaia.so are")
    parser.add_argument("--only", action="append", choices=ROWS, metavar="NAME", help=f"one of: {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="three repetitions instead of five")
    parser.add_argument("--save", action="store_true", help="keep the results in tests/bench/results")
    args = parser.parse_args()
    if os.geteuid() != 0:
        say("mounting needs root")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows, broken = [], []
    with tempfile.TemporaryDirectory(prefix="gaiafs-bench-", dir=os.environ.get("GAIA_BENCH_DIR", "/var/tmp"),
                                     ignore_cleanup_errors=True) as folder:
        bench = Bench(args, os.path.realpath(folder))
        machine = describe(folder)
        for name in args.only or ROWS:
            start = time.monotonic()
            try:
                rows += ROWS[name](bench)
            except (Broken, OSError) as error:
                broken.append(f"{name}: {error}")
                say(f"BROKEN {broken[-1]}")
            say(f"{name}: {time.monotonic() - start:.1f} s")
        machine["load_at_end"] = os.getloadavg()[0]
    print_table(rows)
    path = result_path(args, machine)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump({"machine": machine, "repetitions": bench.repetitions, "rows": rows, "raw": bench.raw,
                   "broken": broken}, file, indent=1)
        file.write("\n")
    say(f"written to {os.path.relpath(path, TOP)}")
    for text in broken:
        say(f"BROKEN {text}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
