# SPDX-License-Identifier: Apache-2.0
"""Where pages are: advice, residence, a device's room, what is counted."""
import contextlib
import errno
import os

import pytest

import gaia
from files import Opened, make, pattern
from helpers import (MIB, PAGE, device_statistics, devices, drop_host_cache, read_file, statistics,  # noqa: F401
                     wait_until, write_file)

# --- advice, sync, residence --------------------------------------------------------------------------------------------

def test_resident_places_at_acquire(mount, devices):
    m = mount()
    path = make(m, pattern(100 * PAGE))
    device = devices()
    opened = Opened(device, path, flags=gaia.RESIDENT)
    opened.map.acquire()
    before = device.stat()
    assert before.resident_bytes >= 100 * PAGE
    assert opened.map[:] == pattern(100 * PAGE)
    assert device.stat().bytes_in == before.bytes_in


def test_resident_larger_than_the_device(mount, devices):
    m = mount("device_cache=1M")
    path = make(m, pattern(512 * PAGE))
    device = devices()
    fd = os.open(path, os.O_RDWR)
    with pytest.raises(OSError) as caught:
        device.mmap(fd, 512 * PAGE, flags=gaia.RESIDENT)
    assert caught.value.errno == errno.ENOMEM
    fits = device.mmap(fd, 200 * PAGE, flags=gaia.RESIDENT)
    fits.acquire()
    assert fits[:] == pattern(512 * PAGE)[:200 * PAGE]


def test_resident_exactly_the_device(mount, devices):
    m = mount("device_cache=256K")
    path = make(m, pattern(65 * PAGE))
    device = devices()
    with pytest.raises(OSError) as caught:
        Opened(device, path, 65 * PAGE, gaia.RESIDENT)
    assert caught.value.errno == errno.ENOMEM
    opened = Opened(device, path, 64 * PAGE, gaia.RESIDENT)
    opened.map.acquire()
    assert device.stat().resident_bytes == 64 * PAGE
    assert opened.map[:] == pattern(65 * PAGE)[:64 * PAGE]


@pytest.mark.traps
def test_two_residents_that_do_not_fit_together(mount, devices):
    """Slower or ENOMEM, but never wrong bytes and never a hang."""
    m = mount("device_cache=1M")
    path = make(m, pattern(512 * PAGE))
    device = devices()
    fd = os.open(path, os.O_RDWR)
    maps = [device.mmap(fd, 200 * PAGE, flags=gaia.RESIDENT, offset=offset * PAGE) for offset in (0, 250)]
    for mapping, offset in zip(maps, (0, 250)):
        try:
            mapping.acquire()
        except OSError as error:
            assert error.errno == errno.ENOMEM
        assert mapping[:] == pattern(512 * PAGE)[offset * PAGE:(offset + 200) * PAGE]


@pytest.mark.traps
@pytest.mark.parametrize("advice", [gaia.ADV_NORMAL, gaia.ADV_RANDOM, gaia.ADV_SEQUENTIAL])
def test_advice_changes_no_bytes(mount, devices, advice):
    m = mount()
    content = pattern(3 * MIB)
    path = make(m, content)
    device = devices()
    opened = Opened(device, path)
    opened.map.advise(advice)
    assert opened.map[1000 * 1000] == content[1000 * 1000]
    least = {gaia.ADV_RANDOM: PAGE, gaia.ADV_SEQUENTIAL: 512 * 1024, gaia.ADV_NORMAL: 65536}[advice]
    wait_until(lambda: device.stat().resident_bytes >= least)  # what is read ahead comes after the fault's page
    if advice == gaia.ADV_RANDOM:
        assert device.stat().resident_bytes == PAGE
    assert opened.map[:] == content


@pytest.mark.traps
def test_advice_willneed_and_dontneed(mount, devices):
    m = mount()
    content = bytearray(pattern(2 * MIB))
    path = make(m, content)
    device = devices()
    opened = Opened(device, path)
    opened.map.advise(gaia.ADV_WILLNEED)
    before = device.stat()
    assert before.resident_bytes >= 2 * MIB
    assert opened.map[:] == content
    assert device.stat().bytes_in == before.bytes_in
    opened.map[5 * PAGE:5 * PAGE + 3] = content[5 * PAGE:5 * PAGE + 3] = b"new"
    opened.map.advise(gaia.ADV_DONTNEED)  # releases first
    assert read_file(path) == content
    assert device.stat().resident_bytes == 0
    assert opened.map[:] == content


def test_dontneed_releases_what_was_stored_just_now(mount, devices):
    """The fault of the last store may not be over yet in the daemon when the store is."""
    m = mount()
    path = make(m, bytes(64 * PAGE))
    opened = Opened(devices(), path)
    for round in range(500):
        at, value = round % 64 * PAGE, b"%07d" % round
        opened.map[at:at + 7] = value
        opened.map.advise(gaia.ADV_DONTNEED, at, PAGE)
        assert os.pread(opened.fd, 7, at) == value, round


@pytest.mark.traps
def test_willneed_beyond_the_device(mount, devices):
    m = mount("device_cache=1M")
    content = pattern(4 * MIB)
    path = make(m, content)
    device = devices()
    opened = Opened(device, path)
    opened.map.advise(gaia.ADV_WILLNEED)
    stat = device.stat()
    assert 0 < stat.resident_bytes <= stat.capacity_bytes == MIB
    assert opened.map[:] == content


def test_msync_brings_released_bytes_to_storage(mount, devices):
    m = mount("passthrough=off")  # else a release brings them to the file itself
    path = make(m, bytes(100 * PAGE))
    opened = Opened(devices(), path)
    opened.map[PAGE:2 * PAGE] = b"r" * PAGE
    opened.map.release()
    opened.map.sync(gaia.MS_ASYNC)
    assert read_file(os.path.join(m.data, "f")) == bytes(100 * PAGE)  # it checks its arguments
    opened.map.sync(gaia.MS_SYNC)
    assert read_file(os.path.join(m.data, "f")) == bytes(PAGE) + b"r" * PAGE + bytes(98 * PAGE)


def test_fsync_brings_released_bytes_to_storage(mount, devices):
    m = mount()
    path = make(m, bytes(10 * PAGE))
    opened = Opened(devices(), path)
    opened.map[PAGE:2 * PAGE] = b"r" * PAGE
    opened.map.release()
    os.fsync(opened.fd)
    assert read_file(os.path.join(m.data, "f")) == bytes(PAGE) + b"r" * PAGE + bytes(8 * PAGE)


def test_a_deleted_file_leaves_the_device(mount, devices):
    """When nobody has it open or mapped any more; and the daemon has let it go."""
    m = mount()
    device, kept = devices(), make(m, pattern(16 * PAGE), "kept")
    keeper = Opened(device, kept)
    assert keeper.map[:] == pattern(16 * PAGE)
    before = device.stat().resident_bytes
    for turn in range(5):
        path = make(m, pattern(16 * PAGE))
        opened = Opened(device, path)
        assert opened.map[:] == pattern(16 * PAGE)
        opened.map[turn] = 7
        opened.close()
        os.unlink(path)
    wait_until(lambda: device.stat().resident_bytes == before, what="nothing of the deleted files is on the device")

    def deleted():
        links = []
        for entry in os.listdir(f"/proc/{m.pid}/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/{m.pid}/fd/{entry}"))
        return [link for link in links if link.startswith(m.data) and link.endswith("(deleted)")]
    wait_until(lambda: not deleted(), what="the daemon has no deleted file open")


# --- room, peers, counters ----------------------------------------------------------------------------------------------

@pytest.mark.traps
def test_reads_come_from_the_device(mount, devices):
    """Peer caching: what the host's memory has lost but a device holds is not read from storage."""
    m = mount("passthrough=off")
    content = bytearray(pattern(4 * MIB))
    path = make(m, content)
    opened = Opened(devices(), path)
    assert opened.map[:] == content
    opened.map[PAGE] = content[PAGE] = (content[PAGE] + 1) % 256
    opened.map.release()
    os.fsync(opened.fd)
    os.posix_fadvise(opened.fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the kernel's copy of the mount's file
    drop_host_cache(os.path.join(m.data, "f"))
    before = device_statistics(m.mnt)
    assert read_file(path) == content
    after = device_statistics(m.mnt)
    assert after["peer_reads"] > before["peer_reads"] and after["bytes_out"] > before["bytes_out"]


COUNTERS = ("capacity_bytes resident_bytes faults write_faults bytes_in bytes_out collects merges pages_merged peer_reads "
            "evictions twins").split()


@pytest.mark.traps
def test_statistics(mount, devices):
    m = mount("device_cache=8M,device_cache=soft:1=1M")
    content = pattern(40 * PAGE)
    path = make(m, content, "counted")
    devs = devices(), devices("soft:1")
    maps = [Opened(device, path).map for device in devs]
    for mapping in maps:
        assert mapping[:] == content
    maps[0][:PAGE] = b"\x00" * PAGE
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"cpu", 3 * PAGE)
    maps[0][3 * PAGE + 10] = content[3 * PAGE + 10] ^ 1
    maps[0].release()
    read_file(path)
    maps[1].acquire()
    assert maps[1][:PAGE] == bytes(PAGE)
    stat = statistics(m.mnt)
    by_name = {d["device"]: d for d in stat["devices"]}
    assert by_name["soft:0"]["capacity_bytes"] == 8 * MIB and by_name["soft:1"]["capacity_bytes"] == MIB
    file = next(f for f in stat["files"] if f["path"].endswith("counted"))
    assert file["size"] == 40 * PAGE
    for holder in [*stat["devices"], *file["devices"]]:
        for name in COUNTERS:
            assert isinstance(holder[name], int) and holder[name] >= 0, (name, holder)
    one = by_name["soft:0"]
    assert one["resident_bytes"] == 40 * PAGE and one["bytes_in"] == 40 * PAGE
    assert one["faults"] > 0 and one["write_faults"] == 2
    assert one["collects"] == 2 and one["merges"] == 1 and one["pages_merged"] == 2
    assert 2 * PAGE >= one["bytes_out"] > 0
    assert by_name["soft:1"]["drops"] == 2
    per_file = {d["device"]: d for d in file["devices"]}
    assert all(per_file["soft:0"][name] == one[name] for name in COUNTERS if name != "capacity_bytes")
    mine = devs[0].stat()
    assert all(getattr(mine, name) == one[name] for name in COUNTERS)


def test_a_second_run_moves_only_what_changed(mount, devices):
    m = mount()
    path = make(m, pattern(8 * MIB))
    device = devices()
    opened = Opened(device, path)
    assert opened.map[:] == pattern(8 * MIB)
    before = device.stat()
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"changed", 3 * MIB)
    opened.map.acquire()
    assert opened.map[3 * MIB:3 * MIB + 7] == b"changed" and len(opened.map[:]) == 8 * MIB
    after = device.stat()
    assert after.drops - before.drops == 1
    assert after.bytes_in - before.bytes_in <= 65536


def test_metadata_is_small(mount, devices):
    m = mount()
    path = make(m, pattern(8 * MIB))
    opened = Opened(devices(), path)
    assert len(opened.map[:]) == 8 * MIB
    file = statistics(m.mnt)["files"][0]
    assert file["metadata_bytes"] <= 0.01 * 8 * MIB
    for i in range(20):
        write_file(os.path.join(m.mnt, f"plain{i}"), b"x" * 10000)
    assert len(statistics(m.mnt)["files"]) == 1  # nothing for files that no device maps
