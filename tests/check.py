#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the tests of a build: the unit test programs (cmocka), then the mount tests (pytest).

Ends with one line `N passed, N failed, N skipped`. Each program has a time limit; what a failed one printed is shown. What
passes at a second try (--again) is named in a line that begins with "flaky:".
"""
import argparse
import concurrent.futures
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
UNIT_LIMIT_S = 600  # the longest takes a minute under TSan, and several beside three other lanes
MOUNT_LIMIT_S = 2700 if os.environ.get("GAIA_GATE") else 3 * 3600  # nothing is left out then, a sanitizer beside it
# What is a flaw however seldom it is met: also a daemon or a program that has crashed (99: by a sanitizer).
PROOF = re.compile(r"\w+Sanitizer|runtime error:|lock order:|sanitizer's report|the daemon ended with|Test failed with exception"
                   r"|<Signals\.SIG(ABRT|BUS|FPE|ILL|SEGV|SYS|TRAP)|ended by signal"
                   r"|(returncode=|process ended with )(-4|-5|-6|-7|-8|-11|99)\b")
FOLDERS = ("base", "consistency", "io", "gpu", "cache", "fs", "fuzz")


class Count:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def add(self, passed, failed, skipped=0):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped


def compile_modules(args):
    """Those of the tests: there are some thousand processes that begin with them, and each would compile them anew. So they do
    where nothing can be written."""
    folders = [args.folder, os.path.join(TOP, "tests", "faults")]
    subprocess.run([args.python, "-m", "compileall", "-q", *folders], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


def environment(args):
    env = dict(os.environ)
    env["GAIAFS_BIN"] = os.path.abspath(args.bin)
    env["GAIAFS_BUILD"] = os.path.abspath(args.build)
    env["GAIAFS_SANITIZE"] = args.sanitize
    env.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:exitcode=99:halt_on_error=1")
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
    env.setdefault("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1:exitcode=99:die_after_fork=0")
    return env


def run_unit(program, env):
    """One cmocka program: its counts, from its own closing lines, and what is to be said of it."""
    start = time.monotonic()
    try:
        done = subprocess.run([program], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=UNIT_LIMIT_S, text=True, errors="replace")
        output, code = done.stdout, done.returncode
        if code < 0 and -code != signal.SIGALRM:  # its own limit of time
            output += f"\nended by signal {-code}\n"
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace") + f"\ntime limit of {UNIT_LIMIT_S} s\n"
        code = -1
    passed = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", output))
    skipped = sum(int(n) for n in re.findall(r"\[  SKIPPED \] (\d+) test", output))
    failed = sum(int(n) for n in re.findall(r"\[  FAILED  \] (\d+) test", output))
    if code and not failed:
        failed = 1
    if not code and not passed and not skipped:  # a program that tests nothing is no test
        failed = 1
    name = os.path.relpath(program, os.path.join(env["GAIAFS_BUILD"], "tests"))
    said = f"{'FAIL' if failed else 'ok':4} {name:32} {passed:4} passed, {failed} failed  {time.monotonic() - start:6.1f} s"
    return (passed, failed, skipped), f"{said}\n{output}" if failed else said


def units(args):
    if args.units:
        return [os.path.join(args.build, "tests", *name.split("/")) for name in args.units.split(",")]
    return [program for folder in FOLDERS if folder not in args.without.split(",")
            for program in sorted(glob.glob(os.path.join(args.build, "tests", folder, "test_*")))
            if os.access(program, os.X_OK) and "." not in os.path.basename(program)]


def to_the_next_test(said):
    """Of what a unit test program says the part to the end of the first test that failed: it is left where it stood, with its
    threads and its memory, and what they do to the tests behind it, or are at the program's end, shows nothing. The second try
    runs those, too."""
    failed = re.search(r"^\[  (?:ERROR|FAILED) .*?(?=^\[ RUN |^\[=+\] \d+ test)", said, re.M | re.S)
    crashed = re.search(r"^ended by signal.*", said, re.M)
    return said[:failed.end()] + (crashed[0] if crashed else "") if failed else said


def may_try_again(args, failed):
    """failed: {name: what it printed}. Few, and nothing that is a flaw at any time."""
    return 0 < len(failed) <= args.again and not any(PROOF.search(text) for text in failed.values())


def say_flaky(name):
    print(f"flaky: {name}: failed once (above), and passed when it was run again by itself", flush=True)


def run_units(args, env, count):
    """Several at a time where that is asked for: many of them wait most of the time."""
    programs, failed, first = units(args), {}, {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for program, (counts, said) in zip(programs, pool.map(lambda program: run_unit(program, env), programs)):
            print(said, flush=True)
            if counts[1]:
                failed[program], first[program] = to_the_next_test(said), counts
            else:
                count.add(*counts)
    again = may_try_again(args, failed)
    for program, counts in first.items():
        if again:
            counts, said = run_unit(program, env)
            print(said, flush=True)
            if not counts[1]:
                say_flaky(os.path.basename(program))
        count.add(*counts)


def run_pytest(args, env, tests):
    """These files or tests: (their counts, {test that failed: what it printed})."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [args.python, "-B", "-m", "pytest", "-q", "-x" if args.first else "-ra", "-p", "no:cacheprovider",
                   "--durations=10", f"--junitxml={report.name}", *tests]
        try:
            code = subprocess.run(command, env=env, cwd=TOP, stdin=subprocess.DEVNULL,
                                  timeout=MOUNT_LIMIT_S).returncode
        except subprocess.TimeoutExpired:
            print(f"time limit of {MOUNT_LIMIT_S} s for the mount tests")
            return (0, 1, 0), {}
        try:
            suite = ElementTree.parse(report.name).getroot().find("testsuite")
            cases, skipped = list(suite.iter("testcase")), int(suite.get("skipped"))
        except (ElementTree.ParseError, AttributeError):
            return (0, 1, 0), {}
    # The name of its file's module is all that the report has of where a test is; whose teardown failed, too, is there twice.
    ran, failed = set(), {}
    for case in cases:
        name = f"{os.path.join(args.folder, (case.get('classname') or '').split('.')[-1])}.py::{case.get('name')}"
        ran.add(name)
        if case.find("failure") is not None or case.find("error") is not None:
            failed[name] = failed.get(name, "") + "".join(case.itertext())
    counts = (len(ran) - len(failed) - skipped, len(failed), skipped)
    complete = code in (0, 1) and not args.first  # else some may never have run: none is run again
    return (counts[0], counts[1] or int(code != 0), skipped), failed if complete else {}


def run_mount(args, env, count):
    names = [f"test_{name}.py" for name in args.files.split(",")] if args.files else [""]
    tests = [os.path.join(args.folder, name) for name in names]
    tests += [f"--ignore={os.path.join(args.folder, f'test_{name}.py')}" for name in filter(None, args.but.split(","))]
    if args.select:
        tests += ["-k", args.select]
    counts, failed = run_pytest(args, env, tests)
    if may_try_again(args, failed):
        again, _ = run_pytest(args, env, list(failed))
        if again == (len(failed), 0, 0):
            for name in failed:
                say_flaky(os.path.relpath(name, TOP))
            counts = (counts[0] + len(failed), 0, counts[2])
    count.add(*counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, help="folder with the built tests")
    parser.add_argument("--bin", required=True, help="folder with mount.gaiafs, gaiactl and libgaia.so")
    parser.add_argument("--sanitize", default="", help="address or thread: what the build was made with")
    parser.add_argument("--unit", action="store_true", help="the unit tests only")
    parser.add_argument("--mounts", action="store_true", help="the mount tests only")
    parser.add_argument("--jobs", type=int, default=1, help="unit tests at a time (1)")
    parser.add_argument("--without", default="", help="no unit tests of these folders, FOLDER,FOLDER...")
    parser.add_argument("--units", help="only these of the unit tests, FOLDER/test_NAME,FOLDER/test_NAME...")
    parser.add_argument("--files", help="of the mount tests only test_NAME.py of these names, NAME,NAME...")
    parser.add_argument("--but", default="", help="of the mount tests not test_NAME.py of these names, NAME,NAME...")
    parser.add_argument("--select", help="pytest -k")
    parser.add_argument("--folder", default=os.path.join(TOP, "tests", "mount"), help="where the mount tests are")
    parser.add_argument("--again", type=int, default=int(os.environ.get("GAIA_AGAIN") or 0),
                        help="so many that failed are run once more, by themselves; where more have, a sanitizer has said "
                             "something or anything has crashed, none is (GAIA_AGAIN, else 0)")
    parser.add_argument("--first", action="store_true", help="stop the mount tests at the first failure")
    # Debian's pytest belongs to Debian's python3, whatever else is first on PATH.
    parser.add_argument("--python", default="/usr/bin/python3")
    args = parser.parse_args()
    env, count = environment(args), Count()
    if not args.mounts:
        run_units(args, env, count)
    if not args.unit:
        compile_modules(args)
        run_mount(args, env, count)
    print(f"{count.passed} passed, {count.failed} failed, {count.skipped} skipped", flush=True)
    return 1 if count.failed or not count.passed else 0


if __name__ == "__main__":
    sys.exit(main())
