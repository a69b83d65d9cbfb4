#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mount tests on a GPU: on the stand-in of tests/cuda, or, with GAIA_REAL_GPU=1, on the cuda:0 of this machine.

    on_gpu.py [NAME ...]        of tests/mount/test_NAME.py (default: those about files that devices map; with
                                GAIA_GATE=1 only some)

What only a device can do whose touches are faults is left out (marked `traps`). Ends with pytest's own line."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
FILES = "promises clients parts sharing changes nodes_random".split()
LONG = "broken_disks deaths disks oracle durability room nodes nodes_calls nodes_comings nodes_deaths nodes_members nodes_names nodes_parting nodes_room nodes_words leaving".split()  # not in the gate


def main():
    names = sys.argv[1:] or (FILES if os.environ.get("GAIA_GATE") else FILES + LONG)
    build = os.path.abspath(os.environ.get("GAIAFS_BUILD", os.path.join(TOP, "build", "gcc")))
    env = {**os.environ, "GAIA_DEVICE": "cuda:0"}
    if os.environ.get("GAIA_REAL_GPU") != "1":
        env["LD_LIBRARY_PATH"] = os.path.join(build, "cuda")
        env["STANDIN_CUDA"] = "opaque=1"  # a GPU's memory is none of this program's
    if os.environ.get("GAIA_AGAIN"):  # as tests/run.sh has it: a second try for a few
        command = [os.path.join(TOP, "tests", "check.py"), "--mounts", "--files", ",".join(names), "--build", build,
                   "--bin", env.get("GAIAFS_BIN", TOP), "--sanitize", env.get("GAIAFS_SANITIZE", "")]
    else:
        command = ["-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", *(os.path.join(HERE, f"test_{name}.py") for name in names)]
    return subprocess.run([sys.executable, "-B", *command], env=env, cwd=TOP).returncode


if __name__ == "__main__":
    sys.exit(main())
