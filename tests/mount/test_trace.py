# SPDX-License-Identifier: Apache-2.0
"""The daemon's tracepoints (cache/trace.h, docs/tracing.md), and what examples/trace makes of them."""
import collections
import contextlib
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from xml.etree import ElementTree

import pytest

import gaia
from conftest import BIN, TOP, not_in_the_gate
from files import fill, make, mount_tmpfs, open_map, pattern
from helpers import MIB, PAGE, AgentDied, agents, device_statistics, devices, statistics, wait_until  # noqa: F401

sys.path.append(os.path.join(TOP, "examples", "trace"))
import gaiatrace  # noqa: E402

TRACE = (sys.executable, "-B", os.path.join(TOP, "examples", "trace", "gaiatrace.py"))


# --- that they are there ---------------------------------------------------------------------------------------------

def probes():
    """name: its numbers of arguments, of the program's notes."""
    if not os.path.exists("/usr/include/sys/sdt.h") and not os.path.exists("/usr/include/x86_64-linux-gnu/sys/sdt.h"):
        pytest.skip("no sys/sdt.h (Debian: systemtap-sdt-dev)")
    notes = subprocess.run(["readelf", "-n", os.path.join(BIN, "mount.gaiafs")], capture_output=True, text=True, check=True).stdout
    found = {}
    for name, arguments in re.findall(r"Provider: gaiafs\s+Name: (\w+)\s+.*\s+Arguments: (.*)", notes):
        found.setdefault(name, set()).add(len(arguments.split()))
    assert found, "built before sys/sdt.h was there: make clean"
    return found


def test_the_events_are_those_that_are_described():
    """The program, gaiatrace.py, its script and docs/tracing.md have the same events with as many arguments."""
    with open(os.path.join(TOP, "docs", "tracing.md")) as file:
        text = file.read()
    described = {name: arguments.split(", ") for name, arguments in re.findall(r"^\| `(\w+)` \| ([\w, ]+) \|", text, re.M)}
    assert text.count("usdt:/proc/1234/") == text.count("/pid == 1234 &&") > 0  # else it is of all daemons of the program
    assert {name: list(arguments) for name, arguments in gaiatrace.EVENTS.items()} == described
    assert probes() == {name: {len(arguments)} for name, arguments in described.items()}
    with open(os.path.join(TOP, "examples", "trace", "events.bt")) as file:
        script = dict(re.findall(r"gaiafs:(\w+) .*?(arg0[^)]*)\)", file.read()))
    assert script == {name: ", ".join(f"arg{i}" for i in range(len(arguments))) for name, arguments in described.items()}


# --- what they say ---------------------------------------------------------------------------------------------------

@pytest.fixture
def traced(workdir):
    """A context in which what the daemon of a mount does is recorded: a list, which has the events after it. tool: another
    one of gaiatrace.py's, which leaves a file."""
    @contextlib.contextmanager
    def trace(m, what="events", output="events"):
        go, stop, events = (os.path.join(workdir, name) for name in ("go", "stop", output))
        found = []
        proc = subprocess.Popen([*TRACE, what, m.mnt, "--output", events, "--", "sh", "-c",
                                 'touch "$0"; until [ -e "$1" ]; do sleep 0.05; done; exit 3', go, stop],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait_until(lambda: os.path.exists(go) or proc.poll() is not None, 50)
            if not os.path.exists(go):
                pytest.skip(f"nothing can be traced here: {proc.communicate()[0]}")
            yield found
        finally:
            open(stop, "w").close()
            said = proc.communicate(timeout=50)[0]
            for name in go, stop:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        assert proc.returncode == 3 and "lost" not in said, said  # what the command ended with
        if what == "events":
            with open(events) as file:
                found += map(json.loads, file)

    if os.geteuid() != 0 or not shutil.which("bpftrace"):
        pytest.skip("no bpftrace, or not root")
    return trace


def count(events, name, **wanted):
    return sum(event["event"] == name and all(event[key] == value for key, value in wanted.items()) for event in events)


def pages(events, name, **wanted):
    return sum(event["count"] for event in events
               if event["event"] == name and all(event[key] == value for key, value in wanted.items()))


def each_ends_once(events, begin, end, key):
    """Whatever begins ends, in this order."""
    under_way = collections.Counter()
    for event in events:
        if event["event"] == begin:
            under_way[key(event)] += 1
        elif event["event"] == end:
            under_way[key(event)] -= 1
            assert under_way[key(event)] >= 0, event
    assert not +under_way, under_way


@pytest.mark.traps
@pytest.mark.limit(120)
def test_events_agree_with_what_is_counted(mount, devices, traced):
    """Every touch, page and merge that gaiactl counts has its event, with the file's number and pages of it."""
    m = mount("device_cache=1M")
    content = pattern(4 * MIB)
    path = make(m, content)
    device = devices()
    opened = open_map(device, path)
    before = device_statistics(m.mnt)
    with traced(m) as events:
        for page in range(0, 1024, 3):
            opened[page * PAGE] = content[page * PAGE] ^ 1
        opened.release()
        with open(path, "r+b", buffering=0) as file:
            file.write(bytes(PAGE))
            os.pread(file.fileno(), 4 * MIB, 0)
        opened.acquire()
        opened.unmap()  # waits for all that is under way for it: a touch may go on before its event has come
        after = device_statistics(m.mnt)
    delta = {name: after[name] - before[name] for name in after if isinstance(after[name], int)}
    assert {event["inode"] for event in events} == {os.stat(path).st_ino}
    assert {event["device"] for event in events if "device" in event} == {0}
    assert all(0 <= event["page"] and event["page"] + event.get("count", 1) <= 1024 for event in events)
    assert count(events, "fault", touch="load") + count(events, "fault", touch="store") == delta["faults"] > 0
    assert count(events, "fault", touch="trapped store") >= count(events, "served", how="let through") == delta["write_faults"] > 0
    assert pages(events, "placed", error=0) * PAGE == delta["bytes_in"] - pages(events, "renewed") * PAGE
    assert pages(events, "dropped", why="evicted", error=0) == delta["evictions"] > 0
    assert pages(events, "ahead") == delta["readahead_pages"]
    assert sum(event["changed"] for event in events if event["event"] == "collected") == delta["pages_merged"] > 0
    assert (count(events, "acquire"), count(events, "acquired", error=0)) == (1, 1)
    assert count(events, "release") == count(events, "released", error=0) in (1, 2)
    each_ends_once(events, "fault", "served", lambda event: event["page"])
    each_ends_once(events, "place", "placed", lambda event: (event["page"], event["count"]))
    thread = threading.get_native_id()
    assert {event["thread"] for event in events if event["event"] == "fault"} == {thread}


@pytest.mark.traps
@pytest.mark.limit(120)
def test_each_touch_of_many_threads_is_served_once(mount, devices, traced):
    """Also of pages that another thread's touch has busy, and of what is read from storage."""
    m = mount("device_cache=256K,unit=4K")
    content = pattern(2 * MIB)
    path = make(m, content)
    os.sync()
    with open(os.path.join(m.data, "f"), "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # this half, and not what would come next
        os.pread(file.fileno(), MIB, 0)
    opened = open_map(devices(), path)
    opened.advise(gaia.ADV_RANDOM)

    def touch(seed):
        order = random.Random(seed)
        for page in order.choices(range(512), k=400):
            assert opened[page * PAGE + seed] == content[page * PAGE + seed]

    before = statistics(m.mnt)["io"]["reads"]
    with traced(m) as events:
        threads = [threading.Thread(target=touch, args=[seed]) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        opened.unmap()  # as above
    assert count(events, "fault") > 500
    each_ends_once(events, "fault", "served", lambda event: event["page"])
    assert count(events, "place", source="storage") == statistics(m.mnt)["io"]["reads"] - before
    served = collections.Counter(event["how"] for event in events if event["event"] == "served")
    assert set(served) <= {"placed", "shown", "again", "left"} and served["placed"] == count(events, "placed", error=0)


@pytest.fixture
def full(workdir):
    """A data directory in which there is no room, and in it the file f of 1 MiB that is a hole."""
    folder = mount_tmpfs(workdir, MIB)
    with open(os.path.join(folder, "f"), "wb") as file:
        file.truncate(MIB)
    fill(folder)
    yield folder
    subprocess.run(["umount", "-l", folder], check=False)


@pytest.mark.traps
@pytest.mark.limit(120)
def test_a_touch_that_is_refused(mount, devices, agents, full, traced):
    """What another device would get finds no room in the file: the touch ends as refused, and the collect says why."""
    m = mount("passthrough=off,soft_devices=2", data=full)
    path = os.path.join(m.mnt, "f")
    opened = open_map(devices(), path)
    opened[5 * PAGE] = 9
    opened.release()
    child = agents()
    child.do("dev = gaia.Device('soft:1')\nmap = dev.mmap(os.open(path, os.O_RDWR), 1 << 20)", path=path)
    with traced(m) as events:
        with pytest.raises(AgentDied) as died:
            child.do("map[5 * 4096]")
    os.unlink(os.path.join(m.mnt, "ballast"))
    assert died.value.code == -signal.SIGBUS
    assert count(events, "fault", device=1, page=5, touch="load") == count(events, "served", device=1, page=5) >= 1
    assert [event["how"] for event in events if event["event"] == "served"][-1] == "refused"
    assert count(events, "collected", error=-errno.ENOSPC) >= 1 and not count(events, "placed", error=0)


# --- what becomes of them --------------------------------------------------------------------------------------------


@not_in_the_gate
@pytest.mark.traps
@pytest.mark.limit(120)
def test_a_timeline(mount, devices, traced, workdir):
    """JSON of Chrome's format: faults of this thread, acquire and release, one after the other."""
    m = mount()
    path = make(m, pattern(MIB))
    opened = open_map(devices(), path)
    with traced(m, "timeline", "timeline.json"):
        opened[0] = 1
        opened.release()
        with open(path, "r+b", buffering=0) as file:
            file.write(bytes(PAGE))
        opened.acquire()
    with open(os.path.join(workdir, "timeline.json")) as file:
        events = json.load(file)["traceEvents"]
    assert events and all(set(event) >= {"name", "ph", "ts", "pid"} and event["pid"] == m.pid for event in events)
    slices = {event["cat"]: event for event in events if event["ph"] == "X"}
    assert slices["fault"]["tid"] == threading.get_native_id() and slices["fault"]["dur"] > 0
    assert slices["release"]["ts"] + slices["release"]["dur"] <= slices["acquire"]["ts"]
    assert collections.Counter(event["ph"] for event in events if event["cat"] == "place").keys() == {"b", "e"}


@pytest.mark.traps
@pytest.mark.limit(120)
@pytest.mark.skipif(not shutil.which("gnuplot"), reason="no gnuplot")
def test_a_picture_of_offsets(mount, devices, traced, workdir):
    m = mount("device_cache=256K")
    path = make(m, pattern(MIB))
    opened = open_map(devices(), path)
    with traced(m, "offsets", "offsets.svg"):
        opened[:]
    text = ElementTree.parse(os.path.join(workdir, "offsets.svg")).getroot()
    assert {"placed", "evicted"} <= set("".join(text.itertext()).split())


def test_a_table_of_faults():
    """Of made-up events: what began before, or is not over, does not count."""
    def event(ns, name, page, **more):
        return {"ns": ns, "event": name, "inode": 7, "device": 65, "page": page, "daemon_thread": 1, **more}

    events = [event(0, "served", 1, how="shown"), event(1000, "fault", 1, touch="load", thread=5),
              event(2000, "fault", 2, touch="load", thread=6), event(4000, "served", 1, how="placed"),
              event(5000, "served", 2, how="placed"), event(6000, "fault", 3, touch="store", thread=5)]
    with open(os.devnull, "w") as nowhere:
        gaiatrace.faults(events, nowhere)
    lines = []
    gaiatrace.faults(events, type("File", (), {"write": lambda self, text: lines.append(text)})())
    assert "".join(lines).splitlines()[1:] == [f"{'cuda:1':<8} {'load':<14} {'placed':<12} {2:>8} {3.0:>10.1f} {3.0:>10.1f} {3.0:>10.1f}"]


def test_touches_of_a_page_at_once():
    """Who is left to another thread has not waited for what that one waits for."""
    def event(ns, name, daemon_thread, **more):
        return {"ns": ns, "event": name, "inode": 7, "device": 0, "page": 9, "daemon_thread": daemon_thread, **more}

    first, second, third = (event(ns, "fault", daemon_thread, touch="load", thread=5) for ns, daemon_thread in ((0, 1), (10, 1), (20, 2)))
    left, left_too, placed = event(11, "served", 1, how="left"), event(21, "served", 2, how="left"), event(90, "served", 3, how="placed")
    assert gaiatrace.spans([first, second, left, third, left_too, placed], "fault", "served", gaiatrace.of_page) == [
        (second, left), (third, left_too), (first, placed)]


@pytest.fixture
def silent_tracer(workdir):
    """An environment in which bpftrace is a program that leaves the file begun, its PID, and never says that it is ready."""
    folder, begun = os.path.join(workdir, "bin"), os.path.join(workdir, "begun")
    os.mkdir(folder)
    with open(os.path.join(folder, "bpftrace"), "w", opener=lambda *how: os.open(*how, 0o755)) as file:
        file.write(f"#!/bin/sh\necho $$ >{begun}.new\nmv {begun}.new {begun}\nexec sleep 50\n")
    return begun, {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_interrupted_before_it_has_begun(mount, silent_tracer):
    """It ends, and bpftrace, which has not heard of the Ctrl-C, too."""
    m, (begun, environment) = mount(), silent_tracer
    with subprocess.Popen([*TRACE, "faults", m.mnt], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as proc:
        try:
            wait_until(lambda: os.path.exists(begun), what="bpftrace runs")
            proc.send_signal(signal.SIGINT)
            said = proc.communicate(timeout=20)[0]
        finally:
            proc.kill()
    with open(begun) as file:
        assert not os.path.exists(f"/proc/{int(file.read())}")
    assert proc.returncode == 130 and "Traceback" not in said


def test_what_can_not_be_written_is_told_first(mount, silent_tracer):
    m, (begun, environment) = mount(), silent_tracer
    done = subprocess.run([*TRACE, "faults", m.mnt, "--output", "/nowhere/f"], capture_output=True, text=True, timeout=20, env=environment)
    assert (done.returncode, done.stderr, os.path.exists(begun)) == (1, "gaiatrace.py: /nowhere/f: No such file or directory\n", False)


IN_A_CONTAINER = """
"$0" "$1" "$2" -f & daemon=$!
until mountpoint -q "$2"; do kill -0 $daemon || exit 77; sleep 0.05; done
"$3" -B "$4" events "$2" --output "$5" -- "$3" -B -c 'import gaia, os, sys
print(gaia.Device("soft:0").mmap(os.open(sys.argv[1], os.O_RDWR), 4096)[0])' "$2/f"
status=$?; umount "$2"; wait; exit $status"""


@not_in_the_gate
@pytest.mark.traps
@pytest.mark.limit(120)
def test_in_a_pid_namespace(traced, workdir):
    """PIDs are others there than those that bpftrace may know."""
    data, mountpoint, events = (os.path.join(workdir, name) for name in ("inner", "inner-mount", "events"))
    for folder in data, mountpoint:
        os.mkdir(folder)
    with open(os.path.join(data, "f"), "wb") as file:
        file.write(b"a" * PAGE)
    unshared = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshared, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no PID namespaces")
    done = subprocess.run([*unshared, "sh", "-c", IN_A_CONTAINER, os.path.join(BIN, "mount.gaiafs"), data, mountpoint, sys.executable,
                           TRACE[-1], events], capture_output=True, text=True, timeout=100,
                          env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)})
    if "could not begin" in done.stderr:
        pytest.skip(f"nothing can be traced here: {done.stderr}")
    assert (done.returncode, done.stdout) == (0, "97\n"), done.stderr
    with open(events) as file:
        assert count(list(map(json.loads, file)), "fault", page=0) == 1


@pytest.mark.parametrize("arguments, said", [
    pytest.param(["faults", "/proc"], "/proc", marks=pytest.mark.skipif(not shutil.which("bpftrace"), reason="no bpftrace")),
    (["faults"], "required: MOUNTPOINT"), (["nothing", "/"], "invalid choice: 'nothing'"),
    (["faults", "/", "--seconds", "x"], "no time to wait for: 'x'"), (["faults", "/", "--seconds", "1e11"], "wait for: '1e11'")])
def test_wrong_arguments(arguments, said):
    done = subprocess.run([*TRACE, *arguments], capture_output=True, text=True, timeout=50)
    assert done.returncode in (1, 2) and said in done.stderr


def test_without_bpftrace():
    done = subprocess.run([*TRACE, "faults", "/"], capture_output=True, text=True, timeout=50, env={"PATH": "/nowhere"})
    assert done.returncode == 1 and "apt-get install bpftrace" in done.stderr
