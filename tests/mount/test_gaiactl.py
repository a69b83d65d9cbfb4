# SPDX-License-Identifier: Apache-2.0
"""How gaiactl is called: help, what is wrong with a call, and what it says to who reads its exit code only."""
import contextlib
import fcntl
import os
import subprocess

import pytest

from helpers import BIN, PAGE

GAIACTL = os.path.join(BIN, "gaiactl")


def call(*words, **kwargs):
    return subprocess.run([GAIACTL, *words], stdin=subprocess.DEVNULL, text=True, timeout=20, check=False,
                          **(kwargs or {"capture_output": True}))


@pytest.mark.parametrize("words", [["--help"], ["stat", "--help"], ["devices", "--help"], ["stat", "--json", "--help", "folder"]],
                         ids=" ".join)
def test_help(words):
    done = call(*words)
    assert done.returncode == 0 and done.stdout.startswith("usage: gaiactl stat") and done.stderr == "", done


@pytest.mark.parametrize("words", [[], ["what"], ["stat"], ["stat", "a", "b"], ["stat", "--what", "a"], ["devices", "--what"],
                                   ["devices", "a"]], ids=" ".join)
def test_wrong_calls(words):
    """Its usage, and its own name, not the command's, before what getopt_long() says."""
    done = call(*words)
    assert done.returncode == 2 and done.stdout == "" and "usage: gaiactl " in done.stderr, done
    assert not done.stderr.startswith(("stat:", "devices:"))
    assert ("unrecognized option '--what'" in done.stderr) == ("--what" in words), done.stderr


@pytest.mark.parametrize("words", [["stat"], ["stat", "--json"], ["devices"], ["devices", "--json"], ["stat", "--help"], ["--help"],
                                   ["--version"]], ids=" ".join)
def test_what_cannot_be_printed_is_no_success(mount, words):
    where = [mount().mnt] if words[0] == "stat" else []
    with open("/dev/full", "w") as full:
        assert call(*words, *where, stdout=full, stderr=subprocess.PIPE).returncode == 1
    assert call(*words, *where).returncode == 0


@pytest.mark.parametrize("words", [["stat"], ["stat", "--json"]], ids=" ".join)
def test_what_is_lost_before_the_last_is_no_success(mount, words):
    """A pipe that nobody waits for has room for the last piece only."""
    m = mount()
    with contextlib.ExitStack() as opened:
        for i in range(40):
            opened.enter_context(open(f"{m.mnt}/{i:0200}", "wb"))
        assert len(call(*words, m.mnt).stdout) > 2 * PAGE
        ends = os.pipe2(os.O_NONBLOCK)
        for end in ends:
            opened.callback(os.close, end)
        fcntl.fcntl(ends[1], getattr(fcntl, "F_SETPIPE_SZ", 1031), PAGE)
        os.write(ends[1], b"x")
        assert call(*words, m.mnt, stdout=ends[1], stderr=subprocess.PIPE).returncode == 1


def test_what_is_no_mount(mount, workdir):
    m = mount()
    for path, said in ((workdir, "not a gaiafs mount"), (os.path.join(workdir, "missing"), "No such file or directory"),
                       (os.path.join(BIN, "gaiactl"), "Not a directory")):
        done = call("stat", path)
        assert done.returncode == 1 and done.stderr == f"gaiactl: {path}: {said}\n" and done.stdout == "", done
    m.kill()
    done = call("stat", m.mnt)
    assert done.returncode == 1 and done.stderr == f"gaiactl: {m.mnt}: Transport endpoint is not connected\n", done
    subprocess.run(["umount", "-l", m.mnt], check=True)
