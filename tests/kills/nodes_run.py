#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Three to five nodes with one page cache, programs that work on the same few files on all of them, and a nemesis that kills nodes, lets
them stand still, cuts and delays links of one direction or of some pairs, takes nodes off and adds them while the list of members is read
again at different times. Then all is well again, and what everybody has seen is judged. Ends with `N passed, N failed`."""
import argparse
import collections
import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from mounts import HERE, TOP, Failure, Mount, is_mounted, stacks, wait_for
import nodes_worker
from links import Links
from nodes_judge import Judge
from nodes_worker import ENDS, FILES, GONE, first_content

PEER_TIMEOUT_S = 1
PATIENCE_S = 4 * PEER_TIMEOUT_S          # what may wait for the next home; several homes may die one after the other
HANG_S = 30
LONG_S = 2.5 * PEER_TIMEOUT_S            # the others know that a node does not answer
BRIEF_S = 0.25 * PEER_TIMEOUT_S


class Node:
    """A mount, and the program that works on it."""

    def __init__(self, cluster, number):
        self.cluster, self.number, self.name = cluster, number, "abcde"[number]
        self.mnt = os.path.join(cluster.folder, f"mnt-{self.name}")
        self.mount = self.worker = None
        self.state, self.until = "down", 0  # up, still, down, coming (a thread mounts it), leaving
        self.went_on = 0
        self.mounts = 0

    def start_mount(self):
        self.state = "coming"
        threading.Thread(target=self.come, daemon=True).start()

    def come(self):
        cluster = self.cluster
        options = f"node={self.name},peers={cluster.peers},timeout=0,peer_timeout={PEER_TIMEOUT_S},device_cache=256K"
        options += f",{cluster.args.options}" if cluster.args.options else ""
        try:
            with cluster.links.inside(self.name):
                self.mount = Mount(cluster.args.daemon, cluster.data, self.mnt, options, os.path.join(cluster.folder, f"plan-{self.name}"),
                                   os.path.join(cluster.folder, f"daemon-{self.name}.log"))
                self.start_worker()
            self.state = "up"
            cluster.say(f"{self.name} is up, its daemon is {self.mount.proc.pid}")
        except (Failure, OSError) as problem:
            cluster.say(f"{self.name} can't be mounted: {str(problem).strip().splitlines()[-1:]}")
            self.mount, self.state, self.until = None, "down", time.monotonic() + 0.5
        self.mounts += 1

    def start_worker(self, last=False):
        cluster = self.cluster
        cluster.order(self.number, 0)
        arguments = {"mnt": self.mnt, "number": self.number, "turn": self.mounts, "workers": cluster.args.nodes, "last": last,
                     "seed": cluster.rng.getrandbits(60), "board": cluster.board_path, "pause": cluster.args.pause,
                     "lock": os.path.join(cluster.folder, "lock"),
                     "log": os.path.join(cluster.folder, f"{'last' if last else 'log'}-{self.number}"),
                     "steps": os.path.join(TOP, "build", "kills", "steps.so")}
        with open(os.path.join(cluster.folder, f"said-{self.number}"), "ab") as said:
            self.worker = subprocess.Popen([sys.executable, "-B", nodes_worker.__file__, json.dumps(arguments)], stdin=subprocess.DEVNULL,
                                           stdout=said, stderr=said, cwd="/", env={**os.environ, "LD_LIBRARY_PATH": TOP})

    def kill(self):
        self.mount.proc.kill()
        self.mount.killed(False)
        self.clear("killed")

    def clear(self, why):
        """After its daemon has ended: nothing of it hangs."""
        try:
            code = self.worker.wait(HANG_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"the program on {self.name}, which was {why}, hangs\n{stacks(self.worker.pid)}") from None
        if code not in (0, GONE):
            raise Failure(f"the program on {self.name} ended with {code}: {self.cluster.said(self.number)}")
        self.cluster.tell(self.number, 0)
        if is_mounted(self.mnt):
            self.mount.unmount()
        self.mount = self.worker = None
        self.state = "down"

    def leave(self):
        """Its program ends, and it is unmounted."""
        self.state = "leaving"
        self.cluster.order(self.number, ENDS)
        threading.Thread(target=self.go, daemon=True).start()

    def go(self):
        try:
            wait_for(lambda: self.worker.poll() is not None, f"the program on {self.name} ends", 60, 0.02)
            self.mount.unmount()
            try:
                code = self.mount.proc.wait(90)
            except subprocess.TimeoutExpired:
                raise Failure(f"the unmounted node {self.name} does not end\n{stacks(self.mount.proc.pid)}") from None
            if code < 0:
                raise Failure(f"the daemon of {self.name} ended with {code}: {self.mount.log_text()}")
            self.cluster.say(f"{self.name} has left, with {code}")
            self.clear("unmounted")
        except (Failure, OSError) as problem:
            self.cluster.failures.append(str(problem))
            self.state = "failed"


class Cluster:
    def __init__(self, args, seed, folder):
        self.args, self.seed, self.folder = args, seed, folder
        self.rng = random.Random(seed)
        self.data, self.peers = os.path.join(folder, "data"), os.path.join(folder, "peers")
        self.board_path = os.path.join(folder, "board")
        self.failures, self.did = [], collections.Counter()
        self.still, self.rough = collections.defaultdict(list), []
        self.cut_until, self.slow_until, self.list_until = None, None, {}
        self.began = time.monotonic()
        self.said_lines = open(os.path.join(folder, "nemesis"), "w")
        os.mkdir(self.data)
        with open(self.board_path, "wb") as file:
            file.truncate(4096)
        with open(self.board_path, "r+b") as file:
            self.board = mmap.mmap(file.fileno(), 0)
        names = "abcde"[:args.nodes]
        self.prefix = f"gaiafs-nodes-{os.getpid()}"
        self.links = Links(names, self.prefix)
        self.nodes = [Node(self, number) for number in range(args.nodes)]
        self.populate()

    def populate(self):
        for name in FILES:
            with open(os.path.join(self.data, name), "wb") as file:
                file.write(first_content(name, self.args.nodes))
        for name in ["appends", *(f"own-{n}" for n in range(self.args.nodes))]:
            open(os.path.join(self.data, name), "wb").close()
        self.write_list(False)

    def write_list(self, longer):
        lines = [f"{node.name}@local:{self.prefix}-{node.name}\n" for node in self.nodes]
        if longer:
            lines.append(f"z@local:{self.prefix}-z\n")
        with open(self.peers + ".new", "w") as file:
            file.write("".join(lines))
        os.rename(self.peers + ".new", self.peers)

    def say(self, text):
        print(f"{time.monotonic() - self.began:7.3f} {time.monotonic():.3f} {text}", file=self.said_lines, flush=True)

    def said(self, number):
        with open(os.path.join(self.folder, f"said-{number}"), errors="replace") as file:
            return file.read()[-3000:]

    def order(self, number, what):
        struct.pack_into("<Q", self.board, 16 * number + 8, what)

    def tell(self, number, when):
        struct.pack_into("<Q", self.board, 16 * number, when)

    # --- the nemesis ---

    def up(self):
        return [node for node in self.nodes if node.state == "up"]

    def soon(self, least, most):
        return time.monotonic() + least + self.rng.random() * (most - least)

    def kill(self):
        if len(self.up()) < 2:
            return
        node = self.rng.choice(self.up())
        self.say(f"kill {node.name}")
        node.kill()
        node.until = self.soon(0, 3)

    def stop(self):
        if not self.up():
            return
        node = self.rng.choice(self.up())
        brief = self.rng.random() < 0.3
        node.until = self.soon(0.02, BRIEF_S) if brief else self.soon(LONG_S / 2, 1.6 * LONG_S)
        self.say(f"stop {node.name} for {node.until - time.monotonic():.2f} s")
        os.kill(node.mount.proc.pid, signal.SIGSTOP)
        node.state = "still"
        self.still[node.number].append([time.monotonic_ns(), float("inf")])

    def go_on(self, node):
        self.say(f"continue {node.name}")
        os.kill(node.mount.proc.pid, signal.SIGCONT)
        node.state, node.went_on = "up", time.monotonic()
        self.still[node.number][-1][1] = time.monotonic_ns() + int(PATIENCE_S * 1e9)

    def leave(self):
        if len(self.up()) < 2 or any(node.state == "leaving" for node in self.nodes):
            return
        node = self.rng.choice(self.up())
        self.say(f"unmount {node.name}")
        node.leave()
        node.until = self.soon(0, 2)

    def cut(self):
        if self.cut_until:
            return
        names = [node.name for node in self.nodes]
        pairs = [(a, b) for a in names for b in names if a != b]
        how = self.rng.choice(["direction", "pair", "some", "node"])
        one = self.rng.choice(names)
        cut = {"direction": {self.rng.choice(pairs)},
               "pair": {(a, b) for a, b in pairs if {a, b} == set(self.rng.sample(names, 2))},
               "some": {pair for pair in pairs if self.rng.random() < 0.3},
               "node": {pair for pair in pairs if one in pair}}[how]
        if how == "pair":
            a, b = self.rng.sample(names, 2)
            cut = {(a, b), (b, a)}
        brief = not self.args.cuts or self.rng.random() < 0.4
        self.cut_until = self.soon(0.01, BRIEF_S) if brief else self.soon(LONG_S / 2, 2 * LONG_S)
        self.say(f"cut {' '.join(a + b for a, b in sorted(cut))} for {self.cut_until - time.monotonic():.2f} s")
        self.links.cut = cut
        if not brief:
            self.rough.append([time.monotonic_ns(), float("inf")])

    def heal(self):
        cut, self.links.cut, self.cut_until = self.links.cut, set(), None
        if self.rough and self.rough[-1][1] == float("inf"):
            if self.rng.random() < 0.5:
                for one, other in cut:
                    self.links.break_off(one, other)
            self.rough[-1][1] = time.monotonic_ns() + int((PATIENCE_S + 2) * 1e9)
        self.say("whole again")

    def slow(self):
        names = [node.name for node in self.nodes]
        self.links.late = {tuple(self.rng.sample(names, 2)): self.rng.random() * 0.04 for _ in range(self.rng.randrange(1, 4))}
        self.slow_until = self.soon(0.2, 1.5)
        self.say(f"slow {self.links.late}")

    def reread(self):
        """The list changes, and the nodes read it one after the other, in some time."""
        if self.list_until:
            return
        longer = self.rng.random() < 0.5
        self.write_list(longer)
        self.say(f"the list {'has' if longer else 'has not'} z")
        self.list_until = {node.number: self.soon(0, 1.5) for node in self.nodes}

    def due(self):
        """What was to last until now is over."""
        now = time.monotonic()
        for node in self.nodes:
            if node.state == "still" and now >= node.until:
                self.go_on(node)
            elif node.state == "down" and now >= node.until:
                node.start_mount()
            elif node.state == "up" and self.list_until.get(node.number, now + 1) <= now:
                del self.list_until[node.number]
                self.say(f"{node.name} reads the list")
                os.kill(node.mount.proc.pid, signal.SIGHUP)
        self.list_until = {n: when for n, when in self.list_until.items() if self.nodes[n].state in ("up", "still", "coming")}
        if self.cut_until and now >= self.cut_until:
            self.heal()
        if self.slow_until and now >= self.slow_until:
            self.links.late, self.slow_until = {}, None

    def look_after(self):
        """No daemon has died by itself, and nobody hangs."""
        for node in self.nodes:
            if node.state not in ("up", "still") or not node.mount:
                continue
            if node.mount.proc.poll() is not None:
                raise Failure(f"the daemon of {node.name} has ended with {node.mount.proc.returncode}: {node.mount.log_text()}")
            if node.worker.poll() not in (None, 0):
                raise Failure(f"the program on {node.name} has ended with {node.worker.returncode}: {self.said(node.number)}")
            since = struct.unpack_from("<Q", self.board, 16 * node.number)[0] / 1e9
            quiet = max([since, node.went_on, *([] if not self.rough else [self.rough[-1][1] / 1e9])])
            if since and node.state == "up" and time.monotonic() - quiet > HANG_S:
                text = f"the program on {node.name} waits for {time.monotonic() - since:.1f} s\n{stacks(node.worker.pid)}"
                for other in self.nodes:
                    if other.mount:
                        text += f"\n--- daemon of {other.name}\n{stacks(other.mount.proc.pid)}"
                raise Failure(text)
        if self.failures:
            raise Failure("\n".join(self.failures))

    def disturb(self):
        acts = {"kill": self.kill, "stop": self.stop, "leave": self.leave, "cut": self.cut, "slow": self.slow, "reread": self.reread}
        names = [name for name in acts if name in self.args.acts.split(",")]
        end = time.monotonic() + self.args.seconds
        turn = time.monotonic() + 0.5
        while time.monotonic() < end:
            self.due()
            self.look_after()
            if names and time.monotonic() >= turn:
                name = self.rng.choice(names)
                acts[name]()
                self.did[name] += 1
                turn = self.soon(0.05, 1.2)
            time.sleep(0.01)

    def keep_statistics(self):
        """Beside the logs of a round that has failed: who takes itself for the home of what, and whom for dead."""
        for node in self.nodes:
            with contextlib.suppress(Failure, subprocess.SubprocessError), open(os.path.join(self.folder, f"stat-{node.name}"), "w") as file:
                file.write(json.dumps(self.statistics(node), indent=1) if node.state == "up" else node.state)

    # --- all is well again ---

    def statistics(self, node):
        with self.links.inside(node.name):
            done = subprocess.run([os.path.join(TOP, "gaiactl"), "stat", "--json", node.mnt], capture_output=True, text=True, timeout=30,
                                  check=False)
        if done.returncode:
            raise Failure(f"gaiactl on {node.name}: {done.stderr}")
        return json.loads(done.stdout)

    def mend(self):
        if self.cut_until:
            self.heal()
        self.links.late, self.slow_until = {}, None
        for node in self.nodes:
            if node.state == "still":
                self.go_on(node)
        self.say("all is to be well")
        self.write_list(False)
        self.list_until = {node.number: 0 for node in self.nodes}
        end = time.monotonic() + 60
        while any(node.state != "up" for node in self.nodes):
            self.due()
            self.look_after()
            if time.monotonic() > end:
                raise Failure(f"not all are up after a minute: {[(node.name, node.state) for node in self.nodes]}")
            time.sleep(0.02)
        self.due()
        self.wait_met()

    def wait_met(self):
        end = time.monotonic() + 30
        while True:
            down = [(node.name, other["name"]) for node in self.nodes for other in self.statistics(node)["nodes"]["nodes"] if other["down"]
                    and other["name"] != "z"]
            if not down:
                break
            self.look_after()
            if time.monotonic() > end:
                raise Failure(f"nodes that do not meet again: {down}")
            time.sleep(0.1)
        self.say("all have met")

    def wait_workers(self, what):
        end = time.monotonic() + 90
        while any(node.worker.poll() is None for node in self.nodes):
            self.look_after()
            if time.monotonic() > end:
                late = [node for node in self.nodes if node.worker.poll() is None]
                raise Failure(f"{what}: {[node.name for node in late]} are not done\n" + "\n".join(stacks(n.worker.pid) for n in late))
            time.sleep(0.02)
        self.look_after()

    def finish(self):
        """Programs settle; then all look, when nothing changes any more; then the mounts end."""
        for node in self.nodes:
            self.order(node.number, ENDS)
        self.wait_workers("settling")
        self.say("all have settled")
        for node in self.nodes:
            node.mounts += 1
            with self.links.inside(node.name):
                node.start_worker(last=True)
        self.wait_workers("looking")
        for node in self.nodes:
            node.mount.unmount()
        for node in self.nodes:
            try:
                code = node.mount.proc.wait(90)
            except subprocess.TimeoutExpired:
                raise Failure(f"the daemon of {node.name} does not end\n{stacks(node.mount.proc.pid)}") from None
            if code:
                raise Failure(f"the daemon of {node.name} ended with {code}: {node.mount.log_text()}")

    def judge(self):
        rough = [(since, until + int((PATIENCE_S + 2) * 1e9)) for since, until in self.links.missed]
        judge = Judge(self.args.nodes, self.still, self.rough + rough)
        for node in self.nodes:
            path = os.path.join(self.folder, f"log-{node.number}")
            if os.path.exists(path):
                judge.add(path, node.number)
        judge.judge_calls()
        judge.judge_last_looks([(os.path.join(self.folder, f"last-{node.number}"), node.number) for node in self.nodes])
        judge.judge_files(self.data)
        return judge

    def run(self):
        for node in self.nodes:
            node.start_mount()
            wait_for(lambda n=node: n.state in ("up", "down"), f"{node.name} is mounted", 20, 0.01)
            if node.state == "down":
                raise Failure(f"{node.name} can't be mounted")
        self.disturb()
        self.mend()
        self.finish()
        judge = self.judge()
        if judge.problems:
            raise Failure(f"{len(judge.problems)} wrong; the first:\n" + "\n".join(judge.problems[:25]))
        good = sum(call.error == 0 for call in judge.calls)
        firm = sum(len(firm) for firm in judge.cells.firm.values())
        return (f"{good} calls of {len(judge.calls)} were good, {judge.looked} cells looked at, {firm} times one became firm; "
                + ", ".join(f"{what} {count}" for what, count in sorted(self.did.items())), judge)

    def drop(self):
        for node in self.nodes:
            if node.worker and node.worker.poll() is None:
                node.worker.kill()
        for node in self.nodes:
            if node.mount:
                node.mount.drop()
            elif is_mounted(node.mnt):
                subprocess.run(["umount", "-l", node.mnt], check=False)
            if node.worker:
                node.worker.wait()
        self.links.close()
        self.said_lines.close()


def one_round(args, seed):
    folder = tempfile.mkdtemp(prefix="gaiafs-nodes-", dir=args.dir)
    cluster, started = Cluster(args, seed, folder), time.monotonic()
    try:
        text, judge = cluster.run()
        print(f"ok     seed {seed} ({time.monotonic() - started:.1f} s): {text}", flush=True)
        if args.errors:
            print(f"       errors: {dict(judge.errors)}")
        return True
    except (Failure, OSError, subprocess.SubprocessError) as problem:
        print(f"FAILED seed {seed} ({time.monotonic() - started:.1f} s), {dict(cluster.did)}: {type(problem).__name__} {problem}\nlogs: {folder}",
              flush=True)
        args.keep = True
        cluster.keep_statistics()
        return False
    finally:
        cluster.drop()
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
        args.keep = False


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--nodes", type=int, choices=(2, 3, 4, 5), default=3, help="how many (3)")
    add("--seconds", type=float, default=8, help="of disturbances in a round (8)")
    add("--rounds", type=int, default=1, help="how many (1)")
    add("--seed", type=int, help="of the first round; the next ones count on")
    add("--acts", default="kill,stop,leave,cut,slow,reread", help="what the nemesis does")
    add("--cuts", action="store_true", help="links are cut for longer than peer_timeout, too")
    add("--pause", type=float, default=0.002, help="seconds between two calls of a program, at most")
    add("--options", help="of the mounts, besides")
    add("--errors", action="store_true", help="say which calls failed how often")
    add("--daemon", default=os.path.join(TOP, "mount.gaiafs"))
    add("--dir", default=os.environ.get("GAIA_TEST_DIR", "/var/tmp"), help="where folders are mounted")
    args = parser.parse_args()
    args.seed = args.seed or int.from_bytes(os.urandom(4), "little") or 1
    args.keep = False
    return args


def main():
    args = parse()
    if os.geteuid():
        sys.exit("nodes_run.py: mounting needs root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("nodes_run.py: terminated"))
    subprocess.run(["make", "-s", "-C", HERE], check=True)
    print(f"seed {args.seed}", flush=True)
    passed = sum(one_round(args, args.seed + n) for n in range(args.rounds))
    print(f"{passed} passed, {args.rounds - passed} failed")
    return 0 if passed == args.rounds else 1


if __name__ == "__main__":
    sys.exit(main())
