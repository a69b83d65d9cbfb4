# SPDX-License-Identifier: Apache-2.0
"""What a process that hangs is doing."""
import contextlib
import os
import shutil
import subprocess


def stacks(pid):
    """The kernel's and the program's stacks of a process, as far as this machine shows them."""
    lines = []
    with contextlib.suppress(OSError):
        for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            lines.append(f"thread {task}:")
            for name in ("comm", "wchan", "stack"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/{name}") as file:
                    lines.append(f"  {name}: {file.read().strip()}")
    for command in (["eu-stack", "-n", "16", "-p", str(pid)], ["gdb", "-batch", "-p", str(pid), "-ex", "thread apply all bt 16"]):
        if shutil.which(command[0]):
            with contextlib.suppress(subprocess.TimeoutExpired):
                lines.append(subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                            timeout=20).stdout)
            break
    return "\n".join(lines)
