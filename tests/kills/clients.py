# SPDX-License-Identifier: Apache-2.0
"""Kills of clients: at libgaia's calls, at the daemon's while it serves them, while it stands still, and at random."""
import collections
import json
import os
import random
import signal
import subprocess
import time

import oracle
from daemons import DEVICES, FRAMES, OPTIONS, SIZES, UFFD, Tally, both, read_file
from mounts import AFTER, BEFORE, TOP, TRIES, Failure, Mount, Plan, Site, Worker, wait_for

# Calls of libgaia; who makes them dies.
OWN_SITES = [*both("sendmsg"), *both("recvmsg"), *both("sync_file_range"), *both("ioctl"), *both("mmap64"),
             *both("calloc"), Site("realloc", BEFORE), Site("madvise", AFTER), Site("connect", AFTER),
             Site("pthread_create", AFTER), Site("fcntl64", AFTER)]
# Calls of the daemon; the client dies that it perhaps works for.
DAEMON_SITES = [*both("pwrite64", FRAMES, "pwrite of frames"), *both("ioctl", UFFD["CONTINUE"], "UFFDIO_CONTINUE"),
                *both("ioctl", UFFD["WRITEPROTECT"], "UFFDIO_WRITEPROTECT"), Site("read", AFTER),
                Site("pread64", BEFORE), *both("fallocate64", FRAMES, "punch of frames"),
                *both("fuse_lowlevel_notify_inval_inode"), *both("sendmsg"),
                Site("recvmsg", AFTER), Site("fuse_reply_write", BEFORE), Site("fuse_reply_ioctl", BEFORE)]
STILL, RANDOM = "the daemon standing still", "at random"
CLIENT_KILLS = ([("its", site) for site in OWN_SITES] + [("the daemon's", site) for site in DAEMON_SITES]
                + [(STILL, None)] * 14 + [(RANDOM, None)] * 6)


def name_of(kind, site):
    return f"client, {kind} {site.name}" if site else f"client, {kind}"


INSIDE = {"store_device": "a store", "load_device": "a load"}


def kernel_waits_in(pid):
    with open(f"/proc/{pid}/wchan") as file:
        return file.read().strip()


def stands_still(pid):
    """Stopped, or in the kernel in a wait for what only a stopped thread could do."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] not in "TD":
                return False
    return True


class ClientBatch:
    """One mount, two clients that stay, and a third one that is killed and replaced again and again."""

    def __init__(self, args, seed, kills, folder):
        self.args, self.kills, self.folder = args, kills, folder
        self.rng = random.Random(seed)
        self.data, self.mnt = os.path.join(folder, "data"), os.path.join(folder, "mnt")
        self.tally, self.reach = Tally(), {}
        self.mount, self.stay, self.contents, self.names = None, [], {}, {}
        self.library = os.path.join(folder, "lib")
        self.plan = None
        self.baseline = self.held = None

    def start(self):
        os.mkdir(self.data)
        for name, size in SIZES.items():
            data = self.rng.randbytes(size)
            with open(os.path.join(self.data, name), "wb") as file:
                file.write(data)
            self.contents[name] = oracle.Content(data, size)
        os.mkdir(self.library)
        library = os.path.join(os.path.abspath(self.args.faults), "libgaia.so")
        os.symlink(library, os.path.join(self.library, "libgaia.so.0"))
        self.plan = Plan.make(os.path.join(self.folder, "client-plan"))
        self.mount = Mount(self.args.daemon, self.data, self.mnt, OPTIONS, os.path.join(self.folder, "plan"),
                           os.path.join(self.folder, "daemon.log"))
        for number in range(2):
            self.stay.append(self.new_worker(number, f"s{number}", DEVICES[number], "stay"))
        for worker in self.stay:
            worker.wait_ready()
        self.baseline = self.descriptors()
        self.baseline["userfaultfd"] = len(self.stay) + 1  # and the daemon's own, made when it is first needed (gpu/home_copy.c)

    def new_worker(self, number, tag, device, role, env=None):
        os.mkdir(os.path.join(self.mnt, f"names-{tag}"))
        self.contents[f"own-{tag}"] = oracle.Content(b"", oracle.OWN_BYTES)
        self.names[tag] = oracle.Names(({}, set()))
        seed = self.rng.getrandbits(60)
        worker = Worker(self.args.worker, self.folder, self.mnt, number, tag, device, seed, role, env)
        worker.log.set(oracle.GO, 1)
        return worker

    # --- a kill ---

    def strike(self, kind, site, victim):
        """Lets the kill land; returns whether it did where it should."""
        pid, plan = victim.proc.pid, self.plan if kind == "its" else self.mount.plan
        if kind in (STILL, RANDOM):
            wait_for(lambda: victim.log.get(oracle.READY) or victim.ended(), "the victim is ready")
            time.sleep(self.rng.random() * 0.03)
            if kind == STILL:
                self.strike_still(victim)
            self.finish(victim)
            return True
        number = self.rng.randint(1, self.reach.get(site.name, 20))
        reached = site.strike(plan, number, [victim], victim.ended, 0 if kind == "its" else pid)
        plan.row = -1
        if reached is not None:
            self.reach[site.name] = max(1, reached)
        landed = victim.ended() and plan.landed > 0
        self.finish(victim)
        return landed

    def strike_still(self, victim):
        """The daemon stands still: what waits for it is inside a call or a fault when it dies."""
        os.kill(self.mount.proc.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: stands_still(self.mount.proc.pid), "the daemon stands still")
            time.sleep(0.003)
            if kernel_waits_in(victim.proc.pid) == "handle_userfault":
                self.tally.inside["a fault (seen waiting)"] += 1
            # A request that the daemon has taken must be answered before who waits for it can die.
            victim.proc.kill()
        finally:
            os.kill(self.mount.proc.pid, signal.SIGCONT)

    def finish(self, victim):
        if not victim.ended():
            victim.proc.kill()
        victim.wait_end(-signal.SIGKILL)
        operations = victim.operations()
        last = operations[-1] if operations else None
        inside = "no call" if last and last.answered else last.kind if last else "its start"
        self.tally.inside[INSIDE.get(inside, inside)] += 1

    # --- what is found ---

    def descriptors(self):
        """What the daemon holds for its clients and their mappings."""
        folder, found = f"/proc/{self.mount.proc.pid}/fd", collections.Counter()
        for fd in os.listdir(folder):
            try:
                link = os.readlink(os.path.join(folder, fd))
            except OSError:
                continue
            for what in ("userfaultfd", "memfd:", "socket:"):
                found[what] += what in link
        return found

    def statistics(self):
        done = subprocess.run([os.path.join(TOP, "gaiactl"), "stat", "--json", self.mnt], capture_output=True,
                              text=True, timeout=20, check=False)
        if done.returncode:
            raise Failure(f"gaiactl: {done.stderr}")
        return json.loads(done.stdout)

    def given_back(self, tag):
        """The dead client's files are gone, and with them all that the daemon held for it."""
        stat = self.statistics()
        device = [d for d in stat["devices"] if d["device"] == "soft:2"]
        self.held = ([file for file in stat["files"] if tag in file["path"]],
                     [d for d in device if d["resident_bytes"] or d["twins"]], self.descriptors() - self.baseline)
        return not any(self.held)

    def order(self, want):
        for worker in self.stay:
            worker.order(want)
        for worker in self.stay:
            worker.wait_order(want, self.mount.proc.pid)

    def feed(self, worker):
        """Everything that was answered has been released since, or its device's memory is nobody else's."""
        operations = worker.operations()
        self.tally.operations += len(operations)
        released = collections.defaultdict(list)
        for op in operations:
            if op.kind in ("release", "acquire", "dontneed") and oracle.good(op):
                released[op.file].append(op)
        for op in operations:
            if op.file == oracle.FOLDER:
                self.names[worker.tag].apply(op)
                continue
            name = {oracle.FINE: "fine", oracle.COARSE: "coarse", oracle.OWN: f"own-{worker.tag}",
                    oracle.PRIVATE: f"private-{worker.tag}"}[op.file]
            firm = "answered" if oracle.good(op) else ""
            if firm and op.kind == "store_device" and op.file >= oracle.OWN:
                firm = next(("released" for r in released[op.file] if oracle.covers(r, op, op.end)), "")
            self.contents[name].apply(op, firm)

    def check(self, top, tags):
        problems = []
        for name in [*SIZES, *(f"own-{tag}" for tag in tags)]:
            problems += [f"{name}: {text}" for text in self.contents[name].check(read_file(os.path.join(top, name)))]
        for tag in tags:
            found = oracle.look(os.path.join(top, f"names-{tag}"))
            problems += [f"{tag}: {text}" for text in self.names[tag].check(found)]
        if problems:
            raise Failure(f"{len(problems)} wrong:\n" + "\n".join(problems[:3] + self.explain(top)))

    def explain(self, top):
        """Of shared files: which stores are missing, and whether the data directory has other bytes, and has them later."""
        lines = []
        for name in SIZES:
            content, seen = self.contents[name], read_file(os.path.join(top, name))
            below = read_file(os.path.join(self.data, name))
            time.sleep(1)
            again = read_file(os.path.join(top, name))
            wrong = content.wrong(seen)
            lines.append(f"{name}: {len(wrong)} wrong; {len(content.wrong(below))} in the data directory; a second later "
                         f"{len(content.wrong(again))}, {sum(a != b for a, b in zip(seen, again))} others")
            lines += content.stores_of(wrong)[:20]
            for at in wrong[::max(1, len(wrong) // 12)]:
                lines.append(f"at {at}: {seen[at]} is of {content.seen_before(at, seen[at])}, wanted {content.must[at]} of "
                             f"{content.stamp[at]}: {content.seen_before(at, content.must[at])}")
        return lines

    def remove(self, tag):
        for name in (f"own-{tag}", f"private-{tag}"):
            if os.path.exists(os.path.join(self.mnt, name)):
                os.unlink(os.path.join(self.mnt, name))
        folder = os.path.join(self.mnt, f"names-{tag}")
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
        os.rmdir(folder)

    def look(self, victim):
        """The others stop, release what their devices hold, compare what they see; and this process does, too."""
        tag = victim.tag
        for worker in self.stay:
            before = worker.log.get(oracle.COUNT)
            wait_for(lambda w=worker, n=before + 5: w.log.get(oracle.COUNT) >= n or w.log.get(oracle.FULL) or w.ended(),
                     f"worker {worker.tag} goes on")
        self.order(oracle.SETTLE)
        self.order(oracle.COMPARE)
        for worker in [*self.stay, victim]:
            self.feed(worker)
        private = os.path.join(self.mnt, f"private-{tag}")
        tags = [worker.tag for worker in self.stay]
        if os.path.exists(os.path.join(self.mnt, f"own-{tag}")):
            tags.append(tag)
        self.check(self.mnt, tags)
        if os.path.exists(private):
            found = read_file(private)
            wrong = [at for at in self.contents[f"private-{tag}"].wrong(found)]
            if wrong:
                raise Failure(f"private-{tag}: {len(wrong)} bytes, the first at {wrong[0]}")
        self.remove(tag)
        try:
            wait_for(lambda: self.given_back(tag), "what the daemon held for it is given back", 5, step=0.01)
        except Failure as late:
            raise Failure(f"{late}: {self.held}") from None
        for content in self.contents.values():
            content.forget()
        self.order(oracle.RUN)

    def kill(self, number, kind, site):
        tag = f"v{number}v"
        self.plan.row = self.mount.plan.row = -1
        self.contents[f"private-{tag}"] = oracle.Content(bytes(10 * oracle.PAGE), 10 * oracle.PAGE)
        env = {"LD_LIBRARY_PATH": self.library, "GAIAFS_FAULTS": os.path.join(self.folder, "client-plan")}
        victim = self.new_worker(2, tag, DEVICES[number % 2], "victim", env)
        try:
            landed = self.strike(kind, site, victim)
            if self.mount.proc.poll() is not None:
                raise Failure(f"the daemon ended with {self.mount.proc.returncode}: {self.mount.log_text()}")
            self.look(victim)
            (self.tally.landed if landed else self.tally.elsewhere)[name_of(kind, site)] += 1
        finally:
            victim.close()
        for what in (f"own-{tag}", f"private-{tag}"):
            del self.contents[what]
        del self.names[tag]
        return landed

    def end(self):
        self.order(oracle.SETTLE)
        for worker in self.stay:
            self.feed(worker)
        for worker in self.stay:
            worker.order(oracle.END)
        for worker in self.stay:
            worker.wait_end()
        self.mount.end()
        self.mount = None
        self.check(self.data, [worker.tag for worker in self.stay])

    def run(self):
        kind, site, number = "the start", None, 0
        left = [(*kill, TRIES) for kill in self.kills]
        try:
            self.start()
            while left:
                kind, site, tries = left.pop(0)
                if not self.kill(number, kind, site) and tries > 1:
                    left.append((kind, site, tries - 1))
                number += 1
            kind, site = "the unmount", None
            self.end()
        except (Failure, OSError, subprocess.SubprocessError) as problem:
            self.tally.failures.append(f"{name_of(kind, site)}: {type(problem).__name__} {problem}")
        finally:
            if self.mount:
                self.mount.drop()
            for worker in self.stay:
                worker.close()
        return self.tally
