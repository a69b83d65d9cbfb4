# SPDX-License-Identifier: Apache-2.0
"""Filesystems on the mount: overlayfs whose layers are there, and ext4 in a file, by a loop device."""
import contextlib
import os
import random
import shutil
import stat
import subprocess

from case import Case, Failed, Missing, check, drop_caches, need, run
from trees import change_tree, varied_tree


@contextlib.contextmanager
def mounted(where, *command):
    """None where this can't be mounted, else its folder."""
    os.makedirs(where, exist_ok=True)
    done = subprocess.run(["mount", *command, where], capture_output=True, text=True, check=False)
    try:
        yield None if done.returncode else where
    finally:
        if not done.returncode:
            run("umount", where)


def kinds(folder):
    """What is in an upper layer: names, types (those that were deleted are devices 0, 0) and sizes."""
    found = []
    for path, folders, files in os.walk(folder):
        for name in folders + files:
            entry = os.lstat(os.path.join(path, name))
            found.append((os.path.relpath(os.path.join(path, name), folder), stat.S_IFMT(entry.st_mode), entry.st_rdev,
                          0 if stat.S_ISDIR(entry.st_mode) else entry.st_size))
    return sorted(found)


def overlay(options):
    """The same changes to an overlay of two layers on the mount and to one beside it, with remounts in between."""
    def work(case):
        places, seed = (case.plain, case.mnt), case.rng.random()
        for place in places:
            for name in ("lower", "upper", "work"):
                os.mkdir(os.path.join(place, name))
            change_tree(random.Random(seed), os.path.join(place, "lower"))
        for step in range(3):
            drop_caches()
            with contextlib.ExitStack() as stack:
                merged = [stack.enter_context(mounted(os.path.join(place, "merged"), "-t", "overlay", "overlay", "-o", ",".join(
                    [f"{name}dir={os.path.join(place, name)}" for name in ("lower", "upper", "work")] + options)))
                    for place in places]
                if not merged[0]:
                    raise Missing("overlayfs")
                check(merged[1], "overlayfs takes a plain folder and not the mount")
                for folder in merged:
                    rng = random.Random(f"{seed} {step}")
                    for _ in range(5):
                        change_tree(rng, folder)
                    again = os.path.join(folder, f"d{step + 2}")  # made again: it hides what the lower layer has there
                    shutil.rmtree(again, ignore_errors=True)
                    os.mkdir(again)
                    with contextlib.suppress(OSError):  # EXDEV, where folders can't be renamed
                        os.rename(os.path.join(folder, "d1"), os.path.join(folder, f"moved{step}"))
                run("diff", "-r", "--no-dereference", *merged)
            check(kinds(os.path.join(places[0], "upper")) == kinds(os.path.join(places[1], "upper")), "the upper layers differ")
    return work


def loop(direct):
    """A tree in an ext4 in a file of the mount: read again, checked, and what is deleted makes holes in the file."""
    def work(case):
        need("mkfs.ext4", "e2fsck", "losetup", "rsync")
        image, folder = os.path.join(case.mnt, "image"), os.path.join(case.plain, "in")
        varied_tree(case.rng, os.path.join(case.plain, "tree"), 200)
        with open(os.path.join(case.plain, "tree", "large"), "wb") as file:
            file.write(case.rng.randbytes(16 << 20))
        with open(image, "wb") as file:
            file.truncate(64 << 20)
        run("mkfs.ext4", "-q", "-F", image)
        try:
            device = run("losetup", "-f", "--show", f"--direct-io={direct}", image).strip()
        except Failed as failed:
            raise Missing(f"a loop device: {failed}") from None
        copy = ["rsync", "-aHAXS", "--numeric-ids", os.path.join(case.plain, "tree") + "/", os.path.join(folder, "tree") + "/"]
        try:
            with mounted(folder, device) as there:
                check(there, "ext4 in a file can't be mounted")
                run(*copy)
            drop_caches()
            with mounted(folder, device):
                check(run(*copy, "-c", "--delete", "--itemize-changes") == "", "another tree than was written")
                run("rm", "-r", os.path.join(folder, "tree"))
                run("sync", "-f", folder)
                full = os.stat(image).st_blocks
                run("fstrim", folder)
            check(os.stat(image).st_blocks < full - (12 << 20) // 512, "a discard leaves no holes")
        finally:
            run("losetup", "-d", device)
        run("e2fsck", "-fn", image)
    return work


def cases(quick):
    found = [Case("overlay", overlay([])), Case("loop-direct", loop("on"))]
    if not quick:
        found += [Case("overlay-index", overlay(["index=on", "redirect_dir=on"])),
                  Case("overlay-metacopy", overlay(["metacopy=on"])), Case("loop", loop("off"))]
    return found
