# SPDX-License-Identifier: Apache-2.0
"""Print a table of what fio measured: table.py WORKLOAD=FILE.json ..."""

import json
import sys


def load(path):
    """The JSON in fio's output; notes may stand before it."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return json.loads(text[text.index("{"):])


def measure(path):
    """MB/s, IOPS and the mean latency in microseconds, reads and writes together."""
    job = load(path)["jobs"][0]
    if job["error"] != 0:
        raise ValueError(f"fio ended with error {job['error']}")
    sides = [job[name] for name in ("read", "write") if job[name]["total_ios"] > 0]
    if not sides:
        raise ValueError("fio did nothing")
    operations = sum(side["total_ios"] for side in sides)
    latency_ns = sum(side["lat_ns"]["mean"] * side["total_ios"] for side in sides) / operations
    return (sum(side["bw_bytes"] for side in sides) / 1e6, sum(side["iops"] for side in sides), latency_ns / 1e3)


def main(arguments):
    print(f"{'workload':<12} {'MB/s':>10} {'IOPS':>10} {'latency us':>11}")
    wrong = 0
    for argument in arguments:
        workload, path = argument.split("=", 1)
        try:
            bandwidth, iops, latency = measure(path)
        except (OSError, ValueError, KeyError) as error:
            print(f"{workload:<12} FAILED: {error}")
            wrong = 1
            continue
        print(f"{workload:<12} {bandwidth:>10.1f} {iops:>10.0f} {latency:>11.1f}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
