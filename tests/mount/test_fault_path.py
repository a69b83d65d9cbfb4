# SPDX-License-Identifier: Apache-2.0
"""Faults whose bytes go by the transport (-o fault=local; RDMA itself is in tests/vm). That a path that breaks is no
error is seen with a daemon whose sendmsg() fails. GAIA_TEST_OPTIONS=fault=local runs any other test so."""
import errno
import os
import signal
import subprocess
import time

import pytest

import helpers
from files import Opened, make, pattern
from helpers import (MIB, PAGE, agents, daemon_with_faults, devices, make_random, read_file,  # noqa: F401
                     refused_mount, stand_still, statistics, wait_until)
from test_frames import Hostile


def path_of(m):
    return statistics(m.mnt)["fault"]


def path_at_rest(m):
    """When no read is on its way, all of them bounced."""
    wait_until(lambda: path_of(m)["bounced"] == path_of(m)["reads"], what="all have bounced")
    return path_of(m)


def test_without_the_option(mount, devices):
    m = mount()
    path = make(m, pattern(20 * PAGE))
    assert Opened(devices(), path).map[:] == pattern(20 * PAGE)
    assert path_of(m) == {"path": "copy"}


def test_what_is_seen(mount, devices):
    m = mount("fault=local,queues=3,depth=7,device_cache=4M")
    content = pattern(8 * MIB)
    path = make(m, content)
    opened = Opened(devices(), path)
    assert opened.map[:] == content
    seen = path_at_rest(m)
    assert (seen["path"], seen["device"], seen["connected"], seen["connects"]) == ("local", "local", True, 1)
    assert (seen["queues"], seen["depth"], seen["failed"], seen["refused"], seen["waiting"]) == (3, 7, 0, 0, 0)
    assert seen["bytes"] == statistics(m.mnt)["devices"][0]["bytes_in"] >= len(content)
    assert 0 < seen["latency_p50_ns"] <= seen["latency_p99_ns"] <= seen["latency_max_ns"]
    assert 0 < seen["doorbells"] <= seen["reads"] and 0 < seen["outstanding_max"] <= 21
    said = subprocess.run([os.path.join(helpers.BIN, "gaiactl"), "stat", m.mnt], capture_output=True, text=True, check=True).stdout
    assert "faults: path local (local at gaiafs-fault-" in said and "3 queues of 7, " in said
    assert f" {seen['reads']} reads ({seen['reads']} bounced), " in said


def test_a_daemon_that_stood_still_keeps_its_path(mount, devices):
    """Both ends of it did."""
    m = mount("fault=local,peer_timeout=1,device_cache=4M")
    path = make(m, pattern(20 * PAGE))
    opened = Opened(devices(), path)
    assert opened.map[:PAGE] == pattern(20 * PAGE)[:PAGE]
    for _ in range(2):
        stand_still(m.pid)
        time.sleep(2)
        os.kill(m.pid, signal.SIGCONT)
        time.sleep(1.5)  # who was not heard would be late by then
    assert opened.map[:] == pattern(20 * PAGE)
    seen = path_of(m)
    assert (seen["connected"], seen["connects"], seen["failed"]) == (True, 1, 0)


@pytest.mark.parametrize("options", ["unit=4K", "unit=64K,evict=clock", "unit=2M,device_cache=8M"])
def test_random_touches_with_too_little_room(mount, devices, options):
    """Against the bytes that both sides have stored, a device and write()s in turns."""
    m = mount(f"fault=local,device_cache=1M,{options}")
    rng = make_random()
    content = bytearray(rng.randbytes(3 * MIB + 1234))
    path = make(m, bytes(content))
    opened = Opened(devices(), path)
    fd = os.open(path, os.O_RDWR)
    for _ in range(400):
        at = rng.randrange(len(content) - 100)
        what, data = rng.random(), rng.randbytes(rng.randint(1, 100))
        if what < 0.4:
            assert opened.map[at:at + 5000] == content[at:at + 5000]
        elif what < 0.7:
            opened.map[at:at + len(data)] = data
            content[at:at + len(data)] = data
        else:
            opened.map.release()
            os.pwrite(fd, data, at)
            content[at:at + len(data)] = data
            opened.map.acquire()
    opened.map.release()
    assert read_file(path) == content
    seen = path_of(m)
    assert seen["failed"] == seen["refused"] == 0 and seen["reads"] and seen["connects"] == 1
    os.close(fd)


def test_a_file_that_is_cut_meanwhile(mount, agents):
    """Its frames go away under reads: no error but that of a touch past the end, and no dead daemon."""
    m = mount("fault=local,device_cache=1M")
    path = make(m, pattern(2 * MIB))
    rng = make_random()
    client = agents()
    client.do("import random, signal\ndev = gaia.Device()\nfd = os.open(path, os.O_RDWR)\nmap = dev.mmap(fd, 2 << 20)\n",
              path=path)
    for _ in range(60):
        os.truncate(path, rng.randrange(PAGE, 2 * MIB))
        client.do("map.advise(gaia.ADV_WILLNEED)")
        os.truncate(path, 2 * MIB)
        assert client("bytes(map[0:100])") == pattern(2 * MIB)[:100]
    assert path_of(m)["connected"] or path_of(m)["connects"]


@pytest.mark.traps
def test_a_client_that_holds_its_frames(mount, agents):
    """It has the lock of their memory for as long as it likes. The one thread that places what has come waits for no such lock:
    touches of this file and of another go on, of who stores and of who only reads."""
    m = mount("fault=local,timeout=0,unit=4K")
    contents = {name: pattern(64 * PAGE) for name in "fg"}
    paths = {name: make(m, content, name) for name, content in contents.items()}
    hostile = Hostile(paths["f"])
    clients = [(name, prot, agents()) for name in "fg" for prot in ("gaia.PROT_READ", "gaia.PROT_READ | gaia.PROT_WRITE")]
    for name, prot, client in clients:
        client.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\nmap = dev.mmap(fd, 64 << 12, prot=" + prot + ")\nmap[2 << 12]",
                  path=paths[name])
    bounced = path_of(m)["bounced"]
    hostile.hold()
    for at, (name, prot, client) in enumerate(clients, 20):
        stores = f"map[{at + 10} << 12] = 7\n" if "WRITE" in prot else ""
        client.start(f"{stores}seen = bytes(map[{at} << 12:({at} << 12) + 4096])")
        assert not client.busy(15), (name, prot)
        client.finish()
        assert client("seen") == contents[name][at * PAGE:(at + 1) * PAGE]
    assert path_of(m)["bounced"] > bounced
    hostile.let_go()
    hostile.end()


def two_files(m, agents):
    """Each with a client that maps it, and one more of the first that is to hold its frames."""
    contents = {name: pattern(64 * PAGE) for name in "fg"}
    paths = {name: make(m, content, name) for name, content in contents.items()}
    clients = {name: agents() for name in paths}
    hostile = Hostile(paths["f"])
    for name, client in clients.items():
        client.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\nmap = dev.mmap(fd, 64 << 12)\nmap[2 << 12]", path=paths[name])
    return contents, paths, clients, hostile


def goes_on(client, content, page):
    client.start(f"seen = bytes(map[{page} << 12:({page} << 12) + 4096])")
    assert not client.busy(15), "the path waits for a client of another file"
    client.finish()
    assert client("seen") == content[page * PAGE:(page + 1) * PAGE]


@pytest.mark.traps
def test_a_client_that_cuts_and_holds_its_frames(mount, agents):
    """What can't be placed behind the cut is not waited for by the thread that polls, and fits again afterwards. The advice ends with
    an error that gaia.h has."""
    m = mount("fault=local,timeout=0,unit=4K")
    contents, _, clients, hostile = two_files(m, agents)
    os.ftruncate(hostile.frames, 0)
    hostile.hold()
    clients["f"].start("error_of(map.advise, gaia.ADV_WILLNEED)", "eval")
    clients["f"].busy(1)
    goes_on(clients["g"], contents["g"], 40)
    hostile.let_go()
    hostile.end()
    assert not clients["f"].busy(15)
    assert clients["f"].finish() == errno.EIO
    goes_on(clients["f"], contents["f"], 40)


@pytest.mark.traps
def test_a_file_that_is_cut_while_a_client_holds_its_frames(mount, agents, workdir, monkeypatch):
    """What came too late is to be dropped, which takes the lock that it has: not in the thread that polls."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("fault=local,timeout=0,unit=4K", env=env)
    contents, paths, clients, hostile = two_files(m, agents)
    hostile.hold()
    plan.arm_wait(helpers.ROWS.index("sendmsg"), 2000, 1, 0)
    clients["f"].start("seen = map[40 << 12]")
    wait_until(lambda: plan.landed, what="the read is under way")
    plan.row = -1
    os.truncate(paths["f"], 50 * PAGE)
    goes_on(clients["g"], contents["g"], 40)
    assert clients["f"].busy(0)
    hostile.let_go()
    hostile.end()
    assert not clients["f"].busy(15)
    clients["f"].finish()
    assert clients["f"]("seen") == contents["f"][40 * PAGE]


def test_no_room_for_mappings(mount, devices, workdir, monkeypatch):
    """Bytes are placed by way of one, where there is no userfaultfd; with none to be had they are written, as before."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("fault=local,unit=4K", env={**env, "GAIA_SOFT_COPY": "0"})
    content = pattern(64 * PAGE)
    opened = Opened(devices(), make(m, content))
    assert opened.map[2 * PAGE] == content[2 * PAGE]
    plan.arm(helpers.ROWS.index("mmap64"), errno.ENOMEM, 1, 1)
    seen = opened.map[40 * PAGE:41 * PAGE]
    plan.row = -1
    assert plan.landed and seen == content[40 * PAGE:41 * PAGE]


@pytest.mark.parametrize("unit", ["64K", "4K"])  # of a longer piece each page is tried again by itself
def test_a_path_that_breaks(mount, devices, workdir, monkeypatch, unit):
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount(f"fault=local,device_cache=1M,peer_timeout=2,unit={unit}", env=env)
    content = pattern(4 * MIB)
    path = make(m, content)
    device = devices()
    for broken in range(1, 4):
        opened = Opened(device, path)
        plan.arm(helpers.ROWS.index("sendmsg"), errno.EIO, 1, 1)
        assert opened.map[:] == content
        plan.row = -1
        assert plan.landed
        print(path_of(m))
        wait_until(lambda: path_of(m)["connects"] > broken and path_of(m)["connected"], 10, "connected again")
        reads = path_of(m)["reads"]
        assert opened.map[:] == content  # more than there is room for
        assert path_at_rest(m)["reads"] > reads
        opened.close()
    copied = path_of(m)["failed"] + path_of(m)["refused"]
    said = subprocess.run([os.path.join(helpers.BIN, "gaiactl"), "stat", m.mnt], capture_output=True, text=True, check=True).stdout
    assert copied and f", {path_of(m)['failed']} failed, {copied} copied\n" in said


@pytest.mark.parametrize("options, message", [
    ("fault=", "option fault=: none of copy, local, rdma, rdma@HOST[:PORT]"),
    ("fault=nvme", "option fault=nvme: none of"),
    ("fault=local@10.0.0.1", "option fault=local@10.0.0.1: none of"),
    ("fault=rdma@", "option fault=rdma@: none of"),
    ("fault=rdma@" + "x" * 100, "the host is longer than"),
    ("queues=0", "option queues=0: not a number from 1 to 16"),
    ("queues=17", "option queues=17: not a number from 1 to 16"),
    ("depth=0", "option depth=0: not a number"),
    ("depth=2000", "option depth=2000: not a number from 1 to 1024"),
    ("peer_timeout=0", "option peer_timeout=0: not a number"),
    ("peer_timeout=601", "option peer_timeout=601: not a number from 1 to 600"),
    ("fault=rdma", "-o fault=rdma: "),
    ("fault=rdma@127.0.0.1", "-o fault=rdma: "),
    ("fault=rdma@no-such-host.invalid:1", "-o fault=rdma: "),
    ("fault=rdma@" + "1" * 79, "-o fault=rdma: " + "1" * 79 + ": too long for an address"),
])
def test_bad_options(workdir, options, message):
    said = refused_mount(workdir, options)
    assert message in said, said
    print(said)


def test_no_address_at_all(workdir):
    """A container without a network: the mount says what is wrong."""
    said = refused_mount(workdir, "fault=rdma", before=["unshare", "-n"])
    assert "-o fault=rdma: no interface of this machine is up and has an address" in said, said


def test_no_memory_says_so(workdir, monkeypatch):
    """Whichever mapping of the path's there is no room for."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    said, refused = "", 0
    for number in range(1, 30):
        plan.arm(helpers.ROWS.index("mmap64"), errno.ENOMEM, number, 0)
        said = refused_mount(workdir, "fault=local", env=env)
        assert plan.landed and "no error" not in said, said
        refused += "-o fault=local: " in said
        if "starting the server" in said:  # the path is there
            break
    assert "starting the server" in said and refused >= 3


def test_not_the_engine(workdir, monkeypatch):
    """What is refused to the path is not put down to io_uring."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    plan.arm(helpers.ROWS.index("listen"), errno.EPERM, 1, 1)
    said = refused_mount(workdir, "fault=local", env=env)
    assert plan.landed and "-o fault=local: gaiafs-fault-" in said and "io_uring" not in said, said
