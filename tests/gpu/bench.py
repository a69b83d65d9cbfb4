# SPDX-License-Identifier: Apache-2.0
"""What files on a GPU cost: run by bench.sh, which says how.

Prints a table of medians and writes all samples as JSON, with the machine's description: both as rows are measured, so
that of a run that is killed there is what it had ("complete" is false then). A row that can't be measured says "not
measured", and why; nothing is estimated."""
import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))

import bench as cpu_bench  # noqa: E402
from harness import GIB, KIB, MIB, TOP, Broken, Mount, row, run, run_json, say  # noqa: E402

NO_MANAGED = "not measured: this driver has none"
KEPT = "clang 14, as PTX"
LIMIT_S = 550


def size_text(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def rate(size, seconds):
    return f"{size / seconds / 1e9:.2f} GB/s"


def us(seconds):
    return f"{seconds * 1e6:.1f} us"


def median(samples):
    return statistics.median(samples)


class GpuBench:
    """Programs, the folder, and what was measured."""

    def __init__(self, args, folder):
        self.folder, self.repetitions = folder, args.repetitions
        self.program = os.path.join(TOP, args.build, "tests", "gpu", "bench")
        self.demand_program = os.path.join(TOP, args.build, "tests", "gpu", "bench_demand")
        self.kernels = ["--kernels", args.kernels] if args.kernels else []
        self.used = []  # kernels of demand paging: which
        self.file_program = os.path.join(TOP, args.build, "tests", "bench", "bench_file")
        self.bin, self.sizes = os.path.join(TOP, args.bin), args.sizes
        self.large = max(args.sizes)
        self.data, self.raw, self.mounts = os.path.join(folder, "data"), {}, 0
        os.mkdir(self.data)

    def ask(self, name, *arguments, repetitions=None):
        command = [self.program, name, *map(str, arguments), "--repetitions", str(repetitions or self.repetitions)]
        return run_json(command, LIMIT_S)

    def ask_demand(self, name, size, *files):
        """A program on files of that size, in a mount; files that it stores to are made anew."""
        names = [os.path.basename(self.make(file, size)) for file in files]
        with self.mount(4 * size * len(files)) as mount:
            command = [self.demand_program, name, *(os.path.join(mount.path, file) for file in names),
                       "--repetitions", str(self.repetitions), *self.kernels]
            r = self.raw[f"demand {name}"] = run_json(command, LIMIT_S)
        used = "nvcc" if r["kernels"] == "given" else KEPT
        if "kernels_refused" in r:
            used += f" (nvcc's are not loaded: {r['kernels_refused']})"
            say(f"kernels: {used}")
        if used not in self.used:
            self.used.append(used)
        return r

    def make(self, name, size):
        path = os.path.join(self.data, name)
        if not os.path.exists(path) or os.path.getsize(path) != size:
            run([self.file_program, path, str(size)], LIMIT_S)
            run(["sync", path], LIMIT_S)
        return path

    def forget(self):
        """Files of several GiB, which the next row has no use for."""
        for name in os.listdir(self.data):
            os.unlink(os.path.join(self.data, name))

    def mount(self, room=0):
        self.mounts += 1
        path = os.path.join(self.folder, f"mnt{self.mounts}")
        room = f"device_cache={max(3 * self.large, room, 64 * MIB)}"
        return Mount([os.path.join(self.bin, "mount.gaiafs"), "-f", self.data, path, "-o", room], path,
                     os.path.join(self.folder, f"log{self.mounts}"))


# --- what is printed and written --------------------------------------------------------------------------------------

HEAD = ("measured", "value", "baseline", "ratio", "goal", "met")
WIDTHS = (80, 14, 58, 6, 16, 3)


def print_line(texts):
    """A line of the table, at once: nobody knows yet how wide the others are."""
    print("  ".join(text.ljust(width) for text, width in zip(texts, WIDTHS)).rstrip(), flush=True)


def print_row(r):
    ratio = "" if r["ratio"] is None else f"{r['ratio']:.2f}"
    print_line((r["measured"], r["value"], r["baseline"], ratio, r["goal"], {True: "yes", False: "no", None: ""}[r["met"]]))


class Result:
    """The JSON: anew after each row, in the place of what was there. path None: none is kept."""

    def __init__(self, path, **described):
        self.path, self.described = path, described

    def save(self, bench, rows, broken, complete=False):
        if not self.path:
            return
        found = {"complete": complete, **self.described, "kernels": ", ".join(bench.used), "rows": rows, "raw": bench.raw,
                 "broken": broken}
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.path + ".new", self.path)


# --- rows -----------------------------------------------------------------------------------------------------------

# Each yields lists of rows, as it has them.

def bench_find(bench):
    r = bench.raw["memory"] = bench.ask("memory", bench.large)
    speed = r["bytes"] / median(r["find_s"])
    copy = rate(r["bytes"], median(r["pinned_copy_s"]))
    yield [row(f"finding modified pages of {size_text(r['bytes'])}, the kernel", f"{speed / 1e12:.3f} TB/s", "", None,
                ">= 2 TB/s", speed >= 2e12),
            row("a kernel that pulls from pinned memory, in order (zero-copy)",
                rate(r["pulled_bytes"], median(r["pull_s"])), f"pinned cudaMemcpy {copy}"),
            row("... 4 KiB at random", rate(r["pulled_bytes"], median(r["pull_random_s"])),
                f"pinned cudaMemcpy {copy}")]


def bench_place(bench):
    """A daemon keeps what it has placed, so each repetition has one of its own."""
    small = bench.make("small", 64 * KIB)
    for size in bench.sizes:
        backing = bench.make(f"file{size}", size)
        samples = {"place_s": [], "read_and_copy_s": [], "pinned_copy_s": []}
        for _ in range(bench.repetitions):
            with bench.mount() as mount:
                r = bench.ask("place", os.path.join(mount.path, os.path.basename(small)),
                              os.path.join(mount.path, os.path.basename(backing)), backing, repetitions=1)
            for name, values in samples.items():
                values += r[name]
        bench.raw[f"place {size}"] = samples
        took, plain, pinned = (median(values) for values in samples.values())
        yield [row(f"placing {size_text(size)} that are in the host's memory", rate(size, took),
                   f"pinned cudaMemcpy {rate(size, pinned)}", pinned / took, ">= 0.9", pinned / took >= 0.9),
               row("", rate(size, took), f"read() + cudaMemcpy {rate(size, plain)}", plain / took)]


def bench_sync(bench):
    name = os.path.basename(bench.make("sync", bench.large))
    with bench.mount() as mount:
        r = bench.raw["sync"] = bench.ask("sync", os.path.join(mount.path, name))
    size, find, kernel = size_text(r["bytes"]), median(r["find_s"]), median(r["kernel_s"])
    both = median(r["both_s"])
    # Both search: stores that were not released yet count as released at an acquire, too.
    beside = both - 2 * find
    reader = median(r["acquire_read_only_s"])
    moved = r["bytes_out"] <= r["changed_pages"] * 4096
    yield [row(f"acquire, small kernel, release, nothing changed, {size}, two searches beside", us(beside),
                f"all {us(both)}, a search {us(find)}, the kernel {us(kernel)}", None, "< 50 us", beside < 50e-6),
            row(f"acquire, read only, nothing changed, {size}", us(reader), "", None, "< 20 us", reader < 20e-6),
            row(f"release, {r['changed_pages']} pages changed, {size}", us(median(r["release_changed_s"])),
                f"a search {us(find)}; {r['bytes_out']} bytes moved", None, "only what changed", moved)]


def bench_changed(bench):
    """Pages of a mapping that is read only are placed anew; those of a writable one change in place, byte by byte."""
    backing = bench.make("changed", bench.large)
    for name, kind in ("changed", "read only"), ("changed-writable", "for writing"):
        with bench.mount() as mount:
            r = bench.raw[name] = bench.ask(name, os.path.join(mount.path, os.path.basename(backing)), backing)
        rows = []
        for part in ("0.1", "1", "10", "50", "90", "100"):
            took, whole = median(r[f"acquire_{part}_s"]), median(r[f"whole_{part}_s"])
            goal = "> 1" if float(part) <= 90 else ""
            rows.append(row(f"{part} % of {size_text(r['bytes'])} changed, mapped {kind}: acquire", f"{took * 1e3:.2f} ms",
                            f"read() + cudaMemcpy of all {whole * 1e3:.2f} ms", whole / took, goal,
                            whole > took if goal else None))
        yield rows


def bench_sharing(bench):
    """Managed memory, whose pages go to and fro: few rounds only. What is over sooner is done oftener, as how fast a CPU stores
    is not the same each time."""
    for rounds in (4, 100, 1000):
        often = 1 if rounds == 4 else 4
        stores = 4 * min(bench.large, 256 * MIB) // often
        backing = bench.make(f"sharing{rounds}", max(stores // rounds // 4096, 1) * 4096)
        with bench.mount() as mount:
            r = bench.ask("sharing", os.path.join(mount.path, os.path.basename(backing)), "--rounds", rounds,
                          repetitions=min(often * bench.repetitions, 64))
        bench.raw[f"sharing {rounds}"] = r
        took, own, release = (median(r[key]) for key in ("shared_s", "private_s", "release_s"))
        rows = [row(f"CPU and GPU store every second byte of {size_text(r['bytes'])}, {rounds} times", us(took),
                    f"private buffers {us(own)}", own / took, ">= 0.95", own / took >= 0.95),
                row("... and the release", us(release), "")]
        if rounds == 4:
            rows.append(row("... managed memory", us(median(r["managed_s"])) if r["managed_s"] else NO_MANAGED, ""))
        yield rows


def bench_faults(bench):
    """What each fault took, beside a unit that a plain kernel pulls: of all that were there, in one kernel."""
    r = bench.ask_demand("faults", max(32 * MIB, min(bench.large, GIB)), "faults")
    rows = []
    for unit in (4 * KIB, 64 * KIB):
        for order, name in (("", "in order"), ("random_", "at random")):
            took, pulled = median(r[f"faults_{order}{unit}_s"]), median(r[f"pull_{order}{unit}_s"])
            rows.append(row(f"demand faults from the host arena, {size_text(unit)}, {name}", rate(unit, took),
                            f"a kernel that pulls {rate(unit, pulled)}", pulled / took, ">= 0.85", pulled / took >= 0.85))
    took = median(r["faults_random_4096_s"])
    name = "... 4 KiB at random, managed memory"
    if not r["managed_s"]:
        rows.append(row(name, rate(4096, took), NO_MANAGED, None, ">= 10"))
    else:
        managed = median(r["managed_s"])
        rows.append(row(name, rate(4096, took), f"managed memory {rate(4096, managed)}", managed / took, ">= 10",
                        managed / took >= 10))
    yield rows


def bench_hits(bench):
    r = bench.ask_demand("hits", max(2 * MIB, min(bench.large, GIB)), "hits")
    rows = []
    words, wide = ("plain_s", "plain memory"), ("plain_wide_s", "plain memory, 16 bytes")
    for key, (plain_key, baseline), name in (("load_s", words, "load()"),
                                             ("load_many4_s", words, "load_many() of 4"),
                                             ("load_many8_s", words, "load_many() of 8"),
                                             ("load_wide_s", wide, "load() of 16 bytes"),
                                             ("load_wide_many4_s", wide, "load_many() of 4 x 16 bytes"),
                                             ("load_wide_many8_s", wide, "load_many() of 8 x 16 bytes"),
                                             ("pinned_s", words, "a pin for each unit")):
        took, plain = median(r[key]), median(r[plain_key])
        rows.append(row(f"hits in demand mode, neighbouring words, {name}", rate(r["bytes"], took),
                        f"{baseline} {rate(r['bytes'], plain)}", plain / took, ">= 0.7", plain / took >= 0.7))
    yield rows


def program_rows(r, key, name):
    """The first run of a program on new mappings; the second, in raw, has what it finds in frames and arena."""
    whole, size = median(r[f"{key}_100_s"]), size_text(r["bytes"])
    ms = "{:.2f} ms".format
    managed = median(r[f"{key}_managed_s"]) if r[f"{key}_managed_s"] else None
    rows = [row(f"{name}, {size}, 100 % of the frames", ms(whole * 1e3),
                f"managed memory {ms(managed * 1e3)}" if managed else f"managed memory {NO_MANAGED}",
                managed / whole if managed else None, ">= 2", managed / whole >= 2 if managed else None)]
    for part in (150, 300):
        took = median(r[f"{key}_{part}_s"])
        rows.append(row(f"... {part} % of the frames", ms(took * 1e3), f"at 100 % {ms(whole * 1e3)}", took / whole,
                        "<= 2", took <= 2 * whole))
    return rows


def bench_programs(bench):
    size = max(12 * MIB, min(bench.large, 256 * MIB))
    r = bench.ask_demand("add", size, "a", "b", "sum")
    yield program_rows(r, "add", "vector add")
    r = bench.ask_demand("multiply", size, "matrix")
    for key in ("mvt", "atax", "bicg"):
        yield program_rows(r, key, key.upper())


def not_measured(texts):
    return lambda why: [row(text, f"not measured: {why}", "", None, goal) for text, goal in texts]


FAULT_ROWS = [
    ("demand faults from the host arena, 4 KiB, in order and at random", ">= 0.85 of a kernel that pulls, 10 x managed"),
    ("demand faults from the host arena, 64 KiB, in order and at random", ">= 0.85 of a kernel that pulls"),
]
PROGRAM_ROWS = [
    ("vector add, MVT, ATAX, BICG at 100 % of the frames", ">= 2 x managed memory"),
    ("... at 150 % and 300 % of the frames", "<= 2 x the time"),
]
# name: (function, needs a mount, what is said of it when it can't be measured)
ROWS = {
    "find": (bench_find, False, not_measured([("finding modified pages", ">= 2 TB/s"), ("zero-copy", "")])),
    "place": (bench_place, True, not_measured([("placing a file that is in the host's memory", ">= 0.9")])),
    "sync": (bench_sync, True, not_measured([("acquire, small kernel, release, nothing changed", "< 50 us beside two searches"),
                                             ("acquire, read only, nothing changed", "< 20 us"),
                                             ("release, moves only what changed", "")])),
    "changed": (bench_changed, True, not_measured([("0.1 % to 100 % of a file changed, mapped read only", "> 1 up to 90 %"),
                                                   ("... mapped for writing", "> 1 up to 90 %")])),
    "sharing": (bench_sharing, True, not_measured([(f"CPU and GPU store every second byte, {rounds} times", ">= 0.95")
                                                   for rounds in (4, 100, 1000)])),
    "faults": (bench_faults, True, not_measured(FAULT_ROWS)),
    "hits": (bench_hits, True, not_measured([("hits in demand mode, neighbouring words", ">= 0.7 of plain memory")])),
    "programs": (bench_programs, True, not_measured(PROGRAM_ROWS)),
}


# --- the machine ----------------------------------------------------------------------------------------------------

def describe(args, folder):
    machine = cpu_bench.describe(folder)
    own = run([os.path.join(TOP, args.build, "tests", "gpu", "own"), "--describe"], 60, check=False)
    found = re.search(r"^GPU: (.*)$", own, re.M)
    machine["gpu"] = found[1] if found else None
    with contextlib.suppress(OSError):
        fields = "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current"
        done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True,
                              text=True, timeout=60)
        machine["nvidia_smi"] = done.stdout.strip()
    return machine, own


def why_no_mount(bench):
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse here"
    if os.geteuid() != 0:
        return "mounting needs root"
    done = subprocess.run([os.path.join(bench.bin, "mount.gaiafs"), "--version"], capture_output=True, timeout=20)
    return "mount.gaiafs does not start here" if done.returncode else None


def measure(bench, names, gpu, rows, broken, result):
    no_mount = why_no_mount(bench)

    def have(found):
        rows.extend(found)
        for r in found:
            print_row(r)
        result.save(bench, rows, broken)

    print_line(HEAD)
    print_line(["-" * width for width in WIDTHS])
    for name in names:
        function, mounts, otherwise = ROWS[name]
        why = "no GPU here" if not gpu else no_mount if mounts else None
        start = time.monotonic()
        try:
            for found in [otherwise(why)] if why else function(bench):
                have(found)
        except (Broken, OSError) as error:
            broken.append(f"{name}: {error}")
            have(otherwise("broken, see below"))
        bench.forget()
        say(f"{name}: {time.monotonic() - start:.1f} s")


def result_path(args, machine):
    """None: there is nothing to measure."""
    if not machine["gpu"]:
        return None
    if args.output:
        return args.output
    gpu = re.sub(r"[^a-z0-9]+", "-", machine["gpu"].split(",")[0].lower()).strip("-")
    return os.path.join(TOP, "tests", "bench", "results", f"{machine['date']}-{gpu}.json")


def parse_size(text):
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"no size: {text}")
    return int(found[1]) * {"": 1, "K": KIB, "M": MIB, "G": GIB}[found[2]] // 4096 * 4096


def main():
    parser = argparse.ArgumentParser(prog="bench.sh", description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=lambda text: [parse_size(word) for word in text.split(",")],
                        default=[GIB, 8 * GIB])
    parser.add_argument("--repetitions", type=int, default=5, choices=range(5, 65), metavar="N", help="at least 5")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(ROWS), help=",".join(ROWS))
    parser.add_argument("--output", help="the JSON (default: tests/bench/results/DATE-GPU.json)")
    parser.add_argument("--kernels", help="kernels of demand paging that nvcc has made (default: those that clang has made)")
    parser.add_argument("--build", default="build/gcc")
    parser.add_argument("--bin", default=".")
    args = parser.parse_args()
    if not set(args.only) <= set(ROWS):
        parser.error(f"rows are {', '.join(ROWS)}")
    os.environ["GAIA_DEVICE"] = "cuda:0"
    rows, broken = [], []
    with tempfile.TemporaryDirectory(prefix="gaiafs-bench-", dir=os.environ.get("GAIA_BENCH_DIR", "/var/tmp"),
                                     ignore_cleanup_errors=True) as folder:
        bench = GpuBench(args, os.path.realpath(folder))
        machine, said = describe(args, folder)
        print(said, end="")
        if machine["gpu"] and machine["gpu"].startswith("stand-in") and not args.output:
            parser.error("this is the stand-in of tests/cuda: its figures are nobody's (--output FILE keeps them)")
        result = Result(result_path(args, machine), machine=machine, repetitions=bench.repetitions, sizes=args.sizes)
        measure(bench, args.only, machine["gpu"], rows, broken, result)
        machine["load_at_end"] = os.getloadavg()[0]
        result.save(bench, rows, broken, complete=True)
    if result.path:
        say(f"written to {result.path}")
    for text in broken:
        say(f"BROKEN {text}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
