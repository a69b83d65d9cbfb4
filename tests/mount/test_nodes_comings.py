# SPDX-License-Identifier: Apache-2.0
"""Nodes that go in order, come late or come again, and peers that should not be there."""
import errno
import os
import socket

import pytest

from files import pattern
from helpers import PAGE, agents, read_file, refused_mount  # noqa: F401
from nodes import SIDES, Program, all_see, check, cluster  # noqa: F401
from test_nodes_deaths import OPTIONS, end, unmount


# --- unmounts, and nodes that come later ----------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("whose", ["its own", "the other's"])
def test_an_unmount_writes_what_was_released(cluster, agents, first, whose):
    """Of either node, and what devices of either had: nobody has read it before. The other one goes on."""
    nodes = cluster()
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=0)
    leaves, stays = nodes.sides(nodes.below(), first)
    goes, other = Program(agents(), nodes.path(leaves)), Program(agents(), nodes.path(stays))
    writer = goes if whose == "its own" else other
    for page in range(8):
        writer.device_store(page * PAGE + 7, b"released")
        content[page * PAGE + 7:page * PAGE + 15] = b"released"
    writer.release()
    end(goes)
    if whose == "the other's":
        end(other)
    unmount(nodes[leaves])
    if whose == "its own":
        assert read_file(nodes.below()) == bytes(content)
        if first == "agent":  # the home is there yet
            all_see({"the home": other}, content)
        end(other)
    unmount(nodes[stays])
    assert read_file(nodes.below()) == bytes(content)


@pytest.mark.parametrize("first", SIDES)
def test_what_a_cpu_stored_is_in_the_directory_after_the_unmount(cluster, agents, first):
    nodes = cluster()
    content = bytearray(pattern(4 * PAGE))
    nodes.make(content, home=0)
    numbers = nodes.sides(nodes.below(), first)
    one, other = (Program(agents(), nodes.path(number)) for number in numbers)
    one.store(100, b"mapped")
    other.store(200, b"mapped")
    one.device_store(300, b"device")
    other.device_store(400, b"device")
    one.release()
    other.release()
    for at in (100, 200):
        content[at:at + 6] = b"mapped"
    for at in (300, 400):
        content[at:at + 6] = b"device"
    for program in one, other:
        program.fsync()
        end(program)
    for number in numbers:
        unmount(nodes[number])
    assert read_file(nodes.below()) == bytes(content)


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("opened_before", [False, True])
def test_a_node_that_comes_later(cluster, agents, first, opened_before):
    """The file's home, or an agent: the file is tracked, or is open without a device, when it mounts."""
    nodes = cluster(2, OPTIONS, only=[])
    late = 0 if first == "home" else 1
    early = 1 - late
    nodes.mount(early)
    content = bytearray(pattern(4 * PAGE))
    nodes.make(content, home=0, through=early)
    here = None
    if late == 1:
        here = Program(agents(), nodes.path(early))
        here.device_store(50, b"before")
        here.release()
        content[50:56] = b"before"
    elif opened_before:
        here = Program(agents(), nodes.path(early), device=None)
        here.store(50, b"before")
        here.fsync()
        content[50:56] = b"before"
    nodes.mount(late)
    there = Program(agents(), nodes.path(late))
    check("the one that came later", there.acquired(), content)
    if not here or late == 0:
        cpu, here = here, Program(agents(), nodes.path(early), "soft:1")
        if cpu:
            check("read()", cpu.read(), content)
            cpu.write(90, b"cpu")
            cpu.fsync()
            content[90:93] = b"cpu"
    there.device_store(60, b"later")
    there.release()
    content[60:65] = b"later"
    all_see({"here": here, "there": there}, content)
    here.write(70, b"w")
    here.fsync()
    content[70] = ord("w")
    all_see({"here": here, "there": there}, content)


@pytest.mark.parametrize("first", SIDES)
def test_a_node_that_goes_and_comes_again(cluster, agents, first):
    nodes = cluster(2, OPTIONS)
    content = bytearray(pattern(4 * PAGE))
    nodes.make(content, home=0)
    leaves, stays = nodes.sides(nodes.below(), first)
    for turn in range(3):
        goes, other = Program(agents(), nodes.path(leaves)), Program(agents(), nodes.path(stays))
        all_see({"goes": goes, "other": other}, content)
        for at, program in ((turn, goes), (PAGE + turn, other)):
            program.device_store(at, b"d")
            program.release()
            program.write(at + 100, b"w")
            program.fsync()
            content[at], content[at + 100] = b"dw"
        if turn == 1:
            end(other)
        end(goes)
        unmount(nodes[leaves])
        if turn != 1 and first == "agent":
            all_see({"other": other}, content)
        if turn != 1:
            end(other)
        assert turn % 2 or first == "home" or read_file(nodes.path(stays)) == bytes(content)
        nodes.mount(leaves)
    assert read_file(nodes.below()) == read_file(nodes.path(0)) == read_file(nodes.path(1)) == bytes(content)


# --- peers that should not be there ---------------------------------------------------------------------------------------

def test_an_address_in_use(cluster, workdir):
    nodes = cluster()
    said = refused_mount(workdir, f"node=a,peers={nodes.peers}")
    assert nodes.addresses[0].split(":", 1)[1] in said and os.strerror(errno.EADDRINUSE) in said, said


def test_a_node_with_another_list_is_refused(cluster, workdir):
    """It would take others for the homes of files. The one that is there goes on."""
    nodes = cluster(2, OPTIONS, only=[0])
    said = refused_mount(workdir, f"node=b,peers={nodes.peers}/z@{nodes.addresses[0]}-z,{OPTIONS}", nodes.data)
    assert "node a has another list of members" in said, said
    nodes.mount(1)
    nodes.make(pattern(PAGE), home=0)
    assert read_file(nodes.path(0)) == read_file(nodes.path(1)) == pattern(PAGE)


def test_a_peer_that_is_nobody(cluster, agents):
    """Somebody who connects to a node's socket and talks nonsense, or says nothing, harms no one."""
    nodes = cluster(2, OPTIONS)
    content = bytearray(pattern(PAGE))
    nodes.make(content, home=0)
    one, two = (Program(agents(), nodes.path(number)) for number in range(2))
    strangers = []
    for number in range(2):
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            for nonsense in (b"", bytes(4096), os.urandom(4096)):
                peer = socket.socket(socket.AF_UNIX, kind)
                peer.settimeout(5)
                strangers.append(peer)
                try:
                    peer.connect("\0" + nodes.addresses[number].removeprefix("local:"))
                    if nonsense:
                        peer.send(nonsense)
                except OSError:
                    pass
    one.device_store(0, b"still")
    one.release()
    content[:5] = b"still"
    all_see({"one": one, "two": two}, content)
    for peer in strangers:
        peer.close()
