#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL for daemons and clients, at random and at the calls that change something; then what the promises table says.

Ends with one line, `N passed, N failed`: each kill is one of them. README.md has more.
"""
import argparse
import collections
import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import clients
import daemons
from clients import CLIENT_KILLS, ClientBatch
from daemons import DAEMON_SITES, DaemonBatch, Tally
from mounts import HERE, TOP

BATCH = 16


# --- main -----------------------------------------------------------------------------------------------------------

def prepare_lane():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def run_batch(args, kind, seed, kills):
    folder = tempfile.mkdtemp(prefix="gaiafs-kills-", dir=args.dir)
    try:
        tally = {"daemon": DaemonBatch, "client": ClientBatch}[kind](args, seed, kills, folder).run()
    except Exception as problem:  # pylint: disable=broad-except
        tally = Tally()
        tally.failures.append(f"{kind}: {type(problem).__name__} {problem}")
    tally.failures = [f"seed {seed} ({folder}): {text}" for text in tally.failures]
    if not tally.failures:
        shutil.rmtree(folder, ignore_errors=True)
    return tally


def draw(rng, choices, count):
    """So many of them, each as often as the others."""
    drawn = []
    while len(drawn) < count:
        drawn += rng.sample(choices, len(choices))
    return drawn[:count]


def batches(args, rng):
    """(kind, seed, kills) of every batch."""
    of_clients = args.kills * 9 // 20 if args.clients is None else args.clients
    kills = {"daemon": draw(rng, DAEMON_SITES + [None] * (len(DAEMON_SITES) // 4), args.kills - of_clients),
             "client": draw(rng, CLIENT_KILLS, of_clients)}
    found = [(kind, rng.getrandbits(60), some[i:i + BATCH]) for kind, some in kills.items()
             for i in range(0, len(some), BATCH)]
    rng.shuffle(found)
    return found


def drawn_names(drawn):
    names = {"daemon": daemons.name_of, "client": lambda kill: clients.name_of(*kill)}
    return collections.Counter(names[kind](kill) for kind, _, kills in drawn for kill in kills)


def never_reached(tally, drawn):
    """The sites at which no kill has landed in the whole run: what happens there is not tested any more."""
    if tally.failures:  # which end their batches
        return []
    return sorted(name for name in drawn_names(drawn) if not tally.landed[name])


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--kills", type=int, default=560, help="how many (560)")
    add("--clients", type=int, help="how many of them of clients (9 of 20)")
    add("--least", type=int, help="how many must have landed where they should (9 of 10)")
    add("--seed", type=int, help="repeats the programs and the sites of a run, though not the order in time")
    add("--lanes", type=int, default=2, help="mounts side by side (2)")
    add("--faults", default=os.path.join(TOP, "build", "gcc", "faults"), help="where the programs with the table are")
    add("--worker", default=os.path.join(TOP, "build", "kills", "worker"))
    add("--dir", default=os.environ.get("GAIA_TEST_DIR", "/var/tmp"), help="where folders are mounted")
    args = parser.parse_args()
    args.daemon = os.path.join(os.path.abspath(args.faults), "mount.gaiafs")
    args.seed = args.seed or int.from_bytes(os.urandom(4), "little") or 1
    args.least = args.kills * 9 // 10 if args.least is None else args.least
    return args


def main():
    args = parse()
    if os.geteuid():
        sys.exit("run.py: mounting needs root")
    subprocess.run(["make", "-s", "-C", HERE], check=True)
    print(f"seed {args.seed}", flush=True)
    started, tally, drawn = time.monotonic(), Tally(), batches(args, random.Random(args.seed))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run.py: terminated"))
    with concurrent.futures.ProcessPoolExecutor(args.lanes, initializer=prepare_lane) as pool:
        try:
            for done in concurrent.futures.as_completed([pool.submit(run_batch, args, *batch) for batch in drawn]):
                result = done.result()
                tally.add(result)
                for text in result.failures:
                    print(f"FAILED {text}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # a batch under way ends in order: nothing is left mounted
            raise
    for what, count in sorted(tally.landed.items()):
        print(f"{count:6} {what}")
    print("their site not reached, killed all the same: "
          + (", ".join(f"{what} {count}" for what, count in sorted(tally.elsewhere.items())) or "none"))
    print("clients died inside: " + ", ".join(f"{what} {count}" for what, count in sorted(tally.inside.items())))
    passed = sum(tally.landed.values())
    landed = passed + len(tally.failures)
    print(f"{landed} kills landed among {tally.operations} operations in {time.monotonic() - started:.0f} s")
    never = never_reached(tally, drawn)
    for name in never:
        print(f"FAILED {name}: no kill has landed there")
    failed = len(tally.failures) + len(never) + (landed < args.least)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
