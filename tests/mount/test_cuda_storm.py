# SPDX-License-Identifier: Apache-2.0
"""Random operations of CPU programs, GPUs, soft devices and mappings on demand, one after the other, against a model of every byte
(storm.py): writes, cuts, growth, changed times, stores, releases, acquires, programs that are killed or stopped, a driver that
fails. GAIA_TEST_STEPS=N: so many operations. The GPU is a stand-in."""
import os
import signal

import pytest

import helpers
from gpu_fixture import MAP, gpu  # noqa: F401
from helpers import PAGE, AgentDied, agents, make_random, read_file, write_at  # noqa: F401
from storm import CPU, SIZE, Device, Model
from test_cuda_demand import programs  # noqa: F401

STEPS = int(os.environ.get("GAIA_TEST_STEPS", "0")) or (80 if os.environ.get("GAIA_GATE") else 400)
CALLS = ["cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuLaunchKernel", "cuMemsetD8Async"]


class Storm:
    def __init__(self, gpu, programs, rng, fails):  # noqa: F811
        self.gpu, self.rng, self.fails = gpu, rng, fails
        self.m = gpu.mount(options="passthrough=off")
        self.mounts = [self.m] if self.m.nodes is None else [self.m, self.m.nodes[1]]
        soft = Device(2)
        self.devices = [Device(1), soft] + ([Device(3, after=(soft,))] if self.m.nodes is None else [])
        self.model = Model(rng, rng.randbytes(rng.randrange(1, SIZE)), self.devices)
        self.path = self.make()
        self.reader = self.mapped("cuda:0", False)
        self.agents = [self.mapped("cuda:0"), self.mapped("soft:0")]
        self.demand = programs(self.path, small=True, length=SIZE) if self.m.nodes is None else None
        for device in self.devices:
            device.seen = len(self.model.content)
        self.history = []

    def make(self):
        if self.m.nodes:
            self.m.nodes.make(bytes(self.model.content), "f", home=self.rng.randrange(2))
        else:
            helpers.write_file(os.path.join(self.m.mnt, "f"), bytes(self.model.content))
        return os.path.join(self.m.mnt, "f")

    def mapped(self, name, writable=True):
        agent = self.gpu.agent()
        agent.do(MAP.replace("cuda:0", name), path=self.path, length=SIZE, writable=writable)
        return agent

    def somewhere(self):
        return os.path.join(self.rng.choice(self.mounts).mnt, "f")

    # What there is to do. Each chooses, and returns who does it, and says what he did: again, if he has failed.

    def write(self):
        size = len(self.model.content)
        part = self.model.part(self.rng, CPU, SIZE if self.rng.random() < 0.3 else size)
        return self.write_part(part)

    def write_near(self):
        """Where the file ends."""
        size = len(self.model.content)
        return self.write_part(self.model.part(self.rng, CPU, min(size + 100, SIZE), max(0, size - 300)))

    def write_part(self, part):
        if not part:
            return lambda: "nothing"
        at, data, path = part[0], self.rng.randbytes(part[1]), self.somewhere()

        def do():
            write_at(path, data, at)
            self.model.write(at, data)
            return f"write {at}+{len(data)}"
        return do

    def truncate(self):
        size, now = len(self.model.content), self.rng.random()
        to = (self.rng.randrange(1, SIZE) if now < 0.5 else max(1, size - self.rng.randrange(3 * PAGE)) if now < 0.8
              else self.rng.randrange(SIZE // PAGE + 1) * PAGE)
        path = self.somewhere()

        def do():
            os.truncate(path, to)
            self.model.resize(to)
            return f"truncate {size} to {to}"
        return do

    def times(self):
        mode, behind = self.rng.choice([0o600, 0o640]), self.rng.random() < 0.5
        path = os.path.join(self.m.data, "f") if behind else self.somewhere()

        def do():
            os.chmod(path, mode)
            return f"chmod {'behind' if behind else 'at'} the mount"
        return do if not self.fails else self.read()

    def read(self):
        path = self.somewhere()

        def do():
            self.model.check("read()", read_file(path))
            return "read"
        return do

    def end_of(self, device):
        return device.seen if device.number != 2 else len(self.model.content)

    def store(self):
        device = self.rng.choice(self.devices)
        if device.number == 3 and device.seen < len(self.model.content):
            return self.acquire(device)  # touches of what was cut may be EIO: docs/limits.md
        part = self.model.part(self.rng, device.number, min(self.end_of(device), len(self.model.content)))
        if not part:
            return lambda: "nothing"
        at, length = part

        def do():
            data = self.model.store(self.rng, device, at, self.load(device, at, length))
            if device.number == 3:
                self.demand.store(at, data)
            else:
                self.agents[device.number - 1].do("map[at:at + len(data)] = data", at=at, data=data)
            return f"{device.number} stores {at}+{length}"
        return do

    def load(self, device, at, length):
        if device.number == 3:
            return b"".join(self.demand.load(at + i, min(PAGE, length - i)) for i in range(0, length, PAGE))
        return self.agents[device.number - 1]("map[at:at + length]", at=at, length=length)

    def wild(self):
        """A kernel that stores past the end."""
        gpu, size = self.devices[0], len(self.model.content)
        if size >= SIZE:
            return self.read()
        at = self.rng.choice([size, self.rng.randrange(size, SIZE)])
        length = min(self.rng.choice([1, 50, 2 * PAGE]), SIZE - at)

        def do():
            self.agents[0].do("map[at:at + length] = b'w' * length", at=at, length=length)
            gpu.wild.update(range(at, at + length))
            return f"1 stores past the end: {at}+{length}"
        return do

    def call(self, device, name, first=0, length=SIZE):
        if device.number == 3:
            answer = self.demand.ask(name)
            if answer != "ok":
                raise OSError(int(answer.split()[1]), answer)
        else:
            self.agents[device.number - 1].do(f"map.{name}(first, length)", first=first, length=length)

    def release(self):
        device = self.rng.choice(self.devices)
        first = self.rng.choice([0, 0, self.rng.randrange(SIZE // PAGE) * PAGE])

        def do():
            if device.number == 3:  # all that its kernels have stored goes to the soft mapping
                self.call(device, "release")
                self.model.release(device)
            else:
                self.call(device, "release", first, SIZE - first)
                self.model.release(device, first)
            return f"{device.number} releases from {first}"
        return do

    def acquire(self, device=None):
        device = device or self.rng.choice(self.devices)

        def do():
            self.call(device, "acquire")
            self.model.acquire(device)
            self.then = lambda: self.compare(device)
            return f"{device.number} acquires"
        return do

    def compare(self, device):
        content = bytes(self.model.content)
        found = self.load(device, 0, len(content)) if content else b""
        self.model.check(f"device {device.number}", found)
        if device.number == 1 and len(content) < SIZE:
            rest = self.load(device, len(content), SIZE - len(content))
            wrong = [len(content) + i for i, value in enumerate(rest) if value and len(content) + i not in device.wild]
            assert not wrong, f"device 1 has bytes past the end {len(content)}: {wrong[0]} to {wrong[-1]}"

    def look(self):
        """Of the one that only reads."""
        def do():
            self.reader.do("map.acquire()")
            self.then = self.compare_reader
            return "reader acquires"
        return do

    def compare_reader(self):
        content = bytes(self.model.content)
        found = self.reader("map[:]")
        self.model.check("the reader", found[:len(content)])
        assert not any(found[len(content):]), "the reader has bytes past the end"

    def die(self):
        """What it has stored stays in the device's copy. A program comes in its place."""
        number = self.rng.randrange(2)

        def do():
            self.agents[number].kill()
            self.agents[number] = self.mapped(("cuda:0", "soft:0")[number])
            self.call(self.devices[number], "acquire")
            self.model.acquire(self.devices[number])
            return f"{number + 1} is killed"
        return do

    def stand(self):
        """A program that stands still holds nobody up."""
        stopped = self.rng.choice(self.agents + [self.reader])

        def do():
            os.kill(stopped.pid, signal.SIGSTOP)
            try:
                for what in self.rng.choices([self.write, self.truncate, self.read], k=3):
                    self.note("beside one that stands: " + what()())
            finally:
                os.kill(stopped.pid, signal.SIGCONT)
            return "all go on"
        return do

    def note(self, what):
        self.history.append(what)

    def step(self):
        what = self.rng.choices(
            [self.write, self.truncate, self.times, self.read, self.store, self.wild, self.release, self.acquire, self.look,
             self.die, self.stand], [20, 15, 8, 8, 25, 2, 10, 12, 5, 0.3, 0.5])[0]
        self.perform(what)
        if what == self.times and self.rng.random() < 0.5:
            self.perform(self.truncate)
            self.perform(self.write_near)
        if what in (self.times, self.truncate) and self.rng.random() < 0.5:
            self.perform(self.rng.choice([self.look, self.write_near, self.write]))
            self.perform(lambda: self.acquire(self.devices[0]))

    def perform(self, choose):
        """The driver fails in calls that can say so: a touch of a soft device would be SIGBUS."""
        self.then = lambda: None
        self.call_it(choose)
        self.then()

    def call_it(self, choose):
        what = choose()
        if not self.fails or choose in (self.die, self.stand, self.store, self.wild) or self.rng.random() < 0.6:
            self.note(what())
            return
        name, count, error = self.rng.choice(CALLS), self.rng.choice([0, 1, 1, 2, 3]), self.rng.choice([2, 999])
        if choose == self.truncate:
            name = "cuMemsetD8Async"
        self.gpu.fail(name, count, error)
        try:
            done = what()
        except OSError as problem:
            self.gpu.heal()
            self.note(f"{name} {count} {error}: {problem}")
            done = what()
        else:
            self.gpu.heal()
        self.note(f"{name} {count} {error}: {done}")

    def end(self):
        for device in self.devices:
            self.call(device, "acquire")
            self.model.acquire(device)
        for m in self.mounts:
            found = read_file(os.path.join(m.mnt, "f"))
            assert found == bytes(self.model.content), self.model.check("at the end", found) or "a byte is early"


@pytest.mark.limit(240 + STEPS // 2)
@pytest.mark.parametrize("fails", [False, True] if "GAIA_GATE" not in os.environ else ["one of both"])
def test_storm(gpu, programs, fails):  # noqa: F811
    """fails: the driver does, and then no times change: both together may lose what another device has released."""
    rng = make_random()
    storm = Storm(gpu, programs, rng, rng.random() < 0.5 if fails == "one of both" else fails)
    try:
        for _ in range(STEPS):
            storm.step()
        storm.end()
    except (AssertionError, OSError, AgentDied):
        print("\n".join(storm.history[-60:]))
        raise
