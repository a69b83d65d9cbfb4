# SPDX-License-Identifier: Apache-2.0
"""What is measured: a row of the table each.

fio's rows say in which state the caches are when fio starts, which then keeps its hands off them (--invalidate=0), and go
over the file once, as a second pass would find what the first has left in the caches; "cached" rows may go round.
"""
import os
import shutil

from columns import EXAMPLES, run_json


class Row:
    def __init__(self, name, text, unit):
        self.name, self.text, self.unit = name, text, unit

    def applies(self, column):
        return True

    def work(self, bench, column, seed):
        """{"operations", "rate", "cpu_us" of the program in all, "switches"}"""
        raise NotImplementedError

    def prepare(self, bench, column):
        return {}

    def clean(self, bench, column):
        pass

    def run(self, bench, column, number):
        """One sample: rate, processor time and voluntary switches of an operation, what was resident before."""
        before = self.prepare(bench, column)
        mount = bench.mounts.get(column)
        cpu, switches = (mount.cpu_seconds(), mount.switches()) if mount else (0, 0)
        done = self.work(bench, column, number + 1)
        daemon = (mount.cpu_seconds() - cpu) * 1e6 if mount else 0
        waited = mount.switches() - switches if mount else 0
        self.clean(bench, column)
        count = done["operations"]
        return {"rate": done["rate"], "cpu_us": (done["cpu_us"] + daemon) / count, "daemon_cpu_us": daemon / count,
                "switches": (done["switches"] + waited) / count, **before}


class Fio(Row):
    def __init__(self, name, text, state, **options):
        super().__init__(name, text, "B/s" if options.get("bs") == "1m" else "/s")
        self.state, self.options = state, {"ioengine": "psync", "bs": "4k", **options}

    def prepare(self, bench, column):
        return bench.prepare(column, self.state)

    def work(self, bench, column, seed):
        big = self.options["bs"] == "1m"
        size = bench.size if big else bench.small
        jobs = int(self.options.get("numjobs", 1))
        options = {"name": self.name, "filename": bench.paths(column)[0].replace(":", "\\:"), "size": size,
                   "io_size": size * (4 if self.state == "cached" else 1) // jobs, "runtime": 4, "invalidate": 0,
                   "fallocate": "none", "randseed": seed, "output-format": "json", **self.options}
        arguments = [f"--{key}={value}" for key, value in options.items()]
        done = run_json(["fio", "--thread", "--group_reporting", *arguments])
        job = done["jobs"][0]
        if job["error"]:
            raise OSError(job["error"], f"fio: {os.strerror(job['error'])}")
        sides = [job["read"], job["write"]]
        operations = sum(side["total_ios"] for side in sides)
        # end_fsync is part of the job, and of its time, but not of the rate that fio gives.
        seconds = job["job_runtime"] / jobs / 1e3 if "end_fsync" in options else max(s["runtime"] for s in sides) / 1e3
        rate = sum(s["io_bytes"] if big else s["total_ios"] for s in sides) / max(seconds, 1e-3)
        percent = job["usr_cpu"] + job["sys_cpu"]
        return {"operations": operations, "rate": rate, "cpu_us": percent / 100 * job["job_runtime"] * 1e3,
                "switches": job["ctx"]}

    def clean(self, bench, column):
        """What one has made dirty is not to be the next one's burden."""
        fd = os.open(bench.paths(column)[1], os.O_RDWR)
        os.fsync(fd)
        os.close(fd)


class Names(Row):
    """Its operations know no devices: there is nothing to track."""

    def __init__(self, name, text, what, **others):
        super().__init__(name, text, "/s")
        self.what, self.made, self.others, self.folders = what, others.get("made", "make"), others, None

    def applies(self, column):
        return column != "tracked"

    def program(self, what, folder, count):
        return run_json([os.path.join(EXAMPLES, "fio", "names"), what, folder, count])

    def prepare(self, bench, column):
        self.folders = bench.directory(column)
        if self.made == "make":  # in the data directory: the mount has never seen them
            self.program("make", self.folders[0], bench.names)
        elif self.made:
            self.program(self.made, self.folders[1], bench.names)
        return {}

    def work(self, bench, column, seed):
        done = self.program(self.what, self.folders[1], bench.names)
        return {**done, "rate": done["operations"] * 1e9 / done["ns"]}

    def clean(self, bench, column):
        shutil.rmtree(self.folders[1])  # through the mount, which is to forget them


def _direct(rw, **options):
    return {"rw": rw, "direct": 1, **options}


ROWS = (
    Fio("seq-read-cold", "read 1 MiB in order, nothing cached", "cold", rw="read", bs="1m"),
    Fio("seq-read-backing", "... in the backing cache only", "backing", rw="read", bs="1m"),
    Fio("seq-read-cached", "... cached", "cached", rw="read", bs="1m"),
    Fio("seq-read-direct", "... direct", "cold", bs="1m", **_direct("read")),
    Fio("rand-read-backing", "read 4 KiB at random, backing cache only", "backing", rw="randread"),
    Fio("rand-read-cached", "... cached", "cached", rw="randread"),
    Fio("rand-read-direct-qd1", "... direct, queue of 1", "cold", **_direct("randread")),
    Fio("rand-read-direct-qd32", "... direct, queue of 32 (libaio)", "cold",
        **_direct("randread", ioengine="libaio", iodepth=32)),
    Fio("rand-read-direct-4x8", "... direct, 4 jobs, queues of 8 (libaio)", "cold",
        **_direct("randread", ioengine="libaio", iodepth=8, numjobs=4)),
    Fio("mmap-read-backing", "mmap 4 KiB at random, backing cache only", "backing", rw="randread", ioengine="mmap"),
    Fio("mmap-read-cached", "... cached", "cached", rw="randread", ioengine="mmap"),
    Fio("seq-write", "write 1 MiB in order", "backing", rw="write", bs="1m"),
    Fio("seq-write-fsync", "... and fsync at the end", "backing", rw="write", bs="1m", end_fsync=1),
    Fio("seq-write-direct", "... direct", "cold", bs="1m", **_direct("write")),
    Fio("rand-write", "write 4 KiB at random", "backing", rw="randwrite"),
    Fio("rand-write-direct-uring", "... direct, queue of 32 (io_uring)", "cold",
        **_direct("randwrite", ioengine="io_uring", iodepth=32)),
    Fio("rand-write-direct-aio", "... direct, queue of 32 (libaio)", "cold",
        **_direct("randwrite", ioengine="libaio", iodepth=32)),
    Fio("mixed", "read 70 %, write 30 %, 4 KiB, 4 jobs", "backing", rw="randrw", rwmixread=70, numjobs=4),
    Names("stat-first", "stat of names never seen", "stat"),
    Names("stat-again", "... again", "restat"),
    Names("open-close", "open and close", "open"),
    Names("create", "create and close", "create", made=None),
    Names("unlink", "unlink", "unlink", made="create"),
)


def _goals():
    """Ratios that are wanted: in passthrough, tracked."""
    names = {"stat-first": 0.1, "stat-again": 0.8, "open-close": 0.06, "create": 0.25, "unlink": 0.15}
    goals = {"seq-read-cold": (1.0, 0.8), "seq-read-backing": (1.0, 0.2), "seq-read-cached": (1.0, 0.4),
             "seq-read-direct": (0.9, 0.75), "rand-read-backing": (0.9, 0.06), "rand-read-cached": (0.95, 0.95),
             "rand-read-direct-qd1": (0.9, 0.85), "rand-read-direct-qd32": (1.0, 0.75),
             "rand-read-direct-4x8": (1.0, 0.75),
             "mmap-read-backing": (0.96, 0.2), "mmap-read-cached": (0.96, 0.7), "seq-write": (1.0, 0.25),
             "seq-write-fsync": (0.95, 0.5), "seq-write-direct": (0.85, 0.77), "rand-write": (0.92, 0.2),
             "rand-write-direct-uring": (0.8, 0.45), "rand-write-direct-aio": (0.9, 0.45), "mixed": (0.95, 0.1)}
    return {name: {"passthrough": passed, "tracked": tracked} for name, (passed, tracked) in goals.items()} | {
        name: {"passthrough": goal, "untracked": goal} for name, goal in names.items()}


GOALS = _goals()
