#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Look at what the daemon of a mount does, event by event (docs/tracing.md), with bpftrace.

  gaiatrace.py faults MOUNTPOINT      how long touches waited, and for what: a table
  gaiatrace.py timeline MOUNTPOINT    JSON for ui.perfetto.dev, or chrome://tracing
  gaiatrace.py offsets MOUNTPOINT     which parts of files were placed, evicted, collected when: a picture (SVG, with gnuplot)
  gaiatrace.py events MOUNTPOINT      the events themselves, a line of JSON each

Ends with Ctrl-C, after --seconds, or with the command after --. Needs root, and bpftrace.
"""
import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = 4096
SOFT_MAX, NODES_FROM = 64, 64 + 16  # consistency/page.h
FIRST_PID_NAMESPACE = 0xEFFFFFFC  # its inode, as Linux has fixed it
# The arguments of each event, as cache/trace.h has them.
EVENTS = {
    "fault": ("inode", "device", "page", "thread", "touch"),
    "served": ("inode", "device", "page", "how"),
    "place": ("inode", "device", "page", "count", "source"),
    "placed": ("inode", "device", "page", "count", "error"),
    "ahead": ("inode", "device", "page", "count"),
    "acquire": ("inode", "device", "page", "count"),
    "acquired": ("inode", "device", "page", "count", "error"),
    "release": ("inode", "device", "page", "count"),
    "released": ("inode", "device", "page", "count", "error"),
    "collected": ("inode", "page", "count", "changed", "error"),
    "dropped": ("inode", "device", "page", "count", "why", "error"),
    "renewed": ("inode", "device", "page", "count"),
}
NAMES = {
    "touch": ("load", "store", "trapped store"),
    "how": ("placed", "shown", "let through", "again", "left", "refused"),
    "source": ("memory", "storage"),
    "why": ("stale", "evicted", "advised"),
}
COLOURS = {"placed": "#1f77b4", "evicted": "#d62728", "stale": "#ff7f0e", "collected": "#2ca02c", "renewed": "#9467bd"}


def fail(text):
    sys.exit(f"gaiatrace.py: {text}")


# --- the daemon's events ---------------------------------------------------------------------------------------------

def find_gaiactl():
    """That of the tree, if there is one: it is of the same version as this program."""
    built = os.path.join(HERE, "..", "..", "gaiactl")
    return built if os.path.exists(built) else shutil.which("gaiactl") or fail("no gaiactl: run make, or make install")


def find_daemon(mountpoint):
    told = subprocess.run([find_gaiactl(), "stat", "--json", mountpoint], capture_output=True, text=True)
    if told.returncode:
        fail(told.stderr.strip() or f"{mountpoint}: no mount of gaiafs")
    return json.loads(told.stdout)["pid"]


def parse(line):
    """An event as a dictionary, or None."""
    words = line.split()
    names = EVENTS.get(words[2]) if len(words) > 2 else None
    if not names or len(words) != 3 + len(names):
        return None
    event = {"ns": int(words[0]), "event": words[2], "daemon_thread": int(words[1])}
    for name, word in zip(names, words[3:]):
        value = int(word)
        if name == "error":  # a 32-bit number that bpftrace may have taken to be larger
            value = (value + (1 << 31)) % (1 << 32) - (1 << 31)
        event[name] = NAMES[name][value] if name in NAMES and value < len(NAMES[name]) else value
    return event


class Recording:
    """The events from the begin of `with` on. Lines are read by a thread, as bpftrace stops when nobody reads."""

    def __init__(self, pid):
        self.pid, self.lines, self.ready = pid, [], threading.Event()
        self.errors = tempfile.TemporaryFile("w+")
        with open(os.path.join(HERE, "events.bt")) as file:
            script = file.read().replace("PROGRAM", f"/proc/{pid}/exe")
        own = []
        if os.stat("/proc/self/ns/pid").st_ino != FIRST_PID_NAMESPACE:
            # In a container bpftrace's pid may be another number than ours. (Its -p does not find a program that was replaced.)
            script, own = script.replace("/pid == $1/", ""), ["-p", str(pid)]
        # Events come in bursts.
        environment = {"BPFTRACE_PERF_RB_PAGES": "1024", **os.environ}
        # In a session of its own: a Ctrl-C is for this program, which then tells it.
        self.tracer = subprocess.Popen(["bpftrace", "-B", "line", *own, "-e", script, str(pid)], stdout=subprocess.PIPE,
                                       stderr=self.errors, text=True, env=environment, start_new_session=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.tracer.stdout:
            if line.startswith("ready"):
                self.ready.set()
            else:
                self.lines.append(line)

    def __enter__(self):
        try:
            if self.is_ready(60):
                return self
        except KeyboardInterrupt:
            self.__exit__()
            sys.exit(130)
        self.__exit__()
        fail(f"bpftrace could not begin:\n{self.said()}")

    def __exit__(self, *_):
        """However it ends: whatever is left of the tracer would keep this program."""
        self.tracer.kill()
        self.reader.join()
        self.tracer.wait()

    def is_ready(self, patience_s):
        for _ in range(patience_s * 10):
            if self.ready.wait(0.1):
                return True
            if self.tracer.poll() is not None:
                break
        return False

    def said(self):
        self.errors.seek(0)
        return self.errors.read().strip()

    def end(self):
        """(events in the order of their times, how many were lost)."""
        for _ in range(2):  # bpftrace has read by then what each processor had for it; it ends without that
            self.ready.clear()
            self.is_ready(60)
        if self.tracer.poll() is None:
            self.tracer.send_signal(signal.SIGINT)
        self.reader.join()
        self.tracer.wait()
        lost = sum(int(line.split()[1]) for line in self.lines + self.said().splitlines() if line.startswith("Lost "))
        return sorted(filter(None, map(parse, self.lines)), key=lambda event: event["ns"]), lost


def wait_for_end(seconds, command, pid):
    """The exit status of the command, or 0. Without one: until the daemon with this PID has gone, at most."""
    try:
        if command:
            return subprocess.run(command, timeout=seconds).returncode
        end = None if seconds is None else time.monotonic() + seconds
        while os.path.exists(f"/proc/{pid}") and (end is None or time.monotonic() < end):
            time.sleep(0.1 if end is None else max(0, min(0.1, end - time.monotonic())))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        pass
    except OSError as problem:
        print(f"gaiatrace.py: {command[0]}: {problem.strerror}", file=sys.stderr)
        return 127
    return 0


# --- what becomes of them ---------------------------------------------------------------------------------------------

def device_name(number):
    return f"soft:{number}" if number < SOFT_MAX else f"cuda:{number - SOFT_MAX}" if number < NODES_FROM else f"node:{number - NODES_FROM}"


def spans(events, begin, end, key):
    """Pairs of events of one key: (begin, end). What is not over, or had begun before, is left out. Several threads may touch
    a page at once: what ends in the thread of the daemon that began it is the latest of that thread, else it is the first."""
    under_way, found = {}, []
    for event in (event for event in events if event["event"] in (begin, end)):
        began = under_way.setdefault(key(event), [])
        if event["event"] == begin:
            began.append(event)
        elif began:
            own = [i for i, one in enumerate(began) if one["daemon_thread"] == event["daemon_thread"]]
            found.append((began.pop(own[-1] if own else 0), event))
    return found


def of_page(event):
    return event["inode"], event["device"], event["page"]


def of_thread(event):
    return event["daemon_thread"]


def faults(events, file):
    """A table: for each way to be served how many touches, and how long they waited."""
    waited = {}
    for began, ended in spans(events, "fault", "served", of_page):
        waited.setdefault((device_name(began["device"]), began["touch"], ended["how"]), []).append((ended["ns"] - began["ns"]) / 1000)
    print(f"{'device':<8} {'touch':<14} {'served':<12} {'number':>8} {'median us':>10} {'p99 us':>10} {'most us':>10}", file=file)
    for (device, touch, how), us in sorted(waited.items()):
        us.sort()
        print(f"{device:<8} {touch:<14} {how:<12} {len(us):>8} {statistics.median(us):>10.1f} {us[min(len(us) - 1, len(us) * 99 // 100)]:>10.1f} "
              f"{us[-1]:>10.1f}", file=file)


def slice_of(began, ended, name, thread, pid):
    more = {key: value for key, value in {**began, **ended}.items() if key not in ("ns", "event", "daemon_thread")}
    return {"name": name, "cat": began["event"], "ph": "X", "ts": began["ns"] / 1000, "dur": (ended["ns"] - began["ns"]) / 1000,
            "pid": pid, "tid": thread, "args": more}


def timeline(events, file, pid):
    """Chrome's trace format: a track for each thread that touches, for each of the daemon's, and for each placement."""
    found = [slice_of(a, b, f"{a['touch']}: {b['how']}", a["thread"], pid) for a, b in spans(events, "fault", "served", of_page)]
    for begin, end in ("acquire", "acquired"), ("release", "released"):
        found += [slice_of(a, b, begin, a["daemon_thread"], pid) for a, b in spans(events, begin, end, of_thread)]
    for number, (began, ended) in enumerate(spans(events, "place", "placed", of_page)):
        both = {"name": "place", "cat": "place", "id": number, "pid": pid}
        found += [{**both, "ph": "b", "ts": began["ns"] / 1000, "args": began}, {**both, "ph": "e", "ts": ended["ns"] / 1000}]
    for event in events:
        if event["event"] in ("collected", "dropped", "renewed", "ahead"):
            found.append({"name": event.get("why", event["event"]), "cat": event["event"], "ph": "i", "s": "t", "pid": pid,
                          "tid": event["daemon_thread"], "ts": event["ns"] / 1000, "args": event})
    json.dump({"traceEvents": sorted(found, key=lambda event: event["ts"]), "displayTimeUnit": "ns"}, file)


def offsets(events, file):
    """When which pages were placed, evicted, ...: time to the right, the place in the file upwards. Of the file with the most."""
    kinds, most = {}, {}
    for event in events:
        kind = event.get("why", event["event"])
        if kind in COLOURS and not event.get("error"):
            kinds.setdefault(kind, []).append(event)
            most[event["inode"]] = most.get(event["inode"], 0) + 1
    if not kinds:
        fail("nothing was placed, evicted or collected meanwhile")
    start, inode = events[0]["ns"], max(most, key=most.get)
    script = ["set terminal svg size 900,500 background 'white'",
              f"set title 'inode {inode}'; set xlabel 'seconds'; set ylabel 'MiB'; set key outside; set yrange [0:*]"]
    plots = []
    for kind, some in kinds.items():
        rows = [f"{(e['ns'] - start) / 1e9:.6f} {e['page'] * PAGE / 2**20:.4f} {e['count'] * PAGE / 2**20:.4f}"
                for e in some if e["inode"] == inode]
        if rows:
            script += [f"${kind} << EOD", *rows, "EOD"]
            plots.append(f"${kind} using 1:2:(0):3 with vectors nohead linewidth 2 linecolor rgb '{COLOURS[kind]}' title '{kind}'")
    script.append("plot " + ", ".join(plots))
    file.write(subprocess.run(["gnuplot"], input="\n".join(script), text=True, check=True, stdout=subprocess.PIPE).stdout)


def a_time(text):
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"no time to wait for: '{text}'")


def main():
    parser = argparse.ArgumentParser(usage="%(prog)s WHAT MOUNTPOINT [--seconds N] [--output FILE] [-- COMMAND ...]",
                                     description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", metavar="WHAT", choices=("faults", "timeline", "offsets", "events"))
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.add_argument("--seconds", type=a_time, help="so long at most")
    parser.add_argument("--output", help="a file (offsets: gaiafs-offsets.svg; else stdout)")
    own = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    command = sys.argv[len(own) + 2:]  # this program is not to look at its options
    options = parser.parse_args(own)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background programs ignore it
    if not shutil.which("bpftrace"):
        fail("no bpftrace (Debian: apt-get install bpftrace)")
    if options.what == "offsets" and not shutil.which("gnuplot"):
        fail("no gnuplot (Debian: apt-get install gnuplot-nox)")
    pid = find_daemon(options.mountpoint)
    output = options.output or ("gaiafs-offsets.svg" if options.what == "offsets" else None)
    try:  # now: what can't be written later would be lost
        out = open(output, "w", encoding="utf-8") if output else contextlib.nullcontext(sys.stdout)
    except OSError as problem:
        fail(f"{output}: {problem.strerror}")
    with out as file:
        with Recording(pid) as recording:
            status = wait_for_end(options.seconds, command, pid)
            events, lost = recording.end()
        if options.what == "offsets":
            offsets(events, file)
        elif options.what == "faults":
            faults(events, file)
        elif options.what == "timeline":
            timeline(events, file, pid)
        else:
            for event in events:
                print(json.dumps(event), file=file)
    print(f"gaiatrace.py: {len(events)} events" + (f", {lost} were lost" if lost else ""), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
