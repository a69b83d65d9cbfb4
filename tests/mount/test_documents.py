# SPDX-License-Identifier: Apache-2.0
"""What is written for people: links lead somewhere, the man pages have every option, README.md can be read."""
import ctypes
import errno
import fcntl
import glob
import importlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys

import pytest

from conftest import BIN, ENOUGH_SANITIZED, TOP
from helpers import kernel_at_least

DOCUMENTS = ("README.md", "docs", "examples", "tests")
SOURCES = ("base", "consistency", "io", "gpu", "cache", "fs", "examples", "tests", "docs")
PAGES = ("docs/mount.gaiafs.8", "docs/gaiactl.1")
README_LINES, README_WIDTH = 230, 130


def text_of(path):
    with open(os.path.join(TOP, path), encoding="utf-8") as file:
        return file.read()


def files_of(folders, *endings):
    """Their paths below TOP."""
    found = [name for name in folders if os.path.isfile(os.path.join(TOP, name))]
    for name in folders:
        for folder, below, names in os.walk(os.path.join(TOP, name)):
            below[:] = [one for one in below if one not in ("build", "__pycache__")]
            found += [os.path.relpath(os.path.join(folder, one), TOP) for one in names if one.endswith(endings)]
    return sorted(found)


def without_code(text):
    """Markdown without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)


def anchors_of(text):
    """The names that a Markdown viewer gives to headings."""
    names = []
    for heading in re.findall(r"^#{1,6} +(.*?) *$", without_code(text), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.append(name + (f"-{names.count(name)}" if name in names else ""))
    return names


def test_anchors_of():
    assert anchors_of("# A\n```sh\n# no\n```\n## 2. `b()`, and [c](d) e\n### A-b\n") == ["a", "2-b-and-c-e", "a-b"]


@pytest.mark.parametrize("path", files_of(DOCUMENTS, ".md"))
def test_links(path):
    """Every relative link of a document leads to a file of the tree, and to a heading of it."""
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", without_code(text_of(path)))):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        assert os.path.exists(os.path.join(TOP, target)), f"{path}: {link}"
        assert not anchor or anchor in anchors_of(text_of(target)), f"{path}: {link}"


def test_documents_that_are_named():
    """Comments and texts name documents that exist, by their paths from the top."""
    for path in files_of((*SOURCES, "README.md", "Makefile"), ".c", ".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".md", ".txt"):
        for name in re.findall(r"(?<![\w/.])docs/[\w.-]+\.(?:md|svg|8|1)\b", text_of(path)):
            assert os.path.exists(os.path.join(TOP, name)), f"{path}: {name}"


def test_files_that_documents_name():
    """`fs/x.h` and the like is a file of the tree."""
    for path in files_of(DOCUMENTS, ".md"):
        for name in re.findall(rf"`((?:{'|'.join(SOURCES)})/[\w./-]+\.\w+)`", text_of(path)):
            below = os.path.join("tests", name) if path.startswith("tests") else name
            assert any(os.path.exists(os.path.join(TOP, one)) for one in (name, below)), f"{path}: {name}"


def test_the_readme_can_be_read():
    lines = text_of("README.md").splitlines()
    assert len(lines) <= README_LINES
    assert [line for line in lines if len(line) > README_WIDTH and not line.startswith("|")] == []
    first = "\n".join(lines[:50])
    for said in ("sudo sh examples/quickstart.sh", "sudo sh tests/run.sh", "checks passed`", "N passed, 0 failed", "Status"):
        assert said in first, said


@pytest.mark.parametrize("name, ours", [
    ("2026-11-25-intel-xeon-2cpu-24g-fio", "untracked"), ("2026-11-21-amd-epyc-2cpu-24g-fio", "untracked"),
    ("2026-11-25-intel-xeon-2cpu-24g-fio-passthrough", "passthrough")])
def test_tables_are_what_was_measured(monkeypatch, name, ours):
    """docs/performance.md has fio's tables as examples/fio makes them of the JSON that it names."""
    monkeypatch.setattr(sys, "path", [os.path.join(TOP, "examples", "fio"), *sys.path])
    rows = json.loads(text_of(f"tests/bench/results/{name}.json"))["rows"]
    table = importlib.import_module("matrix").markdown(rows, ["native", ours, "tracked", "passthrough_ll"])
    text = text_of("docs/performance.md")
    assert f"{name}.json" in text and len(table.splitlines()) == 25
    assert [line for line in table.splitlines() if line not in text.splitlines()] == []


# --- the man pages --------------------------------------------------------------------------------------------------

def tags_of(page):
    """The tags of a page's paragraphs (.TP, .TQ), without fonts: what it has an entry for."""
    tags = re.findall(r"^\.T[PQ]\n(.*)$", text_of(page), re.M)
    tags = [re.sub(r"\\f(?:\[\w*\]|.)", "", re.sub(r"^\.[BIR]+ ", "", tag)).replace("\\-", "-") for tag in tags]
    return [re.sub(r"(\S) (?=\S)", r"\1", tag.replace('", "', ",")) for tag in tags]


def names_in(tag):
    """The options that a tag, or a line of --help, is about: "timeout=", "debug" ..."""
    return set(re.findall(r"(?:^|,) ?([a-z_]+(?:=|$|(?=,)))", tag))


def documented():
    return set().union(*(names_in(tag) for tag in tags_of(PAGES[0])))


def offered():
    """--help: {option: what it says of it}, and the flags of mount(8) in its last line."""
    done = subprocess.run([os.path.join(BIN, "mount.gaiafs"), "--help"], capture_output=True, text=True, timeout=20,
                          check=True)
    lines = done.stdout.split("Options:\n")[1].split("\n\n")[0]
    rows = re.findall(r"^    (\S.*?)  +(.*(?:\n {30}.*)*)", lines, re.M)
    flags = re.search(r"^    (ro, .*) and their opposites", lines, re.M)[1]
    return rows, set(flags.split(", "))


def test_man_page_has_the_options_of_help():
    rows, flags = offered()
    told = {name for tag, _ in rows for name in names_in(tag)} | flags
    assert len(told) > 25
    assert told - documented() == set()


def test_man_page_has_every_option():
    """What the program takes, flags, opposites, and what it ignores; and nothing else."""
    taken = set()
    for name in ("options.c", "options_cache.c", "options_nodes.c"):
        taken |= set(re.findall(r'\{\.text = "([^"]+)"', text_of(f"fs/{name}")))
    taken = {name.strip() for name in taken if not name.startswith("-")}
    assert len(taken) > 60
    assert taken - documented() == set()
    assert documented() - taken == set()


def test_man_page_has_the_flags():
    tags = set().union(*(re.findall(r"(?<![\w-])(?:--[a-z]+|-[a-zA-Z])", tag) for tag in tags_of(PAGES[0])))
    taken = {name.strip() for name in re.findall(r'\{\.text = "(-[^"]+)"', text_of("fs/options.c"))}
    assert tags == taken


def test_man_page_has_the_defaults_of_help():
    entries = re.split(r"^\.TP\n", text_of(PAGES[0]), flags=re.M)
    rows, _ = offered()
    found = 0
    for tag, said in rows:
        default = re.search(r"\(default ([\w]+)", re.sub(r"\s+", " ", said))
        if default:
            name = min(names_in(tag))
            entry = next(entry for entry in entries if re.match(rf"\.\w+ (.*\b)?{re.escape(name)}", entry))
            words = re.sub(r"\s+", " ", re.sub(r"^\.[BIR]+ ", "", entry, flags=re.M))
            assert f"default {default[1]}" in words or f"default: {default[1]}" in words, (name, default[1])
            found += 1
    assert found > 8


@pytest.mark.parametrize("page", PAGES)
def test_man_page_is_clean(page):
    version = re.search(r"^VERSION := (\d+\.\d+)", text_of("Makefile"), re.M)[1]
    assert re.search(r'^\.TH .* "gaiafs ([\d.]+)"', text_of(page), re.M)[1] == version
    if shutil.which("mandoc"):
        command = ["mandoc", "-Tlint", "-Wwarning", page]
    elif shutil.which("groff"):
        command = ["groff", "-man", "-ww", "-Tascii", "-z", page]
    else:
        pytest.skip("neither mandoc nor groff here")
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0
    assert [line for line in (done.stdout + done.stderr).splitlines() if page in line] == []


def test_gaiactl_page_has_what_it_prints():
    done = subprocess.run([os.path.join(BIN, "gaiactl"), "--help"], capture_output=True, text=True, timeout=20, check=True)
    page = text_of(PAGES[1]).replace("\\-", "-")
    for word in re.findall(r"^(?:usage:)? +gaiactl (\S+)", done.stdout, re.M):
        assert word in page, word
    columns = re.findall(r'"([a-z.]+)"', text_of("fs/gaiactl.c").split('"device", ')[1].split(");")[0])
    assert len(columns) == 12
    assert set(columns) <= set(tags_of(PAGES[1]))


def test_gaiactl_page_has_the_keys_of_the_json():
    told = set()
    for path in ("fs/stat_json.c", "fs/gaiactl_devices.c", "gpu/cuda_list.c"):
        for set_by in (r'json_object_set(?:_new)?\(\w+, "(\w+)"', r'json_pack\("\{s:\w\}", "(\w+)"', r'\{"(\w+)", CU_DEVICE'):
            told |= set(re.findall(set_by, text_of(path)))
    section = text_of(PAGES[1]).split("\n.SH JSON\n")[1].split("\n.SH ")[0]
    keys = [key for tag in re.findall(r"^\.TP\n\.B (.*)$", section, re.M) for key in tag.split(", ")]
    assert len(told) > 90
    assert told - set(keys) == set()
    assert set(keys) - told == set()


def test_posix_page_has_the_sizes_of_the_tests():
    names = re.search(r'"GAIA_TEST_ENTRIES", so_much\(([\d_]+), ([\d_]+)\)', text_of("tests/mount/test_names.py")).groups()
    inodes = re.search(r'"GAIA_TEST_INODES", ([\d_]+)\)', text_of("tests/mount/test_descriptors.py"))[1]
    check, gate, tree = (f"{int(number):,}" for number in (*names, inodes))
    page = text_of("docs/posix.md")
    assert re.search(rf"`make check` has {check}\b[^,]*, the gate {gate}\.", page)
    assert f"`make check` has {tree}, the gate none." in page


# A number of the program, and the sentences that say it ({}; {:,}: with commas).
NUMBERS = [
    ("fs/server.c", "CLIENTS_MAX", [("docs/limits.md", "programs that map from a mount at a time | {}, ")]),
    ("fs/server.c", "CLIENTS_OF_ROOT", [("docs/limits.md", ", {} of them root's alone;")]),
    ("fs/server.c", "CLIENTS_OF_USER_MAX", [("docs/limits.md", "of one user who is not root {}; from other network namespaces")]),
    ("fs/server.c", "CLIENTS_FAR_MAX", [("docs/limits.md", "from other network namespaces {}, and"),
                                        ("docs/containers.md", "{} programs of other network namespaces may map")]),
    ("fs/server.c", "CLIENTS_OF_NETWORK_MAX", [("docs/limits.md", "and {} of one of these."), ("docs/containers.md", "{} of any one of these namespaces")]),
    ("fs/programs.h", "PROGRAMS_MAX", [("docs/limits.md", "as passthrough knows them | {};")]),
    ("fs/programs.h", "PROGRAMS_OF_USER_MAX", [("docs/limits.md", "; of one user who is not root {}. If more")]),
    ("cache/maps.h", "MAPS_MAX", [("docs/limits.md", "maps of a program from one mount | {:,};"), ("gpu/gaia.h", "has {} mappings of this mount")]),
    ("io/members.h", "MEMBERS_MAX", [("docs/limits.md", "in the life of a mount | {} |"), ("docs/mount.gaiafs.8", "The nodes, at most {},")]),
    ("gpu/home_cuda_chunk.c", "CHUNKS_MAX", [("docs/limits.md", "stay small | {:,} |")]),
    ("cache/fault_threads.h", "FAULT_THREADS_MAX", [("docs/mount.gaiafs.8", "maps files, 1 to {}")]),
    ("io/transport.h", "GAIA_LINK_QUEUES_MAX", [("docs/mount.gaiafs.8", "queue pairs, 1 to {},")]),
    ("io/transport.h", "GAIA_LINK_DEPTH_MAX", [("docs/mount.gaiafs.8", "reads on each, 1 to {}.")]),
    ("fs/options.c", "INODES_LEAST", [("docs/mount.gaiafs.8", "the daemon keeps, {} or more;")]),
    ("fs/options.c", "REMEMBER_DEFAULT", [("docs/mount.gaiafs.8", "their files (default {});")]),
    ("fs/mount.c", "INODE_BYTES", [("docs/mount.gaiafs.8", "at {} bytes each."), ("docs/limits.md", "with {} bytes each,")]),
    ("fs/mount.c", "IDLE_DESCRIPTORS_MAX", [("docs/limits.md", "a quarter of RLIMIT_NOFILE and {:,},")]),
    ("fs/gaiactl.c", "ANSWER_S", [("docs/gaiactl.1", "ends after {} seconds"), ("README.md", "which ends after {} s in any case"),
                                  ("docs/troubleshooting.md", "gives up after {} s")]),
    ("gpu/demand_server.h", "DEMAND_SERVERS_MAX", [("docs/limits.md", "Up to {} threads of libgaia")]),
    ("cache/evictor.h", "EVICTOR_THREADS_MAX", [("docs/limits.md", "where {} threads are held so")]),
]


def test_documents_have_the_numbers_of_the_program():
    for source, name, sentences in NUMBERS:
        number = int(re.search(rf"^#define {name} (\d+)", text_of(source), re.M)[1])
        for document, sentence in sentences:
            words = re.sub(r"\s+", " ", re.sub(r"^(\.[BIR]+ | \* )", "", text_of(document), flags=re.M))
            assert sentence.format(number) in words, f"{document}: {sentence} ({name} is {number})"


def outcome(function, *arguments):
    """0, or the errno of a system call."""
    try:
        function(*arguments)
    except OSError as error:
        return error.errno
    return 0


def test_posix_page_has_what_is_not_let_through(mount):
    m, libc = mount("passthrough=off"), ctypes.CDLL(None, use_errno=True)
    path = os.path.join(m.mnt, "f")
    fd, other = (os.open(name, os.O_RDWR | os.O_CREAT) for name in (path, path + "2"))
    os.write(fd, bytes(1 << 16))
    for flags in (os.RWF_NOWAIT, 0x80):  # RWF_DONTCACHE
        assert outcome(os.preadv, fd, [bytearray(10)], 0, flags) == errno.EOPNOTSUPP
    assert outcome(fcntl.ioctl, other, 0x40049409, fd) == errno.EOPNOTSUPP  # FICLONE
    fiemap = bytearray(struct.pack("QQIIII", 0, 1 << 20, 0, 0, 0, 0))
    assert outcome(fcntl.ioctl, fd, 0xC020660B, fiemap) == errno.EOPNOTSUPP
    for request, size, code in (0x80087601, 8, errno.ENOTTY), (0x80086601, 8, 0), (0x801C581F, 28, 0):  # GETVERSION, flags
        assert outcome(fcntl.ioctl, fd, request, bytearray(size)) == code, hex(request)
    for mode, code in (0, 0), (1, 0), (3, 0), (0x10, 0), (8, errno.EOPNOTSUPP), (0x20, errno.EOPNOTSUPP), (0x40, errno.EOPNOTSUPP):
        done = libc.fallocate(fd, mode, ctypes.c_long(4096), ctypes.c_long(4096))
        assert (ctypes.get_errno() if done else 0) == code, mode
    libc.fanotify_mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
    for mark in (0, 0x10, 0x100) if os.geteuid() == 0 else ():  # FAN_MARK_INODE, MOUNT, FILESYSTEM
        listener = libc.fanotify_init(0x200, 0)  # FAN_REPORT_FID
        assert listener >= 0
        done = libc.fanotify_mark(listener, 1 | mark, 2, -100, m.mnt.encode())
        assert (ctypes.get_errno() if done else 0) == (0 if mark == 0 and kernel_at_least(6, 8) else errno.ENODEV), mark
        os.close(listener)
    for one in fd, other:
        os.close(one)


def test_what_the_gate_leaves_to_sanitizers_has_a_step_with_one():
    steps = re.findall(r"^(?:ends|threads)=(\S+)$", text_of("tests/run.sh"), re.M)
    assert len(steps) == 2 and ENOUGH_SANITIZED <= set(",".join(steps).split(","))


def unit_tests(sanitize):
    """FOLDER/test_NAME of those in C that such a build has."""
    database = subprocess.run(["make", "-pn", f"SANITIZE={sanitize}", "units"], cwd=TOP, capture_output=True, text=True, timeout=50, check=True)
    return {name.split("/tests/")[1] for name in re.search(r"^tests := (.*)", database.stdout, re.M)[1].split()}


def with_included(path):
    """The text of a test, and of what it includes of the tests."""
    text = text_of(path)
    return text + "".join(with_included(name) for name in re.findall(r'^#include "(tests/.*)"', text, re.M))


def test_what_tsan_is_not_given_starts_no_thread():
    left = {name for name in unit_tests("") - unit_tests("thread") if not name.startswith("fuzz/")}
    assert len(left) > 20, "the test tests nothing"
    assert not [name for name in left if "pthread_create" in with_included(f"tests/{name}.c")]


def test_check_long_ends_in_debian_13():
    assert re.search(r"^check-long: .*\n((?:\t.*\n)+)", text_of("Makefile"), re.M)[1].splitlines()[-1] == "\tsh tests/trixie.sh"


def test_make_life_hands_options_on():
    """To mount.gaiafs, which says what it thinks of them."""
    line = subprocess.run(["make", "-n", "-o", "all", "life", "HOURS=0.001", "OPTIONS=no_such"], cwd=TOP, capture_output=True, text=True,
                          check=True).stdout.strip().splitlines()[-1]
    done = subprocess.run(f"{line} --bin {BIN}", shell=True, cwd=TOP, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1 and "unknown option no_such" in done.stdout, done


def test_reliability_page_has_the_number_of_planted_bugs():
    done = subprocess.run([sys.executable, "-B", os.path.join(TOP, "tests", "mutants", "run.py"), "--list"], capture_output=True,
                          text=True, timeout=50, check=True)
    assert f"| {len(done.stdout.splitlines())} bugs, planted one at a time |" in text_of("docs/reliability.md")


def test_planted_bugs_name_tests_that_are_there():
    """A mount test by its function, as it is in its file."""
    named = set()
    for path in glob.glob(os.path.join(TOP, "tests", "mutants", "*.txt")):
        with open(path, encoding="utf-8") as file:
            named.update(re.findall(r"^catch: .*?mount/(test_\w+\.py)::(\w+)", file.read(), re.M))
    assert named
    assert [(name, test) for name, test in sorted(named) if f"\ndef {test}(" not in text_of(f"tests/mount/{name}")] == []
