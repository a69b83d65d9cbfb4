#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon under helgrind (valgrind's checker of races and of the order of locks): make helgrind, as root.

A second opinion beside ThreadSanitizer: it sees libfuse and the C library too, and remembers in which order locks were
taken. What it can't see of the build that is checked: see tests/helgrind.supp.

Not under it: io_uring (valgrind 3.19 holds its lock over io_uring_enter() and stands still), so the mounts have
io=threads; and programs whose own threads touch a soft device's memory (they wait for a page with valgrind's lock
held, and it doesn't know the system call userfaultfd), so the clients run beside it, and of the unit tests those run
that have neither.
"""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT_S = 300
UNIT_TESTS = ["cache/test_index", "cache/test_policy", "cache/test_readahead", "consistency/test_merge"]
VALGRIND = ["valgrind", "--tool=helgrind", "--history-level=approx", "--fair-sched=yes", "--error-limit=no",
            "--num-callers=24", "--error-exitcode=98", f"--suppressions={TOP}/tests/helgrind.supp"]
OPTIONS = ["io=threads,device_cache=256K,timeout=0", "io=threads,device_cache=1M,evict=clock,unit=4K"]


def reports(log):
    """(what was said, reports, suppressed). Left out: what valgrind says of openat2() and cachestat() each time, which it
    doesn't know; they fail with ENOSYS there, and the daemon does without."""
    with open(log, errors="replace") as file:
        text = "".join(line for line in file if not re.match(r"--\d+--", line))
    # The guard, a child of the daemon, has a summary of its own where it can't do its work.
    found = re.findall(r"ERROR SUMMARY: (\d+) errors from \d+ contexts \(suppressed: (\d+)", text)
    return text, (sum(int(n) for n, _ in found) if found else -1), (sum(int(n) for _, n in found) if found else -1)


def files(folder, seed, problems):
    """What programs do that know nothing of devices."""
    rng = random.Random(seed)
    try:
        os.makedirs(folder)
        for i in range(60):
            path = os.path.join(folder, f"f{rng.randrange(6)}")
            step = rng.randrange(6)
            if step == 0 and os.path.exists(path):
                os.rename(path, path + "x")
                os.unlink(path + "x")
            elif step == 1:
                os.listdir(folder)
                os.path.exists(path)
            else:
                with open(path, "ab+") as file:
                    file.write(bytes([i]) * rng.randrange(20000))
                    file.flush()
                    os.pread(file.fileno(), 5000, 0)
                    if step == 2:
                        os.truncate(path, rng.randrange(9000))
                    if step == 3:
                        os.fsync(file.fileno())
    except OSError as problem:
        problems.append(str(problem))


def work(build, mnt, seed):
    """Several of everything at once; what went wrong."""
    problems = []
    tools = [["tool_mapping", "a", 4, 1, 20, seed, "map", "soft:0", "soft:1"],
             ["tool_mapping", "b", 100, 512, 2, seed, "write", "soft:0", "soft:0"],
             ["tool_alternate", "c", "soft:2", 20, seed], ["tool_pressure", "d", 16, 4, 100, seed]]
    started = [subprocess.Popen([os.path.join(build, "tests", "mount", tool[0]), os.path.join(mnt, tool[1]),
                                 *map(str, tool[2:])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for tool in tools]
    threads = [threading.Thread(target=files, args=(os.path.join(mnt, f"folder{i % 2}", str(i)), seed + i, problems))
               for i in range(4)]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + LIMIT_S
    while any(tool.poll() is None for tool in started) and time.monotonic() < ends:
        subprocess.run([os.path.join(build, "gaiactl"), "stat", "--json", mnt], stdout=subprocess.DEVNULL, check=False)
        time.sleep(0.5)
    for tool, command in zip(started, tools):
        if tool.poll() is None:
            tool.kill()
        output = tool.communicate()[0]
        if tool.returncode:
            problems.append(f"{command}: {tool.returncode}: {output}")
    for thread in threads:
        thread.join(LIMIT_S)
    return problems


def mounted(path):
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        return any(line.split()[4] == path for line in file)


def check_mount(build, folder, options, seed):
    data, mnt, log = (os.path.join(folder, name) for name in ("data", "mnt", "log"))
    os.mkdir(data)
    os.mkdir(mnt)
    with open(log, "w") as out:
        daemon = subprocess.Popen([*VALGRIND, os.path.join(build, "mount.gaiafs"), "-f", data, mnt, "-o", options],
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/")
    problems = []
    try:
        deadline = time.monotonic() + 60
        while not mounted(mnt) and daemon.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if not mounted(mnt):
            return ["not mounted"] + [reports(log)[0]]
        problems = work(build, mnt, seed)
        # Half the time it is told to end, and flushes what devices hold meanwhile.
        if "clock" in options:
            daemon.terminate()
        else:
            subprocess.run(["umount", mnt], check=False)
        code = daemon.wait(60)
        text, errors, suppressed = reports(log)
        print(f"{options}: {errors} reports, {suppressed} suppressed", flush=True)
        if code or errors:
            problems.append(f"the daemon ended with {code}, {errors} reports\n{text}")
    except subprocess.TimeoutExpired:
        problems.append("the daemon does not end")
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()
        if mounted(mnt):
            subprocess.run(["umount", "-l", mnt], check=False)
    return problems


def check_unit(build, folder, name, _seed):
    log = os.path.join(folder, name.replace("/", "-"))
    with open(log, "w") as out:
        code = subprocess.run([*VALGRIND, os.path.join(build, "tests", name)], stdout=out, stderr=out, cwd=TOP,
                              check=False, timeout=LIMIT_S).returncode
    text, errors, suppressed = reports(log)
    print(f"{name}: {errors} reports, {suppressed} suppressed", flush=True)
    return [text] if code or errors else []


def main():
    build = os.path.abspath(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # by way of what unmounts
    seed = int(os.environ.get("GAIA_TEST_SEED", "0")) or random.randrange(1 << 30)
    print(f"GAIA_TEST_SEED={seed}", flush=True)
    failed = passed = 0
    for check, names in (check_unit, UNIT_TESTS), (check_mount, OPTIONS):
        for name in names:
            folder = tempfile.mkdtemp(prefix="gaiafs-test-", dir=os.environ.get("GAIA_TEST_DIR", "/var/tmp"))
            problems = check(build, folder, name, seed)
            for problem in problems:
                print(problem, flush=True)
            failed, passed = failed + bool(problems), passed + (not problems)
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, 0 skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
