# SPDX-License-Identifier: Apache-2.0
"""fio writes blocks with checksums, and reads them back, by each of its ways into the kernel."""
import os

from case import Case, Failed, check, drop_caches, need, run

ENGINES = [("sync", 0), ("sync", 1), ("psync", 0), ("pvsync2", 1), ("libaio", 0), ("libaio", 1), ("io_uring", 0),
           ("io_uring", 1), ("mmap", 0)]
PATTERNS = {"seq-1m": ("write", "--bs=1m"), "rand-4k": ("randwrite", "--bs=4k"),
            "odd": ("write", "--bs=7001", "--bs_unaligned=1"), "mixed": ("randrw", "--bsrange=4k-128k")}
QUICK = {("sync", "rand-4k"), ("libaio", "rand-4k"), ("io_uring", "rand-4k"), ("mmap", "rand-4k"), ("sync", "odd")}


def command(folder, engine, direct, pattern, size):
    return ["fio", "--name=verify", f"--directory={folder}", f"--ioengine={engine}", f"--direct={direct}",
            f"--rw={pattern[0]}", *pattern[1:], f"--size={size}", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1",
            "--verify_dump=0", "--output-format=terse", "--allow_file_create=1"]


def verify(engine, direct, pattern, size):
    def work(case):
        need("fio")
        run(*command(case.mnt, engine, direct, PATTERNS[pattern], size), cwd=case.plain)
        # and once more, of bytes that no cache holds any more
        drop_caches()
        run(*command(case.mnt, engine, direct, PATTERNS[pattern], size), "--verify_only=1", cwd=case.plain)
    return work


def several_jobs(engine, direct, size):
    """Four at once in one file, each its own part."""
    def work(case):
        need("fio")
        run(*command(case.mnt, engine, direct, PATTERNS["rand-4k"], size), "--numjobs=4", "--filename=shared",
            f"--offset_increment={size}", cwd=case.plain)
        check(os.path.getsize(os.path.join(case.mnt, "shared")) == 4 * int(size[:-1]) << 20, "the size of the file")
    return work


def planted(case):
    """That these cases notice a wrong byte."""
    need("fio")
    arguments = command(case.mnt, "psync", 0, PATTERNS["rand-4k"], "4m")
    run(*arguments, cwd=case.plain)
    path = next(entry.path for entry in os.scandir(case.mnt))
    with open(path, "r+b") as file:
        file.seek(1234567)
        byte = file.read(1)
        file.seek(1234567)
        file.write(bytes([byte[0] ^ 1]))
    try:
        run(*arguments, "--verify_only=1", cwd=case.plain)
    except Failed:
        return
    raise Failed("fio did not notice a wrong byte")


def cases(quick):
    size = "4m" if quick else "64m"
    found = [Case("fio-notices-a-wrong-byte", planted)]
    for engine, direct in ENGINES:
        for pattern in PATTERNS:
            if pattern == "odd" and (direct or engine == "mmap"):
                continue
            if quick and (engine, pattern) not in QUICK:
                continue
            name = f"fio-{engine}-{'direct' if direct else 'buffered'}-{pattern}"
            found.append(Case(name, verify(engine, direct, pattern, size)))
        # fio 3.33 mixes up the offsets of mappings when jobs share a file, on any filesystem.
        if not quick and engine != "mmap":
            found.append(Case(f"fio-{engine}-{'direct' if direct else 'buffered'}-4-jobs",
                              several_jobs(engine, direct, size)))
    return found
