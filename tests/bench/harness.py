# SPDX-License-Identifier: Apache-2.0
"""What the rows of make bench share: processes, mounts, the table."""
import contextlib
import json
import os
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
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
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
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

    def data_folder(self, second=None):
        """The data directory, or a second one, which mounts that are there at the same time need."""
        path = os.path.join(self.folder, second) if second else self.data
        os.makedirs(path, exist_ok=True)
        return path

    def mount(self, options="device_cache=1200M", second=None):
        """What devices do is measured on files of which every write is seen, as is the default with libfuse before 3.17."""
        self.mounts += 1
        path = os.path.join(self.folder, f"mnt{self.mounts}")
        return Mount([os.path.join(self.bin, "mount.gaiafs"), "-f", self.data_folder(second), path,
                      "-o", "passthrough=off", "-o", options], path, os.path.join(self.folder, f"log{self.mounts}"))

    def make(self, name, size, second=None):
        """A file of the pattern that the programs check, in the host's memory; its path in the data directory."""
        path = os.path.join(self.data_folder(second), name)
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


def place(pid, cpus):
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), cpus)


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
