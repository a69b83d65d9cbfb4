# SPDX-License-Identifier: Apache-2.0
"""Every call that can fail does: each system call, allocation, completion and socket operation of the daemon and of
libgaia, the 1st time, the 2nd ..., once or from then on, while a program does a bit of everything (tests/faults). Of many
calls of one row the first four and two others, drawn anew each time; all of them with GAIA_TEST_ALL_CALLS=1.

No crash, no leak (with a sanitizer), no hang; the program sees the errno that was put in, or one that says the same in
terms of the call; and nothing that was answered is lost, neither through the mount nor in the data directory.
"""
import collections
import errno
import functools
import os
import platform
import random
import subprocess
import time

import pytest

import conftest
import helpers
from conftest import so_much
from helpers import ALL_ROWS, ROWS, Plan, kernel_at_least
from injection import (ERRORS, FAULTS, KINDS, LEFT_OUT, NOT_FOR_GOOD, NOT_FOR_GOOD_ROWS, SANITIZE, Missing, Run, environment,
                       options)
from sites import Sites, listed

@pytest.mark.skipif(SANITIZE, reason="a sanitizer calls what it likes")
def test_every_call_has_a_row():
    """Or a reason for having none: who adds a call is reminded."""
    if platform.libc_ver()[1] != "2.36":
        pytest.skip("another C library than Debian 12's has other names for them")
    called = set()
    for name, dynamic in (("mount.gaiafs", []), ("libgaia.so", ["-D"])):
        done = subprocess.run(["nm", "-u", "--without-symbol-versions", *dynamic, os.path.join(helpers.BIN, name)],
                              capture_output=True, text=True, check=True)
        called |= {line.split()[1] for line in done.stdout.splitlines()}
    with open(os.path.join(FAULTS, "without_rows.txt")) as file:
        without = {word for line in file if line[0] not in "#[\n" for word in line.split()}
    rows = set(helpers.ALL_ROWS)
    assert called - rows - without == set()
    assert without & rows == set()


def numbers(calls, rng):
    """Which calls of so many fail: the first ones, and some of the others."""
    if os.environ.get("GAIA_TEST_ALL_CALLS"):
        return range(1, calls + 1)
    first, more = (2, 1) if SANITIZE else (4, 2)
    few = list(range(1, min(calls, first) + 1))
    rest = range(first + 1, calls + 1)
    return few + sorted(rng.sample(rest, min(more, len(rest))))


def walk(mount, workdir, monkeypatch, who, row):
    rng = random.Random(helpers.make_random().random())
    number = ROWS.index(row)
    run = Run(mount, workdir, monkeypatch)
    # An injected failure at the very end shall not be left to the next run: what a run does it has done.
    _, calls = run.exercise(who, number, 0, 1 << 60, 0)
    if not calls:
        pytest.skip("the exercise does not call it")
    landed = 0
    for error in ERRORS.get(row, [errno.EIO]):
        plan = [(n, 0) for n in numbers(calls, rng)]
        if error not in NOT_FOR_GOOD and row not in NOT_FOR_GOOD_ROWS:
            plan.append((1, 1))
        for n, sticky in plan:
            try:
                landed += run.exercise(who, number, error, n, sticky)[0] > 0
            except (AssertionError, pytest.fail.Exception) as problem:
                raise AssertionError(f"{row}() number {n}: {errno.errorcode.get(error, 'short')}"
                                     f"{', from then on' * sticky}: {problem}") from None
    if not landed:  # it is called once by each thread, and all threads had called it already
        os.mkdir(os.path.join(workdir, "anew"))
        error = ERRORS.get(row, [errno.EIO])[0]
        landed, _ = Run(mount, os.path.join(workdir, "anew"), monkeypatch).exercise(who, number, error, 1, 0)
    assert landed, "no failure has landed"


walks = pytest.mark.limit(3600 if os.environ.get("GAIA_TEST_ALL_CALLS") else 300)
every_row = pytest.mark.parametrize("row", [name for name in ROWS if name not in LEFT_OUT])


@walks
@every_row
def test_a_call_that_fails(mount, workdir, monkeypatch, row):
    walk(mount, workdir, monkeypatch, "daemon", row)


@walks
@pytest.mark.one_of(3)  # the lane with a sanitizer has none of it
@pytest.mark.skipif(SANITIZE, reason="the program is the same")
@every_row
def test_a_call_of_libgaia_that_fails(mount, workdir, monkeypatch, row):
    walk(mount, workdir, monkeypatch, "client", row)


# --- every place that calls ---

# Of a kind of mount, the sites (their keys, as Plan has them) by what reaches them: its start or its end; each run of the exercise,
# or only the first one on a mount; the program.
Reached = collections.namedtuple("Reached", "start each once client")
reached = {}


def look(mount, workdir, monkeypatch, name):
    """Without failures, at a mount of this kind."""
    try:
        run = Run(mount, workdir, monkeypatch, name)
    except Missing as missing:
        print(f"{name}: {missing}")
        return Reached(set(), set(), set(), {})
    plan = run.plans["daemon"]
    looks = [plan.seen()]
    for _ in range(2):
        run.exercise()
        looks.append(plan.seen())
    run.unmount()
    looks.append(plan.seen())
    more = [{key for key in after if after[key] > before.get(key, 0)} for before, after in zip(looks, looks[1:])]
    client = {key: calls // 2 for key, calls in run.plans["client"].seen().items()}
    return Reached((set(looks[0]) | more[2]) - more[0] - more[1], more[1], more[0] - more[1], client)


def survey(mount, workdir, monkeypatch):
    """Each kind once in this process."""
    for name in KINDS:
        if name not in reached:
            reached[name] = look(mount, workdir, monkeypatch, name)
    return reached


def walked(who, key):
    row = ALL_ROWS[key & 255]
    return row in ROWS and row not in LEFT_OUT and not any(why.startswith("not failed") for why in sites_of(who).reasons(key))


def new_sites(who, kind, which):
    """Those that no kind before this one has, in the order of the program."""
    before = set()
    for name in KINDS:
        found = set(getattr(reached[name], which)) - before
        if name == kind:
            return sorted(key for key in found if walked(who, key))
        before |= found
    return []


@functools.cache
def sites_of(who):
    folder = helpers.faults_folder() if who == "daemon" else os.path.join(helpers.TOP, "build", "gcc", "faults")
    return Sites(os.path.join(folder, "mount.gaiafs" if who == "daemon" else "libgaia.so"))


def only_sanitized(who):
    """tests/run.sh has a daemon whose calls fail looked at by a sanitizer."""
    if os.environ.get("GAIA_GATE") and not SANITIZE and who == "daemon":
        pytest.skip("under ASan and UBSan")


def some(things, rng):
    """In tests/run.sh a part of them."""
    return sorted(rng.sample(things, -(-len(things) // so_much(1, 10))))


def walk_site(run, who, key, error, rng, problems):
    """Whether a failure has landed: of its first call, and perhaps of another one."""
    landed = False
    for number in (1, rng.randint(2, 20)):
        try:
            landed |= run.exercise(who, key & 255, error, number, 0, key)[0] > 0
        except (AssertionError, pytest.fail.Exception) as problem:
            landed = True
            problems.append(f"{ALL_ROWS[key & 255]}() in {sites_of(who).name(key)}, call {number}: "
                            f"{errno.errorcode.get(error, 'short')}: {problem}")
            if any(m.proc.poll() is not None for m in run.mounts) or "hangs" in str(problem):
                pytest.fail("\n".join(problems))
        if not landed:
            break
    return landed


@pytest.mark.limit(900)
@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("who", ["daemon", "client"])
def test_a_site_that_fails(mount, workdir, monkeypatch, who, kind):
    """Each place in the program that calls, on the first kind of mount that comes there."""
    if SANITIZE and who == "client":
        pytest.skip("the program is the same")
    only_sanitized(who)
    rng = random.Random(helpers.make_random().random())
    survey(mount, workdir, monkeypatch)
    keys = some(new_sites(who, kind, "each" if who == "daemon" else "client"), rng)
    once = some([key for key in new_sites(who, kind, "once") if key not in keys], rng) if who == "daemon" else []
    missed, problems = [], []
    if keys:
        run = Run(mount, workdir, monkeypatch, kind)
        run.exercise()
        for key in keys:
            for error in errors_of(key, rng):
                if not walk_site(run, who, key, error, rng, problems):
                    missed.append(key)
                    break
        run.unmount()
    for key in missed + once:
        again = Run(mount, workdir, monkeypatch, kind)
        if not walk_site(again, who, key, errors_of(key, rng)[0], rng, problems):
            print("not reached this time:", sites_of(who).name(key))
        again.unmount()
    assert not problems, "\n".join(problems)


def errors_of(key, rng):
    errors = ERRORS.get(ALL_ROWS[key & 255], [errno.EIO])
    return [rng.choice(errors)] if os.environ.get("GAIA_GATE") or SANITIZE else errors


# --- the start, and the end -------------------------------------------------------------------------------------------

def start_and_stop(run_folder, plan, plan_path, program, kind=KINDS["usual"]):
    """mount.gaiafs from its start to its end: (exit code, what it said, whether it was mounted)."""
    data, mnt = os.path.join(run_folder, "data"), os.path.join(run_folder, "mnt")
    log = os.path.join(run_folder, "log")
    with open(log, "wb") as out:
        option = options(kind, run_folder)[0]
        proc = subprocess.Popen([program, "-f", data, mnt, *(["-o", option] if option else [])], stdin=subprocess.DEVNULL,
                                stdout=out, stderr=out, cwd="/",
                                env={**os.environ, **environment(kind), **kind.env, "GAIAFS_FAULTS": plan_path})
    watch = conftest.watchdog()
    deadline = time.monotonic() + 15
    was_mounted = False
    try:
        while proc.poll() is None and time.monotonic() < deadline:
            mounted = conftest.mountinfo(mnt)
            if not was_mounted and mounted:
                watch.tell(f"mount {proc.pid} {mounted[0]}")
                try:
                    names = os.listdir(mnt)
                except OSError as problem:
                    # Mounted, but the daemon ends before it serves; or this very request has failed.
                    assert problem.errno in (errno.ENOTCONN, errno.ECONNABORTED) or plan.landed, problem
                else:
                    if not names and plan.landed and not conftest.mountinfo(mnt):
                        continue  # unmounted again between the two looks: this is what lies below
                    plan.row = -1
                    was_mounted = True
                    assert names == ["file"]
                    if kind.by_signal:
                        proc.terminate()
                    else:
                        subprocess.run(["umount", mnt], check=True, capture_output=True)
            time.sleep(0.005)
        if proc.poll() is None:
            pytest.fail(f"hangs\n{conftest.stacks(proc.pid)}")
        assert not conftest.mountinfo(mnt), "left mounted"
    finally:
        plan.row = -1
        if proc.poll() is None:
            proc.kill()
            proc.wait()
        if conftest.mountinfo(mnt):
            subprocess.run(["umount", "-l", mnt], check=False)
    with open(log, errors="replace") as file:
        return proc.returncode, file.read(), was_mounted


def to_start(workdir):
    """(program, path of its plan, the plan)"""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no mounts here")
    os.mkdir(os.path.join(workdir, "data"))
    os.mkdir(os.path.join(workdir, "mnt"))
    with open(os.path.join(workdir, "data", "file"), "wb"):
        pass
    path = os.path.join(workdir, "plan")
    return os.path.join(helpers.faults_folder(), "mount.gaiafs"), path, Plan.make(path)


def check_start(where, code, said, mounted):
    where = f"{where}: exit code {code}: {said}"
    if mounted:
        assert code == 0, where
    else:
        assert code == 1 and said.strip(), where


@pytest.mark.limit(200)
@every_row
def test_a_call_that_fails_at_the_start(workdir, row):
    """It serves all the same (with less, and a word about it), or it ends with a message and leaves nothing mounted."""
    program, path, plan = to_start(workdir)
    number = ROWS.index(row)
    code, said, mounted = start_and_stop(workdir, plan, path, program)
    assert code == 0 and mounted, said
    calls = plan.calls[number]
    if not calls:
        pytest.skip("not called")
    for error in ERRORS.get(row, [errno.EIO])[:2]:
        for n in numbers(calls, random.Random(helpers.make_random().random())):
            plan.arm(number, error, n, 0)
            code, said, mounted = start_and_stop(workdir, plan, path, program)
            check_start(f"{row}() number {n}: {errno.errorcode.get(error, 'short')}", code, said, mounted)


@pytest.mark.limit(600)
@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_a_site_that_fails_at_the_start(mount, workdir, monkeypatch, kind):
    """Or at the end: what the exercise does not come to."""
    only_sanitized("daemon")
    rng = random.Random(helpers.make_random().random())
    keys = some(starting(mount, workdir, monkeypatch, kind), rng)
    program, path, plan = to_start(workdir)
    for key in keys:
        for error in errors_of(key, rng)[:2]:
            plan.arm(key & 255, error, 1, 0, key)
            result = start_and_stop(workdir, plan, path, program, KINDS[kind])
            where = f"{ALL_ROWS[key & 255]}() in {sites_of('daemon').name(key)}"
            check_start(f"{where}: {errno.errorcode.get(error, 'short')}", *result)


def starting(mount, workdir, monkeypatch, kind):
    """Sites of the start and the end of such a mount, which no other kind has."""
    survey(mount, workdir, monkeypatch)
    running = set().union(*(found.each | found.once for found in reached.values()))
    return [key for key in new_sites("daemon", kind, "start") if key not in running]


@pytest.mark.skipif(SANITIZE, reason="a sanitizer's build inlines other functions")
@pytest.mark.whole
@pytest.mark.parametrize("who", ["daemon", "client"])
def test_every_site_is_reached(mount, workdir, monkeypatch, who):
    """Or listed with a reason for not being: who adds a call is reminded. What is reached is made to fail by the tests above."""
    if not all(found.each for found in survey(mount, workdir, monkeypatch).values()) or not kernel_at_least(6, 16):
        pytest.skip("another kernel than the exercise is made for: other places are reached")
    reasons = listed(os.path.basename(sites_of(who).program))
    keys = set().union(*(keys_of(who, found) for found in reached.values()))
    for again in range(5):
        lines = sites_of(who).lines(keys)
        print(f"{sum(lines.values())} of {len(lines)} are reached")
        missing = [where for where in sorted(lines) if not lines[where] and (where.file, where.function, where.row) not in reasons]
        if not missing or again == 4:
            break
        # What a node that leaves has to do is a matter of where its files have their homes, by their inodes' numbers, and of
        # whether a test beside this one has made the kernel forget them (drop_caches).
        print("looks again for", missing)
        keys = keys.union(*(keys_of(who, look(mount, workdir, monkeypatch, name)) for name in KINDS))
    assert missing == []


def keys_of(who, found):
    return found.start | found.each | found.once if who == "daemon" else set(found.client)


@pytest.mark.skipif(SANITIZE, reason="a sanitizer's build inlines other functions")
def test_every_site_that_is_listed_is_there():
    there = {(where.file, where.function, where.row) for who in ("daemon", "client") for where in sites_of(who).lines(())}
    assert set(listed("mount.gaiafs")) | set(listed("libgaia.so")) <= there


def test_a_guard_that_cannot_end_the_connection(workdir):
    """The mount works without it, and says so."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no mounts here")
    for name in ("data", "mnt", "data/file"):
        os.mkdir(os.path.join(workdir, name))
    path = os.path.join(workdir, "plan")
    plan = Plan.make(path)
    plan.arm(ROWS.index("syscall"), errno.ENOSYS, 3, 0)  # capget() and close_range() come before fsopen()
    code, said, mounted = start_and_stop(workdir, plan, path, os.path.join(helpers.faults_folder(), "mount.gaiafs"))
    if not plan.landed:
        pytest.skip("fusectl is mounted here: nothing that can fail")
    assert code == 0 and mounted and "no guard" in said, said
