#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Plant bugs, one at a time, and see that the suite notices each of them.

The *.txt beside this file have the bugs. The tree is copied, with what is built of it; in a copy each bug is put in,
built, and looked for: by the test named with it, then by the unit tests, the mount tests, random histories, and the
unit tests under TSan and ASan, to the first failure. Before that a copy without a bug passes the same. README.md has
more.

Ends with two lines, `N of N caught` and `N passed, N failed`.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import glob
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(TOP, "tests"))

import check  # noqa: E402

README = os.path.join(HERE, "README.md")
PYTHON = "/usr/bin/python3"  # the one that has Debian's pytest
BUILD_LIMIT_S = 600
UNIT_LIMIT_S = 100
SANITIZED_LIMIT_S = 600
MOUNT_LIMIT_S = 1800
HISTORY_LIMIT_S = 600
HISTORY_OPERATIONS = 80000  # a round of each kind
# Cheapest first. test_rules.py builds trees of its own and says nothing of ours.
UNIT_ORDER = ("consistency/", "fs/", "cache/test_index", "cache/test_policy", "cache/test_readahead", "cache/", "")
MOUNT_ORDER = ("test_promises.py", "test_sharing.py", "test_changes.py", "test_room.py", "test_devices.py",
               "test_files.py", "test_names.py", "test_permissions.py", "test_attributes.py", "test_backing.py",
               "test_oracle.py", "test_clients.py", "test_forks.py", "test_deaths.py", "test_arguments.py", "test_disks.py",
               "test_broken_disks.py", "test_protocol.py", "test_cuda.py", "test_durability.py", "test_mount.py",
               "test_mount_ends.py", "test_examples.py", "test_injection.py")


class Broken(Exception):
    """A mutant that can't be judged: it does not apply, or does not build, or the tree fails without it."""


# --- mutants ---------------------------------------------------------------------------------------------------------

class Mutant:
    """A bug: in `file`, the text `old`, which is there once, becomes `new`."""

    def __init__(self, name):
        self.name, self.file, self.breaks, self.catch, self.tries = name, "", "", "", 1
        self.lines = []

    @property
    def old(self):
        return "".join(line[1:] + "\n" for line in self.lines if line[0] in " -")

    @property
    def new(self):
        return "".join(line[1:] + "\n" for line in self.lines if line[0] in " +")

    def check(self):
        if not self.file or not self.breaks or not self.catch or self.old == self.new:
            raise Broken(f"{self.name}: needs file, breaks, catch, and a change")

    def mutated(self, tree):
        """The file's text with the bug in it."""
        with open(os.path.join(tree, self.file)) as file:
            text = file.read()
        count = text.count("\n" + self.old)
        if count != 1:
            raise Broken(f"{self.name}: its text is {count} times in {self.file}, not once: mend it")
        return text.replace("\n" + self.old, "\n" + self.new)


def read_file_of_mutants(path):
    mutants = []
    with open(path) as file:
        for number, line in enumerate(file.read().split("\n"), 1):
            key, _, value = line.partition(": ")
            if not line or line[0] == "#":
                continue
            if mutants and line[0] in " -+":
                mutants[-1].lines.append(line)
            elif key == "mutant":
                mutants.append(Mutant(value))
            elif mutants and key in ("file", "breaks", "catch"):
                setattr(mutants[-1], key, value)
            elif mutants and key == "tries":
                mutants[-1].tries = int(value)
            else:
                raise Broken(f"{path}:{number}: {line!r}")
    return mutants


def read_mutants():
    mutants = []
    for folder in ("base", "consistency", "cache", "io", "gpu", "fs"):
        mutants += read_file_of_mutants(os.path.join(HERE, f"{folder}.txt"))
    names = [mutant.name for mutant in mutants]
    for mutant in mutants:
        mutant.check()
        if names.count(mutant.name) > 1:
            raise Broken(f"{mutant.name} is there twice")
    return mutants


# --- a copy of the tree ----------------------------------------------------------------------------------------------

def processes_of(mark):
    """Those that have `mark` in their environment."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if mark.encode() in file.read().split(b"\0"):
                    yield int(entry)


class Tree:
    """A copy of the sources and of what is built of them. Whatever runs in it has its folder in the environment."""

    def __init__(self, folder, source):
        self.folder = folder
        self.temporary = os.path.join(folder, "tmp")
        self.mark = f"GAIA_TEST_DIR={self.temporary}"
        self.output = ""  # of the last run
        if source is not None:
            subprocess.run(["cp", "-a", source.folder, folder], check=True)
        else:
            os.mkdir(folder)
            self.copy_top()
            os.mkdir(self.temporary)
        os.chmod(folder, 0o755)
        self.forget_programs()

    def copy_top(self):
        """What git knows, what is new, and what is built: times are kept, so that only what is changed is built."""
        command = ["git", "-c", f"safe.directory={TOP}", "ls-files", "-co", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=TOP, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
        built = ["mount.gaiafs", "gaiactl", *glob.glob("libgaia.so*", root_dir=TOP)]
        built += ["build/gcc", "build/gcc-thread", "build/gcc-address"]
        for name in [*listed, *built]:
            if name and os.path.lexists(os.path.join(TOP, name)):
                os.makedirs(os.path.dirname(os.path.join(self.folder, name)), exist_ok=True)
                subprocess.run(["cp", "-a", "--", os.path.join(TOP, name), os.path.join(self.folder, name)], check=True)

    def forget_programs(self):
        """Programs that know the folder of libgaia.so are linked again."""
        for name in glob.glob("build/gcc*/tests/mount/tool_*", root_dir=self.folder):
            if "." not in os.path.basename(name):
                os.unlink(os.path.join(self.folder, name))
        shutil.rmtree(os.path.join(self.folder, "build", "history"), ignore_errors=True)

    def environment(self, sanitize=""):
        build = os.path.join(self.folder, "build", "gcc" + (f"-{sanitize}" if sanitize else ""))
        programs = build if sanitize else self.folder
        env = check.environment(argparse.Namespace(bin=programs, build=build, sanitize=sanitize))
        env["GAIA_TEST_DIR"] = self.temporary
        env.pop("GAIA_TEST_SEED", None)
        return env

    def run(self, command, limit, sanitize=""):
        """(exit status or None for the time limit, output). Nothing of it is left running or mounted."""
        with tempfile.TemporaryFile("w+", errors="replace", dir=self.temporary) as output:
            proc = subprocess.Popen(command, cwd=self.folder, env=self.environment(sanitize), stdin=subprocess.DEVNULL,
                                    stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = proc.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                self.sweep()
                proc.wait()
            output.seek(0)
            self.output = output.read()
            return code, self.output

    def sweep(self):
        """Kill what still runs in this tree, unmount what is still mounted, remove what is left."""
        deadline = time.monotonic() + 20
        while (left := list(processes_of(self.mark))) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            mounts = [line.split()[4] for line in file]
        for path in reversed(mounts):
            if path.startswith(self.temporary + "/"):
                subprocess.run(["umount", "-l", path], check=False)
        loops = subprocess.run(["losetup", "-l", "-n", "-O", "NAME,BACK-FILE"], stdout=subprocess.PIPE, text=True,
                               check=False)
        for line in loops.stdout.splitlines():
            if self.temporary + "/" in line:
                subprocess.run(["losetup", "-d", line.split()[0]], check=False)
        for name in os.listdir(self.temporary):
            path = os.path.join(self.temporary, name)
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)

    def make(self, sanitize, *targets):
        code, output = self.run(["make", "-j2", f"SANITIZE={sanitize}", *targets], BUILD_LIMIT_S)
        if code:
            raise Broken(f"does not build:\n{output[-3000:]}")

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(text)


# --- runs of the suite -----------------------------------------------------------------------------------------------

SANITIZER = re.compile(r"(?:ERROR|WARNING): (\w+Sanitizer: [\w -]+)|(runtime error: .*)")
ASSERTION = re.compile(r"Assertion (`.*') failed")


def why(code, output):
    """What a failed program said, in a few words."""
    found = SANITIZER.search(output)
    if found:
        return (found[1] or found[2]).strip()
    found = ASSERTION.search(output)
    if found:
        return f"assertion {found[1]}"
    failed = re.findall(r"^\[  (?:FAILED|ERROR) +\] ([\w/]+)$", output, re.M)  # ERROR: its teardown failed, too
    if failed:
        return failed[0]
    end = "does not end" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
    running = re.findall(r"^\[ RUN      \] ([\w/]+)$", output, re.M)
    return f"{running[-1]}: {end}" if running else end


class Caught(collections.namedtuple("Caught", "key how")):
    """What failed: the key of a run that has it, as narrow as can be said."""

    def __str__(self):
        return f"{self.key}: {self.how}" if self.how else self.key


class Step:
    """A run. Its key: `cache/test_x`, `mount/test_x.py` (or `::test` of it), `history`, `history-gpu`; with `thread ` or
    `address ` in front, of a build with that sanitizer."""

    def __init__(self, key):
        self.key = key
        first, _, rest = key.partition(" ")
        self.sanitize = first if first in ("thread", "address") else ""
        self.what = rest if self.sanitize else key

    def build(self, tree):
        build = "build/gcc" + (f"-{self.sanitize}" if self.sanitize else "")
        if self.what.startswith("mount/") or not self.sanitize:
            tree.make(self.sanitize, "tests")
        else:
            tree.make(self.sanitize, f"{build}/tests/{self.what}")
        return build

    def run(self, tree):
        """None when it passes, else what failed and how."""
        build = self.build(tree)
        if self.what.startswith("mount/"):
            return self.run_mount(tree)
        if self.what in ("history", "history-gpu"):
            gpu = ["--gpu", "build/gcc/cuda"] if self.what == "history-gpu" else []
            code, output = tree.run([PYTHON, "-B", "tests/history/run.py", "--until-failure", "--keep", tree.temporary,
                                     "--operations", str(HISTORY_OPERATIONS), *gpu], HISTORY_LIMIT_S)
            rule = re.search(r"^first: (.*)$", output, re.M)
            return code != 0 and Caught(self.key, rule[1][:100] if rule else why(code, output)) or None
        limit = SANITIZED_LIMIT_S if self.sanitize else UNIT_LIMIT_S
        code, output = tree.run([f"{build}/tests/{self.what}"], limit, self.sanitize)
        return code != 0 and Caught(self.key, why(code, output)) or None

    def run_mount(self, tree):
        files = [f"tests/{name}" for name in self.what.split()]
        command = [PYTHON, "-B", "-m", "pytest", "-v", "-x", "-p", "no:cacheprovider", *files]
        code, output = tree.run(command, MOUNT_LIMIT_S, self.sanitize)
        if code == 0:
            return None
        found = re.findall(r"^tests/(mount/test_\w+\.py::[^\s\[]+)", output, re.M)  # the last one is where it ended
        key = f"{self.sanitize} {found[-1] if found else self.what}".strip()
        if code is None or code < 0:
            return Caught(key, why(code, output))
        return Caught(key, "time limit" if "time limit of" in output else "")


UNITS = sorted((name[:-2] for name in glob.glob("*/test_*.c", root_dir=os.path.join(TOP, "tests"))),
               key=lambda name: (next(i for i, start in enumerate(UNIT_ORDER) if name.startswith(start)), name))


def unit_steps(sanitize=""):
    return [Step(f"{sanitize} {name}".strip()) for name in UNITS]


def mount_files(first=""):
    """All files of mount tests in one run, the likely one in front."""
    first = first.partition("::")[0]
    files = [f"mount/{name}" for name in MOUNT_ORDER if f"mount/{name}" != first]
    return " ".join(([first] if first else []) + files)


def suite(hint=""):
    """Every run, in the order in which a mutant meets them."""
    key = Step(hint)
    steps = [Step(hint)] if hint else []
    steps += [step for step in unit_steps() if step.key != hint]
    steps.append(Step(mount_files(key.what if key.what.startswith("mount/") else "")))
    steps.append(Step("history"))
    steps += [step for sanitize in ("thread", "address") for step in unit_steps(sanitize) if step.key != hint]
    return steps


# --- the tree without a bug ------------------------------------------------------------------------------------------

class Clean:
    """The copy without a bug: what it passes may catch one."""

    def __init__(self, folder):
        self.tree = Tree(folder, None)
        self.lock = threading.Lock()
        self.passed = {}
        self.tree.make("", "tests")

    def passes(self, step):
        """Run a step, once, and say what failed (None: nothing)."""
        with self.lock:
            if step.key not in self.passed:
                self.passed[step.key] = step.run(self.tree)
                if self.passed[step.key]:
                    print(f"without a bug, {step.key}:\n{self.tree.output[-6000:]}", flush=True)
            return self.passed[step.key]

    def run_all(self, mutants):
        """The same runs as for the mutants. Raises Broken at the first that fails."""
        steps = suite() + [Step(key) for key in sorted({m.catch for m in mutants if Step(m.catch).sanitize})]
        for step in steps:
            if step.key in self.passed:
                continue
            started = time.monotonic()
            failed = self.passes(step)
            seconds = time.monotonic() - started
            word = "FAILED" if failed else "ok"
            print(f"{word:8} without a bug: {failed or step.key}  ({seconds:.0f} s)", flush=True)
            if failed:
                raise Broken(f"the tree fails without a bug: {failed}")
        for files in mount_files().split():
            self.passed[files] = None


# --- a mutant's fate -------------------------------------------------------------------------------------------------

class Result:
    def __init__(self, mutant):
        self.mutant, self.caught, self.error, self.seconds = mutant, None, None, 0.0


def confirm(clean, caught):
    """A test that fails without the bug too catches nothing."""
    key = caught.key
    if clean.passed.get(key.partition("::")[0], True) is not None:
        failed = clean.passes(Step(key))
        if failed:
            raise Broken(f"the tree fails without the bug too: {failed}")


def judge(mutant, tree, clean, hint_only):
    result, started = Result(mutant), time.monotonic()
    try:
        with open(os.path.join(tree.folder, mutant.file)) as file:
            original = file.read()
        tree.write(mutant.file, mutant.mutated(tree.folder))
        try:
            steps = suite(mutant.catch)
            tree.make("", "tests")
            for step in [steps[0]] * (mutant.tries - 1) + (steps[:1] if hint_only else steps):
                result.caught = step.run(tree)
                if result.caught:
                    result.seconds = time.monotonic() - started
                    confirm(clean, result.caught)
                    break
        finally:
            tree.write(mutant.file, original)
    except Broken as error:
        result.caught, result.error = None, str(error)
    result.seconds = result.seconds or time.monotonic() - started
    return result


def report(result):
    name, seconds = result.mutant.name, f"{result.seconds:6.1f} s"
    if result.error:
        print(f"BROKEN   {name:36} {seconds}  {result.error}", flush=True)
    elif result.caught:
        print(f"caught   {name:36} {seconds}  {result.caught}", flush=True)
    else:
        print(f"SURVIVED {name:36} {seconds}  {result.mutant.file}: {result.mutant.breaks}", flush=True)


def run_mutants(mutants, clean, folder, args):
    trees = queue.Queue()
    for i in range(min(args.jobs, len(mutants))):
        trees.put(Tree(os.path.join(folder, f"tree{i}"), clean.tree))

    def one(mutant):
        tree = trees.get()
        try:
            result = judge(mutant, tree, clean, args.hint)
        finally:
            trees.put(tree)
        report(result)
        return result

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        return list(pool.map(one, mutants))


# --- the table -------------------------------------------------------------------------------------------------------

BEGIN, END = "<!-- written by run.py --table -->\n", "<!-- end -->\n"


def write_table(results):
    """A row for each mutant that was run; those of others stay as they are."""
    with open(README) as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    written, after = rest.split(END)
    rows = {name: row for row, name in re.findall(r"^(\| ([\w-]+) \| `.*)$", written, re.M)}
    for result in results:
        caught = str(result.caught or "nothing").replace("|", "\\|")
        mutant = result.mutant
        rows[mutant.name] = f"| {mutant.name} | `{mutant.file}` | {mutant.breaks} | {caught} |"
    table = ["| mutant | in | what it breaks | caught by |", "|---|---|---|---|"]
    table += [rows[mutant.name] for mutant in read_mutants() if mutant.name in rows]
    with open(README, "w") as file:
        file.write(before + BEGIN + "\n".join(table) + "\n" + END + after)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--list", action="store_true", help="print the mutants, and check that each applies")
    add("--only", action="append", metavar="NAME",
        help="these mutants alone; what caught them is tried without them afterwards")
    add("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many at a time (2)")
    add("--hint", action="store_true", help="only the test that is named with a mutant (quick: is the name right?)")
    add("--table", action="store_true", help="write the table of README.md")
    add("--dir", default=os.environ.get("GAIA_TEST_DIR", "/var/tmp"), help="where the copies are made")
    return parser.parse_args()


def select(mutants, only):
    if not only:
        return mutants
    chosen = [mutant for mutant in mutants if mutant.name in only]
    for name in set(only) - {mutant.name for mutant in chosen}:
        raise Broken(f"no mutant {name}")
    return chosen


def work(args, mutants):
    if os.geteuid():
        raise Broken("mounting needs root")
    folder = os.path.realpath(tempfile.mkdtemp(prefix="gaiafs-mutants-", dir=args.dir))
    os.chmod(folder, 0o755)  # tests of other users' rights work in it
    try:
        clean = Clean(os.path.join(folder, "clean"))
        if not args.only and not args.hint:
            clean.run_all(mutants)
        results = run_mutants(mutants, clean, folder, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.table:
        write_table(results)
    caught = sum(1 for result in results if result.caught)
    print(f"{caught} of {len(results)} caught")
    print(f"{caught} passed, {len(results) - caught} failed")
    return 0 if caught == len(results) else 1


def main():
    args = parse()
    try:
        mutants = select(read_mutants(), args.only)
        for mutant in mutants:
            mutant.mutated(TOP)
        if args.list:
            for mutant in mutants:
                print(f"{mutant.name:36} {mutant.file:28} {mutant.breaks}")
            return 0
        return work(args, mutants)
    except Broken as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
