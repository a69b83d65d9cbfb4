#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The transport over real verbs, without a NIC: a virtual machine with two Soft-RoCE devices and a wire between them.

The unit tests of the transport and of calls (tests/io) and of the fault path (tests/cache) run in it as they are, over RDMA. That
what went between the two went over the wire is seen by its counters. Then a mount serves its faults by RDMA (-o fault=rdma), with
more touched than the device holds (tool_touch.c). Then two nodes share a page cache over the wire, and one of them is killed,
stopped, cut off (rdma_nodes.py; --only nodes: nothing else). Ends with one line `N passed, N failed, N skipped`; skipped, with the
reason, where no virtual machine can be had.

--bench: reads of 64 KiB and 4 KiB through the batch reader (io/pull.h) against ib_read_bw of the same size with as many
outstanding, and one at a time against ib_read_lat, in the same boot, in turns; medians of five turns (what
other programs do on the machine shows: so the ratio of the best of either is there, too). Prints a table and writes
build/bench-rdma.json (--save: tests/bench/results). Then faults of soft:0 on a mount with -o fault=rdma (tool_stream.c), against the
same programs over the same device's way to itself, and beside the same faults when the daemon copies: in an emulator
the fault itself takes most of the time. Then faults of an agent's soft:0, filled by the home over the wire, and acquires of it. Ends with 1 when something fails, never because something is slow.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import time

import image
import machine
import rdma_nodes
import siw

sys.path.append(os.path.join(image.TOP, "tests", "bench"))
import bench  # noqa: E402

HERE, THERE = "10.0.0.1", "10.0.1.1"
TESTS = ["test_transport", "test_transport_faults", "test_transport_peers", "test_transport_devices",
         "test_transport_told", "test_transport_posts", "test_standing", "test_pull", "test_call", "test_call_moves",
         "test_fault_path", "test_fault_standing"]
if not os.environ.get("GAIA_GATE"):  # tests/run.sh has no time for these: make check-long
    TESTS += ["test_transport_time", "test_call_ends", "test_call_answers", "test_transport_calls", "test_call_words",
              "test_call_faults"]
# crc32_generic: rxe asks for it by an alias. ib_uverbs before rdma_ucm: what was loaded last hears first that a device goes, and
# ib_uverbs waits for programs that only rdma_ucm has told of it.
MODULES = ["crc32_generic", "ib_uverbs", "rdma_ucm", "veth"]
PROVIDER = "/usr/lib/x86_64-linux-gnu/libibverbs/lib{}-rdmav34.so"
LIMIT_S = 360 if os.environ.get("GAIA_GATE") else 1200  # of tests/run.sh it may be six minutes
BENCH_LIMIT_S = 900
WIRE_LEAST = 20 << 20  # bytes that the tests move
PROGRAMS = len(TESTS) + 2  # before there is a device, and with little memory to lock
# Options of a mount whose faults go by RDMA, and what is to be seen of the path.
MOUNTS = (("fault=rdma,device_cache=1M,unit=64K", {"queues": 1}),
          (f"fault=rdma@{THERE},queues=2,depth=16,device_cache=1M,unit=4K", {"queues": 2, "depth": 16}),
          ("fault=rdma,unit=64K", {"queues": 1}), ("fault=rdma,unit=64K", {"queues": 1}))
# The last ones' device is a GPU, which is a stand-in (tests/cuda) whose memory an RDMA device can register by its address, as
# nvidia-peermem has it for real ones. What is mapped there is not evicted. What is written to the last one's goes nowhere: how many
# reads of the first file are under way until that is known is chance, so a second one is touched, all of which is copied.
SECOND = 1  # by the second device
GPU, LOST = len(MOUNTS) - 2, len(MOUNTS) - 1
LOST_PLACES = 1500 * 4096 // (512 << 10) + 1  # of a file of tool_touch.c, each of half a MiB
GPU_ENVIRONMENT = "LD_LIBRARY_PATH=/cuda GAIA_DEVICE=cuda:0 "
TURNS = 5
# name, bytes, reads of a turn, outstanding, perftest's program
ROWS = (("64 KiB", 65536, 400, 32, "ib_read_bw"), ("4 KiB", 4096, 2500, 64, "ib_read_bw"),
        ("one read of 64 KiB", 65536, 100, 1, "ib_read_lat"), ("one read of 4 KiB", 4096, 1000, 1, "ib_read_lat"))
# Faults: name, unit, bytes of the file, threads that touch, perftest's program, its reads. The first rows of GOALS are theirs, too.
FAULTS = (("64 KiB", 65536, 16 << 20, 8, "ib_read_bw", 400), ("4 KiB", 4096, 4 << 20, 16, "ib_read_bw", 2500),
          ("one read of 64 KiB", 65536, 4 << 20, 1, "ib_read_lat", 100), ("one read of 4 KiB", 4096, 1 << 20, 1, "ib_read_lat", 1000))
GOALS = {"64 KiB": ("at least 0.8", lambda ratio: ratio >= 0.8), "4 KiB": ("at least 0.7", lambda ratio: ratio >= 0.7),
         "one read of 64 KiB": ("at most 2", lambda ratio: ratio <= 2),
         "one read of 4 KiB": ("at most 2", lambda ratio: ratio <= 2)}


def built(*path):
    path = os.path.join(image.TOP, "build", "gcc", *path)
    if not os.path.exists(path):
        raise image.Unavailable(f"{os.path.relpath(path, image.TOP)} is not built (make tests)")
    return path


def network(kind="rxe"):
    with open(os.path.join(image.HERE, "rdma_network.sh")) as file:
        return f"kind={kind}\n{file.read()}"


def programs_and_files(kind="rxe"):
    """What the machine needs for RDMA, besides modules."""
    provider = PROVIDER.format(kind)
    if not os.path.exists(provider):
        raise image.Unavailable(f"no library of {kind} here (Debian: ibverbs-providers)")
    for tool in ("/usr/sbin/ip", "/usr/bin/rdma"):
        if not os.path.exists(tool):
            raise image.Unavailable(f"no {tool} here (Debian: iproute2)")
    # By its path: busybox has an ip that knows less.
    return ({"/usr/sbin/ip": "/usr/sbin/ip", "/bin/rdma": "/usr/bin/rdma"},
            {provider: provider, f"/etc/libibverbs.d/{kind}.driver": f"driver {kind}\n".encode()})


def perftest():
    """Debian's perftest, unpacked and not installed."""
    folder = image.unpack("perftest")
    for where in ("lib", "usr/lib"):
        found = os.path.join(image.unpack("libpci3"), where, "x86_64-linux-gnu")
        os.environ["LD_LIBRARY_PATH"] = f"{found}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return {f"/bin/{name}": os.path.join(folder, "usr", "bin", name) for name in ("ib_read_bw", "ib_read_lat")}


def boot(script, programs, files, limit_s, kind="rxe"):
    """The lines of the console of a machine that ran the script."""
    kernel, initramfs = image.build(programs, files, [*MODULES, siw.built() if kind == "siw" else "rdma_rxe"])
    with machine.Machine(kernel, initramfs, script, limit_s=limit_s) as guest:
        try:
            guest.wait()
        except AssertionError as problem:
            print(problem)
            raise
        return list(guest.lines)


def mounts_script():
    """For each mount: what a program that touches its file said, and what gaiactl did."""
    lines = ["mkdir /tmp/data /tmp/mnt"]
    for number, (options, _) in enumerate(MOUNTS):
        env = GPU_ENVIRONMENT if number >= GPU else ""
        touch = f"{env}tool_touch /tmp/mnt /tmp/data {number} {200 if rdma_nodes.GATE else 400}"
        lines += [f"{'STANDIN_CUDA=opaque=2 ' if number == LOST else ''}{env}mount.gaiafs /tmp/data /tmp/mnt -o {options} && {touch}",
                  *([f"{touch} second"] if number == LOST else []), f"echo stat {number}: $(gaiactl stat --json /tmp/mnt)", "gaiactl stat /tmp/mnt", "umount /tmp/mnt"]
    lines.append("mount.gaiafs /tmp/data /tmp/mnt -o fault=rdma,queues=16,depth=1024 && umount /tmp/mnt && echo most: mounted")
    lines.append("mount.gaiafs /tmp/data /tmp/mnt -o fault=rdma@192.0.2.1 && umount /tmp/mnt && echo 'failed: no such address'")
    return lines


def went_by_rdma(number, stat):
    """All of it, into what device it may be; or nothing of it had arrived, and it was noticed."""
    fault, first, last = stat["fault"], stat["devices"][0], stat["devices"][-1]
    if number == LOST:
        return fault["failed"] > 0 and fault["refused"] >= LOST_PLACES and last["gpudirect_faults"] == "unreachable"
    if fault["failed"] or fault["refused"] or not fault["reads"] or (last["evictions"] > 0) != (number != GPU):
        return False
    if number == GPU:
        return fault["bytes"] == 1500 * 4096 <= last["bytes_in"] and last["gpudirect_faults"] == "proven"
    return fault["bytes"] == first["bytes_in"]


def mounts_seen(lines):
    """(passed, failed): each mount's file had the right bytes, and they came by the path and the device that were asked for."""
    text = "\n".join(lines)
    touched = re.findall(r"^touched: (\d+) loads, 0 wrong$", text, re.M)
    refused = bool(re.search(r"fault=rdma: .*192\.0\.2\.1", text))
    most = "most: mounted" in lines
    good = 0
    for number, (options, wanted) in enumerate(MOUNTS):
        said = re.search(rf"^stat {number}: (\{{.*\}})$", text, re.M)
        stat = json.loads(said[1]) if said else {"fault": {}, "devices": [{}]}
        fault = stat["fault"]
        right = (fault.get("path") == "rdma" and all(fault.get(name) == value for name, value in wanted.items()) and
                 (number != SECOND or fault["device"].endswith("1")) and
                 number + (number == LOST) < len(touched) and went_by_rdma(number, stat))
        good += right
        if not right:
            print(f"failed: -o {options}: {len(touched)} of {len(MOUNTS) + 1} files had the right bytes; {fault}, {stat['devices'][-1]}")
        elif fault:
            print(f"-o {options}: {fault.get('reads')} reads, {fault.get('bytes', 0) >> 10} KiB, p50 "
                  f"{fault.get('latency_p50_ns', 0) / 1000:.0f} us, {fault.get('failed')} failed, {fault.get('refused')} copied")
    for said, what in (refused, "no such address"), (most, "the most queues"):
        if not said:
            print(f"failed: {what}")
    return good + refused + most, len(MOUNTS) - good + (not refused) + (not most)


# --- tests ----------------------------------------------------------------------------------------------------------

def test_script(only, kind):
    lines = ["GAIA_TEST_FILTER=test_no_device test_transport_devices" if not only else "", network(kind),
             "cat /sys/class/net/veth0/statistics/rx_bytes >/tmp/before"]
    seed = os.environ.get("GAIA_TEST_SEED")
    if seed:
        lines.append(f"export GAIA_TEST_SEED={seed}")
    if not only:
        for name in TESTS:
            lines += [f"{name} --carrier rdma {HERE} {THERE} || echo 'failed: {name}'", f"echo ended $(cut -d' ' -f1 /proc/uptime) {name}"]
        lines += mounts_script()
    lines += rdma_nodes.script(int(seed or time.time()), kind)
    lines += ["echo wire: $(cat /tmp/before) $(cat /sys/class/net/veth0/statistics/rx_bytes)",
              "dmesg | grep -E 'BUG:|Oops|WARNING:|blocked for more' && echo 'failed: the kernel complains'", "true"]
    return "\n".join(lines)


def unit_programs():
    """Made here, too: tests/run.sh makes most of them with sanitizers only."""
    paths = {f"/bin/{name}": os.path.join("build", "gcc", "tests", "cache" if name.startswith("test_fault_") else "io", name)
             for name in TESTS}
    subprocess.run(["make", "-s", "-C", image.TOP, "CC=gcc", "SANITIZE=", *paths.values()], check=True)
    return {name: os.path.join(image.TOP, path) for name, path in paths.items()}


def run_tests(only, kind):
    programs, files = programs_and_files(kind)
    programs.update(unit_programs())
    tree, more = image.tree()
    programs.update(tree)
    programs["/bin/tool_touch"] = built("tests", "vm", "tool_touch")
    programs["/cuda/libcuda.so.1"] = built("cuda", "libcuda.so.1")
    programs.update(rdma_nodes.programs())
    files.update(more)
    try:
        lines = boot(test_script(only, kind), programs, files, LIMIT_S, kind)
    except AssertionError:
        return 0, 1, 0
    text = "\n".join(lines)
    passed, failed, skipped = (sum(int(n) for n in re.findall(rf"\[  {word} \] (\d+) test", text))
                               for word in ("PASSED ", "FAILED ", "SKIPPED"))
    mounts = (0, 0) if only else mounts_seen(lines)
    nodes = rdma_nodes.judge(lines, kind)
    passed, failed = passed + mounts[0] + nodes[0], failed + mounts[1] + nodes[1]
    wire = re.search(r"^wire: (\d+) (\d+)", text, re.M)
    moved = int(wire[2]) - int(wire[1]) if wire else 0
    ends = len(re.findall(r"test\(s\) run\.", text))
    if moved < (0 if only else WIRE_LEAST) or ends != (0 if only else PROGRAMS) or (re.search(r"^failed: ", text, re.M) and not failed):
        print(f"{moved >> 20} MiB over the wire, {ends} of {PROGRAMS} programs came to their end")
        failed += 1
    if failed:
        print(text)
    else:
        print("\n".join(line for line in lines if re.search(r"test\(s\)|SKIPPED|reads failed|^ended ", line)))
        print(f"{moved >> 20} MiB over the wire between the two RDMA devices")
    return passed, failed, skipped


# --- bench ----------------------------------------------------------------------------------------------------------

def bench_script(spin_us):
    """In each turn theirs, ours, ours, theirs: what the machine does besides changes by the second."""
    lines, port = [network()], 20000
    for _ in range(TURNS):
        for number, (_, size, count, outstanding, program) in enumerate(ROWS):
            deep = f"-t {outstanding}" if program == "ib_read_bw" else ""
            peer = f"{program} -F -x 1 -s {size} -n {count} {deep}"
            theirs = [f"{peer} -d rxe1 >/tmp/peer 2>&1 &", "sleep 1",
                      f"echo perftest {number}: $({peer} -d rxe0 {THERE} 2>&1 | grep '^ {size} ')", "wait"]
            ours = []
            for _ in range(2):
                port += 1
                ours.append(f"echo pull {number}: $(tool_pull rdma {HERE}:0 {THERE}:{port} {size} {count} 1 {outstanding} "
                            f"{spin_us})")
            lines += theirs + ours + theirs
    return "\n".join(lines)


def faults_script():
    """In each turn theirs, ours, ours, theirs, as above."""
    lines = [network(), "mkdir /tmp/data /tmp/mnt"]
    for _ in range(TURNS):
        for number, (_, unit, size, threads, program, count) in enumerate(FAULTS):
            deep = f"-t {threads}" if program == "ib_read_bw" else ""
            peer = f"{program} -F -x 1 -s {unit} -n {count} {deep} -d rxe0"
            theirs = [f"{peer} >/tmp/peer 2>&1 &", "sleep 1",
                      f"echo perftest {number}: $({peer} {HERE} 2>&1 | grep '^ {unit} ')", "wait"]
            def ours(name, fault):
                return [f"mount.gaiafs /tmp/data /tmp/mnt -o fault={fault},unit={unit >> 10}K,device_cache=32M",
                        *[f"echo {name} {number}: $(tool_stream /tmp/mnt {size} {unit} {threads})"] * 2,
                        "gaiactl stat /tmp/mnt | grep faults:", "umount /tmp/mnt"]
            lines += theirs + ours("pull", f"rdma@{HERE}") + ours("copy", "copy") + theirs
    return "\n".join(lines)


def measure(lines):
    """{row number: (ours, perftest's, copied)} of lists, a number for each turn: bytes a second, or microseconds of the
    median."""
    found = {number: ([], [], []) for number in range(len(ROWS))}
    for line in lines:
        match = re.match(r"(perftest|pull|copy) (\d): (.+)", line)
        if not match:
            continue
        number = int(match[2])
        alone = ROWS[number][4] == "ib_read_lat"
        if match[1] != "perftest":
            said = json.loads(match[3])
            found[number][0 if match[1] == "pull" else 2].append(said["p50_us"] if alone else said["bytes_per_s"])
        else:  # MB are MiB there; a latency's fifth number is the typical one
            words = match[3].split()
            found[number][1].append(float(words[4]) if alone else float(words[3]) * (1 << 20))
    return {number: tuple([statistics.mean(pair) for pair in zip(side[::2], side[1::2])] for side in all_)
            for number, all_ in found.items()}


def judge(lines, table, what):
    """The rows of a table, from what the machine printed; printed. None: a turn is missing."""
    found, rows = measure(lines), []
    for number, (name, *_) in enumerate(table):
        outstanding, program = table[number][3], table[number][4]
        ours, theirs, copied = found[number]
        if len(ours) != TURNS or len(theirs) != TURNS:
            print("\n".join(lines))
            print(f"{what}, {name}: {len(ours)} and {len(theirs)} of {TURNS} turns")
            return None
        mine, base = statistics.median(ours), statistics.median(theirs)
        unit, scale = ("us", 1) if program == "ib_read_lat" else ("MB/s", 1e6)
        goal, met = GOALS[name]
        best = min(ours) / min(theirs) if program == "ib_read_lat" else max(ours) / max(theirs)
        rows.append({"measured": f"RDMA (Soft-RoCE in qemu), {what}, {name}, {outstanding} outstanding",
                     "value": f"{mine / scale:.1f} {unit}", "baseline": f"{program} {base / scale:.1f} {unit}",
                     "ratio": round(mine / base, 2), "ratio_of_the_best": round(best, 2), "goal": goal, "met": met(mine / base),
                     "ours": ours, "perftest": theirs})
        if copied:
            rows[-1] |= {"copied": copied, "ratio_to_copied": round(mine / statistics.median(copied), 2)}
        print(f"{what}, {name:20} {rows[-1]['value']:>12}  {rows[-1]['baseline']:>24}  ratio {rows[-1]['ratio']:5.2f} ({goal}), "
              f"of the best {best:.2f}, to copied {rows[-1].get('ratio_to_copied', '-')}  "
              f"ours {min(ours) / scale:.1f} to {max(ours) / scale:.1f}, theirs {min(theirs) / scale:.1f} to {max(theirs) / scale:.1f}")
    return rows


def run_bench(args):
    programs, files = programs_and_files()
    programs.update(perftest())
    programs["/bin/tool_pull"] = built("tests", "vm", "tool_pull")
    programs["/bin/tool_stream"] = built("tests", "vm", "tool_stream")
    programs.update(rdma_nodes.programs())
    tree, more = image.tree()
    programs.update(tree)
    files.update(more)
    rows = []
    for what, table, script in (("reads", ROWS, bench_script(args.spin)), ("faults", FAULTS, faults_script()),
                                ("nodes", FAULTS, network() + rdma_nodes.bench_script(FAULTS, TURNS, HERE, THERE))):
        if args.only in (None, what):
            lines = boot(script, programs, files, BENCH_LIMIT_S)
            judged = judge(lines, table, what)
            if judged is None:
                return 1
            rows += judged + (rdma_nodes.acquire_rows(lines, TURNS) if what == "nodes" else [])
    here = bench.describe(image.FOLDER)
    here["guest"] = f"{image.kernel_package()}, qemu tcg, 2 processors, two rxe devices and a veth pair of MTU 4500"
    name = "build/bench-rdma.json"
    if args.save:
        name = os.path.relpath(bench.result_path(args, here), image.TOP).replace(".json", f"-rdma{'-' + args.only if args.only else ''}.json")
    with open(os.path.join(image.TOP, name), "w") as file:
        json.dump({"machine": here, "date": datetime.date.today().isoformat(), "turns": TURNS, "spin_us": args.spin,
                   "rows": rows}, file, indent=1)
        file.write("\n")
    print(f"written to {name}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--save", action="store_true", help="keep the results in tests/bench/results")
    parser.add_argument("--only", choices=("reads", "faults", "nodes"), help="a part of the rows; of the tests: nodes")
    parser.add_argument("--device", choices=("rxe", "siw"), default="rxe", help="Soft-RoCE; or for the tests Soft-iWARP")
    parser.add_argument("--spin", type=int, default=0, help="microseconds for which a poll looks before it sleeps")
    args = parser.parse_args()
    passed, failed, skipped = 0, 0, 0
    try:
        machine.check()
        if args.bench:
            return run_bench(args)
        passed, failed, skipped = run_tests(args.only, args.device)
    except image.Unavailable as problem:
        print(f"skipped: no virtual machine here: {problem}")
        skipped = 1
    if not args.bench:
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
