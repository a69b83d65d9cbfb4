#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check the model in gaiafs.pml with spin: every configuration as it should be, then with one rule broken at a time.

--gate takes one to two minutes, --full twenty to thirty. A search that did not reach every state is a failure.
Ends with one line `N passed, N failed`. With --keep the generated checkers and the trails of errors stay.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
MODEL = os.path.join(HERE, "gaiafs.pml")
DEPTH = 100000
MEMORY_MIB = 8192

# What must pass: name, macros, whether the gate runs it.
CONFIGURATIONS = (
    ("device", "", True),
    ("two-devices", "ND=2 STORES=1 OPS=1", True),
    ("storing-mapping", "HAS_S=2", True),
    ("writer", "HAS_W=1", True),
    ("writer-two-readers", "HAS_W=2 NR=2 STORES=1 OPS=1", True),
    ("writer-older-kernel", "HAS_W=2 SHOWS_LOCKED STORES=1 OPS=1", True),
    ("writer-answered-late", "HAS_W=2 LATE STORES=1 OPS=1", True),
    ("whole-page-writer", "HAS_W=1 WHOLE", True),
    ("everybody", "HAS_W=1 HAS_S=1 STORES=1 OPS=1", True),
    ("two-devices-storing-mapping", "ND=2 HAS_S=1 STORES=1 OPS=1 NO_ACQUIRE", True),
    ("write-over-two-pages", "NP=2 SPAN HAS_W=1 STORES=1 OPS=1", False),
    ("direct-reads", "HAS_S=1 DIRECT=2 STORES=1", True),
    ("eviction", "EVICTION=2 HAS_S=1 OPS=1", True),
    ("capacity", "NP=2 CAPACITY=1 EVICTION=1 THREADS=0 STORES=2 OPS=1", True),
    ("truncate-a-page", "NP=2 TRUNC HAS_S=1", True),
    ("truncate-in-a-page", "TRUNC HAS_S=1", True),
    ("death", "DEATH EVICTION=1", True),
    ("two-devices-writer", "ND=2 HAS_W=1 STORES=1 OPS=1 OPS1=0", False),
    ("two-devices-eviction", "ND=2 EVICTION=1 STORES=1 OPS=1", False),
    ("truncate-two-devices", "TRUNC ND=2 STORES=1 OPS=1 OPS1=0", False),
    ("truncate-eviction", "TRUNC EVICTION=1 OPS=1", True),
    ("truncate-writer", "TRUNC HAS_W=1 STORES=1 OPS=1", True),
    ("death-everybody", "DEATH HAS_W=1 HAS_S=1 STORES=1 OPS=1", False),
    ("race", "RACE ND=2 STORES=2 STORES1=1 OPS=1", True),
    ("two-devices-twice", "ND=2 STORES=1", False),
    ("writer-twice", "HAS_W=2", False),
    ("whole-page-writer-twice", "HAS_W=2 WHOLE", False),
    ("everybody-twice", "HAS_W=2 HAS_S=1 STORES=1", False),
    ("everybody-late", "HAS_W=2 HAS_S=1 LATE STORES=1", False),
    ("everybody-reads-just-answered", "HAS_W=2 HAS_S=1 RECENT_ANY STORES=1", False),
    ("two-devices-storing-mapping-acquire", "ND=2 HAS_S=1 STORES=1 OPS=1", False),
    ("write-over-two-pages-twice", "NP=2 SPAN HAS_W=1 STORES=1", False),
    ("direct-reads-writer", "DIRECT=1 HAS_W=1 HAS_S=1 STORES=1 OPS=1", False),
    ("eviction-writer", "EVICTION=1 HAS_W=1 OPS=1", False),
    ("capacity-two-threads", "NP=2 CAPACITY=1 EVICTION=1 THREADS=1 STORES=1", False),
    ("truncate-a-page-writer", "NP=2 TRUNC HAS_W=2", False),
    ("truncate-a-page-storing-mapping", "NP=2 TRUNC HAS_S=2", False),
    ("death-two-devices", "DEATH ND=2 STORES=1 OPS=1 EVICTION=1", False),
    ("two-pages-two-devices", "NP=2 ND=2 STORES=1 OPS=1 NO_ACQUIRE", False),
    ("two-devices-writer-twice", "ND=2 HAS_W=1 STORES=1 OPS=1 NO_ACQUIRE", False),
    ("two-devices-everybody", "ND=2 HAS_W=1 HAS_S=1 STORES=1 OPS=1 OPS1=0 NO_ACQUIRE", False),
    ("truncate-two-devices-twice", "TRUNC ND=2 STORES=1 OPS=1", False),
    ("truncate-eviction-writer", "TRUNC EVICTION=1 HAS_W=1 STORES=1 OPS=1", False),
    ("truncate-a-page-two-devices", "NP=2 TRUNC ND=2 STORES=1 OPS=1", False),
    ("truncate-a-page-eviction", "NP=2 TRUNC EVICTION=1 HAS_S=1 STORES=1 OPS=1", False),
    ("death-two-devices-writer", "DEATH ND=2 HAS_W=1 STORES=1 OPS=1 OPS1=0", False),
    ("death-truncate-eviction", "DEATH TRUNC EVICTION=1 STORES=1 OPS=1", False),
    ("death-truncate-eviction-two-devices-writer", "DEATH TRUNC EVICTION=1 ND=2 HAS_W=1 STORES=1 OPS=0", False),
    ("race-twice", "RACE ND=2 STORES=2 STORES1=1", False),
    ("race-eviction", "RACE ND=2 EVICTION=1 STORES=1 OPS=1", False),
    ("race-storing-mapping", "RACE ND=2 HAS_S=1 STORES=1 OPS=1 NO_ACQUIRE", False),
    ("race-writer", "RACE ND=2 HAS_W=1 STORES=1 OPS=1 OPS1=0", False),
)

# What must be caught: the broken rule, and the configuration that it is broken in.
VARIANTS = (
    ("TWIN_MERGED", "HAS_W=1"),
    ("TWIN_KEPT", "HAS_W=2 WHOLE"),
    ("READ_NO_COLLECT", ""),
    ("WRITE_NO_COLLECT", "HAS_W=2 WHOLE"),
    ("GRANT_NO_COLLECT", "ND=2 STORES=1"),
    ("EVICT_NO_RELEASE", "EVICTION=1"),
    ("NO_CPU_RELEASE", "HAS_W=1"),
    ("ACQUIRE_NO_DROP", "HAS_W=1"),
    ("ACQUIRE_DROPS_STORES", "HAS_W=1"),
    ("NO_INVALIDATE", ""),
    ("EARLY_PENDING", "HAS_S=1 HAS_W=1 STORES=1"),
    ("WRITEBACK_COLLECTS", "HAS_S=1"),
    ("DIRECT_COLLECTS", "HAS_S=1 DIRECT=1 STORES=1"),
    ("NO_TOUCHED", "HAS_W=2 WHOLE"),
    ("NO_WAIT", "ND=2 HAS_S=1 STORES=1 NO_ACQUIRE"),
    ("NO_HEAL", "HAS_W=1"),
    ("HEAL_NOT_RECENT", "HAS_W=2"),
    ("NO_REAPPLY", "HAS_S=1 HAS_W=1 STORES=1"),
    ("LOOK_TRUSTS", "HAS_W=1 HAS_S=1 LATE STORES=1 OPS=1"),
    ("DIRECT_IS_REREAD", "DIRECT=1 HAS_W=1 HAS_S=1 STORES=1 OPS=1"),
    ("TRUNC_KEEPS", "TRUNC"),
    ("NO_WAKE", ""),
    ("DEATH_FORGETS", "DEATH"),
    ("COLLECT_ORDER", "RACE ND=2 STORES=1 OPS=1"),
    ("FIRST_WINS", "RACE ND=2 STORES=1 OPS=1"),
    ("OWN_IS_NEWER", "RACE ND=2 STORES=1 OPS=1"),
    ("REAPPLY_OVER", "HAS_W=2 HAS_S=1 RECENT_ANY DIRECT=0 STORES=1 OPS=1"),
)

# Searches of several seconds.
LARGE = ("write-over-two-pages", "two-devices-writer", "two-devices-eviction", "truncate-two-devices", "truncate-writer",
         "death-everybody", "race")

# Configurations whose state graph must have no cycle: then a state in which somebody is stuck shows as an end state,
# however busy the others are.
ACYCLIC = ("device", "two-devices", "writer", "writer-answered-late", "whole-page-writer", "everybody", "eviction",
           "truncate-a-page", "truncate-in-a-page", "death", "race")


def macros_of(text):
    return ["-D" + word for word in text.split()]


def command(arguments, folder, limit_s):
    """Run a command: its output, or None when it took too long."""
    try:
        done = subprocess.run(arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=limit_s, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        return None
    return done.stdout


def build(name, macros, options, folder):
    """Generate and compile the checker of one configuration: None, or what went wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    output = command(["spin", "-a"] + macros_of(macros) + [MODEL], folder, 60)
    if not os.path.exists(os.path.join(folder, "pan.c")):
        return "spin -a: " + str(output)
    output = command(["gcc"] + options + [f"-DMEMLIM={MEMORY_MIB}", "-o", "pan", "pan.c"], folder, 180)
    if not os.path.exists(os.path.join(folder, "pan")):
        return "gcc: " + str(output)
    return None


def number(pattern, text):
    found = re.search(pattern, text)
    return int(found.group(1)) if found else -1


def search(name, macros, options, arguments, args):
    """Build and run: (errors, states, depth, seconds, why it does not count)."""
    folder = os.path.join(args.work, name)
    start = time.monotonic()
    problem = build(name, macros, options, folder)
    if problem:
        return -1, -1, -1, 0, problem
    output = command(["./pan", f"-m{DEPTH}", "-n"] + arguments, folder, args.limit)
    seconds = time.monotonic() - start
    if output is None:
        return -1, -1, -1, seconds, f"not done after {args.limit} s"
    errors = number(r"errors: (\d+)", output)
    states = number(r"(\d+) states, stored", output)
    depth = number(r"depth reached (\d+)", output)
    why = None
    if errors < 0 or states < 0:
        why = "no result:\n" + output[-2000:]
    elif errors == 0 and re.search(r"Search not completed|max search depth too small|out of memory|-DMEMLIM", output):
        why = "not every state was reached"
    elif errors > 0:
        found = re.search(r"pan:1: (assertion violated|invalid end state|non-progress cycle)", output)
        why = found.group(1) if found else "an error that is none of the model's:\n" + output[-2000:]
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return errors, states, depth, seconds, why


def optimized(name, args):
    """Most searches of the gate take less time than gcc's optimizer."""
    return "-O1" if args.full or name in LARGE else "-O0"


def report(good, text, counts):
    counts[0 if good else 1] += 1
    print(("ok   " if good else "FAIL ") + text, flush=True)


def check(name, macros, args, counts):
    options = ["-w", "-DSAFETY"] + (["-O2", "-DCOLLAPSE"] if args.full else [optimized(name, args)])
    errors, states, depth, seconds, why = search(name, macros, options, [], args)
    good = errors == 0 and why is None
    report(good, f"model/{name}   {states} states, depth {depth}, {seconds:.1f} s" + ("" if good else f": {why}"), counts)


def check_cycles(name, macros, args, counts):
    errors, states, depth, seconds, why = search(name + "-ends", macros, ["-w", "-O2", "-DNP", "-DCOLLAPSE"], ["-l"], args)
    good = errors == 0 and why is None
    report(good, f"model/{name}-ends   no cycle in {states} states, depth {depth}, {seconds:.1f} s"
           + ("" if good else f": {why}"), counts)


def check_variant(rule, macros, args, counts):
    # The last process first: one error is enough, and that way it is met a hundred times sooner.
    options = ["-w", "-DSAFETY", "-DREVERSE", optimized(rule, args)]
    errors, states, depth, seconds, why = search("BREAK_" + rule, f"{macros} BREAK_{rule}", options, [], args)
    good = errors > 0 and why in ("assertion violated", "invalid end state")
    report(good, f"model/BREAK_{rule}   " + (f"caught: {why}, after {states} states, {seconds:.1f} s" if good else
                                             f"not caught: {why or 'no error'}"), counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gate", action="store_true", help="the bound of the gate (the default)")
    parser.add_argument("--full", action="store_true", help="everything")
    parser.add_argument("--select", default="", metavar="TEXT", help="only what has this in its name, of everything")
    parser.add_argument("--limit", type=int, default=0, metavar="S", help="seconds for one search (60; with --full 1800)")
    parser.add_argument("--keep", action="store_true", help="keep build/model: checkers, and trails of errors")
    args = parser.parse_args()
    args.limit = args.limit or (1800 if args.full else 60)
    args.work = os.path.join(TOP, "build", "model")
    counts = [0, 0]
    for program in ("spin", "gcc"):
        if not shutil.which(program):
            print(f"FAIL model   no {program} (Debian: spin, gcc)")
            print("0 passed, 1 failed")
            return 1
    for name, macros, gate in CONFIGURATIONS:
        if (gate or args.full or args.select) and args.select in name:
            check(name, macros, args, counts)
    for rule, macros in VARIANTS:
        if args.select in "BREAK_" + rule:
            check_variant(rule, macros, args, counts)
    for name, macros, _ in CONFIGURATIONS:
        if name in ACYCLIC and (args.full or args.select) and args.select in name + "-ends":
            check_cycles(name, macros, args, counts)
    if not args.keep:
        shutil.rmtree(args.work, ignore_errors=True)
    print(f"{counts[0]} passed, {counts[1]} failed")
    return 1 if counts[1] or not counts[0] else 0


if __name__ == "__main__":
    sys.exit(main())
