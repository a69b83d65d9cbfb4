# SPDX-License-Identifier: Apache-2.0
"""Programs that make, copy and compare whole trees: git, make with a compiler, rsync, tar."""
import os
import shutil
import socket
import stat

from case import Case, Failed, TOP, check, drop_caches, need, run

GIT = ["git", "-c", "user.name=gaiafs", "-c", "user.email=none@example.org", "-c", "init.defaultBranch=main",
       "-c", "gc.auto=0", "-c", "safe.directory=*"]


def git(*args, **kwargs):
    return run(*GIT, *args, env={**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}, **kwargs)


def change_tree(rng, folder):
    for _ in range(20):
        path = os.path.join(folder, f"d{rng.randrange(5)}", f"e{rng.randrange(5)}", f"f{rng.randrange(20)}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        action = rng.randrange(10)
        if action == 0 and os.path.lexists(path):
            os.unlink(path)
        elif action == 1 and not os.path.lexists(path):
            os.symlink("../e0/f0", path)
        elif not os.path.islink(path):
            with open(path, rng.choice(["wb", "ab"])) as file:
                file.write(rng.randbytes(rng.choice([0, 10, 5000, 100000])))
            os.chmod(path, rng.choice([0o644, 0o755]))


def git_history(commits):
    def work(case):
        need("git")
        repo, clone, native = (os.path.join(case.mnt, "repo"), os.path.join(case.mnt, "clone"),
                               os.path.join(case.plain, "clone"))
        git("init", "-q", repo)
        for number in range(commits):
            change_tree(case.rng, repo)
            git("-C", repo, "add", "-A")
            git("-C", repo, "commit", "-q", "--allow-empty", "-m", f"commit {number}")
        git("clone", "-q", "--no-local", f"file://{repo}", clone)
        git("-C", repo, "gc", "-q", "--aggressive", "--prune=now")
        drop_caches()
        for place in (repo, clone):
            check("dangling" not in git("-C", place, "fsck", "--full", "--strict"), f"fsck of {place}")
            check(git("-C", place, "status", "--porcelain") == "", f"status of {place}")
        git("clone", "-q", "--no-local", f"file://{clone}", native)
        run("diff", "-r", "--no-dereference", "--exclude=.git", clone, native)
        check(git("-C", native, "rev-parse", "HEAD") == git("-C", repo, "rev-parse", "HEAD"), "HEAD")
        git("-C", clone, "checkout", "-q", f"HEAD~{commits // 2}")
        git("-C", clone, "checkout", "-q", "main")
        check(git("-C", clone, "status", "--porcelain") == "", "status after two checkouts")
    return work


def build(case):
    """This tree, by four at once; then there is nothing left to do: make believes the times."""
    need("make", "gcc")
    tree = os.path.join(case.mnt, "tree")
    shutil.copytree(TOP, tree, symlinks=True, ignore=shutil.ignore_patterns("build", ".git", "*.so*", "mount.gaiafs", "gaiactl"))
    run("make", "-j4", "CC=gcc", cwd=tree, timeout=500)
    check(run("make", "-j4", "CC=gcc", cwd=tree).strip() in ("", "make: Nothing to be done for 'all'."),
          "a second make does something")
    check("mount.gaiafs" in run(os.path.join(tree, "mount.gaiafs"), "--version"), "what was built does not run")
    os.utime(os.path.join(tree, "fs", "log.c"))
    check("CC fs/log.c" in run("make", "-j4", "CC=gcc", cwd=tree), "a changed file is not built again")
    run("make", "clean", cwd=tree)


def varied_tree(rng, folder, files):
    """Files of all kinds: sparse, linked, with attributes, owners, odd names and times."""
    os.makedirs(folder)
    for number in range(files):
        path = os.path.join(folder, f"d{number % 7}", rng.choice(["", "sp ace", "néw\nline"]), f"f{number}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(rng.randbytes(rng.choice([0, 1, 4095, 4096, 70000])))
            if number % 10 == 0:
                file.truncate(rng.randrange(1 << 22))
        if number % 5 == 0:
            os.link(path, path + ".hard")
        if number % 6 == 0:
            os.symlink(rng.choice(["f0", "../gone", "/"]), path + ".soft")
        if number % 4 == 0:
            os.setxattr(path, "user.some", rng.randbytes(50))
            # u::rw- u:4001:rwx g::r-- m::rwx o::---
            os.setxattr(path, "system.posix_acl_access", bytes.fromhex(
                "02000000 01000600ffffffff 02000700a10f0000 04000400ffffffff 10000700ffffffff 20000000ffffffff"))
        os.chown(path, rng.choice([0, 4001]), rng.choice([0, 4002]))
        if number % 8 == 0:
            os.chmod(path, rng.choice([0o4755, 0o2711, 0o400, 0o1644]))
        os.utime(path, ns=(rng.randrange(1 << 60), rng.randrange(1 << 60)))
    os.mkfifo(os.path.join(folder, "fifo"))
    os.mknod(os.path.join(folder, "null"), stat.S_IFCHR | 0o600, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(folder)
        server.bind("socket")
        os.chdir(here)


def rsync(case):
    """There and back, with all that rsync can copy; then it finds nothing to do, by checksum, in either direction."""
    need("rsync")
    first, there, back = (os.path.join(*parts) for parts in
                          ((case.plain, "first"), (case.mnt, "there"), (case.plain, "back")))
    varied_tree(case.rng, first, 300)
    copy = ["rsync", "-aHAXS", "--numeric-ids"]
    run(*copy, first + "/", there + "/")
    drop_caches()
    run(*copy, "-c", there + "/", back + "/")
    for one, other in ((first, there), (there, first), (there, back), (back, first)):
        left = run(*copy, "-c", "--dry-run", "--delete", "--itemize-changes", one + "/", other + "/")
        check(left == "", f"{one} and {other} differ:\n{left[:2000]}")
    # that a difference is noticed
    with open(os.path.join(there, "d1", "new"), "wb") as file:
        file.write(b"x")
    check("d1/new" in run(*copy, "-c", "--dry-run", "--itemize-changes", there + "/", first + "/"), "no difference")


def tar(case):
    need("tar")
    first, there = os.path.join(case.plain, "first"), os.path.join(case.mnt, "there")
    varied_tree(case.rng, first, 200)
    os.unlink(os.path.join(first, "socket"))
    every = ["--xattrs", "--xattrs-include=*", "--acls", "--sparse", "--numeric-owner"]
    run("tar", *every, "-cf", os.path.join(case.mnt, "archive.tar"), "-C", first, ".")
    os.mkdir(there)
    run("tar", *every, "-xpf", os.path.join(case.mnt, "archive.tar"), "-C", there)
    try:
        run("tar", *every, "-df", os.path.join(case.mnt, "archive.tar"), "-C", there)
    except Failed as failed:
        raise Failed(f"what was unpacked differs: {failed}") from None
    # packed again from the mount: hard links are found by numbers of files
    run("tar", *every, "-cf", os.path.join(case.plain, "again.tar"), "-C", there, ".")
    listings = [sorted(line.split()[0] + " " + line.split(None, 5)[-1] for line in
                       run("tar", "-tvf", path).splitlines())
                for path in (os.path.join(case.mnt, "archive.tar"), os.path.join(case.plain, "again.tar"))]
    check(len(listings[0]) == len(listings[1]), "as many entries")
    check([sum(line.startswith(kind) for line in listings[0]) for kind in "hlcp-d"] ==
          [sum(line.startswith(kind) for line in listings[1]) for kind in "hlcp-d"], "as many of each kind")


def cases(quick):
    found = [Case("git", git_history(4 if quick else 60), 300), Case("rsync", rsync), Case("tar", tar)]
    if not quick:
        found.append(Case("build-of-this-tree", build, 600))
    return found
