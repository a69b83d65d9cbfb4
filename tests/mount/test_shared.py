# SPDX-License-Identifier: Apache-2.0
"""Several mounts of one data directory (-o shared): each file on the devices of one of them at a time, and nothing that was
released is lost when it goes from one to the other."""
import errno
import fcntl
import os
import struct
import threading
import time

import pytest

import gaia
from files import Opened, pattern
from gpu_fixture import MAP
from helpers import (ALL_ROWS, MIB, PAGE, agents, cuda_standin, daemon_with_faults, devices, drop_host_cache,  # noqa: F401
                     make_random, read_file, refused_mount, statistics, wait_until, write_at, write_file)
from test_disks import fill, small_ext4  # noqa: F401

CLAIM_BYTE = (1 << 63) - 2


@pytest.fixture
def two(mount, workdir):
    """Two mounts of one directory."""
    data = os.path.join(workdir, "shared")
    os.mkdir(data)
    return [mount("shared,timeout=0", data=data) for _ in range(2)]


def path_in(m, name="f"):
    return os.path.join(m.mnt, name)


def error_of_map(device, m, name="f", prot=gaia.PROT_READ | gaia.PROT_WRITE):
    try:
        opened = Opened(device, path_in(m, name), prot=prot)
    except OSError as error:
        return error.errno
    opened.close()
    return 0


def claimed(path):
    """Whether somebody holds the claim: what fcntl(F_OFD_GETLK) says of it."""
    with open(path, "rb") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, CLAIM_BYTE, 1, 0)
        return struct.unpack("hhqqi4x", fcntl.fcntl(file, 36, lock))[0] != fcntl.F_UNLCK  # F_OFD_GETLK


@pytest.mark.parametrize("passthrough", ["off", "all"])
def test_an_acquire_sees_what_another_mount_has_written(mount, workdir, devices, passthrough):
    """Each time, whatever `timeout` says of names and attributes."""
    data = os.path.join(workdir, "shared")
    os.mkdir(data)
    one, other = (mount(f"shared,timeout=60,passthrough={passthrough}", data=data) for _ in range(2))
    write_file(path_in(one), bytes(PAGE))
    opened = Opened(devices(), path_in(one))
    with open(path_in(other), "r+b", buffering=0) as file:
        for turn in range(1, 20):
            os.pwrite(file.fileno(), bytes([turn]), 7)
            opened.map.acquire()
            assert opened.map[7] == turn


# --- who may mount -----------------------------------------------------------------------------------------------------

MEMBERS = "peers=a@local:gaiafs-test-a/b@local:gaiafs-test-b"


@pytest.mark.parametrize("first, second, message", [
    ("shared", "", "is already mounted by another gaiafs (several take -o shared or node=, all of them)"),
    ("", "shared", "is already mounted by another gaiafs, without -o shared"),
    ("", f"node=a,{MEMBERS}", "is already mounted by another gaiafs, without -o peers")])
def test_all_or_nobody(mount, workdir, first, second, message):
    m = mount(first)
    said = refused_mount(workdir, second, m.data)
    assert message in said, said


@pytest.mark.parametrize("above", [False, True], ids=["below", "above"])
@pytest.mark.parametrize("first, second, good", [("", "", False), ("shared", "", False), ("", "shared", False),
                                                 ("shared", "shared", True)])
def test_a_directory_inside_another_mounts(mount, workdir, first, second, good, above):
    """Neither daemon would hear of what the other has on devices; with `shared` files are claimed one by one."""
    outer = os.path.join(workdir, "with a space")
    inner = os.path.join(outer, "a", "b")
    os.makedirs(inner)
    os.mkdir(outer + "2")  # only its name begins so
    had, wanted = (inner, outer) if above else (outer, inner)
    m = mount(first, data=had)
    mount(second, data=outer + "2")
    if good:
        mount(second, data=wanted)
        return
    said = refused_mount(workdir, second, wanted)
    where = "is above" if above else "lies inside"
    assert f"data directory {wanted} {where} {had}, the data directory of another gaiafs, mounted at {m.mnt}" in said, said
    m.unmount()
    mount(second, data=wanted)


def test_a_directory_inside_a_dead_mounts(mount, workdir):
    """Its place in the mount table stays; it has nothing."""
    m = mount()
    os.mkdir(os.path.join(m.data, "below"))
    m.kill()
    assert m.mounted()
    mount(data=os.path.join(m.data, "below"))


def test_a_directory_above_one_that_is_mounted_over_itself(mount, workdir):
    """All that the second sees there is the first mount."""
    inner = os.path.join(workdir, "outer", "inner")
    os.makedirs(inner)
    mount(data=inner, mnt=inner)
    m = mount(data=os.path.dirname(inner))
    write_file(path_in(m, "inner/f"), pattern(PAGE))
    assert read_file(os.path.join(inner, "f")) == pattern(PAGE)


def test_members_have_the_directory_together(mount, workdir):
    data = os.path.join(workdir, "members")
    os.mkdir(data)
    a, b = [mount(f"node={name},{MEMBERS}", data=data) for name in "ab"]
    write_file(path_in(a), pattern(PAGE))
    assert read_file(path_in(b)) == pattern(PAGE)


@pytest.mark.parametrize("options, message", [
    ("node=a", "option node=a: peers= is missing"),
    (MEMBERS, "option peers=: node= is missing"),
    (f"node=c,{MEMBERS}", "option peers=: node c is not among the members"),
    ("node=a,peers=a@10.0.0.1:7471/a@10.0.0.2:7471", "option peers=: member a is listed twice"),
    ("node=a,peers=/nonexistent/members", "option peers=/nonexistent/members: No such file or directory"),
])
def test_bad_members(workdir, options, message):
    said = refused_mount(workdir, options)
    assert message in said, said


def test_one_mount_alone_asks_nobody(mount, devices):
    m = mount("timeout=0")
    write_file(path_in(m), pattern(PAGE))
    opened = Opened(devices(), path_in(m))
    assert not claimed(os.path.join(m.data, "f"))
    opened.close()


# --- one at a time -----------------------------------------------------------------------------------------------------

def test_a_file_goes_from_one_to_the_other(two, devices):
    a, b = two
    one, other = devices(), devices()
    below = os.path.join(a.data, "f")
    write_file(path_in(a), pattern(20 * PAGE))
    assert not claimed(below)
    opened = Opened(one, path_in(a))
    second = Opened(one, path_in(a), prot=gaia.PROT_READ)
    assert claimed(below) and error_of_map(other, b) == errno.EBUSY
    assert error_of_map(other, b, prot=gaia.PROT_READ) == errno.EBUSY
    opened.map[100] = 1
    opened.map.release()
    opened.map[5 * PAGE] = 2  # not released
    opened.close()
    assert error_of_map(other, b) == errno.EBUSY  # the second map is there yet
    second.close()
    assert not claimed(below)
    assert statistics(a.mnt)["devices"][0]["resident_bytes"] == 0
    taken = Opened(other, path_in(b))
    assert (taken.map[100], taken.map[5 * PAGE]) == (1, 2)
    assert error_of_map(one, a) == errno.EBUSY
    assert error_of_map(one, a, "f") == errno.EBUSY
    taken.map[101] = 3
    taken.close()
    assert read_file(path_in(a))[100:102] == b"\1\3" and read_file(below)[100:102] == b"\1\3"


def test_a_map_for_which_there_was_no_descriptor_claims_nothing(two, agents, devices):
    """The program has not got it, and could not unmap it; and goes on."""
    a, b = two
    for name in "fg":
        write_file(path_in(a, name), pattern(PAGE))
    child = agents()
    child.do("import resource\ndevice = gaia.Device('soft:0')\nfds = [os.open(path, os.O_RDWR) for path in paths]\n"
             "map = device.mmap(fds[1], PAGE, 3)\nlimit = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
             "code = 0\nfree = os.dup(0)\nos.close(free)", paths=[path_in(a, name) for name in "fg"])
    # One for the mapping's own, and one of the two that the daemon sends.
    child.do("resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, limit[1]))\n"
             "try:\n    device.mmap(fds[0], PAGE)\nexcept OSError as error:\n    code = error.errno\n"
             "resource.setrlimit(resource.RLIMIT_NOFILE, limit)")
    assert child("code") == errno.EMFILE
    assert not claimed(os.path.join(a.data, "f"))
    assert error_of_map(devices(), b) == 0
    assert child("map[1]") == pattern(PAGE)[1]
    child.end()


def test_other_files_are_not_concerned(two, devices):
    a, b = two
    for name in "fg":
        write_file(path_in(a, name), pattern(PAGE))
    opened, other = Opened(devices(), path_in(a)), Opened(devices(), path_in(b, "g"))
    opened.map[0], other.map[0] = 7, 8
    opened.close()
    other.close()
    assert read_file(path_in(b))[0] == 7 and read_file(path_in(a, "g"))[0] == 8


def test_a_file_that_changed_size_meanwhile(two, devices):
    """Grown and cut by the other mount's devices and CPUs: what this one knew of it before is forgotten."""
    a, b = two
    one, other = devices(), devices()
    write_file(path_in(a), pattern(3 * PAGE))
    for round_, size in enumerate((10 * PAGE + 5, PAGE + 17, 40 * PAGE, 1)):
        this, that = (a, b) if round_ % 2 else (b, a)
        opened = Opened(one, path_in(this))
        opened.map[0] = round_ + 1
        opened.close()
        os.truncate(path_in(that), size)
        assert os.stat(path_in(that)).st_size == size
        opened = Opened(other, path_in(that))
        assert opened.map[0] == round_ + 1
        opened.map[size - 1] = round_ + 100
        opened.close()
        assert os.stat(path_in(this)).st_size == size
        content = read_file(path_in(this))
        assert len(content) == size and content[-1] == round_ + 100
        opened = Opened(one, path_in(this))
        assert opened.map[size - 1] == round_ + 100
        opened.close()


def test_what_cpus_stored_goes_along(two, agents, devices):
    """Through a mapping that is still there, of the mount that lets go."""
    a, b = two
    write_file(path_in(a), pattern(4 * PAGE))
    cpu = agents()
    cpu.do("import mmap\nfd = os.open(path, os.O_RDWR)\nmap = mmap.mmap(fd, 4 * 4096)\nmap[50] = 5", path=path_in(a))
    opened = Opened(devices(), path_in(a))
    opened.map[60] = 6
    opened.map.release()
    cpu.do("map[70] = 7\nmap[3 * 4096] = 33")
    opened.close()
    opened = Opened(devices(), path_in(b))
    assert (opened.map[50], opened.map[60], opened.map[70], opened.map[3 * PAGE]) == (5, 6, 7, 33)
    opened.map[80] = 8
    opened.close()
    cpu.do("map[90] = 9\nmap.flush()")
    below = read_file(os.path.join(a.data, "f"))
    assert [below[i] for i in (50, 60, 70, 80, 90)] == [5, 6, 7, 8, 9]


def test_what_the_kernel_held_before_the_claim_is_dropped(two, agents, devices):
    """CPUs of the mount that takes the claim have the file mapped, with pages from before the other mount's stores: a
    store of theirs must not bring these back."""
    a, b = two
    write_file(path_in(a), pattern(4 * PAGE))
    cpu = agents()
    cpu.do("import mmap\nfd = os.open(path, os.O_RDWR)\nmap = mmap.mmap(fd, 4 * 4096)\nold = map[:]", path=path_in(a))
    fd = os.open(path_in(a), os.O_RDWR)  # before the change: no open finds it
    opened = Opened(devices(), path_in(b))
    opened.map[100] = pattern(PAGE)[100] ^ 255
    opened.close()
    mapping = devices().mmap(fd, 4 * PAGE)
    cpu.do("map[50] = 5")
    mapping.release()
    mapping.acquire()
    assert (mapping[50], mapping[100]) == (5, pattern(PAGE)[100] ^ 255)
    mapping.unmap()
    os.close(fd)
    below = read_file(os.path.join(a.data, "f"))
    assert (below[50], below[100]) == (5, pattern(PAGE)[100] ^ 255)


@pytest.mark.parametrize("size", [3 * PAGE + 7, 80 * PAGE + 9])
def test_cut_or_grown_by_the_other_mount_before_the_claim_goes(two, devices, size):
    """What devices stored behind a cut does not bring it back; what was appended stays."""
    a, b = two
    write_file(path_in(a), pattern(64 * PAGE + 5))
    opened = Opened(devices(), path_in(a))
    opened.map[:] = bytes(64 * PAGE + 5)
    opened.map.release()
    os.truncate(path_in(b), size)
    if size > 64 * PAGE:
        with open(path_in(b), "r+b") as file:
            file.seek(64 * PAGE + 5)
            file.write(b"x" * PAGE)
    opened.close()
    wanted = bytes(size) if size < 64 * PAGE else (bytes(64 * PAGE + 5) + b"x" * PAGE).ljust(size, b"\0")
    assert read_file(path_in(b)) == wanted
    opened = Opened(devices(), path_in(b))
    assert opened.map[:] == wanted
    opened.close()


@pytest.mark.parametrize("who", ["client", "daemon"])
def test_the_dead_let_go(two, agents, devices, who):
    a, b = two
    write_file(path_in(a), pattern(4 * PAGE))
    client = agents()
    client.do("dev = gaia.Device()\nfd = os.open(path, os.O_RDWR)\nmap = dev.mmap(fd, 4 * PAGE)\nmap[10] = 77\nmap.release()",
              path=path_in(a))
    device = devices()
    assert error_of_map(device, b) == errno.EBUSY
    if who == "client":
        client.kill()
    else:
        assert read_file(path_in(a))[10] == 77  # collected: the promise of the table
        a.kill()
    wait_until(lambda: not claimed(os.path.join(b.data, "f")), 20, "the claim is gone")
    opened = Opened(device, path_in(b))
    assert opened.map[10] == 77
    opened.close()


def test_nothing_is_let_go_that_cannot_be_collected(mount, small_ext4, devices):  # noqa: F811
    """It stays claimed, and goes when there is room again."""
    a, b = (mount("shared,timeout=0", data=small_ext4) for _ in range(2))
    write_file(path_in(a), b"")
    os.truncate(path_in(a), MIB)  # a hole
    one, other = devices(), devices()
    opened = Opened(one, path_in(a))
    content = pattern(MIB)
    opened.map[:] = content
    ballast = fill(small_ext4)
    opened.close()
    assert claimed(os.path.join(small_ext4, "f"))
    assert error_of_map(other, b) == errno.EBUSY
    os.unlink(ballast)
    os.sync()
    Opened(one, path_in(a)).close()
    assert not claimed(os.path.join(small_ext4, "f"))
    opened = Opened(other, path_in(b))
    assert opened.map[:] == content
    opened.close()


@pytest.mark.parametrize("passthrough", ["off", "all"])
@pytest.mark.parametrize("call", ["release", "acquire"])
def test_a_write_through_another_mount_to_a_page_that_a_gpu_has(mount, workdir, monkeypatch, agents, call, passthrough):
    """Only what kernels have stored to it is brought to the data directory, also before the first acquire, and after others."""
    monkeypatch.setenv("LD_LIBRARY_PATH", cuda_standin())
    data = os.path.join(workdir, "shared")
    os.mkdir(data)
    a, b = (mount(f"shared,timeout=0,passthrough={passthrough}", data=data, env={"STANDIN_CUDA": ""}) for _ in range(2))
    expected = bytearray(pattern(4 * PAGE))
    write_file(path_in(a), bytes(expected))
    one = agents({"STANDIN_CUDA": ""})
    one.do(MAP, path=path_in(a), length=4 * PAGE, writable=True)
    for turn in range(6):
        mine, theirs = turn // 2 * PAGE + 10 + turn, turn // 2 * PAGE + 100 + turn
        expected[mine] ^= 255
        expected[theirs] ^= 255
        one.do("map[at] = value", at=mine, value=expected[mine])
        write_at(path_in(b), expected[theirs:theirs + 1], theirs)
        one.do(f"map.{call}()")
        assert read_file(os.path.join(data, "f")) == bytes(expected)
        if turn % 2:
            one.do("map.acquire()")
            assert one("map[:]") == bytes(expected)
    one.end()
    assert read_file(path_in(b)) == bytes(expected)


def two_and_a_plan(mount, workdir, monkeypatch):
    """(the data directory, what fails in the first mount's daemon, the first mount, the second)"""
    data = os.path.join(workdir, "shared")
    os.mkdir(data)
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    return data, plan, *(mount("shared,timeout=0,passthrough=off", data=data, env=given) for given in (env, None))


@pytest.mark.parametrize("first", ["one byte", "every second byte"])
def test_a_write_through_another_mount_beside_a_collect(mount, workdir, monkeypatch, devices, first):
    """To other bytes of a page that is just being brought to the data directory: they are not put back to what they were."""
    data, plan, a, b = two_and_a_plan(mount, workdir, monkeypatch)
    write_file(path_in(a), bytes(4 * PAGE))
    opened = Opened(devices(), path_in(a))
    stored = [PAGE + at for at in ([100] if first == "one byte" else range(0, 1024, 2))]
    for at in stored:
        opened.map[at] = 7
    with open(path_in(b), "r+b", buffering=0) as file:
        plan.arm_wait(ALL_ROWS.index("pwrite64"), 600, 1, False)
        releaser = threading.Thread(target=opened.map.release)
        releaser.start()
        wait_until(lambda: plan.landed == 1, 20, "it is being collected")
        for at in (1, 2047, 4095):
            os.pwrite(file.fileno(), b"w", PAGE + at)
        releaser.join()
    expected = bytearray(4 * PAGE)
    for at in stored:
        expected[at] = 7
    for at in (1, 2047, 4095):
        expected[PAGE + at] = ord("w")
    assert read_file(os.path.join(data, "f")) == bytes(expected)
    opened.map.acquire()  # the release has moved the file's times after that write
    assert opened.map[:] == bytes(expected)
    opened.close()
    assert read_file(path_in(b)) == bytes(expected)


@pytest.mark.parametrize("passthrough", ["off", "on", "all"])
def test_an_acquire_sees_what_is_stored_through_a_mapping_of_another_mount(mount, workdir, agents, devices, passthrough):
    """And synced. Where the kernel has it in the file's own pages, their times do not move with each store."""
    data = os.path.join(workdir, "shared")
    os.mkdir(data)
    a, b = (mount(f"shared,timeout=0,passthrough={passthrough}", data=data) for _ in range(2))
    write_file(os.path.join(data, "f"), bytes(4 * PAGE))  # nobody of the one that acquires has it open for writing
    cpu = agents()
    cpu.do("import mmap\nfd = os.open(path, os.O_RDWR)\nmap = mmap.mmap(fd, 4 * 4096)\nmap[0] = 0", path=path_in(b))
    opened = Opened(devices(), path_in(a), prot=gaia.PROT_READ)
    for turn in range(1, 10):
        cpu.do("map[7] = 99\nmap.flush()")
        opened.map.acquire()
        assert opened.map[7] == 99
        cpu.do("map[7] = 100")
        opened.map.acquire()
        opened.map[7]  # where that is seen, its page is on the device
        cpu.do("map[7] = turn\nmap.flush()", turn=turn)
        opened.map.acquire()
        assert opened.map[7] == turn
    opened.close()
    cpu.end()


@pytest.mark.parametrize("who", ["another mount", "behind the mount"])
def test_reads_beside_an_older_copy_on_a_device(mount, workdir, devices, who):
    """What others have written is not in the host's memory any more; a device that has not acquired it is no source of it."""
    data = os.path.join(workdir, "shared")
    os.mkdir(data)
    a, b = (mount("shared,timeout=0,passthrough=off", data=data) for _ in range(2))
    below = os.path.join(data, "f")
    write_file(path_in(a), pattern(8 * PAGE))
    opened = Opened(devices(), path_in(a))
    assert opened.map[:] == pattern(8 * PAGE)
    with open(path_in(b) if who == "another mount" else below, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"w" * PAGE, 3 * PAGE)
        os.fsync(file.fileno())
    drop_host_cache(below)
    assert os.pread(opened.fd, PAGE, 3 * PAGE) == b"w" * PAGE
    opened.close()


@pytest.mark.parametrize("passthrough", ["off", "all"])
def test_programs_of_other_mounts_see_what_was_released(mount, workdir, devices, passthrough):
    """As a change behind their mount: with the next open, or within `timeout`. Nobody of this mount has to read it before."""
    data = os.path.join(workdir, "shared")
    os.mkdir(data)
    a, b = (mount(f"shared,timeout=0,passthrough={passthrough}", data=data) for _ in range(2))
    write_file(path_in(a), bytes(70 * PAGE))
    opened = Opened(devices(), path_in(a))
    with open(path_in(b), "rb", buffering=0) as file:
        for turn in range(1, 20):
            opened.map[7] = opened.map[69 * PAGE + turn] = turn
            opened.map.release()
            content = read_file(path_in(b))
            assert content[7] == content[69 * PAGE + turn] == turn
            assert os.pread(file.fileno(), 1, 7) == bytes([turn])
    opened.close()


@pytest.mark.traps
@pytest.mark.parametrize("call", ["release", "acquire", "sync"])
def test_a_store_where_another_mount_has_made_the_file_longer(two, devices, call):
    """It is a store, though the device has not acquired the new end."""
    a, b = two
    write_file(path_in(a), b"a" * (PAGE + 100))
    opened = Opened(devices(), path_in(a), length=2 * PAGE)
    opened.map[0], opened.map[PAGE] = ord("a"), ord("b")
    opened.map.release()
    with open(path_in(b), "ab", buffering=0) as file:
        file.write(b"w" * 200)
    opened.map[PAGE + 150] = ord("d")
    opened.map.release(0, 2 * PAGE)
    getattr(opened.map, call)()
    wanted = bytearray(b"a" * (PAGE + 100) + b"w" * 200)
    wanted[PAGE], wanted[PAGE + 150] = ord("b"), ord("d")
    assert read_file(path_in(b)) == bytes(wanted)
    opened.map.acquire()
    assert opened.map[:PAGE + 300] == bytes(wanted)
    opened.close()
    assert read_file(path_in(b)) == bytes(wanted)


def test_random_turns(two, devices):
    """Two programs, one on each mount, that map, store, release, write() and let go, and wait for each other by the EBUSY:
    each adds to counters of the file, so that a lost store is a sum that is too small."""
    counters, rounds = 64, 60
    write_file(path_in(two[0]), bytes(counters * PAGE))
    rng = make_random()
    seeds = [rng.getrandbits(32) for _ in two]
    total, problems = [0, 0], []

    def work(number):
        m, device = two[number], devices()
        mine = make_random(seeds[number])
        for _ in range(rounds):
            while True:
                try:
                    opened = Opened(device, path_in(m))
                    break
                except OSError as error:
                    assert error.errno == errno.EBUSY
                    time.sleep(0.001)
            for _ in range(mine.randrange(1, 20)):
                at = mine.randrange(counters) * PAGE + mine.randrange(16) * 8
                value = struct.unpack("<Q", opened.map[at:at + 8])[0]
                opened.map[at:at + 8] = struct.pack("<Q", value + 1)
                total[number] += 1
                if mine.random() < 0.2:
                    opened.map.release()
                if mine.random() < 0.1:
                    opened.map.release()
                    assert struct.unpack("<Q", os.pread(opened.fd, 8, at))[0] == value + 1
            opened.close()

    def guarded(number):
        try:
            work(number)
        except BaseException as problem:  # noqa: BLE001
            problems.append(repr(problem))

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    for m in two:
        content = read_file(path_in(m))
        found = sum(struct.unpack_from("<Q", content, page * PAGE + word * 8)[0] for page in range(counters) for word in range(16))
        assert found == sum(total)
    print(f"{total} additions")
