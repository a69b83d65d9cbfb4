# SPDX-License-Identifier: Apache-2.0
"""The threads that serve a client's touches (cache/fault_threads.c): how many there are, and that they end."""
import contextlib
import os
import time

import helpers
from files import make
from helpers import MIB, PAGE, agents, make_random, read_file, repeats  # noqa: F401

TOUCH = """
import ctypes, random, threading
def touch(seed):
    rng = random.Random(seed)
    pages = list(range(len(content) // PAGE))
    rng.shuffle(pages)
    for page in pages:
        here = ctypes.create_string_buffer(PAGE)
        ctypes.memmove(here, map.address + page * PAGE, PAGE)  # lets go of the interpreter's lock
        if here.raw != content[page * PAGE:(page + 1) * PAGE]:
            wrong.append(page)
wrong = []
threads = [threading.Thread(target=touch, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def serving(m):
    count = 0
    for task in os.listdir(f"/proc/{m.proc.pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{m.proc.pid}/task/{task}/comm") as file:
            count += file.read() == "gaiafs-faults\n"
    return count


def test_several_threads_serve_a_client(mount, agents):
    """As many as the option says, whatever comes; they go with the client."""
    m = mount("fault_threads=3,device_cache=8M,unit=4K")
    content = os.urandom(4 * MIB)
    path = make(m, content)
    other = agents()
    other.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('soft:0')\nmap = dev.mmap(fd, 4096)\nmap[0]", path=path)
    before = serving(m)
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('soft:0')\nmap = dev.mmap(fd, len(content))", path=path,
             content=content)
    agent.do("map.advise(gaia.ADV_RANDOM)")
    agent.do(TOUCH)
    assert agent("wrong") == []
    assert 1 < serving(m) - before <= 3
    agent.do("for page in range(0, len(content) // PAGE, 3): map[page * PAGE + 5:page * PAGE + 6] = b'#'\nmap.release()")
    expected = bytearray(content)
    expected[5::3 * PAGE] = b"#" * len(expected[5::3 * PAGE])
    assert read_file(path) == bytes(expected)
    agent.do("dev.close()\nos.close(fd)")
    agent.end()
    helpers.wait_until(lambda: serving(m) == before)


def test_a_client_that_dies_while_many_serve_it(mount, agents):
    m = mount("fault_threads=4,device_cache=8M,unit=4K")
    content = os.urandom(2 * MIB)
    path = make(m, content)
    rng = make_random("die")
    before = serving(m)
    for _ in range(repeats(6)):
        agent = agents()
        agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('soft:1')\nmap = dev.mmap(fd, len(content))", path=path,
                 content=content)
        agent.start(TOUCH)
        time.sleep(rng.random() / 20)
        agent.proc.kill()
        agent.proc.wait()
    helpers.wait_until(lambda: serving(m) == before)
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('soft:1')\nmap = dev.mmap(fd, len(content))", path=path,
             content=content)
    assert agent("map[:] == content")


def test_a_descriptor_that_blocks(mount, agents):
    """Its description is the client's, too, who can have a read wait: who serves it is in one, the others wait for their turn."""
    m = mount("fault_threads=4,unit=4K")
    content = os.urandom(MIB)
    path = make(m, content)
    before = serving(m)
    for _ in range(4):
        agent = agents()
        agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('soft:0')\nmap = dev.mmap(fd, len(content))", path=path,
                 content=content)
        agent.do(TOUCH)
        assert serving(m) > before + 1
        agent.do("import contextlib\nfor name in os.listdir('/proc/self/fd'):\n"
                 "    with contextlib.suppress(OSError):\n"
                 "        if 'userfaultfd' in os.readlink(f'/proc/self/fd/{name}'): os.set_blocking(int(name), True)\n"
                 "map.advise(gaia.ADV_DONTNEED)\nassert map[0:PAGE] == content[:PAGE]")
        agent.proc.kill()
        agent.proc.wait()
        helpers.wait_until(lambda: serving(m) == before)
