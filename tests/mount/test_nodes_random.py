# SPDX-License-Identifier: Apache-2.0
"""Several nodes: random operations of programs on all of them, against a bytearray."""
import pytest

import gaia  # noqa: F401
from files import pattern
from helpers import PAGE, AgentDied, agents, make_random, read_file  # noqa: F401
from nodes import Program, check, cluster  # noqa: F401

SIZE = 12 * PAGE

# What a program does of a list of (kind, offset, data): at the same time as the others. A device may have old bytes, and to
# store there what it has is no store: such a byte gets another value.
DO = """
changed = []
for kind, offset, data in ops:
    if kind == "write":
        assert os.pwrite(fd, data, offset) == len(data)
    elif kind == "store":
        cpu[offset:offset + len(data)] = data
    elif kind == "device":
        data = bytes(new ^ 1 if new == old else new for new, old in zip(data, map[offset:offset + len(data)]))
        map[offset:offset + len(data)] = data
        changed.append((offset, data))
    elif kind == "look":
        os.pread(fd, len(data), offset), cpu[offset:offset + len(data)], map[offset:offset + len(data)]
    elif kind == "release":
        map.release(offset // 4096 * 4096)
    elif kind == "acquire":
        map.acquire()
    elif kind == "fsync":
        os.fsync(fd)
    elif kind == "msync":
        cpu.flush()
    elif kind == "direct":
        read_direct(f"/proc/self/fd/{fd}", os.fstat(fd).st_size)
    else:
        map.advise(gaia.ADV_DONTNEED)
cpu.flush()
os.fsync(fd)
map.release()
"""
EVENTS = ["look", "look", "release", "acquire", "fsync", "msync", "direct", "advise"]


def plan(rng, programs, size):
    """For each program a list of operations; no byte belongs to two of them, nor to two ways of storing."""
    ops = [[] for _ in range(programs)]
    at = rng.randrange(200)
    while at < size:
        length = min(rng.choice([1, 1, 3, 50, 700, PAGE + 5]), size - at)
        ops[rng.randrange(programs)].append((rng.choice(["write", "store", "device"]), at, rng.randbytes(length)))
        at += length + rng.choice([0, 0, 1, 100, 3000])
    stored = [op for each in ops for op in each]
    for each in ops:
        rng.shuffle(each)
        for _ in range(rng.randrange(6)):
            at = rng.randrange(max(size, 1))
            if size:
                each.insert(rng.randrange(len(each) + 1), (rng.choice(EVENTS), at, bytes(min(100, size - at))))
    return ops, stored


def resize(rng, programs, content):
    """One program changes the size while the others do nothing."""
    size = rng.choice([1, PAGE - 1, PAGE, PAGE + 1, SIZE, SIZE, rng.randrange(1, SIZE)])
    who = programs[rng.randrange(len(programs))]
    who.truncate(size)
    who.fsync()
    for program in programs:  # a load past the end that a kernel knows is a SIGBUS, see test_nodes.py
        assert program.size() == size
        program.grown()
    del content[size:]
    content += bytes(size - len(content))
    return f"size {size}"


def everybody_looks(rng, programs, content, when):
    for number in rng.sample(range(len(programs)), len(programs)):
        program = programs[number]
        looks = {"read()": program.read, "load()": lambda p=program: p.load(end=len(content)), "O_DIRECT": program.direct,
                 "device": lambda p=program: p.acquired(end=len(content))}
        if rng.random() < 0.3:  # its device and its kernel stay as old as they are
            continue
        for name in rng.sample(list(looks), rng.randrange(1, 5)):
            check(f"{when}: {name} of program {number}", looks[name](), bytes(content))
        assert program.size() == len(content), when


@pytest.mark.limit(240)
@pytest.mark.parametrize("count, options", [(2, ""), (2, ",unit=4K"), (2, ",device_cache=1M"), (3, "")])
def test_random_operations_of_all_nodes(cluster, agents, count, options):
    """Between two points at which everything is flushed and released all programs store at once, each its own bytes."""
    rng = make_random()
    nodes = cluster(count, "timeout=0" + options)
    content = bytearray(pattern(SIZE))
    nodes.make(content, home=rng.randrange(count))
    programs = [Program(agents(), nodes.path(number % count), f"soft:{number // count}", length=SIZE)
                for number in range(2 * count)]
    history = []
    try:
        for phase in range(40):
            if rng.random() < 0.3:
                history.append(f"{phase}: {resize(rng, programs, content)}")
                everybody_looks(rng, programs, content, f"phase {phase}, resized")
            ops, stored = plan(rng, len(programs), len(content))
            for program, each in zip(programs, ops):
                program.agent.start(DO, ops=each)
            for number, (program, each) in enumerate(zip(programs, ops)):
                program.agent.finish()
                stored += [("device", *change) for change in program.agent("changed")]
                history.append(f"{phase}: program {number}: "
                               + ", ".join(f"{kind} {at}+{len(data)}" for kind, at, data in each))
            for _, at, data in stored:
                content[at:at + len(data)] = data
            everybody_looks(rng, programs, content, f"phase {phase}")
    except (AssertionError, AgentDied):
        print("\n".join(history[-30:]))
        raise
    for program in programs:
        program.agent.end()
    for m in rng.sample(list(nodes), count):
        assert m.unmount() is None
    check("the data directory", read_file(nodes.below()), bytes(content))
