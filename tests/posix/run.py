#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Other programs on a real mount. Each case is one run of a program, in a folder of its own.

Ends with one line, `N passed, N failed, N skipped`. README.md has more.
"""
import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(TOP, "tests", "mount"))

import databases  # noqa: E402
import fio  # noqa: E402
import layers  # noqa: E402
import stress  # noqa: E402
import trees  # noqa: E402
from case import Failed, Missing  # noqa: E402
from stacks import stacks  # noqa: E402


class Expired(Exception):
    pass


def expire(_signal, _frame):
    raise Expired("time limit")


class Mount:
    """A gaiafs daemon of ours on folders of ours."""

    def __init__(self, program, folder, options):
        self.data, self.mnt, self.log = (os.path.join(folder, name) for name in ("data", "mnt", "log"))
        os.mkdir(self.data)
        os.mkdir(self.mnt)
        with open(self.log, "wb") as out:
            self.proc = subprocess.Popen([program, "-f", self.data, self.mnt, *(["-o", options] if options else [])],
                                         stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/")
        deadline = time.monotonic() + 20
        while not self.mounted():
            if self.proc.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"not mounted: {self.log_text()}")
            time.sleep(0.01)

    def mounted(self):
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            return any(line.split()[4] == self.mnt for line in file)

    def log_text(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def end(self):
        """What is wrong at the end, or nothing."""
        deadline = time.monotonic() + 20
        while self.mounted() and time.monotonic() < deadline:
            if subprocess.run(["umount", self.mnt], capture_output=True, check=False).returncode:
                time.sleep(0.2)
        if self.mounted():
            subprocess.run(["umount", "-l", self.mnt], check=False)
            self.proc.kill()
            return "umount: still busy"
        try:
            code = self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            return "the daemon did not end after the unmount"
        return f"the daemon ended with {code}" if code else ""


def kill_children():
    """What a case left behind when its time was over: only children of this process, by their numbers."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def run_case(case, mount, folder, seed):
    """("ok", "FAIL" or "skip", what there is to say)."""
    mnt, plain = os.path.join(mount.mnt, case.name), os.path.join(folder, case.name)
    for each in (mnt, plain):
        os.mkdir(each)
        os.chmod(each, 0o755)
    case.prepare(mnt, plain, seed)
    signal.signal(signal.SIGALRM, expire)
    signal.alarm(case.limit_s)
    try:
        case.work(case)
        result = "ok", ""
    except Missing as program:
        result = "skip", f"{program} is not installed"
    except Failed as failed:
        result = "FAIL", str(failed)
    except Expired:
        result = "FAIL", f"time limit of {case.limit_s} s\n{stacks(mount.proc.pid)}"
    except Exception as error:  # pylint: disable=broad-except
        result = "FAIL", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    for pid in kill_children():
        if pid != mount.proc.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if result[0] != "FAIL":
        for each in (mnt, plain):
            shutil.rmtree(each, ignore_errors=True)
        if mount.proc.poll() is not None:
            result = "FAIL", "the daemon has ended"
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=TOP, help="folder of mount.gaiafs")
    parser.add_argument("--dir", default=os.environ.get("GAIA_TEST_DIR", "/var/tmp"), help="where data directories are made")
    parser.add_argument("--quick", action="store_true", help="the part that takes less than a minute")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--options", default="", help="of the mount")
    args = parser.parse_args()
    seed = int(os.environ.get("GAIA_TEST_SEED", random.randrange(1 << 32)))
    print(f"GAIA_TEST_SEED={seed}", flush=True)
    cases = [case for part in (fio, trees, layers, databases, stress) for case in part.cases(args.quick)
             if not args.only or args.only in case.name]
    folder = tempfile.mkdtemp(prefix="gaiafs-posix-", dir=args.dir)
    os.chmod(folder, 0o755)  # other users work in it too
    counts = dict.fromkeys(("ok", "FAIL", "skip"), 0)
    mount = Mount(os.path.join(os.path.abspath(args.bin), "mount.gaiafs"), folder, args.options)
    os.chmod(mount.mnt, 0o755)
    try:
        for case in cases:
            begun = time.monotonic()
            result, text = run_case(case, mount, folder, seed)
            counts[result] += 1
            print(f"{result:4} {case.name:32} {time.monotonic() - begun:6.1f} s  {text}", flush=True)
    finally:
        problem = mount.end()
    if problem:
        counts["FAIL"] += 1
        print(f"FAIL {problem}\n{mount.log_text()[-4000:]}")
    if not counts["FAIL"]:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"what is left is in {folder}")
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] or not counts["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
