# SPDX-License-Identifier: Apache-2.0
"""What users copy from: README.md's program, an installation and programs built against it, the examples' scripts."""
import json
import os
import re
import shlex
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from conftest import TOP, not_in_the_gate, so_much
from helpers import APART, PAGE, make_random, read_file, write_file

pytestmark = pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="the plain build is what users get")

FUNCTIONS = {"gaia_device_open", "gaia_device_close", "gaia_mmap", "gaia_munmap", "gaia_macquire", "gaia_mrelease",
             "gaia_macquire_on", "gaia_mrelease_on", "gaia_stream_error", "gaia_demand_parameters", "gaia_msync",
             "gaia_madvise", "gaia_stat"}
DEVICE_CODE = ["gaia_device.cuh", "demand.h", "demand_device.h", "device_memory.h", "warp.h"]
CONSUMER = r"""
#include <fcntl.h>
#include <gaia.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct gaia_device *device;
    struct gaia_stat stat;
    char seen[3];
    int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;

    if (fd < 0 || gaia_device_open("soft:4", &device))
        return 2;
    char *bytes = (char *)gaia_mmap(device, 8192, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
    if (bytes == (char *)MAP_FAILED)
        return 3;
    if (pwrite(fd, "cpu", 3, 0) != 3 || gaia_macquire(bytes, 8192, device) || bytes[0] != 'c' || bytes[2] != 'u')
        return 4;
    bytes[5000] = 'd';
    if (gaia_madvise(bytes, 8192, GAIA_ADV_RANDOM) || gaia_mrelease(bytes, 8192, device) ||
        gaia_msync(bytes, 8192, MS_SYNC) || pread(fd, seen, 1, 5000) != 1 || seen[0] != 'd')
        return 5;
    if (gaia_stat(device, &stat) || !stat.faults || gaia_munmap(bytes, 8192))
        return 6;
    gaia_device_close(device);
    puts("works");
    return close(fd);
}
"""


def run(*command, **kwargs):
    done = subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=kwargs.pop("timeout", 50), **kwargs)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"no {program} here")


@pytest.fixture
def installed(workdir):
    """What `make install` puts under a DESTDIR, for PREFIX=/usr."""
    destination = os.path.join(workdir, "destination")
    run("make", "install", f"DESTDIR={destination}", "PREFIX=/usr", "CC=gcc", "SANITIZE=", cwd=TOP,
        env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")})
    return destination


@pytest.fixture
def environment(installed):
    """For programs that are built and run against the installation."""
    return {**os.environ, "PKG_CONFIG_PATH": f"{installed}/usr/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": installed,
            "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1", "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1",
            "LD_LIBRARY_PATH": f"{installed}/usr/lib"}


@pytest.fixture
def release_mount(mount, monkeypatch, installed):
    """A function that mounts with the installed program."""
    def start(*args, **kwargs):
        monkeypatch.setattr("conftest.BIN", f"{installed}/usr/sbin")
        return mount(*args, **kwargs)
    return start


def test_the_readme_has_the_example(workdir):
    blocks = re.findall(r"^```c\n(.*?)^```$", read_file(os.path.join(TOP, "README.md")).decode(), re.M | re.S)
    assert len(blocks) == 1
    assert blocks[0] == read_file(os.path.join(TOP, "examples", "hello.c")).decode()


def test_installed_files(installed):
    found = {}
    for folder, _, names in os.walk(installed):
        for name in names:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, installed)] = os.readlink(path) if os.path.islink(path) else os.stat(path).st_mode
    version = re.search(r"^VERSION := (\S+)$", read_file(os.path.join(TOP, "Makefile")).decode(), re.M)[1]
    soname = "libgaia.so." + version.split(".", maxsplit=1)[0]
    assert found == {
        "usr/sbin/mount.gaiafs": 0o100755, "usr/sbin/mount.fuse.gaiafs": "mount.gaiafs", "usr/bin/gaiactl": 0o100755, f"usr/lib/libgaia.so.{version}": 0o100755,
        f"usr/lib/{soname}": f"libgaia.so.{version}", "usr/lib/libgaia.so": soname,
        "usr/include/gaia.h": 0o100644, "usr/lib/pkgconfig/gaia.pc": 0o100644,
        "usr/share/man/man8/mount.gaiafs.8": 0o100644, "usr/share/man/man1/gaiactl.1": 0o100644,
        **{f"usr/include/gaia/{name}": 0o100644 for name in DEVICE_CODE}}
    # Device code needs nothing else of the tree.
    with open(os.path.join(installed, "view.cc"), "w") as source:
        source.write("#include <gaia.h>\n#include <gaia/gaia_device.cuh>\nint main()\n{\n    struct gaia_demand demand = {};\n"
                     "    return (int)gaia_view<int>(demand, nullptr).size();\n}\n")
    run("g++", "-std=c++17", "-fsyntax-only", f"-I{installed}/usr/include", f"{installed}/view.cc")
    header = read_file(f"{installed}/usr/include/gaia.h").decode()
    major, minor = re.search(r"GAIA_VERSION_MAJOR (\d+)\n.*GAIA_VERSION_MINOR (\d+)", header).groups()
    assert version.split(".")[:2] == [major, minor]
    assert re.search(r"SONAME +(\S+)", run("objdump", "-p", f"{installed}/usr/lib/libgaia.so"))[1] == soname
    needed = re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", f"{installed}/usr/lib/libgaia.so"))
    assert not [name for name in needed if not name.startswith(("libc.", "libpthread.", "ld-linux"))], needed
    for program in ("usr/sbin/mount.gaiafs", "usr/bin/gaiactl", "usr/lib/libgaia.so"):
        # nothing that is found only where it was built
        assert not re.search("RUNPATH|RPATH", run("objdump", "-p", f"{installed}/{program}")), program
    assert version in run(f"{installed}/usr/sbin/mount.gaiafs", "--version")
    assert version in run(f"{installed}/usr/bin/gaiactl", "--version")


@pytest.mark.parametrize("prefix, sbin", [("", "sbin"), ("/", "sbin"), ("/usr/", "usr/sbin")])
def test_installed_where_mount_8_looks(workdir, prefix, sbin):
    """The links to the program, for mount(8), do not take its place."""
    destination = os.path.join(workdir, "destination")
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MOUNTDIR")}
    words = f"DESTDIR={destination}", f"PREFIX={prefix}", "CC=gcc", "SANITIZE="
    run("make", "install", *words, cwd=TOP, env=env)
    found = [os.path.join(folder, name) for folder, _, names in os.walk(destination) for name in names]
    helpers = {os.path.relpath(path, destination): os.path.islink(path) for path in found if "/sbin/" in path}
    assert helpers == {f"{sbin}/mount.gaiafs": False, f"{sbin}/mount.fuse.gaiafs": True}
    assert os.readlink(f"{destination}/{sbin}/mount.fuse.gaiafs") == "mount.gaiafs"
    run("make", "uninstall", *words, cwd=TOP, env=env)
    assert [names for _, _, names in os.walk(destination) if names] == []


def test_a_prefix_that_is_no_path(workdir):
    """gaia.pc and the links would lead nowhere."""
    done = subprocess.run(["make", "install", f"DESTDIR={workdir}/", "PREFIX=there", "CC=gcc", "SANITIZE="], cwd=TOP, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=50)
    assert done.returncode != 0 and "begins with /" in done.stderr and os.listdir(workdir) == [], done


# In a mount namespace of its own, with what is written to these folders thrown away: as a user does it who follows README.md.
AS_README = """
set -eu
mkdir "$1/top"
mount -t tmpfs none "$1/top"
for folder in /usr/local /usr/sbin /etc; do
    name=$(basename $folder)
    mkdir "$1/top/$name" "$1/top/$name.work"
    mount -t overlay none -o "lowerdir=$folder,upperdir=$1/top/$name,workdir=$1/top/$name.work" $folder || exit 77
done
make install CC=gcc SANITIZE= >&2
gcc -fopenmp examples/hello.c -o "$1/hello" $(pkg-config --cflags --libs gaia)
mkdir "$1/from" "$1/to"
printf 'GNU GENERAL PUBLIC LICENSE\n' >"$1/from/licence"
mount -t gaiafs "$1/from" "$1/to" -o device_cache=64M
trap 'umount "$1/to"' EXIT
"$1/hello" "$1/to/licence"
gaiactl stat "$1/to" >&2
mount -o remount,ro "$1/to"
if touch "$1/to/new" 2>/dev/null; then exit 5; fi
[ -s /usr/local/share/man/man8/mount.gaiafs.8 ] && [ -s /usr/local/share/man/man1/gaiactl.1 ]
make uninstall CC=gcc SANITIZE= >&2
find /usr/local /usr/sbin/ -name '*gaia*'
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_installed_as_the_readme_says(workdir):
    """`make && sudo make install`, `mount -t gaiafs`, and a program that finds its library, with nothing said besides."""
    need("pkg-config", "gcc", "unshare")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PREFIX", "DESTDIR", "LD_LIBRARY"))}
    done = subprocess.run([*APART, "sh", "-c", AS_README, "sh", workdir], cwd=TOP, env=env, text=True, timeout=50,
                          stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode == 77:
        pytest.skip("no overlay here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["TAH TRARENY CHOYVP YVPRAFR", "", ""], done.stdout  # and nothing is left


def test_pkg_config(installed):
    need("pkg-config")
    env = {**os.environ, "PKG_CONFIG_PATH": f"{installed}/usr/lib/pkgconfig"}
    version = re.search(r"^VERSION := (\S+)$", read_file(os.path.join(TOP, "Makefile")).decode(), re.M)[1]
    assert run("pkg-config", "--modversion", "gaia", env=env).strip() == version
    assert run("pkg-config", "--variable=prefix", "gaia", env=env).strip() == "/usr"
    assert "-lgaia" in run("pkg-config", "--libs", "gaia", env=env).split()
    assert "@" not in read_file(f"{installed}/usr/lib/pkgconfig/gaia.pc").decode()
    run("pkg-config", "--validate", "gaia", env=env)


@pytest.mark.parametrize("compiler", [["gcc", "-std=c11"], ["g++", "-std=c++17"], ["clang", "-std=c11"]],
                         ids=lambda words: words[0])
def test_a_program_outside_of_the_tree(release_mount, installed, environment, workdir, compiler):
    need("pkg-config", compiler[0])
    folder = os.path.join(workdir, "outside")
    os.mkdir(folder)
    name = os.path.join(folder, "consumer" + (".cc" if "++" in compiler[0] else ".c"))
    write_file(name, CONSUMER.encode())
    flags = run("pkg-config", "--cflags", "--libs", "gaia", env=environment).split()
    assert f"-I{installed}/usr/include" in flags, flags
    program = os.path.join(folder, "consumer")
    run(*compiler, "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", name, "-o", program, *flags, cwd=folder)
    m = release_mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(2 * PAGE))
    assert run(program, path, env=environment) == "works\n"
    expected = bytearray(2 * PAGE)
    expected[:3], expected[5000] = b"cpu", ord("d")
    assert read_file(path) == expected
    found = re.search(r"libgaia\.so\.\d+ => (\S+)", run("ldd", program, env=environment))[1]
    assert found.startswith(installed), found
    listed = json.loads(run(f"{installed}/usr/bin/gaiactl", "stat", "--json", m.mnt))
    assert "soft:4" in [device["device"] for device in listed["devices"]]


def test_hello(release_mount, installed, environment, workdir):
    """As README.md has it: built with pkg-config, run twice."""
    need("pkg-config", "gcc")
    program = os.path.join(workdir, "hello")
    flags = run("pkg-config", "--cflags", "--libs", "gaia", env=environment).split()
    run("gcc", "-fopenmp", os.path.join(TOP, "examples", "hello.c"), "-o", program, *flags, cwd=workdir)
    m = release_mount()
    path = os.path.join(m.mnt, "licence")
    text = b"GNU GENERAL PUBLIC LICENSE\n" + make_random("hello").randbytes(3 * PAGE).hex().encode()
    write_file(path, text)
    assert run(program, path, env=environment).startswith("TAH TRARENY CHOYVP YVPRAFR\n")
    assert read_file(path) != text
    assert run(program, path, env=environment).startswith("GNU GENERAL PUBLIC LICENSE\n")
    assert read_file(path) == text
    write_file(os.path.join(workdir, "elsewhere"), text)
    for wrong in ([], [os.path.join(workdir, "elsewhere")], [os.path.join(m.mnt, "missing")]):
        assert subprocess.run([program, *wrong], env=environment, capture_output=True, timeout=20).returncode in (1, 2)


@pytest.mark.parametrize("compiler", [
    ["gcc", "-std=c11", "-xc"], ["gcc", "-std=c17", "-xc"], ["g++", "-std=c++17", "-xc++"], ["g++", "-std=c++11", "-xc++"],
    ["clang", "-std=c11", "-xc"]], ids=lambda words: "".join(words[:2]))
@pytest.mark.parametrize("definitions", [[], ["-D_GNU_SOURCE"], ["-D_POSIX_C_SOURCE=200809L"]],
                         ids=["nothing", "gnu", "posix"])
def test_the_header_is_plain(workdir, compiler, definitions):
    """It needs nothing before it, may come twice, and its names link from C++ as from C."""
    need(compiler[0])
    source = os.path.join(workdir, "header.in")
    write_file(source, b"#include \"gaia.h\"\n#include \"gaia.h\"\nint use(void);\n"
                       b"int use(void) { struct gaia_stat s; return gaia_stat(0, &s); }\n")
    made = os.path.join(workdir, "header.o")
    run(*compiler, *definitions, "-pedantic", "-pedantic-errors", "-Wall", "-Wextra", "-Werror",
        f"-I{TOP}/gpu", "-c", source, "-o", made)
    assert "U gaia_stat\n" in run("nm", made)


def test_exported_names(installed):
    lines = run("nm", "-D", "--defined-only", f"{installed}/usr/lib/libgaia.so").splitlines()
    names = {line.split()[-1].split("@")[0]: line.split()[-2] for line in lines}
    names = {name: kind for name, kind in names.items() if kind != "A"}  # the version's own name
    assert names == dict.fromkeys(FUNCTIONS, "T")
    assert all("@@GAIA_0.1" in line for line in lines if " T " in line)
    header = read_file(f"{installed}/usr/include/gaia.h").decode()
    assert set(re.findall(r"\b(gaia_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S))) == FUNCTIONS


def test_a_tree_in_a_folder_with_a_space(workdir):
    """What is linked is told by one word where libgaia is."""
    os.mkdir(folder := os.path.join(workdir, "my folder"))
    for name in set(os.listdir(TOP)) - {"build", ".git"}:
        os.symlink(os.path.join(TOP, name), os.path.join(folder, name))
    said = run("make", "-n", "V=1", "CC=gcc", "SANITIZE=", "examples", "tools", "build/gcc/examples/nvcc/vector_add", cwd=folder,
               env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")})
    words = [word for line in said.splitlines() if f"rpath,{folder}" in line or f"rpath={folder}" in line for word in shlex.split(line)]
    assert sum(folder in word for word in words) > 10 and "folder" not in words, words


def test_a_compiler_of_two_words():
    """CC="ccache gcc", CC="gcc -m64": what is built has a folder all the same."""
    said = run("make", "-n", "V=1", "CC=env gcc", "SANITIZE=", "all", "tests", "examples", cwd=TOP,
               env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")})
    assert "-c -o build/env-gcc/fs/mount.o fs/mount.c\n" in said and "env g++ " in said


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_examples_compile_by_hand(compiler):
    """As README.md compiles hello.c: what the Makefile says besides is not needed."""
    need(compiler)
    sources = [os.path.join(folder, name) for folder in ("examples", "examples/sssp") for name in os.listdir(os.path.join(TOP, folder))
               if name.endswith(".c")]
    assert len(sources) == 8
    for source in sources:
        run(compiler, "-fopenmp", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source, "-Igpu", cwd=TOP)


def test_scripts_speak_no_language_of_the_users():
    """What they compare with says "insgesamt" elsewhere."""
    said = run("sh", "-c", '. "$root/examples/lib.sh"; locale 2>/dev/null', env={**os.environ, "root": TOP, "LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"})
    assert re.search(r'^LC_MESSAGES="?C"?$', said, re.M), said


@pytest.fixture(scope="module")
def examples():
    """The folder with the examples, built."""
    run("make", "-j2", "CC=gcc", "SANITIZE=", "all", "examples", cwd=TOP, timeout=200,
        env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")})
    return os.path.join(TOP, "build", "gcc", "examples")


@pytest.mark.limit(120)
def test_sssp(mount, monkeypatch, examples, workdir):
    monkeypatch.setattr("conftest.BIN", TOP)
    m = mount()
    output = run("sh", os.path.join(TOP, "examples", "sssp", "run.sh"), "-n", 3, "-s", so_much(10, 8), m.mnt, timeout=100,
                 env={**os.environ, "TMPDIR": workdir, "GAIA_PROGRAMS": TOP, "GAIA_EXAMPLES": examples})
    assert re.search(r"^sssp: all \d+ checks passed$", output, re.M), output
    assert os.listdir(m.mnt) == [] and os.listdir(m.data) == []
    os.mkdir(plain := os.path.join(workdir, "plain"))
    for arguments, said in (["-x"], b"usage"), (["-s", "4", plain], b"not a regular file of a gaiafs mount"):
        wrong = subprocess.run(["sh", os.path.join(TOP, "examples", "sssp", "run.sh"), *arguments], capture_output=True,
                               stdin=subprocess.DEVNULL, timeout=20, check=False)
        assert wrong.returncode == 1 and said in wrong.stderr, wrong
    assert os.listdir(plain) == []


@not_in_the_gate
@pytest.mark.limit(300)
def test_fio_matrix(examples, workdir):
    """The whole table with tiny files: every row and column is there, and began as it says. How fast is nobody's matter."""
    need("fio", "gnuplot")
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    script, output = os.path.join(TOP, "examples", "fio", "run.sh"), os.path.join(workdir, "out")
    printed = run("sh", script, "--quick", "--folder", workdir, "--output", output, timeout=280,
                  env={**os.environ, "GAIA_PROGRAMS": TOP, "GAIA_EXAMPLES": examples})
    print(printed)
    listed = [line.split()[0] for line in run("sh", script, "--list").splitlines()]
    with open(os.path.join(output, "matrix.json"), encoding="utf-8") as file:
        found = json.load(file)
    assert [row["row"] for row in found["rows"]] == listed and len(listed) == 23
    pages = 8 * 2**20 // PAGE  # of the file, with --quick
    ours = "passthrough" if any("passthrough" in row["columns"] for row in found["rows"]) else "untracked"
    for row in found["rows"]:
        names = row["unit"] == "/s" and row["row"].startswith(("stat", "open", "create", "unlink"))
        columns = set(row["columns"]) - {"passthrough_ll"}  # which can't write directly, and may not be there
        assert columns == {"native", ours} | (set() if names else {"tracked"}), row
        assert row["columns"]["native"]["ratio"] == 1 and row["text"] in printed
        for column, values in row["columns"].items():
            assert values["rate"] > 0 and values["ratio"] > 0 and values["cpu_us"] >= 0, (row["row"], column)
            if names:
                continue
            resident = values["resident_mount"], values["resident_backing"]
            expected = {"cold": (0, 0), "direct": (0, 0), "backing": (0, pages), "cached": (pages, pages)}
            state = row["row"].rpartition("-")[2] if row["row"].endswith(("cold", "cached", "backing")) else None
            if state and column in ("native", "passthrough"):  # which have one cache
                assert resident[0] == resident[1] == expected[state][1], (row["row"], resident)
            elif state:
                assert resident == expected[state], (row["row"], column, resident)
    drawing = ElementTree.parse(os.path.join(output, "matrix.svg"))
    texts = "".join(drawing.getroot().itertext())
    assert all(name in texts for name in [*listed, ours, "tracked", "passthrough_ll"])
    assert set(os.listdir(workdir)) == {"out"}, "something was left behind"


@pytest.mark.limit(120)
def test_fio(mount, monkeypatch, workdir):
    need("fio")
    monkeypatch.setattr("conftest.BIN", TOP)
    m = mount()
    output = run("sh", os.path.join(TOP, "examples", "fio", "run.sh"), m.mnt, "4m", 1, timeout=100,
                 env={**os.environ, "TMPDIR": workdir})
    print(output)
    rows = re.findall(r"^(\S+) +([\d.]+) +(\d+) +([\d.]+)$", output, re.M)
    assert [row[0] for row in rows] == ["seq-write", "seq-read", "rand-write", "rand-read", "mmap-write", "mmap-read"]
    assert all(float(row[1]) > 0 and int(row[2]) > 0 for row in rows)
    assert "FAILED" not in output and os.listdir(m.mnt) == []
    write_file(os.path.join(m.mnt, "gaiafs-fio.data"), b"mine")
    done = subprocess.run(["sh", os.path.join(TOP, "examples", "fio", "run.sh"), m.mnt, "1m", "1"], capture_output=True,
                          timeout=20, check=False)
    assert done.returncode == 1 and read_file(os.path.join(m.mnt, "gaiafs-fio.data")) == b"mine"
