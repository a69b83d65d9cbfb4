# SPDX-License-Identifier: Apache-2.0
"""To whom a program gives its userfaultfd, by which all of its memory can be written to (gpu/trust.h): to root's daemons, and to
those of a user only if it is nothing but that user's."""
import errno
import inspect
import os
import resource
import shutil
import subprocess
import sys

import pytest

import gaia
import helpers
from helpers import PAGE, AgentDied, agents, error_of, read_file, write_file  # noqa: F401

USER, OTHER = 4001, 4002
# So much of root is left to the daemon that it can mount, where fusermount3 might not let it: who it is does not change by that.
DAEMON = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=+sys_admin,+dac_override",
          "--ambient-caps=+sys_admin,+dac_override")
MAP = """
import ctypes, errno, os, sys
sys.path.insert(0, os.path.join(sys.argv[2], "tests", "mount"))
import gaia

def attempt(*before):
    # in a process of its own
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 255
    try:
        for step in before:
            step()
        fd = os.open(sys.argv[1], os.O_RDWR)
        map = gaia.Device("soft:0").mmap(fd, 4096)
        map[0] = map[0] + 1
        map.release()
        code = 0
    except OSError as error:
        code = error.errno
    finally:
        os._exit(code)
"""


@pytest.fixture
def library(workdir):
    """A folder that all users can read, with libgaia and what Python needs of it."""
    top = os.path.join(workdir, "top")
    os.makedirs(os.path.join(top, "tests", "mount"))
    shutil.copy(os.path.join(helpers.HERE, "gaia.py"), os.path.join(top, "tests", "mount"))
    shutil.copy(os.path.join(helpers.TOP, "libgaia.so"), top)
    return top


@pytest.fixture
def run(library):
    """A function that runs Python code as somebody, with attempt(): what it prints, a number in each line."""
    def attempts(path, code, uid=0, gid=None, before=()):
        gid = uid if gid is None else gid
        env = {name: value for name, value in os.environ.items() if name not in ("GAIAFS_BIN", "GAIA_DEVICE")}
        done = subprocess.run([*before, sys.executable, "-B", "-c", MAP + code, path, library], capture_output=True, text=True, user=uid,
                              group=gid, extra_groups=[], env=env, timeout=50)
        assert done.returncode == 0, done.stderr
        return [int(line) for line in done.stdout.split()]
    return attempts


def users_file(mount, workdir):
    """A file of an ordinary user's mount, which others may use."""
    data = os.path.join(workdir, "users")
    os.mkdir(data)
    os.chown(data, USER, USER)
    if subprocess.run([*DAEMON, "true"], capture_output=True).returncode:
        pytest.skip("no setpriv that can do so here")
    m = mount("allow_other", data=data, before=DAEMON)
    with open(f"/proc/{m.pid}/status", encoding="ascii") as file:
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n" in file.read()
    path = os.path.join(m.mnt, "f")
    below = os.path.join(data, "f")
    write_file(below, bytes(PAGE))
    os.chown(below, USER, USER)
    os.chmod(below, 0o666)
    return path


def test_an_ordinary_users_daemon_gets_nothing_of_others(mount, workdir, run):
    """Root's and another user's programs are refused, the user's own map and store."""
    path = users_file(mount, workdir)
    assert run(path, "print(attempt())") == [errno.EPERM]
    assert run(path, "print(attempt())", uid=OTHER) == [errno.EPERM]
    assert run(path, "print(attempt())", uid=USER) == [0]
    assert run(path, "print(attempt())", uid=USER, gid=OTHER) == [0]
    assert read_file(path)[0] == 2


def test_a_program_that_is_more_than_its_user(mount, workdir, run):
    """Of the daemon's user, but it could become another, was one, may more, or is not to be looked into."""
    path = users_file(mount, workdir)
    refused = f"""
libc = ctypes.CDLL(None, use_errno=True)
def may(*arguments):
    if libc.prctl(*arguments):
        raise OSError(77, "prctl")
own = lambda: may(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which a change of users takes away
for ids in ((0, {USER}, 0), ({USER}, {USER}, 0), (0, {USER}, {USER}), ({USER}, {OTHER}, {USER})):
    print(attempt(lambda: os.setresgid({USER}, {USER}, {USER}), lambda: os.setresuid(*ids), own))
print(attempt(lambda: os.setresgid({USER}, {USER}, 0), lambda: os.setresuid({USER}, {USER}, {USER}), own))
print(attempt(lambda: os.setresgid({USER}, {USER}, {USER}), lambda: may(8, 1, 0, 0, 0), lambda: os.setresuid({USER}, {USER}, {USER}),
              own))  # PR_SET_KEEPCAPS
print(attempt(lambda: os.setresgid({USER}, {USER}, {USER}), lambda: os.setresuid({USER}, {USER}, {USER})))
print(attempt(lambda: os.setresgid({USER}, {USER}, {USER}), lambda: os.setresuid({USER}, {USER}, {USER}), own))
"""
    assert run(path, refused) == [errno.EPERM] * 7 + [0]
    assert read_file(path)[0] == 1


def everybodys_file(m):
    """A page that all users may write to."""
    path = os.path.join(m.mnt, "f")
    os.chmod(m.mnt, 0o755)
    write_file(path, bytes(PAGE))
    os.chmod(path, 0o666)
    return path


def test_roots_daemon_serves_everybody(mount, run):
    m = mount("allow_other")
    path = everybodys_file(m)
    for uid in 0, USER, OTHER:
        assert run(path, "print(attempt())", uid=uid) == [0]
    assert read_file(path)[0] == 3


@pytest.fixture
def elsewhere(agents):
    """A process in a user namespace in which none of the users of here has a number, as an engine's with remapped users."""
    agent = agents()
    if agent("ctypes.CDLL(None).unshare(0x10000000)"):  # CLONE_NEWUSER
        pytest.skip("no user namespaces here")
    for name in "uid_map", "gid_map":
        with open(f"/proc/{agent.pid}/{name}", "w", encoding="ascii") as file:
            file.write("0 300000 65536")
    agent.do("os.setresgid(0, 0, 0)\nos.setresuid(0, 0, 0)")
    return agent


def test_a_container_whose_users_have_other_numbers(mount, workdir, elsewhere):
    """It can't see who the daemon is; it is root's if the mount is."""
    m = mount("allow_other")
    roots = everybodys_file(m)
    elsewhere.do("dev = gaia.Device('soft:0')")
    users = users_file(mount, workdir)
    for path, error in (roots, 0), (users, errno.EPERM), (roots, 0):
        assert elsewhere("error_of(lambda: dev.mmap(os.open(path, os.O_RDWR), PAGE))", path=path) == error, path


def test_a_container_whose_first_thread_has_ended(mount, elsewhere):
    m = mount("allow_other")
    path = everybodys_file(m)
    elsewhere.do("dev = gaia.Device('soft:0')")
    with pytest.raises(AgentDied) as died:
        elsewhere.do("end_without_first_thread(lambda: error_of(dev.mmap, os.open(path, os.O_RDWR), PAGE))", path=path)
    assert died.value.code == 0


def with_few_descriptors(path):
    """The errors of maps by one who has none left after ever more of those that a map needs."""
    device, fd = gaia.Device("soft:0"), os.open(path, os.O_RDWR)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    errors = []
    for number in range(fd + 1, fd + 20):
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, limit[1]))
        errors.append(error_of(device.mmap, fd, PAGE))
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    return errors


def test_who_has_no_descriptor_to_look_with_is_not_refused(mount, elsewhere):
    m = mount("allow_other")
    path = everybodys_file(m)
    elsewhere.do("import resource\n" + inspect.getsource(with_few_descriptors))  # it can't read this file
    errors = elsewhere("with_few_descriptors(path)", path=path)
    assert set(errors) == {errno.EMFILE, 0} and errors.index(0) == errors.count(errno.EMFILE), errors
