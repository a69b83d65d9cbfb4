# SPDX-License-Identifier: Apache-2.0
"""A mount and programs with a GPU, which is a stand-in (tests/cuda/standin.c), for the tests of what only a GPU has. Import
the fixture, and `agents` of helpers.py, which it needs."""
import os

import pytest

import helpers
from helpers import device_statistics, write_file
from nodes import Cluster

MAP = """
fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
dev = gaia.Device("cuda:0")
map = dev.mmap(fd, length, 3 if writable else 1)
"""


@pytest.fixture(params=["here", "on another node"])
def gpu(mount, agents, monkeypatch, workdir, request):
    """A mount and programs with a GPU: gpu.mount(standin="words"), gpu.program(path, length) -> an agent with `map`.
    Its parameter: where the home of the files is that make() makes."""
    monkeypatch.setenv("LD_LIBRARY_PATH", helpers.cuda_standin())
    monkeypatch.setenv("GAIA_DEVICE", "cuda:0")

    class Gpu:
        control = os.path.join(workdir, "control")
        control_of_programs = control + "-programs"

        def mount(self, standin="", options=""):
            env = {"STANDIN_CUDA": f"{standin},control={self.control}"}
            if request.param == "here":
                m = mount(options, env=env)
                m.nodes = None
                return m
            data = os.path.join(workdir, "shared")
            os.mkdir(data)
            nodes = Cluster(mount, data, 2, f"timeout=0,{options}".strip(","))
            m = nodes.mount(0, env=env)
            nodes.mount(1, "timeout=0", env={"STANDIN_CUDA": "gpus=0"})
            m.nodes = nodes
            return m

        def agent(self, standin="", **env):
            return agents({"STANDIN_CUDA": standin, **env})

        def program(self, path, length=None, writable=True, standin=""):
            agent = self.agent(standin)
            agent.do(MAP, path=path, length=length or os.stat(path).st_size, writable=writable)
            return agent

        def fail(self, name, count, error, control=None):
            """The next calls of the driver of the daemon, or of who has the other control: see standin.c."""
            control = control or self.control
            with open(control + ".new", "w") as file:
                file.write(f"{name} {count} {error}\n")
            os.rename(control + ".new", control)

        def failed(self, control=None):
            with open(control or self.control) as file:
                return file.read().startswith("done")

        def heal(self):
            os.unlink(self.control)

    return Gpu()


only_here = pytest.mark.parametrize("gpu", ["here"], indirect=True)


def make(m, content, name="f"):
    if getattr(m, "nodes", None):
        m.nodes.make(content, name, home=1)
    else:
        write_file(os.path.join(m.mnt, name), content)
    return os.path.join(m.mnt, name)


def keeps_twins(m):
    """Of a file in passthrough nobody hears of writes: every page that can be stored to has a twin of its own."""
    return helpers.statistics(m.mnt)["passthrough"]


def released(m):
    """The GPU's counters, which the home has."""
    return device_statistics(m.nodes[1].mnt, "node:0") if m.nodes else device_statistics(m.mnt, "cuda:0")
