# SPDX-License-Identifier: Apache-2.0
"""Three nodes and more under a nemesis (tests/kills/nodes_run.py): a short run of each kind, and what its judge says of logs by hand."""
import base64
import json
import os
import struct
import subprocess
import sys

import pytest

from conftest import not_in_the_gate, so_much
from helpers import BIN, PAGE, SLOWER, TOP

KILLS = os.path.join(TOP, "tests", "kills")
sys.path.append(KILLS)

from nodes_judge import Judge  # noqa: E402
from nodes_worker import CELL, FILES, encode, first_content, writer_of  # noqa: E402


@pytest.mark.limit(300)
@pytest.mark.parametrize("nodes", [3, pytest.param(4, marks=not_in_the_gate)])
def test_nodes_under_a_nemesis(nodes):
    seed = os.environ.get("GAIA_TEST_SEED")
    command = ["timeout", "-k", "30", str(int(240 * SLOWER)), sys.executable, "-B", os.path.join(KILLS, "nodes_run.py"),
               "--nodes", str(nodes), "--seconds", str(so_much(12, 4)),
               *(["--seed", seed] if seed else []), "--daemon", os.path.join(BIN, "mount.gaiafs")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0


# --- the judge ------------------------------------------------------------------------------------------------------

class Log:
    """What a worker might have written."""

    def __init__(self, folder, number):
        self.path, self.number, self.count, self.now = os.path.join(folder, f"log-{number}"), number, 0, 0

    def call(self, kind, file="f1", error=0, result=None, begin=None, end=None, **more):
        self.count += 1
        self.now = begin or self.now + 10
        with open(self.path, "a") as file_:
            print(json.dumps(("begin", self.count, self.now, kind, file, more)), file=file_)
            self.now = end or self.now + 1
            print(json.dumps(("end", self.count, self.now, error, result)), file=file_)
        return self.count


WORKERS = 2
NAME = "f1"


def cell_of(owner, way):
    return next(c for c in range(PAGE // CELL) if writer_of(NAME, c, WORKERS) == (owner, way))


def page_with(*stores):
    """The first page, where these cells have these numbers."""
    data = bytearray(first_content(NAME, WORKERS)[:PAGE])
    for cell, number in stores:
        data[cell * CELL:(cell + 1) * CELL] = encode(number, NAME, cell, *writer_of(NAME, cell, WORKERS))
    return bytes(data)


def problems_of(logs, still=None, rough=()):
    judge = Judge(WORKERS, still or {}, list(rough))
    for log in logs:
        judge.add(log.path, log.number)
    judge.judge_calls()
    return judge.problems


def judged(folder, way, between, seen, kind="read", still=(), rough=()):
    """Two stores of worker 0 in one cell, the calls of `between` after the first; worker 1 looks then. The problems of the judge."""
    cell = cell_of(0, way)
    writer, reader = Log(folder, 0), Log(folder, 1)
    first = writer.call("store", way=way, first=cell, count=1)
    for word in between:
        name, _, error = word.partition("=")
        writer.call(name, error=int(error or 0))
    reader.call(kind, begin=writer.now + 5, result=base64.b64encode(page_with(*seen(cell, first))).decode(), page=0)
    writer.call("store", way=way, first=cell, count=1, begin=reader.now + 5)
    return problems_of([writer, reader], {1: list(still)}, rough)


def old(_cell, _number):
    return []


def new(cell, number):
    return [(cell, number)]


WRITE, CPU, DEVICE = range(3)
ALWAYS = [(0, 1 << 60)]


@pytest.mark.parametrize("way, between, seen, kind, still, rough, wrong", [
    (WRITE, ["fsync"], new, "read", [], [], 0),
    (WRITE, ["fsync"], old, "read", [], [], 1),
    (WRITE, ["fsync"], old, "device", [], [], 1),
    (WRITE, ["fsync=5"], old, "read", [], [], 0),
    (WRITE, ["fsync=5", "fsync"], old, "read", [], [], 0),
    (WRITE, ["fsync"], old, "read", ALWAYS, [], 0),
    (WRITE, ["fsync"], old, "device", ALWAYS, [], 1),
    (WRITE, ["fsync"], old, "device", [], ALWAYS, 0),
    (WRITE, ["gaia_msync"], old, "read", [], [], 0),
    (CPU, ["msync"], old, "load", [], [], 1),
    (DEVICE, ["fsync"], old, "read", [], [], 0),
    (DEVICE, ["release", "fsync"], old, "read", [], [], 1),
    (DEVICE, ["release", "map=5", "fsync"], old, "read", [], [], 1),
    (DEVICE, ["acquire=5", "fsync"], old, "read", [], [], 0),
    (DEVICE, ["release", "acquire=5", "fsync"], old, "read", [], [], 1),
    (CPU, ["acquire=5", "fsync"], old, "load", [], [], 0),
    (DEVICE, ["release=5", "release", "fsync"], old, "read", [], [], 0),
    (WRITE, [], lambda cell, number: [(cell, number + 7)], "read", [], ALWAYS, 1),
    (WRITE, [], lambda cell, number: [(cell, number + 1)], "read", [], ALWAYS, 1),
])
def test_the_judge(workdir, way, between, seen, kind, still, rough, wrong):
    problems = judged(workdir, way, between, seen, kind, still, rough)
    assert len(problems) == wrong, problems


@pytest.mark.parametrize("at, wrong", [(5, 1), (12, 0), (25, 0), (100, 1)])
def test_the_judge_of_what_another_writes_again(workdir, at, wrong):
    """Who writes all of the file beside a store, or before that is synced, may undo it."""
    writer, other, cell = Log(workdir, 0), Log(workdir, 1), cell_of(0, CPU)
    writer.call("store", way=CPU, first=cell, count=1, begin=10, end=14)
    writer.call("fsync", begin=30, end=40)
    other.call("rewrite", begin=at, end=at + 1)
    other.call("load", begin=200, result=base64.b64encode(page_with()).decode(), page=0)
    problems = problems_of([writer, other])
    assert len(problems) == wrong, problems


@pytest.mark.parametrize("error, wrong", [(0, 1), (5, 0)])
def test_the_judge_of_a_durable_store(workdir, error, wrong):
    """It is safe when it returns; one that fails is a sync that has failed."""
    writer, other, cell = Log(workdir, 0), Log(workdir, 1), cell_of(0, WRITE)
    writer.call("store", way=WRITE, first=cell, count=1, error=error, syncs=True)
    writer.call("fsync")
    other.call("read", begin=200, result=base64.b64encode(page_with()).decode(), page=0)
    problems = problems_of([writer, other])
    assert len(problems) == wrong, problems


def test_the_judge_of_bytes_that_nobody_wrote(workdir):
    def torn(cell, number):
        return [(cell, number + (3 << 24))]
    assert judged(workdir, CPU, [], torn, rough=ALWAYS)


def test_the_judge_of_what_is_left(workdir):
    """The data directory: an old byte, an append that is not there and one that is torn, a file of another size."""
    for name in FILES:
        with open(os.path.join(workdir, name), "wb") as file:
            file.write(first_content(name, WORKERS))
    for name, data in {"appends": b"RCRD" + struct.pack("<III", 0, 1, 0), "own-0": b"", "size-0": b"12"}.items():
        with open(os.path.join(workdir, name), "wb") as file:
            file.write(data)
    log = Log(workdir, 0)
    log.call("append", "appends")
    log.call("resize", "size-0", size=3)
    log.call("store", way=WRITE, first=cell_of(0, WRITE), count=1)
    log.call("fsync")
    judge = Judge(1 + 1, {}, [])
    judge.add(log.path, 0)
    judge.judge_calls()
    judge.judge_files(workdir)
    assert len(judge.problems) == 4, judge.problems
