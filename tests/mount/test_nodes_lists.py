# SPDX-License-Identifier: Apache-2.0
"""Nodes whose lists of members differ for longer than it takes to read a new one: no two of them are homes of one file, and nothing that
was released or synced is lost without a word."""
import ctypes
import errno
import os
import signal
import socket
import subprocess
import time

import pytest

from conftest import not_in_the_gate
from files import pattern
from helpers import PAGE, agents, error_of, read_file, refused_mount, stand_still, wait_until, write_file  # noqa: F401
from member import OPS, Member
from nodes import TAKEN_OVER, Program, all_see, check, hash_of, served, tracked  # noqa: F401
from test_nodes_apart import links, make_with_homes, networks  # noqa: F401
from test_nodes_members import is_down

OPTIONS = "timeout=0,peer_timeout=1"
AT_ODDS = "until they agree this node changes no file"
NO_MORE = "not at odds with others any more"


class Listed:
    """Nodes whose lists are files of their own."""

    def __init__(self, mount, workdir):
        self.start, self.folder, self.data = mount, workdir, os.path.join(workdir, "data")
        os.mkdir(self.data)
        self.nodes = {}

    def options(self, name, members, elsewhere="", at=None):
        """elsewhere: members of whom the list has an address where nobody listens. at: whose address another one has."""
        peers, where = os.path.join(self.folder, f"peers-{name}"), at or {}
        write_file(peers, "".join(f"{one}@local:gaiafs-test-{os.getpid()}-lists-{'not-' if one in elsewhere else ''}{where.get(one, one)}\n"
                                  for one in members).encode())
        return f"node={name},peers={peers},{OPTIONS}"

    def mount(self, name, members, elsewhere="", at=None):
        self.nodes[name] = self.start(self.options(name, members, elsewhere, at), data=self.data)

    def reread(self, name, members, word=None, elsewhere="", at=None):
        """It reads another list, and says so."""
        said = len(self.nodes[name].log_text())
        self.options(name, members, elsewhere, at)
        os.kill(self.nodes[name].pid, signal.SIGHUP)
        wait_until(lambda: (word or f"there are {len(members)} nodes now") in self.nodes[name].log_text()[said:], 20)

    def make(self, through, names, order):
        content = bytearray(pattern(4 * PAGE))
        make_with_homes(self.nodes[through], self.data, names, order, bytes(content))
        return content

    def stand_still(self, name, *others):
        """Until they have given it up."""
        stand_still(self.nodes[name].pid)
        for other in others:
            wait_until(lambda o=other: is_down(self.nodes[o], name), 20, "it is taken for dead")

    def go_on(self, name):
        os.kill(self.nodes[name].pid, signal.SIGCONT)

    def path(self, name):
        return os.path.join(self.nodes[name].mnt, "f")

    def below(self):
        return os.path.join(self.data, "f")


def member_of(names, name, other):
    """A node of the test's, which has met the other one."""
    member = Member("/".join(f"{one}@local:gaiafs-test-{os.getpid()}-lists-{one}" for one in names), name=name, other=other)
    assert member.met == 0
    return member


@pytest.fixture
def listed(mount, workdir):
    return Listed(mount, workdir)


def good_in_the_end(program):
    wait_until(lambda: not error_of(program.agent, "os.fsync(fd)"), 20, "a sync that is told of nothing any more")


def goes_on(late, other, content, names="bz"):
    """Once its node has met the other one's."""
    wait_until(lambda: not error_of(late.agent, "os.pwrite(fd, b'late', 4096)"), 20, "it has met the other")
    content[PAGE:PAGE + 4] = b"late"
    late.agent.do("dev = gaia.Device('soft:0')\nmap = dev.mmap(fd, length)")
    good_in_the_end(late)
    all_see(dict(zip(names, (late, other))), content)
    for program in late, other:
        program.agent.kill()


def test_a_node_that_is_mounted_anew_with_a_longer_list(listed, agents):
    """While the other one stands still, and so knows the old list alone. They meet all the same, as both are on both lists: else what one
    had synced went with a page that the other's kernel wrote back."""
    for name in "ab":
        listed.mount(name, "ab")
    content = listed.make("a", "abz", "a")
    stand_still(listed.nodes["a"].pid)
    listed.nodes["b"].kill()
    listed.mount("b", "abz")
    listed.go_on("a")
    wait_until(lambda: not is_down(listed.nodes["a"], "b") and not is_down(listed.nodes["b"], "a"), 20, "they meet")
    other = Program(agents(), listed.path("b"), device=None)
    assert other.load() == bytes(content)
    home = Program(agents(), listed.path("a"))
    home.device_store(5, b"released")
    home.release()
    home.fsync()
    other.store(100, b"stored")
    other.msync()
    other.fsync()
    content[5:13], content[100:106] = b"released", b"stored"
    check("read()", home.read(), content)
    check("the data directory", read_file(listed.below()), content)
    said = refused_mount(listed.folder, listed.options("z", "abz"), listed.data)
    assert "node a has another list of members" in said, said
    for program in home, other:
        program.agent.kill()


def test_a_node_that_stood_still_while_another_was_added(listed, agents):
    """It does not know the new one, nor what that is the home of: it changes nothing until it has read the list. Else both were homes of
    one file. The new one goes on."""
    for name in "ab":
        listed.mount(name, "ab")
    content = listed.make("a", "abz", "zb")
    late = Program(agents(), listed.path("b"), device=None)
    assert late.load() == bytes(content)
    listed.stand_still("b", "a")
    listed.reread("a", "abz")
    listed.mount("z", "abz")
    new = Program(agents(), listed.path("z"))
    new.device_store(5, b"released")
    new.release()
    content[5:13] = b"released"
    assert tracked(listed.nodes["z"]) == ["f"]
    listed.go_on("b")
    wait_until(lambda: not is_down(listed.nodes["b"], "a") and not is_down(listed.nodes["a"], "b"), 20, "it has met who it knows")
    errors = [error_of(late.agent, "gaia.Device('soft:0').mmap(fd, length)"), error_of(late.agent, "os.pwrite(fd, b'late', 4096)"),
              error_of(late.agent, "os.ftruncate(fd, 100)"), error_of(late.agent, "os.posix_fallocate(fd, 0, 50000)")]
    assert tracked(listed.nodes["b"]) == [] and tracked(listed.nodes["z"]) == ["f"], "two homes"
    assert errors == [errno.EIO] * 4
    assert listed.nodes["b"].log_text().count(AT_ODDS) == 1 and AT_ODDS not in listed.nodes["a"].log_text()
    new.device_store(50, b"again")
    new.release()
    new.fsync()
    content[50:55] = b"again"
    check("the data directory", read_file(listed.below()), content)
    listed.reread("b", "abz")
    goes_on(late, new, content)


def test_a_node_that_lives_is_not_taken_off_the_list(listed, agents):
    """By one of the nodes, say. The two would be homes of the same files from then on."""
    for name in "ab":
        listed.mount(name, "ab")
    content = listed.make("a", "ab", "b")
    one, home = (Program(agents(), listed.path(name)) for name in "ab")
    listed.reread("a", "a", "-lists-b: unmount it first; the members stay as they were")
    home.device_store(5, b"released")
    home.release()
    one.write(100, b"written")
    one.fsync()
    content[5:13], content[100:107] = b"released", b"written"
    all_see({"a": one, "b": home}, content)
    for program in one, home:
        program.agent.kill()
    listed.nodes["b"].kill()
    listed.reread("a", "a")


def test_a_node_that_lives_stays_at_its_address(listed, agents):
    """It listens there until it is unmounted: by a list that has another one it is taken to be dead as soon as it has stood still, and
    what it is the home of nobody is told any more, nor who took its place."""
    for name in "ab":
        listed.mount(name, "ab")
    content = listed.make("a", "ab", "b")
    for name in "ab":
        listed.reread(name, "ab", "-lists-b: unmount it first; the members stay as they were", elsewhere="b")
    listed.stand_still("b", "a")
    listed.go_on("b")
    wait_until(lambda: not is_down(listed.nodes["a"], "b") and not is_down(listed.nodes["b"], "a"), 20, "they meet")
    listed.nodes["b"].unmount()
    listed.reread("a", "ab", elsewhere="b")
    listed.mount("b", "ab", elsewhere="b")
    programs = {name: Program(agents(), listed.path(name)) for name in "ab"}
    programs["a"].device_store(5, b"released")
    programs["a"].release()
    content[5:13] = b"released"
    all_see(programs, content)
    for program in programs.values():
        program.agent.kill()


def test_a_node_whose_address_nodes_of_another_data_directory_have(listed, workdir):
    """By a slip in a list of theirs: they and it have nothing to do with each other, and both go on."""
    listed.mount("a", "ay", at={"y": "b"})
    listed.data = os.path.join(workdir, "another")
    os.mkdir(listed.data)
    listed.mount("b", "b")
    for _ in range(2):
        hellos = served(listed.nodes["b"], "hello")
        wait_until(lambda asked=hellos: served(listed.nodes["b"], "hello") > asked, 20, "it comes")
    assert "node y is taken to be down: it answers: it is mounted over another data directory" in listed.nodes["a"].log_text()
    for name in "ab":
        assert AT_ODDS not in listed.nodes[name].log_text()


def stays_out(listed, late, home, content):
    """The one that was mounted last changes nothing, and takes nothing away; the other goes on."""
    wait_until(lambda: AT_ODDS in listed.nodes["b"].log_text(), 20)
    assert error_of(late.agent, "gaia.Device('soft:0').mmap(fd, length)") == errno.EIO
    assert error_of(late.agent, "os.pwrite(fd, b'late', 4096)") == errno.EIO
    assert not error_of(late.agent, "os.mkdir(path + '+') or os.rmdir(path + '+')"), "names are the data directory's"
    home.write(50, b"again")
    home.fsync()
    content[50:55] = b"again"
    check("the device that had released", home.acquired(), content)
    check("the data directory", read_file(listed.below()), content)
    assert AT_ODDS not in listed.nodes["a"].log_text() and TAKEN_OVER not in listed.nodes["a"].log_text()


@pytest.mark.parametrize("how", ["lacks it", "has it elsewhere", "has it where nothing answers"])
def test_a_node_that_is_mounted_with_a_list_by_which_it_misses_one_that_runs(listed, agents, how):
    """Which has this one on its list, and so comes: the list that was written last is wrong. Who ran before goes on; and the other one is
    met when its list is right, or when it is mounted anew."""
    wrong = {"members": "b"} if how == "lacks it" else {"members": "ab", "elsewhere": "a"}
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if how == "has it where nothing answers":
        silent.bind(f"\0gaiafs-test-{os.getpid()}-lists-not-a")
        silent.listen(100)
    listed.mount("a", "ab")
    content = listed.make("a", "ab", "b")
    home = Program(agents(), listed.path("a"))
    home.device_store(5, b"released")
    home.release()
    content[5:13] = b"released"
    listed.mount("b", **wrong)
    late = Program(agents(), listed.path("b"), device=None)
    stays_out(listed, late, home, content)
    late.agent.kill()
    listed.nodes["b"].unmount()
    listed.mount("b", **wrong)
    late = Program(agents(), listed.path("b"), device=None)
    stays_out(listed, late, home, content)
    listed.reread("b", "ab")
    wait_until(lambda: NO_MORE in listed.nodes["b"].log_text(), 20)
    wait_until(lambda: not error_of(late.agent, "os.pwrite(fd, b'late', 4096)"), 20, "it has met the other")
    content[PAGE:PAGE + 4] = b"late"
    late.agent.do("dev = gaia.Device('soft:0')\nmap = dev.mmap(fd, length)")
    all_see({"a": home, "b": late}, content)
    assert AT_ODDS not in listed.nodes["a"].log_text() and TAKEN_OVER not in listed.nodes["a"].log_text()
    for program in home, late:
        program.agent.kill()
    silent.close()


@pytest.mark.parametrize("who", ["nobody", "a new one"])
def test_a_node_that_stood_still_while_another_got_another_address(listed, agents, who):
    """It has met that one before, and can't meet it any more: it would not hear what that is the home of, and take its files away. Nor
    would it take the list by which it can. Whoever is at the old address now is not taken for that one."""
    now = {"members": "ab", "elsewhere": "b"} if who == "nobody" else {"members": "abz", "elsewhere": "b", "at": {"z": "b"}}
    for name in "ab":
        listed.mount(name, "ab")
    content = listed.make("a", now["members"], "b")
    late = Program(agents(), listed.path("a"), device=None)
    stand_still(listed.nodes["a"].pid)
    listed.nodes["b"].kill()
    for name in now["members"][1:]:
        listed.mount(name, **now)
    home = Program(agents(), listed.path("b"))
    home.device_store(5, b"released")
    home.release()
    content[5:13] = b"released"
    listed.go_on("a")
    wait_until(lambda: AT_ODDS in listed.nodes["a"].log_text(), 20)
    assert error_of(late.agent, "gaia.Device('soft:0').mmap(fd, length)") == errno.EIO
    assert error_of(late.agent, "os.pwrite(fd, b'late', 4096)") == errno.EIO
    home.write(50, b"again")
    home.fsync()
    content[50:55] = b"again"
    check("the device that had released", home.acquired(), content)
    check("the data directory", read_file(listed.below()), content)
    assert AT_ODDS not in listed.nodes["b"].log_text() and TAKEN_OVER not in listed.nodes["b"].log_text()
    listed.reread("a", **now)
    wait_until(lambda: NO_MORE in listed.nodes["a"].log_text(), 20)
    goes_on(late, home, content, "ab")


def test_a_node_that_is_leaving_as_another_is_mounted_without_it(listed):
    """Its umount has come back, and another node does not answer LEAVE yet. It goes to nobody any more: who knows it no more would take
    it for one that was here first, with a list that is right."""
    listed.mount("a", "abd")
    home = member_of("abd", "d", "a")
    try:
        assert home.do("pause", OPS["NODE_LEAVE"], 600_000) == 0
        subprocess.run(["umount", listed.nodes["a"].mnt], check=True)
        wait_until(lambda: home.do("asked", OPS["NODE_LEAVE"]) > 0, 20)
        listed.mount("b", "b")
        time.sleep(3)  # it meets those that it misses every peer_timeout
        assert listed.nodes["a"].proc.poll() is None
        assert AT_ODDS not in listed.nodes["b"].log_text()
        write_file(os.path.join(listed.nodes["b"].mnt, "g"), b"well")
    finally:
        home.kill()


@not_in_the_gate
def test_a_node_that_stood_still_while_another_was_mounted_without_it(listed):
    """And comes long after: then it is the one that was left behind. What it has may be older than what the other one has written."""
    listed.mount("a", "ab")
    stand_still(listed.nodes["a"].pid)
    listed.mount("b", "b")
    time.sleep(9)  # meanwhile a node that runs has come
    listed.go_on("a")
    wait_until(lambda: AT_ODDS in listed.nodes["a"].log_text(), 20)
    assert AT_ODDS not in listed.nodes["b"].log_text()


def test_a_node_that_was_taken_off_the_list_by_one_that_is_at_odds_since(listed, agents):
    """It is no judge of others, but has taken it off. Were the first at odds no more, it would write over what others have synced."""
    for name in "ab":
        listed.mount(name, "ab")
    listed.make("b", "ab", "a")
    gone = Program(agents(), listed.path("a"), device=None)
    listed.stand_still("a", "b")
    listed.reread("b", "bd")
    witness = member_of("bd", "d", "b")
    try:
        listed.go_on("a")
        wait_until(lambda: AT_ODDS in listed.nodes["a"].log_text(), 20)
        witness.do("value", OPS["NODE_PING"], ctypes.c_int64(hash_of("unheard-of")).value)
        witness.do("second", OPS["NODE_PING"], 2)
        witness.do("give_up")
        wait_until(lambda: AT_ODDS in listed.nodes["b"].log_text(), 20)
        asked = served(listed.nodes["b"], "hello")
        wait_until(lambda: served(listed.nodes["b"], "hello") >= asked + 4, 20)
        assert NO_MORE not in listed.nodes["a"].log_text()
        assert error_of(gone.agent, "os.pwrite(fd, b'zombie', 4096)") == errno.EIO
    finally:
        witness.kill()
    gone.agent.kill()
    for name in "ab":
        listed.nodes[name].expected_exit = None


def test_a_node_that_stood_still_while_it_was_taken_off_the_list(listed, agents):
    """It goes on with what it has from before, and is refused: it changes nothing more. What it has been told to be on storage is what
    others made of it."""
    for name in "ab":
        listed.mount(name, "ab")
    content = listed.make("a", "ab", "b")
    one, gone = Program(agents(), listed.path("a"), device=None), Program(agents(), listed.path("b"))
    gone.device_store(5, b"lost")
    gone.release()
    listed.stand_still("b", "a")
    listed.reread("a", "a")
    wait_until(lambda: error_of(one.agent, "os.pwrite(fd, b'written', 7)") == 0, 20)
    good_in_the_end(one)
    content[7:14] = b"written"
    listed.go_on("b")
    for what in "os.pwrite(fd, b'zombie', 4096)", "os.fsync(fd)", "os.ftruncate(fd, 0)":
        assert error_of(gone.agent, what) == errno.EIO, what
    assert listed.nodes["b"].log_text().count(AT_ODDS) == 1 and AT_ODDS not in listed.nodes["a"].log_text()
    check("the data directory", read_file(listed.below()), content)
    listed.nodes["b"].expected_exit = None
    os.kill(listed.nodes["b"].pid, signal.SIGTERM)
    gone.agent.kill()
    listed.nodes["b"].proc.wait(60)
    check("the data directory", read_file(listed.below()), content)
    check("read()", one.read(), content)
    one.agent.kill()


@not_in_the_gate
def test_a_node_that_was_cut_off_while_another_was_added(links, mount, workdir, agents):
    """As if it had stood still; but it is sure of itself as long as it has met nobody: the new one, which it refuses then, is at odds
    with it for a moment at most."""
    net, _ = links("abz")
    data = os.path.join(workdir, "data")
    os.mkdir(data)
    nodes, prefix = {}, net.prefix

    def options(name, members):
        peers = os.path.join(workdir, f"peers-{name}")
        write_file(peers, "".join(f"{one}@local:{prefix}-{one}\n" for one in members).encode())
        return f"node={name},peers={peers},{OPTIONS}"

    def start(name, members):
        with net.inside(name):
            nodes[name] = mount(options(name, members), data=data)

    def inside(name, function, *args):
        with net.inside(name):
            return function(*args)

    for name in "ab":
        start(name, "ab")
    content = bytearray(pattern(4 * PAGE))
    inside("a", make_with_homes, nodes["a"], data, "abz", "zb", bytes(content))
    net.cut = {("b", "a"), ("a", "b"), ("b", "z"), ("z", "b")}
    wait_until(lambda: inside("a", is_down, nodes["a"], "b") and inside("b", is_down, nodes["b"], "a"), 20, "they take each other for dead")
    options("a", "abz")
    os.kill(nodes["a"].pid, signal.SIGHUP)
    wait_until(lambda: "there are 3 nodes now" in nodes["a"].log_text(), 20)
    start("z", "abz")
    late, new = (inside(name, lambda n=name: Program(agents(), os.path.join(nodes[n].mnt, "f"), device="soft:0" if n == "z" else None))
                 for name in "bz")
    new.device_store(5, b"released")
    new.release()
    content[5:13] = b"released"
    net.cut = set()
    wait_until(lambda: AT_ODDS in nodes["b"].log_text(), 20)
    assert error_of(late.agent, "os.pwrite(fd, b'late', 4096)") == errno.EIO
    new.write(50, b"again")
    new.fsync()
    content[50:55] = b"again"
    check("the data directory", read_file(os.path.join(data, "f")), content)
    wait_until(lambda: "not at odds" in nodes["z"].log_text() or AT_ODDS not in nodes["z"].log_text(), 20)
    options("b", "abz")
    os.kill(nodes["b"].pid, signal.SIGHUP)
    wait_until(lambda: "there are 3 nodes now" in nodes["b"].log_text(), 20)
    goes_on(late, new, content)


class Witness:
    """Daemons and test's nodes of one list: the test's node b says what it is told to, and is met anew when it has."""

    def __init__(self, mount, workdir):
        self.peers, data = os.path.join(workdir, "peers"), os.path.join(workdir, "data")
        os.mkdir(data)
        self.write("ab")
        self.daemon = mount(f"node=a,peers={self.peers},{OPTIONS}", data=data)
        self.members = [Member(self.text("ab", "/"))]
        assert self.members[0].met == 0

    @staticmethod
    def text(names, between):
        return between.join(f"{one}@local:gaiafs-test-{os.getpid()}-odds-{one}" for one in names)

    def write(self, names):
        write_file(self.peers, self.text(names, "\n").encode())

    def b(self, *words):
        return self.members[0].do(*words)

    def meets(self, times=1):
        """The daemon tries to meet b so often from now on."""
        asked = self.b("asked", OPS["NODE_HELLO"])
        wait_until(lambda: self.b("asked", OPS["NODE_HELLO"]) >= asked + times, 20)

    def put_at_odds(self, by, name="unheard-of"):
        if by == "refused":
            self.b("answer", OPS["NODE_HELLO"], -errno.EREMCHG)
        else:  # b has met a node of this name, which the list of a lacks
            self.b("value", OPS["NODE_PING"], ctypes.c_int64(hash_of(name)).value)
            self.b("second", OPS["NODE_PING"], 2)
        self.b("give_up")
        wait_until(lambda: AT_ODDS in self.daemon.log_text(), 20)

    def is_at_odds(self):
        return NO_MORE not in self.daemon.log_text()


@pytest.fixture
def witness(mount, workdir):
    made = Witness(mount, workdir)
    yield made
    for member in made.members:
        member.kill()


@pytest.mark.parametrize("by", ["refused", "told"])
def test_a_node_at_odds_whose_witness_dies(witness, by):
    """The others are there as before. (Were it at odds no more, it would write pages that are older than what they have.)"""
    witness.put_at_odds(by)
    witness.b("answer", OPS["NODE_HELLO"], -errno.ENONET)  # it has stood still, and is no judge just now
    if by == "refused":
        witness.meets(3)
    witness.members[0].kill()
    time.sleep(1)  # it is tried in vain
    assert witness.is_at_odds()
    witness.members[0] = Member(witness.text("ab", "/"))
    wait_until(lambda: not witness.is_at_odds(), 20, "it is met, and says nothing of the kind")


def test_a_node_of_another_version_puts_no_one_at_odds(witness):
    """It may be one that is just about to be mounted, in vain, or a stranger."""
    witness.b("answer", OPS["NODE_HELLO"], -errno.EPROTONOSUPPORT)
    witness.b("give_up")
    witness.meets(2)
    assert AT_ODDS not in witness.daemon.log_text()


@pytest.mark.parametrize("by", ["refused", "told"])
def test_a_node_at_odds_reads_another_list_when_all_others_are_dead(witness, by):
    """Nobody is there whom it could ask any more: who has the list read says so."""
    witness.put_at_odds(by)
    witness.members[0].kill()
    witness.write("abc")
    os.kill(witness.daemon.pid, signal.SIGHUP)
    wait_until(lambda: not witness.is_at_odds(), 20)


def test_a_node_that_reads_the_list_is_at_odds_until_it_has_met_who_is_new(witness):
    """Or knows that it is dead: what it is the home of it has not been told yet."""
    new = Member(witness.text("abc", "/"), name="c")
    witness.members.append(new)
    new.do("pause", OPS["NODE_HELLO"], 1_000_000)
    witness.put_at_odds("told", "c")
    witness.write("abc")
    asked = witness.b("asked", OPS["NODE_PING"])
    os.kill(witness.daemon.pid, signal.SIGHUP)
    wait_until(lambda: new.do("asked", OPS["NODE_HELLO"]), 20)
    wait_until(lambda: witness.b("asked", OPS["NODE_PING"]) >= asked + 6 or "there are 3 nodes now" in witness.daemon.log_text(), 20)
    assert witness.is_at_odds()
    new.kill()
    wait_until(lambda: not witness.is_at_odds(), 20)
