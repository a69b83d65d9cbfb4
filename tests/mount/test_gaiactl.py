# SPDX-License-Identifier: Apache-2.0
"""How gaiactl is called: help, what is wrong with a call, and what it says to who reads its exit code only."""
import contextlib
import fcntl
import os
import signal
import socket
import subprocess

import pytest

from helpers import BIN, DUMP, IOCTL_TOKEN, PAGE, VERSION, message

GAIACTL = os.path.join(BIN, "gaiactl")
UNWRITTEN = "gaiactl: the answer can't be written\n"


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
        done = call(*words, *where, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, UNWRITTEN)
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
        done = call(*words, m.mnt, stdout=ends[1], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, UNWRITTEN)


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


# Whatever folder gaiactl is given, the daemon of its mount is who listens at that name.
SAYS_WHO = """
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int ioctl(int fd, unsigned long request, ...)
{
    struct { uint32_t version, network; char name[64]; uint8_t token[16]; } answer = {.version = %d};
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (request != %d)
        return (int)syscall(SYS_ioctl, fd, request, argument);
    strncpy(answer.name, getenv("LISTENS"), sizeof answer.name - 1);
    memcpy(argument, &answer, sizeof answer);
    return 0;
}
"""


@pytest.mark.parametrize("sends", ["pipe", "json", "file"])
def test_a_daemon_that_is_another(workdir, mount, sends):
    """Who may mount may run any: root, who asks it, must not wait for it without end. Nor for a filesystem in user space that
    does not answer."""
    source, shim, name = os.path.join(workdir, "shim.c"), os.path.join(workdir, "shim.so"), f"gaiafs-test-{os.getpid()}"
    with open(source, "w") as file:
        file.write(SAYS_WHO % (VERSION, IOCTL_TOKEN))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source], check=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.ExitStack() as opened:
        listener.bind("\0" + name)
        listener.listen()
        env = {**os.environ, "LD_PRELOAD": shim, "LISTENS": name}
        env["ASAN_OPTIONS"] = f"{env.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0"  # it ends at once where a library is before its own
        asking = opened.enter_context(subprocess.Popen([GAIACTL, "stat", workdir], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                                       text=True))
        opened.callback(asking.kill)
        with listener.accept()[0] as asker:
            asker.recv(256)
            sent = []
            if sends == "pipe":
                ends = os.pipe()
                opened.callback(os.close, ends[1])
                opened.callback(os.close, ends[0])
                sent.append(ends[0])
            if sends == "json":
                sent.append(os.memfd_create("statistics"))
                opened.callback(os.close, sent[0])
                os.write(sent[0], b'{"data": "there", "fault": {}}')
                os.lseek(sent[0], 0, os.SEEK_SET)
            if sends == "file":
                m = mount()
                sent.append(os.open(f"{m.mnt}/f", os.O_RDWR | os.O_CREAT))
                opened.callback(os.close, sent[-1])
                m.proc.send_signal(signal.SIGSTOP)
                opened.callback(m.proc.send_signal, signal.SIGCONT)
            socket.send_fds(asker, [message(DUMP)], sent)
            said, complaint = asking.communicate(timeout=20)
    assert said.startswith("there on (null)\n") if sends == "json" else asking.returncode == 1 and "no daemon" in complaint
