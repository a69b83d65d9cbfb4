#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fio on a folder of the disk, and on the same folder through gaiafs and through libfuse's passthrough_ll, in turns.

    sudo sh examples/fio/run.sh [--quick]

Prints a table of medians and of ratios to the folder itself, writes the numbers as JSON and the ratios as a bar chart
(SVG, with gnuplot). A row is measured in all columns one after the other, in an order that changes from round to round,
before the next row begins: what else the machine does meets all of them alike. rows.py says what each row is.
"""
import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

import chart
from columns import Bench, Broken
from rows import GOALS, ROWS

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))

MEANING = """\
A ratio is a rate over that of the same folder without a mount, in the same run: 1.00 costs nothing, 0.50 is half
as fast. Small requests that the kernel must hand to a daemon cost two switches between processes: 10 to 50 us, beside
1 us of a plain system call, and no FUSE filesystem without kernel passthrough escapes that: compare passthrough_ll,
which does nothing but pass on. What the kernel answers from its own cache ("cached", "again") costs nobody a request.
Direct rows of gaiafs may exceed 1: the daemon reads and writes the folder's files through its page cache.
"tracked" is a file that a device has mapped, "untracked" any other, or "passthrough" where the kernel reads and writes
those by itself (-o passthrough=on, Linux 6.9). The second table is processor time per operation,
program and daemon together; it depends less than rates do on what else the machine does."""


def machine(folder):
    done = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=False)
    try:
        commit = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"], capture_output=True, text=True,
                                check=False).stdout.strip()
    except FileNotFoundError:  # a machine without git measures, too
        commit = ""
    return {"date": datetime.date.today().isoformat(), "kernel": platform.release().split("-")[0],
            "cores": os.cpu_count(), "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "file_system": done.stdout.strip(), "commit": commit, "load_at_start": os.getloadavg()[0]}


def measure(bench, rows, rounds):
    """{row: {column: [sample of each round]}}"""
    samples = {row.name: {column: [] for column in bench.columns if row.applies(column) and bench.has(column)}
               for row in rows}
    for number in range(rounds):
        for row in rows:
            columns = list(samples[row.name])
            turn = number % len(columns)
            for column in columns[turn:] + columns[:turn]:
                try:
                    samples[row.name][column].append(row.run(bench, column, number))
                except Broken as error:
                    if column != "passthrough_ll":
                        raise
                    # libfuse 3.14's refuses direct writes: its buffers are not aligned.
                    bench.missing.append(f"passthrough_ll {row.name}: {error}")
                    del samples[row.name][column]
        print(f"round {number + 1} of {rounds} is done", file=sys.stderr, flush=True)
    return samples


def judge(rows, samples):
    """A list of the rows' medians and ratios, as the JSON has them."""
    results = []
    for row in rows:
        medians = {column: {key: statistics.median(sample[key] for sample in taken) for key in taken[0]}
                   for column, taken in samples[row.name].items()}
        native = [sample["rate"] for sample in samples[row.name]["native"]]
        # Each to the native one of its own round: what else the machine does changes between rounds.
        ratios = {column: statistics.median(sample["rate"] / base for sample, base in zip(taken, native))
                  for column, taken in samples[row.name].items()}
        results.append({"row": row.name, "text": row.text, "unit": row.unit,
                        "columns": {column: {**median, "ratio": ratios[column]} for column, median in medians.items()},
                        "rates": {column: [sample["rate"] for sample in taken]
                                  for column, taken in samples[row.name].items()}})
    return results


def human(value):
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.{2 if value < 10 * limit else 1 if value < 100 * limit else 0}f}{unit}"
    return f"{value:.0f}"


def print_tables(results, columns):
    others = [column for column in columns if column != "native"]
    print(f"\n{'':<44}{'native':>11}" + "".join(f"{column:>20}" for column in others))
    for r in results:
        line = f"{r['text']:<44}{human(r['columns']['native']['rate']) + r['unit']:>11}"
        for column in others:
            c = r["columns"].get(column)
            line += f"{human(c['rate']) + r['unit']:>13}{c['ratio']:>7.2f}" if c else f"{'':>20}"
        print(line)
    print(f"\n{'processor time of an operation, us':<44}{'native':>11}" +
          "".join(f"{column:>20}" for column in others))
    for r in results:
        line = f"{r['text']:<44}{r['columns']['native']['cpu_us']:>11.1f}"
        for column in others:
            c = r["columns"].get(column)
            line += f"{c['cpu_us']:>20.1f}" if c else f"{'':>20}"
        print(line)


def markdown(results, columns):
    """The table of docs/performance.md: rates (ratios), then processor time in microseconds. A ratio below its
    goal is in bold."""
    names = " | ".join(columns)
    lines = [f"| | {names} | CPU us/op: {names} |", "|---" * (2 * len(columns) + 1) + "|"]
    for r in results:
        cells = [r["text"]]
        for column in columns:
            c = r["columns"].get(column)
            ratio = f"{c['ratio']:.2f}" if c else ""
            goal = GOALS.get(r["row"], {}).get(column)
            if c and goal and c["ratio"] < goal <= round(c["ratio"], 2):
                ratio = f"{c['ratio']:.3f}"
            if c and goal:
                ratio = f"{ratio}, goal {goal}" if c["ratio"] >= goal else f"**{ratio}**, goal {goal}"
            cells.append("" if not c else human(c["rate"]) + r["unit"] + (f" ({ratio})" if column != "native" else ""))
        cells += [f"{r['columns'][column]['cpu_us']:.1f}" if column in r["columns"] else "" for column in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small files, one round: shows that it works")
    parser.add_argument("--rounds", type=int, help="how often each row is measured (5; with --quick 1)")
    parser.add_argument("--only", action="append", metavar="ROW", help="rows whose names begin so; may be repeated")
    parser.add_argument("--list", action="store_true", help="say which rows there are")
    parser.add_argument("--folder", default="/var/tmp", help="where to work, on the disk to be measured (/var/tmp)")
    parser.add_argument("--output", default=os.path.join(TOP, "build", "fio"), help="where the results go (build/fio)")
    args = parser.parse_args()
    rows = [row for row in ROWS if not args.only or any(row.name.startswith(name) for name in args.only)]
    if args.list or not rows:
        print("\n".join(f"{row.name:<26}{row.text}" for row in ROWS))
        return 0 if args.list else 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rounds = args.rounds or (1 if args.quick else 5)
    folder = os.path.realpath(tempfile.mkdtemp(prefix="gaiafs-fio-", dir=args.folder))
    try:
        about = machine(folder)
        with Bench(folder, args.quick) as bench:
            results = judge(rows, measure(bench, rows, rounds))
            about["skipped"], columns = bench.missing, bench.columns
    except (Broken, OSError) as error:
        print(f"fio: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about["load_at_end"] = os.getloadavg()[0]
    print_tables(results, columns)
    print("\n" + MEANING)
    os.makedirs(args.output, exist_ok=True)
    path = os.path.join(args.output, "matrix.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"machine": about, "quick": args.quick, "rounds": rounds, "rows": results}, file, indent=1)
        file.write("\n")
    with open(os.path.join(args.output, "matrix.md"), "w", encoding="utf-8") as file:
        file.write(markdown(results, columns))
    print(f"\nwritten: {path}, and matrix.md beside it")
    drawn = chart.draw(results, columns, os.path.join(args.output, "matrix.svg"))
    print(f"written: {drawn}" if drawn else "no chart: gnuplot is missing (Debian: apt-get install gnuplot-nox)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
