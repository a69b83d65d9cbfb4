#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a shell script in a virtual machine with the built tree in it, and show its console.

run.py --script FILE [--program PATH]... [--module NAME]... [--disk FILE]... [--limit SECONDS]
The exit code is the script's; 77 when no machine can be had here, 1 when it did not end in time.
"""
import argparse
import os
import sys

import image
import machine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", required=True)
    parser.add_argument("--program", action="append", default=[], help="goes to /bin, with its libraries")
    parser.add_argument("--file", action="append", default=[], metavar="INSIDE=PATH")
    parser.add_argument("--module", action="append", default=[], help="of the kernel's package, with what it needs")
    parser.add_argument("--disk", action="append", default=[], help="an image: /dev/vda and so on")
    parser.add_argument("--limit", type=float, default=120)
    args = parser.parse_args()
    try:
        machine.check()
        programs, files = image.tree()
        programs.update({f"/bin/{os.path.basename(path)}": path for path in args.program})
        files.update(dict(pair.split("=", 1) for pair in args.file))
        kernel, initramfs = image.build(programs, files, args.module)
        with open(args.script) as file:
            script = file.read()
        with machine.Machine(kernel, initramfs, script, args.disk, limit_s=args.limit) as guest:
            try:
                return int(guest.wait()[1])
            except AssertionError as problem:
                print(problem)
                return 1
            finally:
                print("\n".join(guest.lines))
    except image.Unavailable as problem:
        print(f"no virtual machine: {problem}")
        return 77


if __name__ == "__main__":
    sys.exit(main())
